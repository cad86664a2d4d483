/* SPDX-License-Identifier: Apache-2.0 */
/* Pool of I/O threads that carry bytes between sockets and memory, each with
 * its own epoll. They take no decisions and see only tasks: a socket, pieces of
 * memory, a number of bytes. A task is submitted on the event loop, belongs to
 * a thread until it completes, fails or is cancelled, and is reported on the
 * event loop. So all other state stays with one thread, and memory in use by a
 * thread cannot be freed. */
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
struct ps_transport;
struct ps_io_pool;

/* Non-blocking socket. Zeroed but for `fd` at first; embedded in the owner of
 * the descriptor, and valid until no task is in flight. */
struct ps_io_socket {
    int fd;
    /* Private to the module. */
    /* Last thread that served it; NULL: none yet. */
    struct ps_io_thread *thread;
    uint32_t tasks; /* Tasks in flight. */
    /* With the thread's epoll. Private to the thread, as all below. */
    bool is_registered;
    struct ps_io_task *receive_task; /* Waits for readability; NULL: none. */
    struct ps_io_task *send_task;    /* Waits for writability; NULL: none. */
};

/* One task. Set by the submitter: */
struct ps_io_task {
    struct iovec *iov; /* Modified by the task. */
    unsigned count;
    bool is_send; /* Sends from memory; false: receives to memory. */
    /* Bytes that complete the task; a receive fills more of `iov` if
     * available. */
    uint64_t bytes_min;
    void (*done)(struct ps_io_task *m);
    /* Reads and writes for a socket whose stream is not plain; NULL: it is. */
    struct ps_transport *transport;
    /* Valid in `done`: */
    uint64_t bytes_done;
    uint32_t syscalls; /* System calls made. */
    int error;         /* errno; ECANCELED: cancelled; 0: none. */
    bool peer_ended;   /* End of stream. */
    /* Private to the module. */
    _Atomic ps_time progress_at; /* Time of the last byte. */
    struct ps_io_pool *pool;
    struct ps_io_socket *socket;
    struct ps_list_node node;
    struct ps_list_node canceled;
    bool complete;
};

struct ps_io_pool_options {
    struct ps_loop *loop;
    unsigned threads;        /* Threads at the start. */
    unsigned threads_max;    /* Limit on threads, below PS_IO_THREADS_MAX. */
    uint64_t task_bytes_min; /* Least bytes of a task; 0: 128 KiB. */
    /* When a thread is added; .period 0: the default. */
    struct ps_autoscale autoscale;
    /* Called when a thread was added. May be NULL. */
    void (*on_grown)(void *ctx, unsigned count);
    void *ctx;
};

PS_MUST_USE int ps_io_pool_new(const struct ps_io_pool_options *opt,
                               struct ps_io_pool **ret_pool);
/* Requires that no task is in flight. NULL is allowed. */
void ps_io_pool_free(struct ps_io_pool *all);

unsigned ps_io_pool_threads(const struct ps_io_pool *all);
/* True if an I/O thread should carry this number of bytes. */
bool ps_io_pool_wants(const struct ps_io_pool *all, uint64_t bytes);
/* Counts `time` that the loop thread spent on I/O, which may start the first
 * thread. */
void ps_io_pool_add_spent(struct ps_io_pool *all, ps_time time);

/* Submits a task; one in each direction per socket. `done` runs on the loop,
 * later. */
void ps_io_task_submit(struct ps_io_pool *all, struct ps_io_socket *s,
                       struct ps_io_task *m);
/* Cancels a task; `done` runs soon, but not inside. */
void ps_io_task_cancel(struct ps_io_task *m);
/* Cancels a task and waits until its memory is no longer accessed, for at most
 * one system call of each task of its thread. `done` runs later. */
void ps_io_task_stop(struct ps_io_task *m);
/* Time of the task's last byte, or of its submission. */
static inline ps_time ps_io_task_progress_at(const struct ps_io_task *m)
{
    return atomic_load_explicit(&m->progress_at, memory_order_relaxed);
}
