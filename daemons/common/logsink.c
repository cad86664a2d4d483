/* SPDX-License-Identifier: Apache-2.0 */
/* Writes log lines in three formats: "<6>text" for the journal, which adds time
 * and program; "time level text" for users; one JSON object for machines.
 *
 * The limit is a token bucket for each kind of line, kept as the time until which
 * lines are paid for. */
#include "common/logsink.h"

#include "base/str.h"
#include "common/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* -------------------------------------------------------------------- limit */

#define LINE_COST            PS_SECONDS(1)
#define SUMMARY_INTERVAL_MAX PS_SECONDS(8)

/* Time from which the next line of the kind may be written. */
static ps_time next_line_at(const struct ps_log_kind *k)
{
    ps_time burst = (PS_LOG_BURST - 1) * LINE_COST;

    return k->paid_until > burst ? k->paid_until - burst : 0;
}

static void charge_line(struct ps_log_kind *k, ps_time now, ps_time cost)
{
    k->paid_until = (k->paid_until > now ? k->paid_until : now) + cost;
}

/* Entry of the kind, or that of the kind idle for longest; if none is idle,
 * kinds share the last entry. */
static struct ps_log_kind *find_kind(struct ps_loglimit *l, uint64_t kind)
{
    struct ps_log_kind *rest = &l->kinds[PS_LOG_KINDS_MAX - 1];
    bool found = false;

    for (uint32_t i = 0; i < l->count; i++) {
        struct ps_log_kind *k = &l->kinds[i];

        if (k->kind == kind) {
            return k;
        }
        if (k->skipped == 0 && (!found || k->paid_until < rest->paid_until)) {
            rest = k;
            found = true;
        }
    }
    if (l->count < PS_LOG_KINDS_MAX) {
        rest = &l->kinds[l->count++];
        found = true;
    }
    if (found) {
        *rest = (struct ps_log_kind){.kind = kind,
                                     .summary_interval = LINE_COST};
    }
    return rest;
}

bool ps_loglimit_admit(struct ps_loglimit *l, uint64_t kind,
                       enum ps_log_level level, const char *text, ps_time now)
{
    struct ps_log_kind *k = find_kind(l, kind);

    if (k->skipped == 0 && now >= next_line_at(k)) {
        if (now >= k->paid_until) {
            k->summary_interval = LINE_COST; /* The kind was idle. */
        }
        charge_line(k, now, LINE_COST);
        return true;
    }
    k->level = k->skipped == 0 || level < k->level ? level : k->level;
    k->skipped++;
    (void)ps_str_copy(k->text, sizeof(k->text), text);
    return false;
}

bool ps_loglimit_next_summary(struct ps_loglimit *l, ps_time now, bool all,
                              enum ps_log_level *ret_level,
                              struct ps_str *ret_text)
{
    for (uint32_t i = 0; i < l->count; i++) {
        struct ps_log_kind *k = &l->kinds[i];

        if (k->skipped == 0 || (!all && now < next_line_at(k))) {
            continue;
        }
        *ret_level = k->level;
        ps_str_add(ret_text, k->text);
        if (k->skipped > 1) {
            ps_str_addf(ret_text, " (and %" PRIu64 " more lines of this kind)",
                        k->skipped - 1);
        }
        k->skipped = 0;
        charge_line(k, now, k->summary_interval);
        k->summary_interval = ps_time_min(k->summary_interval * 2,
                                          SUMMARY_INTERVAL_MAX);
        return true;
    }
    return false;
}

ps_time ps_loglimit_deadline(const struct ps_loglimit *l)
{
    ps_time least = PS_TIME_NEVER;

    for (uint32_t i = 0; i < l->count; i++) {
        if (l->kinds[i].skipped > 0) {
            least = ps_time_min(least, next_line_at(&l->kinds[i]));
        }
    }
    return least;
}

/* --------------------------------------------------------------------- sink */

static struct {
    enum ps_log_format format;
    const char *program;
    const char *node;
    void (*skipped)(void *ctx); /* NULL: none. */
    void *skipped_ctx;
    /* Lines since the last that standard error has taken. */
    uint64_t lost;
    int lost_error; /* errno of the last of them. */
    bool is_torn;   /* A part of a line was written. */
} sink = {.program = "", .node = ""};

static struct ps_loglimit loglimit;

/* True if standard error goes to the journal: compares device and inode,
 * because it may have been redirected since the variable was set. */
static bool is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev;
    unsigned long long ino;
    struct stat st;

    return stream != NULL && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 &&
           (unsigned long long)st.st_dev == dev &&
           (unsigned long long)st.st_ino == ino;
}

static int syslog_priority(enum ps_log_level level)
{
    switch (level) {
    case PS_LOG_ERROR:
        return 3;
    case PS_LOG_WARNING:
        return 4;
    case PS_LOG_NOTICE:
        return 5;
    case PS_LOG_INFO:
        return 6;
    case PS_LOG_DEBUG:
    case PS_LOG_TRACE:
        break;
    }
    return 7;
}

static void add_time(struct ps_str *s)
{
    struct timespec now;
    struct tm tm;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    ps_str_addf(s, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", tm.tm_year + 1900,
                tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                now.tv_nsec / 1000000);
}

static void add_json_string(struct ps_str *s, const char *text)
{
    ps_str_add(s, "\"");
    for (const char *p = text; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;

        if (c == '"' || c == '\\') {
            ps_str_addf(s, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f) {
            ps_str_addf(s, "\\u%04x", c);
        } else {
            ps_str_addf(s, "%c", c);
        }
    }
    ps_str_add(s, "\"");
}

/* Adds the code by which psctl explain finds a warning or error. */
static void add_code(struct ps_str *s, enum ps_log_level level,
                     const char *text)
{
    const struct ps_explanation *e = level <= PS_LOG_WARNING
                                         ? ps_explain_line(text)
                                         : NULL;

    if (e != NULL && e->code[0] != '\0') {
        ps_str_addf(s, ",\"code\":\"%s\"", e->code);
    }
}

/* Returns 0 or an errno value. */
static int print_line(enum ps_log_level level, const char *text)
{
    char line[6 * 2048];
    ssize_t n;
    struct ps_str entry;

    /* Reserves one byte for the newline. */
    ps_str_init(&entry, line, sizeof(line) - 1);
    switch (sink.format) {
    case PS_LOG_FORMAT_JOURNAL:
        ps_str_addf(&entry, "<%d>%s", syslog_priority(level), text);
        break;
    case PS_LOG_FORMAT_JSON:
        ps_str_add(&entry, "{\"ts\":\"");
        add_time(&entry);
        ps_str_addf(&entry, "\",\"level\":\"%s\",\"program\":\"%s\",\"node\":",
                    ps_log_level_name(level), sink.program);
        add_json_string(&entry, sink.node);
        ps_str_add(&entry, ",\"msg\":");
        add_json_string(&entry, text);
        add_code(&entry, level, text);
        ps_str_add(&entry, "}");
        break;
    case PS_LOG_FORMAT_AUTO:
    case PS_LOG_FORMAT_TEXT:
        add_time(&entry);
        ps_str_addf(&entry, " %s %s: %s", ps_log_level_name(level),
                    sink.program, text);
        break;
    }
    line[entry.len] = '\n';
    n = write(STDERR_FILENO, line, entry.len + 1);
    sink.is_torn = n > 0 && (size_t)n < entry.len + 1;
    return n < 0 ? errno : sink.is_torn ? ENOSPC : 0;
}

/* There is no other place to report a loss to: the next line that is written
 * has one with the number of those lost before it. */
static void write_line(enum ps_log_level level, const char *text)
{
    char summary[128];
    struct ps_str s;
    int error;

    if (sink.lost > 0) {
        if (sink.is_torn && write(STDERR_FILENO, "\n", 1) == 1) {
            sink.is_torn = false;
        }
        ps_str_init(&s, summary, sizeof(summary));
        ps_str_addf(&s, "%llu lines of this log are lost: standard error: %s",
                    (unsigned long long)sink.lost, strerror(sink.lost_error));
        if (print_line(PS_LOG_WARNING, summary) == 0) {
            sink.lost = 0;
        }
    }
    error = print_line(level, text);
    if (error != 0) {
        sink.lost++;
        sink.lost_error = error;
    }
}

static ps_time monotonic_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (ps_time)t.tv_sec * PS_SECONDS(1) + (ps_time)t.tv_nsec;
}

static void write_entry(void *ctx, enum ps_log_level level, uint64_t kind,
                        const char *text)
{
    (void)ctx;
    /* Debug lines are never limited. */
    if (kind == 0 || level >= PS_LOG_DEBUG ||
        ps_loglimit_admit(&loglimit, kind, level, text, monotonic_now())) {
        write_line(level, text);
    } else if (sink.skipped != NULL) {
        sink.skipped(sink.skipped_ctx);
    }
}

void ps_logsink_on_skipped(void (*skipped)(void *ctx), void *ctx)
{
    sink.skipped = skipped;
    sink.skipped_ctx = ctx;
}

void ps_logsink_write_summaries(bool all)
{
    enum ps_log_level level;
    char text[PS_LOGLIMIT_TEXT + 64];
    struct ps_str s;

    for (;;) {
        ps_str_init(&s, text, sizeof(text));
        if (!ps_loglimit_next_summary(&loglimit, monotonic_now(), all, &level,
                                      &s)) {
            return;
        }
        write_line(level, text);
    }
}

ps_time ps_logsink_deadline(void)
{
    return ps_loglimit_deadline(&loglimit);
}

void ps_logsink_open(enum ps_log_format format, enum ps_log_level least,
                     const char *program)
{
    if (format == PS_LOG_FORMAT_AUTO) {
        format = is_journal() ? PS_LOG_FORMAT_JOURNAL : PS_LOG_FORMAT_TEXT;
    }
    sink.format = format;
    sink.program = program;
    ps_log_set(write_entry, NULL, least);
}

void ps_logsink_set_node(const char *node)
{
    sink.node = node;
}
