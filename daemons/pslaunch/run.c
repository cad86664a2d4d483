/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a job: daemons first (when none run here), then the workers, then
 * a wait for the first failure or the last success, and the end of all
 * processes.
 *
 *     psched ready -> psservers and agents ready -> workers
 *     all workers ended, or one failed, or a signal
 *     -> TERM to workers, grace, KILL; TERM to daemons, grace, KILL
 *     -> KILL to every remaining descendant
 *
 * Its own daemons live in a temporary folder under $TMPDIR.
 *
 * Each group of processes waits until the one before it is ready. A dry run prints
 * them as text. */
#include "pslaunch/run.h"

#include "base/limits.h"
#include "base/state_table.h"
#include "base/str.h"
#include "crypto/identity.h"
#include "pslaunch/authority.h"
#include "pslaunch/command.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"
#include "pslaunch/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* -------------------------------------------------------------------- start */

/* On a terminal, interval of notes about a daemon that is not ready. */
#define NOTE_MS      30000u

/* Words of a daemon's command line. */
#define DAEMON_WORDS 32

/* ------------------------------------------------------------------ daemons */

/* Command line of a daemon. */
struct words {
    const char *argv[DAEMON_WORDS];
    char text[8][400]; /* Those that are made here. */
    uint32_t count;
    uint32_t text_count;
    enum ps_role role;
    char node[16]; /* Name of the daemon's node. */
    bool is_cut;   /* A text did not fit. */
};

static void words_add(struct words *w, const char *word)
{
    w->argv[w->count++] = word;
}

/* Adds "-o NAME=VALUE". */
static void words_option(struct words *w, const char *name, const char *value)
{
    char *text = w->text[w->text_count++];

    if (snprintf(text, sizeof(w->text[0]), "%s=%s", name, value) >=
        (int)sizeof(w->text[0])) {
        w->is_cut = true;
    }
    words_add(w, "-o");
    words_add(w, text);
}

static void words_number(struct words *w, const char *name, uint32_t value)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", value);
    words_option(w, name, text);
}

/* Adds the address of a daemon that other hosts reach. */
static void words_listen(struct words *w, const struct run *r,
                         const struct place *at)
{
    if (r->plan->launcher->uses_hosts) {
        words_option(w, "listen.address", at->address);
        if (!plan_encrypts(r->plan)) {
            words_option(w, "security.insecure", "true");
        }
    }
}

static void words_begin(struct words *w, const struct run *r,
                        const char *program, enum ps_role role)
{
    *w = (struct words){.role = role};
    words_add(w, program);
    words_add(w, "--log-level");
    words_add(w, r->plan->job.run.log_level);
    words_add(w, "-c");
    words_add(w, "/dev/null"); /* Ignores the host's configuration. */
    if (plan_encrypts(r->plan)) {
        /* Within a host, too: each connection is one of a member. */
        words_option(w, "security.tls.enabled", "on");
    }
}

/* Adds the name of the daemon's node. */
static void words_node(struct words *w, const char *prefix, uint32_t number)
{
    plan_node_name(prefix, number, w->node);
    words_option(w, "node.name", w->node);
}

/* Writes "[3] ", or "[n02:3] " where there are several hosts. */
static void make_tag(const struct run *r, uint32_t host, const char *what,
                     char *tag, size_t cap)
{
    if (r->plan->launcher->uses_hosts) {
        snprintf(tag, cap, "[%s:%s] ", r->places[host].name, what);
    } else {
        snprintf(tag, cap, "[%s] ", what);
    }
}

static bool start_daemon(struct run *r, uint32_t host, uint32_t number,
                         const struct words *w, char **env)
{
    char name[32];
    char tag[320];
    struct child *c;

    snprintf(name, sizeof(name), "%s %u", w->argv[0], number);
    if (w->is_cut) {
        sink_print(&r->err, "an option of %s has more than %zu bytes", name,
                   sizeof(w->text[0]) - 1);
        return false;
    }
    make_tag(r, host, name, tag, sizeof(tag));
    c = child_add(r, host, true, name, tag, NULL);
    if (plan_encrypts(r->plan)) {
        c->role = (uint8_t)w->role;
        snprintf(c->node, sizeof(c->node), "%s", w->node);
    }
    return child_start(r, c,
                       &(struct spawn){.argv = (char *const *)w->argv,
                                       .env = env,
                                       .is_daemon = true});
}

/* Waits until a daemon is ready. */
static bool await_ready(struct run *r, const struct child *c)
{
    uint64_t begin = now_ms();
    uint64_t end = begin + r->plan->start_timeout_ms;
    uint64_t note = isatty(STDERR_FILENO) == 1 ? begin + NOTE_MS : UINT64_MAX;

    while (c->state != CHILD_READY) {
        if (r->interrupt_count > 0) {
            return false;
        }
        if (c->state >= CHILD_ENDED) {
            sink_print(&r->err, "%s ended before it was ready", c->name);
            return false;
        }
        if (now_ms() >= end) {
            sink_print(&r->err,
                       "%s was not ready within %.1f s; --start-timeout gives "
                       "it more, --log-level info shows its progress",
                       c->name, (double)r->plan->start_timeout_ms / 1000);
            return false;
        }
        if (now_ms() >= note) {
            sink_print(&r->err, "%s is not ready after %.0f s", c->name,
                       (double)(now_ms() - begin) / 1000);
            note += NOTE_MS;
        }
        run_loop(r, note < end ? note : end);
    }
    return true;
}

static bool start_sched(struct run *r)
{
    const struct place *at = &r->places[0];
    struct words w;
    char control[300];

    words_begin(&w, r, "psched", PS_ROLE_SCHED);
    snprintf(w.node, sizeof(w.node), SCHED_NODE);
    if (snprintf(control, sizeof(control), "%s/psched.sock", at->dir) >=
        (int)sizeof(control)) {
        w.is_cut = true;
    }
    words_option(&w, "listen.port", at->sched_port);
    words_option(&w, "control.socket", control);
    /* It ends with the job, and none takes its place. */
    words_option(&w, "state.file", "null");
    words_listen(&w, r, at);
    return start_daemon(r, 0, 0, &w, NULL) &&
           await_ready(r, &r->child[r->child_count - 1]);
}

/* Writes HOST:PORT of psched. */
static void sched_endpoint(const struct run *r, char *text, size_t cap)
{
    const struct place *at = &r->places[0];
    bool is_v6 = strchr(at->address, ':') != NULL;

    snprintf(text, cap, "%s%s%s:%s", is_v6 ? "[" : "", at->address,
             is_v6 ? "]" : "", at->sched_port);
}

static bool start_server(struct run *r, uint32_t number, const char *sched)
{
    uint32_t host = r->plan->layout.server_hosts[number];
    struct words w;
    struct env env;
    bool ok;

    words_begin(&w, r, "psserver", PS_ROLE_SERVER);
    words_add(&w, "--keep");
    words_add(&w, "--sched");
    words_add(&w, sched);
    words_node(&w, SERVER_NODE, number);
    words_option(&w, "listen.port", "0");
    words_listen(&w, r, &r->places[host]);
    env_of_server(r->plan, &env);
    ok = start_daemon(r, host, number, &w, env.items);
    env_fini(&env);
    return ok;
}

static void agent_socket(const struct run *r, uint32_t node, char *path,
                         size_t cap)
{
    snprintf(path, cap, "%s/agent%u.sock",
             r->places[r->plan->layout.nodes[node].host].dir, node);
}

static bool start_agent(struct run *r, uint32_t node, const char *sched)
{
    struct words w;
    char socket[300];

    words_begin(&w, r, "psworker-agent", PS_ROLE_AGENT);
    agent_socket(r, node, socket, sizeof(socket));
    words_add(&w, "--sched");
    words_add(&w, sched);
    words_node(&w, AGENT_NODE, node);
    words_option(&w, "client.socket", socket);
    words_number(&w, "client.max_clients", PS_LOCAL_MAX);
    words_option(&w, "listen.port", "0");
    words_number(&w, "limits.user.sessions", PS_LOCAL_MAX);
    return start_daemon(r, r->plan->layout.nodes[node].host, node, &w, NULL);
}

/* Makes the authority of the job's daemons. */
static bool open_authority(struct run *r)
{
    const uint32_t count = 1 + r->plan->servers + r->plan->layout.node_count;
    struct ps_str why = PS_STR_ROOM(256);
    if (authority_new(r->plan->job.name, count, &r->authority, &why) != 0) {
        sink_print(&r->err, "no authority for certificates: %s", why.data);
        return false;
    }
    return true;
}

/* Starts the daemons and waits until they are ready. False after a message. */
static bool start_daemons(struct run *r)
{
    const struct child *first = &r->child[r->child_count];
    char sched[280];

    if (plan_encrypts(r->plan) && !open_authority(r)) {
        return false;
    }
    if (!start_sched(r)) {
        return false;
    }
    sched_endpoint(r, sched, sizeof(sched));
    for (uint32_t i = 0; i < r->plan->servers; i++) {
        if (!start_server(r, i, sched)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < r->plan->layout.node_count; i++) {
        if (!start_agent(r, i, sched)) {
            return false;
        }
    }
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (!await_ready(r, &first[i])) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ workers */

/* Opens an empty file of this user only. Links are refused: in a shared folder
 * they could lead to another file. Returns NULL, or the reason. */
static const char *open_private_file(const char *path, int *ret_fd)
{
    const char *why = NULL;
    struct stat st;
    int fd = open(path,
                  O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW |
                      O_NONBLOCK,
                  0666);

    if (fd < 0) {
        return errno == ELOOP ? "it is a symbolic link; remove it"
                              : strerror(errno);
    }
    if (fstat(fd, &st) != 0) {
        why = strerror(errno);
    } else if (!S_ISREG(st.st_mode) || st.st_nlink != 1 ||
               st.st_uid != geteuid()) {
        why = "it is not a file of this user with one name; remove it";
    } else if (ftruncate(fd, 0) != 0) {
        why = strerror(errno);
    }
    if (why != NULL) {
        close(fd);
        return why;
    }
    *ret_fd = fd;
    return NULL;
}

static struct log_file *open_log(struct run *r, uint32_t rank)
{
    struct log_file *f;
    const char *why;

    if (r->plan->job.run.output_dir[0] == '\0') {
        return NULL;
    }
    f = calloc(1, sizeof(*f));
    if (f == NULL) {
        abort();
    }
    f->fd = -1;
    snprintf(f->path, sizeof(f->path), "%s/rank-%u.log",
             r->plan->job.run.output_dir, rank);
    why = open_private_file(f->path, &f->fd);
    if (why != NULL) {
        sink_print(&r->err, "cannot write %s: %s", f->path, why);
        r->has_lost_output = true;
    }
    return f;
}

/* Places for the variables of a worker. `socket` has `cap` bytes. */
static struct places places_of(const struct run *r, uint32_t rank, char *socket,
                               size_t cap)
{
    const struct layout *l = &r->plan->layout;
    const struct place *sched = &r->places[0];
    const struct place *store = &r->places[l->nodes[l->ranks[0].node].host];
    struct places at = {.socket = r->plan->socket};

    if (plan_has_daemons(r->plan)) {
        agent_socket(r, l->ranks[rank].node, socket, cap);
        at.socket = socket;
        at.sched_host = sched->address;
        at.sched_port = sched->sched_port;
    }
    if (store->store_port[0] != '\0') {
        at.store_host = store->address;
        at.store_port = store->store_port;
    }
    return at;
}

static bool start_worker(struct run *r, uint32_t rank)
{
    const struct layout *l = &r->plan->layout;
    uint32_t host = l->nodes[l->ranks[rank].node].host;
    char name[32];
    char number[16];
    char tag[320] = "";
    char socket[300];
    struct places at = places_of(r, rank, socket, sizeof(socket));
    struct env env;
    bool ok;

    snprintf(name, sizeof(name), "rank %u", rank);
    snprintf(number, sizeof(number), "%u", rank);
    if (r->plan->job.run.output == OUTPUT_TAGGED) {
        make_tag(r, host, number, tag, sizeof(tag));
    }
    env_of_worker(r->plan, rank, &at, &env);
    ok = child_start(
        r, child_add(r, host, false, name, tag, open_log(r, rank)),
        &(struct spawn){.argv = r->plan->command, .env = env.items});
    env_fini(&env);
    return ok;
}

static bool start_workers(struct run *r)
{
    for (uint32_t rank = 0; rank < r->plan->workers; rank++) {
        if (!start_worker(r, rank)) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ dry run */

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
    struct ps_str where = PS_STR_ROOM(PS_IDENTITY_URI_BYTES);

    if (plan_encrypts(p)) {
        ps_str_copy(id.cluster, sizeof(id.cluster),
                    authority_cluster(p->job.name));
        ps_str_copy(id.name, sizeof(id.name), node);
        ps_identity_add_uri(&where, &id);
        printf(" with a certificate of %s", where.data);
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

/* Prints a command that reaches this host. */
static void print_command(const struct plan *p, uint32_t host,
                          host_command_cb make)
{
    struct command c = {.count = 0};

    make(p, host, &c);
    if (c.count > 0) {
        command_print(&c);
    } else {
        printf("  supervisor, started by the command of the first host\n");
    }
    command_fini(&c);
}

static void print_host(const struct plan *p, uint32_t host)
{
    const struct layout *l = &p->layout;

    printf("host %s:\n",
           p->hosts.count > 0 ? p->hosts.hosts[host].name : "this one");
    if (p->job.run.sync_dst_dir[0] != '\0') {
        print_command(p, host, copy_command);
    }
    if (p->launcher->command != NULL) {
        print_command(p, host, p->launcher->command);
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

/* Prints the processes of each host. */
static void print_plan(const struct plan *p)
{
    if (p->launcher->define != NULL) {
        p->launcher->define(p, stdout);
        return;
    }
    printf("job %s: %u workers, %u psserver, launcher %s\n", p->job.name,
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

/* ---------------------------------------------------------------------- run */

/* Time after a request to end that is not yet worth a word. */
#define NOTE_AFTER_MS            1000u
/* Processes that a note names. */
#define NAMED_MAX                8u

/* Limit on flushing output to a slow reader after an interrupt. */
#define FLUSH_AFTER_INTERRUPT_MS 1000u

/* ------------------------------------------------------------------- ending */

/* "rank 0, rank 3 and 5 more": the children of a group that have not ended. */
static void list_alive(const struct run *r, bool daemons, struct ps_str *list)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < r->child_count; i++) {
        const struct child *c = &r->child[i];

        if (c->is_daemon != daemons || c->state >= CHILD_ENDED) {
            continue;
        }
        if (count < NAMED_MAX) {
            ps_str_addf(list, "%s%s", count > 0 ? ", " : "", c->name);
        }
        count++;
    }
    if (count > NAMED_MAX) {
        ps_str_addf(list, " and %u more", count - NAMED_MAX);
    }
}

static void print_waiting(struct run *r, bool daemons, uint64_t left_ms)
{
    struct ps_str list = PS_STR_ROOM(512);
    list_alive(r, daemons, &list);
    sink_print(&r->err, "waiting for the end of %s; KILL comes in %.0f s%s",
               list.data, (double)left_ms / 1000,
               r->interrupt_count > 0 ? ", or at once at another Ctrl-C (INT "
                                        "or TERM)"
                                      : "");
}

static void print_killed(struct run *r, bool daemons)
{
    struct ps_str list = PS_STR_ROOM(512);
    list_alive(r, daemons, &list);
    sink_print(&r->err,
               "killed %s, which had not ended %.1f s after TERM (--grace)",
               list.data, (double)r->plan->grace_ms / 1000);
}

/* Ends a group of children: TERM, grace, KILL. A second interrupt ends the
 * grace. */
static void stop_group(struct run *r, bool daemons)
{
    const uint64_t begin = now_ms();
    const uint64_t end = begin + r->plan->grace_ms;
    uint64_t note = begin + NOTE_AFTER_MS;

    children_signal(r, daemons, SIGTERM);
    while (children_any_alive(r, daemons) && now_ms() < end &&
           r->interrupt_count < 2) {
        if (now_ms() >= note) {
            print_waiting(r, daemons, end - now_ms());
            note = UINT64_MAX;
        }
        run_loop(r, note < end ? note : end);
    }
    if (children_any_alive(r, daemons) && r->interrupt_count < 2) {
        print_killed(r, daemons);
    }
    children_signal(r, daemons, SIGKILL);
    while (children_any_alive(r, daemons)) {
        run_loop(r, now_ms() + 1000);
    }
}

/* Writes out the sinks. After an interrupt it gives up at `until_ms` if the
 * reader takes nothing. False: it gave up. */
static bool flush_sinks(struct run *r, uint64_t until_ms)
{
    while (!sink_is_empty(&r->out) || !sink_is_empty(&r->err)) {
        if (r->interrupt_count > 0 && now_ms() >= until_ms) {
            return false;
        }
        run_loop(r, r->interrupt_count > 0 ? until_ms : now_ms() + 1000);
    }
    return true;
}

/* Forwards the output left in the pipes after all processes have ended. */
static void drain_streams(struct run *r, uint64_t until_ms)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        struct stream *both[2] = {r->child[i].out, r->child[i].err};

        for (int k = 0; k < 2; k++) {
            struct stream *s = both[k];

            while (s->in >= 0 && stream_read(s) && stream_is_blocked(s) &&
                   flush_sinks(r, until_ms)) {
            }
            stream_close(s);
        }
    }
}

/* Closes the files of --output-dir, after their last line. */
static void close_files(struct run *r)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].file != NULL) {
            log_file_close(r->child[i].file);
        }
    }
}

static void free_run(struct run *r)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        stream_free(r->child[i].out);
        stream_free(r->child[i].err);
        free(r->child[i].file);
    }
    free(r->child);
    authority_free(r->authority);
    free(r->places);
    free(r->remotes);
    free(r->out.bytes);
    free(r->err.bytes);
}

static void print_first_failure(struct run *r)
{
    const struct child *c = r->first_failed;
    char text[CHILD_TEXT_MAX];
    const char *tail;
    size_t len;

    if (c == NULL) {
        return;
    }
    child_describe(c, text, sizeof(text));
    tail = c->err->tail;
    len = c->err->tail_len;
    if (len > 400) {
        tail += len - 400;
        len = 400;
        /* From the first whole line, if there is one. */
        const char *end = memchr(tail, '\n', len - 1);

        if (end != NULL) {
            len -= (size_t)(end + 1 - tail);
            tail = end + 1;
        }
    }
    if (len > 0) { /* Cuts the final newline; sink_print() adds one. */
        sink_print(&r->err, "%s wrote last:\n%.*s", c->name, (int)len - 1,
                   tail);
    }
    sink_print(&r->err, "first to fail: %s on %s %s", c->name,
               r->places[c->host].name, text);
}

static int end_job(struct run *r, bool started)
{
    int code = EXIT_OK;
    uint64_t until;

    r->is_stopping = true;
    stop_group(r, false);
    stop_group(r, true);
    if (r->plan->launcher->close != NULL) {
        r->plan->launcher->close(r);
    } else {
        remotes_close(r);
    }
    if ((!started || (r->has_lost_host && r->first_failed == NULL)) &&
        r->interrupt_count == 0) {
        code = EXIT_UNAVAILABLE;
    } else if (r->first_failed != NULL) {
        code = child_exit_code(r->first_failed);
    } else if (r->interrupt_count > 0) {
        code = 128 + (int)r->interrupt_signal;
    }
    until = now_ms() + FLUSH_AFTER_INTERRUPT_MS;
    drain_streams(r, until);
    close_files(r);
    (void)flush_sinks(r, until);
    outputs_report(r);
    print_first_failure(r);
    (void)flush_sinks(r, until);
    if (code == EXIT_OK && r->has_lost_output) {
        code = EXIT_IOERR;
    }
    free_run(r);
    return code;
}

/* ------------------------------------------------------------------ running */

/* Creates the output folder, or accepts an existing one, but no symbolic link
 * of another user. */
static bool make_output_dir(const struct plan *p)
{
    struct stat st;

    if (p->job.run.output_dir[0] == '\0' ||
        mkdir(p->job.run.output_dir, 0777) == 0) {
        return true;
    }
    if (errno == EEXIST && lstat(p->job.run.output_dir, &st) == 0) {
        if (!S_ISLNK(st.st_mode) || st.st_uid == geteuid() || st.st_uid == 0) {
            return true;
        }
        fprintf(stderr,
                "pslaunch: --output-dir %s: it is a symbolic link of another "
                "user\n",
                p->job.run.output_dir);
        return false;
    }
    fprintf(stderr, "pslaunch: --output-dir %s: %s\n", p->job.run.output_dir,
            strerror(errno));
    return false;
}

static void print_start(struct run *r)
{
    const struct plan *p = r->plan;
    bool is_named = p->job.name != p->name_buffer;

    sink_print(&r->err, "job %s, psched at %s:%s%s", p->job.name,
               r->places[0].address, r->places[0].sched_port,
               is_named && !p->job.daemons.is_private &&
                       !p->launcher->uses_hosts
                   ? "; no agent runs here, so it has daemons of its own "
                     "and runs on this host only"
                   : "");
    if (plan_encrypts(p)) {
        sink_print(&r->err,
                   "its connections are encrypted; on %s, psctl -e "
                   "unix:%s/psched.sock reaches psched",
                   r->places[0].name, r->places[0].dir);
    }
}

int run_plan(const struct plan *p)
{
    struct run r = {.plan = p,
                    .oom_seen = process_oom_kills(),
                    .out = {.fd = STDOUT_FILENO},
                    .err = {.fd = STDERR_FILENO}};
    bool started;

    if (p->dry_run) {
        print_plan(p);
        return EXIT_OK;
    }
    if (p->launcher->submit != NULL) {
        return p->launcher->submit(p);
    }
    if (!make_output_dir(p)) {
        return EXIT_CANTCREAT;
    }
    r.place_count = p->hosts.count > 0 ? p->hosts.count : 1;
    r.places = calloc(r.place_count, sizeof(*r.places));
    for (uint32_t i = 0; r.places != NULL && i < p->hosts.count; i++) {
        snprintf(r.places[i].name, sizeof(r.places[i].name), "%s",
                 p->hosts.hosts[i].name);
    }
    if (p->launcher->uses_hosts) {
        r.remotes = calloc(r.place_count, sizeof(*r.remotes));
    }
    r.child = calloc(1 + p->servers + p->layout.node_count + p->workers,
                     sizeof(struct child));
    r.signals = process_open_signals();
    if (r.signals < 0 || r.child == NULL || r.places == NULL) {
        perror("pslaunch");
        free_run(&r);
        return EXIT_FAILED;
    }
    started = (!p->launcher->uses_hosts || remotes_copy(&r, copy_command)) &&
              (p->launcher->open != NULL ? p->launcher->open(&r)
                                         : remotes_open(&r)) &&
              (!plan_has_daemons(p) || start_daemons(&r));
    if (started && plan_has_daemons(p)) {
        print_start(&r);
    }
    started = started && start_workers(&r);
    while (started && r.workers_alive > 0 && r.interrupt_count == 0 &&
           ((r.first_failed == NULL && !r.has_lost_host) ||
            p->job.failure.keep_going)) {
        run_loop(&r, now_ms() + 60000);
    }
    return end_job(&r, started);
}
