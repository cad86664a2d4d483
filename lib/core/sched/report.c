/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars that ranks report through their agents. An agent sends a
 * report only after the answer to the one before, so the last value of a rank
 * is that of the last report. */
#include "core/sched/report.h"

#include "core/sched/inner.h"
#include "core/sched/job_state.h"

#include <inttypes.h>
#include <string.h>

/* Answer to a report. */
struct answer {
    struct ps_rec_scalar_name refused[PS_SCALARS_MAX];
    uint32_t refused_count;
    char text[PS_TEXT_MAX + 1];
};

/* Adds a name that is refused. The names of a report are in order, and an agent
 * has at most PS_SCALARS_MAX. */
static void refuse_name(struct answer *a, const char *name)
{
    if (a->refused_count == PS_SCALARS_MAX ||
        (a->refused_count > 0 &&
         strcmp(a->refused[a->refused_count - 1].name, name) == 0)) {
        return;
    }
    a->refused[a->refused_count++].name = name;
}

static void accept_scalar(struct ps_sched_step *st, struct ps_sched_job *j,
                          const struct ps_rec_rank_scalar *r, struct answer *a)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (ps_sched_scalars_set(&j->observed.scalars, &j->account,
                             j->opt.num_workers, r, st->now, &why) != 0) {
        refuse_name(a, r->name);
        ps_str_copy(a->text, sizeof(a->text), text);
    }
}

void ps_sched_on_report(struct ps_sched_step *st, struct ps_member *agent,
                        const struct ps_msg_report *m)
{
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct answer a = {.refused_count = 0};

    if (j == NULL) {
        ps_sched_job_send_ended(st, agent, m->gen, UINT32_MAX - 1);
        return;
    }
    if (!ps_sched_job_has_started(j) || !ps_sched_job_is_open(j)) {
        return; /* Agents of a failed job are notified anyway. */
    }
    for (uint32_t i = 0; i < m->scalars_count; i++) {
        const struct ps_rec_rank_scalar *r = &m->scalars[i];

        if (r->rank < j->opt.num_workers &&
            j->workers.list[r->rank].agent_node == agent->node) {
            accept_scalar(st, j, r, &a);
        }
    }
    ps_sched_send_msg(
        st, agent,
        &(struct ps_msg){.code = PS_MSG_REPORT_DONE,
                         .report_done = {.gen = m->gen,
                                         .request = m->request,
                                         .refused = a.refused,
                                         .refused_count = a.refused_count,
                                         .text = a.text}});
}
