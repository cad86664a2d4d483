/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of servers about their recordings. */
#pragma once

#include <stdint.h>

#include "base/limits.h"
#include "proto/ps_msg.h"

struct psc_client;

/* Events of one answer. */
struct profile_answer {
    char server[PS_NAME_MAX + 1];
    uint64_t first;
    uint64_t count;    /* Events recorded so far. */
    uint32_t returned; /* Events below. */
    struct ps_rec_profile_event events[];
};

/* Ends the operation that asked, and keeps the answer for it. */
void profile_accept_events(struct psc_client *c,
                           const struct ps_msg_l_profile_events *m);
