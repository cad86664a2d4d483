/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher by ssh and systemd-run: the supervisor of a host is a transient
 * service of systemd there, and all processes of the job are in its control
 * group. The service has the pipes of the session of ssh, so that the
 * supervisor ends with the connection, as it does without systemd; and whatever
 * the supervisor leaves behind, because all its processes are killed at once,
 * ends with the service. Users other than root need a systemd of their own on
 * each host (loginctl enable-linger). */
#include "pslaunch/command.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"
#include "pslaunch/ssh.h"

#include <stdio.h>

/* Script of the session of ssh; $0 is the path here, $1 a description. Services
 * have no variables of the session but those that -E names. Processes that the
 * supervisor has left behind get TERM, and KILL after the time to stop. */
#define SERVICE                                                                \
    "p=$0; test -x \"$p\" || p=$(command -v pslaunch) || "                     \
    "{ echo there is no pslaunch here >&2; exit 127; }; "                      \
    "m=--system; if test \"$(id -u)\" != 0; then m=--user; "                   \
    "export XDG_RUNTIME_DIR=\"${XDG_RUNTIME_DIR:-/run/user/$(id -u)}\"; fi; "  \
    "exec systemd-run $m --quiet --pipe --wait --collect "                     \
    "--service-type=exec --slice=pskv-jobs --description=\"$1\" "              \
    "-p TimeoutStopSec=2s "                                                    \
    "$(env | sed -n \"s/^\\([A-Za-z_][A-Za-z_0-9]*\\)=.*/-E\\1/p\") "          \
    "\"$p\" --supervise"

static void make_command(const struct plan *p, uint32_t host, struct command *c)
{
    char description[160];

    snprintf(description, sizeof(description), "supervisor of pskv's job %s",
             p->name);
    ssh_add_host(c, &p->hosts.hosts[host]);
    command_add_script_text(c, SERVICE, description);
}

static bool systemd_open(struct run *r)
{
    return remotes_open(r, "systemd-run", make_command);
}

static void systemd_print(const struct plan *p, uint32_t host)
{
    struct command c = {.count = 0};

    make_command(p, host, &c);
    command_print(&c);
    command_fini(&c);
}

const struct launcher launcher_systemd = {
    .name = "systemd",
    .uses_hosts = true,
    .open = systemd_open,
    .start = remote_start,
    .signal = remote_signal,
    .close = remote_close,
    .print = systemd_print,
};
