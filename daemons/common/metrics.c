/* SPDX-License-Identifier: Apache-2.0 */
#include "common/metrics.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

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

void ps_metrics_process(struct ps_metrics *m, uint64_t started_ns)
{
    add_cpu_time(m);
    add_memory(m);
    add_descriptors(m);
    add_seconds(m, "process_start_time_seconds", PS_METRIC_GAUGE,
                "Start of the process in seconds since 1970.",
                started_ns / 1000);
}
