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
#include "pslaunch.h"

#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* On a terminal, interval of notes about a daemon that is not ready. */
#define NOTE_MS                  30000u

/* Limit on flushing output to a slow reader after an interrupt. */
#define FLUSH_AFTER_INTERRUPT_MS 1000u

struct run {
    const struct plan *plan;
    struct child *child; /* Daemons, then workers. */
    uint32_t child_count;
    uint32_t workers_alive;
    int signals; /* signalfd */
    uint32_t interrupt_count;
    uint32_t interrupt_signal; /* Number of the first interrupting signal. */
    struct sink out;
    struct sink err;
    const struct child *first_failed;
    char dir[256]; /* Folder of its own daemons; "": none. */
    uint16_t sched_port;
    bool is_stopping;
};

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ------------------------------------------------------------------ waiting */

static void describe_status(int status, char *text, size_t cap)
{
    if (WIFSIGNALED(status)) {
        snprintf(text, cap, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    } else {
        snprintf(text, cap, "exited with code %d", WEXITSTATUS(status));
    }
}

static int exit_code_of(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void on_child_ended(struct run *r, struct child *c, int status)
{
    char text[96];

    c->has_ended = true;
    c->status = status;
    c->pid = 0;
    if (c->is_daemon) {
        if (!r->is_stopping) {
            describe_status(status, text, sizeof(text));
            sink_print(&r->err, "%s %s", c->name, text);
        }
        return;
    }
    r->workers_alive--;
    if (status != 0 && r->first_failed == NULL && !r->is_stopping) {
        r->first_failed = c;
    }
}

static void reap_children(struct run *r)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < r->child_count; i++) {
            if (r->child[i].pid == pid) {
                on_child_ended(r, &r->child[i], status);
            }
        }
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

/* Arguments of poll(): signals, two sinks, and up to two streams of each
 * child. */
struct watch {
    struct pollfd *fds;
    struct stream **streams; /* By index in `fds`; NULL: no stream. */
    nfds_t count;
};

static void watch_add(struct watch *w, int fd, short events, struct stream *s)
{
    w->streams[w->count] = s;
    w->fds[w->count++] = (struct pollfd){.fd = fd, .events = events};
}

static void watch_streams(const struct run *r, struct watch *w)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        struct stream *both[2] = {r->child[i].out, r->child[i].err};

        for (int k = 0; k < 2; k++) {
            if (both[k] != NULL && both[k]->in >= 0 &&
                !stream_is_blocked(both[k])) {
                watch_add(w, both[k]->in, POLLIN, both[k]);
            }
        }
    }
}

/* Serves streams, sinks and signals until an event or the time limit. */
static void run_loop(struct run *r, uint64_t until_ms)
{
    struct watch w = {
        .fds = calloc(2 * r->child_count + 3, sizeof(*w.fds)),
        .streams = calloc(2 * r->child_count + 3, sizeof(struct stream *)),
    };
    uint64_t now = now_ms();

    if (w.fds == NULL || w.streams == NULL) {
        abort();
    }
    watch_add(&w, r->signals, POLLIN, NULL);
    watch_add(&w, sink_is_empty(&r->out) ? -1 : r->out.fd, POLLOUT, NULL);
    watch_add(&w, sink_is_empty(&r->err) ? -1 : r->err.fd, POLLOUT, NULL);
    watch_streams(r, &w);
    if (poll(w.fds, w.count, until_ms <= now ? 0 : (int)(until_ms - now)) > 0) {
        if (w.fds[1].revents != 0) {
            sink_write(&r->out);
        }
        if (w.fds[2].revents != 0) {
            sink_write(&r->err);
        }
        for (nfds_t i = 3; i < w.count; i++) {
            if (w.fds[i].revents != 0 && !stream_read(w.streams[i])) {
                stream_close(w.streams[i]);
            }
        }
        if (w.fds[0].revents != 0) {
            read_signals(r);
        }
    }
    free(w.fds);
    free(w.streams);
}

/* ----------------------------------------------------------------- starting */

static struct stream *open_stream(int in, struct sink *sink, int file,
                                  const char *tag)
{
    struct stream *s = malloc(sizeof(*s));

    if (s == NULL) {
        abort();
    }
    stream_init(s, in, sink, file, tag);
    return s;
}

/* Starts a process of which `spawn` has all but the streams. `file`: log of its
 * output, taken over; -1: none. */
static bool start_child(struct run *r, struct child *c,
                        const struct spawn *spawn, const char *tag, int file)
{
    int out[2];
    int err[2];
    struct spawn s = *spawn;

    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        sink_print(&r->err, "pipe: %s", strerror(errno));
        return false;
    }
    s.out = out[1];
    s.err = err[1];
    c->pid = process_start(&s);
    close(out[1]);
    close(err[1]);
    if (c->pid < 0) {
        sink_print(&r->err, "fork: %s", strerror(errno));
        c->pid = 0;
        return false;
    }
    c->out = open_stream(out[0], c->is_daemon ? &r->err : &r->out, file, tag);
    c->err = open_stream(err[0], &r->err, file >= 0 ? dup(file) : -1, tag);
    c->out->is_lossy = c->is_daemon;
    c->err->is_lossy = c->is_daemon;
    r->child_count++;
    return true;
}

/* Finds a program of pskv: in the folder of pslaunch if installed, in a sibling
 * folder in a build tree, else by PATH. */
static void find_program(const char *name, char *path, size_t cap)
{
    char self[512];
    const char *given = getenv("PSKV_BINDIR");
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    if (given != NULL) {
        snprintf(path, cap, "%s/%s", given, name);
        return;
    }
    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    snprintf(path, cap, "%s/%s", self, name);
    if (access(path, X_OK) == 0) {
        struct stat st;

        if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            return;
        }
    }
    snprintf(path, cap, "%s/../%s/%s", self, name, name);
    if (access(path, X_OK) != 0) {
        snprintf(path, cap, "%s", name); /* Searched in PATH. */
    }
}

/* Waits for the newline that a daemon writes to its --ready-fd. */
static bool await_ready(struct run *r, int fd, const struct child *c)
{
    uint64_t begin = now_ms();
    uint64_t end = begin + r->plan->start_timeout_ms;
    uint64_t note = isatty(STDERR_FILENO) == 1 ? begin + NOTE_MS : UINT64_MAX;
    char byte;

    fcntl(fd, F_SETFL, O_NONBLOCK);
    for (;;) {
        ssize_t n = read(fd, &byte, 1);

        if (n == 1) {
            return true;
        }
        if (n == 0 || c->has_ended || r->interrupt_count > 0) {
            if (r->interrupt_count == 0) {
                sink_print(&r->err, "%s ended before it was ready", c->name);
            }
            return false;
        }
        if (now_ms() >= end) {
            sink_print(&r->err,
                       "%s was not ready within %.1f s; --start-timeout gives "
                       "it more, --log-level info shows its progress",
                       c->name, (double)r->plan->start_timeout_ms / 1000);
            return false;
        }
        if (now_ms() >= note) {
            sink_print(&r->err, "%s is not ready for %.0f s", c->name,
                       (double)(now_ms() - begin) / 1000);
            note += NOTE_MS;
        }
        {
            struct pollfd p = {.fd = fd, .events = POLLIN};

            poll(&p, 1, 20);
        }
        run_loop(r, 0);
    }
}

/* Starts a daemon with `extra` options; *ret_ready is the pipe for
 * await_ready(). */
static bool start_daemon(struct run *r, const char *program, uint32_t number,
                         const char *const *extra, int *ret_ready)
{
    struct child *c = &r->child[r->child_count];
    char path[600];
    char ready_text[16];
    const char *argv[32];
    char tag[32];
    int ready[2];
    int n = 0;
    bool ok;

    find_program(program, path, sizeof(path));
    if (pipe2(ready, O_CLOEXEC) != 0) {
        sink_print(&r->err, "pipe: %s", strerror(errno));
        return false;
    }
    snprintf(ready_text, sizeof(ready_text), "%d", ready[1]);
    argv[n++] = path;
    argv[n++] = "--ready-fd";
    argv[n++] = ready_text;
    argv[n++] = "--log-level";
    argv[n++] = r->plan->log_level;
    argv[n++] = "-c";
    argv[n++] = "/dev/null"; /* Ignores the host's configuration. */
    while (*extra != NULL && n < 31) {
        argv[n++] = *extra++;
    }
    argv[n] = NULL;
    c->is_daemon = true;
    snprintf(c->name, sizeof(c->name), "%s %u", program, number);
    snprintf(tag, sizeof(tag), "[%s %u] ", program, number);
    ok = start_child(
        r, c,
        &(struct spawn){.argv = (char *const *)argv, .keep_open_fd = ready[1]},
        tag, -1);
    close(ready[1]);
    *ret_ready = ready[0];
    return ok;
}

static bool read_port(const char *path, uint16_t *ret_port)
{
    FILE *f = fopen(path, "re");
    unsigned port = 0;
    bool ok = f != NULL && fscanf(f, "%u", &port) == 1 && port < 65536;

    if (f != NULL) {
        fclose(f);
    }
    *ret_port = (uint16_t)port;
    return ok;
}

static bool start_sched(struct run *r)
{
    char port_file[300];
    char control[340];
    int ready;
    bool ok;

    snprintf(port_file, sizeof(port_file), "%s/psched.port", r->dir);
    snprintf(control, sizeof(control), "control.socket=%s/psched.sock", r->dir);
    {
        const char *extra[] = {"-o",          "listen.port=0", "-o", control,
                               "--port-file", port_file,       NULL};

        if (!start_daemon(r, "psched", 0, extra, &ready)) {
            return false;
        }
    }
    ok = await_ready(r, ready, &r->child[r->child_count - 1]) &&
         read_port(port_file, &r->sched_port);
    close(ready);
    return ok;
}

static bool start_members(struct run *r)
{
    uint32_t count = r->plan->servers + r->plan->nodes;
    int *ready = calloc(count, sizeof(int));
    const struct child *first = &r->child[r->child_count];
    char sched[32];
    bool ok = ready != NULL;
    uint32_t started = 0;

    snprintf(sched, sizeof(sched), "127.0.0.1:%u", r->sched_port);
    for (uint32_t i = 0; ok && i < count; i++) {
        bool server = i < r->plan->servers;
        uint32_t number = server ? i : i - r->plan->servers;
        char name[64];
        char socket[400];
        char places[64];
        char own[64];
        const char *of_server[] = {"--sched", sched,           "-o", name,
                                   "-o",      "listen.port=0", NULL};
        const char *of_agent[] = {
            "--sched", sched,           "-o", name, "-o", socket, "-o", places,
            "-o",      "listen.port=0", "-o", own,  NULL};

        snprintf(name, sizeof(name), "node.name=%s%u", server ? "ps" : "node",
                 number);
        snprintf(socket, sizeof(socket), "client.socket=%s/agent%u.sock",
                 r->dir, number);
        snprintf(places, sizeof(places), "client.max_clients=%u", PS_LOCAL_MAX);
        snprintf(own, sizeof(own), "limits.user.sessions=%u", PS_LOCAL_MAX);
        ok = start_daemon(r, server ? "psserver" : "psworker-agent", number,
                          server ? of_server : of_agent, &ready[i]);
        started = i + 1;
    }
    for (uint32_t i = 0; i < started; i++) {
        ok = ok && await_ready(r, ready[i], &first[i]);
        close(ready[i]);
    }
    free(ready);
    return ok;
}

static bool start_trio(struct run *r)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(r->dir, sizeof(r->dir), "%s/pskv-XXXXXX",
             tmp != NULL && strlen(tmp) < 80 ? tmp : "/tmp");
    if (mkdtemp(r->dir) == NULL) {
        sink_print(&r->err, "cannot make a folder %s: %s", r->dir,
                   strerror(errno));
        r->dir[0] = '\0';
        return false;
    }
    return start_sched(r) && start_members(r);
}

/* Opens an empty file of this user only. Links are refused: in a shared folder
 * they could lead to another file. Returns NULL, or the reason. */
static const char *open_private_file(const char *path, int *ret_fd)
{
    const char *why = NULL;
    struct stat st;
    int fd = open(path,
                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW |
                      O_NONBLOCK,
                  0666);

    if (fd < 0) {
        return errno == ELOOP ? "it is a symbolic link; remove it"
                              : strerror(errno);
    }
    if (fstat(fd, &st) != 0) {
        why = strerror(errno);
    } else if (!S_ISREG(st.st_mode) || st.st_nlink != 1 ||
               st.st_uid != geteuid()) {
        why = "it is not a file of this user with one name; remove it";
    } else if (ftruncate(fd, 0) != 0) {
        why = strerror(errno);
    }
    if (why != NULL) {
        close(fd);
        return why;
    }
    *ret_fd = fd;
    return NULL;
}

static int open_log(struct run *r, uint32_t rank)
{
    const char *why;
    char path[600];
    int fd = -1;

    if (r->plan->output_dir == NULL) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/rank-%u.log", r->plan->output_dir, rank);
    why = open_private_file(path, &fd);
    if (why != NULL) {
        sink_print(&r->err, "cannot write %s: %s", path, why);
    }
    return fd;
}

static void worker_socket(const struct run *r, uint32_t rank, char *path,
                          size_t cap)
{
    if (r->plan->socket != NULL) {
        snprintf(path, cap, "%s", r->plan->socket);
    } else {
        snprintf(path, cap, "%s/agent%u.sock", r->dir,
                 plan_node_of(r->plan, rank));
    }
}

static bool start_workers(struct run *r)
{
    for (uint32_t rank = 0; rank < r->plan->workers; rank++) {
        struct child *c = &r->child[r->child_count];
        char socket[400];
        char tag[32] = "";
        char **env;
        bool ok;

        worker_socket(r, rank, socket, sizeof(socket));
        env = plan_worker_env(r->plan, rank, socket, r->sched_port);
        snprintf(c->name, sizeof(c->name), "rank %u", rank);
        if (r->plan->output == OUTPUT_TAGGED) {
            snprintf(tag, sizeof(tag), "[%u] ", rank);
        }
        ok = start_child(r, c,
                         &(struct spawn){.argv = r->plan->command,
                                         .env = env,
                                         .keep_open_fd = -1},
                         tag, open_log(r, rank));
        plan_free_env(env);
        if (!ok) {
            return false;
        }
        r->workers_alive++;
    }
    return true;
}

/* ------------------------------------------------------------------- ending */

static bool is_any_alive(const struct run *r, bool daemons)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].is_daemon == daemons && r->child[i].pid != 0) {
            return true;
        }
    }
    return false;
}

static void signal_group(const struct run *r, bool daemons, int sig)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].is_daemon == daemons && r->child[i].pid != 0) {
            kill(-r->child[i].pid, sig);
        }
    }
}

/* Ends a group of children: TERM, grace, KILL. A second interrupt ends the
 * grace. */
static void stop_group(struct run *r, bool daemons)
{
    uint64_t end = now_ms() + r->plan->grace_ms;

    signal_group(r, daemons, SIGTERM);
    while (is_any_alive(r, daemons) && now_ms() < end &&
           r->interrupt_count < 2) {
        run_loop(r, end);
    }
    signal_group(r, daemons, SIGKILL);
    while (is_any_alive(r, daemons)) {
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

            while (s != NULL && s->in >= 0 && stream_read(s) &&
                   stream_is_blocked(s) && flush_sinks(r, until_ms)) {
            }
            if (s != NULL) {
                stream_close(s);
            }
        }
    }
}

static void free_children(struct run *r)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        free(r->child[i].out);
        free(r->child[i].err);
    }
    free(r->child);
    free(r->out.bytes);
    free(r->err.bytes);
}

static void remove_dir(const struct run *r)
{
    char path[400];

    if (r->dir[0] == '\0') {
        return;
    }
    snprintf(path, sizeof(path), "%s/psched.port", r->dir);
    unlink(path);
    for (uint32_t i = 0; i < r->plan->nodes; i++) {
        snprintf(path, sizeof(path), "%s/agent%u.sock", r->dir, i);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/psched.sock", r->dir);
    unlink(path);
    rmdir(r->dir);
}

static void print_first_failure(struct run *r)
{
    const struct child *c = r->first_failed;
    char host[64] = "";
    char text[96];
    const char *tail;
    size_t len;

    if (c == NULL) {
        return;
    }
    gethostname(host, sizeof(host) - 1);
    describe_status(c->status, text, sizeof(text));
    tail = c->err->tail;
    len = c->err->tail_len;
    if (len > 400) {
        tail += len - 400;
        len = 400;
    }
    if (len > 0) { /* Cuts the final newline; sink_print() adds one. */
        sink_print(&r->err, "%s wrote last:\n%.*s", c->name, (int)len - 1,
                   tail);
    }
    sink_print(&r->err, "first to fail: %s on %s %s", c->name, host, text);
}

static int end_job(struct run *r, bool started)
{
    int code = EXIT_OK;
    uint64_t until;

    r->is_stopping = true;
    stop_group(r, false);
    stop_group(r, true);
    while (process_signal_all(SIGKILL) > 0) {
        reap_children(r);
    }
    reap_children(r);
    if (!started && r->interrupt_count == 0) {
        code = EXIT_UNAVAILABLE;
    } else if (r->first_failed != NULL) {
        code = exit_code_of(r->first_failed->status);
    } else if (r->interrupt_count > 0) {
        code = 128 + (int)r->interrupt_signal;
    }
    until = now_ms() + FLUSH_AFTER_INTERRUPT_MS;
    drain_streams(r, until);
    print_first_failure(r);
    (void)flush_sinks(r, until);
    remove_dir(r);
    free_children(r);
    return code;
}

static void print_plan(const struct plan *p)
{
    if (p->socket == NULL) {
        printf("psched, %u psserver, %u psworker-agent\n", p->servers,
               p->nodes);
    } else {
        printf("agent at %s\n", p->socket);
    }
    for (uint32_t r = 0; r < p->workers; r++) {
        printf("rank %u on node %u:", r, plan_node_of(p, r));
        for (char **a = p->command; *a != NULL; a++) {
            printf(" %s", *a);
        }
        printf("\n");
    }
}

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

int run_plan(const struct plan *p)
{
    struct run r = {
        .plan = p, .out = {.fd = STDOUT_FILENO}, .err = {.fd = STDERR_FILENO}};
    sigset_t set;
    bool started;

    if (p->dry_run) {
        print_plan(p);
        return EXIT_OK;
    }
    if (!make_output_dir(p)) {
        return EXIT_CANTCREAT;
    }
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    r.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    r.child = calloc(1 + p->servers + p->nodes + p->workers,
                     sizeof(struct child));
    if (r.signals < 0 || r.child == NULL) {
        perror("pslaunch");
        free(r.child);
        return EXIT_FAILED;
    }
    started = p->socket != NULL || start_trio(&r);
    if (started && r.sched_port != 0) {
        sink_print(&r.err, "job %s, psched at 127.0.0.1:%u%s", p->name,
                   r.sched_port,
                   p->name == p->name_buffer || p->private_trio
                       ? ""
                       : "; no agent runs here, so it has daemons of its own "
                         "and runs on this host only");
    }
    started = started && start_workers(&r);
    while (started && r.workers_alive > 0 && r.interrupt_count == 0 &&
           (r.first_failed == NULL || p->keep_going)) {
        run_loop(&r, now_ms() + 60000);
    }
    return end_job(&r, started);
}
