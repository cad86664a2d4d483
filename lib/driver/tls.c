/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of the driver. net/tls.h makes the handshakes, for accepted
 * connections and for dials; here is the choice of connections that need one,
 * the check of the peer that it proves, the check of all connections against a
 * new context: one with another list of revoked certificates, say; and the end of
 * connections whose certificate ends. */
#include "driver/inner.h"

#include "base/map.h"
#include "base/str.h"
#include "crypto/tls.h"

#include <string.h>
#include <sys/socket.h>
#include <time.h>

/* Connections that are checked before other work gets a turn; each takes a
 * fraction of a millisecond. */
#define CHECKS_MAX 16
/* Seconds until the next look at the system's clock, which may be set. */
#define CLOCK_MAX  60

bool driver_encrypts(const struct ps_driver *d, int fd)
{
    struct sockaddr_storage peer = {0};
    socklen_t len = sizeof(peer);

    if (d->opt.tls.context == NULL) {
        return false;
    }
    if (getpeername(fd, (struct sockaddr *)&peer, &len) != 0) {
        return true;
    }
    /* Loopback is no exception: a tunnel or proxy on this host carries the
     * connections of strangers. The kernel knows the user at the other end of a
     * Unix socket. */
    return peer.ss_family != AF_UNIX;
}

void driver_tls_begin(struct ps_driver *d, struct driver_handshake *h,
                      const struct ps_tls_handshake *tls)
{
    h->tls = *tls;
    h->generation = d->tls.generation;
    ps_tls_gate_submit(d->opt.tls.gate, d->opt.tls.context, &h->tls);
}

/* 0 if the certificate of the session is valid by the newest context. */
static int check_session(const struct ps_driver *d,
                         const struct ps_tls_session *session,
                         struct ps_str *why)
{
    const size_t at = why->len;

    ps_str_add(why, "its ");
    int rc = ps_tls_session_verify(session, d->opt.tls.context, why);

    if (rc == 0) {
        why->len = at;
        why->data[at] = '\0';
    } else {
        ps_str_add(why, " (");
        ps_identity_add_uri(why, ps_tls_session_peer(session));
        ps_str_add(why, ")");
    }
    return rc;
}

int driver_tls_check(const struct ps_driver *d,
                     const struct driver_handshake *h, uint32_t roles,
                     struct ps_peer_identity *ret_identity, struct ps_str *why)
{
    const struct ps_identity *peer = ps_tls_session_peer(h->tls.session);
    struct ps_peer_identity id = {.role = (uint8_t)peer->role};

    ps_str_copy(id.cluster, sizeof(id.cluster), peer->cluster);
    ps_str_copy(id.name, sizeof(id.name), peer->name);
    if (!ps_peer_check_role(
            &id, ps_tls_context_identity(d->opt.tls.context)->cluster, roles,
            why)) {
        ps_str_add(why, " (");
        ps_identity_add_uri(why, peer);
        ps_str_add(why, ")");
        return PS_E_PERM;
    }
    if (h->generation != d->tls.generation) {
        int rc = check_session(d, h->tls.session, why);

        if (rc != 0) {
            return rc;
        }
    }
    *ret_identity = id;
    return 0;
}

void driver_tls_send(struct ps_tls_session *session, const void *bytes,
                     size_t len)
{
    const struct iovec iov = {(void *)bytes, len};

    /* A peer that does not read gets no reason. */
    if (ps_tls_session_write(session, &iov, 1) > 0) {
        ps_tls_session_end(session);
    }
}

/* -------------------------------------------------------------- new context */

/* Closes the connection if the newest context does not accept its peer. */
static void check_conn(struct daemon_conn *c)
{
    const struct ps_tls_session *session = ps_conn_session(c->conn);
    struct ps_str why = PS_STR_ROOM(PS_TLS_WHY_MAX);

    c->tls_generation = c->driver->tls.generation;
    if (session == NULL) {
        return;
    }
    if (check_session(c->driver, session, &why) != 0) {
        driver_reject(c, PS_E_PERM, why.data);
    }
}

static void check_conns(struct ps_loop_timer *t)
{
    struct ps_driver *d = PS_CONTAINER(t, struct ps_driver, tls.check_timer);
    struct daemon_conn *c;
    unsigned checked = 0;

    if (d->is_closing) {
        return;
    }
    while ((c = ps_map_next(d->conns, &d->tls.checked_to)) != NULL) {
        if (c->tls_generation == d->tls.generation) {
            continue;
        }
        check_conn(c);
        if (++checked == CHECKS_MAX) {
            ps_loop_timer_set(d->opt.loop, t, ps_loop_now(d->opt.loop));
            return;
        }
    }
}

void ps_driver_set_tls(struct ps_driver *d, struct ps_tls_context *context)
{
    ps_tls_context_unref(d->opt.tls.context);
    d->opt.tls.context = ps_tls_context_ref(context);
    d->tls.generation++;
    d->tls.checked_to = (struct ps_map_cursor){0};
    ps_loop_timer_set(d->opt.loop, &d->tls.check_timer,
                      ps_loop_now(d->opt.loop));
}

void ps_driver_report_certificate(struct ps_driver *d,
                                  const struct ps_certificate_end *end)
{
    struct ps_event ev = {.type = PS_EV_CERTIFICATE, .certificate = *end};

    driver_feed(d, &ev);
}

/* ------------------------------------------------------------------- expiry */

/* Sets the timer to the next end, or to the next look at the clock. */
static void watch_expiry(struct ps_driver *d, int64_t expires_at, int64_t now)
{
    const int64_t left = expires_at - now;
    const int64_t wait = left < 0 ? 0 : left < CLOCK_MAX ? left : CLOCK_MAX;

    d->tls.expires_at = expires_at;
    /* A certificate ends with its last second. */
    ps_loop_timer_set(d->opt.loop, &d->tls.expiry_timer,
                      expires_at == 0
                          ? PS_TIME_NEVER
                          : ps_time_add(ps_loop_now(d->opt.loop),
                                        PS_SECONDS((ps_time)wait + 1)));
}

static void cut_expired(struct daemon_conn *c)
{
    struct ps_str why = PS_STR_ROOM(PS_TLS_WHY_MAX);
    ps_str_add(&why, "its certificate has expired (");
    ps_identity_add_uri(&why, ps_tls_session_peer(ps_conn_session(c->conn)));
    ps_str_add(&why, ")");
    driver_reject(c, PS_E_PERM, why.data);
}

static void check_expiry(struct ps_loop_timer *t)
{
    struct ps_driver *d = PS_CONTAINER(t, struct ps_driver, tls.expiry_timer);
    const int64_t now = (int64_t)time(NULL);
    struct ps_map_cursor at = {0};
    struct daemon_conn *c;
    int64_t next = 0;

    if (d->is_closing) {
        return;
    }
    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        if (c->expires_at == 0) {
            continue;
        }
        if (c->expires_at <= now) {
            c->expires_at = 0;
            cut_expired(c);
        } else if (next == 0 || c->expires_at < next) {
            next = c->expires_at;
        }
    }
    watch_expiry(d, next, now);
}

void driver_tls_watch(struct daemon_conn *c)
{
    struct ps_driver *d = c->driver;

    c->expires_at = ps_tls_session_peer_expires_at(ps_conn_session(c->conn));
    if (d->tls.expires_at == 0 || c->expires_at < d->tls.expires_at) {
        watch_expiry(d, c->expires_at, (int64_t)time(NULL));
    }
}

/* --------------------------------------------------------------------- life */

void driver_tls_init(struct ps_driver *d)
{
    ps_list_init(&d->tls.accepting);
    d->tls.check_timer.due = check_conns;
    d->tls.expiry_timer.due = check_expiry;
    if (d->opt.tls.context != NULL) {
        (void)ps_tls_context_ref(d->opt.tls.context);
    }
}

void driver_tls_fini(struct ps_driver *d)
{
    ps_tls_context_unref(d->opt.tls.context);
}
