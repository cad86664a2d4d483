/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of a job and their states, and the wait for whatever comes next:
 * output, ends of processes, signals. */
#include "pslaunch/run.h"

#include "base/state_table.h"
#include "base/str.h"
#include "crypto/pki.h"
#include "pslaunch/remote.h"
#include "pslaunch/supervisor.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ----------------------------------------------------------------- children */

static const uint32_t child_allowed[] = {
    [CHILD_STARTED] = PS_STATE_BIT(CHILD_READY) | PS_STATE_BIT(CHILD_ENDED) |
                      PS_STATE_BIT(CHILD_LOST),
    /* A daemon. */
    [CHILD_READY] = PS_STATE_BIT(CHILD_ENDED) | PS_STATE_BIT(CHILD_LOST),
    [CHILD_ENDED] = 0,
    /* With the connection to its host. */
    [CHILD_LOST] = 0,
};
/* A process that pslaunch has started, on this host or another. */
static const struct ps_state_table child_states = {
    .name = "child",
    .count = sizeof(child_allowed) / sizeof(child_allowed[0]),
    .allowed = child_allowed,
};

static void child_set_state(struct child *c, enum child_state to)
{
    ps_state_change(&child_states, &c->state, (uint8_t)to);
}

void child_describe(const struct child *c, char *text, size_t cap)
{
    const char *memory = c->lacked_memory
                             ? ", by the kernel for lack of memory, which "
                               "dmesg on that host shows"
                             : "";

    if (c->state == CHILD_LOST) {
        snprintf(text, cap, "was lost with the connection to its host");
    } else if (WIFSIGNALED(c->status)) {
        snprintf(text, cap, "was killed by signal %d (%s)%s",
                 WTERMSIG(c->status), strsignal(WTERMSIG(c->status)), memory);
    } else {
        snprintf(text, cap, "exited with code %d%s", WEXITSTATUS(c->status),
                 memory);
    }
}

int child_exit_code(const struct child *c)
{
    if (c->state == CHILD_LOST) {
        return EXIT_UNAVAILABLE;
    }
    return WIFSIGNALED(c->status) ? 128 + WTERMSIG(c->status)
                                  : WEXITSTATUS(c->status);
}

struct child *child_add(struct run *r, uint32_t host, bool is_daemon,
                        const char *name, const char *tag,
                        struct log_file *file)
{
    struct child *c = &r->child[r->child_count++];

    *c = (struct child){
        .host = host, .is_daemon = is_daemon, .ready = -1, .file = file};
    snprintf(c->name, sizeof(c->name), "%s", name);
    c->out = stream_new(-1, is_daemon ? &r->err : &r->out, file, tag);
    c->err = stream_new(-1, &r->err, file, tag);
    c->out->is_lossy = is_daemon;
    c->err->is_lossy = is_daemon;
    r->workers_alive += !is_daemon;
    return c;
}

/* A worker that has failed, in a job whose others wait for it. */
static void print_remedy(struct run *r, const struct child *c)
{
    const struct plan *p = r->plan;
    char text[96];

    if (r->is_stopping || !p->job.failure.keep_going ||
        strcmp(p->job.failure.on_worker_loss, "wait") != 0) {
        return;
    }
    child_describe(c, text, sizeof(text));
    sink_print(&r->err,
               "%s on %s %s; the others wait for it, and nothing starts it "
               "again: "
               "start it by hand with the environment of another rank of its "
               "node and its own PSKV_RANK, or end the job with Ctrl-C or "
               "psctl jobs cancel %s",
               c->name, r->places[c->host].name, text, p->job.name);
}

/* A worker fails the job, unless it ends by its end. */
static void count_end(struct run *r, const struct child *c)
{
    if (c->is_daemon) {
        return;
    }
    r->workers_alive--;
    if (c->status != 0 || c->state == CHILD_LOST) {
        print_remedy(r, c);
    }
    if ((c->status != 0 || c->state == CHILD_LOST) && r->first_failed == NULL &&
        !r->is_stopping) {
        r->first_failed = c;
    }
}

bool child_certify(struct run *r, struct child *c, EVP_PKEY *key,
                   char pem[AUTHORITY_TEXT_BYTES])
{
    struct ps_str certificates;
    struct ps_str why = PS_STR_ROOM(512);
    int rc;

    ps_str_init(&certificates, pem, AUTHORITY_TEXT_BYTES);
    rc = authority_issue(r->authority, (enum ps_role)c->role, c->node, key,
                         &certificates, &why);
    c->role = 0;
    if (rc != 0) {
        sink_print(&r->err, "no certificate for %s: %s", c->name, why.data);
    }
    return rc == 0 && !certificates.truncated;
}

void child_on_ready(struct child *c)
{
    child_set_state(c, CHILD_READY);
}

void child_on_ended(struct run *r, struct child *c, int status)
{
    char text[CHILD_TEXT_MAX];

    child_set_state(c, CHILD_ENDED);
    c->status = status;
    c->pid = 0;
    if (c->is_daemon && !r->is_stopping) {
        child_describe(c, text, sizeof(text));
        sink_print(&r->err, "%s %s", c->name, text);
    }
    count_end(r, c);
}

void child_on_lost(struct run *r, struct child *c)
{
    child_set_state(c, CHILD_LOST);
    count_end(r, c);
}

bool children_any_alive(const struct run *r, bool daemons)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].is_daemon == daemons &&
            r->child[i].state < CHILD_ENDED) {
            return true;
        }
    }
    return false;
}

/* Makes key and certificate of a daemon. Returns their descriptor; -1 after a
 * message. */
static int open_credential(struct run *r, struct child *c)
{
    char pem[AUTHORITY_TEXT_BYTES];
    struct ps_str why = PS_STR_ROOM(256);
    EVP_PKEY *key = NULL;
    int fd = -1;
    if (ps_pki_key_new(&key, &why) != 0) {
        sink_print(&r->err, "no certificate for %s: %s", c->name, why.data);
        return -1;
    }
    if (child_certify(r, c, key, pem)) {
        fd = credential_open(key, pem);
        if (fd < 0) {
            sink_print(&r->err, "no memory for the certificate of %s: %s",
                       c->name, strerror(-fd));
        }
    }
    ps_pki_key_free(key);
    return fd < 0 ? -1 : fd;
}

/* Starts a process on this host. False after a message. */
static bool start_here(struct run *r, struct child *c, const struct spawn *s)
{
    struct spawn spawn = *s;
    struct process p;
    int error;

    if (c->role != 0) {
        spawn.credential = open_credential(r, c);
        if (spawn.credential < 0) {
            child_on_ended(r, c, W_EXITCODE(EXIT_FAILED, 0));
            return false;
        }
    }
    error = process_start(&spawn, &p);
    if (spawn.credential != 0) {
        close(spawn.credential);
    }
    if (error != 0) {
        sink_print(&r->err, "cannot start %s: %s", c->name, strerror(error));
        child_on_ended(r, c, W_EXITCODE(EXIT_FAILED, 0));
        return false;
    }
    c->pid = p.pid;
    c->out->in = p.out;
    c->err->in = p.err;
    c->ready = p.ready;
    return true;
}

bool child_start(struct run *r, struct child *c, const struct spawn *s)
{
    return r->remotes != NULL ? remote_start(r, c, s) : start_here(r, c, s);
}

void children_signal(struct run *r, bool daemons, int sig)
{
    if (r->remotes != NULL) {
        remotes_signal(r, daemons, sig);
        return;
    }
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].is_daemon == daemons && r->child[i].pid != 0) {
            process_signal_group(r->child[i].pid, sig);
        }
    }
}

/* --------------------------------------------------------------------- loop */

static void reap_children(struct run *r)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < r->child_count; i++) {
            if (r->child[i].pid == pid) {
                r->child[i].lacked_memory = process_lacked_memory(status,
                                                                  &r->oom_seen);
                child_on_ended(r, &r->child[i], status);
            }
        }
        remote_on_exit(r, pid, status);
    }
}

static void read_signals(struct run *r)
{
    struct signalfd_siginfo info;

    while (read(r->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) {
            r->interrupt_signal = r->interrupt_count == 0 ? info.ssi_signo
                                                          : r->interrupt_signal;
            r->interrupt_count++;
        }
    }
    reap_children(r);
}

/* Reads the newline of a daemon that is ready, or the end of its pipe. */
static void read_ready(struct child *c)
{
    char byte;
    ssize_t n = read(c->ready, &byte, 1);

    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (n == 1 && c->state == CHILD_STARTED) {
        child_on_ready(c);
    }
    close(c->ready);
    c->ready = -1;
}

/* Arguments of poll(), and the owner of each descriptor. */
struct watch {
    struct pollfd *fds;
    struct watch_owner {
        struct stream *stream; /* NULL: none. */
        struct child *ready;   /* NULL: none. */
        uint32_t host;         /* Of a connection, from 1 on; 0: none. */
        bool is_listener;
    } * owners;
    nfds_t count;
};

static void watch_add(struct watch *w, int fd, short events,
                      struct watch_owner owner)
{
    w->owners[w->count] = owner;
    w->fds[w->count++] = (struct pollfd){.fd = fd, .events = events};
}

static void watch_child(struct watch *w, struct child *c)
{
    struct stream *both[2] = {c->out, c->err};

    for (int k = 0; k < 2; k++) {
        if (both[k]->in >= 0 && !stream_is_blocked(both[k])) {
            watch_add(w, both[k]->in, POLLIN,
                      (struct watch_owner){.stream = both[k]});
        }
    }
    if (c->ready >= 0) {
        watch_add(w, c->ready, POLLIN, (struct watch_owner){.ready = c});
    }
}

static void watch_remote(struct watch *w, const struct run *r, uint32_t host)
{
    struct remote *m = &r->remotes[host];

    if (m->err != NULL && m->err->in >= 0) {
        watch_add(w, m->err->in, POLLIN,
                  (struct watch_owner){.stream = m->err});
    }
    if (m->state == REMOTE_OPENING || m->state == REMOTE_OPEN) {
        struct watch_owner owner = {.host = host + 1};

        watch_add(w, m->link.in, POLLIN, owner);
        watch_add(w, link_has_output(&m->link) ? m->link.out : -1, POLLOUT,
                  owner);
    }
}

static void serve_remote(struct run *r, uint32_t host, short revents)
{
    const struct remote *m = &r->remotes[host];

    if (m->state != REMOTE_OPENING && m->state != REMOTE_OPEN) {
        return; /* Closed for what came before. */
    }
    if ((revents & POLLOUT) != 0) {
        link_write(&r->remotes[host].link);
    } else {
        remote_read(r, host);
    }
}

static void serve(struct run *r, const struct watch *w)
{
    if (w->fds[1].revents != 0) {
        sink_write(&r->out);
    }
    if (w->fds[2].revents != 0) {
        sink_write(&r->err);
    }
    for (nfds_t i = 3; i < w->count; i++) {
        if (w->fds[i].revents == 0) {
            continue;
        }
        if (w->owners[i].stream != NULL && !stream_read(w->owners[i].stream)) {
            stream_close(w->owners[i].stream);
        }
        if (w->owners[i].ready != NULL) {
            read_ready(w->owners[i].ready);
        }
        if (w->owners[i].is_listener) {
            listener_serve(r->listener);
        }
        if (w->owners[i].host != 0) {
            serve_remote(r, w->owners[i].host - 1, w->fds[i].revents);
        }
    }
    if (w->fds[0].revents != 0) {
        read_signals(r);
    }
}

/* A pipe without a reader is the reader's choice, and no failure. */
static void report_failure(struct run *r, struct failure *f, const char *name)
{
    if (f->error == 0 || f->error == EPIPE || f->is_reported) {
        return;
    }
    f->is_reported = true;
    r->has_lost_output = true;
    sink_print(
        &r->err,
        "cannot write %s: %s; it lacks the rest of the output, the job goes on",
        name, strerror(f->error));
}

void outputs_report(struct run *r)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        struct log_file *file = r->child[i].file;

        if (file != NULL) {
            report_failure(r, &file->failure, file->path);
        }
    }
    report_failure(r, &r->out.failure, "standard output");
    report_failure(r, &r->err.failure, "standard error");
}

void run_loop(struct run *r, uint64_t until_ms)
{
    size_t most = 3 * ((size_t)r->child_count + r->place_count) + 4;
    struct watch w = {
        .fds = calloc(most, sizeof(*w.fds)),
        .owners = calloc(most, sizeof(*w.owners)),
    };
    struct watch_owner none = {0};
    uint64_t now = now_ms();

    if (r->remotes != NULL && until_ms > now + LOOK_MS) {
        until_ms = now + LOOK_MS;
    }
    if (w.fds == NULL || w.owners == NULL) {
        abort();
    }
    watch_add(&w, r->signals, POLLIN, none);
    watch_add(&w, sink_is_empty(&r->out) ? -1 : r->out.fd, POLLOUT, none);
    watch_add(&w, sink_is_empty(&r->err) ? -1 : r->err.fd, POLLOUT, none);
    if (r->listener != NULL) {
        watch_add(&w, listener_fd(r->listener), POLLIN,
                  (struct watch_owner){.is_listener = true});
    }
    for (uint32_t i = 0; i < r->child_count; i++) {
        watch_child(&w, &r->child[i]);
    }
    for (uint32_t i = 0; r->remotes != NULL && i < r->place_count; i++) {
        watch_remote(&w, r, i);
    }
    if (poll(w.fds, w.count, until_ms <= now ? 0 : (int)(until_ms - now)) > 0) {
        serve(r, &w);
    }
    remotes_tick(r);
    outputs_report(r);
    free(w.fds);
    free(w.owners);
}
