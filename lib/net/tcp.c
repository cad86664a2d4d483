/* SPDX-License-Identifier: Apache-2.0 */
/* TCP: options by setsockopt(), state by TCP_INFO, receive buffers, turns of
 * writing, and the part that a connection has of them. */
#include "net/tcp.h"

#include "base/num.h"
#include "net/addr.h"
#include "net/loop.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

/* ------------------------------------- options, and the state of the kernel */

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

/* The shortest round trip of a far connection: one that leaves the local
 * network, whose bandwidth-delay product is much larger than the leads of
 * the turns of writing and the queue before the host. */
#define FAR               PS_MILLIS(10)

/* Bytes of the state up to the end of a member; older kernels give fewer. */
#define INFO_TO(member)                                                        \
    (offsetof(struct tcp_info, member) + sizeof(((struct tcp_info *)0)->member))

/* False if the kernel gives less than `least` bytes of the state. */
static bool read_info(int fd, size_t least, struct tcp_info *ret_info)
{
    socklen_t len = sizeof(*ret_info);

    *ret_info = (struct tcp_info){0};
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, ret_info, &len) == 0 &&
           len >= least;
}

/* False also while TCP has no sample of the round trip. */
static bool read_round_trip(int fd, struct tcp_info *ret_info)
{
    return read_info(fd, INFO_TO(tcpi_min_rtt), ret_info) &&
           ret_info->tcpi_min_rtt != UINT32_MAX;
}

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

bool ps_tcp_is_foreign(int fd)
{
    struct sockaddr_storage own = {0};
    struct sockaddr_storage peer = {0};
    socklen_t own_len = sizeof(own);
    socklen_t peer_len = sizeof(peer);

    return getsockname(fd, (struct sockaddr *)&own, &own_len) != 0 ||
           getpeername(fd, (struct sockaddr *)&peer, &peer_len) != 0 ||
           !ps_addr_is_same_host((const struct sockaddr *)&own,
                                 (const struct sockaddr *)&peer);
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
    struct tcp_info info;

    if (!read_info(fd, INFO_TO(tcpi_bytes_retrans), &info)) {
        return false;
    }
    *ret_sent = info.tcpi_bytes_sent;
    *ret_again = info.tcpi_bytes_retrans;
    return true;
}

/* Time since which the peer's host has acknowledged none of the bytes sent,
 * given the result of the last call; PS_TIME_NEVER: nothing is outstanding. */
static ps_time unacked_since(int fd, ps_time before, ps_time now)
{
    struct tcp_info info;
    ps_time acked_at;

    if (!read_info(fd, INFO_TO(tcpi_last_ack_recv), &info) ||
        info.tcpi_unacked == 0) {
        return PS_TIME_NEVER;
    }
    if (before == PS_TIME_NEVER) {
        return now; /* The bytes may have been sent just now. */
    }
    acked_at = PS_MILLIS((uint64_t)info.tcpi_last_ack_recv);
    acked_at = acked_at < now ? now - acked_at : 0;
    return acked_at > before ? acked_at : before;
}

/* ---------------------------------------------------------- receive buffers */

/* Sets SO_RCVBUF from the measured rate, the round trip and the number of
 * active senders. */

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

static void set_rcvbuf(const struct ps_rcvbuf_tuner *f,
                       struct ps_rcvbuf_share *share, int fd)
{
    struct tcp_info info;

    if (!read_round_trip(fd, &info)) {
        return;
    }
    ps_time rtt = ps_min_u64(info.tcpi_min_rtt, 1000 * 1000);

    if (share->buffer == 0 && PS_MICROS(rtt) >= FAR) {
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

/* --------------------------------------------------------- turns of writing */

/* Turns by progress: a slot may write while it is less than a lead ahead of
 * the slot with the least progress. */

/* Lead allowed, as time at the current rate. */
#define LEAD_TIME           PS_MILLIS(3)
#define LEAD_MIN            (64ull * 1024)
#define LEAD_MAX            (4ull * 1024 * 1024)
/* A connection without progress for this long holds up the others no longer,
 * for EXCUSED_TIME. */
#define WAIT_FOR_OTHERS_MAX PS_MILLIS(40)
#define EXCUSED_TIME        PS_SECONDS(1)

void ps_send_scheduler_init(struct ps_send_scheduler *f)
{
    *f = (struct ps_send_scheduler){.count = 0};
    ps_list_init(&f->active);
    ps_list_init(&f->waiting);
}

static uint64_t lead_bytes(const struct ps_send_scheduler *f)
{
    uint64_t lead = f->rate.per_second / (PS_SECONDS(1) / LEAD_TIME);

    return f->rate.per_second == 0
               ? LEAD_MAX
               : ps_min_u64(ps_max_u64(lead, LEAD_MIN), LEAD_MAX);
}

/* Bytes written in one turn: a quarter of the lead, and more on links so fast
 * that calls would cost more than the order gains. */
static uint64_t piece_bytes(const struct ps_send_scheduler *f)
{
    uint64_t lead = lead_bytes(f);

    return ps_max_u64(lead / 4, lead - LEAD_MIN);
}

uint64_t ps_send_scheduler_unsent_max(const struct ps_send_scheduler *f)
{
    return lead_bytes(f) == LEAD_MAX ? 0 : piece_bytes(f);
}

static bool is_waited_for(const struct ps_send_slot *t, ps_time now)
{
    return t->excused_until == 0 &&
           now < ps_time_add(t->moved_at, WAIT_FOR_OTHERS_MAX);
}

/* Least progress among connections that the others wait for; UINT64_MAX: there
 * is none. */
static uint64_t least_progress(struct ps_send_scheduler *f, ps_time now)
{
    uint64_t least = UINT64_MAX;
    bool back = false;

    PS_LIST_EACH_OF(struct ps_send_slot, t, active, &f->active)
    {
        if (is_waited_for(t, now)) {
            least = ps_min_u64(least, t->progress);
        } else if (t->excused_until == 0 && !ps_list_linked(&t->waiting)) {
            t->excused_until = ps_time_add(now, EXCUSED_TIME);
        }
        back |= t->excused_until != 0 && now >= t->excused_until;
    }
    if (!back) {
        return least;
    }
    PS_LIST_EACH_OF(struct ps_send_slot, t, active, &f->active)
    {
        /* An excused connection continues at the progress of the others. */
        if (t->excused_until != 0 && now >= t->excused_until) {
            t->excused_until = 0;
            t->progress = least == UINT64_MAX ? t->progress
                                              : ps_max_u64(t->progress, least);
        }
    }
    return least;
}

static uint64_t bytes_allowed(const struct ps_send_scheduler *f,
                              const struct ps_send_slot *t, uint64_t floor)
{
    uint64_t lead = lead_bytes(f);
    uint64_t piece = piece_bytes(f);

    if (floor == UINT64_MAX || t->progress <= floor) {
        return piece;
    }
    uint64_t ahead = t->progress - floor;

    /* A tiny remainder is not worth a call. */
    return ahead + piece / 2 <= lead ? ps_min_u64(lead - ahead, piece) : 0;
}

static void wait_for_slot(struct ps_send_scheduler *f, struct ps_send_slot *t)
{
    if (!ps_list_linked(&t->waiting)) {
        ps_list_push_back(&f->waiting, &t->waiting);
    }
}

static void become_active(struct ps_send_scheduler *f, struct ps_send_slot *t,
                          ps_time now)
{
    uint64_t floor = least_progress(f, now);

    if (floor != UINT64_MAX) {
        /* Neither idle time nor old progress counts, only recent progress. */
        t->progress = ps_min_u64(ps_max_u64(t->progress, floor),
                                 floor + lead_bytes(f));
    }
    t->moved_at = now;
    t->excused_until = 0;
    ps_list_push_back(&f->active, &t->active);
    f->count++;
}

uint64_t ps_send_scheduler_request(struct ps_send_scheduler *f,
                                   struct ps_send_slot *t, ps_time now)
{
    if (!ps_list_linked(&t->active)) {
        become_active(f, t, now);
    }
    if (ps_list_linked(&t->waiting)) {
        return 0;
    }
    if (f->count == 1) {
        return UINT64_MAX;
    }
    uint64_t allowed = bytes_allowed(f, t, least_progress(f, now));

    if (allowed == 0) {
        wait_for_slot(f, t);
    }
    return allowed;
}

bool ps_send_scheduler_wrote(struct ps_send_scheduler *f,
                             struct ps_send_slot *t, ps_time now,
                             uint64_t bytes, uint64_t most)
{
    (void)ps_rate_meter_add(&f->rate, now, bytes);
    t->progress += bytes;
    if (bytes > 0) {
        t->moved_at = now;
    }
    if (bytes < most) {
        return false;
    }
    wait_for_slot(f, t);
    return true;
}

void ps_send_scheduler_leave(struct ps_send_scheduler *f,
                             struct ps_send_slot *t)
{
    if (ps_list_linked(&t->waiting)) {
        ps_list_remove(&t->waiting);
    }
    if (ps_list_linked(&t->active)) {
        ps_list_remove(&t->active);
        f->count--;
    }
}

void ps_send_scheduler_run(struct ps_send_scheduler *f, ps_time now)
{
    uint64_t floor = least_progress(f, now);
    struct ps_send_slot *next;
    struct ps_list ready;

    /* A connection that waits again waits for the next call. */
    ps_list_init(&ready);
    PS_LIST_EACH_SAFE(struct ps_send_slot, t, waiting, &f->waiting)
    {
        if (f->count == 1 || bytes_allowed(f, t, floor) > 0) {
            ps_list_remove(&t->waiting);
            ps_list_push_back(&ready, &t->waiting);
        }
    }
    while ((next = PS_LIST_POP(struct ps_send_slot, waiting, &ready)) != NULL) {
        next->on_slot(next);
    }
}

ps_time ps_send_scheduler_deadline(struct ps_send_scheduler *f, ps_time now)
{
    ps_time at = PS_TIME_NEVER;

    if (ps_list_empty(&f->waiting)) {
        return PS_TIME_NEVER;
    }
    uint64_t floor = least_progress(f, now);

    PS_LIST_EACH_OF(struct ps_send_slot, t, waiting, &f->waiting)
    {
        if (f->count == 1 || bytes_allowed(f, t, floor) > 0) {
            return now;
        }
    }
    PS_LIST_EACH_OF(const struct ps_send_slot, t, active, &f->active)
    {
        if (is_waited_for(t, now) && t->progress == floor) {
            at = ps_time_min(at, ps_time_add(t->moved_at, WAIT_FOR_OTHERS_MAX));
        }
    }
    return at;
}

/* ----------------------------------------------------- part of a connection */

/* Bytes out before the first check of the round trip. The handshake's own
 * samples may include a queue. */
#define FAR_CHECK_FIRST (64u * 1024u)
/* Bytes out between two checks of the round trip. */
#define FAR_CHECK_EVERY (4u * 1024u * 1024u)

void conn_tcp_init(struct conn_tcp *t, bool tunes_rcvbuf)
{
    t->tunes_rcvbuf = tunes_rcvbuf;
    t->takes_turns = true;
    t->next_far_check = FAR_CHECK_FIRST;
    t->unacked_since = PS_TIME_NEVER;
}

void conn_tcp_init_unused(struct conn_tcp *t)
{
    t->next_far_check = UINT64_MAX;
    t->unacked_since = PS_TIME_NEVER;
}

void conn_tcp_set_urgent(struct conn_tcp *t)
{
    conn_tcp_leave(t);
    t->tunes_rcvbuf = false;
    t->takes_turns = false;
}

void conn_tcp_received(struct conn_tcp *t, uint64_t n)
{
    if (n > 0) {
        ps_rcvbuf_tuner_add(t->shared->rcvbuf_tuner, &t->rcvbuf, t->fd,
                            ps_loop_now(t->loop), n);
    }
}

uint64_t conn_tcp_request_slot(struct conn_tcp *t)
{
    return ps_send_scheduler_request(t->shared->send_scheduler, &t->send_slot,
                                     ps_loop_now(t->loop));
}

void conn_tcp_leave(struct conn_tcp *t)
{
    ps_send_scheduler_leave(t->shared->send_scheduler, &t->send_slot);
}

bool conn_tcp_wrote(struct conn_tcp *t, uint64_t done, uint64_t most,
                    bool is_last)
{
    struct ps_send_scheduler *f = t->shared->send_scheduler;
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
    struct tcp_info info;

    bool far = read_round_trip(t->fd, &info) &&
               PS_MICROS((uint64_t)info.tcpi_min_rtt) >= FAR;

    t->next_far_check = bytes_out + FAR_CHECK_EVERY;
    if (far && !t->is_far) {
        if (t->kind == PS_TCP_BULK) {
            (void)setsockopt(t->fd, IPPROTO_TCP, TCP_CONGESTION, FAR_CONTROL,
                             sizeof(FAR_CONTROL) - 1);
        }
        set_option(t->fd, TCP_NOTSENT_LOWAT, 0); /* The system's default. */
        conn_tcp_leave(t);
        t->unsent_max = 0;
    }
    t->is_far = far;
}

bool conn_tcp_is_acked(const struct conn_tcp *t, uint64_t bytes_out)
{
    return t->unacked_since == PS_TIME_NEVER && t->acked_bytes_out == bytes_out;
}

ps_time conn_tcp_unacked(struct conn_tcp *t, uint64_t bytes_out)
{
    ps_time now = ps_loop_now(t->loop);

    t->unacked_since = unacked_since(t->fd, t->unacked_since, now);
    if (t->unacked_since == PS_TIME_NEVER) {
        t->acked_bytes_out = bytes_out;
        return 0;
    }
    return ps_time_add(now - t->unacked_since, 1);
}
