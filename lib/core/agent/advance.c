/* SPDX-License-Identifier: Apache-2.0 */
/* New versions of partitions, from a server or from a sum of this node: they
 * end an init, a round, or pulls. */
#include "core/agent/advance.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/contribution.h"
#include "core/agent/deliver.h"
#include "core/agent/encode.h"
#include "core/agent/fail.h"
#include "core/agent/inner.h"
#include "core/agent/launch.h"
#include "core/agent/part.h"
#include "core/agent/send_queue.h"

#include <assert.h>

void ps_agent_advance_launch(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (ps_agent_launch_part(st, p)) {
        ps_agent_advance_part(st, p);
    }
}

/* Reports the readable prefix of the result every PROGRESS_BYTES, so that
 * workers copy it while it is cached and the rest arrives. Only values of this
 * very version count: others lie at another offset. */
static void report_progress(struct ps_agent_step *st, struct ps_agent_key *k)
{
    uint64_t bytes;

    while (k->round.completed_prefix < k->part_count &&
           k->parts[k->round.completed_prefix].completed_round >=
               k->round.number &&
           k->parts[k->round.completed_prefix].local_version ==
               (int64_t)k->round.number) {
        k->round.completed_prefix++;
    }
    if (k->round.completed_prefix == k->part_count) {
        return; /* The end of the round follows. */
    }
    bytes = k->parts[k->round.completed_prefix].first_elem *
            ps_dtype_size(k->dtype);
    if (bytes < k->round.reported_bytes + PROGRESS_BYTES) {
        return;
    }
    k->round.reported_bytes = bytes;
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = k->round.contribution[i];

        if (op != NULL && op->session != NULL && !op->session->is_closing &&
            (op->kind == PS_OP_PUSHPULL || op->kind == PS_OP_BROADCAST) &&
            !op->send_only && op->out.buf == NULL) {
            ps_effects_op_progress(st->fx, op->session->conn, op->id, bytes);
        }
    }
}

void ps_agent_advance_after_init(struct ps_agent_step *st,
                                 struct ps_agent_key *k)
{
    k->kind->advance(st, k);
    if (k->round.state == PS_AGENT_ROUND_COMPLETE) {
        /* The round became complete during the init. */
        for (uint32_t i = 0; i < k->part_count; i++) {
            struct ps_agent_part *q = &k->parts[i];

            if (q->state == PS_AGENT_PART_IDLE &&
                q->committed_version < (int64_t)k->round.number &&
                ps_agent_contribution_is_ready(q)) {
                ps_agent_advance_launch(st, q);
            }
        }
        ps_agent_advance_committed(st, k);
    }
}

/* Ends the init when it is committed in all partitions. */
static void end_init_part(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->state != PS_AGENT_PART_COMPUTING) {
        ps_agent_send_dequeue(st, p);
    }
    p->is_init = false;
    assert(k->init.pending_parts > 0);
    if (--k->init.pending_parts > 0) {
        return;
    }
    ps_buf_unref(k->init.array.buf);
    k->init.array = (struct ps_slice){0};
    ps_agent_advance_after_init(st, k);
}

/* Ends the round if all of its value is in place. */
static bool end_if_over(struct ps_agent_step *st, struct ps_agent_key *k)
{
    if (k->round.pending_parts > 0 || k->round.deliveries > 0) {
        return false;
    }
    st->a->stats.rounds++;
    k->kind->end_round(st, k);
    return true;
}

void ps_agent_advance_on_delivered(struct ps_agent_step *st,
                                   struct ps_agent_computation *run, int error)
{
    struct ps_agent_key *k = ps_agent_deliver_end(run, error);

    if (k != NULL) {
        (void)end_if_over(st, k);
    }
}

void ps_agent_advance_part(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->is_init) {
        if (p->committed_version >= 0) {
            end_init_part(st, p);
        }
        return;
    }
    if (k->round.state == PS_AGENT_ROUND_COMPLETE &&
        p->completed_round < k->round.number &&
        p->committed_version >= (int64_t)k->round.number) {
        if (p->state != PS_AGENT_PART_COMPUTING) {
            ps_agent_send_dequeue(st, p);
        }
        if (k->round.needs_value &&
            p->local_version < (int64_t)k->round.number) {
            k->kind->advance(st, k); /* Committed without the value. */
            return;
        }
        p->completed_round = k->round.number;
        if (ps_agent_key_has_codec(k)) {
            ps_agent_encode_discard(p);
        }
        assert(k->round.pending_parts > 0);
        k->round.pending_parts--;
        ps_agent_deliver_part(st, p);
        if (end_if_over(st, k)) {
            return;
        }
        if (k->round.needs_value) {
            report_progress(st, k);
        }
    }
    k->kind->advance(st, k);
}

void ps_agent_advance_committed(struct ps_agent_step *st,
                                struct ps_agent_key *k)
{
    uint64_t round = k->round.number;

    for (uint32_t i = 0;
         ps_agent_round_may_be_committed(k) && i < k->part_count &&
         k->round.state == PS_AGENT_ROUND_COMPLETE && k->round.number == round;
         i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->completed_round < round &&
            p->committed_version >= (int64_t)round && !p->is_init) {
            ps_agent_advance_part(st, p);
        }
    }
}

/* Returns true for an init, or when the round has not failed since: after a
 * failure workers may change their arrays. */
static bool is_result_current(const struct ps_agent_computation *run)
{
    const struct ps_agent_key *k = run->part->key;

    return run->version == 0 || (k->round.state == PS_AGENT_ROUND_COMPLETE &&
                                 run->round_starts == k->round.starts);
}

void ps_agent_advance_on_computed(struct ps_agent_step *st,
                                  struct ps_agent_computation *run, int error)
{
    struct ps_agent_part *p = run->part;
    struct ps_agent_key *k = p == NULL ? NULL : p->key;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (p != NULL && p->state == PS_AGENT_PART_COMPUTING) {
        ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
        if (!is_result_current(run)) {
            if (p->is_init || (k->round.state == PS_AGENT_ROUND_COMPLETE &&
                               p->completed_round < k->round.number &&
                               ps_agent_contribution_is_ready(p))) {
                ps_agent_advance_launch(st, p);
            }
        } else if (error != 0) {
            ps_str_init(&t, text, sizeof(text));
            ps_str_addf(&t,
                        "the sum of '%s' could not be computed on this node: "
                        "%s",
                        k->name, ps_strerror(error));
            ps_agent_fail_key(st, k, error, text);
        } else {
            p->committed_version = run->version;
            p->local_version = run->version;
            ps_agent_advance_part(st, p);
        }
    }
    ps_free(run);
}
