/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs of a client: their streams, memory of the host that their driver has
 * pinned, and copies under way. Two streams of a GPU copy, one in each
 * direction, behind events in the streams of the program. Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"
#include "kernel/cuda/api.h"

struct psc_client;
struct psc_device;
struct ps_shm_block;
struct gpu;
struct gpu_table;

#define GPU_CALLS(X)                                                           \
    PS_CU_COMMON_CALLS(X)                                                      \
    X(pointer, "cuPointerGetAttribute",                                        \
      (void *ret, int attribute, ps_cu_address at))                            \
    X(pin, "cuMemHostRegister_v2", (void *at, size_t bytes, unsigned flags))   \
    X(unpin, "cuMemHostUnregister", (void *at))                                \
    X(call_host, "cuLaunchHostFunc",                                           \
      (ps_cu_stream s, ps_cu_host_function run, void *arg))                    \
    X(stream_wait, "cuStreamWaitEvent",                                        \
      (ps_cu_stream s, ps_cu_event e, unsigned flags))                         \
    X(event_new, "cuEventCreate", (ps_cu_event * ret, unsigned flags))         \
    X(event_free, "cuEventDestroy_v2", (ps_cu_event e))                        \
    X(event_record, "cuEventRecord", (ps_cu_event e, ps_cu_stream s))          \
    X(event_query, "cuEventQuery", (ps_cu_event e))

struct gpu_driver {
    void *library; /* For further functions of it. */
#define MEMBER(member, name, arguments) ps_cu_result(*member) arguments;
    GPU_CALLS(MEMBER)
#undef MEMBER
};

enum gpu_direction { GPU_TO_HOST, GPU_TO_DEVICE };

/* One copy, or several, after which `ended` is called. */
struct gpu_transfer {
    struct gpu *gpu;
    enum gpu_direction direction;
    ps_cu_event event; /* All is copied. */
    /* Removed from the list before. `rc` not 0: the GPU has failed. */
    void (*ended)(struct psc_client *c, struct gpu_transfer *t, int rc);
    struct ps_list_node node;
};

struct gpu_copy {
    void *to;
    const void *from;
    size_t bytes;
};

/* Checks the description of the arrays, of which `array` is one, and opens the
 * driver and the GPU if that was not done. Errors here and below leave their
 * text in gpu_why(). */
PS_MUST_USE int gpu_find(struct psc_client *c, const struct psc_device *where,
                         const void *array, struct gpu **ret_gpu);
const char *gpu_why(const struct psc_client *c);
/* The context of the GPU becomes that of the calling thread, until gpu_leave(). */
PS_MUST_USE int gpu_enter(const struct gpu *g);
void gpu_leave(const struct gpu *g);
/* The error of a result of the driver; `call` is its function. */
PS_MUST_USE int gpu_check(const struct gpu *g, ps_cu_result r,
                          const char *call);
const struct gpu_driver *gpu_driver_of(const struct gpu *g);
ps_cu_device gpu_number_of(const struct gpu *g);

/* A stream without work, for psc_device_stream(). */
PS_MUST_USE int gpu_entrance(struct gpu *g, void **ret_stream);
/* Records an event of the GPU in a stream of the program. */
PS_MUST_USE int gpu_mark(struct gpu *g, void *stream, ps_cu_event *ret_event);
void gpu_drop_event(struct gpu *g, ps_cu_event event);

/* Pins the arena of the block, once. */
PS_MUST_USE int gpu_pin_block(struct gpu *g, struct ps_shm_block *b);
/* Pins the agent's memory around `data`, once; false: it cannot be. */
bool gpu_pin_results(struct gpu *g, const void *data);
/* The mapping that begins at `data` goes away. */
void gpu_forget(struct psc_client *c, const void *data);

/* Enqueues copies behind the event; NULL: behind those before. */
PS_MUST_USE int gpu_copy(struct gpu *g, enum gpu_direction direction,
                         ps_cu_event behind, const struct gpu_copy *copies,
                         size_t count);
/* Begins a transfer of the copies enqueued so far. `ended` is not called within
 * this call. */
PS_MUST_USE int gpu_transfer(struct gpu *g, enum gpu_direction direction,
                             struct gpu_transfer *t);
/* Later work in the program's stream waits for the transfer. */
PS_MUST_USE int gpu_delay(struct gpu *g, void *stream,
                          const struct gpu_transfer *t);

/* Ends transfers that are complete; the client has GPUs. */
void gpu_poll(struct psc_client *c);
/* Waits for all transfers and ends them. */
void gpu_drain(struct psc_client *c);
/* Waits for the copies enqueued so far. */
void gpu_finish(struct gpu *g, enum gpu_direction direction);
/* Ends all transfers, before the client is freed. In a forked child the driver
 * is not called any more. */
void gpu_end_all(struct psc_client *c, bool child);
/* Frees everything; no transfer is under way. */
void gpu_free_all(struct psc_client *c);
