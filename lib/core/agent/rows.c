/* SPDX-License-Identifier: Apache-2.0 */
/* Rows keys (row-sparse). A push names some rows and contributes to every
 * partition, if only with an empty set; its row numbers are copied on arrival,
 * because the worker could change them later. A rows key has no results here: a
 * pull requests its rows from the servers and writes them to the worker's
 * block, behind the row numbers. */
#include "core/agent/inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/round/rows.h"

#include <string.h>

/* Part of a row pull that concerns one partition. */
struct part_request {
    uint32_t part_index;
    uint32_t first_row; /* Index of its first row in the operation. */
    uint32_t row_count;
    uint64_t request_id; /* 0: not sent. */
    bool is_answered;
};

/* Bytes from which row numbers lie in mapped memory; a failed mapping is an
 * error, not an abort. */
#define MAPPED_MIN (64u * 1024u)
/* Row numbers copied before they are validated, so that a block with invalid
 * numbers is not copied in full. */
#define COPY_CHUNK 1024u

/* Rows that an operation contributes or requests. */
struct ps_agent_rows {
    uint32_t count;
    size_t mapped_bytes; /* Bytes mapped at `numbers`; 0: from the heap. */
    uint32_t *numbers;   /* Row numbers in the key, ascending. */
    /* Pull: one entry for each partition that has requested rows. */
    struct part_request *requests;
    uint32_t request_count;
    uint32_t pending_requests; /* Requests without an answer. */
    uint64_t newest_version;
};

void ps_agent_rows_free(struct ps_agent_rows *r)
{
    if (r != NULL) {
        if (r->mapped_bytes > 0) {
            ps_pool_unmap(r->numbers, r->mapped_bytes);
        } else {
            ps_free(r->numbers);
        }
        ps_free(r->requests);
        ps_free(r);
    }
}

uint32_t ps_agent_rows_in_key(const struct ps_agent_key *k)
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

uint64_t ps_agent_rows_memory(const struct ps_agent_key *k, uint32_t count)
{
    return sizeof(struct ps_agent_rows) + count * (uint64_t)sizeof(uint32_t) +
           ps_min_u64(count, k->part_count) * sizeof(struct part_request);
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

int ps_agent_rows_new(const struct ps_agent_key *k,
                      const struct ps_slice *block, uint32_t count,
                      struct ps_agent_rows **ret_rows)
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
    if (count > 0 &&
        !copy_row_numbers(r, ps_slice_data(block), ps_agent_rows_in_key(k))) {
        ps_agent_rows_free(r);
        return PS_E_INVAL;
    }
    *ret_rows = r;
    return 0;
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

/* Row numbers relative to the partition, in a buffer pinned by `c`. */
static const uint32_t *part_row_numbers(struct ps_compute *c,
                                        const struct ps_agent_op *op,
                                        const struct ps_agent_part *p,
                                        uint32_t from, uint32_t count)
{
    struct ps_buf *buf = ps_buf_new(count * sizeof(uint32_t));
    uint32_t *row = (uint32_t *)(void *)buf->data;

    for (uint32_t i = 0; i < count; i++) {
        row[i] = op->rows->numbers[from + i] - part_first_row(p);
    }
    ps_compute_pin(c, buf);
    ps_buf_unref(buf);
    return row;
}

int ps_agent_rows_plan_sum(struct ps_agent *a, struct ps_agent_part *p,
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
        const struct ps_agent_op *op = k->contribution[i];
        uint32_t from;
        uint32_t count = op == NULL || op->rows == NULL
                             ? 0
                             : op_rows_in_part(op, p, &from);

        if (count > 0) {
            ps_rows_sum_add(&sum, i, part_row_numbers(c, op, p, from, count),
                            count, op_row_data(op) + from * bytes);
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

/* -------------------------------------------------------------------- pull */

static void send_row_request(struct ps_agent_step *st, struct ps_agent_key *k,
                             const struct ps_agent_op *op,
                             struct part_request *q)
{
    struct ps_agent_part *p = &k->parts[q->part_index];
    struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, k->job,
                                                            p->owner_node);
    struct ps_rec_rows rec = {.key = k->number,
                              .index = p->index,
                              .round = op->round,
                              .dtype = k->dtype,
                              .row_width = k->row_width,
                              .count = q->row_count};
    uint64_t len = ps_rows_numbers_bytes(q->row_count);
    struct ps_slice slice = {.len = len};
    uint32_t *row;

    q->request_id = ++st->a->last_request;
    struct ps_msg m = {.code = PS_MSG_PULL_ROWS,
                       .pull_rows = {.gen = k->job->gen,
                                     .epoch = st->a->map_epoch,
                                     .slot = k->job->slot,
                                     .request = q->request_id,
                                     .parts = &rec,
                                     .parts_count = 1}};

    slice.buf = ps_buf_new(len);
    memset(slice.buf->data + len - 8, 0, 8);
    row = (uint32_t *)(void *)slice.buf->data;
    for (uint32_t i = 0; i < q->row_count; i++) {
        row[i] = op->rows->numbers[q->first_row + i] - part_first_row(p);
    }
    ps_link_send(f->server->dialer.link, ps_packet_new(&m, &slice, 1), st->now,
                 st->fx);
    ps_buf_unref(slice.buf);
}

/* Sends the requests that are neither sent nor answered. */
static void send_row_requests(struct ps_agent_step *st, struct ps_agent_key *k,
                              struct ps_agent_op *op)
{
    struct ps_agent_rows *r = op->rows;

    for (uint32_t i = 0; i < r->request_count; i++) {
        struct part_request *q = &r->requests[i];

        if (!q->is_answered && q->request_id == 0) {
            send_row_request(st, k, op, q);
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

void ps_agent_rows_accept_pull(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;
    struct ps_agent_rows *r = op->rows;

    r->requests = ps_try_calloc(ps_min_u64(r->count, k->part_count),
                                sizeof(*r->requests));
    if (r->requests == NULL) {
        ps_agent_op_end(st, op, 0, PS_E_NOMEM,
                        "the agent has no memory for a question of each "
                        "partition");
        return;
    }
    for (uint32_t i = 0; i < r->count;) {
        struct part_request *q = &r->requests[r->request_count++];

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

void ps_agent_rows_advance(struct ps_agent_step *st, struct ps_agent_key *k)
{
    PS_LIST_EACH(n, &k->row_pulls)
    {
        send_row_requests(st, k, PS_CONTAINER(n, struct ps_agent_op, node));
    }
}

void ps_agent_rows_reset_requests(struct ps_agent_key *k, uint32_t node,
                                  uint32_t part)
{
    PS_LIST_EACH(n, &k->row_pulls)
    {
        struct ps_agent_rows *r =
            PS_CONTAINER(n, struct ps_agent_op, node)->rows;

        for (uint32_t i = 0; i < r->request_count; i++) {
            struct part_request *q = &r->requests[i];

            if ((node == 0 || k->parts[q->part_index].owner_node == node) &&
                (part == UINT32_MAX || q->part_index == part)) {
                q->request_id = 0;
            }
        }
    }
}

/* Request of this id, and its operation; NULL: none. */
static struct part_request *find_row_request(const struct ps_agent_key *k,
                                             uint64_t request,
                                             struct ps_agent_op **ret_op)
{
    PS_LIST_EACH(n, &k->row_pulls)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

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
                           const struct ps_msg_rows *m,
                           const struct ps_slice *payload)
{
    const struct ps_rec_rows *rec = m->parts;
    struct ps_agent_op *op;
    struct part_request *q;

    if (m->parts_count != 1) {
        return;
    }
    struct ps_agent_part *p = ps_agent_part_find(
        st->a, m->gen,
        &(struct ps_rec_part){
            .key = rec->key, .index = rec->index, .dtype = rec->dtype});

    if (p == NULL || p->key->row_width == 0 ||
        p->key->row_width != rec->row_width || rec->round > INT64_MAX) {
        return;
    }
    if (m->request == 0) {
        /* Answer to a request for the version only. */
        p->requested_version = NO_VERSION;
        if ((int64_t)rec->round > p->committed_version) {
            p->committed_version = (int64_t)rec->round;
        }
        if ((int64_t)rec->round > p->server_version) {
            p->server_version = (int64_t)rec->round;
        }
        if (m->all_skipped) {
            ps_agent_round_part_skipped(p, rec->round);
        }
        ps_agent_round_part_advanced(st, p);
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

void ps_agent_rows_request_version(struct ps_agent_step *st,
                                   struct ps_agent_part *p, int64_t least)
{
    struct ps_agent_key *k = p->key;
    struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, k->job,
                                                            p->owner_node);
    struct ps_rec_rows rec = {.key = k->number,
                              .index = p->index,
                              .round = (uint64_t)least,
                              .dtype = k->dtype,
                              .row_width = k->row_width};

    ps_link_send_msg(f->server->dialer.link,
                     &(struct ps_msg){.code = PS_MSG_PULL_ROWS,
                                      .pull_rows = {.gen = k->job->gen,
                                                    .epoch = st->a->map_epoch,
                                                    .slot = k->job->slot,
                                                    .parts = &rec,
                                                    .parts_count = 1}},
                     st->now, st->fx);
}
