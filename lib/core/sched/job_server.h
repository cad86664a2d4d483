/* SPDX-License-Identifier: Apache-2.0 */
/* Servers that jobs may get and have. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member/member.h"

struct ps_sched;

/* Servers that a new job may use. *ret_draining: further ACTIVE servers that
 * are draining, *ret_name: name of one of them. */
uint32_t ps_sched_count_servers(const struct ps_sched *s,
                                uint32_t *ret_draining, const char **ret_name);
/* Appends "needs 4 servers, 2 are here", and what to do, if a job that forms
 * lacks servers. */
void ps_sched_describe_servers(const struct ps_sched *s,
                               const struct ps_sched_job *j,
                               struct ps_str *out);
/* Server that the job would get next: the one with fewest bytes, then by name;
 * NULL: none is usable. */
struct ps_member *ps_sched_job_next_server(const struct ps_sched *s,
                                           const struct ps_sched_job *j);
/* Servers that could join the job, at most as many as it lacks of num_servers.
 * Returns their count. */
uint32_t
ps_sched_job_spare_servers(const struct ps_sched *s,
                           const struct ps_sched_job *j,
                           const struct ps_member *list[PS_SERVERS_MAX]);
/* Makes `m` a server of the job; the caller publishes the job. */
void ps_sched_job_add_server(struct ps_sched_job *j, const struct ps_member *m);
/* Removes a server that is lost; this process of it is not used again. */
void ps_sched_job_remove_server(struct ps_sched *s, struct ps_sched_job *j,
                                struct ps_sched_job_server *on,
                                const struct ps_member *server);
/* Takes the load of a job that ends off its servers. */
void ps_sched_job_release_servers(struct ps_sched *s,
                                  const struct ps_sched_job *j);
