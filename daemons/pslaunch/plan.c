/* SPDX-License-Identifier: Apache-2.0 */
/* Checks a plan as options have it, and completes it: launcher and hosts, the
 * agent of this host, the places of all processes, encryption. */
#include "pslaunch/plan.h"

#include "base/file_check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/variables.h"
#include "pslaunch/launcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of an agent that runs here already. */
static char default_socket[PS_SOCKET_PATH_MAX + 1];

/* Lets a shell split a command that is one quoted string. */
static void split_command(struct plan *p)
{
    static char shell[] = "/bin/sh";
    static char option[] = "-c";
    static char *words[4] = {shell, option};

    if (p->command[1] == NULL && strpbrk(p->command[0], " \t\n") != NULL) {
        words[2] = p->command[0];
        p->command = words;
    }
}

static int check_words(struct plan *p)
{
    if (p->workers == 0) {
        fputs("pslaunch: -n WORKERS is needed, at least 1\n", stderr);
        return EXIT_USAGE;
    }
    if (p->servers == UINT32_MAX) {
        p->servers = p->workers < 256 ? p->workers : 256;
    }
    if (p->nodes == 0 || p->nodes > p->workers) {
        fprintf(stderr,
                "pslaunch: --nodes %u: give 1 to %u, one worker each "
                "at least\n",
                p->nodes, p->workers);
        return EXIT_USAGE;
    }
    if (p->servers == 0 && p->nodes > 1) {
        fputs("pslaunch: -s 0 starts no server, which needs --nodes 1\n",
              stderr);
        return EXIT_USAGE;
    }
    if (p->command == NULL || p->command[0] == NULL) {
        fputs("pslaunch: no command to run; it goes last, behind --\n", stderr);
        return EXIT_USAGE;
    }
    split_command(p);
    return 0;
}

/* Takes the hosts of an allocation, unless the user names others. */
static bool take_hosts_variable(struct plan *p)
{
    const char *name = p->launcher->hosts_variable;

    return name == NULL || p->hosts.count > 0 || getenv(name) == NULL ||
           plan_set_hosts(p, "--hosts", getenv(name));
}

/* Lets the launcher fill the list of hosts. */
static bool make_hosts(struct plan *p)
{
    if (p->launcher->define != NULL &&
        (p->hosts.count > 0 || p->job.run.sync_dst_dir[0] != '\0' ||
         p->socket != NULL)) {
        fprintf(stderr,
                "pslaunch: the launcher %s takes neither hosts nor "
                "--sync-dst-dir nor --socket: its hosts are containers\n",
                p->launcher->name);
        return false;
    }
    return p->launcher->make_hosts(p);
}

/* Takes the agent of this host, if it is for this user. */
static void find_agent(struct plan *p)
{
    struct ps_str why = PS_STR_ROOM(256);

    if (access(default_socket, W_OK) == 0) {
        p->socket = default_socket;
    } else if (errno == EACCES) {
        ps_file_add_group(default_socket, &why);
        fprintf(stderr,
                "pslaunch: this user may not use the agent at %s, and the job "
                "gets daemons of its own%s\n",
                default_socket, why.data);
    }
}

/* Chooses the launcher and the agent. */
static int check_hosts(struct plan *p)
{
    if (p->launcher == NULL) {
        p->launcher = p->hosts.count > 0 ? &launcher_ssh : &launcher_local;
    }
    if (p->launcher->make_hosts != NULL && !make_hosts(p)) {
        return EXIT_USAGE;
    }
    if (p->hosts.count > 0 && p->nodes > 1) {
        fputs("pslaunch: --nodes plays nodes on this host; with a list of "
              "hosts, each is a node\n",
              stderr);
        return EXIT_USAGE;
    }
    if (!take_hosts_variable(p)) {
        return EXIT_USAGE;
    }
    if ((p->hosts.count > 0) != p->launcher->uses_hosts) {
        fprintf(stderr, "pslaunch: the launcher %s %s\n", p->launcher->name,
                p->launcher->uses_hosts
                    ? "needs hosts: -H FILE, or --hosts h1,h2"
                    : "is for this host alone, without a list of hosts");
        return EXIT_USAGE;
    }
    if (p->job.run.sync_dst_dir[0] != '\0' && !p->launcher->uses_hosts) {
        fputs("pslaunch: --sync-dst-dir: nothing is copied on one host\n",
              stderr);
        return EXIT_USAGE;
    }
    ps_runtime_socket("agent.sock", default_socket, sizeof(default_socket));
    if (p->job.daemons.is_private) {
        p->socket = NULL;
    } else if (p->socket == NULL && p->hosts.count == 0 && p->nodes == 1) {
        find_agent(p);
    }
    if (p->socket != NULL && p->nodes > 1) {
        fputs("pslaunch: --socket is one node: --nodes needs daemons of our "
              "own\n",
              stderr);
        return EXIT_USAGE;
    }
    return 0;
}

/* Decides which host runs which process. */
static int lay_out(struct plan *p)
{
    const struct layout_counts n = {
        .workers = p->workers, .servers = p->servers, .nodes = p->nodes};
    char error[HOSTS_TEXT_MAX];

    if (p->hosts.count == 0) {
        layout_local(&n, &p->layout);
        return 0;
    }
    if (layout_hosts(&n, &p->hosts, &p->layout, error) != 0) {
        fprintf(stderr, "pslaunch: %s\n", error);
        return EXIT_USAGE;
    }
    if (p->servers == 0 && plan_has_daemons(p) && p->layout.node_count > 1) {
        fprintf(stderr,
                "pslaunch: -s 0 starts no server, which needs one host for "
                "all workers, not %u\n",
                p->layout.node_count);
        return EXIT_USAGE;
    }
    return 0;
}

/* Refuses options that contradict each other. */
static int check_tls_options(const struct plan *p)
{
    if (p->job.daemons.tls == TLS_ON && p->job.daemons.insecure_network) {
        fputs("pslaunch: --tls on encrypts what --insecure-network leaves "
              "plain; give one of them\n",
              stderr);
        return EXIT_USAGE;
    }
    if (p->job.daemons.tls == TLS_ON && p->socket != NULL) {
        fprintf(stderr,
                "pslaunch: --tls is for daemons of its own, and the workers "
                "would use the agent at %s; say --private\n",
                p->socket);
        return EXIT_USAGE;
    }
    return 0;
}

/* Takes the value of PSKV_LAUNCH_TLS. False after a message. */
static bool set_tls(struct plan *p, const char *text)
{
    static const char *const names[] = {
        [TLS_AUTO] = "auto", [TLS_ON] = "on", [TLS_OFF] = "off"};

    for (int i = TLS_AUTO; i <= TLS_OFF; i++) {
        if (strcmp(text, names[i]) == 0) {
            p->job.daemons.tls = i;
            return true;
        }
    }
    fprintf(stderr, "pslaunch: PSKV_LAUNCH_TLS '%s': give auto, on or off\n",
            text);
    return false;
}

/* Chooses whether connections are encrypted. A job on several hosts without
 * that demands a word of the user. */
static int check_tls(struct plan *p)
{
    const char *given = getenv("PSKV_LAUNCH_TLS");
    int rc = check_tls_options(p);

    if (rc != 0 || !plan_has_daemons(p)) {
        return rc;
    }
    if (p->job.daemons.insecure_network && p->launcher->uses_hosts) {
        p->job.daemons.tls = TLS_OFF;
    } else if (p->job.daemons.tls == TLS_UNSTATED && given != NULL &&
               !set_tls(p, given)) {
        return EXIT_USAGE;
    }
    if (p->job.daemons.tls == TLS_OFF && p->launcher->uses_hosts &&
        !p->job.daemons.insecure_network) {
        fputs("pslaunch: without TLS the daemons of a job on several hosts "
              "accept connections that are neither encrypted nor "
              "authenticated: every host that reaches their ports can read "
              "and change the job; leave --tls and PSKV_LAUNCH_TLS at auto, "
              "or, on a network that you trust, say --insecure-network\n",
              stderr);
        return EXIT_USAGE;
    }
    return 0;
}

/* Refuses to start as one of several tasks of another launcher: each would start
 * a job of its own. A script of sbatch has SLURM_NTASKS, but is no task of
 * srun. */
static int check_alone(void)
{
    static const struct {
        const char *launcher;
        const char *size;
    } others[] = {
        {"mpirun", "OMPI_COMM_WORLD_SIZE"},
        {"srun", "SLURM_STEP_NUM_TASKS"},
        {"mpirun", "PMI_SIZE"},
    };

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        const char *text = getenv(others[i].size);
        unsigned long n = text != NULL ? strtoul(text, NULL, 10) : 0;

        if (n > 1) {
            fprintf(stderr,
                    "pslaunch: %s has started this %lu times (%s), and each "
                    "would start a job of its own; start pslaunch once, or "
                    "let %s start the workers themselves, which find their "
                    "job; if %lu jobs are wanted, unset %s\n",
                    others[i].launcher, n, others[i].size, others[i].launcher,
                    n, others[i].size);
            return EXIT_USAGE;
        }
    }
    return 0;
}

int plan_check(struct plan *p)
{
    int rc = check_alone();

    if (rc == 0) {
        rc = check_words(p);
    }
    if (rc == 0) {
        rc = check_hosts(p);
    }
    if (rc == 0) {
        rc = lay_out(p);
    }
    return rc == 0 ? check_tls(p) : rc;
}

bool plan_has_daemons(const struct plan *p)
{
    return p->socket == NULL;
}

bool plan_encrypts(const struct plan *p)
{
    return plan_has_daemons(p) &&
           (p->job.daemons.tls == TLS_ON ||
            (p->job.daemons.tls != TLS_OFF && p->launcher->uses_hosts));
}

void plan_node_name(const char *prefix, uint32_t number, char ret_name[16])
{
    snprintf(ret_name, 16, "%s%u", prefix, number % 1000000);
}

bool plan_shares_folder(const struct plan *p)
{
    return p->launcher->shares_folder != NULL && p->launcher->shares_folder();
}

bool plan_needs_folder(const struct plan *p)
{
    return !p->dry_run && (plan_shares_folder(p) ||
                           (plan_has_daemons(p) && !p->launcher->uses_hosts));
}
