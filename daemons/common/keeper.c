/* SPDX-License-Identifier: Apache-2.0 */
/* Keeper of state memory: the parent of --keep, and the descriptor store of the
 * service manager.
 *
 *     keeper   fork               child   makes a memfd
 *              keeps it    <--            SCM_RIGHTS over a socket of the two
 *              waitpid: killed by signal 9
 *              fork, after a delay       finds the memfd open: take()
 *
 * If the keeper itself is killed the kernel kills the child, so that no process
 * is left over that nobody watches. */
#include "common/keeper.h"

#include "base/str.h"
#include "base/time.h"
#include "common/system.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Delay before a child is started again. It doubles while children die within
 * EARLY of their start. */
#define DELAY_MIN PS_MILLIS(100)
#define DELAY_MAX PS_SECONDS(5)
#define EARLY     PS_SECONDS(1)
/* Children in a row that may die so early: what they inherit may be what kills
 * them. */
#define EARLY_MAX 10u

static const int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

/* Of this process, as a keeper or as its child. */
static struct {
    int kept;       /* Descriptor for the next process, or of the last; -1. */
    int socket;     /* Child: to its keeper; -1: it has none. */
    bool is_stored; /* The service manager has what was offered. */
    dev_t device;   /* With `inode`: what the service manager has passed. */
    ino_t inode;    /* 0: nothing. */
} state = {.kept = -1, .socket = -1};

/* State of the keeper. */
struct keeper {
    const char *program;
    int signals; /* signalfd of passed_on and SIGCHLD. */
    sigset_t before;
    pid_t child;     /* 0: none. */
    int socket;      /* To the child; -1: none. */
    ps_time started; /* Of the child. */
    unsigned early_deaths;
    bool is_ending; /* A signal asked for the end. */
};

static ps_time now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return PS_SECONDS((ps_time)t.tv_sec) + (ps_time)t.tv_nsec;
}

static void set_kept(int fd)
{
    if (state.kept >= 0) {
        close(state.kept);
    }
    state.kept = fd;
}

/* ------------------------------------------------------- one message with fd */

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

static int send_descriptor(int socket, int fd)
{
    char byte = 'k';
    struct iovec text = {.iov_base = &byte, .iov_len = 1};
    union control control = {{0}};
    struct msghdr m = {.msg_iov = &text,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    ssize_t n;

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(int));
    do {
        n = sendmsg(socket, &m, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n == 1 ? 0 : PS_E_IO;
}

/* The descriptor of the next message; -1: none is there. */
static int receive_descriptor(int socket)
{
    char byte;
    struct iovec text = {.iov_base = &byte, .iov_len = 1};
    union control control;
    struct msghdr m = {.msg_iov = &text,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c;
    int fd = -1;

    if (recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1) {
        return -1;
    }
    c = CMSG_FIRSTHDR(&m);
    if (c != NULL && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int))) {
        memcpy(&fd, CMSG_DATA(c), sizeof(int));
    }
    return fd;
}

/* ------------------------------------------------------------------- keeper */

static void keeper_receive(const struct keeper *k)
{
    int fd;

    while ((fd = receive_descriptor(k->socket)) >= 0) {
        set_kept(fd);
    }
}

/* Reads pending signals, and passes them on. */
static void keeper_read_signals(struct keeper *k)
{
    struct signalfd_siginfo info;

    while (read(k->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        const int sig = (int)info.ssi_signo;

        if (sig != SIGCHLD && k->child != 0) {
            (void)kill(k->child, sig);
        }
        k->is_ending = k->is_ending || sig == SIGTERM || sig == SIGINT;
    }
}

/* Waits until there is something to do, or `until`. */
static void keeper_wait(struct keeper *k, ps_time until)
{
    struct pollfd fds[2] = {{.fd = k->signals, .events = POLLIN},
                            {.fd = k->socket, .events = POLLIN}};
    const ps_time at = now();
    int timeout = -1;

    if (until != PS_TIME_NEVER) {
        timeout = until <= at ? 0 : (int)((until - at) / PS_MILLIS(1)) + 1;
    }
    (void)poll(fds, 2, timeout);
    if ((fds[1].revents & POLLIN) != 0) {
        keeper_receive(k);
    }
    if ((fds[1].revents & (POLLHUP | POLLERR)) != 0 &&
        (fds[1].revents & POLLIN) == 0) {
        close(k->socket);
        k->socket = -1; /* The child is about to end. */
    }
    keeper_read_signals(k);
}

/* The same signal, so that the process above sees why the keeper ended. Its own
 * core has nothing of interest. */
static void die_by(int sig)
{
    const struct rlimit none = {0, 0};
    sigset_t set;

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(sig, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, sig);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(sig);
}

/* Returns in the child with true. */
static bool keeper_start(struct keeper *k)
{
    const pid_t self = getpid();
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        return false;
    }
    k->started = now();
    k->child = fork();
    if (k->child != 0) {
        close(pair[1]);
        k->socket = pair[0];
        k->child = k->child < 0 ? 0 : k->child;
        return false;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != self) {
        _exit(EXIT_FAILURE); /* The keeper has died before the prctl(). */
    }
    /* A group of its own: signals of a terminal come from the keeper, once. */
    (void)setpgid(0, 0);
    close(pair[0]);
    close(k->signals);
    state.socket = pair[1];
    (void)sigprocmask(SIG_SETMASK, &k->before, NULL);
    return true;
}

/* Waits for the end of the child; returns its status. */
static int keeper_await(struct keeper *k)
{
    int status;

    while (waitpid(k->child, &status, WNOHANG) != k->child) {
        keeper_wait(k, PS_TIME_NEVER);
    }
    if (k->socket >= 0) {
        keeper_receive(k); /* Its last message. */
        close(k->socket);
        k->socket = -1;
    }
    k->child = 0;
    return status;
}

/* Waits before the next start. False: there is none. */
static bool keeper_delay(struct keeper *k, int sig, pid_t child)
{
    const ps_time at = now();
    ps_time delay = DELAY_MIN;

    k->early_deaths = at - k->started < EARLY ? k->early_deaths + 1 : 1;
    if (k->is_ending || state.kept < 0 || k->early_deaths > EARLY_MAX) {
        return false;
    }
    for (unsigned i = 1; i < k->early_deaths && delay < DELAY_MAX; i++) {
        delay = 2 * delay;
    }
    delay = ps_time_min(delay, DELAY_MAX);
    fprintf(stderr,
            "%s: process %d was killed by signal %d (%s); it is started again "
            "in %g s, with its memory\n",
            k->program, (int)child, sig, strsignal(sig), (double)delay / 1e9);
    while (!k->is_ending && now() < ps_time_add(at, delay)) {
        keeper_wait(k, ps_time_add(at, delay));
    }
    return !k->is_ending;
}

bool ps_keeper_fork(const char *program, int *ret_code)
{
    struct keeper k = {.program = program, .socket = -1};
    sigset_t set;
    int status = 0;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++) {
        sigaddset(&set, passed_on[i]);
    }
    (void)sigprocmask(SIG_BLOCK, &set, &k.before);
    k.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    (void)prctl(PR_SET_NAME, "psserver-keep", 0, 0, 0);
    for (;;) {
        if (keeper_start(&k)) {
            (void)prctl(PR_SET_NAME, program, 0, 0, 0);
            return false;
        }
        if (k.child == 0) {
            fprintf(stderr, "%s: --keep: cannot start a process: %s\n", program,
                    strerror(errno));
            *ret_code = EXIT_FAILURE;
            return true;
        }
        const pid_t child = k.child;

        status = keeper_await(&k);
        if (WIFEXITED(status)) {
            *ret_code = WEXITSTATUS(status);
            return true;
        }
        if (!keeper_delay(&k, WTERMSIG(status), child)) {
            die_by(WTERMSIG(status));
            *ret_code = 128 + WTERMSIG(status);
            return true;
        }
    }
}

/* -------------------------------------------------------------------- child */

void ps_keeper_inherit(int fd)
{
    struct stat s;

    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (fstat(fd, &s) == 0) {
        state.device = s.st_dev;
        state.inode = s.st_ino;
    }
    set_kept(fd);
}

int ps_keeper_take(void)
{
    const int fd = state.kept;

    state.kept = -1;
    return fd;
}

bool ps_keeper_drop(void)
{
    if (state.kept < 0) {
        return false;
    }
    set_kept(-1);
    (void)ps_notify_store(PS_KEEPER_NAME, -1);
    return true;
}

/* True: the service manager has passed this one, and still has it. */
static bool is_inherited(int fd)
{
    struct stat s;

    return state.inode != 0 && fstat(fd, &s) == 0 && s.st_dev == state.device &&
           s.st_ino == state.inode;
}

int ps_keeper_offer(int fd)
{
    if (state.socket >= 0) {
        return send_descriptor(state.socket, fd);
    }
    if (!is_inherited(fd) && !ps_notify_store(PS_KEEPER_NAME, fd)) {
        return PS_E_NOENT;
    }
    state.is_stored = true;
    return 0;
}

bool ps_keeper_survives_stop(void)
{
    return state.is_stored;
}
