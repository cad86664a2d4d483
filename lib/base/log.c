/* SPDX-License-Identifier: Apache-2.0 */
/* The log sink of the process. Before ps_log_set() lines are dropped. */
#include "base/log.h"

#include "base/str.h"

#include <stddef.h>
#include <string.h>

#define LINE_MAX_BYTES 2048

static struct {
    ps_log_sink sink;
    void *ctx;
    enum ps_log_level least;
} logger = {.least = PS_LOG_INFO};

static const char *const names[] = {
    [PS_LOG_ERROR] = "error",   [PS_LOG_WARNING] = "warning",
    [PS_LOG_NOTICE] = "notice", [PS_LOG_INFO] = "info",
    [PS_LOG_DEBUG] = "debug",   [PS_LOG_TRACE] = "trace",
};

void ps_log_set(ps_log_sink sink, void *ctx, enum ps_log_level least)
{
    logger.sink = sink;
    logger.ctx = ctx;
    logger.least = least;
}

void ps_log_level_set(enum ps_log_level least)
{
    logger.least = least;
}

enum ps_log_level ps_log_level_get(void)
{
    return logger.least;
}

static void write_line(uint64_t kind, enum ps_log_level level, const char *fmt,
                       va_list ap)
{
    char text[LINE_MAX_BYTES];
    char line[LINE_MAX_BYTES];
    struct ps_str s;

    if (logger.sink == NULL || level > logger.least) {
        return;
    }
    ps_str_init(&s, text, sizeof(text));
    ps_str_addv(&s, fmt, ap);
    ps_str_init(&s, line, sizeof(line));
    ps_str_add_visible(&s, text);
    logger.sink(logger.ctx, level, kind, line);
}

void ps_log(enum ps_log_level level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    write_line(0, level, fmt, ap);
    va_end(ap);
}

void ps_log_of(uint64_t kind, enum ps_log_level level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    write_line(kind, level, fmt, ap);
    va_end(ap);
}

int ps_log_level_parse(const char *word)
{
    for (int i = PS_LOG_ERROR; i <= PS_LOG_TRACE; i++) {
        if (strcmp(word, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

const char *ps_log_level_name(enum ps_log_level level)
{
    return names[level];
}
