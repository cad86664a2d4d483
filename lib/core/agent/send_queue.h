/* SPDX-License-Identifier: Apache-2.0 */
/* Send queues per server: priority, credit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ps_agent;
struct ps_agent_job;
struct ps_agent_part;
struct ps_agent_send_queue;
struct ps_agent_server;
struct ps_agent_step;

struct ps_agent_send_queue *ps_agent_send_queue_get(struct ps_agent_step *st,
                                                    struct ps_agent_job *j,
                                                    uint32_t node);
/* Starts the account of credit again: the server has a new link. */
void ps_agent_send_queue_reset(const struct ps_agent *a,
                               struct ps_agent_send_queue *f);
/* Lets the queue take turns again: it may have credit. */
void ps_agent_send_queue_wake(struct ps_agent_send_queue *f);
/* Returns the partition that may be sent to the server next, the head of the
 * queue whose turn it is; NULL: none may. */
struct ps_agent_part *
ps_agent_send_queue_next(struct ps_agent_server *s,
                         struct ps_agent_send_queue **ret_queue);
/* Counts payload bytes of the queue whose turn it is. */
void ps_agent_send_queue_charge(struct ps_agent_send_queue *f, uint64_t bytes);
void ps_agent_send_queue_free(struct ps_agent_send_queue *f);
void ps_agent_send_enqueue(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_send_dequeue(struct ps_agent_step *st, struct ps_agent_part *p);
/* Ends the back-off: the server accepted something of job `gen`. */
void ps_agent_send_end_backoff(struct ps_agent_step *st,
                               struct ps_agent_server *s, uint64_t gen);
/* Starts the back-off, or doubles it: the server has no memory for the job. */
void ps_agent_send_begin_backoff(struct ps_agent_step *st,
                                 struct ps_agent_send_queue *f);
/* Returns true while a refused partition waits for memory of its server. */
bool ps_agent_send_is_backing_off(struct ps_agent_step *st,
                                  const struct ps_agent_part *p);
void ps_agent_send_raise_credit(struct ps_agent_step *st,
                                struct ps_agent_server *s, uint64_t gen,
                                uint64_t credit);
