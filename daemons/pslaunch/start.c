/* SPDX-License-Identifier: Apache-2.0 */
/* Start of a job: psched, then psservers and agents, then workers; each group
 * waits until the one before it is ready. */
#include "pslaunch/job.h"

#include "base/limits.h"
#include "pslaunch/environment.h"
#include "pslaunch/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    words_add(w, r->plan->log_level);
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
    return r->plan->launcher->start(
        r, c,
        &(struct spawn){
            .argv = (char *const *)w->argv, .env = env, .is_daemon = true});
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
            sink_print(&r->err, "%s is not ready for %.0f s", c->name,
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
    char text[256];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (authority_new(r->plan->name, count, &r->authority, &why) != 0) {
        sink_print(&r->err, "no authority for certificates: %s", text);
        return false;
    }
    return true;
}

bool start_daemons(struct run *r)
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

    if (r->plan->output_dir == NULL) {
        return NULL;
    }
    f = calloc(1, sizeof(*f));
    if (f == NULL) {
        abort();
    }
    f->fd = -1;
    snprintf(f->path, sizeof(f->path), "%s/rank-%u.log", r->plan->output_dir,
             rank);
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
    if (r->plan->output == OUTPUT_TAGGED) {
        make_tag(r, host, number, tag, sizeof(tag));
    }
    env_of_worker(r->plan, rank, &at, &env);
    ok = r->plan->launcher->start(
        r, child_add(r, host, false, name, tag, open_log(r, rank)),
        &(struct spawn){.argv = r->plan->command, .env = env.items});
    env_fini(&env);
    return ok;
}

bool start_workers(struct run *r)
{
    for (uint32_t rank = 0; rank < r->plan->workers; rank++) {
        if (!start_worker(r, rank)) {
            return false;
        }
    }
    return true;
}
