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

struct psc_client;
struct psc_device;
struct ps_shm_block;
struct gpu;
struct gpu_table;

/* The part of CUDA's driver API that copies use, loaded at run time: nothing is
 * linked, and a program that uses no GPU loads nothing. Types and numbers are
 * those of cuda.h, which do not change. */

typedef int gpu_result; /* CUresult; 0: success. */
typedef int gpu_number; /* CUdevice */
typedef struct gpu_context_tag *gpu_context;
typedef struct gpu_stream_tag *gpu_stream;
typedef struct gpu_event_tag *gpu_event;
typedef unsigned long long gpu_address;

#define GPU_OUT_OF_MEMORY      2
#define GPU_NOT_READY          600
#define GPU_ALREADY_REGISTERED 712
/* Flags. */
#define GPU_STREAM_INDEPENDENT 1u /* Of the legacy default stream. */
#define GPU_EVENT_NO_TIME      2u
#define GPU_PIN_PORTABLE       1u
#define GPU_PIN_READ_ONLY      8u
/* Attribute of a pointer: the number of its device, an int. */
#define GPU_POINTER_DEVICE     9
/* The default stream of the calling thread. */
#define GPU_STREAM_OF_THREAD   2u

typedef void (*gpu_host_function)(void *arg);

/* X(member, name, arguments) */
#define GPU_CALLS(X)                                                           \
    X(init, "cuInit", (unsigned flags))                                        \
    X(error_name, "cuGetErrorName", (gpu_result error, const char **ret))      \
    X(device, "cuDeviceGet", (gpu_number * ret, int ordinal))                  \
    X(retain, "cuDevicePrimaryCtxRetain", (gpu_context * ret, gpu_number d))   \
    X(unretain, "cuDevicePrimaryCtxRelease_v2", (gpu_number d))                \
    X(push, "cuCtxPushCurrent_v2", (gpu_context c))                            \
    X(pop, "cuCtxPopCurrent_v2", (gpu_context * ret))                          \
    X(pointer, "cuPointerGetAttribute",                                        \
      (void *ret, int attribute, gpu_address at))                              \
    X(pin, "cuMemHostRegister_v2", (void *at, size_t bytes, unsigned flags))   \
    X(unpin, "cuMemHostUnregister", (void *at))                                \
    X(to_device, "cuMemcpyHtoDAsync_v2",                                       \
      (gpu_address to, const void *from, size_t bytes, gpu_stream s))          \
    X(to_host, "cuMemcpyDtoHAsync_v2",                                         \
      (void *to, gpu_address from, size_t bytes, gpu_stream s))                \
    X(call_host, "cuLaunchHostFunc",                                           \
      (gpu_stream s, gpu_host_function run, void *arg))                        \
    X(stream_new, "cuStreamCreate", (gpu_stream * ret, unsigned flags))        \
    X(stream_free, "cuStreamDestroy_v2", (gpu_stream s))                       \
    X(stream_finish, "cuStreamSynchronize", (gpu_stream s))                    \
    X(stream_wait, "cuStreamWaitEvent",                                        \
      (gpu_stream s, gpu_event e, unsigned flags))                             \
    X(event_new, "cuEventCreate", (gpu_event * ret, unsigned flags))           \
    X(event_free, "cuEventDestroy_v2", (gpu_event e))                          \
    X(event_record, "cuEventRecord", (gpu_event e, gpu_stream s))              \
    X(event_query, "cuEventQuery", (gpu_event e))

struct gpu_driver {
    void *library; /* For further functions of it. */
#define MEMBER(member, name, arguments) gpu_result(*member) arguments;
    GPU_CALLS(MEMBER)
#undef MEMBER
};

enum gpu_direction { GPU_TO_HOST, GPU_TO_DEVICE };

/* One copy, or several, after which `ended` is called. */
struct gpu_transfer {
    struct gpu *gpu;
    enum gpu_direction direction;
    gpu_event event; /* All is copied. */
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
PS_MUST_USE int gpu_check(const struct gpu *g, gpu_result r, const char *call);
const struct gpu_driver *gpu_driver_of(const struct gpu *g);
gpu_number gpu_number_of(const struct gpu *g);

/* A stream without work, for psc_device_stream(). */
PS_MUST_USE int gpu_entrance(struct gpu *g, void **ret_stream);
/* Records an event of the GPU in a stream of the program. */
PS_MUST_USE int gpu_mark(struct gpu *g, void *stream, gpu_event *ret_event);
void gpu_drop_event(struct gpu *g, gpu_event event);

/* Pins the arena of the block, once. */
PS_MUST_USE int gpu_pin_block(struct gpu *g, struct ps_shm_block *b);
/* Pins the agent's memory around `data`, once; false: it cannot be. */
bool gpu_pin_results(struct gpu *g, const void *data);
/* The mapping that begins at `data` goes away. */
void gpu_forget(struct psc_client *c, const void *data);

/* Enqueues copies behind the event; NULL: behind those before. */
PS_MUST_USE int gpu_copy(struct gpu *g, enum gpu_direction direction,
                         gpu_event behind, const struct gpu_copy *copies,
                         size_t count);
/* Begins a transfer of the copies enqueued so far. `ended` is not called within
 * this call. */
PS_MUST_USE int gpu_transfer(struct gpu *g, enum gpu_direction direction,
                             struct gpu_transfer *t);
/* Later work in the program's stream waits for the transfer. */
PS_MUST_USE int gpu_delay(struct gpu *g, void *stream,
                          const struct gpu_transfer *t);

/* True if no transfer is under way. */
bool gpu_is_idle(const struct psc_client *c);
/* Ends transfers that are complete. */
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
