/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in the memory of a GPU, in the order of a stream; part of psclient.h. */
#ifndef PSCLIENT_STREAM_H
#define PSCLIENT_STREAM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

struct psc_client;

/* Asks the driver for the device of a pointer. */
#define PSC_DEVICE_OF_POINTER (-1)

/* The operation ends only when `out` is written. Without it the copy to `out`
 * may be under way: work that the program adds to the stream after the end
 * waits for the copy, other work does not. */
#define PSC_DEVICE_COMPLETE   1u

/* Where all arrays of an operation lie: the member `device` of its options; with
 * src_count, as many for its sources, and `out` is where the first is. The
 * library opens CUDA's driver when a program first gives one, and uses the
 * primary context of the device.
 *
 * The arrays are as the work that is in the stream now leaves them: they are
 * read and written after it. `src` must not change until the operation ends; an
 * operation that has no handle ends before a later pull of its key does. The
 * stream must exist until the operation ends, and goes on meanwhile.
 *
 * An agent with `compute.device` reads and writes memory of the driver's
 * cuMemAlloc() in place, after its first use, and that of psc_alloc_device(). It
 * may write `out` until the operation ends, even if psc_op_free() has freed the
 * handle. */
struct psc_device {
    uint32_t size;   /* sizeof(struct psc_device) */
    int32_t ordinal; /* Number of CUDA in this process, or
                        PSC_DEVICE_OF_POINTER. */
    void *stream;    /* CUstream or cudaStream_t; NULL: the default stream. */
    uint32_t flags;  /* PSC_DEVICE_* */
    uint32_t reserved;
};

/* A stream of the client on the device, for programs that pass the end of their
 * work to a stream, as __dlpack__() of Python does. It has no other work. It is
 * destroyed with the client. */
int psc_device_stream(struct psc_client *c, int32_t ordinal, void **ret_stream);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
