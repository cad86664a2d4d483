/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a job: daemons first (when none run here), then the workers, then
 * a wait for the first failure or the last success, and the end of all
 * processes.
 *
 *     psched ready -> psservers and agents ready -> workers
 *     all workers ended, or one failed, or a signal
 *     -> TERM to workers, grace, KILL; TERM to daemons, grace, KILL
 *     -> KILL to every remaining descendant
 *
 * Its own daemons live in a temporary folder under $TMPDIR. */
#include "pslaunch/job.h"

#include "base/str.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Time after a request to end that is not yet worth a word. */
#define NOTE_AFTER_MS            1000u
/* Processes that a note names. */
#define NAMED_MAX                8u

/* Limit on flushing output to a slow reader after an interrupt. */
#define FLUSH_AFTER_INTERRUPT_MS 1000u

/* ------------------------------------------------------------------- ending */

/* "rank 0, rank 3 and 5 more": the children of a group that have not ended. */
static void list_alive(const struct run *r, bool daemons, struct ps_str *list)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < r->child_count; i++) {
        const struct child *c = &r->child[i];

        if (c->is_daemon != daemons || c->state >= CHILD_ENDED) {
            continue;
        }
        if (count < NAMED_MAX) {
            ps_str_addf(list, "%s%s", count > 0 ? ", " : "", c->name);
        }
        count++;
    }
    if (count > NAMED_MAX) {
        ps_str_addf(list, " and %u more", count - NAMED_MAX);
    }
}

static void print_waiting(struct run *r, bool daemons, uint64_t left_ms)
{
    char text[512];
    struct ps_str list;

    ps_str_init(&list, text, sizeof(text));
    list_alive(r, daemons, &list);
    sink_print(&r->err, "waiting for the end of %s; KILL comes in %.0f s%s",
               text, (double)left_ms / 1000,
               r->interrupt_count > 0 ? ", or at once at another Ctrl-C (INT "
                                        "or TERM)"
                                      : "");
}

static void print_killed(struct run *r, bool daemons)
{
    char text[512];
    struct ps_str list;

    ps_str_init(&list, text, sizeof(text));
    list_alive(r, daemons, &list);
    sink_print(&r->err,
               "killed %s, which had not ended %.1f s after TERM (--grace)",
               text, (double)r->plan->grace_ms / 1000);
}

/* Ends a group of children: TERM, grace, KILL. A second interrupt ends the
 * grace. */
static void stop_group(struct run *r, bool daemons)
{
    const uint64_t begin = now_ms();
    const uint64_t end = begin + r->plan->grace_ms;
    uint64_t note = begin + NOTE_AFTER_MS;

    r->plan->launcher->signal(r, daemons, SIGTERM);
    while (children_any_alive(r, daemons) && now_ms() < end &&
           r->interrupt_count < 2) {
        if (now_ms() >= note) {
            print_waiting(r, daemons, end - now_ms());
            note = UINT64_MAX;
        }
        run_loop(r, note < end ? note : end);
    }
    if (children_any_alive(r, daemons) && r->interrupt_count < 2) {
        print_killed(r, daemons);
    }
    r->plan->launcher->signal(r, daemons, SIGKILL);
    while (children_any_alive(r, daemons)) {
        run_loop(r, now_ms() + 1000);
    }
}

/* Writes out the sinks. After an interrupt it gives up at `until_ms` if the
 * reader takes nothing. False: it gave up. */
static bool flush_sinks(struct run *r, uint64_t until_ms)
{
    while (!sink_is_empty(&r->out) || !sink_is_empty(&r->err)) {
        if (r->interrupt_count > 0 && now_ms() >= until_ms) {
            return false;
        }
        run_loop(r, r->interrupt_count > 0 ? until_ms : now_ms() + 1000);
    }
    return true;
}

/* Forwards the output left in the pipes after all processes have ended. */
static void drain_streams(struct run *r, uint64_t until_ms)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        struct stream *both[2] = {r->child[i].out, r->child[i].err};

        for (int k = 0; k < 2; k++) {
            struct stream *s = both[k];

            while (s->in >= 0 && stream_read(s) && stream_is_blocked(s) &&
                   flush_sinks(r, until_ms)) {
            }
            stream_close(s);
        }
    }
}

/* Closes the files of --output-dir, after their last line. */
static void close_files(struct run *r)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].file != NULL) {
            log_file_close(r->child[i].file);
        }
    }
}

static void free_run(struct run *r)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        stream_free(r->child[i].out);
        stream_free(r->child[i].err);
        free(r->child[i].file);
    }
    free(r->child);
    authority_free(r->authority);
    free(r->places);
    free(r->remotes);
    free(r->out.bytes);
    free(r->err.bytes);
}

static void print_first_failure(struct run *r)
{
    const struct child *c = r->first_failed;
    char text[CHILD_TEXT_MAX];
    const char *tail;
    size_t len;

    if (c == NULL) {
        return;
    }
    child_describe(c, text, sizeof(text));
    tail = c->err->tail;
    len = c->err->tail_len;
    if (len > 400) {
        tail += len - 400;
        len = 400;
        /* From the first whole line, if there is one. */
        const char *end = memchr(tail, '\n', len - 1);

        if (end != NULL) {
            len -= (size_t)(end + 1 - tail);
            tail = end + 1;
        }
    }
    if (len > 0) { /* Cuts the final newline; sink_print() adds one. */
        sink_print(&r->err, "%s wrote last:\n%.*s", c->name, (int)len - 1,
                   tail);
    }
    sink_print(&r->err, "first to fail: %s on %s %s", c->name,
               r->places[c->host].name, text);
}

static int end_job(struct run *r, bool started)
{
    int code = EXIT_OK;
    uint64_t until;

    r->is_stopping = true;
    stop_group(r, false);
    stop_group(r, true);
    r->plan->launcher->close(r);
    if ((!started || (r->has_lost_host && r->first_failed == NULL)) &&
        r->interrupt_count == 0) {
        code = EXIT_UNAVAILABLE;
    } else if (r->first_failed != NULL) {
        code = child_exit_code(r->first_failed);
    } else if (r->interrupt_count > 0) {
        code = 128 + (int)r->interrupt_signal;
    }
    until = now_ms() + FLUSH_AFTER_INTERRUPT_MS;
    drain_streams(r, until);
    close_files(r);
    (void)flush_sinks(r, until);
    outputs_report(r);
    print_first_failure(r);
    (void)flush_sinks(r, until);
    if (code == EXIT_OK && r->has_lost_output) {
        code = EXIT_IOERR;
    }
    free_run(r);
    return code;
}

/* ------------------------------------------------------------------ running */

/* Creates the output folder, or accepts an existing one, but no symbolic link
 * of another user. */
static bool make_output_dir(const struct plan *p)
{
    struct stat st;

    if (p->output_dir == NULL || mkdir(p->output_dir, 0777) == 0) {
        return true;
    }
    if (errno == EEXIST && lstat(p->output_dir, &st) == 0) {
        if (!S_ISLNK(st.st_mode) || st.st_uid == geteuid() || st.st_uid == 0) {
            return true;
        }
        fprintf(stderr,
                "pslaunch: --output-dir %s: it is a symbolic link of another "
                "user\n",
                p->output_dir);
        return false;
    }
    fprintf(stderr, "pslaunch: --output-dir %s: %s\n", p->output_dir,
            strerror(errno));
    return false;
}

static void print_start(struct run *r)
{
    const struct plan *p = r->plan;
    bool is_named = p->name != p->name_buffer;

    sink_print(&r->err, "job %s, psched at %s:%s%s", p->name,
               r->places[0].address, r->places[0].sched_port,
               is_named && !p->private_trio && !p->launcher->uses_hosts
                   ? "; no agent runs here, so it has daemons of its own "
                     "and runs on this host only"
                   : "");
    if (plan_encrypts(p)) {
        sink_print(&r->err,
                   "its connections are encrypted; on %s, psctl -e "
                   "unix:%s/psched.sock reaches psched",
                   r->places[0].name, r->places[0].dir);
    }
}

int run_plan(const struct plan *p)
{
    struct run r = {.plan = p,
                    .oom_seen = process_oom_kills(),
                    .out = {.fd = STDOUT_FILENO},
                    .err = {.fd = STDERR_FILENO}};
    bool started;

    if (p->dry_run) {
        print_plan(p);
        return EXIT_OK;
    }
    if (p->launcher->submit != NULL) {
        return p->launcher->submit(p);
    }
    if (!make_output_dir(p)) {
        return EXIT_CANTCREAT;
    }
    r.place_count = p->hosts.count > 0 ? p->hosts.count : 1;
    r.places = calloc(r.place_count, sizeof(*r.places));
    for (uint32_t i = 0; r.places != NULL && i < p->hosts.count; i++) {
        snprintf(r.places[i].name, sizeof(r.places[i].name), "%s",
                 p->hosts.hosts[i].name);
    }
    if (p->launcher->uses_hosts) {
        r.remotes = calloc(r.place_count, sizeof(*r.remotes));
    }
    r.child = calloc(1 + p->servers + p->layout.node_count + p->workers,
                     sizeof(struct child));
    r.signals = process_open_signals();
    if (r.signals < 0 || r.child == NULL || r.places == NULL) {
        perror("pslaunch");
        free_run(&r);
        return EXIT_FAILED;
    }
    started = (!p->launcher->uses_hosts || remotes_copy(&r)) &&
              p->launcher->open(&r) &&
              (!plan_has_daemons(p) || start_daemons(&r));
    if (started && plan_has_daemons(p)) {
        print_start(&r);
    }
    started = started && start_workers(&r);
    while (started && r.workers_alive > 0 && r.interrupt_count == 0 &&
           ((r.first_failed == NULL && !r.has_lost_host) || p->keep_going)) {
        run_loop(&r, now_ms() + 60000);
    }
    return end_job(&r, started);
}
