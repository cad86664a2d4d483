/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens, and rights of users and of tokens (rules U1 to U8). A token never
 * allows more than its user may, and only what its rights and its job say. */
#include "core/sched/token.h"

#include "base/alloc.h"
#include "base/name_hash.h"
#include "base/rng.h"
#include "core/sched/inner.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------ tokens */

static ps_time expiry_time(const struct ps_sched *s,
                           const struct ps_fixed_token_claims *claims)
{
    const uint64_t end = claims->not_after < PS_TIME_NEVER / PS_SECONDS(1)
                             ? PS_SECONDS(claims->not_after)
                             : PS_TIME_NEVER;

    return end <= s->opt.wall_ns
               ? s->started_at
               : ps_time_add(s->started_at, end - s->opt.wall_ns);
}

void ps_sched_tokens_set_check_time(struct ps_sched *s, ps_time now)
{
    s->tokens.check_at = PS_TIME_NEVER;
    for (uint32_t i = 0; i < s->tokens.count; i++) {
        const struct ps_fixed_token_claims *c = &s->tokens.list[i].claims;
        const ps_time end = expiry_time(s, c);

        if ((c->rights & PS_TOKEN_RIGHT_TRAIN) != 0 && end > now) {
            s->tokens.check_at = ps_time_min(s->tokens.check_at, end);
        }
    }
}

void ps_sched_tokens_init(struct ps_sched *s)
{
    const uint32_t count = s->opt.token_count;

    s->tokens.list = ps_calloc(PS_TOKENS_MAX, sizeof(*s->tokens.list));
    s->tokens.count = count < PS_TOKENS_MAX ? count : PS_TOKENS_MAX;
    if (s->tokens.count > 0) {
        memcpy(s->tokens.list, s->opt.tokens,
               s->tokens.count * sizeof(*s->tokens.list));
    }
    ps_sched_tokens_set_check_time(s, s->started_at);
}

void ps_sched_tokens_fini(struct ps_sched *s)
{
    ps_free(s->tokens.list);
}

uint64_t ps_sched_wall_seconds(const struct ps_sched_step *st)
{
    return (st->s->opt.wall_ns + (st->now - st->s->started_at)) / PS_SECONDS(1);
}

static void purge_expired(struct ps_sched_step *st)
{
    struct ps_sched_tokens *t = &st->s->tokens;
    const uint64_t now = ps_sched_wall_seconds(st);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < t->count; i++) {
        if (t->list[i].claims.not_after > now) {
            t->list[kept++] = t->list[i];
        }
    }
    t->count = kept;
}

static struct ps_token_record *find_record(const struct ps_sched_tokens *t,
                                           uint64_t id)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->list[i].claims.id == id) {
            return &t->list[i];
        }
    }
    return NULL;
}

struct ps_token_record *ps_sched_token_find(struct ps_sched_step *st,
                                            uint64_t id)
{
    purge_expired(st);
    return find_record(&st->s->tokens, id);
}

/* 0, or PS_E_PERM with the reason: the token has expired or was revoked. */
static int check_claims(const struct ps_sched_step *st,
                        const struct ps_fixed_token_claims *claims,
                        struct ps_str *why)
{
    const struct ps_token_record *r = find_record(&st->s->tokens, claims->id);
    const uint64_t now = ps_sched_wall_seconds(st);

    if (claims->not_after <= now) {
        ps_str_addf(why, "token %016" PRIx64 " expired %" PRIu64 " s ago",
                    claims->id, now - claims->not_after);
        return PS_E_PERM;
    }
    if (r != NULL && !r->is_revoked) {
        return 0;
    }
    /* Tokens are forgotten by their end only, or with the file. */
    ps_str_addf(why, "token %016" PRIx64 " was revoked", claims->id);
    return PS_E_PERM;
}

int ps_sched_token_check_number(const struct ps_sched_step *st, uint64_t id,
                                struct ps_str *why)
{
    const struct ps_token_record *r = find_record(&st->s->tokens, id);

    if (r != NULL) {
        return check_claims(st, &r->claims, why);
    }
    ps_str_addf(why, "token %016" PRIx64 " has expired", id);
    return PS_E_PERM;
}

int ps_sched_token_read(const struct ps_sched_step *st, const char *text,
                        struct ps_fixed_token_claims *ret_claims,
                        struct ps_str *why)
{
    const struct ps_token_ops *ops = st->s->opt.token_ops;

    if (ops == NULL || !ops->verify(ops->arg, text, ret_claims) ||
        strcmp((const char *)ret_claims->cluster, st->s->opt.cluster) != 0) {
        ps_str_add(why, "the token is not one of this scheduler");
        return PS_E_PERM;
    }
    return check_claims(st, ret_claims, why);
}

/* 0: user `uid` may have one more token. */
static int check_count(const struct ps_sched_tokens *t, uint32_t uid,
                       struct ps_str *why)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < t->count; i++) {
        count += t->list[i].claims.uid == uid;
    }
    if (t->count < PS_TOKENS_MAX && count < PS_TOKENS_USER_MAX) {
        return 0;
    }
    ps_str_addf(why,
                "user %u has %u tokens and all users have %u; the limits are "
                "%u and %u, and a token counts until it expires",
                uid, count, t->count, PS_TOKENS_USER_MAX, PS_TOKENS_MAX);
    return PS_E_FULL;
}

int ps_sched_token_issue(struct ps_sched_step *st,
                         struct ps_fixed_token_claims *claims,
                         char ret_text[PS_TOKEN_TEXT_MAX + 1],
                         struct ps_str *why)
{
    const struct ps_token_ops *ops = st->s->opt.token_ops;
    struct ps_sched_tokens *t = &st->s->tokens;
    int rc;

    if (ops == NULL) {
        ps_str_add(why, "this scheduler issues no tokens");
        return PS_E_UNSUPPORTED;
    }
    purge_expired(st);
    rc = check_count(t, claims->uid, why);
    if (rc != 0) {
        return rc;
    }
    do {
        claims->id = ps_rng_next(&st->s->rng);
    } while (claims->id == 0 || ps_sched_token_find(st, claims->id) != NULL);
    t->list[t->count++] = (struct ps_token_record){.claims = *claims};
    if (!ops->sign(ops->arg, claims, ret_text) ||
        !ops->save(ops->arg, t->list, t->count)) {
        t->count--;
        ps_str_add(why, "the token cannot be signed or stored; see the log of "
                        "psched");
        return PS_E_IO;
    }
    t->check_at = ps_time_min(t->check_at, expiry_time(st->s, claims));
    return 0;
}

bool ps_sched_token_revoke(struct ps_sched_step *st,
                           struct ps_token_record *token)
{
    const struct ps_token_ops *ops = st->s->opt.token_ops;
    const struct ps_sched_tokens *t = &st->s->tokens;

    token->is_revoked = true;
    return ops != NULL && ops->save(ops->arg, t->list, t->count);
}

void ps_sched_token_add_rights(struct ps_str *s, uint32_t rights)
{
    static const enum ps_token_right all[] = {
        PS_TOKEN_RIGHT_TRAIN, PS_TOKEN_RIGHT_READ, PS_TOKEN_RIGHT_OPERATE,
        PS_TOKEN_RIGHT_ADMIN};
    const char *comma = "";

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if ((rights & all[i]) != 0) {
            ps_str_addf(s, "%s%s", comma, ps_token_right_name(all[i]));
            comma = ",";
        }
    }
}

/* ------------------------------------------------------------------ rights */

/* Rights of users and of tokens (rules U1 to U8). A token never allows more than
 * its user may, and only what its rights and its job say. */

bool ps_sched_is_operator(const struct ps_sched *s, uint32_t uid)
{
    if (uid == 0 || uid == s->opt.uid) {
        return true;
    }
    for (uint32_t i = 0; i < s->opt.operator_count; i++) {
        if (s->opt.operators[i] == uid) {
            return true;
        }
    }
    return false;
}

/* True: the token counts now and has the right. */
static bool token_has_right(const struct ps_sched_step *st,
                            const struct ps_fixed_token_claims *t,
                            enum ps_token_right right, struct ps_str *why)
{
    uint32_t sufficient = (uint32_t)right;

    if (right == PS_TOKEN_RIGHT_READ) {
        sufficient |= PS_TOKEN_RIGHT_OPERATE;
    }
    if (right != PS_TOKEN_RIGHT_TRAIN) {
        sufficient |= PS_TOKEN_RIGHT_ADMIN;
    }
    if (check_claims(st, t, why) != 0) {
        return false;
    }
    if ((t->rights & sufficient) == 0) {
        ps_str_addf(why, "token %016" PRIx64 " has the rights ", t->id);
        ps_sched_token_add_rights(why, t->rights);
        ps_str_addf(why, ", not %s", ps_token_right_name(right));
        return false;
    }
    return true;
}

/* True: the job, or all jobs if NULL, is in the token's scope. */
static bool token_covers(const struct ps_sched_step *st,
                         const struct ps_fixed_token_claims *t,
                         const struct ps_sched_job *j, bool reads,
                         struct ps_str *why)
{
    const char *job = (const char *)t->job;

    if (*job != '\0') {
        if (j != NULL && j->uid == t->uid && strcmp(j->name, job) == 0) {
            return true;
        }
        ps_str_addf(why, "token %016" PRIx64 " is for job '%s' of user %u only",
                    t->id, job, t->uid);
        return false;
    }
    /* Every user may read everything on the Unix socket. */
    if (reads || (j != NULL && j->uid == t->uid) ||
        ps_sched_is_operator(st->s, t->uid)) {
        return true;
    }
    ps_str_addf(why, "token %016" PRIx64 " is for jobs of user %u only", t->id,
                t->uid);
    return false;
}

/* Groups of groups that are followed to the job of a token. */
#define GROUP_DEPTH_MAX 8

/* True: a job of this name is the token's job, or a group of it, "job/group"
 * (rule J2), or a group of such a group. */
static bool token_covers_name(const struct ps_sched *s,
                              const struct ps_fixed_token_claims *t,
                              const char *name)
{
    const char *job = (const char *)t->job;

    if (*job == '\0') {
        return true;
    }
    for (uint32_t i = 0; name != NULL && i < GROUP_DEPTH_MAX; i++) {
        const char *parent = NULL;

        if (strcmp(name, job) == 0 || ps_group_name_is_of(name, job)) {
            return true;
        }
        PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
        {
            if (j->uid == t->uid && ps_group_name_is_of(name, j->name)) {
                parent = j->name;
            }
        }
        name = parent;
    }
    return false;
}

int ps_sched_check_join(const struct ps_sched_step *st,
                        const struct ps_msg_job_open *m, const char *name,
                        uint32_t *ret_uid, uint64_t *ret_token,
                        struct ps_str *why)
{
    const char *text = ps_str_or_empty(m->token);
    struct ps_fixed_token_claims t;

    *ret_uid = m->uid;
    *ret_token = 0;
    if (*text == '\0') {
        return 0;
    }
    if (ps_sched_token_read(st, text, &t, why) != 0 ||
        !token_has_right(st, &t, PS_TOKEN_RIGHT_TRAIN, why)) {
        return PS_E_PERM;
    }
    if (!token_covers_name(st->s, &t, name)) {
        ps_str_addf(why, "token %016" PRIx64 " is for job '%s' of user %u only",
                    t.id, (const char *)t.job, t.uid);
        return PS_E_PERM;
    }
    *ret_uid = t.uid;
    *ret_token = t.id;
    return 0;
}

static void add_remedy(const struct ps_sched *s, struct ps_str *why)
{
    ps_str_add(why, s->opt.control_path[0] != '\0'
                        ? "use psctl on the scheduler's host as that user or "
                          "root, or with a token (--token)"
                        : "jobs can be changed over a Unix socket only, and "
                          "this scheduler has none: set control.socket; or by "
                          "a token (--token)");
}

bool ps_sched_has_right(const struct ps_sched_step *st,
                        const struct ps_sched_conn *c,
                        const struct ps_sched_job *j, enum ps_token_right right,
                        struct ps_str *why)
{
    const bool reads = right == PS_TOKEN_RIGHT_READ;

    if (reads && !st->s->opt.reading_needs_token) {
        return true;
    }
    if (c->is_local && (reads || (j != NULL && c->uid == j->uid) ||
                        ps_sched_is_operator(st->s, c->uid))) {
        return true;
    }
    if (c->token.id != 0) {
        return token_has_right(st, &c->token, right, why) &&
               token_covers(st, &c->token, j, reads, why);
    }
    if (reads) {
        ps_str_add(why, "the scheduler's control.read demands a token with the "
                        "right read over TCP");
        return false;
    }
    if (j == NULL) {
        ps_str_add(why, "log levels are set by operators: psctl on the "
                        "scheduler's host as root or a user of "
                        "control.operators, or with a token of one (--token)");
        return false;
    }
    ps_str_addf(why, "job '%s' belongs to user %u; ", j->name, j->uid);
    add_remedy(st->s, why);
    return false;
}

bool ps_sched_may_name(const struct ps_sched_step *st,
                       const struct ps_sched_conn *c,
                       struct ps_sched_job_name *n, struct ps_str *why)
{
    const struct ps_fixed_token_claims *t = &c->token;
    struct ps_str unused = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (ps_sched_has_right(st, c, NULL, PS_TOKEN_RIGHT_READ, why)) {
        return true;
    }
    if (t->id == 0 || t->job[0] == '\0' ||
        strcmp(n->name, (const char *)t->job) != 0 ||
        (n->has_owner && n->owner != t->uid) ||
        !token_has_right(st, t, PS_TOKEN_RIGHT_READ, &unused)) {
        return false;
    }
    n->has_owner = true;
    n->owner = t->uid;
    return true;
}

bool ps_sched_may_manage_tokens(const struct ps_sched_step *st,
                                const struct ps_sched_conn *c, uint32_t uid,
                                struct ps_str *why)
{
    if (c->is_local && (c->uid == uid || ps_sched_is_operator(st->s, c->uid))) {
        return true;
    }
    if (c->token.id != 0) {
        if (!token_has_right(st, &c->token, PS_TOKEN_RIGHT_ADMIN, why)) {
            return false;
        }
        if (c->token.job[0] == '\0' &&
            (c->token.uid == uid ||
             ps_sched_is_operator(st->s, c->token.uid))) {
            return true;
        }
        ps_str_addf(why, "token %016" PRIx64 " is not for all jobs of user %u",
                    c->token.id, uid);
        return false;
    }
    ps_str_addf(why,
                "tokens of user %u are managed by that user and by operators, "
                "on the scheduler's host, or by a token with the right admin",
                uid);
    return false;
}
