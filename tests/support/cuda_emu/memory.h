/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices, and pinned memory of the host.
 *
 * A backing is a memfd, so that another process can map it: a header with the
 * list of accesses, and the bytes. This process has the bytes at two
 * addresses. One is that of the device pointer, without any permission except
 * while a kernel runs that uses it; so host code that uses a device pointer
 * faults. The other, `bytes` of a range, is the driver's own.
 *
 * A range is what a pointer is looked up in: a device address with a backing,
 * or pinned memory of the host. Addresses of freed ranges are not used again
 * until the whole reserve has been used once. */
#pragma once

#include "emu.h"

struct emu_backing {
    struct emu_backing *next;
    int fd;
    unsigned physical; /* Device. */
    size_t size;
    unsigned refs; /* Handle, and ranges. */
    bool imported;
    bool shared;      /* Other processes can have it. */
    bool exportable;  /* As a descriptor. */
    unsigned handles; /* Of cuMemCreate() and its like. */
    char *bytes;
    struct emu_shadow *shadow; /* In the header. */
};

enum emu_range_kind {
    EMU_RANGE_ALLOCATED, /* cuMemAlloc() */
    EMU_RANGE_MAPPED,    /* cuMemMap() */
    EMU_RANGE_IPC,       /* cuIpcOpenMemHandle() */
    EMU_RANGE_PINNED,    /* cuMemHostAlloc() */
    EMU_RANGE_REGISTERED /* cuMemHostRegister() */
};

struct emu_range {
    enum emu_range_kind kind;
    CUdeviceptr base;
    size_t size;
    uint64_t id;                 /* CU_POINTER_ATTRIBUTE_BUFFER_ID */
    struct emu_backing *backing; /* NULL: memory of the host. */
    size_t offset;               /* In the backing, or 0. */
    char *bytes;
    struct emu_shadow *shadow;
    struct emu_context *context;
    uint32_t readers; /* Bit for each device that may read. */
    uint32_t writers;
    unsigned queued; /* Operations that use it and have not ended. */
    unsigned open;   /* Kernels that run on it. */
};

static inline bool emu_range_is_device(const struct emu_range *r)
{
    return r->backing != NULL;
}

/* backing.c */

/* Makes memory of a device. CUDA_ERROR_OUT_OF_MEMORY: over the device's size,
 * or injected. The caller has one reference. */
CUresult emu_backing_new(CUdevice device, size_t size,
                         struct emu_backing **ret_backing);
/* Takes a descriptor that another process has made; keeps a duplicate. */
CUresult emu_backing_import(int fd, struct emu_backing **ret_backing);
/* From now on other processes can have it. */
void emu_backing_share(struct emu_backing *b);
/* Offset in the descriptor of the first byte of the memory. */
size_t emu_backing_start(void);
void emu_backing_unref(struct emu_backing *b);
/* Tells all memory that other processes can have about the host's clock. */
void emu_backing_observe(const struct emu_clock *host);
/* This process's number of the device that has it; -1: not visible. */
CUdevice emu_backing_device(const struct emu_backing *b);
/* Finds a backing by the address of the struct, as a handle has it. */
struct emu_backing *emu_backing_of(uint64_t handle);
/* Finds a backing that has been imported by its inode. */
struct emu_backing *emu_backing_same_file(int fd);

/* range.c */

/* Takes addresses from the reserve; 0: none is left. */
CUdeviceptr emu_address_take(size_t size, size_t alignment);
void emu_address_give(CUdeviceptr base);
/* True if [base, base + size) has been taken by one call and is unused. */
bool emu_address_is_free(CUdeviceptr base, size_t size);
bool emu_address_is_device(uint64_t address);
void emu_address_limits(uint64_t *ret_begin, uint64_t *ret_end);

/* Adds a range with these members; maps a backing and takes a reference. */
struct emu_range *emu_range_add(const struct emu_range *like);
/* Removes it; aborts if an operation uses it. `call` is for the message. */
void emu_range_remove(struct emu_range *r, const char *call);
/* The range that has the address, or NULL. */
struct emu_range *emu_range_find(uint64_t address);
/* The first range that begins at or after the address, or NULL. */
struct emu_range *emu_range_next(uint64_t address);
/* Gives and takes away access at the device's address; counted. */
void emu_range_open(struct emu_range *r);
void emu_range_close(struct emu_range *r);
/* Removes the ranges of a context that ends. */
void emu_range_remove_all(const struct emu_context *c);

/* fault.c */

/* Names the cause when host code faults on a device pointer. */
void emu_fault_install(void);
