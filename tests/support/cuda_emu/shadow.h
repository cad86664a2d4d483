/* SPDX-License-Identifier: Apache-2.0 */
/* Accesses to one piece of memory by operations of streams, which tell whether
 * two that conflict are ordered. The memory of the list is shared by the
 * processes that have the memory. A process that ends is no longer considered:
 * its operations have ended, too. */
#pragma once

#include "clock.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Beyond it the oldest are forgotten: a race with them is not found. */
#define EMU_ACCESSES_MAX 512u
#define EMU_NAME_MAX     32u

struct emu_access {
    uint64_t begin; /* Bytes [begin, end) of the memory. */
    uint64_t end;
    struct emu_tick tick;
    int32_t pid;
    uint32_t stream; /* Its number in the process, for messages. */
    bool write;
    /* A host has seen the operation completed, and other processes can know of
     * it by means that the driver does not see. */
    bool observed;
    char op[EMU_NAME_MAX];
};

struct emu_shadow {
    pthread_mutex_t lock; /* Shared and robust. */
    uint32_t count;
    struct emu_access access[EMU_ACCESSES_MAX];
};

/* An operation that accesses memory. */
struct emu_actor {
    const struct emu_clock *clock; /* Operations ordered before. */
    struct emu_tick tick;
    uint32_t stream;
    const char *op;
};

void emu_shadow_init(struct emu_shadow *s);
/* Adds an access. Aborts the process, with a message, if a conflicting one is
 * not ordered before. */
void emu_shadow_add(struct emu_shadow *s, const struct emu_actor *actor,
                    uint64_t begin, uint64_t end, bool write);
/* Marks accesses that the host of `host` has seen completed. */
void emu_shadow_observe(struct emu_shadow *s, const struct emu_clock *host);

/* True if the process runs: neither gone nor waiting for its parent. */
bool emu_process_runs(int32_t pid);
