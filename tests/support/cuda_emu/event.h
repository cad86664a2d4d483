/* SPDX-License-Identifier: Apache-2.0 */
/* Events. The part that another process can have is in shared memory: the
 * number of the last recording, the clock of the stream at that time, and the
 * last recording that has completed. */
#pragma once

#include "stream.h"

/* Components of a clock in an event. */
#define EMU_EVENT_TICKS_MAX 1000u

struct emu_event_state {
    uint64_t magic;
    pthread_mutex_t lock; /* Shared and robust. */
    uint64_t recorded;    /* Generation: recordings so far. */
    uint64_t completed;
    uint64_t completed_ns; /* When the last was completed. */
    int32_t recorder;      /* Process of the last recording. */
    uint32_t ticks_count;
    struct emu_tick ticks[EMU_EVENT_TICKS_MAX];
};

struct emu_event {
    struct emu_event *next;
    struct emu_context *context;
    unsigned refs; /* Handle, and operations. */
    unsigned flags;
    bool destroyed;
    int fd;
    struct emu_event_state *state;
    /* Last recording of this process. */
    uint64_t generation;
    struct emu_stream *stream;
    uint64_t number;
};

CUresult emu_event_new(struct emu_context *c, unsigned flags,
                       struct emu_event **ret_event);
/* Opens the event of another process by its descriptor. */
CUresult emu_event_import(struct emu_context *c, int fd,
                          struct emu_event **ret_event);
void emu_event_unref(struct emu_event *e);
/* The event of a handle; aborts for one that has been destroyed. */
CUresult emu_event_of(CUevent handle, struct emu_event **ret_event);
/* True if a recording of another process has completed. */
bool emu_event_has_completed(struct emu_event *e, uint64_t generation);
