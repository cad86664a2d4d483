/* SPDX-License-Identifier: Apache-2.0 */
/* Credit of one job on one link, as the receiving side counts it: how many
 * push bytes the sender may have sent since the link's session began. Nobody
 * runs further ahead of the slowest than a window, in bytes that wait to be
 * merged; which also bounds what the receiver holds.
 *
 * `held` below is what waits unmerged of this contributor at the time, bytes
 * of earlier sessions included: the receiver still has them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ps_credit_limits {
    uint64_t initial; /* Credit before the receiver has said anything; 0:
                      * PS_CREDIT_INITIAL. */
    uint64_t window;  /* Less than `first` counts as that. */
};

struct ps_credit {
    uint64_t initial;
    uint64_t window;
    uint64_t received;  /* Since the session began. */
    uint64_t announced; /* Last announced; never falls within a session. */
};

void ps_credit_init(struct ps_credit *f, const struct ps_credit_limits *limits);
/* A new session of the link: the sender counts from 0. */
void ps_credit_reset(struct ps_credit *f);

/* May a frame of `len` bytes come? A sender that keeps to its credit passes it
 * by less than one frame. */
bool ps_credit_admits(const struct ps_credit *f, uint64_t len);
/* A frame came, whatever becomes of it. */
void ps_credit_on_receive(struct ps_credit *f, uint64_t len);

/* The credit to put into a message to the sender, from now on announced. */
uint64_t ps_credit_announce(struct ps_credit *f, uint64_t held);
/* Has the credit grown so much, or the sender so little left, that it should
 * be told without waiting for an answer that carries it? */
bool ps_credit_announce_due(const struct ps_credit *f, uint64_t held);

/* The sender has used up what it was given. */
bool ps_credit_is_exhausted(const struct ps_credit *f);
/* Give a quarter of the window beyond what the rule allows and what has been
 * received, because everybody waits for this sender; the next ps_credit_announce
 * says so. A sender that knows of it may send a frame. */
void ps_credit_grant_extra(struct ps_credit *f);
