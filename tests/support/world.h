/* SPDX-License-Identifier: Apache-2.0 */
/* A whole cluster in one process and in virtual time: the three machines that
 * the daemons run, scripted training processes, and a network that loses,
 * delays, duplicates, reorders and cuts, all from one seed. Frames use the
 * shipped codec. Checkers run after every step. */
#pragma once

#include "core/agent/agent.h"
#include "core/sched/sched.h"
#include "core/server/server.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define WORLD_KEYS_MAX 8
#define WORLD_JOBS_MAX 2

struct world_key {
    const char *name;
    uint64_t count;
    enum ps_dtype dtype;
    uint32_t width; /* Row width of a rows key, in elements; 0: a dense key. */
    enum ps_key_kind kind;
};

struct world_faults {
    uint32_t loss;      /* Per mille of sequenced frames, acks and pings. */
    uint32_t duplicate; /* Per mille of the same frames, sent twice. */
    uint32_t reorder;   /* Per mille of frames delivered much later. */
    uint32_t cut;       /* Connection cuts per virtual second. */
    /* Per second: two nodes that cannot connect for a while. */
    uint32_t partition;
    uint32_t link_loss;    /* Per second: an agent's link loses its state. */
    uint32_t worker_crash; /* Training processes killed, per second. */
    /* Agents killed and restarted per second, without their workers. */
    uint32_t agent_crash;
    /* Servers killed per second that begin again with their state memory, some
     * of them at a store into it. */
    uint32_t keep_crash;
    /* Of servers of jobs with copies, whenever all of these are there. */
    uint32_t copy_loss;
    bool lose_server; /* One server dies during the job. */
    /* With lose_server: it is restarted, without its memory. */
    bool server_back;
    /* The scheduler declares one server dead while agents talk with it and do
     * not report it alive. */
    bool isolate;
    /* A server or agent is unreachable from the scheduler for seconds, while
     * others talk with it. */
    bool part;
    bool sched_crash; /* The scheduler dies and is restarted. */
    /* Deaths of a scheduler that has a file, between any two effects of a step or
     * with a commit that fails; it goes on from its file. */
    uint32_t sched_deaths;
    uint32_t sleep; /* Daemons stopped for a while, per second. */
    /* Output in bytes that may wait for a daemon before its connection is
     * closed; a quarter more may wait for all. 0: any amount. */
    uint64_t output;
    bool lies; /* Daemons lie about what is not theirs. */
    /* Rebalance commands per second: drain a random server, or balance. */
    uint32_t rebalance;
    ps_time until; /* No fault is injected later. */
};

struct world_options {
    uint64_t seed;      /* Seed of the network and of the event order. */
    uint64_t data_seed; /* Seed of the gradients. */
    uint32_t servers;
    uint32_t servers_wanted; /* Servers that the job requests; 0: all. */
    uint32_t agents;
    /* Workers of a job; blocks of ranks are assigned to the agents. */
    uint32_t workers;
    /* Jobs of the same options that run at the same time on the same agents and
     * servers, each with its own data; 0: one. */
    uint32_t jobs;
    uint32_t weight; /* Of the first job; 0: the default, as of the others. */
    /* Every other worker is of another user and has a token. */
    bool tokens;
    uint32_t rounds;
    uint32_t barrier_every; /* Rounds between two barriers; 0: none. */
    /* Rank 0 enters a barrier of its own before this round; 0: never. In any
     * other world a job that psched calls DIVERGED is an error. */
    uint32_t diverge_round;
    /* Every other worker declares its first key otherwise if a peer has opened
     * it, and corrects that when it is refused. */
    bool contradict;
    /* Longest time for which a worker is busy between two rounds. */
    ps_time think_time;
    uint32_t key_count;
    struct world_key key[WORLD_KEYS_MAX];
    /* SGD with momentum on the servers; false: sums. */
    bool optimizer;
    bool norms;          /* With `optimizer`: LAMB instead. */
    bool lars;           /* With `optimizer` and `norms`: LARS instead. */
    uint32_t accumulate; /* Rounds of an optimizer step; 0: one. */
    double clip_norm;    /* Limit of the norm of all gradients; 0: none. */
    /* The optimizer has other settings for every other key, and another rate
     * from round change_round on (0: never). */
    bool tuned;
    uint64_t change_round;
    /* Every third key has other settings from this round on; 0: never. */
    uint64_t tune_round;
    /* Workers report scalars before their first round and after the last. */
    bool reports;
    bool profile; /* Workers record the servers and read the recordings. */
    bool mean;
    /* Reduction of dense keys, if not PS_REDUCE_SUM. */
    enum ps_reduce fold;
    /* Other than sync: pushes are added when they arrive, or subtracted by an
     * optimizer of rate 1. Each push has ones in the elements of its rank, so
     * that a value counts the pushes of every rank in it. One barrier precedes
     * the last pull. */
    enum ps_mode mode;
    uint32_t staleness; /* For ssp, in pushes. */
    /* Every third key is broadcast from a root that changes with the round; of
     * every third key only one rank asks for the sum, as collectives do. Not
     * with an optimizer. Collective keys are used so in any job: without init
     * or optimizer. */
    bool collectives;
    /* Number of epochs of the rounds; in each epoch a rank has data for some
     * rounds and skips the others, up to a round that all skip. Only in modes
     * with rounds. 0: no rank skips. */
    uint32_t epochs;
    bool lone_root; /* Roots of broadcasts are chosen as if no rank skipped. */
    bool init;      /* Rank 0 sets version 0; rows keys need it. */
    /* Codec of gradients; name NULL: none. */
    struct {
        const char *name;
        struct ps_rec_param param[4];
        uint32_t params;
    } compress;
    uint32_t replicas;  /* 2: servers have copies; 0: they have none. */
    bool mixed_kernels; /* Some servers may not compute the same bits. */
    enum ps_placement placement;
    uint64_t big_array_bound;
    uint32_t partition_bytes;
    /* Credit window of the servers; 0: their default. */
    uint64_t credit_window;
    /* Credit before the first grant; 0: the default. */
    uint64_t initial_credit;
    uint64_t store_budget; /* Bytes of each server's pool; 0: no limit. */
    bool keep;             /* Servers have state memory. */
    /* Bytes of each agent's scratch pool; 0: no limit. */
    uint64_t scratch_budget;
    enum ps_loss_policy on_loss;
    /* Some arrays are streamed: pushed before they are complete. For jobs that
     * fail when they lose a worker. */
    bool streams;
    struct world_faults faults;
    /* Connections of a link between agent and server; 0: one. */
    uint32_t connections;
    /* Queued bytes from which an acknowledgement behind them is sent ahead; 0:
     * the default. */
    uint64_t late_min;
    /* Accepted connections before their handshake; 0: 64. */
    uint32_t pre_handshake_max;
    bool unbatched; /* Small partitions are not batched. */
    /* Heartbeats, leases, retransmission and back-off as the daemons' defaults,
     * in place of shorter times. */
    bool default_times;
    bool story; /* Keep the log for world_story. */
    bool trace; /* Print everything to stderr. */
};

struct world;

/* Any number of servers, agents and workers, as many as the machines allow. */
struct world *world_new(const struct world_options *opt);
void world_free(struct world *w);

/* Runs until no event is left or `until`; false if a checker has failed
 * (world_error). */
bool world_run(struct world *w, ps_time until);
/* Runs until every worker has ended, with success or an error, or until virtual
 * time is `limit`; false in the latter case. */
bool world_run_workers(struct world *w, ps_time limit);
/* Forgets the values of the jobs before world_run_again: their servers may have
 * lost what the next values depend on. */
void world_forget_values(struct world *w);
/* Runs the same job again in the cluster as it is, without faults. All workers
 * must have ended. */
bool world_run_again(struct world *w, ps_time limit);
/* Runs until all daemons have deleted the job; then checks that no state of it
 * is left. */
bool world_drain(struct world *w, ps_time limit);

ps_time world_now(const struct world *w);
const char *world_error(const struct world *w); /* "" without a failure. */
const char *world_story(const struct world *w);
/* Hash of the last version of all keys of a job, as its rank 0 received it. */
uint64_t world_result(const struct world *w, uint32_t job);
/* Hash of one version of a key, if a worker of the job has received all of
 * it. */
bool world_value(const struct world *w, uint32_t job, uint32_t key,
                 uint64_t version, uint64_t *ret_hash);
/* Workers of all jobs; those of the first job come first, by rank. */
uint32_t world_worker_count(const struct world *w);
/* Hash of all events, for "same seed, same run". */
uint64_t world_trace_hash(const struct world *w);
uint64_t world_steps(const struct world *w);
uint64_t world_fault_count(const struct world *w);
/* Frames that subflows have carried, and acknowledgements sent ahead of
 * data. */
uint64_t world_subflow_frames(const struct world *w);
uint64_t world_acks_ahead(const struct world *w);
/* Members of a role that the scheduler has in a state. */
uint32_t world_member_count(const struct world *w, enum ps_role role,
                            enum ps_node_state state);
/* Bytes of the scheduler's own memory: now, and at most. */
uint64_t world_sched_bytes(const struct world *w);
uint64_t world_sched_peak(const struct world *w);
/* Connections closed because too much output waited for them. */
uint64_t world_output_closes(const struct world *w);

/* Messages in which daemons have lied. */
uint64_t world_lies(const struct world *w);
/* Ranks that have reported the scalar to the scheduler, and the sum of their
 * values; of all jobs. */
uint32_t world_scalar(const struct world *w, const char *name, double *ret_sum);

/* Faults and commands of story tests. */
void world_cut(struct world *w, const char *node_a, const char *node_b,
               ps_time for_how_long);
/* Cuts one connection of the link, not the first; false: it has one only. */
bool world_cut_subflow(struct world *w, const char *agent, const char *server);
/* From now on no member reports to the scheduler that it hears another one. */
void world_lose_witnesses(struct world *w);
void world_kill_worker(struct world *w, uint32_t rank);
void world_restart_worker(struct world *w, uint32_t rank);
void world_kill_server(struct world *w, uint32_t index);
/* The server dies at the n-th store into its state memory from now on, and begins
 * again after `away`. */
void world_kill_server_at_store(struct world *w, uint32_t index, uint64_t nth,
                                ps_time away);
/* The next process of a dead server finds no state memory. */
void world_drop_state(struct world *w, uint32_t index);
/* Stores of all servers into their state memory. */
uint64_t world_state_stores(const struct world *w);
void world_restart_server(struct world *w, uint32_t index);
void world_kill_sched(struct world *w);
void world_restart_sched(struct world *w);
/* Holds messages of this code in flight until they are released. */
void world_hold_frames(struct world *w, const char *from, const char *to,
                       uint8_t code);
void world_release_frames(struct world *w, const char *to, uint8_t code);
/* Stops a process as SIGSTOP does, and continues it later: no reads, writes or
 * computations. */
void world_stop_node(struct world *w, const char *name, ps_time for_how_long);
/* Kills the agent only; its workers re-attach after its restart. */
void world_kill_agent(struct world *w, uint32_t index);
void world_restart_agent(struct world *w, uint32_t index);
/* Commands of psctl. `off` NULL: balances the servers; else drains that one. */
void world_rebalance(struct world *w, const char *off);
void world_set_weight(struct world *w, uint32_t weight);
/* Stops the worker before its push of this round, until it is released. */
void world_hold_worker(struct world *w, uint32_t rank, uint64_t round);
void world_release_worker(struct world *w, uint32_t rank);
/* Workers that are stopped so. */
uint32_t world_held_count(const struct world *w);
bool world_worker_done(const struct world *w, uint32_t rank);
int world_worker_error(const struct world *w, uint32_t rank, char *text,
                       size_t cap);
/* Sends a stall query about the worker's oldest operation; the reply comes
 * later. */
void world_query_stall(struct world *w, uint32_t rank);
const char *world_stall_reply(const struct world *w, uint32_t rank);
