/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that wait for each other. A job that stands still is watched: its agents
 * are asked twice, one after the other, and the second time also which ranks
 * have not reached the rounds that others wait for. The job is DIVERGED if both
 * times no process could go on by itself, all operations were the same, and
 * each operation waits for a live rank: then each waits for one that waits. Jobs
 * that share processes, of groups, are watched together.
 *
 * A process that is only `quiet`, not `still`, must have been so without a move
 * for diverged_after. After that time since its first sight a ring fails its
 * jobs, when both questions have confirmed it once more. */
#include "core/sched/query/query.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"

#include <inttypes.h>
#include <string.h>

#define REPORT_TIMEOUT PS_SECONDS(1)
/* Between two looks: the shortest, which doubles while there is no ring, up to
 * the longest. */
#define LOOK_MIN       PS_SECONDS(1)
#define LOOK_MAX       PS_SECONDS(8)
/* For quiet processes where diverged_after is never. */
#define QUIET_TIME     PS_SECONDS(30)
#define JOBS_MAX       16u
#define QUESTIONS_MAX  4096u
#define RING_SHOWN_MAX 256u
/* Looks without an answer after which a ring is no longer one. */
#define MISSES_MAX     3u
#define DIVERGED       "DIVERGED: "

enum watch_step {
    WATCH_PAUSED,
    WATCH_ASKS,     /* Collects the operations of the ranks. */
    WATCH_CONFIRMS, /* The same again, and ranks that are behind. */
};

struct watch_rank {
    bool is_reported;
    struct ps_rec_rank_wait at; /* `at.does` is `does`. */
    char does[PS_SCHED_DOES_MAX + 1];
};

/* Rounds that operations wait for, and whether one waits for a live rank. */
struct questions {
    uint32_t count;
    uint32_t keys[QUESTIONS_MAX];
    uint64_t rounds[QUESTIONS_MAX];
    bool is_blocked[QUESTIONS_MAX];
};

struct watch_job {
    struct ps_sched_job *job; /* Not watched any more when it ends. */
    struct watch_rank *ranks; /* num_workers of them, of the last question. */
    struct watch_rank *ring;  /* The same when a ring was last confirmed. */
    struct ps_bits pending;   /* Slots that have not reported. */
    struct ps_rec_open_wait *waits;
    uint32_t wait_count;
    struct questions *questions;
};

/* Sums over reports, which come in any order. */
struct mark {
    uint64_t waits; /* Of the operations. */
    uint64_t moves; /* Of all. */
};

struct watch {
    struct ps_sched_timer timer;
    struct watch_job jobs[JOBS_MAX];
    uint32_t job_count;
    enum watch_step step;
    uint64_t request;
    ps_time pause;
    bool has_more_jobs; /* The reports named jobs that are not watched yet. */
    struct mark first;  /* Of the first question of this look. */
    struct mark ring;   /* Of the ring that was seen. */
    ps_time ring_since; /* PS_TIME_NEVER: none. */
    uint32_t misses;
    bool must_fail;             /* Its jobs fail, one after the other. */
    char text[PS_TEXT_MAX + 1]; /* "": not DIVERGED. */
    size_t causes_at;           /* Where "; causes" begins in it, or its end. */
};

/* ---------------------------------------------------------------- memory */

static void job_fini(struct watch_job *w)
{
    ps_free(w->waits);
    ps_free(w->questions);
    ps_free(w->ranks);
    ps_free(w->ring);
    ps_bits_fini(&w->pending);
}

static void watch_free(struct watch *w)
{
    for (uint32_t i = 0; i < w->job_count; i++) {
        job_fini(&w->jobs[i]);
    }
    ps_list_remove(&w->timer.node);
    ps_free(w);
}

static void add_job(struct watch *w, struct ps_sched_job *j)
{
    struct watch_job *one = &w->jobs[w->job_count++];

    *one = (struct watch_job){.job = j};
    one->ranks = ps_calloc(j->opt.num_workers, sizeof(*one->ranks));
    one->ring = ps_calloc(j->opt.num_workers, sizeof(*one->ring));
    one->questions = ps_calloc(1, sizeof(*one->questions));
    ps_bits_init(&one->pending, j->slot_count);
}

static struct watch_job *job_of_watch(struct watch *w,
                                      const struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < w->job_count; i++) {
        if (w->jobs[i].job == j) {
            return &w->jobs[i];
        }
    }
    return NULL;
}

static struct watch *find_watch(const struct ps_sched *s,
                                const struct ps_sched_job *j)
{
    PS_LIST_EACH_OF(struct watch, w, timer.node, &s->watches)
    {
        if (job_of_watch(w, j) != NULL) {
            return w;
        }
    }
    return NULL;
}

/* --------------------------------------------------------------- question */

static void ask_job(struct ps_sched_step *st, const struct watch *w,
                    struct watch_job *of)
{
    const struct ps_sched_job *j = of->job;

    memset(of->ranks, 0, j->opt.num_workers * sizeof(*of->ranks));
    ps_free(of->waits);
    of->waits = NULL;
    of->wait_count = 0;
    ps_bits_zero(&of->pending);
    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (j->workers.list[i].state == PS_RANK_STATE_LIVE) {
            (void)ps_bits_set(&of->pending, j->workers.list[i].slot);
        }
    }
    for (uint32_t i = 0; i < j->slot_count; i++) {
        if (!ps_bits_get(&of->pending, i)) {
            continue;
        }
        ps_sched_send_msg(
            st, ps_members_get(&st->s->members, j->slots[i].agent_node),
            &(struct ps_msg){
                .code = PS_MSG_WAIT_COLLECT,
                .wait_collect = {.gen = j->gen,
                                 .request = w->request,
                                 .keys = of->questions->keys,
                                 .keys_count = of->questions->count,
                                 .rounds = of->questions->rounds,
                                 .rounds_count = of->questions->count}});
    }
}

static void ask_agents(struct ps_sched_step *st, struct watch *w,
                       enum watch_step step)
{
    w->step = step;
    w->request = ++st->s->last_collect_id;
    w->timer.due_at = ps_time_add(st->now, REPORT_TIMEOUT);
    w->has_more_jobs = false;
    for (uint32_t i = 0; i < w->job_count; i++) {
        if (step == WATCH_ASKS) {
            w->jobs[i].questions->count = 0;
        }
        ask_job(st, w, &w->jobs[i]);
    }
}

void ps_sched_on_job_still(struct ps_sched_step *st, struct ps_member *agent,
                           const struct ps_msg *msg)
{
    struct ps_sched_job *j = ps_sched_find_job(st->s, msg->job_still.gen);
    struct watch *w;

    if (j == NULL || j->phase != PS_JOB_PHASE_RUNNING ||
        ps_sched_job_slot_of(j, agent->node) == j->slot_count) {
        return;
    }
    w = find_watch(st->s, j);
    if (w == NULL) {
        w = ps_calloc(1, sizeof(*w));
        w->ring_since = PS_TIME_NEVER;
        add_job(w, j);
        ps_list_push_back(&st->s->watches, &w->timer.node);
        w->pause = LOOK_MIN;
        ask_agents(st, w, WATCH_ASKS);
    } else if (w->step == WATCH_PAUSED && w->text[0] == '\0') {
        w->pause = LOOK_MIN;
        ask_agents(st, w, WATCH_ASKS);
    }
}

/* ---------------------------------------------------------------- reports */

static uint64_t hash_wait(uint64_t gen, const struct ps_rec_open_wait *o)
{
    uint64_t h = ps_fnv1a_64(PS_FNV1A_64, &gen, sizeof(gen));

    h = ps_fnv1a_64(h, &o->rank, sizeof(o->rank));
    h = ps_fnv1a_64(h, &o->key, sizeof(o->key));
    return ps_fnv1a_64(h, &o->round, sizeof(o->round));
}

static struct mark mark_of(const struct watch *w)
{
    struct mark m = {0};

    for (uint32_t i = 0; i < w->job_count; i++) {
        const struct watch_job *of = &w->jobs[i];

        for (uint32_t n = 0; n < of->wait_count; n++) {
            m.waits += hash_wait(of->job->gen, &of->waits[n]);
        }
        for (uint32_t r = 0; r < of->job->opt.num_workers; r++) {
            const struct ps_rec_rank_wait *at = &of->ranks[r].at;
            uint64_t h = ps_fnv1a_64(PS_FNV1A_64, &r, sizeof(r));

            h = ps_fnv1a_64(h, &at->process, sizeof(at->process));
            h = ps_fnv1a_64(h, &at->ops, sizeof(at->ops));
            m.moves += ps_fnv1a_64(h, &at->moves, sizeof(at->moves));
        }
    }
    m.moves += m.waits;
    return m;
}

static void note_ranks(struct watch_job *of, const struct ps_member *agent,
                       const struct ps_msg_wait_report *m)
{
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        const struct ps_rec_rank_wait *r = &m->ranks[i];
        struct watch_rank *to;

        if (!ps_sched_job_is_rank_at(of->job, r->rank, agent->node)) {
            continue;
        }
        to = &of->ranks[r->rank];
        to->is_reported = true;
        to->at = *r;
        to->at.does = to->does;
        (void)ps_str_copy(to->does, sizeof(to->does), ps_str_or_empty(r->does));
    }
}

static void note_waits(struct watch_job *of, const struct ps_member *agent,
                       const struct ps_msg_wait_report *m)
{
    if (m->waits_count == 0) {
        return;
    }
    of->waits = ps_realloc(of->waits, (of->wait_count + m->waits_count) *
                                          sizeof(*of->waits));
    for (uint32_t i = 0; i < m->waits_count; i++) {
        if (ps_sched_job_is_rank_at(of->job, m->waits[i].rank, agent->node)) {
            of->waits[of->wait_count++] = m->waits[i];
        }
    }
}

static void note_behind(struct watch_job *of, const struct ps_member *agent,
                        const struct ps_msg_wait_report *m)
{
    struct questions *q = of->questions;

    for (uint32_t i = 0; i < m->behind_count && i < q->count; i++) {
        const uint32_t rank = m->behind[i];

        if (q->rounds[i] == PS_WAITS_FOR_INIT) {
            /* Any rank could have made it, so each agent must deny it. */
            q->is_blocked[i] = q->is_blocked[i] && rank != UINT32_MAX;
        } else if (ps_sched_job_is_rank_at(of->job, rank, agent->node) &&
                   of->job->workers.list[rank].state == PS_RANK_STATE_LIVE) {
            q->is_blocked[i] = true;
        }
    }
}

static void note_jobs(const struct ps_sched *s, struct watch *w,
                      const struct ps_msg_wait_report *m)
{
    for (uint32_t i = 0; i < m->jobs_count; i++) {
        struct ps_sched_job *j = ps_sched_find_job(s, m->jobs[i]);

        if (j == NULL || job_of_watch(w, j) != NULL) {
            continue;
        }
        w->has_more_jobs = true;
        if (w->job_count < JOBS_MAX && j->phase == PS_JOB_PHASE_RUNNING) {
            struct watch *other = find_watch(s, j);

            if (other != NULL) {
                watch_free(other);
            }
            add_job(w, j);
        }
    }
}

/* ----------------------------------------------------------------- verdict */

/* True: each live rank has reported and cannot go on by itself. *ret_quiet: one
 * of them is only quiet. */
static bool is_standing(const struct watch *w, bool *ret_quiet)
{
    *ret_quiet = false;
    for (uint32_t i = 0; i < w->job_count; i++) {
        const struct watch_job *of = &w->jobs[i];
        const struct ps_sched_job *j = of->job;

        if (j->phase != PS_JOB_PHASE_RUNNING || of->pending.count > 0) {
            return false;
        }
        for (uint32_t r = 0; r < j->workers.count; r++) {
            const struct ps_rec_rank_wait *at = &of->ranks[r].at;

            if (j->workers.list[r].state != PS_RANK_STATE_LIVE) {
                continue;
            }
            if (!of->ranks[r].is_reported || at->still == PS_STILLNESS_MOVING ||
                at->ops == 0) {
                return false;
            }
            *ret_quiet = *ret_quiet || at->still == PS_STILLNESS_QUIET;
        }
    }
    return true;
}

/* True: a live rank is missing at the barrier in which `rank` is; the
 * barrier_enter of the rank has arrived. */
static bool is_blocked_at_barrier(const struct ps_sched_job *j, uint32_t rank,
                                  uint64_t number)
{
    if (ps_barrier_is_missing(&j->barrier, rank, number)) {
        return false;
    }
    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (j->workers.list[i].state == PS_RANK_STATE_LIVE &&
            ps_barrier_is_missing(&j->barrier, i, number)) {
            return true;
        }
    }
    return false;
}

static bool has_question(const struct questions *q, uint32_t key,
                         uint64_t round)
{
    for (uint32_t i = 0; i < q->count; i++) {
        if (q->keys[i] == key && q->rounds[i] == round) {
            return true;
        }
    }
    return false;
}

/* Collects the rounds to ask about. False: an operation waits for no rank that
 * is live. */
static bool make_questions(const struct watch_job *of)
{
    const struct ps_sched_job *j = of->job;
    struct questions *q = of->questions;

    for (uint32_t i = 0; i < of->wait_count; i++) {
        const struct ps_rec_open_wait *o = &of->waits[i];

        /* The next process of a lost rank may make an init. */
        if (o->round == 0 ||
            (o->round == PS_WAITS_FOR_INIT && ps_sched_job_has_lost_rank(j)) ||
            (o->key == UINT32_MAX &&
             !is_blocked_at_barrier(j, o->rank, o->round))) {
            return false;
        }
        if (o->key == UINT32_MAX || has_question(q, o->key, o->round)) {
            continue;
        }
        if (q->count == QUESTIONS_MAX) {
            return false;
        }
        q->keys[q->count] = o->key;
        q->is_blocked[q->count] = o->round == PS_WAITS_FOR_INIT;
        q->rounds[q->count++] = o->round;
    }
    return true;
}

/* True: each operation waits for a live rank. */
static bool is_each_blocked(const struct watch *w)
{
    for (uint32_t i = 0; i < w->job_count; i++) {
        const struct watch_job *of = &w->jobs[i];
        const struct questions *q = of->questions;

        for (uint32_t n = 0; n < q->count; n++) {
            if (!q->is_blocked[n]) {
                return false;
            }
        }
        for (uint32_t n = 0; n < of->wait_count; n++) {
            const struct ps_rec_open_wait *o = &of->waits[n];

            if (o->key == UINT32_MAX &&
                !is_blocked_at_barrier(of->job, o->rank, o->round)) {
                return false;
            }
        }
    }
    return true;
}

/* ------------------------------------------------------------------- texts */

/* The job that names the ranks: the largest one. */
static const struct watch_job *naming_job(const struct watch *w)
{
    const struct watch_job *best = &w->jobs[0];

    for (uint32_t i = 1; i < w->job_count; i++) {
        if (w->jobs[i].job->opt.num_workers > best->job->opt.num_workers) {
            best = &w->jobs[i];
        }
    }
    return best;
}

/* Appends "ranks 0-2 are in barrier 1" for those that do the same as rank
 * `first`, and marks them; without the verb unless that is rank 0. */
static void describe_same(const struct watch_job *of, uint32_t first,
                          bool *is_named, struct ps_str *out)
{
    const uint32_t worker_count = of->job->workers.count;
    const char *does = of->ring[first].does;
    unsigned *ranks = ps_alloc(worker_count * sizeof(*ranks));
    uint32_t count = 0;

    for (uint32_t r = first; r < worker_count; r++) {
        if (of->ring[r].is_reported && strcmp(of->ring[r].does, does) == 0) {
            is_named[r] = true;
            ranks[count++] = r;
        }
    }
    ps_str_add(out, count == 1 ? "rank " : "ranks ");
    ps_str_add_ranges(out, ranks, count);
    ps_free(ranks);
    ps_str_add(out, first > 0 ? " " : count == 1 ? " is " : " are ");
    ps_str_add_escaped(out, does, strlen(does), PS_SCHED_DOES_MAX);
}

/* Appends ranks whose process is not the first one: it may have begun before the
 * round in which the one before ended. */
static void describe_successors(const struct watch *w, struct ps_str *out)
{
    const struct watch_job *of = naming_job(w);
    const struct ps_sched_job *j = of->job;
    unsigned *ranks = ps_alloc(j->workers.count * sizeof(*ranks));
    uint32_t count = 0;

    for (uint32_t r = 0; r < j->workers.count; r++) {
        if (of->ring[r].is_reported && j->workers.list[r].incarnation > 1) {
            ranks[count++] = r;
        }
    }
    if (count > 0) {
        ps_str_add(out, count == 1 ? "; rank " : "; ranks ");
        ps_str_add_ranges(out, ranks, count);
        ps_str_addf(out,
                    " %s lost and taken again: a process that takes a rank "
                    "must begin with the round in which its predecessor ended, "
                    "or all ranks start again, from a checkpoint",
                    count == 1 ? "was" : "were");
    }
    ps_free(ranks);
}

static void describe_ring(const struct watch *w, struct ps_str *out)
{
    enum { SHOWN = 4 };
    const struct watch_job *of = naming_job(w);
    const struct ps_sched_job *j = of->job;
    bool *is_named = ps_calloc(j->workers.count, sizeof(*is_named));
    uint32_t shown = 0;

    ps_str_add(out, DIVERGED);
    for (uint32_t r = 0; r < j->workers.count; r++) {
        if (!of->ring[r].is_reported || is_named[r]) {
            continue;
        }
        if (shown++ == SHOWN) {
            ps_str_add(out, ", and others in other calls");
            break;
        }
        ps_str_add(out, shown == 1 ? "" : ", ");
        describe_same(of, r, is_named, out);
    }
    ps_free(is_named);
}

const char *ps_sched_diverged_text(const struct ps_sched *s,
                                   const struct ps_sched_job *j)
{
    const struct watch *w = find_watch(s, j);

    return w != NULL ? w->text : "";
}

void ps_sched_diverged_send_row(struct ps_sched_step *st,
                                const struct ps_sched_job *j, ps_conn_id ctl)
{
    struct watch *w = find_watch(st->s, j);
    const struct watch_job *of = w == NULL ? NULL : job_of_watch(w, j);
    struct ps_rec_missing_rank list[RING_SHOWN_MAX];
    struct ps_str text = PS_STR_ROOM(320);
    bool has_causes;
    uint32_t count = 0;
    uint32_t ops = 0;

    if (w == NULL || w->text[0] == '\0') {
        return;
    }
    has_causes = w->text[w->causes_at] != '\0';
    for (uint32_t r = 0; r < j->workers.count; r++) {
        const struct ps_sched_worker *at = &j->workers.list[r];

        if (!of->ring[r].is_reported || count == RING_SHOWN_MAX) {
            continue;
        }
        ops += of->ring[r].at.ops;
        list[count++] = (struct ps_rec_missing_rank){.rank = r,
                                                     .state = at->state,
                                                     .host = at->host,
                                                     .node = at->agent_name,
                                                     .pid = of->ring[r].at.pid,
                                                     .does = of->ring[r].does};
    }
    ps_str_addf(&text, "%.*s", (int)w->causes_at, w->text);
    ps_effects_send_msg(
        st->fx, ctl,
        &(struct ps_msg){
            .code = PS_MSG_STALL_ROW,
            .stall_row = {
                .job = j->name,
                .uid = j->uid,
                .what = text.data,
                .waited_ns = st->now - w->ring_since,
                .waiting_ops = ops,
                .other_causes = has_causes ? w->text + w->causes_at + 2 : "",
                .ring = list,
                .ring_count = count}});
}

/* -------------------------------------------------------------------- ring */

static void each_job_event(struct ps_sched_step *st, const struct watch *w,
                           const char *what, bool is_bad, const char *text)
{
    for (uint32_t i = 0; i < w->job_count; i++) {
        struct ps_sched_job *j = w->jobs[i].job;

        ps_sched_event_job(st, PS_EVENT_KIND_JOB, j, what, is_bad, text);
        ps_effects_log_for(st->fx, &j->account,
                           is_bad ? PS_LOG_WARNING : PS_LOG_NOTICE,
                           "job %s %s: %s", j->name, what, text);
    }
}

static void announce(struct ps_sched_step *st, struct watch *w)
{
    struct ps_str text;

    ps_str_init(&text, w->text, sizeof(w->text));
    describe_ring(w, &text);
    w->causes_at = text.len;
    describe_successors(w, &text);
    each_job_event(st, w, "DIVERGED", true, w->text + strlen(DIVERGED));
}

static void clear_ring(struct ps_sched_step *st, struct watch *w)
{
    w->ring_since = PS_TIME_NEVER;
    w->misses = 0;
    if (w->text[0] != '\0') {
        w->text[0] = '\0';
        each_job_event(st, w, "moves again", false, "a rank has gone on");
    }
}

static void pause_watch(struct ps_sched_step *st, struct watch *w)
{
    w->step = WATCH_PAUSED;
    w->timer.due_at = ps_time_add(st->now, w->pause);
    w->pause = ps_time_min(2 * w->pause, LOOK_MAX);
}

/* A ring was confirmed. */
static void note_ring(struct ps_sched_step *st, struct watch *w, bool is_quiet)
{
    const ps_time limit = st->s->opt.diverged_after;
    ps_time fail_at;

    if (w->ring_since == PS_TIME_NEVER || w->ring.moves != w->first.moves) {
        clear_ring(st, w);
        w->ring = w->first;
        w->ring_since = st->now;
    }
    for (uint32_t i = 0; i < w->job_count; i++) {
        struct watch_job *of = &w->jobs[i];
        struct watch_rank *before = of->ring;

        of->ring = of->ranks;
        of->ranks = before;
    }
    w->misses = 0;
    w->pause = LOOK_MIN;
    fail_at = ps_time_add(w->ring_since, limit);
    if (w->text[0] == '\0' &&
        (!is_quiet ||
         st->now >= ps_time_add(w->ring_since,
                                limit == PS_TIME_NEVER ? QUIET_TIME : limit))) {
        announce(st, w);
    }
    pause_watch(st, w);
    if (st->now >= fail_at) {
        w->must_fail = true;
        w->timer.due_at = st->now;
    } else if (fail_at < w->timer.due_at) {
        w->timer.due_at = fail_at;
    }
}

/* No ring was seen, or it could not be confirmed. */
static void note_no_ring(struct ps_sched_step *st, struct watch *w)
{
    const struct mark now = mark_of(w);

    if (w->ring_since != PS_TIME_NEVER &&
        (now.waits != w->ring.waits || ++w->misses >= MISSES_MAX)) {
        clear_ring(st, w);
    }
    pause_watch(st, w);
}

/* True: all slots have reported, and none has an open operation. */
static bool is_idle(const struct watch *w)
{
    for (uint32_t i = 0; i < w->job_count; i++) {
        if (w->jobs[i].pending.count > 0 || w->jobs[i].wait_count > 0) {
            return false;
        }
    }
    return true;
}

/* Goes on after the reports of a question, or at the end of its time. */
static void finish_step(struct ps_sched_step *st, struct watch *w)
{
    const enum watch_step step = w->step;
    bool is_quiet;
    bool ok;

    if (w->has_more_jobs && step == WATCH_ASKS && w->job_count < JOBS_MAX) {
        ask_agents(st, w, WATCH_ASKS);
        return;
    }
    if (is_idle(w)) { /* An agent says so when it stands still again. */
        clear_ring(st, w);
        watch_free(w);
        return;
    }
    ok = !w->has_more_jobs && is_standing(w, &is_quiet);
    if (step == WATCH_ASKS) {
        w->first = mark_of(w);
        for (uint32_t i = 0; i < w->job_count && ok; i++) {
            ok = make_questions(&w->jobs[i]);
        }
        if (ok) {
            ask_agents(st, w, WATCH_CONFIRMS);
            return;
        }
    } else {
        ok = ok && mark_of(w).moves == w->first.moves && is_each_blocked(w);
        if (ok) {
            note_ring(st, w, is_quiet);
            return;
        }
    }
    note_no_ring(st, w);
}

void ps_sched_on_wait_report(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg *msg)
{
    const struct ps_msg_wait_report *m = &msg->wait_report;
    const struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct watch *w = find_watch(st->s, j);
    struct watch_job *of;
    uint32_t pending = 0;
    uint32_t slot;

    if (w == NULL || w->step == WATCH_PAUSED || w->request != m->request) {
        return;
    }
    slot = ps_sched_job_slot_of(j, agent->node);
    of = job_of_watch(w, j);
    if (slot == j->slot_count || !ps_bits_clear(&of->pending, slot)) {
        return;
    }
    note_ranks(of, agent, m);
    note_waits(of, agent, m);
    note_behind(of, agent, m);
    note_jobs(st->s, w, m);
    for (uint32_t i = 0; i < w->job_count; i++) {
        pending += w->jobs[i].pending.count;
    }
    if (pending == 0) {
        finish_step(st, w);
    }
}

/* -------------------------------------------------------------- end, time */

struct ps_sched_job *ps_sched_diverged_tick(struct ps_sched_step *st,
                                            struct ps_str *why)
{
    struct ps_sched_timer *t;

    while ((t = ps_sched_timers_due(&st->s->watches, st->now)) != NULL) {
        struct watch *w = PS_CONTAINER(t, struct watch, timer);

        if (w->must_fail) {
            ps_str_add(why, w->text);
            ps_str_addf(why,
                        "; no rank has gone on for %.0f s: all ranks must make "
                        "the same calls in the same order",
                        (double)(st->now - w->ring_since) / 1e9);
            return w->jobs[0].job;
        }
        if (w->step == WATCH_PAUSED) {
            ask_agents(st, w, WATCH_ASKS);
        } else {
            finish_step(st, w);
        }
    }
    return NULL;
}

uint32_t ps_sched_diverged_jobs(const struct ps_sched *s)
{
    uint32_t count = 0;

    PS_LIST_EACH_OF(const struct watch, w, timer.node, &s->watches)
    {
        count += w->text[0] != '\0' ? w->job_count : 0;
    }
    return count;
}

void ps_sched_diverged_free(struct ps_sched *s)
{
    PS_LIST_EACH_SAFE(struct watch, w, timer.node, &s->watches)
    {
        watch_free(w);
    }
}

void ps_sched_diverged_drop_job(struct ps_sched *s,
                                const struct ps_sched_job *j)
{
    struct watch *w = find_watch(s, j);
    struct watch_job *of = w == NULL ? NULL : job_of_watch(w, j);

    if (w == NULL) {
        return;
    }
    job_fini(of);
    *of = w->jobs[--w->job_count];
    if (w->job_count == 0) {
        watch_free(w);
    }
}
