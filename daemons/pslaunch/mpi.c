/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher by mpirun, for clusters whose MPI reaches hosts that ssh does not.
 * One mpirun for each host starts its supervisor there, and passes standard
 * input and output on. The processes of the job are no MPI processes. */
#include "pslaunch/command.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An implementation of MPI. */
struct mpi_kind {
    const char *versions[2]; /* Words of its --version; NULL: no second. */
    /* Options for one process, which is given no more than its share of
     * variables and cores; the last one takes the host. */
    const char *options;
};

static const struct mpi_kind kinds[] = {
    /* Without --bind-to, all processes of the host would share one core. */
    {{"Open MPI", "OpenRTE"}, "-n 1 --bind-to none --host"},
    /* Without -genvnone, processes on all hosts would get all variables of
     * this one, PATH and HOME among them. */
    {{"HYDRA", NULL}, "-n 1 -genvnone -hosts"},
};

/* Names of mpirun. Where both implementations are installed, mpirun is the
 * administrator's choice, and the others are there besides. */
static const char *const programs[] = {
    "mpirun",
    "mpiexec.hydra",
    "mpirun.mpich",
    "mpirun.openmpi",
};

/* The mpirun in use; no kind: there is none. */
struct mpi {
    const char *program; /* With options, if the user gives some. */
    const struct mpi_kind *kind;
};

static bool is_of_kind(const struct mpi_kind *kind, const char *line)
{
    return strstr(line, kind->versions[0]) != NULL ||
           (kind->versions[1] != NULL &&
            strstr(line, kind->versions[1]) != NULL);
}

/* Kind of an mpirun, as it says itself; NULL: none that is known. */
static const struct mpi_kind *read_kind(const char *program)
{
    const struct mpi_kind *found = NULL;
    char *command;
    char line[256];
    FILE *f;

    if (asprintf(&command, "%s --version 2>&1", program) < 0) {
        abort();
    }
    f = popen(command, "re");
    free(command);
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            found = is_of_kind(&kinds[i], line) ? &kinds[i] : found;
        }
    }
    if (f != NULL) {
        pclose(f);
    }
    return found;
}

/* The user's mpirun: PSKV_MPIRUN, or the first of its names in PATH that is
 * understood. */
static const struct mpi *find_mpi(void)
{
    static struct mpi mpi;
    const char *given = getenv("PSKV_MPIRUN");

    if (mpi.program == NULL && given != NULL && given[0] != '\0') {
        mpi = (struct mpi){.program = given, .kind = read_kind(given)};
    }
    for (size_t i = 0;
         mpi.program == NULL && i < sizeof(programs) / sizeof(programs[0]);
         i++) {
        const struct mpi_kind *kind = read_kind(programs[i]);

        if (kind != NULL) {
            mpi = (struct mpi){.program = programs[i], .kind = kind};
        }
    }
    return &mpi;
}

static void make_command(const struct plan *p, uint32_t host, struct command *c)
{
    const struct mpi *mpi = find_mpi();

    command_add_words(c, mpi->program != NULL ? mpi->program : programs[0]);
    command_add_words(c, mpi->kind != NULL ? mpi->kind->options
                                           : kinds[0].options);
    command_add(c, p->hosts.hosts[host].name);
    command_add_supervisor(c);
}

static bool mpi_open(struct run *r)
{
    if (find_mpi()->kind == NULL) {
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
