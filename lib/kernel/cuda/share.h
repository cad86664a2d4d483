/* SPDX-License-Identifier: Apache-2.0 */
/* State of the module's second table (share_plugin.h): all devices, each with
 * the state of module.h, and what the driver is called for beyond that. Private
 * to this folder. */
#pragma once

#include "kernel/cuda/module.h"
#include "kernel/share_plugin.h"

#define PS_CU_SHARE_CALLS(X)                                                   \
    PS_CU_MEMORY_CALLS(X)                                                      \
    X(import, "cuMemImportFromShareableHandle",                                \
      (ps_cu_memory * ret, void *handle, int type))                            \
    X(properties, "cuMemGetAllocationPropertiesFromHandle",                    \
      (struct ps_cu_properties * ret, ps_cu_memory m))                         \
    X(open_memory, "cuIpcOpenMemHandle_v2",                                    \
      (ps_cu_address * ret, struct ps_cu_handle handle, unsigned flags))       \
    X(close_memory, "cuIpcCloseMemHandle", (ps_cu_address at))                 \
    X(range, "cuMemGetAddressRange_v2",                                        \
      (ps_cu_address * ret_base, size_t * ret_bytes, ps_cu_address at))        \
    X(open_event, "cuIpcOpenEventHandle",                                      \
      (ps_cu_event * ret, struct ps_cu_handle handle))                         \
    X(event_free, "cuEventDestroy_v2", (ps_cu_event e))                        \
    X(event_query, "cuEventQuery", (ps_cu_event e))                            \
    X(copy, "cuMemcpyAsync",                                                   \
      (ps_cu_address to, ps_cu_address from, size_t bytes, ps_cu_stream s))    \
    X(pin, "cuMemHostRegister_v2", (void *at, size_t bytes, unsigned flags))   \
    X(unpin, "cuMemHostUnregister", (void *at))

struct ps_cu_share {
#define MEMBER(member, name, arguments) ps_cu_result(*member) arguments;
    PS_CU_SHARE_CALLS(MEMBER)
#undef MEMBER
};

struct ps_cuda_shared_device {
    struct ps_cuda *cuda;
    struct ps_cu_uuid uuid;
};

struct ps_cuda_share {
    struct ps_cu_share cu;
    struct ps_cuda_shared_device devices[PS_SHARE_DEVICES];
    uint32_t count;
    _Atomic(uint64_t) to_host;
    _Atomic(uint64_t) to_device;
    _Atomic(uint64_t) between;
    _Atomic(uint64_t) folded;
};

struct ps_cuda_memory {
    ps_cu_address at;
    uint64_t bytes;
    uint32_t device;  /* Its index. */
    uint32_t readers; /* Bits of the devices that read and write it. */
    bool is_mapped;   /* By its descriptor; else by an IPC handle. */
};

/* Writes the reason and returns the error. */
int ps_cuda_share_fail(const struct ps_cuda_share *s, const char *call,
                       ps_cu_result error, char *why);

/* share_copy.c: fold(), fetch() and deliver() of the table. */
int32_t ps_cuda_share_fold(void *share, const struct ps_share_fold *fold,
                           char *why);
int32_t ps_cuda_share_fetch(void *share, const struct ps_share_place *from,
                            void *to, uint64_t bytes, char *why);
int32_t ps_cuda_share_deliver(void *share, const void *from, uint64_t bytes,
                              const struct ps_share_place *to, uint32_t count,
                              char *why);
