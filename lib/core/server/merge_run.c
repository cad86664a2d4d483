/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of merges: from a complete round to the end of its last computation. A
 * round that is discarded meanwhile takes its run along; the computation keeps
 * its sources and results alive, and its result is dropped. */
#include "core/server/merge_run.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/server/credit.h"
#include "core/server/inner.h"

void ps_server_merge_init(struct ps_server *s)
{
    s->merges.by_token = ps_map_new();
    ps_list_init(&s->merges.starved);
    ps_fair_init(&s->merges.fair);
}

void ps_server_merge_fini(struct ps_server *s)
{
    ps_map_free(s->merges.by_token);
    ps_fair_fini(&s->merges.fair);
}

struct ps_server_merge *ps_server_merge_new(struct ps_server_job *job,
                                            struct ps_part *part)
{
    struct ps_server_merge *run = ps_calloc(1, sizeof(*run));

    run->job = job;
    run->part = part;
    part->merge = run;
    job->merging_rounds++;
    return run;
}

/* ------------------------------------------------------------ computations */

/* Bytes that the computation reads and writes. */
static uint64_t compute_bytes(const struct ps_compute *c)
{
    return (c->job.src_count + 1) * c->job.count *
           (uint64_t)ps_dtype_size(c->job.dtype);
}

static void run_computation(struct ps_server_step *st,
                            struct ps_server_merge *run, struct ps_compute *c)
{
    run->computing_bytes = compute_bytes(c);
    run->computing_since = st->now;
    st->s->merges.computing_bytes += run->computing_bytes;
    ps_effects_compute(st->fx, c);
}

/* Takes the first waiting computation of the job out of its queue. */
static struct ps_server_merge *pop_waiting(struct ps_server_job *job)
{
    struct ps_list_node *n = ps_list_pop(&job->waiting_merges);

    return n == NULL ? NULL : PS_CONTAINER(n, struct ps_server_merge, node);
}

/* True while computations wait for their turn. */
static bool has_waiting(const struct ps_server_merges *m)
{
    return m->fair.active.count > 0;
}

/* Starts computations of jobs by turns, as long as few run: only one where the
 * loop needs a processor for streams. */
static void start_waiting(struct ps_server_step *st)
{
    struct ps_server_merges *m = &st->s->merges;
    uint64_t most = st->s->sessions.streams == 0
                        ? st->s->opt.computing_max
                        : ps_min_u64(st->s->opt.computing_max,
                                     PS_STREAM_BYTES_MAX);
    struct ps_fair_flow *flow;

    while (m->computing_bytes < most &&
           (flow = ps_fair_next(&m->fair)) != NULL) {
        struct ps_server_job *job = PS_CONTAINER(flow, struct ps_server_job,
                                                 merge_flow);
        struct ps_server_merge *run = pop_waiting(job);

        if (run == NULL) {
            ps_fair_deactivate(&m->fair, flow);
            continue;
        }
        struct ps_compute *c = run->waiting;

        run->waiting = NULL;
        run_computation(st, run, c);
        ps_fair_charge(&m->fair, flow, job->weight, run->computing_bytes);
    }
}

/* The computation of the run has ended, or its end is of no interest. */
static void forget_computation(struct ps_server *s, struct ps_server_merge *run)
{
    if (run->waiting != NULL) {
        ps_list_remove(&run->node);
        ps_compute_free(run->waiting);
        run->waiting = NULL;
    }
    s->merges.computing_bytes -= run->computing_bytes;
    run->computing_bytes = 0;
}

void ps_server_merge_submit(struct ps_server_step *st,
                            struct ps_server_merge *run, struct ps_compute *c)
{
    struct ps_server_merges *m = &st->s->merges;

    run->token = ++m->last_token;
    c->token = run->token;
    ps_map_put(m->by_token, run->token, run);
    if (ps_map_count(st->s->jobs.by_gen) < 2 && !has_waiting(m)) {
        run_computation(st, run, c); /* Nobody to share with. */
        return;
    }
    run->waiting = c;
    ps_list_push_back(&run->job->waiting_merges, &run->node);
    ps_fair_activate(&m->fair, &run->job->merge_flow);
    start_waiting(st);
}

struct ps_server_merge *ps_server_merge_computed(struct ps_server_step *st,
                                                 uint64_t token)
{
    struct ps_server_merge *run = ps_map_get(st->s->merges.by_token, token);

    if (run != NULL) {
        forget_computation(st->s, run);
    }
    if (has_waiting(&st->s->merges)) {
        start_waiting(st);
    }
    return run;
}

/* ---------------------------------------------------------- end of a merge */

void ps_server_merge_await_norms(struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;

    ps_map_remove(job->server->merges.by_token, run->token);
    run->token = 0;
    run->staged.awaits_norms = true;
    run->staged.next_waiting = ps_map_remove(job->norm_waits, run->part->key);
    ps_map_put(job->norm_waits, run->part->key, run);
    /* The run waits for other partitions, which may lack contributions. */
    job->merging_rounds--;
    ps_server_credit_mark_job(job);
}

void ps_server_merge_stop_waiting(struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;
    struct ps_server_merge *first = ps_map_remove(job->norm_waits,
                                                  run->part->key);
    struct ps_server_merge **at = &first;

    while (*at != run) {
        at = &(*at)->staged.next_waiting;
    }
    *at = run->staged.next_waiting;
    run->staged.next_waiting = NULL;
    run->staged.awaits_norms = false;
    job->merging_rounds++;
    if (first != NULL) {
        ps_map_put(job->norm_waits, run->part->key, first);
    }
}

void ps_server_merge_free(struct ps_server *s, struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;

    forget_computation(s, run);
    if (run->token != 0) {
        ps_map_remove(s->merges.by_token, run->token);
    } else if (run->staged.awaits_norms) {
        ps_server_merge_stop_waiting(run);
    } else if (ps_list_linked(&run->node)) {
        ps_list_remove(&run->node);
    }
    ps_buf_unref(run->result.buf);
    ps_buf_unref(run->encoded.buf);
    ps_buf_unref(run->staged.work.buf);
    ps_buf_unref(run->staged.square_sums);
    run->part->merge = NULL;
    ps_free(run);
    job->merging_rounds--;
    ps_server_credit_mark_job(job);
}

/* Frees the pushes that are queued or being applied. */
static void drop_async_pushes(struct ps_server_job *job, struct ps_part *part)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(&part->async->applying_pushes)) != NULL) {
        ps_async_push_free(PS_CONTAINER(n, struct ps_async_push, node));
    }
    while ((n = ps_list_pop(&part->async->queued_pushes)) != NULL) {
        struct ps_async_push *a = PS_CONTAINER(n, struct ps_async_push, node);

        job->slots[a->slot].unmerged_bytes -= a->payload.len;
        ps_async_push_free(a);
    }
}

void ps_server_merge_discard(struct ps_server *s, struct ps_server_job *job,
                             struct ps_part *part)
{
    struct ps_open_round *open = part->open_round;

    if (open == NULL) {
        return;
    }
    /* Async pushes are not counted in incomplete_rounds. */
    bool complete = open->rule != PS_RULE_NONE ||
                    ps_round_is_complete(&open->round);

    if (part->merge != NULL) {
        const struct ps_server_merge *run = part->merge;

        if (run->encoded.buf != NULL) {
            /* The computation may still write this residual; the next one gets
             * a fresh one. */
            ps_store_set_state(&job->store, part, 0, NULL);
        }
        ps_server_merge_free(s, part->merge);
    }
    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].unmerged_bytes -= open->round.contributions[i].len;
        if (!complete && ps_round_has_contributed(&open->round, i)) {
            job->slots[i].contributed_rounds--;
        }
    }
    if (!complete) {
        job->incomplete_rounds--;
    }
    ps_store_close_round(&job->store, part);
    if (part->async != NULL) {
        drop_async_pushes(job, part);
    }
    ps_server_credit_mark_job(job);
}

/* Codes of all contributions, if each worker has one of its own. */
static uint64_t count_codes(const struct ps_open_round *open, uint64_t code_len)
{
    uint64_t codes = 0;

    for (uint32_t i = 0; i < open->round.size; i++) {
        codes += open->round.contributions[i].buf != NULL
                     ? open->round.contributions[i].len / code_len
                     : 0;
    }
    return codes;
}

/* Adds the codes of all workers in the order of their slots and ranks. All are
 * leaves of one tree, so that the bits of the sum do not depend on how the
 * workers are spread over nodes if their ranks ascend with the slots. */
static void add_each_code(const struct ps_open_round *open, uint64_t code_len,
                          struct ps_compute *c)
{
    for (uint32_t i = 0; i < open->round.size; i++) {
        struct ps_slice one = open->round.contributions[i];
        const uint64_t end = one.offset + one.len;

        for (one.len = code_len; one.buf != NULL && one.offset < end;
             one.offset += code_len) {
            ps_compute_add_src(c, &one, 0);
        }
    }
    c->job.level = NULL;
}

struct ps_compute *ps_server_merge_sum(struct ps_server_merge *run, bool steps)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;
    struct ps_open_round *open = part->open_round;
    const bool adds = open->rule == PS_RULE_ACCUMULATE;
    const bool takes = (steps || run->accumulates) &&
                       ps_part_accumulated(part)->buf != NULL;
    const uint64_t code_len = open->is_encoded && job->compression.per_worker
                                  ? ps_codec_bytes(&job->compression.codec,
                                                   part->image.count)
                                  : 0;
    const uint64_t sources = code_len != 0 ? count_codes(open, code_len)
                                           : open->round.nonempty;
    struct ps_compute *c = ps_compute_new(
        0, (uint32_t)sources + (adds || takes ? 1 : 0), 5 + PS_PART_STATES);

    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)part->image.dtype;
    c->job.fold = ps_round_fold(open->reduce);
    c->job.count = part->image.count;
    c->job.divide_by = open->reduce != PS_REDUCE_MEAN || run->accumulates
                           ? 1
                           : open->round.weight +
                                 (takes ? part->image.accumulated_weight : 0);
    if (code_len != 0) {
        add_each_code(open, code_len, c);
    } else {
        ps_round_add_sources(&open->round, c);
    }
    if (open->is_encoded) {
        c->job.src_codec = job->compression.codec;
        c->job.src_rng_stream = ps_codec_rng_stream(
            &c->job.src_codec,
            &(struct ps_codec_position){.key = open->rng_key,
                                        .index = part->index,
                                        .round = part->image.version + 1});
    }
    if (adds) {
        ps_compute_add_src(c, ps_part_value(part), 0);
    } else if (takes) {
        ps_compute_add_src(c, ps_part_accumulated(part), 0);
    }
    return c;
}
