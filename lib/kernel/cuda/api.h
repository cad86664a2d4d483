/* SPDX-License-Identifier: Apache-2.0 */
/* Part of CUDA's driver API that the module for GPUs and the client use, loaded at
 * run time: nothing is linked, nothing of CUDA is needed to build, and a program
 * that uses no GPU loads nothing. Types and numbers are those of cuda.h, which do not
 * change. Each user has a table of the functions that it calls. */
#pragma once

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int ps_cu_result; /* CUresult; 0: success. */
typedef int ps_cu_device;
typedef struct ps_cu_context_tag *ps_cu_context;
typedef struct ps_cu_module_tag *ps_cu_module;
typedef struct ps_cu_function_tag *ps_cu_function;
typedef struct ps_cu_stream_tag *ps_cu_stream;
typedef struct ps_cu_event_tag *ps_cu_event;
typedef unsigned long long ps_cu_address;
typedef unsigned long long ps_cu_memory;
typedef void (*ps_cu_host_function)(void *arg);

#define PS_CU_OUT_OF_MEMORY      2
#define PS_CU_NOT_READY          600
#define PS_CU_ALREADY_REGISTERED 712
#define PS_CU_UNKNOWN            999
/* Attributes of a device. */
#define PS_CU_MULTIPROCESSORS    16
#define PS_CU_CAPABILITY_MAJOR   75
#define PS_CU_CAPABILITY_MINOR   76
/* Attribute of a pointer: the number of its device, an int. */
#define PS_CU_POINTER_DEVICE     9
/* Flags. */
#define PS_CU_HOST_PORTABLE      0x01u
#define PS_CU_HOST_READ_ONLY     0x08u
#define PS_CU_STREAM_INDEPENDENT 0x01u /* Of the legacy default stream. */
#define PS_CU_EVENT_NO_TIME      0x02u
#define PS_CU_EVENT_INTERPROCESS 0x04u
#define PS_CU_LAZY_PEER_ACCESS   0x01u
/* The default stream of the calling thread. */
#define PS_CU_STREAM_OF_THREAD   2u
/* Of memory of the virtual-memory API. */
#define PS_CU_PINNED             1 /* A type of allocations: not pageable. */
#define PS_CU_DESCRIPTOR         1 /* A type of handles of memory. */
#define PS_CU_LOCATION_DEVICE    1
#define PS_CU_READ_WRITE         3

struct ps_cu_location {
    int type;
    int id;
};

struct ps_cu_properties {
    int type;
    int handle_types;
    struct ps_cu_location location;
    void *metadata;
    unsigned char flags[8];
};

struct ps_cu_access {
    struct ps_cu_location location;
    int flags;
};

#define PS_CU_UUID_BYTES   16u
#define PS_CU_HANDLE_BYTES 64u

struct ps_cu_uuid {
    uint8_t bytes[PS_CU_UUID_BYTES];
};

/* For other processes. */
struct ps_cu_handle {
    uint8_t bytes[PS_CU_HANDLE_BYTES];
};

/* X(member, name, arguments) */
#define PS_CU_COMMON_CALLS(X)                                                  \
    X(init, "cuInit", (unsigned flags))                                        \
    X(error_name, "cuGetErrorName", (ps_cu_result error, const char **ret))    \
    X(device, "cuDeviceGet", (ps_cu_device * ret, int number))                 \
    X(retain, "cuDevicePrimaryCtxRetain",                                      \
      (ps_cu_context * ret, ps_cu_device d))                                   \
    X(unretain, "cuDevicePrimaryCtxRelease_v2", (ps_cu_device d))              \
    X(push, "cuCtxPushCurrent_v2", (ps_cu_context c))                          \
    X(pop, "cuCtxPopCurrent_v2", (ps_cu_context * ret))                        \
    X(to_device, "cuMemcpyHtoDAsync_v2",                                       \
      (ps_cu_address to, const void *from, size_t bytes, ps_cu_stream s))      \
    X(to_host, "cuMemcpyDtoHAsync_v2",                                         \
      (void *to, ps_cu_address from, size_t bytes, ps_cu_stream s))            \
    X(stream_new, "cuStreamCreate", (ps_cu_stream * ret, unsigned flags))      \
    X(stream_free, "cuStreamDestroy_v2", (ps_cu_stream s))                     \
    X(wait, "cuStreamSynchronize", (ps_cu_stream s))

/* Of memory that processes share. */
#define PS_CU_MEMORY_CALLS(X)                                                  \
    X(uuid, "cuDeviceGetUuid_v2", (struct ps_cu_uuid * ret, ps_cu_device d))   \
    X(release, "cuMemRelease", (ps_cu_memory m))                               \
    X(reserve, "cuMemAddressReserve",                                          \
      (ps_cu_address * ret, size_t bytes, size_t alignment,                    \
       ps_cu_address near, unsigned long long flags))                          \
    X(unreserve, "cuMemAddressFree", (ps_cu_address at, size_t bytes))         \
    X(map, "cuMemMap",                                                         \
      (ps_cu_address at, size_t bytes, size_t offset, ps_cu_memory m,          \
       unsigned long long flags))                                              \
    X(unmap, "cuMemUnmap", (ps_cu_address at, size_t bytes))                   \
    X(set_access, "cuMemSetAccess",                                            \
      (ps_cu_address at, size_t bytes, const struct ps_cu_access *access,      \
       size_t count))

/* A function of a library, and where its address goes. */
struct ps_cu_symbol {
    const char *name;
    size_t offset; /* Of the member that points to the function. */
};

/* Fills in a table of functions. Returns the name of one that the library lacks;
 * NULL: none. */
static inline const char *ps_cu_find_symbols(void *library, void *table,
                                             const struct ps_cu_symbol *symbols,
                                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);

        if (found == NULL) {
            return symbols[i].name;
        }
        memcpy((char *)table + symbols[i].offset, &found, sizeof(found));
    }
    return NULL;
}
