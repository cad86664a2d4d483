/* SPDX-License-Identifier: Apache-2.0 */
/* Random clusters under random faults: every seed is run twice, once without
 * faults and once with them, and both runs must end with the same bits. Prints
 * the command that runs a failing seed again.
 *
 *   sim_random [--seed N] [--count M] [--jobs J] [--trace | --trace-clean]
 *              [--shape] [--stop]
 *
 * --shape prints the clusters of the seeds, --stop ends the run at the first that
 * fails.
 */
#include "support/world.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/rng.h"
#include "core/part/rows.h"
#include "core/sched/place/place.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    enum ps_key_kind kind;
    const char *name;
} key_id[] = {
    {PS_KEY_KIND_STRING, "weight"},   {PS_KEY_KIND_INTEGER, "7"},
    {PS_KEY_KIND_STRING, "bias"},     {PS_KEY_KIND_INTEGER, "2147483647"},
    {PS_KEY_KIND_COLLECTIVE, "sum4"}, {PS_KEY_KIND_COLLECTIVE, "from0f"},
};
static const uint64_t key_count[] = {1, 6, 64, 1000, 4096, 5000, 20000};
static const enum ps_dtype key_dtype[] = {PS_DTYPE_FLOAT32, PS_DTYPE_FLOAT64,
                                          PS_DTYPE_INT32, PS_DTYPE_INT64};

/* Ways for gradients to travel; `both` is added by chance. */
static const struct {
    const char *name;
    struct ps_rec_param param[3];
    uint32_t params;
} codecs[] = {
    {"2bit", {{.name = "threshold", .value = 1000}}, 1},
    {"1bit", {{.name = "threshold", .value = 0.25}}, 1},
    {"2bit",
     {{.name = "threshold", .value = 900},
      {.name = "momentum", .value = 0.5},
      {.name = "per_worker", .value = 1}},
     3},
    {"1bit", {{.name = "per_worker", .value = 1}}, 1},
    {"fp16", {{.name = "ef", .value = 1}}, 1},
    {"bf16",
     {{.name = "ef", .value = 1}, {.name = "momentum", .value = 0.5}},
     2},
    {"onebit", {{.name = "scaling", .value = 1}}, 1},
    {"topk", {{.name = "k", .value = 0.1}}, 1},
    {"topk",
     {{.name = "k", .value = 3}, {.name = "momentum", .value = 0.9}},
     2},
    {"randomk", {{.name = "k", .value = 0.2}, {.name = "seed", .value = 5}}, 2},
    {"dithering", {{.name = "levels", .value = 7}}, 1},
    {"dithering",
     {{.name = "natural", .value = 1},
      {.name = "l2", .value = 1},
      {.name = "levels", .value = 20}},
     3},
};
#define CODECS (sizeof(codecs) / sizeof(codecs[0]))

static void add_param(struct world_options *o, const char *name, double value)
{
    o->compress.param[o->compress.params++] = (struct ps_rec_param){
        .name = name, .value = value};
}

static void add_compression(struct world_options *o, struct ps_rng *r)
{
    size_t which = ps_rng_below(r, CODECS);

    o->compress.name = codecs[which].name;
    o->compress.params = codecs[which].params;
    memcpy(o->compress.param, codecs[which].param, sizeof(codecs[which].param));
    if (!o->optimizer && ps_rng_chance(r, 400)) {
        add_param(o, "both", 1);
    } else if (ps_rng_chance(r, 300)) {
        add_param(o, "min_bytes", 1000);
    }
    for (uint32_t i = 0; i < o->key_count; i++) {
        if (ps_rng_chance(r, 600)) {
            o->key[i].dtype = PS_DTYPE_FLOAT32;
        }
    }
}

static bool compresses_both(const struct world_options *o)
{
    uint32_t n = o->compress.params;

    return n > 0 && strcmp(o->compress.param[n - 1].name, "both") == 0;
}

static bool has_halves(const struct world_options *o)
{
    for (uint32_t i = 0; i < o->key_count; i++) {
        if (ps_dtype_size(o->key[i].dtype) == 2) {
            return true;
        }
    }
    return false;
}

static bool has_rows(const struct world_options *o)
{
    for (uint32_t i = 0; i < o->key_count; i++) {
        if (o->key[i].width != 0) {
            return true;
        }
    }
    return false;
}

static void add_rows(struct world_options *o, struct ps_rng *r)
{
    static const uint32_t widths[] = {1, 3, 8, 64};
    static const uint32_t rows[] = {1, 2, 7, 60, 300};

    for (uint32_t i = 0; i < o->key_count; i++) {
        if (!ps_rng_chance(r, 600)) {
            continue;
        }
        o->key[i].width = widths[ps_rng_below(r, 4)];
        o->key[i].count = (uint64_t)rows[ps_rng_below(r, 5)] * o->key[i].width;
        o->init = true;
    }
}

/* Features beside dense keys without a codec. This function and the add_*()
 * below draw their random numbers after all earlier draws, in the order in which
 * they were written, so that a seed keeps the rest of its cluster. */
static void add_features(struct world_options *o, struct ps_rng *r)
{
    bool has_codec = ps_rng_chance(r, 400);
    uint32_t collective = ps_rng_chance(r, 300)
                              ? 1 + (uint32_t)ps_rng_below(r, 2)
                              : 0;

    if (ps_rng_chance(r, 300)) {
        add_rows(o, r);
    }
    if (has_codec) {
        add_compression(o, r);
    }
    for (uint32_t n = 0; n < collective; n++) {
        o->key[o->key_count++] = (struct world_key){
            .kind = key_id[4 + n].kind,
            .name = key_id[4 + n].name,
            .count = key_count[ps_rng_below(r, 7)],
            .dtype = key_dtype[ps_rng_below(r, 4)]};
    }
    o->unbatched = ps_rng_chance(r, 150);
}

/* Async and ssp jobs, without the features that need rounds. */
static void add_mode(struct world_options *o, struct ps_rng *r)
{
    if (!ps_rng_chance(r, 250)) {
        return;
    }
    o->mode = ps_rng_chance(r, 500) ? PS_MODE_ASYNC : PS_MODE_SSP;
    o->staleness = o->mode == PS_MODE_SSP ? (uint32_t)ps_rng_below(r, 4) : 0;
    o->optimizer = false;
    o->collectives = false;
    o->mean = false;
    o->compress.name = NULL;
    o->compress.params = 0;
    o->init = true;
    o->barrier_every = o->rounds;
    while (o->key[o->key_count - 1].kind == PS_KEY_KIND_COLLECTIVE) {
        o->key_count--;
    }
    for (uint32_t i = 0; i < o->key_count; i++) {
        o->key[i].width = 0;
    }
}

/* Uses of pushes other than sums and plain optimizer steps. */
static void add_more(struct world_options *o, struct ps_rng *r)
{
    static const enum ps_reduce folds[] = {PS_REDUCE_MIN, PS_REDUCE_MAX,
                                           PS_REDUCE_PRODUCT};

    if (o->mode != PS_MODE_SYNC) {
        o->optimizer = ps_rng_chance(r, 500);
        for (uint32_t i = 0; o->optimizer && i < o->key_count; i++) {
            o->key[i].dtype = key_dtype[ps_rng_below(r, 2)];
        }
        return;
    }
    if (!o->optimizer) {
        if (ps_rng_chance(r, 250)) {
            o->fold = folds[ps_rng_below(r, 3)];
            o->mean = false;
        }
        return;
    }
    if (ps_rng_chance(r, 400) && o->compress.name == NULL && !has_rows(o) &&
        !o->norms) {
        o->accumulate = 2 + (uint32_t)ps_rng_below(r, 3);
    }
    o->tuned = ps_rng_chance(r, 400);
    if (ps_rng_chance(r, 400)) {
        o->change_round = 1 + ps_rng_below(r, o->rounds);
    }
    if (ps_rng_chance(r, 400)) {
        o->tune_round = 1 + ps_rng_below(r, o->rounds);
    }
    for (uint32_t i = 0; i < o->key_count; i++) {
        if (o->key[i].width == 0 && o->key[i].kind != PS_KEY_KIND_COLLECTIVE &&
            ps_rng_chance(r, 300)) {
            o->key[i].dtype = ps_rng_chance(r, 500) ? PS_DTYPE_FLOAT16
                                                    : PS_DTYPE_BFLOAT16;
        }
    }
}

/* Ranks that run out of data, and more rounds for that. */
static void add_epochs(struct world_options *o, struct ps_rng *r)
{
    if (o->mode != PS_MODE_SYNC || !ps_rng_chance(r, 400)) {
        return;
    }
    o->epochs = 1 + (uint32_t)ps_rng_below(r, 3);
    o->rounds += o->epochs;
    if (o->rounds < 2 * o->epochs) {
        o->rounds = 2 * o->epochs;
    }
}

/* Arrays that are pushed while they are copied. */
static void add_growth(struct world_options *o, struct ps_rng *r)
{
    if (o->mode == PS_MODE_SYNC && ps_rng_chance(r, 250)) {
        o->streams = true;
        o->on_loss = PS_LOSS_POLICY_FAIL;
    }
}

/* Credit so small that the few bytes of a run reach its limits. */
static void add_limits(struct world_options *o, struct ps_rng *r)
{
    static const uint64_t credits[] = {1, 4096, 8192, 32768};
    static const uint64_t windows[] = {1, 2, 8};

    if (ps_rng_chance(r, 400)) {
        o->initial_credit = credits[ps_rng_below(r, 4)];
        o->credit_window = o->initial_credit * windows[ps_rng_below(r, 3)];
    }
}

/* Adds what one key needs on one server that has all its partitions. */
static void add_need(const struct world_options *o, const struct world_key *k,
                     const struct ps_demand_profile *kind,
                     struct ps_demand *need)
{
    struct ps_place_server all = {0};
    struct ps_place_part *parts;
    uint32_t count;

    if (ps_place_request(
            &(struct ps_place_request){
                .policy = o->placement,
                .servers = o->servers,
                .count = k->count,
                .element_bytes = (uint32_t)ps_dtype_size(k->dtype),
                .partition_bytes = o->partition_bytes,
                .big_array_bound = o->big_array_bound,
                .row_width = k->width,
                .max_rows = ps_rows_per_frame(k->width, k->dtype)},
            &all, 1, &parts, &count) != 0) {
        abort();
    }
    for (uint32_t n = 0; n < count; n++) {
        ps_demand_add(need, kind, k->dtype, parts[n].count);
    }
    ps_free(parts);
}

/* Memory that the job's keys need if all come to lie on one server, after
 * migrations and losses: no more than the scheduler admits them with. */
static uint64_t need_of(const struct world_options *o)
{
    const struct ps_demand_profile kind = {
        .has_optimizer = o->optimizer,
        .encodes_values = compresses_both(o),
        .step_buffers = (o->norms ? 2u : 1u) +
                        (o->norms || o->clip_norm != 0 ? 1u : 0u),
        .sum_buffers = o->accumulate > 1 ? 1 : 0,
    };
    struct ps_demand need = {0};

    for (uint32_t i = 0; i < o->key_count; i++) {
        add_need(o, &o->key[i], &kind, &need);
    }
    return ps_demand_bytes(&need, o->agents);
}

/* Servers with the memory that the job was admitted with, and no more; rows are
 * also answered from that. */
static void add_memory(struct world_options *o, struct ps_rng *r)
{
    if (!has_rows(o) && ps_rng_chance(r, 400)) {
        o->store_budget = need_of(o);
    }
}

/* A limit of the norm of all gradients together, which most rounds exceed, or
 * some. */
static void add_clip(struct world_options *o, struct ps_rng *r)
{
    static const double limits[] = {1, 1e3, 3e6};

    if (!o->optimizer || o->mode != PS_MODE_SYNC || has_rows(o) ||
        has_halves(o) || o->accumulate != 0 || !ps_rng_chance(r, 600)) {
        return;
    }
    o->clip_norm = limits[ps_rng_below(r, 3)];
    if (o->store_budget != 0) {
        o->store_budget = need_of(o);
    }
}

/* A second job on the same agents and servers. */
static void add_rival(struct world_options *o, struct ps_rng *r)
{
    if (ps_rng_chance(r, 200)) {
        o->jobs = 2;
        o->weight = ps_rng_chance(r, 500) ? 1 + (uint32_t)ps_rng_below(r, 1000)
                                          : 0;
        o->store_budget *= 2;
    }
}

/* Links of several connections, queues in which acknowledgements are late, and
 * listeners that are crowded. */
static void add_connections(struct world_options *o, struct ps_rng *r)
{
    static const uint64_t late[] = {1, 2000, 10000};

    if (ps_rng_chance(r, 400)) {
        o->connections = 2 + (uint32_t)ps_rng_below(r, 3);
    }
    if (ps_rng_chance(r, 400)) {
        o->late_min = late[ps_rng_below(r, 3)];
    }
    if (ps_rng_chance(r, 200)) {
        o->pre_handshake_max = 1 + (uint32_t)ps_rng_below(r, 3);
    }
}

/* Copies of all partitions at a second server. */
static void add_copies(struct world_options *o, struct ps_rng *r)
{
    if (o->servers > 1 && o->mode == PS_MODE_SYNC && !has_rows(o) &&
        ps_rng_chance(r, 400)) {
        o->replicas = 2;
        o->mixed_kernels = ps_rng_chance(r, 200);
        o->store_budget *= 2;
    }
}

/* The cluster of a seed. */
static struct world_options shape_of(uint64_t seed)
{
    struct world_options o = {.seed = seed, .data_seed = seed};
    struct ps_rng r;

    ps_rng_init(&r, seed * 2 + 1);
    o.servers = 1 + (uint32_t)ps_rng_below(&r, 3);
    o.agents = 1 + (uint32_t)ps_rng_below(&r, 4);
    o.workers = o.agents + (uint32_t)ps_rng_below(&r, 5);
    o.rounds = 3 + (uint32_t)ps_rng_below(&r, 6);
    o.barrier_every = (uint32_t)ps_rng_below(&r, 4);
    o.optimizer = ps_rng_chance(&r, 400);
    o.init = o.optimizer || ps_rng_chance(&r, 500);
    o.mean = ps_rng_chance(&r, 300);
    o.placement = ps_rng_chance(&r, 500) ? PS_PLACEMENT_MXNET
                                         : PS_PLACEMENT_BALANCED;
    o.big_array_bound = 1000;
    o.partition_bytes = ps_rng_chance(&r, 500) ? 4096 : 16384;
    o.key_count = 1 + (uint32_t)ps_rng_below(&r, 4);
    for (uint32_t i = 0; i < o.key_count; i++) {
        o.key[i].kind = key_id[i].kind;
        o.key[i].name = key_id[i].name;
        o.key[i].count = key_count[ps_rng_below(&r, 7)];
        o.key[i].dtype = o.optimizer ? key_dtype[ps_rng_below(&r, 2)]
                                     : key_dtype[ps_rng_below(&r, 4)];
    }
    o.collectives = !o.optimizer && ps_rng_chance(&r, 500);
    add_features(&o, &r);
    add_mode(&o, &r);
    o.norms = o.optimizer && !has_rows(&o) && o.mode == PS_MODE_SYNC &&
              ps_rng_chance(&r, 500);
    add_more(&o, &r);
    if (o.servers > 2 && ps_rng_chance(&r, 300)) {
        o.servers_wanted = o.servers - 1; /* One server is a spare. */
    }
    add_epochs(&o, &r);
    add_growth(&o, &r);
    add_limits(&o, &r);
    add_memory(&o, &r);
    o.lars = o.norms && ps_rng_chance(&r, 400);
    add_clip(&o, &r);
    add_rival(&o, &r);
    add_connections(&o, &r);
    o.profile = ps_rng_chance(&r, 250);
    o.tokens = ps_rng_chance(&r, 250);
    o.reports = ps_rng_chance(&r, 250);
    add_copies(&o, &r);
    return o;
}

/* True if a value that only one rank requests may be lost with a server after
 * the others got its commit. */
static bool asks_alone(const struct world_options *o)
{
    if (o->epochs != 0) {
        return true; /* A rank that skips requests no value. */
    }
    for (uint32_t i = 2; i < o->key_count; i += 3) {
        if (o->collectives || o->key[i].kind == PS_KEY_KIND_COLLECTIVE) {
            return true;
        }
    }
    return false;
}

/* True if a server may hold state of which there is no copy: weights and states
 * of an optimizer, initial values before their broadcast, rows, and residuals of
 * encoded values. */
static bool has_unique_server_state(const struct world_options *o)
{
    return o->optimizer || o->init || has_rows(o) || compresses_both(o);
}

/* Losses of servers one after the other; jobs with copies outlive all of them. */
static void add_copy_faults(struct world_options *o, struct ps_rng *r)
{
    if (ps_rng_chance(r, 700)) {
        o->faults.isolate = false;
        o->faults.part = false; /* See add_faults(). */
        o->faults.copy_loss = 1 + (uint32_t)ps_rng_below(r, 8);
        o->faults.server_back = true;
        o->think_time = ps_rng_chance(r, 500) ? PS_SECONDS(3) / o->rounds
                                              : o->think_time;
    }
}

static void add_faults(struct world_options *o)
{
    struct ps_rng r;

    ps_rng_init(&r, o->seed * 2 + 2);
    o->faults.loss = 100;
    o->faults.duplicate = 100;
    o->faults.reorder = 100;
    o->faults.cut = (uint32_t)ps_rng_below(&r, 20);
    o->faults.partition = (uint32_t)ps_rng_below(&r, 8);
    o->faults.worker_crash = ps_rng_chance(&r, 500) ? 4 : 0;
    o->faults.lose_server = o->servers > 1 && o->mode == PS_MODE_SYNC &&
                            ps_rng_chance(&r, o->compress.name ? 700 : 300);
    if (has_unique_server_state(o) && o->faults.lose_server) {
        /* Less often: such jobs end with an error, so their bits cannot be
         * compared. */
        o->faults.lose_server = ps_rng_chance(&r, 400);
    }
    if (o->mode != PS_MODE_SYNC && o->servers > 1 && ps_rng_chance(&r, 150)) {
        /* The server had the only copy of its values: every rank that uses
         * them gets an error. */
        o->faults.lose_server = true;
        o->faults.worker_crash = 0;
        o->on_loss = PS_LOSS_POLICY_FAIL;
    }
    if (o->servers > 1 && o->mode == PS_MODE_SYNC) {
        o->faults.rebalance = ps_rng_chance(&r, 600)
                                  ? 2 + (uint32_t)ps_rng_below(&r, 60)
                                  : 0;
    }
    if (o->mode == PS_MODE_SYNC && ps_rng_chance(&r, 350)) {
        o->faults.agent_crash = 2 + (uint32_t)ps_rng_below(&r, 20);
        /* A worker that dies together with its agent fails the job. */
        o->faults.worker_crash = 0;
    }
    if (o->faults.agent_crash != 0 && o->mode == PS_MODE_SYNC &&
        has_unique_server_state(o)) {
        /* If both are lost, no process knows that there was an initial
         * value. */
        o->faults.lose_server = false;
    }
    if (o->streams) {
        /* The loss of a worker that still copies its array fails the job, and
         * so does the loss of its agent. */
        o->faults.worker_crash = 0;
        o->faults.agent_crash = 0;
    }
    if (ps_rng_chance(&r, 300)) {
        o->faults.sleep = 1 + (uint32_t)ps_rng_below(&r, 8);
    }
    o->faults.server_back = ps_rng_chance(&r, 500);
    o->faults.isolate = !o->faults.lose_server && o->servers > 1 &&
                        o->mode == PS_MODE_SYNC && o->faults.agent_crash == 0 &&
                        ps_rng_chance(&r, 250);
    o->faults.sched_crash = ps_rng_chance(&r, 150);
    if (o->faults.sched_crash && o->faults.lose_server) {
        /* A job that is opened again waits for its number of servers. */
        o->faults.server_back = true;
    }
    /* Some other member must hear the cut one all the time. */
    o->faults.part = !o->faults.isolate && !o->faults.sched_crash &&
                     !o->faults.lose_server && o->faults.agent_crash == 0 &&
                     o->faults.worker_crash == 0 && o->faults.sleep == 0 &&
                     ps_rng_chance(&r, 500);
    if (o->faults.part) {
        o->faults.partition = 0;
    }
    if (o->faults.isolate || o->faults.part || o->faults.sched_crash ||
        ps_rng_chance(&r, 100)) {
        /* Makes the job last until leases have expired. */
        o->think_time = PS_SECONDS(6) / o->rounds;
    }
    o->faults.until = PS_SECONDS(4);
    if (ps_rng_chance(&r, 250)) {
        o->faults.output = UINT64_C(10000) << ps_rng_below(&r, 3);
    }
    o->faults.lies = ps_rng_chance(&r, 250);
    o->contradict = ps_rng_chance(&r, 150);
    /* Of the number alone, so that other seeds stay the same. */
    if (o->seed % 6 == 5 && !o->faults.sched_crash && !o->faults.isolate &&
        !o->faults.part) {
        o->faults.sched_deaths = 1 + (uint32_t)(o->seed / 6 % 4);
        o->think_time = PS_SECONDS(4) / o->rounds;
    }
    if (o->replicas > 1) {
        add_copy_faults(o, &r);
    }
}

/* Servers die, and begin again with their state memory. */
static void add_kept(struct world_options *o)
{
    struct ps_rng r;

    ps_rng_init(&r, ~o->seed);
    /* A recording ends with its process; and another member must hear the one
     * that is cut off. */
    if (has_rows(o) || o->profile ||
        (o->faults.lose_server && o->replicas < 2) || o->faults.isolate ||
        o->faults.part || o->faults.sched_crash || !ps_rng_chance(&r, 500)) {
        return;
    }
    o->faults.keep_crash = 1 + (uint32_t)ps_rng_below(&r, 5);
    /* A step needs the states of two versions. */
    o->store_budget *= 2;
}

/* True if workers may end with an error. */
static bool may_fail(const struct world_options *o)
{
    if (o->faults.sched_crash) {
        return true;
    }
    if (o->replicas > 1) {
        return false;
    }
    if (o->faults.isolate) {
        return asks_alone(o) || has_unique_server_state(o);
    }
    /* A value of which only a server and an agent had a copy is lost with
     * both. */
    return o->faults.lose_server &&
           (o->mode != PS_MODE_SYNC || o->faults.agent_crash != 0 ||
            asks_alone(o) || has_unique_server_state(o));
}

/* The residual of a codec of values is lost with its server, without an error:
 * later versions of the job may differ. */
static bool may_lose_residuals(const struct world_options *o)
{
    return may_fail(o) && compresses_both(o);
}

/* Results of a run. */
struct outcome {
    bool failed;  /* A rank ended with an error that is allowed. */
    bool differs; /* The values are those of a job that may lack residuals. */
    struct {
        uint64_t result;
        bool seen[WORLD_KEYS_MAX][64];
        uint64_t value[WORLD_KEYS_MAX][64];
    } job[WORLD_JOBS_MAX];
};

enum total {
    TOTAL_STEPS,
    TOTAL_FAULTS,
    TOTAL_SUBFLOW_FRAMES,
    TOTAL_ACKS_AHEAD,
    TOTAL_OUTPUT_CLOSES,
    TOTAL_LIES,
    TOTAL_FAILED,
    TOTALS
};

struct totals {
    uint64_t sum[TOTALS];
};

/* Time in which a job continues or ends with an error after the end of the
 * scheduler. */
#define SCHED_LIMIT PS_SECONDS(30)

/* Runs another job after the first has ended or failed: it must start at once
 * and succeed. */
static bool run_again(struct world *w, const struct world_options *o)
{
    bool ok = world_run_again(w, PS_SECONDS(30));

    for (uint32_t i = 0; ok && i < world_worker_count(w); i++) {
        char text[512];

        if (world_worker_error(w, i, text, sizeof(text)) != 0) {
            printf("seed %llu: rank %u of the next job: %s\n",
                   (unsigned long long)o->seed, i, text);
            ok = false;
        }
    }
    return ok;
}

static bool run(const struct world_options *o, struct outcome *ret,
                struct totals *t)
{
    struct world *w = world_new(o);
    bool ok = world_run_workers(w, o->faults.sched_crash ? SCHED_LIMIT
                                                         : PS_SECONDS(120));
    bool failed = false;

    for (uint32_t i = 0; ok && i < world_worker_count(w); i++) {
        char text[512];
        int rc = world_worker_error(w, i, text, sizeof(text));

        failed |= rc != 0;
        if (rc != 0 && !may_fail(o)) {
            printf("seed %llu: rank %u ended with an error: %s\n",
                   (unsigned long long)o->seed, i, text);
            ok = false;
        }
    }
    ret->differs = may_lose_residuals(o);
    if (ok && (failed || o->faults.sched_crash)) {
        if (ret->differs) {
            world_forget_values(w);
            ret->differs = false;
        }
        ok = run_again(w, o);
    }
    if (ok) {
        ok = world_drain(w, PS_SECONDS(30));
    }
    if (world_error(w)[0] != '\0') {
        printf("%s\n", world_error(w));
    }
    ret->failed = failed;
    for (uint32_t j = 0; j < WORLD_JOBS_MAX; j++) {
        ret->job[j].result = world_result(w, j);
        for (uint32_t i = 0; i < o->key_count; i++) {
            for (uint32_t v = 0; v <= o->rounds; v++) {
                ret->job[j].seen[i][v] = world_value(w, j, i, v,
                                                     &ret->job[j].value[i][v]);
            }
        }
    }
    t->sum[TOTAL_STEPS] += world_steps(w);
    t->sum[TOTAL_FAULTS] += world_fault_count(w);
    t->sum[TOTAL_SUBFLOW_FRAMES] += world_subflow_frames(w);
    t->sum[TOTAL_ACKS_AHEAD] += world_acks_ahead(w);
    t->sum[TOTAL_OUTPUT_CLOSES] += world_output_closes(w);
    t->sum[TOTAL_LIES] += world_lies(w);
    world_free(w);
    return ok;
}

/* Every version of a job that was seen in both runs has the same bits, even if
 * the job failed later. */
static bool same_job(const struct world_options *o, const struct outcome *a,
                     const struct outcome *b, uint32_t j)
{
    for (uint32_t i = 0; i < o->key_count; i++) {
        for (uint32_t v = 0; v <= o->rounds; v++) {
            if (a->job[j].seen[i][v] && b->job[j].seen[i][v] &&
                a->job[j].value[i][v] != b->job[j].value[i][v]) {
                printf(
                    "seed %llu: version %u of %s of job %u differs from that "
                    "of the run without faults\n",
                    (unsigned long long)o->seed, v, o->key[i].name, j);
                return false;
            }
        }
    }
    if (b->failed) {
        return true; /* There is no last version. */
    }
    if (a->job[j].result != b->job[j].result) {
        printf("seed %llu: the weights of job %u differ from those of the run "
               "without faults\n",
               (unsigned long long)o->seed, j);
    }
    return a->job[j].result == b->job[j].result;
}

static bool same(const struct world_options *o, const struct outcome *a,
                 const struct outcome *b)
{
    for (uint32_t j = 0; j < WORLD_JOBS_MAX; j++) {
        if (!same_job(o, a, b, j)) {
            return false;
        }
    }
    return true;
}

/* Which of the two runs of a seed is printed. */
enum trace { TRACE_NONE, TRACE_CLEAN, TRACE_FAULTY };

static bool run_seed(uint64_t seed, enum trace trace, struct totals *t)
{
    struct world_options o = shape_of(seed);
    struct outcome clean = {0};
    struct outcome faulty = {0};
    o.trace = trace == TRACE_CLEAN;
    bool ok = run(&o, &clean, t);

    if (ok) {
        add_faults(&o);
        add_kept(&o);
        o.trace = trace == TRACE_FAULTY;
        ok = run(&o, &faulty, t);
    } else {
        printf("seed %llu fails even without faults\n",
               (unsigned long long)seed);
    }
    ok = ok && (faulty.differs || same(&o, &clean, &faulty));
    if (!ok) {
        printf("again: sim_random --seed %llu --count 1 --trace\n",
               (unsigned long long)seed);
    }
    fflush(stdout);
    return ok;
}

static uint32_t halves(const struct world_options *o)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < o->key_count; i++) {
        count += ps_dtype_size(o->key[i].dtype) == 2;
    }
    return count;
}

static void print_shape(uint64_t seed)
{
    struct world_options o = shape_of(seed);

    add_faults(&o);
    add_kept(&o);
    printf(
        "seed %llu: %u jobs, %u servers, %u agents, %u workers, %u rounds, "
        "%u keys, "
        "credit %u, window %u, mode %s, optimizer %d, norms %d, accumulate "
        "%u, clip %g, tuned %d, change "
        "at %u, tune at %u, profile %d, reports %d, epochs %u, grows %d, init "
        "%d, connections %u, late %u, reduce %s, collect %d, rows %d, "
        "halves %u, compression "
        "%s, cut %u/s, partition %u/s, crash %u/s, agent %u/s, move %u/s, "
        "sleep %u/s, output %u, lose server "
        "%d, isolate %d, part %d, end sched %d, sched deaths %u, lies %d, "
        "contradict %d, kept %u/s, replicas %u, losses %u/s\n",
        (unsigned long long)seed, o.jobs == 0 ? 1 : o.jobs, o.servers, o.agents,
        o.workers, o.rounds, o.key_count, (unsigned)o.initial_credit,
        (unsigned)o.credit_window, ps_mode_name(o.mode), o.optimizer, o.norms,
        o.accumulate, o.clip_norm, o.tuned, (unsigned)o.change_round,
        (unsigned)o.tune_round, o.profile, o.reports, o.epochs, o.streams,
        o.init, o.connections, (unsigned)o.late_min,
        ps_reduce_name(o.fold != PS_REDUCE_SUM ? o.fold
                       : o.mean                ? PS_REDUCE_MEAN
                                               : PS_REDUCE_SUM),
        o.collectives, has_rows(&o), halves(&o),
        o.compress.name == NULL ? "none" : o.compress.name, o.faults.cut,
        o.faults.partition, o.faults.worker_crash, o.faults.agent_crash,
        o.faults.rebalance, o.faults.sleep, (unsigned)o.faults.output,
        o.faults.lose_server, o.faults.isolate, o.faults.part,
        o.faults.sched_crash, o.faults.sched_deaths, o.faults.lies,
        o.contradict, o.faults.keep_crash, o.replicas, o.faults.copy_loss);
}

/* Shared by all processes. */
struct stop {
    bool wanted; /* After the first seed that fails. */
    _Atomic bool now;
};

/* Every `stride`-th seed from `first`: the share of one process. */
static int run_share(uint64_t first, uint64_t end, uint64_t stride,
                     enum trace trace, struct stop *stop, int report)
{
    struct totals t = {0};

    for (uint64_t seed = first; seed < end && !stop->now; seed += stride) {
        if (!run_seed(seed, trace, &t)) {
            t.sum[TOTAL_FAILED]++;
            stop->now = stop->wanted;
        }
    }
    return write(report, &t, sizeof(t)) == (ssize_t)sizeof(t) ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'},
        {"count", required_argument, NULL, 'c'},
        {"jobs", required_argument, NULL, 'j'},
        {"trace", no_argument, NULL, 't'},
        {"trace-clean", no_argument, NULL, 'C'},
        {"shape", no_argument, NULL, 'S'},
        {"stop", no_argument, NULL, 'x'},
        {NULL, 0, NULL, 0},
    };
    uint64_t first = 1;
    uint64_t count = 100;
    uint64_t jobs = 1;
    struct totals total = {0};
    enum trace trace = TRACE_NONE;
    bool shape = false;
    struct stop *stop = mmap(NULL, sizeof(*stop), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int pipes[2];
    int c;

    if (stop == MAP_FAILED) {
        return 1;
    }
    while ((c = getopt_long(argc, argv, "s:c:j:tCSx", options, NULL)) != -1) {
        switch (c) {
        case 's':
            first = strtoull(optarg, NULL, 10);
            break;
        case 'c':
            count = strtoull(optarg, NULL, 10);
            break;
        case 'j':
            jobs = strtoull(optarg, NULL, 10);
            break;
        case 't':
            trace = TRACE_FAULTY;
            break;
        case 'C':
            trace = TRACE_CLEAN;
            break;
        case 'S':
            shape = true;
            break;
        case 'x':
            stop->wanted = true;
            break;
        default:
            return 2;
        }
    }
    if (count == 0 || jobs == 0 || jobs > 64 || pipe(pipes) != 0) {
        return 2;
    }
    for (uint64_t s = first; shape && s < first + count; s++) {
        print_shape(s);
    }
    fflush(stdout);
    for (uint64_t j = 0; j < jobs; j++) {
        pid_t pid = fork();

        if (pid < 0) {
            return 1;
        }
        if (pid == 0) {
            _exit(run_share(first + j, first + count, jobs, trace, stop,
                            pipes[1]));
        }
    }
    close(pipes[1]);
    for (uint64_t j = 0; j < jobs; j++) {
        struct totals t;
        int status;

        if (wait(&status) < 0 || !WIFEXITED(status) ||
            WEXITSTATUS(status) != 0) {
            printf("a process of the simulator died: status %d\n", status);
            total.sum[TOTAL_FAILED]++;
            stop->now = stop->wanted;
        } else if (read(pipes[0], &t, sizeof(t)) == (ssize_t)sizeof(t)) {
            for (int i = 0; i < TOTALS; i++) {
                total.sum[i] += t.sum[i];
            }
        }
    }
    printf("%llu seeds from %llu: %llu failed; %llu steps, %llu faults, %llu "
           "frames on subflows, %llu acknowledgements ahead, %llu connections "
           "closed for output, %llu lies\n",
           (unsigned long long)count, (unsigned long long)first,
           (unsigned long long)total.sum[TOTAL_FAILED],
           (unsigned long long)total.sum[TOTAL_STEPS],
           (unsigned long long)total.sum[TOTAL_FAULTS],
           (unsigned long long)total.sum[TOTAL_SUBFLOW_FRAMES],
           (unsigned long long)total.sum[TOTAL_ACKS_AHEAD],
           (unsigned long long)total.sum[TOTAL_OUTPUT_CLOSES],
           (unsigned long long)total.sum[TOTAL_LIES]);
    return total.sum[TOTAL_FAILED] == 0 ? 0 : 1;
}
