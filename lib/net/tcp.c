/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/socket.h>

/* Of Linux 6.15; headers may be older than the kernel. */
#define RTO_MAX_MS        44
#define RTO_MIN_US        45

/* The longest time until TCP tries again. Above any round trip, or all would
 * be sent twice. */
#define BULK_RTO_MAX_MS   2000
#define LEASES_RTO_MAX_MS 1000
/* The shortest. A delayed acknowledgement comes after 40 ms. */
#define LEASES_RTO_MIN_US 60000

static void wish(int fd, int option, int value)
{
    (void)setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
}

void ps_tcp_prepare(int fd, enum ps_tcp_kind kind)
{
    wish(fd, TCP_NODELAY, 1);
    switch (kind) {
    case PS_TCP_OTHER:
        break;
    case PS_TCP_BULK:
        wish(fd, RTO_MAX_MS, BULK_RTO_MAX_MS);
        break;
    case PS_TCP_LEASES:
        /* Six tries without doubling, and one duplicate acknowledgement is
         * enough to send again. */
        wish(fd, TCP_THIN_LINEAR_TIMEOUTS, 1);
        wish(fd, TCP_THIN_DUPACK, 1);
        wish(fd, RTO_MIN_US, LEASES_RTO_MIN_US);
        wish(fd, RTO_MAX_MS, LEASES_RTO_MAX_MS);
        break;
    }
}

ps_time ps_tcp_unacked_since(int fd, ps_time before, ps_time now)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    ps_time heard;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
        len < offsetof(struct tcp_info, tcpi_pmtu) || info.tcpi_unacked == 0) {
        return PS_TIME_NEVER;
    }
    if (before == PS_TIME_NEVER) {
        return now; /* It may have been sent just now. */
    }
    heard = PS_MILLIS((uint64_t)info.tcpi_last_ack_recv);
    heard = heard < now ? now - heard : 0;
    return heard > before ? heard : before;
}
