/* SPDX-License-Identifier: Apache-2.0 */
/* A link: a numbered, acknowledged and deduplicated message stream between two
 * daemons, which outlives its connections. Each frame is kept until it is
 * acknowledged, and retransmitted after a timeout with back-off, or at once on
 * a new connection. Frames may be delivered out of order (a lost one does not
 * block later ones); users of a link must not depend on order.
 *
 * The dialling side names the session (hello.session). The accepting side keeps
 * the state of a link for a while after its connection is lost. If it still
 * exists when the session returns, both sides continue (welcome.resumed); if
 * not, both start at sequence 1 with an empty window, and the machines send
 * again what is still open: messages are idempotent. A link never expires by
 * itself. */
#pragma once

#include "base/rng.h"
#include "base/time.h"
#include "core/base/ledger.h"
#include "core/base/machine.h"

#include <stdbool.h>

struct ps_link_options {
    ps_time resend_timeout; /* First retransmission timeout; 0: 1 s. */
    ps_time resend_max;     /* Upper limit of the back-off; 0: 5 s. */
    /* Time for which an acknowledgement waits for a frame that can carry it; 0:
     * 20 ms. */
    ps_time ack_delay;
    /* Limit of the link's account for ps_link_memory(); 0: none. */
    uint64_t memory_max;
    /* Count payload bytes, too: no other account has them. */
    bool counts_payload;
    /* Parent of the link's own account, which counts unacknowledged frames as
     * output; must outlive the link. NULL: not counted. */
    struct ps_account *ledger;
    const char *peer; /* Name of that account; copied. */
};

struct ps_link; /* Opaque. */

struct ps_link *ps_link_new(const struct ps_link_options *opt,
                            struct ps_rng *rng);
void ps_link_free(struct ps_link *l);

/* Attaches the link to `conn`, in place of any earlier connection, which the
 * caller closes. `resumed`: `peer_received` is the peer's cumulative
 * acknowledgement, and all later frames are sent again now. Otherwise numbers
 * start at 1 and the window is emptied. */
void ps_link_open(struct ps_link *l, ps_conn_id conn, bool resumed,
                  uint64_t peer_received, ps_time now, struct ps_effects *fx);
/* Detaches the link from its connection; frames wait for the next one. */
void ps_link_close(struct ps_link *l);
ps_conn_id ps_link_conn(const struct ps_link *l); /* 0: none. */
/* True if the accepting side may resume the link. That needs a frame since
 * numbers last started at 1: until one arrives, the peer may not have seen the
 * welcome that restarted them, and would continue with old numbers. */
bool ps_link_is_resumable(const struct ps_link *l);

/* Sends `packet` with the next number; takes over one reference. The packet
 * waits while there is no connection or PS_LINK_IN_FLIGHT_MAX packets are in
 * flight. */
void ps_link_send(struct ps_link *l, struct ps_packet *packet, ps_time now,
                  struct ps_effects *fx);
/* The same, for a message without payload. */
void ps_link_send_msg(struct ps_link *l, const struct ps_msg *msg, ps_time now,
                      struct ps_effects *fx);

/* Handles link state of a message that arrived after the handshake: takes the
 * acknowledgement and filters duplicates. True if the caller has to handle it;
 * false for a duplicate and for `ack`. */
bool ps_link_receive(struct ps_link *l, const struct ps_msg *msg, ps_time now,
                     struct ps_effects *fx);
/* True if ps_link_receive would accept this number. Changes nothing; payload()
 * uses it to discard the bytes of duplicates. */
bool ps_link_is_new(const struct ps_link *l, uint64_t seq);

/* The job is over: replaces each of its unacknowledged packets that has a
 * payload by an empty message, so that numbers stay contiguous and the payloads
 * do not delay those of others. */
void ps_link_drop_payloads(struct ps_link *l, uint64_t gen);

/* Cumulative acknowledgement to put into hello, welcome and unsequenced
 * frames. */
uint64_t ps_link_received(const struct ps_link *l);
/* Unacknowledged packets, sent or not. */
uint32_t ps_link_unacked(const struct ps_link *l);
/* Bytes of memory that those packets take. */
uint64_t ps_link_memory(const struct ps_link *l);
/* Retransmitted frames since ps_link_new. */
uint64_t ps_link_resent(const struct ps_link *l);

void ps_link_tick(struct ps_link *l, ps_time now, struct ps_effects *fx);
ps_time ps_link_deadline(const struct ps_link *l);
