/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers for this host and for hosts of a list: each starts the supervisor of
 * a host, whose standard input and output are the connection, and from there on
 * all are alike. containers.c and sge.c have those that start hosts first. */
#include "pslaunch/launcher.h"

#include "pslaunch/command.h"
#include "pslaunch/run.h"
#include "pslaunch/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -------------------------------------------------------------------- local */

/* Launcher for this host: the processes of the job are child processes. */

static bool local_open(struct run *r)
{
    struct place *at = &r->places[0];

    gethostname(at->name, sizeof(at->name) - 1);
    snprintf(at->address, sizeof(at->address), "127.0.0.1");
    if (getenv("MASTER_ADDR") == NULL && getenv("MASTER_PORT") == NULL) {
        port_reserve(at->store_port);
    }
    snprintf(at->dir, sizeof(at->dir), "%s", folder_path());
    if (r->plan->socket == NULL) {
        port_reserve(at->sched_port);
    }
    return true;
}

static void local_close(struct run *r)
{
    (void)r;
    process_kill_all();
}

const struct launcher launcher_local = {
    .name = "local",
    .open = local_open,
    .close = local_close,
};

/* ---------------------------------------------------------------------- ssh */

/* Launcher over ssh: one connection and one supervisor for each host. The
 * program, keys, names and jump hosts are those of the user's ssh. The only
 * option set here is BatchMode: nothing can be typed into the connection. */

/* The user's ssh: PSKV_SSH, or "ssh". */
static const char *ssh_program(void)
{
    const char *given = getenv("PSKV_SSH");

    return given != NULL && given[strspn(given, " ")] != '\0' ? given : "ssh";
}

/* Adds the words that reach a host by ssh; what runs there follows them. */
static void ssh_add_host(struct command *c, const struct host *h)
{
    command_add_words(c, ssh_program());
    command_add_words(c, "-T -o BatchMode=yes");
    if (h->port != 0) {
        command_add(c, "-p");
        command_addf(c, "%u", h->port);
    }
    command_add(c, h->name);
}

static void ssh_command(const struct plan *p, uint32_t host, struct command *c)
{
    ssh_add_host(c, &p->hosts.hosts[host]);
    command_add_supervisor_text(c);
}

const struct launcher launcher_ssh = {
    .name = "ssh",
    .uses_hosts = true,
    .command = ssh_command,
    .program = "ssh",
};

/* ------------------------------------------------------------------- copies */

/* Copies of the present folder on the hosts of a job, by rsync over ssh. */

void copy_command(const struct plan *p, uint32_t host, struct command *c)
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
    command_addf(c, "%s%s%s:%s/", open, h->name, close,
                 p->job.run.sync_dst_dir);
}

/* ---------------------------------------------------------------------- mpi */

/* Launcher by mpirun, for clusters whose MPI reaches hosts that ssh does not.
 * One mpirun for each host starts its supervisor there, and passes standard
 * input and output on. The processes of the job are no MPI processes. */

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

static void mpi_command(const struct plan *p, uint32_t host, struct command *c)
{
    const struct mpi *mpi = find_mpi();

    command_add_words(c, mpi->program != NULL ? mpi->program : programs[0]);
    command_add_words(c, mpi->kind != NULL ? mpi->kind->options
                                           : kinds[0].options);
    command_add(c, p->hosts.hosts[host].name);
    command_add_supervisor(c, "");
}

static bool mpi_open(struct run *r)
{
    if (find_mpi()->kind == NULL) {
        sink_print(&r->err, "there is no mpirun of Open MPI or MPICH in PATH");
        return false;
    }
    return remotes_open(r);
}

const struct launcher launcher_mpi = {
    .name = "mpi",
    .uses_hosts = true,
    .command = mpi_command,
    .program = "mpirun",
    /* The mpiruns of one user share a folder on this host: those of Open MPI
     * that make it at the same time end with an error. */
    .opens_first_alone = true,
    .open = mpi_open,
};

/* -------------------------------------------------------------------- slurm */

/* Launcher inside an allocation of Slurm (salloc, sbatch). One srun for each
 * node starts its supervisor there, and passes standard input and output on.
 * Without a list of hosts these are the nodes of the allocation. */

static void slurm_command(const struct plan *p, uint32_t host,
                          struct command *c)
{
    /* The supervisor and its processes may use all of the node that the
     * allocation has; steps of the user may run beside it. Lines of messages
     * must not wait for others. */
    command_add_words(c, "srun --nodes=1 --ntasks=1 --overlap --mem=0 "
                         "--cpu-bind=none --mpi=none --unbuffered");
    command_addf(c, "--nodelist=%s", p->hosts.hosts[host].name);
    command_add_supervisor(c, "");
}

const struct launcher launcher_slurm = {
    .name = "slurm",
    .uses_hosts = true,
    .hosts_variable = "SLURM_JOB_NODELIST",
    .command = slurm_command,
    .program = "srun",
};

/* ------------------------------------------------------------------ systemd */

/* Launcher by ssh and systemd-run: the supervisor of a host is a transient
 * service of systemd there, and all processes of the job are in its control
 * group. The service has the pipes of the session of ssh, so that the
 * supervisor ends with the connection, as it does without systemd; and whatever
 * the supervisor leaves behind, because all its processes are killed at once,
 * ends with the service. Users other than root need a systemd of their own on
 * each host (loginctl enable-linger). */

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

static void systemd_command(const struct plan *p, uint32_t host,
                            struct command *c)
{
    char description[160];

    snprintf(description, sizeof(description), "supervisor of pskv's job %s",
             p->job.name);
    ssh_add_host(c, &p->hosts.hosts[host]);
    command_add_script_text(c, SERVICE, description);
}

const struct launcher launcher_systemd = {
    .name = "systemd",
    .uses_hosts = true,
    .command = systemd_command,
    .program = "systemd-run",
};

/* ---------------------------------------------------------------- launchers */

static const struct launcher *const launchers[] = {
    &launcher_local,   &launcher_ssh, &launcher_mpi,  &launcher_slurm,
    &launcher_systemd, &launcher_k8s, &launcher_yarn, &launcher_sge,
};

#define LAUNCHER_COUNT (sizeof(launchers) / sizeof(launchers[0]))

const struct launcher *launcher_find(const char *name)
{
    for (size_t i = 0; i < LAUNCHER_COUNT; i++) {
        if (strcmp(launchers[i]->name, name) == 0) {
            return launchers[i];
        }
    }
    return NULL;
}

const char *launcher_names(void)
{
    static char text[128];
    size_t len = 0;

    for (size_t i = 0; i < LAUNCHER_COUNT && len < sizeof(text); i++) {
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s",
                                i > 0 ? ", " : "", launchers[i]->name);
    }
    return text;
}
