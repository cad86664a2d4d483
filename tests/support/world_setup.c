/* SPDX-License-Identifier: Apache-2.0 */
/* Construction of the simulated cluster, its daemons and their memory, and its
 * destruction. */
#include "support/world_data.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "base/str.h"
#include "proto/msg_codec.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Credit window where the options name none; checkers know it. */
#define CREDIT_WINDOW (32u << 20)

/* ------------------------------------------------------------------- set-up */

static int arena_get(void *ctx, size_t size, void **ret_data, uint32_t *ret_tag,
                     uint64_t *ret_offset)
{
    struct world *w = ctx;
    void *p = NULL;

    if (posix_memalign(&p, 64, size) != 0) {
        return PS_E_NOMEM;
    }
    memset(p, 0xee, size); /* No code may rely on zeros. */
    *ret_tag = ++w->last_arena;
    *ret_offset = 0;
    *ret_data = p;
    ps_map_put(w->arenas, *ret_tag, p);
    return 0;
}

static void arena_put(void *ctx, void *data, size_t size, uint32_t tag)
{
    struct world *w = ctx;

    (void)size;
    ps_map_remove(w->arenas, tag);
    free(data);
}

static struct ps_pool *pool_new(struct world *w, uint64_t budget)
{
    return ps_pool_new(&(struct ps_pool_options){
        .budget = budget,
        .source = {.get = arena_get, .put = arena_put, .ctx = w}});
}

/* An agent's view of memory that others hold as well. */
struct residual_segment {
    struct world *w;
    struct ps_buf *memory;
    uint32_t tag;
};

static void segment_release(void *ctx)
{
    struct residual_segment *v = ctx;

    ps_map_remove(v->w->segments, v->tag);
    ps_buf_unref(v->memory);
    ps_free(v);
}

struct ps_buf *world_segment_view(struct world *w, struct ps_buf *memory)
{
    struct residual_segment *v = ps_calloc(1, sizeof(*v));
    struct ps_buf *view;

    *v = (struct residual_segment){
        .w = w, .memory = ps_buf_ref(memory), .tag = ++w->last_segment};
    ps_map_put(w->segments, v->tag, memory);
    view = ps_buf_wrap(memory->data, memory->size, segment_release, v);
    view->tag = v->tag;
    return view;
}

static void free_memory(void *p)
{
    free(p);
}

static int segment_new(void *ctx, size_t size, struct ps_buf **ret_buf)
{
    struct ps_buf *memory;
    void *p = NULL;

    if (posix_memalign(&p, 64, size) != 0) {
        return PS_E_NOMEM;
    }
    memset(p, 0, size);
    memory = ps_buf_wrap(p, size, free_memory, p);
    *ret_buf = world_segment_view(ctx, memory);
    ps_buf_unref(memory);
    return 0;
}

static struct ps_pool *result_pool_new(void *ctx)
{
    return pool_new(ctx, 0);
}

static struct wnode *node_new(struct world *w, enum ps_role role,
                              uint32_t index)
{
    struct wnode *n = &w->node[w->node_count++];

    n->role = role;
    n->index = index;
    if (role == PS_ROLE_SCHED) {
        snprintf(n->name, sizeof(n->name), "psched");
    } else {
        snprintf(n->name, sizeof(n->name), "%s%u",
                 role == PS_ROLE_SERVER ? "server" : "agent", index);
    }
    return n;
}

static const struct ps_link_options link_options = {
    .resend_timeout = PS_MILLIS(30),
    .resend_max = PS_MILLIS(200),
    .ack_delay = PS_MILLIS(5),
};

/* ------------------------------------------------------------------ tokens
 *
 * There is one, and it outlives schedulers. */

static const struct ps_token_record token = {
    .claims = {.id = 1,
               .not_after = UINT64_MAX,
               .uid = WORLD_OWNER,
               .rights = PS_TOKEN_RIGHT_TRAIN,
               .cluster = "default"}};

static bool token_verify(void *arg, const char *text,
                         struct ps_fixed_token_claims *ret_claims)
{
    (void)arg;
    *ret_claims = token.claims;
    return strcmp(text, WORLD_TOKEN) == 0;
}

static const struct ps_token_ops token_ops = {.verify = token_verify};

/* Times of the daemons' options. */
#define DIAL_BACKOFF_MIN PS_MILLIS(200)
#define DIAL_BACKOFF_MAX PS_SECONDS(1)

static void begin_sched(struct world *w, struct wnode *n)
{
    const uint64_t before = ps_alloc_bytes();
    struct ps_sched_options o = {
        .instance = 1 + ps_rng_next(&w->rng) / 2,
        .generation_base = w->now,
        .seed = ps_rng_next(&w->rng),
        .heartbeat = PS_MILLIS(100),
        .suspect_after = PS_MILLIS(500),
        .dead_after = PS_SECONDS(2),
        .start_timeout = PS_SECONDS(120),
        .rejoin_grace = PS_SECONDS(5),
        .partition_bytes = PS_PARTITION_BYTES_DEFAULT,
        .placements_sent_max = 2, /* One key or two. */
        .link = link_options,
        .link_linger = PS_MILLIS(100),
        .token_ops = &token_ops,
        .tokens = &token,
        .token_count = 1,
    };

    ps_str_copy(o.name, sizeof(o.name), n->name);
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    if (w->opt.default_times) {
        o.heartbeat = PS_MILLIS(500);
        o.suspect_after = PS_SECONDS(1);
        o.dead_after = PS_SECONDS(2);
        o.link = (struct ps_link_options){0};
        o.link_linger = 0;
    }
    n->sched = ps_sched_new(&o, w->now);
    n->machine = ps_sched_machine(n->sched);
    n->is_ended = false;
    if (w->opt.faults.sched_deaths > 0) {
        struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

        if (rows_load(&w->rows, n->sched, w->now, &why) != 0) {
            world_fail(w, "psched cannot read its file: %s", why.data);
        }
    }
    w->sched_bytes = 0;
    world_count_memory(w, n, before);
}

static void begin_server(struct world *w, struct wnode *n)
{
    struct ps_server_options o = {
        .instance = 1 + ps_rng_next(&w->rng) / 2,
        .seed = ps_rng_next(&w->rng),
        .credit_window = w->opt.credit_window,
        .initial_credit = w->opt.initial_credit,
        .unbatched = w->opt.unbatched,
        .dial_backoff_min = PS_MILLIS(10),
        .dial_backoff_max = PS_MILLIS(200),
        .link = link_options,
        .link_linger = PS_MILLIS(100),
    };

    for (uint32_t i = 0; i < WORLD_CREDITS_MAX; i++) {
        n->credit[i] = (struct wcredit){
            .slot = ps_calloc(w->opt.agents, sizeof(*n->credit[i].slot))};
    }
    /* From a byte to the defaults, so that jobs wait for their turns. */
    o.unsent_max = 1ull << (o.seed >> 32) % 22;
    o.computing_max = 1ull << (o.seed >> 40) % 24;
    o.kernel_class = w->opt.mixed_kernels ? 1 + (uint32_t)(o.seed >> 48) % 2
                                          : 1;
    if (w->opt.default_times) {
        o.dial_backoff_min = DIAL_BACKOFF_MIN;
        o.dial_backoff_max = DIAL_BACKOFF_MAX;
        o.link = (struct ps_link_options){0};
        o.link_linger = 0;
    }
    ps_str_copy(o.name, sizeof(o.name), n->name);
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched_address, sizeof(o.sched_address), "psched:1");
    snprintf(o.address, sizeof(o.address), "%s:1", n->name);
    if (world_has_state(w)) {
        world_state_begin(n, &o);
        n->pool = ps_pool_new(
            &(struct ps_pool_options){.budget = w->opt.store_budget,
                                      .source = ps_records_source(o.records)});
    } else {
        n->pool = pool_new(w, w->opt.store_budget);
    }
    o.pool = n->pool;
    n->server = ps_server_new(&o, w->now);
    n->machine = ps_server_machine(n->server);
}

static void begin_agent(struct world *w, struct wnode *n)
{
    struct ps_agent_options o = {
        .instance = 1 + ps_rng_next(&w->rng) / 2,
        .seed = ps_rng_next(&w->rng),
        .dial_backoff_min = PS_MILLIS(10),
        .unbatched = w->opt.unbatched,
        .initial_credit = w->opt.initial_credit,
        .dial_backoff_max = PS_MILLIS(200),
        .link = link_options,
    };

    n->pool = pool_new(w, w->opt.scratch_budget);
    o.inline_sum_max = (o.seed >> 32) % 2 * 1024;
    o.scratch_pool = n->pool;
    o.result_pool_new = result_pool_new;
    o.alloc_ctx = w;
    o.residual_segment_new = segment_new;
    o.residual_segment_size = 32u << 10; /* Small, so that there are several. */
    if (w->opt.default_times) {
        o.dial_backoff_min = DIAL_BACKOFF_MIN;
        o.dial_backoff_max = DIAL_BACKOFF_MAX;
        o.link = (struct ps_link_options){0};
    }
    ps_str_copy(o.name, sizeof(o.name), n->name);
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched_address, sizeof(o.sched_address), "psched:1");
    snprintf(o.host, sizeof(o.host), "host%u", n->index);
    n->agent = ps_agent_new(&o, w->now);
    n->machine = ps_agent_machine(n->agent);
}

static void begin_node(struct world *w, struct wnode *n)
{
    n->alive = true;
    n->tick_at = PS_TIME_NEVER;
    n->wakes_at = 0;
    n->slept = 0;
    n->stalled = 0;
    n->unstall_due = false;
    ps_effects_init(&n->fx);
    ps_multipath_init(
        &n->multipath,
        &(struct ps_multipath_options){
            .self = n->role,
            .connections = w->opt.connections > 1 ? w->opt.connections : 1,
            .payload_min = 200, /* Most partitions are small. */
            .late_min = w->opt.late_min});
    ps_pre_handshake_init(&n->pre_handshake, w->opt.pre_handshake_max != 0
                                                 ? w->opt.pre_handshake_max
                                                 : 64);
    switch (n->role) {
    case PS_ROLE_SCHED:
        begin_sched(w, n);
        break;
    case PS_ROLE_SERVER:
        begin_server(w, n);
        break;
    case PS_ROLE_AGENT:
    case PS_ROLE_WORKER:
    case PS_ROLE_CTL:
        begin_agent(w, n);
        break;
    }
    world_output_begin(w, n);
}

static void schedule_first_tick(struct world *w, struct wnode *n, ps_time at)
{
    struct wevent *e = world_event(w, WE_TICK, at);

    e->node = n;
    n->tick_at = at;
}

void world_node_begin(struct world *w, struct wnode *n)
{
    assert(!n->alive);
    begin_node(w, n);
    schedule_first_tick(w, n, w->now + 1);
}

/* Daemons start, and so register, in a random order. */
static void schedule_first_ticks(struct world *w)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        schedule_first_tick(w, &w->node[i],
                            w->now + 1 + ps_rng_below(&w->rng, PS_MILLIS(50)));
    }
}

struct world *world_new(const struct world_options *opt)
{
    const uint32_t nodes = 1 + opt->servers + opt->agents;
    struct world *w = ps_calloc(1, sizeof(*w));

    assert(opt->jobs <= WORLD_JOBS_MAX);
    assert(opt->rounds < 256 && opt->agents > 0);
    w->opt = *opt;
    if (w->opt.initial_credit == 0) {
        w->opt.initial_credit = PS_CREDIT_INITIAL;
    }
    if (w->opt.credit_window == 0) {
        w->opt.credit_window = CREDIT_WINDOW;
    }
    w->trace_hash = PS_FNV1A_64;
    ps_rng_init(&w->rng, opt->seed);
    ps_heap_init(&w->events);
    w->conns = ps_map_new();
    w->arenas = ps_map_new();
    w->segments = ps_map_new();
    w->owners = ps_map_new();
    w->committed_at_death = ps_map_new();
    w->decoder = ps_decoder_new();
    w->node = ps_calloc(nodes, sizeof(*w->node));
    w->split = ps_calloc((size_t)nodes * nodes, sizeof(*w->split));
    begin_node(w, node_new(w, PS_ROLE_SCHED, 0));
    for (uint32_t i = 0; i < opt->servers; i++) {
        begin_node(w, node_new(w, PS_ROLE_SERVER, i));
    }
    for (uint32_t i = 0; i < opt->agents; i++) {
        begin_node(w, node_new(w, PS_ROLE_AGENT, i));
    }
    schedule_first_ticks(w);
    w->worker = ps_calloc(world_worker_count(w), sizeof(*w->worker));
    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        struct wworker *k = &w->worker[i];
        struct wevent *e;

        k->index = i;
        k->job = i / opt->workers;
        k->rank = i % opt->workers;
        k->agent = &w->node[1 + opt->servers +
                            (uint32_t)((uint64_t)k->rank * opt->agents /
                                       opt->workers)];
        e = world_event(w, WE_WORKER,
                        w->now + 1 + ps_rng_below(&w->rng, PS_MILLIS(80)));
        e->number = i;
    }
    world_faults_begin(w);
    return w;
}

void world_node_end(struct wnode *n)
{
    if (!n->alive) {
        return;
    }
    n->alive = false;
    n->incarnation++;
    world_output_end(n);
    world_state_freeze(n);
    ps_sched_free(n->sched);
    ps_server_free(n->server);
    ps_agent_free(n->agent);
    n->sched = NULL;
    n->server = NULL;
    n->agent = NULL;
    ps_effects_fini(&n->fx);
    ps_pool_free(n->pool);
    n->pool = NULL;
    world_state_end(n);
    for (uint32_t i = 0; i < WORLD_CREDITS_MAX; i++) {
        ps_free(n->credit[i].slot);
        n->credit[i] = (struct wcredit){0};
    }
}

void world_free(struct world *w)
{
    struct ps_map_cursor cur = {0};
    struct ps_heap_item *item;
    struct wconn *c;

    if (w == NULL) {
        return;
    }
    rows_fini(&w->rows);
    while ((item = ps_heap_pop(&w->events)) != NULL) {
        world_event_free(PS_CONTAINER(item, struct wevent, item));
    }
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        world_forget_end(c, 0);
        world_forget_end(c, 1);
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        world_node_end(&w->node[i]);
        world_state_free(&w->node[i]);
    }
    for (uint32_t i = 0; i < world_worker_count(w); i++) {
        worker_release_memory(&w->worker[i]);
        worker_drop_requests(&w->worker[i]);
    }
    cur = (struct ps_map_cursor){0};
    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        world_conn_free(c);
    }
    ps_map_free(w->conns);
    ps_map_free(w->arenas);
    ps_map_free(w->segments);
    ps_map_free(w->owners);
    ps_map_free(w->committed_at_death);
    for (uint32_t j = 0; j < WORLD_JOBS_MAX; j++) {
        for (uint32_t i = 0; i < WORLD_KEYS_MAX; i++) {
            world_model_free(w->job[j].model[i]);
        }
    }
    ps_heap_fini(&w->events);
    ps_decoder_free(w->decoder);
    ps_free(w->node);
    ps_free(w->worker);
    ps_free(w->split);
    ps_free(w->story);
    ps_free(w);
}
