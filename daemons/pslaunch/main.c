/* SPDX-License-Identifier: Apache-2.0 */
/* pslaunch: starts a job and leaves nothing behind. Two processes do it: the
 * supervisor runs the job; this one waits for it. Either may be killed: when
 * this one goes, a pipe closes and the supervisor ends everything; when the
 * supervisor goes, its children go with it and their orphans come to us. */
#include "pslaunch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int life; /* Read end: closes when the waiting process is gone. */

/* Blocks until the other process is gone, then ends all. */
static void *watch_life(void *unused)
{
    char byte;

    (void)unused;
    while (read(life, &byte, 1) < 0 && errno == EINTR) {
    }
    while (process_signal_all(SIGKILL) > 0) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
    _exit(EXIT_FAILED);
    return NULL;
}

static int supervise(const struct plan *p)
{
    pthread_t thread;
    sigset_t all;
    sigset_t old;

    setsid(); /* The terminal's Ctrl-C comes to us through the other one. */
    process_become_reaper();
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    if (pthread_create(&thread, NULL, watch_life, NULL) != 0) {
        perror("pslaunch: thread");
        return EXIT_FAILED;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return run_plan(p);
}

static int await(pid_t supervisor)
{
    sigset_t set;
    int status = 0;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    for (;;) {
        int sig;
        pid_t pid;

        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
            if (pid == supervisor) {
                return status;
            }
        }
        sigwait(&set, &sig);
        if (sig != SIGCHLD) {
            kill(supervisor, sig);
        }
    }
}

int main(int argc, char **argv)
{
    static struct plan plan; /* Lives as long as the process. */
    sigset_t set;
    int pipes[2];
    pid_t pid;
    int status;
    int rc = plan_parse(argc, argv, &plan);

    if (rc != 0) {
        return rc < 0 ? EXIT_OK : rc;
    }
    if (pipe(pipes) != 0) {
        perror("pslaunch: pipe");
        return EXIT_FAILED;
    }
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    process_become_reaper();
    pid = fork();
    if (pid < 0) {
        perror("pslaunch: fork");
        return EXIT_FAILED;
    }
    if (pid == 0) {
        close(pipes[1]);
        life = pipes[0];
        return supervise(&plan);
    }
    close(pipes[0]);
    status = await(pid);
    while (process_signal_all(SIGKILL) > 0) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
