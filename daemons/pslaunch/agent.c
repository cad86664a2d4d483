/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher by the resident agents of a cluster: hosts are names of agents, as
 * psctl nodes shows them. For each of them psctl gives psched the order, with
 * the user's rights; psched tells the agent, whose options decide; and the
 * supervisor that the agent starts connects back to pslaunch. No ssh takes
 * part, and workers use the agents that run.
 *
 *     pslaunch        psched          agent           supervisor
 *     launch_order -->
 *                     launch_begin -->
 *                                     starts it   -->
 *         <---------------------------------------------  TLS, launch_hello
 *                     <-- launch_begun
 *     <-- query_end
 */
#include "pslaunch/command.h"
#include "pslaunch/listener.h"
#include "pslaunch/job.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Limit on the silence of psched: longer than it waits for an agent. */
#define ORDER_TIMEOUT "30s"

static void make_command(struct command *c)
{
    char path[600];

    process_find_program("psctl", path, sizeof(path));
    command_add(c, path);
    /* An agent without certificates takes orders only with launch.insecure: its
     * operator trusts the network. */
    command_add_words(c, "--insecure --timeout " ORDER_TIMEOUT " __launch");
}

/* Writes the order: node, job, host and port of pslaunch, number and key of the
 * host. */
static bool write_order(const struct run *r, uint32_t host, int fd)
{
    const char *address = getenv("PSKV_HOST_ADDRESS");
    const uint8_t *secret = listener_secret(r->listener, host);
    char text[1024];
    int len = snprintf(text, sizeof(text), "%.64s %.64s %.255s %u %u ",
                       r->places[host].name, r->plan->name,
                       address != NULL ? address : "-",
                       listener_port(r->listener), host);

    for (uint32_t i = 0; i < PS_LAUNCH_SECRET_BYTES; i++) {
        len += snprintf(text + len, sizeof(text) - (size_t)len, "%02x",
                        secret[i]);
    }
    text[len++] = '\n';
    return write(fd, text, (size_t)len) == len;
}

static bool order_host(struct run *r, uint32_t host)
{
    struct command c = {.count = 0};
    struct process p;
    bool ok;

    make_command(&c);
    ok = remote_spawn(r, host, c.argv, "psctl", &p);
    command_fini(&c);
    if (!ok) {
        return false;
    }
    (void)write_order(r, host, p.in); /* psctl reports what it lacks. */
    close(p.in);
    close(p.out);
    return true;
}

/* Ends the programs that wait for an answer. */
static void withdraw_orders(const struct run *r)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->remotes[i].pid != 0) {
            process_signal_group(r->remotes[i].pid, SIGTERM);
        }
    }
}

static bool agent_open(struct run *r)
{
    bool ok = true;

    r->listener = listener_open(getenv("PSKV_HOST_ADDRESS"), r->place_count,
                                remote_accept, r);
    for (uint32_t i = 0; r->listener != NULL && ok && i < r->place_count; i++) {
        ok = order_host(r, i);
    }
    ok = r->listener != NULL && ok &&
         remotes_await(r, r->place_count, REMOTE_OPEN);
    if (!ok) {
        withdraw_orders(r);
    }
    listener_close(r->listener);
    r->listener = NULL;
    return ok;
}

static void agent_print(const struct plan *p, uint32_t host)
{
    printf("  supervisor that the agent %s starts\n",
           p->hosts.hosts[host].name);
}

const struct launcher launcher_agent = {
    .name = "agent",
    .uses_hosts = true,
    .has_agents = true,
    .refusal = "its agent has started no supervisor",
    .open = agent_open,
    .start = remote_start,
    .signal = remote_signal,
    .close = remote_close,
    .print = agent_print,
};
