/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of the emulated CUDA driver, and its control by a test in the same
 * process, which finds pskv_emu_control() by dlsym(). Processes of others are
 * controlled by environment variables, see docs/testing.md. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PSKV_EMU_DEVICES_MAX 8u
#define PSKV_EMU_STATS_MAGIC 0x31737461747375ull

/* Counters of one device in one process. Bytes of a copy between two devices
 * count at the destination. */
struct pskv_emu_stats {
    uint64_t host_to_device; /* Bytes. */
    uint64_t device_to_host;
    uint64_t device_to_device;
    uint64_t peer_to_device;
    uint64_t pageable; /* Of them, from or to memory that is not pinned. */
    uint64_t kernel_read;
    uint64_t kernel_written;
    uint64_t copies;
    uint64_t launches;
    uint64_t operations;  /* That have ended. */
    uint64_t memory_used; /* Bytes that this process has allocated. */
    uint64_t memory_peak;
    uint64_t allocations; /* Live objects of this process. */
    uint64_t streams;
    uint64_t events;
    uint64_t imports; /* Opened memory of other processes. */
};

/* The file <PSKV_EMU_STATS>/<pid>.stats, updated while the process runs. */
struct pskv_emu_stats_file {
    uint64_t magic;
    uint64_t device_count;
    struct pskv_emu_stats device[PSKV_EMU_DEVICES_MAX];
};

struct pskv_emu_control {
    size_t size;
    /* Adds failures, in the form of PSKV_EMU_FAIL; counts start now. NULL:
     * removes all. Returns 0, or -1 if the text is not valid. */
    int (*fail)(const char *text);
    /* A copy of the counters of a device. */
    void (*stats)(unsigned device, struct pskv_emu_stats *ret_stats);
    /* Stops a stream before its next operation, and lets it go on. */
    void (*hold)(void *stream);
    void (*resume)(void *stream);
};

typedef const struct pskv_emu_control *pskv_emu_control_fn(void);
