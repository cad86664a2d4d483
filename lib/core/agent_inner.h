/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the agent machine; for agent*.c alone.
 *
 *     agent.c          the machine's three calls, time, what checkers ask
 *     agent_up.c       the scheduler: dialling, heartbeat, what it tells
 *     agent_server.c   servers: dialling, links, what they answer
 *     agent_send.c     what goes to a server next: priority, credit, sums
 *     agent_code.c     gradients that travel as codes
 *     agent_budget.c   what sessions, jobs and users hold
 *     agent_session.c  training processes: hello, memory, barriers
 *     agent_why.c      what an operation waits for
 *     agent_keep.c     what codes leave over, for the next agent
 *     agent_job.c      jobs: from job_state to the end
 *     agent_key.c      keys: placement, results, takeover
 *     agent_round.c    rounds over the ranks of this node
 *     agent_resume.c   processes that had another agent before
 *     agent_async.c    keys without rounds
 *     agent_pull.c     pull and init
 *     agent_quarrel.c  ranks that disagree about a round
 *     agent_rows.c     keys of rows
 *     agent_soon.c     memory that is fetched before it is needed
 *     agent_state.c    optimizer state, saved and loaded */
#pragma once

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "core/agent.h"
#include "core/caller.h"
#include "core/compress.h"
#include "core/ledger.h"
#include "core/link.h"

/* A connection on which nobody has welcomed us for so long is cut. */
#define WELCOME_WAIT      PS_SECONDS(5)
/* What was refused for a passing reason is offered again after this. */
#define RETRY_WAIT        PS_MILLIS(50)
/* Where a server has no memory: twice the wait each time, up to this. */
#define FULL_WAIT_MAX     PS_SECONDS(1)
/* Sums that found no memory try again after this. */
#define STARVED_WAIT      PS_MILLIS(5)
/* Sums under way for one server at most, in partitions and in bytes, so that
 * urgent partitions that come later are not behind many that are summed
 * already. */
#define SUMS_MAX          1024u
#define SUMS_BYTES_MAX    (4u * 1024u * 1024u)
#define HAND_OVER_DEFAULT (2u * 1024u * 1024u)
/* Departures remembered; the oldest is dropped when there are more. */
#define DEPARTED_MAX      4096u
#define NONE              (-1) /* No version yet. */
/* Who waits for a result hears how far it is when so much more of it is there:
 * a small share of a cache, and of so much that a wake-up does not count. */
#define PIECE_BYTES       (2u * 1024u * 1024u)
/* Ended operations kept for the next ones. */
#define SPARE_OPS_MAX     16384u
/* Operations, or parts of a frame, that are looked at together: agent_soon.c. */
#define OPS_AHEAD         16u

struct ps_agent_job;
struct ps_agent_key;

/* One call of step(). */
struct ps_agent_step {
    struct ps_agent *a;
    ps_time now;
    struct ps_effects *fx;
};

/* The conversation with the scheduler. */
struct ps_agent_up {
    struct ps_caller caller;
    char pulse[PS_ADDRESS_MAX + 1]; /* Where this process is seen; "". */
    ps_time heartbeat;
    ps_time ping_at;
    ps_time pinged_at; /* Last ping. */
};

/* Small partitions that are to travel together. */
struct ps_agent_gather {
    enum ps_msg_code code; /* PUSH, INIT or PUSH_ROWS. */
    struct ps_agent_job *job;
    uint8_t reduce;
    uint8_t rule;
    bool assign;
    bool want;
    uint32_t attempt;
    uint64_t ranks;
    uint32_t count;
    uint64_t bytes;
    bool labelled; /* The labels are sent, too. */
    struct ps_rec_part *parts;
    uint64_t *labels;
    struct ps_rec_rows *rows; /* Instead of parts: PUSH_ROWS. */
    struct ps_slice *slices;
    uint32_t slice_count;
};

struct ps_agent_server {
    struct ps_caller caller;
    ps_time ping_at;   /* While operations wait. */
    ps_time ping_wait; /* Between pings; doubles. */
    uint32_t node;
    uint64_t incarnation;
    char name[PS_NAME_MAX + 1];
    char peer[16];  /* Of its account: "node 5". */
    uint32_t epoch; /* Of the last map that had it. */
    bool known;     /* A map has had it. */
    bool gone;
    uint64_t queued;  /* With the driver, not yet with the kernel. */
    uint32_t summing; /* Partitions for it being summed. */
    uint64_t summing_bytes;
    uint32_t turn; /* Which job's queue is asked first. */
    bool dirty;    /* Its queues may have something to send. */
    struct ps_list flows;
    struct ps_agent_gather gather;
};

/* Partitions of one job that wait to go to one server. */
struct ps_agent_flow {
    struct ps_list_node node; /* In server->flows. */
    struct ps_agent_server *server;
    struct ps_agent_job *job;
    struct ps_heap queue;
    uint64_t sent;    /* Push bytes since the session began. */
    uint64_t summing; /* Bytes that are being summed, to be sent. */
    uint64_t credit;
    ps_time full_until; /* The server has no memory: nothing goes again before
                         * this; */
    ps_time full_wait;  /* that was so long; 0: it took something since. */
};

enum ps_agent_part_state {
    PS_AGENT_PART_IDLE,
    PS_AGENT_PART_QUEUED,
    PS_AGENT_PART_SUMMING,
    PS_AGENT_PART_SENT,      /* Not committed yet. */
    PS_AGENT_PART_HELD_BACK, /* Refused for now; queued again at a time. */
};

/* Of this and what follows: first what each round touches, so that it lies in
 * few cache lines. */
struct ps_agent_part {
    struct ps_heap_item item; /* In the queue of its flow. */
    struct ps_agent_key *key;
    uint32_t index;
    uint32_t node;  /* Its server; 0: this agent. */
    uint64_t first; /* Element of the key. */
    uint32_t count;
    enum ps_agent_part_state state;
    bool moved;        /* Its server got it from another one, */
    bool restate;      /* and is to hear again what is known of it here. */
    bool init;         /* What is queued or sent is an init. */
    bool code_undo;    /* [1] may become [0] again. */
    bool code_sent;    /* A server may have counted it. */
    bool encoding;     /* A computation makes it. */
    bool code_void;    /* What that makes is not wanted. */
    bool clock_asked;  /* `clock` is to be asked, it may have been lost. */
    int64_t committed; /* Newest version known to be made; NONE. */
    int64_t held;      /* Version whose value lies in the results; NONE. */
    int64_t passed;    /* Newest known version that all have passed in; NONE. */
    int64_t told;      /* Rows: version that a server has spoken of; NONE. */
    uint64_t reached;  /* Last round that it has ended. */
    int64_t asked;     /* Least version of the pull that is open; NONE. */
    /* Only where gradients travel as codes; see agent_code.c. */
    struct ps_slice code;       /* buf NULL: none. */
    struct ps_buf *residual[2]; /* Now, and before the code; NULL: zeros. */
    struct ps_buf *moment[2];
    struct ps_agent_kept *kept; /* Where these lie; NULL: in the pool. */
    uint64_t code_round;        /* What it is of. */
    /* Of a key without rounds: pulls up to these tickets have the value, and
     * will have it when the open question is answered. */
    uint64_t served;
    uint64_t asked_ticket;
    uint64_t clock; /* ssp: pushes that every rank of the job has made. */
};

struct ps_agent_stating;
struct ps_agent_kept;

/* Memory that workers keep open for the next agent. */
struct ps_agent_piece {
    uint64_t id;
    struct ps_buf *buf; /* The tag is what workers are told. */
};

/* A record of a partition in what an agent before this one has left. */
struct ps_agent_found {
    struct ps_agent_found *next; /* Of the same hash. */
    struct ps_buf *piece;        /* The job's reference. */
    uint64_t label;
    uint64_t at;
    uint64_t press;
    uint64_t tag;
    uint32_t index;
    uint32_t count;
    uint32_t vectors;
};

/* An operation of a worker that is not done. */
struct ps_agent_op {
    struct ps_list_node node; /* In the list that waits for it. */
    struct ps_list_node mine; /* In session->ops. */
    struct ps_agent *agent;
    struct ps_agent_session *session; /* NULL: its worker has died. */
    struct ps_agent_key *key;         /* NULL: barrier or optimizer. */
    uint64_t id;
    uint64_t round;        /* Or least version, or number of the barrier. */
    struct ps_slice array; /* buf NULL: it gives none. */
    uint64_t there;        /* Bytes of it that the worker has copied so far. */
    uint32_t local;
    int32_t priority;
    uint32_t root;
    uint32_t samples; /* Its weight in a mean. */
    enum ps_op kind;  /* ATTEND is BROADCAST, */
    bool aside;       /* whose value is not asked for. */
    uint8_t reduce;
    bool barrier;
    struct ps_agent_rows *rows;       /* Of a key of rows; NULL: none. */
    struct ps_agent_stating *stating; /* Optimizer state; NULL: none. */
    struct ps_msg *message; /* Optimizer: what the scheduler is told. */
    uint64_t charged; /* Bytes of memory, at the account of the key's job. */
    ps_time since;
    uint64_t ticket; /* Of a pull of a key without rounds; 0: none yet. */
};

/* What ranks that had another agent before have said of a key. */
struct ps_agent_past {
    uint64_t least; /* Rounds that one of them has heard the end of, */
    uint64_t most;  /* and that another one has. */
    bool *said;     /* By local rank. */
};

/* Ranks have disagreed about the last begun round of a key. */
struct ps_agent_quarrel {
    uint32_t attempt; /* Those below are over. */
    uint32_t *told;   /* By local rank: up to which attempt it knows. */
    char text[PS_TEXT_MAX + 1];
};

struct ps_agent_key {
    struct ps_agent_job *job;
    struct ps_agent_key *same_label;
    struct ps_agent_part *parts;
    uint32_t part_count;
    uint32_t number;
    uint64_t count;
    uint32_t width; /* Elements of a row; 0: not a key of rows. */
    uint8_t dtype;
    bool collective; /* Its sums are no gradients, whatever the job does. */
    bool async;      /* Of an async or ssp job: see below. */
    uint8_t rule;    /* enum ps_rule of the pushes under way. */
    /* The open round. */
    uint64_t round;   /* The last begun; pushed[] are this or one less. */
    uint64_t attempt; /* Counts beginnings: one that failed is begun again. */
    bool active;      /* Somebody has offered it. */
    bool complete;    /* Everybody has: it is on its way. */
    bool want;
    uint8_t reduce;
    enum ps_op kind; /* PASS: as yet, or in the end, all who offered do. */
    uint32_t offered;
    uint32_t growing;  /* Offers whose array is not all there. */
    uint32_t launched; /* Complete: partitions before this one have gone. */
    uint32_t root;
    struct ps_agent_op **offer;       /* By local rank; NULL: not yet. */
    struct ps_agent_quarrel *quarrel; /* NULL: nobody has disagreed. */
    uint64_t *pushed;                 /* By local rank: rounds offered. */
    struct ps_agent_past *past;       /* With another agent; NULL: none. */
    bool bereft; /* It has been said that something of it was lost. */
    int32_t priority;
    uint32_t parts_open;   /* Partitions that have not reached the round. */
    uint32_t front;        /* All before this one have. */
    uint64_t told;         /* Bytes of the result that workers know of. */
    uint64_t weight;       /* In a mean, of all who offered. */
    struct ps_list parked; /* Pushes of the next round. */
    struct ps_list pulls;
    struct ps_list row_pulls;
    struct ps_buf *result; /* Both versions. NULL: a key of rows. */
    uint64_t result_at[2]; /* Of even versions, of odd ones. */
    uint64_t label;        /* Of the name. */
    struct ps_compress compress;
    struct ps_list inits;
    struct ps_list stating;
    struct ps_slice init_array; /* Of the root, while it is being sent. */
    uint32_t inits_open;        /* Partitions whose init is not committed. */
    uint64_t init_attempt;      /* Counts inits that were sent. */
    /* Without rounds: `round` counts the pushes of this node. */
    uint64_t
        clock; /* ssp: least count of a rank here when these are applied. */
    uint64_t ticket;
    uint64_t *applied; /* By local rank: its last push that is applied. */
    /* What was declared. */
    struct ps_list_node node; /* In job->opening until the scheduler answers. */
    char name[PS_KEY_NAME_MAX + 1];
    uint64_t *shape;
    uint32_t shape_count;
    int64_t classic;
    uint64_t request;
    uint8_t find; /* enum ps_find, the least of those who ask. */
    bool open;    /* Answered. */
    bool asked;   /* The scheduler is to answer. */
    uint32_t epoch;
    struct ps_list askers;  /* struct ps_agent_asker */
    uint64_t charged;       /* Bytes of memory at the job's account, */
    uint32_t parts_charged; /* and partitions. */
};

struct ps_agent_asker {
    struct ps_list_node node;
    struct ps_agent_session *session;
    uint64_t request;
};

struct ps_agent_rank {
    uint32_t rank;
    uint64_t worker;
    uint8_t state;
    struct ps_agent_session *session; /* NULL: none now. */
    uint64_t barriers;                /* Entered. */
};

/* Whoever has sessions or jobs here. */
struct ps_agent_user {
    struct ps_agent *agent;
    uint32_t uid;
    uint32_t refs; /* By sessions, jobs, and what outlives them. */
    uint32_t questions_sent;
    struct ps_account account;
};

/* Results of a job that is over, while frames still use them. */
struct ps_agent_grave {
    struct ps_pool *results;
    struct ps_agent_user *user; /* Pays for them; NULL: nobody. */
    uint64_t charged;
};

/* A mapping that somebody still reads counts until it is released. */
struct ps_agent_hold {
    struct ps_list_node node;         /* In session->holds. */
    struct ps_agent_session *session; /* NULL: gone, the user pays. */
    struct ps_agent_user *user;
    struct ps_buf *buf;
};

struct ps_agent_job {
    uint64_t gen;
    uint32_t version; /* 0: no job_state yet. */
    char name[PS_NAME_MAX + 1];
    uint8_t phase;
    char reason[PS_TEXT_MAX + 1];
    uint32_t num_workers;
    uint32_t num_servers;
    bool optimizes;
    uint8_t mode;
    uint8_t rule;
    uint32_t staleness; /* ssp */
    uint32_t slot;
    bool seated; /* slot and local are known. */
    struct ps_agent_rank *local;
    uint32_t local_count;
    uint32_t *slot_of; /* By rank, once seated. */
    uint32_t slot_of_count;
    uint32_t sessions; /* That belong to it. */
    struct ps_pool *results;
    struct ps_map *keys;  /* By number. */
    struct ps_map *names; /* First key of a label, by ps_label_place. */
    struct ps_map *early; /* struct ps_agent_early by number of the key. */
    uint32_t key_count;
    struct ps_list opening; /* Keys: those that were asked for, then others. */
    uint32_t asked;         /* So many were, */
    struct ps_list_node *unasked; /* and this is the first that was not. */
    struct ps_map *flows;         /* By node. */
    struct ps_list barriers;      /* Operations that wait at one. */
    uint64_t barriers_open;
    struct ps_list optimizers;
    struct ps_agent_piece *pieces;
    uint32_t piece_count;
    uint32_t keeping;           /* The piece, + 1, with room; 0: none yet. */
    uint64_t keep_used;         /* Of that. */
    uint64_t keep_bytes;        /* Of all. */
    uint64_t record_count;      /* Looked at in pieces of other agents. */
    struct ps_map *found;       /* struct ps_agent_found by ps_label_place. */
    uint64_t label_seed;        /* Of ps_label_place. */
    uint64_t keep_charged;      /* Bytes of memory at `account`. */
    struct ps_agent_user *user; /* NULL: nobody of it was seated here. */
    struct ps_account account;
};

enum ps_agent_session_state {
    PS_AGENT_SESSION_NEW,     /* No l_hello yet. */
    PS_AGENT_SESSION_OPENING, /* Waits for its job to run. */
    PS_AGENT_SESSION_ACTIVE,
};

struct ps_agent_session {
    struct ps_list_node node; /* In agent->sessions. */
    ps_conn_id conn;
    uint64_t worker;
    uint32_t uid;
    enum ps_agent_session_state state;
    struct ps_msg *hello; /* Own copy of l_hello. */
    uint64_t gen;         /* 0: job_open is not answered. */
    struct ps_agent_job *job;
    uint32_t local; /* Index of its rank in job->local. */
    bool bye;
    bool held_back;     /* Its job_open waits, see ps_agent_session_turns. */
    bool ended;         /* Hung up on; what still comes is ignored. */
    bool reoffer;       /* An earlier scheduler was told of it. */
    uint32_t keys_left; /* Resumed: keys whose rounds it has not said. */
    struct ps_map *regions;  /* number -> struct ps_buf */
    struct ps_map *unmapped; /* Regions that could not be: number -> text. */
    struct ps_map *arenas;   /* Told of: tag -> anything. */
    struct ps_map *pieces;   /* It has: id -> anything. */
    struct ps_list ops;
    uint32_t op_count;
    struct ps_list holds;     /* struct ps_agent_hold */
    struct ps_list questions; /* struct ps_agent_question */
    uint32_t queries;         /* That it has made since this time. */
    ps_time queries_since;
    struct ps_agent_user *user;
    struct ps_account account;
};

/* Something is being computed. */
struct ps_agent_run {
    uint64_t token;
    struct ps_agent_part *part; /* NULL: its key is gone. */
    struct ps_agent_flow *flow; /* Sum for a server; NULL: local. */
    struct ps_slice dst;
    uint32_t rows;    /* Of a key of rows: how many there are in dst. */
    int64_t version;  /* Local: what it makes; code: its round. */
    uint64_t attempt; /* Of the round whose arrays it has read. */
    bool encodes;
    uint64_t bytes;
};

/* A new placement that came before the first answer about its key. */
struct ps_agent_early {
    uint32_t epoch;
    uint32_t parts;
    struct ps_buf *table;
};

/* Jobs that have ended here, whose earlier states may still come: links keep no
 * order. */
#define PS_AGENT_OVER 64u

/* A worker that has gone: said again to a scheduler that has forgotten us. */
struct ps_agent_departed {
    uint64_t gen;
    uint64_t worker;
    bool clean;
    bool untold; /* In the middle of a resume. */
};

/* What an operation waits for: a question to the scheduler without an answer,
 * or without a place among those that it is asked at a time. */
struct ps_agent_question {
    struct ps_list_node node; /* In session->questions. */
    uint64_t request;
    uint64_t gen;
    struct ps_agent_session *session; /* NULL: gone; the answer is dropped. */
    struct ps_agent_user *user;       /* A reference. */
    bool sent;
    uint64_t op_id;
    uint32_t key;
    uint64_t round;
    bool barrier;
    char text[256];    /* The operation, and how long it has waited. */
    char awaited[256]; /* Servers that have something of it to do. */
};

struct ps_agent {
    struct ps_agent_options opt;
    struct ps_rng rng;
    ps_time now;
    struct ps_agent_up up;
    ps_time refused_since; /* Another process has our name; 0: none has. */
    bool name_lost;        /* For good: this daemon ends. */
    uint64_t sched; /* Instance of the scheduler that gave what follows. */
    uint32_t node;
    uint64_t incarnation;
    ps_time costs_at;
    uint32_t epoch;
    bool ending;
    struct ps_map *servers; /* By node. */
    struct ps_list sessions;
    struct ps_map *by_conn;       /* Sessions. */
    struct ps_map *server_conns;  /* Servers, until the connection closes. */
    struct ps_map *jobs;          /* By generation. */
    uint64_t over[PS_AGENT_OVER]; /* Generations, the oldest at over_next. */
    uint32_t over_next;
    struct ps_map *runs;      /* By token. */
    struct ps_map *questions; /* By request. */
    struct ps_map *users;     /* By uid. */
    struct ps_account account;
    uint64_t next_worker;
    uint64_t next_token;
    uint64_t next_request;
    struct ps_agent_grave *dying;
    uint32_t dying_count;
    /* Regions of sessions that have ended, in this order: to unmap many takes
     * longer than others should wait. */
    struct ps_map *leaving;
    uint64_t last_leaving;
    ps_time leave_at; /* PS_TIME_NEVER: there are none. */
    struct ps_agent_departed *departed;
    uint32_t departed_count;
    uint32_t held_back;             /* Sessions whose job_open waits. */
    uint32_t op_count;              /* Of all sessions. */
    uint32_t dial_era;              /* Of servers met so far. */
    struct ps_agent_op **spare_ops; /* A stack. */
    uint32_t spare_op_count;
    uint32_t spare_op_capacity;
    uint64_t keep_bytes; /* Of all jobs. */
    bool flush;          /* Gathered partitions wait for the tick. */
    /* Where small sums lie one behind the other until then; NULL: nowhere. */
    struct ps_buf *room;
    uint64_t room_used;
    ps_time starved_at; /* PS_TIME_NEVER: nobody is. */
    ps_time retry_at;   /* Partitions held back; PS_TIME_NEVER. */
    ps_time trim_at;    /* Free memory of sums; PS_TIME_NEVER. */
    struct ps_agent_stats stats;
};

/* agent.c */
uint64_t ps_agent_key_bytes(const struct ps_agent_key *k);
uint64_t ps_agent_part_bytes(const struct ps_agent_part *p);

/* agent_budget.c */
void ps_agent_budget_init(struct ps_agent *a);
void ps_agent_budget_fini(struct ps_agent *a);
struct ps_agent_user *ps_agent_user_get(struct ps_agent *a, uint32_t uid);
void ps_agent_user_put(struct ps_agent_user *u);
/* A session takes a place. Refused: nothing is left of it. */
PS_MUST_USE int ps_agent_budget_open(struct ps_agent *a,
                                     struct ps_agent_session *s, uint32_t pid,
                                     struct ps_refusal *ret_refusal);
void ps_agent_budget_close(struct ps_agent_session *s);
/* The session counts at its job from now on. */
void ps_agent_budget_seat(struct ps_agent_session *s, struct ps_agent_job *j);
/* The job holds nothing any more. */
void ps_agent_budget_leave(struct ps_agent_job *j);
/* A key, as it is declared: itself and its results. The job has it refunded
 * with the key. */
PS_MUST_USE int ps_agent_budget_key(struct ps_agent_job *j,
                                    const struct ps_msg_l_key *m,
                                    uint64_t *ret_charged,
                                    struct ps_refusal *ret_refusal);
/* Its table of partitions, once their number is known. */
PS_MUST_USE int ps_agent_budget_parts(struct ps_agent_key *k, uint32_t count,
                                      struct ps_refusal *ret_refusal);
void ps_agent_budget_key_gone(struct ps_agent_key *k);
/* The results of a job that is over, which frames still carry. */
void ps_agent_budget_bury(struct ps_agent_job *j, struct ps_agent_grave *g);
void ps_agent_budget_buried(struct ps_agent_grave *g);
/* A mapping that the session has brought; *ret_buf owns a reference of it, and
 * pays back at its last unref. */
PS_MUST_USE int ps_agent_budget_hold(struct ps_agent_session *s,
                                     struct ps_buf *buf,
                                     struct ps_buf **ret_buf,
                                     struct ps_refusal *ret_refusal);

/* agent_up.c */
void ps_agent_up_init(struct ps_agent *a, ps_time now);
/* `pulse` may be NULL. */
void ps_agent_up_open(struct ps_agent_step *st, ps_conn_id conn,
                      const char *pulse);
void ps_agent_up_dial_failed(struct ps_agent_step *st, uint64_t target, int rc,
                             const char *why);
void ps_agent_up_closed(struct ps_agent_step *st, ps_conn_id conn);
void ps_agent_up_msg(struct ps_agent_step *st, ps_conn_id conn,
                     const struct ps_msg *m, const struct ps_slice *payload);
void ps_agent_up_tick(struct ps_agent_step *st);
ps_time ps_agent_up_deadline(const struct ps_agent *a);
/* Tell the scheduler, in sequence; kept until it hears. */
void ps_agent_up_tell(struct ps_agent_step *st, const struct ps_msg *m);

/* The greeting on a connection to the scheduler or a server. */
void ps_agent_hello(struct ps_agent_step *st, const struct ps_caller *c,
                    ps_conn_id conn);

/* agent_server.c */
void ps_agent_server_open(struct ps_agent_step *st, uint64_t target,
                          ps_conn_id conn);
void ps_agent_server_dial_failed(struct ps_agent_step *st, uint64_t target,
                                 int rc, const char *why);
void ps_agent_server_closed(struct ps_agent_step *st, struct ps_agent_server *s,
                            ps_conn_id conn);
/* What is sent on `conn` does not get through. */
void ps_agent_server_stalled(struct ps_agent_step *st,
                             struct ps_agent_server *s, ps_conn_id conn);
void ps_agent_server_ping_req(struct ps_agent_step *st,
                              const struct ps_msg_ping_req *m);
void ps_agent_server_tick(struct ps_agent_step *st, struct ps_agent_server *s);
ps_time ps_agent_server_deadline(const struct ps_agent *a,
                                 const struct ps_agent_server *s);
struct ps_agent_server *ps_agent_server_get(struct ps_agent_step *st,
                                            uint32_t node);
void ps_agent_server_map(struct ps_agent_step *st, const struct ps_msg_map *m);
void ps_agent_server_msg(struct ps_agent_step *st, struct ps_agent_server *s,
                         ps_conn_id conn, const struct ps_msg *m,
                         const struct ps_slice *payload);
void ps_agent_server_free(struct ps_agent_server *s);
/* Nothing is needed of it any more. */
void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s);
int ps_agent_server_payload(struct ps_agent *a, struct ps_agent_server *s,
                            const struct ps_msg *m, uint64_t len,
                            struct ps_slice *ret_slice);

/* agent_send.c */
struct ps_agent_flow *ps_agent_flow_get(struct ps_agent_step *st,
                                        struct ps_agent_job *j, uint32_t node);
void ps_agent_flow_free(struct ps_agent_flow *f);
void ps_agent_send_queue(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_send_unqueue(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_send_pump(struct ps_agent_step *st, struct ps_agent_server *s);
void ps_agent_send_pump_all(struct ps_agent_step *st);
/* `error`: of the computation, 0 or a PS_E_*. */
void ps_agent_send_summed(struct ps_agent_step *st, struct ps_agent_run *run,
                          int error);
void ps_agent_send_flush(struct ps_agent_step *st, struct ps_agent_server *s);
/* The next small sums begin anew. */
void ps_agent_send_leave_room(struct ps_agent *a);
void ps_agent_send_forget(struct ps_agent_job *j, struct ps_agent_server *s);
/* The server has taken something of the job, or has no memory for it. */
void ps_agent_send_taken(struct ps_agent_step *st, struct ps_agent_server *s,
                         uint64_t gen);
void ps_agent_send_full(struct ps_agent_step *st, struct ps_agent_flow *f);
/* True: the refused part waits for memory of its server. */
bool ps_agent_send_waits(struct ps_agent_step *st,
                         const struct ps_agent_part *p);
void ps_agent_send_credit(struct ps_agent_step *st, struct ps_agent_server *s,
                          uint64_t gen, uint64_t credit);
/* The link is a new one: all that is not committed goes again. */
void ps_agent_send_again(struct ps_agent_step *st, struct ps_agent_server *s);

/* agent_code.c */
/* Does what goes to the server travel as a code? */
bool ps_agent_code_applies(const struct ps_agent_part *p);
/* Sum and encode. PS_E_NOMEM: nothing has happened. */
int ps_agent_code_start(struct ps_agent_step *st, struct ps_agent_flow *f,
                        struct ps_agent_part *p, const struct ps_slice *slices,
                        uint32_t count);
/* Is there the code of the open round? */
bool ps_agent_code_has(const struct ps_agent_part *p);
void ps_agent_code_made(struct ps_agent_part *p, struct ps_agent_run *run);
/* The round is over. */
void ps_agent_code_drop(struct ps_agent_part *p);
/* The round has failed, and may be offered anew. */
void ps_agent_code_fail(struct ps_agent_part *p);
/* Its server did not count what it got of that round. */
void ps_agent_code_refused(struct ps_agent_part *p, uint64_t round);
void ps_agent_code_free(struct ps_agent_part *p);

/* agent_keep.c */
/* Does what the code leaves over lie in memory that outlives this process? It
 * is made, or what another agent has left there is found. */
bool ps_agent_keep_obtain(struct ps_agent_step *st, struct ps_agent_part *p);
/* Has another agent encoded the open round? */
bool ps_agent_keep_again(const struct ps_agent_part *p);
/* Then: go back to what was there before it; and forth. */
void ps_agent_keep_before(struct ps_agent_part *p);
void ps_agent_keep_after(struct ps_agent_part *p);
/* Where an encoding writes, one reference; NULL: nowhere. */
struct ps_buf *ps_agent_keep_residual(const struct ps_agent_part *p);
struct ps_buf *ps_agent_keep_moment(const struct ps_agent_part *p);
/* What the partition has now is of this round. */
void ps_agent_keep_mark(struct ps_agent_part *p, uint64_t round);
void ps_agent_keep_free(struct ps_agent_part *p);
void ps_agent_keep_job_free(struct ps_agent *a, struct ps_agent_job *j);
/* The session hears of what it does not have. */
void ps_agent_keep_tell(struct ps_agent_step *st, struct ps_agent_session *s);
/* A process gives back what another agent has left. */
void ps_agent_keep_take(struct ps_agent_step *st, struct ps_agent_session *s,
                        struct ps_buf *buf);

/* agent_session.c */
void ps_agent_session_open(struct ps_agent_step *st, const struct ps_event *ev);
void ps_agent_session_closed(struct ps_agent_step *st,
                             struct ps_agent_session *s);
/* As a message each; at most OPS_AHEAD. */
void ps_agent_session_ops(struct ps_agent_step *st, struct ps_agent_session *s,
                          const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_session_msg(struct ps_agent_step *st, struct ps_agent_session *s,
                          const struct ps_msg *m);
void ps_agent_session_region(struct ps_agent_step *st,
                             struct ps_agent_session *s, uint32_t region,
                             struct ps_buf *buf);
/* Memory that could not be mapped. Where the agent lacks room for a region,
 * operations that name it are refused in these words; else, and for region 0,
 * the session ends. */
void ps_agent_session_unmapped(struct ps_agent_step *st,
                               struct ps_agent_session *s, uint32_t region,
                               int rc, const char *why);
/* The session has no such region: the error, and why it has none. */
int ps_agent_session_missing(const struct ps_agent_session *s, uint32_t region,
                             const char **ret_why);
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same for a limit, in its words. */
void ps_agent_session_refuse(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_refusal *why);
void ps_agent_session_offer(struct ps_agent_step *st,
                            struct ps_agent_session *s);
/* A worker that takes the place of one that died must not be heard of before
 * that death, and links do not keep order: its job_open waits until the
 * scheduler has acknowledged everything said before. */
void ps_agent_session_turns(struct ps_agent_step *st);
void ps_agent_session_welcome(struct ps_agent_step *st,
                              struct ps_agent_session *s);
/* Departures are said again; those of a job that is over are forgotten. */
void ps_agent_departed_offer(struct ps_agent_step *st);
void ps_agent_departed_forget(struct ps_agent *a, uint64_t gen);
/* Another scheduler never knew of them; of those whose job is here it is told,
 * so that it says that the job is over. */
void ps_agent_departed_sift(struct ps_agent *a);
void ps_agent_session_free(struct ps_agent *a, struct ps_agent_session *s);
/* Lets go of some regions of sessions that have ended. */
void ps_agent_regions_leave(struct ps_agent *a);
struct ps_agent_op *ps_agent_op_new(struct ps_agent_step *st,
                                    struct ps_agent_session *s, uint64_t id);
/* Answers the worker, if it lives, and frees. */
void ps_agent_op_done(struct ps_agent_step *st, struct ps_agent_op *op,
                      uint64_t version, int error, const char *text);
/* Of a pass, in whose round all have passed. */
void ps_agent_op_nobody(struct ps_agent_step *st, struct ps_agent_op *op,
                        uint64_t version);
void ps_agent_op_free(struct ps_agent_op *op);

/* agent_why.c */
void ps_agent_why_ask(struct ps_agent_step *st, struct ps_agent_session *s,
                      uint64_t op_id);
/* Adds what the key lacks of servers that this agent does not hear. */
void ps_agent_why_unheard(const struct ps_agent_step *st,
                          const struct ps_agent_key *k, struct ps_str *t);
void ps_agent_why_answer(struct ps_agent_step *st,
                         const struct ps_msg_stall_answer *m);
void ps_agent_why_offer(struct ps_agent_step *st);
void ps_agent_why_fini(struct ps_agent *a);
/* The session is gone: its questions are dropped. */
void ps_agent_why_forget(struct ps_agent *a, struct ps_agent_session *s);

/* agent_job.c */
struct ps_agent_job *ps_agent_job_find(const struct ps_agent *a, uint64_t gen);
void ps_agent_job_opened(struct ps_agent_step *st,
                         const struct ps_msg_job_opened *m);
void ps_agent_job_state(struct ps_agent_step *st,
                        const struct ps_msg_job_state *m);
void ps_agent_job_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_job *j);
/* Free the memory of jobs that are over and that no frame uses any more. */
void ps_agent_job_bury(struct ps_agent *a);
/* Free it when nobody needs it any more. */
void ps_agent_job_settle(struct ps_agent_step *st, struct ps_agent_job *j);
void ps_agent_job_barrier(struct ps_agent_step *st,
                          const struct ps_msg_barrier_done *m);
void ps_agent_job_enter(struct ps_agent_step *st, struct ps_agent_job *j);
void ps_agent_job_optimizer(struct ps_agent_step *st,
                            const struct ps_msg_optimizer_done *m);
void ps_agent_job_stall(struct ps_agent_step *st,
                        const struct ps_msg_stall_ask *m);
/* A fresh link to the scheduler: everything open is said again. */
/* Another scheduler: jobs that have not begun for anybody here open again. */
void ps_agent_job_reopen(struct ps_agent_step *st);
void ps_agent_job_offer_again(struct ps_agent_step *st);

/* agent_key.c */
/* Bytes of the two results of such a key; 0: it has none here. */
uint64_t ps_agent_key_result_bytes(uint64_t bytes);
void ps_agent_asker_free(struct ps_agent_asker *asker);
void ps_agent_key_ask(struct ps_agent_step *st, struct ps_agent_session *s,
                      const struct ps_msg_l_key *m);
void ps_agent_key_opened(struct ps_agent_step *st,
                         const struct ps_msg_key_opened *m,
                         const struct ps_slice *payload);
void ps_agent_key_offer(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_key_forget_early(struct ps_agent_job *j);
/* Give the new owner of a partition the newest version held here. */
void ps_agent_key_resume(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_key_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_key *k);
/* The memory that operations, or a frame from a server, are about to touch is
 * fetched: thousands of keys do not stay in the cache between two rounds. At
 * most OPS_AHEAD of each. */
void ps_agent_soon_ops(const struct ps_agent *a,
                       const struct ps_agent_session *s,
                       const struct ps_msg_l_op *op, uint32_t count);
void ps_agent_soon_ends(const struct ps_agent *a, uint64_t gen,
                        const struct ps_rec_part *part, uint32_t count);
struct ps_agent_part *ps_agent_part_find(const struct ps_agent *a, uint64_t gen,
                                         const struct ps_rec_part *rec);
/* The same, whatever its elements are. */
struct ps_agent_part *ps_agent_part_named(const struct ps_agent *a,
                                          uint64_t gen,
                                          const struct ps_rec_part *rec);

/* agent_round.c */
void ps_agent_round_take(struct ps_agent_step *st, struct ps_agent_session *s,
                         const struct ps_msg_l_op *m);
void ps_agent_round_reached(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_round_fail(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text);
/* The offers are all there: the partitions go. */
void ps_agent_round_complete(struct ps_agent_step *st, struct ps_agent_key *k);
/* The server says that all have passed in the round of this version. */
void ps_agent_round_passed(struct ps_agent_part *p, uint64_t version);
/* What this node gives to a partition: arrays in rank order. */
uint32_t ps_agent_round_sources(const struct ps_agent_part *p,
                                struct ps_slice *slices);
/* Its sum or init is under way: to its server, or here. */
void ps_agent_round_go(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_round_computed(struct ps_agent_step *st, struct ps_agent_run *run,
                             int error);
/* Have all ranks here copied what they give to it? */
bool ps_agent_round_there(const struct ps_agent_part *p);
/* Has the rank not offered the round, or does it still copy what it gives? */
bool ps_agent_round_lacks(const struct ps_agent_key *k, uint32_t local,
                          uint64_t round);

/* Says no to an operation, in words. */
void ps_agent_round_refuse(struct ps_agent_step *st, struct ps_agent_session *s,
                           const struct ps_msg_l_op *m, int error,
                           const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* agent_resume.c */
/* A rank is seated that had another agent. */
void ps_agent_resume_seat(struct ps_agent_session *s);
/* It names a key again. False: it has been hung up on. */
bool ps_agent_resume_key(struct ps_agent_step *st, struct ps_agent_session *s,
                         struct ps_agent_key *k, uint64_t pushed);
/* The key is open: what is known of its past. */
void ps_agent_resume_opened(struct ps_agent_step *st, struct ps_agent_key *k);
/* An operation of a round whose end another rank here has heard already; true:
 * it has been dealt with. */
bool ps_agent_resume_takes(struct ps_agent_step *st, struct ps_agent_op *op);
/* All ranks here have offered a round: what of it is made already. */
void ps_agent_resume_made(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_resume_forget(struct ps_agent_key *k);

/* agent_async.c */
/* Does the operation make sense on a key without rounds? False: refused. */
bool ps_agent_async_allows(struct ps_agent_step *st, struct ps_agent_session *s,
                           const struct ps_agent_key *k,
                           const struct ps_msg_l_op *m,
                           const struct ps_slice *array);
/* A push that waits for its turn, whose worker dies: does it stay? */
bool ps_agent_async_keeps(const struct ps_agent_op *op);
/* Push, pull and pushpull. */
void ps_agent_async_take(struct ps_agent_step *st, struct ps_agent_op *op);
void ps_agent_async_next(struct ps_agent_step *st, struct ps_agent_key *k);
/* Every partition has applied what was on its way. */
void ps_agent_async_finish(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_async_fail(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text);
/* Ends the pulls and inits that have their value; asks for the others. */
void ps_agent_async_check(struct ps_agent_step *st, struct ps_agent_key *k);
/* What every rank of the job has pushed. */
void ps_agent_async_clock(struct ps_agent_part *p, uint64_t clock);
void ps_agent_async_again(struct ps_agent_key *k, uint32_t node);
/* The answer to the partition's question. */
void ps_agent_async_value(struct ps_agent_step *st, struct ps_agent_part *p,
                          const uint8_t *from);

/* agent_rows.c */
uint32_t ps_agent_rows_of_key(const struct ps_agent_key *k);
/* Bytes that an operation with `count` rows takes here. */
uint64_t ps_agent_rows_cost(const struct ps_agent_key *k, uint32_t count);
/* Copies the `count` numbers at the beginning of the block, at most the rows
 * of the key. PS_E_INVAL when they are not ascending, or not all in the key;
 * PS_E_NOMEM. */
PS_MUST_USE int ps_agent_rows_new(const struct ps_agent_key *k,
                                  const struct ps_slice *block, uint32_t count,
                                  struct ps_agent_rows **ret_rows);
void ps_agent_rows_free(struct ps_agent_rows *r); /* NULL is fine. */
/* What the ranks here give to a partition, into run->dst with run->rows; the
 * computation is NULL when they give nothing. PS_E_NOMEM: nothing has
 * happened. */
int ps_agent_rows_sum(struct ps_agent *a, struct ps_agent_part *p,
                      struct ps_agent_run *run,
                      struct ps_compute **ret_compute);
void ps_agent_rows_pull(struct ps_agent_step *st, struct ps_agent_op *op);
/* Asks for what is not asked for. */
void ps_agent_rows_check(struct ps_agent_step *st, struct ps_agent_key *k);
/* Questions to a node (0: all), or about a partition (UINT32_MAX: all), are
 * not known there and must be asked again. */
void ps_agent_rows_again(struct ps_agent_key *k, uint32_t node, uint32_t part);
void ps_agent_rows_took(struct ps_agent_step *st, const struct ps_msg_rows *m,
                        const struct ps_slice *payload);
/* Bytes that must come with it; 0: it makes no sense, or has none. */
uint64_t ps_agent_rows_payload(const struct ps_msg_rows *m);
/* Is there a version of at least `least`? */
void ps_agent_rows_ask_version(struct ps_agent_step *st,
                               struct ps_agent_part *p, int64_t least);

/* agent_quarrel.c */
/* Which attempt at its round the key is at. */
uint32_t ps_agent_quarrel_attempt(const struct ps_agent_key *k);
/* A new round begins: nobody has disagreed. */
void ps_agent_quarrel_end(struct ps_agent_key *k);
/* Has the rank, that offers once more or late, heard of it? Else it is told,
 * and its operation is over. */
bool ps_agent_quarrel_tells(struct ps_agent_step *st, struct ps_agent_op *op);
/* Ranks of this node disagree: `op` with those who came before. */
void ps_agent_quarrel_begin(struct ps_agent_step *st, struct ps_agent_op *op,
                            const char *text);
/* A server refuses a part of a round for what others ask for. */
void ps_agent_quarrel_refused(struct ps_agent_step *st, struct ps_agent_key *k,
                              uint64_t round, uint32_t attempt,
                              const char *text);
/* The server may have lost what it was told. */
void ps_agent_quarrel_again(struct ps_agent_step *st, struct ps_agent_key *k,
                            uint32_t node);

/* agent_pull.c */
void ps_agent_pull_take(struct ps_agent_step *st, struct ps_agent_op *op);
void ps_agent_pull_check(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_init_take(struct ps_agent_step *st, struct ps_agent_op *op);
/* Sends what the root gave, if it waits. */
void ps_agent_init_again(struct ps_agent_step *st, struct ps_agent_key *k);
/* The init of this partition is committed where nobody answers any more: true
 * when the root is here and it is to be sent again. */
bool ps_agent_init_reopen(struct ps_agent_part *p);
void ps_agent_init_reached(struct ps_agent_step *st, struct ps_agent_part *p);
/* Ask again whatever was asked of this server. */
void ps_agent_pull_again(struct ps_agent_step *st, struct ps_agent_key *k,
                         uint32_t node);

/* agent_state.c */
void ps_agent_state_take(struct ps_agent_step *st, struct ps_agent_session *s,
                         const struct ps_msg_l_state *m);
void ps_agent_state_took(struct ps_agent_step *st, const struct ps_msg_state *m,
                         const struct ps_slice *payload);
/* The server has forgotten what it was asked; sends that again. */
void ps_agent_state_again(struct ps_agent_step *st, struct ps_agent_key *k,
                          uint32_t node);
/* The partition is at another server, and what was asked of it is to be asked
 * there. */
void ps_agent_state_moved(struct ps_agent_step *st, struct ps_agent_part *p);
/* Asks what may be asked. */
void ps_agent_state_check(struct ps_agent_step *st, struct ps_agent_key *k);
