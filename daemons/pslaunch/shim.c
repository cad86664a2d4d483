/* SPDX-License-Identifier: Apache-2.0 */
/* Between an agent and the supervisor of a job, with the agent's rights:
 *
 *     agent
 *       shim         this process, outside of the job's control group
 *         front        in it, and of the job's user from its first step on
 *           guard      and supervisor, as on other hosts (main.c)
 *
 * The child becomes the user before it opens the connection to pslaunch, so no
 * byte from there reaches a process with the agent's rights. The shim waits
 * for the child and for the end of standard input, which shows that the agent
 * has gone. Either way it kills the group at last: whatever processes of the
 * user have done to front, guard and supervisor, none of them is left. Without a
 * group it kills its descendants. */
#include "pslaunch/shim.h"

#include "base/limits.h"
#include "base/str.h"
#include "pslaunch/cgroup.h"
#include "pslaunch/join.h"
#include "pslaunch/plan.h"
#include "pslaunch/process.h"
#include "pslaunch/user.h"
#include "proto/msg_codec.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t shim_pid;

static void report(const char *text)
{
    (void)!write(STDOUT_FILENO, text, strlen(text));
}

/* Puts the null device in the place of a standard descriptor. */
static void close_standard(int fd)
{
    int none = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (none >= 0) {
        (void)dup2(none, fd);
        close(none);
    }
}

/* -------------------------------------------------------------------- order */

static bool read_fully(void *bytes, size_t len)
{
    uint8_t *to = bytes;

    while (len > 0) {
        ssize_t n = read(STDIN_FILENO, to, len);

        if (n <= 0 && !(n < 0 && errno == EINTR)) {
            return false;
        }
        to += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* Reads the order, which the caller frees; NULL: it is none. */
static struct ps_msg *read_order(void)
{
    uint8_t prefix[PS_FRAME_PREFIX];
    uint8_t header[4096];
    struct ps_decoder *decoder = ps_decoder_new();
    struct ps_msg *order = NULL;
    struct ps_frame_prefix p;
    struct ps_msg msg;

    if (decoder != NULL && read_fully(prefix, sizeof(prefix)) &&
        ps_frame_parse(prefix, &p) == 0 && p.code == PS_MSG_LAUNCH_BEGIN &&
        p.header_len <= sizeof(header) && read_fully(header, p.header_len) &&
        ps_msg_decode(decoder, p.code, header, p.header_len, &msg) == 0 &&
        msg.launch_begin.secret.len == PS_LAUNCH_SECRET_BYTES) {
        order = ps_msg_dup(&msg);
    }
    OPENSSL_cleanse(header, sizeof(header));
    ps_decoder_free(decoder);
    return order;
}

/* -------------------------------------------------------------------- child */

/* The child: becomes the user, and the front of a supervisor. */
static int be_front(struct ps_msg *order, const char *socket,
                    const struct cgroup *group, shim_run_cb run)
{
    char text[PS_TEXT_MAX];
    struct ps_str why;
    bool ok;

    ps_str_init(&why, text, sizeof(text));
    close_standard(STDIN_FILENO);
    (void)cgroup_enter(group);
    (void)setsid();
    ok = user_become(order->launch_begin.uid, &why);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    ok = ok && getppid() == shim_pid &&
         join_pslaunch(order->launch_begin.address, order->launch_begin.port,
                       order->launch_begin.place,
                       order->launch_begin.secret.data, &why);
    OPENSSL_cleanse((void *)(uintptr_t)order->launch_begin.secret.data,
                    order->launch_begin.secret.len);
    ps_msg_free(order);
    if (!ok) {
        report(text);
        return EXIT_FAILED;
    }
    setenv("PSKV_SOCKET", socket, 1);
    report("ok");
    close_standard(STDOUT_FILENO);
    return run(NULL);
}

/* ------------------------------------------------------------------- shim */

/* True if the child has ended. */
static bool has_ended(pid_t child)
{
    bool ended = false;
    pid_t pid;

    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
        ended = ended || pid == child;
    }
    return ended;
}

/* Waits for the end of the child, of standard input, or a signal. */
static void await_end(pid_t child, int signals)
{
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                            {.fd = signals, .events = POLLIN}};
    struct signalfd_siginfo info;
    char byte;

    while (!has_ended(child)) {
        if (poll(fds, 2, -1) < 0) {
            continue;
        }
        if (fds[0].revents != 0 && read(STDIN_FILENO, &byte, 1) <= 0) {
            return;
        }
        while (read(signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
            if (info.ssi_signo != SIGCHLD) {
                return;
            }
        }
    }
}

int shim_main(const char *socket, shim_run_cb run)
{
    struct ps_msg *order = read_order();
    struct cgroup group;
    int signals;
    pid_t child;

    if (order == NULL) {
        report("pslaunch --shim is for agents, which give it an order");
        return EXIT_USAGE;
    }
    shim_pid = getpid();
    process_become_subreaper();
    signals = process_open_signals();
    cgroup_make(&group, order->launch_begin.job);
    child = fork();
    if (child == 0) {
        close(signals);
        return be_front(order, socket, &group, run);
    }
    if (child < 0 || signals < 0) {
        report("cannot fork: ");
        report(strerror(errno));
    }
    OPENSSL_cleanse((void *)(uintptr_t)order->launch_begin.secret.data,
                    order->launch_begin.secret.len);
    ps_msg_free(order);
    close_standard(STDOUT_FILENO);
    if (child > 0 && signals >= 0) {
        await_end(child, signals);
    }
    cgroup_end(&group);
    process_kill_all();
    cgroup_end(&group);
    return EXIT_OK;
}
