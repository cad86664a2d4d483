/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of jobs and users. */
#pragma once

#include "core/sched/job.h"

struct ps_sched;

void ps_sched_account_init(struct ps_sched *s);
void ps_sched_account_fini(struct ps_sched *s);
/* Open the job's account, and refund it before the job is freed. */
void ps_sched_account_open_job(struct ps_sched *s, struct ps_sched_job *j);
void ps_sched_account_close_job(struct ps_sched_job *j);
/* Charges a key with `parts` partitions. 0, or PS_E_FULL with the reason. */
int ps_sched_account_charge_key(struct ps_sched_job *j, const char *name,
                                uint32_t parts, struct ps_refusal *ret_refusal);
void ps_sched_account_refund_key(struct ps_sched_job *j, const char *name,
                                 uint32_t parts);
