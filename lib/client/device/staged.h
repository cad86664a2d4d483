/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays of a GPU by way of the host: sources are copied to blocks of shared
 * memory, and results out of the agent's memory, while the streams of the
 * program go on. Works with every agent. Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "client/device/gpu.h"

struct psc_client;
struct psc_device;
struct psc_op;

/* Arrays of an operation or a collective on a GPU. */
struct staged {
    struct gpu *gpu;
    void *stream;       /* Of the program. */
    ps_cu_event behind; /* The work in it at the start; NULL: was waited for. */
    bool is_complete;   /* PSC_DEVICE_COMPLETE */
};

/* Notes the place in the program's stream. `array`: one of them. Errors here and
 * below leave their text in gpu_why(). */
PS_MUST_USE int staged_open(struct psc_client *c,
                            const struct psc_device *where, const void *array,
                            struct staged *ret);
void staged_close(struct staged *s);

/* Copies arrays out of the GPU, behind the program's work, in one transfer. */
PS_MUST_USE int staged_fetch(struct staged *s, struct ps_shm_block *to,
                             const struct gpu_copy *copies, size_t count,
                             struct gpu_transfer *t);
/* Enqueues copies to the GPU, behind the program's work, but no end of them. */
PS_MUST_USE int staged_write_part(struct staged *s,
                                  const struct gpu_copy *copies, size_t count);
/* Copies the result of `op`, or its rest, to the GPU. `block`, which may be NULL,
 * is the memory that it is copied from; it is released after the copy. The next
 * round of the key waits until then. As op_device_ops.copy_result. */
PS_MUST_USE int staged_write(struct staged *s, struct psc_op *op,
                             const struct gpu_copy *copies, size_t count,
                             struct ps_shm_block *block);

/* Attaches the arrays of an operation on a key: `srcs`, which is NULL for one
 * without a source, and `out` of its result. On failure sets the detail. */
PS_MUST_USE int staged_attach(struct psc_op *op, const struct psc_device *where,
                              const void *const *srcs, uint32_t count);
