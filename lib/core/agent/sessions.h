/* SPDX-License-Identifier: Apache-2.0 */
/* Training processes of this node, their users and accounts. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "core/agent/jobs.h"
#include "core/agent/keys.h"
#include "core/base/ledger.h"

/* Departed workers remembered; when there are more, the oldest is dropped. */
#define DEPARTED_WORKERS_MAX 4096u
/* Ended operations kept for reuse. */
#define SPARE_OPS_MAX        16384u

/* User with sessions, jobs or leftover resources on this node. */
struct ps_agent_user {
    struct ps_agent *agent;
    uint32_t uid;
    uint32_t refs; /* Sessions, jobs, and resources that outlive them. */
    uint32_t stall_queries_sent;
    struct ps_account account;
};

/* Mapped region, charged until its last reader releases it. */
struct ps_agent_mapping {
    struct ps_list_node node;         /* In session->mappings. */
    struct ps_agent_session *session; /* NULL: gone, the user is charged. */
    struct ps_agent_user *user;
    struct ps_buf *buf;
};

enum ps_agent_session_state {
    PS_AGENT_SESSION_NEW,     /* No l_hello yet. */
    PS_AGENT_SESSION_OPENING, /* Waits for its job to run. */
    PS_AGENT_SESSION_ACTIVE,
};

/* How the scheduler gets the job_open of a session. */
enum ps_agent_job_open {
    PS_AGENT_JOB_OPEN_FIRST,
    PS_AGENT_JOB_OPEN_DEFERRED, /* Waits: ps_agent_session_send_deferred(). */
    PS_AGENT_JOB_OPEN_AGAIN,    /* An earlier scheduler got it. */
};

struct ps_agent_session {
    struct ps_list_node node; /* In agent->sessions. */
    ps_conn_id conn;
    uint64_t worker;
    uint32_t uid;
    uint8_t state;        /* enum ps_agent_session_state. */
    struct ps_msg *hello; /* Own copy of l_hello. */
    uint64_t gen;         /* 0: job_open is not answered. */
    struct ps_agent_job *job;
    uint32_t local_rank; /* Index in job->local_ranks. */
    bool clean_exit;
    bool is_closing;  /* Connection is closing; messages are ignored. */
    uint8_t job_open; /* enum ps_agent_job_open. */
    /* Reattached: keys whose completed rounds are not reported yet. */
    uint32_t unreported_keys;
    struct ps_map *regions;          /* number -> struct ps_buf */
    struct ps_map *unmapped;         /* Failed regions: number -> text. */
    struct ps_map *announced_arenas; /* Set of arena tags. */
    struct ps_map *known_segments;   /* Set of ids of residual segments. */
    struct ps_list ops;
    uint32_t op_count;
    struct ps_list mappings;      /* struct ps_agent_mapping */
    struct ps_list stall_queries; /* struct ps_agent_stall_query */
    uint32_t query_rate_count;    /* Queries since query_rate_since. */
    ps_time query_rate_since;     /* Begin of the current second. */
    struct ps_agent_user *user;
    struct ps_account account;
};

/* A worker that is gone, resent to a scheduler that does not know it. */
struct ps_agent_departed_worker {
    uint64_t gen;
    uint64_t worker;
    bool clean_exit;
    bool rounds_unknown; /* Ended while it was reattaching. */
};

/* A stall query: sent to the scheduler and not answered, or waiting because
 * the user has PS_QUERIES_SENT_MAX in flight. */
struct ps_agent_stall_query {
    struct ps_list_node node; /* In session->stall_queries. */
    uint64_t request;
    uint64_t gen;
    struct ps_agent_session *session; /* NULL: gone; the reply is dropped. */
    struct ps_agent_user *user;       /* A reference. */
    bool is_sent;
    uint64_t op_id;
    uint32_t key;
    uint64_t round;
    bool is_barrier;
    char local_text[256]; /* The operation, and how long it has waited. */
    char awaited[256];    /* Servers whose reply it waits for. */
};

/* budget.c */
void ps_agent_budget_init(struct ps_agent *a);
void ps_agent_budget_fini(struct ps_agent *a);
struct ps_agent_user *ps_agent_user_get(struct ps_agent *a, uint32_t uid);
void ps_agent_user_put(struct ps_agent_user *u);
/* Charges a new session to its user. On refusal no charge or reference
 * stays. */
PS_MUST_USE int ps_agent_budget_open_session(struct ps_agent *a,
                                             struct ps_agent_session *s,
                                             uint32_t pid,
                                             struct ps_refusal *ret_refusal);
void ps_agent_budget_close_session(struct ps_agent_session *s);
/* Makes the session's account a child of its job's. */
void ps_agent_budget_assign_job(struct ps_agent_session *s,
                                struct ps_agent_job *j);
/* Closes the job's account, which must hold no charge. */
void ps_agent_budget_close_job(struct ps_agent_job *j);
/* Charges a declared key and its results to the job. The caller keeps
 * *ret_charged in the key, whose end refunds it. */
PS_MUST_USE int ps_agent_budget_charge_key(struct ps_agent_job *j,
                                           const struct ps_agent_key_kind *kind,
                                           const struct ps_msg_l_key *m,
                                           uint64_t *ret_charged,
                                           struct ps_refusal *ret_refusal);
/* Charges the key's table of `count` partitions to the job. */
PS_MUST_USE int ps_agent_budget_charge_parts(struct ps_agent_key *k,
                                             uint32_t count,
                                             struct ps_refusal *ret_refusal);
void ps_agent_budget_refund_key(struct ps_agent_key *k);
/* Moves the results of an ended job, which frames still carry, to its user. */
void ps_agent_budget_charge_pool(struct ps_agent_job *j,
                                 struct ps_agent_draining_pool *g);
void ps_agent_budget_refund_pool(struct ps_agent_draining_pool *g);
/* Charges a mapping to the session. *ret_buf holds a reference of `buf`; its
 * last unref refunds the charge. */
PS_MUST_USE int ps_agent_budget_charge_mapping(struct ps_agent_session *s,
                                               struct ps_buf *buf,
                                               struct ps_buf **ret_buf,
                                               struct ps_refusal *ret_refusal);

/* session.c */
void ps_agent_session_on_open(struct ps_agent_step *st,
                              const struct ps_event *ev);
void ps_agent_session_on_hello(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_msg *m);
void ps_agent_session_on_region(struct ps_agent_step *st,
                                struct ps_agent_session *s, uint32_t region,
                                struct ps_buf *buf);
/* A region could not be mapped. PS_E_NOMEM: operations that name it are refused
 * with the text `why`. Other errors, and region 0, end the session. */
void ps_agent_session_on_unmapped(struct ps_agent_step *st,
                                  struct ps_agent_session *s, uint32_t region,
                                  int rc, const char *why);
/* Returns the error for an operation that names a missing region, and its text
 * in *ret_why. */
int ps_agent_session_on_missing_region(const struct ps_agent_session *s,
                                       uint32_t region, const char **ret_why);
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the session with the text of the limit that it exceeded. */
void ps_agent_session_end_quota(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_refusal *why);
void ps_agent_session_send_open(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* Sends the deferred job_opens once the scheduler has acknowledged everything
 * before. A worker that replaces a dead one must not be announced before that
 * death, and links keep no order. */
void ps_agent_session_send_deferred(struct ps_agent_step *st);
void ps_agent_session_send_welcome(struct ps_agent_step *st,
                                   struct ps_agent_session *s);
void ps_agent_session_on_region_gone(struct ps_agent_session *s,
                                     uint32_t region);
/* Gives up the regions of a session that ends; its operations have ended. */
void ps_agent_session_free_memory(struct ps_agent *a,
                                  struct ps_agent_session *s);
/* Unmaps some regions of sessions that have ended. */
void ps_agent_unmap_regions(struct ps_agent *a);

/* session_msg.c */
void ps_agent_session_on_msg(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg *m);
/* Handles each operation as a message; at most PREFETCH_OPS. */
void ps_agent_session_on_ops(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_session_on_closed(struct ps_agent_step *st,
                                struct ps_agent_session *s);
void ps_agent_session_free(struct ps_agent *a, struct ps_agent_session *s);

/* departed.c */
/* Records that the worker of a session is gone, and reports it. */
void ps_agent_departed_add(struct ps_agent_step *st,
                           const struct ps_agent_session *s);
/* Resends all departures. */
void ps_agent_departed_resend(struct ps_agent_step *st);
/* Forgets the departures of a job that is over. */
void ps_agent_departed_drop_job(struct ps_agent *a, uint64_t gen);
/* Drops departures that a new scheduler cannot know. Those of jobs on this node
 * stay: the scheduler answers them with the job's end. */
void ps_agent_departed_drop_unknown(struct ps_agent *a);

/* diagnose.c */
void ps_agent_diagnose_op(struct ps_agent_step *st, struct ps_agent_session *s,
                          uint64_t op_id);
void ps_agent_diagnose_on_reply(struct ps_agent_step *st,
                                const struct ps_msg_stall_reply *m);
/* Reports to the scheduler which local ranks and servers an operation of the
 * job waits for. */
void ps_agent_diagnose_on_collect(struct ps_agent_step *st,
                                  const struct ps_msg_stall_collect *m);
void ps_agent_diagnose_resend(struct ps_agent_step *st);
void ps_agent_diagnose_fini(struct ps_agent *a);
/* Drops the queries of a session that is gone. */
void ps_agent_diagnose_drop_session(struct ps_agent *a,
                                    struct ps_agent_session *s);
