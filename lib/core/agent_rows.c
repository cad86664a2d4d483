/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of rows. A push gives some rows of the array and takes part with all
 * partitions, be it with nothing; the numbers of its rows are copied when it
 * is taken, because the worker could change them later. There are no results
 * here for such a key: a pull asks the servers for its rows, and they are
 * written behind the numbers, into the worker's own memory. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/rows.h"

#include <string.h>

/* What a pull wants of one partition. */
struct question {
    uint32_t part;
    uint32_t from; /* Place of its first row among those asked for. */
    uint32_t count;
    uint64_t request; /* 0: not sent. */
    bool done;
};

/* From here on numbers of rows lie in mapped memory, which may be refused. */
#define MAPPED_MIN (64u * 1024u)
/* Numbers that are copied before they are looked at: a block that says more
 * than it has is not copied in full. */
#define COPY_CHUNK 1024u

/* Rows that an operation gives or asks for. */
struct ps_agent_rows {
    uint32_t count;
    size_t mapped; /* Bytes at `row` that are mapped; 0: allocated. */
    uint32_t *row; /* Numbers within the key, ascending. */
    /* Of a pull. */
    struct question *question;
    uint32_t question_count;
    uint32_t open; /* Questions without an answer. */
    uint64_t version;
};

void ps_agent_rows_free(struct ps_agent_rows *r)
{
    if (r != NULL) {
        if (r->mapped > 0) {
            ps_pool_unmap(r->row, r->mapped);
        } else {
            ps_free(r->row);
        }
        ps_free(r->question);
        ps_free(r);
    }
}

uint32_t ps_agent_rows_of_key(const struct ps_agent_key *k)
{
    return (uint32_t)(k->count / k->width);
}

static uint32_t first_row(const struct ps_agent_part *p)
{
    return (uint32_t)(p->first / p->key->width);
}

static uint32_t last_row(const struct ps_agent_part *p)
{
    return first_row(p) + p->count / p->key->width;
}

/* Where the rows themselves lie. */
static uint8_t *data_of(const struct ps_agent_op *op)
{
    return ps_slice_data(&op->array) + ps_rows_numbers_bytes(op->rows->count);
}

uint64_t ps_agent_rows_cost(const struct ps_agent_key *k, uint32_t count)
{
    return sizeof(struct ps_agent_rows) + count * (uint64_t)sizeof(uint32_t) +
           ps_min_u64(count, k->part_count) * sizeof(struct question);
}

/* The worker may write meanwhile, so a number is looked at where it was copied
 * to. */
static bool copy_numbers(struct ps_agent_rows *r, const uint8_t *from,
                         uint32_t limit)
{
    for (uint32_t at = 0; at < r->count; at += COPY_CHUNK) {
        uint32_t n = (uint32_t)ps_min_u64(r->count - at, COPY_CHUNK);
        uint32_t first = at == 0 ? 0 : at - 1; /* They ascend over the edge. */

        memcpy(r->row + at, from + at * sizeof(*r->row), n * sizeof(*r->row));
        if (!ps_rows_fit(r->row + first, n + (at - first), limit)) {
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
        r->row = ps_alloc(bytes + sizeof(*r->row));
    } else {
        void *data;

        if (ps_pool_map(bytes, &data) != 0) {
            ps_free(r);
            return PS_E_NOMEM;
        }
        r->row = data;
        r->mapped = bytes;
    }
    if (count > 0 &&
        !copy_numbers(r, ps_slice_data(block), ps_agent_rows_of_key(k))) {
        ps_agent_rows_free(r);
        return PS_E_INVAL;
    }
    *ret_rows = r;
    return 0;
}

/* -------------------------------------------------------------------- push */

/* The rows of `op` in the partition: place of the first, and how many. */
static uint32_t part_rows(const struct ps_agent_op *op,
                          const struct ps_agent_part *p, uint32_t *ret_from)
{
    const struct ps_agent_rows *r = op->rows;
    uint32_t from = ps_rows_from(r->row, r->count, first_row(p));

    *ret_from = from;
    return ps_rows_from(r->row, r->count, last_row(p)) - from;
}

/* Numbers counted from the partition's first row, kept by the computation. */
static const uint32_t *numbers_in_part(struct ps_compute *c,
                                       const struct ps_agent_op *op,
                                       const struct ps_agent_part *p,
                                       uint32_t from, uint32_t count)
{
    struct ps_buf *buf = ps_buf_new(count * sizeof(uint32_t));
    uint32_t *row = (uint32_t *)(void *)buf->data;

    for (uint32_t i = 0; i < count; i++) {
        row[i] = op->rows->row[from + i] - first_row(p);
    }
    ps_compute_hold(c, buf);
    ps_buf_unref(buf);
    return row;
}

int ps_agent_rows_sum(struct ps_agent *a, struct ps_agent_part *p,
                      struct ps_agent_run *run, struct ps_compute **ret_compute)
{
    struct ps_agent_key *k = p->key;
    size_t bytes = k->width * ps_dtype_size(k->dtype);
    uint32_t locals = k->job->local_count;
    struct ps_compute *c = ps_compute_new(run->token, locals, locals + 1);
    struct ps_rows_sum sum;
    uint64_t numbers;
    uint64_t data;
    int rc;

    ps_rows_sum_init(&sum, k->dtype, k->width, locals);
    for (uint32_t i = 0; i < locals; i++) {
        const struct ps_agent_op *op = k->offer[i];
        uint32_t from;
        uint32_t count = op == NULL || op->rows == NULL
                             ? 0
                             : part_rows(op, p, &from);

        if (count > 0) {
            ps_rows_sum_add(&sum, i, numbers_in_part(c, op, p, from, count),
                            count, data_of(op) + from * bytes);
            ps_compute_hold(c, op->array.buf);
        }
    }
    rc = ps_rows_sum_plan(&sum, 0, c, &run->rows);
    ps_rows_sum_fini(&sum);
    run->dst = (struct ps_slice){0};
    *ret_compute = NULL;
    if (rc != 0) {
        ps_compute_free(c);
        return rc;
    }
    if (run->rows == 0) {
        ps_compute_free(c);
        return 0;
    }
    numbers = ps_rows_numbers_bytes(run->rows);
    data = ps_rows_data_bytes(run->rows, k->width, k->dtype);
    rc = ps_pool_get(a->opt.sums, numbers + data, &run->dst.buf);
    if (rc != 0) {
        ps_compute_free(c);
        run->dst.buf = NULL;
        return rc;
    }
    run->dst.len = numbers + data;
    memset(run->dst.buf->data + numbers - 8, 0, 8); /* What fills it up. */
    memset(run->dst.buf->data + numbers + data - 8, 0, 8);
    memcpy(run->dst.buf->data, c->job.rows->row, run->rows * sizeof(uint32_t));
    ps_rows_plan_compact(c);
    c->job.op = PS_JOB_SUM;
    c->job.dst = run->dst.buf->data + numbers;
    ps_compute_hold(c, run->dst.buf);
    *ret_compute = c;
    return 0;
}

/* -------------------------------------------------------------------- pull */

static void ask(struct ps_agent_step *st, struct ps_agent_key *k,
                const struct ps_agent_op *op, struct question *q)
{
    struct ps_agent_part *p = &k->parts[q->part];
    struct ps_agent_flow *f = ps_agent_flow_get(st, k->job, p->node);
    struct ps_rec_rows rec = {.key = k->number,
                              .index = p->index,
                              .round = op->round,
                              .dtype = k->dtype,
                              .width = k->width,
                              .count = q->count};
    uint64_t len = ps_rows_numbers_bytes(q->count);
    struct ps_slice slice = {.len = len};
    uint32_t *row;

    q->request = ++st->a->next_request;
    struct ps_msg m = {.code = PS_MSG_PULL_ROWS,
                       .pull_rows = {.gen = k->job->gen,
                                     .epoch = st->a->epoch,
                                     .slot = k->job->slot,
                                     .request = q->request,
                                     .parts = &rec,
                                     .parts_count = 1}};

    slice.buf = ps_buf_new(len);
    memset(slice.buf->data + len - 8, 0, 8);
    row = (uint32_t *)(void *)slice.buf->data;
    for (uint32_t i = 0; i < q->count; i++) {
        row[i] = op->rows->row[q->from + i] - first_row(p);
    }
    ps_link_send(f->server->caller.link, ps_parcel_new(&m, &slice, 1), st->now,
                 st->fx);
    ps_buf_unref(slice.buf);
}

/* Asks for what is not asked for yet. */
static void ask_all(struct ps_agent_step *st, struct ps_agent_key *k,
                    struct ps_agent_op *op)
{
    struct ps_agent_rows *r = op->rows;

    for (uint32_t i = 0; i < r->question_count; i++) {
        struct question *q = &r->question[i];

        if (!q->done && q->request == 0) {
            ask(st, k, op, q);
        }
    }
}

/* The partition that has the row. */
static uint32_t part_of_row(const struct ps_agent_key *k, uint32_t row)
{
    uint32_t low = 0;
    uint32_t high = k->part_count - 1;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (row < last_row(&k->parts[mid])) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

void ps_agent_rows_pull(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_key *k = op->key;
    struct ps_agent_rows *r = op->rows;

    r->question = ps_try_calloc(ps_min_u64(r->count, k->part_count),
                                sizeof(*r->question));
    if (r->question == NULL) {
        ps_agent_op_done(st, op, 0, PS_E_NOMEM,
                         "the agent has no memory for a question of each "
                         "partition");
        return;
    }
    for (uint32_t i = 0; i < r->count;) {
        struct question *q = &r->question[r->question_count++];

        q->part = part_of_row(k, r->row[i]);
        q->count = part_rows(op, &k->parts[q->part], &q->from);
        i += q->count;
    }
    r->open = r->question_count;
    if (r->open == 0) {
        ps_agent_op_done(st, op, op->round, 0, "");
        return;
    }
    ps_list_push_back(&k->row_pulls, &op->node);
    ask_all(st, k, op);
}

void ps_agent_rows_check(struct ps_agent_step *st, struct ps_agent_key *k)
{
    PS_LIST_EACH(n, &k->row_pulls)
    {
        ask_all(st, k, PS_CONTAINER(n, struct ps_agent_op, node));
    }
}

void ps_agent_rows_again(struct ps_agent_key *k, uint32_t node, uint32_t part)
{
    PS_LIST_EACH(n, &k->row_pulls)
    {
        struct ps_agent_rows *r =
            PS_CONTAINER(n, struct ps_agent_op, node)->rows;

        for (uint32_t i = 0; i < r->question_count; i++) {
            struct question *q = &r->question[i];

            if ((node == 0 || k->parts[q->part].node == node) &&
                (part == UINT32_MAX || q->part == part)) {
                q->request = 0;
            }
        }
    }
}

/* The question with this number, and its operation. */
static struct question *find(const struct ps_agent_key *k, uint64_t request,
                             struct ps_agent_op **ret_op)
{
    PS_LIST_EACH(n, &k->row_pulls)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        for (uint32_t i = 0; i < op->rows->question_count; i++) {
            if (op->rows->question[i].request == request) {
                *ret_op = op;
                return &op->rows->question[i];
            }
        }
    }
    return NULL;
}

void ps_agent_rows_took(struct ps_agent_step *st, const struct ps_msg_rows *m,
                        const struct ps_slice *payload)
{
    const struct ps_rec_rows *rec = m->parts;
    struct ps_agent_op *op;
    struct question *q;

    if (m->parts_count != 1) {
        return;
    }
    struct ps_agent_part *p = ps_agent_part_find(
        st->a, m->gen,
        &(struct ps_rec_part){
            .key = rec->key, .index = rec->index, .dtype = rec->dtype});

    if (p == NULL || p->key->width == 0 || p->key->width != rec->width ||
        rec->round > INT64_MAX) {
        return;
    }
    if (m->request == 0) {
        /* A question about the version alone. */
        p->asked = NONE;
        if ((int64_t)rec->round > p->committed) {
            p->committed = (int64_t)rec->round;
        }
        if ((int64_t)rec->round > p->told) {
            p->told = (int64_t)rec->round;
        }
        if (m->passed) {
            ps_agent_round_passed(p, rec->round);
        }
        ps_agent_round_reached(st, p);
        return;
    }
    q = find(p->key, m->request, &op);
    if (q == NULL || q->done || q->part != p->index || q->count != rec->count ||
        payload == NULL || payload->buf == NULL || rec->round < op->round) {
        return; /* Its worker is gone, or it was answered twice. */
    }
    size_t bytes = rec->width * ps_dtype_size(rec->dtype);

    memcpy(data_of(op) + q->from * bytes, ps_slice_data(payload),
           q->count * bytes);
    st->a->stats.bytes_in += q->count * bytes;
    q->done = true;
    q->request = 0;
    if (rec->round > op->rows->version) {
        op->rows->version = rec->round;
    }
    if (--op->rows->open == 0) {
        ps_list_remove(&op->node);
        ps_agent_op_done(st, op, op->rows->version, 0, "");
    }
}

uint64_t ps_agent_rows_payload(const struct ps_msg_rows *m)
{
    if (m->parts_count != 1 ||
        ps_rows_per_frame(m->parts[0].width, m->parts[0].dtype) == 0) {
        return 0;
    }
    return ps_rows_data_bytes(m->parts[0].count, m->parts[0].width,
                              m->parts[0].dtype);
}

void ps_agent_rows_ask_version(struct ps_agent_step *st,
                               struct ps_agent_part *p, int64_t least)
{
    struct ps_agent_key *k = p->key;
    struct ps_agent_flow *f = ps_agent_flow_get(st, k->job, p->node);
    struct ps_rec_rows rec = {.key = k->number,
                              .index = p->index,
                              .round = (uint64_t)least,
                              .dtype = k->dtype,
                              .width = k->width};

    ps_link_tell(f->server->caller.link,
                 &(struct ps_msg){.code = PS_MSG_PULL_ROWS,
                                  .pull_rows = {.gen = k->job->gen,
                                                .epoch = st->a->epoch,
                                                .slot = k->job->slot,
                                                .parts = &rec,
                                                .parts_count = 1}},
                 st->now, st->fx);
}
