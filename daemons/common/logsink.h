/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on standard error, one write() each. */
#pragma once

#include "base/log.h"
#include "common/options.h"

/* Installs the sink. `program` and `node` appear in every JSON line and are
 * borrowed while lines are written. */
void ps_logsink_open(enum ps_log_format format, enum ps_log_level least,
                     const char *program);
/* `skipped` is called for each line that is not written, after which
 * ps_logsink_deadline() may be another. NULL: no function. */
void ps_logsink_on_skipped(void (*skipped)(void *ctx), void *ctx);
/* Writes the summaries of skipped lines that are due, or all.
 * ps_logsink_deadline() is the time of the next, on the monotonic clock. */
void ps_logsink_write_summaries(bool all);
ps_time ps_logsink_deadline(void);
void ps_logsink_set_node(const char *node);
