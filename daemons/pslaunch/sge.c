/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher for Grid Engine. Within a job with a parallel environment, one qrsh
 * for each host of the job starts its supervisor there and passes standard input
 * and output on. From outside one array job is submitted, whose tasks run the
 * supervisors of as many hosts:
 *
 *     pslaunch                          task
 *     file with address and keys
 *     qsub -t 1-N          -->          reads the file
 *         <---------------------------  TLS, launch_hello
 *     removes the file, after the last
 *
 * From there on a task has what it needs from its connection, and ends with it.
 * One that starts later finds neither file nor listener, and ends at once. */
#include "base/str.h"
#include "pslaunch/command.h"
#include "pslaunch/folder.h"
#include "pslaunch/job.h"
#include "pslaunch/join.h"
#include "pslaunch/launcher.h"
#include "pslaunch/listener.h"
#include "pslaunch/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Wait after which tasks that have not started are named. */
#define NOTICE_MS 2000u

/* Number of the array job; "": none was submitted. */
static char array_job[32];
/* All of its tasks have connected. */
static bool array_is_complete;

/* -------------------------------------------------------------------- hosts */

/* Inside a job, the file with its hosts: "NAME SLOTS QUEUE PROCESSORS". */
static const char *allocation(void)
{
    return getenv("PE_HOSTFILE");
}

static bool is_array(void)
{
    return allocation() == NULL;
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

static bool take_allocation(struct plan *p, const char *path)
{
    FILE *f = fopen(path, "re");
    bool ok = f != NULL && read_allocation(p, f);

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

/* A host for each task. */
static bool make_tasks(struct plan *p)
{
    const uint32_t count = p->nodes > 1 ? p->nodes : p->workers;

    if (p->hosts.count > 0 || p->sync_dir != NULL) {
        fputs("pslaunch: outside of a job with a parallel environment, Grid "
              "Engine chooses the hosts: leave hosts and --sync-dst-dir out; "
              "--queue 'NAME@h1,NAME@h2' limits them\n",
              stderr);
        return false;
    }
    if (count > HOSTS_MAX) {
        fprintf(stderr,
                "pslaunch: an array job has at most %u tasks; --nodes asks for "
                "fewer than a task for each worker\n",
                HOSTS_MAX);
        return false;
    }
    p->hosts.hosts = calloc(count, sizeof(*p->hosts.hosts));
    if (p->hosts.hosts == NULL) {
        abort();
    }
    for (uint32_t i = 0; i < count; i++) {
        if (asprintf(&p->hosts.hosts[i].name, "task%u", i + 1) < 0) {
            abort();
        }
    }
    p->hosts.count = count;
    p->nodes = 1;
    return true;
}

static bool sge_make_hosts(struct plan *p)
{
    const char *path = allocation();

    if (path == NULL) {
        return make_tasks(p);
    }
    return p->hosts.count > 0 || take_allocation(p, path);
}

/* --------------------------------------------- job with parallel environment */

static void make_command(const struct plan *p, uint32_t host, struct command *c)
{
    command_add_words(c, "qrsh -inherit");
    command_add(c, p->hosts.hosts[host].name);
    command_add_supervisor_text(c);
}

/* ---------------------------------------------------------------- array job */

static const char *order_path(void)
{
    static char path[4200];

    snprintf(path, sizeof(path), "%s/order",
             folder_path()[0] != '\0' ? folder_path() : "FOLDER");
    return path;
}

static void make_submission(const struct plan *p, struct command *c)
{
    command_add_words(c, "qsub -terse -N pskv -r n -j y -o /dev/null -t");
    command_addf(c, "1-%u", p->hosts.count);
    if (p->container.queue != NULL) {
        command_add(c, "-q");
        command_add(c, p->container.queue);
    }
    command_add_words(c, "-b y -shell no");
    command_add_task(c, order_path());
}

/* Waits for qsub, which prints the number of the job. */
static bool await_number(struct run *r, const struct process *p)
{
    char text[64];
    ssize_t n;

    while (r->remotes[0].pid != 0 && r->interrupt_count == 0) {
        run_loop(r, UINT64_MAX);
    }
    if (r->remotes[0].pid != 0) {
        process_signal_group(p->pid, SIGTERM);
        return false;
    }
    n = r->has_lost_host ? 0 : read(p->out, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    snprintf(array_job, sizeof(array_job), "%.*s",
             (int)strspn(text, "0123456789"), text);
    return array_job[0] != '\0';
}

static bool submit(struct run *r)
{
    struct command c = {.count = 0};
    struct process p;
    bool ok;

    make_submission(r->plan, &c);
    ok = remote_spawn(r, 0, c.argv, "qsub", &p);
    command_fini(&c);
    if (!ok) {
        return false;
    }
    close(p.in);
    ok = await_number(r, &p);
    close(p.out);
    return ok;
}

/* A task that cannot connect has written the reason beside its order. */
static void read_reports(struct run *r)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        char *path;
        char text[400];
        ssize_t n;
        int fd;

        if (r->remotes[i].state != REMOTE_PREPARED) {
            continue;
        }
        if (asprintf(&path, "%s.%u", order_path(), i + 1) < 0) {
            abort();
        }
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        free(path);
        n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
        if (fd >= 0) {
            close(fd);
        }
        if (n > 0) {
            text[n] = '\0';
            text[strcspn(text, "\n")] = '\0';
            remote_lose(r, i, text);
        }
    }
}

/* Names the tasks that have not connected. */
static void print_waiting(struct run *r, uint64_t begin, const char *advice)
{
    char text[256];
    struct ps_str list;

    ps_str_init(&list, text, sizeof(text));
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->remotes[i].state != REMOTE_OPEN) {
            ps_str_addf(&list, "%s%u", text[0] != '\0' ? ", " : "", i + 1);
        }
    }
    sink_print(&r->err,
               "these of the %u tasks of the array job %s have not started "
               "within %.1f s, and all must run at the same time: %s; %s",
               r->place_count, array_job, (double)(now_ms() - begin) / 1000,
               text, advice);
}

static bool await_tasks(struct run *r)
{
    const uint64_t begin = now_ms();
    const uint64_t end = begin + r->plan->start_timeout_ms;
    uint64_t notice = begin + NOTICE_MS;

    while (!remotes_are(r, REMOTE_OPEN)) {
        read_reports(r);
        if (r->interrupt_count > 0 || r->has_lost_host) {
            return false;
        }
        if (now_ms() >= end) {
            print_waiting(r, begin,
                          "--nodes asks for fewer, --start-timeout gives them "
                          "more time");
            return false;
        }
        if (now_ms() >= notice) {
            print_waiting(r, begin, "qstat -j shows why");
            notice = UINT64_MAX;
        }
        run_loop(r, notice < end ? notice : end);
    }
    return true;
}

static bool write_order(struct run *r)
{
    const char *address = getenv("PSKV_HOST_ADDRESS");
    char name[256] = "";

    (void)gethostname(name, sizeof(name) - 1);
    if (join_write_order(order_path(), address != NULL ? address : name,
                         r->listener, r->place_count)) {
        return true;
    }
    sink_print(&r->err, "cannot write %s: %s", order_path(), strerror(errno));
    return false;
}

static bool open_array(struct run *r)
{
    r->listener = listener_open(getenv("PSKV_HOST_ADDRESS"), r->place_count,
                                remote_accept, r);
    array_is_complete = r->listener != NULL && write_order(r) && submit(r) &&
                        await_tasks(r);
    listener_close(r->listener);
    r->listener = NULL;
    folder_remove();
    return array_is_complete;
}

/* Deletes the array job, unless its tasks end by themselves. Returns the output
 * of qdel, which the caller closes; -1: none. */
static int delete_array(struct run *r)
{
    struct command c = {.count = 0};
    struct process p = {.out = -1};

    if (array_job[0] != '\0' && (!array_is_complete || r->has_lost_host)) {
        command_add(&c, "qdel");
        command_add(&c, array_job);
        if (remote_spawn(r, 0, c.argv, "qdel", &p)) {
            close(p.in);
        }
        command_fini(&c);
    }
    return p.out;
}

/* ----------------------------------------------------------------- launcher */

static bool sge_open(struct run *r)
{
    return is_array() ? open_array(r) : remotes_open(r, "qrsh", make_command);
}

static void sge_close(struct run *r)
{
    int out = delete_array(r);

    remote_close(r); /* It waits for qdel. */
    if (out >= 0) {
        close(out);
    }
}

static void sge_print(const struct plan *p, uint32_t host)
{
    struct command c = {.count = 0};

    if (is_array() && host > 0) {
        printf("  supervisor, a task of the same array job\n");
        return;
    }
    if (is_array()) {
        make_submission(p, &c);
    } else {
        make_command(p, host, &c);
    }
    command_print(&c);
    command_fini(&c);
}

const struct launcher launcher_sge = {
    .name = "sge",
    .uses_hosts = true,
    .shares_folder = is_array,
    .refusal = "qsub has not taken the array job",
    .make_hosts = sge_make_hosts,
    .open = sge_open,
    .start = remote_start,
    .signal = remote_signal,
    .close = sge_close,
    .print = sge_print,
};
