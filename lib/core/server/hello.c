/* SPDX-License-Identifier: Apache-2.0 */
/* Hello of an agent. A hello is not trusted: the scheduler decides which
 * process is an agent of a job, and which one is newer. The hello of a process
 * that it has not named yet is held (rule H10). An accepted hello makes the
 * connection carry the session's link, resumed or new. */
#include "core/server/hello.h"

#include "base/str.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/reply.h"
#include "core/server/session.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* An accepted connection without a hello is closed after this time. */
#define HELLO_TIMEOUT  PS_SECONDS(10)
/* The hello of an unverified agent waits this long for the scheduler to name
 * it: hello and job_state race when the agent was restarted or this server
 * joins its job. */
#define VERIFY_TIMEOUT PS_SECONDS(2)

static void reject_hello(struct ps_server_step *st, struct ps_server_conn *c,
                         int rc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void reject_hello(struct ps_server_step *st, struct ps_server_conn *c,
                         int rc, const char *fmt, ...)
{
    char text[PS_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){.code = PS_MSG_REJECT,
                         .reject = {.error = rc, .text = text}});
    ps_server_session_close_bad(st, c, text);
}

/* False: rejected, and the connection is closed. */
static bool check_hello(struct ps_server_step *st, struct ps_server_conn *c,
                        const struct ps_msg_hello *m)
{
    const char *cluster = m->cluster != NULL ? m->cluster : "";
    char text[PS_TEXT_MAX];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol_least > PS_PROTOCOL) {
        reject_hello(st, c, PS_E_VERSION,
                     "protocol %u to %u offered, this server supports %u to %u",
                     m->protocol_least, m->protocol, PS_PROTOCOL_LEAST,
                     PS_PROTOCOL);
    } else if (strcmp(cluster, st->s->opt.cluster) != 0) {
        char theirs[PS_NAME_MAX * 4 + 1];
        struct ps_str s;

        ps_str_init(&s, theirs, sizeof(theirs));
        ps_str_add_escaped(&s, cluster, strlen(cluster), PS_NAME_MAX);
        reject_hello(st, c, PS_E_MISMATCH,
                     "this server is of cluster '%s', not of '%s'",
                     st->s->opt.cluster, theirs);
    } else if (m->role != PS_ROLE_AGENT) {
        reject_hello(st, c, PS_E_PERM, "only agents connect to servers");
    } else if (m->node == 0 || m->incarnation == 0) {
        reject_hello(st, c, PS_E_PERM, "the scheduler is to be asked first");
    } else if (!ps_peer_check_hello(&c->identity, st->s->opt.cluster, m,
                                    &why)) {
        reject_hello(st, c, PS_E_PERM, "%s", text);
    } else {
        return true;
    }
    return false;
}

static void reject_oldest_unverified(struct ps_server_step *st)
{
    struct ps_server_conn *c = PS_CONTAINER(
        ps_list_first(&st->s->sessions.unverified), struct ps_server_conn,
        node);

    reject_hello(
        st, c, PS_E_AGAIN,
        "the scheduler has not named node %u with incarnation %llu as an "
        "agent of a job here; try again when it has",
        c->unverified_hello->hello.node,
        (unsigned long long)c->unverified_hello->hello.incarnation);
}

/* Holds the hello until the scheduler names the agent. */
static void await_verification(struct ps_server_step *st,
                               struct ps_server_conn *c,
                               const struct ps_msg_hello *m)
{
    const struct ps_msg msg = {.code = PS_MSG_HELLO, .hello = *m};

    uint32_t count = 0;

    assert(c->unverified_hello == NULL);
    PS_LIST_EACH(n, &st->s->sessions.unverified)
    {
        count++;
    }
    if (count >= PS_UNVERIFIED_MAX) {
        reject_oldest_unverified(st);
    }
    c->unverified_hello = ps_msg_dup(&msg);
    c->listed_at = st->now;
    ps_list_remove(&c->node);
    ps_list_push_back(&st->s->sessions.unverified, &c->node);
}

/* True unless the session is that of another certificate (rule H12). */
static bool is_of_session(const struct ps_server_conn *c,
                          const struct ps_server_session *p)
{
    return !ps_peer_has_certificate(&c->identity) ||
           !ps_peer_has_certificate(&p->identity) ||
           ps_peer_is_same(&c->identity, &p->identity);
}

static struct ps_server_session *reject_other(struct ps_server_step *st,
                                              struct ps_server_conn *c,
                                              const struct ps_server_session *p)
{
    reject_hello(st, c, PS_E_PERM,
                 "its certificate is of '%s', and node %u is '%s'",
                 c->identity.name, p->agent_node, p->identity.name);
    return NULL;
}

/* Rejects a hello with another name than that of its node (rule H9a). */
static bool check_name(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg_hello *m, const char *name)
{
    const char *theirs = m->name != NULL ? m->name : "";
    char text[PS_NAME_MAX * 4 + 1];
    struct ps_str s;

    if (name[0] == '\0' || strcmp(theirs, name) == 0) {
        return true;
    }
    ps_str_init(&s, text, sizeof(text));
    ps_str_add_escaped(&s, theirs, strlen(theirs), PS_NAME_MAX);
    reject_hello(st, c, PS_E_PERM, "node %u is '%s', not '%s'", m->node, name,
                 text);
    return false;
}

/* Returns the session for this hello; NULL: rejected or held. A hello is not
 * trusted: its node, incarnation, instance and name must be those of an agent
 * that the scheduler has named (rules H9 and H9a). */
static struct ps_server_session *obtain_session(struct ps_server_step *st,
                                                struct ps_server_conn *c,
                                                const struct ps_msg_hello *m)
{
    struct ps_server *s = st->s;
    struct ps_server_session *p = ps_map_get(s->sessions.by_node, m->node);
    const struct ps_server_slot *slot;

    if (p != NULL && p->incarnation == m->incarnation &&
        p->instance == m->instance) {
        if (!is_of_session(c, p)) {
            return reject_other(st, c, p);
        }
        return check_name(st, c, m, p->name) ? p : NULL;
    }
    slot = ps_server_job_slot_of(s, m);
    if (slot == NULL) {
        if (p != NULL && p->incarnation > m->incarnation) {
            reject_hello(st, c, PS_E_STALE, "node %u was restarted since",
                         m->node);
        } else if (p != NULL && p->incarnation == m->incarnation) {
            reject_hello(st, c, PS_E_EXIST, "node %u is somebody else",
                         m->node);
        } else {
            await_verification(st, c, m);
        }
        return NULL;
    }
    if (!check_name(st, c, m, slot->name)) {
        return NULL;
    }
    if (p != NULL) {
        ps_effects_log(st->fx, PS_LOG_INFO, "node %u was restarted", m->node);
        ps_server_session_close(st, p);
    }
    p = ps_server_session_new(s, m);
    if (p == NULL) {
        reject_hello(st, c, PS_E_FULL, "too many agents");
    }
    return p;
}

/* Drops pulls and batched replies of the agent, whose link began a new session:
 * the agent asks again, and a reply to the old request would be taken for one
 * to a later request. */
static void drop_waits(struct ps_server *s, const struct ps_server_session *p)
{
    struct ps_map_cursor c = {0};
    struct ps_server_job *job;

    while ((job = ps_map_next(s->jobs.by_gen, &c)) != NULL) {
        for (uint32_t i = 0; i < job->slot_count; i++) {
            struct ps_server_slot *slot = &job->slots[i];

            if (slot->agent_node == p->agent_node &&
                slot->incarnation == p->incarnation) {
                ps_server_reply_drop(slot);
                ps_store_remove_slot_pulls(&job->store, i);
            }
        }
    }
}

/* Makes the connection carry the session's link. */
static void attach_conn(struct ps_server_step *st, struct ps_server_conn *c,
                        struct ps_server_session *p,
                        const struct ps_msg_hello *m)
{
    struct ps_server *s = st->s;

    if (p->conn != NULL) {
        ps_server_conn_close(st, p->conn);
    }
    ps_list_remove(&c->node);
    if (!ps_peer_has_certificate(&p->identity)) {
        p->identity = c->identity;
    }
    c->session = p;
    s->sessions.streams += !c->is_by_reference;
    p->conn = c;
    p->heard_at = st->now;

    bool resumed = m->session != 0 && p->session_id == m->session &&
                   ps_link_is_resumable(p->link);
    if (!resumed) {
        p->session_id = m->session;
        ps_server_session_drop_credits(p);
        ps_server_session_drop_replies_all(&p->turns);
        drop_waits(s, p);
    }
    p->turns.unsent = 0; /* Of the earlier connection. */
    ps_effects_log(st->fx, PS_LOG_INFO, "agent node %u incarnation %llu %s",
                   p->agent_node, (unsigned long long)p->incarnation,
                   resumed ? "resumed" : "connected");
    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_WELCOME,
            .welcome = {
                .protocol = m->protocol < PS_PROTOCOL ? m->protocol
                                                      : (uint16_t)PS_PROTOCOL,
                .name = s->opt.name,
                .instance = s->opt.instance,
                .node = p->agent_node,
                .incarnation = p->incarnation,
                .resumed = resumed,
                .received = resumed ? ps_link_received(p->link) : 0,
            }});
    ps_link_open(p->link, c->id, resumed, m->received, st->now, st->fx);
    ps_server_session_update_timer(s, p);
    ps_server_session_pump(st, p);
}

void ps_server_on_hello(struct ps_server_step *st, struct ps_server_conn *c,
                        const struct ps_msg_hello *m)
{
    struct ps_server_session *p;

    if (!check_hello(st, c, m)) {
        return;
    }
    p = obtain_session(st, c, m);
    if (p != NULL) {
        attach_conn(st, c, p, m);
    }
}

void ps_server_hello_verify_all(struct ps_server_step *st)
{
    struct ps_list *unverified = &st->s->sessions.unverified;
    struct ps_list_node *n = ps_list_first(unverified);

    while (n != NULL) {
        struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn, node);

        if (ps_server_job_slot_of(st->s, &c->unverified_hello->hello) == NULL) {
            n = ps_list_next(unverified, n);
            continue;
        }
        struct ps_msg *msg = c->unverified_hello;

        c->unverified_hello = NULL;
        ps_server_on_hello(st, c, &msg->hello);
        ps_msg_free(msg);
        /* This may have closed other unverified connections of the agent. */
        n = ps_list_first(unverified);
    }
}

/* -------------------------------------------------------------------- time */

/* Rejects agents that were not named in time. */
static void tick_unverified(struct ps_server_step *st)
{
    struct ps_list_node *n;

    while ((n = ps_list_first(&st->s->sessions.unverified)) != NULL) {
        const struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn,
                                                      node);

        if (st->now < ps_time_add(c->listed_at, VERIFY_TIMEOUT)) {
            break;
        }
        reject_oldest_unverified(st);
    }
}

void ps_server_hello_tick(struct ps_server_step *st)
{
    struct ps_server *s = st->s;
    struct ps_list_node *n;

    while ((n = ps_list_first(&s->sessions.handshaking)) != NULL) {
        struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn, node);

        if (st->now < ps_time_add(c->listed_at, HELLO_TIMEOUT)) {
            break;
        }
        ps_server_session_close_bad(st, c, "it did not say hello in time");
    }
    tick_unverified(st);
}

ps_time ps_server_hello_deadline(const struct ps_server *s)
{
    ps_time at = PS_TIME_NEVER;
    const struct ps_list_node *n = ps_list_first(&s->sessions.handshaking);

    if (n != NULL) {
        const struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn,
                                                      node);

        at = ps_time_min(at, ps_time_add(c->listed_at, HELLO_TIMEOUT));
    }
    n = ps_list_first(&s->sessions.unverified);
    if (n != NULL) {
        const struct ps_server_conn *c = PS_CONTAINER(n, struct ps_server_conn,
                                                      node);

        at = ps_time_min(at, ps_time_add(c->listed_at, VERIFY_TIMEOUT));
    }
    return at;
}
