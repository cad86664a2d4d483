/* SPDX-License-Identifier: Apache-2.0 */
/* Rights of tools: of the kernel's user on the Unix socket, or of a token. */
#pragma once

#include "base/str.h"
#include "core/sched/conn.h"

struct ps_sched;
struct ps_sched_job;

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
