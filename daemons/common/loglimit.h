/* SPDX-License-Identifier: Apache-2.0 */
/* Rate limit of log lines by kind: the first PS_LOG_BURST are written as they
 * come, then one a second, later one in eight seconds, each with the number of
 * lines left out. Lines that a peer can cause without end must neither fill a
 * disk nor hide other events. Memory is fixed: beyond PS_LOG_KINDS_MAX kinds at
 * a time the rarest are counted together. */
#pragma once

#include "base/limits.h"
#include "base/log.h"
#include "base/str.h"
#include "base/time.h"

#include <stdbool.h>

#define PS_LOGLIMIT_TEXT 400u

struct ps_log_kind {
    uint64_t kind;
    ps_time paid_until; /* The lines written are paid for by then: 1 s each. */
    ps_time summary_interval; /* Between two counts, while it goes on. */
    uint64_t skipped;         /* Since the last line. */
    enum ps_log_level level;
    char text[PS_LOGLIMIT_TEXT]; /* The last one that was skipped. */
};

/* Zeroed to begin with. */
struct ps_loglimit {
    struct ps_log_kind kinds[PS_LOG_KINDS_MAX];
    uint32_t count;
};

/* True: write the line. False: it is counted. */
bool ps_loglimit_admit(struct ps_loglimit *l, uint64_t kind,
                       enum ps_log_level level, const char *text, ps_time now);
/* A count that is due, or with `all` any: its level and line. False: there is
 * none. */
bool ps_loglimit_next_summary(struct ps_loglimit *l, ps_time now, bool all,
                              enum ps_log_level *ret_level,
                              struct ps_str *ret_text);
/* When a count is due; PS_TIME_NEVER: nothing was skipped. */
ps_time ps_loglimit_deadline(const struct ps_loglimit *l);
