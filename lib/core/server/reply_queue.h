/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads of several jobs that take turns on one link. */
#pragma once

#include "core/server/sessions.h"

/* Appends a packet to the queue of the job; takes over one reference. */
void ps_server_reply_queue_push(struct ps_server_reply_turns *t,
                                const struct ps_server_job *job,
                                struct ps_packet *packet);
/* Takes the packet whose turn it is, with its reference; NULL: none waits. */
struct ps_packet *ps_server_reply_queue_pop(struct ps_server_reply_turns *t);
/* Drops the packets of the generation. */
void ps_server_reply_queue_drop(struct ps_server_reply_turns *t, uint64_t gen);
/* Drops all packets, and the memory of the queues. */
void ps_server_reply_queue_drop_all(struct ps_server_reply_turns *t);
