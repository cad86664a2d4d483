/* SPDX-License-Identifier: Apache-2.0 */
/* State of the scheduler machine, for files of this folder only.
 *
 * Layers, top to bottom; a file uses only those below it. Each folder has a header
 * for what files above may use; job has run.h, too, for what needs struct
 * ps_sched:
 *
 *     sched.c              connections, messages and time, for the files below
 *     load.c               rows of the file, at the start
 *     save.c               rows of the file that a step has changed
 *     member/membership.c  hello; members that fall silent, go and return
 *     query/tools.c        tokens, log levels and traces, for operators' tools
 *     query/query.c        queries of operators' tools
 *     place/rebalance.c    plans that balance or drain servers
 *     job/worker.c         workers that join and leave jobs
 *     job/lifecycle.c      phases of a job; lost workers, agents and servers
 *     query/stall.c        stall queries
 *     query/diverged.c     ranks that wait for each other
 *     place/copies.c       backups of places, and who goes on after a loss
 *     job/rank.c           barriers and scalars of running ranks; reads of traces
 *     job/optimizer.c      declarations of optimizers and compression, changes
 *     place/move.c         moves of partitions, the reply to who asked
 *     job/key.c            keys and their placement
 *     job/norm.c           norm allreduce over the partitions of a key
 *     job/admission.c      what jobs get: servers, memory; what they cost
 *     job/state.c          jobs by name, their state as sent to members
 *     token.c              tokens, and rights of tools
 *     member/lease.c       silent members: witnesses, leases, probes
 *     store.c              objects that a step has changed
 *     inner.c              messages, events and the cluster map, for all above
 *
 * The files below know nothing of struct ps_sched:
 *
 *     job/job.c            a job: workers, slots, servers, keys, barriers
 *     job/history.c        training scalars of a job, jobs that ended
 *     place/place.c        where partitions lie, what moves, memory they take
 *     member/member.c      members by role and name */
#pragma once

#include "base/bits.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/time.h"
#include "core/base/peer.h"
#include "core/sched/job/history.h"
#include "core/sched/job/job.h"
#include "core/sched/member/member.h"
#include "core/sched/options.h"
#include "core/sched/store.h"
#include "proto/ps_fixed.h"

#include <stdbool.h>
#include <stdint.h>

/* ------------------------------------------------------------- connections */

/* Rows of a reply that are handed to a connection at a time. */
#define PS_SCHED_ROWS_PER_SEND 256u

enum ps_sched_conn_kind {
    PS_SCHED_CONN_HANDSHAKE, /* No hello yet. */
    PS_SCHED_CONN_MEMBER,    /* Carries a member's link. */
    PS_SCHED_CONN_CTL,
    PS_SCHED_CONN_CLOSING, /* Close requested; further input is ignored. */
};

struct ps_sched_conn {
    ps_conn_id id;
    enum ps_sched_conn_kind kind;
    struct ps_member *member; /* MEMBER: owner of the link. */
    ps_time opened_at;
    char peer_text[64];
    bool is_local; /* Unix-socket connection, whose user is known. */
    uint32_t uid;  /* User of a local connection. */
    struct ps_peer_identity identity;
    /* CTL: signed, and counted at the hello; its id is 0: none. */
    struct ps_fixed_token_claims token;
    /* CTL: the query in progress. */
    uint32_t open_stalls; /* Jobs whose stall query is unanswered. */
    bool lists_keys;      /* A key listing is in progress. */
    uint64_t list_gen;    /* Generation of the job being listed. */
    uint32_t list_next;   /* Number of the next key to list. */
    bool lists_all_jobs;  /* Continue with jobs of higher generation. */
    /* Owned; NULL: no rebalance reply in progress. */
    struct ps_sched_rebalance_reply *rebalance_reply;
    uint64_t trace_read; /* Request to a member for its trace; 0: none. */
};

/* --------------------------------------------------------------- scheduler */

/* Events that are remembered; the oldest make room for others. */
#define PS_SCHED_EVENTS_MAX 512u
/* Bytes of the detail that are kept: a reason with names and numbers. */
#define PS_SCHED_EVENT_TEXT 200u

/* The last events, in a ring. */
struct ps_sched_events {
    /* Owned: event_row, with the time of the event as its age. */
    struct ps_msg *ring[PS_SCHED_EVENTS_MAX];
    uint64_t count; /* Events so far. */
};

/* See token.c. */
struct ps_sched_tokens {
    struct ps_token_record *list; /* Those that have not expired, and others. */
    uint32_t count;
    /* When the next token with the right train expires; or never. */
    ps_time check_at;
};

/* Jobs of earlier schedulers that are remembered while their workers
 * reconnect. */
#define PS_SCHED_EARLIER_JOBS 64u

/* Bytes of a text about the calls in which a process is. */
#define PS_SCHED_DOES_MAX     160u

/* A job that an earlier scheduler had started. */
struct ps_sched_earlier_job {
    uint32_t uid;
    char name[PS_NAME_MAX + 1]; /* "": free entry. */
};

struct ps_sched {
    struct ps_sched_options opt;
    struct ps_rng rng;
    ps_time started_at;
    ps_time deadline;     /* Next tick; see update_deadline(). */
    ps_time deadline_at;  /* When it was last computed for all members. */
    ps_time last_recv_at; /* Last message of any member. */
    bool is_isolated;     /* No member is heard, and this was logged. */
    bool draining;        /* Accepts no new job. */
    bool ending;
    struct ps_certificate_end certificate;
    struct ps_members members;
    struct ps_map *conns; /* By id. */
    struct ps_map *jobs;  /* By generation; jobs that have not ended. */
    struct ps_map *users; /* struct ps_sched_user by uid; users with jobs. */
    struct ps_account account;
    uint64_t last_gen; /* Generation of the newest job. */
    uint32_t epoch;
    uint64_t refused_frames; /* Of members, about what is not their own. */
    /* Of timers; see job/rank.c, query/diverged.c and query/stall.c. */
    struct ps_list trace_reads;
    struct ps_list watches;
    struct ps_list stalls;
    uint32_t stall_count;
    uint64_t last_collect_id;
    uint64_t last_move_id; /* Number of the newest move. */
    struct ps_sched_history history;
    struct ps_sched_events events;
    struct ps_sched_tokens tokens;
    struct ps_sched_store store;
    struct ps_sched_earlier_job earlier_jobs[PS_SCHED_EARLIER_JOBS];
    uint32_t earlier_jobs_next;
};

/* Context of one call of step(). */
struct ps_sched_step {
    struct ps_sched *s;
    ps_time now;
    struct ps_effects *fx;
};

/* ------------------------------------------------------------------ timers */

/* Entry of a list of the scheduler, which goes on at a time. */
struct ps_sched_timer {
    struct ps_list_node node;
    ps_time due_at;
};

/* The first in the list that is due; NULL: none. */
struct ps_sched_timer *ps_sched_timers_due(const struct ps_list *l,
                                           ps_time now);
/* When the next one is due; or never. */
ps_time ps_sched_timers_next(const struct ps_list *l);

/* ---------------------------------------------------------------- messages */

/* Closes the connection. Its query, if any, has been dropped. */
void ps_sched_conn_close(struct ps_sched_step *st, struct ps_sched_conn *c);
/* Sends query_end, which closes the reply to a query. */
void ps_sched_conn_end_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                             int rc, const char *text);
/* Sends in sequence on the member's link. Does nothing when `m` is NULL or has
 * no link: a fresh link begins with all state that matters. */
void ps_sched_send_msg(struct ps_sched_step *st, struct ps_member *m,
                       const struct ps_msg *msg);
/* The same for a packet; takes over the reference. */
void ps_sched_send(struct ps_sched_step *st, struct ps_member *m,
                   struct ps_packet *packet);

/* ------------------------------------------------------------------ events */

/* The last events of members and jobs are kept for operators: psctl events lists
 * them. The functions that change the states of members and jobs record them. */

void ps_sched_events_fini(struct ps_sched_events *e);
/* Records what happened to the scheduler itself. */
void ps_sched_event_own(struct ps_sched_step *st, const char *what, bool is_bad,
                        const char *text);
/* `text` may be NULL. */
void ps_sched_event_member(struct ps_sched_step *st, const struct ps_member *m,
                           const char *what, bool is_bad, const char *text);
/* `kind`: PS_EVENT_KIND_JOB, _RANK, _MIGRATION or _OPERATOR. */
void ps_sched_event_job(struct ps_sched_step *st, enum ps_event_kind kind,
                        const struct ps_sched_job *j, const char *what,
                        bool is_bad, const char *text);

/* ps_member_set_state() and ps_sched_job_set_phase(), with an event. */
void ps_sched_move_member(struct ps_sched_step *st, struct ps_member *m,
                          enum ps_node_state to, const char *why);
void ps_sched_move_job(struct ps_sched_step *st, struct ps_sched_job *j,
                       enum ps_job_phase to);

/* Sends the events after number `after`, oldest first. */
void ps_sched_send_events(struct ps_sched_step *st, struct ps_sched_conn *c,
                          uint64_t after);

/* --------------------------------------------------------------------- map */

/* The cluster map: all servers that are not GONE. Each map has an epoch, and
 * placements are of an epoch, too. */

/* Starts a new epoch, newer than all placements sent before, and sends the
 * map. */
void ps_sched_begin_epoch(struct ps_sched_step *st);
/* Sends the map of this epoch to one member. */
void ps_sched_send_map(struct ps_sched_step *st, struct ps_member *m);
