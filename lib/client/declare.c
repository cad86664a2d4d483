/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of the whole job: its optimizer, with settings for single keys
 * and changes while the job runs, and its compression. */
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"
#include "client/threads.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/name_hash.h"

#define PARAMS_MAX  32u
#define TUNINGS_MAX 2048u

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
        return client_error(c, PSC_E_INVAL, "an optimizer has a name");
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
