/* SPDX-License-Identifier: Apache-2.0 */
/* Keeper of state memory: a parent process that starts its child again with the
 * memory, and a service manager that stores it. Each test has a process of its
 * own for the keeper. */
#include "common/keeper.h"

#include "base/str.h"
#include "common/system.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

typedef int child_main(int out);

/* Runs `child` below a keeper; `out` is the end of a pipe whose other end is in
 * *ret_in. Returns the keeper. */
static pid_t start(child_main *child, int *ret_in)
{
    int pipe_fds[2];
    pid_t pid;

    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int code;

        close(pipe_fds[0]);
        (void)freopen("/dev/null", "w", stderr);
        signal(SIGSEGV, SIG_DFL); /* cmocka has a handler. */
        _exit(ps_keeper_fork("test", &code) ? code : child(pipe_fds[1]));
    }
    close(pipe_fds[1]);
    *ret_in = pipe_fds[0];
    return pid;
}

static int end_of(pid_t keeper)
{
    int status;

    assert_int_equal(waitpid(keeper, &status, 0), keeper);
    return status;
}

static int run(child_main *child)
{
    int in;
    const int status = end_of(start(child, &in));

    close(in);
    return status;
}

static void say(int out)
{
    assert_int_equal(write(out, "x", 1), 1);
}

/* False: nobody has the other end any more. */
static bool hear(int in)
{
    char byte;

    return read(in, &byte, 1) == 1;
}

/* ---------------------------------------------------------------- processes */

static int ends_with_five(int out)
{
    (void)out;
    return ps_keeper_take() == -1 ? 5 : 6;
}

static void ends_with_its_child(void **unused)
{
    const int status = run(ends_with_five);

    (void)unused;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 5);
}

static int dies_at_once(int out)
{
    (void)out;
    return raise(SIGKILL);
}

static void without_memory_dies_like_its_child(void **unused)
{
    const int status = run(dies_at_once);

    (void)unused;
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

/* Counts its starts in the memory. The third start offers another memory, and
 * the fourth finds that one. */
static int counts_its_starts(int out)
{
    int fd = ps_keeper_take();
    char count = 0;

    (void)out;
    if (fd < 0) {
        fd = memfd_create("test", MFD_CLOEXEC);
        if (ps_keeper_offer(fd) != 0) {
            return 90;
        }
    } else if (pread(fd, &count, 1, 0) != 1) {
        return 91;
    }
    if ((fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) {
        return 92;
    }
    count++;
    if (count == 3) {
        fd = memfd_create("test", MFD_CLOEXEC);
        if (ps_keeper_offer(fd) != 0) {
            return 93;
        }
        count = 13;
    }
    if (pwrite(fd, &count, 1, 0) != 1) {
        return 94;
    }
    return count == 14 ? count : raise(count == 1 ? SIGKILL : SIGSEGV);
}

static void gives_the_memory_to_the_next_child(void **unused)
{
    const int status = run(counts_its_starts);

    (void)unused;
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 14);
}

static volatile sig_atomic_t heard_signals;
static int signal_out;

static void count_signal(int sig)
{
    (void)sig;
    heard_signals++;
    (void)!write(signal_out, "x", 1);
}

/* Ends with the number of signals that it got until a HUP. */
static int counts_signals(int out)
{
    sigset_t set;
    sigset_t before;
    siginfo_t info;

    signal_out = out;
    signal(SIGTERM, count_signal);
    signal(SIGUSR1, count_signal);
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, &before);
    if (sigismember(&before, SIGTERM) || sigismember(&before, SIGCHLD)) {
        return 90;
    }
    say(out);
    while (sigwaitinfo(&set, &info) < 0) {
        /* EINTR: of one that is counted. */
    }
    return heard_signals;
}

static void passes_each_signal_on_once(void **unused)
{
    int in;
    const pid_t keeper = start(counts_signals, &in);
    int status;

    (void)unused;
    assert_true(hear(in));
    kill(keeper, SIGTERM);
    assert_true(hear(in));
    kill(keeper, SIGUSR1);
    assert_true(hear(in));
    kill(keeper, SIGHUP);
    status = end_of(keeper);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 2);
    close(in);
}

static int offers_and_sleeps(int out)
{
    if (ps_keeper_take() >= 0 ||
        ps_keeper_offer(memfd_create("test", MFD_CLOEXEC)) != 0) {
        return 90;
    }
    say(out);
    for (;;) {
        pause();
    }
}

static void asked_to_end_starts_no_other(void **unused)
{
    int in;
    const pid_t keeper = start(offers_and_sleeps, &in);
    int status;

    (void)unused;
    assert_true(hear(in));
    kill(keeper, SIGTERM);
    status = end_of(keeper);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
    close(in);
}

static void child_dies_with_its_keeper(void **unused)
{
    int in;
    const pid_t keeper = start(offers_and_sleeps, &in);

    (void)unused;
    assert_true(hear(in));
    kill(keeper, SIGKILL);
    assert_int_equal(WTERMSIG(end_of(keeper)), SIGKILL);
    assert_false(hear(in)); /* The end of a pipe that the child had open. */
    close(in);
}

static int offers_and_dies(int out)
{
    int fd = ps_keeper_take();

    say(out);
    fd = fd >= 0 ? fd : memfd_create("test", MFD_CLOEXEC);
    return ps_keeper_offer(fd) != 0 ? 90 : raise(SIGKILL);
}

static void waits_between_deaths(void **unused)
{
    struct timespec at[2];
    int in;
    const pid_t keeper = start(offers_and_dies, &in);
    long ms;

    (void)unused;
    assert_true(hear(in));
    clock_gettime(CLOCK_MONOTONIC, &at[0]);
    assert_true(hear(in)); /* After 0.1 s, and the next after 0.2 s. */
    assert_true(hear(in));
    clock_gettime(CLOCK_MONOTONIC, &at[1]);
    ms = (at[1].tv_sec - at[0].tv_sec) * 1000 +
         (at[1].tv_nsec - at[0].tv_nsec) / 1000000;
    assert_true(ms >= 290);
    kill(keeper, SIGTERM);
    (void)end_of(keeper);
    close(in);
}

/* ---------------------------------------------------------- service manager */

/* Receives a notification. Returns its descriptor; -1: it has none. */
static int receive(int socket, char *text, size_t cap)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = text, .iov_len = cap - 1};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c;
    ssize_t n = recvmsg(socket, &m, 0);
    int fd = -1;

    assert_true(n >= 0);
    text[n] = '\0';
    c = CMSG_FIRSTHDR(&m);
    if (c != NULL) {
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    }
    return fd;
}

/* A socket as NOTIFY_SOCKET. */
static int open_manager(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    snprintf(sa.sun_path + 1, sizeof(sa.sun_path) - 1, "pskv-test-keeper-%d",
             (int)getpid());
    assert_int_equal(bind(fd, (const struct sockaddr *)&sa,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
                                      1 + strlen(sa.sun_path + 1))),
                     0);
    sa.sun_path[0] = '@';
    setenv("NOTIFY_SOCKET", sa.sun_path, 1);
    return fd;
}

/* Offers a memory to a service manager. */
static int stores(int out)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);

    (void)out;
    ps_notify_init();
    if (getenv("FDSTORE") != NULL) {
        return 90;
    }
    if (ps_keeper_offer(fd) == PS_E_NOENT) {
        return ps_keeper_survives_stop() ? 91 : 1;
    }
    return ps_keeper_survives_stop() && write(fd, "state", 5) == 5 ? 0 : 92;
}

/* Ends with the code of the process that is a child of no keeper. */
static int run_bare(child_main *child)
{
    const pid_t pid = fork();
    int status;

    if (pid == 0) {
        _exit(child(-1));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void without_a_keeper_it_is_lost(void **unused)
{
    (void)unused;
    assert_int_equal(run_bare(stores), 1);
}

static void a_manager_without_a_store_keeps_nothing(void **unused)
{
    const int manager = open_manager();

    (void)unused;
    assert_int_equal(run_bare(stores), 1);
    unsetenv("NOTIFY_SOCKET");
    close(manager);
}

/* Finds the memory by its name among others, and does not store it twice. */
static int takes_the_stored_memory(int out)
{
    struct ps_activation given;
    struct ps_str why = PS_STR_ROOM(256);
    char pid[16];
    char text[8] = "";
    int fd;

    (void)out;
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    ps_notify_init();
    if (ps_activation_take(&given, &why) != 0) {
        return 90;
    }
    if (given.tcp_fd != 3 || given.local_fd != -1 || given.state_fd != 4 ||
        fcntl(5, F_GETFD) != -1) {
        return 91; /* 5 has the name, too, and is closed. */
    }
    ps_keeper_inherit(given.state_fd);
    fd = ps_keeper_take();
    if (fd != 4 || ps_keeper_take() != -1 ||
        (fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0) {
        return 92;
    }
    if (pread(fd, text, sizeof(text) - 1, 0) != 5 ||
        strcmp(text, "state") != 0) {
        return 93;
    }
    if (ps_keeper_offer(fd) != 0 || !ps_keeper_survives_stop()) {
        return 94;
    }
    /* Another one replaces it. */
    if (ps_keeper_offer(memfd_create("other", MFD_CLOEXEC)) != 0) {
        return 95;
    }
    /* One that is of no use is in nobody's store any more. */
    if (ps_keeper_drop()) {
        return 96;
    }
    ps_keeper_inherit(fd);
    return ps_keeper_drop() && fcntl(fd, F_GETFD) == -1 ? 0 : 97;
}

static void a_manager_stores_it_and_gives_it_back(void **unused)
{
    const int manager = open_manager();
    const int tcp = socket(AF_INET, SOCK_STREAM, 0);
    char text[128];
    pid_t pid;
    int status;
    int fd;

    (void)unused;
    setenv("FDSTORE", "1", 1);
    assert_int_equal(run_bare(stores), 0);
    assert_int_equal(receive(manager, text, sizeof(text)), -1);
    assert_string_equal(text, "FDSTOREREMOVE=1\nFDNAME=pskv-state");
    fd = receive(manager, text, sizeof(text));
    assert_string_equal(text, "FDSTORE=1\nFDNAME=pskv-state");
    assert_true(fd >= 0);
    assert_int_equal(listen(tcp, 1), 0);
    setenv("LISTEN_FDS", "3", 1);
    setenv("LISTEN_FDNAMES", "psserver.socket:pskv-state:pskv-state", 1);
    pid = fork();
    if (pid == 0) {
        const int at = fcntl(fd, F_DUPFD, 20);
        const int listener = fcntl(tcp, F_DUPFD, 20);

        dup2(listener, 3);
        dup2(at, 4);
        dup2(at, 5);
        close(at);
        close(listener);
        _exit(takes_the_stored_memory(-1));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(receive(manager, text, sizeof(text)), -1);
    assert_string_equal(text, "FDSTOREREMOVE=1\nFDNAME=pskv-state");
    close(receive(manager, text, sizeof(text)));
    assert_string_equal(text, "FDSTORE=1\nFDNAME=pskv-state");
    assert_int_equal(receive(manager, text, sizeof(text)), -1);
    assert_string_equal(text, "FDSTOREREMOVE=1\nFDNAME=pskv-state");
    assert_true(recv(manager, text, sizeof(text), MSG_DONTWAIT) < 0);
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    unsetenv("FDSTORE");
    unsetenv("NOTIFY_SOCKET");
    close(fd);
    close(tcp);
    close(manager);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_with_its_child),
        cmocka_unit_test(without_memory_dies_like_its_child),
        cmocka_unit_test(gives_the_memory_to_the_next_child),
        cmocka_unit_test(passes_each_signal_on_once),
        cmocka_unit_test(asked_to_end_starts_no_other),
        cmocka_unit_test(child_dies_with_its_keeper),
        cmocka_unit_test(waits_between_deaths),
        cmocka_unit_test(without_a_keeper_it_is_lost),
        cmocka_unit_test(a_manager_without_a_store_keeps_nothing),
        cmocka_unit_test(a_manager_stores_it_and_gives_it_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
