/* SPDX-License-Identifier: Apache-2.0 */
/* A large cluster in virtual time: agents join one scheduler and some servers,
 * send heartbeats for a while, and each runs a worker of one job. Prints times
 * and memory of the scheduler, and fails where they exceed their limits.
 *
 *   sim_scale [--agents N] [--servers M] [--rounds R]
 */
#include "support/world.h"

#include <getopt.h>
#include <stdlib.h>
#include <time.h>

#define JOIN_MAX     PS_SECONDS(10)
#define MEMORY_MAX   (200u << 20)
/* Time for which heartbeats alone keep all members ACTIVE. */
#define BEATS_TIME   PS_SECONDS(5)
#define ROUNDS_LIMIT PS_SECONDS(60)
#define WATCH_STEP   PS_MILLIS(10)

struct report {
    uint32_t agents;
    uint32_t servers;
    ps_time joined_at; /* All members are ACTIVE. */
    ps_time ready_at;  /* All workers have their keys. */
    ps_time trained_at;
    uint64_t joined_bytes; /* Of the scheduler, as the next two. */
    uint64_t ready_bytes;
    uint64_t peak_bytes;
};

static struct world_options large_cluster(const struct report *r,
                                          uint32_t rounds)
{
    struct world_options o = {
        .seed = 1,
        .data_seed = 1,
        .servers = r->servers,
        .agents = r->agents,
        .workers = r->agents,
        .rounds = rounds,
        .barrier_every = rounds,
        .placement = PS_PLACEMENT_BALANCED,
        .partition_bytes = 4096,
        .big_array_bound = 1000,
        .default_times = true,
    };

    /* A partition on each server, and a small key. */
    o.key[o.key_count++] = (struct world_key){.kind = PS_KEY_KIND_STRING,
                                              .name = "weight",
                                              .count = 1024ull * r->servers,
                                              .dtype = PS_DTYPE_FLOAT32};
    o.key[o.key_count++] = (struct world_key){.kind = PS_KEY_KIND_STRING,
                                              .name = "bias",
                                              .count = 64,
                                              .dtype = PS_DTYPE_FLOAT32};
    return o;
}

static bool fail(const struct world *w, const char *text)
{
    fprintf(stderr, "[%.3f] %s %s\n", (double)world_now(w) / 1e9, text,
            world_error(w));
    return false;
}

static bool all_are_active(const struct world *w, const struct report *r)
{
    return world_member_count(w, PS_ROLE_AGENT, PS_NODE_STATE_ACTIVE) ==
               r->agents &&
           world_member_count(w, PS_ROLE_SERVER, PS_NODE_STATE_ACTIVE) ==
               r->servers;
}

static bool join(struct world *w, struct report *r)
{
    while (!all_are_active(w, r)) {
        if (world_now(w) >= JOIN_MAX) {
            return fail(w, "members are missing");
        }
        if (!world_run(w, world_now(w) + WATCH_STEP)) {
            return fail(w, "while members join:");
        }
    }
    r->joined_at = world_now(w);
    r->joined_bytes = world_sched_bytes(w);
    while (world_held_count(w) < r->agents) {
        if (world_now(w) >= JOIN_MAX) {
            return fail(w, "workers are missing");
        }
        if (!world_run(w, world_now(w) + WATCH_STEP)) {
            return fail(w, "while workers join:");
        }
    }
    r->ready_at = world_now(w);
    r->ready_bytes = world_sched_bytes(w);
    return true;
}

static bool beat(struct world *w, const struct report *r)
{
    const ps_time until = world_now(w) + BEATS_TIME;

    while (world_now(w) < until) {
        if (!world_run(w, world_now(w) + WATCH_STEP)) {
            return fail(w, "while members send heartbeats:");
        }
        if (!all_are_active(w, r)) {
            return fail(w, "a member is not ACTIVE");
        }
    }
    return true;
}

static bool train(struct world *w, struct report *r)
{
    const ps_time from = world_now(w);

    for (uint32_t i = 0; i < r->agents; i++) {
        world_release_worker(w, i);
    }
    if (!world_run_workers(w, from + ROUNDS_LIMIT)) {
        return fail(w, "in the rounds:");
    }
    for (uint32_t i = 0; i < r->agents; i++) {
        char text[512];

        if (world_worker_error(w, i, text, sizeof(text)) != 0) {
            return fail(w, text);
        }
    }
    r->trained_at = world_now(w) - from;
    return all_are_active(w, r) || fail(w, "a member is not ACTIVE");
}

static bool run(struct world *w, struct report *r)
{
    for (uint32_t i = 0; i < r->agents; i++) {
        world_hold_worker(w, i, 1);
    }
    if (!join(w, r) || !beat(w, r) || !train(w, r)) {
        return false;
    }
    r->peak_bytes = world_sched_peak(w);
    if (r->peak_bytes > MEMORY_MAX) {
        return fail(w, "the scheduler takes too much memory");
    }
    return world_drain(w, PS_SECONDS(10)) || fail(w, "after the job:");
}

static void print_report(const struct world *w, const struct report *r)
{
    struct timespec spent;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    printf("%u agents, %u servers: joined after %.3f s, ready to train after "
           "%.3f s, trained in %.3f s; memory of the scheduler %.1f MB with "
           "members, %.1f MB with their job, %.1f MB at most; %llu steps in "
           "%.1f s\n",
           r->agents, r->servers, (double)r->joined_at / 1e9,
           (double)r->ready_at / 1e9, (double)r->trained_at / 1e9,
           (double)r->joined_bytes / 1e6, (double)r->ready_bytes / 1e6,
           (double)r->peak_bytes / 1e6, (unsigned long long)world_steps(w),
           (double)spent.tv_sec + (double)spent.tv_nsec / 1e9);
}

static bool parse_count(const char *text, uint32_t most, uint32_t *ret)
{
    const unsigned long count = strtoul(text, NULL, 10);

    *ret = (uint32_t)count;
    return count > 0 && count <= most;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"agents", required_argument, NULL, 'a'},
        {"servers", required_argument, NULL, 's'},
        {"rounds", required_argument, NULL, 'r'},
        {NULL, 0, NULL, 0},
    };
    struct report r = {.agents = 1000, .servers = 32};
    struct world_options o;
    uint32_t rounds = 1;
    bool good = true;
    struct world *w;
    int c;

    while ((c = getopt_long(argc, argv, "a:s:r:", options, NULL)) != -1) {
        switch (c) {
        case 'a':
            good &= parse_count(optarg, PS_SLOTS_MAX, &r.agents);
            break;
        case 's':
            good &= parse_count(optarg, PS_SERVERS_MAX, &r.servers);
            break;
        case 'r':
            good &= parse_count(optarg, 255, &rounds);
            break;
        default:
            good = false;
        }
    }
    if (!good) {
        return 2;
    }
    o = large_cluster(&r, rounds);
    w = world_new(&o);
    good = run(w, &r);
    print_report(w, &r);
    world_free(w);
    return good ? 0 : 1;
}
