/* SPDX-License-Identifier: Apache-2.0 */
/* Computations of a merge: sums of contributions and steps of the optimizer, on
 * compute threads, each job's in turn.
 *
 * A run lasts from a complete round to the end of its last computation. A round
 * that is discarded meanwhile takes its run along; the computation keeps its
 * sources and results alive, and its result is dropped.
 *
 * A step that needs norms of whole arrays, of which this server has a part, has
 * several stages, each a computation. After a stage its output is kept in
 * `work`, its sum of squares goes to the scheduler, and the next stage begins
 * when the scheduler returns the norm over all partitions. The contributions
 * are released as soon as they are summed, so that agents can send other keys,
 * for which this step may have to wait (rule N4).
 *
 * A step that a backup takes, too, is staged as well: its gradient leaves when
 * the last stage begins, so that both take it at the same time (rule O17). */
#include "core/server/merge.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/server/copies.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/kind.h"
#include "core/server/memory.h"

#include <string.h>

/* ------------------------------------------ step of a partition's optimizer */

/* True if the value has a 16-bit type, so that steps use float32 master
 * weights. */
static bool has_master_weights(const struct ps_part *part)
{
    return ps_dtype_is_real(part->image.dtype) &&
           !ps_dtype_is_float(part->image.dtype);
}

/* True if the state has a holder beside its partition, or gets one before the
 * step ends (rule E1); one on a device has none (rule E2). A step of a backup may
 * be dropped before it ends. */
static bool is_held(const struct ps_server_job *job, const struct ps_part *part,
                    const struct ps_buf *state)
{
    return state->copy == NULL &&
           (state->refs > 1 || job->store.records != NULL ||
            part->store != &job->store);
}

/* Bytes of the partition in the type in which steps are computed. */
static size_t work_bytes(const struct ps_part *part)
{
    return part->image.count * ps_dtype_state_size(part->image.dtype);
}

unsigned ps_server_state_count(const struct ps_server_job *job,
                               const struct ps_part *part)
{
    return job->has_optimizer
               ? ps_image_saved_count(part->image.dtype,
                                      ps_optim_state_count(&job->optim))
               : 0;
}

enum ps_part_buffer ps_server_state_place(const struct ps_server_job *job,
                                          unsigned nth)
{
    return ps_image_saved_buffer(nth, ps_optim_state_count(&job->optim));
}

uint64_t ps_server_optimizer_missing(const struct ps_server_job *job,
                                     const struct ps_part *part)
{
    uint64_t missing = 0;

    for (unsigned i = 0; i < ps_server_state_count(job, part); i++) {
        const struct ps_buf *state =
            part->buffers[ps_server_state_place(job, i)].buf;

        missing += state == NULL || is_held(job, part, state) ? work_bytes(part)
                                                              : 0;
    }
    return missing;
}

/* Sets the first bytes of a state, or of the float32 master weights, which begin
 * as the value. */
static int fill_state(const struct ps_server_job *job,
                      const struct ps_part *part, enum ps_part_buffer place,
                      const struct ps_slice *to)
{
    const void *weights = ps_slice_data(ps_part_value(part));

    if (place == PS_PART_BUFFER_MASTER) {
        ps_kernel_widen((enum ps_dtype)part->image.dtype,
                        (float *)(void *)ps_slice_data(to), weights,
                        part->image.count);
        return 0;
    }
    if (!ps_optim_state_is_weight(&job->optim,
                                  place - PS_PART_BUFFER_STATE_0)) {
        memset(ps_slice_data(to), 0, to->len);
        return 0;
    }
    int rc = 0;

    if (has_master_weights(part)) {
        rc = ps_buf_fetch(ps_part_state(part, PS_PART_MASTER));
        weights = ps_part_state(part, PS_PART_MASTER)->data;
    }
    memcpy(ps_slice_data(to), weights, to->len);
    return rc;
}

int ps_server_optimizer_make_states(struct ps_server_job *job,
                                    struct ps_part *part)
{
    /* The master weights, which are last, before a state that begins as
     * these. */
    for (unsigned i = ps_server_state_count(job, part); i-- > 0;) {
        const enum ps_part_buffer place = ps_server_state_place(job, i);
        struct ps_slice state;

        if (part->buffers[place].buf != NULL) {
            continue;
        }
        int rc = ps_server_memory_alloc(job, work_bytes(part), &state);

        if (rc != 0) {
            return rc;
        }
        rc = fill_state(job, part, place, &state);
        if (rc != 0) {
            ps_buf_unref(state.buf);
            return rc;
        }
        ps_store_set_buffer(part->store, part, place, &state);
    }
    return 0;
}

/* Returns the parameters of the step that makes the next version, and raises
 * job->newest_version to it. */
static struct ps_optim_step_params next_step(struct ps_server_job *job,
                                             const struct ps_part *part)
{
    const struct ps_rec_tuning *t = ps_tunings_find(
        &job->tunings, part->image.name_hash, part->image.version + 1);
    /* The same on all servers, because every partition has the same rounds. */
    struct ps_optim_step_params at = {
        .round = part->image.version + 1,
        .step_number = (uint64_t)((int64_t)part->image.version + 1 +
                                  part->image.step_offset),
        .name_hash = part->image.name_hash,
        .first_elem = part->image.first_elem,
        .lr_mult = t != NULL ? t->lr_mult : 1,
        .wd_mult = t != NULL ? t->wd_mult : 1,
        .is_mean = part->open_round->reduce == PS_REDUCE_MEAN,
        .norm_exempt = t != NULL ? t->norm_exempt
                                 : (part->image.name_hash & 1) != 0,
        .trust_ratio = 1,
        .grad_scale = 1,
    };

    job->newest_version = ps_max_u64(job->newest_version, at.round);
    return at;
}

int ps_server_merge_prepare_next(struct ps_server_merge *run,
                                 enum ps_part_buffer place)
{
    const struct ps_slice *now = &run->part->buffers[place];

    return run->next[place].buf != NULL ||
                   !is_held(run->job, run->part, now->buf)
               ? 0
               : ps_server_memory_alloc(run->job, now->len, &run->next[place]);
}

void ps_server_merge_install_next(struct ps_server_merge *run)
{
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        if (run->next[i].buf != NULL) {
            ps_store_set_buffer(run->part->store, run->part,
                                (enum ps_part_buffer)i, &run->next[i]);
            run->next[i] = (struct ps_slice){0};
        }
    }
}

/* Allocates the states that one stage of the step writes. */
static int prepare_states(struct ps_server_merge *run,
                          const struct ps_optim_step_params *at)
{
    struct ps_job stage = {0};
    int rc = ps_server_optimizer_make_states(run->job, run->part);

    ps_optim_plan_step(&run->job->optim, at, &stage);

    const unsigned states = stage.op != PS_JOB_SGD
                                ? ps_step_states(stage.step.kind)
                                : stage.sgd.momentum != 0;

    for (unsigned i = 0; i < states && rc == 0; i++) {
        rc = ps_server_merge_prepare_next(
            run, (enum ps_part_buffer)(PS_PART_BUFFER_STATE_0 + i));
    }
    return rc == 0 && has_master_weights(run->part) && !stage.direction_only
               ? ps_server_merge_prepare_next(run, PS_PART_BUFFER_MASTER)
               : rc;
}

int ps_server_optimizer_prepare_step(struct ps_server_merge *run)
{
    const struct ps_optim_step_params at = next_step(run->job, run->part);

    return prepare_states(run, &at);
}

struct ps_buf *ps_server_merge_add_state(const struct ps_server_merge *run,
                                         enum ps_part_buffer place,
                                         enum ps_kept kept, const void **prior,
                                         struct ps_compute *c)
{
    struct ps_buf *now = run->part->buffers[place].buf;
    struct ps_buf *next = run->next[place].buf;

    ps_compute_pin(c, now);
    if (next == NULL) {
        run->part->changed_buffers |= (uint8_t)(1u << place);
        c->job.kept[kept] = now;
        return now;
    }
    *prior = now->data;
    c->job.kept[kept] = NULL;
    ps_compute_pin(c, next);
    return next;
}

/* Makes the computation take one stage of the step, too. */
static void add_stage(struct ps_server_merge *run,
                      const struct ps_optim_step_params *at,
                      struct ps_compute *c)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;

    ps_optim_plan_step(&job->optim, at, &c->job);
    c->job.weight = ps_slice_data(ps_part_value(part));
    c->job.kept[PS_KEPT_WEIGHT] = ps_part_value(part)->buf;
    ps_compute_pin(c, ps_part_value(part)->buf);
    for (unsigned i = 0; i < ps_optim_state_count(&job->optim); i++) {
        c->job.states[i] =
            ps_server_merge_add_state(
                run, (enum ps_part_buffer)(PS_PART_BUFFER_STATE_0 + i),
                (enum ps_kept)(PS_KEPT_STATE_0 + i), &c->job.prior.states[i], c)
                ->data;
    }
    c->job.state = c->job.states[0];
    if (has_master_weights(part)) {
        c->job.storage_dtype = (enum ps_dtype)part->image.dtype;
        c->job.dtype = PS_DTYPE_FLOAT32;
        c->job.master = ps_server_merge_add_state(run, PS_PART_BUFFER_MASTER,
                                                  PS_KEPT_WEIGHT,
                                                  &c->job.prior.master, c)
                            ->data;
    }
}

void ps_server_optimizer_add_step(struct ps_server_merge *run,
                                  struct ps_compute *c)
{
    const struct ps_optim_step_params at = next_step(run->job, run->part);

    add_stage(run, &at, c);
}

/* --------------------------------------------------------------------- runs */

void ps_server_merge_init(struct ps_server *s)
{
    s->merges.by_token = ps_map_new();
    ps_list_init(&s->merges.starved);
    s->merges.starved_retry_at = PS_TIME_NEVER;
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
        struct ps_server_merge *run = PS_LIST_POP(struct ps_server_merge, node,
                                                  &job->waiting_merges);

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

/* ------------------------------------------------------------- end of a run */

/* Puts the run, whose computation has ended, into job->norms.waits. */
static void await_norms(struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;

    run->staged.awaits_norms = true;
    run->staged.next_waiting = ps_map_remove(job->norms.waits, run->part->key);
    ps_map_put(job->norms.waits, run->part->key, run);
    /* The run waits for other partitions, which may lack contributions. */
    job->merging_rounds--;
    ps_server_credit_mark_job(job);
}

void ps_server_merge_stop_waiting(struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;
    struct ps_server_merge *first = ps_map_remove(job->norms.waits,
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
        ps_map_put(job->norms.waits, run->part->key, first);
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
    ps_image_drop(run->next);
    ps_buf_unref(run->staged.work.buf);
    ps_buf_unref(run->staged.gradient.buf);
    ps_buf_unref(run->staged.square_sums);
    run->part->merge = NULL;
    ps_free(run);
    job->merging_rounds--;
    ps_server_credit_mark_job(job);
}

void ps_server_merge_discard(struct ps_server *s, struct ps_server_job *job,
                             struct ps_part *part)
{
    struct ps_open_round *open = part->open_round;

    if (open == NULL) {
        return;
    }
    /* Async pushes are not counted in incomplete_rounds. */
    const bool complete = ps_server_round_is_complete(open);
    const struct ps_server_contribution_kind *kind = open->kind;

    if (part->merge != NULL) {
        const struct ps_server_merge *run = part->merge;

        if (run->encoded.buf != NULL &&
            run->next[PS_PART_BUFFER_STATE_0].buf == NULL) {
            /* The computation may still write this residual; the next one gets
             * a fresh one. */
            ps_store_set_buffer(&job->store, part, PS_PART_BUFFER_STATE_0,
                                &(struct ps_slice){0});
        }
        ps_server_merge_free(s, part->merge);
    }
    ps_server_copies_on_discard(job, part);
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
    if (kind->drop != NULL) {
        kind->drop(job, part);
    }
    ps_server_credit_mark_job(job);
}

/* --------------------------------------------------------------------- sums */

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
        0, (uint32_t)sources + (adds || takes ? 1 : 0), 5 + 2 * PS_PART_STATES);

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

/* -------------------------------------------------- steps of several stages */

static bool needs_norms(const struct ps_server_job *job,
                        const struct ps_optim_step_params *at)
{
    return ps_optim_first_stage(&job->optim, at) != PS_STAGE_LAST;
}

bool ps_server_norm_is_needed(struct ps_server_job *job,
                              const struct ps_part *part)
{
    const struct ps_optim_step_params at = next_step(job, part);

    return needs_norms(job, &at);
}

bool ps_server_step_is_staged(struct ps_server_job *job,
                              const struct ps_part *part)
{
    const struct ps_optim_step_params at = next_step(job, part);

    return needs_norms(job, &at) || ps_server_copies_take_step(job, part);
}

/* True if norms of the present stage's result are needed. */
static bool measures(const struct ps_server_merge *run)
{
    const struct ps_server_staged_step *s = &run->staged;

    return s->params.stage == PS_STAGE_GRADIENT
               ? ps_optim_needs_gradient_norm(&run->job->optim, &s->params)
               : s->params.stage == PS_STAGE_DIRECTION &&
                     run->part->store == &run->job->store;
}

/* The stage that begins with the gradient. */
static enum ps_stage stage_after_sum(const struct ps_server_merge *run)
{
    return ps_optim_next_stage(
        &run->job->optim,
        &(struct ps_optim_step_params){.stage = PS_STAGE_GRADIENT});
}

/* The source of the present stage, after the sum. */
static const struct ps_slice *stage_source(const struct ps_server_merge *run)
{
    const struct ps_server_staged_step *s = &run->staged;

    return s->gradient.buf == NULL || s->params.stage != stage_after_sum(run)
               ? &s->work
               : &s->gradient;
}

static int prepare_stage(struct ps_server_merge *run)
{
    struct ps_part *part = run->part;
    const bool last = run->staged.params.stage == PS_STAGE_LAST;
    /* The last stage writes the master weights and the value. */
    const bool works = !last || !has_master_weights(part);
    int rc = prepare_states(run, &run->staged.params);

    if (rc == 0 && works && run->staged.work.buf == NULL) {
        rc = ps_server_memory_alloc(run->job, work_bytes(part),
                                    &run->staged.work);
    }
    if (rc != 0) {
        return rc;
    }
    if (last && works) {
        run->result = run->staged.work; /* The last use of `work`. */
        ps_buf_ref(run->result.buf);
        return 0;
    }
    if (last) {
        return ps_server_memory_alloc(
            run->job,
            part->image.count * (uint64_t)ps_dtype_size(part->image.dtype),
            &run->result);
    }
    /* A new buffer: a discarded computation may still write the last one. */
    ps_buf_unref(run->staged.square_sums);
    run->staged.square_sums = NULL;
    if (measures(run)) {
        run->staged.square_sums = ps_buf_new(2 * sizeof(struct ps_square_sum));
        memset(run->staged.square_sums->data, 0, run->staged.square_sums->size);
    }
    return 0;
}

static struct ps_square_sum *square_sums_of(const struct ps_server_merge *run)
{
    return (void *)run->staged.square_sums->data;
}

/* Returns the computation of a later stage. */
static struct ps_compute *plan_next_stage(const struct ps_server_merge *run)
{
    struct ps_compute *c = ps_compute_new(0, 1, 5 + 2 * PS_PART_STATES);

    c->job.dtype = (enum ps_dtype)run->part->image.dtype;
    c->job.count = run->part->image.count;
    c->job.src_is_float32 = has_master_weights(run->part);
    ps_compute_add_src(c, stage_source(run), 0);
    return c;
}

static void begin_stages(struct ps_server_merge *run)
{
    struct ps_server_staged_step *s = &run->staged;

    s->params = next_step(run->job, run->part);
    s->params.apart = ps_server_copies_take_step(run->job, run->part);
    s->params.stage = ps_optim_first_stage(&run->job->optim, &s->params);
    s->progress = PS_STEP_SUMS;
}

int ps_server_step_launch(struct ps_server_step *st,
                          struct ps_server_merge *run)
{
    if (run->staged.progress == PS_STEP_NOT_STAGED) {
        begin_stages(run);
    }
    int rc = prepare_stage(run);

    if (rc != 0) {
        return rc;
    }
    const bool last = run->staged.params.stage == PS_STAGE_LAST;
    struct ps_compute *c = run->staged.progress == PS_STEP_HAS_SUM
                               ? plan_next_stage(run)
                               : ps_server_merge_sum(run, true);

    c->job.dst = ps_slice_data(last ? &run->result : &run->staged.work);
    c->job.kept[PS_KEPT_RESULT] = last ? run->result.buf : NULL;
    ps_compute_pin(c, last ? run->result.buf : run->staged.work.buf);
    if (measures(run)) {
        c->job.square_sum = &square_sums_of(run)[0];
        if (ps_optim_needs_weight_norm(&run->job->optim, &run->staged.params)) {
            c->job.weight_square_sum = &square_sums_of(run)[1];
        }
        ps_compute_pin(c, run->staged.square_sums);
    }
    add_stage(run, &run->staged.params, c);
    ps_server_merge_submit(st, run, c);
    if (last && run->staged.params.apart) {
        struct ps_rec_part_image before = run->part->image;

        ps_server_norm_note(run->job, run->part->key, run->staged.params.round,
                            &before);
        ps_server_copies_offer_step(run->job, &before, run->part,
                                    &run->staged.params, &run->staged.gradient);
    }
    return 0;
}

int ps_server_step_repeat(struct ps_server_step *st,
                          struct ps_server_merge *run,
                          const struct ps_optim_step_params *params,
                          const struct ps_slice *gradient)
{
    struct ps_server_staged_step *s = &run->staged;

    s->params = *params;
    s->params.stage = stage_after_sum(run);
    s->progress = PS_STEP_HAS_SUM;
    s->gradient = *gradient;

    int rc = ps_server_step_launch(st, run);

    if (rc != 0) {
        s->gradient = (struct ps_slice){0};
    }
    return rc;
}

static void send_norm_part(struct ps_server_step *st,
                           const struct ps_server_merge *run)
{
    const struct ps_part *part = run->part;
    const struct ps_square_sum *s = square_sums_of(run);
    uint32_t first[2];
    uint32_t digits[2][PS_SQUARE_SUM_DIGITS];
    uint32_t count[2];

    for (int i = 0; i < 2; i++) {
        count[i] = ps_square_sum_pack(&s[i], &first[i], digits[i]);
    }
    ps_server_uplink_send_msg(
        st, &(struct ps_msg){
                .code = PS_MSG_NORM_PART,
                .norm_part =
                    {
                        .gen = run->job->gen,
                        .key = part->key,
                        .index = part->index,
                        .round = run->staged.params.round,
                        .stage = (uint8_t)run->staged.params.stage,
                        .nonfinite_count = s[0].nonfinite_count,
                        .number = part->image.norm_number,
                        .first_digit = (uint8_t)first[0],
                        .digits = digits[0],
                        .digits_count = count[0],
                        .weight_first_digit = (uint8_t)first[1],
                        .weight_digits = digits[1],
                        .weight_digits_count = count[1],
                    },
            });
}

/* Releases the contributions, which are in the sum, and their credit. */
static void release_contributions(struct ps_server_step *st,
                                  struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;
    struct ps_round *round = &run->part->open_round->round;

    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].unmerged_bytes -= round->contributions[i].len;
    }
    ps_round_release_payloads(round);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_slot *slot = &job->slots[i];

        ps_server_credit_send_due(
            st, &(struct ps_server_recipient){ps_server_slot_session(slot),
                                              job->gen, slot});
    }
}

/* The computation of the run has ended, and the next one has another token. */
static void drop_token(struct ps_server_merge *run)
{
    ps_map_remove(run->job->server->merges.by_token, run->token);
    run->token = 0;
}

enum ps_server_stage_end ps_server_step_on_computed(struct ps_server_step *st,
                                                    struct ps_server_merge *run)
{
    struct ps_server_staged_step *s = &run->staged;

    if (s->params.stage == PS_STAGE_LAST) {
        return PS_STAGE_END_LAST;
    }
    drop_token(run);
    if (s->progress == PS_STEP_SUMS) {
        s->progress = PS_STEP_HAS_SUM;
        release_contributions(st, run);
    }
    if (s->params.stage == PS_STAGE_GRADIENT && s->params.apart) {
        s->gradient = s->work;
        s->work = (struct ps_slice){0};
    }
    if (!measures(run)) {
        s->params.stage = ps_optim_next_stage(&run->job->optim, &s->params);
        return PS_STAGE_END_MORE;
    }
    await_norms(run);
    ps_square_sum_normalize(&square_sums_of(run)[0]);
    ps_square_sum_normalize(&square_sums_of(run)[1]);
    send_norm_part(st, run);
    return PS_STAGE_END_NORMS;
}

static uint64_t known_at(uint32_t key, enum ps_stage stage)
{
    return (uint64_t)key << 8 | stage;
}

bool ps_server_norm_keep(struct ps_server_job *job,
                         const struct ps_msg_norm_result *m)
{
    const uint64_t at = known_at(m->key, (enum ps_stage)m->stage);
    const struct ps_msg *had = ps_map_get(job->norms.known, at);

    if (had != NULL && had->norm_result.round >= m->round) {
        return false;
    }
    ps_msg_free(ps_map_remove(job->norms.known, at));
    ps_map_put(job->norms.known, at,
               ps_msg_dup(&(struct ps_msg){.code = PS_MSG_NORM_RESULT,
                                           .norm_result = *m}));
    return true;
}

/* The result of a stage of the round; NULL: it needed none. */
static const struct ps_msg_norm_result *
known_norms(const struct ps_server_job *job, uint32_t key, uint64_t round,
            enum ps_stage stage)
{
    const struct ps_msg *m = ps_map_get(job->norms.known, known_at(key, stage));

    return m != NULL && m->norm_result.round == round ? &m->norm_result : NULL;
}

void ps_server_norm_note(const struct ps_server_job *job, uint32_t key,
                         uint64_t round, struct ps_rec_part_image *im)
{
    const struct ps_msg_norm_result *m = known_norms(job, key, round,
                                                     PS_STAGE_GRADIENT);
    uint8_t stages = 0;

    if (m != NULL) {
        stages |= 1u << PS_STAGE_GRADIENT;
        im->norm_nonfinite_count = m->nonfinite_count;
        im->norm_square_sum = m->square_sum;
        im->norm_weight_square_sum = m->weight_square_sum;
        im->norm_global_square_sum = m->global_square_sum;
        im->norm_number = m->number;
    }
    m = known_norms(job, key, round, PS_STAGE_DIRECTION);
    if (m != NULL) {
        stages |= 1u << PS_STAGE_DIRECTION;
        im->norm_direction_nonfinite_count = m->nonfinite_count;
        im->norm_direction_square_sum = m->square_sum;
        im->norm_direction_weight_square_sum = m->weight_square_sum;
    }
    if (stages != 0) {
        im->norm_round = round;
        im->norm_stages = stages;
    }
}

void ps_server_norm_adopt(struct ps_server_step *st, struct ps_server_job *job,
                          const struct ps_part *part)
{
    const struct ps_rec_part_image *im = &part->image;
    const struct ps_msg_norm_result of[] = {
        {.stage = PS_STAGE_GRADIENT,
         .nonfinite_count = im->norm_nonfinite_count,
         .square_sum = im->norm_square_sum,
         .weight_square_sum = im->norm_weight_square_sum,
         .global_square_sum = im->norm_global_square_sum,
         .number = im->norm_number},
        {.stage = PS_STAGE_DIRECTION,
         .nonfinite_count = im->norm_direction_nonfinite_count,
         .square_sum = im->norm_direction_square_sum,
         .weight_square_sum = im->norm_direction_weight_square_sum},
    };

    for (unsigned i = 0; i < 2; i++) {
        struct ps_msg m = {.code = PS_MSG_NORM_RESULT, .norm_result = of[i]};

        m.norm_result.gen = job->gen;
        m.norm_result.key = part->key;
        m.norm_result.round = im->norm_round;
        if ((im->norm_stages & 1u << of[i].stage) != 0 &&
            ps_server_norm_keep(job, &m.norm_result)) {
            ps_server_uplink_send_msg(st, &m);
        }
    }
}

void ps_server_norm_send_known(struct ps_server_step *st,
                               const struct ps_server_job *job)
{
    PS_MAP_EACH(const struct ps_msg, m, job->norms.known)
    {
        ps_server_uplink_send_msg(st, m);
    }
}

void ps_server_norm_resend(struct ps_server_step *st,
                           const struct ps_server_job *job)
{
    PS_MAP_EACH(const struct ps_server_merge, run, job->norms.waits)
    {
        for (; run != NULL; run = run->staged.next_waiting) {
            send_norm_part(st, run);
        }
    }
}

bool ps_server_norm_apply(struct ps_server_merge *run,
                          const struct ps_msg_norm_result *m)
{
    const struct ps_optim *o = &run->job->optim;
    const struct ps_optim_norms norms = {
        .nonfinite_count = m->nonfinite_count,
        .square_sum = m->square_sum,
        .weight_square_sum = m->weight_square_sum,
        .global_square_sum = m->global_square_sum};

    if (!ps_optim_apply_norms(o, &norms, &run->staged.params)) {
        return false;
    }
    run->staged.params.stage = ps_optim_next_stage(o, &run->staged.params);
    return true;
}
