/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics for the log, for status and for the end of the daemon. */
#include "driver/inner.h"

#include "base/map.h"
#include "crypto/tls_session.h"

void driver_add_stats(struct ps_driver_stats *sum, const struct ps_conn *conn)
{
    struct ps_conn_stats s;

    ps_conn_stats(conn, &s);
    sum->bytes_in += s.bytes_in;
    sum->bytes_out += s.bytes_out;
    sum->copied += s.copied;
    sum->by_reference += s.by_reference;
    sum->moved_by_pool += s.moved_by_pool;
    sum->reads += s.reads;
    sum->writes += s.writes;
}

static uint64_t add_queued(const struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    const struct daemon_conn *c;
    uint64_t sum = 0;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        sum += ps_conn_queued(c->conn);
    }
    return sum;
}

bool ps_driver_is_quiet(const struct ps_driver *d)
{
    return d->computing == 0 && add_queued(d) == 0;
}

void ps_driver_stats(const struct ps_driver *d, struct ps_driver_stats *ret)
{
    struct ps_map_cursor at = {0};
    const struct daemon_conn *c;
    struct ps_driver_stats s = d->closed_stats;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        driver_add_stats(&s, c->conn);
    }
    s.connections = (uint32_t)ps_map_count(d->conns);
    s.pre_handshake = d->pre_handshake.count;
    s.paused = d->paused.count;
    s.computing = d->computing;
    s.queued = add_queued(d);
    s.output = d->output.total.cost[PS_COST_OUTPUT].used;
    *ret = s;
}

void ps_driver_dump(const struct ps_driver *d)
{
    static const char *const kinds[] = {
        [PS_CONN_DIALLED] = "dialled",
        [PS_CONN_ACCEPTED] = "accepted",
        [PS_CONN_LOCAL] = "local",
    };
    struct ps_map_cursor at = {0};
    const struct daemon_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        const struct ps_tls_session *session = ps_conn_session(c->conn);
        struct ps_conn_stats s;

        ps_conn_stats(c->conn, &s);
        ps_log(PS_LOG_NOTICE,
               "state connection peer=%s kind=%s handshake_done=%d paused=%d "
               "queued=%llu in=%llu out=%llu cipher=%s",
               ps_conn_peer(c->conn), kinds[c->kind],
               ps_conn_is_handshake_done(c->conn), ps_conn_is_paused(c->conn),
               (unsigned long long)ps_conn_queued(c->conn),
               (unsigned long long)s.bytes_in, (unsigned long long)s.bytes_out,
               session != NULL ? ps_tls_session_cipher(session) : "none");
    }
}
