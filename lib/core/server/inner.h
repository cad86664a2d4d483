/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the server machine; for the files of this folder only.
 *
 *     server.c        the machine's three calls, timers, statistics
 *     uplink.c        the link to the scheduler: reports, messages
 *     session.c       agents: hello, links, memory for payloads
 *     job.c           jobs and their slots: from job_state to the end
 *     contribution.c  acceptance of contributions, whatever their kind
 *     push.c          dense contributions
 *     merge.c         merge of a complete round, publication of its version
 *     optimizer.c     optimizer step of a merge
 *     norm.c          steps that need norms of whole arrays
 *     async.c         pushes of async and ssp jobs
 *     pull.c          pull, init, restore
 *     reply.c         value, commit, refuse
 *     conflict.c      conflicting contributions, retry numbers
 *     rows.c          rows keys: contributions, merge, pulls
 *     opt_state.c     optimizer state, saved and loaded
 *     migration.c     partitions that migrate to or from another server
 *     credit.c        credit, pacing, slots that block their job
 *     memory.c        quotas, reserved rounds, refusals for memory */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/str.h"
#include "core/link/dialer.h"
#include "core/codec/compression.h"
#include "core/round/credit.h"
#include "core/link/link.h"
#include "core/link/uplink.h"
#include "core/optim/optim.h"
#include "core/round/pacing.h"
#include "core/server/server.h"
#include "core/server/store.h"

/* An accepted connection without a hello is closed after this time. */
#define HELLO_TIMEOUT       PS_SECONDS(10)
/* The hello of an unverified agent waits this long for the scheduler to name
 * it: hello and job_state race when the agent was restarted or this server
 * joins its job. */
#define VERIFY_TIMEOUT      PS_SECONDS(2)
/* A round without memory for its result tries again after this time. */
#define STARVED_WAIT        PS_MILLIS(10)
/* Starved rounds tried in one tick. */
#define STARVED_RETRIES_MAX 256u
/* A request fails after this time if no merge can free enough memory for it. */
#define OUT_OF_MEMORY_AFTER PS_SECONDS(2)

/* An accepted connection. */
struct ps_server_conn {
    /* In `handshaking` until the hello, in `unverified` until the scheduler
     * names the agent. */
    struct ps_list_node node;
    ps_conn_id id;
    ps_time listed_at;                 /* When `node` was listed. */
    struct ps_server_session *session; /* NULL: before the handshake. */
    struct ps_msg *unverified_hello;   /* Owned; NULL: none. */
    int discard_reason;                /* payload()'s error for this frame. */
};

/* An agent and the link to it. */
struct ps_server_session {
    struct ps_heap_item timer;     /* In `session_timers`. */
    struct ps_list_node list_node; /* In `backlogged`. */
    uint32_t agent_node;
    uint64_t incarnation;
    uint64_t instance;
    uint64_t session_id;
    struct ps_link *link;
    struct ps_server_conn *conn; /* NULL: disconnected. */
    ps_time heard_at;            /* Arrival of the last message. */
    ps_time disconnected_at;
    struct ps_map *credits; /* struct ps_credit by generation. */
};

/* Replies about small partitions, collected until the next tick. */
struct ps_server_batch {
    struct ps_rec_part *parts; /* NULL: empty. */
    struct ps_slice *slices;   /* Of values only. */
    uint32_t part_count;
    uint32_t slice_count; /* Adjacent values share a slice. */
    uint64_t payload_bytes;
};

/* A contributor of a job. */
struct ps_server_slot {
    struct ps_list_node list_node; /* In `batching_slots`. */
    struct ps_server_job *job;
    uint32_t index;
    uint32_t agent_node;
    uint64_t incarnation;
    uint64_t instance;
    uint64_t unmerged_bytes; /* Push bytes received, not merged. */
    ps_time receiving_since; /* A push arrives since then; 0: none. */
    ps_time last_push_at;    /* A push had arrived; 0: none yet. */
    ps_time starved_since;   /* 0: its payloads find memory. */
    /* Incomplete rounds of the job to which the slot has contributed. */
    uint32_t contributed_rounds;
    struct ps_server_batch value_batch;
    struct ps_server_batch commit_batch;
};

/* Slots that one refusal names, at most. */
#define PS_CONFLICT_SLOTS_MAX 64u

/* Slots that ask for the same, and what: one side of a conflict. */
struct ps_server_conflict {
    uint32_t slots[PS_CONFLICT_SLOTS_MAX];
    uint32_t slot_count;
    uint8_t reduce;
    bool assign;
};

/* Memory that the scheduler admitted a job with. */
struct ps_server_quota {
    uint64_t version; /* Of job_quota; 0: none yet. */
    uint64_t bytes;
    uint64_t round_bytes; /* Of `bytes`, for the reserved round. */
};

/* The one round of a job that may allocate when memory is short. */
struct ps_server_reserved_round {
    uint32_t key;
    uint32_t index;
    uint64_t round; /* 0: none is chosen. */
    ps_time chosen_at;
};

struct ps_server_job {
    struct ps_server *server;
    struct ps_list_node node; /* In `credit_check_jobs`. */
    uint64_t gen;
    uint32_t version;
    char name[PS_NAME_MAX + 1];
    bool has_optimizer;
    struct ps_optim optim; /* If has_optimizer. */
    struct ps_tunings tunings;
    uint64_t newest_version; /* Of all partitions, made or being made. */
    struct ps_compression compression;
    struct ps_server_slot *slots;
    uint32_t slot_count;
    struct ps_store store;
    struct ps_server_quota quota;
    struct ps_pool_share *pool_share; /* Pool bytes that the job uses. */
    struct ps_account account;        /* Updated before each cost report. */
    struct ps_server_reserved_round reserved_round;
    ps_time next_shortage_log_at;   /* Limits the rate of shortage warnings. */
    struct ps_map *migrations;      /* By partition; NULL: none yet. */
    struct ps_map *norm_waits;      /* Staged merges that wait, by key. */
    uint32_t incomplete_rounds;     /* Open rounds that lack a slot. */
    uint32_t merging_rounds;        /* Complete rounds not in norm_waits. */
    struct ps_rate_meter push_rate; /* Payload bytes of all slots. */
    /* Version that no server or agent holds any more, if `known`. */
    struct {
        bool known;
        uint32_t key;
        uint32_t index;
        uint64_t version;
    } lost_value;
};

/* Merge of a complete round, until its version is published. */
struct ps_server_merge {
    struct ps_list_node node; /* In `starved_merges`. */
    struct ps_server_job *job;
    struct ps_part *part;
    uint64_t token;          /* 0: waits for memory, or for norms. */
    ps_time starved_since;   /* 0: does not wait for memory. */
    struct ps_slice result;  /* New value or accumulated sum; owned. */
    struct ps_slice encoded; /* Encoded result, sent instead; buf NULL: none. */
    bool accumulates;        /* The result is accumulated, no step. */
    /* The step needs norms; only then are the fields below in use. */
    bool is_staged;
    bool awaits_norms; /* In job->norm_waits. */
    bool is_summed;    /* `work` has the contributions' sum. */
    struct ps_optim_step_params step_params;
    struct ps_slice work;                 /* Gradient or direction, by stage. */
    struct ps_buf *square_sums;           /* Of `work`, of the weights. */
    struct ps_server_merge *next_waiting; /* Of the same key. */
};

struct ps_server {
    struct ps_server_options opt;
    struct ps_rng rng;
    struct ps_uplink uplink;
    uint32_t epoch;
    bool draining; /* About to end; takes no new job. */
    bool ending;   /* Shutting down; accepts no connection. */

    struct ps_account account;
    struct ps_account_limits account_limits; /* Limits of `account`. */
    struct ps_map *conns;                    /* Accepted connections, by id. */
    struct ps_list handshaking;
    struct ps_list unverified; /* Connections whose hello is held. */
    struct ps_map *sessions;   /* By agent node. */
    struct ps_heap session_timers;
    struct ps_list backlogged; /* Sessions to be closed. */

    struct ps_map *jobs; /* By generation. */
    uint64_t ended_jobs[PS_ENDED_JOBS_MAX];
    uint32_t ended_jobs_next;

    struct ps_map *merges; /* Computing, by token. */
    uint64_t last_token;
    ps_time now;              /* Time of the last event. */
    ps_time read_retry_at;    /* For payloads that wait; or PS_TIME_NEVER. */
    ps_time pool_trim_at;     /* PS_TIME_NEVER: nothing to trim. */
    ps_time last_shortage_at; /* An allocation failed; 0: never. */
    struct ps_list starved_merges;
    ps_time starved_retry_at;

    struct ps_list batching_slots;
    ps_time flush_at;                 /* PS_TIME_NEVER: no batch is open. */
    struct ps_list credit_check_jobs; /* At the end of the step. */

    uint64_t rounds;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t refused_parts;
    uint64_t resent_closed; /* Frames sent again by freed links. */
};

/* Context of one call of step(). */
struct ps_server_step {
    struct ps_server *s;
    ps_time now;
    struct ps_effects *fx;
};

/* ----------------------------------------------------------------- uplink.c */

static inline struct ps_uplink_call
ps_server_uplink_call(struct ps_server_step *st)
{
    return (struct ps_uplink_call){.context = st, .now = st->now, .fx = st->fx};
}
void ps_server_uplink_init(struct ps_server *s, ps_time now);
void ps_server_uplink_on_msg(struct ps_server_step *st, ps_conn_id conn,
                             const struct ps_msg *msg,
                             const struct ps_slice *payload);
int ps_server_uplink_payload(struct ps_server *s, const struct ps_msg *msg,
                             uint64_t len, struct ps_slice *ret_slice);
/* Sends on the numbered stream: now, or when the link is resumed. A new session
 * of the link drops the message; on_new_session() then sends state again. */
void ps_server_uplink_send_msg(struct ps_server_step *st,
                               const struct ps_msg *msg);
/* Sends job_ready; nothing while the uplink is not connected. */
void ps_server_uplink_send_ready(struct ps_server_step *st,
                                 const struct ps_server_job *job);
/* Sends value_lost if the job has lost a version. */
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
/* Logs a protocol violation of an agent and closes its connection. */
void ps_server_session_close_bad(struct ps_server_step *st,
                                 struct ps_server_conn *c, const char *why);
/* Handles held hellos whose agents the scheduler has named meanwhile. */
void ps_server_session_verify_all(struct ps_server_step *st);
/* Frees all connections and sessions. */
void ps_server_session_fini(struct ps_server *s);
/* Closes all connections. */
void ps_server_session_close_all(struct ps_server_step *st);
/* Sends on the session's numbered stream; takes over one reference of the
 * packet. */
void ps_server_session_send(struct ps_server_step *st,
                            struct ps_server_session *p,
                            struct ps_packet *parcel);

/* -------------------------------------------------------------------- job.c */

void ps_server_on_job_state(struct ps_server_step *st,
                            const struct ps_msg_job_state *m);
struct ps_server_job *ps_server_job_find(const struct ps_server *s,
                                         uint64_t gen);
/* Finds a slot for a message of the session. PS_E_INVAL: no such slot;
 * PS_E_PERM: slot of another node; PS_E_STALE: another incarnation. */
int ps_server_job_find_slot(struct ps_server_job *job,
                            const struct ps_server_session *p, uint32_t slot,
                            struct ps_server_slot **ret_slot);
/* Drops pulls and batched replies of the agent, whose link began a new session:
 * the agent asks again, and a reply to the old request would be taken for one
 * to a later request. */
void ps_server_job_drop_waits(struct ps_server *s,
                              const struct ps_server_session *p);
/* True if the scheduler named this process as an agent of a job. */
bool ps_server_job_names_agent(const struct ps_server *s,
                               const struct ps_msg_hello *m);
/* Session of the slot's agent; NULL: none with the slot's incarnation. */
struct ps_server_session *
ps_server_slot_session(const struct ps_server_slot *slot);
void ps_server_on_job_quota(struct ps_server_step *st,
                            const struct ps_msg_job_quota *m);
/* Frees the job with its partitions, merges, replies and migrations. */
void ps_server_job_free(struct ps_server *s, struct ps_server_job *job);

/* ------------------------------------------------------------------- push.c */

/* Parts of a data message, with the payload that holds their bytes in order. */
struct ps_server_parts {
    const struct ps_rec_part *parts;
    uint32_t count;
    const struct ps_slice *payload; /* NULL, or buf NULL: none. */
};

/* Sums the payload bytes of all parts. False if a part has an unknown element
 * type, or encoded bytes that do not fit its elements. */
bool ps_server_parts_bytes(const struct ps_rec_part *part, uint32_t count,
                           uint64_t *ret_bytes);
/* Keeps the bytes of one part of the payload. Refers to the frame, or copies if
 * the elements are not aligned or are a small share of the frame's memory. The
 * caller gets a reference. PS_E_NOMEM. */
int ps_server_parts_retain(struct ps_server_job *job,
                           const struct ps_slice *payload, uint64_t offset,
                           const struct ps_rec_part *part,
                           struct ps_slice *ret_slice);

/* ------------------------------------------------------------------ async.c */

/* The applying pushes are in the value: replies to them, starts the next. */
void ps_server_async_applied(struct ps_server_step *st,
                             struct ps_server_job *job, struct ps_part *part);
/* Frees the pushes that are queued or being applied. */
void ps_server_async_drop(struct ps_server_job *job, struct ps_part *part);

/* ------------------------------------------------------------------ merge.c */

/* Merges the complete round of the partition, or publishes it at once where
 * nothing has to be computed. */
void ps_server_merge_start(struct ps_server_step *st, struct ps_server_job *job,
                           struct ps_part *part);
void ps_server_merge_on_computed(struct ps_server_step *st, uint64_t token,
                                 int rc);
/* Launches starved merges again. */
void ps_server_merge_retry_starved(struct ps_server_step *st);
/* Closes the open round: drops its contributions, its merge, and the async
 * pushes of the partition. */
void ps_server_merge_discard(struct ps_server *s, struct ps_server_job *job,
                             struct ps_part *part);

/* Returns a computation that sums the contributions, and the accumulated
 * gradient with them if `steps` or run->accumulates. The caller sets what is
 * done with the sum. */
struct ps_compute *ps_server_merge_sum(struct ps_server_merge *run, bool steps);
/* Hands the computation over under a new token of the run. */
void ps_server_merge_submit(struct ps_server_step *st,
                            struct ps_server_merge *run, struct ps_compute *c);
/* Launches the next computation of the run; without memory it is starved. */
void ps_server_merge_continue(struct ps_server_step *st,
                              struct ps_server_merge *run);
/* Publishes the round without a step or a new value; frees the run. */
void ps_server_merge_skip_step(struct ps_server_step *st,
                               struct ps_server_merge *run);

/* -------------------------------------------------------------- optimizer.c */

/* True if the value has a 16-bit type, so that steps use float32 master
 * weights. */
bool ps_server_optimizer_has_master(const struct ps_part *part);
/* Bytes of states and master weights that are not allocated yet. */
uint64_t ps_server_optimizer_missing(const struct ps_server_job *job,
                                     const struct ps_part *part);
/* Allocates missing states and master weights. PS_E_NOMEM: some may exist. */
int ps_server_optimizer_make_states(struct ps_server_job *job,
                                    struct ps_part *part);
/* Returns the parameters of the step that makes the next version, and raises
 * job->newest_version to it. */
struct ps_optim_step_params
ps_server_optimizer_next_step(struct ps_server_job *job,
                              const struct ps_part *part);
/* Makes the computation take the optimizer step too; the states exist. */
void ps_server_optimizer_add_step(struct ps_server_merge *run,
                                  const struct ps_optim_step_params *at,
                                  struct ps_compute *c);

/* ------------------------------------------------------------------- norm.c */

/* True if the next step of the partition needs norms. */
bool ps_server_norm_is_needed(struct ps_server_job *job,
                              const struct ps_part *part);
/* Launches the present stage of the step. PS_E_NOMEM: nothing has changed. */
int ps_server_norm_launch(struct ps_server_step *st,
                          struct ps_server_merge *run);
/* One stage is computed. True: it was the last. False: the run waits for
 * norms. */
bool ps_server_norm_on_computed(struct ps_server_step *st,
                                struct ps_server_merge *run);
/* Takes the run out of job->norm_waits. */
void ps_server_norm_stop_waiting(struct ps_server_merge *run);
void ps_server_on_norm_result(struct ps_server_step *st,
                              const struct ps_msg_norm_result *m);
/* Sends the waiting norm_parts of the job again, to a scheduler that may lack
 * them. */
void ps_server_norm_resend(struct ps_server_step *st,
                           const struct ps_server_job *job);

/* --------------------------------------------------------------- conflict.c */

/* Sets the retry number of the next round to `attempt`, and refuses all
 * contributions to the attempt that ends. `other` is the conflicting side that
 * the refusals name; NULL: none. */
void ps_server_conflict_abort(struct ps_server_step *st,
                              struct ps_server_job *job, struct ps_part *part,
                              uint32_t attempt,
                              const struct ps_server_conflict *other);
/* Compares `attempt` with the round's retry number: a lower one is refused, a
 * higher one aborts the attempt in progress unless that is complete. `part` may
 * be NULL. 0: accept; else the error. */
int ps_server_conflict_check_retry(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   struct ps_part *part, uint64_t round,
                                   uint32_t attempt);
/* Returns the partition's retry number if it is above `attempt`, else 0. */
uint32_t ps_server_conflict_newer_retry(const struct ps_server_job *job,
                                        uint32_t key, uint32_t index,
                                        uint32_t attempt);
/* True if the contribution is merged, waiting, or of an aborted attempt. */
bool ps_server_conflict_is_redundant(const struct ps_part *part, uint64_t round,
                                     uint32_t slot, uint32_t attempt);
/* Aborts a complete broadcast round whose root skipped it. */
void ps_server_conflict_no_root(struct ps_server_step *st,
                                struct ps_server_job *job,
                                struct ps_part *part);
/* Aborts the attempt because `mine` conflicts with its request, and names in
 * `ret_others` the slots that made that. */
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
/* Replies to pulls that the present version satisfies. `told`: slots that have
 * its value already; may be NULL. */
void ps_server_pull_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part,
                                  const struct ps_bits *told);

/* ------------------------------------------------------------------- rows.c */

/* Decides whether the payload of a pull_rows is received: 0, or the discard
 * reason. */
int ps_server_rows_check_payload(struct ps_server *s,
                                 struct ps_server_session *p,
                                 const struct ps_msg *msg, uint64_t len,
                                 struct ps_server_slot **ret_slot);
void ps_server_on_pull_rows(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload);
/* Replies to row pulls that the present version satisfies. */
void ps_server_rows_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part);
/* Returns the computation that merges a round of rows into run->result.
 * PS_E_NOMEM: nothing has changed. */
int ps_server_rows_plan_merge(struct ps_server_merge *run,
                              struct ps_compute **ret_compute);
/* True if the round changes no row: it has none, and rows without a gradient
 * stay. */
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
/* True if the partition migrates away: its complete rounds wait. */
bool ps_server_migration_freezes(const struct ps_server_job *job,
                                 const struct ps_part *part);
/* The partition's computation has ended: sends the chunk that waited. */
void ps_server_migration_on_merged(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   const struct ps_part *part);
/* True if the partition migrates in or out, or has migrated away. */
bool ps_server_migration_involves(const struct ps_server_job *job,
                                  const struct ps_rec_part *rec);
/* Returns why the slot cannot push to the partition or pull it: PS_E_MIGRATING
 * if it migrates in, PS_E_STALE if it has migrated away, or has come back
 * without a migration and the slot has not sent its state yet. 0: it can. */
int ps_server_migration_check_use(const struct ps_server_slot *slot,
                                  const struct ps_rec_part *rec);
/* Checks a restore by an agent whose placement has this epoch. One newer than
 * the migration away means that the partition came back. PS_E_STALE: refuse for
 * now. */
int ps_server_migration_check_restore(struct ps_server_step *st,
                                      const struct ps_server_slot *slot,
                                      const struct ps_rec_part *rec,
                                      uint32_t epoch);
/* The slot's restore was accepted. */
void ps_server_migration_on_restored(const struct ps_server_slot *slot,
                                     const struct ps_rec_part *rec);
void ps_server_migrations_free(struct ps_server_job *job);

/* ------------------------------------------------------------------ reply.c */

/* Replies with the value if `want` is set and there is one, else with a commit
 * of `version`. Small replies wait for the next tick. */
void ps_server_reply_part(struct ps_server_step *st,
                          struct ps_server_slot *slot,
                          const struct ps_part *part, bool want,
                          uint64_t version);
void ps_server_reply_flush(struct ps_server_step *st);
void ps_server_reply_drop(struct ps_server_slot *slot);

/* Errors of the parts of one message, sent together. */
struct ps_server_refusal {
    struct ps_rec_part parts[PS_PARTS_MAX];
    int rcs[PS_PARTS_MAX];
    /* Of a conflict: the least retry number that is valid now; else 0. */
    uint32_t retries[PS_PARTS_MAX];
    uint32_t count;
    /* Slots on the other side of a conflict, and their request. */
    struct ps_server_conflict conflict;
    /* Replaces PS_E_DISCARDED in parts whose payload found no memory; 0:
     * none. */
    int starved_rc;
    /* Error text for starved_rc. */
    char text[PS_TEXT_MAX / 2];
};
void ps_server_refusal_init(struct ps_server_refusal *r);
/* The message's payload, `len` bytes, was discarded for lack of memory: sets
 * starved_rc. To be called before parts are added. */
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
/* Refuses all parts of a message with one error. */
void ps_server_refuse_parts(struct ps_server_step *st,
                            struct ps_server_session *p, uint64_t gen,
                            const struct ps_server_slot *slot,
                            const struct ps_server_parts *parts, int rc);

/* ----------------------------------------------------------------- memory.c */

/* Allocates from the job's share of the pool. PS_E_NOMEM. */
static inline int ps_server_memory_alloc(struct ps_server_job *job,
                                         uint64_t len, struct ps_buf **ret_buf)
{
    return ps_pool_get_for(job->server->opt.pool, len, job->pool_share,
                           ret_buf);
}
/* Allocates a payload for a message of the slot. PS_E_AGAIN: the frame waits;
 * PS_E_NOMEM: it is discarded, see ps_server_memory_refusal(). */
int ps_server_memory_alloc_payload(struct ps_server *s,
                                   struct ps_server_slot *slot,
                                   const struct ps_msg *msg, uint64_t len,
                                   struct ps_buf **ret_buf);
/* Returns the job's reserved round; NULL: none is chosen, or it has no
 * contribution yet. */
const struct ps_open_round *
ps_server_memory_reserved_round(const struct ps_server_job *job);
/* A contribution's payload was discarded. If it is for the reserved round and
 * the slot is starved for long, voids other open rounds of the job. */
void ps_server_memory_reclaim(struct ps_server_step *st,
                              struct ps_server_slot *slot,
                              const struct ps_msg *msg, uint64_t len);
/* Error for a payload of `len` bytes that was discarded: PS_E_AGAIN, or
 * PS_E_FULL with the reason in `why`. */
int ps_server_memory_refusal(struct ps_server_step *st,
                             const struct ps_server_slot *slot, uint64_t len,
                             struct ps_str *why);
/* True if no merge can free enough memory for `len` bytes. */
bool ps_server_memory_is_exhausted(const struct ps_server *s, uint64_t len);
void ps_server_memory_describe(const struct ps_server *s,
                               const struct ps_server_job *job, uint64_t len,
                               struct ps_str *why);
/* Records that a result found no memory. */
void ps_server_memory_note_shortage(struct ps_server *s);
/* True if a request found no memory within the last seconds. */
bool ps_server_memory_is_short(const struct ps_server *s);

/* -------------------------------------------------------------- opt_state.c */

void ps_server_on_state_get(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_get *m);
void ps_server_on_state_put(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_put *m,
                            const struct ps_slice *payload);

/* ----------------------------------------------------------------- credit.c */

/* Returns the job's credit on the session's link, created on first use. */
struct ps_credit *ps_server_credit_get(struct ps_server *s,
                                       struct ps_server_session *p,
                                       uint64_t gen);
/* Returns the credit to announce in a reply. `slot` NULL: not known. */
uint64_t ps_server_credit_announce(struct ps_server *s,
                                   struct ps_server_session *p, uint64_t gen,
                                   const struct ps_server_slot *slot);
/* After a push: sends the credit alone if it is due and no batched reply will
 * carry it. */
void ps_server_credit_send_if_due(struct ps_server_step *st,
                                  struct ps_server_session *p,
                                  const struct ps_server_slot *slot);
/* Start and end of the arrival of a push with `len` payload bytes. */
void ps_server_credit_push_begins(struct ps_server_slot *slot);
void ps_server_credit_push_ended(struct ps_server_slot *slot, uint64_t len);
/* Pacing: true if the slot's push has to wait, because its unmerged bytes are
 * too far above the slowest slot's. Never true for all slots at once. */
bool ps_server_credit_is_ahead(const struct ps_server_slot *slot);
/* Schedules the job's check in ps_server_credit_unblock_jobs(). */
void ps_server_credit_mark_job(struct ps_server_job *job);
/* At the end of a step: where a marked job has open rounds and no merge, grants
 * credit to a slot that these lack and whose credit is exhausted. */
void ps_server_credit_unblock_jobs(struct ps_server_step *st);
void ps_server_credit_drop_all(struct ps_server_session *p);
