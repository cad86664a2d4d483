/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions from the complete round to the frame. */
#pragma once

#include "core/agent/inner.h"

/* Sends the batches, and releases the memory of their small sums: the next one
 * allocates another. */
void ps_agent_send_tick(struct ps_agent_step *st);
void ps_agent_send_release_arena(struct ps_agent *a);
/* Discards the server's batch if it is of a job that is being freed. */
void ps_agent_send_drop_batch(struct ps_agent_server *s,
                              const struct ps_agent_job *j);

/* Sends a partition: alone, or in the server's batch if it is small. `slice`
 * NULL: an empty part. `rows`: rows in the slice of a rows key. */
void ps_agent_send_dispatch(struct ps_agent_step *st,
                            struct ps_agent_send_queue *f,
                            struct ps_agent_part *p,
                            const struct ps_slice *slice, uint32_t rows);
/* Dispatches the result of a computation. `error`: 0 or a PS_E_*. */
void ps_agent_send_on_computed(struct ps_agent_step *st,
                               struct ps_agent_computation *run, int error);
/* Ends the step for the servers that it has touched: starts the partitions that
 * may leave now, and computes deadlines. */
void ps_agent_send_pump(struct ps_agent_step *st);

/* Kind's start_part() for whole arrays. */
bool ps_agent_send_dense(struct ps_agent_step *st,
                         struct ps_agent_send_queue *f,
                         struct ps_agent_part *p);

/* Queues the partition for its server, or starts the local sum or init. Returns
 * true if it has the version at once: the caller advances it. */
bool ps_agent_send_launch(struct ps_agent_step *st, struct ps_agent_part *p);
