/* SPDX-License-Identifier: Apache-2.0 */
/* TCP options by setsockopt(), and state by TCP_INFO. */
#include "net/tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

/* New in Linux 6.15; the headers may be older than the kernel. */
#define RTO_MAX_MS        44
#define RTO_MIN_US        45

/* Longest retransmission time-out; the kernel allows no less. It bounds the
 * silence of a server whose replies were lost, because only agents dial. A
 * round trip longer than that, through a queue of seconds, costs one segment
 * sent twice per round trip; the rate stays. */
#define BULK_RTO_MAX_MS   1000
#define LEASES_RTO_MAX_MS 1000
/* Shortest retransmission time-out. A delayed acknowledgement comes after 40
 * ms. */
#define LEASES_RTO_MIN_US 60000

/* Congestion control of far connections, if the system allows it: one that
 * takes each loss for congestion reaches less than a megabyte a second at 0.1 %
 * loss and a round trip of 100 ms. */
#define FAR_CONTROL       "bbr"

static void set_option(int fd, int option, int value)
{
    (void)setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
}

void ps_tcp_prepare(int fd, enum ps_tcp_kind kind)
{
    set_option(fd, TCP_NODELAY, 1);
    switch (kind) {
    case PS_TCP_OTHER:
        break;
    case PS_TCP_BULK:
    case PS_TCP_BULK_SYSTEM:
        set_option(fd, RTO_MAX_MS, BULK_RTO_MAX_MS);
        break;
    case PS_TCP_LEASES:
        /* Six linear retries without doubling; one duplicate acknowledgement
         * triggers a retransmission. */
        set_option(fd, TCP_THIN_LINEAR_TIMEOUTS, 1);
        set_option(fd, TCP_THIN_DUPACK, 1);
        set_option(fd, RTO_MIN_US, LEASES_RTO_MIN_US);
        set_option(fd, RTO_MAX_MS, LEASES_RTO_MAX_MS);
        break;
    }
}

bool ps_tcp_is_far(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
           len >= offsetof(struct tcp_info, tcpi_min_rtt) +
                      sizeof(info.tcpi_min_rtt) &&
           info.tcpi_min_rtt != UINT32_MAX &&
           PS_MICROS((uint64_t)info.tcpi_min_rtt) >= PS_TCP_FAR;
}

bool ps_tcp_slows_on_loss(int fd)
{
    char name[16] = ""; /* TCP_CA_NAME_MAX */
    socklen_t len = sizeof(name) - 1;

    return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) != 0 ||
           strcmp(name, FAR_CONTROL) != 0;
}

bool ps_tcp_sent(int fd, uint64_t *ret_sent, uint64_t *ret_again)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
        len < offsetof(struct tcp_info, tcpi_bytes_retrans) +
                  sizeof(info.tcpi_bytes_retrans)) {
        return false;
    }
    *ret_sent = info.tcpi_bytes_sent;
    *ret_again = info.tcpi_bytes_retrans;
    return true;
}

void ps_tcp_go_far(int fd, enum ps_tcp_kind kind)
{
    if (kind == PS_TCP_BULK) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, FAR_CONTROL,
                         sizeof(FAR_CONTROL) - 1);
    }
    set_option(fd, TCP_NOTSENT_LOWAT, 0); /* The system's default. */
}

ps_time ps_tcp_unacked_since(int fd, ps_time before, ps_time now)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    ps_time acked_at;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
        len < offsetof(struct tcp_info, tcpi_pmtu) || info.tcpi_unacked == 0) {
        return PS_TIME_NEVER;
    }
    if (before == PS_TIME_NEVER) {
        return now; /* The bytes may have been sent just now. */
    }
    acked_at = PS_MILLIS((uint64_t)info.tcpi_last_ack_recv);
    acked_at = acked_at < now ? now - acked_at : 0;
    return acked_at > before ? acked_at : before;
}
