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
#include "pslaunch/launcher.h"

#include "base/file_check.h"
#include "base/limits.h"
#include "base/str.h"
#include "crypto/pki.h"
#include "pslaunch/command.h"
#include "pslaunch/run.h"
#include "pslaunch/plan.h"
#include "pslaunch/remote.h"
#include "pslaunch/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

/* -------------------------------------------------------------------- tasks */

/* Limits on the connection to pslaunch, and on its handshake. */
#define CONNECT_SECONDS 6

/* --------------------------------------------------------------- connection */

static int connect_to(const char *address, uint16_t port, struct ps_str *why)
{
    const struct timeval limit = {.tv_sec = CONNECT_SECONDS};
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char text[8];
    int fd = -1;
    int rc;

    snprintf(text, sizeof(text), "%u", port);
    rc = getaddrinfo(address, text, &hints, &list);
    if (rc != 0) {
        ps_str_addf(why, "pslaunch at %s: %s", address, gai_strerror(rc));
        return -1;
    }
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            rc = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        ps_str_addf(why,
                    "pslaunch at %s port %u is not reached: %s; it states "
                    "another address by PSKV_HOST_ADDRESS",
                    address, port,
                    strerror(rc == EINPROGRESS ? ETIMEDOUT : rc));
    }
    return fd;
}

/* Connects the supervisor that this process or its child will be, by the key of
 * its host. False after the reason is appended to `why`. */
static bool join_at(const char *address, uint16_t port, uint32_t place,
                    const uint8_t *secret, struct ps_str *why)
{
    int fd = connect_to(address, port, why);
    SSL *tls;

    if (fd < 0) {
        return false;
    }
    tls = secret_connect(fd, place, secret, why);
    if (tls == NULL) {
        close(fd);
        return false;
    }
    supervisor_connect(fd, tls);
    return true;
}

/* -------------------------------------------------------------------- tasks */

/* Writes the file, of the user alone, that tells the tasks of an array job where
 * pslaunch listens: a line "ADDRESS PORT", then a line with the key of each
 * task. False with errno. */
static bool join_write_order(const char *path, const char *address,
                             const struct listener *l, uint32_t count)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;

    if (f == NULL) {
        return false;
    }
    fprintf(f, "%s %u\n", address, listener_port(l));
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *secret = listener_secret(l, i);

        for (uint32_t k = 0; k < PS_LAUNCH_SECRET_BYTES; k++) {
            fprintf(f, "%02x", secret[k]);
        }
        fputc('\n', f);
    }
    errno = ps_file_close(f);
    return errno == 0;
}

static FILE *open_order(const char *path, struct ps_str *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;

    if (fd < 0) {
        ps_str_addf(why,
                    "%s: %s; the job has ended, or this host has not the "
                    "folder of pslaunch",
                    path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &st) != 0 || st.st_uid != geteuid() ||
        (st.st_mode & 077) != 0) {
        ps_str_addf(why, "%s is not a file of this user alone", path);
        close(fd);
        return NULL;
    }
    return fdopen(fd, "r");
}

/* Reads the line of the task, from 1 on. */
static bool read_order(FILE *f, uint32_t task, char address[256],
                       unsigned *ret_port, uint8_t *secret)
{
    char line[512] = "";
    bool ok = fgets(line, sizeof(line), f) != NULL &&
              sscanf(line, "%255s %u", address, ret_port) == 2 &&
              *ret_port > 0 && *ret_port <= UINT16_MAX;

    for (uint32_t i = 0; ok && i < task; i++) {
        ok = fgets(line, sizeof(line), f) != NULL;
    }
    line[strcspn(line, "\n")] = '\0';
    ok = ok && ps_pki_read_hex(line, PS_LAUNCH_SECRET_BYTES, secret);
    OPENSSL_cleanse(line, sizeof(line));
    return ok;
}

static bool join_task(const char *path, struct ps_str *why)
{
    const char *number = getenv("SGE_TASK_ID");
    unsigned long task = number != NULL ? strtoul(number, NULL, 10) : 0;
    uint8_t secret[PS_LAUNCH_SECRET_BYTES];
    char address[256];
    unsigned port;
    FILE *f = open_order(path, why);
    bool ok;

    if (f == NULL) {
        return false;
    }
    setvbuf(f, NULL, _IONBF, 0); /* No copy of keys stays behind. */
    ok = task > 0 && task <= UINT32_MAX &&
         read_order(f, (uint32_t)task, address, &port, secret);
    fclose(f);
    if (!ok) {
        ps_str_addf(why, "%s has no line for task %lu", path, task);
        return false;
    }
    ok = join_at(address, (uint16_t)port, (uint32_t)task - 1, secret, why);
    OPENSSL_cleanse(secret, sizeof(secret));
    return ok;
}

bool join_pslaunch(const char *order)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX);
    if (!join_task(order, &why)) {
        fprintf(stderr, "pslaunch: %s\n", why.data);
        return false;
    }
    return true;
}

/* ----------------------------------------------------------------- launcher */

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

    if (p->hosts.count > 0 || p->job.run.sync_dst_dir[0] != '\0') {
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
    hosts_make(&p->hosts, "task", 1, count);
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

/* ----------------------------------------------------------------- commands */

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
    if (p->job.container.queue[0] != '\0') {
        command_add(c, "-q");
        command_add(c, p->job.container.queue);
    }
    command_add_words(c, "-b y -shell no");
    command_add_task(c, order_path());
}

static void sge_command(const struct plan *p, uint32_t host, struct command *c)
{
    if (!is_array()) {
        command_add_words(c, "qrsh -inherit");
        command_add(c, p->hosts.hosts[host].name);
        command_add_supervisor_text(c);
    } else if (host == 0) {
        make_submission(p, c);
    }
}

/* ---------------------------------------------------------------- array job */

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
    if (!remote_spawn(r, 0, &c, "qsub", &p)) {
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
    struct ps_str list = PS_STR_ROOM(256);
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->remotes[i].state != REMOTE_OPEN) {
            ps_str_addf(&list, "%s%u", list.data[0] != '\0' ? ", " : "", i + 1);
        }
    }
    sink_print(&r->err,
               "these of the %u tasks of the array job %s have not started "
               "within %.1f s, and all must run at the same time: %s; %s",
               r->place_count, array_job, (double)(now_ms() - begin) / 1000,
               list.data, advice);
}

static bool await_tasks(struct run *r)
{
    const uint64_t begin = now_ms();
    const uint64_t end = begin + r->plan->start_timeout_ms;
    uint64_t notice = begin + NOTICE_MS;

    while (!remotes_are(r, r->place_count, REMOTE_OPEN)) {
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
        if (remote_spawn(r, 0, &c, "qdel", &p)) {
            close(p.in);
        }
    }
    return p.out;
}

/* ----------------------------------------------------------------- launcher */

static bool sge_open(struct run *r)
{
    return is_array() ? open_array(r) : remotes_open(r);
}

static void sge_close(struct run *r)
{
    int out = delete_array(r);

    remotes_close(r); /* It waits for qdel. */
    if (out >= 0) {
        close(out);
    }
}

const struct launcher launcher_sge = {
    .name = "sge",
    .uses_hosts = true,
    .shares_folder = is_array,
    .refusal = "qsub has not accepted the array job",
    .make_hosts = sge_make_hosts,
    .command = sge_command,
    .program = "qrsh",
    .open = sge_open,
    .close = sge_close,
};
