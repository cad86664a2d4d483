/* SPDX-License-Identifier: Apache-2.0 */
/* Start of operations. Locked. */
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "client/op_state.h"
#include "proto/ps_msg.h"

/* Starts an operation of the job rather than of a key. `op_id` points to the
 * number's field in the message; without a message it is a barrier. */
PS_MUST_USE int op_start_plain(struct psc_client *c, enum op_kind kind,
                               struct ps_msg *m, uint64_t *op_id,
                               const struct psc_op_options *o,
                               struct psc_op **ret_op);
