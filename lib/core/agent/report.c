/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of the programs of this node's ranks. Scalars: the agent keeps the last
 * value of each name and rank, and reports those that are new to the
 * scheduler: one report of a job at a time, at an interval at least, so that the
 * scheduler gets few messages however often ranks report. A fresh link gets all
 * of them again. The scheduler refuses names that would be too many for the job;
 * they are not sent again, and ranks that report them get the error.
 *
 * Spans become entries of the trace ring. An entry has a fixed size, so it has
 * the number of its name in a table of the job, which grows with the names that
 * workers send, and ends with the job. */
#include "core/agent/report.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"

#include <string.h>

/* Least time between two reports of a job. */
#define REPORT_INTERVAL PS_MILLIS(250)

struct last_value {
    double value;
    uint64_t step;
    bool is_set;
    bool must_send; /* Not in a report since it was set. */
};

struct scalar {
    char name[PS_SCALAR_NAME_MAX + 1];
    bool is_refused;
    struct last_value *by_rank; /* By local rank. */
};

struct ps_agent_reports {
    /* Operations of workers; `round` is the request that has the last of their
     * values, 0: it is still to be sent. */
    struct ps_list ops;
    uint64_t request; /* Report without an answer; 0: none. */
    ps_time next_at;  /* No report is sent earlier. */
    uint64_t charged_bytes;
    uint32_t count;
    struct scalar list[PS_SCALARS_MAX];
    char refusal[PS_TEXT_MAX + 1]; /* Reason of the last refusal. */
};

static struct scalar *find_scalar(struct ps_agent_reports *r, const char *name)
{
    for (uint32_t i = 0; i < r->count; i++) {
        if (strcmp(r->list[i].name, name) == 0) {
            return &r->list[i];
        }
    }
    return NULL;
}

/* -------------------------------------------------------- scalars of ranks */

static int charge_bytes(struct ps_agent_job *j, uint64_t bytes,
                        struct ps_str *why)
{
    struct ps_refusal refusal;
    int rc = ps_account_charge(&j->account, PS_COST_MEMORY, bytes, &refusal);

    if (rc != 0) {
        ps_refusal_text(&refusal, why);
    }
    return rc;
}

static int obtain_reports(struct ps_agent_job *j, struct ps_str *why)
{
    int rc = 0;

    if (j->reports == NULL) {
        rc = charge_bytes(j, sizeof(*j->reports), why);
    }
    if (j->reports == NULL && rc == 0) {
        j->reports = ps_calloc(1, sizeof(*j->reports));
        j->reports->charged_bytes = sizeof(*j->reports);
        ps_list_init(&j->reports->ops);
    }
    return rc;
}

static int add_scalar(struct ps_agent_job *j, const char *name,
                      struct ps_str *why, struct scalar **ret_scalar)
{
    struct ps_agent_reports *r = j->reports;
    const uint64_t bytes = j->local_rank_count * sizeof(struct last_value);
    struct scalar *new;
    int rc;

    if (!ps_scalar_name_is_valid(name)) {
        ps_str_addf(why, "a name has 1 to %u characters: %s",
                    PS_SCALAR_NAME_MAX, PS_SCALAR_NAME_CHARACTERS);
        return PS_E_INVAL;
    }
    if (r->count == PS_SCALARS_MAX) {
        ps_str_addf(why, "a job has at most %u scalars", PS_SCALARS_MAX);
        return PS_E_FULL;
    }
    rc = charge_bytes(j, bytes, why);
    if (rc != 0) {
        return rc;
    }
    r->charged_bytes += bytes;
    new = &r->list[r->count++];
    ps_str_copy(new->name, sizeof(new->name), name);
    new->by_rank = ps_calloc(j->local_rank_count, sizeof(*new->by_rank));
    *ret_scalar = new;
    return 0;
}

static int set_value(struct ps_agent_job *j, uint32_t local_rank,
                     const struct ps_rec_scalar *m, struct ps_str *why)
{
    struct scalar *one = find_scalar(j->reports, m->name);
    int rc = 0;

    if (one == NULL) {
        rc = add_scalar(j, m->name, why, &one);
    } else if (one->is_refused) {
        ps_str_add_escaped(why, j->reports->refusal,
                           strlen(j->reports->refusal), PS_TEXT_MAX);
        rc = PS_E_FULL;
    }
    if (rc != 0) {
        return rc;
    }
    one->by_rank[local_rank] = (struct last_value){
        .value = m->value, .step = m->step, .is_set = true, .must_send = true};
    return 0;
}

/* Begins "scalar 'loss' of job digits is refused: ". */
static void begin_refusal(const struct ps_agent_job *j, const char *name,
                          struct ps_str *text)
{
    ps_str_add(text, "scalar '");
    ps_str_add_escaped(text, name, strlen(name), PS_SCALAR_NAME_MAX);
    ps_str_addf(text, "' of job %s is refused: ", j->name);
}

/* Keeps all values that can be kept. The first error, with its text. */
static int set_values(struct ps_agent_job *j, uint32_t local_rank,
                      const struct ps_msg_l_report *m, struct ps_str *text)
{
    int first = obtain_reports(j, text);

    for (uint32_t i = 0; j->reports != NULL && i < m->scalars_count; i++) {
        int rc;
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

        rc = set_value(j, local_rank, &m->scalars[i], &why);
        if (rc != 0 && first == 0) {
            first = rc;
            begin_refusal(j, m->scalars[i].name, text);
            ps_str_add(text, why.data);
        }
    }
    return first;
}

/* ------------------------------------------------ reports to the scheduler */

/* Writes the values that are to be sent, by name, and returns their number. */
static uint32_t list_values(const struct ps_agent_job *j,
                            struct ps_rec_rank_scalar list[PS_REPORT_MAX])
{
    struct ps_agent_reports *r = j->reports;
    uint32_t count = 0;

    for (uint32_t i = 0; i < r->count; i++) {
        for (uint32_t k = 0; !r->list[i].is_refused && k < j->local_rank_count;
             k++) {
            struct last_value *v = &r->list[i].by_rank[k];

            if (v->must_send && count < PS_REPORT_MAX) {
                v->must_send = false;
                list[count++] = (struct ps_rec_rank_scalar){
                    .name = r->list[i].name,
                    .rank = j->local_ranks[k].rank,
                    .step = v->step,
                    .value = v->value};
            }
        }
    }
    return count;
}

/* The operations whose values are all in the report of that number. */
static void note_request(struct ps_agent_reports *r)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &r->ops)
    {
        if (op->round == 0) {
            op->round = r->request;
        }
    }
}

static void send_if_due(struct ps_agent_step *st, struct ps_agent_job *j)
{
    struct ps_agent_reports *r = j->reports;
    struct ps_rec_rank_scalar *list;
    uint32_t count;

    if (r == NULL || r->request != 0) {
        return;
    }
    if (r->next_at > st->now) {
        st->a->due.report_at = ps_time_min(st->a->due.report_at, r->next_at);
        return;
    }
    list = ps_calloc(PS_REPORT_MAX, sizeof(*list));
    count = list_values(j, list);
    if (count > 0) {
        r->request = ++st->a->last.request;
        r->next_at = ps_time_add(st->now, REPORT_INTERVAL);
        if (count < PS_REPORT_MAX) {
            note_request(r);
        }
        ps_agent_uplink_send_msg(
            st, &(struct ps_msg){.code = PS_MSG_REPORT,
                                 .report = {.gen = j->gen,
                                            .request = r->request,
                                            .scalars = list,
                                            .scalars_count = count}});
    }
    ps_free(list);
}

void ps_agent_report_accept(struct ps_agent_step *st,
                            struct ps_agent_session *s,
                            const struct ps_msg_l_report *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    int rc;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    rc = set_values(j, s->local_rank, m, &why);
    if (rc != 0 || m->scalars_count == 0) {
        ps_agent_op_end(st, op, 0, rc, why.data);
    } else {
        ps_list_push_back(&j->reports->ops, &op->node);
    }
    send_if_due(st, j);
}

void ps_agent_report_tick(struct ps_agent_step *st)
{
    st->a->due.report_at = PS_TIME_NEVER;
    PS_MAP_EACH(struct ps_agent_job, j, st->a->jobs)
    {
        send_if_due(st, j);
    }
}

/* ------------------------------------------------------------------ answers */

/* The next report has all values. */
static void send_again(struct ps_agent_job *j)
{
    struct ps_agent_reports *r = j->reports;

    r->request = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        for (uint32_t k = 0; k < j->local_rank_count; k++) {
            struct last_value *v = &r->list[i].by_rank[k];

            v->must_send = v->is_set;
        }
    }
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &r->ops)
    {
        op->round = 0;
    }
}

/* Notes the refused names. */
static void note_refusals(struct ps_agent_step *st, struct ps_agent_job *j,
                          const struct ps_msg_report_done *m)
{
    struct ps_agent_reports *r = j->reports;

    for (uint32_t i = 0; i < m->refused_count; i++) {
        struct scalar *one = find_scalar(r, m->refused[i].name);

        if (one == NULL || one->is_refused) {
            continue;
        }
        one->is_refused = true;
        ps_str_copy(r->refusal, sizeof(r->refusal), m->text);
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

        begin_refusal(j, one->name, &why);
        ps_str_add_escaped(&why, m->text, strlen(m->text), PS_TEXT_MAX);
        ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING, "%s", why.data);
    }
}

/* The first of the refused names that the rank has reported, or NULL. */
static const struct scalar *find_refusal(struct ps_agent_reports *r,
                                         const struct ps_msg_report_done *m,
                                         uint32_t local_rank)
{
    for (uint32_t i = 0; i < m->refused_count; i++) {
        const struct scalar *one = find_scalar(r, m->refused[i].name);

        if (one != NULL && one->by_rank[local_rank].is_set) {
            return one;
        }
    }
    return NULL;
}

static void end_op(struct ps_agent_step *st, struct ps_agent_op *op,
                   struct ps_agent_job *j, const struct ps_msg_report_done *m)
{
    const struct scalar *refused = find_refusal(j->reports, m, op->local_rank);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (refused != NULL) {
        begin_refusal(j, refused->name, &why);
        ps_str_add_escaped(&why, m->text, strlen(m->text), PS_TEXT_MAX);
    }
    ps_agent_op_end(st, op, 0, refused != NULL ? PS_E_FULL : 0, why.data);
}

void ps_agent_report_on_done(struct ps_agent_step *st,
                             const struct ps_msg_report_done *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);

    if (j == NULL || j->reports == NULL || m->request == 0 ||
        j->reports->request != m->request) {
        return; /* A fresh link has had everything sent again. */
    }
    j->reports->request = 0;
    note_refusals(st, j, m);
    PS_LIST_EACH_SAFE(struct ps_agent_op, op, node, &j->reports->ops)
    {
        /* One that waits may have nothing left to send. */
        if (op->round == m->request ||
            find_refusal(j->reports, m, op->local_rank) != NULL) {
            ps_list_remove(&op->node);
            end_op(st, op, j, m);
        }
    }
    send_if_due(st, j);
}

void ps_agent_report_resend(struct ps_agent_step *st, struct ps_agent_job *j)
{
    if (j->reports != NULL) {
        send_again(j);
        j->reports->next_at = st->now;
        send_if_due(st, j);
    }
}

void ps_agent_report_free(struct ps_agent_job *j)
{
    struct ps_agent_reports *r = j->reports;

    if (r == NULL) {
        return;
    }
    ps_agent_op_free_list(&r->ops);
    for (uint32_t i = 0; i < r->count; i++) {
        ps_free(r->list[i].by_rank);
    }
    ps_account_refund(&j->account, PS_COST_MEMORY, r->charged_bytes);
    ps_free(r);
    j->reports = NULL;
}

/* ------------------------------------------------------------------- spans */

/* A worker has the clock of this host. A span that ends later by that clock
 * than this is garbage. */
#define CLOCK_SLACK PS_SECONDS(1)
#define NO_NAME     UINT32_MAX

struct ps_agent_span_names {
    uint32_t count;
    char list[PS_SPAN_NAMES_NODE_MAX][PS_SCALAR_NAME_MAX + 1];
};

static struct ps_agent_span_names *obtain_names(struct ps_agent_job *j)
{
    struct ps_refusal ignored;

    if (j->span_names == NULL &&
        ps_account_charge(&j->account, PS_COST_MEMORY, sizeof(*j->span_names),
                          &ignored) == 0) {
        j->span_names = ps_calloc(1, sizeof(*j->span_names));
    }
    return j->span_names;
}

/* Number of the name, which is added if there is none; NO_NAME: the table is
 * full. */
static uint32_t obtain_name(struct ps_agent_span_names *t, const char *name)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (strcmp(t->list[i], name) == 0) {
            return i;
        }
    }
    if (t->count == PS_SPAN_NAMES_NODE_MAX) {
        return NO_NAME;
    }
    ps_str_copy(t->list[t->count], sizeof(t->list[t->count]), name);
    return t->count++;
}

/* Numbers of the names of a message. False: one is malformed. */
static bool number_names(struct ps_agent_job *j, const struct ps_msg_l_spans *m,
                         uint32_t numbers[PS_SPAN_NAMES_MAX])
{
    struct ps_agent_span_names *t = obtain_names(j);

    for (uint32_t i = 0; i < m->names_count; i++) {
        if (!ps_scalar_name_is_valid(m->names[i].name)) {
            return false;
        }
        numbers[i] = t != NULL ? obtain_name(t, m->names[i].name) : NO_NAME;
    }
    return true;
}

void ps_agent_span_accept(struct ps_agent_step *st,
                          const struct ps_agent_session *s,
                          const struct ps_msg_l_spans *m)
{
    uint32_t numbers[PS_SPAN_NAMES_MAX];
    struct ps_agent_job *j = s->job;
    const ps_time end = ps_time_add(st->now, CLOCK_SLACK);

    if (!number_names(j, m, numbers)) {
        return;
    }
    for (uint32_t i = 0; i < m->spans_count; i++) {
        const struct ps_rec_span *one = &m->spans[i];

        if (one->name >= m->names_count || one->begun_ns > end ||
            one->duration_ns > end - one->begun_ns) {
            continue;
        }
        ps_trace_add(st->a->opt.trace,
                     &(struct ps_trace_entry){
                         .begun_at = one->begun_ns,
                         .ended_at = one->begun_ns + one->duration_ns,
                         .gen = j->gen,
                         .key = UINT32_MAX,
                         .index = numbers[one->name],
                         .peer = j->local_ranks[s->local_rank].rank,
                         .kind = PS_TRACE_KIND_SPAN});
    }
}

uint32_t
ps_agent_span_list(const struct ps_agent_job *j,
                   struct ps_rec_span_name list[PS_SPAN_NAMES_NODE_MAX])
{
    const struct ps_agent_span_names *t = j->span_names;

    for (uint32_t i = 0; t != NULL && i < t->count; i++) {
        list[i].name = t->list[i];
    }
    return t != NULL ? t->count : 0;
}

void ps_agent_span_free(struct ps_agent_job *j)
{
    if (j->span_names != NULL) {
        ps_account_refund(&j->account, PS_COST_MEMORY, sizeof(*j->span_names));
        ps_free(j->span_names);
        j->span_names = NULL;
    }
}
