/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars of jobs, and jobs as operators see them. */
#include "core/sched/job/history.h"

#include "base/alloc.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

/* ----------------------------------------------------------------- scalars */

struct last_value {
    double value;
    uint64_t step;
    bool is_set;
};

struct scalar {
    char name[PS_SCALAR_NAME_MAX + 1];
    ps_time reported_at; /* By any rank. */
    struct last_value *by_rank;
};

struct ps_sched_scalars {
    uint32_t num_workers;
    uint32_t count;
    uint32_t newest; /* Index of the name that was set last. */
    struct scalar list[PS_SCALARS_MAX];
};

/* The scalar of that name; NULL: there is none. Reports have the values of one
 * name one behind the other. */
static struct scalar *find_scalar(struct ps_sched_scalars *s, const char *name)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const uint32_t at = (s->newest + i) % s->count;

        if (strcmp(s->list[at].name, name) == 0) {
            s->newest = at;
            return &s->list[at];
        }
    }
    return NULL;
}

/* Makes room for one more name. */
static int add_scalar(struct ps_sched_scalars **scalars,
                      struct ps_account *account, uint32_t num_workers,
                      const char *name, struct ps_str *why)
{
    struct ps_sched_scalars *s = *scalars;
    const uint64_t bytes = num_workers * sizeof(struct last_value) +
                           (s == NULL ? sizeof(*s) : 0);
    struct ps_refusal refusal;
    struct scalar *new;
    int rc;

    if (s != NULL && s->count == PS_SCALARS_MAX) {
        ps_str_addf(why, "a job has at most %u scalars", PS_SCALARS_MAX);
        return PS_E_FULL;
    }
    rc = ps_account_charge(account, PS_COST_MEMORY, bytes, &refusal);
    if (rc != 0) {
        ps_refusal_text(&refusal, why);
        return rc;
    }
    if (s == NULL) {
        s = ps_calloc(1, sizeof(*s));
        s->num_workers = num_workers;
        *scalars = s;
    }
    s->newest = s->count;
    new = &s->list[s->count++];
    new->by_rank = ps_calloc(num_workers, sizeof(*new->by_rank));
    ps_str_copy(new->name, sizeof(new->name), name);
    return 0;
}

int ps_sched_scalars_set(struct ps_sched_scalars **scalars,
                         struct ps_account *account, uint32_t num_workers,
                         const struct ps_rec_rank_scalar *r, ps_time now,
                         struct ps_str *why)
{
    struct scalar *one = NULL;

    if (!ps_scalar_name_is_valid(r->name)) {
        ps_str_add(why, "a name has " PS_SCALAR_NAME_CHARACTERS);
        return PS_E_INVAL;
    }
    if (*scalars != NULL) {
        one = find_scalar(*scalars, r->name);
    }
    if (one == NULL) {
        int rc = add_scalar(scalars, account, num_workers, r->name, why);

        if (rc != 0) {
            return rc;
        }
        one = &(*scalars)->list[(*scalars)->newest];
    }
    one->by_rank[r->rank] = (struct last_value){
        .value = r->value, .step = r->step, .is_set = true};
    one->reported_at = now;
    return 0;
}

/* Mean of the values; the sum of `ranks` finite ones may overflow. */
static double mean_of(const struct ps_sched_scalars *s,
                      const struct scalar *one, double sum, uint32_t ranks)
{
    double mean = 0;

    if (isfinite(sum)) {
        return sum / ranks;
    }
    for (uint32_t i = 0; i < s->num_workers; i++) {
        mean += one->by_rank[i].is_set ? one->by_rank[i].value / ranks : 0;
    }
    return mean;
}

/* A value that is not a number makes all three figures so. */
static void fill_row(const struct ps_sched_scalars *s, const struct scalar *one,
                     ps_time now, struct ps_rec_job_scalar *ret)
{
    double sum = 0;

    *ret = (struct ps_rec_job_scalar){.name = one->name,
                                      .min = INFINITY,
                                      .max = -INFINITY,
                                      .age_ns = now - one->reported_at};
    for (uint32_t i = 0; i < s->num_workers; i++) {
        const struct last_value *v = &one->by_rank[i];

        if (!v->is_set) {
            continue;
        }
        ret->ranks++;
        ret->nonfinite += isfinite(v->value) ? 0 : 1;
        ret->step = v->step > ret->step ? v->step : ret->step;
        ret->min = v->value < ret->min || isnan(v->value) ? v->value : ret->min;
        ret->max = v->value > ret->max || isnan(v->value) ? v->value : ret->max;
        sum += v->value;
    }
    ret->mean = mean_of(s, one, sum, ret->ranks);
}

uint32_t ps_sched_scalars_rows(const struct ps_sched_scalars *s, ps_time now,
                               struct ps_rec_job_scalar rows[PS_SCALARS_MAX])
{
    const uint32_t count = s != NULL ? s->count : 0;

    for (uint32_t i = 0; i < count; i++) {
        fill_row(s, &s->list[i], now, &rows[i]);
    }
    return count;
}

void ps_sched_scalars_free(struct ps_sched_scalars *s)
{
    if (s == NULL) {
        return;
    }
    for (uint32_t i = 0; i < s->count; i++) {
        ps_free(s->list[i].by_rank);
    }
    ps_free(s);
}

/* -------------------------------------------------------------- ended jobs */

void ps_sched_job_fill_row(const struct ps_sched_job *j, ps_time now,
                           struct ps_msg_job_row *ret)
{
    *ret = (struct ps_msg_job_row){
        .gen = j->gen,
        .name = j->name,
        .uid = j->uid,
        .phase = j->phase,
        .mode = j->opt.mode,
        .on_loss = j->opt.on_loss,
        .weight = j->weight,
        .num_workers = j->opt.num_workers,
        .live_workers = j->workers.live_count,
        .slots = j->slot_count,
        .keys = j->keys.open_count,
        .bytes = j->keys.bytes,
        .barriers = j->barrier.last_open,
        .age_ns = now - j->observed.created_at,
        .optimizer = j->optimizer.declared.name,
        .compression = j->compression.text,
        .skipped_steps = j->norms.skipped_steps,
        .reason = j->reason,
    };
}

void ps_sched_history_add(struct ps_sched_history *h,
                          const struct ps_sched_job *j, ps_time now)
{
    struct ps_sched_ended_job *p =
        &h->jobs[h->ended_count++ % PS_SCHED_HISTORY_MAX];
    struct ps_rec_job_scalar scalars[PS_SCALARS_MAX];
    struct ps_msg msg = {.code = PS_MSG_JOB_ROW};
    struct ps_msg_job_row *row = &msg.job_row;

    ps_sched_job_fill_row(j, now, row);
    row->scalars = scalars;
    row->scalars_count = ps_sched_scalars_rows(j->observed.scalars, now,
                                               scalars);
    if (j->reason[0] != '\0') {
        row->phase = PS_JOB_PHASE_FAILED; /* Outcome of the job. */
    }
    ps_msg_free(p->row);
    p->row = ps_msg_dup(&msg);
    p->ended_at = now;
}

void ps_sched_history_restore(struct ps_sched_history *h, uint64_t number,
                              const struct ps_msg *row, ps_time ended_at)
{
    struct ps_sched_ended_job *p = &h->jobs[number % PS_SCHED_HISTORY_MAX];

    ps_msg_free(p->row);
    p->row = ps_msg_dup(row);
    p->ended_at = ended_at;
    h->ended_count = number + 1;
}

void ps_sched_history_fini(struct ps_sched_history *h)
{
    for (uint32_t i = 0; i < ps_sched_history_count(h); i++) {
        ps_msg_free(h->jobs[i].row);
    }
}

uint32_t ps_sched_history_count(const struct ps_sched_history *h)
{
    return h->ended_count < PS_SCHED_HISTORY_MAX ? (uint32_t)h->ended_count
                                                 : PS_SCHED_HISTORY_MAX;
}

const struct ps_sched_ended_job *
ps_sched_history_get(const struct ps_sched_history *h, uint32_t index)
{
    const uint64_t first = h->ended_count - ps_sched_history_count(h);

    return &h->jobs[(first + index) % PS_SCHED_HISTORY_MAX];
}

const struct ps_sched_ended_job *
ps_sched_history_find(const struct ps_sched_history *h, uint64_t gen)
{
    for (uint32_t i = 0; i < ps_sched_history_count(h); i++) {
        if (h->jobs[i].row->job_row.gen == gen) {
            return &h->jobs[i];
        }
    }
    return NULL;
}
