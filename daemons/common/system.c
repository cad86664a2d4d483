/* SPDX-License-Identifier: Apache-2.0 */
/* Services of the system and of the service manager to a daemon. */
#include "common/system.h"

#include "base/err.h"
#include "base/str.h"
#include "common/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ----------------------------------------------- why a socket cannot be had */

const char *ps_advice_tcp(int rc, int errnum)
{
    switch (rc) {
    case PS_E_EXIST:
        return "another process listens there; stop it, or set another "
               "listen.port";
    case PS_E_INVAL:
        return "this host has no such address; set listen.address to one that "
               "it has, or to 0.0.0.0 for all";
    case PS_E_UNREACH:
        return "the name cannot be resolved; correct listen.address, or the "
               "host's names (/etc/hosts, DNS)";
    case PS_E_PERM:
        return "the system forbids it; ports below 1024 need a privilege";
    default:
        return strerror(errnum);
    }
}

const char *ps_advice_local(int rc, int errnum)
{
    if (rc == PS_E_EXIST) {
        return "another process listens there, or it is not a socket; stop "
               "that "
               "process, or choose another path";
    }
    if (rc == PS_E_TOOBIG) {
        return "the path is longer than the 107 bytes that a socket may have; "
               "choose a shorter one";
    }
    switch (errnum) {
    case EROFS:
        return "the folder is in a read-only file system; choose a path in one "
               "that can be written";
    case EACCES:
    case EPERM:
        return "this user may not write in the folder; change its owner or "
               "mode, or choose another path";
    case ENOENT:
        return "the folder does not exist; make it, or choose another path";
    case ENOTDIR:
        return "the part before the last / is not a folder; choose another "
               "path";
    default:
        return strerror(errnum);
    }
}

/* ------------------------------------------- sockets of the service manager */

#define FIRST_FD 3

/* Number of descriptors that are meant for this process, and their names, with a
 * colon between two. */
static int announced(struct ps_str *names)
{
    const char *pid = getenv("LISTEN_PID");
    const char *fds = getenv("LISTEN_FDS");
    long count = 0;

    ps_str_add(names, ps_str_or_empty(getenv("LISTEN_FDNAMES")));
    if (pid != NULL && fds != NULL && strtol(pid, NULL, 10) == (long)getpid()) {
        count = strtol(fds, NULL, 10);
    }
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return count < 0 || count > 1024 ? 0 : (int)count;
}

/* True if name `index` of the list is that of state memory. */
static bool is_state(const char *names, int index)
{
    const size_t len = strlen(PS_KEEPER_NAME);

    for (; index > 0 && names != NULL; index--) {
        names = strchr(names, ':');
        names = names != NULL ? names + 1 : NULL;
    }
    return names != NULL && strncmp(names, PS_KEEPER_NAME, len) == 0 &&
           (names[len] == ':' || names[len] == '\0');
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
    struct ps_str names = PS_STR_ROOM(1024);
    const int count = announced(&names);
    int rc = 0;

    *ret_sockets = (struct ps_activation){
        .tcp_fd = -1, .local_fd = -1, .state_fd = -1};
    for (int fd = FIRST_FD; rc == 0 && fd < FIRST_FD + count; fd++) {
        int *place = is_state(names.data, fd - FIRST_FD)
                         ? &ret_sockets->state_fd
                         : place_of(ret_sockets, fd);

        if (place == NULL) {
            ps_str_addf(
                why,
                "descriptor %d of the service manager is not a listening "
                "TCP or Unix socket (ListenStream=)",
                fd);
            rc = PS_E_INVAL;
        } else if (*place >= 0 && place == &ret_sockets->state_fd) {
            close(fd); /* Of an earlier configuration of the store. */
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

/* ------------------------------------------------------------ notifications */

static struct {
    int fd;
    struct sockaddr_un to;
    socklen_t to_len;
    ps_time watchdog;
    bool has_store;
} notify_state = {.fd = -1, .watchdog = PS_TIME_NEVER};

static void init_watchdog(void)
{
    const char *usec = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    unsigned long long n;

    if (usec == NULL ||
        (pid != NULL && strtol(pid, NULL, 10) != (long)getpid())) {
        return;
    }
    n = strtoull(usec, NULL, 10);
    if (n > 0 && n < UINT64_MAX / 1000) {
        notify_state.watchdog = PS_MICROS(n) / 2;
    }
}

void ps_notify_init(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path == NULL ? 0 : strlen(path);

    if (len > 1 && len < sizeof(notify_state.to.sun_path) &&
        (path[0] == '/' || path[0] == '@')) {
        notify_state.to.sun_family = AF_UNIX;
        memcpy(notify_state.to.sun_path, path, len);
        if (path[0] == '@') { /* Abstract socket name. */
            notify_state.to.sun_path[0] = '\0';
        }
        notify_state.to_len =
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
        notify_state.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        init_watchdog();
        /* Of systemd 254 and later; the unit sets it for earlier ones. */
        notify_state.has_store = atoi(ps_str_or_empty(getenv("FDSTORE"))) > 0;
    }
    unsetenv("FDSTORE");
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void ps_notify(const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (notify_state.fd < 0) {
        return;
    }
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);

    va_end(ap);
    if (n > 0 && (size_t)n < sizeof(text)) {
        (void)sendto(notify_state.fd, text, (size_t)n,
                     MSG_NOSIGNAL | MSG_DONTWAIT,
                     (struct sockaddr *)&notify_state.to, notify_state.to_len);
    }
}

/* Sends the text, with the descriptor unless it is -1. */
static bool notify_with(const char *text, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {.iov_base = (char *)(uintptr_t)text,
                         .iov_len = strlen(text)};
    struct msghdr m = {.msg_name = &notify_state.to,
                       .msg_namelen = notify_state.to_len,
                       .msg_iov = &part,
                       .msg_iovlen = 1};

    if (fd >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);

        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    return sendmsg(notify_state.fd, &m, MSG_NOSIGNAL) >= 0;
}

bool ps_notify_store(const char *name, int fd)
{
    char text[128];

    if (!notify_state.has_store) {
        return false;
    }
    snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
    if (fd < 0) {
        return notify_with(text, -1);
    }
    (void)notify_with(text, -1);
    snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
    return notify_with(text, fd);
}

ps_time ps_notify_watchdog(void)
{
    return notify_state.watchdog;
}

/* ----------------------------------------------------------- private memory */

bool ps_private_memory(void)
{
    const struct rlimit none = {0, 0};

    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 &&
           setrlimit(RLIMIT_CORE, &none) == 0;
}
