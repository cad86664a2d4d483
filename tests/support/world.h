/* SPDX-License-Identifier: Apache-2.0 */
/* A whole cluster in one process and in virtual time: the three machines that
 * the daemons run, scripted training processes, and a network that loses,
 * delays, duplicates, reorders and cuts, all from one seed. Frames go through
 * the shipped codec. Checkers look after every step. */
#pragma once

#include "core/agent/agent.h"
#include "core/sched/sched.h"
#include "core/server/server.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define WORLD_KEYS_MAX    8
#define WORLD_WORKERS_MAX 64
#define WORLD_NODES_MAX   32

struct world_key {
    const char *name;
    uint64_t count;
    enum ps_dtype dtype;
    uint32_t width; /* A key of rows of so many elements; 0: of none. */
};

struct world_faults {
    uint32_t loss;      /* Per mille of sequenced frames, acks and pings. */
    uint32_t duplicate; /* Per mille. */
    uint32_t reorder;   /* Per mille delivered much later. */
    uint32_t cut;       /* Connection cuts per virtual second. */
    uint32_t partition; /* Two nodes cannot connect for a while, per second. */
    uint32_t link_loss; /* Link state of an agent's link lost, per second. */
    uint32_t worker_crash; /* Training processes killed, per second. */
    uint32_t agent_crash;  /* Agents killed and restarted, per second, while
                         * their training processes live. */
    bool lose_server;      /* One server dies in the middle, */
    bool server_back;      /* and is restarted, with nothing. */
    bool isolate;          /* The scheduler takes one server for dead, while
                         * agents talk with it, and they do not tell. */
    bool part;          /* A server or an agent is out of the scheduler's reach
                         * for seconds, and others talk with it. */
    bool sched_crash;   /* The scheduler dies and is restarted. */
    uint32_t sleep;     /* Daemons that stop for a while, per second. */
    uint32_t rebalance; /* Orders to move partitions, per second: off a random
                         * server, or to make them even. */
    ps_time until;      /* After this nothing more goes wrong. */
};

struct world_options {
    uint64_t seed;      /* Of the network and of the order of things. */
    uint64_t data_seed; /* Of the gradients. */
    uint32_t servers;
    uint32_t servers_wanted; /* So many of these the job wants; 0: all. */
    uint32_t agents;
    uint32_t workers; /* Spread over the agents in blocks of ranks. */
    uint32_t rounds;
    uint32_t barrier_every; /* Rounds; 0: none. */
    ps_time
        think_time; /* Between two rounds a worker is busy with something else
                    * for so long, at most. */
    uint32_t key_count;
    struct world_key key[WORLD_KEYS_MAX];
    bool optimizer;      /* SGD with momentum on the servers, else sums. */
    bool norms;          /* With `optimizer`: LAMB instead, */
    bool lars;           /* or, with that, LARS. */
    uint32_t accumulate; /* Rounds of a step; 0: one. */
    /* The optimizer does other things for every other key, and from round
     * change_round on (0: never) with another rate. */
    bool tuned;
    uint64_t change_round;
    bool mean;
    enum ps_reduce fold; /* Of pushes of dense keys: not PS_REDUCE_SUM. */
    /* Not sync: pushes are added when they come, or taken off by an optimizer
     * whose rate is 1. Each has a one in the elements that are the rank's, so
     * that a value says how many of whose pushes are in it. One barrier is
     * before the last pull. */
    enum ps_mode mode;
    uint32_t staleness; /* ssp */
    /* Every third key is broadcast from a root that changes from round to
     * round; of every third, one rank alone wants the sum: what collectives
     * are made of. Not with an optimizer. Keys called "c:" are of that kind in
     * any job: nothing begins them, and no optimizer steps them. */
    bool collectives;
    /* The rounds are so many epochs, in each of which every rank has data for
     * some rounds and passes the others, up to one that all pass. Not with
     * modes that have no rounds. 0: nobody passes. */
    uint32_t epochs;
    bool lone_root; /* Roots of broadcasts are chosen as if nobody passed. */
    bool init;      /* Rank 0 gives version 0; keys of rows need it. */
    /* How gradients travel; name NULL: as they are. */
    struct {
        const char *name;
        struct ps_rec_param param[4];
        uint32_t params;
    } compress;
    enum ps_placement placement;
    uint64_t big_array_bound;
    uint32_t partition_bytes;
    uint64_t credit_window; /* Credit of the servers; 0: their default. */
    uint64_t
        initial_credit;    /* Before they have said anything; 0: the default. */
    uint64_t store_budget; /* Bytes of each server's pool; 0: no limit. */
    uint64_t scratch_budget; /* Of each agent's pool for sums; 0: no limit. */
    enum ps_loss_policy on_loss;
    /* Some arrays are offered before they are there, and come by and by; for
     * jobs that fail when they lose a worker. */
    bool streams;
    struct world_faults faults;
    bool unbatched; /* Small partitions do not travel together. */
    bool story;     /* Keep the notes for world_story. */
    bool trace;     /* Print everything to stderr. */
};

struct world;

struct world *world_new(const struct world_options *opt);
void world_free(struct world *w);

/* Run until nothing is left to do or `until`; false when a checker has found
 * something (world_error). */
bool world_run(struct world *w, ps_time until);
/* Run until every worker has ended (well or with an error), within `limit`
 * of virtual time. */
bool world_run_workers(struct world *w, ps_time limit);
/* When all have ended: the same job once more, in the cluster as it is now and
 * with nothing going wrong. */
bool world_run_again(struct world *w, ps_time limit);
/* Run on until all daemons have forgotten the job; then check that nothing is
 * left behind. */
bool world_drain(struct world *w, ps_time limit);

ps_time world_now(const struct world *w);
const char *world_error(const struct world *w); /* "" while all is well. */
const char *world_story(const struct world *w);
/* Hash of the last version of all keys as rank 0 saw it. */
uint64_t world_result(const struct world *w);
/* Hash of one version of a key, when somebody has seen all of it. */
bool world_value(const struct world *w, uint32_t key, uint64_t version,
                 uint64_t *ret_hash);
/* Hash of everything that happened, for "same seed, same run". */
uint64_t world_trace_hash(const struct world *w);
uint64_t world_steps(const struct world *w);
uint64_t world_fault_count(const struct world *w);

/* Stories do things by hand. */
void world_cut(struct world *w, const char *node_a, const char *node_b,
               ps_time for_how_long);
/* From now on no member tells the scheduler that it hears another one. */
void world_lose_witnesses(struct world *w);
void world_kill_worker(struct world *w, uint32_t rank);
void world_restart_worker(struct world *w, uint32_t rank);
void world_kill_server(struct world *w, uint32_t index);
void world_restart_server(struct world *w, uint32_t index);
void world_kill_sched(struct world *w);
void world_restart_sched(struct world *w);
/* Messages of this kind stay on their way, until they are let go on. */
void world_hold_frames(struct world *w, const char *from, const char *to,
                       uint8_t code);
void world_release_frames(struct world *w, const char *to, uint8_t code);
/* As by SIGSTOP and SIGCONT: nothing is read, written or computed. */
void world_stop_node(struct world *w, const char *name, ps_time for_how_long);
/* Its workers live, and come to the one that is started by and by. */
void world_kill_agent(struct world *w, uint32_t index);
void world_restart_agent(struct world *w, uint32_t index);
/* As psctl: `off` NULL: make the servers even. */
void world_rebalance(struct world *w, const char *off);
/* The worker stops before its push of this round, and goes on when released. */
void world_hold_worker(struct world *w, uint32_t rank, uint64_t round);
void world_release_worker(struct world *w, uint32_t rank);
bool world_worker_done(const struct world *w, uint32_t rank);
int world_worker_error(const struct world *w, uint32_t rank, char *text,
                       size_t cap);
/* The worker asks why its oldest operation waits; the answer comes later. */
void world_query_stall(struct world *w, uint32_t rank);
const char *world_stall_reply(const struct world *w, uint32_t rank);
