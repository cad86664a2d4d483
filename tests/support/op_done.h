/* SPDX-License-Identifier: Apache-2.0 */
/* Ends of operations for drivers without shared rings. */
#pragma once

#include "core/base/machine.h"

/* Replaces each PS_FX_OP_DONE by a PS_FX_SEND of l_done. */
static inline void op_done_as_msg(struct ps_effects *fx)
{
    for (uint32_t i = 0; i < fx->count; i++) {
        struct ps_fx *f = &fx->items[i];
        const ps_conn_id conn = f->op_done.conn;
        const struct ps_msg m = {.code = PS_MSG_L_DONE,
                                 .l_done = {.op_id = f->op_done.op_id,
                                            .version = f->op_done.version,
                                            .text = ""}};

        if (f->type == PS_FX_OP_DONE) {
            f->type = PS_FX_SEND;
            f->send.conn = conn;
            f->send.seq = 0;
            f->send.ack = 0;
            f->send.packet = ps_packet_new(&m, NULL, 0);
        }
    }
}
