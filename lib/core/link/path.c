/* SPDX-License-Identifier: Apache-2.0 */
/* Life of the connections of a link, and their frames. Those of the main
 * connection are not recorded: when it is closed, the link is resumed on another
 * one and sends them again. The side that dialled the main connection dials the
 * subflows, the other side joins them to the link, and each may close at any
 * time. */
#include "core/link/path.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/num.h"
#include "base/state_table.h"

#include <assert.h>

#define PAYLOAD_MIN_DEFAULT (16u * 1024u)
#define LATE_MIN_DEFAULT    (64u * 1024u)
/* First wait before a subflow is dialled again; doubles with each failure. */
#define DIAL_WAIT           PS_MILLIS(100)
#define DIAL_WAIT_MAX       PS_SECONDS(5)

struct ps_path_record {
    uint64_t seq;
    struct ps_packet *packet; /* Owned reference. */
};

struct ps_path_link {
    struct ps_list_node node; /* In the links of `multipath`. */
    struct ps_multipath *multipath;
    bool has_subflows; /* Now, or from now on. */
    struct ps_path *main;
    struct ps_list paths; /* The main one first. */
    uint32_t path_count;
    uint64_t seq_max;  /* Highest number sent so far. */
    uint64_t acked;    /* Highest number acknowledged by the peer. */
    uint64_t ack;      /* Highest acknowledgement sent to the peer. */
    uint64_t ack_sent; /* Latest acknowledgement that left without delay. */
    /* Identity, from the hello of an accepted peer. */
    uint32_t peer_node;
    uint64_t instance;
    uint64_t session;
    bool is_welcomed; /* Handshake complete; the server allows subflows. */
    bool is_ending;   /* The main connection was asked to close. */
    /* Dialling side. */
    char *address;           /* NULL: no subflows are dialled. */
    struct ps_packet *hello; /* Owned reference; NULL: not sent yet. */
    uint32_t dials;          /* Dials in progress. */
    ps_time dial_at;         /* When to check whether subflows are missing. */
    ps_time dial_wait;
    struct ps_losses losses; /* Losses of all connections. */
};

/* ------------------------------------------------------------------ states */

static const uint32_t path_successors[] = {
    [PS_PATH_CLOSED] = 0,
    /* READY: an accepted connection has joined another link. */
    [PS_PATH_MAIN] = PS_STATE_BIT(PS_PATH_READY) | PS_STATE_BIT(PS_PATH_CLOSED),
    [PS_PATH_JOINING] = PS_STATE_BIT(PS_PATH_READY) |
                        PS_STATE_BIT(PS_PATH_CLOSED),
    [PS_PATH_READY] = PS_STATE_BIT(PS_PATH_CLOSED),
};

/* A connection of a link, as its driver sees it. */
static const struct ps_state_table path_states = {
    .name = "path",
    .count = sizeof(path_successors) / sizeof(path_successors[0]),
    .allowed = path_successors,
};

static void path_set_state(struct ps_path *p, enum ps_path_state to)
{
    ps_state_change(&path_states, &p->state, (uint8_t)to);
}

/* ------------------------------------------------------------------ losses */

/* Counts consecutive intervals with losses, and multiplies the connections when
 * there are enough. */

/* Least time and bytes of an interval. */
#define LOOK_TIME    PS_SECONDS(1)
#define LOOK_BYTES   (1024u * 1024u)
/* Divisor: an interval is lossy if this part of its bytes, or more, was
 * retransmitted. */
#define SHARE        2000u
/* Consecutive lossy intervals that make a link lossy: a queue that overflows
 * while a connection finds its rate affects only one. */
#define LOOKS        3u
#define GROWTH       4u
/* Limit on connections where losses do not reduce the rate. */
#define UNHEEDED_MAX 4u

bool ps_losses_add(struct ps_losses *l, ps_time now, uint64_t sent,
                   uint64_t again, bool heeded)
{
    const uint32_t most = heeded ? PS_LINK_CONNECTIONS_MAX : UNHEEDED_MAX;

    l->sent += sent;
    l->retransmitted += again;
    if (l->sent < LOOK_BYTES || now < ps_time_add(l->since, LOOK_TIME)) {
        return false;
    }
    l->lossy_intervals = l->retransmitted >= l->sent / SHARE
                             ? l->lossy_intervals + 1
                             : 0;
    l->sent = 0;
    l->retransmitted = 0;
    l->since = now;
    if (l->lossy_intervals < LOOKS || l->subflows >= most) {
        return false;
    }
    l->lossy_intervals = 0;
    l->subflows = (uint32_t)ps_min_u64(
        l->subflows == 0 ? GROWTH : (uint64_t)l->subflows * GROWTH, most);
    return true;
}

/* ----------------------------------------------------------------- records */

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

/* Sends the unacknowledged frames of a subflow again, on the main connection. */
static void path_resend_records(struct ps_path *p, struct ps_effects *fx)
{
    while (p->record_count > 0) {
        struct ps_path_record lost = record_pop(p);

        ps_effects_send(fx, p->link->main->id, lost.seq, p->link->ack,
                        lost.packet);
    }
}

static void path_drop_records(struct ps_path *p)
{
    while (p->record_count > 0) {
        ps_packet_unref(record_pop(p).packet);
    }
    ps_free(p->records);
    p->records = NULL;
    p->record_capacity = 0;
}

/* ------------------------------------------- frames of several connections */

/* Rule L17: chooses the connection of a large frame that is sent for the first
 * time. */
static struct ps_path *choose_path(struct ps_path_link *link,
                                   const struct ps_msg *msg,
                                   struct ps_packet *packet)
{
    struct ps_path *best = link->main;

    PS_LIST_EACH_OF(struct ps_path, p, node, &link->paths)
    {
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

/* Accepts an acknowledgement, and releases the records of the frames. Any value
 * is allowed: the peer chose it. */
static void path_link_accept_ack(struct ps_path_link *link, uint64_t ack)
{
    if (ack <= link->acked || ack > link->seq_max) {
        return;
    }
    link->acked = ack;
    PS_LIST_EACH_OF(struct ps_path, p, node, &link->paths)
    {
        while (p->record_count > 0 &&
               p->records[p->record_first].seq <= link->acked) {
            ps_packet_unref(record_pop(p).packet);
        }
    }
}

/* -------------------------------------------------------------------- life */

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

static void link_add_path(struct ps_path_link *link, struct ps_path *p)
{
    p->link = link;
    ps_list_push_back(&link->paths, &p->node);
    link->path_count++;
}

/* Makes `p` a connection of the link, which becomes one of several. */
static void path_join_link(struct ps_path_link *link, struct ps_path *p)
{
    link_add_path(link, p);
    link->has_subflows = true;
}

/* `p` is the connection of a dialled subflow of the link. */
static void path_init_subflow(struct ps_path *p, ps_conn_id id,
                              struct ps_path_link *link)
{
    *p = (struct ps_path){.id = id};
    p->state = PS_PATH_JOINING;
    path_join_link(link, p);
}

/* `p` has no link and no records any more. */
static void path_leave(struct ps_path *p)
{
    struct ps_path_link *link = p->link;

    path_drop_records(p);
    ps_list_remove(&p->node);
    link->path_count--;
    if (link->path_count == 1 && link->address == NULL) {
        link->has_subflows = false; /* The peer may dial more. */
    }
    p->link = NULL;
}

static void path_link_free(struct ps_path_link *link)
{
    assert(link->path_count == 0);
    link->multipath->dialled_links -= link->address != NULL;
    ps_list_remove(&link->node);
    ps_packet_unref(link->hello);
    ps_free(link->address);
    ps_free(link);
}

void ps_path_open(struct ps_path *p, struct ps_multipath *mp, ps_conn_id id,
                  const char *address)
{
    struct ps_path_link *link = ps_calloc(1, sizeof(*link));

    *p = (struct ps_path){.id = id};
    p->state = PS_PATH_MAIN;
    ps_list_init(&link->paths);
    link_add_path(link, p);
    link->main = p;
    link->multipath = mp;
    link->dial_at = PS_TIME_NEVER;
    link->dial_wait = DIAL_WAIT;
    if (address != NULL && mp->opt.connections != 1) {
        link->address = ps_strdup(address);
        link->has_subflows = mp->opt.connections > 1;
    }
    mp->dialled_links += link->address != NULL;
    ps_list_push_front(&mp->links, &link->node);
}

void ps_path_fini(struct ps_path *p)
{
    struct ps_path_link *link = p->link;
    struct ps_path *one;

    if (link == NULL) {
        return;
    }
    if (p->state != PS_PATH_MAIN) {
        path_leave(p);
        path_set_state(p, PS_PATH_CLOSED);
        return;
    }
    while ((one = PS_LIST_FIRST(struct ps_path, node, &link->paths)) != NULL) {
        path_leave(one);
        path_set_state(one, PS_PATH_CLOSED);
    }
    path_link_free(link);
}

void ps_path_finish(struct ps_path *p, struct ps_effects *fx)
{
    if (p->state != PS_PATH_MAIN || p->link->is_ending) {
        return;
    }
    p->link->is_ending = true;
    PS_LIST_EACH_OF(const struct ps_path, one, node, &p->link->paths)
    {
        if (one != p) {
            ps_effects_close(fx, one->id);
        }
    }
}

/* Checks at once, or after a wait, whether subflows are missing. */
static void path_link_check_later(struct ps_path_link *link, bool failed,
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

bool ps_path_closed(struct ps_path *p, ps_time now, struct ps_effects *fx)
{
    struct ps_path_link *link = p->link;
    bool is_main = p->state == PS_PATH_MAIN;

    if (link == NULL) {
        return false;
    }
    if (is_main) {
        PS_LIST_EACH_OF(const struct ps_path, one, node, &link->paths)
        {
            if (one != p) {
                ps_effects_abort(fx, one->id, PS_E_CLOSED,
                                 "its link has lost the main connection");
            }
        }
    } else if (!link->is_ending) {
        path_resend_records(p, fx);
        path_link_check_later(link, true, now);
    }
    ps_path_fini(p);
    return is_main;
}

ps_conn_id ps_path_machine_conn(const struct ps_path *p)
{
    return p->link != NULL ? p->link->main->id : 0;
}

/* ----------------------------------------------------------------- sending */

struct ps_path_choice ps_path_choose(struct ps_path *main, struct ps_msg *msg,
                                     struct ps_packet *packet)
{
    struct ps_path_link *link = main->link;
    struct ps_path_choice choice = {.path = main};

    if (main->state != PS_PATH_MAIN) {
        return choice; /* Handshake of the path itself. */
    }
    if (msg->code == PS_MSG_HELLO && link->address != NULL) {
        ps_packet_unref(link->hello);
        link->hello = ps_packet_ref(packet);
    }
    if (msg->code == PS_MSG_WELCOME &&
        link->multipath->opt.self == PS_ROLE_SERVER) {
        msg->welcome.features |= PS_FEATURE_SUBFLOW;
        link->is_welcomed = true;
    }
    if (msg->ack != link->ack_sent) {
        choice.acks_ahead = msg->code != PS_MSG_ACK && !main->by_reference &&
                            main->queued >= link->multipath->opt.late_min;
        link->ack_sent = msg->ack;
        link->ack = ps_max_u64(link->ack, msg->ack);
    }
    choice.is_urgent = msg->code == PS_MSG_ACK && msg->seq == 0;
    /* Also true of frames without a number. */
    const bool again = msg->seq <= link->seq_max;

    link->seq_max = ps_max_u64(link->seq_max, msg->seq);
    if (!again && packet->payload_len >= link->multipath->opt.payload_min) {
        if (link->path_count > 1) {
            choice.path = choose_path(link, msg, packet);
        }
        choice.path->payload_given += packet->payload_len;
    }
    return choice;
}

bool ps_path_sent(struct ps_path *p, uint64_t queued, struct ps_event *ev)
{
    const struct ps_path_link *link = p->link;

    p->queued = queued;
    if (link == NULL) {
        return false;
    }
    *ev = (struct ps_event){
        .type = PS_EV_SENT, .conn = link->main->id, .sent = {.queued = 0}};
    PS_LIST_EACH_OF(const struct ps_path, one, node, &link->paths)
    {
        ev->sent.queued += one->queued;
    }
    return true;
}

/* ---------------------------------------------------------------- subflows */

/* Link that a hello names; NULL: there is none, or it has the maximum of
 * connections. */
static struct ps_path_link *find_link(const struct ps_multipath *mp,
                                      const struct ps_msg_hello *m)
{
    PS_LIST_EACH_OF(struct ps_path_link, link, node, &mp->links)
    {
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

/* Server side: joins an accepted connection to its link (rule L16). */
static enum ps_path_verdict path_accept_join(struct ps_path *p,
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
                         "wants to join a link that does not exist");
        return PS_PATH_DROP;
    }
    struct ps_path_link *own = p->link;

    path_leave(p);
    path_link_free(own);
    path_join_link(link, p);
    path_set_state(p, PS_PATH_READY);
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
    path_init_subflow(p, id, link);
    hello = *link->hello->msg;
    hello.hello.features |= PS_FEATURE_SUBFLOW;
    ps_effects_send_msg(fx, id, &hello);
    return true;
}

/* --------------------------------------------------------------- receiving */

static enum ps_path_verdict path_receive_on_subflow(struct ps_path *p,
                                                    const struct ps_msg *msg,
                                                    struct ps_effects *fx)
{
    struct ps_path_link *link = p->link;

    if (msg->code == PS_MSG_WELCOME && p->state == PS_PATH_JOINING) {
        path_set_state(p, PS_PATH_READY);
        link->dial_wait = DIAL_WAIT;
        /* Starts level with the others. */
        p->payload_given = link->main->payload_given;
        return PS_PATH_DROP;
    }
    if (msg->seq == 0) {
        ps_effects_abort(fx, p->id, PS_E_PROTO,
                         "a frame without a number on a subflow");
        return PS_PATH_DROP;
    }
    path_link_accept_ack(link, msg->ack);
    return PS_PATH_DELIVER;
}

enum ps_path_verdict ps_path_receive(struct ps_path *p,
                                     const struct ps_msg *msg, ps_time now,
                                     struct ps_effects *fx)
{
    struct ps_path_link *link = p->link;

    p->borrows_payload = false;
    if (link == NULL) {
        return PS_PATH_DROP; /* The link has ended. */
    }
    if (p->state != PS_PATH_MAIN) {
        return path_receive_on_subflow(p, msg, fx);
    }
    if (msg->code == PS_MSG_HELLO) {
        if ((msg->hello.features & PS_FEATURE_SUBFLOW) != 0) {
            return path_accept_join(p, &msg->hello, fx);
        }
        link->peer_node = msg->hello.node;
        link->instance = msg->hello.instance;
        link->session = msg->hello.session;
    }
    if (msg->code == PS_MSG_WELCOME && link->address != NULL &&
        (msg->welcome.features & PS_FEATURE_SUBFLOW) != 0) {
        link->is_welcomed = true;
        path_link_check_later(link, false, now);
    }
    path_link_accept_ack(link, msg->ack);
    return PS_PATH_DELIVER;
}

int ps_path_payload(struct ps_path *p, const struct ps_machine *m,
                    const struct ps_msg *msg, uint64_t len,
                    struct ps_slice *ret_slice)
{
    const struct ps_path_link *link = p->link;
    int rc;

    if (link == NULL || (p->state != PS_PATH_MAIN && msg->seq == 0)) {
        return PS_E_CANCELED;
    }
    rc = m->ops->payload(m->self, link->main->id, msg, len, ret_slice);
    if (rc != 0 || ret_slice->buf->refs == 1) {
        return rc; /* Memory of this payload alone. */
    }
    if (!link->has_subflows) {
        p->borrows_payload = true;
        return 0;
    }
    ps_buf_unref(ret_slice->buf);
    *ret_slice = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    return 0;
}

/* --------------------------------------------------- number of connections */

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
    link->has_subflows = true;
    if (link->main->borrows_payload) {
        /* No payload may be in memory of the machine when subflows begin. */
        path_link_check_later(link, true, now);
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
    PS_LIST_EACH_OF(struct ps_path_link, link, node, &mp->links)
    {
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
    PS_LIST_EACH_OF(struct ps_path_link, link, node, &mp->links)
    {
        if (link->is_welcomed && mp->opt.connections == 0) {
            path_link_check_later(link, false, now);
        }
    }
}

void ps_path_dial_failed(struct ps_path *main, ps_time now)
{
    if (main->link != NULL) {
        main->link->dials--;
        path_link_check_later(main->link, true, now);
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
        path_link_check_later(link, false, now);
    }
}
