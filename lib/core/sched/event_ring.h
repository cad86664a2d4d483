/* SPDX-License-Identifier: Apache-2.0 */
/* The last events of members and jobs, in a ring. */
#pragma once

#include "base/limits.h"
#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

/* Events that are remembered; the oldest make room for others. */
#define PS_SCHED_EVENTS_MAX 512u
/* Bytes of the detail that are kept: a reason with names and numbers. */
#define PS_SCHED_EVENT_TEXT 200u

struct ps_sched_event {
    ps_time at;
    uint32_t uid; /* Owner of the job. */
    uint8_t kind; /* enum ps_event_kind */
    bool is_bad;  /* A loss or failure. */
    char name[PS_NAME_MAX + 1];
    char what[24];
    char text[PS_SCHED_EVENT_TEXT + 1];
};

struct ps_sched_events {
    struct ps_sched_event *ring; /* NULL: none yet. */
    uint64_t count;              /* Events so far. */
};
