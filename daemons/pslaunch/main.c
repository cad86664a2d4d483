/* SPDX-License-Identifier: Apache-2.0 */
/* pslaunch: starts a job and leaves no process behind. Three processes do it:
 *
 *     front        the process the user started: waits, forwards signals
 *     guard        subreaper above the supervisor, in a session of its own
 *     supervisor   runs the job (run.c), in a session of its own
 *
 * Guard and supervisor kill all their descendants when the process above is
 * gone, which a closing pipe shows. Orphans of a killed supervisor pass to the
 * guard. The front is no subreaper and kills nothing: it may have had children
 * before it became pslaunch (`sleep 9 & exec pslaunch`), and these stay. */
#include "pslaunch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Read end of a pipe that closes when the process above is gone. */
static int parent_pipe;

static void kill_descendants(void)
{
    while (process_signal_all(SIGKILL) > 0) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
}

/* Thread that blocks until the process above is gone, then kills all
 * descendants. */
static void *watch_parent(void *unused)
{
    char byte;

    (void)unused;
    while (read(parent_pipe, &byte, 1) < 0 && errno == EINTR) {
    }
    kill_descendants();
    _exit(EXIT_FAILED);
    return NULL;
}

static bool start_parent_watch(void)
{
    pthread_t thread;
    sigset_t all;
    sigset_t old;
    bool ok;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    ok = pthread_create(&thread, NULL, watch_parent, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!ok) {
        perror("pslaunch: thread");
    }
    return ok;
}

/* Forks a process whose life is tied to the caller's. Returns its pid to the
 * caller, 0 in the new process, and -1 after a message. */
static pid_t fork_child(void)
{
    int pipes[2];
    pid_t pid;

    if (pipe(pipes) != 0) {
        perror("pslaunch: pipe");
        return -1;
    }
    pid = fork();
    if (pid < 0) {
        perror("pslaunch: fork");
        close(pipes[0]);
        close(pipes[1]);
        return -1;
    }
    if (pid == 0) {
        close(pipes[1]);
        parent_pipe = pipes[0];
        setsid(); /* Ctrl-C reaches it through the process above only. */
        process_become_subreaper();
        return 0;
    }
    close(pipes[0]);
    return pid;
}

/* Forwards signals to `below` until it has ended; returns its exit code. */
static int wait_for_child(pid_t below)
{
    sigset_t set;
    int status = 0;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    for (;;) {
        pid_t pid;
        int sig;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            if (pid == below) {
                return WIFEXITED(status) ? WEXITSTATUS(status)
                                         : 128 + WTERMSIG(status);
            }
        }
        sigwait(&set, &sig);
        if (sig != SIGCHLD) {
            kill(below, sig);
        }
    }
}

static int guard_main(const struct plan *p)
{
    int above = parent_pipe;
    pid_t supervisor = fork_child();
    int code;

    if (supervisor < 0) {
        return EXIT_FAILED;
    }
    if (supervisor == 0) {
        close(above);
        return start_parent_watch() ? run_plan(p) : EXIT_FAILED;
    }
    code = start_parent_watch() ? wait_for_child(supervisor) : EXIT_FAILED;
    kill_descendants();
    return code;
}

int main(int argc, char **argv)
{
    static struct plan plan; /* Static: used until the process ends. */
    sigset_t set;
    pid_t pid;
    int rc = plan_parse(argc, argv, &plan);

    if (rc != 0) {
        return rc < 0 ? EXIT_OK : rc;
    }
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    pid = fork_child();
    if (pid < 0) {
        return EXIT_FAILED;
    }
    return pid == 0 ? guard_main(&plan) : wait_for_child(pid);
}
