/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens that the scheduler has issued, whether a token counts now, and the
 * rights of tools: those of the kernel's user on the Unix socket, or of a
 * token. */
#pragma once

#include "base/str.h"
#include "core/sched/options.h"
#include "proto/ps_msg.h"

struct ps_sched;
struct ps_sched_conn;
struct ps_sched_job;
struct ps_sched_step;

/* ------------------------------------------------------------------ tokens */

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
/* 0, or PS_E_PERM with the reason: the token of this number has expired or was
 * revoked. */
int ps_sched_token_check_number(const struct ps_sched_step *st, uint64_t id,
                                struct ps_str *why);
/* Workers have been checked: sets `check_at`, to the earliest end of a token with
 * the right train after `now`. */
void ps_sched_tokens_set_check_time(struct ps_sched *s, ps_time now);
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

/* ------------------------------------------------------------------ rights */

/* True: the user may do with every job what its owner may. */
bool ps_sched_is_operator(const struct ps_sched *s, uint32_t uid);
/* True: the tool may do to the job what needs the right `right`, READ or
 * OPERATE. Else `why` has the reason. `j` NULL: all jobs, and members. */
bool ps_sched_has_right(const struct ps_sched_step *st,
                        const struct ps_sched_conn *c,
                        const struct ps_sched_job *j, enum ps_token_right right,
                        struct ps_str *why);
/* A job as a tool names it. */
struct ps_sched_job_name {
    const char *name;
    bool has_owner;
    uint32_t owner; /* Uid. */
};

/* True: the tool may learn whether there is such a job. A token for one job
 * states the owner, too. Else `why` has the reason, which does not depend on
 * jobs that exist. */
bool ps_sched_may_name(const struct ps_sched_step *st,
                       const struct ps_sched_conn *c,
                       struct ps_sched_job_name *n, struct ps_str *why);
/* 0: the worker of a job_open may take part in a job of this name, of user
 * *ret_uid: its own user, or that of its token, whose number is *ret_token, else
 * 0. PS_E_PERM with the reason: the token does not allow it. */
int ps_sched_check_join(const struct ps_sched_step *st,
                        const struct ps_msg_job_open *m, const char *name,
                        uint32_t *ret_uid, uint64_t *ret_token,
                        struct ps_str *why);
/* True: the tool may list and revoke tokens of user `uid`. */
bool ps_sched_may_manage_tokens(const struct ps_sched_step *st,
                                const struct ps_sched_conn *c, uint32_t uid,
                                struct ps_str *why);
