/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls with which a worker declares what all workers of the job declare:
 * keys, the optimizer with settings for single keys and changes while the job
 * runs, and the compression. */
#include "client/key.h"
#include "client/op.h"
#include "client/reattach.h"
#include "client/state.h"
#include "client/threads.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/name_hash.h"

#define PARAMS_MAX    32u
#define TUNINGS_MAX   2048u

/* Repetitions of a declaration that finds another thread's PSC_KEY_KNOWN query
 * for the same name open. */
#define QUESTIONS_MAX 8

/* --------------------------------------------------------------------- keys */

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

static void describe_declaration(struct psc_client *c,
                                 const struct wait_condition *until,
                                 unsigned long long seconds, char *text,
                                 size_t size)
{
    const struct declarations *d = until->arg;

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
    const int32_t limit = c->options.op_timeout_ms;
    struct declarations d = {.keys = keys, .count = count};
    char why[PSC_TEXT_MAX / 2];
    int rc;

    client_flush(c);
    rc = wait_note_text(c, keys_are_answered, &d,
                        client_deadline(limit > 0 ? limit : -1),
                        describe_declaration);
    if (rc == PS_E_TIMEOUT && reattach_explain(c, NULL, why, sizeof(why))) {
        return client_error(c, rc, "key '%s': %s", keys[d.next]->name, why);
    }
    if (rc == PS_E_TIMEOUT) {
        return client_error(c, rc,
                            "key '%s': the agent has not answered for %d "
                            "ms",
                            keys[d.next]->name, limit);
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
    struct key **keys;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    keys = calloc(count > 0 ? count : 1, sizeof(struct key *));
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
    free(keys);

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

/* --------------------------------------------------------------- parameters */

static int copy_params(struct psc_client *c, const struct psc_param *params,
                       uint32_t count, struct ps_rec_param *copies)
{
    if (count > PARAMS_MAX) {
        return client_error(c, PSC_E_INVAL, "%u parameters, but at most %u",
                            count, PARAMS_MAX);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (params == NULL || params[i].name == NULL) {
            return client_error(c, PSC_E_INVAL, "parameter %u has no name", i);
        }
        copies[i] = (struct ps_rec_param){.name = params[i].name,
                                          .value = params[i].value};
    }
    return 0;
}

/* -------------------------------------------------------------- optimizer */

static int compare_name_hash(const void *a, const void *b)
{
    const struct ps_rec_tuning *x = a;
    const struct ps_rec_tuning *y = b;

    return (x->name_hash > y->name_hash) - (x->name_hash < y->name_hash);
}

/* The key's name_hash, as the agent computes it. */
static int name_hash_of(struct psc_client *c, const struct psc_key_tuning *k,
                        uint64_t *ret_hash)
{
    char digits[KEY_DIGITS_MAX];
    const char *name;
    int rc = key_name_of(c, k->name, k->number, digits, &name);

    if (rc == 0) {
        *ret_hash = ps_name_hash(
            k->name != NULL ? PS_KEY_KIND_STRING : PS_KEY_KIND_INTEGER, name);
    }
    return rc;
}

/* Makes the tunings, sorted by name_hash, for rounds from `round` on; the
 * caller frees them. */
static int make_tunings(struct psc_client *c, const struct psc_key_tuning *keys,
                        uint32_t count, uint64_t round,
                        struct ps_rec_tuning **ret)
{
    struct ps_rec_tuning *list;

    if (keys == NULL && count > 0) {
        return client_error(c, PSC_E_INVAL, "keys: NULL is no argument");
    }
    if (count > TUNINGS_MAX) {
        return client_error(c, PSC_E_INVAL,
                            "multipliers are given for %u keys, and there "
                            "may be at most %u that differ from 1",
                            count, TUNINGS_MAX);
    }
    list = calloc(count + 1, sizeof(*list));
    if (list == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct psc_key_tuning *k = &keys[i];
        int rc = name_hash_of(c, k, &list[i].name_hash);

        if (rc != 0) {
            free(list);
            return rc;
        }
        list[i].lr_mult = k->lr_mult;
        list[i].wd_mult = k->wd_mult;
        list[i].norm_exempt = (list[i].name_hash & 1) != 0 ||
                              (k->flags & PSC_TUNING_PLAIN) != 0;
        list[i].round = round;
    }
    if (count > 1) {
        qsort(list, count, sizeof(*list), compare_name_hash);
    }
    *ret = list;
    return 0;
}

static int start_optimizer(struct psc_client *c, const struct psc_optimizer *d,
                           const struct psc_op_options *o,
                           struct psc_op **ret_op)
{
    struct ps_rec_param copies[PARAMS_MAX];
    struct ps_rec_tuning *tunings = NULL;
    struct ps_msg m = {.code = PS_MSG_L_OPTIMIZER};
    int rc;

    if (d->name == NULL) {
        return client_error(c, PSC_E_INVAL, "an optimizer needs a name");
    }
    rc = copy_params(c, d->params, d->param_count, copies);

    if (rc == 0) {
        rc = make_tunings(c, d->keys, d->key_count, 0, &tunings);
    }
    if (rc != 0) {
        return rc;
    }
    m.l_optimizer = (struct ps_msg_l_optimizer){.name = d->name,
                                                .params = copies,
                                                .params_count = d->param_count,
                                                .tunings = tunings,
                                                .tunings_count = d->key_count};
    rc = op_start_plain(c, OP_OPTIMIZER, &m, &m.l_optimizer.op_id, o, ret_op);
    if (rc == 0) {
        free(c->optimizer);
        c->optimizer = strdup(d->name);
    }
    free(tunings);
    return rc;
}

int psc_optimizer_declare_start(struct psc_client *c,
                                const struct psc_optimizer *declaration,
                                const struct psc_op_options *o,
                                struct psc_op **ret_op)
{
    struct psc_optimizer d = {0};
    int rc = client_enter_with(c, declaration, "declaration");

    if (rc != 0) {
        return rc;
    }
    if (declaration->size < offsetof(struct psc_optimizer, keys) ||
        declaration->size > 4096) {
        rc = client_error(c, PSC_E_INVAL,
                          "size of the declaration must be sizeof(struct "
                          "psc_optimizer)");
    } else {
        memcpy(&d, declaration,
               declaration->size < sizeof(d) ? declaration->size : sizeof(d));
        rc = start_optimizer(c, &d, o, ret_op);
    }
    client_leave(c);
    return rc;
}

int psc_optimizer_start(struct psc_client *c, const char *name,
                        const struct psc_param *params, uint32_t param_count,
                        const struct psc_op_options *o, struct psc_op **ret_op)
{
    const struct psc_optimizer d = {.size = sizeof(d),
                                    .name = name,
                                    .params = params,
                                    .param_count = param_count};

    return psc_optimizer_declare_start(c, &d, o, ret_op);
}

int psc_optimizer_declare(struct psc_client *c,
                          const struct psc_optimizer *declaration)
{
    struct psc_op *op = NULL;
    int rc = psc_optimizer_declare_start(c, declaration, NULL, &op);

    return op_finish(op, rc);
}

int psc_optimizer_set(struct psc_client *c, const char *name,
                      const struct psc_param *params, uint32_t param_count)
{
    struct psc_op *op = NULL;
    int rc = psc_optimizer_start(c, name, params, param_count, NULL, &op);

    return op_finish(op, rc);
}

/* ----------------------------------------------------------------- changes */

/* The round from which a change holds: `round`, or for 0 the next one of this
 * worker. PSC_E_INVAL: it has begun. */
static int round_of_change(struct psc_client *c, const char *what,
                           uint64_t round, uint64_t *ret)
{
    const uint64_t newest = key_newest_round(c);

    if (round != 0 && round <= newest) {
        return client_error(c, PSC_E_INVAL,
                            "%s cannot change at round %" PRIu64
                            ": this worker has begun round %" PRIu64
                            " already; give a later one, or 0 for the next",
                            what, round, newest);
    }
    *ret = round != 0 ? round : newest + 1;
    return 0;
}

static int start_change(struct psc_client *c, const char *name, double value,
                        uint64_t round, const struct psc_op_options *o,
                        struct psc_op **ret_op)
{
    struct ps_msg m = {.code = PS_MSG_L_OPTIMIZER_CHANGE};
    int rc = round_of_change(c, name, round, &m.l_optimizer_change.round);

    if (rc != 0) {
        return rc;
    }
    m.l_optimizer_change.name = name;
    m.l_optimizer_change.value = value;
    return op_start_plain(c, OP_CHANGE, &m, &m.l_optimizer_change.op_id, o,
                          ret_op);
}

int psc_set_start(struct psc_client *c, const char *name, double value,
                  uint64_t round, const struct psc_op_options *o,
                  struct psc_op **ret_op)
{
    int rc = client_enter_with(c, name, "name");

    if (rc == 0) {
        rc = start_change(c, name, value, round, o, ret_op);
        client_leave(c);
    }
    return rc;
}

int psc_set(struct psc_client *c, const char *name, double value,
            uint64_t round)
{
    struct psc_op *op = NULL;
    int rc = psc_set_start(c, name, value, round, NULL, &op);

    return op_finish(op, rc);
}

static int start_tuning(struct psc_client *c, const struct psc_key_tuning *keys,
                        uint32_t key_count, uint64_t round,
                        const struct psc_op_options *o, struct psc_op **ret_op)
{
    struct ps_rec_tuning *tunings = NULL;
    struct ps_msg m = {.code = PS_MSG_L_OPTIMIZER_TUNE};
    int rc = round_of_change(c, "multipliers", round, &round);

    if (rc == 0) {
        rc = make_tunings(c, keys, key_count, round, &tunings);
    }
    if (rc != 0) {
        return rc;
    }
    m.l_optimizer_tune.tunings = tunings;
    m.l_optimizer_tune.tunings_count = key_count;
    rc = op_start_plain(c, OP_CHANGE, &m, &m.l_optimizer_tune.op_id, o, ret_op);
    free(tunings);
    return rc;
}

int psc_tune_start(struct psc_client *c, const struct psc_key_tuning *keys,
                   uint32_t key_count, uint64_t round,
                   const struct psc_op_options *o, struct psc_op **ret_op)
{
    int rc = client_enter(c);

    if (rc == 0) {
        rc = start_tuning(c, keys, key_count, round, o, ret_op);
        client_leave(c);
    }
    return rc;
}

int psc_tune(struct psc_client *c, const struct psc_key_tuning *keys,
             uint32_t key_count, uint64_t round)
{
    struct psc_op *op = NULL;
    int rc = psc_tune_start(c, keys, key_count, round, NULL, &op);

    return op_finish(op, rc);
}

/* ------------------------------------------------------------- compression */

int psc_compression_start(struct psc_client *c, const char *name,
                          const struct psc_param *params, uint32_t param_count,
                          const struct psc_op_options *o,
                          struct psc_op **ret_op)
{
    struct ps_rec_param copies[PARAMS_MAX];
    struct ps_msg m = {.code = PS_MSG_L_COMPRESSION};
    int rc = client_enter_with(c, name, "name");

    if (rc != 0) {
        return rc;
    }
    rc = copy_params(c, params, param_count, copies);
    if (rc == 0) {
        m.l_compression = (struct ps_msg_l_compression){
            .name = name, .params = copies, .params_count = param_count};
        rc = op_start_plain(c, OP_COMPRESSION, &m, &m.l_compression.op_id, o,
                            ret_op);
    }
    client_leave(c);
    return rc;
}

int psc_compression_set(struct psc_client *c, const char *name,
                        const struct psc_param *params, uint32_t param_count)
{
    struct psc_op *op = NULL;
    int rc = psc_compression_start(c, name, params, param_count, NULL, &op);

    return op_finish(op, rc);
}
