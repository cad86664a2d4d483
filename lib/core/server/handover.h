/* SPDX-License-Identifier: Apache-2.0 */
/* Begin and end of moves. */
#pragma once

#include "core/server/job.h"

/* Messages of the scheduler to both servers of a move. */
void ps_server_on_move(struct ps_server_step *st, const struct ps_msg_move *m);
void ps_server_on_move_end(struct ps_server_step *st,
                           const struct ps_msg_move_end *m);
