/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher for Grid Engine. One qrsh for each host starts its supervisor there
 * and passes standard input and output on: within a job with a parallel
 * environment as a task of that job, on the hosts that it has; from outside as a
 * job of its own, on hosts of a list. */
#include "pslaunch/command.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Inside a job, the file with its hosts: "NAME SLOTS QUEUE PROCESSORS". */
static const char *allocation(void)
{
    return getenv("PE_HOSTFILE");
}

static bool read_allocation(struct plan *p, FILE *f)
{
    char line[1024];
    char name[HOST_NAME_MAX_LEN + 1];
    unsigned slots;

    while (fgets(line, sizeof(line), f) != NULL) {
        struct host *more;

        if (sscanf(line, "%255s %u", name, &slots) != 2 ||
            p->hosts.count == HOSTS_MAX) {
            return false;
        }
        more = realloc(p->hosts.hosts,
                       (p->hosts.count + 1) * sizeof(*p->hosts.hosts));
        if (more == NULL) {
            abort();
        }
        p->hosts.hosts = more;
        more[p->hosts.count++] = (struct host){.name = strdup(name),
                                               .slots = slots};
    }
    return true;
}

static bool sge_make_hosts(struct plan *p)
{
    const char *path = allocation();
    FILE *f;
    bool ok;

    if (p->hosts.count > 0 || path == NULL) {
        return true;
    }
    f = fopen(path, "re");
    ok = f != NULL && read_allocation(p, f);
    if (!ok) {
        fprintf(stderr,
                "pslaunch: %s, the hosts of the job of Grid Engine: "
                "%s\n",
                path, f == NULL ? strerror(errno) : "it is not understood");
    }
    if (f != NULL) {
        fclose(f);
    }
    return ok;
}

static void make_command(const struct plan *p, uint32_t host, struct command *c)
{
    const char *name = p->hosts.hosts[host].name;

    if (allocation() != NULL) {
        command_add_words(c, "qrsh -inherit");
        command_add(c, name);
    } else {
        command_add_words(c, "qrsh -now no -pty no -N pskv");
        if (p->container.queue != NULL) {
            command_add(c, "-q");
            command_add(c, p->container.queue);
        }
        command_add(c, "-l");
        command_addf(c, "hostname=%s", name);
    }
    command_add_supervisor_text(c);
}

static bool sge_open(struct run *r)
{
    return remotes_open(r, "qrsh", make_command);
}

static void sge_print(const struct plan *p, uint32_t host)
{
    struct command c = {.count = 0};

    make_command(p, host, &c);
    command_print(&c);
    command_fini(&c);
}

const struct launcher launcher_sge = {
    .name = "sge",
    .uses_hosts = true,
    .make_hosts = sge_make_hosts,
    .open = sge_open,
    .start = remote_start,
    .signal = remote_signal,
    .close = remote_close,
    .print = sge_print,
};
