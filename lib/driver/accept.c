/* SPDX-License-Identifier: Apache-2.0 */
/* New connections: from the listeners, within limits, and from dials. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/map.h"
#include "base/num.h"
#include "base/str.h"
#include "crypto/tls.h"
#include "net/addr.h"
#include "net/local.h"
#include "net/shm_peer.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* Roles whose connections a daemon accepts by TCP, as bits. */
static uint32_t accepted_roles(enum ps_role self)
{
    return 1u << PS_ROLE_SERVER | 1u << PS_ROLE_AGENT |
           (self == PS_ROLE_SCHED ? 1u << PS_ROLE_CTL : 0);
}

/* The scheduler's Unix socket is for tools, an agent's for workers. */
static uint32_t local_roles(enum ps_role self)
{
    return 1u << (self == PS_ROLE_SCHED ? PS_ROLE_CTL : PS_ROLE_WORKER);
}

/* Reason to refuse `fd`; NULL: it is accepted. The kernel assigns the lowest
 * free descriptor, so its number tells how many are in use. */
static const char *refuse_beyond_limit(const struct ps_driver *d, int fd,
                                       bool local)
{
    struct rlimit lim;

    if (getrlimit(RLIMIT_NOFILE, &lim) == 0 &&
        (rlim_t)fd + ps_min_u64(PS_DESCRIPTORS_RESERVED, lim.rlim_cur / 4) >=
            lim.rlim_cur) {
        return "this daemon has nearly all the descriptors open that it may "
               "have (LimitNOFILE)";
    }
    if (local) {
        return d->local_count >= d->opt.local_max
                   ? "too many local connections (client.max_clients)"
                   : NULL;
    }
    return ps_map_count(d->conns) - d->local_count >= d->opt.connections_max
               ? "too many connections (limits.connections)"
               : NULL;
}

/* ------------------------------------------------------- handshakes of TLS */

static void accepting_done(struct ps_tls_handshake *tls, int rc,
                           const char *why)
{
    struct accepting *a = tls->ctx;
    struct ps_driver *d = a->driver;
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct ps_peer_identity identity;
    struct ps_str s = PS_STR_ROOM(PS_TLS_WHY_MAX);

    ps_list_remove(&a->node);
    ps_str_add(&s, why);
    if (rc == 0 && !d->is_closing) {
        rc = driver_tls_check(d, &a->handshake, accepted_roles(d->opt.self),
                              &identity, &s);
    }
    if (d->is_closing || rc == PS_E_CLOSED) {
        ps_tls_session_free(tls->session);
        close(tls->fd);
    } else if (rc == PS_E_VERSION) {
        driver_refuse_plain(d, tls->fd, a->peer, s.data);
    } else if (rc != 0) {
        driver_refuse_encrypted(d, tls->fd, tls->session, a->peer, s.data);
    } else {
        driver_open(
            d,
            &(struct conn_opening){.fd = tls->fd,
                                   .peer_roles = accepted_roles(d->opt.self),
                                   .peer = a->peer,
                                   .source = tls->source,
                                   .session = tls->session,
                                   .identity = &identity},
            &ev);
    }
    ps_free(a);
    driver_maybe_closed(d);
}

static void accept_encrypted(struct ps_driver *d, int fd, const char *peer,
                             uint64_t source)
{
    struct accepting *a = ps_calloc(1, sizeof(*a));

    a->driver = d;
    ps_str_copy(a->peer, sizeof(a->peer), peer);
    ps_list_push_back(&d->tls.accepting, &a->node);
    driver_tls_begin(
        d, &a->handshake,
        &(struct ps_tls_handshake){
            .fd = fd, .source = source, .done = accepting_done, .ctx = a});
}

void driver_cancel_accepting(struct ps_driver *d)
{
    PS_LIST_EACH_OF(struct accepting, a, node, &d->tls.accepting)
    {
        ps_tls_gate_cancel(d->opt.tls.gate, &a->handshake.tls);
    }
}

/* ---------------------------------------------------------------- listeners */

void ps_driver_accept(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);
    char peer[PS_CONN_PEER_MAX];

    (void)getpeername(fd, (struct sockaddr *)&sa, &len);
    ps_addr_print((struct sockaddr *)&sa, peer, sizeof(peer));
    const uint64_t source = ps_addr_source((struct sockaddr *)&sa);
    const char *why = refuse_beyond_limit(d, fd, false);

    if (d->is_closing) {
        close(fd);
    } else if (why != NULL) {
        driver_refuse(d, fd, peer, why);
    } else if (driver_encrypts(d, fd)) {
        accept_encrypted(d, fd, peer, source);
    } else {
        driver_open(
            d,
            &(struct conn_opening){.fd = fd,
                                   .peer_roles = accepted_roles(d->opt.self),
                                   .peer = peer,
                                   .source = source},
            &ev);
    }
}

void ps_driver_accept_shm(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_ACCEPTED}};
    struct ps_local_peer who;
    char peer[PS_CONN_PEER_MAX];

    if (d->is_closing || ps_local_peer(fd, &who) != 0) {
        close(fd);
        return;
    }
    snprintf(peer, sizeof(peer), "host:uid=%u,pid=%u", who.uid, who.pid);
    const char *why = ps_shm_peer_is_trusted(fd)
                          ? refuse_beyond_limit(d, fd, false)
                          : "an agent of another user";

    if (why != NULL) {
        driver_refuse(d, fd, peer, why);
    } else {
        driver_open(
            d,
            &(struct conn_opening){.fd = fd,
                                   .peer_roles = accepted_roles(d->opt.self),
                                   .peer = peer,
                                   .is_shm = true},
            &ev);
    }
}

void ps_driver_accept_local(struct ps_driver *d, int fd)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_LOCAL}};
    struct ps_local_peer who;
    char peer[PS_CONN_PEER_MAX];
    int rc = ps_local_peer(fd, &who);

    if (rc != 0) {
        ps_log_of(LOG_REFUSED, PS_LOG_WARNING,
                  "connection refused peer=local reason=\"its process is not "
                  "known: %s\"",
                  ps_strerror(rc));
    }
    if (rc != 0 || d->is_closing) {
        close(fd);
        return;
    }
    snprintf(peer, sizeof(peer), "local:uid=%u,pid=%u", who.uid, who.pid);
    const char *why = refuse_beyond_limit(d, fd, true);

    if (why != NULL) {
        driver_refuse(d, fd, peer, why);
        return;
    }
    ev.open.uid = who.uid;
    ev.open.pid = who.pid;
    driver_open(d,
                &(struct conn_opening){.fd = fd,
                                       .peer_roles = local_roles(d->opt.self),
                                       .peer = peer,
                                       .source = who.uid},
                &ev);
}

/* -------------------------------------------------------------------- dials */

static void report_dial_failed(struct ps_driver *d, const struct dial *dial)
{
    struct ps_event ev = {.type = PS_EV_DIAL_FAILED};

    if (dial->detail != NULL) {
        ps_log(PS_LOG_DEBUG, "dial failed reason=\"%s\"", dial->detail);
    }
    ev.dial_failed.target = dial->target;
    ev.dial_failed.rc = dial->rc;
    ev.dial_failed.why = dial->detail;
    driver_feed(d, &ev);
}

static void report_probe(struct ps_driver *d, uint64_t target, int rc)
{
    struct ps_event ev = {.type = PS_EV_PROBED};

    ev.dial_failed.target = target;
    ev.dial_failed.rc = rc;
    driver_feed(d, &ev);
}

/* Closes the socket of a dial, if it has one. */
static void close_dialled(const struct dial *dial)
{
    if (dial->fd >= 0) {
        ps_tls_session_free(dial->handshake.tls.session);
        close(dial->fd);
    }
}

static const struct ps_peer_identity *identity_of(const struct dial *dial)
{
    return ps_peer_has_certificate(&dial->identity) ? &dial->identity : NULL;
}

/* Opens the subflow to which a dial has led, if its link has not ended. */
static void subflow_dialled(struct ps_driver *d, const struct dial *dial)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    struct daemon_conn *main = ps_map_get(d->conns, dial->subflow_of);

    if (main == NULL) {
        close_dialled(dial);
    } else if (dial->rc != 0) {
        ps_path_dial_failed(&main->path, ps_loop_now(d->opt.loop));
    } else {
        driver_open(
            d,
            &(struct conn_opening){.fd = dial->fd,
                                   .peer_roles = 1u << PS_ROLE_SERVER,
                                   .peer = dial->detail,
                                   .session = dial->handshake.tls.session,
                                   .identity = identity_of(dial),
                                   .main = &main->path},
            &ev);
    }
}

static void open_dialled(struct ps_driver *d, const struct dial *dial)
{
    struct ps_event ev = {.open = {.kind = PS_CONN_DIALLED}};
    bool server = dial->peer_roles == 1u << PS_ROLE_SERVER;

    ev.open.target = dial->target;
    ev.open.liveness_address = server ? NULL
                                      : driver_liveness_address(d, dial->fd);
    if (d->opt.same_host && server) {
        ps_log_of(LOG_DIALS, PS_LOG_INFO,
                  dial->is_shm ? "server reached on this host address %s"
                               : "server reached by TCP address %s",
                  dial->is_shm ? dial->address : dial->detail);
    }
    driver_open(d,
                &(struct conn_opening){.fd = dial->fd,
                                       .peer_roles = dial->peer_roles,
                                       .peer = dial->detail,
                                       .is_shm = dial->is_shm,
                                       .session = dial->handshake.tls.session,
                                       .identity = identity_of(dial),
                                       .address = dial->address},
                &ev);
}

/* Reports the end of a dial. */
static void report_dial(struct ps_driver *d, const struct dial *dial)
{
    if (d->is_closing || dial->is_probe) {
        close_dialled(dial);
    }
    if (d->is_closing) {
        return;
    }
    if (dial->is_probe) {
        report_probe(d, dial->target, dial->rc);
    } else if (dial->subflow_of != 0) {
        subflow_dialled(d, dial);
    } else if (dial->rc != 0) {
        report_dial_failed(d, dial);
    } else {
        open_dialled(d, dial);
    }
}

void driver_report_dials(struct ps_driver *d)
{
    struct dial *dial;

    while ((dial = PS_LIST_POP(struct dial, node, &d->dials.ended)) != NULL) {
        report_dial(d, dial);
        ps_free(dial->detail);
        ps_free(dial);
    }
    driver_maybe_closed(d);
}
