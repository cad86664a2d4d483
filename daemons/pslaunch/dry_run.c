/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that pslaunch would start, as text. */
#include "pslaunch/job.h"

#include "crypto/identity.h"
#include "pslaunch/authority.h"
#include "pslaunch/command.h"
#include "pslaunch/environment.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints the variables that pslaunch sets or changes. */
static void print_env(const struct env *e)
{
    for (size_t i = 0; i < e->count; i++) {
        const char *item = e->items[i];
        size_t len = strcspn(item, "=");
        char *name = strndup(item, len);
        const char *before = name != NULL ? getenv(name) : NULL;

        if (before == NULL || strcmp(before, item + len + 1) != 0) {
            printf("   ");
            command_print_word(item);
            printf("\n");
        }
        free(name);
    }
}

/* Ends the line of a daemon, with the identity of its certificate. */
static void print_identity(const struct plan *p, enum ps_role role,
                           const char *node)
{
    struct ps_identity id = {.role = role};
    char text[PS_IDENTITY_URI_BYTES];
    struct ps_str where;

    if (plan_encrypts(p)) {
        ps_str_copy(id.cluster, sizeof(id.cluster), authority_cluster(p->name));
        ps_str_copy(id.name, sizeof(id.name), node);
        ps_str_init(&where, text, sizeof(text));
        ps_identity_add_uri(&where, &id);
        printf(" with a certificate of %s", text);
    }
    printf("\n");
}

static void print_psserver(const struct plan *p, uint32_t number)
{
    char node[16];

    plan_node_name(SERVER_NODE, number, node);
    printf("  psserver %u", number);
    print_identity(p, PS_ROLE_SERVER, node);
    for (size_t i = 0; i < p->env.count + p->server_env.count; i++) {
        const char *item = i < p->env.count
                               ? p->env.items[i]
                               : p->server_env.items[i - p->env.count];

        printf("   ");
        command_print_word(item);
        printf("\n");
    }
}

static void print_agent(const struct plan *p, uint32_t number)
{
    char node[16];

    plan_node_name(AGENT_NODE, number, node);
    printf("  psworker-agent %u", number);
    print_identity(p, PS_ROLE_AGENT, node);
}

static void print_worker(const struct plan *p, uint32_t rank)
{
    const struct places at = {
        .socket = p->socket != NULL ? p->socket : "SOCKET OF THE AGENT",
        .sched_host = p->hosts.count > 0 ? p->hosts.hosts[0].name : "127.0.0.1",
        .sched_port = plan_has_daemons(p) ? "PORT OF PSCHED" : NULL,
        .store_host =
            p->hosts.count > 0
                ? p->hosts.hosts[p->layout.nodes[p->layout.ranks[0].node].host]
                      .name
                : "127.0.0.1",
        .store_port = "A FREE PORT",
    };
    struct env env;

    printf("  rank %u on node %u:", rank, p->layout.ranks[rank].node);
    for (char **word = p->command; *word != NULL; word++) {
        command_print_word(*word);
    }
    printf("\n");
    env_of_worker(p, rank, &at, &env);
    print_env(&env);
    env_fini(&env);
}

static void print_host(const struct plan *p, uint32_t host)
{
    const struct layout *l = &p->layout;

    printf("host %s:\n",
           p->hosts.count > 0 ? p->hosts.hosts[host].name : "this one");
    if (p->launcher->uses_hosts) {
        remote_print_copy(p, host);
    }
    if (p->launcher->print != NULL) {
        p->launcher->print(p, host);
    }
    if (p->socket != NULL) {
        printf("  agent at %s\n", p->socket);
    } else if (plan_has_daemons(p) && host == 0) {
        printf("  psched");
        print_identity(p, PS_ROLE_SCHED, SCHED_NODE);
    }
    for (uint32_t i = 0; plan_has_daemons(p) && i < p->servers; i++) {
        if (l->server_hosts[i] == host) {
            print_psserver(p, i);
        }
    }
    for (uint32_t i = 0; plan_has_daemons(p) && i < l->node_count; i++) {
        if (l->nodes[i].host == host) {
            print_agent(p, i);
        }
    }
    for (uint32_t r = 0; r < p->workers; r++) {
        if (l->nodes[l->ranks[r].node].host == host) {
            print_worker(p, r);
        }
    }
}

void print_plan(const struct plan *p)
{
    if (p->launcher->define != NULL) {
        p->launcher->define(p, stdout);
        return;
    }
    printf("job %s: %u workers, %u psserver, launcher %s\n", p->name,
           p->workers, plan_has_daemons(p) ? p->servers : 0, p->launcher->name);
    if (plan_has_daemons(p)) {
        printf("connections between daemons: %s\n",
               plan_encrypts(p)
                   ? "TLS 1.3, by an authority of this job in memory"
                   : "neither encrypted nor authenticated");
    }
    for (uint32_t i = 0; i == 0 || i < p->hosts.count; i++) {
        print_host(p, i);
    }
}
