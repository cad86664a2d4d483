/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher by mpirun, for clusters whose MPI reaches hosts that ssh does not.
 * One mpirun for each host starts its supervisor there, and passes standard
 * input and output on. The processes of the job are no MPI processes. */
#include "pslaunch/command.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

#include <stdio.h>
#include <string.h>

enum mpi_kind { MPI_UNKNOWN, MPI_OPEN, MPI_HYDRA };

/* Kind of the mpirun in PATH, as it says itself. */
static enum mpi_kind find_kind(void)
{
    static enum mpi_kind kind = MPI_UNKNOWN;
    char line[256];
    FILE *f = kind == MPI_UNKNOWN ? popen("mpirun --version 2>&1", "re") : NULL;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strstr(line, "Open MPI") != NULL ||
            strstr(line, "OpenRTE") != NULL) {
            kind = MPI_OPEN;
        } else if (strstr(line, "HYDRA") != NULL) {
            kind = MPI_HYDRA;
        }
    }
    if (f != NULL) {
        pclose(f);
    }
    return kind;
}

static void make_command(const struct plan *p, uint32_t host, struct command *c)
{
    command_add_words(c, "mpirun -n 1");
    if (find_kind() == MPI_HYDRA) {
        command_add(c, "-hosts");
    } else {
        /* Else all processes of the host would share one core. */
        command_add_words(c, "--bind-to none --host");
    }
    command_add(c, p->hosts.hosts[host].name);
    command_add_supervisor(c);
}

static bool mpi_open(struct run *r)
{
    if (find_kind() == MPI_UNKNOWN) {
        sink_print(&r->err, "there is no mpirun of Open MPI or MPICH in PATH");
        return false;
    }
    /* The mpiruns of one user share a folder on this host: those of Open MPI
     * that make it at the same time end with an error. */
    return remotes_open_after(r, 1, "mpirun", make_command);
}

static void mpi_print(const struct plan *p, uint32_t host)
{
    struct command c = {.count = 0};

    make_command(p, host, &c);
    command_print(&c);
    command_fini(&c);
}

const struct launcher launcher_mpi = {
    .name = "mpi",
    .uses_hosts = true,
    .open = mpi_open,
    .start = remote_start,
    .signal = remote_signal,
    .close = remote_close,
    .print = mpi_print,
};
