/* SPDX-License-Identifier: Apache-2.0 */
/* Supervisor of the processes of a job on one host, which pslaunch starts there
 * and tells by messages what to do (docs/protocol.md, rules X1 to X8). It decides
 * nothing but the end: when the messages stop, it kills all processes.
 *
 *     pslaunch                 supervisor
 *                        <--   launch_hello
 *     launch_setup       -->
 *     launch_start       -->
 *                        <--   launch_certify, of a daemon with a certificate
 *     launch_certified   -->
 *                        <--   launch_ready, launch_output, launch_ended
 *     launch_signal, launch_credit  -->
 *     launch_finish      -->
 *                        <--   the rest of the output, end of the stream
 */
#include "pslaunch/supervisor.h"

#include "base/str.h"
#include "crypto/pki.h"
#include "pslaunch/authority.h"
#include "pslaunch/command.h"
#include "pslaunch/process.h"
#include "pslaunch/link.h"
#include "pslaunch/plan.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Output that may wait for the link. */
#define OUTPUT_MAX    (256u * 1024u)
/* Bytes of one launch_output. */
#define CHUNK_MAX     16384u
/* Words of a command, and variables of a process. */
#define WORDS_MAX     8192u
#define PROCESSES_MAX 8192u

/* A process of the job. */
struct job_process {
    uint32_t number; /* That of pslaunch. */
    bool is_daemon;
    pid_t pid; /* 0: it has ended. */
    int out;   /* Pipes; -1: closed. */
    int err;
    int ready;
};

/* A daemon that waits for its certificate. */
struct waiting {
    struct ps_msg *start; /* launch_start */
    EVP_PKEY *key;        /* Made here, and nowhere else. */
};

enum course {
    COURSE_RUNNING,
    COURSE_FINISHING, /* All are killed; output is on its way. */
    COURSE_OVER,
};

struct supervisor {
    struct link link;
    struct job_process *processes;
    uint32_t count;
    struct waiting *waiting;
    uint32_t waiting_count;
    uint64_t credit; /* Bytes of output that workers may still send. */
    uint64_t heard_ms;
    uint64_t oom_seen; /* Of process_lacked_memory(). */
    int signals;       /* signalfd */
    enum course course;
};

static void send_msg(struct supervisor *s, const struct ps_msg *msg)
{
    int rc = link_send(&s->link, msg);

    if (rc != 0) {
        fprintf(stderr, "message %d: %s\n", (int)msg->code, ps_strerror(rc));
        s->course = COURSE_OVER;
    }
}

static void report(struct supervisor *s, const char *text)
{
    send_msg(s, &(struct ps_msg){.code = PS_MSG_LAUNCH_FAILED,
                                 .launch_failed = {.text = text}});
    if (s->course == COURSE_RUNNING) {
        s->course = COURSE_FINISHING;
    }
}

static void report_failure(struct supervisor *s, const char *what,
                           const char *name, int error)
{
    char text[480];

    snprintf(text, sizeof(text), "%s %.300s: %s", what, name, strerror(error));
    report(s, text);
}

/* ------------------------------------------------------------------ opening */

/* Connection that supervisor_connect() has set; -1: none. */
static int connected_fd = -1;
static SSL *connected_tls;

void supervisor_connect(int fd, SSL *tls)
{
    connected_fd = fd;
    connected_tls = tls;
}

/* Address of this host that the connection to pslaunch has. */
static void connected_address(char *text, size_t cap)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);

    text[0] = '\0';
    if (getsockname(connected_fd, (struct sockaddr *)&sa, &len) == 0) {
        (void)getnameinfo((struct sockaddr *)&sa, len, text, (socklen_t)cap,
                          NULL, 0, NI_NUMERICHOST);
    }
}

/* Address of this host: that of PSKV_HOST_ADDRESS, which a definition of
 * pslaunch sets, or the one that the user's ssh reaches, from SSH_CONNECTION:
 * "client port server port". */
static void own_address(char *text, size_t cap)
{
    const char *given = getenv("PSKV_HOST_ADDRESS");
    const char *connection = getenv("SSH_CONNECTION");
    char server[256] = "";

    if (given != NULL) {
        snprintf(server, sizeof(server), "%s", given);
    } else if (connection != NULL) {
        (void)sscanf(connection, "%*s %*s %255s", server);
    }
    snprintf(text, cap, "%s", server);
}

static uint16_t free_port(void)
{
    char text[PORT_TEXT_MAX];

    port_reserve(text);
    return (uint16_t)strtoul(text, NULL, 10);
}

/* Removes variables of the program that has started the supervisor: they would
 * give each process of the job rank 0 of 1. */
static void remove_launcher_variables(void)
{
    static const char *const prefixes[] = {"OMPI_", "PMIX_", "PMI_",
                                           "MPI_",  "HYDI_", "SLURM_"};
    size_t i = 0;

    while (environ[i] != NULL) {
        char *name = strndup(environ[i], strcspn(environ[i], "="));
        bool is_removed = false;

        for (size_t k = 0; name != NULL && !is_removed &&
                           k < sizeof(prefixes) / sizeof(prefixes[0]);
             k++) {
            is_removed = strncmp(name, prefixes[k], strlen(prefixes[k])) == 0;
        }
        if (is_removed) {
            unsetenv(name);
        } else {
            i++;
        }
        free(name);
    }
}

static bool open_supervisor(struct supervisor *s)
{
    char address[256];

    s->signals = process_open_signals();
    if (s->signals < 0) {
        fprintf(stderr, "signalfd: %s\n", strerror(errno));
        return false;
    }
    remove_launcher_variables();
    if (connected_fd >= 0) {
        connected_address(address, sizeof(address));
        link_open_tls(&s->link, connected_fd, connected_tls);
    } else {
        own_address(address, sizeof(address));
        link_open(&s->link, STDIN_FILENO, STDOUT_FILENO);
    }
    send_msg(s, &(struct ps_msg){.code = PS_MSG_LAUNCH_HELLO,
                                 .launch_hello = {.version = PSKV_VERSION,
                                                  .address = address,
                                                  .dir = folder_path(),
                                                  .sched_port = free_port(),
                                                  .store_port = free_port()}});
    s->heard_ms = now_ms();
    return true;
}

/* ----------------------------------------------------------------- messages */

/* Splits strings that end with a zero each. Returns a list that ends with NULL,
 * whose strings are borrowed; NULL: malformed, or too many. */
static char **split_strings(const struct ps_bytes *b)
{
    char **list = calloc(WORDS_MAX + 1, sizeof(*list));
    size_t count = 0;

    if (list == NULL || (b->len > 0 && b->data[b->len - 1] != 0)) {
        free((void *)list);
        return NULL;
    }
    for (size_t i = 0; i < b->len; i += strlen((const char *)b->data + i) + 1) {
        if (count == WORDS_MAX) {
            free((void *)list);
            return NULL;
        }
        list[count++] = (char *)(uintptr_t)(b->data + i);
    }
    return list;
}

static void add_process(struct supervisor *s,
                        const struct ps_msg_launch_start *m,
                        const struct process *p)
{
    s->processes[s->count++] = (struct job_process){.number = m->process,
                                                    .is_daemon = m->is_daemon,
                                                    .pid = p->pid,
                                                    .out = p->out,
                                                    .err = p->err,
                                                    .ready = p->ready};
}

/* Starts a process; `credential`: descriptor of its key and certificate, 0:
 * none. False: malformed. */
static bool start_process(struct supervisor *s,
                          const struct ps_msg_launch_start *m, int credential)
{
    char **words = split_strings(&m->words);
    char **variables = split_strings(&m->variables);
    bool ok = words != NULL && variables != NULL && words[0] != NULL &&
              s->count < PROCESSES_MAX;

    if (ok && s->course == COURSE_RUNNING) {
        struct env env = {0};
        struct process p;
        int error;

        env_add(&env, environ);
        env_add(&env, variables);
        error = process_start(&(struct spawn){.argv = words,
                                              .env = env.items,
                                              .is_daemon = m->is_daemon,
                                              .credential = credential},
                              &p);
        env_fini(&env);
        if (error == 0) {
            add_process(s, m, &p);
        } else {
            report_failure(s, "cannot start", words[0], error);
        }
    }
    free((void *)words);
    free((void *)variables);
    return ok;
}

/* ------------------------------------------------------------- certificates */

static void drop_waiting(struct supervisor *s, uint32_t at)
{
    ps_pki_key_free(s->waiting[at].key);
    ps_msg_free(s->waiting[at].start);
    s->waiting[at] = s->waiting[--s->waiting_count];
}

/* Makes the key of a daemon and asks for its certificate. False: malformed. */
static bool ask_for_certificate(struct supervisor *s, const struct ps_msg *msg)
{
    const uint32_t process = msg->launch_start.process;
    struct ps_str request = PS_STR_ROOM(2048);
    struct ps_str why = PS_STR_ROOM(256);
    EVP_PKEY *key = NULL;

    if (!msg->launch_start.is_daemon ||
        s->count + s->waiting_count >= PROCESSES_MAX) {
        return false;
    }
    if (ps_pki_key_new(&key, &why) != 0 ||
        ps_pki_add_csr(&request, key, &why) != 0 || request.truncated) {
        report(s, why.data);
        ps_pki_key_free(key);
        return true;
    }
    s->waiting[s->waiting_count++] = (struct waiting){.start = ps_msg_dup(msg),
                                                      .key = key};
    send_msg(s, &(struct ps_msg){.code = PS_MSG_LAUNCH_CERTIFY,
                                 .launch_certify = {.process = process,
                                                    .request = request.data}});
    return true;
}

/* False: malformed. */
static bool on_start(struct supervisor *s, const struct ps_msg *msg)
{
    if (!msg->launch_start.is_certified) {
        return start_process(s, &msg->launch_start, 0);
    }
    return s->course != COURSE_RUNNING || ask_for_certificate(s, msg);
}

/* Starts a daemon that waits for its certificate, unless it has been signalled
 * meanwhile. */
static bool on_certified(struct supervisor *s,
                         const struct ps_msg_launch_certified *m)
{
    uint32_t at = 0;
    bool ok = true;
    int fd;

    while (at < s->waiting_count &&
           s->waiting[at].start->launch_start.process != m->process) {
        at++;
    }
    if (at == s->waiting_count) {
        return true;
    }
    fd = credential_open(s->waiting[at].key, m->certificates);
    if (fd < 0) {
        report_failure(s, "no memory for", "a certificate", -fd);
    } else {
        ok = start_process(s, &s->waiting[at].start->launch_start, fd);
        close(fd);
    }
    drop_waiting(s, at);
    return ok;
}

/* Ends the daemons that wait, as the signal would. */
static void end_waiting(struct supervisor *s, int sig)
{
    while (s->waiting_count > 0) {
        send_msg(s,
                 &(struct ps_msg){
                     .code = PS_MSG_LAUNCH_ENDED,
                     .launch_ended = {
                         .process = s->waiting[0].start->launch_start.process,
                         .signal = (uint8_t)sig,
                     }});
        drop_waiting(s, 0);
    }
}

/* ------------------------------------------------------------ other messages */

static void on_setup(struct supervisor *s, const char *folder)
{
    if (chdir(folder) != 0) {
        report_failure(s, "cannot enter the folder", folder, errno);
    }
}

static void on_signal(struct supervisor *s,
                      const struct ps_msg_launch_signal *m)
{
    if (m->is_daemon) {
        end_waiting(s, m->signal);
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->processes[i].pid != 0 &&
            s->processes[i].is_daemon == m->is_daemon) {
            process_signal_group(s->processes[i].pid, m->signal);
        }
    }
}

static bool on_message(void *ctx, const struct ps_msg *msg)
{
    struct supervisor *s = ctx;

    s->heard_ms = now_ms();
    switch ((int)msg->code) {
    case PS_MSG_LAUNCH_SETUP:
        on_setup(s, msg->launch_setup.folder);
        return true;
    case PS_MSG_LAUNCH_START:
        return on_start(s, msg);
    case PS_MSG_LAUNCH_CERTIFIED:
        return on_certified(s, &msg->launch_certified);
    case PS_MSG_LAUNCH_SIGNAL:
        on_signal(s, &msg->launch_signal);
        return true;
    case PS_MSG_LAUNCH_CREDIT:
        s->credit += msg->launch_credit.bytes;
        if (msg->launch_credit.bytes == 0) { /* Shows life. */
            send_msg(s, msg);
        }
        return true;
    case PS_MSG_LAUNCH_FINISH:
        process_signal_all(SIGKILL);
        s->course = COURSE_FINISHING;
        return true;
    default:
        return false;
    }
}

/* ---------------------------------------------------------------- processes */

static void on_ended(struct supervisor *s, struct job_process *p, int status)
{
    p->pid = 0;
    send_msg(s, &(struct ps_msg){.code = PS_MSG_LAUNCH_ENDED,
                                 .launch_ended = {
                                     .process = p->number,
                                     .exit_code = (uint8_t)WEXITSTATUS(status),
                                     .signal = (uint8_t)WTERMSIG(status),
                                     .lacked_memory = process_lacked_memory(
                                         status, &s->oom_seen),
                                 }});
}

static void read_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;
    int status;
    pid_t pid;

    while (read(s->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) {
            s->course = COURSE_OVER;
        }
    }
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (uint32_t i = 0; i < s->count; i++) {
            if (s->processes[i].pid == pid) {
                on_ended(s, &s->processes[i], status);
            }
        }
    }
}

/* True if output of this process may be read now. */
static bool may_read(const struct supervisor *s, const struct job_process *p)
{
    return (p->is_daemon || s->credit > 0) &&
           link_output_size(&s->link) < OUTPUT_MAX;
}

/* Reads once and sends it; closes the pipe at its end. */
static void forward_output(struct supervisor *s, const struct job_process *p,
                           int *fd)
{
    uint8_t bytes[CHUNK_MAX];
    size_t most = sizeof(bytes);
    ssize_t n;

    if (!p->is_daemon && s->credit < most) {
        most = (size_t)s->credit;
    }
    n = read(*fd, bytes, most);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
        return;
    }
    if (n <= 0) {
        close(*fd);
        *fd = -1;
        return;
    }
    s->credit -= p->is_daemon ? 0 : (uint64_t)n;
    send_msg(s,
             &(struct ps_msg){.code = PS_MSG_LAUNCH_OUTPUT,
                              .launch_output = {
                                  .process = p->number,
                                  .is_error = fd == &p->err,
                                  .bytes = {.data = bytes, .len = (uint32_t)n},
                              }});
}

static void read_ready(struct supervisor *s, struct job_process *p)
{
    char byte;
    ssize_t n = read(p->ready, &byte, 1);

    if (n == 1) {
        send_msg(s, &(struct ps_msg){.code = PS_MSG_LAUNCH_READY,
                                     .launch_ready = {.process = p->number}});
    }
    close(p->ready);
    p->ready = -1;
}

/* --------------------------------------------------------------------- loop */

/* Descriptors of one wait: two of the supervisor, three of each process. */
#define FIXED_FDS 3u

static void fill_poll(const struct supervisor *s, struct pollfd *fds)
{
    const struct link *l = &s->link;

    fds[0] = (struct pollfd){.fd = s->signals, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = l->in, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = link_has_output(l) ? l->out : -1,
                             .events = POLLOUT};
    for (uint32_t i = 0; i < s->count; i++) {
        const struct job_process *p = &s->processes[i];
        struct pollfd *at = fds + FIXED_FDS + 3 * (size_t)i;
        bool may = may_read(s, p);

        at[0] = (struct pollfd){.fd = may ? p->out : -1, .events = POLLIN};
        at[1] = (struct pollfd){.fd = may ? p->err : -1, .events = POLLIN};
        at[2] = (struct pollfd){.fd = p->ready, .events = POLLIN};
    }
}

static void serve_processes(struct supervisor *s, const struct pollfd *fds)
{
    for (uint32_t i = 0; i < s->count; i++) {
        struct job_process *p = &s->processes[i];
        const struct pollfd *at = fds + FIXED_FDS + 3 * (size_t)i;

        if (at[0].revents != 0 && may_read(s, p)) {
            forward_output(s, p, &p->out);
        }
        if (at[1].revents != 0 && may_read(s, p)) {
            forward_output(s, p, &p->err);
        }
        if (at[2].revents != 0) {
            read_ready(s, p);
        }
    }
}

static void serve(struct supervisor *s)
{
    size_t count = FIXED_FDS + 3 * (size_t)s->count;
    struct pollfd *fds = calloc(count, sizeof(*fds));

    if (fds == NULL) {
        abort();
    }
    fill_poll(s, fds);
    if (poll(fds, count, LOOK_MS) > 0) {
        serve_processes(s, fds);
        if (fds[0].revents != 0) {
            read_signals(s);
        }
        if (fds[2].revents != 0) {
            link_write(&s->link);
        }
        if (fds[1].revents != 0 && !link_read(&s->link, on_message, s)) {
            s->course = COURSE_OVER;
        }
    }
    free(fds);
    if (s->link.out < 0 || now_ms() - s->heard_ms > LEASE_MS ||
        link_is_cut(&s->link)) {
        s->course = COURSE_OVER;
    }
}

/* True if all output of the processes has been sent. */
static bool is_drained(const struct supervisor *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->processes[i].pid != 0 || s->processes[i].out >= 0 ||
            s->processes[i].err >= 0) {
            return false;
        }
    }
    return !link_has_output(&s->link);
}

int supervise(void)
{
    struct supervisor s = {
        .oom_seen = process_oom_kills(),
        .processes = calloc(PROCESSES_MAX, sizeof(struct job_process)),
        .waiting = calloc(PROCESSES_MAX, sizeof(struct waiting))};

    if (s.processes == NULL || s.waiting == NULL || !open_supervisor(&s)) {
        return EXIT_FAILED;
    }
    while (s.course != COURSE_OVER) {
        serve(&s);
        if (s.course == COURSE_FINISHING) {
            process_signal_all(SIGKILL);
            if (is_drained(&s)) {
                s.course = COURSE_OVER;
            }
        }
    }
    process_kill_all();
    link_close(&s.link);
    while (s.waiting_count > 0) {
        drop_waiting(&s, 0);
    }
    free(s.waiting);
    free(s.processes);
    return EXIT_OK;
}
