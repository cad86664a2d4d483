/* SPDX-License-Identifier: Apache-2.0 */
/* Vector clocks with one component for each timeline, sorted by timeline. A
 * timeline is a stream; its number is unique on the machine. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct emu_tick {
    uint64_t timeline;
    uint64_t time;
};

struct emu_clock {
    uint32_t count;
    uint32_t capacity;
    struct emu_tick *ticks;
};

/* Raises each component to that of `ticks`. */
void emu_clock_join(struct emu_clock *c, const struct emu_tick *ticks,
                    uint32_t count);
void emu_clock_raise(struct emu_clock *c, uint64_t timeline, uint64_t time);
/* 0: no operation of that timeline is ordered before. */
uint64_t emu_clock_at(const struct emu_clock *c, uint64_t timeline);
void emu_clock_fini(struct emu_clock *c);
