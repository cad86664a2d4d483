/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/remote.h"

#include "base/limits.h"
#include "base/state_table.h"
#include "base/str.h"
#include "crypto/pki.h"
#include "pslaunch/launcher.h"
#include "pslaunch/supervisor.h"

#include <errno.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Output of the workers of one host that may be on its way. */
#define CREDIT_MAX  262144u

/* Longest command, and variables, of a process: those of launch_start. */
#define STRINGS_MAX 65535u

/* A host, for callbacks. */
struct at_host {
    struct run *run;
    uint32_t host;
};

static const uint32_t remote_allowed[] = {
    [REMOTE_NEW] = PS_STATE_BIT(REMOTE_PREPARING) |
                   PS_STATE_BIT(REMOTE_PREPARED) | PS_STATE_BIT(REMOTE_CLOSED),
    /* A program copies files there. */
    [REMOTE_PREPARING] = PS_STATE_BIT(REMOTE_PREPARED) |
                         PS_STATE_BIT(REMOTE_CLOSED),
    [REMOTE_PREPARED] = PS_STATE_BIT(REMOTE_OPENING) |
                        PS_STATE_BIT(REMOTE_CLOSED),
    /* Its supervisor has not said hello. */
    [REMOTE_OPENING] = PS_STATE_BIT(REMOTE_OPEN) | PS_STATE_BIT(REMOTE_CLOSED),
    [REMOTE_OPEN] = PS_STATE_BIT(REMOTE_CLOSED),
    [REMOTE_CLOSED] = 0,
};
/* The connection of pslaunch to the supervisor of a host. */
static const struct ps_state_table remote_states = {
    .name = "remote",
    .count = sizeof(remote_allowed) / sizeof(remote_allowed[0]),
    .allowed = remote_allowed,
};

static void remote_set_state(struct remote *m, enum remote_state to)
{
    ps_state_change(&remote_states, &m->state, (uint8_t)to);
}

/* ------------------------------------------------------------------ closing */

/* Ends the connection, and with it all processes there. */
static void close_host(struct run *r, uint32_t host)
{
    struct remote *m = &r->remotes[host];

    if (m->state == REMOTE_CLOSED) {
        return;
    }
    if (m->state == REMOTE_OPENING || m->state == REMOTE_OPEN) {
        link_close(&m->link);
    }
    remote_set_state(m, REMOTE_CLOSED);
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].host == host && r->child[i].state < CHILD_ENDED) {
            child_on_lost(r, &r->child[i]);
        }
    }
}

/* Prints a line about a host that ends with a text of that host, of which only
 * what is visible reaches the terminal. */
static void print_of_host(struct run *r, uint32_t host, const char *before,
                          const char *text)
{
    struct ps_str entry = PS_STR_ROOM(4 * PS_TEXT_MAX + 1);
    ps_str_add_visible(&entry, text);
    sink_print(&r->err, "%s %s: %s", before, r->places[host].name, entry.data);
}

void remote_lose(struct run *r, uint32_t host, const char *why)
{
    if (!r->is_stopping) {
        print_of_host(r, host, "lost the host", why);
        r->has_lost_host = true;
    }
    close_host(r, host);
}

/* ------------------------------------------------------------------ opening */

bool remote_spawn(struct run *r, uint32_t host, struct command *c,
                  const char *what, struct process *ret_process)
{
    struct remote *m = &r->remotes[host];
    char tag[320];
    int error = process_start(
        &(struct spawn){.argv = c->argv, .has_input = true}, ret_process);

    command_fini(c);
    if (error != 0) {
        sink_print(&r->err, "cannot start %s: %s", what, strerror(error));
        return false;
    }
    snprintf(tag, sizeof(tag), "[%s %s] ", r->places[host].name, what);
    stream_free(m->err);
    m->err = stream_new(ret_process->err, &r->err, NULL, tag);
    m->err->is_lossy = true;
    m->pid = ret_process->pid;
    return true;
}

/* The connection is made: waits for hello. */
static void open_host(struct run *r, uint32_t host)
{
    remote_set_state(&r->remotes[host], REMOTE_OPENING);
    r->remotes[host].heard_ms = now_ms();
}

void remote_accept(void *run, uint32_t host, int fd, SSL *tls)
{
    struct run *r = run;
    struct remote *m = &r->remotes[host];

    if (m->state != REMOTE_PREPARED) {
        SSL_free(tls); /* A second one, or of a host given up. */
        close(fd);
        return;
    }
    open_host(r, host);
    link_open_tls(&m->link, fd, tls);
}

/* ----------------------------------------------------------------- messages */

static void send_credit(struct remote *m, uint64_t bytes)
{
    /* A message of one number is never too long. */
    (void)link_send(&m->link,
                    &(struct ps_msg){.code = PS_MSG_LAUNCH_CREDIT,
                                     .launch_credit = {.bytes = bytes}});
}

/* True if address and folder may go into command lines and messages. */
static bool is_place(const struct ps_msg_launch_hello *h)
{
    size_t step = 1;

    for (const char *p = h->dir; *p != '\0' && step > 0; p += step) {
        step = ps_str_visible(p, strlen(p));
    }
    return step > 0 &&
           (h->address[0] == '\0' || ps_str_is_name(h->address, 255));
}

static bool on_hello(struct run *r, uint32_t host,
                     const struct ps_msg_launch_hello *h)
{
    struct remote *m = &r->remotes[host];
    struct place *at = &r->places[host];
    const char *given = r->plan->hosts.hosts[host].address;
    char *cwd = getcwd(NULL, 0);
    const char *folder = r->plan->job.run.sync_dst_dir[0] != '\0'
                             ? r->plan->job.run.sync_dst_dir
                         : r->plan->launcher->folder != NULL
                             ? r->plan->launcher->folder
                             : cwd;
    int rc;

    if (strcmp(h->version, PSKV_VERSION) != 0) {
        struct ps_str entry = PS_STR_ROOM(4 * PS_TEXT_MAX + 1);
        ps_str_add_visible(&entry, h->version);
        sink_print(&r->err,
                   "host %s has pslaunch %s, and this is " PSKV_VERSION
                   "; install one version on all hosts",
                   at->name, entry.data);
        free(cwd);
        return false;
    }
    if (!is_place(h)) {
        free(cwd);
        return false;
    }
    if (folder == NULL) {
        sink_print(&r->err, "the present folder: %s", strerror(errno));
        return false;
    }
    /* Without a connection by ssh, the name of the list has to do. */
    snprintf(at->address, sizeof(at->address), "%s",
             given != NULL           ? given
             : h->address[0] != '\0' ? h->address
                                     : at->name);
    snprintf(at->dir, sizeof(at->dir), "%s", h->dir);
    snprintf(at->sched_port, sizeof(at->sched_port), "%u", h->sched_port);
    snprintf(at->store_port, sizeof(at->store_port), "%u", h->store_port);
    remote_set_state(m, REMOTE_OPEN);
    rc = link_send(&m->link,
                   &(struct ps_msg){.code = PS_MSG_LAUNCH_SETUP,
                                    .launch_setup = {.folder = folder}});
    free(cwd);
    send_credit(m, CREDIT_MAX);
    return rc == 0;
}

/* The process that a message speaks of; NULL: there is none on this host. */
static struct child *find_child(struct run *r, uint32_t host, uint32_t number)
{
    struct child *c = number < r->child_count ? &r->child[number] : NULL;

    return c != NULL && c->host == host && c->state < CHILD_ENDED ? c : NULL;
}

static bool on_output(struct run *r, uint32_t host,
                      const struct ps_msg_launch_output *m)
{
    struct child *c = m->process < r->child_count ? &r->child[m->process]
                                                  : NULL;

    if (c == NULL || c->host != host) {
        return false;
    }
    stream_put(m->is_error ? c->err : c->out, m->bytes.data, m->bytes.len);
    if (!c->is_daemon) {
        r->remotes[host].owed += m->bytes.len;
    }
    return true;
}

/* The supervisor may ask once for each daemon of its host. */
static bool on_certify(struct run *r, uint32_t host,
                       const struct ps_msg_launch_certify *m)
{
    struct child *c = find_child(r, host, m->process);
    char pem[AUTHORITY_TEXT_BYTES];
    struct ps_str why = PS_STR_ROOM(256);
    EVP_PKEY *key = NULL;
    bool ok;

    if (c == NULL || c->role == 0) {
        return false;
    }
    if (ps_pki_read_csr(m->request, &key, &why) != 0) {
        sink_print(&r->err, "no certificate for %s: %s", c->name, why.data);
        return false;
    }
    ok = child_certify(r, c, key, pem) &&
         link_send(&r->remotes[host].link,
                   &(struct ps_msg){.code = PS_MSG_LAUNCH_CERTIFIED,
                                    .launch_certified = {
                                        .process = m->process,
                                        .certificates = pem,
                                    }}) == 0;
    ps_pki_key_free(key);
    return ok;
}

static bool on_open_message(struct run *r, uint32_t host,
                            const struct ps_msg *msg)
{
    struct child *c;

    switch ((int)msg->code) {
    case PS_MSG_LAUNCH_READY:
        c = find_child(r, host, msg->launch_ready.process);
        if (c != NULL && c->state == CHILD_STARTED) {
            child_on_ready(c);
        }
        return c != NULL;
    case PS_MSG_LAUNCH_CERTIFY:
        return on_certify(r, host, &msg->launch_certify);
    case PS_MSG_LAUNCH_OUTPUT:
        return on_output(r, host, &msg->launch_output);
    case PS_MSG_LAUNCH_ENDED:
        c = find_child(r, host, msg->launch_ended.process);
        if (c != NULL) {
            c->lacked_memory = msg->launch_ended.lacked_memory;
            child_on_ended(r, c,
                           W_EXITCODE(msg->launch_ended.exit_code,
                                      msg->launch_ended.signal));
        }
        return c != NULL;
    case PS_MSG_LAUNCH_FAILED:
        print_of_host(r, host, "host", msg->launch_failed.text);
        return true;
    case PS_MSG_LAUNCH_CREDIT: /* Shows life. */
        return true;
    default:
        return false;
    }
}

static bool on_message(void *ctx, const struct ps_msg *msg)
{
    struct at_host *at = ctx;
    struct remote *m = &at->run->remotes[at->host];

    m->heard_ms = now_ms();
    if (m->state == REMOTE_OPENING) {
        return msg->code == PS_MSG_LAUNCH_HELLO &&
               on_hello(at->run, at->host, &msg->launch_hello);
    }
    return on_open_message(at->run, at->host, msg);
}

void remote_read(struct run *r, uint32_t host)
{
    struct at_host at = {.run = r, .host = host};
    struct remote *m = &r->remotes[host];
    bool was_open = m->state == REMOTE_OPEN;

    if (!link_read(&m->link, on_message, &at)) {
        remote_lose(r, host,
                    was_open ? "the connection to its supervisor has ended"
                             : "its supervisor did not start");
    }
}

void remote_on_exit(struct run *r, pid_t pid, int status)
{
    for (uint32_t i = 0; r->remotes != NULL && i < r->place_count; i++) {
        struct remote *m = &r->remotes[i];

        if (m->pid != pid) {
            continue;
        }
        m->pid = 0;
        if (m->state == REMOTE_PREPARED && status != 0) {
            remote_lose(r, i, r->plan->launcher->refusal);
        }
        if (m->state != REMOTE_PREPARING) {
            continue; /* The link tells the rest. */
        }
        remote_set_state(m, REMOTE_PREPARED);
        if (status != 0) {
            char text[64];

            snprintf(text, sizeof(text), "rsync ended with code %d",
                     WIFEXITED(status) ? WEXITSTATUS(status)
                                       : 128 + WTERMSIG(status));
            remote_lose(r, i, text);
        }
    }
}

void remotes_tick(struct run *r)
{
    uint64_t now = now_ms();
    bool may_pay = !sink_is_full(&r->out) && !sink_is_full(&r->err);

    for (uint32_t i = 0; r->remotes != NULL && i < r->place_count; i++) {
        struct remote *m = &r->remotes[i];

        if (m->state != REMOTE_OPEN) {
            continue;
        }
        if (m->owed > 0 && may_pay) {
            send_credit(m, m->owed);
            m->owed = 0;
        }
        if (now - m->beat_ms >= BEAT_MS) {
            m->beat_ms = now;
            send_credit(m, 0);
        }
        if (now - m->heard_ms > LEASE_MS) {
            remote_lose(r, i, "it is silent");
        } else if (link_is_cut(&m->link)) {
            remote_lose(r, i, "its host does not answer");
        }
    }
}

/* Asks the supervisors to end everything. */
static void finish_hosts(struct run *r)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        struct remote *m = &r->remotes[i];

        if (m->state == REMOTE_OPEN) {
            (void)link_send(&m->link,
                            &(struct ps_msg){.code = PS_MSG_LAUNCH_FINISH});
        } else {
            close_host(r, i);
        }
    }
}

/* ---------------------------------------------------------------- processes */

/* Puts strings in a row, each with its zero; returns the length, 0 if there is
 * more than STRINGS_MAX. */
static uint32_t join_strings(char *const *list, char *out)
{
    size_t len = 0;

    for (char *const *s = list; s != NULL && *s != NULL; s++) {
        size_t n = strlen(*s) + 1;

        if (len + n > STRINGS_MAX) {
            return 0;
        }
        memcpy(out + len, *s, n);
        len += n;
    }
    return (uint32_t)len;
}

bool remote_start(struct run *r, struct child *c, const struct spawn *s)
{
    struct remote *m = &r->remotes[c->host];
    char *words = malloc(2 * (size_t)STRINGS_MAX);
    char *variables;
    struct ps_msg msg = {.code = PS_MSG_LAUNCH_START};
    bool ok;

    if (words == NULL) {
        abort();
    }
    variables = words + STRINGS_MAX;
    msg.launch_start = (struct ps_msg_launch_start){
        .process = (uint32_t)(c - r->child),
        .is_daemon = s->is_daemon,
        .is_certified = c->role != 0,
        .words = {.data = (uint8_t *)words,
                  .len = join_strings(s->argv, words)},
        .variables = {.data = (uint8_t *)variables,
                      .len = join_strings(s->env, variables)},
    };
    ok = msg.launch_start.words.len > 0 &&
         (msg.launch_start.variables.len > 0 || s->env == NULL ||
          s->env[0] == NULL);
    if (!ok) {
        sink_print(&r->err,
                   "the command or the variables of %s have more than %u "
                   "bytes",
                   c->name, STRINGS_MAX);
        child_on_lost(r, c);
    } else if (m->state != REMOTE_OPEN) {
        ok = false; /* Its loss is reported. */
        child_on_lost(r, c);
    } else {
        ok = link_send(&m->link, &msg) == 0;
    }
    free(words);
    return ok;
}

void remotes_signal(struct run *r, bool daemons, int sig)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        struct remote *m = &r->remotes[i];

        if (m->state == REMOTE_OPEN) {
            (void)link_send(&m->link,
                            &(struct ps_msg){.code = PS_MSG_LAUNCH_SIGNAL,
                                             .launch_signal = {
                                                 .is_daemon = daemons,
                                                 .signal = (uint8_t)sig,
                                             }});
        }
    }
}

/* -------------------------------------------------------------------- waits */

/* Most time for a supervisor whose connection is closed to kill its processes,
 * and after an interrupt for output that is not read. */
#define CLOSE_MS 5000u
#define FLUSH_MS 1000u

bool remotes_are(const struct run *r, uint32_t count, enum remote_state state)
{
    for (uint32_t i = 0; i < count; i++) {
        if (r->remotes[i].state != state) {
            return false;
        }
    }
    return true;
}

/* Waits until the first `count` hosts are in this state. False after a message,
 * or when the run was interrupted. */
static bool await_hosts(struct run *r, uint32_t count, enum remote_state state)
{
    uint64_t end = now_ms() + r->plan->start_timeout_ms;

    while (!remotes_are(r, count, state)) {
        if (r->interrupt_count > 0 || r->has_lost_host) {
            return false;
        }
        if (now_ms() >= end) {
            for (uint32_t i = 0; i < count; i++) {
                if (r->remotes[i].state != state) {
                    sink_print(&r->err,
                               "host %s was not ready within %.1f s; "
                               "--start-timeout gives it more",
                               r->places[i].name,
                               (double)r->plan->start_timeout_ms / 1000);
                }
            }
            return false;
        }
        run_loop(r, end);
    }
    return true;
}

/* Starts the program that copies the present folder to this host. */
static bool start_copy(struct run *r, uint32_t host, host_command_cb copy)
{
    struct command c = {.count = 0};
    struct process p;

    copy(r->plan, host, &c);
    if (!remote_spawn(r, host, &c, "rsync", &p)) {
        return false;
    }
    close(p.in);
    close(p.out);
    remote_set_state(&r->remotes[host], REMOTE_PREPARING);
    return true;
}

bool remotes_copy(struct run *r, host_command_cb copy)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->plan->job.run.sync_dst_dir[0] == '\0') {
            remote_set_state(&r->remotes[i], REMOTE_PREPARED);
        } else if (!start_copy(r, i, copy) ||
                   (i == 0 && !await_hosts(r, 1, REMOTE_PREPARED))) {
            return false;
        }
    }
    return await_hosts(r, r->place_count, REMOTE_PREPARED);
}

/* Starts the program that connects to this host. */
static bool connect_to(struct run *r, uint32_t host)
{
    struct command c = {.count = 0};
    struct process p;

    r->plan->launcher->command(r->plan, host, &c);
    if (!remote_spawn(r, host, &c, r->plan->launcher->program, &p)) {
        return false;
    }
    open_host(r, host);
    link_open(&r->remotes[host].link, p.out, p.in);
    return true;
}

bool remotes_open(struct run *r)
{
    const bool first_alone = r->plan->launcher->opens_first_alone;

    for (uint32_t i = 0; i < r->place_count; i++) {
        if (!connect_to(r, i) ||
            (i == 0 && first_alone && !await_hosts(r, 1, REMOTE_OPEN))) {
            return false;
        }
    }
    return await_hosts(r, r->place_count, REMOTE_OPEN);
}

static bool is_any_program_alive(const struct run *r)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->remotes[i].pid != 0) {
            return true;
        }
    }
    return false;
}

void remotes_close(struct run *r)
{
    uint64_t end = UINT64_MAX;

    finish_hosts(r);
    while (!remotes_are(r, r->place_count, REMOTE_CLOSED) && now_ms() < end) {
        if (r->interrupt_count > 0 && end == UINT64_MAX) {
            end = now_ms() + FLUSH_MS;
        }
        run_loop(r, end);
    }
    for (uint32_t i = 0; i < r->place_count; i++) {
        close_host(r, i);
    }
    end = now_ms() + CLOSE_MS;
    while (is_any_program_alive(r) && now_ms() < end) {
        run_loop(r, end);
    }
    process_kill_all();
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->remotes[i].err != NULL && r->remotes[i].err->in >= 0) {
            (void)stream_read(r->remotes[i].err);
        }
        stream_free(r->remotes[i].err);
        r->remotes[i].err = NULL;
    }
}
