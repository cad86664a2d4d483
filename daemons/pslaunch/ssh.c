/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher over ssh: one connection and one supervisor for each host. The
 * program, keys, names and jump hosts are those of the user's ssh. The only
 * option set here is BatchMode: nothing can be typed into the connection. */
#include "pslaunch/ssh.h"

#include "pslaunch/command.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

#include <stdlib.h>
#include <string.h>

const char *ssh_program(void)
{
    const char *given = getenv("PSKV_SSH");

    return given != NULL && given[strspn(given, " ")] != '\0' ? given : "ssh";
}

void ssh_add_host(struct command *c, const struct host *h)
{
    command_add_words(c, ssh_program());
    command_add_words(c, "-T -o BatchMode=yes");
    if (h->port != 0) {
        command_add(c, "-p");
        command_addf(c, "%u", h->port);
    }
    command_add(c, h->name);
}

static void make_command(const struct plan *p, uint32_t host, struct command *c)
{
    ssh_add_host(c, &p->hosts.hosts[host]);
    command_add_supervisor_text(c);
}

static bool ssh_open(struct run *r)
{
    return remotes_open(r, "ssh", make_command);
}

static void ssh_print(const struct plan *p, uint32_t host)
{
    struct command c = {.count = 0};

    make_command(p, host, &c);
    command_print(&c);
    command_fini(&c);
}

const struct launcher launcher_ssh = {
    .name = "ssh",
    .uses_hosts = true,
    .open = ssh_open,
    .start = remote_start,
    .signal = remote_signal,
    .close = remote_close,
    .print = ssh_print,
};
