/* SPDX-License-Identifier: Apache-2.0 */
/* The part of CUDA's driver API that copies use, loaded at run time: nothing is
 * linked, and a program that uses no GPU loads nothing. Types and numbers are
 * those of cuda.h, which do not change. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

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

/* Loads and initialises the driver; on failure `why` has the reason. The library
 * stays loaded: it does not support being unloaded. */
PS_MUST_USE int gpu_driver_load(struct gpu_driver *d, char *why,
                                size_t why_cap);
