/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on arrays in the memory of a GPU: a table of functions for each
 * way in which the arrays reach the agent. Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct ps_msg_l_op;
struct psc_op;

struct op_device_ops {
    /* Copies bytes [from, from + bytes) of the result, which are in the memory
     * of the host at `data`, to `out`; the operation stays SENT. On failure the
     * operation fails when it ends. */
    void (*copy_part)(struct psc_op *op, const void *data, size_t from,
                      size_t bytes);
    /* Copies the rest of the result at `data`. 0: the operation may end;
     * PS_E_AGAIN: it is COPYING and is ended when the copy has; any other
     * error: it fails, with the detail of the client as its text. */
    int (*copy_result)(struct psc_op *op, const void *data);
    /* The operation is freed, or ends: no copy of it may be under way
     * afterwards. */
    void (*release)(struct psc_op *op);
    /* Sends the operation; NULL: it is sent as `m`. */
    int (*send)(struct psc_op *op, const struct ps_msg_l_op *m);
};

/* The first member of the state of each way. */
struct op_device {
    const struct op_device_ops *ops;
};
