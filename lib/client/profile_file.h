/* SPDX-License-Identifier: Apache-2.0 */
/* Timeline of one server, in the JSON format of Chrome's trace viewer. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/limits.h"
#include "proto/ps_msg.h"

struct profile_name {
    uint64_t name_hash;
    const char *name;
};

struct profile_timeline {
    uint32_t rank; /* Of the server in the job. */
    char server[PS_NAME_MAX + 1];
    struct profile_name *names; /* Of keys; owned. */
    uint32_t name_count;
    struct ps_rec_profile_event *events; /* Owned. */
    uint32_t count;
    uint32_t capacity;
    uint64_t dropped; /* Events that the server no longer has. */
};

/* Adds events in the order in which they ended. PS_E_NOMEM. */
PS_MUST_USE int profile_timeline_add(struct profile_timeline *t,
                                     const struct ps_rec_profile_event *events,
                                     uint32_t count);
/* Writes the file; errors are those of the stream. */
void profile_timeline_write(const struct profile_timeline *t, FILE *f);
void profile_timeline_fini(struct profile_timeline *t);
