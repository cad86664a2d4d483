/* SPDX-License-Identifier: Apache-2.0 */
/* Links to servers, and the queues of partitions that go there. */
#pragma once

#include "core/agent/keys.h"
#include "core/link/dialer.h"
#include "core/round/batch.h"

/* Wait before a request refused for a transient reason is sent again. */
#define RESEND_WAIT         PS_MILLIS(50)
/* Longest wait for a server without memory; the wait doubles each time. */
#define FULL_BACKOFF_MAX    PS_SECONDS(1)
/* Wait before a sum is retried for which the scratch pool had no memory. */
#define SCRATCH_RETRY_WAIT  PS_MILLIS(5)
/* Most partitions being summed for one server at a time, so that an urgent
 * partition does not wait behind many that are summed already. */
#define COMPUTING_MAX       1024u
/* The same limit in bytes. */
#define COMPUTING_BYTES_MAX (4u * 1024u * 1024u)
/* Default of ps_agent_options.unsent_max, in bytes. */
#define UNSENT_DEFAULT      (2u * 1024u * 1024u)

/* Fields of a message that its partitions share. */
struct ps_agent_batch_head {
    enum ps_msg_code msg_code; /* PUSH, INIT or PUSH_ROWS. */
    struct ps_agent_job *job;
    uint8_t reduce;
    uint8_t rule;
    bool assign;
    bool needs_value;
    bool has_name_hashes; /* name_hashes are sent too. */
    uint32_t retry;
    uint64_t weight;
};

/* A partition to be sent. */
struct ps_agent_batch_item {
    struct ps_rec_part part;
    struct ps_rec_rows rows; /* PUSH_ROWS: used instead of `part`. */
    uint64_t name_hash;
    const struct ps_slice *slice; /* NULL: an empty part. */
};

/* Small partitions of one job that travel in one frame to one server. */
struct ps_agent_batch {
    struct ps_agent_batch_head head; /* Of all parts. */
    struct ps_batch parts;
    uint64_t *name_hashes;         /* Of the parts; NULL: none yet. */
    struct ps_rec_rows *row_parts; /* PUSH_ROWS: used instead of `parts`. */
};

struct ps_agent_server {
    struct ps_dialer dialer;
    ps_time next_ping_at;  /* Applies while operations wait. */
    ps_time ping_interval; /* Doubles with each ping. */
    uint32_t node;
    uint64_t incarnation;
    char name[PS_NAME_MAX + 1];
    char peer[16];      /* Name of the link's account: "node 5". */
    uint32_t map_epoch; /* Newest map that lists the server. */
    bool was_in_map;    /* Some map has listed it. */
    bool removed;       /* The newest map does not list it. */
    uint64_t unsent;    /* Bytes with the driver, not yet with the kernel. */
    uint32_t computing; /* Partitions being summed or encoded for it. */
    uint64_t computing_bytes;
    bool needs_pump; /* Its queues may have something to send. */
    struct ps_list send_queues;
    struct ps_agent_batch batch;
};

/* Partitions of one job that wait to be sent to one server. */
struct ps_agent_send_queue {
    struct ps_list_node node; /* In server->send_queues. */
    struct ps_agent_server *server;
    struct ps_agent_job *job;
    struct ps_heap heap;
    uint64_t bytes_sent;      /* Push bytes since the link's session began. */
    uint64_t computing_bytes; /* Bytes being summed, to be sent next. */
    uint64_t credit;
    /* The server has no memory: refused partitions wait until then. */
    ps_time backoff_until;
    ps_time backoff; /* Last wait; 0: the server accepted something since. */
};

/* server_conn.c */
void ps_agent_server_on_open(struct ps_agent_step *st, uint64_t target,
                             ps_conn_id conn);
void ps_agent_server_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why);
void ps_agent_server_on_closed(struct ps_agent_step *st,
                               struct ps_agent_server *s, ps_conn_id conn);
/* Frames on `conn` are not acknowledged: dials a second connection. */
void ps_agent_server_on_stalled(struct ps_agent_step *st,
                                struct ps_agent_server *s, ps_conn_id conn);
void ps_agent_server_on_ping_req(struct ps_agent_step *st,
                                 const struct ps_msg_ping_req *m);
void ps_agent_server_tick(struct ps_agent_step *st, struct ps_agent_server *s);
ps_time ps_agent_server_deadline(const struct ps_agent *a,
                                 const struct ps_agent_server *s);
struct ps_agent_server *ps_agent_server_get(struct ps_agent_step *st,
                                            uint32_t node);
void ps_agent_server_on_map(struct ps_agent_step *st,
                            const struct ps_msg_map *m);
/* A message has arrived on the server's connection. */
void ps_agent_server_on_recv(struct ps_agent_step *st,
                             struct ps_agent_server *s);
void ps_agent_server_note(struct ps_agent_step *st,
                          const struct ps_agent_server *s, const char *why);
void ps_agent_server_free(struct ps_agent_server *s);
/* Stops dialling the server and drops its link if no job uses it any more. */
void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s);
/* Memory for a payload without a final place. */
int ps_agent_server_alloc_payload(struct ps_agent *a, uint64_t len,
                                  struct ps_slice *ret_slice);

/* reply.c */
void ps_agent_reply_on_msg(struct ps_agent_step *st, struct ps_agent_server *s,
                           ps_conn_id conn, const struct ps_msg *m,
                           const struct ps_slice *payload);
/* Place for the payload of a server's message: 0, or a PS_E_* when it is to be
 * discarded or the message is malformed. */
int ps_agent_reply_payload(struct ps_agent *a, struct ps_agent_server *s,
                           const struct ps_msg *m, uint64_t len,
                           struct ps_slice *ret_slice);

/* resend.c */
/* Resends to a server with a new link all that is not committed. */
void ps_agent_resend_server(struct ps_agent_step *st,
                            struct ps_agent_server *s);
/* Resends everything that was refused for a transient reason. */
void ps_agent_resend_refused(struct ps_agent_step *st);

/* send_queue.c */
struct ps_agent_send_queue *ps_agent_send_queue_get(struct ps_agent_step *st,
                                                    struct ps_agent_job *j,
                                                    uint32_t node);
/* Starts the account of credit again: the server has a new link. */
void ps_agent_send_queue_reset(const struct ps_agent *a,
                               struct ps_agent_send_queue *f);
void ps_agent_send_queue_free(struct ps_agent_send_queue *f);
void ps_agent_send_enqueue(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_send_dequeue(struct ps_agent_step *st, struct ps_agent_part *p);
/* Ends the back-off: the server accepted something of job `gen`. */
void ps_agent_send_end_backoff(struct ps_agent_step *st,
                               struct ps_agent_server *s, uint64_t gen);
/* Starts the back-off, or doubles it: the server has no memory for the job. */
void ps_agent_send_begin_backoff(struct ps_agent_step *st,
                                 struct ps_agent_send_queue *f);
/* Returns true while a refused partition waits for memory of its server. */
bool ps_agent_send_is_backing_off(struct ps_agent_step *st,
                                  const struct ps_agent_part *p);
void ps_agent_send_raise_credit(struct ps_agent_step *st,
                                struct ps_agent_server *s, uint64_t gen,
                                uint64_t credit);

/* batch.c */
/* Sends a partition in a frame of its own. */
void ps_agent_batch_send_alone(struct ps_agent_step *st,
                               struct ps_agent_server *s,
                               const struct ps_agent_batch_head *h,
                               struct ps_agent_batch_item *item);
/* Adds a partition of at most PS_BATCH_PART_MAX bytes to the server's batch. */
void ps_agent_batch_add(struct ps_agent_step *st, struct ps_agent_server *s,
                        const struct ps_agent_batch_head *h,
                        const struct ps_agent_batch_item *item);
void ps_agent_batch_flush(struct ps_agent_step *st, struct ps_agent_server *s);
/* Discards what the batch has of a job that is being freed. */
void ps_agent_batch_drop(struct ps_agent_batch *g,
                         const struct ps_agent_job *j);
void ps_agent_batch_fini(struct ps_agent_batch *g);

/* send.c */
/* Sends a partition: alone, or in the server's batch if it is small. `slice`
 * NULL: an empty part. `rows`: rows in the slice of a rows key. */
void ps_agent_send_dispatch(struct ps_agent_step *st,
                            struct ps_agent_send_queue *f,
                            struct ps_agent_part *p,
                            const struct ps_slice *slice, uint32_t rows);
/* Fails the round or async push of a partition that cannot be computed or sent.
 * The partition becomes idle, so that it is not sent again. */
void ps_agent_send_fail_part(struct ps_agent_step *st, struct ps_agent_part *p,
                             int error, const char *what);
/* Dispatches the result of a computation. `error`: 0 or a PS_E_*. */
void ps_agent_send_on_computed(struct ps_agent_step *st,
                               struct ps_agent_computation *run, int error);
void ps_agent_send_pump_all(struct ps_agent_step *st);
