/* SPDX-License-Identifier: Apache-2.0 */
/* Peers of the right role that lie: after a frame of theirs arrives another one,
 * well formed, about a partition, slot or job in which they have no part. The
 * receiver refuses it, so that every bit and every count of the jobs is that of
 * a run without lies. A lie has no sequence number, so it leaves the link as it
 * is. */
#include "support/world_internal.h"

#include "proto/ps_msg.h"
#include "support/agent_peek.h"

#include <string.h>

/* Per mille of the frames between daemons that a lie follows. */
#define LIE_CHANCE   20u
/* Rounds that are far from every real one. */
#define LIE_ROUND    1000000u
#define LIE_ELEMENTS 65536u

struct lie {
    struct ps_msg msg;
    uint64_t len; /* Of the payload. */
    struct ps_rec_part part;
    struct ps_rec_rows rows;
    uint32_t rank;
};

/* Generation of a job that some worker belongs to; 0: none yet. */
static uint64_t some_job(struct world *w)
{
    return w->worker[ps_rng_below(&w->rng, world_worker_count(w))].gen;
}

static uint64_t some_round(struct world *w)
{
    return ps_rng_chance(&w->rng, 200)
               ? LIE_ROUND
               : ps_rng_below(&w->rng, w->opt.rounds + 2);
}

/* Messages of a server about a partition of another one. */
static bool lie_to_agent(struct world *w, const struct wnode *agent,
                         const struct wnode *from, uint64_t gen, struct lie *l)
{
    static const enum ps_msg_code codes[] = {PS_MSG_VALUE,  PS_MSG_VALUE,
                                             PS_MSG_COMMIT, PS_MSG_REFUSE,
                                             PS_MSG_ROWS,   PS_MSG_STATE};
    const struct ps_agent_part *p;
    const char *owner;

    l->part.key = (uint32_t)ps_rng_below(&w->rng, w->opt.key_count);
    l->part.index = (uint32_t)ps_rng_below(&w->rng, 3);
    l->part.round = some_round(w);
    p = agent_peek_part(agent->agent, gen, l->part.key, l->part.index);
    owner = agent_peek_owner(agent->agent, p);
    if (owner == NULL || strcmp(owner, from->name) == 0) {
        return false;
    }
    l->part.dtype = p->key->dtype;
    l->rows = (struct ps_rec_rows){.key = l->part.key,
                                   .index = l->part.index,
                                   .round = l->part.round,
                                   .dtype = p->key->dtype,
                                   .row_width = 1};
    l->msg.code = codes[ps_rng_below(&w->rng, 6)];
    switch ((int)l->msg.code) {
    case PS_MSG_VALUE:
        l->part.count = p->count;
        l->len = p->count * (uint64_t)ps_dtype_size(p->key->dtype);
        l->msg.value = (struct ps_msg_value){
            .gen = gen, .parts = &l->part, .parts_count = 1};
        break;
    case PS_MSG_COMMIT:
        l->msg.commit = (struct ps_msg_commit){
            .gen = gen, .parts = &l->part, .parts_count = 1};
        break;
    case PS_MSG_REFUSE:
        l->msg.refuse = (struct ps_msg_refuse){.gen = gen,
                                               .error = PS_E_JOBFAILED,
                                               .text = "a lie",
                                               .parts = &l->part,
                                               .parts_count = 1};
        break;
    case PS_MSG_ROWS:
        l->msg.rows = (struct ps_msg_rows){
            .gen = gen, .parts = &l->rows, .parts_count = 1};
        break;
    default:
        l->msg.state = (struct ps_msg_state){.gen = gen,
                                             .request = 1,
                                             .text = "",
                                             .parts = &l->part,
                                             .parts_count = 1};
    }
    return true;
}

/* Messages of an agent for the slot of another one. */
static bool lie_to_server(struct world *w, const struct wnode *agent,
                          uint64_t gen, struct lie *l)
{
    static const enum ps_msg_code codes[] = {PS_MSG_PUSH, PS_MSG_PUSH,
                                             PS_MSG_INIT, PS_MSG_RESTORE,
                                             PS_MSG_PULL, PS_MSG_ABORT_ROUND};
    const uint32_t slot = (uint32_t)ps_rng_below(&w->rng, w->opt.agents + 1);
    const uint32_t own = agent_peek_slot(agent->agent, gen);

    if (own == UINT32_MAX || slot == own) {
        return false;
    }
    l->part.key = (uint32_t)ps_rng_below(&w->rng, w->opt.key_count);
    l->part.index = (uint32_t)ps_rng_below(&w->rng, 3);
    l->part.round = some_round(w);
    l->part.dtype = (uint8_t)w->opt.key[l->part.key].dtype;
    l->msg.code = codes[ps_rng_below(&w->rng, 6)];
    if (l->msg.code != PS_MSG_PULL && l->msg.code != PS_MSG_ABORT_ROUND) {
        l->part.count = 1 + (uint32_t)ps_rng_below(&w->rng, 64);
        l->len = l->part.count * (uint64_t)ps_dtype_size(l->part.dtype);
    }
    switch ((int)l->msg.code) {
    case PS_MSG_PUSH:
        l->msg.push = (struct ps_msg_push){.gen = gen,
                                           .slot = slot,
                                           .weight = 1,
                                           .parts = &l->part,
                                           .parts_count = 1};
        break;
    case PS_MSG_INIT:
        l->msg.init = (struct ps_msg_init){
            .gen = gen, .slot = slot, .parts = &l->part, .parts_count = 1};
        break;
    case PS_MSG_RESTORE:
        l->msg.restore = (struct ps_msg_restore){.gen = gen,
                                                 .epoch = UINT32_MAX,
                                                 .slot = slot,
                                                 .has_value = true,
                                                 .parts = &l->part,
                                                 .parts_count = 1};
        break;
    case PS_MSG_PULL:
        l->msg.pull = (struct ps_msg_pull){
            .gen = gen, .slot = slot, .parts = &l->part, .parts_count = 1};
        break;
    default:
        l->msg.abort_round = (struct ps_msg_abort_round){.gen = gen,
                                                         .slot = slot,
                                                         .retry = 1,
                                                         .parts = &l->part,
                                                         .parts_count = 1};
    }
    return true;
}

/* True if every agent knows the owners of all partitions that it has open. */
static bool owners_are_fixed(const struct world *w)
{
    const struct world_faults *f = &w->opt.faults;

    return f->rebalance == 0 && f->keep_crash == 0 && f->copy_loss == 0 &&
           !f->lose_server && !f->isolate && !f->sched_crash && !f->part;
}

/* An agent enters a barrier for a rank of another one; a server says that a
 * value of another one is lost. */
static bool lie_to_sched(struct world *w, const struct wnode *from,
                         uint64_t gen, struct lie *l)
{
    const struct wworker *k =
        &w->worker[ps_rng_below(&w->rng, world_worker_count(w))];
    const char *owner;

    if (from->role == PS_ROLE_AGENT) {
        l->rank = k->rank;
        l->msg.code = PS_MSG_BARRIER_ENTER;
        l->msg.barrier_enter = (struct ps_msg_barrier_enter){
            .gen = k->gen,
            .number = 1 + ps_rng_below(&w->rng, 5),
            .ranks = &l->rank,
            .ranks_count = 1};
        return k->agent != from && k->gen != 0;
    }
    l->part.key = (uint32_t)ps_rng_below(&w->rng, w->opt.key_count);
    l->part.index = (uint32_t)ps_rng_below(&w->rng, 3);
    l->msg.code = PS_MSG_VALUE_LOST;
    l->msg.value_lost = (struct ps_msg_value_lost){
        .gen = gen, .key = l->part.key, .index = l->part.index, .version = 1};
    if (!owners_are_fixed(w) || !k->agent->alive) {
        return false;
    }
    owner = agent_peek_owner(
        k->agent->agent,
        agent_peek_part(k->agent->agent, gen, l->part.key, l->part.index));
    return owner != NULL && strcmp(owner, from->name) != 0;
}

/* The driver's two calls for a frame with a payload. */
static void receive_lie(struct world *w, struct wnode *n, ps_conn_id conn,
                        const struct lie *l)
{
    struct ps_event ev = {.type = PS_EV_MSG, .conn = conn};
    struct ps_slice payload = {.len = l->len};

    if (l->len > 0) {
        ev.msg.discard_reason = n->machine.ops->payload(
            n->machine.self, conn, &l->msg, l->len, &payload);
        if (ev.msg.discard_reason == 0) {
            memset(ps_slice_data(&payload), 0x42, l->len);
        }
        ev.msg.payload = &payload;
    }
    ev.msg.msg = &l->msg;
    w->lies++;
    w->lied_bytes += l->len;
    world_step(w, n, &ev);
    ps_buf_unref(payload.buf);
}

void world_lie(struct world *w, const struct wconn *c, uint32_t end)
{
    struct wnode *n = c->node[end];
    const struct wnode *from = c->node[1 - end];
    struct lie l = {.len = 0};
    ps_conn_id conn;
    uint64_t gen;
    bool is_lie;

    if (!w->opt.faults.lies || n == NULL || from == NULL || !from->alive ||
        !n->alive || !ps_rng_chance(&w->rng, LIE_CHANCE)) {
        return;
    }
    gen = some_job(w);
    if (gen == 0) {
        return;
    }
    conn = ps_path_machine_conn(&c->path[end]);
    is_lie = n->role == PS_ROLE_AGENT && from->role == PS_ROLE_SERVER
                 ? lie_to_agent(w, n, from, gen, &l)
             : n->role == PS_ROLE_SERVER && from->role == PS_ROLE_AGENT
                 ? lie_to_server(w, from, gen, &l)
             : n->role == PS_ROLE_SCHED ? lie_to_sched(w, from, gen, &l)
                                        : false;
    if (is_lie && l.len <= LIE_ELEMENTS * 8) {
        receive_lie(w, n, conn, &l);
    }
}
