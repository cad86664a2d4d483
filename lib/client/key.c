/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: declared once by name, then used by number. A key that the agent
 * refuses keeps its number, which no caller has seen, and releases its name. */
#include "client/key.h"
#include "client/arena.h"
#include "client/grow.h"
#include "client/op.h"
#include "client/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/fnv1a.h"
#include "base/num.h"

#define DIMS_MAX      16u
#define BUCKETS_FIRST 64u

/* ------------------------------------------------------------------- table */

/* The bucket of a key; names come from the program itself. */
static struct key **bucket_of(const struct psc_client *c, enum ps_key_kind kind,
                              const char *name)
{
    uint32_t h = ps_fnv1a_32_add(PS_FNV1A_32, kind);

    h = ps_fnv1a_32(h, name, strlen(name));
    return &c->keys.buckets[h & (c->keys.bucket_count - 1)];
}

bool key_is_internal(const struct key *k)
{
    return k->kind == PS_KEY_KIND_COLLECTIVE;
}

uint64_t key_rounds_begun(const struct key *k)
{
    uint64_t round = k->round;

    PS_LIST_EACH_OF(const struct psc_op, op, of_key, &k->queue)
    {
        round += op_kinds[op->kind].is_round;
    }
    return round;
}

uint64_t key_newest_round(const struct psc_client *c)
{
    uint64_t newest = 0;

    for (uint32_t i = 0; i < c->keys.count; i++) {
        uint64_t round = key_rounds_begun(c->keys.by_number[i]);

        if (key_is_internal(c->keys.by_number[i])) {
            continue; /* Of a collective: optimizers do not apply. */
        }
        newest = round > newest ? round : newest;
    }
    return newest;
}

struct key *key_by_name(const struct psc_client *c, enum ps_key_kind kind,
                        const char *name)
{
    struct key *k;

    if (c->keys.bucket_count == 0) {
        return NULL;
    }
    k = *bucket_of(c, kind, name);
    while (k != NULL && (k->kind != kind || strcmp(k->name, name) != 0)) {
        k = k->next;
    }
    return k;
}

static void insert_name(struct psc_client *c, struct key *k)
{
    struct key **bucket = bucket_of(c, k->kind, k->name);

    k->next = *bucket;
    *bucket = k;
}

static void remove_name(struct psc_client *c, struct key *k)
{
    struct key **at = bucket_of(c, k->kind, k->name);

    while (*at != k) {
        at = &(*at)->next;
    }
    *at = k->next;
}

static int enlarge_buckets(struct psc_client *c)
{
    uint32_t count = c->keys.bucket_count == 0 ? BUCKETS_FIRST
                                               : c->keys.bucket_count * 2;
    struct key **old = c->keys.buckets;
    uint32_t old_count = c->keys.bucket_count;
    struct key **grown = calloc(count, sizeof(struct key *));

    if (grown == NULL) {
        return PSC_E_NOMEM;
    }
    c->keys.buckets = grown;
    c->keys.bucket_count = count;
    for (uint32_t i = 0; i < old_count; i++) {
        while (old[i] != NULL) {
            struct key *k = old[i];

            old[i] = k->next;
            insert_name(c, k);
        }
    }
    free(old);
    return 0;
}

static int reserve_keys(struct psc_client *c)
{
    if (c->keys.count >= PS_KEYS_MAX) {
        return PSC_E_FULL;
    }
    if (c->keys.count == c->keys.bucket_count) {
        int rc = enlarge_buckets(c);

        if (rc != 0) {
            return rc;
        }
    }
    return client_grow(&c->keys.by_number, c->keys.count, &c->keys.cap,
                       sizeof(struct key *));
}

struct key *key_of(struct psc_client *c, uint32_t number)
{
    if (number >= c->keys.count || !c->keys.by_number[number]->is_ready) {
        return NULL;
    }
    return c->keys.by_number[number];
}

static void free_key(struct key *k)
{
    if (k == NULL) {
        return;
    }
    free(k->name);
    free(k->shape);
    free(k->text);
    free(k);
}

void key_free_all(struct psc_client *c)
{
    for (uint32_t i = 0; i < c->keys.count; i++) {
        free_key(c->keys.by_number[i]);
    }
    free(c->keys.by_number);
    free(c->keys.buckets);
}

/* --------------------------------------------------------------- declaring */

int key_name_of(struct psc_client *c, const char *name, int64_t number,
                char digits[KEY_DIGITS_MAX], const char **ret_name)
{
    size_t len = name != NULL ? strlen(name) : 1;

    if (len == 0 || len > PS_KEY_NAME_MAX) {
        return client_error(c, PSC_E_INVAL,
                            "the name of a key must have 1 to %u bytes",
                            PS_KEY_NAME_MAX);
    }
    if (name == NULL) {
        snprintf(digits, KEY_DIGITS_MAX, "%" PRId64, number);
    }
    *ret_name = name != NULL ? name : digits;
    return 0;
}

int key_check_request(struct psc_client *c, struct key_request *w)
{
    size_t size = ps_dtype_size(w->dtype);

    if (size == 0) {
        return client_error(c, PSC_E_INVAL, "key '%s': no element type %u",
                            w->name, w->dtype);
    }
    if (w->ndim > DIMS_MAX) {
        return client_error(c, PSC_E_INVAL,
                            "key '%s': %u dimensions, but at most %u", w->name,
                            w->ndim, DIMS_MAX);
    }
    w->count = 1;
    for (uint32_t i = 0; i < w->ndim; i++) {
        if (!ps_mul_u64(w->count, w->shape[i], &w->count)) {
            w->count = UINT64_MAX;
        }
    }
    if (w->count == 0) {
        return client_error(c, PSC_E_INVAL, "key '%s' has no elements",
                            w->name);
    }
    if (w->row_width != 0 && (w->count % w->row_width != 0 ||
                              w->count / w->row_width > UINT32_MAX)) {
        return client_error(c, PSC_E_INVAL,
                            "key '%s' of %llu elements cannot have rows of "
                            "%u; there may be %u rows",
                            w->name, (unsigned long long)w->count, w->row_width,
                            UINT32_MAX);
    }
    if (!ps_mul_u64(w->count, size, &w->bytes) || w->bytes > PS_KEY_BYTES_MAX) {
        return client_error(
            c, PSC_E_TOOBIG, "key '%s' is larger than %llu TiB: split it",
            w->name, (unsigned long long)(PS_KEY_BYTES_MAX >> 40));
    }
    if (w->row_width * (uint64_t)ps_dtype_state_size(w->dtype) >
        PS_ROW_BYTES_MAX) {
        return client_error(c, PSC_E_TOOBIG,
                            "key '%s': a row of %u elements of %s is larger "
                            "than %llu bytes, and rows are not cut: use "
                            "narrower rows",
                            w->name, w->row_width, ps_dtype_name(w->dtype),
                            (unsigned long long)PS_ROW_BYTES_MAX);
    }
    return 0;
}

int key_check_same(struct psc_client *c, const struct key *k,
                   const struct key_request *w)
{
    if (k->row_width != w->row_width) {
        return client_error(
            c, PSC_E_MISMATCH,
            "key '%s' was declared with rows of %u elements before, and not "
            "of %u (0: not a key of rows)",
            w->name, k->row_width, w->row_width);
    }
    if (k->dtype == w->dtype && k->count == w->count) {
        return 0;
    }
    return client_error(
        c, PSC_E_MISMATCH,
        "key '%s' is %s of %llu elements, but was declared %s of %llu before",
        w->name, ps_dtype_name(w->dtype), (unsigned long long)w->count,
        ps_dtype_name(k->dtype), (unsigned long long)k->count);
}

static struct key *new_key(const struct key_request *w)
{
    struct key *k = calloc(1, sizeof(*k));

    if (k == NULL) {
        return NULL;
    }
    k->kind = (uint8_t)w->kind;
    k->name = strdup(w->name);
    k->shape = calloc(w->ndim + 1u, sizeof(*k->shape));
    if (k->name == NULL || k->shape == NULL) {
        free_key(k);
        return NULL;
    }
    if (w->ndim > 0) {
        memcpy(k->shape, w->shape, w->ndim * sizeof(*k->shape));
    }
    k->ndim = w->ndim;
    k->if_absent = w->if_absent;
    k->mxnet_key = w->mxnet_key;
    k->dtype = w->dtype;
    k->count = w->count;
    k->bytes = (size_t)w->bytes;
    k->row_width = w->row_width;
    ps_list_init(&k->queue);
    return k;
}

/* Declares a key. For an unbound key the message states what this rank knows of
 * it. */
static int send_key_request(struct psc_client *c, const struct key *k)
{
    struct ps_msg m = {.code = PS_MSG_L_KEY};

    m.l_key = (struct ps_msg_l_key){
        .request = k->is_unbound ? k->number : k->open_request->id,
        .kind = k->kind,
        .name = k->name,
        .dtype = (uint8_t)k->dtype,
        .count = k->count,
        .shape = k->shape,
        .shape_count = k->ndim,
        .mxnet_key = k->mxnet_key,
        .row_width = k->row_width,
        .if_absent = k->is_unbound ? PS_IF_ABSENT_CREATE : k->if_absent,
        .reattached = k->is_unbound,
        .pushed_round = k->is_unbound ? k->round : 0};
    return client_put(c, &m);
}

int key_declare(struct psc_client *c, const struct key_request *w,
                struct key **ret_key)
{
    int rc = reserve_keys(c);
    struct key *k;
    struct psc_op *op;

    if (rc != 0) {
        return rc;
    }
    k = new_key(w);
    if (k == NULL) {
        return PSC_E_NOMEM;
    }
    op = op_new(c, OP_KEY);
    if (op == NULL) {
        rc = PSC_E_NOMEM;
        goto free_key;
    }
    op->key = k;
    op->detached = true;
    rc = op_number(op);
    if (rc == 0) {
        k->open_request = op;
        rc = send_key_request(c, k);
    }
    if (rc != 0) {
        goto free_op;
    }
    op_set_state(op, OP_SENT);
    /* Internal keys have rounds in every mode. */
    k->is_async = c->options.mode != PSC_MODE_SYNC && !key_is_internal(k);
    k->number = c->keys.count;
    c->keys.by_number[c->keys.count++] = k;
    insert_name(c, k);
    *ret_key = k;
    return 0;

free_op:
    op_free(op);
free_key:
    free_key(k);
    return rc;
}

int key_get_collective(struct psc_client *c, const char *name, uint32_t dtype,
                       uint64_t count, struct key **ret_key)
{
    struct key_request w = {.kind = PS_KEY_KIND_COLLECTIVE,
                            .name = name,
                            .mxnet_key = -1,
                            .dtype = dtype,
                            .ndim = 1,
                            .shape = &count};
    struct key *k = key_by_name(c, w.kind, name);
    int rc = key_check_request(c, &w);

    if (rc == 0 && k == NULL) {
        rc = key_declare(c, &w, &k);
        client_flush(c);
    }
    if (rc == 0) {
        *ret_key = k;
    }
    return rc;
}

/* ----------------------------------------------------------------- answers */

/* Locates the results of the key. False: the client has failed. */
static bool accept_result_places(struct psc_client *c, struct key *k,
                                 const struct ps_msg_l_key_info *m)
{
    const struct arena *a = arena_find(c, m->arena);

    k->agent_number = m->key;
    if (k->row_width != 0 || k->is_async) {
        return true;
    }
    k->data[0] = arena_place(a, m->even_offset, k->bytes);
    k->data[1] = arena_place(a, m->odd_offset, k->bytes);
    if (k->data[0] == NULL || k->data[1] == NULL) {
        client_fail(
            c, PSC_E_PROTO,
            "the agent names a place for the results of '%s' that is not "
            "in its memory",
            k->name);
        return false;
    }
    return true;
}

void key_accept_info(struct psc_client *c, struct psc_op *op,
                     const struct ps_msg_l_key_info *m)
{
    struct key *k = op->key;

    if (m->error != 0) {
        k->open_request = NULL;
        remove_name(c, k);
        k->rc = client_failure(m->error);
        k->text = strdup(m->text[0] != '\0' ? m->text : ps_strerror(k->rc));
        op_end(op, k->rc, NULL);
        while ((op = PS_LIST_FIRST(struct psc_op, of_key, &k->queue)) != NULL) {
            op_end(op, k->rc, k->text);
        }
        return;
    }
    if (!accept_result_places(c, k, m)) {
        return;
    }
    k->open_request = NULL;
    k->round = m->pushed_round;
    k->is_ready = true;
    op_end(op, 0, NULL);
    op_pump(c, k);
}

/* --------------------------------------------------------------- re-attach */

void key_unbind_all(struct psc_client *c)
{
    for (uint32_t i = 0; i < c->keys.count; i++) {
        struct key *k = c->keys.by_number[i];

        if (k->is_ready && !k->is_unbound) {
            k->is_unbound = true;
            c->keys.unbound_count++;
        }
    }
}

int key_rebind_all(struct psc_client *c)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->keys.count; i++) {
        if (c->keys.by_number[i]->is_unbound) {
            rc = send_key_request(c, c->keys.by_number[i]);
        }
    }
    for (uint32_t i = 0; rc == 0 && i < c->keys.count; i++) {
        if (c->keys.by_number[i]->open_request != NULL) {
            rc = send_key_request(c, c->keys.by_number[i]);
        }
    }
    return rc;
}

void key_accept_rebind(struct psc_client *c, const struct ps_msg_l_key_info *m)
{
    struct key *k = m->request < c->keys.count ? c->keys.by_number[m->request]
                                               : NULL;

    if (k == NULL || !k->is_unbound) {
        client_fail(c, PSC_E_PROTO,
                    "the agent answered for a key that was not declared again");
        return;
    }
    if (m->error != 0) {
        client_fail(c, client_failure(m->error),
                    "the agent was lost, and the next one does not know the "
                    "key '%s': %s",
                    k->name,
                    m->text[0] != '\0' ? m->text : ps_strerror(m->error));
        return;
    }
    if (!accept_result_places(c, k, m)) {
        return;
    }
    k->is_unbound = false;
    c->keys.unbound_count--;
    op_pump(c, k);
}
