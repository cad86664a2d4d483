/* SPDX-License-Identifier: Apache-2.0 */
/* Further loops: threads that carry bytes between sockets and memory, each
 * with a wait for sockets of its own. They decide nothing and see no more than
 * a move: a socket, pieces of memory, a number of bytes. A move is begun on
 * the event loop, belongs to a thread until it is complete, fails or is taken
 * back, and ends on the event loop. So everything else stays with one thread,
 * and memory that a thread reads or writes cannot go while it does. */
#pragma once

#include "base/err.h"
#include "base/autoscale.h"
#include "base/list.h"
#include "base/time.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct ps_loop;
struct ps_io_thread;
struct ps_io_pool;

/* A socket that does not block. Zeroed but for `fd` to begin with; embedded in
 * what owns the descriptor, and both stay until no move is under way. */
struct ps_io_socket {
    int fd;
    /* The module's own. */
    struct ps_io_thread *thread; /* That has it; NULL: none had it yet. */
    uint32_t tasks;              /* Moves. */
    bool is_registered;          /* To the mover's epoll; all below as well. */
    struct ps_io_task *receive_task; /* Wait for the socket. */
    struct ps_io_task *send_task;
};

/* One move under way. Set by who begins it: */
struct ps_io_task {
    struct iovec *iov; /* Changed on the way. */
    unsigned count;
    bool is_send;       /* From memory to the socket. */
    uint64_t bytes_min; /* Bytes; when reading, the rest is filled if they are
                    * there. */
    void (*done)(struct ps_io_task *m);
    /* Valid in `done`: */
    uint64_t bytes_done;
    uint32_t syscalls; /* Of the system. */
    int error;         /* errno; ECANCELED: taken back. */
    bool peer_ended;   /* The peer writes no more. */
    /* The module's own. */
    _Atomic ps_time progress_at; /* Of the last byte. */
    struct ps_io_pool *pool;
    struct ps_io_socket *socket;
    struct ps_list_node node;
    struct ps_list_node canceled;
    bool complete;
};

struct ps_io_pool_options {
    struct ps_loop *loop;
    unsigned threads;        /* Threads to begin with, */
    unsigned threads_max;    /* and at most; up to PS_IO_THREADS_MAX - 1. */
    uint64_t task_bytes_min; /* Bytes that are worth a move; 0: 128 KiB. */
    struct ps_autoscale
        autoscale; /* When there is one more; .period 0: as it is done
                          * in practice. */
    /* There is one more. May be NULL. */
    void (*on_grown)(void *ctx, unsigned count);
    void *ctx;
};

PS_MUST_USE int ps_io_pool_new(const struct ps_io_pool_options *opt,
                               struct ps_io_pool **ret_movers);
/* When no move is under way. NULL is fine. */
void ps_io_pool_free(struct ps_io_pool *all);

unsigned ps_io_pool_threads(const struct ps_io_pool *all);
/* True: so many bytes should be moved by a thread. */
bool ps_io_pool_wants(const struct ps_io_pool *all, uint64_t bytes);
/* Before there is a thread: the loop itself spent `time` on moving bytes. */
void ps_io_pool_add_spent(struct ps_io_pool *all, ps_time time);

/* One move in each direction at a time. `done` runs on the loop, later. */
void ps_io_task_submit(struct ps_io_pool *all, struct ps_io_socket *s,
                       struct ps_io_task *m);
/* `done` comes soon, but not inside. */
void ps_io_task_cancel(struct ps_io_task *m);
/* The same, and the memory is not touched any more when it returns: it waits
 * for the thread, which comes to it after one system call for each of its
 * moves. */
void ps_io_task_stop(struct ps_io_task *m);
/* When its last byte was moved, or when it began. */
static inline ps_time ps_io_task_progress_at(const struct ps_io_task *m)
{
    return atomic_load_explicit(&m->progress_at, memory_order_relaxed);
}
