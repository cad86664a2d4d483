/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on standard error, one write each. */
#pragma once

#include "base/log.h"
#include "common/options.h"

/* Installs the sink. `program` and `node` are in every JSON line; both are
 * borrowed for as long as lines are written. */
void ps_logsink_open(enum ps_log_format format, enum ps_log_level least,
                     const char *program);
/* Writes how many lines there were that were not written, of kinds of which it
 * is time to say so, or of all; and when that is, on the monotonic clock. */
void ps_logsink_write_summaries(bool all);
ps_time ps_logsink_deadline(void);
void ps_logsink_set_node(const char *node);
