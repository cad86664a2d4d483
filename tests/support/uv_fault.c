/* SPDX-License-Identifier: Apache-2.0 */
#include "support/uv_fault.h"

#include "base/alloc.h"
#include "base/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

/* Time limit of one run. */
#define RUN_SECONDS 30
/* Limit on failing calls of one function: later calls are alike. */
#define CALLS_MAX   12u
#define ERRORS_MAX  3

/* Names of functions, and errno values of their failures. libuv's functions
 * return these negated. */
#define CALLS(X)                                                               \
    X(uv_loop_init, EMFILE, ENOMEM, 0)                                         \
    X(uv_async_init, EMFILE, 0, 0)                                             \
    X(uv_async_send, EAGAIN, 0, 0)                                             \
    X(uv_poll_init, ENOMEM, EPERM, 0)                                          \
    X(uv_poll_start, ENOMEM, 0, 0)                                             \
    X(uv_timer_start, EINVAL, 0, 0)                                            \
    X(uv_signal_init, EMFILE, 0, 0)                                            \
    X(uv_signal_start, EINVAL, 0, 0)                                           \
    X(uv_getaddrinfo, ENOMEM, 0, 0)                                            \
    X(uv_thread_create, EAGAIN, 0, 0)                                          \
    X(socket, EMFILE, ENOMEM, 0)                                               \
    X(bind, EADDRINUSE, EACCES, 0)                                             \
    X(listen, EADDRINUSE, 0, 0)                                                \
    X(accept4, EMFILE, ECONNABORTED, ENOMEM)                                   \
    X(connect, ECONNREFUSED, ENETUNREACH, EADDRNOTAVAIL)                       \
    X(getsockopt, ENOBUFS, 0, 0)                                               \
    X(setsockopt, ENOMEM, 0, 0)                                                \
    X(getsockname, ENOBUFS, 0, 0)                                              \
    X(fcntl, EMFILE, 0, 0)                                                     \
    X(open, EMFILE, 0, 0)                                                      \
    X(epoll_create1, EMFILE, 0, 0)                                             \
    X(epoll_ctl, ENOMEM, ENOSPC, 0)                                            \
    X(epoll_wait, EINTR, 0, 0)                                                 \
    X(eventfd, EMFILE, 0, 0)                                                   \
    X(recvmsg, ENOMEM, ECONNRESET, EINTR)                                      \
    X(sendmsg, ENOBUFS, EPIPE, EINTR)                                          \
    X(recv, ENOMEM, EINTR, 0)                                                  \
    X(shutdown, ENOTCONN, 0, 0)                                                \
    X(poll, ENOMEM, 0, 0)                                                      \
    X(mmap, ENOMEM, 0, 0)                                                      \
    X(memfd_create, EMFILE, 0, 0)                                              \
    X(ftruncate, ENOSPC, 0, 0)                                                 \
    X(process_vm_readv, EPERM, ENOMEM, 0)

#define NUMBER(name, a, b, c) CALL_##name,
enum call { CALLS(NUMBER) CALL_COUNT };

struct call_kind {
    const char *name;
    int errors[ERRORS_MAX];
};

#define KIND(name, a, b, c) {#name, {a, b, c}},
static const struct call_kind kinds[] = {CALLS(KIND)};

/* One run. Threads of the code under test count, too. */
static struct {
    atomic_bool is_counting;
    atomic_uint calls[CALL_COUNT];
    enum call call; /* CALL_COUNT: no call fails. */
    unsigned nth;
    int error;
    char name[160]; /* For the message about a hang. */
} run;

static _Thread_local bool is_held;

/* The error that this call has to fail with; 0: it goes to the system. */
static int next_error(enum call call)
{
    if (!atomic_load(&run.is_counting) || is_held) {
        return 0;
    }
    unsigned number = atomic_fetch_add(&run.calls[call], 1) + 1;

    return call == run.call && number == run.nth ? run.error : 0;
}

/* Sets errno if this call has to fail. */
static bool fails(enum call call)
{
    int error = next_error(call);

    if (error != 0) {
        errno = error;
    }
    return error != 0;
}

#define WRAP_UV(name, params, args)                                            \
    int __real_##name params;                                                  \
    int __wrap_##name params;                                                  \
    int __wrap_##name params                                                   \
    {                                                                          \
        int error = next_error(CALL_##name);                                   \
                                                                               \
        return error != 0 ? -error : __real_##name args;                       \
    }

#define WRAP_AS(type, name, symbol, params, args)                              \
    type __real_##symbol params;                                               \
    type __wrap_##symbol params;                                               \
    type __wrap_##symbol params                                                \
    {                                                                          \
        return fails(CALL_##name) ? (type)-1 : __real_##symbol args;           \
    }

#define WRAP(type, name, params, args) WRAP_AS(type, name, name, params, args)

WRAP_UV(uv_loop_init, (uv_loop_t * l), (l))
WRAP_UV(uv_async_init, (uv_loop_t * l, uv_async_t *h, uv_async_cb cb),
        (l, h, cb))
WRAP_UV(uv_async_send, (uv_async_t * h), (h))
WRAP_UV(uv_poll_init, (uv_loop_t * l, uv_poll_t *h, int fd), (l, h, fd))
WRAP_UV(uv_poll_start, (uv_poll_t * h, int events, uv_poll_cb cb),
        (h, events, cb))
WRAP_UV(uv_timer_start,
        (uv_timer_t * h, uv_timer_cb cb, uint64_t in, uint64_t again),
        (h, cb, in, again))
WRAP_UV(uv_signal_init, (uv_loop_t * l, uv_signal_t *h), (l, h))
WRAP_UV(uv_signal_start, (uv_signal_t * h, uv_signal_cb cb, int n), (h, cb, n))
WRAP_UV(uv_getaddrinfo,
        (uv_loop_t * l, uv_getaddrinfo_t *r, uv_getaddrinfo_cb cb,
         const char *node, const char *service, const struct addrinfo *hints),
        (l, r, cb, node, service, hints))
WRAP_UV(uv_thread_create, (uv_thread_t * t, uv_thread_cb entry, void *arg),
        (t, entry, arg))
WRAP(int, socket, (int family, int type, int protocol),
     (family, type, protocol))
WRAP(int, bind, (int fd, const struct sockaddr *a, socklen_t len), (fd, a, len))
WRAP(int, listen, (int fd, int backlog), (fd, backlog))
WRAP(int, accept4, (int fd, struct sockaddr *a, socklen_t *len, int flags),
     (fd, a, len, flags))
WRAP(int, connect, (int fd, const struct sockaddr *a, socklen_t len),
     (fd, a, len))
WRAP(int, getsockopt, (int fd, int level, int name, void *v, socklen_t *len),
     (fd, level, name, v, len))
WRAP(int, setsockopt,
     (int fd, int level, int name, const void *v, socklen_t len),
     (fd, level, name, v, len))
WRAP(int, getsockname, (int fd, struct sockaddr *a, socklen_t *len),
     (fd, a, len))
WRAP(int, epoll_create1, (int flags), (flags))
WRAP(int, epoll_wait, (int fd, struct epoll_event *ev, int count, int timeout),
     (fd, ev, count, timeout))
WRAP(int, eventfd, (unsigned first, int flags), (first, flags))
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags),
     (fd, m, flags))
WRAP(ssize_t, recv, (int fd, void *bytes, size_t len, int flags),
     (fd, bytes, len, flags))
WRAP(int, shutdown, (int fd, int how), (fd, how))
WRAP(int, poll, (struct pollfd * fds, nfds_t count, int timeout),
     (fds, count, timeout))
WRAP(int, memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(ssize_t, process_vm_readv,
     (pid_t pid, const struct iovec *to, unsigned long to_count,
      const struct iovec *from, unsigned long from_count, unsigned long flags),
     (pid, to, to_count, from, from_count, flags))

/* A descriptor that is registered can always be removed. */
int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *ev);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *ev);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *ev)
{
    return op != EPOLL_CTL_DEL && fails(CALL_epoll_ctl)
               ? -1
               : __real_epoll_ctl(epoll, op, fd, ev);
}

/* glibc has other names of these functions for large files. */
#ifdef UV_FAULT_LARGE_FILES
#define LARGE(name) name##64
#else
#define LARGE(name) name
#endif
#define LARGER(macro, ...) macro(__VA_ARGS__)
#define REAL_OF(symbol)    __real_##symbol
#define WRAP_OF(symbol)    __wrap_##symbol
#define REAL(name)         LARGER(REAL_OF, LARGE(name))
#define WRAPPER(name)      LARGER(WRAP_OF, LARGE(name))
#define WRAP_LARGE(type, name, params, args)                                   \
    LARGER(WRAP_AS, type, name, LARGE(name), params, args)

WRAP_LARGE(int, ftruncate, (int fd, off_t len), (fd, len))
WRAP_LARGE(void *, mmap,
           (void *at, size_t len, int prot, int flags, int fd, off_t from),
           (at, len, prot, flags, fd, from))

int REAL(open)(const char *path, int flags, ...);
int WRAPPER(open)(const char *path, int flags, ...);
int WRAPPER(open)(const char *path, int flags, ...)
{
    mode_t mode = 0;
    va_list ap;

    if ((flags & O_CREAT) != 0) {
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    return fails(CALL_open) ? -1 : REAL(open)(path, flags, mode);
}

int REAL(fcntl)(int fd, int command, ...);
int WRAPPER(fcntl)(int fd, int command, ...);
int WRAPPER(fcntl)(int fd, int command, ...)
{
    va_list ap;
    long arg;

    va_start(ap, command);
    arg = va_arg(ap, long);
    va_end(ap);
    return fails(CALL_fcntl) ? -1 : REAL(fcntl)(fd, command, arg);
}

void uv_fault_failed(struct uv_fault_outcome *o, int rc, const char *why)
{
    if (o->rc == 0) {
        o->rc = rc;
        snprintf(o->why, sizeof(o->why), "%s", why);
    }
}

static unsigned open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

static void hangs(int signum)
{
    static const char text[] = " hangs\n";

    (void)signum;
    (void)!write(STDERR_FILENO, run.name, strlen(run.name));
    (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
    abort();
}

void uv_fault_hold(void)
{
    is_held = true;
}

void uv_fault_release(void)
{
    is_held = false;
}

void uv_fault_hangs(void)
{
    fail_msg("%s: neither progress nor an error", run.name);
}

/* One run; call CALL_COUNT: without a failure. */
static void run_once(const char *name, uv_fault_scenario scenario,
                     enum call call, unsigned nth, int error)
{
    struct uv_fault_outcome o = {0};
    const unsigned before = open_descriptors();
    const bool fails = call != CALL_COUNT;

    snprintf(run.name, sizeof(run.name), "%s: call %u of %s with %s", name, nth,
             fails ? kinds[call].name : "nothing",
             fails ? strerror(error) : "nothing");
    for (int i = 0; i < CALL_COUNT; i++) {
        atomic_store(&run.calls[i], 0);
    }
    run.call = call;
    run.nth = nth;
    run.error = error;
    alarm(RUN_SECONDS);
    atomic_store(&run.is_counting, true);
    scenario(&o);
    atomic_store(&run.is_counting, false);
    alarm(0);
    if (!fails && !o.is_done) {
        fail_msg("%s: without a failure, but %s (%s)", name, o.why,
                 ps_err_name(o.rc));
    }
    if (!o.is_done && (o.rc == 0 || o.why[0] == '\0')) {
        fail_msg("%s: no reason of the failure: %s \"%s\"", run.name,
                 ps_err_name(o.rc), o.why);
    }
    if (ps_alloc_live() != 0) {
        fail_msg("%s: %zu allocations are left", run.name, ps_alloc_live());
    }
    if (open_descriptors() != before) {
        fail_msg("%s: %u descriptors, not %u", run.name, open_descriptors(),
                 before);
    }
    if (getenv("UV_FAULT_TRACE") != NULL) {
        fprintf(stderr, "%s: %s %s\n", run.name,
                o.is_done ? "done" : ps_err_name(o.rc), o.why);
    }
}

void uv_fault_run(const char *name, uv_fault_scenario scenario)
{
    unsigned calls[CALL_COUNT];

    signal(SIGALRM, hangs);
    /* libuv's threads and descriptors for all loops come with the first. */
    atomic_store(&run.is_counting, false);
    scenario(&(struct uv_fault_outcome){0});
    run_once(name, scenario, CALL_COUNT, 0, 0);
    for (int i = 0; i < CALL_COUNT; i++) {
        calls[i] = atomic_load(&run.calls[i]);
    }
    for (int i = 0; i < CALL_COUNT; i++) {
        for (int e = 0; e < ERRORS_MAX && kinds[i].errors[e] != 0; e++) {
            for (unsigned n = 1; n <= calls[i] && n <= CALLS_MAX; n++) {
                run_once(name, scenario, (enum call)i, n, kinds[i].errors[e]);
            }
        }
    }
}
