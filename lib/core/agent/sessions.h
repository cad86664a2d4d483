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

/* Bytes of a text about the calls in which a process is. */
#define PS_DOES_MAX         160u
/* That of a process without an open operation. */
#define PS_AGENT_IN_NO_CALL "in no call"

/* Last answer of the process of a session to l_wait_query. */
struct ps_agent_wait_state {
    uint64_t sent;  /* Number of the last question; 0: none yet. */
    uint64_t query; /* Number of the last one that was answered. */
    ps_time at;     /* When it was. */
    uint64_t moves;
    uint32_t ops;
    uint8_t still; /* enum ps_stillness */
    char does[PS_DOES_MAX + 1];
};

/* A wait_collect whose report waits for answers of processes. */
struct ps_agent_wait_collect {
    struct ps_list_node node;
    uint64_t query;
    ps_time deadline;
    struct ps_msg *message;
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
    uint32_t pid;         /* 0: not known. */
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
    struct ps_agent_wait_state wait;
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
    ps_time asked_at;
    uint32_t key;
    uint64_t round;
    bool is_barrier;
    char local_text[256]; /* The operation, and how long it has waited. */
    char awaited[256];    /* Servers whose reply it waits for. */
};
