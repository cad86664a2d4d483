/* SPDX-License-Identifier: Apache-2.0 */
/* Value, commit, refuse. */
#pragma once

#include "core/server/job.h"

/* Slots that one refusal names, at most. */
#define PS_CONFLICT_SLOTS_MAX 64u

/* Slots that ask for the same, and what: one side of a conflict. */
struct ps_server_conflict {
    uint32_t slots[PS_CONFLICT_SLOTS_MAX];
    uint32_t slot_count;
    uint8_t reduce;
    bool assign;
};

/* Record of a partition in a reply about this version of it. */
struct ps_rec_part ps_server_part_record(const struct ps_part *part,
                                         uint64_t version);
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

/* Errors of the parts of one message, sent together. */
struct ps_server_refusal {
    struct ps_rec_part parts[PS_PARTS_MAX];
    int rcs[PS_PARTS_MAX];
    /* After a conflict: the least valid retry number; else 0. */
    uint32_t retries[PS_PARTS_MAX];
    uint32_t count;
    /* Slots on the other side of a conflict, and their request. */
    struct ps_server_conflict conflict;
    /* Epoch of the placement that it follows, which this server may not have
     * heard of yet; 0: none. */
    uint32_t epoch;
    /* Error that has a text of its own. If the payload found no memory, it also
     * replaces PS_E_DISCARDED. 0: none. */
    int text_rc;
    char text[PS_TEXT_MAX / 2];
};
void ps_server_refusal_init(struct ps_server_refusal *r);
/* As ps_server_refusal_init(), for parts of a message, whose payload may have
 * found no memory. */
void ps_server_refusal_begin(struct ps_server_step *st,
                             const struct ps_server_request *q,
                             struct ps_server_refusal *r);
void ps_server_refusal_set_text(struct ps_server_refusal *r, int rc,
                                const char *text);
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
void ps_server_refuse(struct ps_server_step *st,
                      const struct ps_server_request *q, int rc);
