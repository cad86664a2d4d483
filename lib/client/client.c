/* SPDX-License-Identifier: Apache-2.0 */
/* Life of a client: open, wait for the job, close, and what it knows of itself.
 *
 * On l_error or a malformed frame, every open operation fails with that error,
 * and every later call returns it. The same holds when the agent closes the
 * connection, unless the client may re-attach, see reattach.c. If no agent
 * listens yet, the client dials again until connect_timeout_ms. */
#include "client/arena.h"
#include "client/device/gpu.h"
#include "client/device/shared.h"
#include "client/key.h"
#include "client/op.h"
#include "client/reattach.h"
#include "client/state.h"
#include "client/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file_check.h"
#include "base/fnv1a.h"
#include "base/name_hash.h"
#include "base/str.h"

/* The agent names the missing ranks when start_timeout is over; this side gives
 * up only if the agent sends nothing for this much longer. */
#define START_SLACK_MS 10000
/* Time for the agent to see the end of the stream. */
#define END_MS         1000

_Static_assert(PSC_E_INVAL == (int)PS_E_INVAL && PSC_E_BUG == (int)PS_E_BUG &&
                   PSC_E_DISCARDED == (int)PS_E_DISCARDED,
               "psclient.h repeats err.def");
_Static_assert(PSC_TEXT_MAX >= 2 * PS_TEXT_MAX, "texts of the wire fit");

/* ----------------------------------------------------------------- opening */

static bool has_been_welcomed(void *arg)
{
    return ((struct psc_client *)arg)->id.is_welcomed;
}

static void describe_start(struct psc_client *c,
                           const struct wait_condition *until,
                           unsigned long long seconds, char *text, size_t size)
{
    char why[PSC_TEXT_MAX];

    (void)until;
    start_explain(c, why, sizeof(why));
    snprintf(text, size, "has waited %llu s for its start: %.*s", seconds,
             (int)(size > 100 ? size - 100 : 0), why);
}

static int send_hello(struct psc_client *c, const struct psc_options *o,
                      char *err, size_t err_size)
{
    struct ps_msg m;
    int rc;

    handshake_hello(c, &m);
    rc = client_send(c, &m);

    if (rc == 0) {
        rc = wait_note_text(c, has_been_welcomed, c,
                            ps_time_add(client_deadline(o->start_timeout_ms),
                                        PS_MILLIS(START_SLACK_MS)),
                            describe_start);
    }
    if (rc == PS_E_TIMEOUT) {
        return client_open_error(err, err_size, rc,
                                 "the agent has not answered for %d ms",
                                 o->start_timeout_ms + START_SLACK_MS);
    }
    if (rc != 0) {
        return client_open_error(err, err_size, rc, "%s",
                                 c->rc != 0 ? c->text : ps_strerror(rc));
    }
    return 0;
}

static int new_client(struct psc_client **ret_client)
{
    struct psc_client *c = calloc(1, sizeof(*c));
    pthread_condattr_t attr;

    if (c == NULL) {
        return PSC_E_NOMEM;
    }
    c->spans = span_table_new();
    if (c->spans == NULL) {
        free(c);
        return PSC_E_NOMEM;
    }
    c->progress.poll_fd = -1;
    c->progress.event_fd = -1;
    ps_list_init(&c->ops.all);
    ps_list_init(&c->ops.spare);
    ps_list_init(&c->progress.callbacks);
    ps_list_init(&c->queues.stalled);
    ps_list_init(&c->queues.barriers);
    ps_list_init(&c->progress.stall_requests);
    ps_list_init(&c->progress.waiting);
    ps_list_init(&c->ops.deferred_free);
    ps_list_init(&c->colls.order_queue);
    ps_list_init(&c->queues.job_requests);
    memory_init(c);
    if (pthread_condattr_init(&attr) != 0) {
        goto free_client;
    }
    if (pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) != 0 ||
        pthread_cond_init(&c->progress.changed, &attr) != 0) {
        goto destroy_attr;
    }
    if (pthread_mutex_init(&c->lock, NULL) != 0) {
        goto destroy_cond;
    }
    pthread_condattr_destroy(&attr);
    *ret_client = c;
    return 0;

destroy_cond:
    pthread_cond_destroy(&c->progress.changed);
destroy_attr:
    pthread_condattr_destroy(&attr);
free_client:
    span_table_free(c->spans, false);
    free(c);
    return PSC_E_NOMEM;
}

/* Frees everything. No other thread uses the client, or this is a forked child,
 * which has no other threads. */
static void free_client(struct psc_client *c, bool child)
{
    struct psc_op *op;

    waiting_remove_client(c);
    gpu_end_all(c, child);
    while ((op = PS_LIST_FIRST(struct psc_op, of_client, &c->ops.all)) !=
           NULL) {
        op_free(op);
    }
    while ((op = PS_LIST_POP(struct psc_op, of_client, &c->ops.spare)) !=
           NULL) {
        free(op);
    }
    key_free_all(c);
    arena_free_all(c);
    free((char *)(uintptr_t)c->options.socket);
    free((char *)(uintptr_t)c->options.token_file);
    free(c->optimizer);
    report_free(c);
    span_table_free(c->spans, child);
    free((char *)(uintptr_t)c->options.job);
    shared_free_all(c);
    gpu_free_all(c); /* Unpins what is unmapped next. */
    ps_shm_fini(&c->shm);
    if (c->ring.memory != NULL) {
        munmap(c->ring.memory, ps_ring_bytes());
    }
    reattach_fini(c);
    ps_sock_free(c->sock);
    if (c->progress.poll_fd >= 0) {
        close(c->progress.poll_fd);
    }
    if (c->progress.event_fd >= 0) {
        close(c->progress.event_fd);
    }
    free(c->ops.by_slot);
    free(c->ops.free_slots);
    if (!child) {
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->progress.changed);
    }
    free(c);
}

static int copy_options(struct psc_client *c, const struct psc_options *o,
                        char *err, size_t err_size)
{
    struct ps_str why = PS_STR_ROOM(256);
    int rc = ps_token_text_read(o->token_file, NULL, c->token, &why);

    if (rc != 0) {
        return client_open_error(err, err_size, rc, "%s", why.data);
    }
    c->options = *o;
    c->options.socket = NULL; /* Known with the connection. */
    c->options.job = strdup(o->job);
    c->options.token_file = strdup(o->token_file != NULL ? o->token_file : "");
    if (c->options.job == NULL || c->options.token_file == NULL) {
        return client_open_error(err, err_size, PSC_E_NOMEM, "%s",
                                 ps_strerror(PS_E_NOMEM));
    }
    return 0;
}

int psc_open(const struct psc_options *o, struct psc_client **ret_client,
             char *err, size_t err_size)
{
    struct psc_options full;
    struct psc_client *c;
    int rc;

    /* Callers built with an older header have fewer fields. */
    psc_options_init(&full, sizeof(full));
    if (o == NULL || ret_client == NULL) {
        return client_open_error(err, err_size, PSC_E_INVAL,
                                 "no options, or no place for the client");
    }
    if (o->size < offsetof(struct psc_options, connect_timeout_ms) ||
        o->size > sizeof(full)) {
        return client_open_error(
            err, err_size, PSC_E_INVAL,
            "the options were not set up with psc_options_init");
    }
    memcpy(&full, o, o->size);
    rc = options_check(&full, err, err_size);
    if (rc != 0) {
        return rc;
    }
    rc = new_client(&c);
    if (rc != 0) {
        return client_open_error(err, err_size, rc, "%s", ps_strerror(rc));
    }
    ps_spin_init(&c->progress.busy_poll, full.spin_us == 0 ? PS_SPIN_AUTO
                                         : full.spin_us < 0
                                             ? 0
                                             : PS_MICROS(full.spin_us));
    rc = copy_options(c, &full, err, err_size);
    if (rc == 0 && !waiting_add_client(c)) {
        rc = client_open_error(err, err_size, PSC_E_NOMEM, "%s",
                               ps_strerror(PS_E_NOMEM));
    }
    if (rc == 0) {
        rc = handshake_connect(c, &full, err, err_size);
    }
    if (rc == 0) {
        pthread_mutex_lock(&c->lock);
        rc = send_hello(c, &full, err, err_size);
        pthread_mutex_unlock(&c->lock);
    }
    if (rc != 0) {
        free_client(c, false);
        return rc;
    }
    *ret_client = c;
    return 0;
}

/* ----------------------------------------------------------------- closing */

static bool all_ops_ended(void *arg)
{
    const struct psc_client *c = arg;

    /* Waits for a re-attach, so that the next agent gets the detach. Skips of a
     * failed join carry no data and do not count. */
    return c->ops.sent == c->colls.skips_detached &&
           c->keys.unbound_count == 0 && c->reattach.link == LINK_UP &&
           c->gpu_transfers == 0;
}

static bool has_lost_agent(void *arg)
{
    const struct psc_client *c = arg;

    return c->reattach.link != LINK_UP;
}

/* PS_E_CLOSED: the agent was lost before it received the message. */
static int send_bye(struct psc_client *c)
{
    const struct ps_msg m = {.code = PS_MSG_L_DETACH};
    ps_time deadline = client_deadline(END_MS);

    if (client_send(c, &m) != 0) {
        return 0;
    }
    while (ps_sock_pending(c->sock) > 0 && client_ms_until(deadline) > 0) {
        int rc = ps_sock_wait(c->sock, client_ms_until(deadline));

        /* Answers are read only to make space for the message. */
        rc = rc != 0 ? rc : ps_sock_flush(c->sock);
        if (rc == 0) {
            rc = ps_sock_read(c->sock);
        }
        if (rc != 0 && rc != PS_E_AGAIN) {
            return rc;
        }
        client_accept_messages(c);
    }
    return ps_sock_end(c->sock, END_MS);
}

static void leave_locked(struct psc_client *c)
{
    ps_time deadline = client_deadline(c->options.close_timeout_ms);
    bool lost;

    do {
        lost = false;
        if (client_wait(c, all_ops_ended, c, deadline) == PS_E_TIMEOUT) {
            /* Open operations end here; the agent has their data. */
        }
        if (c->rc == 0 && c->reattach.link == LINK_UP) {
            span_send_all(c);
            lost = send_bye(c) == PS_E_CLOSED && c->rc == 0 &&
                   reattach_is_possible(c);
        }
        /* The reader, which may be another thread, uses the ring until it has
         * seen the end of the connection itself. */
        if (lost &&
            client_wait(c, has_lost_agent, c, deadline) == PS_E_TIMEOUT) {
            lost = false;
        }
    } while (lost && client_ms_until(deadline) > 0);
    client_fail(c, PSC_E_CLOSED, "this worker has left the job");
    client_reap_ops(c);
}

int psc_leave(struct psc_client *c)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (c->rc != 0) {
        rc = client_error(c, c->rc, "%s", c->text);
    } else {
        leave_locked(c);
    }
    client_leave(c);
    return rc;
}

int psc_abort(struct psc_client *c)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (c->rc == 0) {
        client_fail(c, PSC_E_CLOSED,
                    "this worker has failed and ended its connection");
        client_reap_ops(c);
        /* At once: the process may live on for a while. */
        if (c->reattach.link == LINK_UP && ps_sock_end(c->sock, 0) != 0) {
            /* The agent is lost. */
        }
    }
    client_leave(c);
    return 0;
}

void psc_close(struct psc_client *c)
{
    if (c == NULL) {
        return;
    }
    if (client_is_forked(c)) {
        free_client(c, true);
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (c->rc == 0) {
        leave_locked(c);
    }
    pthread_mutex_unlock(&c->lock);
    free_client(c, false);
}

/* ------------------------------------------------------ identity, statistics */

int psc_rank(const struct psc_client *c)
{
    return c == NULL             ? PSC_E_INVAL
           : client_is_forked(c) ? PSC_E_FORKED
                                 : (int)c->id.rank;
}

int psc_size(const struct psc_client *c)
{
    return c == NULL             ? PSC_E_INVAL
           : client_is_forked(c) ? PSC_E_FORKED
                                 : (int)c->id.size;
}

int psc_local_rank(const struct psc_client *c)
{
    return c == NULL             ? PSC_E_INVAL
           : client_is_forked(c) ? PSC_E_FORKED
                                 : (int)c->id.local_rank;
}

int psc_local_size(const struct psc_client *c)
{
    return c == NULL             ? PSC_E_INVAL
           : client_is_forked(c) ? PSC_E_FORKED
                                 : (int)c->id.local_size;
}

int psc_num_servers(const struct psc_client *c)
{
    return c == NULL             ? PSC_E_INVAL
           : client_is_forked(c) ? PSC_E_FORKED
                                 : (int)c->id.num_servers;
}

const char *psc_strerror(int rc)
{
    return ps_strerror(rc);
}

const char *psc_version(void)
{
    return PSC_VERSION;
}

int psc_last_detail(struct psc_client *c, char *text, size_t size)
{
    int rc = client_enter_with(c, text, "text");

    if (rc != 0) {
        return rc;
    }
    ps_str_copy(text, size, c->detail);
    client_leave(c);
    return 0;
}

int psc_get_stats(struct psc_client *c, struct psc_stats *ret_stats)
{
    const uint32_t size = ret_stats != NULL ? ret_stats->size : 0;
    struct psc_stats s;
    int rc = client_enter_with(c, ret_stats, "ret_stats");

    if (rc != 0) {
        return rc;
    }
    if (size < sizeof(uint32_t) || size > sizeof(s)) {
        rc = client_error(c, PSC_E_INVAL,
                          "size is not that of struct psc_stats");
        goto leave;
    }
    s = c->stats;
    s.size = size;
    s.sends = ps_sock_sends(c->sock);
    s.receives = ps_sock_receives(c->sock);
    s.resumes = c->reattach.count;
    memcpy(ret_stats, &s, size);

leave:
    client_leave(c);
    return rc;
}

/* ------------------------------------------------------------------- groups */

/* A group is a client of a job that some ranks of another job form. The daemons do
 * not know groups, so all rules for jobs (lost workers, memory, open rounds) hold
 * for them. */

static int check_group(struct psc_client *c, const char *name,
                       const uint32_t *ranks, uint32_t count, int32_t *ret_rank)
{
    if (name == NULL || *name == '\0') {
        return client_error(c, PSC_E_INVAL, "a group needs a name");
    }
    if (ranks == NULL) {
        *ret_rank = (int32_t)c->id.rank;
        return 0;
    }
    *ret_rank = PSC_RANK_ANY;
    if (count == 0 || count > c->id.size) {
        return client_error(c, PSC_E_INVAL,
                            "group '%s' of %u ranks in a job of %u", name,
                            count, c->id.size);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= c->id.size) {
            return client_error(c, PSC_E_INVAL,
                                "group '%s': the job has no rank %u", name,
                                ranks[i]);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (ranks[j] == ranks[i]) {
                return client_error(c, PSC_E_INVAL,
                                    "group '%s' has rank %u twice", name,
                                    ranks[i]);
            }
        }
        if (ranks[i] == c->id.rank) {
            *ret_rank = (int32_t)i;
        }
    }
    if (*ret_rank == PSC_RANK_ANY) {
        return client_error(c, PSC_E_INVAL,
                            "rank %u is no member of group '%s'", c->id.rank,
                            name);
    }
    return 0;
}

int psc_group_open(struct psc_client *c, const char *name,
                   const uint32_t *ranks, uint32_t count,
                   struct psc_client **ret_group)
{
    char why[PSC_TEXT_MAX];
    char job[PS_NAME_MAX + 1];
    struct psc_options o;
    struct psc_client *group;
    int32_t rank = PSC_RANK_ANY;
    int rc = client_enter_with(c, ret_group, "ret_group");

    if (rc != 0) {
        return rc;
    }
    rc = c->rc != 0 ? client_error(c, c->rc, "%s", c->text)
                    : check_group(c, name, ranks, count, &rank);
    o = c->options;
    client_leave(c);
    if (rc != 0) {
        return rc;
    }
    ps_group_name(o.job, name, job);
    o.job = job;
    o.mode = PSC_MODE_SYNC;
    o.rule = PSC_RULE_NONE;
    o.staleness = 0;
    o.rank = rank;
    o.num_workers = ranks != NULL ? count : c->id.size;
    o.num_servers = c->id.num_servers;
    rc = psc_open(&o, &group, why, sizeof(why));
    if (rc != 0) {
        if (client_enter(c) == 0) {
            client_error(c, rc, "group '%s': %s", name, why);
            client_leave(c);
        }
        return rc;
    }
    if (ranks != NULL) {
        group->id.group_hash = ps_fnv1a_64(PS_FNV1A_64, ranks,
                                           count * sizeof(*ranks));
    }
    *ret_group = group;
    return 0;
}
