/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated cluster: event queue, and the driver that carries out the
 * effects of the machines. Network, workers and checkers are in other files. */
#include "support/world_internal.h"

#include "base/alloc.h"
#include "base/str.h"
#include "support/op_done.h"
#include "support/sched_peek.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------- utilities */

ps_time world_delay(struct world *w, ps_time least, ps_time spread)
{
    return least + ps_rng_below(&w->rng, spread + 1);
}

void world_fail(struct world *w, const char *fmt, ...)
{
    struct ps_str s;
    va_list ap;

    if (w->error[0] != '\0') {
        return; /* The first failure stays. */
    }
    ps_str_init(&s, w->error, sizeof(w->error));
    ps_str_addf(&s, "[%10.6f] seed %llu: ", (double)w->now / 1e9,
                (unsigned long long)w->opt.seed);
    va_start(ap, fmt);
    ps_str_addv(&s, fmt, ap);
    va_end(ap);
}

static void append_story(struct world *w, const struct wnode *n,
                         const char *text)
{
    char line[1200];
    int len = snprintf(line, sizeof(line), "[%7.3f] %-7s %s\n",
                       (double)w->now / 1e9, n->name, text);

    if (w->opt.trace) {
        fputs(line, stderr);
    }
    if (!w->opt.story || len < 0) {
        return;
    }
    if ((size_t)len >= sizeof(line)) {
        len = sizeof(line) - 1;
    }
    w->story = ps_realloc(w->story, w->story_len + (size_t)len + 1);
    memcpy(w->story + w->story_len, line, (size_t)len + 1);
    w->story_len += (size_t)len;
}

struct wevent *world_event(struct world *w, enum wevent_type type, ps_time at)
{
    struct wevent *e = ps_calloc(1, sizeof(*e));

    assert(at >= w->now);
    e->type = type;
    ps_heap_push(&w->events, &e->item, at);
    return e;
}

void world_event_free(struct wevent *e)
{
    world_frame_unref(e->frame);
    ps_compute_free(e->compute);
    ps_msg_free(e->msg);
    ps_buf_unref(e->memory);
    ps_free(e);
}

struct wconn *world_conn(struct world *w, uint64_t id)
{
    return ps_map_get(w->conns, id);
}

struct wnode *world_node_named(struct world *w, const char *name, size_t len)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (strlen(w->node[i].name) == len &&
            memcmp(w->node[i].name, name, len) == 0) {
            return &w->node[i];
        }
    }
    return NULL;
}

uint32_t world_node_index(const struct world *w, const struct wnode *n)
{
    return (uint32_t)(n - w->node);
}

bool world_is_split(const struct world *w, uint64_t a, uint64_t b)
{
    return w->split[a * w->node_count + b];
}

void world_set_split(struct world *w, uint64_t a, uint64_t b, bool split)
{
    w->split[a * w->node_count + b] = split;
    w->split[b * w->node_count + a] = split;
}

bool world_is_faulty(const struct world *w)
{
    return w->now < w->opt.faults.until;
}

bool world_chance(struct world *w, uint32_t per_mille)
{
    if (per_mille == 0 || !world_is_faulty(w) ||
        !ps_rng_chance(&w->rng, per_mille)) {
        return false;
    }
    w->faults++;
    return true;
}

/* --------------------------------------------------------- driving machines */

static void arm_tick(struct world *w, struct wnode *n)
{
    ps_time at = ps_time_min(n->machine.ops->deadline(n->machine.self),
                             n->multipath.deadline);
    struct wevent *e;

    if (at == PS_TIME_NEVER) {
        n->tick_at = PS_TIME_NEVER;
        return;
    }
    at = ps_max_u64(at, w->now);
    if (n->tick_at <= at && n->tick_at >= w->now) {
        return; /* The earlier tick arms the next one. */
    }
    n->tick_at = at;
    e = world_event(w, WE_TICK, at);
    e->node = n;
}

static void fx_dial(struct world *w, struct wnode *n, struct ps_fx *f)
{
    struct wevent *e = world_event(
        w, WE_CONNECT, w->now + world_delay(w, PS_MICROS(100), PS_MILLIS(1)));

    e->node = n;
    e->incarnation = n->incarnation;
    e->number = f->dial.target;
    e->subflow_of = f->dial.subflow_of;
    ps_str_copy(e->address, sizeof(e->address), f->dial.address);
}

static void fx_probe(struct world *w, struct wnode *n, struct ps_fx *f)
{
    struct wevent *e = world_event(
        w, WE_PROBE, w->now + world_delay(w, PS_MICROS(100), PS_MILLIS(1)));

    e->node = n;
    e->incarnation = n->incarnation;
    e->number = f->dial.target;
    ps_str_copy(e->address, sizeof(e->address), f->dial.address);
}

void world_count_memory(struct world *w, const struct wnode *n, uint64_t before)
{
    if (n->role == PS_ROLE_SCHED) {
        w->sched_bytes += ps_alloc_bytes() - before;
        w->sched_peak = ps_max_u64(w->sched_peak, w->sched_bytes);
    }
}

static void apply_effects(struct world *w, struct wnode *n)
{
    uint64_t before;

    op_done_as_msg(&n->fx);
    for (uint32_t i = 0; i < n->fx.count; i++) {
        struct ps_fx *f = &n->fx.items[i];
        struct wevent *e;

        if (world_ends_sched(w, n, f)) {
            break;
        }
        switch (f->type) {
        case PS_FX_STORE:
            rows_apply(&w->rows, f);
            break;
        case PS_FX_SEND:
            world_send(w, n, f);
            break;
        case PS_FX_PROBE:
            fx_probe(w, n, f);
            break;
        case PS_FX_DIAL:
            fx_dial(w, n, f);
            break;
        case PS_FX_CLOSE:
            world_finish_conn(w, n, f);
            break;
        case PS_FX_COMPUTE:
            e = world_event(w, WE_COMPUTE,
                            w->now +
                                world_delay(w, PS_MICROS(5), PS_MICROS(300)));
            e->node = n;
            e->incarnation = n->incarnation;
            e->compute = f->compute;
            f->compute = NULL;
            break;
        case PS_FX_OP_DONE:
            break; /* Replaced by PS_FX_SEND above. */
        case PS_FX_OP_PROGRESS:
            break; /* Simulated workers do not copy partial results. */
        case PS_FX_LOG:
            append_story(w, n, f->log.text);
            if (w->opt.diverge_round == 0 &&
                strstr(f->log.text, "DIVERGED") != NULL) {
                world_fail(w, "no rank diverges, and psched says: %s",
                           f->log.text);
            }
            break;
        case PS_FX_LOG_LEVEL:
            break;
        }
    }
    before = ps_alloc_bytes();
    ps_effects_clear(&n->fx);
    world_count_memory(w, n, before);
}

void world_apply(struct world *w, struct wnode *n)
{
    apply_effects(w, n);
    if (!n->is_ended) {
        arm_tick(w, n);
    }
}

void world_step(struct world *w, struct wnode *n, struct ps_event *ev)
{
    uint64_t before;

    if (n->is_ended) {
        return; /* Its process is no more; see world_ends_sched(). */
    }
    ev->now = w->now;
    w->steps++;
    if (ev->type == PS_EV_TICK) {
        ps_multipath_tick(&n->multipath, w->now, &n->fx);
    }
    check_before(w, n, ev);
    before = ps_alloc_bytes();
    if (n->machine.ops->step(n->machine.self, ev, &n->fx) < 0) {
        world_fail(w, "%s gave up", n->name);
    }
    world_count_memory(w, n, before);
    if (n->state.at_death != NULL) {
        world_state_die(w, n);
        return;
    }
    check_step(w, n, ev);
    world_apply(w, n);
    if (n->stalled > 0 && !n->unstall_due) {
        n->unstall_due = true;
        world_event(w, WE_UNSTALL, w->now + PS_MICROS(20))->node = n;
    }
}

/* ------------------------------------------------------------------- events */

/* Delivers a worker's connection, message, region or residual segment. */
static void deliver_local(struct world *w, struct wevent *e)
{
    struct ps_event ev = {.conn = e->conn * 2};
    const struct wconn *c = world_conn(w, e->conn);
    struct ps_buf *view = NULL;

    if (c == NULL || !c->open[0]) {
        return;
    }
    if (e->msg == NULL && e->memory == NULL) {
        ev.type = PS_EV_OPEN;
        ev.open.kind = PS_CONN_LOCAL;
        ev.open.uid = worker_uid(w, c->worker);
        ev.open.pid = 100 + c->worker;
        ev.open.peer = "worker";
    } else if (e->msg == NULL) {
        view = e->is_segment ? world_segment_view(w, e->memory)
                             : ps_buf_ref(e->memory);
        ev.type = e->is_segment ? PS_EV_RESIDUAL_SEGMENT : PS_EV_REGION;
        ev.region.region = (uint32_t)e->number;
        ev.region.buf = view;
    } else if (e->msg->code == PS_MSG_L_OP && e->msg->l_op.op_id % 2 != 0) {
        ev.type = PS_EV_OPS; /* Delivered as from a ring. */
        ev.ops.op = &e->msg->l_op;
        ev.ops.count = 1;
    } else {
        ev.type = PS_EV_MSG;
        ev.msg.msg = e->msg;
    }
    world_step(w, e->node, &ev);
    ps_buf_unref(view);
}

bool world_is_asleep(const struct world *w, const struct wnode *n)
{
    return n->wakes_at > w->now;
}

/* A live node accepts, even while stopped; the host of a dead one refuses. */
static void on_probe(struct world *w, struct wevent *e)
{
    const char *colon = strchr(e->address, ':');
    struct wnode *to = colon == NULL
                           ? NULL
                           : world_node_named(w, e->address,
                                              (size_t)(colon - e->address));
    struct ps_event ev = {.type = PS_EV_PROBED};

    ev.dial_failed.target = e->number;
    if (to == NULL || world_is_split(w, world_node_index(w, e->node),
                                     world_node_index(w, to))) {
        ev.dial_failed.rc = PS_E_UNREACH;
    } else {
        ev.dial_failed.rc = to->alive ? 0 : PS_E_REFUSED;
    }
    world_step(w, e->node, &ev);
}

static void on_compute(struct world *w, struct wevent *e)
{
    struct ps_event ev = {.type = PS_EV_COMPUTED};

    ev.computed.token = e->compute->token;
    ev.computed.rc = world_compute(w, e->node, &e->compute->job);
    /* As in the driver, the job is released before the machine gets the
     * event. */
    ps_compute_free(e->compute);
    e->compute = NULL;
    world_step(w, e->node, &ev);
}

/* ---------------------------------------------------------------- main loop */

static void dispatch_event(struct world *w, struct wevent *e)
{
    struct ps_event ev = {.type = PS_EV_TICK};
    struct wconn *c;

    switch (e->type) {
    case WE_TICK:
        if (e->node->alive && e->node->tick_at == w->now &&
            !world_is_asleep(w, e->node)) {
            e->node->tick_at = PS_TIME_NEVER;
            world_step(w, e->node, &ev);
        }
        break;
    case WE_WAKE:
        if (e->node->alive && e->incarnation == e->node->incarnation) {
            e->node->tick_at = PS_TIME_NEVER;
            world_step(w, e->node, &ev); /* Timers run first. */
        }
        break;
    case WE_END:
        if (e->node->alive && e->incarnation == e->node->incarnation) {
            e->node->is_ended = false;
            world_kill_sched(w);
            world_begin_again(w, e->node);
        }
        break;
    case WE_BEGIN:
        if (!e->node->alive && e->incarnation == e->node->incarnation) {
            world_node_begin(w, e->node);
        }
        break;
    case WE_OPEN:
        c = world_conn(w, e->conn);
        if (e->node->alive && e->incarnation == e->node->incarnation &&
            c != NULL) {
            world_accepted(w, c);
        }
        break;
    case WE_DEATH:
        if (e->node->alive && e->incarnation == e->node->incarnation) {
            world_death(w, e->node);
        }
        break;
    case WE_LOCAL:
        if (e->node->alive && e->incarnation == e->node->incarnation) {
            deliver_local(w, e);
        }
        break;
    case WE_CONNECT:
        if (e->node->alive && e->incarnation == e->node->incarnation) {
            world_connect(w, e);
        }
        break;
    case WE_PROBE:
        if (e->node->alive && e->incarnation == e->node->incarnation) {
            on_probe(w, e);
        }
        break;
    case WE_KERNEL:
        world_kernel(w, e);
        break;
    case WE_RESUME:
        world_resume(w, e);
        break;
    case WE_DELIVER:
        world_deliver(w, e);
        break;
    case WE_RECEIVED:
        world_received(w, e);
        break;
    case WE_UNSTALL:
        if (e->node->alive) {
            world_unstall(w, e->node);
        }
        break;
    case WE_CLOSE:
        world_closed(w, e);
        break;
    case WE_COMPUTE:
        if (e->node->alive && e->incarnation == e->node->incarnation) {
            on_compute(w, e);
        }
        break;
    case WE_WORKER:
        if (e->incarnation == w->worker[e->number].incarnation) {
            worker_event(w, &w->worker[e->number]);
        }
        break;
    case WE_COPY:
        if (e->incarnation == w->worker[e->number].incarnation) {
            worker_copy_more(w, &w->worker[e->number], e->end);
        }
        break;
    case WE_THINK_DONE:
        if (e->incarnation == w->worker[e->number].incarnation) {
            worker_think_done(w, &w->worker[e->number]);
        }
        break;
    case WE_FAULT:
        world_fault(w, e);
        break;
    case WE_HEAL:
        world_set_split(w, e->conn, e->number, false);
        break;
    }
}

/* The daemon that the event concerns; NULL: none. */
static const struct wnode *node_of_event(struct world *w,
                                         const struct wevent *e)
{
    const struct wconn *c;

    switch (e->type) {
    case WE_KERNEL:
    case WE_RESUME:
    case WE_DELIVER:
    case WE_RECEIVED:
    case WE_CLOSE:
        c = world_conn(w, e->conn);
        return c != NULL ? c->node[e->end] : NULL;
    case WE_CONNECT:
    case WE_PROBE:
    case WE_UNSTALL:
    case WE_COMPUTE:
    case WE_OPEN:
    case WE_LOCAL:
    case WE_TICK:
        return e->node;
    case WE_DEATH:
    case WE_WAKE:
    case WE_BEGIN:
    case WE_END:
    case WE_WORKER:
    case WE_COPY:
    case WE_THINK_DONE:
    case WE_FAULT:
    case WE_HEAL:
        break;
    }
    return NULL;
}

static bool run_next_event(struct world *w, ps_time until)
{
    struct ps_heap_item *item = ps_heap_peek(&w->events);
    const struct wnode *n;
    struct wevent *e;

    if (item == NULL || item->key > until || w->error[0] != '\0') {
        return false;
    }
    ps_heap_pop(&w->events);
    e = PS_CONTAINER(item, struct wevent, item);
    assert(item->key >= w->now);
    w->now = item->key;
    n = node_of_event(w, e);
    if (n != NULL && n->alive && world_is_asleep(w, n) && e->type != WE_TICK) {
        ps_heap_push(&w->events, &e->item, n->wakes_at);
        return true;
    }
    dispatch_event(w, e);
    world_event_free(e);
    return true;
}

bool world_run(struct world *w, ps_time until)
{
    while (run_next_event(w, until)) {
    }
    if (w->error[0] == '\0' && until != PS_TIME_NEVER && w->now < until) {
        w->now = until;
    }
    return w->error[0] == '\0';
}

uint32_t world_worker_count(const struct world *w)
{
    return w->opt.workers * world_job_count(w);
}

static bool all_workers_done(const struct world *w)
{
    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        if (w->worker[i].stage != WS_DONE) {
            return false;
        }
    }
    return true;
}

/* Reports each worker that has not ended, with its stage. */
static void report_stuck(struct world *w)
{
    char text[900];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        const struct wworker *k = &w->worker[i];

        if (k->stage == WS_DONE && k->error == 0) {
            continue;
        }
        ps_str_addf(&s, "; rank %u in stage %d, round %llu, %u replies missing",
                    i, (int)k->stage, (unsigned long long)k->round, k->waiting);
        if (k->error != 0) {
            ps_str_addf(&s, ", error '%s'", k->text);
        }
    }
    world_fail(w, "no progress%s", text);
}

/* True if a fault has ended the job, as the scheduler, or its file, says. */
static bool has_lost_job(const struct world *w, uint32_t job)
{
    return w->opt.faults.until != 0 && !w->opt.faults.sched_crash &&
           w->node[0].alive && w->job[job].gen != 0 &&
           sched_peek_is_over(w->node[0].sched, w->job[job].gen);
}

/* Ends workers that restart after their job has failed: each would start
 * another job and wait for the others in vain. */
static void end_latecomers(struct world *w, uint32_t job)
{
    const bool is_lost = has_lost_job(w, job);
    bool failed = false;
    bool all_late = is_lost;

    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        const struct wworker *k = &w->worker[i];

        if (k->job != job) {
            continue;
        }
        failed |= k->stage == WS_DONE &&
                  (k->error != 0 || w->opt.faults.sched_crash || is_lost);
        all_late &= k->stage <= WS_HELLO;
        if (k->stage != WS_DONE && k->stage > WS_HELLO) {
            return;
        }
    }
    for (uint32_t i = 0; (failed || all_late) && i < world_worker_count(w);
         i++) {
        struct wworker *k = &w->worker[i];

        if (k->job != job || k->stage == WS_DONE) {
            continue;
        }
        worker_kill(w, k);
        k->stage = WS_DONE;
        if (is_lost) {
            k->error = PS_E_JOBFAILED;
            ps_str_copy(k->text, sizeof(k->text),
                        "its job failed before it was started again");
        }
    }
}

bool world_run_workers(struct world *w, ps_time limit)
{
    while (!all_workers_done(w)) {
        if (w->now >= w->opt.faults.until && w->opt.faults.until != 0) {
            world_heal(w);
        }
        if (w->steps % 64 == 0) {
            for (uint32_t j = 0; j < world_job_count(w); j++) {
                end_latecomers(w, j);
            }
        }
        if (!run_next_event(w, limit)) {
            report_stuck(w);
            return false;
        }
    }
    return w->error[0] == '\0';
}

void world_forget_values(struct world *w)
{
    for (uint32_t j = 0; j < world_job_count(w); j++) {
        memset(w->job[j].seen_set, 0, sizeof(w->job[j].seen_set));
    }
}

bool world_run_again(struct world *w, ps_time limit)
{
    w->opt.faults = (struct world_faults){0};
    w->next_job = true;
    for (uint32_t j = 0; j < world_job_count(w); j++) {
        w->job[j].gen = 0;
    }
    world_heal(w);
    for (uint32_t i = 0; i < w->node_count; i++) {
        if (!w->node[i].alive) {
            world_node_begin(w, &w->node[i]);
        }
    }
    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        worker_restart(w, &w->worker[i]);
    }
    return world_run_workers(w, ps_time_add(w->now, limit));
}

bool world_drain(struct world *w, ps_time limit)
{
    w->opt.faults.until = 0;
    world_heal(w);
    if (!world_run(w, ps_time_add(w->now, limit))) {
        return false;
    }
    check_end(w);
    return w->error[0] == '\0';
}

/* ------------------------------------------------------------ local sockets */

/* Sends from worker to agent, without delay unless the agent is stopped. Takes
 * over the event's message and memory. */
static void send_local(struct world *w, struct wworker *k,
                       const struct wevent *what)
{
    const struct wconn *c = world_conn(w, k->conn);
    struct wevent *e;

    /* The agent is dead, and the worker does not know it yet. */
    if (c == NULL || c->cut) {
        ps_msg_free(what->msg);
        ps_buf_unref(what->memory);
        return;
    }
    e = ps_calloc(1, sizeof(*e));
    *e = *what;
    e->type = WE_LOCAL;
    e->node = k->agent;
    e->incarnation = k->agent->incarnation;
    e->conn = k->conn;
    if (world_is_asleep(w, k->agent)) {
        ps_heap_push(&w->events, &e->item, k->agent->wakes_at);
        return;
    }
    deliver_local(w, e);
    world_event_free(e);
}

uint64_t world_local_connect(struct world *w, struct wworker *k)
{
    struct wconn *c = world_conn_new(w, k->agent, NULL);

    c->worker = k->index;
    c->open[0] = true;
    c->open[1] = true;
    k->conn = c->id;
    send_local(w, k, &(struct wevent){.number = 0});
    return c->id;
}

/* Sends a copy, which is freed after the step. */
void world_local_send(struct world *w, struct wworker *k,
                      const struct ps_msg *msg)
{
    send_local(w, k, &(struct wevent){.msg = ps_msg_dup(msg)});
}

struct ps_buf *world_segment_ref(struct world *w, uint32_t number)
{
    struct ps_buf *memory = ps_map_get(w->segments, number);

    if (memory == NULL) {
        world_fail(w, "no agent keeps anything under the number %u", number);
        return NULL;
    }
    return ps_buf_ref(memory);
}

void world_local_segment(struct world *w, struct wworker *k, uint32_t number,
                         struct ps_buf *memory)
{
    send_local(w, k,
               &(struct wevent){.memory = ps_buf_ref(memory),
                                .is_segment = true,
                                .number = number});
}

void world_local_region(struct world *w, struct wworker *k, uint32_t region,
                        struct ps_buf *buf)
{
    send_local(w, k,
               &(struct wevent){.memory = ps_buf_ref(buf), .number = region});
}

/* ------------------------------------------------------------------ stories */

ps_time world_now(const struct world *w)
{
    return w->now;
}

const char *world_error(const struct world *w)
{
    return w->error;
}

const char *world_story(const struct world *w)
{
    return w->story == NULL ? "" : w->story;
}

uint64_t world_result(const struct world *w, uint32_t job)
{
    return w->job[job].result;
}

bool world_value(const struct world *w, uint32_t job, uint32_t key,
                 uint64_t version, uint64_t *ret_hash)
{
    if (!w->job[job].seen_set[key][version]) {
        return false;
    }
    *ret_hash = w->job[job].seen_hash[key][version];
    return true;
}

uint64_t world_trace_hash(const struct world *w)
{
    return w->trace_hash;
}

uint64_t world_steps(const struct world *w)
{
    return w->steps;
}

uint64_t world_fault_count(const struct world *w)
{
    return w->faults;
}

uint64_t world_subflow_frames(const struct world *w)
{
    return w->subflow_frames;
}

uint64_t world_acks_ahead(const struct world *w)
{
    return w->acks_ahead;
}

uint32_t world_member_count(const struct world *w, enum ps_role role,
                            enum ps_node_state state)
{
    return w->node[0].alive
               ? ps_sched_member_count(w->node[0].sched, role, state)
               : 0;
}

uint64_t world_sched_bytes(const struct world *w)
{
    return w->sched_bytes;
}

uint64_t world_sched_peak(const struct world *w)
{
    return w->sched_peak;
}

uint64_t world_lies(const struct world *w)
{
    return w->lies;
}

uint64_t world_output_closes(const struct world *w)
{
    return w->output_closes;
}

void world_hold_worker(struct world *w, uint32_t rank, uint64_t round)
{
    w->worker[rank].hold_round = round;
}

void world_release_worker(struct world *w, uint32_t rank)
{
    struct wworker *k = &w->worker[rank];

    k->hold_round = 0;
    if (k->is_held) {
        struct wevent *e = world_event(w, WE_WORKER, w->now);

        e->number = rank;
        e->incarnation = k->incarnation;
    }
}

uint32_t world_held_count(const struct world *w)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        count += w->worker[i].is_held;
    }
    return count;
}

bool world_worker_done(const struct world *w, uint32_t rank)
{
    return w->worker[rank].stage == WS_DONE;
}

int world_worker_error(const struct world *w, uint32_t rank, char *text,
                       size_t cap)
{
    ps_str_copy(text, cap, w->worker[rank].text);
    return w->worker[rank].error;
}

void world_query_stall(struct world *w, uint32_t rank)
{
    struct wworker *k = &w->worker[rank];
    struct ps_msg m = {.code = PS_MSG_L_STALL_QUERY};

    m.l_stall_query.op_id = k->oldest_op;
    world_local_send(w, k, &m);
}

const char *world_stall_reply(const struct world *w, uint32_t rank)
{
    return w->worker[rank].stall_reply;
}
