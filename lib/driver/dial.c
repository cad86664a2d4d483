/* SPDX-License-Identifier: Apache-2.0 */
/* Dials: connections and probes that the machine asks for, and subflows. A
 * server on this host is dialled by net/shm_peer.h, others by TCP, with a
 * handshake of TLS where connections are encrypted. Results wait in a list
 * until driver_report_dials(), outside of the step that dialled. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/map.h"
#include "base/str.h"
#include "crypto/tls.h"
#include "net/addr.h"
#include "net/shm_peer.h"
#include "net/socket.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void dial_end(struct dial *dial)
{
    ps_list_remove(&dial->node);
    ps_list_push_back(&dial->driver->dials.ended, &dial->node);
}

/* PS_E_PERM if a subflow has not led to the peer of its link. */
static int check_subflow(const struct dial *dial, struct ps_str *why)
{
    const struct daemon_conn *main = ps_map_get(dial->driver->conns,
                                                dial->subflow_of);

    if (main == NULL || ps_peer_is_same(&main->identity, &dial->identity)) {
        return 0;
    }
    ps_str_addf(why, "its certificate is of '%s', that of the link of '%s'",
                dial->identity.name, main->identity.name);
    return PS_E_PERM;
}

/* The machine reports a dial of its own that has failed. */
static void log_subflow_failed(const struct dial *dial, const char *peer)
{
    if (dial->subflow_of != 0) {
        ps_log_of(LOG_DIALS, PS_LOG_WARNING,
                  "connection failed peer=%s reason=\"%s\"", peer,
                  dial->detail);
    }
}

static void handshake_done(struct ps_tls_handshake *tls, int rc,
                           const char *why)
{
    struct dial *dial = tls->ctx;
    struct ps_str s = PS_STR_ROOM(PS_TLS_WHY_MAX);
    ps_str_add(&s, why);
    if (rc == 0) {
        rc = driver_tls_check(dial->driver, &dial->handshake, dial->peer_roles,
                              &dial->identity, &s);
    }
    if (rc == 0 && dial->subflow_of != 0) {
        rc = check_subflow(dial, &s);
    }
    if (rc != 0) {
        char *peer = dial->detail;

        ps_tls_session_free(tls->session);
        tls->session = NULL;
        close(dial->fd);
        dial->fd = -1;
        dial->rc = rc;
        dial->detail = ps_strdup(s.data);
        log_subflow_failed(dial, peer);
        ps_free(peer);
    }
    dial_end(dial);
}

static void dial_done(void *ctx, int fd, int rc, const char *detail)
{
    struct dial *dial = ctx;
    struct ps_driver *d = dial->driver;

    dial->dial = NULL;
    dial->fd = fd;
    dial->rc = rc;
    dial->detail = ps_strdup(detail);
    if (rc == 0 && !dial->is_probe && !d->is_closing &&
        driver_encrypts(d, fd)) {
        driver_tls_begin(d, &dial->handshake,
                         &(struct ps_tls_handshake){.fd = fd,
                                                    .dialled = true,
                                                    .done = handshake_done,
                                                    .ctx = dial});
    } else {
        dial_end(dial);
    }
}

/* Connects to a server on this host. False: TCP is needed. */
static bool dial_shm(struct dial *dial)
{
    int rc = ps_shm_dial(dial->address, &dial->fd);
    char peer[PS_CONN_PEER_MAX];

    if (rc == PS_E_PERM) {
        ps_log_of(LOG_DIALS, PS_LOG_WARNING,
                  "server not reached through this host address %s reason "
                  "\"it runs as another user\"",
                  dial->address);
    }
    if (rc == 0) {
        dial->is_shm = true;
        snprintf(peer, sizeof(peer), "host:%s", dial->address);
        dial->detail = ps_strdup(peer);
    }
    return rc == 0;
}

static struct dial *dial_new(struct ps_driver *d, const struct ps_fx *fx)
{
    struct dial *dial = ps_calloc(1, sizeof(*dial));

    dial->driver = d;
    dial->target = fx->dial.target;
    dial->subflow_of = fx->dial.subflow_of;
    dial->fd = -1;
    ps_str_copy(dial->address, sizeof(dial->address), fx->dial.address);
    return dial;
}

static void start_dial(struct dial *dial, ps_time timeout)
{
    struct ps_driver *d = dial->driver;

    dial->rc = ps_dial_start(d->opt.loop, dial->address, timeout, dial_done,
                             dial, &dial->dial);
    ps_list_push_back(dial->rc == 0 ? &d->dials.running : &d->dials.ended,
                      &dial->node);
}

void driver_dial(struct ps_driver *d, const struct ps_fx *fx)
{
    struct dial *dial = dial_new(d, fx);
    bool sched = d->opt.scheduler != NULL &&
                 strcmp(dial->address, d->opt.scheduler) == 0;

    dial->peer_roles = 1u << (sched ? PS_ROLE_SCHED : PS_ROLE_SERVER);
    if (!sched && d->opt.same_host && dial->subflow_of == 0 && dial_shm(dial)) {
        ps_list_push_back(&d->dials.ended, &dial->node);
        return;
    }
    start_dial(dial,
               fx->dial.timeout != 0 ? fx->dial.timeout : d->opt.dial_timeout);
}

void driver_probe(struct ps_driver *d, const struct ps_fx *fx)
{
    struct dial *dial = dial_new(d, fx);

    dial->is_probe = true;
    start_dial(dial, fx->dial.timeout);
}

void driver_cancel_dials(struct ps_driver *d)
{
    PS_LIST_EACH_OF(struct dial, dial, node, &d->dials.running)
    {
        if (dial->dial != NULL) {
            ps_dial_cancel(dial->dial);
        } else {
            ps_tls_gate_cancel(d->opt.tls.gate, &dial->handshake.tls);
        }
    }
}

/* ---------------------------------------------------------------- liveness */

/* Liveness port of an agent: every connection is accepted and closed at once.
 * When the process ends, for whatever reason, the kernel refuses connections
 * there, so the scheduler detects the death in a moment instead of after a
 * lease. The port is bound to the address from which the agent reaches the
 * scheduler. Without a port the agent works, and its lease decides. */

#define BACKLOG 8

static void refuse_caller(void *ctx, int fd)
{
    (void)ctx;
    if (fd >= 0) {
        close(fd);
    }
}

/* Local numeric address of `fd`, without port. */
static bool host_of_socket(int fd, char *out, size_t cap)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    struct ps_addr a;
    char text[PS_CONN_PEER_MAX];

    if (getsockname(fd, (struct sockaddr *)&sa, &len) != 0) {
        return false;
    }
    ps_addr_print((struct sockaddr *)&sa, text, sizeof(text));
    if (ps_addr_parse(text, &a) != 0) {
        return false;
    }
    return ps_str_copy(out, cap, a.host);
}

/* Listens on the first free port of the configured ones. */
static int listen_free(const struct ps_driver *d, const char *host, int *ret_fd,
                       uint16_t *ret_port)
{
    int rc = PS_E_EXIST;

    for (uint16_t i = 0; rc == PS_E_EXIST && i < d->opt.liveness.count; i++) {
        rc = ps_listen_tcp(host, (uint16_t)(d->opt.liveness.port + i), BACKLOG,
                           ret_fd, ret_port);
    }
    if (rc == PS_E_EXIST && d->opt.liveness.any) {
        rc = ps_listen_tcp(host, 0, BACKLOG, ret_fd, ret_port);
    }
    return rc;
}

void driver_liveness_close(struct ps_driver *d)
{
    ps_listener_close(d->liveness.listener);
    d->liveness.listener = NULL;
    d->liveness.host[0] = '\0';
}

const char *driver_liveness_address(struct ps_driver *d, int fd)
{
    char host[PS_ADDRESS_MAX + 1];
    uint16_t port;
    int sock;
    int rc;

    if (d->opt.liveness.count == 0 || d->is_closing ||
        !host_of_socket(fd, host, sizeof(host))) {
        return NULL;
    }
    if (d->liveness.listener != NULL && strcmp(host, d->liveness.host) == 0) {
        return d->liveness.address;
    }
    driver_liveness_close(d);
    rc = listen_free(d, host, &sock, &port);
    if (rc != 0) {
        ps_log(PS_LOG_WARNING,
               "no liveness port at %s port %u: %s; a death of this agent is "
               "noticed only when its lease ends; see listen.port",
               host, (unsigned)d->opt.liveness.port, ps_strerror(rc));
        return NULL;
    }
    if (ps_listener_open(d->opt.loop, sock, refuse_caller, NULL,
                         &d->liveness.listener) != 0) {
        close(sock);
        return NULL;
    }
    ps_str_copy(d->liveness.host, sizeof(d->liveness.host), host);
    (void)ps_addr_format(host, port, d->liveness.address,
                         sizeof(d->liveness.address));
    return d->liveness.address;
}
