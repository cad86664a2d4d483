/* SPDX-License-Identifier: Apache-2.0 */
/* pslaunch: starts a job and leaves no process behind. Three processes do it:
 *
 *     front        the process the user started: waits, forwards signals
 *     guard        subreaper above the supervisor, in a session of its own
 *     supervisor   runs the job (run.c), in a session of its own
 *
 * On other hosts the same three run supervisor.c; in a task of an array job, the
 * front connects to pslaunch first (sge.c).
 *
 * Guard and supervisor kill all their descendants when the process above is
 * gone, which a closing pipe shows. A program of the job may stop them all
 * (SIGSTOP): each continues when the one above dies, and is continued by it.
 * Orphans of a killed supervisor pass to the guard. The front is no subreaper
 * and kills nothing: it may have had children before it became pslaunch
 * (`sleep 9 & exec pslaunch`), and these stay. */
#include "common/exit.h"
#include "pslaunch/process.h"
#include "pslaunch/run.h"
#include "pslaunch/launcher.h"
#include "pslaunch/supervisor.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Read end of a pipe that closes when the process above is gone. */
static int parent_pipe;
/* Taken for good by the thread that ends this process. */
static pthread_mutex_t end_lock = PTHREAD_MUTEX_INITIALIZER;

/* Thread that blocks until the process above is gone, then kills all
 * descendants; not if the process ends already, when the leak sanitizer's may
 * be among them. */
static void *watch_parent(void *unused)
{
    char byte;

    (void)unused;
    while (read(parent_pipe, &byte, 1) < 0 && errno == EINTR) {
    }
    pthread_mutex_lock(&end_lock);
    process_kill_all();
    folder_remove();
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

/* Continues this process when the one above dies: if a program of the job has
 * stopped it, it could not see the pipe close. */
static void continue_after_parent(void)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0);
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
        continue_after_parent();
        setsid(); /* Ctrl-C reaches it through the process above only. */
        process_become_subreaper();
        return 0;
    }
    close(pipes[0]);
    return pid;
}

/* Forwards signals to `below` until it has ended; returns its exit code. It is
 * never meant to be stopped, and continues when a program of the job has stopped
 * it. */
static int wait_for_child(pid_t below)
{
    sigset_t set;
    int status = 0;

    process_block_signals(&set);
    for (;;) {
        pid_t pid;
        int sig;

        while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
            if (pid == below && WIFSTOPPED(status)) {
                kill(below, SIGCONT);
            } else if (pid == below) {
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

/* Runs the job, or, without a plan, the supervisor of a host. */
static int supervisor_main(const struct plan *p)
{
    int code;

    if (!start_parent_watch()) {
        return EXIT_FAILED;
    }
    code = p != NULL ? run_plan(p) : supervise();
    pthread_mutex_lock(&end_lock);
    folder_remove(); /* The guard may be gone. */
    return code;
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
        return supervisor_main(p);
    }
    code = start_parent_watch() ? wait_for_child(supervisor) : EXIT_FAILED;
    pthread_mutex_lock(&end_lock);
    process_kill_all();
    folder_remove();
    return code;
}

/* Starts guard and supervisor and waits for them. */
static int front_main(const struct plan *p)
{
    sigset_t set;
    pid_t pid;

    if ((p == NULL || plan_needs_folder(p)) &&
        !(p != NULL && plan_shares_folder(p) ? folder_make_here()
                                             : folder_make())) {
        return EXIT_UNAVAILABLE;
    }
    if (p != NULL && plan_needs_folder(p) && !plan_shares_folder(p)) {
        folder_publish(p->job.name);
    }
    process_block_signals(&set);
    if (p == NULL) {
        continue_after_parent(); /* That of sshd, mpirun, ... */
    }
    pid = fork_child();
    if (pid < 0) {
        return EXIT_FAILED;
    }
    return pid == 0 ? guard_main(p) : wait_for_child(pid);
}

static int launch(int argc, char **argv)
{
    static struct plan plan; /* Static: used until the process ends. */
    int rc;

    if (argc == 3 && strcmp(argv[1], "--join") == 0) {
        return join_pslaunch(argv[2]) ? front_main(NULL) : EXIT_UNAVAILABLE;
    }
    if (argc == 2 && strcmp(argv[1], "--supervise") == 0) {
        return front_main(NULL);
    }
    rc = plan_parse(argc, argv, &plan);
    if (rc != 0) {
        return rc < 0 ? EXIT_OK : rc;
    }
    return front_main(&plan);
}

int main(int argc, char **argv)
{
    return ps_exit_with_output("pslaunch", launch(argc, argv));
}
