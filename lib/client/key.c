/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: declared once by name, then used by number. A key that the agent
 * refuses keeps its number, which no caller has seen, and releases its name. */
#include "client/state.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/num.h"

#define DIMS_MAX      16u
#define BUCKETS_FIRST 64u

/* -------------------------------------------------------------------- table */

static uint32_t hash_name(const char *name)
{
    uint32_t h = 2166136261u; /* FNV-1a; names come from the program itself. */

    for (; *name != '\0'; name++) {
        h = (h ^ (uint8_t)*name) * 16777619u;
    }
    return h;
}

bool key_is_internal(const struct key *k)
{
    return strncmp(k->wire_name, "c:", 2) == 0;
}

uint64_t key_rounds_begun(const struct key *k)
{
    uint64_t round = k->round;

    PS_LIST_EACH(n, &k->queue)
    {
        round += op_is_round(PS_CONTAINER(n, struct psc_op, of_key)->kind);
    }
    return round;
}

static struct key *find_name(const struct psc_client *c, const char *name)
{
    struct key *k;

    if (c->keys.bucket_count == 0) {
        return NULL;
    }
    k = c->keys.buckets[hash_name(name) & (c->keys.bucket_count - 1)];
    while (k != NULL && strcmp(k->wire_name, name) != 0) {
        k = k->next;
    }
    return k;
}

struct key *key_by_name(const struct psc_client *c, const char *full)
{
    return c->keys.bucket_count == 0 ? NULL : find_name(c, full);
}

static void insert_name(struct psc_client *c, struct key *k)
{
    struct key **bucket =
        &c->keys.buckets[hash_name(k->wire_name) & (c->keys.bucket_count - 1)];

    k->next = *bucket;
    *bucket = k;
}

static void remove_name(struct psc_client *c, struct key *k)
{
    struct key **at =
        &c->keys.buckets[hash_name(k->wire_name) & (c->keys.bucket_count - 1)];

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
    uint32_t cap = c->keys.cap == 0 ? BUCKETS_FIRST : c->keys.cap * 2;
    struct key **grown;

    if (c->keys.count >= PS_KEYS_MAX) {
        return PSC_E_FULL;
    }
    if (c->keys.count == c->keys.bucket_count) {
        int rc = enlarge_buckets(c);

        if (rc != 0) {
            return rc;
        }
    }
    if (c->keys.count < c->keys.cap) {
        return 0;
    }
    grown = realloc(c->keys.by_number, cap * sizeof(struct key *));
    if (grown == NULL) {
        return PSC_E_NOMEM;
    }
    c->keys.by_number = grown;
    c->keys.cap = cap;
    return 0;
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
    free(k->wire_name);
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
    for (size_t i = 0; i < c->arenas.count; i++) {
        ps_shm_unmap_foreign(c->arenas.list[i]->data, c->arenas.list[i]->size);
        free(c->arenas.list[i]);
    }
    free(c->arenas.list);
}

/* -------------------------------------------------------------- declaring */

struct key_request {
    const char *wire_name; /* Name on the wire. */
    const char *name;      /* Full name, for messages. */
    int64_t mxnet_key;     /* -1: the key has a string name. */
    uint32_t dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint32_t row_width; /* Elements of a row; 0: a dense key. */
    uint8_t if_absent;  /* enum ps_find */
    uint64_t count;
    uint64_t bytes;
};

static int check_request(struct psc_client *c, struct key_request *w)
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

static int check_same(struct psc_client *c, const struct key *k,
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
    k->wire_name = strdup(w->wire_name);
    k->shape = calloc(w->ndim + 1u, sizeof(*k->shape));
    if (k->wire_name == NULL || k->shape == NULL) {
        free_key(k);
        return NULL;
    }
    if (w->ndim > 0) {
        memcpy(k->shape, w->shape, w->ndim * sizeof(*k->shape));
    }
    k->ndim = w->ndim;
    k->if_absent = w->if_absent;
    k->name = k->wire_name + (w->name - w->wire_name);
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
        .request = k->is_unbound ? KEY_REBIND | k->number : k->open_request->id,
        .name = k->wire_name,
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

/* Makes a key and its declaration, whose operation is detached: callers wait
 * for the key. The caller flushes. */
static int request_key(struct psc_client *c, const struct key_request *w,
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
    op_sent(op);
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

static bool key_is_answered(void *arg)
{
    const struct key *k = arg;

    return k->is_ready || k->rc != 0;
}

int key_get_or_ask(struct psc_client *c, const char *full, uint32_t dtype,
                   uint64_t count, struct key **ret_key)
{
    struct key_request w = {.wire_name = full,
                            .name = full + 2,
                            .mxnet_key = -1,
                            .dtype = dtype,
                            .ndim = 1,
                            .shape = &count};
    struct key *k = find_name(c, full);
    int rc = check_request(c, &w);

    if (rc == 0 && k == NULL) {
        rc = request_key(c, &w, &k);
        client_flush(c);
    }
    if (rc == 0) {
        *ret_key = k;
    }
    return rc;
}

/* Returns the key; a new one is declared. The caller flushes and waits. */
static int key_open_begin(struct psc_client *c, struct key_request *w,
                          struct key **ret_key)
{
    struct key *k;
    int rc = check_request(c, w);

    if (rc != 0) {
        return rc;
    }
    k = find_name(c, w->wire_name);
    if (k != NULL) {
        rc = check_same(c, k, w);
        if (rc != 0) {
            return rc;
        }
    } else {
        rc = request_key(c, w, &k);
        if (rc != 0) {
            return client_error(c, rc, "key '%s': %s", w->name,
                                c->rc != 0 ? c->text : ps_strerror(rc));
        }
    }
    *ret_key = k;
    return 0;
}

struct declared {
    struct key **keys;
    size_t count;
    size_t next; /* Keys before this index are answered. */
};

static bool keys_are_answered(void *arg)
{
    struct declared *d = arg;

    while (d->next < d->count && key_is_answered(d->keys[d->next])) {
        d->next++;
    }
    return d->next == d->count;
}

/* Waits until all are answered; returns the first failure. */
static int key_open_finish(struct psc_client *c, struct key **keys,
                           size_t count)
{
    struct declared d = {.keys = keys, .count = count};
    char why[PSC_TEXT_MAX / 2];
    int rc;

    client_flush(c);
    rc = client_wait(
        c, keys_are_answered, &d,
        client_deadline(c->op_timeout_ms > 0 ? c->op_timeout_ms : -1));
    if (rc == PS_E_TIMEOUT && reattach_explain(c, NULL, why, sizeof(why))) {
        return client_error(c, rc, "key '%s': %s", keys[d.next]->name, why);
    }
    if (rc == PS_E_TIMEOUT) {
        return client_error(c, rc,
                            "key '%s': the agent has not answered for %d "
                            "ms",
                            keys[d.next]->name, c->op_timeout_ms);
    }
    if (rc != 0) {
        return client_error(c, rc, "%s", c->text);
    }
    for (size_t i = 0; i < count; i++) {
        const struct key *k = keys[i];

        if (!k->is_ready) {
            return client_error(c, k->rc, "%s",
                                k->text != NULL ? k->text : ps_strerror(k->rc));
        }
    }
    return 0;
}

static uint8_t if_absent_of(uint32_t flags)
{
    return (flags & PSC_KEY_KNOWN) != 0 ? PS_IF_ABSENT_FAIL
           : (flags & PSC_KEY_OF_SUMS) != 0
               ? PS_IF_ABSENT_CREATE_UNLESS_OPTIMIZER
               : PS_IF_ABSENT_CREATE;
}

/* Makes the request for a key. `full` has PS_KEY_NAME_MAX + 1 bytes and
 * receives the wire name. */
static int make_request(struct psc_client *c, const struct psc_key_spec *spec,
                        char *full, struct key_request *ret_wish)
{
    *ret_wish = (struct key_request){
        .wire_name = full,
        .name = full + 2,
        .mxnet_key = spec->name != NULL ? -1 : spec->number,
        .dtype = spec->dtype,
        .ndim = spec->ndim,
        .shape = spec->shape,
        .row_width = spec->width,
        .if_absent = if_absent_of(spec->flags)};
    if ((spec->flags & ~(PSC_KEY_KNOWN | PSC_KEY_OF_SUMS)) != 0) {
        return client_error(c, PSC_E_INVAL, "no such flags of a key as %u",
                            spec->flags);
    }
    /* Names and numbers are different keys: "3" is not 3. */
    if (spec->name == NULL) {
        snprintf(full, PS_KEY_NAME_MAX + 1, "i:%lld", (long long)spec->number);
        return spec->number >= 0 ? 0
                                 : client_error(c, PSC_E_INVAL,
                                                "key %lld must not be negative",
                                                (long long)spec->number);
    }
    if (spec->name[0] == '\0' || strlen(spec->name) > PS_KEY_NAME_MAX - 2) {
        return client_error(c, PSC_E_INVAL,
                            "the name of a key must have 1 to %u bytes",
                            PS_KEY_NAME_MAX - 2);
    }
    snprintf(full, PS_KEY_NAME_MAX + 1, "s:%s", spec->name);
    return 0;
}

static int declare_keys(struct psc_client *c, const struct psc_key_spec *specs,
                        size_t count, struct key **keys)
{
    size_t asked = 0;
    int failed = 0;

    while (asked < count && failed == 0) {
        char full[PS_KEY_NAME_MAX + 1];
        struct key_request w;

        failed = make_request(c, &specs[asked], full, &w);
        if (failed == 0) {
            failed = key_open_begin(c, &w, &keys[asked]);
        }
        asked += failed == 0;
    }
    if (failed != 0) {
        client_flush(c); /* The keys before it are declared nevertheless. */
        return failed;
    }
    return key_open_finish(c, keys, count);
}

/* Repetitions of a declaration that finds another thread's PSC_KEY_KNOWN query
 * for the same name open. */
#define QUESTIONS_MAX 8

static bool creates_all(const struct psc_key_spec *specs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (specs[i].flags != 0) {
            return false;
        }
    }
    return true;
}

int psc_keys(struct psc_client *c, const struct psc_key_spec *specs,
             size_t count, uint32_t *ret_keys)
{
    struct key *one;
    struct key **keys = &one;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (count > 1) {
        keys = calloc(count, sizeof(struct key *));
    }
    if (keys == NULL) {
        rc = client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PSC_E_NOMEM));
        goto leave;
    }
    rc = declare_keys(c, specs, count, keys);
    for (int i = 0;
         rc == PSC_E_NOKEY && creates_all(specs, count) && i < QUESTIONS_MAX;
         i++) {
        rc = declare_keys(c, specs, count, keys); /* It waited for a query. */
    }
    for (size_t i = 0; i < count && rc == 0; i++) {
        ret_keys[i] = keys[i]->number;
    }
    if (keys != &one) {
        free(keys);
    }

leave:
    client_leave(c);
    return rc;
}

int psc_key(struct psc_client *c, const char *name, uint32_t dtype,
            uint32_t ndim, const uint64_t *shape, uint32_t *ret_key)
{
    const struct psc_key_spec spec = {
        .name = name, .dtype = dtype, .ndim = ndim, .shape = shape};

    return psc_keys(c, &spec, 1, ret_key);
}

int psc_key_int(struct psc_client *c, int64_t number, uint32_t dtype,
                uint32_t ndim, const uint64_t *shape, uint32_t *ret_key)
{
    const struct psc_key_spec spec = {
        .number = number, .dtype = dtype, .ndim = ndim, .shape = shape};

    return psc_keys(c, &spec, 1, ret_key);
}

static int declare_rows_key(struct psc_client *c, struct psc_key_spec *spec,
                            uint64_t rows, uint32_t *ret_key)
{
    const uint64_t shape[] = {rows, spec->width};
    int rc;

    spec->ndim = 2;
    spec->shape = shape;
    rc = psc_keys(c, spec, 1, ret_key);
    spec->shape = NULL;
    return rc;
}

int psc_key_rows(struct psc_client *c, const char *name, uint32_t dtype,
                 uint64_t rows, uint32_t width, uint32_t *ret_key)
{
    struct psc_key_spec spec = {.name = name, .dtype = dtype, .width = width};

    return declare_rows_key(c, &spec, rows, ret_key);
}

int psc_key_rows_int(struct psc_client *c, int64_t number, uint32_t dtype,
                     uint64_t rows, uint32_t width, uint32_t *ret_key)
{
    struct psc_key_spec spec = {
        .number = number, .dtype = dtype, .width = width};

    return declare_rows_key(c, &spec, rows, ret_key);
}

int psc_key_info(struct psc_client *c, uint32_t key, uint64_t *ret_count,
                 uint64_t *ret_bytes)
{
    int rc = client_enter(c);
    const struct key *k;

    if (rc != 0) {
        return rc;
    }
    k = key_of(c, key);
    if (k == NULL) {
        rc = client_error(c, PSC_E_NOKEY, "no key has the number %u", key);
    } else {
        *ret_count = k->count;
        *ret_bytes = k->bytes;
    }
    client_leave(c);
    return rc;
}

/* ------------------------------------------------------------------ answers */

static const struct arena *find_arena(const struct psc_client *c,
                                      uint32_t number)
{
    for (size_t i = 0; i < c->arenas.count; i++) {
        if (c->arenas.list[i]->number == number &&
            !c->arenas.list[i]->is_of_lost_agent) {
            return c->arenas.list[i];
        }
    }
    return NULL;
}

static int keep_arena_of_results(struct psc_client *c,
                                 const struct ps_msg_l_arena *m, int fd)
{
    struct arena *a;
    int rc;

    if (find_arena(c, m->arena) != NULL) {
        return PS_E_PROTO;
    }
    if (c->arenas.count == c->arenas.cap) {
        size_t cap = c->arenas.cap == 0 ? 8 : c->arenas.cap * 2;
        struct arena **grown = realloc(c->arenas.list,
                                       cap * sizeof(struct arena *));

        if (grown == NULL) {
            return PS_E_NOMEM;
        }
        c->arenas.list = grown;
        c->arenas.cap = cap;
    }
    a = calloc(1, sizeof(*a));
    if (a == NULL) {
        return PS_E_NOMEM;
    }
    a->number = m->arena;
    a->size = m->size;
    rc = ps_shm_map_foreign(fd, m->size, &a->data);
    if (rc != 0) {
        free(a);
        return rc;
    }
    c->arenas.list[c->arenas.count++] = a;
    return 0;
}

void key_accept_arena(struct psc_client *c, const struct ps_msg_l_arena *m,
                      int fd)
{
    int rc = keep_arena_of_results(c, m, fd);

    close(fd); /* The mapping remains. */
    if (rc != 0) {
        client_fail(c, rc, "cannot map the agent's memory %u: %s", m->arena,
                    ps_strerror(rc));
    }
}

static const uint8_t *arena_place(const struct arena *a, uint64_t offset,
                                  uint64_t bytes)
{
    if (a == NULL || offset % 8 != 0 || bytes > a->size ||
        offset > a->size - bytes) {
        return NULL;
    }
    return (const uint8_t *)a->data + offset;
}

/* Locates the results of the key. False: the client has failed. */
static bool accept_result_places(struct psc_client *c, struct key *k,
                                 const struct ps_msg_l_key_info *m)
{
    const struct arena *a = find_arena(c, m->arena);

    k->agent_number = m->key;
    if (k->row_width != 0 || k->is_async) {
        return true;
    }
    k->data[0] = arena_place(a, m->even_offset, k->bytes);
    k->data[1] = arena_place(a, m->odd_offset, k->bytes);
    if (k->data[0] == NULL || k->data[1] == NULL) {
        client_fail(c, PSC_E_PROTO,
                    "the agent keeps '%s' where it has no memory", k->name);
        return false;
    }
    return true;
}

void key_accept_info(struct psc_client *c, struct psc_op *op,
                     const struct ps_msg_l_key_info *m)
{
    struct key *k = op->key;
    struct ps_list_node *n;

    if (m->error != 0) {
        k->open_request = NULL;
        remove_name(c, k);
        k->rc = client_failure(m->error);
        k->text = strdup(m->text[0] != '\0' ? m->text : ps_strerror(k->rc));
        op_end(op, k->rc, NULL);
        while ((n = ps_list_first(&k->queue)) != NULL) {
            op_end(PS_CONTAINER(n, struct psc_op, of_key), k->rc, k->text);
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
    op_pump(k, c);
}

/* -------------------------------------------------------------- re-attach */

static void unmap_arena(struct psc_client *c, size_t at)
{
    struct arena *a = c->arenas.list[at];

    ps_shm_unmap_foreign(a->data, a->size);
    free(a);
    c->arenas.list[at] = c->arenas.list[--c->arenas.count];
}

void key_drop_arena(struct psc_client *c, struct arena *a)
{
    a->uses--;
    for (size_t i = 0; a->uses == 0 && i < c->arenas.count; i++) {
        if (c->arenas.list[i] == a) {
            unmap_arena(c, i);
            return;
        }
    }
}

/* Arena of the current agent that contains `data`, or NULL. */
static struct arena *arena_around(const struct psc_client *c, const void *data)
{
    for (size_t i = 0; i < c->arenas.count; i++) {
        struct arena *a = c->arenas.list[i];
        const uint8_t *from = a->data;

        if (!a->is_of_lost_agent && (const uint8_t *)data >= from &&
            (const uint8_t *)data < from + a->size) {
            return a;
        }
    }
    return NULL;
}

/* Unmaps the lost agent's arenas that no open result uses. */
static void drop_lost_arenas(struct psc_client *c)
{
    PS_LIST_EACH(n, &c->ops.all)
    {
        struct psc_op *op = PS_CONTAINER(n, struct psc_op, of_client);

        if (op->result.data != NULL && op->result.arena == NULL) {
            op->result.arena = arena_around(c, op->result.data);
            op->result.arena->uses++;
        }
    }
    for (size_t i = c->arenas.count; i-- > 0;) {
        c->arenas.list[i]->is_of_lost_agent = true;
        if (c->arenas.list[i]->uses == 0) {
            unmap_arena(c, i);
        }
    }
}

void key_unbind_all(struct psc_client *c)
{
    for (uint32_t i = 0; i < c->keys.count; i++) {
        struct key *k = c->keys.by_number[i];

        if (k->is_ready && !k->is_unbound) {
            k->is_unbound = true;
            c->keys.unbound_count++;
        }
    }
    drop_lost_arenas(c);
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
    const uint64_t number = m->request & ~KEY_REBIND;
    struct key *k = number < c->keys.count ? c->keys.by_number[number] : NULL;

    if (k == NULL || !k->is_unbound) {
        client_fail(c, PSC_E_PROTO,
                    "the agent answered for a key that was not named again");
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
    op_pump(k, c);
}
