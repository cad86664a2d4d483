/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of a trace ring, as the answer to trace_get. */
#pragma once

#include "base/trace.h"
#include "proto/ps_msg.h"

/* Fills `ret` with entries of job `m->gen` from number `m->first` on. `list` has
 * room for PS_TRACE_READ_MAX. `t` NULL: there are none. */
void ps_trace_read(const struct ps_trace *t, const struct ps_msg_trace_get *m,
                   ps_time now, struct ps_rec_trace_entry *list,
                   struct ps_msg_trace_entries *ret);
