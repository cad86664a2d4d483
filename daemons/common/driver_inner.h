/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the driver; for driver*.c alone.
 *
 *     driver.c        its life, feeding the machine, what is done before the
 *                     loop waits
 *     driver_effect.c what a step wants done: sends, jobs, hang-ups
 *     driver_conn.c   a connection: opening, what comes, the end
 *     driver_accept.c connections from the listeners
 *     driver_dial.c   connections that the machine wants
 *     driver_subflow.c   further connections of a link
 *     driver_output.c what waits for peers, and who holds too much of it
 *     driver_liveness.c  a port that shows that an agent lives
 *     driver_watch.c  connections that do not get through
 *     driver_ring.c   memory of workers: regions, rings of operations
 *     driver_stats.c  numbers */
#pragma once

#include "base/list.h"
#include "base/spin.h"
#include "common/multipath.h"
#include "common/driver.h"
#include "common/losses.h"
#include "core/base/ledger.h"
#include "net/loop.h"
#include "proto/ring.h"

/* Between tries of a link to get another connection. */
#define SUBFLOW_DIAL_WAIT PS_MILLIS(100)
/* Connections that were refused, and how long they have to read why. */
#define REFUSED_MAX       8u
#define REFUSED_TIME      PS_MILLIS(500)

struct output_user;

struct daemon_conn {
    struct ps_driver *driver;
    ps_conn_id id;
    struct ps_conn *conn;
    enum ps_conn_kind kind;
    struct ps_list_node pre_handshake; /* Until it has greeted. */
    struct ps_list_node to_flush;      /* Something was queued for it. */
    struct ps_list_node paused;
    struct ps_account account;  /* Of what waits for it. */
    struct output_user *user;   /* Of a training process or tool. */
    struct ps_slice payload;    /* Under way; own reference. */
    struct ps_process *process; /* LOCAL: the peer's. NULL: not watched. */
    struct ps_buf *ring_memory; /* NULL: no ring. */
    struct ps_ring_agent ring;
    struct ps_list_node ring_conn;
    struct ps_list_node ring_wake; /* Something was put into its ring. */
    int discard_reason; /* Why the payload under way is thrown away. */
    bool is_shm;
    bool is_greeted;
    /* A further connection of the link that `first` is the first of; NULL
     * when that one is over. */
    bool is_subflow;
    struct daemon_conn *first;
    struct ps_subflow subflow;
    struct ps_conn_losses loss_seen; /* At the last look. */
    /* The first one of a link between an agent and a server: who it is, and
     * on the side that dialled, how to get more. */
    struct ps_multipath multipath;
    struct ps_msg_hello identity; /* Numbers only. */
    uint64_t ack_sent;            /* What was said last, and not late. */
    bool is_welcomed;
    bool has_subflows;        /* There are more, or will be. */
    bool payload_is_borrowed; /* `payload` is the machine's own memory. */
    struct ps_packet *hello;
    char *address;
    uint32_t subflow_dials;  /* Dials under way. */
    struct ps_losses losses; /* Of all its connections. */
    struct ps_loop_timer subflow_timer;
    ps_time subflow_wait;
};

struct ps_driver {
    struct ps_driver_options opt;
    struct ps_map *conns;
    ps_conn_id last_id;
    uint32_t local_count;
    uint32_t pre_handshake_count;
    uint32_t paused_count;
    uint32_t computing;
    struct ps_list pre_handshake; /* The oldest first. */
    struct ps_list to_flush;
    struct ps_list paused;
    struct ps_list ring_conns;
    struct ps_list ring_wakes;
    struct ps_list dials;
    struct ps_list ended_dials; /* At once, to be told of later. */
    struct ps_effects fx;
    struct ps_loop_timer
        tick_timer; /* Wakes the loop; settle() does the rest. */
    struct ps_loop_timer refused_timer;
    int refused[REFUSED_MAX]; /* Told why, and not closed yet. */
    uint32_t refused_count;
    struct ps_loop_timer grace_timer;      /* When closing. */
    struct ps_listener *liveness_listener; /* NULL: none. */
    char liveness_host[PS_ADDRESS_MAX + 1];
    char liveness_address[PS_ADDRESS_MAX + 1];
    struct ps_loop_timer watch_timer; /* Next look at what is outstanding, */
    bool watch_is_set;                /* if there is one. */
    bool is_stepping;
    bool has_stepped;  /* Since paused connections were asked last. */
    bool rings_asleep; /* The rings say so. */
    bool was_fed;      /* Something has happened since settle() looked. */
    struct ps_spin busy_poll;
    ps_time busy_poll_until; /* 0: is not looking. */
    bool is_closing;
    int failure;
    void (*closed)(void *ctx);
    uint64_t arenas_freed;    /* When peers were last told. */
    struct ps_account output; /* The sum of what waits for peers. */
    struct ps_account_limits caller_limits; /* Training processes, tools. */
    struct ps_account_limits link_limits;   /* Daemons. */
    struct ps_account_limits user_limits;
    struct ps_account_limits total_limits;
    struct ps_map *users; /* By uid: struct output_user. */
    ps_conn_id relieved;  /* That was ended for its memory. */
    struct ps_driver_stats
        closed_stats; /* Sums of connections that are no more. */
};

struct conn_opening {
    int fd;
    uint32_t peer_roles;
    const char *peer;
    bool is_shm;
    const char *address;       /* Of a server; NULL where no more can be had. */
    struct daemon_conn *first; /* Of the link that it joins. */
};

/* Kinds of lines of the log, see ps_log_of(); those of notes are addresses. */
enum driver_log {
    LOG_REFUSED = 1,
    LOG_DIALS,
    LOG_NOT_SENT,
    LOG_MEMORY,
    LOG_CLOSED = 256, /* And the reason's number and the kind of peer. */
};

/* driver.c */

/* Tells the machine, at the loop's time, and carries out what it wants. */
void driver_feed(struct ps_driver *d, struct ps_event *ev);
void driver_feed_at(struct ps_driver *d, struct ps_event *ev, ps_time now);
/* Says so when the driver is closing and the last thing has ended. */
void driver_maybe_closed(struct ps_driver *d);

/* driver_effect.c */

void driver_apply_effects(struct ps_driver *d);
/* Something was queued: it is written before the loop waits. */
void driver_mark_flush(struct daemon_conn *c);
/* Queues `p`, whose reference it takes over, with what is set of `frame`: its
 * message, descriptor and place. */
PS_MUST_USE int driver_write(struct daemon_conn *c, struct ps_conn_frame *frame,
                             struct ps_packet *p);

/* driver_conn.c */

/* `ev` is the OPEN event without what is known here. */
void driver_open(struct ps_driver *d, const struct conn_opening *o,
                 struct ps_event *ev);
/* Tells one that called why, closes `fd` a moment later, and counts it. */
void driver_refuse(struct ps_driver *d, int fd, const char *peer,
                   const char *why);
void driver_close_refused(struct ps_driver *d);
/* A frame goes to the machine, as one of connection `id`. */
void driver_deliver(struct daemon_conn *c, ps_conn_id id,
                    const struct ps_msg *msg, uint64_t len);
void driver_drop_payload(struct daemon_conn *c);
/* `queued` bytes of `conn`, whose context `ctx` is, still wait. */
void driver_on_sent(void *ctx, struct ps_conn *conn, uint64_t queued);

/* driver_dial.c */

void driver_dial(struct ps_driver *d, uint64_t target, const char *address,
                 ps_time timeout);
void driver_probe(struct ps_driver *d, uint64_t target, const char *address,
                  ps_time timeout);
/* A further connection for the link whose first one `first` is. */
int driver_dial_subflow(struct daemon_conn *first);
/* Tells the machine of one that ended at once; false: there is none. */
bool driver_report_dials(struct ps_driver *d);
void driver_cancel_dials(struct ps_driver *d);

/* driver_subflow.c */

/* This one's link may have further connections. */
bool driver_may_have_subflows(const struct daemon_conn *c);
/* Looks at once, or after a pause, whether there should be more of them. */
void driver_subflow_later(struct daemon_conn *c, bool failed);
/* The link of `first` gets more connections where it is long and loses
 * packets. To be called now and then while something is outstanding. */
void driver_check_losses(struct daemon_conn *first);
/* What driver_dial_subflow() led to; `id` is the first one's. */
void driver_subflow_dialled(struct ps_driver *d, ps_conn_id id, int fd, int rc,
                            const char *detail);
/* It is open: tells the peer which link it joins. */
void driver_subflow_hello(struct daemon_conn *c);
/* A frame on a further connection, or the one that makes it so. */
void driver_subflow_frame(struct daemon_conn *c, const struct ps_msg *msg,
                          uint64_t len);
/* A further connection is cut: the first one sends what it had. */
void driver_subflow_closed(struct daemon_conn *c);
/* The first one is closed. */
void driver_end_subflows(struct daemon_conn *c);

/* driver_output.c */

void driver_output_init(struct ps_driver *d);
void driver_output_fini(struct ps_driver *d);
/* `ev` is the OPEN event. */
void driver_output_open(struct daemon_conn *c, const struct ps_event *ev);
void driver_output_greeted(struct daemon_conn *c);
void driver_output_closed(struct daemon_conn *c);
/* Something was queued or has gone: the account follows. May cut this or
 * another connection. */
void driver_output_update(struct daemon_conn *c);
/* True: a caller leaves so much unread that further texts of errors are
 * short. */
bool driver_output_is_long(const struct daemon_conn *c);
/* Closes the connection; who called is told why, ahead of what waits, if the
 * socket takes that. */
void driver_reject(struct daemon_conn *c, int rc, const char *text);
/* Where the reserve of memory was given up: ends the connection that holds
 * most, one after the other, until there is a reserve again. */
void driver_relieve(struct ps_driver *d);

/* driver_ring.c */

void driver_accept_region(struct daemon_conn *c, const struct ps_msg *msg);
void driver_accept_residuals(struct daemon_conn *c, const struct ps_msg *msg);
void driver_accept_ring(struct daemon_conn *c, const struct ps_msg *msg);
/* Operations that came before the next frame of a worker that has sent
 * `frames`. True when there were any. */
bool driver_ring_poll(struct daemon_conn *c, uint64_t frames);
bool driver_poll_rings(struct ps_driver *d);
void driver_drop_ring(struct daemon_conn *c);
void driver_rings_wake(struct ps_driver *d);
/* False: there is an operation in one of them. */
bool driver_rings_sleep(struct ps_driver *d);
/* Wakes workers that sleep and have been told of ends of operations. */
void driver_wake_ring_peers(struct ps_driver *d);

/* driver_watch.c */

/* Dialled to a server by TCP, or a further one of such a link. Members hear
 * of the scheduler by its answers to their pings. */
static inline bool driver_is_watched(const struct daemon_conn *c)
{
    return c->kind == PS_CONN_DIALLED && (c->address != NULL || c->is_subflow);
}
/* Something is about to be written. */
void driver_watch(struct daemon_conn *c);

/* driver_liveness.c */

/* An address of this host on which this process alone listens, that of the
 * connection `fd`. NULL: this daemon has one anyway, or there is none. */
const char *driver_liveness_address(struct ps_driver *d, int fd);
void driver_liveness_close(struct ps_driver *d);

/* driver_stats.c */

void driver_add_stats(struct ps_driver_stats *sum, const struct ps_conn *conn);
