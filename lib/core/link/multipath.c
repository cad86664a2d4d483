/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of a connection, records of subflows, and their handshake: the side
 * that dialled the main connection dials the subflows, the other side joins
 * them to the link, and each may close at any time. */
#include "core/link/multipath.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/link/path_inner.h"

#include <assert.h>

#define PAYLOAD_MIN_DEFAULT (16u * 1024u)
#define LATE_MIN_DEFAULT    (64u * 1024u)
#define DIAL_WAIT_MAX       PS_SECONDS(5)

struct ps_path_record {
    uint64_t seq;
    struct ps_packet *packet; /* Owned reference. */
};

void ps_multipath_init(struct ps_multipath *mp,
                       const struct ps_multipath_options *opt)
{
    *mp = (struct ps_multipath){.opt = *opt, .deadline = PS_TIME_NEVER};
    if (mp->opt.payload_min == 0) {
        mp->opt.payload_min = PAYLOAD_MIN_DEFAULT;
    }
    if (mp->opt.late_min == 0) {
        mp->opt.late_min = LATE_MIN_DEFAULT;
    }
    ps_list_init(&mp->links);
}

/* ------------------------------------------------------- records of a path */

static void record_push(struct ps_path *p, uint64_t seq,
                        struct ps_packet *packet)
{
    if (p->record_count == p->record_capacity) {
        uint32_t capacity = p->record_capacity > 0 ? 2 * p->record_capacity
                                                   : 16;
        struct ps_path_record *more = ps_calloc(capacity, sizeof(*more));

        for (uint32_t i = 0; i < p->record_count; i++) {
            more[i] = p->records[(p->record_first + i) % p->record_capacity];
        }
        ps_free(p->records);
        p->records = more;
        p->record_capacity = capacity;
        p->record_first = 0;
    }
    p->records[(p->record_first + p->record_count) % p->record_capacity] =
        (struct ps_path_record){.seq = seq, .packet = ps_packet_ref(packet)};
    p->record_count++;
}

/* Removes the oldest record; the caller owns its reference. */
static struct ps_path_record record_pop(struct ps_path *p)
{
    struct ps_path_record r = p->records[p->record_first];

    assert(p->record_count > 0);
    p->record_first = (p->record_first + 1) % p->record_capacity;
    p->record_count--;
    return r;
}

/* ------------------------------------------------------------------- frames */

/* Chooses by rule L17. */
static struct ps_path *choose_path(struct ps_path_link *link,
                                   const struct ps_msg *msg,
                                   struct ps_packet *packet)
{
    struct ps_path *best = link->main;

    PS_LIST_EACH(n, &link->paths)
    {
        struct ps_path *p = PS_CONTAINER(n, struct ps_path, node);

        if (p->state == PS_PATH_READY &&
            (p->queued < best->queued ||
             (p->queued == best->queued &&
              p->payload_given < best->payload_given))) {
            best = p;
        }
    }
    if (best != link->main) {
        record_push(best, msg->seq, packet);
    }
    return best;
}

/* Releases the records of acknowledged frames. */
static void release_acked(struct ps_path_link *link)
{
    PS_LIST_EACH(n, &link->paths)
    {
        struct ps_path *p = PS_CONTAINER(n, struct ps_path, node);

        while (p->record_count > 0 &&
               p->records[p->record_first].seq <= link->acked) {
            ps_packet_unref(record_pop(p).packet);
        }
    }
}

/* Frames of several connections arrive in parallel: a late duplicate could
 * write to memory of the machine while that holds the next payload. */
static void replace_payload(struct ps_path *p, struct ps_slice *slice)
{
    const uint64_t len = slice->len;

    (void)p;
    ps_buf_unref(slice->buf);
    *slice = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
}

static uint64_t queued_on_all(const struct ps_path_link *link)
{
    uint64_t queued = 0;

    PS_LIST_EACH(n, &link->paths)
    {
        queued += PS_CONTAINER(n, const struct ps_path, node)->queued;
    }
    return queued;
}

const struct ps_path_kind ps_multipath_kind = {
    .choose = choose_path,
    .on_acked = release_acked,
    .borrow = replace_payload,
    .queued = queued_on_all,
};

void ps_multipath_resend(struct ps_path *p, struct ps_effects *fx)
{
    while (p->record_count > 0) {
        struct ps_path_record lost = record_pop(p);

        ps_effects_send(fx, p->link->main->id, lost.seq, p->link->ack,
                        lost.packet);
    }
}

void ps_multipath_drop_records(struct ps_path *p)
{
    while (p->record_count > 0) {
        ps_packet_unref(record_pop(p).packet);
    }
    ps_free(p->records);
    p->records = NULL;
    p->record_capacity = 0;
}

/* ---------------------------------------------------------------- handshake */

void ps_multipath_check_later(struct ps_path_link *link, bool failed,
                              ps_time now)
{
    if (link->address == NULL) {
        return;
    }
    link->dial_at = now;
    if (failed) {
        link->dial_at = ps_time_add(now, link->dial_wait);
        link->dial_wait = ps_time_min(link->dial_wait * 2, DIAL_WAIT_MAX);
    }
    link->multipath->deadline = ps_time_min(link->multipath->deadline,
                                            link->dial_at);
}

/* Link that a hello names; NULL: there is none, or it has the maximum of
 * connections. */
static struct ps_path_link *find_link(const struct ps_multipath *mp,
                                      const struct ps_msg_hello *m)
{
    PS_LIST_EACH(n, &mp->links)
    {
        struct ps_path_link *link = PS_CONTAINER(n, struct ps_path_link, node);

        if (link->is_welcomed && !link->is_ending &&
            link->session == m->session && link->instance == m->instance &&
            link->peer_node == m->node) {
            return link->path_count < PS_LINK_CONNECTIONS_MAX ? link : NULL;
        }
    }
    return NULL;
}

/* True if both connections lead to the same peer, as far as certificates
 * prove. */
static bool is_same_peer(const struct ps_path *a, const struct ps_path *b)
{
    static const struct ps_peer_identity none;

    return ps_peer_is_same(a->peer != NULL ? a->peer : &none,
                           b->peer != NULL ? b->peer : &none);
}

enum ps_path_verdict ps_multipath_accept_join(struct ps_path *p,
                                              const struct ps_msg_hello *m,
                                              struct ps_effects *fx)
{
    const struct ps_msg welcome = {
        .code = PS_MSG_WELCOME,
        .welcome = {.protocol = m->protocol < PS_PROTOCOL
                                    ? m->protocol
                                    : (uint16_t)PS_PROTOCOL,
                    .name = "",
                    .resumed = true,
                    .features = PS_FEATURE_SUBFLOW}};
    const struct ps_multipath *mp = p->link->multipath;
    struct ps_path_link *link = NULL;

    if (mp->opt.self == PS_ROLE_SERVER && m->protocol >= PS_PROTOCOL_LEAST &&
        m->session != 0 && !p->link->is_welcomed) {
        link = find_link(mp, m);
    }
    if (link != NULL && !is_same_peer(p, link->main)) {
        ps_effects_abort(fx, p->id, PS_E_PERM,
                         "wants to join the link of another peer's "
                         "certificate");
        return PS_PATH_DROP;
    }
    if (link == NULL) {
        ps_effects_abort(fx, p->id, PS_E_STALE,
                         "wants to join a link that is not there");
        return PS_PATH_DROP;
    }
    struct ps_path_link *own = p->link;

    ps_path_leave(p);
    ps_path_link_free(own);
    ps_path_join_link(link, p);
    ps_path_set_state(p, PS_PATH_READY);
    p->payload_given = link->main->payload_given;
    ps_effects_send_msg(fx, p->id, &welcome);
    return PS_PATH_JOINED;
}

bool ps_path_join(struct ps_path *p, ps_conn_id id, struct ps_path *main,
                  struct ps_effects *fx)
{
    struct ps_path_link *link = main->link;
    struct ps_msg hello;

    if (link == NULL || link->is_ending) {
        return false;
    }
    link->dials--;
    ps_path_init_subflow(p, id, link);
    hello = *link->hello->msg;
    hello.hello.features |= PS_FEATURE_SUBFLOW;
    ps_effects_send_msg(fx, id, &hello);
    return true;
}

enum ps_path_verdict ps_multipath_receive(struct ps_path *p,
                                          const struct ps_msg *msg,
                                          struct ps_effects *fx)
{
    struct ps_path_link *link = p->link;

    if (msg->code == PS_MSG_WELCOME && p->state == PS_PATH_JOINING) {
        ps_path_set_state(p, PS_PATH_READY);
        link->dial_wait = PS_PATH_DIAL_WAIT;
        /* Starts level with the others. */
        p->payload_given = link->main->payload_given;
        return PS_PATH_DROP;
    }
    if (msg->seq == 0) {
        ps_effects_abort(fx, p->id, PS_E_PROTO,
                         "a frame without a number on a subflow");
        return PS_PATH_DROP;
    }
    ps_path_accept_ack(link, msg->ack);
    return PS_PATH_DELIVER;
}

/* ----------------------------------------------------- number of connections */

/* Number of connections that the link should have. */
static uint32_t connections_wanted(const struct ps_path_link *link)
{
    const struct ps_multipath *mp = link->multipath;
    uint64_t each;

    if (mp->opt.connections != 0) {
        return mp->opt.connections;
    }
    each = ((uint64_t)mp->io_threads + mp->dialled_links - 1) /
           mp->dialled_links;
    return (uint32_t)ps_max_u64(ps_max_u64(1, each), link->losses.subflows);
}

static void dial_missing(struct ps_path_link *link, ps_time now,
                         struct ps_effects *fx)
{
    uint32_t wanted = connections_wanted(link);

    link->dial_at = PS_TIME_NEVER;
    if (link->is_ending || link->path_count + link->dials >= wanted) {
        return;
    }
    link->kind = &ps_multipath_kind;
    if (link->main->borrows_payload) {
        /* No payload may be in memory of the machine when subflows begin. */
        ps_multipath_check_later(link, true, now);
        return;
    }
    while (link->path_count + link->dials < wanted) {
        link->dials++;
        ps_effects_dial_subflow(fx, link->main->id, link->address);
    }
}

void ps_multipath_tick(struct ps_multipath *mp, ps_time now,
                       struct ps_effects *fx)
{
    if (mp->deadline > now) {
        return;
    }
    mp->deadline = PS_TIME_NEVER;
    PS_LIST_EACH(n, &mp->links)
    {
        struct ps_path_link *link = PS_CONTAINER(n, struct ps_path_link, node);

        if (link->dial_at <= now) {
            dial_missing(link, now, fx);
        }
        mp->deadline = ps_time_min(mp->deadline, link->dial_at);
    }
}

void ps_multipath_set_threads(struct ps_multipath *mp, uint32_t threads,
                              ps_time now)
{
    mp->io_threads = threads;
    PS_LIST_EACH(n, &mp->links)
    {
        struct ps_path_link *link = PS_CONTAINER(n, struct ps_path_link, node);

        if (link->is_welcomed && mp->opt.connections == 0) {
            ps_multipath_check_later(link, false, now);
        }
    }
}

void ps_path_dial_failed(struct ps_path *main, ps_time now)
{
    if (main->link != NULL) {
        main->link->dials--;
        ps_multipath_check_later(main->link, true, now);
    }
}

bool ps_path_on_unacked(struct ps_path *p, ps_time time, struct ps_effects *fx)
{
    p->unacked_for = time;
    if (time < PS_PATH_UNACKED_MAX) {
        return false;
    }
    if (ps_path_is_subflow(p) && p->link->main->unacked_for == 0) {
        /* The main connection works and takes over its frames. */
        ps_effects_abort(fx, p->id, PS_E_TIMEOUT,
                         "its host acknowledges nothing of what is sent");
    }
    return p->state == PS_PATH_MAIN;
}

void ps_path_on_losses(struct ps_path *p, const struct ps_path_losses *counters,
                       ps_time now)
{
    struct ps_path_link *link = p->link;
    struct ps_path_losses old = p->losses;

    p->losses = *counters;
    if (link != NULL && link->address != NULL && link->is_welcomed &&
        link->multipath->opt.connections == 0 &&
        ps_losses_add(&link->losses, now, counters->sent - old.sent,
                      counters->retransmitted - old.retransmitted,
                      counters->slows_on_loss)) {
        ps_multipath_check_later(link, false, now);
    }
}
