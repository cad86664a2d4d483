/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of optimizers that look at a whole array, of which this server has a
 * part. Such a step has several computations: what comes out of one is put
 * aside, the scheduler is told its squares, and the next one begins when it
 * says what they are of all partitions. Between two of them nothing waits but
 * the run: the contributions are let go of as soon as they are added up, so
 * that agents may go on with other keys, which this step may wait for. */
#include "core/shard_inner.h"

#include "base/alloc.h"

#include <string.h>

bool ps_shard_norm_needed(struct ps_shard_job *job, const struct ps_part *part)
{
    const struct ps_optim_at at = ps_shard_step_at(job, part);

    return ps_optim_first(&job->optim, &at) != PS_STAGE_LAST;
}

/* Bytes of the partition in the type in which steps are computed. */
static size_t work_len(const struct ps_part *part)
{
    return part->count * (ps_shard_step_is_half(part)
                              ? sizeof(float)
                              : ps_dtype_size(part->dtype));
}

static int get(struct ps_shard_run *run, size_t len, struct ps_slice *ret)
{
    struct ps_buf *buf;
    int rc = ps_shard_room_take(run->job, len, &buf);

    if (rc == 0) {
        *ret = (struct ps_slice){.buf = buf, .len = len};
    }
    return rc;
}

static int prepare(struct ps_shard_run *run)
{
    struct ps_part *part = run->part;
    const bool last = run->at.stage == PS_STAGE_LAST;
    int rc = ps_shard_step_states(run->job, part);

    if (rc == 0 && run->work.buf == NULL) {
        rc = get(run, work_len(part), &run->work);
    }
    if (rc != 0) {
        return rc;
    }
    if (last && !ps_shard_step_is_half(part)) {
        run->dst = run->work; /* Nobody needs it any more. */
        ps_buf_ref(run->dst.buf);
        return 0;
    }
    if (last) {
        return get(run, part->count * ps_dtype_size(part->dtype), &run->dst);
    }
    /* A new one: what computed the last may have been forgotten meanwhile. */
    ps_buf_unref(run->squares);
    run->squares = ps_buf_new(2 * sizeof(struct ps_squares));
    memset(run->squares->data, 0, run->squares->size);
    return 0;
}

static struct ps_squares *squares_of(const struct ps_shard_run *run)
{
    return (void *)run->squares->data;
}

/* What is in `work` is the only source now. */
static struct ps_compute *again(const struct ps_shard_run *run)
{
    struct ps_compute *c = ps_compute_new(0, 1, 5 + PS_PART_STATES);

    c->job.dtype = (enum ps_dtype)run->part->dtype;
    c->job.count = run->part->count;
    c->job.wide = ps_shard_step_is_half(run->part);
    ps_compute_add_src(c, &run->work, 0);
    return c;
}

int ps_shard_norm_launch(struct ps_shard_step *st, struct ps_shard_run *run)
{
    if (!run->staged) {
        run->at = ps_shard_step_at(run->job, run->part);
        run->at.stage = ps_optim_first(&run->job->optim, &run->at);
        run->staged = true;
    }
    int rc = prepare(run);

    if (rc != 0) {
        return rc;
    }
    const bool last = run->at.stage == PS_STAGE_LAST;
    struct ps_compute *c = run->summed ? again(run)
                                       : ps_shard_merge_sum(run, true);

    c->job.dst = ps_slice_data(last ? &run->dst : &run->work);
    ps_compute_hold(c, last ? run->dst.buf : run->work.buf);
    if (!last) {
        c->job.squares = &squares_of(run)[0];
        if (ps_optim_weighs(&run->job->optim, &run->at)) {
            c->job.weight_squares = &squares_of(run)[1];
        }
        ps_compute_hold(c, run->squares);
    }
    ps_shard_step_add(run, &run->at, c);
    ps_shard_merge_submit(st, run, c);
    return 0;
}

/* ----------------------------------------------------------------- asking */

static void ask(struct ps_shard_step *st, const struct ps_shard_run *run)
{
    const struct ps_part *part = run->part;
    const struct ps_squares *s = squares_of(run);
    uint32_t first[2];
    uint32_t digits[2][PS_SQUARES_DIGITS];
    uint32_t count[2];

    for (int i = 0; i < 2; i++) {
        count[i] = ps_squares_pack(&s[i], &first[i], digits[i]);
    }
    ps_shard_up_tell(st, &(struct ps_msg){
                             .code = PS_MSG_SQUARES,
                             .squares =
                                 {
                                     .gen = run->job->gen,
                                     .key = part->key,
                                     .index = part->index,
                                     .round = run->at.round,
                                     .stage = (uint8_t)run->at.stage,
                                     .wild = s[0].wild,
                                     .first = (uint8_t)first[0],
                                     .digits = digits[0],
                                     .digits_count = count[0],
                                     .weight_first = (uint8_t)first[1],
                                     .weight_digits = digits[1],
                                     .weight_digits_count = count[1],
                                 },
                         });
}

/* The contributions are in the sum. */
static void release(struct ps_shard_step *st, struct ps_shard_run *run)
{
    struct ps_shard_job *job = run->job;
    struct ps_round *round = &run->part->open->round;

    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].held -= round->part[i].len;
    }
    ps_round_release(round);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_shard_peer *p = ps_shard_job_peer(&job->slots[i]);

        if (p != NULL) {
            ps_shard_credit_tell(st, p, &job->slots[i]);
        }
    }
}

bool ps_shard_norm_computed(struct ps_shard_step *st, struct ps_shard_run *run)
{
    struct ps_shard_job *job = run->job;

    if (run->at.stage == PS_STAGE_LAST) {
        return true;
    }
    ps_map_take(st->s->runs, run->token);
    run->token = 0;
    run->asks = true;
    run->next = ps_map_take(job->asking, run->part->key);
    ps_map_put(job->asking, run->part->key, run);
    if (!run->summed) {
        run->summed = true;
        release(st, run);
    }
    /* Others may have to give before this goes on. */
    job->running--;
    ps_shard_credit_dirty(job);
    ps_squares_settle(&squares_of(run)[0]);
    ps_squares_settle(&squares_of(run)[1]);
    ask(st, run);
    return false;
}

void ps_shard_norm_forget(struct ps_shard_run *run)
{
    struct ps_shard_job *job = run->job;
    struct ps_shard_run *first = ps_map_take(job->asking, run->part->key);
    struct ps_shard_run **at = &first;

    while (*at != run) {
        at = &(*at)->next;
    }
    *at = run->next;
    run->next = NULL;
    run->asks = false;
    job->running++;
    if (first != NULL) {
        ps_map_put(job->asking, run->part->key, first);
    }
}

void ps_shard_norm_offer(struct ps_shard_step *st,
                         const struct ps_shard_job *job)
{
    struct ps_map_cursor c = {0};
    const struct ps_shard_run *run;

    while ((run = ps_map_next(job->asking, &c)) != NULL) {
        for (; run != NULL; run = run->next) {
            ask(st, run);
        }
    }
}

/* ---------------------------------------------------------------- answers */

static void go_on(struct ps_shard_step *st, struct ps_shard_run *run,
                  const struct ps_msg_norms *m)
{
    const struct ps_optim *o = &run->job->optim;

    const struct ps_optim_norms norms = {.wild = m->wild,
                                         .square = m->square,
                                         .weight_square = m->weight_square,
                                         .all_square = m->all_square};

    if (!ps_optim_take(o, &norms, &run->at)) {
        ps_shard_merge_skip(st, run);
        return;
    }
    run->at.stage = ps_optim_next(o, &run->at);
    ps_shard_merge_go_on(st, run);
}

void ps_shard_norms(struct ps_shard_step *st, const struct ps_msg_norms *m)
{
    struct ps_shard_job *job = ps_shard_job_find(st->s, m->gen);
    struct ps_shard_run *run = job != NULL ? ps_map_get(job->asking, m->key)
                                           : NULL;

    while (run != NULL) {
        struct ps_shard_run *next = run->next;

        /* An answer may come again after a cut. */
        if (run->at.round == m->round && run->at.stage == m->stage) {
            ps_shard_norm_forget(run);
            go_on(st, run, m);
        }
        run = next;
    }
}
