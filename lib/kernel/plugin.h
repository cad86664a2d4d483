/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic in a module that is loaded at run time: the table that it exports.
 * device.h loads modules and gives them jobs; cuda/ is the one for GPUs. A module
 * and its user may be of different builds: both compare PS_KERNEL_ABI, which grows
 * with each change of this file, of struct ps_job and what it consists of, and of
 * the numbers of their enumerations; and the size of both structs. */
#pragma once

#include "kernel/kernel.h"

#include <stdint.h>

#define PS_KERNEL_ABI     4u
#define PS_KERNEL_SYMBOL  "ps_kernel_plugin"

/* Text of a reason, with its end. */
#define PS_KERNEL_WHY_MAX 256u

/* Lengths that belong to a codec and the elements of a job. */
struct ps_kernel_code {
    uint64_t bytes; /* Of the encoded form. */
    uint64_t kept;  /* Elements that topk and randomk keep. */
};

/* An array that stays in the device's memory, by device_alloc(). It is updated
 * there as the host's would be. */
struct ps_kernel_kept {
    uint64_t address;    /* Of element 0; 0: the array is the host's alone. */
    uint32_t is_current; /* The host's array is not read. */
    uint32_t stays;      /* The host's array is not written. */
};
/* The arrays of enum ps_kept, but for the result, which is in place of the
 * weights. */
#define PS_KERNEL_KEPT 5u

/* Elements [from, to) of a job that has been checked: dense, not
 * PS_JOB_ENCODE_EACH, and whole if it encodes. `from` is a multiple of 16. All
 * addresses are of the host's memory; to the square sums, other threads add,
 * too. */
struct ps_kernel_range {
    const struct ps_job *job; /* Its buffers, `kept`, are not for the module. */
    uint64_t from;
    uint64_t to;
    struct ps_kernel_code code;     /* Of the result, */
    struct ps_kernel_code src_code; /* and of a source. */
    uint32_t states;                /* Of the optimizer. */
    struct ps_kernel_kept kept[PS_KERNEL_KEPT];
};

#define PS_KERNEL_DEVICE_MAX 128u

struct ps_kernel_stats {
    char device[PS_KERNEL_DEVICE_MAX]; /* Name of the device. */
    uint64_t memory_total;             /* Bytes of the device's memory. */
    uint64_t memory_held; /* Bytes of it that this module has allocated. */
    uint64_t bytes_up;    /* Copied to the device, */
    uint64_t bytes_down;  /* and from it. */
};

/* Results are 0 or negative PS_E_*. `why` gets a text of at most `why_cap`
 * bytes with its end. All but open() and close() may be called by any thread,
 * several at a time. */
struct ps_kernel_api {
    uint32_t abi;  /* PS_KERNEL_ABI */
    uint32_t size; /* PS_KERNEL_SIZE */
    /* Finds the driver and the device of that number. */
    int32_t (*open)(uint32_t device, void **ret_kernel, char *why,
                    uint64_t why_cap);
    /* NULL is allowed. */
    void (*close)(void *kernel);
    /* Computes the elements; returns when the results are in the host's memory.
     * On failure, elements below *ret_done have their results, and those from
     * there on are as before; *ret_done is `from` or `to`, or a multiple of
     * 16. PS_E_UNSUPPORTED: not a job for this module. PS_E_NOMEM: too little
     * memory for now. After these two, that holds for arrays that stay, too.
     * Anything else: the device has failed. */
    int32_t (*submit)(void *kernel, const struct ps_kernel_range *range,
                      uint64_t *ret_done, char *why, uint64_t why_cap);
    /* Writes name, memory and libraries of the device, for a log. */
    void (*describe)(void *kernel, char *text, uint64_t cap);
    /* Memory of the device, uninitialized. PS_E_NOMEM, or the device has
     * failed. */
    int32_t (*device_alloc)(void *kernel, uint64_t bytes,
                            uint64_t *ret_address);
    /* No job may use the memory; `bytes` as for device_alloc(). */
    void (*device_free)(void *kernel, uint64_t address, uint64_t bytes);
    /* Copy between the host and memory that no job uses; return when the bytes
     * are there. */
    int32_t (*upload)(void *kernel, uint64_t address, const void *from,
                      uint64_t bytes);
    int32_t (*download)(void *kernel, uint64_t address, void *to,
                        uint64_t bytes);
    void (*stats)(void *kernel, struct ps_kernel_stats *ret);
};

/* Of the table and of a job. */
#define PS_KERNEL_SIZE                                                         \
    ((uint32_t)(sizeof(struct ps_kernel_api) + sizeof(struct ps_job)))
