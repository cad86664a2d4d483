/* SPDX-License-Identifier: Apache-2.0 */
/* From a complete round to a version: one computation for each partition, off
 * the loop, then the new value to everybody who contributed and to those who
 * wait for it. A computation whose round was forgotten in the meantime (the
 * job ended, or a newer version came from elsewhere) is dropped when it
 * comes; until then it keeps alive by itself what it reads and writes. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"

#include <string.h>

static void run_free(struct ps_shard *s, struct ps_shard_run *run)
{
    struct ps_shard_job *job = run->job;

    if (run->token != 0) {
        ps_map_take(s->runs, run->token);
    } else if (run->asks) {
        ps_shard_norm_forget(run);
    } else if (ps_list_linked(&run->node)) {
        ps_list_remove(&run->node);
    }
    ps_buf_unref(run->dst.buf);
    ps_buf_unref(run->code.buf);
    ps_buf_unref(run->work.buf);
    ps_buf_unref(run->squares);
    run->part->run = NULL;
    ps_free(run);
    job->running--;
    ps_shard_credit_dirty(job);
}

void ps_shard_merge_drop(struct ps_shard *s, struct ps_shard_job *job,
                         struct ps_part *part)
{
    struct ps_open *open = part->open;

    if (open == NULL) {
        return;
    }
    /* What has no round is not waited for by anybody. */
    bool complete = open->rule != PS_RULE_NONE ||
                    ps_round_complete(&open->round);

    if (part->run != NULL) {
        const struct ps_shard_run *run = part->run;

        if (run->code.buf != NULL) {
            /* What it still computes must not meet the next one's. */
            ps_store_set_state(&job->store, part, 0, NULL);
        }
        run_free(s, part->run);
    }
    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].held -= open->round.part[i].len;
        if (!complete && ps_round_has(&open->round, i)) {
            job->slots[i].present--;
        }
    }
    if (!complete) {
        job->lacking--;
    }
    ps_store_close(&job->store, part);
    ps_shard_apply_drop(job, part);
    ps_shard_credit_dirty(job);
}

/* The round is merged. `value` NULL: nobody gave anything, and what was there
 * stays; else the value takes over one reference. */
static void made(struct ps_shard_step *st, struct ps_shard_job *job,
                 struct ps_part *part, const struct ps_slice *value,
                 const struct ps_slice *code)
{
    struct ps_open *open = part->open;
    struct ps_bits told;

    if (value != NULL) {
        if (open->assign) {
            /* Of the value that was. */
            ps_store_set_state(&job->store, part, PS_PART_MASTER, NULL);
        }
        ps_store_set(&job->store, part, part->version + 1, value);
        ps_store_set_code(&job->store, part, (uint8_t)job->compress.press.kind,
                          code);
    } else {
        part->version++;
        part->attempt = 0;
        part->passed = ps_open_passes(open);
        /* That was made for the version before. */
        ps_store_set_code(&job->store, part, 0, &(struct ps_slice){0});
    }
    st->s->rounds++;
    if (open->rule != PS_RULE_NONE) {
        ps_shard_apply_made(st, job, part);
        return;
    }
    for (uint32_t i = 0; i < job->slot_count; i++) {
        job->slots[i].held -= open->round.part[i].len;
        ps_shard_answer(st, &job->slots[i], part, ps_bits_get(&open->want, i),
                        part->version);
    }
    told = open->want;
    open->want = (struct ps_bits){0};
    ps_store_close(&job->store, part);
    ps_shard_pull_answer(st, job, part, &told);
    ps_bits_fini(&told);
    ps_shard_credit_dirty(job);
}

/* Nobody gave anything to the round, because all have passed. */
static void passed(struct ps_shard_step *st, struct ps_shard_job *job,
                   struct ps_part *part)
{
    part->shift--; /* It was no step. */
    job->newest = ps_max_u64(job->newest, part->version + 1);
    made(st, job, part, NULL, NULL);
}

/* The sum of the round waits for others, and the value stays; takes over one
 * reference. */
static void gathered(struct ps_shard_step *st, struct ps_shard_job *job,
                     struct ps_part *part, const struct ps_slice *sum)
{
    ps_store_gather(&job->store, part, sum, part->open->round.weight,
                    part->open->reduce);
    part->shift--; /* It was no step. */
    job->newest = ps_max_u64(job->newest, part->version + 1);
    made(st, job, part, NULL, NULL);
}

/* A buffer that holds this contribution and no other: the result may be
 * written over it. */
static bool is_alone(const struct ps_slice *s)
{
    return s->offset == 0 && s->len == s->buf->size;
}

/* Does the result travel as a code? Its residual is state 0 then: there is no
 * optimizer. */
static bool encodes(const struct ps_shard_run *run)
{
    return run->job->compress.both && !run->job->optimizes &&
           run->part->open->coded;
}

/* Memory for the code of the result and for what that leaves over. */
static int prepare_code(struct ps_shard_run *run)
{
    struct ps_part *part = run->part;
    const uint64_t len = ps_press_bytes(&run->job->compress.press, part->count);
    const size_t size = part->count * sizeof(float);
    struct ps_buf *buf;
    int rc;

    if (part->state[0] == NULL) {
        rc = ps_shard_room_take(run->job, size, &buf);
        if (rc != 0) {
            return rc;
        }
        memset(buf->data, 0, size);
        ps_store_set_state(&run->job->store, part, 0, buf);
    }
    rc = ps_shard_room_take(run->job, len, &buf);
    if (rc == 0) {
        run->code = (struct ps_slice){.buf = buf, .len = len};
    }
    return rc;
}

/* The job that sums becomes one that encodes the sum; its result is what the
 * code stands for, so that all see one value. */
static void add_code(struct ps_shard_run *run, struct ps_compute *c)
{
    struct ps_part *part = run->part;

    c->job.op = PS_JOB_ENCODE;
    c->job.press = run->job->compress.press;
    c->job.press.momentum = 0; /* That is of gradients. */
    c->job.stream = ps_press_stream(
        &c->job.press, &(struct ps_press_at){.key = part->open->salt,
                                             .index = part->index,
                                             .round = part->version + 1,
                                             .slot = UINT32_MAX});
    c->job.value = c->job.dst;
    c->job.dst = ps_slice_data(&run->code);
    c->job.residual = (float *)(void *)part->state[0]->data;
    ps_compute_hold(c, run->code.buf);
    ps_compute_hold(c, part->state[0]);
}

static int prepare(struct ps_shard_run *run, bool steps)
{
    struct ps_part *part = run->part;
    const struct ps_slice *first = ps_round_first(&part->open->round);
    struct ps_buf *buf;
    const size_t len = part->count * ps_dtype_size(part->dtype);
    int rc = steps ? ps_shard_step_states(run->job, part) : 0;

    if (rc != 0) {
        return rc;
    }
    if (!part->open->coded && is_alone(first)) {
        run->dst = *first;
        ps_buf_ref(first->buf);
        return 0;
    }
    rc = ps_shard_room_take(run->job, len, &buf);
    if (rc != 0 && run->short_since != 0 && !part->open->coded) {
        /* It has waited. The result keeps alive what came with the first
         * contribution, but those of the others go. */
        run->dst = *first;
        ps_buf_ref(first->buf);
        return 0;
    }
    if (rc != 0) {
        return rc;
    }
    run->dst = (struct ps_slice){.buf = buf, .len = len};
    if (encodes(run)) {
        rc = prepare_code(run);
        if (rc != 0) {
            ps_buf_unref(run->dst.buf);
            run->dst = (struct ps_slice){0};
            return rc;
        }
    }
    return 0;
}

void ps_shard_merge_submit(struct ps_shard_step *st, struct ps_shard_run *run,
                           struct ps_compute *c)
{
    run->token = ++st->s->next_token;
    c->token = run->token;
    ps_map_put(st->s->runs, run->token, run);
    ps_effects_compute(st->fx, c);
}

/* PS_E_NOMEM: nothing has happened. */
static int launch_rows(struct ps_shard_step *st, struct ps_shard_run *run)
{
    struct ps_shard_job *job = run->job;
    struct ps_part *part = run->part;
    struct ps_compute *c;
    int rc = 0;

    if (job->optimizes) {
        rc = ps_shard_step_states(job, part);
    }
    if (rc == 0) {
        rc = ps_shard_rows_plan(run, &c);
    }
    if (rc != 0) {
        return rc;
    }
    if (job->optimizes) {
        const struct ps_optim_at at = ps_shard_step_at(job, part);

        ps_shard_step_add(run, &at, c);
        /* Rows are changed where the new value lies. */
        c->job.weight = c->job.dst;
    }
    ps_shard_merge_submit(st, run, c);
    return 0;
}

/* Is this a round that the optimizer's step waits for more after? */
static bool gathers(const struct ps_shard_job *job, const struct ps_part *part,
                    bool steps)
{
    return steps &&
           part->gathered_rounds + 1 < ps_optim_accumulates(&job->optim);
}

struct ps_compute *ps_shard_merge_sum(struct ps_shard_run *run, bool steps)
{
    struct ps_shard_job *job = run->job;
    struct ps_part *part = run->part;
    struct ps_open *open = part->open;
    const bool adds = open->rule == PS_RULE_ACCUMULATE;
    const bool takes = (steps || run->gathers) && part->gathered.buf != NULL;
    struct ps_compute *c = ps_compute_new(
        0, open->round.given + (adds || takes ? 1 : 0), 5 + PS_PART_STATES);

    c->job.op = PS_JOB_SUM;
    c->job.dtype = (enum ps_dtype)part->dtype;
    c->job.fold = ps_round_fold(open->reduce);
    c->job.count = part->count;
    c->job.divide_by = open->reduce != PS_REDUCE_MEAN || run->gathers
                           ? 1
                           : open->round.weight +
                                 (takes ? part->gathered_weight : 0);
    ps_round_sources(&open->round, c);
    if (open->coded) {
        c->job.src_press = job->compress.press;
        c->job.src_stream = ps_press_stream(
            &c->job.src_press,
            &(struct ps_press_at){.key = open->salt,
                                  .index = part->index,
                                  .round = part->version + 1});
    }
    if (adds) {
        ps_compute_add_src(c, &part->value, 0);
    } else if (takes) {
        ps_compute_add_src(c, &part->gathered, 0);
    }
    return c;
}

static int launch(struct ps_shard_step *st, struct ps_shard_run *run)
{
    struct ps_shard_job *job = run->job;
    struct ps_part *part = run->part;
    struct ps_open *open = part->open;
    bool steps = job->optimizes && !open->assign && ps_part_has_value(part);
    int rc;

    if (run->staged) {
        return ps_shard_norm_launch(st, run);
    }
    if (open->rows) {
        return launch_rows(st, run);
    }
    run->gathers = gathers(job, part, steps);
    steps = steps && !run->gathers;
    if (steps && ps_shard_norm_needed(job, part)) {
        return ps_shard_norm_launch(st, run);
    }
    rc = prepare(run, steps);
    if (rc != 0) {
        return rc;
    }
    struct ps_compute *c = ps_shard_merge_sum(run, steps);

    c->job.dst = ps_slice_data(&run->dst);
    ps_compute_hold(c, run->dst.buf);
    if (steps) {
        const struct ps_optim_at at = ps_shard_step_at(job, part);

        ps_shard_step_add(run, &at, c);
    }
    if (run->code.buf != NULL) {
        add_code(run, c);
    }
    ps_shard_merge_submit(st, run, c);
    return 0;
}

void ps_shard_merge_go_on(struct ps_shard_step *st, struct ps_shard_run *run)
{
    if (launch(st, run) != 0) {
        if (ps_list_empty(&st->s->starved)) {
            st->s->starved_at = ps_time_add(st->now, STARVED_WAIT);
            ps_effects_note(st->fx, PS_LOG_WARNING,
                            "job %s: no memory for the result of a round, "
                            "waiting",
                            run->job->name);
        }
        run->short_since = st->now;
        ps_shard_room_starved(st->s);
        ps_list_push_back(&st->s->starved, &run->node);
    }
}

void ps_shard_merge_start(struct ps_shard_step *st, struct ps_shard_job *job,
                          struct ps_part *part)
{
    struct ps_open *open = part->open;
    const struct ps_slice *first = ps_round_first(&open->round);
    bool steps = job->optimizes && !open->assign;

    if (ps_shard_move_freezes(job, part)) {
        return; /* Here, when the move is given up, or at the new owner. */
    }
    if (ps_open_passes(open)) {
        passed(st, job, part);
        return;
    }
    if (first == NULL && open->assign) {
        ps_shard_attempt_rootless(st, job, part);
        return;
    }
    if (open->rows ? ps_shard_rows_idle(job, part) : first == NULL) {
        made(st, job, part, NULL, NULL);
        return;
    }
    if (!open->rows && !open->coded && open->round.given == 1 && !steps &&
        open->rule != PS_RULE_ACCUMULATE &&
        (open->reduce != PS_REDUCE_MEAN || open->round.weight <= 1)) {
        struct ps_slice value = *first;

        ps_buf_ref(value.buf); /* The sum of one is that one. */
        made(st, job, part, &value, &(struct ps_slice){0});
        return;
    }
    if (!open->rows && !open->coded && open->round.given == 1 &&
        part->gathered.buf == NULL && gathers(job, part, steps)) {
        ps_buf_ref(first->buf);
        gathered(st, job, part, first);
        return;
    }
    struct ps_shard_run *run = ps_calloc(1, sizeof(*run));

    run->job = job;
    run->part = part;
    part->run = run;
    job->running++;
    ps_shard_merge_go_on(st, run);
}

void ps_shard_merge_skip(struct ps_shard_step *st, struct ps_shard_run *run)
{
    struct ps_shard_job *job = run->job;
    struct ps_part *part = run->part;

    run_free(st->s, run);
    ps_store_gather(&job->store, part, &(struct ps_slice){0}, 0, 0);
    part->shift--; /* It was no step. */
    job->newest = ps_max_u64(job->newest, part->version + 1);
    made(st, job, part, NULL, NULL);
    ps_shard_move_merged(st, job, part);
}

/* The round cannot be made: for want of memory, said in `text`, or because the
 * kernel found the job senseless, which nothing that a peer sent leads to. All
 * that is left is to say so to everybody who waits for it. */
static void failed(struct ps_shard_step *st, struct ps_shard_job *job,
                   struct ps_part *part, int rc, const char *text)
{
    struct ps_shard_refusal refusal;
    struct ps_rec_part rec = {
        .key = part->key,
        .index = part->index,
        .round = part->version + 1,
        .dtype = part->dtype,
        .count = part->count,
    };

    ps_effects_note(st->fx, PS_LOG_ERROR,
                    "job %s: round %llu of key %u failed: %s%s%s", job->name,
                    (unsigned long long)rec.round, part->key, ps_strerror(rc),
                    text[0] != '\0' ? ": " : "", text);
    ps_shard_merge_drop(st->s, job, part);
    ps_shard_refusal_init(&refusal);
    ps_shard_refusal_add(&refusal, &rec, rc, 0);
    if (text[0] != '\0') {
        refusal.short_rc = rc;
        ps_str_copy(refusal.text, sizeof(refusal.text), text);
    }
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_shard_peer *p = ps_shard_job_peer(&job->slots[i]);

        if (p != NULL) {
            ps_shard_refusal_send(st, p, job->gen, &job->slots[i], &refusal);
        }
    }
}

/* Bytes of the contributions. */
static uint64_t given(const struct ps_round *round)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < round->size; i++) {
        bytes += round->part[i].len;
    }
    return bytes;
}

/* True: the run is over. */
static bool retry(struct ps_shard_step *st, struct ps_shard_run *run)
{
    struct ps_shard *s = st->s;
    struct ps_part *part = run->part;
    const uint64_t missing = ps_shard_step_missing(run->job, part);
    const uint64_t len = missing > 0 ? missing
                                     : part->count *
                                           (uint64_t)ps_dtype_size(part->dtype);
    char text[PS_TEXT_MAX / 2];
    struct ps_str why;

    if (launch(st, run) == 0) {
        run->short_since = 0;
        return true;
    }
    ps_shard_room_starved(s);
    ps_list_push_back(&s->starved, &run->node);
    if (st->now < ps_time_add(run->short_since, HOPELESS_WAIT) ||
        !ps_shard_room_is_hopeless(s, given(&part->open->round) + len)) {
        return false;
    }
    ps_str_init(&why, text, sizeof(text));
    ps_shard_room_text(s, run->job, len, &why);
    failed(st, run->job, part, PS_E_FULL, text);
    return true;
}

void ps_shard_merge_retry(struct ps_shard_step *st)
{
    struct ps_list *starved = &st->s->starved;
    struct ps_list_node *last = ps_list_last(starved);
    uint32_t tries = STARVED_TRIES;

    /* One that goes on waiting holds up no other job's. */
    for (struct ps_list_node *n = NULL; n != last && tries > 0; tries--) {
        n = ps_list_pop(starved);
        if (n == NULL) {
            break;
        }
        (void)retry(st, PS_CONTAINER(n, struct ps_shard_run, node));
    }
    st->s->starved_at = ps_time_add(st->now, STARVED_WAIT);
}

void ps_shard_merge_computed(struct ps_shard_step *st, uint64_t token, int rc)
{
    struct ps_shard_run *run = ps_map_get(st->s->runs, token);

    if (run == NULL) {
        return; /* Its round was forgotten. */
    }
    struct ps_shard_job *job = run->job;
    struct ps_part *part = run->part;

    if (rc != 0) {
        failed(st, job, part, rc, "");
        ps_shard_move_merged(st, job, part);
        return;
    }
    if (run->staged && !ps_shard_norm_computed(st, run)) {
        return;
    }
    struct ps_slice value = run->dst;
    struct ps_slice code = run->code;
    const bool waits = run->gathers;

    run->dst = (struct ps_slice){0};
    run->code = (struct ps_slice){0};
    run_free(st->s, run);
    if (waits) {
        gathered(st, job, part, &value);
        ps_shard_move_merged(st, job, part);
        return;
    }
    if (job->optimizes && !part->open->assign) {
        ps_store_gather(&job->store, part, &(struct ps_slice){0}, 0, 0);
    }
    made(st, job, part, &value, &code);
    ps_shard_move_merged(st, job, part);
}
