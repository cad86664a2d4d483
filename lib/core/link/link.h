/* SPDX-License-Identifier: Apache-2.0 */
/* A link: the conversation of two daemons, which outlives connections. Numbers
 * what is sent, keeps it until it is acknowledged, sends it again after a time
 * with back-off or at once on a new connection, and drops what arrives twice.
 * Frames may be delivered out of order (a lost one does not hold up those
 * behind it); what is above a link must not depend on order.
 *
 * The side that dialled names the session (hello.session). The other side
 * keeps the state of a link for a while after the connection is gone; if it is
 * still there when the session comes back, both go on where they were
 * (welcome.resumed); if not, both start afresh at sequence 1, what was in the
 * window is dropped, and the machines offer again what is open: messages are
 * idempotent by what they name. A link is never given up by itself. */
#pragma once

#include "base/rng.h"
#include "base/time.h"
#include "core/base/effect.h"
#include "core/base/ledger.h"

#include <stdbool.h>

struct ps_link_options {
    ps_time resend_timeout; /* First retransmission; 0: 1 s. */
    ps_time resend_max;     /* Back-off stops here; 0: 5 s. */
    ps_time ack_delay;      /* An acknowledgement rides on something else for
                             * this long before it goes alone; 0: 20 ms. */
    uint64_t memory_max;    /* What ps_link_memory() should stay below, for the
                             * account; 0: no limit. */
    bool counts_payload;    /* No account of another has it. */
    struct ps_account *ledger; /* What is not acknowledged counts there, as the
                                * output of an account of the link's own; NULL:
                                * nowhere. It outlives the link. */
    const char *peer;          /* That account's name; copied. */
};

struct ps_link; /* Opaque: new/free. */

struct ps_link *ps_link_new(const struct ps_link_options *opt,
                            struct ps_rng *rng);
void ps_link_free(struct ps_link *l);

/* A connection carries the link from now on (the last one given wins; the
 * caller hangs up the old one). `resumed`: `peer_received` is the peer's
 * cumulative acknowledgement, everything behind it is sent again now. Not
 * resumed: numbers start at 1, the window is dropped. */
void ps_link_open(struct ps_link *l, ps_conn_id conn, bool resumed,
                  uint64_t peer_received, ps_time now, struct ps_effects *fx);
/* The connection is gone; the link waits. */
void ps_link_close(struct ps_link *l, ps_time now);
ps_conn_id ps_link_conn(const struct ps_link *l); /* 0: none. */
/* For the accepting side, when a session comes back: may it be resumed? Not
 * before something has arrived since numbers last started at 1: until then
 * the peer may never have seen the welcome that said so, and would go on with
 * its old numbers. */
bool ps_link_is_resumable(const struct ps_link *l);

/* Send in sequence. Takes over one reference of `parcel`. Kept, and sent when
 * there is a connection and fewer than PS_LINK_IN_FLIGHT_MAX are under way. */
void ps_link_send(struct ps_link *l, struct ps_packet *parcel, ps_time now,
                  struct ps_effects *fx);
/* The same for a message without payload. */
void ps_link_send_msg(struct ps_link *l, const struct ps_msg *msg, ps_time now,
                      struct ps_effects *fx);

/* For every message that arrives on the link's connection behind hello and
 * welcome: takes in the acknowledgement, filters duplicates. True: deliver it;
 * false for a duplicate and for `ack`. */
bool ps_link_receive(struct ps_link *l, const struct ps_msg *msg, ps_time now,
                     struct ps_effects *fx);
/* Would ps_link_receive deliver this sequence number? Changes nothing; for
 * payload(), so that a duplicate's bytes are thrown away. */
bool ps_link_is_new(const struct ps_link *l, uint64_t seq);

/* The payload of what is not acknowledged and `over` is not sent any more: an
 * empty message takes its place, so that the numbers stay whole. For jobs that
 * have ended: nothing of theirs may hold up the others on the link. */
void ps_link_drop_payloads(struct ps_link *l,
                           bool (*over)(void *ctx, const struct ps_msg *msg),
                           void *ctx);

/* Cumulative acknowledgement to put in hello, welcome and unsequenced frames. */
uint64_t ps_link_received(const struct ps_link *l);
/* Sequenced parcels not acknowledged; their payload bytes. */
uint32_t ps_link_unacked(const struct ps_link *l);
uint64_t ps_link_unacked_bytes(const struct ps_link *l);
/* Memory of them. */
uint64_t ps_link_memory(const struct ps_link *l);
uint64_t ps_link_resent(const struct ps_link *l); /* Frames, since new. */

void ps_link_tick(struct ps_link *l, ps_time now, struct ps_effects *fx);
ps_time ps_link_deadline(const struct ps_link *l);
