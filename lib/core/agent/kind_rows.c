/* SPDX-License-Identifier: Apache-2.0 */
/* Rows keys (row-sparse). A push names some rows and contributes to every
 * partition, if only with an empty set. A rows key has no results here: a pull
 * requests its rows from the servers and writes them to the worker's block,
 * behind the row numbers. */
#include "base/alloc.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/str.h"
#include "core/agent/conflict.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/pull.h"
#include "core/agent/round.h"
#include "core/agent/send.h"
#include "core/agent/server.h"
#include "core/part/rows.h"

#include <string.h>

/* ------------------------------------------------------------- row numbers */

/* Bytes from which row numbers lie in mapped memory; a failed mapping is an
 * error, not an abort. */
#define MAPPED_MIN (64u * 1024u)

/* Row numbers copied before they are validated, so that a block with invalid
 * numbers is not copied in full. */
#define COPY_CHUNK 1024u

/* Part of a row pull that concerns one partition. */
struct ps_agent_row_request {
    uint32_t part_index;
    uint32_t first_row; /* Index of its first row in the operation. */
    uint32_t row_count;
    uint64_t request_id; /* 0: not sent. */
    bool is_answered;
};

/* Rows that an operation contributes or requests. The numbers are copied on
 * arrival, because the worker could change them later. */
struct ps_agent_rows {
    uint32_t count;
    size_t mapped_bytes; /* Bytes mapped at `numbers`; 0: from the heap. */
    uint32_t *numbers;   /* Row numbers in the key, ascending. */
    /* Pull: one entry for each partition that has requested rows. */
    struct ps_agent_row_request *requests;
    uint32_t request_count;
    uint32_t pending_requests; /* Requests without an answer. */
    uint64_t newest_version;
};

static void rows_free(struct ps_agent_rows *r)
{
    if (r->mapped_bytes > 0) {
        ps_pool_unmap(r->numbers, r->mapped_bytes);
    } else {
        ps_free(r->numbers);
    }
    ps_free(r->requests);
    ps_free(r);
}

/* Bytes that `count` rows of a key of `part_count` partitions take at most. */
static uint64_t rows_memory(uint32_t count, uint32_t part_count)
{
    return sizeof(struct ps_agent_rows) + count * (uint64_t)sizeof(uint32_t) +
           ps_min_u64(count, part_count) * sizeof(struct ps_agent_row_request);
}

/* Copies and validates the row numbers. Only the copy is validated, because the
 * worker may still write to the block. */
static bool copy_row_numbers(struct ps_agent_rows *r, const uint8_t *from,
                             uint32_t limit)
{
    for (uint32_t at = 0; at < r->count; at += COPY_CHUNK) {
        uint32_t n = (uint32_t)ps_min_u64(r->count - at, COPY_CHUNK);
        uint32_t first = at == 0 ? 0 : at - 1; /* Order across chunks. */

        memcpy(r->numbers + at, from + at * sizeof(*r->numbers),
               n * sizeof(*r->numbers));
        if (!ps_rows_are_valid(r->numbers + first, n + (at - first), limit)) {
            return false;
        }
        if (at > UINT32_MAX - COPY_CHUNK) {
            break;
        }
    }
    return true;
}

/* Copies the `count` row numbers at the beginning of the block; `count` is at
 * most `limit`, the rows of the key. PS_E_INVAL: they do not ascend, or one is
 * outside the key. PS_E_NOMEM. */
static int rows_new(const struct ps_slice *block, uint32_t count,
                    uint32_t limit, struct ps_agent_rows **ret_rows)
{
    const size_t bytes = (size_t)count * sizeof(uint32_t);
    struct ps_agent_rows *r = ps_calloc(1, sizeof(*r));

    r->count = count;
    if (bytes < MAPPED_MIN) {
        r->numbers = ps_alloc(bytes + sizeof(*r->numbers));
    } else {
        void *data;

        if (ps_pool_map(bytes, &data) != 0) {
            ps_free(r);
            return PS_E_NOMEM;
        }
        r->numbers = data;
        r->mapped_bytes = bytes;
    }
    if (count > 0 && !copy_row_numbers(r, ps_slice_data(block), limit)) {
        rows_free(r);
        return PS_E_INVAL;
    }
    *ret_rows = r;
    return 0;
}

/* -------------------------------------------------------------- partitions */

/* One more than the newest version that the partition's server reported; 0:
 * none. */
static uint64_t *reported_version(const struct ps_agent_part *p)
{
    return (uint64_t *)p->key->own + p->index;
}

static int64_t server_version(const struct ps_agent_part *p)
{
    return (int64_t)*reported_version(p) - 1;
}

static uint32_t rows_in_key(const struct ps_agent_key *k)
{
    return (uint32_t)(k->count / k->row_width);
}

static uint32_t part_first_row(const struct ps_agent_part *p)
{
    return (uint32_t)(p->first_elem / p->key->row_width);
}

static uint32_t part_end_row(const struct ps_agent_part *p)
{
    return part_first_row(p) + p->count / p->key->row_width;
}

/* Rows of the operation's block, behind the row numbers. */
static uint8_t *op_row_data(const struct ps_agent_op *op)
{
    return ps_slice_data(&op->array) + ps_rows_numbers_bytes(op->rows->count);
}

/* -------------------------------------------------------------------- push */

/* Number of rows of `op` in the partition; *ret_from: index of the first. */
static uint32_t op_rows_in_part(const struct ps_agent_op *op,
                                const struct ps_agent_part *p,
                                uint32_t *ret_from)
{
    const struct ps_agent_rows *r = op->rows;
    uint32_t from = ps_rows_lower_bound(r->numbers, r->count,
                                        part_first_row(p));

    *ret_from = from;
    return ps_rows_lower_bound(r->numbers, r->count, part_end_row(p)) - from;
}

/* Row numbers relative to the partition, and the padding behind them. */
static struct ps_slice part_row_numbers(const struct ps_agent_op *op,
                                        const struct ps_agent_part *p,
                                        uint32_t from, uint32_t count)
{
    struct ps_slice slice = {.len = ps_rows_numbers_bytes(count)};
    uint32_t *row;

    slice.buf = ps_buf_new(slice.len);
    memset(slice.buf->data + slice.len - 8, 0, 8);
    row = (uint32_t *)(void *)slice.buf->data;
    for (uint32_t i = 0; i < count; i++) {
        row[i] = op->rows->numbers[from + i] - part_first_row(p);
    }
    return slice;
}

/* Plans the sum of the local ranks' rows of a partition into run->dst, with
 * run->row_count. *ret_compute is NULL when there are none. PS_E_NOMEM: no
 * change. */
static int plan_sum(struct ps_agent *a, struct ps_agent_part *p,
                    struct ps_agent_computation *run,
                    struct ps_compute **ret_compute)
{
    struct ps_agent_key *k = p->key;
    size_t bytes = k->row_width * ps_dtype_size(k->dtype);
    uint32_t locals = k->job->local_rank_count;
    struct ps_compute *c = ps_compute_new(run->token, locals, locals + 1);
    struct ps_rows_sum sum;
    uint64_t numbers;
    uint64_t data;
    int rc;

    ps_rows_sum_init(&sum, k->dtype, k->row_width, locals);
    for (uint32_t i = 0; i < locals; i++) {
        const struct ps_agent_op *op = k->round.contribution[i];
        uint32_t from;
        uint32_t count = op == NULL || op->rows == NULL
                             ? 0
                             : op_rows_in_part(op, p, &from);

        if (count > 0) {
            struct ps_buf *row = part_row_numbers(op, p, from, count).buf;

            ps_rows_sum_add(&sum, i, (uint32_t *)(void *)row->data, count,
                            op_row_data(op) + from * bytes);
            ps_compute_pin(c, row);
            ps_buf_unref(row);
            ps_compute_pin(c, op->array.buf);
        }
    }
    rc = ps_rows_sum_plan(&sum, 0, c, &run->row_count);
    ps_rows_sum_fini(&sum);
    run->dst = (struct ps_slice){0};
    *ret_compute = NULL;
    if (rc != 0) {
        ps_compute_free(c);
        return rc;
    }
    if (run->row_count == 0) {
        ps_compute_free(c);
        return 0;
    }
    numbers = ps_rows_numbers_bytes(run->row_count);
    data = ps_rows_data_bytes(run->row_count, k->row_width, k->dtype);
    rc = ps_pool_get(a->opt.scratch_pool, numbers + data, &run->dst.buf);
    if (rc != 0) {
        ps_compute_free(c);
        run->dst.buf = NULL;
        return rc;
    }
    run->dst.len = numbers + data;
    /* Padding of the row numbers, then of the rows. */
    memset(run->dst.buf->data + numbers - 8, 0, 8);
    memset(run->dst.buf->data + numbers + data - 8, 0, 8);
    memcpy(run->dst.buf->data, c->job.rows->numbers,
           run->row_count * sizeof(uint32_t));
    ps_rows_plan_compact(c);
    c->job.op = PS_JOB_SUM;
    c->job.dst = run->dst.buf->data + numbers;
    ps_compute_pin(c, run->dst.buf);
    *ret_compute = c;
    return 0;
}

/* Starts the sum of a rows partition, or dispatches it as empty when no rank
 * contributes rows to it. PS_E_NOMEM: no change. */
static int start_sum(struct ps_agent_step *st, struct ps_agent_send_queue *f,
                     struct ps_agent_part *p)
{
    struct ps_agent *a = st->a;
    struct ps_agent_computation *run = ps_agent_computation_new(a, p, f);
    struct ps_compute *c;
    int rc = plan_sum(a, p, run, &c);

    if (rc != 0 || c == NULL) {
        ps_free(run);
        if (rc == 0) {
            ps_agent_send_dispatch(st, f, p, NULL, 0);
        }
        return rc;
    }
    run->bytes = run->dst.len;
    a->stats.bytes_summed += run->bytes;
    ps_agent_computation_start(st, run, c);
    return 0;
}

static bool start_rows_part(struct ps_agent_step *st,
                            struct ps_agent_send_queue *f,
                            struct ps_agent_part *p)
{
    return start_sum(st, f, p) == 0;
}

/* -------------------------------------------------------------------- pull */

/* Requests `count` rows of the partition, of version `round` or newer, whose
 * numbers are `numbers`; none, and request 0: the version alone. */
static void send_pull_rows(struct ps_agent_step *st,
                           const struct ps_agent_part *p, uint64_t round,
                           uint64_t request, const struct ps_slice *numbers,
                           uint32_t count)
{
    const struct ps_agent_key *k = p->key;
    const struct ps_agent_send_queue *f = ps_agent_send_queue_get(
        st, k->job, p->owner_node);
    const struct ps_rec_rows rec = {.key = k->number,
                                    .index = p->index,
                                    .round = round,
                                    .dtype = k->dtype,
                                    .row_width = k->row_width,
                                    .count = count};
    const struct ps_msg m = {.code = PS_MSG_PULL_ROWS,
                             .pull_rows = {.gen = k->job->gen,
                                           .epoch = st->a->servers.map_epoch,
                                           .slot = k->job->slot,
                                           .request = request,
                                           .parts = &rec,
                                           .parts_count = 1}};

    ps_agent_server_send(st, f->server,
                         ps_packet_new(&m, numbers, numbers != NULL ? 1 : 0));
}

/* Sends the requests that are neither sent nor answered. */
static void send_row_requests(struct ps_agent_step *st, struct ps_agent_key *k,
                              struct ps_agent_op *op)
{
    struct ps_agent_rows *r = op->rows;

    for (uint32_t i = 0; i < r->request_count; i++) {
        struct ps_agent_row_request *q = &r->requests[i];

        if (!q->is_answered && q->request_id == 0) {
            const struct ps_agent_part *p = &k->parts[q->part_index];
            const struct ps_slice numbers = part_row_numbers(
                op, p, q->first_row, q->row_count);

            q->request_id = ++st->a->last.request;
            send_pull_rows(st, p, op->round, q->request_id, &numbers,
                           q->row_count);
            ps_buf_unref(numbers.buf);
        }
    }
}

/* Index of the partition that has the row. */
static uint32_t find_part_of_row(const struct ps_agent_key *k, uint32_t row)
{
    uint32_t low = 0;
    uint32_t high = k->part_count - 1;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (row < part_end_row(&k->parts[mid])) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

static void accept_row_pull(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;
    struct ps_agent_rows *r = op->rows;

    r->requests = ps_try_calloc(ps_min_u64(r->count, k->part_count),
                                sizeof(*r->requests));
    if (r->requests == NULL) {
        ps_agent_op_end(
            st, op, 0, PS_E_NOMEM,
            "the agent has no memory for a request for each partition");
        return;
    }
    for (uint32_t i = 0; i < r->count;) {
        struct ps_agent_row_request *q = &r->requests[r->request_count++];

        q->part_index = find_part_of_row(k, r->numbers[i]);
        q->row_count = op_rows_in_part(op, &k->parts[q->part_index],
                                       &q->first_row);
        i += q->row_count;
    }
    r->pending_requests = r->request_count;
    if (r->pending_requests == 0) {
        ps_agent_op_end(st, op, op->round, 0, "");
        return;
    }
    ps_list_push_back(&k->row_pulls, &op->node);
    send_row_requests(st, k, op);
}

/* Sends the row requests that are not sent, and then what all keys with rounds
 * need. */
static void advance_rows(struct ps_agent_step *st, struct ps_agent_key *k)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->row_pulls)
    {
        send_row_requests(st, k, op);
    }
    ps_agent_pull_advance(st, k);
}

/* Marks the requests as not sent, because the server does not know them. */
static void reset_requests(struct ps_agent_key *k, uint32_t node, uint32_t part)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->row_pulls)
    {
        struct ps_agent_rows *r = op->rows;

        for (uint32_t i = 0; i < r->request_count; i++) {
            struct ps_agent_row_request *q = &r->requests[i];

            if ((node == 0 || k->parts[q->part_index].owner_node == node) &&
                (part == PS_AGENT_ALL_PARTS || q->part_index == part)) {
                q->request_id = 0;
            }
        }
    }
}

/* Request of this id, and its operation; NULL: none. */
static struct ps_agent_row_request *
find_row_request(const struct ps_agent_key *k, uint64_t request,
                 struct ps_agent_op **ret_op)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->row_pulls)
    {
        for (uint32_t i = 0; i < op->rows->request_count; i++) {
            if (op->rows->requests[i].request_id == request) {
                *ret_op = op;
                return &op->rows->requests[i];
            }
        }
    }
    return NULL;
}

void ps_agent_rows_on_rows(struct ps_agent_step *st,
                           const struct ps_agent_server *s,
                           const struct ps_agent_job *j,
                           const struct ps_msg_rows *m,
                           const struct ps_slice *payload)
{
    const struct ps_rec_rows *rec = m->parts;
    struct ps_agent_op *op;
    struct ps_agent_row_request *q;

    if (m->parts_count != 1) {
        return;
    }
    struct ps_agent_part *p = ps_agent_part_find_owned(
        j, s,
        &(struct ps_rec_part){
            .key = rec->key, .index = rec->index, .dtype = rec->dtype});

    if (p == NULL || p->key->kind != &ps_agent_key_rows ||
        p->key->row_width != rec->row_width || rec->round > INT64_MAX) {
        return;
    }
    if (m->request == 0) {
        /* Answer to a request for the version only. */
        p->requested_version = NO_VERSION;
        *reported_version(p) = ps_max_u64(*reported_version(p), rec->round + 1);
        ps_agent_round_on_commit(st, p, rec->round, m->all_skipped);
        return;
    }
    q = find_row_request(p->key, m->request, &op);
    if (q == NULL || q->is_answered || q->part_index != p->index ||
        q->row_count != rec->count || payload == NULL || payload->buf == NULL ||
        rec->round < op->round) {
        return; /* The operation has ended, or the answer is a duplicate. */
    }
    size_t bytes = rec->row_width * ps_dtype_size(rec->dtype);

    memcpy(op_row_data(op) + q->first_row * bytes, ps_slice_data(payload),
           q->row_count * bytes);
    st->a->stats.bytes_in += q->row_count * bytes;
    q->is_answered = true;
    q->request_id = 0;
    if (rec->round > op->rows->newest_version) {
        op->rows->newest_version = rec->round;
    }
    if (--op->rows->pending_requests == 0) {
        ps_list_remove(&op->node);
        ps_agent_op_end(st, op, op->rows->newest_version, 0, "");
    }
}

uint64_t ps_agent_rows_payload_bytes(const struct ps_msg_rows *m)
{
    if (m->parts_count != 1 ||
        ps_rows_per_frame(m->parts[0].row_width, m->parts[0].dtype) == 0) {
        return 0;
    }
    return ps_rows_data_bytes(m->parts[0].count, m->parts[0].row_width,
                              m->parts[0].dtype);
}

static void request_version(struct ps_agent_step *st, struct ps_agent_key *k,
                            int64_t least)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->committed_version < least &&
            !ps_agent_pull_is_expected(p, least)) {
            p->requested_version = least;
            send_pull_rows(st, p, (uint64_t)least, 0, NULL, 0);
        }
    }
}

static void request_verdict(struct ps_agent_step *st, struct ps_agent_key *k,
                            const struct ps_agent_op *op)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (server_version(p) < (int64_t)op->round &&
            p->requested_version != (int64_t)op->round) {
            p->requested_version = (int64_t)op->round;
            send_pull_rows(st, p, op->round, 0, NULL, 0);
        }
    }
}

/* --------------------------------------------------------------- operations */

static bool measure_rows(struct ps_agent_step *st, struct ps_agent_session *s,
                         const struct ps_agent_key *k,
                         const struct ps_msg_l_op *m,
                         struct ps_agent_op_input *in)
{
    if (m->op == PS_OP_INIT || m->op == PS_OP_SKIP) {
        return ps_agent_op_measure_dense(st, s, k, m, in);
    }
    if (!ps_agent_op_names_rows(m)) {
        return ps_agent_op_reject(
            st, s, m, PS_E_UNSUPPORTED,
            "'%s' is a key of rows: rows are pushed and pulled", k->name);
    }
    if (m->row_count > rows_in_key(k)) {
        return ps_agent_op_reject(st, s, m, PS_E_INVAL,
                                  "'%s': the operation names %u rows, and the "
                                  "key has %u rows",
                                  k->name, m->row_count, rows_in_key(k));
    }
    in->array.len = ps_rows_numbers_bytes(m->row_count) +
                    ps_rows_data_bytes(m->row_count, k->row_width, k->dtype);
    in->align = 8;
    return true;
}

static bool validate_rows_op(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_agent_key *k,
                             const struct ps_msg_l_op *m,
                             const struct ps_slice *array)
{
    if (!ps_agent_op_names_rows(m)) {
        return true;
    }
    if (m->row_count > 0 && array->buf == NULL) {
        return ps_agent_op_reject(st, s, m, PS_E_INVAL,
                                  "'%s': the operation has no rows", k->name);
    }
    if (m->reduce > PS_REDUCE_MEAN) {
        return ps_agent_op_reject(
            st, s, m, PS_E_UNSUPPORTED,
            "'%s': rows are summed or averaged; %s is for "
            "whole arrays",
            k->name, ps_reduce_name(m->reduce));
    }
    return true;
}

/* Copies the row numbers of the operation and charges them to its job. */
static bool copy_rows(struct ps_agent_step *st, struct ps_agent_session *s,
                      const struct ps_agent_key *k, const struct ps_msg_l_op *m,
                      struct ps_agent_op_input *in)
{
    const uint64_t cost = rows_memory(m->row_count, k->part_count);
    struct ps_refusal why;

    if (!ps_agent_op_names_rows(m)) {
        return true; /* An init, or a skip. */
    }
    if (ps_account_charge(&k->job->account, PS_COST_MEMORY, cost, &why) != 0) {
        struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

        ps_refusal_text(&why, &t);
        return ps_agent_op_reject(st, s, m, PS_E_FULL, "'%s': %u rows: %s",
                                  k->name, m->row_count, t.data);
    }
    int rc = rows_new(&in->array, m->row_count, rows_in_key(k), &in->rows);

    if (rc == 0) {
        in->charged_bytes = cost;
        return true;
    }
    ps_account_refund(&k->job->account, PS_COST_MEMORY, cost);
    if (rc == PS_E_NOMEM) {
        ps_agent_op_reject(st, s, m, rc,
                           "'%s': no memory for the numbers of %u rows",
                           k->name, m->row_count);
    } else {
        ps_agent_op_reject(st, s, m, rc,
                           "'%s': numbers of rows must ascend and be below "
                           "%u",
                           k->name, rows_in_key(k));
    }
    return false;
}

static void accept_rows_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    if (op->kind == PS_OP_PULL_ROWS) {
        accept_row_pull(st, op);
    } else {
        ps_agent_round_accept_op(st, op);
    }
}

/* --------------------------------------------------------------------- kind */

static int check_rows_shape(const struct ps_msg_l_key *m, struct ps_str *why)
{
    if (ps_rows_per_frame(m->row_width, m->dtype) == 0) {
        ps_str_addf(why,
                    "key '%s': a row of %u elements of %s is larger than "
                    "%llu bytes, and rows are not cut: use narrower rows",
                    m->name, m->row_width, ps_dtype_name(m->dtype),
                    (unsigned long long)PS_ROW_BYTES_MAX);
        return PS_E_TOOBIG;
    }
    if (m->count % m->row_width != 0 || m->count / m->row_width > UINT32_MAX) {
        ps_str_addf(why,
                    "key '%s' of %llu elements cannot have rows of %u; there "
                    "may be %u rows",
                    m->name, (unsigned long long)m->count, m->row_width,
                    UINT32_MAX);
        return PS_E_INVAL;
    }
    return 0;
}

static bool rows_part_fits_frame(const struct ps_agent_key *k, uint32_t count)
{
    return count % k->row_width == 0 &&
           count / k->row_width <= ps_rows_per_frame(k->row_width, k->dtype);
}

const struct ps_agent_key_kind ps_agent_key_rows = {
    .push_code = PS_MSG_PUSH_ROWS,
    .own = {.part = sizeof(uint64_t)},
    .has_rounds = true,
    .check_shape = check_rows_shape,
    .part_fits_frame = rows_part_fits_frame,
    .measure_array = measure_rows,
    .validate_op = validate_rows_op,
    .copy_input = copy_rows,
    .free_rows = rows_free,
    .accept_op = accept_rows_op,
    .start_part = start_rows_part,
    .end_round = ps_agent_round_end,
    .fail_ops = ps_agent_fail_key,
    .advance = advance_rows,
    .decided_version = server_version,
    .request_version = request_version,
    .request_verdict = request_verdict,
    .on_requests_lost = reset_requests,
    .loss_text =
        "a server was lost with rows of this key, of which there is no "
        "other copy",
};
