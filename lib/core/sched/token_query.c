/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/token_query.h"

#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/token.h"

#include <inttypes.h>
#include <string.h>

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

void ps_sched_token_send_rows(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    const struct ps_sched_tokens *t = &st->s->tokens;
    char text[PS_TEXT_MAX + 1] = "";
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (!may_manage_own(st, c, &why)) {
        refuse(st, c, PS_E_PERM, "list of tokens", text);
        return;
    }
    (void)ps_sched_token_find(st, 0); /* Forgets those that have expired. */
    for (uint32_t i = 0; i < t->count; i++) {
        ps_str_init(&why, text, sizeof(text));
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
    const char *job = ps_sched_text_or_empty(m->job);

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
    char text[PS_TEXT_MAX + 1] = "";
    struct ps_str why;
    int rc;

    ps_str_init(&why, text, sizeof(text));
    rc = check_issue(st, c, m, owner, &why);
    if (rc == 0) {
        token.claims.issued_at = ps_sched_wall_seconds(st);
        token.claims.not_after = token.claims.issued_at + m->valid_s;
        ps_str_copy((char *)token.claims.cluster, sizeof(token.claims.cluster),
                    st->s->opt.cluster);
        ps_str_copy((char *)token.claims.job, sizeof(token.claims.job),
                    ps_sched_text_or_empty(m->job));
        rc = ps_sched_token_issue(st, &token.claims, signed_text, &why);
    }
    if (rc != 0) {
        refuse(st, c, rc, "token", text);
        return;
    }
    ps_str_init(&why, text, sizeof(text));
    ps_sched_token_add_rights(&why, m->rights);
    ps_effects_log(st->fx, PS_LOG_NOTICE,
                   "token %016" PRIx64 " of user %u for %s%s with rights %s "
                   "and %" PRIu64 " s issued to %s",
                   token.claims.id, owner,
                   token.claims.job[0] != '\0' ? "job " : "all jobs",
                   (const char *)token.claims.job, text, m->valid_s,
                   c->peer_text);
    send_token_row(st, c, &token, signed_text);
    ps_sched_conn_end_query(st, c, 0, NULL);
}

void ps_sched_on_token_revoke(struct ps_sched_step *st, struct ps_sched_conn *c,
                              const struct ps_msg_token_revoke *m)
{
    struct ps_token_record *token = ps_sched_token_find(st, m->id);
    char text[PS_TEXT_MAX + 1] = "";
    struct ps_str why;
    bool is_stored;

    ps_str_init(&why, text, sizeof(text));
    if (!may_manage_own(st, c, &why)) {
        refuse(st, c, PS_E_PERM, "revocation of a token", text);
        return;
    }
    /* Users learn nothing of tokens of others. */
    if (token == NULL ||
        !ps_sched_may_manage_tokens(st, c, token->claims.uid, &why)) {
        ps_str_init(&why, text, sizeof(text));
        ps_str_addf(&why,
                    "no token %016" PRIx64 " that has not expired; psctl token "
                    "list lists them",
                    m->id);
        refuse(st, c, PS_E_NOENT, "revocation of a token", text);
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
