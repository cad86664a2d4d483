/* SPDX-License-Identifier: Apache-2.0 */
/* Bookkeeping of subflows. Frames of the main connection are not recorded: when
 * that is closed, the link resumes on another one and resends them. */
#include "driver/multipath.h"

#include "base/alloc.h"
#include "base/num.h"
#include "net/conn.h"

#include <string.h>

void ps_multipath_init(struct ps_multipath *b)
{
    memset(b, 0, sizeof(*b));
    ps_list_init(&b->subflows);
}

void ps_multipath_add(struct ps_multipath *b, struct ps_subflow *s,
                      struct ps_conn *conn)
{
    memset(s, 0, sizeof(*s));
    s->conn = conn;
    ps_list_push_back(&b->subflows, &s->node);
}

void ps_multipath_ready(struct ps_multipath *b, struct ps_subflow *s)
{
    s->is_ready = true;
    s->payload_given = b->payload_given; /* Starts level with the others. */
}

static void subflow_push_unacked(struct ps_subflow *s, uint64_t seq,
                                 struct ps_packet *parcel)
{
    if (s->count == s->capacity) {
        uint32_t capacity = s->capacity > 0 ? 2 * s->capacity : 16;
        struct ps_unacked *more = ps_calloc(capacity, sizeof(*more));

        for (uint32_t i = 0; i < s->count; i++) {
            more[i] = s->unacked[(s->first + i) % s->capacity];
        }
        ps_free(s->unacked);
        s->unacked = more;
        s->capacity = capacity;
        s->first = 0;
    }
    s->unacked[(s->first + s->count) % s->capacity] = (struct ps_unacked){
        .seq = seq, .parcel = ps_packet_ref(parcel)};
    s->count++;
}

struct ps_subflow *ps_multipath_choose(struct ps_multipath *b,
                                       const struct ps_conn *first,
                                       uint64_t seq, uint64_t ack,
                                       struct ps_packet *parcel)
{
    struct ps_subflow *best = NULL;
    uint64_t least = ps_conn_queued(first);
    uint64_t given = b->payload_given;
    bool again = seq <= b->seq_max; /* Also true of frames without a number. */

    b->ack = ps_max_u64(b->ack, ack);
    b->seq_max = ps_max_u64(b->seq_max, seq);
    if (again || parcel->payload_len < PS_MULTIPATH_FRAME_MIN) {
        return NULL;
    }
    PS_LIST_EACH(n, &b->subflows)
    {
        struct ps_subflow *s = PS_CONTAINER(n, struct ps_subflow, node);
        uint64_t queued = ps_conn_queued(s->conn);

        if (s->is_ready && ps_conn_is_open(s->conn) &&
            (queued < least || (queued == least && s->payload_given < given))) {
            best = s;
            least = queued;
            given = s->payload_given;
        }
    }
    if (best == NULL) {
        b->payload_given += parcel->payload_len;
        return NULL;
    }
    best->payload_given += parcel->payload_len;
    subflow_push_unacked(best, seq, parcel);
    return best;
}

bool ps_subflow_pop_unacked(struct ps_subflow *s, struct ps_unacked *ret_lost)
{
    if (s->count == 0) {
        return false;
    }
    *ret_lost = s->unacked[s->first];
    s->first = (s->first + 1) % s->capacity;
    s->count--;
    return true;
}

void ps_multipath_acked(struct ps_multipath *b, uint64_t ack)
{
    if (ack <= b->acked || ack > b->seq_max) {
        return;
    }
    b->acked = ack;
    PS_LIST_EACH(n, &b->subflows)
    {
        struct ps_subflow *s = PS_CONTAINER(n, struct ps_subflow, node);
        struct ps_unacked done;

        while (s->count > 0 && s->unacked[s->first].seq <= ack &&
               ps_subflow_pop_unacked(s, &done)) {
            ps_packet_unref(done.parcel);
        }
    }
}

uint64_t ps_multipath_queued(const struct ps_multipath *b,
                             const struct ps_conn *first)
{
    uint64_t sum = ps_conn_queued(first);

    PS_LIST_EACH(n, &b->subflows)
    {
        sum += ps_conn_queued(PS_CONTAINER(n, struct ps_subflow, node)->conn);
    }
    return sum;
}

void ps_subflow_fini(struct ps_subflow *s)
{
    struct ps_unacked lost;

    while (ps_subflow_pop_unacked(s, &lost)) {
        ps_packet_unref(lost.parcel);
    }
    ps_free(s->unacked);
    s->unacked = NULL;
    s->capacity = 0;
    if (ps_list_linked(&s->node)) {
        ps_list_remove(&s->node);
    }
}
