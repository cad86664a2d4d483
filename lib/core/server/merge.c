/* SPDX-License-Identifier: Apache-2.0 */
/* From a complete round to a version: one computation for each partition
 * (step.c), then the new value to all contributors and waiting pulls. A step
 * that needs norms has several computations; between them the run waits for the
 * scheduler's results.
 *
 * Each contribution belongs to an attempt at its round, numbered by `retry`.
 * When two of one attempt ask for different things, the attempt is aborted: all
 * contributors, and later ones, are refused with the next retry number and try
 * again under that (rule R15). Partitions on other servers learn of the abort
 * from the higher number, so the order in which servers receive contributions
 * does not matter (rule R17). */
#include "core/server/merge.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/part/image.h"
#include "core/server/copies.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/kind.h"
#include "core/server/memory.h"
#include "core/server/move.h"
#include "core/server/pull.h"
#include "core/server/reply.h"
#include "core/server/session.h"

#include <string.h>

/* A round without memory for its result tries again after this time. */
#define STARVED_WAIT        PS_MILLIS(10)
/* Starved rounds tried in one tick. */
#define STARVED_RETRIES_MAX 256u

/* ---------------------------------------------------------------- conflicts */

/* Discards the open round, adds its partition to the refusal, and sends that to
 * the round's contributors. */
static void void_round(struct ps_server_step *st, struct ps_server_job *job,
                       struct ps_part *part, int rc,
                       struct ps_server_refusal *refusal)
{
    const struct ps_rec_part rec = ps_server_part_record(
        part, part->image.version + 1);
    const uint32_t retry = rc == PS_E_MISMATCH ? part->image.retry : 0;
    struct ps_bits contributed;

    ps_bits_init(&contributed, job->slot_count);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (ps_round_has_contributed(&part->open_round->round, i)) {
            ps_bits_set(&contributed, i);
        }
    }
    /* Before the refusals, so that they carry the credit that this frees. */
    ps_server_merge_discard(st->s, job, part);
    ps_server_refusal_add(refusal, &rec, rc, retry);
    ps_server_refusal_send_to(st, job, &contributed, refusal);
    ps_bits_fini(&contributed);
}

void ps_server_conflict_void(struct ps_server_step *st,
                             struct ps_server_job *job, struct ps_part *part,
                             int rc)
{
    struct ps_server_refusal refusal;

    ps_server_refusal_init(&refusal);
    void_round(st, job, part, rc, &refusal);
}

/* Sets the retry number of the next round to `attempt`, and refuses all
 * contributions to the attempt that ends. `other` is the conflicting side that
 * the refusals name; NULL: none. */
static void abort_attempt(struct ps_server_step *st, struct ps_server_job *job,
                          struct ps_part *part, uint32_t attempt,
                          const struct ps_server_conflict *other)
{
    struct ps_server_refusal refusal;

    part->image.retry = attempt;
    ps_store_mark(part);
    if (part->open_round == NULL) {
        return;
    }
    ps_server_refusal_init(&refusal);
    if (other != NULL) {
        refusal.conflict = *other;
    }
    void_round(st, job, part, PS_E_MISMATCH, &refusal);
}

uint32_t ps_server_conflict_newer_retry(const struct ps_server_job *job,
                                        uint32_t key, uint32_t index,
                                        uint32_t attempt)
{
    const struct ps_part *part = ps_store_find(&job->store, key, index);

    return part != NULL && part->image.retry > attempt ? part->image.retry : 0;
}

int ps_server_conflict_check_retry(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   struct ps_part *part, uint64_t round,
                                   uint32_t attempt)
{
    if (part == NULL || round != part->image.version + 1) {
        return 0;
    }
    if (attempt < part->image.retry) {
        return PS_E_MISMATCH;
    }
    if (attempt > part->image.retry) {
        if (part->open_round != NULL &&
            ps_server_round_is_complete(part->open_round)) {
            return PS_E_FUTURE; /* All slots have agreed. */
        }
        abort_attempt(st, job, part, attempt, NULL);
    }
    return 0;
}

/* Aborts a complete broadcast round whose root skipped it. */
static void abort_without_root(struct ps_server_step *st,
                               struct ps_server_job *job, struct ps_part *part)
{
    abort_attempt(st, job, part, part->image.retry + 1,
                  &(struct ps_server_conflict){.assign = true});
}

void ps_server_conflict_raise(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint64_t round,
                              const struct ps_server_conflict *own,
                              struct ps_server_conflict *ret_others)
{
    const struct ps_open_round *open = part->open_round;

    if (round != part->image.version + 1 ||
        (open != NULL && ps_round_is_complete(&open->round))) {
        return;
    }
    if (open != NULL && ret_others->slot_count == 0) {
        for (uint32_t i = 0; i < open->round.size &&
                             ret_others->slot_count < PS_CONFLICT_SLOTS_MAX;
             i++) {
            if (ps_round_has_contributed(&open->round, i) &&
                (open->skips.words == NULL || !ps_bits_get(&open->skips, i))) {
                ret_others->slots[ret_others->slot_count++] = i;
            }
        }
        ret_others->reduce = open->reduce;
        ret_others->assign = open->assign;
    }
    abort_attempt(st, job, part, part->image.retry + 1, own);
}

void ps_server_on_abort_round(struct ps_server_step *st,
                              const struct ps_server_request *q)
{
    struct ps_server_job *job = q->from.slot->job;
    struct ps_server_refusal refusal;

    ps_server_refusal_init(&refusal);
    for (uint32_t i = 0; i < q->count; i++) {
        const struct ps_rec_part *rec = &q->parts[i];
        struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);

        if (ps_server_move_involves(job, rec)) {
            ps_server_refusal_add(&refusal, rec, PS_E_MIGRATING, 0);
            continue;
        }
        if (part == NULL && rec->round == 1 &&
            !ps_store_lacks_room(&job->store, part)) {
            part = ps_store_find_or_add(&job->store, rec->key, rec->index);
        }
        (void)ps_server_conflict_check_retry(st, job, part, rec->round,
                                             q->msg->abort_round.retry);
    }
    ps_server_refusal_send(st, &q->from, &refusal);
    ps_server_credit_send_due(st, &q->from);
}

/* -------------------------------------------------------------- publication */

/* Replies to all contributors of the round, and closes it. */
static void reply_merged(struct ps_server_step *st, struct ps_server_job *job,
                         struct ps_part *part)
{
    struct ps_open_round *open = part->open_round;
    struct ps_bits up_to_date;

    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].unmerged_bytes -= open->round.contributions[i].len;
        ps_server_reply_part(st, &job->slots[i], part,
                             ps_bits_get(&open->needs_value, i),
                             part->image.version);
    }
    up_to_date = open->needs_value;
    open->needs_value = (struct ps_bits){0};
    ps_store_close_round(&job->store, part);
    if (!ps_list_empty(&part->waiting_pulls)) {
        ps_server_pull_reply_waiting(st, job, part, &up_to_date);
    }
    ps_bits_fini(&up_to_date);
}

/* Publishes the next version of the partition and replies to all contributors
 * (rule R12). `value` NULL: the value stays; else takes over one reference of
 * `value` and of `code`. */
static void publish_version(struct ps_server_step *st,
                            struct ps_server_job *job, struct ps_part *part,
                            const struct ps_slice *value,
                            const struct ps_slice *code)
{
    const struct ps_open_round *open = part->open_round;

    if (value != NULL) {
        if (open->assign) {
            part->image.step_offset--; /* No optimizer step. */
            /* Master weights of the replaced value. */
            ps_store_set_buffer(&job->store, part, PS_PART_BUFFER_MASTER,
                                &(struct ps_slice){0});
        }
        ps_store_set_value(&job->store, part, part->image.version + 1, value);
        if (code->buf != NULL) {
            ps_store_set_encoded(&job->store, part,
                                 (uint8_t)job->compression.codec.kind, code);
        }
    } else {
        ps_store_keep_value(&job->store, part, !open->has_request);
    }
    ps_server_norm_note(job, part->key, part->image.version, &part->image);
    ps_server_copies_on_change(job, part);
    st->s->rounds++;
    if (open->kind->applied == NULL) {
        reply_merged(st, job, part);
    } else if (open->kind->applied(st, job, part)) {
        ps_server_merge_start(st, job, part);
    }
}

/* Publishes the next version without an optimizer step and without a new
 * value. */
static void publish_without_step(struct ps_server_step *st,
                                 struct ps_server_job *job,
                                 struct ps_part *part)
{
    part->image.step_offset--;
    job->newest_version = ps_max_u64(job->newest_version,
                                     part->image.version + 1);
    publish_version(st, job, part, NULL, NULL);
}

/* Publishes a round whose sum waits for later rounds: the value stays. Takes
 * over one reference. */
static void publish_accumulated(struct ps_server_step *st,
                                struct ps_server_job *job, struct ps_part *part,
                                const struct ps_slice *sum)
{
    ps_store_accumulate(&job->store, part, sum, part->open_round->round.weight,
                        part->open_round->reduce);
    publish_without_step(st, job, part);
}

/* ------------------------------------------------------------------- launch */

/* True if the buffer holds only this contribution, so that the result may be
 * written over it. */
static bool owns_whole_buffer(const struct ps_slice *s)
{
    return s->offset == 0 && s->len == s->buf->size;
}

/* True if the result is sent encoded. Such a job has no optimizer, so state 0
 * is the residual. */
static bool encodes_result(const struct ps_server_merge *run)
{
    return run->job->compression.bidirectional && !run->job->has_optimizer &&
           run->part->open_round->is_encoded;
}

/* Allocates the encoded result, and its residual if that is missing. */
static int prepare_encoded(struct ps_server_merge *run)
{
    struct ps_part *part = run->part;
    struct ps_slice residual;

    if (ps_part_state(part, 0) == NULL) {
        int rc = ps_server_memory_alloc(
            run->job, part->image.count * sizeof(float), &residual);

        if (rc != 0) {
            return rc;
        }
        memset(ps_slice_data(&residual), 0, residual.len);
        ps_store_set_buffer(&run->job->store, part, PS_PART_BUFFER_STATE_0,
                            &residual);
    }
    int rc = ps_server_merge_prepare_next(run, PS_PART_BUFFER_STATE_0);

    return rc != 0 ? rc
                   : ps_server_memory_alloc(
                         run->job,
                         ps_codec_bytes(&run->job->compression.codec,
                                        part->image.count),
                         &run->encoded);
}

/* Makes the summing computation encode its sum. The value is the decoded
 * result, so that the server and all agents hold the same one. */
static void add_encode(struct ps_server_merge *run, struct ps_compute *c)
{
    struct ps_part *part = run->part;

    c->job.op = PS_JOB_ENCODE;
    c->job.codec = run->job->compression.codec;
    c->job.codec.momentum = 0; /* For gradients only. */
    c->job.rng_stream = ps_codec_rng_stream(
        &c->job.codec,
        &(struct ps_codec_position){.key = part->open_round->rng_key,
                                    .index = part->index,
                                    .round = part->image.version + 1,
                                    .slot = UINT32_MAX});
    c->job.decoded = c->job.dst;
    c->job.dst = ps_slice_data(&run->encoded);
    ps_compute_pin(c, run->encoded.buf);

    const void *prior = NULL;

    c->job.residual = (float *)(void *)ps_server_merge_add_state(
                          run, PS_PART_BUFFER_STATE_0, PS_KEPT_RESIDUAL, &prior,
                          c)
                          ->data;
    c->job.prior.residual = prior;
}

static int prepare_result(struct ps_server_merge *run, bool steps)
{
    struct ps_part *part = run->part;
    const struct ps_slice *first = ps_round_first_nonempty(
        &part->open_round->round);
    const bool is_encoded = part->open_round->is_encoded;
    int rc = steps ? ps_server_optimizer_prepare_step(run) : 0;

    if (rc != 0) {
        return rc;
    }
    if (is_encoded || !owns_whole_buffer(first)) {
        rc = ps_server_memory_alloc(
            run->job,
            part->image.count * (uint64_t)ps_dtype_size(part->image.dtype),
            &run->result);
        if (rc != 0 && (is_encoded || run->starved_since == 0)) {
            return rc;
        }
    }
    if (run->result.buf == NULL) {
        /* If the round has waited for memory, the result keeps alive the frame
         * of the first contribution; those of the others are freed. */
        run->result = *first;
        ps_buf_ref(first->buf);
    }
    rc = encodes_result(run) ? prepare_encoded(run) : 0;
    if (rc != 0) {
        ps_buf_unref(run->result.buf);
        run->result = (struct ps_slice){0};
    }
    return rc;
}

/* PS_E_NOMEM: nothing has changed. */
static int launch_plan(struct ps_server_step *st, struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;
    struct ps_compute *c;
    int rc = ps_server_optimizer_make_states(job, part);

    if (rc == 0) {
        rc = part->open_round->kind->plan(run, &c);
    }
    if (rc != 0) {
        return rc;
    }
    if (job->has_optimizer) {
        ps_server_optimizer_add_step(run, c);
        /* The step changes rows in the new value's memory. */
        c->job.weight = c->job.dst;
    }
    ps_server_merge_submit(st, run, c);
    return 0;
}

/* True if the optimizer step waits for more rounds after this one. */
static bool accumulates_round(const struct ps_server_job *job,
                              const struct ps_part *part, bool steps)
{
    return steps && part->image.accumulated_rounds + 1 <
                        ps_optim_rounds_per_step(&job->optim);
}

static int launch_merge(struct ps_server_step *st, struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;
    struct ps_open_round *open = part->open_round;
    bool steps = job->has_optimizer && !open->assign && ps_part_has_value(part);
    int rc;

    if (run->staged.progress != PS_STEP_NOT_STAGED) {
        return ps_server_step_launch(st, run);
    }
    if (open->kind->plan != NULL) {
        return launch_plan(st, run);
    }
    run->accumulates = accumulates_round(job, part, steps);
    steps = steps && !run->accumulates;
    if (steps && ps_server_step_is_staged(job, part)) {
        return ps_server_step_launch(st, run);
    }
    rc = prepare_result(run, steps);
    if (rc != 0) {
        return rc;
    }
    struct ps_compute *c = ps_server_merge_sum(run, steps);

    c->job.dst = ps_slice_data(&run->result);
    c->job.kept[PS_KEPT_RESULT] = run->result.buf;
    ps_compute_pin(c, run->result.buf);
    if (steps) {
        ps_server_optimizer_add_step(run, c);
    }
    if (run->encoded.buf != NULL) {
        add_encode(run, c);
    }
    ps_server_merge_submit(st, run, c);
    return 0;
}

/* A run without memory that has computed nothing holds no buffers for states: it
 * needs them no more when what held the states is gone, a copy for example. */
static int try_launch(struct ps_server_step *st, struct ps_server_merge *run)
{
    int rc = launch_merge(st, run);

    if (rc != 0 && run->staged.progress != PS_STEP_HAS_SUM) {
        ps_image_drop(run->next);
    }
    return rc;
}

/* Launches the next computation of the run; without memory it is starved. */
static void continue_merge(struct ps_server_step *st,
                           struct ps_server_merge *run)
{
    if (try_launch(st, run) != 0) {
        if (ps_list_empty(&st->s->merges.starved)) {
            st->s->merges.starved_retry_at = ps_time_add(st->now, STARVED_WAIT);
            ps_effects_log_for(st->fx, &run->job->account, PS_LOG_WARNING,
                               "job %s: no memory for the result of a round, "
                               "waiting",
                               run->job->name);
        }
        run->starved_since = st->now;
        ps_server_memory_note_shortage(st->s);
        ps_list_push_back(&st->s->merges.starved, &run->node);
    }
}

void ps_server_merge_start(struct ps_server_step *st, struct ps_server_job *job,
                           struct ps_part *part)
{
    struct ps_open_round *open = part->open_round;
    const struct ps_slice *first = ps_round_first_nonempty(&open->round);
    bool steps = job->has_optimizer && !open->assign;

    if (steps && job->moves.by_part != NULL &&
        ps_server_move_is_reported(job, part) &&
        ps_server_norm_is_needed(job, part)) {
        return; /* It is the new owner that reports to the scheduler. */
    }
    if (!open->has_request) {                /* All slots skip it. */
        publish_without_step(st, job, part); /* Rule R21. */
        return;
    }
    if (first == NULL && open->assign) {
        abort_without_root(st, job, part);
        return;
    }
    if (open->kind->is_noop != NULL ? open->kind->is_noop(job, part)
                                    : first == NULL) {
        publish_version(st, job, part, NULL, NULL);
        return;
    }
    const bool is_alone = open->kind->plan == NULL && !open->is_encoded &&
                          open->round.nonempty == 1;

    if (is_alone && !steps && open->rule != PS_RULE_ACCUMULATE &&
        (open->reduce != PS_REDUCE_MEAN || open->round.weight <= 1)) {
        struct ps_slice value = *first;

        ps_buf_ref(value.buf); /* The sum of one contribution is itself. */
        publish_version(st, job, part, &value, &(struct ps_slice){0});
        return;
    }
    if (is_alone && ps_part_accumulated(part)->buf == NULL &&
        accumulates_round(job, part, steps)) {
        ps_buf_ref(first->buf);
        publish_accumulated(st, job, part, first);
        return;
    }
    continue_merge(st, ps_server_merge_new(job, part));
}

/* ----------------------------------------------------- end of a computation */

/* Publishes the round without a step or a new value; frees the run. */
static void skip_step(struct ps_server_step *st, struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;

    ps_server_merge_free(st->s, run);
    ps_store_accumulate(&job->store, part, &(struct ps_slice){0}, 0, 0);
    publish_without_step(st, job, part);
}

/* Fails the round and refuses it to all slots. The cause is lack of memory,
 * described in `text`, or a kernel error, which no peer's message can
 * provoke. */
static void fail_round(struct ps_server_step *st, struct ps_server_job *job,
                       struct ps_part *part, int rc, const char *text)
{
    struct ps_server_refusal refusal;
    const struct ps_rec_part rec = ps_server_part_record(
        part, part->image.version + 1);

    ps_effects_log_for(st->fx, &job->account, PS_LOG_ERROR,
                       "job %s: round %llu of key %u failed: %s%s%s", job->name,
                       (unsigned long long)rec.round, part->key,
                       ps_strerror(rc), text[0] != '\0' ? ": " : "", text);
    ps_server_merge_discard(st->s, job, part);
    ps_server_refusal_init(&refusal);
    ps_server_refusal_add(&refusal, &rec, rc, 0);
    if (text[0] != '\0') {
        ps_server_refusal_set_text(&refusal, rc, text);
    }
    ps_server_refusal_send_to(st, job, NULL, &refusal);
}

/* True: the run no longer waits. */
static bool retry_starved(struct ps_server_step *st,
                          struct ps_server_merge *run)
{
    struct ps_server *s = st->s;
    struct ps_part *part = run->part;
    const uint64_t missing = ps_server_optimizer_missing(run->job, part);
    const uint64_t len = missing > 0
                             ? missing
                             : part->image.count *
                                   (uint64_t)ps_dtype_size(part->image.dtype);

    if (try_launch(st, run) == 0) {
        run->starved_since = 0;
        return true;
    }
    ps_server_memory_note_shortage(s);
    ps_list_push_back(&s->merges.starved, &run->node);
    if (st->now < ps_time_add(run->starved_since, OUT_OF_MEMORY_AFTER) ||
        !ps_server_memory_is_exhausted(s,
                                       part->open_round->round.bytes + len)) {
        return false;
    }
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX / 2);

    ps_server_memory_describe(s, run->job, len, &why);
    fail_round(st, run->job, part, PS_E_FULL, why.data);
    return true;
}

void ps_server_merge_tick(struct ps_server_step *st)
{
    struct ps_list *starved = &st->s->merges.starved;
    struct ps_list_node *last = ps_list_last(starved);
    uint32_t tries = STARVED_RETRIES_MAX;

    if (st->now < st->s->merges.starved_retry_at) {
        return;
    }
    /* A run that stays starved does not delay those of other jobs. */
    for (struct ps_list_node *n = NULL; n != last && tries > 0; tries--) {
        n = ps_list_pop(starved);
        if (n == NULL) {
            break;
        }
        (void)retry_starved(st, PS_CONTAINER(n, struct ps_server_merge, node));
    }
    st->s->merges.starved_retry_at = ps_list_empty(starved)
                                         ? PS_TIME_NEVER
                                         : ps_time_add(st->now, STARVED_WAIT);
}

static void record_computation(const struct ps_server_merge *run)
{
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;
    const bool steps = job->has_optimizer && !part->open_round->assign &&
                       ps_part_has_value(part) && !run->accumulates;

    ps_server_record(
        job, part,
        &(struct ps_server_profile_event){
            .kind = steps ? PS_TRACE_KIND_STEP : PS_TRACE_KIND_MERGE,
            .round = part->image.version + 1,
            .begun_at = run->computing_since,
            .bytes = part->image.count *
                     (uint64_t)ps_dtype_size(part->image.dtype)});
}

void ps_server_merge_on_computed(struct ps_server_step *st, uint64_t token,
                                 int rc)
{
    struct ps_server_merge *run = ps_server_merge_computed(st, token);

    if (run == NULL) {
        return; /* Its round was discarded. */
    }
    struct ps_server_job *job = run->job;
    struct ps_part *part = run->part;

    record_computation(run);
    if (rc != 0) {
        fail_round(st, job, part, rc,
                   rc == PS_E_IO ? "the optimizer's states were on a device "
                                   "that has failed"
                                 : "");
        return;
    }
    const enum ps_server_stage_end end =
        run->staged.progress != PS_STEP_NOT_STAGED
            ? ps_server_step_on_computed(st, run)
            : PS_STAGE_END_LAST;

    if (end == PS_STAGE_END_MORE) {
        continue_merge(st, run);
    }
    if (end != PS_STAGE_END_LAST) {
        return;
    }
    struct ps_slice value = run->result;
    struct ps_slice code = run->encoded;
    const bool waits = run->accumulates;

    ps_server_merge_install_next(run);

    run->result = (struct ps_slice){0};
    run->encoded = (struct ps_slice){0};
    ps_server_merge_free(st->s, run);
    if (waits) {
        publish_accumulated(st, job, part, &value);
        return;
    }
    if (job->has_optimizer && !part->open_round->assign) {
        ps_store_accumulate(&job->store, part, &(struct ps_slice){0}, 0, 0);
    }
    publish_version(st, job, part, &value, &code);
}

void ps_server_on_norm_result(struct ps_server_step *st,
                              const struct ps_msg_norm_result *m)
{
    struct ps_server_job *job = ps_map_get(st->s->jobs.by_gen, m->gen);
    struct ps_server_merge *run = job != NULL
                                      ? ps_map_get(job->norms.waits, m->key)
                                      : NULL;

    if (job != NULL) {
        (void)ps_server_norm_keep(job, m);
    }
    while (run != NULL) {
        struct ps_server_merge *next = run->staged.next_waiting;

        /* A result may arrive twice, after a reconnection. */
        if (run->staged.params.round == m->round &&
            run->staged.params.stage == m->stage) {
            ps_server_merge_stop_waiting(run);
            if (ps_server_norm_apply(run, m)) {
                continue_merge(st, run);
            } else {
                skip_step(st, run);
            }
        }
        run = next;
    }
}
