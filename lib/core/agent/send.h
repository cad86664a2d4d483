/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions from the queue to the frame. */
#pragma once

#include <stdint.h>

struct ps_agent_computation;
struct ps_agent_part;
struct ps_agent_send_queue;
struct ps_agent_step;
struct ps_slice;

/* Sends a partition: alone, or in the server's batch if it is small. `slice`
 * NULL: an empty part. `rows`: rows in the slice of a rows key. */
void ps_agent_send_dispatch(struct ps_agent_step *st,
                            struct ps_agent_send_queue *f,
                            struct ps_agent_part *p,
                            const struct ps_slice *slice, uint32_t rows);
/* Fails the round or async push of a partition that cannot be computed or sent.
 * The partition becomes idle, so that it is not sent again. */
void ps_agent_send_fail_part(struct ps_agent_step *st, struct ps_agent_part *p,
                             int error, const char *what);
/* Dispatches the result of a computation. `error`: 0 or a PS_E_*. */
void ps_agent_send_on_computed(struct ps_agent_step *st,
                               struct ps_agent_computation *run, int error);
/* Starts the partitions of the servers with work that may leave now. */
void ps_agent_send_pump(struct ps_agent_step *st);
