/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that an operation names by an address. */
#pragma once

#include "stream.h"

enum emu_place {
    EMU_PLACE_ANY,
    EMU_PLACE_HOST,
    EMU_PLACE_DEVICE,
};

/* Finds the bytes of an address: all of `size`, or those up to the end of the
 * range that has the first. Aborts if the address is not of this place, is
 * freed, or belongs to nothing. `s` is the stream whose device would access
 * it. */
struct emu_span emu_span_of(const struct emu_stream *s, uint64_t address,
                            size_t size, enum emu_place place,
                            const char *call);
/* True if both have a byte of memory in common. */
bool emu_span_overlaps(const struct emu_span *a, const struct emu_span *b);
