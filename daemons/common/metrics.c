/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of a daemon as text, in two parts, what the loop thread knows, and what
 * any thread may ask the system; and the file of metrics.file, written at an
 * interval by a thread of libuv's pool, so that a file system that blocks does not
 * stop the loop, and removed at the end. The first one is written at the start,
 * before the daemon serves. */
#include "common/daemon_inner.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "base/log.h"
#include "base/state_table.h"
#include "common/metrics.h"
#include "driver/driver.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>
#include <uv.h>

/* --------------------------------------------------------------- one metric */

void ps_metric_begin(struct ps_metrics *m, const char *name,
                     enum ps_metric_type type, const char *help)
{
    static const char *const types[] = {
        [PS_METRIC_COUNTER] = "counter", [PS_METRIC_GAUGE] = "gauge"};

    ps_str_addf(&m->text, "# HELP %s%s %s\n# TYPE %s%s %s\n", m->prefix, name,
                help, m->prefix, name, types[type]);
}

static void add_name(struct ps_metrics *m, const char *name, const char *label,
                     const char *word)
{
    ps_str_addf(&m->text, "%s%s{%s", m->prefix, name, m->labels);
    if (label != NULL) {
        ps_str_addf(&m->text, ",%s=\"%s\"", label, word);
    }
    ps_str_add(&m->text, "} ");
}

void ps_metric_sample(struct ps_metrics *m, const char *name, const char *label,
                      const char *word, uint64_t value)
{
    add_name(m, name, label, word);
    ps_str_addf(&m->text, "%" PRIu64 "\n", value);
}

/* Adds the value of a label. Bytes that are not printable ASCII are \xNN. */
static void add_label_value(struct ps_str *text, const char *value)
{
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            ps_str_addf(text, "\\%c", *c);
        } else if (*c < ' ' || *c > '~') {
            ps_str_addf(text, "\\\\x%02x", (unsigned char)*c);
        } else {
            ps_str_addf(text, "%c", *c);
        }
    }
}

/* Adds the shortest decimal number that is read as this one. */
static void add_real(struct ps_str *text, double value)
{
    char digits[32];

    if (!isfinite(value)) {
        ps_str_add(text, isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
        return;
    }
    snprintf(digits, sizeof(digits), "%.15g", value);
    if (strtod(digits, NULL) != value) {
        snprintf(digits, sizeof(digits), "%.17g", value);
    }
    ps_str_add(text, digits);
}

void ps_metric_real(struct ps_metrics *m, const char *name,
                    const struct ps_metric_label *labels, size_t count,
                    double value)
{
    ps_str_addf(&m->text, "%s%s{%s", m->prefix, name, m->labels);
    for (size_t i = 0; i < count; i++) {
        ps_str_addf(&m->text, ",%s=\"", labels[i].name);
        add_label_value(&m->text, labels[i].value);
        ps_str_add(&m->text, "\"");
    }
    ps_str_add(&m->text, "} ");
    add_real(&m->text, value);
    ps_str_add(&m->text, "\n");
}

void ps_metric_counter(struct ps_metrics *m, const char *name, const char *help,
                       uint64_t value)
{
    ps_metric_begin(m, name, PS_METRIC_COUNTER, help);
    ps_metric_sample(m, name, NULL, NULL, value);
}

void ps_metric_gauge(struct ps_metrics *m, const char *name, const char *help,
                     uint64_t value)
{
    ps_metric_begin(m, name, PS_METRIC_GAUGE, help);
    ps_metric_sample(m, name, NULL, NULL, value);
}

/* ------------------------------------------------------------------ process */

static void add_seconds(struct ps_metrics *m, const char *name,
                        enum ps_metric_type type, const char *help,
                        uint64_t microseconds)
{
    ps_metric_begin(m, name, type, help);
    add_name(m, name, NULL, NULL);
    ps_str_addf(&m->text, "%" PRIu64 ".%06" PRIu64 "\n", microseconds / 1000000,
                microseconds % 1000000);
}

static uint64_t microseconds_of(const struct timeval *t)
{
    return (uint64_t)t->tv_sec * 1000000 + (uint64_t)t->tv_usec;
}

static void add_cpu_time(struct ps_metrics *m)
{
    struct rusage u;

    if (getrusage(RUSAGE_SELF, &u) == 0) {
        add_seconds(m, "process_cpu_seconds_total", PS_METRIC_COUNTER,
                    "User and system CPU time in seconds.",
                    microseconds_of(&u.ru_utime) +
                        microseconds_of(&u.ru_stime));
    }
}

static void add_memory(struct ps_metrics *m)
{
    FILE *f = fopen("/proc/self/statm", "re");
    uint64_t pages;
    uint64_t resident;

    if (f == NULL) {
        return;
    }
    if (fscanf(f, "%" SCNu64 " %" SCNu64, &pages, &resident) == 2) {
        const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

        ps_metric_gauge(m, "process_virtual_memory_bytes",
                        "Address space in bytes.", pages * page);
        ps_metric_gauge(m, "process_resident_memory_bytes",
                        "Resident memory in bytes.", resident * page);
    }
    (void)fclose(f);
}

static void add_descriptors(struct ps_metrics *m)
{
    DIR *d = opendir("/proc/self/fd");
    struct rlimit limit;
    uint64_t count = 0;

    if (d == NULL) {
        return;
    }
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        count += e->d_name[0] != '.';
    }
    (void)closedir(d);
    ps_metric_gauge(m, "process_open_fds", "Open file descriptors.", count - 1);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        ps_metric_gauge(m, "process_max_fds", "Limit on open file descriptors.",
                        limit.rlim_cur);
    }
}

/* CPU time, memory and descriptors of the process, as the client libraries of
 * Prometheus name them, behind the prefix: a collector of files has a
 * `process_*` of its own. `started_ns`: start, in nanoseconds since 1970. */
static void add_process(struct ps_metrics *m, uint64_t started_ns)
{
    add_cpu_time(m);
    add_memory(m);
    add_descriptors(m);
    add_seconds(m, "process_start_time_seconds", PS_METRIC_GAUGE,
                "Start of the process in seconds since 1970.",
                started_ns / 1000);
}

/* --------------------------------------------------------- text of a daemon */

static const char *prefix_of(enum ps_role role)
{
    return role == PS_ROLE_SCHED    ? "psched_"
           : role == PS_ROLE_SERVER ? "psserver_"
                                    : "psagent_";
}

static void add_common(const struct daemon *d, struct ps_metrics *m)
{
    struct ps_driver_stats s;

    ps_driver_stats(d->driver, &s);
    ps_metric_begin(m, "build_info", PS_METRIC_GAUGE, "Version; always 1.");
    ps_metric_sample(m, "build_info", "version", PS_VERSION, 1);
    ps_metric_gauge(m, "serving",
                    "1: registered with the scheduler, so far as the daemon "
                    "needs it.",
                    d->is_serving);
    ps_metric_gauge(m, "connections", "Open connections.", s.connections);
    ps_metric_gauge(m, "connections_pre_handshake",
                    "Connections before the end of their handshake.",
                    s.pre_handshake);
    ps_metric_gauge(m, "connections_paused",
                    "Connections that are not read for lack of memory.",
                    s.paused);
    ps_metric_counter(m, "connections_refused_total",
                      "Connections beyond a limit.", s.refused);
    ps_metric_counter(m, "corrupt_frames_total",
                      "Frames with a wrong checksum; each has closed its "
                      "connection.",
                      s.corrupt);
    ps_metric_counter(m, "received_bytes_total", "Bytes read from connections.",
                      s.bytes_in);
    ps_metric_counter(m, "sent_bytes_total", "Bytes written to connections.",
                      s.bytes_out);
    ps_metric_gauge(m, "output_queued_bytes",
                    "Output that waits for its receivers.", s.queued);
}

static void set_labels(const struct daemon *d,
                       char out[DAEMON_METRICS_LABELS_MAX])
{
    snprintf(out, DAEMON_METRICS_LABELS_MAX, "cluster=\"%s\",node=\"%s\"",
             d->facts.cluster, d->facts.name);
}

void daemon_metrics_add(const struct daemon *d, struct ps_str *text)
{
    char labels[DAEMON_METRICS_LABELS_MAX];
    struct ps_metrics m = {
        .text = *text, .prefix = prefix_of(d->spec->self), .labels = labels};

    set_labels(d, labels);
    add_common(d, &m);
    d->spec->metrics(d->app.self, &m);
    *text = m.text;
    assert(!text->truncated);
}

void daemon_metrics_add_process(const struct daemon *d, struct ps_str *text)
{
    char labels[DAEMON_METRICS_LABELS_MAX];
    struct ps_metrics m = {
        .text = *text, .prefix = prefix_of(d->spec->self), .labels = labels};

    set_labels(d, labels);
    add_process(&m, d->facts.wall_ns);
    *text = m.text;
    assert(!text->truncated);
}

/* --------------------------------------------------------------------- file */

enum file_state {
    FILE_IDLE,
    FILE_WRITING, /* A thread of the pool has `text`. */
    FILE_ENDING,  /* The same, and the daemon ends. */
};

static const uint32_t file_moves[] = {
    [FILE_IDLE] = PS_STATE_BIT(FILE_WRITING),
    [FILE_WRITING] = PS_STATE_BIT(FILE_IDLE) | PS_STATE_BIT(FILE_ENDING),
    [FILE_ENDING] = 0,
};

/* The file of metrics.file, between two writes of it. */
static const struct ps_state_table file_table = {
    .name = "metrics file",
    .count = sizeof(file_moves) / sizeof(file_moves[0]),
    .allowed = file_moves,
};

struct daemon_metrics_file {
    struct daemon *d;
    const char *path;
    struct ps_loop_timer timer;
    uv_work_t work;
    uint8_t state;   /* enum file_state */
    int error;       /* errno of the last write; 0: it is good. */
    bool has_failed; /* The last write failed, which the log says. */
    struct ps_str text;
    char data[DAEMON_METRICS_TEXT_MAX];
};

/* On a thread of the pool. */
static void complete_and_write(uv_work_t *work)
{
    struct daemon_metrics_file *f = work->data;

    daemon_metrics_add_process(f->d, &f->text);
    f->error = ps_file_replace(f->path, f->text.data, f->text.len, 0644,
                               PS_FILE_PASSING);
}

static void report_result(struct daemon_metrics_file *f)
{
    if (f->error != 0 && !f->has_failed) {
        ps_log(PS_LOG_WARNING, "metrics.file: cannot write %s: %s", f->path,
               strerror(f->error));
    }
    f->has_failed = f->error != 0;
}

static void remove_file(struct daemon_metrics_file *f)
{
    (void)unlink(f->path);
    ps_free(f);
}

static void written(uv_work_t *work, int status)
{
    struct daemon_metrics_file *f = work->data;

    (void)status; /* Work is never canceled. */
    if (f->state == FILE_ENDING) {
        remove_file(f);
        return;
    }
    ps_state_change(&file_table, &f->state, FILE_IDLE);
    report_result(f);
}

static void begin_text(struct daemon_metrics_file *f)
{
    ps_str_init(&f->text, f->data, sizeof(f->data));
    daemon_metrics_add(f->d, &f->text);
}

static void set_timer(struct daemon_metrics_file *f)
{
    struct ps_loop *l = f->d->loop;

    ps_loop_timer_set(
        l, &f->timer,
        ps_time_add(ps_loop_now(l),
                    daemon_common_options(f->d)->metrics_interval));
}

/* A write that takes longer than the interval delays the next one. */
static void file_due(struct ps_loop_timer *t)
{
    struct daemon_metrics_file *f = PS_CONTAINER(t, struct daemon_metrics_file,
                                                 timer);

    if (f->state == FILE_IDLE) {
        begin_text(f);
        if (uv_queue_work(ps_loop_uv(f->d->loop), &f->work, complete_and_write,
                          written) == 0) {
            ps_state_change(&file_table, &f->state, FILE_WRITING);
        }
    }
    set_timer(f);
}

void daemon_metrics_file_start(struct daemon *d)
{
    const char *path = daemon_common_options(d)->metrics_file;
    struct daemon_metrics_file *f;

    if (path[0] == '\0') {
        return;
    }
    f = ps_calloc(1, sizeof(*f));
    d->metrics.file = f;
    f->d = d;
    f->path = path;
    f->work.data = f;
    f->timer.due = file_due;
    begin_text(f);
    complete_and_write(&f->work);
    report_result(f);
    set_timer(f);
}

void daemon_metrics_file_stop(struct daemon *d)
{
    struct daemon_metrics_file *f = d->metrics.file;

    if (f == NULL) {
        return;
    }
    d->metrics.file = NULL;
    ps_loop_timer_set(d->loop, &f->timer, PS_TIME_NEVER);
    if (f->state == FILE_WRITING) {
        /* The loop ends after the work. */
        ps_state_change(&file_table, &f->state, FILE_ENDING);
    } else {
        remove_file(f);
    }
}
