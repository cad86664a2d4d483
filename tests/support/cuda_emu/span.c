/* SPDX-License-Identifier: Apache-2.0 */
#include "span.h"

#include <inttypes.h>

/* Memory that was mapped by cuMemMap() needs cuMemSetAccess() for each device
 * that copies. */
static void check_access(const struct emu_stream *s, const struct emu_range *r,
                         const char *call)
{
    if (r->kind == EMU_RANGE_MAPPED &&
        (r->readers & 1u << s->context->device) == 0) {
        emu_die("%s: device %d has no access to the memory", call,
                (int)s->context->device);
    }
}

struct emu_span emu_span_of(const struct emu_stream *s, uint64_t address,
                            size_t size, enum emu_place place, const char *call)
{
    struct emu_range *r = emu_range_find(address);
    struct emu_range *next;
    size_t left;

    if (emu_address_is_device(address)) {
        if (place == EMU_PLACE_HOST) {
            emu_die("%s: a pointer to memory of the host is one of a device",
                    call);
        }
        if (r == NULL) {
            emu_die("%s: 0x%" PRIx64 " is freed, or was never allocated", call,
                    address);
        }
        check_access(s, r, call);
    } else if (place == EMU_PLACE_DEVICE &&
               (r == NULL || emu_range_is_device(r))) {
        emu_die("%s: 0x%" PRIx64 " is not memory of a device", call, address);
    }
    if (r == NULL) {
        next = emu_range_next(address);
        left = next == NULL || next->base - address > size
                   ? size
                   : (size_t)(next->base - address);
        return (struct emu_span){
            .bytes = (char *)(uintptr_t)address, /* Pageable. */
            .size = left,
        };
    }
    left = (size_t)(r->base + r->size - address);
    return (struct emu_span){
        .range = r,
        .bytes = r->bytes + (address - r->base),
        .offset = r->offset + (size_t)(address - r->base),
        .size = size < left ? size : left,
    };
}

bool emu_span_overlaps(const struct emu_span *a, const struct emu_span *b)
{
    const char *a_base = a->bytes;
    const char *b_base = b->bytes;

    if (a->range != NULL && b->range != NULL && a->range->backing != NULL &&
        a->range->backing == b->range->backing) {
        a_base = a->range->backing->bytes + a->offset;
        b_base = a->range->backing->bytes + b->offset;
    }
    return (uintptr_t)a_base < (uintptr_t)b_base + b->size &&
           (uintptr_t)b_base < (uintptr_t)a_base + a->size;
}
