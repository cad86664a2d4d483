/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that the scheduler has issued, and whether a token counts now. */
#pragma once

#include "base/str.h"
#include "base/time.h"
#include "core/sched/token_ops.h"

struct ps_sched;
struct ps_sched_step;

struct ps_sched_tokens {
    struct ps_token_record *list; /* Those that have not expired, and others. */
    uint32_t count;
    /* When the next token with the right train expires; or never. */
    ps_time check_at;
};

void ps_sched_tokens_init(struct ps_sched *s);
void ps_sched_tokens_fini(struct ps_sched *s);

/* Seconds since 1970: the system's clock when the scheduler started, and the
 * time since. */
uint64_t ps_sched_wall_seconds(const struct ps_sched_step *st);
/* Reads a token's text. 0, or PS_E_PERM with the reason: no token of this
 * scheduler, expired or revoked. */
int ps_sched_token_read(const struct ps_sched_step *st, const char *text,
                        struct ps_fixed_token_claims *ret_claims,
                        struct ps_str *why);
/* 0, or PS_E_PERM with the reason: the token has expired or was revoked. */
int ps_sched_token_check(const struct ps_sched_step *st,
                         const struct ps_fixed_token_claims *claims,
                         struct ps_str *why);
/* The same for the token of this number. */
int ps_sched_token_check_number(const struct ps_sched_step *st, uint64_t id,
                                struct ps_str *why);
/* Workers have been checked: sets `check_at`. */
void ps_sched_tokens_set_check_time(struct ps_sched_step *st);
/* NULL: no token of this number that has not expired. */
struct ps_token_record *ps_sched_token_find(struct ps_sched_step *st,
                                            uint64_t id);
/* Signs and stores a token; its number is chosen here. 0, or an error code with
 * the reason. */
int ps_sched_token_issue(struct ps_sched_step *st,
                         struct ps_fixed_token_claims *claims,
                         char ret_text[PS_TOKEN_TEXT_MAX + 1],
                         struct ps_str *why);
/* Revokes for as long as the scheduler lives; false: it could not be stored, so
 * that the next scheduler accepts the token. */
bool ps_sched_token_revoke(struct ps_sched_step *st,
                           struct ps_token_record *token);
/* Adds "train,read". */
void ps_sched_token_add_rights(struct ps_str *s, uint32_t rights);
