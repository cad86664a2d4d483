/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of a daemon: TCP port, Unix socket, socket for agents of this host,
 * and the limit on descriptors. */
#include "common/daemon_inner.h"

#include "base/file_check.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/variables.h"
#include "common/keeper.h"
#include "common/system.h"
#include "driver/driver.h"
#include "net/addr.h"
#include "net/local.h"
#include "net/shm_peer.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Raises the limit on descriptors to the hard limit: each agent takes one at
 * least, and so does each worker of an agent. */
void daemon_raise_descriptors(const struct daemon *d)
{
    const bool listens = daemon_listen_options(d) != NULL;
    const uint64_t connections = listens
                                     ? daemon_common_options(d)->connections
                                     : d->spec->socket(d->config.values).max;
    const uint64_t wanted = connections + 2 * PS_DESCRIPTORS_RESERVED;
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) != 0) {
        return;
    }
    lim.rlim_cur = lim.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &lim);
    if (lim.rlim_max < wanted) {
        ps_log(PS_LOG_WARNING,
               "descriptors limit %" PRIu64 " less than %s needs %" PRIu64
               "; raise LimitNOFILE",
               (uint64_t)lim.rlim_max,
               listens ? "limits.connections" : "client.max_clients", wanted);
    }
}

/* Group of the socket. False, with a line in the log: there is no such group,
 * or this process may not give files to it. */
static bool find_group(const struct ps_daemon_socket *s, uint32_t *ret_gid)
{
    const char *name = s->group;
    const struct group *g;

    if (name[0] == '\0') {
        *ret_gid = PS_LOCAL_OWN_GROUP;
        return true;
    }
    if (strspn(name, "0123456789") == strlen(name) && strlen(name) < 10) {
        *ret_gid = (uint32_t)strtoul(name, NULL, 10);
    } else if ((g = getgrnam(name)) != NULL) {
        *ret_gid = (uint32_t)g->gr_gid;
    } else {
        ps_log(PS_LOG_ERROR,
               "%s: there is no group %s on this host; make it, or name "
               "another",
               s->group_option, name);
        return false;
    }
    if (geteuid() == 0 || group_member(*ret_gid)) {
        return true;
    }
    ps_log(PS_LOG_ERROR,
           "%s: user %u is no member of group %s; add it (in a unit: "
           "SupplementaryGroups=), or name another group",
           s->group_option, (unsigned)geteuid(), name);
    return false;
}

/* A user who starts a daemon by hand has neither a folder of the service manager
 * nor the right to write /run/pskv. */
void daemon_choose_runtime(void)
{
    char folder[PS_SOCKET_PATH_MAX + 1];

    if (getenv("RUNTIME_DIRECTORY") == NULL && geteuid() != 0 &&
        access("/run/pskv", W_OK) != 0 &&
        ps_runtime_folder(folder, sizeof(folder))) {
        (void)setenv("RUNTIME_DIRECTORY", folder, 1);
    }
}

/* Makes the folder of the user's own daemons, if the socket is to be there. */
static void make_folder(const char *path)
{
    char folder[PS_SOCKET_PATH_MAX + 1];

    if (ps_runtime_folder(folder, sizeof(folder)) &&
        strncmp(path, folder, strlen(folder)) == 0 &&
        path[strlen(folder)] == '/') {
        (void)mkdir(folder, 0700); /* Errors are those of the socket. */
    }
}

static bool check_folder(const struct ps_daemon_socket *s)
{
    struct ps_str why = PS_STR_ROOM(PS_SOCKET_PATH_MAX + 256);

    if (ps_file_check_folder(s->path, &why) == 0) {
        return true;
    }
    why.data[strcspn(why.data, "\n")] = '\0';
    ps_log(PS_LOG_ERROR, "%s: %s", s->path_option, why.data);
    return false;
}

/* Uses the Unix socket of the service manager, which decides on its mode and
 * group. */
static int adopt_local(struct daemon *d, const struct ps_daemon_socket *s,
                       int fd)
{
    if (!ps_local_is_at(fd, s->path)) {
        ps_log(PS_LOG_ERROR,
               "the Unix socket of the service manager is not at %s %s; make "
               "ListenStream= of the socket unit and the option equal",
               s->path_option, s->path);
        return PS_EXIT_CONFIG;
    }
    if (!check_folder(s)) {
        return PS_EXIT_CONFIG;
    }
    d->sockets.local.fd = fd;
    d->sockets.local_path = s->path;
    return PS_EXIT_OK;
}

static int open_local(struct daemon *d, struct ps_daemon_socket s)
{
    struct ps_local_options opt = {.mode = s.mode, .backlog = (int)s.max};
    const char *advice;
    int rc;

    if (s.path[0] == '\0') {
        return PS_EXIT_OK;
    }
    make_folder(s.path);
    if (!find_group(&s, &opt.gid) || !check_folder(&s)) {
        return PS_EXIT_CONFIG;
    }
    rc = ps_local_listen(s.path, &opt, &d->sockets.local.fd);
    advice = ps_advice_local(rc, errno);
    if (rc == 0) {
        d->sockets.local_path = s.path;
        d->sockets.owns_local_path = true;
        return PS_EXIT_OK;
    }
    if (s.is_optional && ps_options_origin(d->config.options, s.path_option) ==
                             PS_OPTION_FROM_DEFAULT) {
        ps_log(PS_LOG_NOTICE,
               "no Unix socket at %s (%s): psctl cannot change jobs; %s sets "
               "its path",
               s.path, advice, s.path_option);
        return PS_EXIT_OK;
    }
    if (rc == PS_E_PERM && errno == EPERM && s.group[0] != '\0') {
        advice = "the system forbids to change the socket's group; in a unit, "
                 "SystemCallFilter=chown fchownat permits it";
    }
    ps_log(PS_LOG_ERROR, "cannot listen on %s: %s", s.path, advice);
    return rc == PS_E_PERM ? PS_EXIT_NOPERM : PS_EXIT_CANTCREAT;
}

static int open_tcp(struct daemon *d, const struct ps_listen_options *l)
{
    bool any = l->port == (uint64_t)PS_LISTEN_PORT_AUTO;
    uint16_t first = any ? d->spec->port : (uint16_t)l->port;
    uint16_t count = any ? d->spec->port_count : 1;
    char where[PS_ADDRESS_MAX + 1];
    int rc = PS_E_EXIST;

    for (uint16_t i = 0; rc == PS_E_EXIST && i < count; i++) {
        rc = ps_listen_tcp(l->address, (uint16_t)(first + i), l->backlog,
                           &d->sockets.tcp.fd, &d->sockets.listen_port);
    }
    if (rc == 0) {
        return PS_EXIT_OK;
    }
    const char *advice = ps_advice_tcp(rc, errno);

    (void)ps_addr_format(l->address, first, where, sizeof(where));
    ps_log(PS_LOG_ERROR, "cannot listen on %s: %s", where, advice);
    return ps_exit_code(rc);
}

/* Uses the TCP socket of the service manager. Its address must be that of the
 * options, which decides whether connections are encrypted. */
static int adopt_tcp(struct daemon *d, const struct ps_listen_options *l,
                     int fd)
{
    const bool any = l->port == (uint64_t)PS_LISTEN_PORT_AUTO;
    int rc = ps_listen_adopt(fd, l->address, any ? 0 : (uint16_t)l->port,
                             &d->sockets.listen_port);

    if (rc == 0) {
        d->sockets.tcp.fd = fd;
        return PS_EXIT_OK;
    }
    ps_log(PS_LOG_ERROR,
           "the TCP socket of the service manager is not at listen.address %s "
           "and listen.port; make ListenStream= of the socket unit and the "
           "options equal",
           l->address);
    return PS_EXIT_CONFIG;
}

int daemon_sockets_open(struct daemon *d)
{
    const struct ps_listen_options *l = daemon_listen_options(d);
    struct ps_activation given;
    struct ps_str why = PS_STR_ROOM(256);
    int code = PS_EXIT_OK;

    if (ps_activation_take(&given, &why) != 0) {
        ps_log(PS_LOG_ERROR, "%s", why.data);
        return PS_EXIT_CONFIG;
    }
    if (given.state_fd >= 0) {
        ps_keeper_inherit(given.state_fd);
    }
    if ((given.tcp_fd >= 0 && l == NULL) ||
        (given.local_fd >= 0 && d->spec->socket == NULL)) {
        ps_log(PS_LOG_ERROR,
               "the service manager passes a %s socket, and %s listens on "
               "none; remove its ListenStream=",
               l == NULL ? "TCP" : "Unix", d->spec->options->program);
        return PS_EXIT_CONFIG;
    }
    if (l != NULL) {
        code = given.tcp_fd >= 0 ? adopt_tcp(d, l, given.tcp_fd)
                                 : open_tcp(d, l);
    }
    if (code == PS_EXIT_OK && d->spec->socket != NULL) {
        const struct ps_daemon_socket s = d->spec->socket(d->config.values);

        code = given.local_fd >= 0 ? adopt_local(d, &s, given.local_fd)
                                   : open_local(d, s);
    }
    return code;
}

bool daemon_uses_shm(const struct daemon *d)
{
    const struct ps_transport_options *t = daemon_transport_options(d);

    return t != NULL && t->same_host == 0;
}

void daemon_listen_shm(struct daemon *d)
{
    const struct ps_listen_options *l = daemon_listen_options(d);
    int rc;

    if (l == NULL || !daemon_uses_shm(d)) {
        return;
    }
    rc = ps_shm_listen(d->facts.address, l->backlog, &d->sockets.shm.fd);
    if (rc != 0) {
        ps_log(PS_LOG_NOTICE,
               "agents on this host come by TCP address %s reason \"%s\"",
               d->facts.address, ps_strerror(rc));
    }
}

static void socket_accepted(void *ctx, int fd)
{
    static const char kind[] = "no descriptor";
    const struct daemon_socket *s = ctx;

    if (fd >= 0) {
        s->accept(s->d->driver, fd);
    } else {
        ps_log_of((uintptr_t)kind, PS_LOG_WARNING,
                  "connection refused reason=\"this daemon has all descriptors "
                  "open that it may have (LimitNOFILE)\"");
    }
}

static int open_listener(struct daemon *d, struct daemon_socket *s,
                         void (*accept)(struct ps_driver *d, int fd))
{
    int rc = 0;

    s->d = d;
    s->accept = accept;
    if (s->fd >= 0) {
        rc = ps_listener_open(d->loop, s->fd, socket_accepted, s, &s->listener);
        s->fd = rc == 0 ? -1 : s->fd;
    }
    return rc;
}

int daemon_listeners_open(struct daemon *d)
{
    int rc = open_listener(d, &d->sockets.tcp, ps_driver_accept);

    if (rc == 0) {
        rc = open_listener(d, &d->sockets.shm, ps_driver_accept_shm);
    }
    if (rc == 0) {
        rc = open_listener(d, &d->sockets.local, ps_driver_accept_local);
    }
    return rc;
}

int daemon_write_port_file(const struct daemon *d)
{
    char text[16];
    int error;

    if (d->args.port_file == NULL) {
        return PS_EXIT_OK;
    }
    snprintf(text, sizeof(text), "%u\n", (unsigned)d->sockets.listen_port);
    error = ps_file_replace(d->args.port_file, text, strlen(text), 0600,
                            PS_FILE_PASSING);
    if (error != 0) {
        ps_log(PS_LOG_ERROR, "cannot write %s: %s", d->args.port_file,
               strerror(error));
        return PS_EXIT_CANTCREAT;
    }
    return PS_EXIT_OK;
}

static void socket_close(struct daemon_socket *s)
{
    ps_listener_close(s->listener);
    if (s->fd >= 0) {
        close(s->fd);
    }
}

void daemon_sockets_close(struct daemon *d)
{
    socket_close(&d->sockets.tcp);
    socket_close(&d->sockets.local);
    socket_close(&d->sockets.shm);
    if (d->sockets.owns_local_path) {
        ps_local_remove(d->sockets.local_path);
    }
}
