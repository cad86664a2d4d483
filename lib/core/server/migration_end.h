/* SPDX-License-Identifier: Apache-2.0 */
/* End of a migration, at both servers. */
#pragma once

#include "core/server/session.h"

void ps_server_on_part_end(struct ps_server_step *st,
                           const struct ps_msg_part_end *m);
