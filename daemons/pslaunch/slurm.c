/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher inside an allocation of Slurm (salloc, sbatch). One srun for each
 * node starts its supervisor there, and passes standard input and output on.
 * Without a list of hosts these are the nodes of the allocation. */
#include "pslaunch/command.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

static void make_command(const struct plan *p, uint32_t host, struct command *c)
{
    /* The supervisor and its processes may use all of the node that the
     * allocation has; steps of the user may run beside it. Lines of messages
     * must not wait for others. */
    command_add_words(c, "srun --nodes=1 --ntasks=1 --overlap --mem=0 "
                         "--cpu-bind=none --mpi=none --unbuffered");
    command_addf(c, "--nodelist=%s", p->hosts.hosts[host].name);
    command_add_supervisor(c);
}

static bool slurm_open(struct run *r)
{
    return remotes_open(r, "srun", make_command);
}

static void slurm_print(const struct plan *p, uint32_t host)
{
    struct command c = {.count = 0};

    make_command(p, host, &c);
    command_print(&c);
    command_fini(&c);
}

const struct launcher launcher_slurm = {
    .name = "slurm",
    .uses_hosts = true,
    .hosts_variable = "SLURM_JOB_NODELIST",
    .open = slurm_open,
    .start = remote_start,
    .signal = remote_signal,
    .close = remote_close,
    .print = slurm_print,
};
