/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over the ranks of this node. A round of a key is open from the first
 * rank that offers it until all partitions have its version; it is complete,
 * and goes on its way, when every rank of the slot has offered. The arrays are
 * the workers' and stay where they are: they can be summed again until the
 * round is over.
 *
 * A worker that still copies what it gives may offer it before: each partition
 * goes as soon as all ranks here have copied that far. A worker that dies
 * meanwhile would leave half of a gradient in the sums, which never counts; so
 * only jobs that fail then do this. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/round.h"
#include "core/rows.h"

#include <assert.h>
#include <string.h>

static bool is_push(enum ps_op kind)
{
    return kind == PS_OP_PUSH || kind == PS_OP_PUSHPULL ||
           kind == PS_OP_BROADCAST || kind == PS_OP_ATTEND ||
           kind == PS_OP_PUSH_ROWS || kind == PS_OP_PASS;
}

static bool is_of_rows(uint8_t kind)
{
    return kind == PS_OP_PUSH_ROWS || kind == PS_OP_PULL_ROWS;
}

/* -------------------------------------------------------- taking operations */

void ps_agent_round_refuse(struct ps_agent_step *st, struct ps_agent_session *s,
                           const struct ps_msg_l_op *m, int error,
                           const char *fmt, ...)
{
    char text[PS_TEXT_MAX];
    struct ps_str t;
    va_list ap;

    ps_str_init(&t, text, sizeof(text));
    va_start(ap, fmt);
    ps_str_addv(&t, fmt, ap);
    va_end(ap);
    ps_effects_tell(
        st->fx, s->conn,
        &(struct ps_msg){
            .code = PS_MSG_L_DONE,
            .l_done = {.op_id = m->op_id, .error = error, .text = text}});
}

/* The array that the operation names. False after an answer. */
static bool take_array(struct ps_agent_step *st, struct ps_agent_session *s,
                       const struct ps_agent_key *k,
                       const struct ps_msg_l_op *m, struct ps_slice *ret_slice)
{
    uint64_t bytes = ps_agent_key_bytes(k);
    size_t align = ps_dtype_size(k->dtype);
    struct ps_buf *region;

    if (is_of_rows(m->op)) {
        if (m->rows > ps_agent_rows_of_key(k)) {
            ps_agent_round_refuse(st, s, m, PS_E_INVAL,
                                  "'%s': the operation names %u rows, and the "
                                  "key has %u rows",
                                  k->name, m->rows, ps_agent_rows_of_key(k));
            return false;
        }
        bytes = ps_rows_numbers_bytes(m->rows) +
                ps_rows_data_bytes(m->rows, k->width, k->dtype);
        align = 8;
    }

    *ret_slice = (struct ps_slice){0};
    if (m->region == 0) {
        return true;
    }
    region = ps_map_get(s->regions, m->region);
    if (region == NULL) {
        const char *why;
        int rc = ps_agent_session_missing(s, m->region, &why);

        ps_agent_round_refuse(st, s, m, rc, "region %u: %s", m->region, why);
        return false;
    }
    if (m->offset > region->size || bytes > region->size - m->offset) {
        ps_agent_round_refuse(
            st, s, m, PS_E_INVAL,
            "'%s': %llu bytes at %llu do not lie in region %u of %zu bytes",
            k->name, (unsigned long long)bytes, (unsigned long long)m->offset,
            m->region, region->size);
        return false;
    }
    if (((uintptr_t)region->data + m->offset) % align != 0) {
        ps_agent_round_refuse(st, s, m, PS_E_INVAL,
                              "'%s': the array is not aligned to %zu", k->name,
                              align);
        return false;
    }
    *ret_slice = (struct ps_slice){
        .buf = region, .offset = m->offset, .len = bytes};
    return true;
}

static bool may_grow(const struct ps_agent_session *s,
                     const struct ps_agent_key *k, const struct ps_msg_l_op *m,
                     const struct ps_slice *array)
{
    return array->len > 0 && !k->async &&
           s->hello->l_hello.on_loss == PS_LOSS_POLICY_FAIL &&
           (m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
            m->op == PS_OP_BROADCAST);
}

/* Does an operation of this kind make sense now? */
static bool check_op(struct ps_agent_step *st, struct ps_agent_session *s,
                     const struct ps_agent_key *k, const struct ps_msg_l_op *m,
                     const struct ps_slice *array)
{
    bool gives;

    if (is_of_rows(m->op) && m->rows > 0 && array->buf == NULL) {
        ps_agent_round_refuse(st, s, m, PS_E_INVAL,
                              "'%s': the operation gives no rows", k->name);
        return false;
    }
    if (m->op == PS_OP_PASS && (m->region != 0 || m->rows != 0)) {
        ps_agent_round_refuse(st, s, m, PS_E_INVAL,
                              "'%s': a pass gives nothing, and names no array",
                              k->name);
        return false;
    }
    if (m->op == PS_OP_PASS && k->collective) {
        ps_agent_round_refuse(st, s, m, PS_E_UNSUPPORTED,
                              "'%s' is a collective's key: a collective knows "
                              "by itself who has joined",
                              k->name);
        return false;
    }
    if (m->growing && !may_grow(s, k, m, array)) {
        ps_agent_round_refuse(st, s, m, PS_E_UNSUPPORTED,
                              "'%s': an array grows in a push, pushpull or "
                              "broadcast of a sync job that fails when it "
                              "loses a worker; else it is all there",
                              k->name);
        return false;
    }
    if (m->root >= k->job->num_workers) {
        ps_agent_round_refuse(st, s, m, PS_E_INVAL,
                              "root %u: the job has ranks 0 to %u", m->root,
                              k->job->num_workers - 1);
        return false;
    }
    gives = m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
            ((m->op == PS_OP_BROADCAST || m->op == PS_OP_ATTEND ||
              m->op == PS_OP_INIT) &&
             k->job->local[s->local].rank == m->root);
    if (gives && array->buf == NULL) {
        ps_agent_round_refuse(st, s, m, PS_E_INVAL,
                              "'%s': the operation gives no array", k->name);
        return false;
    }
    if (is_of_rows(m->op) && m->reduce > PS_REDUCE_MEAN) {
        ps_agent_round_refuse(st, s, m, PS_E_UNSUPPORTED,
                              "'%s': rows are summed or averaged; %s is for "
                              "whole arrays",
                              k->name, ps_reduce_name(m->reduce));
        return false;
    }
    if (is_push((enum ps_op)m->op) && m->round != k->pushed[s->local] + 1) {
        ps_agent_round_refuse(
            st, s, m, PS_E_INVAL,
            "'%s': rank %u offers round %llu, but its next is %llu", k->name,
            k->job->local[s->local].rank, (unsigned long long)m->round,
            (unsigned long long)k->pushed[s->local] + 1);
        return false;
    }
    if ((m->op == PS_OP_PULL || m->op == PS_OP_PULL_ROWS) &&
        m->round > k->pushed[s->local]) {
        ps_agent_round_refuse(
            st, s, m, PS_E_INVAL,
            "'%s': rank %u asks for version %llu, but has pushed %llu "
            "rounds only",
            k->name, k->job->local[s->local].rank, (unsigned long long)m->round,
            (unsigned long long)k->pushed[s->local]);
        return false;
    }
    return true;
}

/* ----------------------------------------------------------------- the round */

static bool offer(struct ps_agent_step *st, struct ps_agent_op *op);

/* The first offer that is no pass says what the round is. */
static void settle(struct ps_agent_key *k, const struct ps_agent_op *op)
{
    k->kind = op->kind;
    k->reduce = op->reduce;
    k->root = op->root;
    k->priority = op->priority;
}

static void begin(struct ps_agent_key *k, const struct ps_agent_op *op)
{
    assert(!k->active);
    if (op->round != k->round) {
        ps_agent_quarrel_end(k);
    }
    k->active = true;
    k->complete = false;
    k->want = false;
    k->round = op->round;
    k->attempt++;
    k->offered = 0;
    k->growing = 0;
    settle(k, op);
}

static bool agrees(const struct ps_agent_key *k, const struct ps_agent_op *op)
{
    bool broadcast = op->kind == PS_OP_BROADCAST;

    if (op->kind == PS_OP_PASS || k->kind == PS_OP_PASS) {
        return true;
    }
    if (broadcast != (k->kind == PS_OP_BROADCAST)) {
        return false;
    }
    return broadcast ? op->root == k->root : op->reduce == k->reduce;
}

/* Ranks that offered and do not pass, or in a mean the samples they state. */
static uint64_t weight_of(const struct ps_agent_key *k)
{
    uint64_t weight = 0;

    for (uint32_t i = 0; i < k->job->local_count; i++) {
        const struct ps_agent_op *op = k->offer[i];

        if (op != NULL && op->kind != PS_OP_PASS) {
            weight += k->reduce == PS_REDUCE_MEAN ? op->samples : 1;
        }
    }
    return weight;
}

/* Without servers: has the root of this broadcast passed? Then it is over.
 * Where there are servers, they see that nobody gives a value. */
static bool lacks_root(struct ps_agent_step *st, struct ps_agent_key *k)
{
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (k->kind != PS_OP_BROADCAST || k->part_count == 0 ||
        k->parts[0].node != 0) {
        return false;
    }
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        if (k->job->local[i].rank == k->root && k->offer[i] != NULL &&
            k->offer[i]->kind == PS_OP_PASS) {
            ps_str_init(&t, text, sizeof(text));
            ps_str_addf(&t,
                        "broadcast of '%s' round %llu: rank %u has joined and "
                        "cannot be the root",
                        k->name, (unsigned long long)k->round, k->root);
            ps_agent_quarrel_refused(st, k, k->round,
                                     ps_agent_quarrel_attempt(k) + 1, text);
            return true;
        }
    }
    return false;
}

static bool is_growing(const struct ps_agent_op *op)
{
    return op->there < op->array.len;
}

bool ps_agent_round_there(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;
    uint64_t end = (p->first + p->count) * ps_dtype_size(k->dtype);

    for (uint32_t i = 0; k->growing > 0 && i < k->job->local_count; i++) {
        const struct ps_agent_op *op = k->offer[i];

        if (op != NULL && is_growing(op) && op->there < end) {
            return false;
        }
    }
    return true;
}

bool ps_agent_round_lacks(const struct ps_agent_key *k, uint32_t local,
                          uint64_t round)
{
    const struct ps_agent_op *op = k->offer[local];

    return k->pushed[local] < round ||
           (op != NULL && op->round <= round && is_growing(op));
}

/* The partitions go that can and have not. */
static void launch(struct ps_agent_step *st, struct ps_agent_key *k)
{
    while (k->launched < k->part_count &&
           ps_agent_round_there(&k->parts[k->launched])) {
        struct ps_agent_part *p = &k->parts[k->launched++];

        if (p->state != PS_AGENT_PART_IDLE) {
            /* An init of it, or a sum for a round that is over, is still
             * under way; it is put in again when that is done. */
            continue;
        }
        if (k->past != NULL && p->committed >= (int64_t)k->round) {
            continue;
        }
        p->init = false;
        ps_agent_round_go(st, p);
    }
}

/* Every rank here that must has offered: the partitions go. */
void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k)
{
    if (lacks_root(st, k)) {
        return;
    }
    k->complete = true;
    k->parts_open = k->part_count;
    k->front = 0;
    k->launched = 0;
    k->told = 0;
    k->weight = weight_of(k);
    PS_LIST_EACH(n, &k->pulls)
    {
        const struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op,
                                                    node);

        k->want = k->want || (!k->async && op->round >= k->round);
    }
    launch(st, k);
    ps_agent_resume_made(st, k);
}

static void add_side(struct ps_str *t, enum ps_op kind, uint8_t reduce,
                     uint32_t root)
{
    if (kind == PS_OP_BROADCAST) {
        ps_str_addf(t, "broadcast from rank %u", root);
    } else {
        ps_str_add(t, ps_reduce_name(reduce));
    }
}

/* Is it the rank's next round of the key? It was when the operation came; one
 * that was parked may have been overtaken by another of the same rank. False:
 * it was refused. */
static bool is_next(struct ps_agent_step *st, struct ps_agent_op *op)
{
    const struct ps_agent_key *k = op->key;
    uint64_t next = k->pushed[op->local] + 1;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (op->round == next && k->offer[op->local] == NULL) {
        return true;
    }
    ps_str_init(&t, text, sizeof(text));
    ps_str_addf(&t, "'%s': rank %u offers round %llu, but its next is %llu",
                k->name, k->job->local[op->local].rank,
                (unsigned long long)op->round, (unsigned long long)next);
    ps_agent_op_done(st, op, 0, PS_E_INVAL, text);
    return false;
}

/* False: it was refused. */
static bool offer(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;

    if (!is_next(st, op)) {
        return false;
    }
    if (ps_agent_quarrel_tells(st, op)) {
        return false;
    }
    if (!k->active) {
        begin(k, op);
    } else if (!agrees(k, op)) {
        char text[PS_TEXT_MAX];
        struct ps_str t;

        ps_str_init(&t, text, sizeof(text));
        ps_str_addf(&t,
                    "'%s' round %llu: the ranks ask for different things: "
                    "rank %u: ",
                    k->name, (unsigned long long)op->round,
                    k->job->local[op->local].rank);
        add_side(&t, op->kind, op->reduce, op->root);
        ps_str_add(&t, "; others: ");
        add_side(&t, k->kind, k->reduce, k->root);
        ps_agent_quarrel_begin(st, op, text);
        return false;
    }
    if (k->kind == PS_OP_PASS) {
        settle(k, op);
    }
    k->offer[op->local] = op;
    k->offered++;
    k->growing += is_growing(op);
    k->pushed[op->local] = op->round;
    k->want = k->want ||
              (!op->aside && op->kind != PS_OP_PUSH &&
               op->kind != PS_OP_PUSH_ROWS && op->kind != PS_OP_PASS);
    if (op->kind != PS_OP_PASS && op->priority > k->priority) {
        k->priority = op->priority;
    }
    if (k->offered == k->job->local_count) {
        ps_agent_round_complete(st, k);
    }
    return true;
}

/* The operation may have ended, or wait for its turn. */
static struct ps_agent_op *find_growing(const struct ps_agent_session *s,
                                        const struct ps_agent_key *k,
                                        uint64_t id)
{
    struct ps_agent_op *op = k->offer[s->local];

    if (op != NULL && op->session == s && op->id == id) {
        return op;
    }
    PS_LIST_EACH(n, &k->parked)
    {
        op = PS_CONTAINER(n, struct ps_agent_op, node);
        if (op->session == s && op->id == id) {
            return op;
        }
    }
    return NULL;
}

static void take_more(struct ps_agent_step *st, struct ps_agent_session *s,
                      struct ps_agent_key *k, const struct ps_msg_l_op *m)
{
    struct ps_agent_op *op = k == NULL ? NULL : find_growing(s, k, m->op_id);

    if (op == NULL) {
        return;
    }
    if (m->offset <= op->there || m->offset > op->array.len) {
        ps_agent_session_end(
            st, s, PS_E_INVAL,
            "'%s': rank %u says that %llu of %llu bytes are there, after %llu: "
            "they become more, up to the end of the array",
            k->name, k->job->local[s->local].rank,
            (unsigned long long)m->offset, (unsigned long long)op->array.len,
            (unsigned long long)op->there);
        return;
    }
    op->there = m->offset;
    if (k->offer[s->local] != op) {
        return;
    }
    k->growing -= !is_growing(op);
    if (k->active && k->complete) {
        launch(st, k);
    }
}

/* The numbers of rows that the operation names, charged to its job. NULL after
 * an answer. */
static struct ps_agent_rows *take_rows(struct ps_agent_step *st,
                                       struct ps_agent_session *s,
                                       const struct ps_agent_key *k,
                                       const struct ps_msg_l_op *m,
                                       const struct ps_slice *array)
{
    const uint64_t cost = ps_agent_rows_cost(k, m->rows);
    struct ps_agent_rows *rows;
    struct ps_refusal why;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (ps_account_charge(&k->job->account, PS_COST_MEMORY, cost, &why) != 0) {
        ps_str_init(&t, text, sizeof(text));
        ps_refusal_text(&why, &t);
        ps_agent_round_refuse(st, s, m, PS_E_FULL, "'%s': %u rows: %s", k->name,
                              m->rows, text);
        return NULL;
    }
    int rc = ps_agent_rows_new(k, array, m->rows, &rows);

    if (rc == 0) {
        return rows;
    }
    ps_account_refund(&k->job->account, PS_COST_MEMORY, cost);
    if (rc == PS_E_NOMEM) {
        ps_agent_round_refuse(st, s, m, rc,
                              "'%s': no memory for the numbers of %u rows",
                              k->name, m->rows);
    } else {
        ps_agent_round_refuse(st, s, m, rc,
                              "'%s': numbers of rows must ascend and be below "
                              "%u",
                              k->name, ps_agent_rows_of_key(k));
    }
    return NULL;
}

void ps_agent_round_take(struct ps_agent_step *st, struct ps_agent_session *s,
                         const struct ps_msg_l_op *m)
{
    struct ps_agent_key *k = ps_map_get(s->job->keys, m->key);
    struct ps_agent_rows *rows = NULL;
    struct ps_slice array;
    struct ps_agent_op *op;

    if (m->op == PS_OP_MORE) {
        take_more(st, s, k, m);
        return;
    }
    if (k == NULL) {
        ps_agent_round_refuse(st, s, m, PS_E_NOKEY,
                              "no key has the number %u: declare it", m->key);
        return;
    }
    if (m->op != PS_OP_INIT && m->op != PS_OP_PASS &&
        is_of_rows(m->op) != (k->width != 0)) {
        ps_agent_round_refuse(
            st, s, m, PS_E_UNSUPPORTED,
            k->width != 0 ? "'%s' is a key of rows: rows are pushed and pulled"
                          : "'%s' is not a key of rows",
            k->name);
        return;
    }
    if (!take_array(st, s, k, m, &array) || !check_op(st, s, k, m, &array) ||
        (k->async && !ps_agent_async_allows(st, s, k, m, &array))) {
        return;
    }
    if (is_of_rows(m->op)) {
        rows = take_rows(st, s, k, m, &array);
        if (rows == NULL) {
            return;
        }
    }
    op = ps_agent_op_new(st, s, m->op_id);
    op->charged = rows == NULL ? 0 : ps_agent_rows_cost(k, m->rows);
    op->aside = m->op == PS_OP_ATTEND;
    op->kind = op->aside ? PS_OP_BROADCAST : (enum ps_op)m->op;
    op->key = k;
    op->round = m->round;
    op->priority = m->priority;
    op->reduce = m->reduce;
    op->root = m->root;
    op->samples = m->samples == 0 ? 1 : m->samples;
    op->array = array;
    op->there = m->growing ? 0 : array.len;
    if (array.buf != NULL) {
        ps_buf_ref(array.buf);
    }
    op->rows = rows;
    if (k->async && op->kind != PS_OP_INIT) {
        ps_agent_async_take(st, op);
    } else if (op->kind == PS_OP_PULL_ROWS) {
        ps_agent_rows_pull(st, op);
    } else if (op->kind == PS_OP_PULL) {
        ps_agent_pull_take(st, op);
    } else if (op->kind == PS_OP_INIT) {
        ps_agent_init_take(st, op);
    } else if (ps_agent_resume_takes(st, op)) {
        return;
    } else if (k->active && op->round > k->round) {
        /* A rank that came back offers while its last round is still open. */
        ps_list_push_back(&k->parked, &op->node);
    } else {
        offer(st, op);
    }
}

/* ------------------------------------------------------------------ the end */

static void unpark(struct ps_agent_step *st, struct ps_agent_key *k)
{
    struct ps_list again;
    struct ps_list_node *n;

    ps_list_init(&again);
    while ((n = ps_list_pop(&k->parked)) != NULL) {
        ps_list_push_back(&again, n);
    }
    while ((n = ps_list_pop(&again)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (k->active && op->round > k->round) {
            ps_list_push_back(&k->parked, n);
        } else {
            offer(st, op);
        }
    }
}

/* A server may say so of a round to which something was given here: it is not
 * believed. */
static bool all_passed(const struct ps_agent_key *k)
{
    for (uint32_t i = 0; k->kind == PS_OP_PASS && i < k->part_count; i++) {
        if (k->parts[i].passed != (int64_t)k->round) {
            return false;
        }
    }
    return k->kind == PS_OP_PASS;
}

void ps_agent_round_passed(struct ps_agent_part *p, uint64_t version)
{
    struct ps_agent_key *k = p->key;

    if ((int64_t)version <= p->passed) {
        return;
    }
    p->passed = (int64_t)version;
    if (p->node != 0 && k->width == 0 && k->active && k->complete &&
        k->kind == PS_OP_PASS && version == k->round &&
        p->held == (int64_t)version - 1) {
        /* That is what a pull would bring, and what another server goes on
         * from when this one is lost. */
        const uint64_t at = p->first * ps_dtype_size(k->dtype);

        memcpy(k->result->data + k->result_at[version & 1] + at,
               k->result->data + k->result_at[(version - 1) & 1] + at,
               ps_agent_part_bytes(p));
        p->held = (int64_t)version;
    }
}

/* All partitions have the version: everybody hears, and the next may begin. */
static void finish(struct ps_agent_step *st, struct ps_agent_key *k)
{
    const uint64_t round = k->round;
    const bool nobody = all_passed(k);

    if (k->async) {
        st->a->stats.rounds++;
        ps_agent_async_finish(st, k);
        return;
    }

    k->active = false;
    k->complete = false;
    st->a->stats.rounds++;
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        struct ps_agent_op *op = k->offer[i];

        k->offer[i] = NULL;
        if (op != NULL && nobody) {
            ps_agent_op_nobody(st, op, round);
        } else if (op != NULL) {
            ps_agent_op_done(st, op, round, 0, "");
        }
    }
    ps_agent_pull_check(st, k);
    unpark(st, k);
}

/* The workers copy what is there while it is in the cache, and while the rest
 * is on its way. Only what is of this very round: they know where that lies. */
static void tell_front(struct ps_agent_step *st, struct ps_agent_key *k)
{
    uint64_t bytes;

    while (k->front < k->part_count && k->parts[k->front].reached >= k->round &&
           k->parts[k->front].held == (int64_t)k->round) {
        k->front++;
    }
    if (k->front == k->part_count) {
        return; /* They hear of the end. */
    }
    bytes = k->parts[k->front].first * ps_dtype_size(k->dtype);
    if (bytes < k->told + PIECE_BYTES) {
        return;
    }
    k->told = bytes;
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        const struct ps_agent_op *op = k->offer[i];

        if (op != NULL && op->session != NULL && !op->session->ended &&
            (op->kind == PS_OP_PUSHPULL || op->kind == PS_OP_BROADCAST) &&
            !op->aside) {
            ps_effects_piece(st->fx, op->session->conn, op->id, bytes);
        }
    }
}

/* A partition has come further: what does that end? */
void ps_agent_round_reached(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (p->init) {
        if (p->committed >= 0) {
            ps_agent_init_reached(st, p);
        }
        return;
    }
    if (k->active && k->complete && p->reached < k->round &&
        p->committed >= (int64_t)k->round) {
        if (p->state != PS_AGENT_PART_SUMMING) {
            ps_agent_send_unqueue(st, p);
        }
        if (k->want && p->held < (int64_t)k->round) {
            ps_agent_pull_check(st, k); /* Merged, but the value went by. */
            return;
        }
        p->reached = k->round;
        ps_agent_code_drop(p);
        assert(k->parts_open > 0);
        if (--k->parts_open == 0) {
            finish(st, k);
            return;
        }
        if (k->want && !k->async) {
            tell_front(st, k);
        }
    }
    ps_agent_pull_check(st, k);
}

void ps_agent_round_fail(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text)
{
    struct ps_list_node *n;

    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->state != PS_AGENT_PART_SUMMING) {
            ps_agent_send_unqueue(st, p);
        }
        p->init = false;
        p->asked = NONE;
        ps_agent_code_fail(p);
    }
    for (uint32_t i = 0; k->active && i < k->job->local_count; i++) {
        struct ps_agent_op *op = k->offer[i];

        k->offer[i] = NULL;
        if (op != NULL) {
            k->pushed[i] = op->round - 1; /* It may be offered again. */
            ps_agent_op_done(st, op, 0, error, text);
        }
    }
    k->active = false;
    k->complete = false;
    while ((n = ps_list_pop(&k->inits)) != NULL) {
        ps_agent_op_done(st, PS_CONTAINER(n, struct ps_agent_op, node), 0,
                         error, text);
    }
    k->inits_open = 0;
    ps_buf_unref(k->init_array.buf);
    k->init_array = (struct ps_slice){0};
    while ((n = ps_list_pop(&k->pulls)) != NULL) {
        ps_agent_op_done(st, PS_CONTAINER(n, struct ps_agent_op, node), 0,
                         error, text);
    }
    while ((n = ps_list_pop(&k->row_pulls)) != NULL) {
        ps_agent_op_done(st, PS_CONTAINER(n, struct ps_agent_op, node), 0,
                         error, text);
    }
    while ((n = ps_list_pop(&k->parked)) != NULL) {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (k->async) {
            k->pushed[op->local] = op->round - 1;
        }
        ps_agent_op_done(st, op, 0, error, text);
    }
}

/* --------------------------------------------------------------- what it is */

uint32_t ps_agent_round_sources(const struct ps_agent_part *p,
                                struct ps_slice *slices)
{
    const struct ps_agent_key *k = p->key;
    size_t size = ps_dtype_size(k->dtype);
    uint32_t count = 0;

    for (uint32_t i = 0; i < k->job->local_count; i++) {
        const struct ps_agent_op *op = k->offer[i];

        if (op == NULL || op->array.buf == NULL ||
            (k->kind == PS_OP_BROADCAST && k->job->local[i].rank != k->root)) {
            continue;
        }
        slices[count++] = (struct ps_slice){.buf = op->array.buf,
                                            .offset = op->array.offset +
                                                      p->first * size,
                                            .len = p->count * size};
    }
    return count;
}

/* Without servers: the value of the version before is that of this one. */
static struct ps_slice stays(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return (struct ps_slice){.buf = k->result,
                             .offset = k->result_at[p->held & 1] +
                                       p->first * ps_dtype_size(k->dtype),
                             .len = ps_agent_part_bytes(p)};
}

/* Without servers: the sum goes straight to where the workers read it. */
static void round_local(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent *a = st->a;
    struct ps_agent_key *k = p->key;
    size_t size = ps_dtype_size(k->dtype);
    uint64_t version = p->init ? 0 : k->round;
    struct ps_slice one = {.buf = k->init_array.buf,
                           .offset = k->init_array.offset + p->first * size,
                           .len = p->count * size};
    const bool sums = !p->init && k->kind != PS_OP_BROADCAST &&
                      k->kind != PS_OP_PASS;
    struct ps_slice *slices = &one;
    uint32_t count = 1;
    struct ps_agent_run *run;
    struct ps_compute *c;

    if (!p->init && k->kind == PS_OP_PASS) {
        ps_agent_round_passed(p, version);
        if (p->held != (int64_t)version - 1) { /* There was never a value. */
            p->committed = (int64_t)version;
            ps_agent_round_reached(st, p);
            return;
        }
        one = stays(p);
    } else if (!p->init) {
        slices = ps_calloc(k->job->local_count, sizeof(*slices));
        count = ps_agent_round_sources(p, slices);
    }
    run = ps_calloc(1, sizeof(*run));
    run->token = ++a->next_token;
    run->part = p;
    run->version = (int64_t)version;
    run->attempt = k->attempt;
    c = ps_compute_new(run->token, count, 1);
    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)k->dtype;
    c->job.fold = sums ? ps_round_fold(k->reduce) : PS_FOLD_SUM;
    c->job.count = p->count;
    c->job.divide_by = sums && k->reduce == PS_REDUCE_MEAN ? k->weight : 1;
    for (uint32_t i = 0; i < count; i++) {
        ps_compute_add_src(c, &slices[i], 0);
    }
    c->job.dst = k->result->data + k->result_at[version & 1] + p->first * size;
    ps_compute_hold(c, k->result);
    ps_map_put(a->runs, run->token, run);
    p->state = PS_AGENT_PART_SUMMING;
    a->stats.summed += count * p->count * size;
    ps_effects_compute(st->fx, c);
    if (slices != &one) {
        ps_free(slices);
    }
}

void ps_agent_round_go(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->node == 0) {
        round_local(st, p);
    } else {
        ps_agent_send_queue(st, p);
    }
}

/* Is what was computed here still wanted? Not of a round that has failed
 * since: its arrays are the workers' again. */
static bool counts(const struct ps_agent_run *run)
{
    const struct ps_agent_key *k = run->part->key;

    return run->version == 0 ||
           (k->active && k->complete && run->attempt == k->attempt);
}

void ps_agent_round_computed(struct ps_agent_step *st, struct ps_agent_run *run,
                             int error)
{
    struct ps_agent_part *p = run->part;
    struct ps_agent_key *k = p == NULL ? NULL : p->key;
    char text[PS_TEXT_MAX];
    struct ps_str t;

    if (p != NULL && p->state == PS_AGENT_PART_SUMMING) {
        p->state = PS_AGENT_PART_IDLE;
        if (!counts(run)) {
            if (p->init || (k->active && k->complete && p->reached < k->round &&
                            ps_agent_round_there(p))) {
                ps_agent_round_go(st, p);
            }
        } else if (error != 0) {
            ps_str_init(&t, text, sizeof(text));
            ps_str_addf(&t,
                        "the sum of '%s' could not be computed on this node: "
                        "%s",
                        k->name, ps_strerror(error));
            ps_agent_round_fail(st, k, error, text);
        } else {
            p->committed = run->version;
            p->held = run->version;
            ps_agent_round_reached(st, p);
        }
    }
    ps_free(run);
}
