/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes a file of an optimizer's state: the records state_file,
 * state_file_key and state_file_end, and the buffers of each key. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "proto/ps_fixed.h"

/* A file at some place. The caller sets `file`; everything else is zero at the
 * start of the file. */
struct state_stream {
    FILE *file;
    uint64_t checksum; /* Checksum of the bytes read or written so far. */
    bool has_failed;   /* A write failed, or the file ended too early. */
    int error;         /* errno of the write that failed; 0: none. */
};

void state_put_start(struct state_stream *s,
                     const struct ps_fixed_state_file *start);
void state_put_key(struct state_stream *s,
                   const struct ps_fixed_state_file_key *key);
void state_put_buffer(struct state_stream *s, const void *data, size_t len);
void state_put_end(struct state_stream *s);

/* False: this is no file of an optimizer's state. */
PS_MUST_USE bool state_get_start(struct state_stream *s,
                                 struct ps_fixed_state_file *ret_start);
/* False: the file is damaged. */
PS_MUST_USE bool state_get_key(struct state_stream *s,
                               struct ps_fixed_state_file_key *ret_key);
/* Sets has_failed if the file ends before the buffer does. */
void state_get_buffer(struct state_stream *s, void *data, size_t len);
/* False: the file is damaged. */
PS_MUST_USE bool state_get_end(struct state_stream *s);
