/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: a level, a lower-case event and fields, written to a sink that the
 * program installs. Libraries do not log errors; daemons do. Sinks are called
 * on the loop thread only, with one line of visible characters
 * (ps_str_add_visible). */
#pragma once

#include <stdint.h>

enum ps_log_level {
    PS_LOG_ERROR,
    PS_LOG_WARNING,
    PS_LOG_NOTICE,
    PS_LOG_INFO,
    PS_LOG_DEBUG,
    PS_LOG_TRACE,
};

/* `kind`: lines of one kind have one format and are caused by one user or host,
 * so a sink may count most of them instead of writing them. 0: always
 * written. */
typedef void (*ps_log_sink)(void *ctx, enum ps_log_level level, uint64_t kind,
                            const char *text);

void ps_log_set(ps_log_sink sink, void *ctx, enum ps_log_level least);
void ps_log_level_set(enum ps_log_level least);
enum ps_log_level ps_log_level_get(void);
void ps_log(enum ps_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* For lines that peers cause. */
void ps_log_of(uint64_t kind, enum ps_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Returns the level; -1: not a level. */
int ps_log_level_parse(const char *word);
const char *ps_log_level_name(enum ps_log_level level);
