/* SPDX-License-Identifier: Apache-2.0 */
/* The file of metrics.file: written at an interval by a thread of libuv's pool,
 * so that a file system that blocks does not stop the loop; removed at the
 * end. The first one is written at the start, before the daemon serves. */
#include "common/daemon_inner.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "base/log.h"
#include "base/state_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

enum file_state {
    FILE_IDLE,
    FILE_WRITING, /* A thread of the pool has `text`. */
    FILE_ENDING,  /* The same, and the daemon ends. */
};

static const char *const file_states[] = {
    [FILE_IDLE] = "idle",
    [FILE_WRITING] = "writing",
    [FILE_ENDING] = "ending",
};

static const uint32_t file_moves[] = {
    [FILE_IDLE] = PS_STATE_BIT(FILE_WRITING),
    [FILE_WRITING] = PS_STATE_BIT(FILE_IDLE) | PS_STATE_BIT(FILE_ENDING),
    [FILE_ENDING] = 0,
};

/* The file of metrics.file, between two writes of it. */
static const struct ps_state_table file_table = {
    .name = "metrics file",
    .states = file_states,
    .count = sizeof(file_states) / sizeof(file_states[0]),
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

/* Replaces the file, which others may read. Returns 0 or an errno value. */
static int write_file(const char *path, const struct ps_str *text)
{
    char temp[4096];
    FILE *f;
    int reason = 0;
    int error;

    if (snprintf(temp, sizeof(temp), "%s.new", path) >= (int)sizeof(temp)) {
        return ENAMETOOLONG;
    }
    f = fopen(temp, "we");
    if (f == NULL) {
        return errno;
    }
    if (fchmod(fileno(f), 0644) != 0) {
        reason = errno;
    }
    /* More than the buffer of the file is written at once. */
    if (fwrite(text->data, 1, text->len, f) != text->len && reason == 0) {
        reason = errno;
    }
    error = ps_file_close(f);
    reason = reason != 0 ? reason : error;
    if (reason == 0 && rename(temp, path) != 0) {
        reason = errno;
    }
    if (reason != 0) {
        (void)unlink(temp);
    }
    return reason;
}

/* On a thread of the pool. */
static void complete_and_write(uv_work_t *work)
{
    struct daemon_metrics_file *f = work->data;

    daemon_metrics_add_process(f->d, &f->text);
    f->error = write_file(f->path, &f->text);
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
