/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes that cannot outlive this one. Each child has a session of its
 * own and asks the kernel for SIGKILL when its parent dies; orphaned
 * descendants are reparented to this process, a subreaper, and found by walking
 * /proc. Names and process groups never matter. */
#include "pslaunch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

void process_become_subreaper(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

static void exec_child(const struct spawn *s, pid_t parent)
{
    sigset_t none;
    int null;

    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent) {
        _exit(127); /* The parent died before the prctl(). */
    }
    null = open("/dev/null", O_RDONLY);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        close(null);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (s->out >= 0) {
        dup2(s->out, STDOUT_FILENO);
    }
    if (s->err >= 0) {
        dup2(s->err, STDERR_FILENO);
    }
    if (s->keep_open_fd >= 0) {
        fcntl(s->keep_open_fd, F_SETFD, 0);
    }
    if (s->env != NULL) {
        environ = s->env;
    }
    execvp(s->argv[0], s->argv);
    fprintf(stderr, "pslaunch: cannot run %s: %s\n", s->argv[0],
            strerror(errno));
    _exit(errno == ENOENT ? 127 : 126);
}

pid_t process_start(const struct spawn *s)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid == 0) {
        exec_child(s, parent);
    }
    return pid;
}

struct row {
    pid_t pid;
    pid_t parent;
    bool ours;
};

static struct row *read_processes(size_t *ret_count)
{
    DIR *dir = opendir("/proc");
    struct row *rows = NULL;
    size_t count = 0;
    struct dirent *d;

    while (dir != NULL && (d = readdir(dir)) != NULL) {
        char path[300];
        char text[512];
        const char *p;
        struct row r = {.pid = atoi(d->d_name)};
        struct row *more;
        char state;
        int parent;
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
        p = strrchr(text, ')'); /* A process name may contain any character. */
        if (p == NULL || sscanf(p + 1, " %c %d", &state, &parent) != 2 ||
            state == 'Z') {
            continue;
        }
        r.parent = parent;
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
        if (rows[i].ours && kill(rows[i].pid, sig) == 0) {
            sent++;
        }
    }
    free(rows);
    return sent;
}
