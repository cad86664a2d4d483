/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of merges: from a complete round to the end of its last computation. A
 * round that is discarded meanwhile takes its run along; the computation keeps
 * its sources and results alive, and its result is dropped. */
#include "core/server/merge_run.h"

#include "base/alloc.h"
#include "core/server/credit.h"
#include "core/server/inner.h"

void ps_server_merge_init(struct ps_server *s)
{
    s->merges.by_token = ps_map_new();
    ps_list_init(&s->merges.starved);
}

void ps_server_merge_fini(struct ps_server *s)
{
    ps_map_free(s->merges.by_token);
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

    while ((n = ps_list_pop(&part->applying_pushes)) != NULL) {
        ps_async_push_free(PS_CONTAINER(n, struct ps_async_push, node));
    }
    while ((n = ps_list_pop(&part->queued_pushes)) != NULL) {
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
    drop_async_pushes(job, part);
    ps_server_credit_mark_job(job);
}

struct ps_compute *ps_server_merge_sum(struct ps_server_merge *run, bool steps)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;
    struct ps_open_round *open = part->open_round;
    const bool adds = open->rule == PS_RULE_ACCUMULATE;
    const bool takes = (steps || run->accumulates) &&
                       part->accumulated.buf != NULL;
    struct ps_compute *c = ps_compute_new(
        0, open->round.nonempty + (adds || takes ? 1 : 0), 5 + PS_PART_STATES);

    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)part->dtype;
    c->job.fold = ps_round_fold(open->reduce);
    c->job.count = part->count;
    c->job.divide_by = open->reduce != PS_REDUCE_MEAN || run->accumulates
                           ? 1
                           : open->round.weight +
                                 (takes ? part->accumulated_weight : 0);
    ps_round_add_sources(&open->round, c);
    if (open->is_encoded) {
        c->job.src_codec = job->compression.codec;
        c->job.src_rng_stream = ps_codec_rng_stream(
            &c->job.src_codec,
            &(struct ps_codec_position){.key = open->rng_key,
                                        .index = part->index,
                                        .round = part->version + 1});
    }
    if (adds) {
        ps_compute_add_src(c, &part->value, 0);
    } else if (takes) {
        ps_compute_add_src(c, &part->accumulated, 0);
    }
    return c;
}

void ps_server_merge_submit(struct ps_server_step *st,
                            struct ps_server_merge *run, struct ps_compute *c)
{
    run->token = ++st->s->merges.last_token;
    c->token = run->token;
    ps_map_put(st->s->merges.by_token, run->token, run);
    ps_effects_compute(st->fx, c);
}
