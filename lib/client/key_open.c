/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls that declare keys, and wait for the agent's answers. */
#include "client/key.h"
#include "client/op.h"
#include "client/progress.h"
#include "client/reattach.h"
#include "client/state.h"
#include "client/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool key_is_answered(void *arg)
{
    const struct key *k = arg;

    return k->is_ready || k->rc != 0;
}

/* Returns the key; a new one is declared. The caller flushes and waits. */
static int key_open_begin(struct psc_client *c, struct key_request *w,
                          struct key **ret_key)
{
    struct key *k;
    int rc = key_check_request(c, w);

    if (rc != 0) {
        return rc;
    }
    k = key_by_name(c, w->kind, w->name);
    if (k != NULL) {
        rc = key_check_same(c, k, w);
        if (rc != 0) {
            return rc;
        }
    } else {
        rc = key_declare(c, w, &k);
        if (rc != 0) {
            return client_error(c, rc, "key '%s': %s", w->name,
                                c->rc != 0 ? c->text : ps_strerror(rc));
        }
    }
    *ret_key = k;
    return 0;
}

struct declarations {
    struct key **keys;
    size_t count;
    size_t next; /* Keys before this index are answered. */
};

static bool keys_are_answered(void *arg)
{
    struct declarations *d = arg;

    while (d->next < d->count && key_is_answered(d->keys[d->next])) {
        d->next++;
    }
    return d->next == d->count;
}

static void describe_declaration(struct psc_client *c, void *arg,
                                 unsigned long long seconds, char *text,
                                 size_t size)
{
    const struct declarations *d = arg;

    if (!reattach_explain(c, NULL, text, size)) {
        snprintf(text, size,
                 "the declaration of key '%s' has waited %llu s for its place "
                 "on the servers",
                 d->keys[d->next]->name, seconds);
    }
}

/* Waits until all are answered; returns the first failure. */
static int key_open_finish(struct psc_client *c, struct key **keys,
                           size_t count)
{
    struct declarations d = {.keys = keys, .count = count};
    char why[PSC_TEXT_MAX / 2];
    int rc;

    client_flush(c);
    rc = wait_note_text(
        c, keys_are_answered, &d,
        client_deadline(c->op_timeout_ms > 0 ? c->op_timeout_ms : -1),
        describe_declaration);
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

/* Makes the request for a key. `digits` has KEY_DIGITS_MAX bytes and lives as
 * long as the request, which may refer to it. */
static int make_request(struct psc_client *c, const struct psc_key_spec *spec,
                        char *digits, struct key_request *ret_request)
{
    /* Names and numbers are different keys: "3" is not 3. */
    *ret_request = (struct key_request){
        .kind = spec->name != NULL ? PS_KEY_KIND_STRING : PS_KEY_KIND_INTEGER,
        .mxnet_key = spec->name != NULL ? -1 : spec->number,
        .dtype = spec->dtype,
        .ndim = spec->ndim,
        .shape = spec->shape,
        .row_width = spec->width,
        .if_absent = if_absent_of(spec->flags)};
    if (spec->shape == NULL && spec->ndim > 0) {
        return client_error(c, PSC_E_INVAL,
                            "a key of %u dimensions has no "
                            "shape",
                            spec->ndim);
    }
    if ((spec->flags & ~(PSC_KEY_KNOWN | PSC_KEY_OF_SUMS)) != 0) {
        return client_error(c, PSC_E_INVAL, "no such flags of a key as %u",
                            spec->flags);
    }
    if (spec->name == NULL && spec->number < 0) {
        return client_error(c, PSC_E_INVAL, "key %lld must not be negative",
                            (long long)spec->number);
    }
    return key_name_of(c, spec->name, spec->number, digits, &ret_request->name);
}

static int declare_keys(struct psc_client *c, const struct psc_key_spec *specs,
                        size_t count, struct key **keys)
{
    size_t declared = 0;
    int failed = 0;

    while (declared < count && failed == 0) {
        char digits[KEY_DIGITS_MAX];
        struct key_request w;

        failed = make_request(c, &specs[declared], digits, &w);
        if (failed == 0) {
            failed = key_open_begin(c, &w, &keys[declared]);
        }
        declared += failed == 0;
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
    rc = (specs == NULL || ret_keys == NULL) && count > 0
             ? client_error(c, PSC_E_INVAL,
                            "specs, ret_keys: NULL is no argument")
             : declare_keys(c, specs, count, keys);
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

    /* Without a name it would be the key with the number 0. */
    if (name == NULL) {
        return client_enter_with(c, name, "name");
    }
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

    /* Without a name it would be the key with the number 0. */
    if (name == NULL) {
        return client_enter_with(c, name, "name");
    }
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
    int rc = client_enter_with(c, ret_count != NULL ? ret_bytes : NULL,
                               "ret_count, ret_bytes");
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
