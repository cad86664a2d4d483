/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over the ranks of this node. A round of a key is open from the first
 * contribution until all partitions have its version; it is complete, and its
 * partitions are summed and sent, when every local rank has contributed. Arrays
 * stay in worker memory and can be summed again until the round ends
 * (rule R12).
 *
 * A streaming worker contributes while it still copies its array: a partition
 * leaves when its bytes are ready on all local ranks. If such a worker died,
 * part of its gradient would be in the sums, so streaming is limited to jobs
 * that fail when they lose a worker (rule W15). */
#include "core/agent/inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/round/round.h"
#include "core/round/rows.h"

#include <assert.h>
#include <string.h>

static bool is_push_op(enum ps_op kind)
{
    return kind == PS_OP_PUSH || kind == PS_OP_PUSHPULL ||
           kind == PS_OP_BROADCAST || kind == PS_OP_BROADCAST_SEND_ONLY ||
           kind == PS_OP_PUSH_ROWS || kind == PS_OP_SKIP;
}

uint64_t ps_agent_round_of_op(const struct ps_agent_op *op)
{
    return op->round;
}

void ps_agent_round_stamp(const struct ps_agent_key *k, struct ps_rec_part *rec)
{
    rec->attempt = k->round_starts;
}

/* --------------------------------------------------------------- operations */

/* Fills in the array that the operation names; buf NULL: it names none. False:
 * the operation has been rejected. */
static bool resolve_op_array(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_agent_key *k,
                             const struct ps_msg_l_op *m,
                             struct ps_agent_op_input *in)
{
    struct ps_buf *region;
    uint64_t bytes;

    if (!k->kind->measure_array(st, s, k, m, in)) {
        return false;
    }
    bytes = in->array.len;
    if (m->region == 0) {
        in->array.len = 0;
        return true;
    }
    region = ps_map_get(s->regions, m->region);
    if (region == NULL) {
        const char *why;
        int rc = ps_agent_session_on_missing_region(s, m->region, &why);

        ps_agent_op_reject(st, s, m, rc, "region %u: %s", m->region, why);
        return false;
    }
    if (m->offset > region->size || bytes > region->size - m->offset) {
        ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': %llu bytes at %llu do not lie in region %u of %zu bytes",
            k->name, (unsigned long long)bytes, (unsigned long long)m->offset,
            m->region, region->size);
        return false;
    }
    if (((uintptr_t)region->data + m->offset) % in->align != 0) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "'%s': the array is not aligned to %zu", k->name,
                           in->align);
        return false;
    }
    in->array.buf = region;
    in->array.offset = m->offset;
    return true;
}

static bool may_stream(const struct ps_agent_session *s,
                       const struct ps_agent_key *k,
                       const struct ps_msg_l_op *m,
                       const struct ps_slice *array)
{
    return array->len > 0 && k->kind->has_rounds &&
           s->hello->l_hello.on_loss == PS_LOSS_POLICY_FAIL &&
           (m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
            m->op == PS_OP_BROADCAST);
}

/* Returns true when the operation is valid in the key's state. False: it has
 * been rejected. */
static bool validate_op(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_agent_key *k,
                        const struct ps_msg_l_op *m,
                        const struct ps_slice *array)
{
    bool gives;

    if (m->op == PS_OP_SKIP && (m->region != 0 || m->row_count != 0)) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "'%s': a pass gives nothing, and names no array",
                           k->name);
        return false;
    }
    if (m->streaming && !may_stream(s, k, m, array)) {
        ps_agent_op_reject(st, s, m, PS_E_UNSUPPORTED,
                           "'%s': an array grows in a push, pushpull or "
                           "broadcast of a sync job that fails when it "
                           "loses a worker; else it is all there",
                           k->name);
        return false;
    }
    if (m->root >= k->job->num_workers) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "root %u: the job has ranks 0 to %u", m->root,
                           k->job->num_workers - 1);
        return false;
    }
    gives = m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
            ((m->op == PS_OP_BROADCAST || m->op == PS_OP_BROADCAST_SEND_ONLY ||
              m->op == PS_OP_INIT) &&
             k->job->local_ranks[s->local_rank].rank == m->root);
    if (gives && array->buf == NULL) {
        ps_agent_op_reject(st, s, m, PS_E_INVAL,
                           "'%s': the operation gives no array", k->name);
        return false;
    }
    if (is_push_op((enum ps_op)m->op) &&
        m->round != k->pushed_round[s->local_rank] + 1) {
        ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': rank %u offers round %llu, but its next is %llu", k->name,
            k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)m->round,
            (unsigned long long)k->pushed_round[s->local_rank] + 1);
        return false;
    }
    if ((m->op == PS_OP_PULL || m->op == PS_OP_PULL_ROWS) &&
        m->round > k->pushed_round[s->local_rank]) {
        ps_agent_op_reject(
            st, s, m, PS_E_INVAL,
            "'%s': rank %u asks for version %llu, but has pushed %llu "
            "rounds only",
            k->name, k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)m->round,
            (unsigned long long)k->pushed_round[s->local_rank]);
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------- rounds */

static bool contribute_op(struct ps_agent_step *st, struct ps_agent_op *op);

/* Takes the request of the round from `op`: its first contribution, or the
 * first that is not a skip. */
static void adopt_request(struct ps_agent_key *k, const struct ps_agent_op *op)
{
    k->round_op = op->kind;
    k->reduce = op->reduce;
    k->root = op->root;
    k->priority = op->priority;
}

static void open_round(struct ps_agent_key *k, const struct ps_agent_op *op)
{
    assert(!k->round_open);
    if (op->round != k->round) {
        ps_agent_conflict_clear(k);
    }
    k->round_open = true;
    k->round_complete = false;
    k->needs_value = false;
    k->round = op->round;
    k->round_starts++;
    k->contributed_count = 0;
    k->streaming_count = 0;
    adopt_request(k, op);
}

static bool op_matches_round(const struct ps_agent_key *k,
                             const struct ps_agent_op *op)
{
    bool broadcast = op->kind == PS_OP_BROADCAST;

    if (op->kind == PS_OP_SKIP || k->round_op == PS_OP_SKIP) {
        return true;
    }
    if (broadcast != (k->round_op == PS_OP_BROADCAST)) {
        return false;
    }
    return broadcast ? op->root == k->root : op->reduce == k->reduce;
}

/* Number of contributions that are not skips, or in a mean their samples
 * (rule R20). */
static uint64_t round_weight(const struct ps_agent_key *k)
{
    uint64_t weight = 0;

    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = k->contribution[i];

        if (op != NULL && op->kind != PS_OP_SKIP) {
            weight += k->reduce == PS_REDUCE_MEAN ? op->samples : 1;
        }
    }
    return weight;
}

/* Rule R24: aborts a broadcast whose root skips, and returns true then. Only in
 * jobs without servers: servers detect a round without a value themselves. */
static bool fail_if_root_skips(struct ps_agent_step *st, struct ps_agent_key *k)
{
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (k->round_op != PS_OP_BROADCAST || k->part_count == 0 ||
        k->parts[0].owner_node != 0) {
        return false;
    }
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (k->job->local_ranks[i].rank == k->root &&
            k->contribution[i] != NULL &&
            k->contribution[i]->kind == PS_OP_SKIP) {
            ps_str_init(&t, text, sizeof(text));
            ps_str_addf(&t,
                        "broadcast of '%s' round %llu: rank %u has joined and "
                        "cannot be the root",
                        k->name, (unsigned long long)k->round, k->root);
            ps_agent_conflict_on_refuse(st, k, k->round,
                                        ps_agent_conflict_retry(k) + 1, text);
            return true;
        }
    }
    return false;
}

static bool is_op_streaming(const struct ps_agent_op *op)
{
    return op->bytes_ready < op->array.len;
}

bool ps_agent_round_is_part_ready(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;
    uint64_t end = (p->first_elem + p->count) * ps_dtype_size(k->dtype);

    for (uint32_t i = 0; k->streaming_count > 0 && i < k->job->local_rank_count;
         i++) {
        const struct ps_agent_op *op = k->contribution[i];

        if (op != NULL && is_op_streaming(op) && op->bytes_ready < end) {
            return false;
        }
    }
    return true;
}

bool ps_agent_round_awaits_rank(const struct ps_agent_key *k, uint32_t local,
                                uint64_t round)
{
    const struct ps_agent_op *op = k->contribution[local];

    return k->pushed_round[local] < round ||
           (op != NULL && op->round <= round && is_op_streaming(op));
}

/* Launches, in order, the partitions whose bytes are ready on all ranks. */
static void launch_ready_parts(struct ps_agent_step *st, struct ps_agent_key *k)
{
    while (k->launched_parts < k->part_count &&
           ps_agent_round_is_part_ready(&k->parts[k->launched_parts])) {
        struct ps_agent_part *p = &k->parts[k->launched_parts++];

        if (p->state != PS_AGENT_PART_IDLE) {
            /* An init of the partition, or a sum for an earlier round, still
             * runs; its end launches the partition. */
            continue;
        }
        if (k->prior_state != NULL &&
            p->committed_version >= (int64_t)k->round) {
            continue;
        }
        p->is_init = false;
        ps_agent_round_launch_part(st, p);
    }
}

/* Ends the collection of contributions and launches the partitions. Every rank
 * that must contribute has done so. */
void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k)
{
    if (fail_if_root_skips(st, k)) {
        return;
    }
    k->round_complete = true;
    k->pending_parts = k->part_count;
    k->completed_prefix = 0;
    k->launched_parts = 0;
    k->reported_bytes = 0;
    k->weight = round_weight(k);
    PS_LIST_EACH(n, &k->pulls)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    node);

        k->needs_value = k->needs_value ||
                         (k->kind->has_rounds && op->round >= k->round);
    }
    launch_ready_parts(st, k);
    ps_agent_reattach_advance(st, k);
}

static void append_request(struct ps_str *t, enum ps_op kind, uint8_t reduce,
                           uint32_t root)
{
    if (kind == PS_OP_BROADCAST) {
        ps_str_addf(t, "broadcast from rank %u", root);
    } else {
        ps_str_add(t, ps_reduce_name(reduce));
    }
}

/* Returns true when the operation is for the rank's next round. False: it has
 * been refused. Another operation of the rank may have taken the round of a
 * deferred one since its arrival. */
static bool check_op_round(struct ps_agent_step *st, struct ps_agent_op *op)
{
    const struct ps_agent_key *k = op->key;
    uint64_t next = k->pushed_round[op->local_rank] + 1;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (op->round == next && k->contribution[op->local_rank] == NULL) {
        return true;
    }
    ps_str_init(&t, text, sizeof(text));
    ps_str_addf(&t, "'%s': rank %u offers round %llu, but its next is %llu",
                k->name, k->job->local_ranks[op->local_rank].rank,
                (unsigned long long)op->round, (unsigned long long)next);
    ps_agent_op_end(st, op, 0, PS_E_INVAL, text);
    return false;
}

/* Adds the contribution to the round, which it opens if necessary. False: the
 * operation has ended or caused a conflict. */
static bool contribute_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    if (!check_op_round(st, op)) {
        return false;
    }
    if (ps_agent_conflict_notify_op(st, op)) {
        return false;
    }
    if (!k->round_open) {
        open_round(k, op);
    } else if (!op_matches_round(k, op)) {
        char text[PS_TEXT_MAX];
        struct ps_str t;

        ps_str_init(&t, text, sizeof(text));
        ps_str_addf(&t,
                    "'%s' round %llu: the ranks ask for different things: "
                    "rank %u: ",
                    k->name, (unsigned long long)op->round,
                    k->job->local_ranks[op->local_rank].rank);
        append_request(&t, op->kind, op->reduce, op->root);
        ps_str_add(&t, "; others: ");
        append_request(&t, k->round_op, k->reduce, k->root);
        ps_agent_conflict_begin(st, op, text);
        return false;
    }
    if (k->round_op == PS_OP_SKIP) {
        adopt_request(k, op);
    }
    k->contribution[op->local_rank] = op;
    k->contributed_count++;
    k->streaming_count += is_op_streaming(op);
    k->pushed_round[op->local_rank] = op->round;
    k->needs_value = k->needs_value ||
                     (!op->send_only && op->kind != PS_OP_PUSH &&
                      op->kind != PS_OP_PUSH_ROWS && op->kind != PS_OP_SKIP);
    if (op->kind != PS_OP_SKIP && op->priority > k->priority) {
        k->priority = op->priority;
    }
    if (k->contributed_count == k->job->local_rank_count) {
        ps_agent_round_complete(st, k);
    }
    return true;
}

/* Streaming operation of this id; NULL: it has ended. It may be deferred. */
static struct ps_agent_op *find_streaming_op(const struct ps_agent_session *s,
                                             const struct ps_agent_key *k,
                                             uint64_t id)
{
    struct ps_agent_op *op = k->contribution[s->local_rank];

    if (op != NULL && op->session == s && op->id == id) {
        return op;
    }
    PS_LIST_EACH(n, &k->deferred_pushes)
    {
        op = PS_CONTAINER(n, struct ps_agent_op, node);
        if (op->session == s && op->id == id) {
            return op;
        }
    }
    return NULL;
}

static void accept_progress(struct ps_agent_step *st,
                            struct ps_agent_session *s, struct ps_agent_key *k,
                            const struct ps_msg_l_op *m)
{
    struct ps_agent_op *op = k == NULL ? NULL
                                       : find_streaming_op(s, k, m->op_id);

    if (op == NULL) {
        return;
    }
    if (m->offset <= op->bytes_ready || m->offset > op->array.len) {
        ps_agent_session_end(
            st, s, PS_E_INVAL,
            "'%s': rank %u says that %llu of %llu bytes are there, after %llu: "
            "they become more, up to the end of the array",
            k->name, k->job->local_ranks[s->local_rank].rank,
            (unsigned long long)m->offset, (unsigned long long)op->array.len,
            (unsigned long long)op->bytes_ready);
        return;
    }
    op->bytes_ready = m->offset;
    if (k->contribution[s->local_rank] != op) {
        return;
    }
    k->streaming_count -= !is_op_streaming(op);
    if (k->round_open && k->round_complete) {
        launch_ready_parts(st, k);
    }
}

static struct ps_agent_op *new_op(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  struct ps_agent_key *k,
                                  const struct ps_msg_l_op *m,
                                  const struct ps_agent_op_input *in)
{
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);

    op->charged_bytes = in->charged_bytes;
    op->send_only = m->op == PS_OP_BROADCAST_SEND_ONLY;
    op->kind = op->send_only ? PS_OP_BROADCAST : (enum ps_op)m->op;
    op->key = k;
    op->round = m->round;
    op->priority = m->priority;
    op->reduce = m->reduce;
    op->root = m->root;
    op->samples = m->samples == 0 ? 1 : m->samples;
    op->array = in->array;
    op->bytes_ready = m->streaming ? 0 : in->array.len;
    if (in->array.buf != NULL) {
        ps_buf_ref(in->array.buf);
    }
    op->rows = in->rows;
    return op;
}

void ps_agent_op_accept(struct ps_agent_step *st, struct ps_agent_session *s,
                        const struct ps_msg_l_op *m)
{
    struct ps_agent_key *k = ps_map_get(s->job->keys, m->key);
    struct ps_agent_op_input in = {0};
    struct ps_agent_op *op;

    if (m->op == PS_OP_PROGRESS) {
        accept_progress(st, s, k, m);
        return;
    }
    if (k == NULL) {
        ps_agent_op_reject(st, s, m, PS_E_NOKEY,
                           "no key has the number %u: declare it", m->key);
        return;
    }
    if (!resolve_op_array(st, s, k, m, &in) ||
        !validate_op(st, s, k, m, &in.array) ||
        (k->kind->validate_op != NULL &&
         !k->kind->validate_op(st, s, k, m, &in.array)) ||
        (k->kind->copy_input != NULL &&
         !k->kind->copy_input(st, s, k, m, &in))) {
        return;
    }
    op = new_op(st, s, k, m, &in);
    if (op->kind == PS_OP_INIT) {
        ps_agent_init_accept_op(st, op);
    } else {
        k->kind->accept_op(st, op);
    }
}

void ps_agent_round_accept_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    if (ps_agent_reattach_accept_op(st, op)) {
        return;
    }
    if (k->round_open && op->round > k->round) {
        /* A rank whose worker was replaced may contribute while its last
         * round is open. */
        ps_list_push_back(&k->deferred_pushes, &op->node);
    } else {
        contribute_op(st, op);
    }
}

/* ----------------------------------------------------------- end of a round */

static void contribute_deferred(struct ps_agent_step *st,
                                struct ps_agent_key *k)
{
    struct ps_list again;
    struct ps_list_node *n;

    ps_list_init(&again);
    while ((n = ps_list_pop(&k->deferred_pushes)) != NULL) {
        ps_list_push_back(&again, n);
    }
    while ((n = ps_list_pop(&again)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (k->round_open && op->round > k->round) {
            ps_list_push_back(&k->deferred_pushes, n);
        } else {
            contribute_op(st, op);
        }
    }
}

/* Returns true when all ranks of the job skipped the round. A server's report
 * is ignored if a local rank contributed (rule R23). */
static bool all_skipped(const struct ps_agent_key *k)
{
    for (uint32_t i = 0; k->round_op == PS_OP_SKIP && i < k->part_count; i++) {
        if (k->parts[i].skipped_version != (int64_t)k->round) {
            return false;
        }
    }
    return k->round_op == PS_OP_SKIP;
}

void ps_agent_round_part_skipped(struct ps_agent_part *p, uint64_t version)
{
    struct ps_agent_key *k = p->key;

    if ((int64_t)version <= p->skipped_version) {
        return;
    }
    p->skipped_version = (int64_t)version;
    if (p->owner_node != 0 && k->kind->has_results && k->round_open &&
        k->round_complete && k->round_op == PS_OP_SKIP && version == k->round &&
        p->local_version == (int64_t)version - 1) {
        /* A skipped round repeats the value before it. The copy saves a pull,
         * and is the value that a new owner restores. */
        const uint64_t at = p->first_elem * ps_dtype_size(k->dtype);

        memcpy(k->results->data + k->result_offset[version & 1] + at,
               k->results->data + k->result_offset[(version - 1) & 1] + at,
               ps_agent_part_bytes(p));
        p->local_version = (int64_t)version;
    }
}

void ps_agent_round_end(struct ps_agent_step *st, struct ps_agent_key *k)
{
    const uint64_t round = k->round;
    const bool nobody = all_skipped(k);

    k->round_open = false;
    k->round_complete = false;
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = k->contribution[i];

        k->contribution[i] = NULL;
        if (op != NULL && nobody) {
            ps_agent_op_end_skipped(st, op, round);
        } else if (op != NULL) {
            ps_agent_op_end(st, op, round, 0, "");
        }
    }
    k->kind->advance(st, k);
    contribute_deferred(st, k);
}

/* Reports the readable prefix of the result every PROGRESS_BYTES, so that
 * workers copy it while it is cached and the rest arrives. Only values of this
 * very version count: others lie at another offset. */
static void report_progress(struct ps_agent_step *st, struct ps_agent_key *k)
{
    uint64_t bytes;

    while (k->completed_prefix < k->part_count &&
           k->parts[k->completed_prefix].completed_round >= k->round &&
           k->parts[k->completed_prefix].local_version == (int64_t)k->round) {
        k->completed_prefix++;
    }
    if (k->completed_prefix == k->part_count) {
        return; /* The end of the round follows. */
    }
    bytes = k->parts[k->completed_prefix].first_elem * ps_dtype_size(k->dtype);
    if (bytes < k->reported_bytes + PROGRESS_BYTES) {
        return;
    }
    k->reported_bytes = bytes;
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = k->contribution[i];

        if (op != NULL && op->session != NULL && !op->session->is_closing &&
            (op->kind == PS_OP_PUSHPULL || op->kind == PS_OP_BROADCAST) &&
            !op->send_only) {
            ps_effects_op_progress(st->fx, op->session->conn, op->id, bytes);
        }
    }
}

/* Handles a new version of the partition: ends its init, round or pulls. */
void ps_agent_round_part_advanced(struct ps_agent_step *st,
                                  struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->is_init) {
        if (p->committed_version >= 0) {
            ps_agent_init_part_committed(st, p);
        }
        return;
    }
    if (k->round_open && k->round_complete && p->completed_round < k->round &&
        p->committed_version >= (int64_t)k->round) {
        if (p->state != PS_AGENT_PART_COMPUTING) {
            ps_agent_send_dequeue(st, p);
        }
        if (k->needs_value && p->local_version < (int64_t)k->round) {
            k->kind->advance(st, k); /* Committed without the value. */
            return;
        }
        p->completed_round = k->round;
        ps_agent_encode_discard(p);
        assert(k->pending_parts > 0);
        if (--k->pending_parts == 0) {
            st->a->stats.rounds++;
            k->kind->end_round(st, k);
            return;
        }
        if (k->needs_value) {
            report_progress(st, k);
        }
    }
    k->kind->advance(st, k);
}

void ps_agent_round_fail(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text)
{
    struct ps_list_node *n;

    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->state != PS_AGENT_PART_COMPUTING) {
            ps_agent_send_dequeue(st, p);
        }
        p->is_init = false;
        p->requested_version = NO_VERSION;
        ps_agent_encode_round_failed(p);
    }
    for (uint32_t i = 0; k->round_open && i < k->job->local_rank_count; i++) {
        struct ps_agent_op *op = k->contribution[i];

        k->contribution[i] = NULL;
        if (op != NULL) {
            k->pushed_round[i] = op->round - 1; /* May be retried. */
            ps_agent_op_end(st, op, 0, error, text);
        }
    }
    k->round_open = false;
    k->round_complete = false;
    while ((n = ps_list_pop(&k->inits)) != NULL) {
        ps_agent_op_end(st, PS_CONTAINER(n, struct ps_agent_op, node), 0, error,
                        text);
    }
    k->pending_init_parts = 0;
    ps_buf_unref(k->init_array.buf);
    k->init_array = (struct ps_slice){0};
    while ((n = ps_list_pop(&k->pulls)) != NULL) {
        ps_agent_op_end(st, PS_CONTAINER(n, struct ps_agent_op, node), 0, error,
                        text);
    }
    while ((n = ps_list_pop(&k->row_pulls)) != NULL) {
        ps_agent_op_end(st, PS_CONTAINER(n, struct ps_agent_op, node), 0, error,
                        text);
    }
    while ((n = ps_list_pop(&k->deferred_pushes)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (k->pushed_round[op->local_rank] >= op->round) {
            k->pushed_round[op->local_rank] = op->round - 1;
        }
        ps_agent_op_end(st, op, 0, error, text);
    }
}

/* --------------------------------------------------------------------- sums */

uint32_t ps_agent_round_part_sources(const struct ps_agent_part *p,
                                     struct ps_slice *slices)
{
    const struct ps_agent_key *k = p->key;
    size_t size = ps_dtype_size(k->dtype);
    uint32_t count = 0;

    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        const struct ps_agent_op *op = k->contribution[i];

        if (op == NULL || op->array.buf == NULL ||
            (k->round_op == PS_OP_BROADCAST &&
             k->job->local_ranks[i].rank != k->root)) {
            continue;
        }
        slices[count++] = (struct ps_slice){.buf = op->array.buf,
                                            .offset = op->array.offset +
                                                      p->first_elem * size,
                                            .len = p->count * size};
    }
    return count;
}

/* Without servers: newest value, which a skipped round repeats. */
static struct ps_slice previous_value(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return (struct ps_slice){.buf = k->results,
                             .offset = k->result_offset[p->local_version & 1] +
                                       p->first_elem * ps_dtype_size(k->dtype),
                             .len = ps_agent_part_bytes(p)};
}

/* Without servers: computes the partition directly into the results. */
static void compute_locally(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent *a = st->a;
    struct ps_agent_key *k = p->key;
    size_t size = ps_dtype_size(k->dtype);
    uint64_t version = p->is_init ? 0 : k->round;
    struct ps_slice one = {.buf = k->init_array.buf,
                           .offset = k->init_array.offset +
                                     p->first_elem * size,
                           .len = p->count * size};
    const bool sums = !p->is_init && k->round_op != PS_OP_BROADCAST &&
                      k->round_op != PS_OP_SKIP;
    struct ps_slice *slices = &one;
    uint32_t count = 1;
    struct ps_agent_computation *run;
    struct ps_compute *c;

    if (!p->is_init && k->round_op == PS_OP_SKIP) {
        ps_agent_round_part_skipped(p, version);
        if (p->local_version !=
            (int64_t)version - 1) { /* No value exists yet. */
            p->committed_version = (int64_t)version;
            ps_agent_round_part_advanced(st, p);
            return;
        }
        one = previous_value(p);
    } else if (!p->is_init) {
        slices = ps_calloc(k->job->local_rank_count, sizeof(*slices));
        count = ps_agent_round_part_sources(p, slices);
    }
    run = ps_calloc(1, sizeof(*run));
    run->token = ++a->last_token;
    run->part = p;
    run->version = (int64_t)version;
    run->round_starts = k->round_starts;
    c = ps_compute_new(run->token, count, 1);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)k->dtype;
    c->job.fold = sums ? ps_round_fold(k->reduce) : PS_FOLD_SUM;
    c->job.count = p->count;
    c->job.divide_by = sums && k->reduce == PS_REDUCE_MEAN ? k->weight : 1;
    for (uint32_t i = 0; i < count; i++) {
        ps_compute_add_src(c, &slices[i], 0);
    }
    c->job.dst = k->results->data + k->result_offset[version & 1] +
                 p->first_elem * size;
    ps_compute_pin(c, k->results);
    ps_map_put(a->computations, run->token, run);
    ps_agent_part_set_state(p, PS_AGENT_PART_COMPUTING);
    a->stats.bytes_summed += count * p->count * size;
    ps_effects_compute(st->fx, c);
    if (slices != &one) {
        ps_free(slices);
    }
}

void ps_agent_round_launch_part(struct ps_agent_step *st,
                                struct ps_agent_part *p)
{
    if (p->owner_node == 0) {
        compute_locally(st, p);
    } else {
        ps_agent_send_enqueue(st, p);
    }
}

/* Returns true for an init, or when the round has not failed since: after a
 * failure workers may change their arrays. */
static bool is_result_current(const struct ps_agent_computation *run)
{
    const struct ps_agent_key *k = run->part->key;

    return run->version == 0 || (k->round_open && k->round_complete &&
                                 run->round_starts == k->round_starts);
}

void ps_agent_round_on_computed(struct ps_agent_step *st,
                                struct ps_agent_computation *run, int error)
{
    struct ps_agent_part *p = run->part;
    struct ps_agent_key *k = p == NULL ? NULL : p->key;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (p != NULL && p->state == PS_AGENT_PART_COMPUTING) {
        ps_agent_part_set_state(p, PS_AGENT_PART_IDLE);
        if (!is_result_current(run)) {
            if (p->is_init || (k->round_open && k->round_complete &&
                               p->completed_round < k->round &&
                               ps_agent_round_is_part_ready(p))) {
                ps_agent_round_launch_part(st, p);
            }
        } else if (error != 0) {
            ps_str_init(&t, text, sizeof(text));
            ps_str_addf(&t,
                        "the sum of '%s' could not be computed on this node: "
                        "%s",
                        k->name, ps_strerror(error));
            ps_agent_round_fail(st, k, error, text);
        } else {
            p->committed_version = run->version;
            p->local_version = run->version;
            ps_agent_round_part_advanced(st, p);
        }
    }
    ps_free(run);
}
