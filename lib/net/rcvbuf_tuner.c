/* SPDX-License-Identifier: Apache-2.0 */
/* Sets SO_RCVBUF from the measured rate, the round trip and the number of
 * active senders. */
#include "net/rcvbuf_tuner.h"

#include "base/num.h"
#include "net/tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* Queueing time that all senders together may cause before the host. */
#define QUEUE_TIME    PS_MILLIS(8)
#define SHARE_MIN     (32u * 1024u)
#define SEGMENTS_MIN  16u
/* Larger shares are left to the system, unless one was set before. */
#define SHARE_MAX     (192u * 1024u)
/* Least bytes of a read that count a connection as active. Heartbeats and
 * acknowledgements come now and then, and would change the shares each time. */
#define BULK_MIN      1024u
/* Intervals after which the estimate of senders falls by one. */
#define SENDERS_DECAY 16u
/* Bytes per second. A lower rate says nothing about the link's capacity. */
#define RATE_MIN      (6ull * 1024 * 1024)

static bool read_tcp_info(int fd, struct tcp_info *info)
{
    socklen_t len = sizeof(*info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0 &&
           len >= offsetof(struct tcp_info, tcpi_min_rtt) +
                      sizeof(info->tcpi_min_rtt) &&
           info->tcpi_min_rtt != UINT32_MAX;
}

static void set_rcvbuf(const struct ps_rcvbuf_tuner *f,
                       struct ps_rcvbuf_share *share, int fd)
{
    struct tcp_info info = {0};

    if (!read_tcp_info(fd, &info)) {
        return;
    }
    ps_time rtt = ps_min_u64(info.tcpi_min_rtt, 1000 * 1000);

    if (share->buffer == 0 && PS_MICROS(rtt) >= PS_TCP_FAR) {
        /* On a far connection the bytes in flight are much more than a
         * queue. */
        return;
    }
    uint64_t time = QUEUE_TIME / PS_MICROS(1) + 2 * rtt;
    uint64_t all = f->rate.per_second / 1000 * time / 1000;
    /* A window of few segments stalls. */
    uint64_t least = ps_max_u64(SHARE_MIN,
                                SEGMENTS_MIN * (uint64_t)info.tcpi_advmss);
    uint64_t share_bytes = ps_max_u64(all / f->active_estimate, least);

    if (share->buffer == 0
            ? share_bytes > SHARE_MAX
            : share_bytes > share->buffer - share->buffer / 4 &&
                  share_bytes < share->buffer + share->buffer / 4) {
        return;
    }
    int buffer = (int)ps_min_u64(share_bytes, 64u * 1024u * 1024u);

    /* A hint: the kernel caps it. */
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) == 0) {
        share->buffer = (uint32_t)buffer;
    }
}

void ps_rcvbuf_tuner_add(struct ps_rcvbuf_tuner *f,
                         struct ps_rcvbuf_share *share, int fd, ps_time now,
                         uint64_t bytes)
{
    if (f->interval == 0) {
        f->interval = 1;
    }
    if (share->interval != f->interval && bytes >= BULK_MIN) {
        share->interval = f->interval;
        f->active++;
        if ((f->active_estimate > 1 || share->buffer != 0) &&
            f->rate.per_second >= RATE_MIN) {
            set_rcvbuf(f, share, fd);
        }
    }
    if (ps_rate_meter_add(&f->rate, now, bytes)) {
        f->interval++;
        /* With many senders, not all have bytes in each interval. */
        if (f->active >= f->active_estimate) {
            f->active_estimate = f->active;
        } else if (f->interval % SENDERS_DECAY == 0 && f->active_estimate > 1) {
            f->active_estimate--; /* Control frames alone keep the last one. */
        }
        f->active = 0;
    }
}
