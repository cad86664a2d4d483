/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of rows. A partition of such a key has whole rows and always a value:
 * an init comes first. Contributions are blocks of rows (core/rows.h), kept as
 * they came and merged by row when everybody has offered, be it nothing. The
 * value is changed where it lies when nobody else holds it, so a round costs
 * what its rows cost; pulls wait for the end of such a computation. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "core/rows.h"

#include <string.h>

/* ---------------------------------------------------------------- messages */

/* Bytes of the blocks; false when a record makes no sense. */
static bool blocks_bytes(const struct ps_rec_rows *part, uint32_t count,
                         bool data, uint64_t *ret_bytes)
{
    uint64_t total = 0;

    if (count > PS_PARTS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ps_rows_per_frame(part[i].width, part[i].dtype) == 0) {
            return false;
        }
        total += ps_rows_numbers_bytes(part[i].count);
        if (data) {
            total += ps_rows_data_bytes(part[i].count, part[i].width,
                                        part[i].dtype);
        }
        if (total > PS_PAYLOAD_MAX) {
            return false;
        }
    }
    *ret_bytes = total;
    return true;
}

static bool is_known(const struct ps_part *part, uint64_t round, uint32_t slot,
                     uint32_t attempt)
{
    return part != NULL && ps_shard_attempt_knows(part, round, slot, attempt);
}

static bool push_is_known(const struct ps_shard_job *job,
                          const struct ps_msg_push_rows *m)
{
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_rows *rec = &m->parts[i];

        if (rec->count > 0 &&
            !is_known(ps_store_find(&job->store, rec->key, rec->index),
                      rec->round, m->slot, m->attempt)) {
            return false;
        }
    }
    return true;
}

int ps_shard_rows_judge(struct ps_shard *s, struct ps_shard_peer *p,
                        const struct ps_msg *msg, uint64_t len,
                        struct ps_shard_slot **ret_slot)
{
    bool push = msg->code == PS_MSG_PUSH_ROWS;
    uint64_t gen = push ? msg->push_rows.gen : msg->pull_rows.gen;
    uint32_t slot = push ? msg->push_rows.slot : msg->pull_rows.slot;
    uint64_t total;

    if (!blocks_bytes(push ? msg->push_rows.parts : msg->pull_rows.parts,
                      push ? msg->push_rows.parts_count
                           : msg->pull_rows.parts_count,
                      push, &total) ||
        total != len) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(p->link, msg->seq)) {
        return PS_E_EXIST;
    }
    struct ps_shard_job *job = ps_shard_job_find(s, gen);

    if (job == NULL) {
        return PS_E_NOJOB;
    }
    int rc = ps_shard_job_slot(job, p, slot, ret_slot);
    if (rc != 0 || !push) {
        return rc;
    }
    if (!ps_flow_admits(ps_shard_credit_flow(s, p, gen), len)) {
        return PS_E_FULL;
    }
    return push_is_known(job, &msg->push_rows) ? PS_E_EXIST : 0;
}

static struct ps_rec_part record_of(const struct ps_rec_rows *r)
{
    return (struct ps_rec_part){.key = r->key,
                                .index = r->index,
                                .round = r->round,
                                .dtype = r->dtype,
                                .count = r->count};
}

/* All parts of a message for one reason. */
static void refuse_all(struct ps_shard_step *st, struct ps_shard_peer *p,
                       uint64_t gen, const struct ps_shard_slot *slot,
                       const struct ps_rec_rows *parts, uint32_t count, int rc)
{
    struct ps_shard_refusal refusal;

    ps_shard_refusal_init(&refusal);
    for (uint32_t i = 0; i < count; i++) {
        struct ps_rec_part rec = record_of(&parts[i]);

        ps_shard_refusal_add(&refusal, &rec, rc, 0);
    }
    ps_shard_refusal_send(st, p, gen, slot, &refusal);
}

/* Does the record agree with the partition? 0 or a PS_E_*. */
static int fits(const struct ps_part *part, const struct ps_rec_rows *rec)
{
    if (part == NULL || !ps_part_has_value(part)) {
        return PS_E_NOKEY;
    }
    if (part->applied != NULL || part->dtype != rec->dtype ||
        part->count % rec->width != 0 ||
        (part->width != 0 && part->width != rec->width) ||
        rec->count > part->count / rec->width) {
        return PS_E_MISMATCH;
    }
    return 0;
}

/* -------------------------------------------------------------------- push */

/* Keeps the block: its own memory, for its frame may be shared by many. */
static int keep(struct ps_shard_job *job, const struct ps_rec_rows *rec,
                const struct ps_slice *payload, uint64_t offset,
                uint32_t rows_of_part, struct ps_slice *ret_slice)
{
    uint64_t len = ps_rows_numbers_bytes(rec->count) +
                   ps_rows_data_bytes(rec->count, rec->width, rec->dtype);
    struct ps_buf *buf;

    if (ps_shard_room_take(job, len, &buf) != 0) {
        return PS_E_FUTURE;
    }
    memcpy(buf->data, ps_slice_data(payload) + offset, len);
    if (!ps_rows_fit((const uint32_t *)(const void *)buf->data, rec->count,
                     rows_of_part)) {
        ps_buf_unref(buf);
        return PS_E_INVAL;
    }
    *ret_slice = (struct ps_slice){.buf = buf, .len = len};
    return 0;
}

/* One part of a push. 0 when it was taken or was known. */
static int take(struct ps_shard_step *st, struct ps_shard_slot *slot,
                const struct ps_msg_push_rows *m, const struct ps_rec_rows *rec,
                const struct ps_slice *payload, uint64_t offset,
                struct ps_shard_side *others)
{
    struct ps_shard_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);
    struct ps_slice block = {0};

    if (rec->round == 0) {
        return PS_E_INVAL;
    }
    if (part != NULL && rec->round <= part->version) {
        ps_shard_answer(st, slot, part, false, part->version);
        return 0;
    }
    int rc = ps_shard_attempt_check(st, job, part, rec->round, m->attempt);
    if (rc != 0) {
        return rc;
    }
    if (is_known(part, rec->round, slot->index, m->attempt)) {
        return 0; /* Answered when the round is merged. */
    }
    rc = fits(part, rec);

    if (rc == 0 && rec->round > part->version + 1) {
        rc = PS_E_FUTURE;
    }
    if (rc == 0 && m->ranks != 0 &&
        (m->reduce > PS_REDUCE_MEAN ||
         (job->optimizes && (!ps_dtype_is_real(part->dtype) ||
                             ps_optim_accumulates(&job->optim) > 1 ||
                             ps_optim_needs_norms(&job->optim))))) {
        rc = PS_E_UNSUPPORTED;
    }
    if (rc == 0 && part->open != NULL && m->ranks == 0 && !part->open->rows) {
        return PS_E_MISMATCH;
    }
    if (rc == 0 && part->open != NULL && m->ranks != 0 &&
        (!part->open->rows ||
         (part->open->settled && part->open->reduce != m->reduce))) {
        ps_shard_attempt_disagree(st, job, part, rec->round,
                                  &(struct ps_shard_side){.slot = {slot->index},
                                                          .count = 1,
                                                          .reduce = m->reduce},
                                  others);
        return PS_E_MISMATCH;
    }
    if (rc == 0 && part->open == NULL &&
        (uint64_t)(job->store.open_count + 1) * job->slot_count >
            PS_OPEN_PLACES_MAX) {
        rc = PS_E_FUTURE;
    }
    if (rc == 0 && rec->count > 0) {
        rc = payload == NULL || payload->buf == NULL
                 ? PS_E_FUTURE
                 : keep(job, rec, payload, offset, part->count / rec->width,
                        &block);
    }
    if (rc != 0) {
        return rc;
    }
    part->width = rec->width;
    part->attempt = m->attempt; /* It is at least what was there. */
    if (part->open == NULL) {
        part->open = ps_store_open(&job->store, part, job->slot_count);
        part->open->rows = true;
        part->open->rows_given = ps_calloc(job->slot_count, sizeof(uint32_t));
        job->lacking++;
    }
    struct ps_open *open = part->open;

    if (m->ranks == 0) {
        ps_shard_push_passes(job, open, slot->index);
    } else {
        open->settled = true;
        open->reduce = m->reduce;
    }
    ps_round_offer(&open->round, slot->index, block.buf != NULL ? &block : NULL,
                   m->ranks);
    open->weight += m->ranks;
    open->rows_given[slot->index] = rec->count;
    ps_buf_unref(block.buf);
    slot->held += block.len;
    slot->present++;
    if (ps_round_complete(&open->round)) {
        job->lacking--;
        for (uint32_t i = 0; i < job->slot_count; i++) {
            job->slots[i].present--;
        }
        ps_shard_merge_start(st, job, part);
    }
    return 0;
}

void ps_shard_push_rows(struct ps_shard_step *st, struct ps_shard_conn *c,
                        const struct ps_msg *msg,
                        const struct ps_slice *payload)
{
    const struct ps_msg_push_rows *m = &msg->push_rows;
    struct ps_shard_peer *p = c->peer;
    struct ps_shard_slot *slot = NULL;
    struct ps_shard_refusal refusal;
    uint64_t offset = 0;
    uint64_t total;

    if (!blocks_bytes(m->parts, m->parts_count, true, &total) ||
        (total > 0) != (payload != NULL) || c->thrown == PS_E_PROTO ||
        (payload != NULL && payload->buf != NULL && payload->len != total)) {
        ps_shard_peer_cut(st, c, "a push of rows and its payload do not agree");
        return;
    }
    ps_flow_receive(ps_shard_credit_flow(st->s, p, m->gen), total);

    struct ps_shard_job *job = ps_shard_job_find(st->s, m->gen);
    int rc = job == NULL ? PS_E_NOJOB
                         : ps_shard_job_slot(job, p, m->slot, &slot);

    if (rc == 0 && m->incarnation != p->incarnation) {
        rc = PS_E_STALE;
    }
    if (rc == 0 && ((m->ranks == 0 && total > 0) || m->ranks > PS_WEIGHT_MAX)) {
        rc = PS_E_INVAL;
    }
    if (rc == 0 && c->thrown == PS_E_FULL) {
        rc = PS_E_FULL;
    }
    if (rc != 0) {
        refuse_all(st, p, m->gen, slot, m->parts, m->parts_count, rc);
        return;
    }
    ps_shard_credit_dirty(job);
    ps_shard_refusal_init(&refusal);
    if (c->thrown == PS_E_NOMEM) {
        ps_shard_room_make(st, slot, msg, total);
        ps_shard_refusal_short(st, &refusal, slot, total);
    }
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_rows *rec = &m->parts[i];

        rc = take(st, slot, m, rec, payload, offset, &refusal.side);
        if (rc != 0) {
            struct ps_rec_part part = record_of(rec);

            ps_shard_refusal_add(
                &refusal, &part, rc,
                rc == PS_E_MISMATCH ? ps_shard_attempt_over(
                                          job, rec->key, rec->index, m->attempt)
                                    : 0);
        }
        offset += ps_rows_numbers_bytes(rec->count) +
                  ps_rows_data_bytes(rec->count, rec->width, rec->dtype);
    }
    ps_shard_refusal_send(st, p, m->gen, slot, &refusal);
    ps_shard_credit_tell(st, p, slot);
}

/* ------------------------------------------------------------------- merge */

/* A round changes rows that nobody has given: without an optimizer they become
 * zero, and some optimizers step all. */
static bool touches_all(const struct ps_shard_job *job)
{
    return !job->optimizes || !ps_optim_is_lazy(&job->optim);
}

bool ps_shard_rows_idle(const struct ps_shard_job *job,
                        const struct ps_part *part)
{
    return part->open->round.given == 0 && !touches_all(job);
}

/* Where the new value is made: in the old one's memory when nobody else has
 * it and its rows stay, else in new memory. */
static int make_dst(struct ps_shard_run *run, bool keeps)
{
    struct ps_slice *value = &run->part->value;
    struct ps_buf *buf;

    if (value->buf->refs == 1) {
        run->dst = *value;
        ps_buf_ref(value->buf);
        return 0;
    }
    int rc = ps_shard_room_take(run->job, value->len, &buf);

    if (rc != 0) {
        return rc;
    }
    if (keeps) {
        memcpy(buf->data, ps_slice_data(value), value->len);
    }
    run->dst = (struct ps_slice){.buf = buf, .len = value->len};
    return 0;
}

int ps_shard_rows_plan(struct ps_shard_run *run,
                       struct ps_compute **ret_compute)
{
    struct ps_shard_job *job = run->job;
    struct ps_part *part = run->part;
    const struct ps_open *open = part->open;
    const struct ps_round *round = &open->round;
    uint32_t all = touches_all(job) ? part->count / part->width : 0;
    int rc = make_dst(run, true);
    struct ps_rows_sum sum;
    struct ps_compute *c;
    uint32_t rows;

    if (rc != 0) {
        return rc;
    }
    c = ps_compute_new(run->token, round->given, 2 + PS_PART_STATES);
    ps_rows_sum_init(&sum, part->dtype, part->width, round->size);
    for (uint32_t i = 0; i < round->size; i++) {
        const struct ps_slice *block = &round->part[i];

        if (block->buf == NULL) {
            continue;
        }
        rows = open->rows_given[i];
        ps_rows_sum_add(
            &sum, i, (const uint32_t *)(const void *)ps_slice_data(block), rows,
            ps_slice_data(block) + ps_rows_numbers_bytes(rows));
        ps_compute_hold(c, block->buf);
    }
    rc = ps_rows_sum_plan(&sum, all, c, &rows);
    ps_rows_sum_fini(&sum);
    if (rc != 0) {
        ps_compute_free(c);
        ps_buf_unref(run->dst.buf);
        run->dst = (struct ps_slice){0};
        return rc;
    }
    c->job.op = PS_JOB_SUM;
    c->job.divide_by = open->reduce == PS_REDUCE_MEAN ? open->weight : 1;
    c->job.dst = ps_slice_data(&run->dst);
    ps_compute_hold(c, run->dst.buf);
    *ret_compute = c;
    return 0;
}

/* -------------------------------------------------------------------- pull */

/* PS_E_NOMEM: nothing has happened. */
static int answer(struct ps_shard_step *st, const struct ps_shard_slot *slot,
                  const struct ps_part *part, const struct ps_rows_wait *w)
{
    const uint32_t *row = w->row.buf == NULL
                              ? NULL
                              : (const uint32_t *)(const void *)ps_slice_data(
                                    &w->row);
    uint32_t count = w->count;
    struct ps_shard_peer *p = ps_shard_job_peer(slot);
    size_t bytes = w->width * ps_dtype_size(part->dtype);
    uint64_t len = ps_rows_data_bytes(count, w->width, part->dtype);
    struct ps_slice slice = {0};
    struct ps_rec_rows rec = {
        .key = part->key,
        .index = part->index,
        .round = part->version,
        .dtype = part->dtype,
        .width = w->width,
        .count = count,
    };
    struct ps_msg m = {.code = PS_MSG_ROWS,
                       .rows = {.gen = slot->job->gen,
                                .epoch = st->s->epoch,
                                .request = w->request,
                                .parts = &rec,
                                .parts_count = 1,
                                .passed = part->passed}};

    if (p == NULL) {
        return 0; /* It will ask again when it comes. */
    }
    if (len > 0) {
        int rc = ps_shard_room_take(slot->job, len, &slice.buf);

        if (rc != 0) {
            return rc;
        }
        slice.len = len;
        memset(slice.buf->data + len - 8, 0, 8); /* What fills it up. */
        for (uint32_t i = 0; i < count; i++) {
            memcpy(slice.buf->data + i * bytes,
                   ps_slice_data(&part->value) + row[i] * bytes, bytes);
        }
    }
    ps_shard_peer_send(st, p, ps_parcel_new(&m, &slice, len > 0 ? 1 : 0));
    ps_buf_unref(slice.buf);
    return 0;
}

/* May rows be read now? Not while they are being written. */
static bool readable(const struct ps_part *part, uint64_t least)
{
    return part->version >= least && part->run == NULL;
}

void ps_shard_rows_answer(struct ps_shard_step *st, struct ps_shard_job *job,
                          struct ps_part *part)
{
    struct ps_list_node *n = ps_list_first(&part->asked);

    while (n != NULL && ps_part_has_value(part)) {
        struct ps_rows_wait *w = PS_CONTAINER(n, struct ps_rows_wait, node);

        n = ps_list_next(&part->asked, n);
        if (!readable(part, w->least)) {
            continue;
        }
        if (answer(st, &job->slots[w->slot], part, w) != 0) {
            struct ps_shard_peer *p = ps_shard_job_peer(&job->slots[w->slot]);
            struct ps_rec_rows rec = {.key = part->key,
                                      .index = part->index,
                                      .round = w->least,
                                      .dtype = part->dtype,
                                      .width = w->width,
                                      .count = w->count};

            refuse_all(st, p, job->gen, &job->slots[w->slot], &rec, 1,
                       PS_E_FUTURE);
        }
        ps_store_unask(&job->store, w);
    }
}

static int pull(struct ps_shard_step *st, struct ps_shard_slot *slot,
                const struct ps_msg_pull_rows *m, const struct ps_rec_rows *rec,
                const struct ps_slice *payload)
{
    struct ps_store *store = &slot->job->store;
    struct ps_part *part = ps_store_find(store, rec->key, rec->index);
    struct ps_rows_wait w = {.slot = slot->index,
                             .least = rec->round,
                             .request = m->request,
                             .count = rec->count,
                             .width = rec->width};
    int rc = part != NULL && ps_part_has_value(part) ? fits(part, rec) : 0;
    struct ps_buf *buf = NULL;

    if (rc != 0) {
        return rc;
    }
    if (rec->count > 0 && (payload == NULL || payload->buf == NULL)) {
        return PS_E_FUTURE;
    }
    if (store->parked_count >= PS_PARKED_MAX ||
        (part == NULL && ps_map_count(store->parts) >= PS_STORE_PARTS_MAX)) {
        return PS_E_FUTURE;
    }
    if (rec->count > 0) {
        w.row = *payload;
        if (!ps_rows_fit((const uint32_t *)(const void *)ps_slice_data(payload),
                         rec->count,
                         part != NULL && ps_part_has_value(part)
                             ? part->count / rec->width
                             : UINT32_MAX)) {
            return PS_E_INVAL;
        }
        buf = ps_buf_ref(payload->buf);
    }
    part = ps_store_obtain(store, rec->key, rec->index);
    if (!ps_part_has_value(part)) {
        /* Numbers can only be judged when it is known how many rows there
         * are: such a question is asked again. */
        if (rec->count > 0) {
            ps_buf_unref(buf);
            ps_store_tidy(store, part);
            return PS_E_FUTURE;
        }
        ps_store_ask(store, part, &w);
        return 0;
    }
    if (readable(part, rec->round)) {
        rc = answer(st, slot, part, &w);
        ps_buf_unref(buf);
        return rc != 0 ? PS_E_FUTURE : 0;
    }
    ps_store_ask(store, part, &w); /* Takes over the reference. */
    return 0;
}

void ps_shard_pull_rows(struct ps_shard_step *st, struct ps_shard_conn *c,
                        const struct ps_msg *msg,
                        const struct ps_slice *payload)
{
    const struct ps_msg_pull_rows *m = &msg->pull_rows;
    struct ps_shard_slot *slot = NULL;
    uint64_t total;

    if (!blocks_bytes(m->parts, m->parts_count, false, &total) ||
        m->parts_count != 1 || (total > 0) != (payload != NULL) ||
        c->thrown == PS_E_PROTO ||
        (payload != NULL && payload->buf != NULL && payload->len != total)) {
        ps_shard_peer_cut(st, c, "a pull of rows makes no sense");
        return;
    }
    struct ps_shard_job *job = ps_shard_job_find(st->s, m->gen);
    int rc = job == NULL ? PS_E_NOJOB
                         : ps_shard_job_slot(job, c->peer, m->slot, &slot);

    if (rc == 0) {
        rc = pull(st, slot, m, &m->parts[0], payload);
    }
    if (rc != 0) {
        refuse_all(st, c->peer, m->gen, slot, m->parts, m->parts_count, rc);
    }
}
