/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the server machine; for shard*.c alone.
 *
 *     shard.c         the machine's three calls, time, what checkers ask
 *     shard_up.c      the scheduler: dialling, heartbeat, what it tells
 *     shard_peer.c    agents: hello, links, memory for what they send
 *     shard_job.c     jobs and their slots: from job_state to the end
 *     shard_push.c    contributions
 *     shard_merge.c   a complete round: computing, the new version
 *     shard_step.c    the optimizer's part of that
 *     shard_norm.c    steps that need norms of whole arrays
 *     shard_apply.c   pushes without rounds
 *     shard_pull.c    pull, init, resume
 *     shard_answer.c  value, commit, refuse
 *     shard_attempt.c slots that disagree about a round
 *     shard_rows.c    keys of rows: contributions, their merge, pulls
 *     shard_state.c   optimizer state, saved and loaded
 *     shard_move.c    partitions that go to another server, or come
 *     shard_credit.c  how far agents may run ahead
 *     shard_room.c    memory, and what becomes of those that find none */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/str.h"
#include "core/caller.h"
#include "core/compress.h"
#include "core/flow.h"
#include "core/link.h"
#include "core/optim.h"
#include "core/pace.h"
#include "core/shard.h"
#include "core/store.h"

/* A connection that says nothing for so long after it opened is cut. */
#define HELLO_WAIT    PS_SECONDS(10)
/* The hello of an agent that the scheduler has not named here waits for so
 * long: both are on their way at the same time when an agent has been started
 * again, or this server takes a place in its job. */
#define HELD_WAIT     PS_SECONDS(2)
/* A round that found no memory for its result tries again after this. */
#define STARVED_WAIT  PS_MILLIS(10)
/* Of those, tried at a time. */
#define STARVED_TRIES 256u
/* What can never have memory fails after this. */
#define HOPELESS_WAIT PS_SECONDS(2)

/* The conversation with the scheduler. */
struct ps_shard_up {
    struct ps_caller caller;
    uint64_t instance; /* Of the scheduler that welcomed us last; 0: none. */
    ps_time refused_since; /* Another process has our name; 0: none has. */
    bool name_lost;        /* For good: this daemon ends. */
    uint32_t node;         /* Ours. */
    uint64_t incarnation;
    ps_time heartbeat;
    ps_time ping_at;
    ps_time costs_at;
    ps_time pinged_at; /* Last ping. */
};

/* An accepted connection. */
struct ps_shard_conn {
    struct ps_list_node node; /* In `strangers` until it says hello, in `held`
                               * until the scheduler names it. */
    ps_conn_id id;
    ps_time since;              /* In that list. */
    struct ps_shard_peer *peer; /* NULL: a stranger. */
    struct ps_msg *hello;       /* Own; held. NULL: none is. */
    int thrown; /* Why the payload of this frame was thrown away. */
};

/* An agent and the link to it. */
struct ps_shard_peer {
    struct ps_heap_item timer; /* In `timers`, by when it is due. */
    struct ps_list_node node;  /* In `crowded`. */
    uint32_t number;           /* Its node. */
    uint64_t incarnation;
    uint64_t instance;
    uint64_t session;
    bool confirmed; /* It knows of the session: it has said something. */
    struct ps_link *link;
    struct ps_shard_conn *conn; /* NULL: it is away since `closed_at`. */
    ps_time heard_at;           /* The last message came. */
    ps_time closed_at;
    struct ps_map *flows; /* struct ps_flow by generation. */
};

/* Answers about small partitions, collected until the next tick. */
struct ps_shard_gather {
    struct ps_rec_part *parts; /* NULL when there are none. */
    struct ps_slice *slices;   /* Only of values. */
    uint32_t count;
    uint32_t slice_count; /* What lies together is one. */
    uint64_t bytes;
};

/* A contributor of a job. */
struct ps_shard_slot {
    struct ps_list_node node; /* In `gathering`. */
    struct ps_shard_job *job;
    uint32_t index;
    uint32_t number; /* Node of the agent. */
    uint64_t incarnation;
    uint64_t instance;
    uint64_t held;       /* Push bytes that wait to be merged. */
    ps_time began_at;    /* A push with a payload did, and is coming; or 0. */
    ps_time ended_at;    /* The last such push did; 0: none yet. */
    ps_time short_since; /* Nothing of it has found memory; 0: it has. */
    uint32_t present;    /* In how many of job->lacking. */
    struct ps_shard_gather values;
    struct ps_shard_gather commits;
};

/* Slots that an error names. */
#define PS_SIDE_MAX 64u

/* Some that agree in what they ask for. */
struct ps_shard_side {
    uint32_t slot[PS_SIDE_MAX];
    uint32_t count;
    uint8_t reduce;
    bool assign;
};

/* Memory that the scheduler has admitted a job's keys with. */
struct ps_shard_room {
    uint64_t number; /* Of the message that said so; 0: nothing was said. */
    uint64_t bytes;
    uint64_t rounds; /* Of these, for the round that is to be merged next. */
};

/* The round of a job that is to be merged next when memory is short. */
struct ps_shard_next {
    uint32_t key;
    uint32_t index;
    uint64_t round; /* 0: none. */
    ps_time since;
};

struct ps_shard_job {
    struct ps_shard *shard;
    struct ps_list_node node; /* In `dirty`. */
    uint64_t gen;
    uint32_t version;
    char name[PS_NAME_MAX + 1];
    bool optimizes;
    struct ps_optim optim; /* When it does. */
    struct ps_tunings tunings;
    uint64_t newest; /* Highest version of a partition, made or being made. */
    struct ps_compress compress;
    struct ps_shard_slot *slots;
    uint32_t slot_count;
    struct ps_store store;
    struct ps_shard_room room;
    struct ps_pool_share *share; /* Its part of the server's memory. */
    struct ps_account account;   /* Measured when it is told. */
    struct ps_shard_next next;
    ps_time short_noted;   /* No line about memory before this. */
    struct ps_map *moves;  /* Of partitions, by id; NULL: there was none. */
    struct ps_map *asking; /* Runs that wait for norms, by key. */
    uint32_t lacking;      /* Rounds that wait for somebody. */
    uint32_t running;      /* Rounds that are complete and not yet merged. */
    struct ps_rate rate;   /* Of contributions, from all slots. */
    /* What cannot be made again, if there is anything. */
    struct {
        bool known;
        uint32_t key;
        uint32_t index;
        uint64_t version;
    } lost;
};

/* A complete round on its way to a version. */
struct ps_shard_run {
    struct ps_list_node node; /* In `starved`. */
    struct ps_shard_job *job;
    struct ps_part *part;
    uint64_t token;       /* 0: waits for memory, or for norms. */
    ps_time short_since;  /* It waits for memory; 0: it does not. */
    struct ps_slice dst;  /* Own reference. */
    struct ps_slice code; /* Of dst, to travel in its place; buf NULL: none. */
    bool gathers;         /* dst waits for the optimizer, with later rounds. */
    /* Of a step that needs norms: */
    bool staged;
    bool asks;   /* Waits for them. */
    bool summed; /* The contributions are in `work`. */
    struct ps_optim_at at;
    struct ps_slice work;   /* The gradient, or what the weights move along. */
    struct ps_buf *squares; /* Of `work` and of the weights. */
    struct ps_shard_run *next; /* Asks for another partition of the key. */
};

struct ps_shard {
    struct ps_shard_options opt;
    struct ps_rng rng;
    struct ps_shard_up up;
    uint32_t epoch;
    bool draining; /* About to end: for no new job. */
    bool ending;   /* The operator wants it so. */

    struct ps_account account;
    struct ps_account_limits limits; /* Of that. */
    struct ps_map *conns;            /* Accepted, by id. */
    struct ps_list strangers;
    struct ps_list held;  /* Have said hello as somebody not known. */
    struct ps_map *peers; /* By node. */
    struct ps_heap timers;
    struct ps_list crowded; /* Peers with too many answers under way. */

    struct ps_map *jobs; /* By generation. */
    uint64_t ended[PS_ENDED_MAX];
    uint32_t ended_next;

    struct ps_map *runs; /* By token. */
    uint64_t next_token;
    ps_time now;      /* Of the last event. */
    ps_time pace_at;  /* Somebody held back may go on then, or never. */
    ps_time trim_at;  /* The pool's free memory; PS_TIME_NEVER. */
    ps_time short_at; /* Something found no memory; 0: never. */
    struct ps_list starved;
    ps_time starved_at;

    struct ps_list gathering;
    ps_time gathered_at;  /* NEVER: nothing is. */
    struct ps_list dirty; /* Jobs where somebody may have to be let on. */

    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t refused;
    uint64_t resent; /* On links that are gone. */
};

/* What every handler of a step needs. */
struct ps_shard_step {
    struct ps_shard *s;
    ps_time now;
    struct ps_effects *fx;
};

/* ------------------------------------------------------------ shard_up.c */

void ps_shard_up_init(struct ps_shard *s, ps_time now);
void ps_shard_up_fini(struct ps_shard *s);
void ps_shard_up_open(struct ps_shard_step *st, uint64_t target,
                      ps_conn_id conn);
void ps_shard_up_dial_failed(struct ps_shard_step *st, uint64_t target, int rc,
                             const char *why);
/* What is sent to it does not get through. */
void ps_shard_up_stalled(struct ps_shard_step *st);
void ps_shard_up_msg(struct ps_shard_step *st, ps_conn_id conn,
                     const struct ps_msg *msg, const struct ps_slice *payload);
int ps_shard_up_payload(struct ps_shard *s, const struct ps_msg *msg,
                        uint64_t len, struct ps_slice *ret_slice);
/* The scheduler hears at once that this server is about to end. */
void ps_shard_up_drain(struct ps_shard_step *st);
void ps_shard_up_closed(struct ps_shard_step *st, ps_conn_id conn, int rc);
/* No more of it: hangs up. */
void ps_shard_up_end(struct ps_shard_step *st);
void ps_shard_up_tick(struct ps_shard_step *st);
ps_time ps_shard_up_deadline(const struct ps_shard *s);
/* In sequence: now, or when the link goes on. One that begins afresh drops it;
 * what matters is offered again then. */
void ps_shard_up_tell(struct ps_shard_step *st, const struct ps_msg *msg);
/* job_ready, in sequence; nothing while the scheduler does not know us. */
void ps_shard_up_ready(struct ps_shard_step *st,
                       const struct ps_shard_job *job);
/* Tells the scheduler what the job has lost, if it has. */
void ps_shard_up_lost(struct ps_shard_step *st, const struct ps_shard_job *job);

/* ---------------------------------------------------------- shard_peer.c */

void ps_shard_peer_open(struct ps_shard_step *st, ps_conn_id conn,
                        const char *who);
void ps_shard_peer_msg(struct ps_shard_step *st, ps_conn_id conn,
                       const struct ps_msg *msg, const struct ps_slice *payload,
                       int thrown);
void ps_shard_peer_ping_req(struct ps_shard_step *st,
                            const struct ps_msg_ping_req *m);
void ps_shard_peer_closed(struct ps_shard_step *st, ps_conn_id conn);
void ps_shard_peer_tick(struct ps_shard_step *st);
ps_time ps_shard_peer_deadline(const struct ps_shard *s);
int ps_shard_peer_payload(struct ps_shard *s, ps_conn_id conn,
                          const struct ps_msg *msg, uint64_t len,
                          struct ps_slice *ret_slice);
/* Hangs up on an agent that does what no agent does, and says so. */
void ps_shard_peer_cut(struct ps_shard_step *st, struct ps_shard_conn *c,
                       const char *why);
/* The scheduler has named agents: one whose hello is held may be among them. */
void ps_shard_peer_named(struct ps_shard_step *st);
/* Forgets all agents. */
void ps_shard_peer_fini(struct ps_shard *s);
/* Hangs up on all. */
void ps_shard_peer_end(struct ps_shard_step *st);
/* In sequence; takes over one reference of the parcel. */
void ps_shard_peer_send(struct ps_shard_step *st, struct ps_shard_peer *p,
                        struct ps_parcel *parcel);

/* ----------------------------------------------------------- shard_job.c */

void ps_shard_job_state(struct ps_shard_step *st,
                        const struct ps_msg_job_state *m);
struct ps_shard_job *ps_shard_job_find(const struct ps_shard *s, uint64_t gen);
/* May this agent speak for the slot? 0, PS_E_INVAL, PS_E_PERM, or PS_E_STALE
 * when one of the two starts is not the one we know. */
int ps_shard_job_slot(struct ps_shard_job *job, const struct ps_shard_peer *p,
                      uint32_t slot, struct ps_shard_slot **ret_slot);
/* The agent speaks on a fresh link, on which it asks again: what it waited for
 * on the old one would be a second answer to that, and be taken for one to a
 * later question. */
void ps_shard_job_forget(struct ps_shard *s, const struct ps_shard_peer *p);
/* True: the scheduler named this start of the process as a job's agent. */
bool ps_shard_job_names(const struct ps_shard *s, const struct ps_msg_hello *m);
/* The agent of a slot; NULL: it is not known here. */
struct ps_shard_peer *ps_shard_job_peer(const struct ps_shard_slot *slot);
void ps_shard_job_room(struct ps_shard_step *st,
                       const struct ps_msg_job_room *m);
/* Frees the job with all that belongs to it. */
void ps_shard_job_free(struct ps_shard *s, struct ps_shard_job *job);

/* ---------------------------------------------------------- shard_push.c */

/* A list of parts as data messages have it, and the cursor over its payload. */
struct ps_shard_parts {
    const struct ps_rec_part *part;
    uint32_t count;
    const struct ps_slice *payload; /* NULL, or buf NULL: there is none. */
};

/* Payload bytes of all parts; false when there is an element type that does
 * not exist. */
bool ps_shard_parts_bytes(const struct ps_rec_part *part, uint32_t count,
                          uint64_t *ret_bytes);
/* The bytes of one part within the payload, as a slice that stays: the same
 * memory, or a copy where the elements would lie at odd addresses or would
 * keep much other memory alive. The caller gets a reference. PS_E_NOMEM. */
int ps_shard_parts_take(struct ps_shard_job *job,
                        const struct ps_slice *payload, uint64_t offset,
                        const struct ps_rec_part *part,
                        struct ps_slice *ret_slice);

void ps_shard_push(struct ps_shard_step *st, struct ps_shard_conn *c,
                   const struct ps_msg *msg, const struct ps_slice *payload);
/* Would every byte of this push be thrown away, for being known already? */
bool ps_shard_push_is_known(const struct ps_shard_job *job,
                            const struct ps_msg_push *m);

/* All ranks of the slot pass in this round. */
void ps_shard_push_passes(const struct ps_shard_job *job, struct ps_open *open,
                          uint32_t slot);

/* --------------------------------------------------------- shard_apply.c */

/* One part of a push that is applied when it arrives, as take() of a round. */
int ps_shard_apply_take(struct ps_shard_step *st, struct ps_shard_slot *slot,
                        const struct ps_msg_push *m,
                        const struct ps_rec_part *rec,
                        const struct ps_slice *payload, uint64_t offset);
/* Has this push come before? */
bool ps_shard_apply_is_known(const struct ps_shard_job *job,
                             const struct ps_msg_push *m,
                             const struct ps_rec_part *rec);
/* What was being applied is in the value: answers, and goes on. */
void ps_shard_apply_made(struct ps_shard_step *st, struct ps_shard_job *job,
                         struct ps_part *part);
/* Forgets the pushes that are not applied yet. */
void ps_shard_apply_drop(struct ps_shard_job *job, struct ps_part *part);

/* --------------------------------------------------------- shard_merge.c */

/* The partition's round is complete. */
void ps_shard_merge_start(struct ps_shard_step *st, struct ps_shard_job *job,
                          struct ps_part *part);
void ps_shard_merge_computed(struct ps_shard_step *st, uint64_t token, int rc);
/* Rounds that found no memory try again. */
void ps_shard_merge_retry(struct ps_shard_step *st);
/* Forgets the contributions to the next version and what is computed from
 * them. */
void ps_shard_merge_drop(struct ps_shard *s, struct ps_shard_job *job,
                         struct ps_part *part);

/* The computation that adds up the round's contributions, and what has been
 * gathered where the optimizer takes it (`steps`); what is done with the sum
 * is the caller's to say. */
struct ps_compute *ps_shard_merge_sum(struct ps_shard_run *run, bool steps);
/* Hands the computation over; the run has its token. */
void ps_shard_merge_submit(struct ps_shard_step *st, struct ps_shard_run *run,
                           struct ps_compute *c);
/* The run, in which something is to be computed again, goes on. */
void ps_shard_merge_go_on(struct ps_shard_step *st, struct ps_shard_run *run);
/* The round makes no step, and the value stays; frees the run. */
void ps_shard_merge_skip(struct ps_shard_step *st, struct ps_shard_run *run);

/* ---------------------------------------------------------- shard_step.c */

/* Are the partition's weights kept in another type than the one in which
 * steps are computed, float32? */
bool ps_shard_step_is_half(const struct ps_part *part);
/* Bytes of the optimizer's states that are not there yet. */
uint64_t ps_shard_step_missing(const struct ps_shard_job *job,
                               const struct ps_part *part);
/* Makes the optimizer's states, those that are not there yet. PS_E_NOMEM:
 * perhaps some of them. */
int ps_shard_step_states(struct ps_shard_job *job, struct ps_part *part);
/* Which step is the next version to be made by? */
struct ps_optim_at ps_shard_step_at(struct ps_shard_job *job,
                                    const struct ps_part *part);
/* Makes the computation one of this step, of a partition with its states. */
void ps_shard_step_add(struct ps_shard_run *run, const struct ps_optim_at *at,
                       struct ps_compute *c);

/* ---------------------------------------------------------- shard_norm.c */

/* Does the step that is next need norms? */
bool ps_shard_norm_needed(struct ps_shard_job *job, const struct ps_part *part);
/* Computes the part of the step that is next. PS_E_NOMEM: nothing has
 * happened. */
int ps_shard_norm_launch(struct ps_shard_step *st, struct ps_shard_run *run);
/* A part of the step is computed. True: it was the last. */
bool ps_shard_norm_computed(struct ps_shard_step *st, struct ps_shard_run *run);
/* The run waits no more. */
void ps_shard_norm_forget(struct ps_shard_run *run);
void ps_shard_norms(struct ps_shard_step *st, const struct ps_msg_norms *m);
/* To a scheduler that may know nothing of what this server has said. */
void ps_shard_norm_offer(struct ps_shard_step *st,
                         const struct ps_shard_job *job);

/* ------------------------------------------------------- shard_attempt.c */

/* Attempts below this one at the next version are over; all slots that have
 * contributed hear so. `other` NULL: they are not told who differs. */
void ps_shard_attempt_void(struct ps_shard_step *st, struct ps_shard_job *job,
                           struct ps_part *part, uint32_t attempt,
                           const struct ps_shard_side *other);
/* Is this attempt at the round the one that is under way? A later one ends
 * it. `part` may be NULL. 0, or why the contribution is not taken. */
int ps_shard_attempt_check(struct ps_shard_step *st, struct ps_shard_job *job,
                           struct ps_part *part, uint64_t round,
                           uint32_t attempt);
/* 0 unless this attempt is over; else the one below which they are. */
uint32_t ps_shard_attempt_over(const struct ps_shard_job *job, uint32_t key,
                               uint32_t index, uint32_t attempt);
/* Is this contribution merged, waiting, or of an attempt that is over? */
bool ps_shard_attempt_knows(const struct ps_part *part, uint64_t round,
                            uint32_t slot, uint32_t attempt);
/* The round is complete, and the root of this broadcast has passed. */
void ps_shard_attempt_rootless(struct ps_shard_step *st,
                               struct ps_shard_job *job, struct ps_part *part);
/* `mine` differs from what is there: the attempt is over. */
void ps_shard_attempt_disagree(struct ps_shard_step *st,
                               struct ps_shard_job *job, struct ps_part *part,
                               uint64_t round, const struct ps_shard_side *mine,
                               struct ps_shard_side *ret_others);

/* ---------------------------------------------------------- shard_pull.c */

void ps_shard_pull(struct ps_shard_step *st, struct ps_shard_conn *c,
                   const struct ps_msg *msg);
void ps_shard_init(struct ps_shard_step *st, struct ps_shard_conn *c,
                   const struct ps_msg *msg, const struct ps_slice *payload);
void ps_shard_give_up(struct ps_shard_step *st, struct ps_shard_conn *c,
                      const struct ps_msg_give_up *m);
void ps_shard_resume(struct ps_shard_step *st, struct ps_shard_conn *c,
                     const struct ps_msg *msg, const struct ps_slice *payload);
bool ps_shard_init_is_known(const struct ps_shard_job *job,
                            const struct ps_msg_init *m);
/* Answers those who wait for the version that is there now; `told`, when not
 * NULL, are slots that get the value anyway. */
void ps_shard_pull_answer(struct ps_shard_step *st, struct ps_shard_job *job,
                          struct ps_part *part, const struct ps_bits *told);

/* ---------------------------------------------------------- shard_rows.c */

/* May the payload of push_rows or pull_rows come in? */
int ps_shard_rows_judge(struct ps_shard *s, struct ps_shard_peer *p,
                        const struct ps_msg *msg, uint64_t len,
                        struct ps_shard_slot **ret_slot);
void ps_shard_push_rows(struct ps_shard_step *st, struct ps_shard_conn *c,
                        const struct ps_msg *msg,
                        const struct ps_slice *payload);
void ps_shard_pull_rows(struct ps_shard_step *st, struct ps_shard_conn *c,
                        const struct ps_msg *msg,
                        const struct ps_slice *payload);
/* Those who wait for rows of the version that is there now. */
void ps_shard_rows_answer(struct ps_shard_step *st, struct ps_shard_job *job,
                          struct ps_part *part);
/* The computation of a round of rows. `c` has its token; run->dst is where the
 * new value will be. PS_E_NOMEM: nothing has happened. */
int ps_shard_rows_plan(struct ps_shard_run *run,
                       struct ps_compute **ret_compute);
/* Does anybody give a row in this round, or does its end need none? */
bool ps_shard_rows_idle(const struct ps_shard_job *job,
                        const struct ps_part *part);

/* ---------------------------------------------------------- shard_move.c */

void ps_shard_move_read(struct ps_shard_step *st,
                        const struct ps_msg_part_read *m);
void ps_shard_move_write(struct ps_shard_step *st,
                         const struct ps_msg_part_piece *m,
                         const struct ps_slice *payload);
void ps_shard_move_end(struct ps_shard_step *st,
                       const struct ps_msg_part_end *m);
/* Complete rounds of the partition wait: it is being moved away. */
bool ps_shard_move_freezes(const struct ps_shard_job *job,
                           const struct ps_part *part);
/* No computation of the partition is under way any more. */
void ps_shard_move_merged(struct ps_shard_step *st, struct ps_shard_job *job,
                          const struct ps_part *part);
/* It is being moved, or was moved away. */
bool ps_shard_move_involves(const struct ps_shard_job *job,
                            const struct ps_rec_part *rec);
/* It is not here, whatever agents believe: it comes, or was moved away. */
bool ps_shard_move_bars(const struct ps_shard_job *job,
                        const struct ps_rec_part *rec);
/* An agent knows from a placement of this epoch that the partition is here.
 * PS_E_STALE: what it gives is not to be taken now. */
int ps_shard_move_resumes(struct ps_shard_job *job,
                          const struct ps_rec_part *rec, uint32_t epoch);
void ps_shard_moves_free(struct ps_shard_job *job);

/* -------------------------------------------------------- shard_answer.c */

/* The partition's value if it is wanted and there is one, else a commit of
 * `version`. Small ones wait for the next tick. */
void ps_shard_answer(struct ps_shard_step *st, struct ps_shard_slot *slot,
                     const struct ps_part *part, bool want, uint64_t version);
void ps_shard_answer_flush(struct ps_shard_step *st);
void ps_shard_answer_drop(struct ps_shard_slot *slot);

/* Errors of the parts of one message, told together. */
struct ps_shard_refusal {
    struct ps_rec_part parts[PS_PARTS_MAX];
    int rc[PS_PARTS_MAX];
    uint32_t attempt[PS_PARTS_MAX]; /* Of a mismatch: those below are over. */
    uint32_t count;
    struct ps_shard_side side; /* Who gave something else. */
    int short_rc; /* What has no payload is refused with; 0: as it is, */
    char text[PS_TEXT_MAX / 2]; /* and in these words. */
};
void ps_shard_refusal_init(struct ps_shard_refusal *r);
/* The payload of the message, `len` bytes, was thrown away for want of memory:
 * to be called before parts are added that are to be sent again. */
void ps_shard_refusal_short(struct ps_shard_step *st,
                            struct ps_shard_refusal *r,
                            const struct ps_shard_slot *slot, uint64_t len);
void ps_shard_refusal_add(struct ps_shard_refusal *r,
                          const struct ps_rec_part *part, int rc,
                          uint32_t attempt);
void ps_shard_refusal_send(struct ps_shard_step *st, struct ps_shard_peer *p,
                           uint64_t gen, const struct ps_shard_slot *slot,
                           const struct ps_shard_refusal *r);
/* All parts of a message for one reason. */
void ps_shard_refuse(struct ps_shard_step *st, struct ps_shard_peer *p,
                     uint64_t gen, const struct ps_shard_slot *slot,
                     const struct ps_shard_parts *parts, int rc);

/* ---------------------------------------------------------- shard_room.c */

/* Memory for something of the job. PS_E_NOMEM. */
int ps_shard_room_take(struct ps_shard_job *job, uint64_t len,
                       struct ps_buf **ret_buf);
/* Memory for the payload of a message of the slot. PS_E_AGAIN: ask again;
 * PS_E_NOMEM: throw it away, and see ps_shard_room_refuses. */
int ps_shard_room_get(struct ps_shard *s, struct ps_shard_slot *slot,
                      const struct ps_msg *msg, uint64_t len,
                      struct ps_buf **ret_buf);
/* The round that is to be merged next, of those for which memory was short.
 * NULL: there is none, or nobody has contributed to it. */
const struct ps_open *ps_shard_room_next(const struct ps_shard_job *job);
/* The payload of a contribution was thrown away: when it is one to the round
 * that is to be merged next, and has waited for long, what the job has of other
 * rounds makes room. */
void ps_shard_room_make(struct ps_shard_step *st, struct ps_shard_slot *slot,
                        const struct ps_msg *msg, uint64_t len);
/* What a payload of `len` bytes that was thrown away is refused with:
 * PS_E_AGAIN, or PS_E_FULL with the reason. */
int ps_shard_room_refuses(struct ps_shard_step *st,
                          const struct ps_shard_slot *slot, uint64_t len,
                          struct ps_str *why);
/* True: no merge can make room for `len` bytes. */
bool ps_shard_room_is_hopeless(const struct ps_shard *s, uint64_t len);
void ps_shard_room_text(const struct ps_shard *s,
                        const struct ps_shard_job *job, uint64_t len,
                        struct ps_str *why);
/* A result found no memory. */
void ps_shard_room_starved(struct ps_shard *s);
/* True: a request found no memory of late. */
bool ps_shard_room_is_full(const struct ps_shard *s);

/* --------------------------------------------------------- shard_state.c */

void ps_shard_state_get(struct ps_shard_step *st, struct ps_shard_conn *c,
                        const struct ps_msg_state_get *m);
void ps_shard_state_put(struct ps_shard_step *st, struct ps_shard_conn *c,
                        const struct ps_msg_state_put *m,
                        const struct ps_slice *payload);

/* -------------------------------------------------------- shard_credit.c */

/* The flow of a job on the link to `p`; made when there is none. */
struct ps_flow *ps_shard_credit_flow(struct ps_shard *s,
                                     struct ps_shard_peer *p, uint64_t gen);
/* The credit to put into an answer. `slot` NULL: the job is not known. */
uint64_t ps_shard_credit_now(struct ps_shard *s, struct ps_shard_peer *p,
                             uint64_t gen, const struct ps_shard_slot *slot);
/* After a push: tell the credit alone when no answer carries it. */
void ps_shard_credit_tell(struct ps_shard_step *st, struct ps_shard_peer *p,
                          const struct ps_shard_slot *slot);
/* A push of `len` payload bytes begins to come, and has come. */
void ps_shard_credit_begin(struct ps_shard_slot *slot);
void ps_shard_credit_end(struct ps_shard_slot *slot, uint64_t len);
/* Is the slot so far ahead of others that these should have the link? Never
 * of all slots at once. */
bool ps_shard_credit_ahead(const struct ps_shard_slot *slot);
/* Something changed in who waits for whom. */
void ps_shard_credit_dirty(struct ps_shard_job *job);
/* At the end of a step: nobody may wait for everybody. */
void ps_shard_credit_settle(struct ps_shard_step *st);
void ps_shard_credit_drop(struct ps_shard_peer *p);
