/* SPDX-License-Identifier: Apache-2.0 */
/* Pull and init. A pull ends at once if the results on this node are new
 * enough, waits if the version is expected, and requests it from the servers
 * otherwise. An init ends when this node has version 0 or newer: the root's
 * array is sent to the servers, then every agent pulls it. */
#include "core/agent/inner.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

static int64_t min_local_version(const struct ps_agent_key *k)
{
    int64_t least = INT64_MAX;

    for (uint32_t i = 0; i < k->part_count; i++) {
        /* Rows keys have no results here; a committed version is enough. */
        int64_t has = k->row_width != 0 ? k->parts[i].committed_version
                                        : k->parts[i].local_version;

        if (has < least) {
            least = has;
        }
    }
    return least;
}

/* Returns true when version `least` will arrive without another request. */
static bool is_value_expected(const struct ps_agent_part *p, int64_t least)
{
    const struct ps_agent_key *k = p->key;

    if (p->requested_version == least) {
        /* A request for a later version may wait for a rank that waits for this
         * one, so only an equal one counts. */
        return true;
    }
    if (p->is_init) {
        return true; /* Requested when the init is committed. */
    }
    return k->round_open && k->round_complete && k->needs_value &&
           (int64_t)k->round >= least && p->state != PS_AGENT_PART_IDLE &&
           p->committed_version < (int64_t)k->round;
}

struct pull_batch {
    struct ps_agent_server *server;
    struct ps_rec_part parts[PS_PARTS_MAX];
    uint32_t count;
};

static void send_pull_batch(struct ps_agent_step *st,
                            const struct ps_agent_job *j, struct pull_batch *q)
{
    if (q->count == 0) {
        return;
    }
    ps_link_send_msg(q->server->dialer.link,
                     &(struct ps_msg){.code = PS_MSG_PULL,
                                      .pull = {.gen = j->gen,
                                               .epoch = st->a->map_epoch,
                                               .slot = j->slot,
                                               .parts = q->parts,
                                               .parts_count = q->count}},
                     st->now, st->fx);
    q->count = 0;
}

/* Requests version `least` of the partitions that lack it and do not expect it:
 * one message per server, partitions in order of their index. */
static void request_version(struct ps_agent_step *st, struct ps_agent_key *k,
                            int64_t least)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_send_queue *f;
    struct pull_batch *q = NULL;

    for (uint32_t i = 0; k->row_width != 0 && i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->committed_version < least && !is_value_expected(p, least)) {
            p->requested_version = least;
            ps_agent_rows_request_version(st, p, least);
        }
    }
    if (k->row_width != 0) {
        return;
    }

    for (uint32_t i = 0; i < k->part_count && q == NULL; i++) {
        if (k->parts[i].owner_node != 0 && k->parts[i].local_version < least &&
            !is_value_expected(&k->parts[i], least)) {
            q = ps_calloc(1, sizeof(*q));
        }
    }
    if (q == NULL) {
        return;
    }
    while ((f = ps_map_next(k->job->send_queues, &c)) != NULL) {
        q->server = f->server;
        for (uint32_t i = 0; i < k->part_count; i++) {
            struct ps_agent_part *p = &k->parts[i];

            if (p->owner_node != f->server->node || p->local_version >= least ||
                is_value_expected(p, least)) {
                continue;
            }
            p->requested_version = least;
            q->parts[q->count++] = (struct ps_rec_part){
                .key = k->number,
                .index = p->index,
                .round = (uint64_t)least,
                .dtype = k->dtype,
                .count = p->count};
            if (q->count == PS_PARTS_MAX) {
                send_pull_batch(st, k->job, q);
            }
        }
        send_pull_batch(st, k->job, q);
    }
    ps_free(q);
}

/* Returns true when the verdict on a skip of a round that is over is known from
 * all partitions; *ret_nobody: all ranks skipped it. */
static bool is_skip_decided(const struct ps_agent_key *k,
                            const struct ps_agent_op *op, bool *ret_nobody)
{
    *ret_nobody = true;
    for (uint32_t i = 0; i < k->part_count; i++) {
        const struct ps_agent_part *p = &k->parts[i];
        const int64_t heard = k->row_width != 0 ? p->server_version
                                                : p->local_version;

        if (p->skipped_version != (int64_t)op->round) {
            *ret_nobody = false;
            if (heard < (int64_t)op->round) {
                return false;
            }
        }
    }
    return true;
}

/* Requests the versions that decide such a skip of a rows key. */
static void request_skip_verdict(struct ps_agent_step *st,
                                 struct ps_agent_key *k,
                                 const struct ps_agent_op *op)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->server_version < (int64_t)op->round &&
            p->requested_version != (int64_t)op->round) {
            p->requested_version = (int64_t)op->round;
            ps_agent_rows_request_version(st, p, (int64_t)op->round);
        }
    }
}

static void end_satisfied_ops(struct ps_agent_step *st, struct ps_agent_key *k,
                              struct ps_list *list)
{
    int64_t held = min_local_version(k);
    struct ps_list_node *n = ps_list_first(list);

    while (n != NULL) {
        struct ps_list_node *next = ps_list_next(list, n);
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);
        bool nobody = false;

        if (op->kind == PS_OP_SKIP) {
            if (is_skip_decided(k, op, &nobody)) {
                ps_list_remove(n);
                if (nobody) {
                    ps_agent_op_end_skipped(st, op, op->round);
                } else {
                    ps_agent_op_end(st, op, op->round, 0, "");
                }
            } else if (k->row_width != 0) {
                request_skip_verdict(st, k, op);
            }
        } else if (held >= (int64_t)op->round) {
            ps_list_remove(n);
            ps_agent_op_end(st, op, (uint64_t)held, 0, "");
        }
        n = next;
    }
}

static void lower_needed_version(int64_t *least, int64_t version)
{
    if (*least == NO_VERSION || version < *least) {
        *least = version;
    }
}

/* Ends satisfied operations, then requests the lowest version needed: a later
 * one may wait for a rank that waits for this one. */
void ps_agent_pull_advance(struct ps_agent_step *st, struct ps_agent_key *k)
{
    int64_t least = NO_VERSION;

    if (k->is_async) {
        ps_agent_async_advance(st, k);
        return;
    }
    ps_agent_rows_advance(st, k);

    end_satisfied_ops(st, k, &k->pulls);
    if (k->pending_init_parts == 0) {
        end_satisfied_ops(st, k, &k->inits);
        if (!ps_list_empty(&k->inits)) {
            lower_needed_version(&least, 0);
        }
    }
    PS_LIST_EACH(n, &k->pulls)
    {
        lower_needed_version(
            &least, (int64_t)PS_CONTAINER(n, struct ps_agent_op, node)->round);
    }
    if (k->round_open && k->round_complete && k->needs_value) {
        /* Committed partitions whose value has not arrived. */
        for (uint32_t i = 0; i < k->part_count; i++) {
            if (k->parts[i].committed_version >= (int64_t)k->round &&
                k->parts[i].local_version < (int64_t)k->round) {
                lower_needed_version(&least, (int64_t)k->round);
            }
        }
    }
    if (least != NO_VERSION) {
        request_version(st, k, least);
    }
}

void ps_agent_pull_accept_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    ps_list_push_back(&k->pulls, &op->node);
    ps_agent_pull_advance(st, k);
}

void ps_agent_pull_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                          uint32_t node)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (node == 0 || k->parts[i].owner_node == node) {
            k->parts[i].requested_version = NO_VERSION;
        }
    }
    ps_agent_rows_reset_requests(k, node, UINT32_MAX);
    ps_agent_opt_state_resend(st, k, node);
    if (k->is_async) {
        ps_agent_async_reset_clock(k, node);
    }
    ps_agent_pull_advance(st, k);
}

/* --------------------------------------------------------------------- init */

static bool is_op_of_root(const struct ps_agent_op *op)
{
    return op->key->job->local_ranks[op->local_rank].rank == op->root;
}

static void start_init(struct ps_agent_step *st, struct ps_agent_key *k,
                       const struct ps_agent_op *op)
{
    ps_buf_unref(k->init_array.buf);
    k->init_array = op->array;
    ps_buf_ref(op->array.buf);
    k->init_retry++;
    k->pending_init_parts = 0;
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].committed_version < 0) {
            k->parts[i].is_init = true;
            k->pending_init_parts++;
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        /* A sum of a failed round may still run; the init follows when it ends:
         * discard_sum() in send_queue.c. */
        if (p->is_init && p->state == PS_AGENT_PART_IDLE) {
            ps_agent_round_launch_part(st, p);
        }
    }
    if (k->pending_init_parts == 0) {
        ps_buf_unref(k->init_array.buf);
        k->init_array = (struct ps_slice){0};
    }
}

void ps_agent_init_accept_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    op->round = 0;
    ps_list_push_back(&k->inits, &op->node);
    if (is_op_of_root(op) && k->pending_init_parts == 0 && !k->round_open) {
        start_init(st, k, op);
    }
    if (k->part_count == 0 || k->parts[0].owner_node != 0) {
        ps_agent_pull_advance(st, k);
    } else {
        end_satisfied_ops(st, k, &k->inits);
    }
}

void ps_agent_init_start_pending(struct ps_agent_step *st,
                                 struct ps_agent_key *k)
{
    PS_LIST_EACH(n, &k->inits)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (is_op_of_root(op) && k->pending_init_parts == 0) {
            start_init(st, k, op);
            return;
        }
    }
}

bool ps_agent_init_reopen_part(struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->committed_version != 0 || p->local_version != NO_VERSION ||
        k->round_open || p->is_init) {
        return false;
    }
    PS_LIST_EACH(n, &k->inits)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    node);

        if (!is_op_of_root(op)) {
            continue;
        }
        if (k->pending_init_parts == 0) {
            ps_buf_unref(k->init_array.buf);
            k->init_array = op->array;
            ps_buf_ref(op->array.buf);
            k->init_retry++;
        }
        k->pending_init_parts++;
        p->is_init = true;
        p->committed_version = NO_VERSION;
        return true;
    }
    return false;
}

void ps_agent_init_part_committed(struct ps_agent_step *st,
                                  struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->state != PS_AGENT_PART_COMPUTING) {
        ps_agent_send_dequeue(st, p);
    }
    p->is_init = false;
    assert(k->pending_init_parts > 0);
    if (--k->pending_init_parts > 0) {
        return;
    }
    ps_buf_unref(k->init_array.buf);
    k->init_array = (struct ps_slice){0};
    ps_agent_pull_advance(st, k);
    if (k->round_open && k->round_complete) {
        /* The round became complete during the init. */
        for (uint32_t i = 0; i < k->part_count; i++) {
            struct ps_agent_part *q = &k->parts[i];

            if (q->state == PS_AGENT_PART_IDLE &&
                q->committed_version < (int64_t)k->round &&
                ps_agent_round_is_part_ready(q)) {
                ps_agent_round_launch_part(st, q);
            }
        }
        ps_agent_reattach_advance(st, k);
    }
}
