/* SPDX-License-Identifier: Apache-2.0 */
/* What the first connection carried needs no memory here: when it is cut, the
 * link itself is taken up on another one and sends what it lacks. */
#include "common/bundle.h"

#include "base/alloc.h"
#include "base/num.h"
#include "net/conn.h"

#include <string.h>

void ps_bundle_init(struct ps_bundle *b)
{
    memset(b, 0, sizeof(*b));
    ps_list_init(&b->strands);
}

void ps_bundle_add(struct ps_bundle *b, struct ps_strand *s,
                   struct ps_conn *conn)
{
    memset(s, 0, sizeof(*s));
    s->conn = conn;
    ps_list_push_back(&b->strands, &s->node);
}

void ps_bundle_ready(struct ps_bundle *b, struct ps_strand *s)
{
    s->ready = true;
    s->given = b->given; /* It need not catch up. */
}

static void carry(struct ps_strand *s, uint64_t seq, struct ps_parcel *parcel)
{
    if (s->count == s->capacity) {
        uint32_t capacity = s->capacity > 0 ? 2 * s->capacity : 16;
        struct ps_carried *more = ps_calloc(capacity, sizeof(*more));

        for (uint32_t i = 0; i < s->count; i++) {
            more[i] = s->carried[(s->first + i) % s->capacity];
        }
        ps_free(s->carried);
        s->carried = more;
        s->capacity = capacity;
        s->first = 0;
    }
    s->carried[(s->first + s->count) % s->capacity] = (struct ps_carried){
        .seq = seq, .parcel = ps_parcel_ref(parcel)};
    s->count++;
}

struct ps_strand *ps_bundle_choose(struct ps_bundle *b,
                                   const struct ps_conn *first, uint64_t seq,
                                   uint64_t ack, struct ps_parcel *parcel)
{
    struct ps_strand *best = NULL;
    uint64_t least = ps_conn_queued(first);
    uint64_t given = b->given;
    bool again = seq <= b->high; /* Also what has no number. */

    b->ack = ps_max_u64(b->ack, ack);
    b->high = ps_max_u64(b->high, seq);
    if (again || parcel->payload_len < PS_BUNDLE_FRAME_MIN) {
        return NULL;
    }
    PS_LIST_EACH(n, &b->strands)
    {
        struct ps_strand *s = PS_CONTAINER(n, struct ps_strand, node);
        uint64_t queued = ps_conn_queued(s->conn);

        if (s->ready && ps_conn_is_open(s->conn) &&
            (queued < least || (queued == least && s->given < given))) {
            best = s;
            least = queued;
            given = s->given;
        }
    }
    if (best == NULL) {
        b->given += parcel->payload_len;
        return NULL;
    }
    best->given += parcel->payload_len;
    carry(best, seq, parcel);
    return best;
}

bool ps_strand_next(struct ps_strand *s, struct ps_carried *ret_lost)
{
    if (s->count == 0) {
        return false;
    }
    *ret_lost = s->carried[s->first];
    s->first = (s->first + 1) % s->capacity;
    s->count--;
    return true;
}

void ps_bundle_acked(struct ps_bundle *b, uint64_t ack)
{
    if (ack <= b->acked || ack > b->high) {
        return;
    }
    b->acked = ack;
    PS_LIST_EACH(n, &b->strands)
    {
        struct ps_strand *s = PS_CONTAINER(n, struct ps_strand, node);
        struct ps_carried done;

        while (s->count > 0 && s->carried[s->first].seq <= ack &&
               ps_strand_next(s, &done)) {
            ps_parcel_unref(done.parcel);
        }
    }
}

uint64_t ps_bundle_queued(const struct ps_bundle *b,
                          const struct ps_conn *first)
{
    uint64_t sum = ps_conn_queued(first);

    PS_LIST_EACH(n, &b->strands)
    {
        sum += ps_conn_queued(PS_CONTAINER(n, struct ps_strand, node)->conn);
    }
    return sum;
}

void ps_strand_fini(struct ps_strand *s)
{
    struct ps_carried lost;

    while (ps_strand_next(s, &lost)) {
        ps_parcel_unref(lost.parcel);
    }
    ps_free(s->carried);
    s->carried = NULL;
    s->capacity = 0;
    if (ps_list_linked(&s->node)) {
        ps_list_remove(&s->node);
    }
}
