/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the present folder on the hosts of a job, by rsync over ssh. */
#include "pslaunch/command.h"
#include "pslaunch/remote.h"
#include "pslaunch/ssh.h"

#include <string.h>
#include <unistd.h>

static void make_command(const struct plan *p, uint32_t host, struct command *c)
{
    const struct host *h = &p->hosts.hosts[host];
    const char *open = strchr(h->name, ':') != NULL ? "[" : "";
    const char *close = strchr(h->name, ':') != NULL ? "]" : "";

    command_add_words(c, "rsync -azq --protect-args -e");
    if (h->port != 0) {
        command_addf(c, "%s -T -o BatchMode=yes -p %u", ssh_program(), h->port);
    } else {
        command_addf(c, "%s -T -o BatchMode=yes", ssh_program());
    }
    command_add(c, "./");
    command_addf(c, "%s%s%s:%s/", open, h->name, close, p->sync_dir);
}

static bool start_copy(struct run *r, uint32_t host)
{
    struct command c = {.count = 0};
    struct process p;
    bool ok;

    make_command(r->plan, host, &c);
    ok = remote_spawn(r, host, c.argv, "rsync", &p);
    command_fini(&c);
    if (ok) {
        close(p.in);
        close(p.out);
        remote_on_copying(r, host);
    }
    return ok;
}

bool remotes_copy(struct run *r)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->plan->sync_dir == NULL) {
            remote_on_prepared(r, i);
        } else if (!start_copy(r, i) ||
                   (i == 0 && !remotes_await(r, 1, REMOTE_PREPARED))) {
            return false;
        }
    }
    return remotes_await(r, r->place_count, REMOTE_PREPARED);
}

void remote_print_copy(const struct plan *p, uint32_t host)
{
    struct command c = {.count = 0};

    if (p->sync_dir != NULL) {
        make_command(p, host, &c);
        command_print(&c);
        command_fini(&c);
    }
}
