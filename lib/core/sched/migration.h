/* SPDX-License-Identifier: Apache-2.0 */
/* Migrations of partitions between servers. */
#pragma once

#include "core/sched/job.h"
#include "core/sched/member.h"

struct ps_sched;
struct ps_sched_step;

/* Makes an empty rebalance; ps_sched_migrations_start() begins it. */
void ps_sched_migrations_init(struct ps_sched_job *j, ps_conn_id ctl);
struct ps_sched_part_migration {
    uint32_t key;
    uint32_t index;
    uint32_t source_node; /* Node number. */
    uint32_t target_node;
};
PS_MUST_USE int
ps_sched_migrations_add(struct ps_sched *s, struct ps_sched_job *j,
                        const struct ps_sched_part_migration *m);
/* Starts queued migrations, up to PS_MIGRATIONS_MAX at once, to servers that
 * are ready for the job. */
void ps_sched_migrations_start(struct ps_sched_step *st,
                               struct ps_sched_job *j);
/* Drops all migrations; uncommitted ones count as failed. Servers discard
 * theirs with the job. */
void ps_sched_migrations_cancel(struct ps_sched_step *st,
                                struct ps_sched_job *j, const char *why);
void ps_sched_migrations_free(struct ps_sched_job *j);
void ps_sched_migrations_lose_server(struct ps_sched_step *st,
                                     const struct ps_member *server);
/* Repeats pending requests to a server on a fresh link. */
void ps_sched_migrations_resend(struct ps_sched_step *st,
                                const struct ps_member *server);
/* Of a part_chunk or part_ack of this server: 0 if the scheduler waits for it;
 * PS_E_NOENT: it waits for none, as the migration is over, or the answer came
 * before; PS_E_PERM: the migration is one of other servers. */
int ps_sched_migration_check_answer(const struct ps_sched *s,
                                    const struct ps_member *server,
                                    const struct ps_msg *msg);
void ps_sched_on_part_chunk(struct ps_sched_step *st,
                            const struct ps_member *server,
                            const struct ps_msg_part_chunk *m,
                            const struct ps_slice *payload);
void ps_sched_on_part_ack(struct ps_sched_step *st,
                          const struct ps_member *server,
                          const struct ps_msg_part_ack *m);
