/* SPDX-License-Identifier: Apache-2.0 */
/* Owners of partitions, and what is sent again after a loss: of an owner, of the
 * link to a server, or of the process of this agent.
 *
 * When a new placement gives a partition to another owner, the agent sends it
 * the newest local version (rule V2) and then everything that is not committed
 * (rule V3).
 *
 * Workers that lost an earlier agent reattach to this one. Arrays lie in their
 * memory, and each reports, for each of its keys, how many rounds it completed;
 * then it contributes the next round again. Servers recognize a contribution
 * that they have by slot and round (rule V18). Reports of ranks differ by one
 * round at most, because a rank contributes the next round only after the end of
 * the last (rule V16). A round that one rank completed is over: contributions of
 * other ranks to it become pulls of its value (rule V17). */
#include "core/agent/place.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/agent/conflict.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/opt_state.h"
#include "core/agent/part.h"
#include "core/agent/pull.h"
#include "core/agent/request.h"
#include "core/agent/server.h"
#include "core/agent/session.h"
#include "proto/ps_fixed.h"

#include <assert.h>

/* A placement that arrived before the answer to the key's opening. */
struct ps_agent_pending_placement {
    uint32_t epoch;
    uint32_t part_count;
    struct ps_buf *table;
};

/* --------------------------------------------------------------- placement */

/* False: no such record. */
static bool read_placement_part(const struct ps_slice *payload, uint32_t i,
                                struct ps_fixed_placement_part *ret_row)
{
    return ps_fixed_get_placement_part(
        ps_slice_data(payload) + (size_t)i * PS_FIXED_PLACEMENT_PART_BYTES,
        ret_row);
}

bool ps_agent_place_covers(const struct ps_agent_key *k,
                           const struct ps_msg_key_opened *m,
                           const struct ps_slice *payload)
{
    uint64_t total = 0;

    if (m->parts == 0 || m->parts > PS_KEY_PARTS_MAX || payload == NULL ||
        payload->buf == NULL ||
        payload->len != PS_FIXED_PLACEMENT_PART_BYTES * (size_t)m->parts) {
        return false;
    }
    for (uint32_t i = 0; i < m->parts; i++) {
        struct ps_fixed_placement_part row;

        if (!read_placement_part(payload, i, &row) ||
            !k->kind->part_fits_frame(k, row.count)) {
            return false;
        }
        total += row.count;
    }
    return total == k->count;
}

int ps_agent_place_build(struct ps_agent_key *k,
                         const struct ps_msg_key_opened *m,
                         const struct ps_slice *payload)
{
    const uint64_t own = ps_agent_key_own_bytes(k, m->parts);
    uint64_t first = 0;

    k->parts = ps_try_calloc(m->parts, sizeof(*k->parts));
    k->own = own == 0 ? NULL : ps_try_calloc(1, own);
    if (k->parts == NULL || (k->own == NULL && own > 0)) {
        return PS_E_NOMEM;
    }
    k->part_count = m->parts;
    for (uint32_t i = 0; i < m->parts; i++) {
        struct ps_agent_part *p = &k->parts[i];
        struct ps_fixed_placement_part row;

        if (!read_placement_part(payload, i, &row)) {
            return PS_E_INVAL;
        }
        p->key = k;
        p->index = i;
        p->owner_node = row.node;
        p->count = row.count;
        p->first_elem = first;
        p->committed_version = NO_VERSION;
        p->local_version = NO_VERSION;
        p->skipped_version = NO_VERSION;
        p->requested_version = NO_VERSION;
        p->lent_version = NO_VERSION;
        first += p->count;
    }
    return 0;
}

/* ---------------------------------------------------------------- takeover */

/* Sends restore to the partition's owner: the newest version that is known to be
 * committed, and with `has_value` the newest local one. */
static void send_restore(struct ps_agent_step *st, struct ps_agent_part *p,
                         bool has_value)
{
    struct ps_agent_key *k = p->key;
    struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, k->job,
                                                            p->owner_node);
    struct ps_rec_part rec = {
        .key = k->number,
        .index = p->index,
        .round = has_value ? (uint64_t)p->local_version
                 : p->committed_version != NO_VERSION
                     ? (uint64_t)p->committed_version
                     : 0,
        .dtype = k->dtype,
        .count = has_value ? p->count : 0,
        .all_skipped = has_value && p->local_version == p->skipped_version};
    struct ps_msg m = {
        .code = PS_MSG_RESTORE,
        .restore = {.gen = k->job->gen,
                    .epoch = k->placement_epoch,
                    .slot = k->job->slot,
                    .has_value = has_value,
                    .parts = &rec,
                    .parts_count = 1,
                    .has_committed = p->committed_version != NO_VERSION,
                    .committed_version = p->committed_version != NO_VERSION &&
                                                 k->kind->has_rounds
                                             ? (uint64_t)p->committed_version
                                             : 0}};
    struct ps_slice value = {0};

    p->must_resend_state = false;
    if (has_value) {
        value = ps_agent_part_result(p, (uint64_t)p->local_version);
    }
    ps_agent_server_send(st, f->server,
                         ps_packet_new(&m, &value, value.buf == NULL ? 0 : 1));
}

/* The same to an owner that may lack the value. One with an optimizer has its
 * own, or the job is lost (rule V6); one with copies, too (rule O15). */
static void send_state(struct ps_agent_step *st, struct ps_agent_part *p)
{
    send_restore(st, p,
                 p->local_version != NO_VERSION &&
                     !p->key->job->config.has_optimizer &&
                     !p->key->job->config.has_copies);
}

void ps_agent_place_report_all(struct ps_agent_step *st, struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].owner_node != 0) {
            k->parts[i].owner_changed = true;
            send_state(st, &k->parts[i]);
        }
    }
}

/* Rule A5: ends a frame of the owner that is being read into the results. A
 * previous owner could otherwise change a value that workers read. */
static void recall_results(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_server *s = ps_map_get(st->a->servers.by_node,
                                           p->owner_node);

    if (p->lent_version != NO_VERSION && s != NULL) {
        ps_agent_server_touch(st->a, s);
        ps_dialer_drop_all(&s->dialer, st->now, st->fx);
    }
    p->lent_version = NO_VERSION;
}

static void change_part_owner(struct ps_agent_step *st, struct ps_agent_part *p,
                              uint32_t node)
{
    struct ps_agent_key *k = p->key;
    bool open = p->state != PS_AGENT_PART_IDLE;

    if (k->kind->reopen_part != NULL) {
        open = k->kind->reopen_part(p) || open;
    } else if (p->committed_version != NO_VERSION) {
        ps_agent_fail_key(st, k, PS_E_JOBFAILED, k->kind->loss_text);
        open = false;
    }
    ps_agent_server_dequeue(st, p);
    recall_results(st, p);
    p->owner_node = node;
    p->requested_version = NO_VERSION;
    p->owner_changed = true;
    send_state(st, p);
    ps_agent_opt_state_reset_part(st, p);
    if (open && (p->is_init || (k->round.state == PS_AGENT_ROUND_COMPLETE))) {
        ps_agent_server_enqueue(st, p);
    }
}

void ps_agent_place_apply(struct ps_agent_step *st, struct ps_agent_key *k,
                          const struct ps_msg_key_opened *m,
                          const struct ps_slice *payload)
{
    struct ps_fixed_placement_part row;

    if (m->epoch <= k->placement_epoch || m->parts != k->part_count ||
        !ps_agent_place_covers(k, m, payload)) {
        return;
    }
    k->placement_epoch = m->epoch;
    k->is_reassigned = k->is_reassigned || m->is_reassigned;
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (!read_placement_part(payload, i, &row) ||
            k->parts[i].count != row.count) {
            return; /* Partition sizes never change. */
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (read_placement_part(payload, i, &row) && row.node != 0 &&
            row.node != k->parts[i].owner_node) {
            change_part_owner(st, &k->parts[i], row.node);
        }
    }
    ps_agent_conflict_resend(st, k, 0);
    k->kind->advance(st, k);
}

/* ------------------------------------ placements of keys that are not open */

static void pending_placement_free(struct ps_agent_pending_placement *e)
{
    ps_buf_unref(e->table);
    ps_free(e);
}

void ps_agent_place_drop_deferred(struct ps_agent_job *j)
{
    PS_MAP_EACH(struct ps_agent_pending_placement, e, j->pending_placements)
    {
        pending_placement_free(e);
    }
}

void ps_agent_place_defer(struct ps_agent_job *j,
                          const struct ps_msg_key_opened *m,
                          const struct ps_slice *payload)
{
    struct ps_agent_pending_placement *e = ps_map_get(j->pending_placements,
                                                      m->key);

    if (ps_list_empty(&j->openings.keys) || payload == NULL ||
        payload->buf == NULL || (e != NULL && e->epoch >= m->epoch)) {
        return; /* No key is opening, or the placement is not newer. */
    }
    if (e != NULL) {
        pending_placement_free(ps_map_remove(j->pending_placements, m->key));
    }
    e = ps_calloc(1, sizeof(*e));
    e->epoch = m->epoch;
    e->part_count = m->parts;
    e->table = ps_buf_ref(payload->buf);
    ps_map_put(j->pending_placements, m->key, e);
}

void ps_agent_place_apply_deferred(struct ps_agent_step *st,
                                   struct ps_agent_key *k)
{
    struct ps_agent_pending_placement *e = ps_map_remove(
        k->job->pending_placements, k->number);

    if (e != NULL) {
        struct ps_msg_key_opened m = {.epoch = e->epoch,
                                      .parts = e->part_count};
        struct ps_slice table = {.buf = e->table, .len = e->table->size};

        ps_agent_place_apply(st, k, &m, &table);
        pending_placement_free(e);
    }
}

/* ------------------------------------------------------ reattached workers */

/* Raises all partitions to the last completed round: each was committed before
 * any rank saw the round's end. */
static void raise_committed(struct ps_agent_key *k)
{
    for (uint32_t i = 0; k->prior_state != NULL &&
                         k->prior_state->max_completed > 0 && i < k->part_count;
         i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->committed_version < (int64_t)k->prior_state->max_completed) {
            p->committed_version = (int64_t)k->prior_state->max_completed;
        }
        p->completed_round = ps_max_u64(p->completed_round,
                                        k->prior_state->max_completed);
    }
}

/* Sends the state of all partitions to their owners once every local rank has
 * reported, as after the loss of a server: an owner may wait for the report of
 * this slot. */
static void send_state_if_reported(struct ps_agent_step *st,
                                   struct ps_agent_key *k)
{
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (!k->prior_state->reported[i] && !k->job->local_ranks[i].has_left) {
            return;
        }
    }
    if (ps_agent_key_is_open(k)) {
        ps_agent_place_report_all(st, k);
    }
}

void ps_agent_reattach_key_opened(struct ps_agent_step *st,
                                  struct ps_agent_key *k)
{
    if (k->prior_state != NULL) {
        raise_committed(k);
        send_state_if_reported(st, k);
    }
}

/* Ends an operation of a completed round. One that needs the value, or the
 * verdict on a skip, becomes a pull. */
static void serve_completed_round(struct ps_agent_step *st,
                                  struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    k->round.pushed_round[op->local_rank] = op->round;
    if (op->send_only || op->kind == PS_OP_PUSH ||
        op->kind == PS_OP_PUSH_ROWS) {
        ps_agent_op_end(st, op, op->round, 0, "");
        return;
    }
    ps_agent_pull_accept_op(st, op);
}

/* A rank has left, and does not say what it completed here: it may be one round
 * more than the others (rule V17). Its contribution comes no more, so the value
 * tells. */
static bool may_have_left_after(const struct ps_agent_op *op)
{
    const struct ps_agent_key *k = op->key;

    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (k->job->local_ranks[i].has_left && !k->prior_state->reported[i]) {
            return op->round == k->prior_state->max_completed + 1 &&
                   op->kind != PS_OP_PUSH_ROWS;
        }
    }
    return false;
}

bool ps_agent_reattach_accept_op(struct ps_agent_step *st,
                                 struct ps_agent_op *op)
{
    if (op->key->prior_state == NULL) {
        return false;
    }
    if (op->round <= op->key->prior_state->max_completed) {
        serve_completed_round(st, op);
    } else if (may_have_left_after(op)) {
        op->key->round.pushed_round[op->local_rank] = op->round;
        ps_agent_pull_accept_op(st, op);
    } else {
        return false;
    }
    return true;
}

/* Cancels the open round, which a reattaching rank reports as completed. That
 * rank had not contributed, so the round was not complete and no partition had
 * been sent. */
static void cancel_open_round(struct ps_agent_step *st, struct ps_agent_key *k)
{
    assert(k->round.state == PS_AGENT_ROUND_OPEN);
    ps_agent_round_set_state(k, PS_AGENT_ROUND_IDLE);
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = k->round.contribution[i];

        k->round.contribution[i] = NULL;
        if (op != NULL) {
            serve_completed_round(st, op);
        }
    }
}

static bool is_report_valid(const struct ps_agent_key *k,
                            const struct ps_agent_session *s, uint64_t pushed)
{
    const struct ps_agent_prior_state *prior = k->prior_state;

    if (s->unreported_keys == 0 || pushed > INT64_MAX - 1 ||
        !k->kind->has_rounds) {
        return false;
    }
    if (prior == NULL) {
        return k->round.pushed_round[s->local_rank] == 0 &&
               (k->round.number == 0 || pushed == 0);
    }
    return !prior->reported[s->local_rank] &&
           k->round.pushed_round[s->local_rank] == 0 &&
           pushed <= prior->min_completed + 1 &&
           prior->max_completed <= pushed + 1;
}

bool ps_agent_reattach_key(struct ps_agent_step *st, struct ps_agent_session *s,
                           struct ps_agent_key *k, uint64_t pushed)
{
    struct ps_agent_prior_state *prior = k->prior_state;

    if (!is_report_valid(k, s, pushed)) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "'%s': rank %u reports %llu rounds, which "
                             "contradicts the other ranks on this node",
                             k->name, k->job->local_ranks[s->local_rank].rank,
                             (unsigned long long)pushed);
        return false;
    }
    if (prior == NULL) {
        prior = ps_calloc(1, sizeof(*prior));
        prior->reported = ps_calloc(k->job->local_rank_count,
                                    sizeof(*prior->reported));
        prior->min_completed = pushed;
        k->prior_state = prior;
    }
    s->unreported_keys--;
    prior->reported[s->local_rank] = true;
    prior->min_completed = ps_min_u64(prior->min_completed, pushed);
    prior->max_completed = ps_max_u64(prior->max_completed, pushed);
    k->round.pushed_round[s->local_rank] = pushed;
    raise_committed(k);
    if (ps_agent_round_is_open(k) && k->round.number <= prior->max_completed) {
        cancel_open_round(st, k);
    }
    k->round.number = ps_max_u64(k->round.number, prior->max_completed);
    send_state_if_reported(st, k);
    return true;
}

void ps_agent_reattach_free(struct ps_agent_key *k)
{
    if (k->prior_state != NULL) {
        ps_free(k->prior_state->reported);
        ps_free(k->prior_state);
        k->prior_state = NULL;
    }
}

/* --------------------------------------------------------------- resending */

/* Sends the open requests to server `node` again. */
static void resend_requests(struct ps_agent_step *st, struct ps_agent_key *k,
                            uint32_t node)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (node == 0 || k->parts[i].owner_node == node) {
            k->parts[i].requested_version = NO_VERSION;
        }
    }
    if (k->kind->on_requests_lost != NULL) {
        k->kind->on_requests_lost(k, node, PS_AGENT_ALL_PARTS);
    }
    ps_agent_opt_state_resend(st, k, node);
    k->kind->advance(st, k);
}

void ps_agent_resend_server(struct ps_agent_step *st, struct ps_agent_server *s,
                            bool is_next)
{
    PS_LIST_EACH_OF(struct ps_agent_send_queue, f, node, &s->send_queues)
    {
        ps_agent_send_queue_reset(st->a, f);
        PS_MAP_EACH(struct ps_agent_key, k, f->job->keys)
        {
            for (uint32_t i = 0; i < k->part_count; i++) {
                struct ps_agent_part *p = &k->parts[i];

                if (p->owner_node == s->node &&
                    (p->owner_changed || (k->prior_state != NULL &&
                                          p->local_version == NO_VERSION))) {
                    /* The state sent before may have been lost as well. */
                    send_state(st, p);
                } else if (is_next && p->owner_node == s->node &&
                           k->kind->has_rounds &&
                           p->committed_version != NO_VERSION) {
                    send_restore(st, p, false); /* Rule O6. */
                }
                if (p->owner_node == s->node &&
                    (p->state == PS_AGENT_PART_SENT ||
                     p->state == PS_AGENT_PART_BACKOFF)) {
                    ps_agent_server_enqueue(st, p);
                }
            }
            ps_agent_conflict_resend(st, k, s->node);
            resend_requests(st, k, s->node);
        }
    }
}

void ps_agent_resend_refused(struct ps_agent_step *st)
{
    st->a->due.resend_at = PS_TIME_NEVER;
    PS_MAP_EACH(struct ps_agent_job, j, st->a->jobs)
    {
        PS_MAP_EACH(struct ps_agent_key, k, j->keys)
        {
            for (uint32_t i = 0; i < k->part_count; i++) {
                if (k->parts[i].must_resend_state) {
                    send_state(st, &k->parts[i]);
                }
                if (k->parts[i].state == PS_AGENT_PART_BACKOFF &&
                    !ps_agent_server_is_backing_off(st, &k->parts[i])) {
                    ps_agent_server_enqueue(st, &k->parts[i]);
                }
            }
            k->kind->advance(st, k);
            ps_agent_opt_state_advance(st, k);
            ps_agent_conflict_resend(st, k, 0);
        }
    }
}
