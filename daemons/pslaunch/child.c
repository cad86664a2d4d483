/* SPDX-License-Identifier: Apache-2.0 */
/* State of the processes of a job. */
#include "pslaunch/job.h"

#include "base/state_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const uint32_t child_allowed[] = {
    [CHILD_STARTED] = PS_STATE_BIT(CHILD_READY) | PS_STATE_BIT(CHILD_ENDED) |
                      PS_STATE_BIT(CHILD_LOST),
    /* A daemon. */
    [CHILD_READY] = PS_STATE_BIT(CHILD_ENDED) | PS_STATE_BIT(CHILD_LOST),
    [CHILD_ENDED] = 0,
    /* With the connection to its host. */
    [CHILD_LOST] = 0,
};
static const char *const child_names[] = {
    [CHILD_STARTED] = "started",
    [CHILD_READY] = "ready",
    [CHILD_ENDED] = "ended",
    [CHILD_LOST] = "lost",
};
/* A process that pslaunch has started, on this host or another. */
static const struct ps_state_table child_states = {
    .name = "child",
    .states = child_names,
    .count = sizeof(child_allowed) / sizeof(child_allowed[0]),
    .allowed = child_allowed,
};

static void child_set_state(struct child *c, enum child_state to)
{
    ps_state_change(&child_states, &c->state, (uint8_t)to);
}

uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void child_describe(const struct child *c, char *text, size_t cap)
{
    const char *memory = c->lacked_memory
                             ? ", by the kernel for lack of memory, which "
                               "dmesg on that host tells"
                             : "";

    if (c->state == CHILD_LOST) {
        snprintf(text, cap, "was lost with the connection to its host");
    } else if (WIFSIGNALED(c->status)) {
        snprintf(text, cap, "was killed by signal %d (%s)%s",
                 WTERMSIG(c->status), strsignal(WTERMSIG(c->status)), memory);
    } else {
        snprintf(text, cap, "exited with code %d%s", WEXITSTATUS(c->status),
                 memory);
    }
}

int child_exit_code(const struct child *c)
{
    if (c->state == CHILD_LOST) {
        return EXIT_UNAVAILABLE;
    }
    return WIFSIGNALED(c->status) ? 128 + WTERMSIG(c->status)
                                  : WEXITSTATUS(c->status);
}

struct child *child_add(struct run *r, uint32_t host, bool is_daemon,
                        const char *name, const char *tag,
                        struct log_file *file)
{
    struct child *c = &r->child[r->child_count++];

    *c = (struct child){
        .host = host, .is_daemon = is_daemon, .ready = -1, .file = file};
    snprintf(c->name, sizeof(c->name), "%s", name);
    c->out = stream_new(-1, is_daemon ? &r->err : &r->out, file, tag);
    c->err = stream_new(-1, &r->err, file, tag);
    c->out->is_lossy = is_daemon;
    c->err->is_lossy = is_daemon;
    r->workers_alive += !is_daemon;
    return c;
}

/* A worker that has failed, in a job whose others wait for it. */
static void print_remedy(struct run *r, const struct child *c)
{
    const struct plan *p = r->plan;
    char text[96];

    if (r->is_stopping || !p->keep_going || strcmp(p->on_loss, "wait") != 0) {
        return;
    }
    child_describe(c, text, sizeof(text));
    sink_print(&r->err,
               "%s on %s %s; the others wait for it, and nothing starts it "
               "again: "
               "start it by hand with the environment of another rank of its "
               "node and its own PSKV_RANK, or end the job with Ctrl-C or "
               "psctl jobs cancel %s",
               c->name, r->places[c->host].name, text, p->name);
}

/* A worker fails the job, unless it ends by its end. */
static void count_end(struct run *r, const struct child *c)
{
    if (c->is_daemon) {
        return;
    }
    r->workers_alive--;
    if (c->status != 0 || c->state == CHILD_LOST) {
        print_remedy(r, c);
    }
    if ((c->status != 0 || c->state == CHILD_LOST) && r->first_failed == NULL &&
        !r->is_stopping) {
        r->first_failed = c;
    }
}

bool child_certify(struct run *r, struct child *c, EVP_PKEY *key,
                   struct ps_str *pem)
{
    const struct member m = {.role = (enum ps_role)c->role, .name = c->node};
    char text[512];
    struct ps_str why;
    int rc;

    ps_str_init(&why, text, sizeof(text));
    rc = authority_issue(r->authority, &m, key, pem, &why);
    c->role = 0;
    if (rc != 0) {
        sink_print(&r->err, "no certificate for %s: %s", c->name, text);
    }
    return rc == 0;
}

void child_on_ready(struct child *c)
{
    child_set_state(c, CHILD_READY);
}

void child_on_ended(struct run *r, struct child *c, int status)
{
    char text[CHILD_TEXT_MAX];

    child_set_state(c, CHILD_ENDED);
    c->status = status;
    c->pid = 0;
    if (c->is_daemon && !r->is_stopping) {
        child_describe(c, text, sizeof(text));
        sink_print(&r->err, "%s %s", c->name, text);
    }
    count_end(r, c);
}

void child_on_lost(struct run *r, struct child *c)
{
    child_set_state(c, CHILD_LOST);
    count_end(r, c);
}

bool children_any_alive(const struct run *r, bool daemons)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].is_daemon == daemons &&
            r->child[i].state < CHILD_ENDED) {
            return true;
        }
    }
    return false;
}
