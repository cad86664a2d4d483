/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors from 3 on, by the family of their sockets. */
#include "common/activation.h"

#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_FD 3

/* Number of descriptors that are meant for this process. */
static int announced(void)
{
    const char *pid = getenv("LISTEN_PID");
    const char *fds = getenv("LISTEN_FDS");
    long count = 0;

    if (pid != NULL && fds != NULL && strtol(pid, NULL, 10) == (long)getpid()) {
        count = strtol(fds, NULL, 10);
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return count < 0 || count > 1024 ? 0 : (int)count;
}

static bool int_option(int fd, int name, int *ret_value)
{
    socklen_t len = sizeof(*ret_value);

    return getsockopt(fd, SOL_SOCKET, name, ret_value, &len) == 0;
}

/* Place for a socket of this family; NULL: no daemon listens on one. */
static int *place_of(struct ps_activation *a, int fd)
{
    int family = 0;
    int type = 0;
    int listens = 0;

    if (!int_option(fd, SO_DOMAIN, &family) ||
        !int_option(fd, SO_TYPE, &type) ||
        !int_option(fd, SO_ACCEPTCONN, &listens) || type != SOCK_STREAM ||
        listens == 0) {
        return NULL;
    }
    if (family == AF_UNIX) {
        return &a->local_fd;
    }
    return family == AF_INET || family == AF_INET6 ? &a->tcp_fd : NULL;
}

static bool prepare(int fd)
{
    return fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 &&
           fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0;
}

int ps_activation_take(struct ps_activation *ret_sockets, struct ps_str *why)
{
    const int count = announced();
    int rc = 0;

    *ret_sockets = (struct ps_activation){.tcp_fd = -1, .local_fd = -1};
    for (int fd = FIRST_FD; rc == 0 && fd < FIRST_FD + count; fd++) {
        int *place = place_of(ret_sockets, fd);

        if (place == NULL) {
            ps_str_addf(
                why,
                "descriptor %d of the service manager is not a listening "
                "TCP or Unix socket (ListenStream=)",
                fd);
            rc = PS_E_INVAL;
        } else if (*place >= 0) {
            ps_str_addf(
                why,
                "the service manager passes more than one %s socket; one "
                "ListenStream= of each kind is possible",
                place == &ret_sockets->tcp_fd ? "TCP" : "Unix");
            rc = PS_E_INVAL;
        } else if (!prepare(fd)) {
            ps_str_addf(why, "descriptor %d of the service manager is not open",
                        fd);
            rc = PS_E_INVAL;
        } else {
            *place = fd;
        }
    }
    return rc;
}
