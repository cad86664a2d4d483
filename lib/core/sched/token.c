/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/token.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "core/sched/inner.h"

#include <inttypes.h>
#include <string.h>

static const struct ps_token_ops *token_ops(const struct ps_sched_step *st)
{
    return st->s->opt.token_ops;
}

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

/* The earliest end of a token with the right train after `now`. */
static void set_check_time(struct ps_sched *s, ps_time now)
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
    set_check_time(s, s->started_at);
}

void ps_sched_tokens_set_check_time(struct ps_sched_step *st)
{
    set_check_time(st->s, st->now);
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

struct ps_token_record *ps_sched_token_find(struct ps_sched_step *st,
                                            uint64_t id)
{
    struct ps_sched_tokens *t = &st->s->tokens;

    purge_expired(st);
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->list[i].claims.id == id) {
            return &t->list[i];
        }
    }
    return NULL;
}

int ps_sched_token_check(const struct ps_sched_step *st,
                         const struct ps_fixed_token_claims *claims,
                         struct ps_str *why)
{
    const struct ps_sched_tokens *t = &st->s->tokens;
    const uint64_t now = ps_sched_wall_seconds(st);

    if (claims->not_after <= now) {
        ps_str_addf(why, "token %016" PRIx64 " expired %" PRIu64 " s ago",
                    claims->id, now - claims->not_after);
        return PS_E_PERM;
    }
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->list[i].claims.id == claims->id && !t->list[i].is_revoked) {
            return 0;
        }
    }
    /* Tokens are forgotten by their end only, or with the file. */
    ps_str_addf(why, "token %016" PRIx64 " was revoked", claims->id);
    return PS_E_PERM;
}

int ps_sched_token_check_number(const struct ps_sched_step *st, uint64_t id,
                                struct ps_str *why)
{
    const struct ps_sched_tokens *t = &st->s->tokens;

    for (uint32_t i = 0; i < t->count; i++) {
        if (t->list[i].claims.id == id) {
            return ps_sched_token_check(st, &t->list[i].claims, why);
        }
    }
    ps_str_addf(why, "token %016" PRIx64 " has expired", id);
    return PS_E_PERM;
}

int ps_sched_token_read(const struct ps_sched_step *st, const char *text,
                        struct ps_fixed_token_claims *ret_claims,
                        struct ps_str *why)
{
    const struct ps_token_ops *ops = token_ops(st);

    if (ops == NULL || !ops->verify(ops->arg, text, ret_claims) ||
        strcmp((const char *)ret_claims->cluster, st->s->opt.cluster) != 0) {
        ps_str_add(why, "the token is not one of this scheduler");
        return PS_E_PERM;
    }
    return ps_sched_token_check(st, ret_claims, why);
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
    const struct ps_token_ops *ops = token_ops(st);
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
    const struct ps_token_ops *ops = token_ops(st);
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
