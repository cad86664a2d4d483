/* SPDX-License-Identifier: Apache-2.0 */
/* Further loops: threads that carry bytes between sockets and memory, each
 * with a wait for sockets of its own. They decide nothing and see no more than
 * a move: a socket, pieces of memory, a number of bytes. A move is begun on
 * the event loop, belongs to a thread until it is complete, fails or is taken
 * back, and ends on the event loop. So everything else stays with one thread,
 * and memory that a thread reads or writes cannot go while it does. */
#pragma once

#include "base/err.h"
#include "base/grow.h"
#include "base/list.h"
#include "base/time.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct ps_loop;
struct ps_mover;
struct ps_movers;

/* A socket that does not block. Zeroed but for `fd` to begin with; embedded in
 * what owns the descriptor, and both stay until no move is under way. */
struct ps_move_socket {
    int fd;
    /* The module's own. */
    struct ps_mover *mover; /* That has it; NULL: none had it yet. */
    uint32_t under_way;     /* Moves. */
    bool known;             /* To the mover's epoll; all below as well. */
    struct ps_move *in;     /* Wait for the socket. */
    struct ps_move *out;
};

/* One move under way. Set by who begins it: */
struct ps_move {
    struct iovec *iov; /* Changed on the way. */
    unsigned count;
    bool out;      /* From memory to the socket. */
    uint64_t need; /* Bytes; when reading, the rest is filled if they are
                    * there. */
    void (*done)(struct ps_move *m);
    /* Valid in `done`: */
    uint64_t moved;
    uint32_t calls; /* Of the system. */
    int error;      /* errno; ECANCELED: taken back. */
    bool ended;     /* The peer writes no more. */
    /* The module's own. */
    _Atomic ps_time at; /* Of the last byte. */
    struct ps_movers *all;
    struct ps_move_socket *socket;
    struct ps_list_node node;
    struct ps_list_node canceled;
    bool complete;
};

struct ps_movers_options {
    struct ps_loop *loop;
    unsigned count;      /* Threads to begin with, */
    unsigned count_max;  /* and at most; up to PS_LOOPS_MAX - 1. */
    uint64_t least;      /* Bytes that are worth a move; 0: 128 KiB. */
    struct ps_grow grow; /* When there is one more; .period 0: as it is done
                          * in practice. */
    /* There is one more. May be NULL. */
    void (*grown)(void *ctx, unsigned count);
    void *ctx;
};

PS_MUST_USE int ps_movers_new(const struct ps_movers_options *opt,
                              struct ps_movers **ret_movers);
/* When no move is under way. NULL is fine. */
void ps_movers_free(struct ps_movers *all);

unsigned ps_movers_count(const struct ps_movers *all);
/* True: so many bytes should be moved by a thread. */
bool ps_movers_want(const struct ps_movers *all, uint64_t bytes);
/* Before there is a thread: the loop itself spent `time` on moving bytes. */
void ps_movers_spent(struct ps_movers *all, ps_time time);

/* One move in each direction at a time. `done` runs on the loop, later. */
void ps_move_begin(struct ps_movers *all, struct ps_move_socket *s,
                   struct ps_move *m);
/* `done` comes soon, but not inside. */
void ps_move_cancel(struct ps_move *m);
/* The same, and the memory is not touched any more when it returns: it waits
 * for the thread, which comes to it after one system call for each of its
 * moves. */
void ps_move_stop(struct ps_move *m);
/* When its last byte was moved, or when it began. */
static inline ps_time ps_move_at(const struct ps_move *m)
{
    return atomic_load_explicit(&m->at, memory_order_relaxed);
}
