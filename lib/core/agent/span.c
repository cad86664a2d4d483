/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of the programs of this node's ranks, as entries of the trace ring. An
 * entry has a fixed size, so it has the number of its name in a table of the
 * job, which grows with the names that workers send, and ends with the job. */
#include "core/agent/span.h"

#include "base/alloc.h"
#include "base/scalar_name.h"
#include "base/str.h"
#include "core/agent/inner.h"

#include <string.h>

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
