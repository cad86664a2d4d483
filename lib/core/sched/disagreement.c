/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of ranks that contradict each other. The scheduler refuses the
 * later one. The ranks of the earlier one would wait for a rank that does not
 * take part, so their agents are notified, which end their calls with the same
 * text (rule K19). */
#include "core/sched/disagreement.h"

#include "base/alloc.h"
#include "core/sched/inner.h"
#include "core/sched/job_state.h"

#include <string.h>

void ps_sched_add_rank_text(const struct ps_sched_job *j, uint32_t rank,
                            struct ps_str *s)
{
    if (rank >= j->workers.count) {
        ps_str_add(s, "another rank");
        return;
    }
    ps_str_addf(s, "rank %u on %s", rank, j->workers.list[rank].host);
}

static struct ps_sched_disagreement *
get_disagreement(struct ps_sched_disagreement **at, uint32_t size)
{
    if (*at == NULL) {
        *at = ps_calloc(1, sizeof(**at));
        ps_bits_init(&(*at)->refused, size);
    }
    return *at;
}

/* Begins or changes a disagreement of `size` slots or ranks, of which `party`
 * was refused. False: nothing is new. */
static bool begin_disagreement(struct ps_sched_disagreement **at, uint32_t size,
                               uint32_t party, const char *text)
{
    struct ps_sched_disagreement *d = get_disagreement(at, size);

    if (party >= size ||
        (!ps_bits_set(&d->refused, party) && strcmp(d->text, text) == 0)) {
        return false;
    }
    d->number++;
    ps_str_copy(d->text, sizeof(d->text), text);
    return true;
}

/* True: `party` was the last that had been refused. */
static bool remove_refused(struct ps_sched_disagreement *d, uint32_t party)
{
    if (d == NULL || party >= d->refused.size ||
        !ps_bits_clear(&d->refused, party) || d->refused.count > 0) {
        return false;
    }
    d->number++;
    *d->text = '\0';
    return true;
}

/* Sends the state of the disagreement about `k`, or, if NULL, about the whole
 * job. */
static void send_to_slot(struct ps_sched_step *st, const struct ps_sched_job *j,
                         const struct ps_sched_key *k, uint32_t slot)
{
    const struct ps_sched_disagreement *d = k != NULL ? k->disagreement
                                                      : j->workers.disagreement;

    ps_sched_send_msg(
        st, ps_members_get(&st->s->members, j->slots[slot].agent_node),
        &(struct ps_msg){
            .code = PS_MSG_DISAGREEMENT,
            .disagreement = {.gen = j->gen,
                             .number = d->number,
                             .kind = k != NULL ? k->kind : PS_KEY_KIND_STRING,
                             .name = k != NULL ? k->name : "",
                             .text = d->text}});
}

static void record(struct ps_sched_step *st, struct ps_sched_job *j,
                   const char *text)
{
    ps_effects_log_for(st->fx, &j->account, PS_LOG_NOTICE,
                       "job %s ranks disagree: %s", j->name, text);
    ps_sched_event_job(st, PS_EVENT_KIND_RANK, j, "disagree", true, text);
}

/* ------------------------------------------------------------------- keys */

static void send_to_openers(struct ps_sched_step *st,
                            const struct ps_sched_job *j,
                            const struct ps_sched_key *k, uint32_t except)
{
    for (uint32_t i = 0; i < j->slot_count; i++) {
        if (i != except && ps_bits_get(&k->openers, i)) {
            send_to_slot(st, j, k, i);
        }
    }
}

void ps_sched_key_disagreement_begin(struct ps_sched_step *st,
                                     struct ps_sched_job *j,
                                     struct ps_sched_key *k, uint32_t slot,
                                     const char *text)
{
    if (begin_disagreement(&k->disagreement, j->slot_count, slot, text)) {
        record(st, j, text);
        send_to_openers(st, j, k, slot);
    }
}

void ps_sched_key_disagreement_opened(struct ps_sched_step *st,
                                      const struct ps_sched_job *j,
                                      struct ps_sched_key *k, uint32_t slot)
{
    if (remove_refused(k->disagreement, slot)) {
        send_to_openers(st, j, k, slot);
    } else if (k->disagreement != NULL && k->disagreement->refused.count > 0) {
        send_to_slot(st, j, k, slot);
    }
}

/* Returns false if the agent has sent a newer message: links keep no order. */
static bool is_newest_report(struct ps_sched_disagreement *d, uint32_t slot,
                             uint64_t incarnation, uint32_t number)
{
    struct ps_sched_agent_report *r;

    if (d->reports == NULL) {
        d->reports = ps_calloc(d->refused.size, sizeof(*d->reports));
    }
    r = &d->reports[slot];
    if (r->incarnation == incarnation && number <= r->number) {
        return false;
    }
    *r = (struct ps_sched_agent_report){incarnation, number};
    return true;
}

void ps_sched_on_disagreement(struct ps_sched_step *st, struct ps_member *agent,
                              const struct ps_msg_disagreement *m)
{
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    const char *text = ps_sched_text_or_empty(m->text);
    char why_text[PS_TEXT_MAX + 1];
    struct ps_sched_key *k;
    struct ps_str why;

    ps_str_init(&why, why_text, sizeof(why_text));
    if (ps_sched_job_check_agent(st->s, j, m->gen, agent, &why) != 0) {
        return;
    }
    const uint32_t slot = ps_sched_job_slot_of(j, agent->node);

    k = ps_sched_job_find_key(j, m->kind, ps_sched_text_or_empty(m->name));
    if (k == NULL || slot >= j->slot_count) {
        return; /* The key was refused for all. */
    }
    if (!is_newest_report(get_disagreement(&k->disagreement, j->slot_count),
                          slot, agent->incarnation, m->number)) {
        return;
    }
    if (*text == '\0') {
        ps_sched_key_disagreement_opened(st, j, k, slot);
        return;
    }
    ps_str_add_visible(&why, text);
    ps_sched_key_disagreement_begin(st, j, k, slot, why_text);
}

/* -------------------------------------------------------------------- job */

void ps_sched_job_disagreement_begin(struct ps_sched_step *st,
                                     struct ps_sched_job *j, uint32_t rank,
                                     const char *text)
{
    if (!begin_disagreement(&j->workers.disagreement, j->opt.num_workers, rank,
                            text)) {
        return;
    }
    record(st, j, text);
    for (uint32_t i = 0; i < j->slot_count; i++) {
        send_to_slot(st, j, NULL, i);
    }
}

void ps_sched_job_disagreement_end(struct ps_sched_step *st,
                                   const struct ps_sched_job *j, uint32_t rank)
{
    if (!remove_refused(j->workers.disagreement, rank)) {
        return;
    }
    for (uint32_t i = 0; i < j->slot_count; i++) {
        send_to_slot(st, j, NULL, i);
    }
}
