/* SPDX-License-Identifier: Apache-2.0 */
/* A pidfd is readable when its process has ended. Linux 6.5 and later return
 * that of a socket's peer. Before, it is opened by pid; if the pid was reused
 * by then, the notice comes at the end of the other process, late but not
 * wrong. */
#include "net/process.h"

#include "base/alloc.h"
#include "net/loop.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct ps_process {
    uv_poll_t poll;
    int pidfd;
    ps_process_cb ended;
    void *ctx;
};

static int open_pidfd(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(int);
    int pidfd = -1;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0) {
        return pidfd;
    }
    len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        return -1;
    }
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, cred.pid, 0);
#else
    errno = ENOSYS;
    return -1;
#endif
}

static void readable(uv_poll_t *handle, int status, int events)
{
    struct ps_process *p = handle->data;

    (void)status;
    (void)events;
    uv_poll_stop(&p->poll);
    p->ended(p->ctx); /* Last: p may be closed in it. */
}

static void handle_closed(uv_handle_t *handle)
{
    struct ps_process *p = handle->data;

    close(p->pidfd);
    ps_free(p);
}

int ps_process_watch(struct ps_loop *l, int fd, ps_process_cb ended, void *ctx,
                     struct ps_process **ret_process)
{
    int pidfd = open_pidfd(fd);
    struct ps_process *p;
    int rc;

    if (pidfd < 0) {
        return errno == ENOSYS ? PS_E_UNSUPPORTED : ps_err_from_errno(errno);
    }
    p = ps_calloc(1, sizeof(*p));
    p->pidfd = pidfd;
    p->ended = ended;
    p->ctx = ctx;
    p->poll.data = p;
    rc = uv_poll_init(ps_loop_uv(l), &p->poll, pidfd);
    if (rc != 0) {
        close(pidfd);
        ps_free(p);
        return ps_err_from_uv(rc);
    }
    rc = uv_poll_start(&p->poll, UV_READABLE, readable);
    if (rc != 0) {
        ps_process_close(p);
        return ps_err_from_uv(rc);
    }
    *ret_process = p;
    return 0;
}

void ps_process_close(struct ps_process *p)
{
    if (p != NULL) {
        uv_close((uv_handle_t *)&p->poll, handle_closed);
    }
}
