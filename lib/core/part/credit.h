/* SPDX-License-Identifier: Apache-2.0 */
/* Credit of one job on one link, kept by the receiver: how many push bytes the
 * sender may have sent in all since the link's session began. It bounds the
 * unmerged bytes that the receiver holds for one sender, and how far a sender
 * runs ahead of the slowest one.
 *
 * `held` below is the sender's bytes that wait for their merge at that time,
 * including those of earlier sessions. */
#pragma once

#include "base/rate_meter.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_credit_limits {
    /* Credit before the first announcement; 0: PS_CREDIT_INITIAL. */
    uint64_t initial;
    uint64_t window; /* Bytes; at least `initial`. */
};

struct ps_credit {
    uint64_t initial;
    uint64_t window;
    uint64_t received; /* Bytes since the session began. */
    /* Last announced credit; never falls within a session. */
    uint64_t announced;
};

void ps_credit_init(struct ps_credit *f, const struct ps_credit_limits *limits);
/* Starts a new session of the link: all counts are 0. */
void ps_credit_reset(struct ps_credit *f);

/* True if a frame of `len` bytes may be accepted. A sender that respects its
 * credit exceeds it by less than one frame. */
bool ps_credit_admits(const struct ps_credit *f, uint64_t len);
/* Counts a frame that arrived, accepted or not. */
void ps_credit_on_receive(struct ps_credit *f, uint64_t len);

/* Returns the credit for a message to the sender, and records it as
 * announced. */
uint64_t ps_credit_announce(struct ps_credit *f, uint64_t held);
/* True if the credit must be announced without waiting for a reply that can
 * carry it: it has grown much, or the sender has little left. */
bool ps_credit_announce_due(const struct ps_credit *f, uint64_t held);

/* True if the sender has used all announced credit. */
bool ps_credit_is_exhausted(const struct ps_credit *f);
/* Raises the announced credit to a quarter of the window above both itself and
 * the received bytes, because all others wait for this sender; the next
 * ps_credit_announce returns it. The sender can then send a frame. */
void ps_credit_grant_extra(struct ps_credit *f);

/* Limits derived from the total rate of contributions: how many bytes one
 * contributor may have waiting beyond the slowest, and how long a silent one
 * delays the others. Contributors that keep the same pace complete rounds one
 * after the other, so replies leave while the next contributions arrive.
 * Without a limit a few run ahead, and all rounds complete at the end. */

/* Bytes of lead that keep a link of that rate busy. */
uint64_t ps_pacing_max_lead(const struct ps_rate_meter *r);

/* Time in which each of `count` healthy contributors sends more than one
 * lead. */
ps_time ps_pacing_patience(const struct ps_rate_meter *r, uint32_t count);
