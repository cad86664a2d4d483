/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines on standard error, one write() each, with a rate limit by kind, which
 * stands for a format and the user or host that causes the line: the first
 * PS_LOG_BURST are written at once, then one a second, later one in eight
 * seconds, each with the number of lines skipped. Lines that a peer can cause
 * without limit must neither fill a disk nor hide other events. Memory is fixed:
 * beyond PS_LOG_KINDS_MAX kinds at a time the rarest share an entry. */
#pragma once

#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "base/time.h"
#include "common/options.h"

#include <stdbool.h>

/* -------------------------------------------------------------------- limit */

#define PS_LOGLIMIT_TEXT 400u

struct ps_log_kind {
    uint64_t kind;
    /* Time until which the written lines use up the budget, 1 s each. */
    ps_time paid_until;
    /* Time between two summaries while lines keep coming. */
    ps_time summary_interval;
    uint64_t skipped; /* Lines skipped since the last written one. */
    enum ps_log_level level;
    char text[PS_LOGLIMIT_TEXT]; /* Last line skipped. */
};

/* Zeroed at first. */
struct ps_loglimit {
    struct ps_log_kind kinds[PS_LOG_KINDS_MAX];
    uint32_t count;
};

/* True: write the line. False: it is counted. */
bool ps_loglimit_admit(struct ps_loglimit *l, uint64_t kind,
                       enum ps_log_level level, const char *text, ps_time now);
/* Takes a summary that is due, or any with `all`: level and text. False: there
 * is none. */
bool ps_loglimit_next_summary(struct ps_loglimit *l, ps_time now, bool all,
                              enum ps_log_level *ret_level,
                              struct ps_str *ret_text);
/* Time of the next summary; PS_TIME_NEVER: nothing was skipped. */
ps_time ps_loglimit_deadline(const struct ps_loglimit *l);

/* --------------------------------------------------------------------- sink */

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
