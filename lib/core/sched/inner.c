/* SPDX-License-Identifier: Apache-2.0 */
/* Common functions of the scheduler's files: messages on connections and links,
 * the record of events, and the cluster map. */
#include "core/sched/inner.h"

#include "base/alloc.h"

#include <string.h>

/* ------------------------------------------------------------------ timers */

struct ps_sched_timer *ps_sched_timers_due(const struct ps_list *l, ps_time now)
{
    PS_LIST_EACH_OF(struct ps_sched_timer, t, node, l)
    {
        if (t->due_at <= now) {
            return t;
        }
    }
    return NULL;
}

ps_time ps_sched_timers_next(const struct ps_list *l)
{
    ps_time due = PS_TIME_NEVER;

    PS_LIST_EACH(n, l)
    {
        due = ps_time_min(due,
                          PS_CONTAINER(n, struct ps_sched_timer, node)->due_at);
    }
    return due;
}

/* ---------------------------------------------------------------- messages */

void ps_sched_conn_close(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    if (c->kind == PS_SCHED_CONN_CLOSING) {
        return;
    }
    assert(!c->lists_keys && c->rebalance_reply == NULL && c->trace_read == 0);
    c->kind = PS_SCHED_CONN_CLOSING;
    c->member = NULL;
    ps_effects_close(st->fx, c->id);
}

void ps_sched_conn_end_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                             int rc, const char *text)
{
    const struct ps_sched *s = st->s;

    ps_effects_send_msg(st->fx, c->id,
                        &(struct ps_msg){
                            .code = PS_MSG_QUERY_END,
                            .query_end = {.error = rc,
                                          .text = text,
                                          .epoch = s->epoch,
                                          .cluster = s->opt.cluster,
                                          .uptime_ns = st->now - s->started_at},
                        });
}

void ps_sched_send(struct ps_sched_step *st, struct ps_member *m,
                   struct ps_packet *packet)
{
    if (m == NULL || m->link == NULL) {
        ps_packet_unref(packet);
        return;
    }
    ps_link_send(m->link, packet, st->now, st->fx);
}

void ps_sched_send_msg(struct ps_sched_step *st, struct ps_member *m,
                       const struct ps_msg *msg)
{
    if (m != NULL && m->link != NULL) {
        ps_link_send_msg(m->link, msg, st->now, st->fx);
    }
}

/* ------------------------------------------------------------------ events */

void ps_sched_events_fini(struct ps_sched_events *e)
{
    for (uint32_t i = 0; i < PS_SCHED_EVENTS_MAX; i++) {
        ps_msg_free(e->ring[i]);
    }
}

static void add_event(struct ps_sched_step *st,
                      const struct ps_msg_event_row *row)
{
    struct ps_sched_events *e = &st->s->events;
    struct ps_msg **at = &e->ring[e->count++ % PS_SCHED_EVENTS_MAX];
    struct ps_msg msg = {.code = PS_MSG_EVENT_ROW, .event_row = *row};
    char text[PS_SCHED_EVENT_TEXT + 1];

    (void)ps_str_copy(text, sizeof(text), ps_str_or_empty(row->text));
    msg.event_row.text = text;
    msg.event_row.number = e->count;
    msg.event_row.age_ns = st->now;
    ps_msg_free(*at);
    *at = ps_msg_dup(&msg);
}

void ps_sched_event_own(struct ps_sched_step *st, const char *what, bool is_bad,
                        const char *text)
{
    add_event(st, &(struct ps_msg_event_row){.kind = PS_EVENT_KIND_SCHED,
                                             .name = st->s->opt.name,
                                             .what = what,
                                             .is_bad = is_bad,
                                             .text = text});
}

void ps_sched_event_member(struct ps_sched_step *st, const struct ps_member *m,
                           const char *what, bool is_bad, const char *text)
{
    add_event(st, &(struct ps_msg_event_row){.kind = m->role == PS_ROLE_SERVER
                                                         ? PS_EVENT_KIND_SERVER
                                                         : PS_EVENT_KIND_AGENT,
                                             .name = m->name,
                                             .what = what,
                                             .is_bad = is_bad,
                                             .text = text});
}

void ps_sched_event_job(struct ps_sched_step *st, enum ps_event_kind kind,
                        const struct ps_sched_job *j, const char *what,
                        bool is_bad, const char *text)
{
    add_event(st, &(struct ps_msg_event_row){.kind = (uint8_t)kind,
                                             .name = j->name,
                                             .uid = j->uid,
                                             .what = what,
                                             .is_bad = is_bad,
                                             .text = text});
}

void ps_sched_move_member(struct ps_sched_step *st, struct ps_member *m,
                          enum ps_node_state to, const char *why)
{
    const bool bad = to == PS_NODE_STATE_GONE || to == PS_NODE_STATE_SUSPECT;

    if (bad && m->last_ping.draining) {
        why = to == PS_NODE_STATE_GONE ? "it was shut down in good order"
                                       : "it is shutting down";
    }
    ps_member_set_state(m, to, why, st->fx);
    ps_sched_event_member(st, m, ps_node_state_name(to),
                          bad && !m->last_ping.draining, why);
}

void ps_sched_move_job(struct ps_sched_step *st, struct ps_sched_job *j,
                       enum ps_job_phase to)
{
    ps_sched_job_set_phase(j, to, st->fx);
    ps_trace_add(st->s->opt.trace,
                 &(struct ps_trace_entry){.begun_at = st->now,
                                          .ended_at = st->now,
                                          .gen = j->gen,
                                          .key = UINT32_MAX,
                                          .peer = (uint32_t)to,
                                          .kind = PS_TRACE_KIND_PHASE});
    ps_sched_event_job(st, PS_EVENT_KIND_JOB, j, ps_job_phase_name(to),
                       to == PS_JOB_PHASE_FAILED,
                       to == PS_JOB_PHASE_FAILED ? j->reason : NULL);
}

void ps_sched_send_events(struct ps_sched_step *st, struct ps_sched_conn *c,
                          uint64_t after)
{
    const struct ps_sched_events *e = &st->s->events;
    const uint64_t dropped = e->count > PS_SCHED_EVENTS_MAX
                                 ? e->count - PS_SCHED_EVENTS_MAX
                                 : 0;

    for (uint64_t i = after > dropped ? after : dropped; i < e->count; i++) {
        struct ps_msg msg = *e->ring[i % PS_SCHED_EVENTS_MAX];

        msg.event_row.age_ns = st->now - msg.event_row.age_ns;
        ps_effects_send_msg(st->fx, c->id, &msg);
    }
}

/* --------------------------------------------------------------------- map */

static struct ps_packet *make_server_map(const struct ps_sched *s)
{
    const struct ps_members *t = &s->members;
    struct ps_rec_server *rec = ps_alloc((PS_SERVERS_MAX + 1) * sizeof(*rec));
    uint32_t count = 0;
    struct ps_packet *p;

    for (uint32_t i = 0; i < t->count; i++) {
        const struct ps_member *m = t->sorted[i];

        if (m->role == PS_ROLE_SERVER && m->state != PS_NODE_STATE_GONE) {
            assert(count < PS_SERVERS_MAX);
            rec[count++] = (struct ps_rec_server){
                .node = m->node,
                .name = m->name,
                .incarnation = m->incarnation,
                .address = m->address,
                .state = m->state,
            };
        }
    }
    p = ps_packet_new(
        &(struct ps_msg){
            .code = PS_MSG_MAP,
            .map = {.epoch = s->epoch, .servers = rec, .servers_count = count}},
        NULL, 0);
    ps_free(rec);
    return p;
}

void ps_sched_begin_epoch(struct ps_sched_step *st)
{
    struct ps_members *t = &st->s->members;
    struct ps_packet *p;

    st->s->epoch++;
    ps_effects_log(st->fx, PS_LOG_INFO, "epoch %u -> %u", st->s->epoch - 1,
                   st->s->epoch);
    p = make_server_map(st->s);
    for (uint32_t i = 0; i < t->count; i++) {
        ps_sched_send(st, t->sorted[i], ps_packet_ref(p));
    }
    ps_packet_unref(p);
}

void ps_sched_send_map(struct ps_sched_step *st, struct ps_member *m)
{
    ps_sched_send(st, m, make_server_map(st->s));
}
