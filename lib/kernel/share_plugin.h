/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that other processes have: a second table of the module that
 * plugin.h describes, which an agent uses. share.h loads it. */
#pragma once

#include <stdint.h>

#define PS_SHARE_ABI        1u
#define PS_SHARE_SYMBOL     "ps_share_plugin"

/* Bytes of the driver's identity of a device, and of its handles for other
 * processes. */
#define PS_SHARE_UUID       16u
#define PS_SHARE_HANDLE     64u
/* Text of a reason, with its end. */
#define PS_SHARE_WHY_MAX    256u
/* Devices of a process, at most. */
#define PS_SHARE_DEVICES    16u
/* Sources of a fold, at most. */
#define PS_SHARE_SOURCES    64u
/* Places of a delivery, at most. */
#define PS_SHARE_PLACES_MAX 64u

/* Memory of another process. */
struct ps_share_source {
    const uint8_t *uuid; /* Identity of the device. */
    /* IPC handle; NULL: the memory is that of a descriptor. */
    const uint8_t *handle;
    /* Of an allocation of the virtual-memory API; is left open. */
    int32_t fd;
    uint64_t bytes;
};

/* A place in imported memory. */
struct ps_share_place {
    void *memory;
    uint64_t offset;
};

/* dst = the sources, all of them leaves, folded in the tree of kernel.h. */
struct ps_share_fold {
    uint32_t dtype; /* enum ps_dtype */
    uint32_t fold;  /* enum ps_fold */
    uint32_t src_count;
    uint32_t turn; /* The device of source `turn` modulo src_count computes. */
    uint64_t count;
    uint64_t divide_by;
    const struct ps_share_place *src;
    void *dst; /* Memory of the host. */
};

struct ps_share_stats {
    uint64_t to_host; /* Bytes that were copied. */
    uint64_t to_device;
    uint64_t between; /* Of them, within a device or from one to another. */
    uint64_t folded;  /* Bytes of sources that a device has read. */
};

/* Results are 0 or negative PS_E_*; `why`, of PS_SHARE_WHY_MAX bytes, gets a
 * text. Calls may be made by any thread, several at a time; they return when
 * what they do is done. */
struct ps_share_api {
    uint32_t abi;  /* PS_SHARE_ABI */
    uint32_t size; /* Of this struct. */
    /* Opens all devices. */
    int32_t (*open)(void **ret_share, char *why);
    void (*close)(void *share);
    void (*describe)(void *share, char *text, uint64_t cap);
    int32_t (*import)(void *share, const struct ps_share_source *from,
                      void **ret_memory, char *why);
    void (*release)(void *share, void *memory);
    /* Its address, by which memories differ. */
    uint64_t (*address)(const void *memory);
    int32_t (*import_event)(void *share, const uint8_t *uuid,
                            const uint8_t *handle, void **ret_event, char *why);
    void (*release_event)(void *share, void *event);
    /* 1: the work before its last record has ended, 0: it has not. */
    int32_t (*is_over)(void *share, void *event);
    int32_t (*fold)(void *share, const struct ps_share_fold *fold, char *why);
    /* Copies to the host. */
    int32_t (*fetch)(void *share, const struct ps_share_place *from, void *to,
                     uint64_t bytes, char *why);
    /* Copies from the host: once to each device, and from there to the other
     * places on it. */
    int32_t (*deliver)(void *share, const void *from, uint64_t bytes,
                       const struct ps_share_place *to, uint32_t count,
                       char *why);
    /* Memory of the host that devices read and write by themselves. It is a
     * matter of speed alone. */
    int32_t (*pin)(void *share, void *data, uint64_t bytes);
    void (*unpin)(void *share, void *data);
    void (*stats)(void *share, struct ps_share_stats *ret_stats);
};
