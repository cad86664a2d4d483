/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the simulated world share. */
#pragma once

#include "support/world.h"

#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/num.h"
#include "base/rng.h"

/* Partitions of a key, at most. */
#define WORLD_PARTS_MAX 64

struct wnode {
    char name[32]; /* "sched", "server0", "agent1": also its address. */
    enum ps_role role;
    uint32_t index;
    bool alive;
    uint32_t incarnation; /* Grows with each restart. */
    struct ps_machine machine;
    struct ps_sched *sched;
    struct ps_server *server;
    struct ps_agent *agent;
    struct ps_pool *pool; /* Server: all; agent: sums. */
    struct ps_effects fx;
    ps_time wakes_at; /* Later than now: it is stopped. */
    ps_time tick_at;  /* The tick event that counts. */
    /* Server, by slot: it was let on beyond its window, because a round
     * lacked it, and has not been within it since. */
    bool let_on[WORLD_NODES_MAX];
    uint64_t gen;     /* Of the last push to it; 0: there was none. */
    uint32_t stalled; /* Ends of connections that wait for memory. */
    bool unstall_due; /* They are about to be asked again. */
};

struct wconn {
    uint64_t id;           /* Ends are id * 2 and id * 2 + 1. */
    struct wnode *node[2]; /* end 1 of a local connection: NULL. */
    uint32_t worker;       /* Local: which. */
    bool open[2];          /* Has seen OPEN and not CLOSED. */
    bool cut;
    bool closing;     /* Hung up on by one end. */
    ps_time fence[2]; /* Nothing sent before overtakes a handshake frame. */
    uint64_t queued[2];
    ps_time local_last[2]; /* Unix sockets keep order. */
    ps_time kernel_last[2];
    /* What came to an end that has no memory for the first of these: nothing
     * behind it is read. */
    struct wframe **stalled[2];
    uint32_t stalled_count[2];
};

enum wevent_type {
    WE_TICK,
    WE_CONNECT,
    WE_PROBE,
    WE_KERNEL,
    WE_DELIVER,
    WE_UNSTALL,
    WE_CLOSE,
    WE_COMPUTE,
    WE_WORKER,
    WE_COPY,
    WE_THINK_DONE,
    WE_FAULT,
    WE_HEAL,
    WE_BEGIN, /* A daemon is restarted. */
    WE_WAKE,
    WE_OPEN,  /* A connection that was accepted in its sleep. */
    WE_LOCAL, /* What a worker gave to an agent that sleeps. */
};

#define WORLD_HOLDS_MAX 16

/* Messages that a story keeps on their way. */
struct whold {
    const struct wnode *from;
    const struct wnode *to;
    uint8_t code; /* 0: of any kind. */
};

struct wframe {
    uint8_t *bytes; /* Prefix, header, payload. */
    size_t len;
    uint32_t refs;
};

struct wevent {
    struct ps_heap_item item;
    enum wevent_type type;
    struct wnode *node;
    uint32_t incarnation; /* Of node or worker: stale events are dropped. */
    uint64_t conn;
    uint32_t end; /* Which end it happens to. */
    uint64_t number;
    struct wframe *frame;
    struct ps_compute *compute;
    struct ps_msg *msg;    /* WE_LOCAL: one of these, */
    struct ps_buf *memory; /* or this, for a region or */
    bool is_segment;       /* to keep. */
    char address[PS_ADDRESS_MAX + 1];
};

enum wstage {
    WS_START,
    WS_HELLO,
    WS_COMPRESSION,
    WS_KEYS,
    WS_REJOIN,
    WS_OPTIMIZER,
    WS_CHANGE,
    WS_INIT,
    WS_ROUND,
    WS_BARRIER,
    WS_FINAL,
    WS_DETACH,
    WS_DONE,
};

struct wworker {
    uint32_t index;       /* Asks for this rank. */
    uint32_t incarnation; /* Grows with each restart. */
    bool alive;
    struct wnode *agent;
    uint64_t conn; /* 0: none. */
    enum wstage stage;
    uint64_t round; /* Under way. */
    uint64_t rounds_done;
    uint64_t barriers;
    uint32_t waiting;         /* Replies missing in this stage. */
    uint64_t gen;             /* Of its job, once it was welcomed. */
    bool agent_lost;          /* Its agent was lost; it dials the next one. */
    uint32_t unanswered_keys; /* Bereft: keys named again, not answered. */
    struct {
        uint32_t number;
        struct ps_buf *memory;
    } segments[64]; /* Of its agents; it only holds it. */
    uint32_t segment_count;
    struct ps_msg *open_requests[64]; /* op id % 64 -> what has not ended. */
    uint64_t next_op;
    uint64_t oldest_op;
    uint64_t hold_round;
    uint64_t think_round; /* The round before which it was busy, */
    bool is_thinking;     /* or is. */
    bool is_held;
    int error;
    char text[PS_TEXT_MAX + 1];
    char stall_reply[1100];
    struct {
        uint32_t key;
        uint32_t arena;
        uint64_t offset[2];
        uint64_t round;
        uint64_t ended_round; /* Rounds that it knows the end of. */
        bool is_open;         /* The agent has answered for it. */
        uint8_t *final_value; /* The final value, as it came. */
        uint32_t read_arena;  /* Where a value was read, and is to stay until
                                * the next push; 0: nowhere. */
        uint64_t read_offset;
        uint64_t read_version;
        uint64_t read_hash;
        struct ps_buf *memory; /* Its region: places of its blocks. */
        uint64_t at;           /* Without rounds: where the value comes. */
        bool is_pulling;       /* Rows: its push is done, a pull is not. */
        uint32_t pulled_rows;  /* Rows that it asks for. */
        uint64_t
            streaming_op;     /* Operation whose array is not there; 0: none, */
        uint64_t bytes_ready; /* but so many bytes. */
    } key[WORLD_KEYS_MAX];
    uint64_t op_key[64]; /* op id % 64 -> key index + 1. */
    uint64_t op_round[64];
};

struct world {
    struct world_options opt;
    ps_time now;
    struct ps_rng rng;
    struct ps_heap events;
    struct ps_decoder *decoder;
    struct wnode node[WORLD_NODES_MAX];
    uint32_t node_count;
    struct wworker worker[WORLD_WORKERS_MAX];
    struct ps_map *conns; /* id -> wconn */
    uint64_t next_conn;
    struct ps_map *arenas; /* tag -> memory */
    uint32_t last_arena;
    struct ps_map *segments; /* tag -> struct ps_buf, while an agent has it */
    uint32_t last_segment;
    bool split[WORLD_NODES_MAX][WORLD_NODES_MAX];
    struct whold hold[WORLD_HOLDS_MAX];
    uint32_t hold_count;
    bool no_witness; /* Every ping_ack is lost. */
    bool next_job;   /* The first one has ended. */
    uint64_t steps;
    uint64_t faults;
    uint64_t trace_hash;
    uint64_t result;
    char error[1024];
    char *story;
    size_t story_len;
    /* Checkers. */
    uint64_t seen_hash[WORLD_KEYS_MAX][256]; /* By round: value all must see. */
    bool seen_set[WORLD_KEYS_MAX][256];
    struct wmodel *model[WORLD_KEYS_MAX]; /* NULL: nothing was seen. */
    struct ps_map *owners;                /* hash(epoch, key, part) -> node */
    struct ps_map *
        committed_at_death; /* hash(gen, key, part) -> version + 1 that a server
                          * had made when it died. */
};

void world_fail(struct world *w, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void world_step(struct world *w, struct wnode *n, struct ps_event *ev);
struct wevent *world_event(struct world *w, enum wevent_type type, ps_time at);
struct wconn *world_conn(struct world *w, uint64_t id);
void world_close_conn(struct world *w, struct wconn *c, ps_time delay);
void world_local_send(struct world *w, struct wworker *k,
                      const struct ps_msg *msg);
/* The agent of the worker has memory under this number: one reference. */
struct ps_buf *world_segment_ref(struct world *w, uint32_t number);
void world_local_segment(struct world *w, struct wworker *k, uint32_t number,
                         struct ps_buf *memory);
void world_local_region(struct world *w, struct wworker *k, uint32_t region,
                        struct ps_buf *buf);
uint64_t world_local_connect(struct world *w, struct wworker *k);
ps_time world_delay(struct world *w, ps_time least, ps_time spread);
struct wconn *world_conn_new(struct world *w, struct wnode *a, struct wnode *b);
void world_conn_free(struct wconn *c);
void world_event_free(struct wevent *e);
/* What waits for memory there is not waited for any more. */
void world_forget_stalled(struct wconn *c, uint32_t end);
struct wnode *world_node_named(struct world *w, const char *name, size_t len);
uint32_t world_node_index(const struct world *w, const struct wnode *n);
bool world_is_faulty(const struct world *w);
bool world_chance(struct world *w, uint32_t per_mille);
uint64_t world_hash(uint64_t h, const void *data, size_t len);

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

/* world_worker.c */
/* It has ended, and comes again for the next job. */
void worker_restart(struct world *w, struct wworker *k);
void worker_begin(struct world *w, struct wworker *k);
void worker_message(struct world *w, struct wworker *k,
                    const struct ps_msg *msg);
void worker_closed(struct world *w, struct wworker *k);
void worker_event(struct world *w, struct wworker *k);
/* It is ready for its next round. */
void worker_think_done(struct world *w, struct wworker *k);
/* More of what it gives to this key is there. */
void worker_copy_more(struct world *w, struct wworker *k, uint32_t key);
void worker_kill(struct world *w, struct wworker *k);
void worker_release_memory(struct wworker *k);
void worker_drop_requests(struct wworker *k);
void worker_accept_segment(struct world *w, struct wworker *k,
                           const struct ps_msg_l_residual_segment *m);
/* May the agent of this rank die now, with nothing lost? */
bool worker_may_lose_agent(const struct wworker *k);

/* world_check.c */
/* Before the daemon hears of this, which may make it forget. */
void check_before(struct world *w, const struct wnode *n,
                  const struct ps_event *ev);
void check_step(struct world *w, struct wnode *n, const struct ps_event *ev);
void check_frame(struct world *w, struct wnode *from,
                 const struct ps_packet *parcel);
void check_value(struct world *w, struct wworker *k, uint32_t key,
                 uint64_t version, const void *data, size_t len);
/* Without rounds: a value that the rank asked for after so many pushes. */
void check_counts(struct world *w, const struct wworker *k, uint32_t key,
                  uint64_t pushes, const void *data);
/* Rows that came for these numbers. */
void check_rows(struct world *w, struct wworker *k, uint32_t key,
                uint64_t version, const uint32_t *row, uint32_t count,
                const void *data);
void check_end(struct world *w);
/* The server is about to die. */
void check_before_death(struct world *w, const struct wnode *n);
