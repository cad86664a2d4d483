/* SPDX-License-Identifier: Apache-2.0 */
/* Servers: links, queues of partitions, frames. */
#pragma once

#include "core/agent/inner.h"

/* ----------------------------------------------------------------- servers */

/* The queues, the link or the dials of the server have changed: it may have
 * something to send, and other deadlines. */
void ps_agent_server_touch(struct ps_agent *a, struct ps_agent_server *s);
/* Sends on the link to the server, which keeps the packet until it is
 * acknowledged; takes over one reference. */
void ps_agent_server_send(struct ps_agent_step *st, struct ps_agent_server *s,
                          struct ps_packet *packet);
/* The same, for a message without payload. */
void ps_agent_server_send_msg(struct ps_agent_step *st,
                              struct ps_agent_server *s,
                              const struct ps_msg *msg);
void ps_agent_server_on_open(struct ps_agent_step *st,
                             const struct ps_event *ev);
void ps_agent_server_on_dial_failed(struct ps_agent_step *st, uint64_t target,
                                    int rc, const char *why);
void ps_agent_server_on_closed(struct ps_agent_step *st,
                               struct ps_agent_server *s, ps_conn_id conn);
/* Frames on `conn` are not acknowledged: dials a second connection. */
void ps_agent_server_on_stalled(struct ps_agent_step *st,
                                struct ps_agent_server *s, ps_conn_id conn);
void ps_agent_server_on_ping_req(struct ps_agent_step *st,
                                 const struct ps_msg_ping_req *m);
/* Ticks the links of the servers that are due, and pings those whose reply is
 * awaited for long. */
void ps_agent_server_tick(struct ps_agent_step *st);
/* Computes the deadlines of a server that the step has touched. */
void ps_agent_server_update_deadlines(struct ps_agent *a,
                                      struct ps_agent_server *s);
void ps_agent_server_on_map(struct ps_agent_step *st,
                            const struct ps_msg_map *m);
void ps_agent_server_note(struct ps_agent_step *st,
                          const struct ps_agent_server *s, const char *why);
void ps_agent_server_free(struct ps_agent *a, struct ps_agent_server *s);
/* Stops dialling the server and drops its link if no job uses it any more. */
void ps_agent_server_release(struct ps_agent_step *st,
                             struct ps_agent_server *s);
/* Memory for a payload without a final place. */
int ps_agent_server_alloc_payload(struct ps_agent *a, uint64_t len,
                                  struct ps_slice *ret_slice);

/* ------------------------------------------------------------------ queues */

struct ps_agent_send_queue *ps_agent_send_queue_get(struct ps_agent_step *st,
                                                    struct ps_agent_job *j,
                                                    uint32_t node);
/* Starts the account of credit again: the server has a new link. */
void ps_agent_send_queue_reset(const struct ps_agent *a,
                               struct ps_agent_send_queue *f);
/* Lets the queue take turns again: it may have credit. */
void ps_agent_send_queue_wake(struct ps_agent_send_queue *f);
void ps_agent_send_queue_free(struct ps_agent *a,
                              struct ps_agent_send_queue *f);
/* A sum, encoding or copy for the partition; `f` NULL: not for a server. */
struct ps_agent_computation *
ps_agent_computation_new(struct ps_agent *a, struct ps_agent_part *p,
                         struct ps_agent_send_queue *f);
/* Starts `c`, whose end `run` waits for. */
void ps_agent_computation_start(struct ps_agent_step *st,
                                struct ps_agent_computation *run,
                                struct ps_compute *c);
/* The computation for a server counts at its queue no more. */
void ps_agent_computation_leave(const struct ps_agent_computation *run);

void ps_agent_server_enqueue(struct ps_agent_step *st, struct ps_agent_part *p);
void ps_agent_server_dequeue(struct ps_agent_step *st, struct ps_agent_part *p);
/* Starts the back-off, or doubles it: the server has no memory for the job. */
void ps_agent_server_begin_backoff(struct ps_agent_step *st,
                                   struct ps_agent_send_queue *f);
/* Returns true while a refused partition waits for memory of its server. */
bool ps_agent_server_is_backing_off(struct ps_agent_step *st,
                                    const struct ps_agent_part *p);
/* A message of the server has the credit of the job; NULL: it is over.
 * `accepted`: it accepted something of it, which ends the back-off. */
void ps_agent_server_on_credit(struct ps_agent_step *st,
                               const struct ps_agent_server *s,
                               const struct ps_agent_job *j, uint64_t credit,
                               bool accepted);
