/* SPDX-License-Identifier: Apache-2.0 */
/* A timeline in the JSON format of Chrome's trace viewer, which Perfetto reads,
 * too. A process has threads; the viewer shows slices of one thread as a stack,
 * so those that overlap without one being within the other need several. */
#pragma once

#include <stdint.h>
#include <stdio.h>

struct ps_timeline {
    FILE *out; /* Errors are those of the stream. */
    uint64_t events;
};

/* Threads of one kind of slices, by the end of the last slice of each. */
struct ps_timeline_lanes {
    int64_t *busy_until; /* Room for `max`. */
    uint32_t count;
    uint32_t max;
};

/* Thread of a slice, the first that is free when it begins; UINT32_MAX: all are
 * busy. Slices come in the order of their begin. */
uint32_t ps_timeline_place(struct ps_timeline_lanes *l, int64_t begin,
                           int64_t end);

void ps_timeline_begin(struct ps_timeline *t, FILE *out);
/* Text as a string of JSON; all but visible UTF-8 is escaped. */
void ps_timeline_text(struct ps_timeline *t, const char *text);
/* Begins an event of that phase and place; the caller adds fields and "}". */
void ps_timeline_event(struct ps_timeline *t, const char *phase,
                       const char *name, uint32_t process, uint32_t thread);
/* A field that is a time: nanoseconds, written as microseconds. */
void ps_timeline_time(struct ps_timeline *t, const char *field, int64_t ns);
/* Names a thread of a process, or, with `what` "process_name", the process. */
void ps_timeline_name(struct ps_timeline *t, const char *what, uint32_t process,
                      uint32_t thread, const char *name);
/* Ends the list of events; the caller adds fields of the file and "}". */
void ps_timeline_end(struct ps_timeline *t);
