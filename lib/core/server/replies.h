/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of agents for values, and what a server replies. */
#pragma once

#include "core/server/jobs.h"

struct ps_server_replies {
    struct ps_list batching_slots;
    ps_time flush_at; /* PS_TIME_NEVER: no batch is open. */
    uint64_t refused_parts;
};

/* pull.c */
void ps_server_on_pull(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg);
/* Replies to pulls that the present version satisfies. `has_value`: slots that have
 * its value already; may be NULL. */
void ps_server_pull_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part,
                                  const struct ps_bits *has_value);

/* restore.c */
void ps_server_on_init(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg,
                       const struct ps_slice *payload);
bool ps_server_init_is_duplicate(const struct ps_server_job *job,
                                 const struct ps_msg_init *m);
void ps_server_on_restore(struct ps_server_step *st, struct ps_server_conn *c,
                          const struct ps_msg *msg,
                          const struct ps_slice *payload);
/* Sends value_lost if the job has lost a version. */
void ps_server_restore_send_lost(struct ps_server_step *st,
                                 const struct ps_server_job *job);

/* rows.c */
/* Decides whether the payload of a pull_rows is received: 0, or the discard
 * reason. */
int ps_server_rows_check_payload(struct ps_server *s,
                                 struct ps_server_session *p,
                                 const struct ps_msg *msg, uint64_t len,
                                 struct ps_server_slot **ret_slot);
void ps_server_on_pull_rows(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg *msg,
                            const struct ps_slice *payload);
/* Replies to row pulls that the present version satisfies. */
void ps_server_rows_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part);
/* Returns the computation that merges a round of rows into run->result.
 * PS_E_NOMEM: nothing has changed. */
int ps_server_rows_plan_merge(struct ps_server_merge *run,
                              struct ps_compute **ret_compute);
/* True if the round changes no row: it has none, and rows without a gradient
 * stay. */
bool ps_server_rows_is_noop(const struct ps_server_job *job,
                            const struct ps_part *part);

/* reply.c */
/* Replies with the value if `want` is set and there is one, else with a commit
 * of `version`. Small replies wait for the next tick. */
void ps_server_reply_part(struct ps_server_step *st,
                          struct ps_server_slot *slot,
                          const struct ps_part *part, bool want,
                          uint64_t version);
void ps_server_reply_init(struct ps_server *s);
/* Sends all batches. */
void ps_server_reply_flush(struct ps_server_step *st);
void ps_server_reply_drop(struct ps_server_slot *slot);

/* Recipient of a reply to a message. */
struct ps_server_recipient {
    struct ps_server_session *session;
    uint64_t gen;
    const struct ps_server_slot *slot; /* NULL: not known. */
};

/* Errors of the parts of one message, sent together. */
struct ps_server_refusal {
    struct ps_rec_part parts[PS_PARTS_MAX];
    int rcs[PS_PARTS_MAX];
    /* Of a conflict: the least retry number that is valid now; else 0. */
    uint32_t retries[PS_PARTS_MAX];
    uint32_t count;
    /* Slots on the other side of a conflict, and their request. */
    struct ps_server_conflict conflict;
    /* Replaces PS_E_DISCARDED in parts whose payload found no memory; 0:
     * none. */
    int starved_rc;
    /* Error text for starved_rc. */
    char text[PS_TEXT_MAX / 2];
};
void ps_server_refusal_init(struct ps_server_refusal *r);
/* The message's payload, `len` bytes, was discarded for lack of memory: sets
 * starved_rc. To be called before parts are added. */
void ps_server_refusal_set_starved(struct ps_server_step *st,
                                   struct ps_server_refusal *r,
                                   const struct ps_server_slot *slot,
                                   uint64_t len);
void ps_server_refusal_add(struct ps_server_refusal *r,
                           const struct ps_rec_part *part, int rc,
                           uint32_t attempt);
void ps_server_refusal_send(struct ps_server_step *st,
                            const struct ps_server_recipient *to,
                            const struct ps_server_refusal *r);
/* Sends the refusal to the agents of these slots; NULL: of all. */
void ps_server_refusal_send_to(struct ps_server_step *st,
                               const struct ps_server_job *job,
                               const struct ps_bits *slots,
                               const struct ps_server_refusal *r);
/* Refuses all parts of a message with one error. */
void ps_server_refuse_parts(struct ps_server_step *st,
                            const struct ps_server_recipient *to,
                            const struct ps_server_parts *parts, int rc);

/* Finds the slot of a pull, init, abort or restore. NULL: refused. */
struct ps_server_slot *ps_server_find_slot_or_refuse(
    struct ps_server_step *st, struct ps_server_session *p, uint64_t gen,
    uint32_t number, const struct ps_server_parts *parts);

/* opt_state.c */
void ps_server_on_state_get(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_get *m);
void ps_server_on_state_put(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_put *m,
                            const struct ps_slice *payload);
