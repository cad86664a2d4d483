/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of a job, from all its members: collected, written as a timeline,
 * and read for ranks that others wait for. */
#pragma once

#include "psctl/answer.h"

/* Entries in one trace; of more, each member's oldest are left out. Bounds the
 * memory, and the file to some 400 MB. */
#define TRACE_ENTRIES_MAX 1000000u

struct trace_member {
    char name[PS_NAME_MAX + 1];
    uint8_t role; /* enum ps_role */
    uint32_t node;
    uint32_t slot; /* Of an agent. */
    /* Its clock minus that of the scheduler, and the limit on the error. */
    int64_t offset_ns;
    uint64_t error_ns;
    struct ps_rec_trace_entry *entries; /* Owned. */
    uint32_t count;
    uint32_t capacity;
    char (*span_names)[PS_SCALAR_NAME_MAX + 1]; /* Owned; of an agent. */
    uint32_t span_name_count;
    bool is_missing; /* It did not answer. */
};

struct trace {
    const char *job;              /* Borrowed. */
    struct trace_member *members; /* Owned: scheduler, servers, agents. */
    uint32_t member_count;
    uint32_t server_count;
    /* Owned; names, borrowed from the report, by the keys' numbers. */
    const char **key_names;
    uint32_t key_count;
};

/* Start of an entry by the clock of the scheduler. */
int64_t trace_begin(const struct trace_member *m,
                    const struct ps_rec_trace_entry *e);
/* Name of a key; its number in `buffer` if it is not known. */
const char *trace_key_name(const struct trace *t, uint32_t key, char *buffer,
                           size_t cap);

/* ------------------------------------------------------------ trace_file.c */

struct trace_file_figures {
    uint64_t events;
    uint64_t flows;
    uint64_t bytes;
};

/* Writes the trace in the JSON format of Chrome and Perfetto. Returns an exit
 * code. */
int trace_file_write(const struct trace *t, const char *path,
                     struct trace_file_figures *ret);
