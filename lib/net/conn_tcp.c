/* SPDX-License-Identifier: Apache-2.0 */
#include "net/conn_tcp.h"

#include "net/loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* Bytes out before the first check of the round trip. The handshake's own
 * samples may include a queue. */
#define FAR_CHECK_FIRST (64u * 1024u)
/* Bytes out between two checks of the round trip. */
#define FAR_CHECK_EVERY (4u * 1024u * 1024u)

void conn_tcp_init(struct conn_tcp *t, bool tunes_rcvbuf)
{
    t->tunes_rcvbuf = tunes_rcvbuf;
    t->is_scheduled = true;
    t->next_far_check = FAR_CHECK_FIRST;
    t->unacked_since = PS_TIME_NEVER;
}

void conn_tcp_init_unused(struct conn_tcp *t)
{
    t->next_far_check = UINT64_MAX;
    t->unacked_since = PS_TIME_NEVER;
}

void conn_tcp_received(struct conn_tcp *t, uint64_t n)
{
    if (t->tunes_rcvbuf && n > 0) {
        ps_rcvbuf_tuner_add(ps_loop_rcvbuf_tuner(t->loop), &t->rcvbuf, t->fd,
                            ps_loop_now(t->loop), n);
    }
}

uint64_t conn_tcp_request_slot(struct conn_tcp *t)
{
    return ps_send_scheduler_request(ps_loop_send_scheduler(t->loop),
                                     &t->send_slot, ps_loop_now(t->loop));
}

void conn_tcp_leave(struct conn_tcp *t)
{
    ps_send_scheduler_leave(ps_loop_send_scheduler(t->loop), &t->send_slot);
}

bool conn_tcp_wrote(struct conn_tcp *t, uint64_t done, uint64_t most,
                    bool is_last)
{
    struct ps_send_scheduler *f = ps_loop_send_scheduler(t->loop);
    uint64_t unsent = ps_send_scheduler_unsent_max(f);
    bool more = !ps_send_scheduler_wrote(f, &t->send_slot, ps_loop_now(t->loop),
                                         done, most);

    if (t->unsent_max != unsent && f->count > 1 &&
        (unsent == 0 || unsent < t->unsent_max - t->unsent_max / 4 ||
         unsent > t->unsent_max + t->unsent_max / 4)) {
        int bytes = (int)unsent;

        /* A hint; failure is harmless. */
        (void)setsockopt(t->fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes,
                         sizeof(bytes));
        t->unsent_max = unsent;
    }
    if (is_last) {
        conn_tcp_leave(t);
    }
    return more;
}

void conn_tcp_check_distance(struct conn_tcp *t, uint64_t bytes_out)
{
    if (bytes_out < t->next_far_check) {
        return;
    }
    bool far = ps_tcp_is_far(t->fd);

    t->next_far_check = bytes_out + FAR_CHECK_EVERY;
    if (far && t->is_scheduled) {
        ps_tcp_go_far(t->fd, t->kind);
        conn_tcp_leave(t);
        t->unsent_max = 0;
    }
    t->is_scheduled = !far;
}

bool conn_tcp_is_acked(const struct conn_tcp *t, uint64_t bytes_out)
{
    return t->unacked_since == PS_TIME_NEVER && t->acked_bytes_out == bytes_out;
}

ps_time conn_tcp_unacked(struct conn_tcp *t, uint64_t bytes_out)
{
    ps_time now = ps_loop_now(t->loop);

    t->unacked_since = ps_tcp_unacked_since(t->fd, t->unacked_since, now);
    if (t->unacked_since == PS_TIME_NEVER) {
        t->acked_bytes_out = bytes_out;
        return 0;
    }
    return ps_time_add(now - t->unacked_since, 1);
}
