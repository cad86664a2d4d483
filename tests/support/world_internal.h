/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the simulated world. */
#pragma once

#include "core/link/output.h"
#include "core/link/path.h"
#include "support/rows.h"
#include "support/server_peek.h"
#include "support/world.h"

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/num.h"
#include "base/rng.h"

/* Jobs whose credit at a server is checked; another replaces the oldest. */
#define WORLD_CREDITS_MAX 8

/* Worker of a local connection that is a tool's. */
#define WORLD_NO_WORKER   UINT32_MAX

/* Credit of one job at one server. */
struct wcredit {
    uint64_t gen;               /* 0: none. */
    uint64_t largest_part;      /* Bytes of the largest partition received. */
    struct server_credit *slot; /* As many as agents. */
};

/* State memory of a server, which the end of its process leaves. */
struct wstate {
    uint8_t *bytes;             /* NULL: it has none. */
    struct ps_records *records; /* Of the present process. */
    uint64_t stores;
    uint64_t die_at;   /* Store that is the last one of the process; 0: none. */
    uint8_t *at_death; /* Bytes that store has left; NULL: it lives. */
    ps_time away;
};

struct wnode {
    char name[32]; /* Name and address: "sched", "server0", "agent1". */
    enum ps_role role;
    uint32_t index;
    bool alive;
    uint32_t incarnation; /* Incremented by each restart. */
    struct ps_machine machine;
    struct ps_multipath multipath; /* Links and their connections. */
    struct ps_pre_handshake pre_handshake;
    struct ps_output output; /* Of connections of links. */
    bool output_is_limited;  /* By the options, to little. */
    struct ps_sched *sched;
    /* Its process has ended within a step; WE_END follows at this time. */
    bool is_ended;
    struct ps_server *server;
    struct ps_agent *agent;
    struct ps_pool *pool; /* Server: all memory; agent: scratch memory. */
    struct wstate state;
    struct ps_effects fx;
    ps_time wakes_at; /* The process is stopped until then. */
    bool is_lost;     /* It does not return. */
    ps_time slept;    /* Length of the last stops, with little time between. */
    ps_time tick_at;  /* Time of the valid tick event; others are stale. */
    /* Server: credit of the jobs last pushed to, as seen after its last
     * step. */
    struct wcredit credit[WORLD_CREDITS_MAX];
    uint32_t stalled; /* Connection ends whose reading waits for memory. */
    bool unstall_due; /* A retry of the stalled ends is queued. */
};

struct wframe_queue {
    struct wframe **frame;
    uint32_t count;
};

/* Frame whose payload is arriving. */
struct wreception {
    struct wframe *frame; /* NULL: none. */
    struct ps_slice payload;
    uint64_t len;
    int discard_reason;
};

struct wconn {
    uint64_t id;           /* Its ends have the ids id * 2 and id * 2 + 1. */
    struct wnode *node[2]; /* NULL at end 1 of a local connection. */
    /* Local connection: index of the worker, or WORLD_NO_WORKER. */
    uint32_t worker;
    bool open[2]; /* Received OPEN and not CLOSED, by end. */
    bool cut;
    bool closing;  /* One end has closed it, and frames in flight arrive. */
    bool ended[2]; /* The node of this end has closed it, cut or not. */
    /* Arrival time of the last handshake frame; later frames do not overtake
     * it. */
    ps_time fence[2];
    struct ps_path path[2];                     /* Not of a local connection. */
    struct ps_pre_handshake_conn pre_handshake; /* At end 1. */
    bool has_hello;                             /* Its hello has arrived. */
    struct ps_output_conn output[2];            /* Not of a local connection. */
    uint64_t output_counted[2];                 /* Bytes last reported. */
    struct wreception reception[2];
    /* Subflow: numbers that it has carried. Main connection: the highest
     * acknowledgement that has arrived. */
    uint64_t *carried[2];
    uint32_t carried_count[2];
    uint64_t acked[2];
    uint64_t queued[2];
    /* Time of the last delivery; Unix sockets keep order. */
    ps_time local_last[2];
    ps_time kernel_last[2];
    ps_time kernel_handshake[2]; /* When the kernel takes the handshake. */
    /* Received frames, by end, that wait because there is no memory for the
     * first of them. */
    struct wframe_queue stalled[2];
    uint32_t unread[2]; /* Frames on their way to an end, or stalled there. */
    /* Frames, by sending end, that the kernel takes after the other end has
     * read some: WINDOW frames are unread. */
    struct wframe_queue parked[2];
};

enum wevent_type {
    WE_TICK,
    WE_CONNECT,
    WE_PROBE,
    WE_KERNEL,
    WE_RESUME, /* The kernel may take parked frames. */
    WE_DELIVER,
    WE_RECEIVED, /* The second half of a payload. */
    WE_UNSTALL,
    WE_CLOSE,
    WE_COMPUTE,
    WE_WORKER,
    WE_COPY,
    WE_THINK_DONE,
    WE_FAULT,
    WE_HEAL,
    WE_BEGIN, /* Restart of a daemon. */
    WE_END,   /* End of a scheduler within its last step. */
    WE_WAKE,
    WE_OPEN,  /* A connection accepted while the node was stopped. */
    WE_LOCAL, /* A worker's message to an agent that was stopped. */
    WE_DEATH, /* Of a server, at a store into its state memory. */
};

#define WORLD_HOLDS_MAX 16

/* Messages that a story test holds in flight. */
struct whold {
    const struct wnode *from;
    const struct wnode *to;
    uint8_t code; /* 0: messages of every code. */
};

struct wframe {
    uint8_t *bytes; /* Prefix, header and payload. */
    size_t len;
    uint32_t refs;
};

struct wevent {
    struct ps_heap_item item;
    enum wevent_type type;
    struct wnode *node;
    /* Incarnation of node or worker; events of an earlier one are dropped. */
    uint32_t incarnation;
    uint64_t conn;
    uint32_t end; /* End of the connection concerned. */
    uint64_t number;
    bool is_urgent;        /* WE_KERNEL: the frame goes ahead of parked ones. */
    ps_conn_id subflow_of; /* WE_CONNECT: as in the effect. */
    struct wframe *frame;
    struct ps_compute *compute;
    struct ps_msg *msg; /* WE_LOCAL: a message; NULL: `memory` is used. */
    /* WE_LOCAL: memory of a region or residual segment. */
    struct ps_buf *memory;
    bool is_segment; /* `memory` is a residual segment. */
    char address[PS_ADDRESS_MAX + 1];
};

enum wstage {
    WS_START,
    WS_HELLO,
    WS_COMPRESSION,
    WS_KEYS,
    WS_RECOVER,
    WS_REJOIN,
    WS_OPTIMIZER,
    WS_CHANGE,
    WS_TUNE,
    WS_PROFILE,
    WS_INIT,
    WS_ROUND,
    WS_BARRIER,
    WS_FINAL,
    WS_RECORDING,
    WS_DETACH,
    WS_DONE,
};

struct wworker {
    uint32_t index; /* Position among the workers of all jobs. */
    uint32_t job;
    uint32_t rank;
    uint32_t incarnation; /* Incremented by each restart. */
    bool alive;
    struct wnode *agent;
    uint64_t conn; /* 0: not connected. */
    enum wstage stage;
    uint64_t round; /* Current round. */
    uint64_t rounds_done;
    uint64_t barriers;
    uint32_t waiting; /* Replies missing in this stage. */
    uint64_t gen;     /* Generation of its job; 0: not welcomed yet. */
    bool agent_lost;  /* Its agent was lost; it dials the next one. */
    /* Re-attach: keys declared again and not answered. */
    uint32_t unanswered_keys;
    struct {
        uint32_t number;
        struct ps_buf *memory;
    } segments[64]; /* Residual segments of its agents, held open only. */
    uint32_t segment_count;
    struct ps_msg *open_requests[64]; /* Unanswered requests, by op id % 64. */
    uint64_t next_op;
    uint64_t oldest_op;
    uint64_t hold_round;
    /* Round before which the worker was or is busy. */
    uint64_t think_round;
    bool is_thinking; /* The worker is busy. */
    bool is_held;
    bool is_mistaken;    /* It has declared its first key otherwise. */
    bool is_corrected;   /* It was refused for that, and knows better. */
    uint32_t mismatches; /* Operations that ended for mistakes of others. */
    int error;
    char text[PS_TEXT_MAX + 1];
    char stall_reply[1100];
    struct {
        uint32_t key;
        uint32_t arena;
        uint64_t offset[2];
        uint64_t round;
        uint64_t ended_round; /* Last round whose end it was notified of. */
        bool is_open;         /* The agent has answered the declaration. */
        uint8_t *final_value; /* The final value as received. */
        /* Arena of a value that was read, and that must not change until the
         * next push; 0: none. */
        uint32_t read_arena;
        uint64_t read_offset;
        uint32_t read_incarnation; /* Of the agent. */
        uint64_t read_version;
        uint64_t read_hash;
        struct ps_buf *memory; /* Its region, which holds its blocks. */
        /* Without rounds: offset of the value. */
        uint64_t at;
        /* Rows key: the push is done, the pull is open. */
        bool is_pulling;
        uint32_t pulled_rows; /* Rows of the open pull. */
        /* Operation whose array is incomplete; 0: none. */
        uint64_t streaming_op;
        /* Bytes of that array that are complete. */
        uint64_t bytes_ready;
    } key[WORLD_KEYS_MAX];
    uint64_t op_key[64]; /* Key index + 1, by op id % 64. */
    uint64_t op_round[64];
};

/* Values and models of one of the jobs, for the checkers. */
struct wjob {
    uint64_t gen; /* Of the job that the last worker was welcomed to. */
    uint64_t result;
    /* By round: hash of the value that all workers must receive. */
    uint64_t seen_hash[WORLD_KEYS_MAX][256];
    bool seen_set[WORLD_KEYS_MAX][256];
    struct wmodel *model[WORLD_KEYS_MAX]; /* NULL: no version was checked. */
    /* By round: factor of all gradients that limits their norm; 0: not computed
     * yet. */
    double clip_scale[256];
};

/* End of a scheduler that has a file. */
enum wend {
    WEND_NONE,
    WEND_EFFECT, /* Before one of its next effects. */
    WEND_STORED, /* Before an effect of the next step that stores. */
    WEND_COMMIT, /* The next commit fails. */
};

struct world {
    struct world_options opt;
    ps_time now;
    struct ps_rng rng;
    struct ps_heap events;
    struct ps_decoder *decoder;
    struct wnode *node; /* The scheduler, servers, agents. */
    uint32_t node_count;
    struct wworker *worker; /* As many as world_worker_count(). */
    struct ps_map *conns;   /* By id: struct wconn. */
    uint64_t next_conn;
    struct ps_map *arenas; /* By tag: memory. */
    uint32_t last_arena;
    /* By tag: struct ps_buf, while an agent holds it. */
    struct ps_map *segments;
    uint32_t last_segment;
    /* By pair of nodes, see world_is_split(). */
    bool *split;
    struct whold hold[WORLD_HOLDS_MAX];
    uint32_t hold_count;
    bool no_witness; /* Every ping_ack is lost. */
    bool next_job;   /* The first job has ended. */
    uint64_t steps;
    uint64_t faults;
    uint64_t subflow_frames; /* Frames that subflows carried. */
    uint64_t acks_ahead;     /* Acknowledgements sent ahead of data. */
    uint64_t lies;           /* Messages of peers that lie. */
    uint64_t lied_bytes;     /* Their payloads, which agents do not count. */
    uint64_t overtakes;      /* Frames that went ahead of queued ones. */
    uint64_t output_closes;  /* Connections closed for queued output. */
    uint64_t sched_bytes;    /* Memory that the scheduler has allocated. */
    uint64_t sched_peak;     /* The most of it. */
    struct rows rows;        /* The scheduler's file, if it has one. */
    enum wend sched_end;     /* How the scheduler ends next. */
    uint32_t effects_left;   /* Of WEND_EFFECT: those before its end. */
    uint64_t trace_hash;
    char error[1024];
    char *story;
    size_t story_len;
    /* State of the checkers. */

    struct wjob job[WORLD_JOBS_MAX];
    /* Job of the worker whose event is handled; world_data_*() and checks of
     * values are about this one. */
    uint32_t current_job;
    struct ps_map *owners; /* By hash(epoch, key, part): node. */
    /* By hash(gen, key, part): version + 1 that a server that died had made. */
    struct ps_map *committed_at_death;
};

static inline uint32_t world_job_count(const struct world *w)
{
    return w->opt.jobs == 0 ? 1 : w->opt.jobs;
}

/* Checks that look at each agent or connection after each step are left out:
 * they would take most of the time. */
static inline bool world_is_large(const struct world *w)
{
    return w->opt.agents > 64;
}

/* Worker at the other end of a local connection; NULL: a tool. */
static inline struct wworker *world_conn_worker(struct world *w,
                                                const struct wconn *c)
{
    return c->worker != WORLD_NO_WORKER ? &w->worker[c->worker] : NULL;
}

void world_fail(struct world *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void world_step(struct world *w, struct wnode *n, struct ps_event *ev);
/* Carries out what was appended to the node's effects without a step. */
void world_apply(struct world *w, struct wnode *n);
/* Counts what was allocated since ps_alloc_bytes() was `before`, if the node is
 * the scheduler. */
void world_count_memory(struct world *w, const struct wnode *n,
                        uint64_t before);
/* Restarts the scheduler, which has ended, after a while. */
void world_begin_again(struct world *w, struct wnode *n);
/* Ends the scheduler before its effect, if that is due. True: it has ended, and
 * nothing more is carried out. */
bool world_ends_sched(struct world *w, struct wnode *n, const struct ps_fx *f);
bool world_is_asleep(const struct world *w, const struct wnode *n);
struct wevent *world_event(struct world *w, enum wevent_type type, ps_time at);
struct wconn *world_conn(struct world *w, uint64_t id);
void world_local_send(struct world *w, struct wworker *k,
                      const struct ps_msg *msg);
/* A reference to the memory that the worker's agent has under this number. */
struct ps_buf *world_segment_ref(struct world *w, uint32_t number);
void world_local_segment(struct world *w, struct wworker *k, uint32_t number,
                         struct ps_buf *memory);
void world_local_region(struct world *w, struct wworker *k, uint32_t region,
                        struct ps_buf *buf);
uint64_t world_local_connect(struct world *w, struct wworker *k);
ps_time world_delay(struct world *w, ps_time least, ps_time spread);
void world_event_free(struct wevent *e);
struct wnode *world_node_named(struct world *w, const char *name, size_t len);
uint32_t world_node_index(const struct world *w, const struct wnode *n);
/* True: the nodes of these indices cannot connect. */
bool world_is_split(const struct world *w, uint64_t a, uint64_t b);
void world_set_split(struct world *w, uint64_t a, uint64_t b, bool split);
bool world_is_faulty(const struct world *w);
bool world_chance(struct world *w, uint32_t per_mille);

/* world_net.c */
struct wconn *world_conn_new(struct world *w, struct wnode *a, struct wnode *b);
void world_conn_free(struct wconn *c);
void world_close_conn(struct world *w, struct wconn *c, ps_time delay);
void world_frame_unref(struct wframe *f);
/* Discards the frames that wait or arrive at this end, and its place in a
 * link. */
void world_forget_end(struct wconn *c, uint32_t end);
/* Runs a computation of the node. */
int world_compute(const struct world *w, const struct wnode *n,
                  const struct ps_job *job);
/* Carry out PS_FX_SEND and PS_FX_CLOSE. */
void world_send(struct world *w, struct wnode *n, const struct ps_fx *f);
void world_finish_conn(struct world *w, struct wnode *n, const struct ps_fx *f);
/* Handle the events of connections. */
void world_accepted(struct world *w, struct wconn *c);
void world_connect(struct world *w, struct wevent *e);
void world_kernel(struct world *w, struct wevent *e);
void world_resume(struct world *w, struct wevent *e);
void world_deliver(struct world *w, struct wevent *e);
void world_received(struct world *w, struct wevent *e);
void world_unstall(struct world *w, struct wnode *n);
void world_closed(struct world *w, struct wevent *e);

/* world_output.c */
void world_output_begin(struct world *w, struct wnode *n);
void world_output_end(struct wnode *n);
/* This end of a connection of a link is open. */
void world_output_add(struct wconn *c, uint32_t end);
/* The first frame has arrived at end 1. */
void world_output_on_hello(struct wconn *c);
/* The bytes queued at this end have changed. May close this or another
 * connection of its node. */
void world_output_update(struct world *w, struct wconn *c, uint32_t end);

/* world_setup.c */
void world_node_begin(struct world *w, struct wnode *n);
void world_node_end(struct wnode *n);
/* The agent's view of memory that others hold as well. */
struct ps_buf *world_segment_view(struct world *w, struct ps_buf *memory);

/* world_fault.c */
void world_faults_begin(struct world *w);
void world_fault(struct world *w, const struct wevent *e);
void world_lose_agent(struct world *w, uint32_t victim);
void world_sleep(struct world *w, struct wnode *n, ps_time length);
void world_heal(struct world *w);

/* world_lie.c */
/* A frame has arrived at this end. By chance, another one follows in which its
 * sender lies. May end the connection. */
void world_lie(struct world *w, const struct wconn *c, uint32_t end);

/* world_worker.c */

/* User of the jobs, and the text of a token of this user. */
#define WORLD_OWNER 1000u
#define WORLD_TOKEN "token"

const char *worker_job_name(const struct world *w);
/* User of the worker of this index. */
uint32_t worker_uid(const struct world *w, uint32_t index);
/* Starts an ended worker again for the next job. */
void worker_restart(struct world *w, struct wworker *k);
void worker_begin(struct world *w, struct wworker *k);
void worker_message(struct world *w, struct wworker *k,
                    const struct ps_msg *msg);
void worker_closed(struct world *w, struct wworker *k);
void worker_event(struct world *w, struct wworker *k);
/* The worker is ready for its next round. */
void worker_think_done(struct world *w, struct wworker *k);
/* More of the array streamed to this key is complete. */
void worker_copy_more(struct world *w, struct wworker *k, uint32_t key);
/* State memory. */
bool world_has_state(const struct world *w);
void world_state_begin(struct wnode *n, struct ps_server_options *o);
/* Before the server is freed, and after its pool. */
void world_state_freeze(struct wnode *n);
void world_state_end(struct wnode *n);
void world_state_free(struct wnode *n);
/* Bytes of state memory that no buffer of the pool has, and records, after the end
 * of all jobs. */
uint64_t world_state_residue(struct wnode *n);
/* The server has died in this step, which nobody hears of. */
void world_state_die(struct world *w, struct wnode *n);
void world_death(struct world *w, struct wnode *n);

void worker_kill(struct world *w, struct wworker *k);
void worker_release_memory(struct wworker *k);
void worker_drop_requests(struct wworker *k);
void worker_accept_segment(struct world *w, struct wworker *k,
                           const struct ps_msg_l_residual_segment *m);
/* True if the agent of this rank may die now without loss to the job. */
bool worker_may_lose_agent(const struct wworker *k);

/* world_check.c */
/* Runs before the node handles the event, which may delete state. */
void check_before(struct world *w, struct wnode *n, const struct ps_event *ev);
void check_step(struct world *w, struct wnode *n, const struct ps_event *ev);
void check_frame(struct world *w, const struct wnode *from,
                 const struct wnode *to, const struct ps_packet *packet);
void check_value(struct world *w, struct wworker *k, uint32_t key,
                 uint64_t version, const void *data, size_t len);
/* Checks a value without rounds, which the rank requested after `pushes`
 * pushes. */
void check_counts(struct world *w, const struct wworker *k, uint32_t key,
                  uint64_t pushes, const void *data);
/* Checks rows that were pulled. */
void check_rows(struct world *w, struct wworker *k, uint32_t key,
                uint64_t version, const uint32_t *row, uint32_t count,
                const void *data);
/* The oldest connections without a handshake have made room. */
void check_pre_handshake(struct world *w, const struct wnode *n);
/* An acknowledgement has arrived for the link with main connection `main`. */
void check_acked(struct world *w, ps_conn_id main, uint64_t ack);
/* This end of a subflow is closed: the effects that follow send what it has
 * carried again, unless it is acknowledged. */
void check_resent(struct world *w, const struct wconn *c, uint32_t end,
                  ps_conn_id main);
void check_end(struct world *w);
/* Runs before the server dies. */
void check_before_death(struct world *w, const struct wnode *n);
