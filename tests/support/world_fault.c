/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of the simulated cluster: random ones, and those of story tests. */
#include "support/sched_peek.h"
#include "support/world_internal.h"

#include "base/alloc.h"
#include "base/str.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Schedules the restart of a node. */
static void restart_later(struct world *w, struct wnode *n, ps_time wait)
{
    struct wevent *e = world_event(w, WE_BEGIN, w->now + wait);

    e->node = n;
    e->incarnation = n->incarnation;
}

/* Kills an agent, unless one of its workers would die with it or has not
 * joined: the job would then fail correctly. */
void world_lose_agent(struct world *w, uint32_t victim)
{
    const struct wnode *n = &w->node[1 + w->opt.servers + victim];

    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        if (w->worker[i].agent == n && !worker_may_lose_agent(&w->worker[i])) {
            return;
        }
    }
    if (!n->alive) {
        return;
    }
    w->faults++;
    world_kill_agent(w, victim);
    restart_later(w, &w->node[1 + w->opt.servers + victim],
                  world_delay(w, PS_MILLIS(1), PS_MILLIS(100)));
}

/* ------------------------------------------------------------------- faults */

static struct wconn *random_tcp(struct world *w)
{
    struct ps_map_cursor cur = {0};
    struct wconn *c;
    struct wconn *pick = NULL;
    uint64_t n = 0;

    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        if (c->node[1] != NULL && !c->cut && ps_rng_below(&w->rng, ++n) == 0) {
            pick = c;
        }
    }
    return pick;
}

static void fault_split(struct world *w, ps_time length)
{
    struct wconn *c = random_tcp(w);
    uint32_t a;
    uint32_t b;
    struct wevent *e;

    if (c == NULL) {
        return;
    }
    a = world_node_index(w, c->node[0]);
    b = world_node_index(w, c->node[1]);
    if (world_is_split(w, a, b)) {
        return;
    }
    w->faults++;
    world_set_split(w, a, b, true);
    world_close_conn(w, c, 0);
    e = world_event(w, WE_HEAL, w->now + length);
    e->conn = a;
    e->number = b;
}

/* Closes all connections between two nodes. */
static void close_all_between(struct world *w, const struct wnode *a,
                              const struct wnode *b)
{
    struct ps_map_cursor cur = {0};
    struct wconn *c;

    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        if ((c->node[0] == a && c->node[1] == b) ||
            (c->node[0] == b && c->node[1] == a)) {
            world_close_conn(w, c, 0);
        }
    }
}

/* Cuts one connection, or sometimes all of its link. */
static void cut_conn(struct world *w, struct wconn *c)
{
    if (w->opt.connections > 1 && ps_rng_chance(&w->rng, 300)) {
        close_all_between(w, c->node[0], c->node[1]);
    } else {
        world_close_conn(w, c, 0);
    }
}

enum {
    FAULT_CUT,
    FAULT_PARTITION,
    FAULT_CRASH,
    FAULT_SERVER,
    FAULT_COPY,
    FAULT_MOVING,
    FAULT_REBALANCE,
    FAULT_AGENT,
    FAULT_SLEEP,
    FAULT_KEEP,
    FAULT_ISOLATE,
    FAULT_PART,
    FAULT_SCHED,
    FAULT_SCHED_END,
};

static void send_to_sched(struct world *w, uint64_t conn,
                          const struct ps_msg *msg)
{
    struct ps_msg *copy = ps_msg_dup(msg);
    struct ps_event ev = {.type = PS_EV_MSG, .conn = conn};

    ev.msg.msg = copy;
    world_step(w, &w->node[0], &ev);
    ps_msg_free(copy);
}

/* Delivers a command of psctl. */
static void send_command(struct world *w, const struct ps_msg *msg)
{
    struct wconn *c = world_conn_new(w, &w->node[0], NULL);
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = c->id * 2};

    c->open[0] = true;
    c->open[1] = true;
    c->worker = WORLD_NO_WORKER;  /* The answer is not read. */
    ev.open.kind = PS_CONN_LOCAL; /* A connection of the root user. */
    ev.open.peer = "psctl";
    if (!w->node[0].alive || w->node[0].wakes_at > w->now) {
        world_close_conn(w, c, 0);
        return;
    }
    world_step(w, &w->node[0], &ev);
    send_to_sched(w, c->id * 2,
                  &(struct ps_msg){.code = PS_MSG_HELLO,
                                   .hello = {.protocol = 1,
                                             .protocol_least = 1,
                                             .role = PS_ROLE_CTL,
                                             .name = "psctl",
                                             .cluster = "default",
                                             .address = ""}});
    send_to_sched(w, c->id * 2, msg);
    world_close_conn(w, c, world_delay(w, PS_MILLIS(1), PS_MILLIS(50)));
}

void world_rebalance(struct world *w, const char *off)
{
    send_command(
        w, &(struct ps_msg){.code = PS_MSG_QUERY,
                            .query = {.what = PS_QUERY_REBALANCE,
                                      .job = worker_job_name(w),
                                      .drain_server = off != NULL ? off : ""}});
}

void world_set_weight(struct world *w, uint32_t weight)
{
    send_command(w, &(struct ps_msg){.code = PS_MSG_JOB_SET,
                                     .job_set = {.job = worker_job_name(w),
                                                 .name = "weight",
                                                 .value = weight}});
}

static void lose_server(struct world *w)
{
    uint32_t victim = (uint32_t)ps_rng_below(&w->rng, w->opt.servers);

    w->faults++;
    world_kill_server(w, victim);
    w->node[1 + victim].is_lost = !w->opt.faults.server_back;
    if (w->opt.faults.server_back) {
        restart_later(w, &w->node[1 + victim],
                      world_delay(w, PS_MILLIS(1), PS_SECONDS(3)));
    }
}

void world_death(struct world *w, struct wnode *n)
{
    const ps_time away = n->state.away;

    n->wakes_at = 0;
    world_kill_server(w, n->index);
    restart_later(w, n, away);
}

/* True if a server does not return, and the scheduler has not given it up: if the
 * process of its backup dies now, the scheduler may hear of that first, and what
 * the backup has in its state memory counts no more. */
static bool is_loss_unheard(const struct world *w)
{
    for (uint32_t i = 0; i < w->opt.servers; i++) {
        const struct wnode *n = &w->node[1 + i];

        if (n->is_lost && (!w->node[0].alive ||
                           !sched_peek_is_gone(w->node[0].sched, n->name))) {
            return true;
        }
    }
    return false;
}

/* Kills a server, at once or at a store into its state memory. */
static void lose_kept_server(struct world *w)
{
    const uint32_t victim = (uint32_t)ps_rng_below(&w->rng, w->opt.servers);
    struct wnode *n = &w->node[1 + victim];
    const ps_time away = world_delay(
        w, PS_MILLIS(1),
        ps_rng_chance(&w->rng, 700) ? PS_MILLIS(100) : PS_SECONDS(1));

    if (!n->alive || n->state.die_at > n->state.stores ||
        (w->opt.replicas > 1 && is_loss_unheard(w))) {
        return;
    }
    w->faults++;
    if (ps_rng_chance(&w->rng, 500)) {
        world_kill_server_at_store(w, victim, 1 + ps_rng_below(&w->rng, 200),
                                   away);
        return;
    }
    world_kill_server(w, n->index);
    restart_later(w, n, away);
}

/* True if every job has two copies of all, and the processes that have them are
 * there: the loss of one is no more than copies are for. The victim may be all that
 * hears a member that is cut from the scheduler: see part_member(). */
static bool may_lose_server(const struct world *w)
{
    const struct wnode *sched = &w->node[0];

    if (!sched->alive || !sched_peek_has_two_copies(sched->sched)) {
        return false;
    }
    for (uint32_t i = 1; i < w->node_count && w->opt.faults.part; i++) {
        if (world_is_split(w, 0, i)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < w->opt.servers; i++) {
        const struct wnode *n = &w->node[1 + i];

        if (!n->alive || n->state.die_at > n->state.stores ||
            sched_peek_instance(sched->sched, n->name) !=
                n->server->opt.instance) {
            return false;
        }
    }
    return true;
}

/* True if the job has begun for its workers. With compression, if they have
 * their keys as well: the partitioning of a key among the live servers, and
 * with it the result of a codec, must not depend on the fault. */
static bool has_job_begun(const struct world *w)
{
    const enum wstage least = w->opt.compress.name != NULL ? WS_KEYS : WS_HELLO;

    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        if (w->worker[i].stage <= least) {
            return false;
        }
    }
    return true;
}

/* A member that is stopped, woken and stopped again is not heard meanwhile: its
 * stops together stay below the time after which it is given up, unless it was
 * awake for long enough to be heard. */
#define SLEEP_MAX PS_MILLIS(1400)
#define AWAKE_MIN PS_MILLIS(400)

/* Stops a process for a while, the scheduler for longer than its member
 * timeout. */
static void put_to_sleep(struct world *w)
{
    struct wnode *n = &w->node[ps_rng_below(&w->rng, w->node_count)];
    ps_time most = n->role == PS_ROLE_SCHED ? PS_SECONDS(5) : SLEEP_MAX;
    ps_time length = PS_MILLIS(1) +
                     ps_rng_below(&w->rng, ps_rng_chance(&w->rng, 300)
                                               ? most
                                               : PS_MILLIS(60));

    w->faults++;
    if (n->wakes_at > w->now) {
        return;
    }
    if (n->wakes_at + AWAKE_MIN <= w->now) {
        n->slept = 0;
    }
    if (n->role == PS_ROLE_SCHED || n->slept + length <= SLEEP_MAX) {
        n->slept += length;
        world_sleep(w, n, length);
    }
}

void world_lose_witnesses(struct world *w)
{
    w->no_witness = true;
}

/* Makes a server unreachable from the scheduler until it is declared dead,
 * while agents still talk with it. */
static void isolate_server(struct world *w)
{
    uint32_t victim = (uint32_t)ps_rng_below(&w->rng, w->opt.servers);

    w->faults++;
    world_lose_witnesses(w);
    world_cut(w, "psched", w->node[1 + victim].name,
              world_delay(w, PS_MILLIS(2200), PS_SECONDS(2)));
}

/* True if the node is connected to a member that can report it alive. */
static bool has_witness(struct world *w, const struct wnode *n)
{
    struct ps_map_cursor cur = {0};
    struct wconn *c;

    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        const struct wnode *other = c->node[0] == n   ? c->node[1]
                                    : c->node[1] == n ? c->node[0]
                                                      : NULL;

        if (other != NULL &&
            (other->role == PS_ROLE_SERVER || other->role == PS_ROLE_AGENT)) {
            return true;
        }
    }
    return false;
}

/* Makes a member unreachable from the scheduler that must not be declared dead,
 * because another member hears it. False: no member would. */
static bool part_member(struct world *w)
{
    struct wnode *n =
        &w->node[1 + ps_rng_below(&w->rng, w->opt.servers + w->opt.agents)];

    if (!has_witness(w, n)) {
        return false;
    }
    w->faults++;
    world_cut(w, "psched", n->name,
              world_delay(w, PS_MILLIS(2200), PS_SECONDS(20)));
    return true;
}

void world_begin_again(struct world *w, struct wnode *n)
{
    restart_later(w, n,
                  ps_rng_chance(&w->rng, 700)
                      ? world_delay(w, PS_MILLIS(1), PS_MILLIS(300))
                      : world_delay(w, PS_MILLIS(1), PS_SECONDS(4)));
}

static void lose_sched(struct world *w)
{
    w->faults++;
    world_kill_sched(w);
    world_begin_again(w, &w->node[0]);
}

/* ----------------------------------------- ends of a scheduler with a file */

/* Effects of a step, about. */
#define STEP_EFFECTS 8u

/* Ends the scheduler, at once or in one of its next steps. */
static void end_sched(struct world *w)
{
    const struct wnode *n = &w->node[0];

    if (!n->alive || n->is_ended || w->sched_end != WEND_NONE) {
        return;
    }
    if (ps_rng_chance(&w->rng, 250)) {
        lose_sched(w);
        return;
    }
    w->sched_end = (enum wend)(WEND_EFFECT + ps_rng_below(&w->rng, 3));
    w->effects_left = (uint32_t)ps_rng_below(&w->rng, STEP_EFFECTS);
}

bool world_ends_sched(struct world *w, struct wnode *n, const struct ps_fx *f)
{
    struct wevent *e;

    if (n->is_ended || n->role != PS_ROLE_SCHED || w->sched_end == WEND_NONE) {
        return n->is_ended;
    }
    if (w->sched_end == WEND_STORED && f->type == PS_FX_STORE) {
        w->sched_end = WEND_EFFECT;
        w->effects_left++; /* This one is carried out. */
    }
    if (w->sched_end == WEND_COMMIT
            ? f->type != PS_FX_STORE
            : w->sched_end == WEND_STORED || w->effects_left-- > 0) {
        return false;
    }
    w->sched_end = WEND_NONE;
    w->faults++;
    n->is_ended = true;
    e = world_event(w, WE_END, w->now);
    e->node = n;
    e->incarnation = n->incarnation;
    return true;
}

static void schedule_fault(struct world *w, uint64_t kind, uint32_t per_second)
{
    struct wevent *e;

    if (per_second == 0) {
        return;
    }
    e = world_event(w, WE_FAULT,
                    w->now + 1 +
                        ps_rng_below(&w->rng, 2 * PS_SECONDS(1) / per_second));
    e->number = kind;
}

/* Injects a fault that happens once, after the job has begun: before that, the
 * job would correctly wait for servers. */
static void inject_once(struct world *w, uint64_t kind)
{
    if (!has_job_begun(w)) {
        world_event(w, WE_FAULT, w->now + PS_MILLIS(20))->number = kind;
    } else if (w->opt.replicas > 1 &&
               (kind == FAULT_SERVER || kind == FAULT_ISOLATE) &&
               !may_lose_server(w)) {
        world_event(w, WE_FAULT, w->now + PS_MILLIS(20))->number = kind;
    } else if (kind == FAULT_SERVER) {
        lose_server(w);
    } else if (kind == FAULT_ISOLATE) {
        isolate_server(w);
    } else if (kind == FAULT_PART) {
        if (!part_member(w)) {
            world_event(w, WE_FAULT, w->now + PS_MILLIS(20))->number = kind;
        }
    } else {
        lose_sched(w);
    }
}

static void schedule_once(struct world *w, uint64_t kind, bool wanted)
{
    if (wanted) {
        world_event(w, WE_FAULT,
                    PS_MILLIS(100) + ps_rng_below(&w->rng, PS_MILLIS(700)))
            ->number = kind;
    }
}

void world_faults_begin(struct world *w)
{
    const struct world_faults *f = &w->opt.faults;

    schedule_fault(w, FAULT_CUT, f->cut);
    schedule_fault(w, FAULT_PARTITION, f->partition);
    schedule_fault(w, FAULT_CRASH, f->worker_crash);
    schedule_fault(w, FAULT_REBALANCE, f->rebalance);
    schedule_fault(w, FAULT_AGENT, f->agent_crash);
    schedule_fault(w, FAULT_SLEEP, f->sleep);
    schedule_fault(w, FAULT_KEEP, f->keep_crash);
    schedule_fault(w, FAULT_COPY, f->copy_loss);
    schedule_once(w, FAULT_SERVER, f->lose_server);
    schedule_once(w, FAULT_ISOLATE, f->isolate);
    schedule_once(w, FAULT_PART, f->part);
    schedule_once(w, FAULT_SCHED, f->sched_crash);
    for (uint32_t i = 0; i < f->sched_deaths; i++) {
        world_event(w, WE_FAULT, ps_rng_below(&w->rng, PS_SECONDS(3)))->number =
            FAULT_SCHED_END;
    }
}

void world_fault(struct world *w, const struct wevent *e)
{
    const struct world_faults *f = &w->opt.faults;
    struct wconn *c;
    struct wworker *k;

    if (!world_is_faulty(w)) {
        return;
    }
    switch (e->number) {
    case FAULT_CUT:
        c = random_tcp(w);
        if (c != NULL) {
            w->faults++;
            cut_conn(w, c);
        }
        schedule_fault(w, FAULT_CUT, f->cut);
        break;
    case FAULT_PARTITION:
        /* Often longer than link_linger, so that links are deleted. */
        fault_split(w, world_delay(w, PS_MILLIS(20), PS_MILLIS(400)));
        schedule_fault(w, FAULT_PARTITION, f->partition);
        break;
    case FAULT_CRASH:
        k = &w->worker[ps_rng_below(&w->rng, world_worker_count(w))];
        if (k->alive && k->stage > WS_KEYS && k->stage < WS_DETACH) {
            w->faults++;
            worker_kill(w, k);
            struct wevent *again = world_event(
                w, WE_WORKER,
                w->now + world_delay(w, PS_MILLIS(5), PS_MILLIS(100)));
            again->number = k->index;
            again->incarnation = k->incarnation;
        }
        schedule_fault(w, FAULT_CRASH, f->worker_crash);
        break;
    case FAULT_COPY:
        if (has_job_begun(w) && may_lose_server(w)) {
            lose_server(w);
        }
        schedule_fault(w, FAULT_COPY, f->copy_loss);
        break;
    case FAULT_MOVING:
        if (has_job_begun(w) && may_lose_server(w)) {
            lose_server(w);
        }
        break;
    case FAULT_SERVER:
    case FAULT_ISOLATE:
    case FAULT_PART:
    case FAULT_SCHED:
        inject_once(w, e->number);
        break;
    case FAULT_KEEP:
        if (has_job_begun(w)) {
            lose_kept_server(w);
        }
        schedule_fault(w, FAULT_KEEP, f->keep_crash);
        break;
    case FAULT_SCHED_END:
        end_sched(w);
        break;
    case FAULT_SLEEP:
        put_to_sleep(w);
        schedule_fault(w, FAULT_SLEEP, f->sleep);
        break;
    case FAULT_REBALANCE:
        w->faults++;
        w->current_job = (uint32_t)w->faults % world_job_count(w);
        if (ps_rng_chance(&w->rng, 700)) {
            char name[32];

            snprintf(name, sizeof(name), "server%u",
                     (unsigned)ps_rng_below(&w->rng, w->opt.servers));
            world_rebalance(w, name);
        } else {
            world_rebalance(w, NULL);
        }
        if (f->copy_loss != 0 && ps_rng_chance(&w->rng, 300)) {
            world_event(w, WE_FAULT, w->now + world_delay(w, 1, PS_MILLIS(20)))
                ->number = FAULT_MOVING;
        }
        schedule_fault(w, FAULT_REBALANCE, f->rebalance);
        break;
    case FAULT_AGENT:
        world_lose_agent(w, (uint32_t)ps_rng_below(&w->rng, w->opt.agents));
        schedule_fault(w, FAULT_AGENT, f->agent_crash);
        break;
    }
}

void world_heal(struct world *w)
{
    memset(w->split, 0,
           (size_t)w->node_count * w->node_count * sizeof(*w->split));
}

void world_cut(struct world *w, const char *node_a, const char *node_b,
               ps_time for_how_long)
{
    struct wnode *a = world_node_named(w, node_a, strlen(node_a));
    struct wnode *b = world_node_named(w, node_b, strlen(node_b));
    struct wevent *e;

    assert(a != NULL && b != NULL);
    close_all_between(w, a, b);
    world_set_split(w, world_node_index(w, a), world_node_index(w, b), true);
    e = world_event(w, WE_HEAL, w->now + for_how_long);
    e->conn = world_node_index(w, a);
    e->number = world_node_index(w, b);
}

bool world_cut_subflow(struct world *w, const char *agent, const char *server)
{
    struct ps_map_cursor cur = {0};
    struct wconn *c;

    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        if (c->node[1] != NULL && strcmp(c->node[0]->name, agent) == 0 &&
            strcmp(c->node[1]->name, server) == 0 && !c->cut &&
            ps_path_is_subflow(&c->path[0])) {
            world_close_conn(w, c, 0);
            return true;
        }
    }
    return false;
}

void world_kill_worker(struct world *w, uint32_t rank)
{
    worker_kill(w, &w->worker[rank]);
}

void world_restart_worker(struct world *w, uint32_t rank)
{
    worker_event(w, &w->worker[rank]);
}

/* Kills the process, with its computations and the frames that wait for
 * memory. */
static void kill_node(struct world *w, struct wnode *n)
{
    struct ps_map_cursor cur = {0};
    struct wconn *c;

    if (!n->alive) {
        return;
    }
    if (n->role == PS_ROLE_SERVER) {
        check_before_death(w, n);
    }
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        for (uint32_t end = 0; end < 2; end++) {
            if (c->node[end] == n) {
                world_close_conn(w, c, 0);
                /* No event is delivered to a dead process. */
                c->open[end] = false;
                world_forget_end(c, end);
            }
        }
    }
    for (size_t i = 0; i < w->events.count; i++) {
        struct wevent *e = PS_CONTAINER(w->events.items[i], struct wevent,
                                        item);

        if (e->type == WE_COMPUTE && e->node == n) {
            ps_compute_free(e->compute);
            e->compute = NULL;
        }
        if (e->type == WE_LOCAL && e->node == n) {
            ps_buf_unref(e->memory);
            e->memory = NULL;
        }
    }
    world_node_end(n);
}

void world_kill_server(struct world *w, uint32_t index)
{
    assert(w->node[1 + index].role == PS_ROLE_SERVER);
    kill_node(w, &w->node[1 + index]);
}

void world_restart_server(struct world *w, uint32_t index)
{
    world_node_begin(w, &w->node[1 + index]);
}

void world_kill_agent(struct world *w, uint32_t index)
{
    assert(w->node[1 + w->opt.servers + index].role == PS_ROLE_AGENT);
    kill_node(w, &w->node[1 + w->opt.servers + index]);
}

void world_restart_agent(struct world *w, uint32_t index)
{
    world_node_begin(w, &w->node[1 + w->opt.servers + index]);
}

void world_kill_sched(struct world *w)
{
    kill_node(w, &w->node[0]);
}

void world_restart_sched(struct world *w)
{
    world_node_begin(w, &w->node[0]);
}

void world_hold_frames(struct world *w, const char *from, const char *to,
                       uint8_t code)
{
    assert(w->hold_count < WORLD_HOLDS_MAX);
    w->hold[w->hold_count++] = (struct whold){
        .from = world_node_named(w, from, strlen(from)),
        .to = world_node_named(w, to, strlen(to)),
        .code = code};
}

void world_release_frames(struct world *w, const char *to, uint8_t code)
{
    for (uint32_t i = w->hold_count; i > 0; i--) {
        if (strcmp(w->hold[i - 1].to->name, to) == 0 &&
            w->hold[i - 1].code == code) {
            w->hold[i - 1] = w->hold[--w->hold_count];
        }
    }
}

void world_stop_node(struct world *w, const char *name, ps_time for_how_long)
{
    struct wnode *n = world_node_named(w, name, strlen(name));

    assert(n != NULL);
    world_sleep(w, n, for_how_long);
}

void world_sleep(struct world *w, struct wnode *n, ps_time length)
{
    struct wevent *e;

    if (!n->alive || n->wakes_at > w->now) {
        return;
    }
    n->wakes_at = w->now + length;
    e = world_event(w, WE_WAKE, n->wakes_at);
    e->node = n;
    e->incarnation = n->incarnation;
}
