/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the server machine; for the files of this folder alone.
 *
 *     server.c        the machine's three calls, time, what checkers ask
 *     uplink.c        the scheduler: dialling, heartbeat, what it tells
 *     session.c       agents: hello, links, memory for what they send
 *     job.c           jobs and their slots: from job_state to the end
 *     push.c          contributions
 *     merge.c         a complete round: computing, the new version
 *     optimizer.c     the optimizer's part of that
 *     norm.c          steps that need norms of whole arrays
 *     async.c         pushes without rounds
 *     pull.c          pull, init, resume
 *     reply.c         value, commit, refuse
 *     conflict.c      slots that disagree about a round
 *     rows.c          keys of rows: contributions, their merge, pulls
 *     opt_state.c     optimizer state, saved and loaded
 *     migration.c     partitions that go to another server, or come
 *     credit.c        how far agents may run ahead
 *     memory.c        memory, and what becomes of those that find none */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/str.h"
#include "core/link/dialer.h"
#include "core/codec/compression.h"
#include "core/round/credit.h"
#include "core/link/link.h"
#include "core/optim/optim.h"
#include "core/round/pacing.h"
#include "core/server/server.h"
#include "core/server/store.h"

/* A connection that says nothing for so long after it opened is cut. */
#define HELLO_TIMEOUT       PS_SECONDS(10)
/* The hello of an agent that the scheduler has not named here waits for so
 * long: both are on their way at the same time when an agent has been started
 * again, or this server takes a place in its job. */
#define VERIFY_TIMEOUT      PS_SECONDS(2)
/* A round that found no memory for its result tries again after this. */
#define STARVED_WAIT        PS_MILLIS(10)
/* Of those, tried at a time. */
#define STARVED_RETRIES_MAX 256u
/* What can never have memory fails after this. */
#define OUT_OF_MEMORY_AFTER PS_SECONDS(2)

/* The conversation with the scheduler. */
struct ps_server_uplink {
    struct ps_dialer dialer;
    uint64_t
        sched_instance; /* Of the scheduler that welcomed us last; 0: none. */
    ps_time name_refused_since; /* Another process has our name; 0: none has. */
    bool name_lost;             /* For good: this daemon ends. */
    uint32_t node;              /* Ours. */
    uint64_t incarnation;
    ps_time heartbeat_interval;
    ps_time next_ping_at;
    ps_time next_costs_at;
    ps_time last_ping_at; /* Last ping. */
};

/* An accepted connection. */
struct ps_server_conn {
    struct ps_list_node node; /* In `strangers` until it says hello, in `held`
                               * until the scheduler names it. */
    ps_conn_id id;
    ps_time listed_at;                 /* In that list. */
    struct ps_server_session *session; /* NULL: a stranger. */
    struct ps_msg *unverified_hello;   /* Own; held. NULL: none is. */
    int discard_reason; /* Why the payload of this frame was thrown away. */
};

/* An agent and the link to it. */
struct ps_server_session {
    struct ps_heap_item timer;     /* In `timers`, by when it is due. */
    struct ps_list_node list_node; /* In `crowded`. */
    uint32_t agent_node;           /* Its node. */
    uint64_t incarnation;
    uint64_t instance;
    uint64_t session_id;
    bool confirmed; /* It knows of the session: it has said something. */
    struct ps_link *link;
    struct ps_server_conn *conn; /* NULL: it is away since `closed_at`. */
    ps_time heard_at;            /* The last message came. */
    ps_time disconnected_at;
    struct ps_map *credits; /* struct ps_flow by generation. */
};

/* Answers about small partitions, collected until the next tick. */
struct ps_server_batch {
    struct ps_rec_part *parts; /* NULL when there are none. */
    struct ps_slice *slices;   /* Only of values. */
    uint32_t part_count;
    uint32_t slice_count; /* What lies together is one. */
    uint64_t payload_bytes;
};

/* A contributor of a job. */
struct ps_server_slot {
    struct ps_list_node list_node; /* In `gathering`. */
    struct ps_server_job *job;
    uint32_t index;
    uint32_t agent_node; /* Node of the agent. */
    uint64_t incarnation;
    uint64_t instance;
    uint64_t unmerged_bytes; /* Push bytes that wait to be merged. */
    ps_time
        receiving_since;   /* A push with a payload did, and is coming; or 0. */
    ps_time last_push_at;  /* The last such push did; 0: none yet. */
    ps_time starved_since; /* Nothing of it has found memory; 0: it has. */
    uint32_t contributed_rounds; /* In how many of job->lacking. */
    struct ps_server_batch value_batch;
    struct ps_server_batch commit_batch;
};

/* Slots that an error names. */
#define PS_CONFLICT_SLOTS_MAX 64u

/* Some that agree in what they ask for. */
struct ps_server_conflict {
    uint32_t slots[PS_CONFLICT_SLOTS_MAX];
    uint32_t slot_count;
    uint8_t reduce;
    bool assign;
};

/* Memory that the scheduler has admitted a job's keys with. */
struct ps_server_quota {
    uint64_t version; /* Of the message that said so; 0: nothing was said. */
    uint64_t bytes;
    uint64_t
        round_bytes; /* Of these, for the round that is to be merged next. */
};

/* The round of a job that is to be merged next when memory is short. */
struct ps_server_reserved_round {
    uint32_t key;
    uint32_t index;
    uint64_t round; /* 0: none. */
    ps_time chosen_at;
};

struct ps_server_job {
    struct ps_server *server;
    struct ps_list_node node; /* In `dirty`. */
    uint64_t gen;
    uint32_t version;
    char name[PS_NAME_MAX + 1];
    bool has_optimizer;
    struct ps_optim optim; /* When it does. */
    struct ps_tunings tunings;
    uint64_t
        newest_version; /* Highest version of a partition, made or being made. */
    struct ps_compression compression;
    struct ps_server_slot *slots;
    uint32_t slot_count;
    struct ps_store store;
    struct ps_server_quota quota;
    struct ps_pool_share *pool_share; /* Its part of the server's memory. */
    struct ps_account account;        /* Measured when it is told. */
    struct ps_server_reserved_round reserved_round;
    ps_time next_shortage_log_at; /* No line about memory before this. */
    struct ps_map *migrations; /* Of partitions, by id; NULL: there was none. */
    struct ps_map *norm_waits; /* Runs that wait for norms, by key. */
    uint32_t incomplete_rounds; /* Rounds that wait for somebody. */
    uint32_t merging_rounds; /* Rounds that are complete and not yet merged. */
    struct ps_rate_meter push_rate; /* Of contributions, from all slots. */
    /* What cannot be made again, if there is anything. */
    struct {
        bool known;
        uint32_t key;
        uint32_t index;
        uint64_t version;
    } lost_value;
};

/* A complete round on its way to a version. */
struct ps_server_merge {
    struct ps_list_node node; /* In `starved`. */
    struct ps_server_job *job;
    struct ps_part *part;
    uint64_t token;         /* 0: waits for memory, or for norms. */
    ps_time starved_since;  /* It waits for memory; 0: it does not. */
    struct ps_slice result; /* Own reference. */
    struct ps_slice
        encoded;      /* Of dst, to travel in its place; buf NULL: none. */
    bool accumulates; /* dst waits for the optimizer, with later rounds. */
    /* Of a step that needs norms: */
    bool is_staged;
    bool awaits_norms; /* Waits for them. */
    bool is_summed;    /* The contributions are in `work`. */
    struct ps_optim_step_params step_params;
    struct ps_slice work; /* The gradient, or what the weights move along. */
    struct ps_buf *square_sums; /* Of `work` and of the weights. */
    struct ps_server_merge
        *next_waiting; /* Asks for another partition of the key. */
};

struct ps_server {
    struct ps_server_options opt;
    struct ps_rng rng;
    struct ps_server_uplink uplink;
    uint32_t epoch;
    bool draining; /* About to end: for no new job. */
    bool ending;   /* The operator wants it so. */

    struct ps_account account;
    struct ps_account_limits account_limits; /* Of that. */
    struct ps_map *conns;                    /* Accepted, by id. */
    struct ps_list handshaking;
    struct ps_list unverified; /* Have said hello as somebody not known. */
    struct ps_map *sessions;   /* By node. */
    struct ps_heap session_timers;
    struct ps_list backlogged; /* Peers with too many answers under way. */

    struct ps_map *jobs; /* By generation. */
    uint64_t ended_jobs[PS_ENDED_JOBS_MAX];
    uint32_t ended_jobs_next;

    struct ps_map *merges; /* By token. */
    uint64_t last_token;
    ps_time now;              /* Of the last event. */
    ps_time read_retry_at;    /* Somebody held back may go on then, or never. */
    ps_time pool_trim_at;     /* The pool's free memory; PS_TIME_NEVER. */
    ps_time last_shortage_at; /* Something found no memory; 0: never. */
    struct ps_list starved_merges;
    ps_time starved_retry_at;

    struct ps_list batching_slots;
    ps_time flush_at; /* NEVER: nothing is. */
    struct ps_list
        credit_check_jobs; /* Jobs where somebody may have to be let on. */

    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t refused_parts;
    uint64_t resent_closed; /* On links that are gone. */
};

/* What every handler of a step needs. */
struct ps_server_step {
    struct ps_server *s;
    ps_time now;
    struct ps_effects *fx;
};

/* ----------------------------------------------------------------- uplink.c */

void ps_server_uplink_init(struct ps_server *s, ps_time now);
void ps_server_uplink_fini(struct ps_server *s);
void ps_server_uplink_on_open(struct ps_server_step *st, uint64_t target,
                              ps_conn_id conn);
void ps_server_uplink_on_dial_failed(struct ps_server_step *st, uint64_t target,
                                     int rc, const char *why);
/* What is sent to it does not get through. */
void ps_server_uplink_on_stalled(struct ps_server_step *st);
void ps_server_uplink_on_msg(struct ps_server_step *st, ps_conn_id conn,
                             const struct ps_msg *msg,
                             const struct ps_slice *payload);
int ps_server_uplink_payload(struct ps_server *s, const struct ps_msg *msg,
                             uint64_t len, struct ps_slice *ret_slice);
/* The scheduler hears at once that this server is about to end. */
void ps_server_uplink_announce_drain(struct ps_server_step *st);
void ps_server_uplink_on_closed(struct ps_server_step *st, ps_conn_id conn,
                                int rc);
/* No more of it: hangs up. */
void ps_server_uplink_close(struct ps_server_step *st);
void ps_server_uplink_tick(struct ps_server_step *st);
ps_time ps_server_uplink_deadline(const struct ps_server *s);
/* In sequence: now, or when the link goes on. One that begins afresh drops it;
 * what matters is offered again then. */
void ps_server_uplink_send_msg(struct ps_server_step *st,
                               const struct ps_msg *msg);
/* job_ready, in sequence; nothing while the scheduler does not know us. */
void ps_server_uplink_send_ready(struct ps_server_step *st,
                                 const struct ps_server_job *job);
/* Tells the scheduler what the job has lost, if it has. */
void ps_server_uplink_send_lost(struct ps_server_step *st,
                                const struct ps_server_job *job);

/* ---------------------------------------------------------------- session.c */

void ps_server_session_on_open(struct ps_server_step *st, ps_conn_id conn,
                               const char *who);
void ps_server_session_on_msg(struct ps_server_step *st, ps_conn_id conn,
                              const struct ps_msg *msg,
                              const struct ps_slice *payload, int thrown);
void ps_server_session_on_ping_req(struct ps_server_step *st,
                                   const struct ps_msg_ping_req *m);
void ps_server_session_on_closed(struct ps_server_step *st, ps_conn_id conn);
void ps_server_session_tick(struct ps_server_step *st);
ps_time ps_server_session_deadline(const struct ps_server *s);
int ps_server_session_payload(struct ps_server *s, ps_conn_id conn,
                              const struct ps_msg *msg, uint64_t len,
                              struct ps_slice *ret_slice);
/* Hangs up on an agent that does what no agent does, and says so. */
void ps_server_session_close_bad(struct ps_server_step *st,
                                 struct ps_server_conn *c, const char *why);
/* The scheduler has named agents: one whose hello is held may be among them. */
void ps_server_session_verify_all(struct ps_server_step *st);
/* Forgets all agents. */
void ps_server_session_fini(struct ps_server *s);
/* Hangs up on all. */
void ps_server_session_close_all(struct ps_server_step *st);
/* In sequence; takes over one reference of the parcel. */
void ps_server_session_send(struct ps_server_step *st,
                            struct ps_server_session *p,
                            struct ps_packet *parcel);

/* -------------------------------------------------------------------- job.c */

void ps_server_on_job_state(struct ps_server_step *st,
                            const struct ps_msg_job_state *m);
struct ps_server_job *ps_server_job_find(const struct ps_server *s,
                                         uint64_t gen);
/* May this agent speak for the slot? 0, PS_E_INVAL, PS_E_PERM, or PS_E_STALE
 * when one of the two starts is not the one we know. */
int ps_server_job_find_slot(struct ps_server_job *job,
                            const struct ps_server_session *p, uint32_t slot,
                            struct ps_server_slot **ret_slot);
/* The agent speaks on a fresh link, on which it asks again: what it waited for
 * on the old one would be a second answer to that, and be taken for one to a
 * later question. */
void ps_server_job_drop_waits(struct ps_server *s,
                              const struct ps_server_session *p);
/* True: the scheduler named this start of the process as a job's agent. */
bool ps_server_job_names_agent(const struct ps_server *s,
                               const struct ps_msg_hello *m);
/* The agent of a slot; NULL: it is not known here. */
struct ps_server_session *
ps_server_slot_session(const struct ps_server_slot *slot);
void ps_server_on_job_quota(struct ps_server_step *st,
                            const struct ps_msg_job_quota *m);
/* Frees the job with all that belongs to it. */
void ps_server_job_free(struct ps_server *s, struct ps_server_job *job);

/* ------------------------------------------------------------------- push.c */

/* A list of parts as data messages have it, and the cursor over its payload. */
struct ps_server_parts {
    const struct ps_rec_part *parts;
    uint32_t count;
    const struct ps_slice *payload; /* NULL, or buf NULL: there is none. */
};

/* Payload bytes of all parts; false when there is an element type that does
 * not exist. */
bool ps_server_parts_bytes(const struct ps_rec_part *part, uint32_t count,
                           uint64_t *ret_bytes);
/* The bytes of one part within the payload, as a slice that stays: the same
 * memory, or a copy where the elements would lie at odd addresses or would
 * keep much other memory alive. The caller gets a reference. PS_E_NOMEM. */
int ps_server_parts_retain(struct ps_server_job *job,
                           const struct ps_slice *payload, uint64_t offset,
                           const struct ps_rec_part *part,
                           struct ps_slice *ret_slice);

void ps_server_on_push(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg,
                       const struct ps_slice *payload);
/* Would every byte of this push be thrown away, for being known already? */
bool ps_server_push_is_duplicate(const struct ps_server_job *job,
                                 const struct ps_msg_push *m);

/* All ranks of the slot pass in this round. */
void ps_server_push_mark_skipped(const struct ps_server_job *job,
                                 struct ps_open_round *open, uint32_t slot);

/* ------------------------------------------------------------------ async.c */

/* One part of a push that is applied when it arrives, as take() of a round. */
int ps_server_async_accept(struct ps_server_step *st,
                           struct ps_server_slot *slot,
                           const struct ps_msg_push *m,
                           const struct ps_rec_part *rec,
                           const struct ps_slice *payload, uint64_t offset);
/* Has this push come before? */
bool ps_server_async_is_duplicate(const struct ps_server_job *job,
                                  const struct ps_msg_push *m,
                                  const struct ps_rec_part *rec);
/* What was being applied is in the value: answers, and goes on. */
void ps_server_async_applied(struct ps_server_step *st,
                             struct ps_server_job *job, struct ps_part *part);
/* Forgets the pushes that are not applied yet. */
void ps_server_async_drop(struct ps_server_job *job, struct ps_part *part);

/* ------------------------------------------------------------------ merge.c */

/* The partition's round is complete. */
void ps_server_merge_start(struct ps_server_step *st, struct ps_server_job *job,
                           struct ps_part *part);
void ps_server_merge_on_computed(struct ps_server_step *st, uint64_t token,
                                 int rc);
/* Rounds that found no memory try again. */
void ps_server_merge_retry_starved(struct ps_server_step *st);
/* Forgets the contributions to the next version and what is computed from
 * them. */
void ps_server_merge_discard(struct ps_server *s, struct ps_server_job *job,
                             struct ps_part *part);

/* The computation that adds up the round's contributions, and what has been
 * gathered where the optimizer takes it (`steps`); what is done with the sum
 * is the caller's to say. */
struct ps_compute *ps_server_merge_sum(struct ps_server_merge *run, bool steps);
/* Hands the computation over; the run has its token. */
void ps_server_merge_submit(struct ps_server_step *st,
                            struct ps_server_merge *run, struct ps_compute *c);
/* The run, in which something is to be computed again, goes on. */
void ps_server_merge_continue(struct ps_server_step *st,
                              struct ps_server_merge *run);
/* The round makes no step, and the value stays; frees the run. */
void ps_server_merge_skip_step(struct ps_server_step *st,
                               struct ps_server_merge *run);

/* -------------------------------------------------------------- optimizer.c */

/* Are the partition's weights kept in another type than the one in which
 * steps are computed, float32? */
bool ps_server_optimizer_has_master(const struct ps_part *part);
/* Bytes of the optimizer's states that are not there yet. */
uint64_t ps_server_optimizer_missing(const struct ps_server_job *job,
                                     const struct ps_part *part);
/* Makes the optimizer's states, those that are not there yet. PS_E_NOMEM:
 * perhaps some of them. */
int ps_server_optimizer_make_states(struct ps_server_job *job,
                                    struct ps_part *part);
/* Which step is the next version to be made by? */
struct ps_optim_step_params
ps_server_optimizer_next_step(struct ps_server_job *job,
                              const struct ps_part *part);
/* Makes the computation one of this step, of a partition with its states. */
void ps_server_optimizer_add_step(struct ps_server_merge *run,
                                  const struct ps_optim_step_params *at,
                                  struct ps_compute *c);

/* ------------------------------------------------------------------- norm.c */

/* Does the step that is next need norms? */
bool ps_server_norm_is_needed(struct ps_server_job *job,
                              const struct ps_part *part);
/* Computes the part of the step that is next. PS_E_NOMEM: nothing has
 * happened. */
int ps_server_norm_launch(struct ps_server_step *st,
                          struct ps_server_merge *run);
/* A part of the step is computed. True: it was the last. */
bool ps_server_norm_on_computed(struct ps_server_step *st,
                                struct ps_server_merge *run);
/* The run waits no more. */
void ps_server_norm_stop_waiting(struct ps_server_merge *run);
void ps_server_on_norm_result(struct ps_server_step *st,
                              const struct ps_msg_norm_result *m);
/* To a scheduler that may know nothing of what this server has said. */
void ps_server_norm_resend(struct ps_server_step *st,
                           const struct ps_server_job *job);

/* --------------------------------------------------------------- conflict.c */

/* Attempts below this one at the next version are over; all slots that have
 * contributed hear so. `other` NULL: they are not told who differs. */
void ps_server_conflict_abort(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint32_t attempt,
                              const struct ps_server_conflict *other);
/* Is this attempt at the round the one that is under way? A later one ends
 * it. `part` may be NULL. 0, or why the contribution is not taken. */
int ps_server_conflict_check_retry(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   struct ps_part *part, uint64_t round,
                                   uint32_t attempt);
/* 0 unless this attempt is over; else the one below which they are. */
uint32_t ps_server_conflict_newer_retry(const struct ps_server_job *job,
                                        uint32_t key, uint32_t index,
                                        uint32_t attempt);
/* Is this contribution merged, waiting, or of an attempt that is over? */
bool ps_server_conflict_is_redundant(const struct ps_part *part, uint64_t round,
                                     uint32_t slot, uint32_t attempt);
/* The round is complete, and the root of this broadcast has passed. */
void ps_server_conflict_no_root(struct ps_server_step *st,
                                struct ps_server_job *job,
                                struct ps_part *part);
/* `mine` differs from what is there: the attempt is over. */
void ps_server_conflict_raise(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint64_t round,
                              const struct ps_server_conflict *mine,
                              struct ps_server_conflict *ret_others);

/* ------------------------------------------------------------------- pull.c */

void ps_server_on_pull(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg);
void ps_server_on_init(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg,
                       const struct ps_slice *payload);
void ps_server_on_abort_round(struct ps_server_step *st,
                              struct ps_server_conn *c,
                              const struct ps_msg_abort_round *m);
void ps_server_on_restore(struct ps_server_step *st, struct ps_server_conn *c,
                          const struct ps_msg *msg,
                          const struct ps_slice *payload);
bool ps_server_init_is_duplicate(const struct ps_server_job *job,
                                 const struct ps_msg_init *m);
/* Answers those who wait for the version that is there now; `told`, when not
 * NULL, are slots that get the value anyway. */
void ps_server_pull_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part,
                                  const struct ps_bits *told);

/* ------------------------------------------------------------------- rows.c */

/* May the payload of push_rows or pull_rows come in? */
int ps_server_rows_check_payload(struct ps_server *s,
                                 struct ps_server_session *p,
                                 const struct ps_msg *msg, uint64_t len,
                                 struct ps_server_slot **ret_slot);
void ps_server_on_push_rows(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload);
void ps_server_on_pull_rows(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload);
/* Those who wait for rows of the version that is there now. */
void ps_server_rows_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part);
/* The computation of a round of rows. `c` has its token; run->dst is where the
 * new value will be. PS_E_NOMEM: nothing has happened. */
int ps_server_rows_plan_merge(struct ps_server_merge *run,
                              struct ps_compute **ret_compute);
/* Does anybody give a row in this round, or does its end need none? */
bool ps_server_rows_is_noop(const struct ps_server_job *job,
                            const struct ps_part *part);

/* -------------------------------------------------------------- migration.c */

void ps_server_on_part_read(struct ps_server_step *st,
                            const struct ps_msg_part_read *m);
void ps_server_on_part_chunk(struct ps_server_step *st,
                             const struct ps_msg_part_chunk *m,
                             const struct ps_slice *payload);
void ps_server_on_part_end(struct ps_server_step *st,
                           const struct ps_msg_part_end *m);
/* Complete rounds of the partition wait: it is being moved away. */
bool ps_server_migration_freezes(const struct ps_server_job *job,
                                 const struct ps_part *part);
/* No computation of the partition is under way any more. */
void ps_server_migration_on_merged(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   const struct ps_part *part);
/* It is being moved, or was moved away. */
bool ps_server_migration_involves(const struct ps_server_job *job,
                                  const struct ps_rec_part *rec);
/* It is not here, whatever agents believe: it comes, or was moved away. */
bool ps_server_migration_bars(const struct ps_server_job *job,
                              const struct ps_rec_part *rec);
/* An agent knows from a placement of this epoch that the partition is here.
 * PS_E_STALE: what it gives is not to be taken now. */
int ps_server_migration_check_restore(struct ps_server_job *job,
                                      const struct ps_rec_part *rec,
                                      uint32_t epoch);
void ps_server_migrations_free(struct ps_server_job *job);

/* ------------------------------------------------------------------ reply.c */

/* The partition's value if it is wanted and there is one, else a commit of
 * `version`. Small ones wait for the next tick. */
void ps_server_reply_part(struct ps_server_step *st,
                          struct ps_server_slot *slot,
                          const struct ps_part *part, bool want,
                          uint64_t version);
void ps_server_reply_flush(struct ps_server_step *st);
void ps_server_reply_drop(struct ps_server_slot *slot);

/* Errors of the parts of one message, told together. */
struct ps_server_refusal {
    struct ps_rec_part parts[PS_PARTS_MAX];
    int rcs[PS_PARTS_MAX];
    uint32_t retries[PS_PARTS_MAX]; /* Of a mismatch: those below are over. */
    uint32_t count;
    struct ps_server_conflict conflict; /* Who gave something else. */
    int starved_rc; /* What has no payload is refused with; 0: as it is, */
    char text[PS_TEXT_MAX / 2]; /* and in these words. */
};
void ps_server_refusal_init(struct ps_server_refusal *r);
/* The payload of the message, `len` bytes, was thrown away for want of memory:
 * to be called before parts are added that are to be sent again. */
void ps_server_refusal_set_starved(struct ps_server_step *st,
                                   struct ps_server_refusal *r,
                                   const struct ps_server_slot *slot,
                                   uint64_t len);
void ps_server_refusal_add(struct ps_server_refusal *r,
                           const struct ps_rec_part *part, int rc,
                           uint32_t attempt);
void ps_server_refusal_send(struct ps_server_step *st,
                            struct ps_server_session *p, uint64_t gen,
                            const struct ps_server_slot *slot,
                            const struct ps_server_refusal *r);
/* All parts of a message for one reason. */
void ps_server_refuse_parts(struct ps_server_step *st,
                            struct ps_server_session *p, uint64_t gen,
                            const struct ps_server_slot *slot,
                            const struct ps_server_parts *parts, int rc);

/* ----------------------------------------------------------------- memory.c */

/* Memory for something of the job. PS_E_NOMEM. */
int ps_server_memory_alloc(struct ps_server_job *job, uint64_t len,
                           struct ps_buf **ret_buf);
/* Memory for the payload of a message of the slot. PS_E_AGAIN: ask again;
 * PS_E_NOMEM: throw it away, and see ps_server_memory_refusal. */
int ps_server_memory_alloc_payload(struct ps_server *s,
                                   struct ps_server_slot *slot,
                                   const struct ps_msg *msg, uint64_t len,
                                   struct ps_buf **ret_buf);
/* The round that is to be merged next, of those for which memory was short.
 * NULL: there is none, or nobody has contributed to it. */
const struct ps_open_round *
ps_server_memory_reserved_round(const struct ps_server_job *job);
/* The payload of a contribution was thrown away: when it is one to the round
 * that is to be merged next, and has waited for long, what the job has of other
 * rounds makes room. */
void ps_server_memory_reclaim(struct ps_server_step *st,
                              struct ps_server_slot *slot,
                              const struct ps_msg *msg, uint64_t len);
/* What a payload of `len` bytes that was thrown away is refused with:
 * PS_E_AGAIN, or PS_E_FULL with the reason. */
int ps_server_memory_refusal(struct ps_server_step *st,
                             const struct ps_server_slot *slot, uint64_t len,
                             struct ps_str *why);
/* True: no merge can make room for `len` bytes. */
bool ps_server_memory_is_exhausted(const struct ps_server *s, uint64_t len);
void ps_server_memory_describe(const struct ps_server *s,
                               const struct ps_server_job *job, uint64_t len,
                               struct ps_str *why);
/* A result found no memory. */
void ps_server_memory_note_shortage(struct ps_server *s);
/* True: a request found no memory of late. */
bool ps_server_memory_is_short(const struct ps_server *s);

/* -------------------------------------------------------------- opt_state.c */

void ps_server_on_state_get(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_get *m);
void ps_server_on_state_put(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_put *m,
                            const struct ps_slice *payload);

/* ----------------------------------------------------------------- credit.c */

/* The flow of a job on the link to `p`; made when there is none. */
struct ps_credit *ps_server_credit_get(struct ps_server *s,
                                       struct ps_server_session *p,
                                       uint64_t gen);
/* The credit to put into an answer. `slot` NULL: the job is not known. */
uint64_t ps_server_credit_announce(struct ps_server *s,
                                   struct ps_server_session *p, uint64_t gen,
                                   const struct ps_server_slot *slot);
/* After a push: tell the credit alone when no answer carries it. */
void ps_server_credit_send_if_due(struct ps_server_step *st,
                                  struct ps_server_session *p,
                                  const struct ps_server_slot *slot);
/* A push of `len` payload bytes begins to come, and has come. */
void ps_server_credit_push_begins(struct ps_server_slot *slot);
void ps_server_credit_push_ended(struct ps_server_slot *slot, uint64_t len);
/* Is the slot so far ahead of others that these should have the link? Never
 * of all slots at once. */
bool ps_server_credit_is_ahead(const struct ps_server_slot *slot);
/* Something changed in who waits for whom. */
void ps_server_credit_mark_job(struct ps_server_job *job);
/* At the end of a step: nobody may wait for everybody. */
void ps_server_credit_unblock_jobs(struct ps_server_step *st);
void ps_server_credit_drop_all(struct ps_server_session *p);
