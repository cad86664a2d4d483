/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes that cannot outlive this one. Each child has a session of its
 * own and asks the kernel for SIGKILL when its parent dies; orphaned
 * descendants are reparented to this process, a subreaper, and found by walking
 * /proc. Names and process groups never matter. */
#include "pslaunch/process.h"

#include "base/str.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- processes */

extern char **environ;

void process_become_subreaper(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void process_block_signals(sigset_t *ret_set)
{
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGCHLD);
    sigaddset(ret_set, SIGINT);
    sigaddset(ret_set, SIGTERM);
    sigaddset(ret_set, SIGHUP);
    sigprocmask(SIG_BLOCK, ret_set, NULL);
}

int process_open_signals(void)
{
    sigset_t set;

    process_block_signals(&set);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Pipes of a process before it is started. Even entries are for reading. */
enum { PIPE_IN, PIPE_OUT, PIPE_ERR, PIPE_READY, PIPE_COUNT };

struct pipes {
    int fds[PIPE_COUNT][2];
};

void process_own_path(char *path, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", path, cap - 1);

    path[n > 0 ? n : 0] = '\0';
}

/* Finds a program of pskv: in the folder of pslaunch if installed, in a sibling
 * folder in a build tree, else by PATH. */
static void process_find_program(const char *name, char *path, size_t cap)
{
    char self[512];
    const char *given = getenv("PSKV_BINDIR");
    struct stat st;
    char *slash;

    if (given != NULL) {
        snprintf(path, cap, "%s/%s", given, name);
        return;
    }
    process_own_path(self, sizeof(self));
    slash = strrchr(self, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    snprintf(path, cap, "%s/%s", self, name);
    if (access(path, X_OK) == 0 && stat(path, &st) == 0 &&
        S_ISREG(st.st_mode)) {
        return;
    }
    snprintf(path, cap, "%s/../%s/%s", self, name, name);
    if (access(path, X_OK) != 0) {
        snprintf(path, cap, "%s", name); /* Searched in PATH. */
    }
}

/* Words of a daemon's command line that process_start() adds. */
struct daemon_words {
    char path[600];
    char ready_fd[16];
    char credential[40];
};

/* Returns a copy of the arguments with the daemon's path in front, and the
 * descriptors behind it; NULL: no memory. The words are borrowed. */
static char **daemon_argv(const struct spawn *s, int ready_fd,
                          struct daemon_words *w)
{
    static char ready[] = "--ready-fd";
    static char option[] = "-o";
    size_t count = 0;
    size_t n = 0;
    char **words;

    while (s->argv[count] != NULL) {
        count++;
    }
    words = calloc(count + 5, sizeof(*words));
    if (words == NULL) {
        return NULL;
    }
    process_find_program(s->argv[0], w->path, sizeof(w->path));
    snprintf(w->ready_fd, sizeof(w->ready_fd), "%d", ready_fd);
    words[n++] = w->path;
    words[n++] = ready;
    words[n++] = w->ready_fd;
    if (s->credential != 0) {
        snprintf(w->credential, sizeof(w->credential), "security.tls.fd=%d",
                 s->credential);
        words[n++] = option;
        words[n++] = w->credential;
    }
    memcpy(words + n, s->argv + 1, (count - 1) * sizeof(*words));
    return words;
}

/* Says why a command has not started, and what to write if it is a file of the
 * present folder that PATH does not have, or a script without permission. */
static void report_exec_error(const char *name, int error)
{
    const size_t len = strlen(name);
    const bool is_here = access(name, F_OK) == 0;

    if (is_here && len > 3 && strcmp(name + len - 3, ".py") == 0) {
        fprintf(stderr,
                "pslaunch: cannot run %s: it is a Python script: write -- "
                "python3 %s\n",
                name, name);
    } else if (is_here && error == ENOENT && strchr(name, '/') == NULL) {
        fprintf(stderr,
                "pslaunch: cannot run %s: it is in the present folder, which "
                "PATH does not have: write -- ./%s\n",
                name, name);
    } else {
        fprintf(stderr, "pslaunch: cannot run %s: %s\n", name, strerror(error));
    }
    errno = error;
}

static void exec_child(const struct spawn *s, const struct pipes *p,
                       pid_t parent)
{
    int in = p->fds[PIPE_IN][0];
    sigset_t none;

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent) {
        _exit(127); /* The parent died before the prctl(). */
    }
    if (in < 0) {
        in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    if (in >= 0) {
        dup2(in, STDIN_FILENO);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    dup2(p->fds[PIPE_OUT][1], STDOUT_FILENO);
    dup2(p->fds[PIPE_ERR][1], STDERR_FILENO);
    if (s->is_daemon) {
        fcntl(p->fds[PIPE_READY][1], F_SETFD, 0);
    }
    if (s->credential != 0) {
        fcntl(s->credential, F_SETFD, 0);
    }
    if (s->env != NULL) {
        environ = s->env;
    }
    execvp(s->argv[0], s->argv);
    report_exec_error(s->argv[0], errno);
    _exit(errno == ENOENT ? 127 : 126);
}

static void close_pipes(struct pipes *p)
{
    for (int i = 0; i < PIPE_COUNT; i++) {
        for (int k = 0; k < 2; k++) {
            if (p->fds[i][k] >= 0) {
                close(p->fds[i][k]);
            }
        }
    }
}

static int open_pipes(const struct spawn *s, struct pipes *p)
{
    memset(p, 0xff, sizeof(*p)); /* -1 */
    for (int i = 0; i < PIPE_COUNT; i++) {
        if ((i == PIPE_IN && !s->has_input) ||
            (i == PIPE_READY && !s->is_daemon)) {
            continue;
        }
        if (pipe2(p->fds[i], O_CLOEXEC) != 0) {
            int error = errno;

            close_pipes(p);
            return error;
        }
    }
    return 0;
}

/* Returns this side's end of a pipe, which does not block then, and leaves the
 * other to close_pipes(). -1: there is no such pipe. */
static int take_end(struct pipes *p, int which, int end)
{
    int fd = p->fds[which][end];

    p->fds[which][end] = -1;
    if (fd >= 0) {
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    }
    return fd;
}

int process_start(const struct spawn *s, struct process *ret_process)
{
    struct spawn spawn = *s;
    struct daemon_words words;
    pid_t parent = getpid();
    struct pipes p;
    int error = open_pipes(s, &p);
    pid_t pid;

    if (error != 0) {
        return error;
    }
    if (s->is_daemon) {
        spawn.argv = daemon_argv(s, p.fds[PIPE_READY][1], &words);
    }
    pid = spawn.argv != NULL ? fork() : -1;
    if (pid == 0) {
        exec_child(&spawn, &p, parent);
    }
    error = errno;
    if (pid > 0) {
        *ret_process = (struct process){
            .pid = pid,
            .in = take_end(&p, PIPE_IN, 1),
            .out = take_end(&p, PIPE_OUT, 0),
            .err = take_end(&p, PIPE_ERR, 0),
            .ready = take_end(&p, PIPE_READY, 0),
        };
    }
    if (s->is_daemon) {
        free((void *)spawn.argv);
    }
    close_pipes(&p);
    return pid > 0 ? 0 : error;
}

void process_signal_group(pid_t pid, int sig)
{
    if (kill(-pid, sig) != 0) {
        kill(pid, sig); /* It has not come to its setsid(). */
    }
}

/* A process that has ended still leads from its children to its ancestors,
 * until a process above reaps it and the children have another parent. */
struct row {
    pid_t pid;
    pid_t parent;
    bool has_ended;
    bool ours;
};

/* Reads a line of /proc/PID/stat. A process whose first thread has ended has
 * the state of a zombie while others run. */
static bool parse_row(const char *text, struct row *r)
{
    /* A process name may contain any character. */
    const char *p = strrchr(text, ')');
    long threads;
    char state;
    int parent;

    if (p == NULL ||
        sscanf(p + 1,
               " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d "
               "%*d %*d %ld",
               &state, &parent, &threads) != 3) {
        return false;
    }
    r->parent = parent;
    r->has_ended = state == 'Z' && threads <= 1;
    return true;
}

static struct row *read_processes(size_t *ret_count)
{
    DIR *dir = opendir("/proc");
    struct row *rows = NULL;
    size_t count = 0;
    struct dirent *d;

    while (dir != NULL && (d = readdir(dir)) != NULL) {
        char path[300];
        char text[512];
        struct row r = {.pid = atoi(d->d_name)};
        struct row *more;
        ssize_t n;
        int fd;

        if (r.pid <= 0) {
            continue;
        }
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)r.pid);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            continue;
        }
        n = read(fd, text, sizeof(text) - 1);
        close(fd);
        if (n <= 0) {
            continue;
        }
        text[n] = '\0';
        if (!parse_row(text, &r)) {
            continue;
        }
        more = realloc(rows, (count + 1) * sizeof(*rows));
        if (more == NULL) {
            break;
        }
        rows = more;
        rows[count++] = r;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    *ret_count = count;
    return rows;
}

size_t process_signal_all(int sig)
{
    size_t count;
    struct row *rows = read_processes(&count);
    pid_t self = getpid();
    bool found = true;
    size_t sent = 0;

    /* Repeats until no row is added, which finds descendants of any depth. */
    while (found) {
        found = false;
        for (size_t i = 0; i < count; i++) {
            for (size_t j = 0; !rows[i].ours && j < count; j++) {
                if (rows[i].parent == self ||
                    (rows[j].ours && rows[j].pid == rows[i].parent)) {
                    rows[i].ours = true;
                    found = true;
                }
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (rows[i].ours && !rows[i].has_ended && kill(rows[i].pid, sig) == 0) {
            sent++;
        }
    }
    free(rows);
    return sent;
}

uint64_t process_oom_kills(void)
{
    FILE *f = fopen("/proc/vmstat", "re");
    unsigned long long count = 0;
    char line[128];

    while (f != NULL && fgets(line, sizeof(line), f) != NULL &&
           sscanf(line, "oom_kill %llu", &count) != 1) {
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return count;
}

bool process_lacked_memory(int status, uint64_t *seen)
{
    const bool was_killed =
        (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
        (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL);

    if (!was_killed || process_oom_kills() <= *seen) {
        return false;
    }
    ++*seen;
    return true;
}

void process_kill_all(void)
{
    /* Looks in a row that found none. A look at /proc is no snapshot: a process
     * whose parent is reaped meanwhile has none in it. The next look finds it
     * below this one. */
    int empty = 0;

    while (empty < 2) {
        empty = process_signal_all(SIGKILL) > 0 ? 0 : empty + 1;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}

/* ------------------------------------------------------------------- folder */

static char path[4096 + 16];
/* Name of the job's psched for psctl, a symbolic link; "": none. */
static char published[4096];

static bool make_below(const char *parent)
{
    snprintf(path, sizeof(path), "%s/pskv-XXXXXX", parent);
    if (mkdtemp(path) == NULL) {
        fprintf(stderr, "pslaunch: cannot make a folder %s: %s\n", path,
                strerror(errno));
        path[0] = '\0';
        return false;
    }
    return true;
}

bool folder_make(void)
{
    const char *tmp = getenv("TMPDIR");

    return make_below(tmp != NULL && strlen(tmp) < 80 ? tmp : "/tmp");
}

bool folder_make_here(void)
{
    char here[4096];

    if (getcwd(here, sizeof(here)) == NULL) {
        perror("pslaunch: the present folder");
        return false;
    }
    return make_below(here);
}

/* True if the link leads to a psched that listens; false for a job that was
 * killed. */
static bool is_in_use(const char *link)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    bool listens;
    int fd;

    if (!ps_str_copy(sa.sun_path, sizeof(sa.sun_path), link)) {
        return access(link, F_OK) == 0;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listens = fd >= 0 &&
              connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return listens;
}

/* Writes the path of the link, whose folders are there then; `suffix`: of its
 * name. False: it cannot be made. */
static bool name_link(const char *job, const char *suffix)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    char name[128];
    size_t len = 0;

    if (run == NULL || run[0] != '/') {
        return false;
    }
    for (; job[len] != '\0' && len + 1 < sizeof(name); len++) {
        const bool is_plain = isalnum((unsigned char)job[len]) ||
                              strchr("-_.", job[len]) != NULL;

        name[len] = is_plain && (len > 0 || job[len] != '.') ? job[len] : '_';
    }
    name[len] = '\0';
    if (snprintf(published, sizeof(published), "%s/pskv", run) >=
            (int)sizeof(published) ||
        (mkdir(published, 0700) != 0 && errno != EEXIST) ||
        snprintf(published, sizeof(published), "%s/pskv/jobs", run) >=
            (int)sizeof(published) ||
        (mkdir(published, 0700) != 0 && errno != EEXIST)) {
        return false;
    }
    return snprintf(published, sizeof(published), "%s/pskv/jobs/%s%s", run,
                    name, suffix) < (int)sizeof(published);
}

void folder_publish(const char *job)
{
    char target[sizeof(path) + 16];
    char suffix[24];
    bool ok = name_link(job, "");

    snprintf(suffix, sizeof(suffix), ".%d", (int)getpid());
    ok = ok && (!is_in_use(published) || name_link(job, suffix));
    if (ok) {
        (void)unlink(published); /* Of a job that was killed. */
        ok = snprintf(target, sizeof(target), "%s/psched.sock", path) <
                 (int)sizeof(target) &&
             symlink(target, published) == 0;
    }
    if (!ok) {
        published[0] = '\0';
    }
}

/* Another job may have taken the name meanwhile. */
static void unpublish(void)
{
    char target[sizeof(path) + 16];
    ssize_t n = published[0] != '\0'
                    ? readlink(published, target, sizeof(target) - 1)
                    : -1;

    if (n > 0 && strncmp(target, path, strlen(path)) == 0) {
        (void)unlink(published);
    }
}

const char *folder_path(void)
{
    return path;
}

void folder_remove(void)
{
    DIR *dir = path[0] != '\0' ? opendir(path) : NULL;
    struct dirent *d;

    unpublish();
    if (dir == NULL) {
        return;
    }
    while ((d = readdir(dir)) != NULL) {
        unlinkat(dirfd(dir), d->d_name, 0);
    }
    closedir(dir);
    rmdir(path);
}

/* -------------------------------------------------------------------- ports */

void port_reserve(char text[PORT_TEXT_MAX])
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;

    text[0] = '\0';
    if (fd < 0) {
        return;
    }
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0) {
        close(fd);
        return;
    }
    snprintf(text, PORT_TEXT_MAX, "%u", ntohs(at.sin_port));
}
