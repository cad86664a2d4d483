/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of operators' tools beside queries: tokens, log levels, and traces. */
#include "core/sched/query/query.h"

#include "base/alloc.h"
#include "core/base/peer.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/token.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------ tokens */

#define ALL_RIGHTS                                                             \
    ((uint32_t)PS_TOKEN_RIGHT_TRAIN | PS_TOKEN_RIGHT_READ |                    \
     PS_TOKEN_RIGHT_OPERATE | PS_TOKEN_RIGHT_ADMIN)

static void send_token_row(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_token_record *t, const char *text)
{
    ps_effects_send_msg(st->fx, c->id,
                        &(struct ps_msg){
                            .code = PS_MSG_TOKEN_ROW,
                            .token_row = {.id = t->claims.id,
                                          .job = (const char *)t->claims.job,
                                          .uid = t->claims.uid,
                                          .rights = t->claims.rights,
                                          .issued_at = t->claims.issued_at,
                                          .not_after = t->claims.not_after,
                                          .is_revoked = t->is_revoked,
                                          .text = text},
                        });
}

/* Logs and answers a refused request. */
static void refuse(struct ps_sched_step *st, struct ps_sched_conn *c, int rc,
                   const char *what, const char *why)
{
    ps_effects_log(st->fx, PS_LOG_WARNING, "%s refused for %s: %s", what,
                   c->peer_text, why);
    ps_sched_conn_end_query(st, c, rc, why);
}

/* True: the tool may list and revoke tokens at all. */
static bool may_manage_own(const struct ps_sched_step *st,
                           const struct ps_sched_conn *c, struct ps_str *why)
{
    return ps_sched_may_manage_tokens(st, c,
                                      c->is_local ? c->uid : c->token.uid, why);
}

void ps_sched_on_token_query(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    const struct ps_sched_tokens *t = &st->s->tokens;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (ps_sched_query_is_busy(st, c)) {
        return;
    }
    if (!may_manage_own(st, c, &why)) {
        refuse(st, c, PS_E_PERM, "list of tokens", why.data);
        return;
    }
    (void)ps_sched_token_find(st, 0); /* Forgets those that have expired. */
    for (uint32_t i = 0; i < t->count; i++) {
        if (ps_sched_may_manage_tokens(st, c, t->list[i].claims.uid, &why)) {
            send_token_row(st, c, &t->list[i], NULL);
        }
    }
    ps_sched_conn_end_query(st, c, 0, NULL);
}

/* 0, or an error code with the reason: the request is malformed, or the
 * tool may not have it. */
static int check_issue(const struct ps_sched_step *st,
                       const struct ps_sched_conn *c,
                       const struct ps_msg_token_issue *m, uint32_t owner,
                       struct ps_str *why)
{
    const char *job = ps_str_or_empty(m->job);

    if (!c->is_local) {
        ps_str_add(why, "tokens are issued over the scheduler's Unix socket "
                        "only (control.socket)");
        return PS_E_PERM;
    }
    if (c->uid != owner && !ps_sched_is_operator(st->s, c->uid)) {
        ps_str_addf(why,
                    "tokens of user %u are issued to that user and to "
                    "operators, not to user %u",
                    owner, c->uid);
        return PS_E_PERM;
    }
    if (*job != '\0' && !ps_str_is_name(job, PS_NAME_MAX)) {
        ps_str_addf(why,
                    "a job's name has 1 to %u printable ASCII characters "
                    "without spaces",
                    PS_NAME_MAX);
        return PS_E_INVAL;
    }
    if (m->rights == 0 || (m->rights & ~ALL_RIGHTS) != 0) {
        ps_str_add(why, "the rights of a token are one or more of train, "
                        "read, operate and admin");
        return PS_E_INVAL;
    }
    if (m->valid_s == 0 || m->valid_s > PS_TOKEN_VALID_MAX) {
        ps_str_addf(why, "a token is valid for 1 s to %u days",
                    PS_TOKEN_VALID_MAX / 86400u);
        return PS_E_INVAL;
    }
    return 0;
}

void ps_sched_on_token_issue(struct ps_sched_step *st, struct ps_sched_conn *c,
                             const struct ps_msg_token_issue *m)
{
    const uint32_t owner = m->has_owner ? m->owner : c->uid;
    struct ps_token_record token = {
        .claims = {.uid = owner, .rights = m->rights}};
    char signed_text[PS_TOKEN_TEXT_MAX + 1];
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_str rights = PS_STR_ROOM(64);
    int rc = check_issue(st, c, m, owner, &why);

    if (rc == 0) {
        token.claims.issued_at = ps_sched_wall_seconds(st);
        token.claims.not_after = token.claims.issued_at + m->valid_s;
        ps_str_copy((char *)token.claims.cluster, sizeof(token.claims.cluster),
                    st->s->opt.cluster);
        ps_str_copy((char *)token.claims.job, sizeof(token.claims.job),
                    ps_str_or_empty(m->job));
        rc = ps_sched_token_issue(st, &token.claims, signed_text, &why);
    }
    if (rc != 0) {
        refuse(st, c, rc, "token", why.data);
        return;
    }
    ps_sched_token_add_rights(&rights, m->rights);
    ps_effects_log(st->fx, PS_LOG_NOTICE,
                   "token %016" PRIx64 " of user %u for %s%s with rights %s "
                   "and %" PRIu64 " s issued to %s",
                   token.claims.id, owner,
                   token.claims.job[0] != '\0' ? "job " : "all jobs",
                   (const char *)token.claims.job, rights.data, m->valid_s,
                   c->peer_text);
    send_token_row(st, c, &token, signed_text);
    ps_sched_conn_end_query(st, c, 0, NULL);
}

void ps_sched_on_token_revoke(struct ps_sched_step *st, struct ps_sched_conn *c,
                              const struct ps_msg_token_revoke *m)
{
    struct ps_token_record *token = ps_sched_token_find(st, m->id);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    bool is_stored;

    if (!may_manage_own(st, c, &why)) {
        refuse(st, c, PS_E_PERM, "revocation of a token", why.data);
        return;
    }
    /* Users learn nothing of tokens of others. */
    if (token == NULL ||
        !ps_sched_may_manage_tokens(st, c, token->claims.uid, &why)) {
        ps_str_init(&why, why.data, why.cap);
        ps_str_addf(&why,
                    "no token %016" PRIx64 " that has not expired; psctl token "
                    "list lists them",
                    m->id);
        refuse(st, c, PS_E_NOENT, "revocation of a token", why.data);
        return;
    }
    ps_effects_log(st->fx, PS_LOG_WARNING,
                   "token %016" PRIx64 " of user %u revoked by %s", m->id,
                   token->claims.uid, c->peer_text);
    is_stored = ps_sched_token_revoke(st, token);
    ps_sched_workers_drop_tokens(st);
    if (!is_stored) {
        ps_sched_conn_end_query(
            st, c, PS_E_IO,
            "revoked until psched ends, but not stored; see the log of psched");
        return;
    }
    ps_sched_conn_end_query(st, c, 0, NULL);
}

/* -------------------------------------------------------------- log levels */

/* A log level holds for a process: a member that starts again has the one of
 * its options. So only members with a connection get it, and one that is named
 * and has none is an error. */

/* Returns the number of members with this name, "": any, that are notified;
 * *ret_known counts those that are not connected, too. */
static uint32_t notify_members(struct ps_sched_step *st, const char *name,
                               const struct ps_msg *msg, uint32_t *ret_known)
{
    uint32_t notified = 0;

    *ret_known = 0;
    for (uint32_t i = 0; i < st->s->members.count; i++) {
        struct ps_member *m = st->s->members.sorted[i];

        if (*name != '\0' && strcmp(m->name, name) != 0) {
            continue;
        }
        ++*ret_known;
        if (ps_member_is_connected(m)) {
            ps_sched_send_msg(st, m, msg);
            notified++;
        }
    }
    return notified;
}

static void refuse_name(struct ps_sched_step *st, struct ps_sched_conn *c,
                        const char *name, bool is_known)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_str_add(&why, is_known ? "member '" : "no member '");
    ps_str_add_escaped(&why, name, strlen(name), PS_NAME_MAX);
    ps_str_add(&why, is_known ? "' is not connected"
                              : "' is there; psctl nodes lists them");
    ps_sched_conn_end_query(st, c, is_known ? PS_E_UNREACH : PS_E_NOENT,
                            why.data);
}

static void record_change(struct ps_sched_step *st,
                          const struct ps_sched_conn *c, const char *name,
                          uint8_t level)
{
    char what[24];
    char text[PS_NAME_MAX + sizeof(c->peer_text) + 16];
    struct ps_str s;

    ps_str_init(&s, what, sizeof(what));
    ps_str_addf(&s, "log level %s", ps_verbosity_name(level));
    ps_str_init(&s, text, sizeof(text));
    ps_str_addf(&s, "%s%sby %s", name, *name != '\0' ? " " : "", c->peer_text);
    ps_effects_log(st->fx, PS_LOG_WARNING, "%s of %s set by an operator at %s",
                   what, *name != '\0' ? name : "all members", c->peer_text);
    ps_sched_event_own(st, what, false, text);
}

void ps_sched_on_log_level(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg_log_level *m)
{
    const char *name = ps_str_or_empty(m->member);
    const bool is_own = *name == '\0' || strcmp(name, st->s->opt.name) == 0;
    uint32_t known;

    if (!ps_sched_query_check_right(st, c, NULL, PS_TOKEN_RIGHT_OPERATE)) {
        return;
    }
    const uint32_t notified = notify_members(
        st, name, &(struct ps_msg){.code = PS_MSG_LOG_LEVEL, .log_level = *m},
        &known);

    if (notified == 0 && !is_own) {
        refuse_name(st, c, name, known > 0);
        return;
    }
    record_change(st, c, name, m->level);
    if (is_own) {
        ps_effects_log_level(st->fx, m);
    }
    ps_sched_conn_end_query(st, c, 0, NULL);
}

/* ------------------------------------------------------------------ traces */

/* A tool asks for the entries of one member at a time. */
void ps_sched_on_trace_get(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg_trace_get *m)
{
    const struct ps_sched_job *j;

    if (ps_sched_query_is_busy(st, c)) {
        return;
    }
    j = ps_sched_query_job(st, c,
                           (struct ps_sched_job_name){ps_str_or_empty(m->job),
                                                      m->has_owner, m->owner},
                           PS_TOKEN_RIGHT_READ);
    if (j != NULL) {
        ps_sched_trace_ask(st, c, j, m);
    }
}
