/* SPDX-License-Identifier: Apache-2.0 */
/* The scan protects msgpack-c: bytes that pass it are exactly one value for the
 * library, in memory bounded by the limits. */
#include <assert.h>

#include <msgpack.h>

#include "fuzz.h"
#include "proto/scan.h"

#define NODES_MAX 1000u

/* Values in the object, with itself. */
static size_t count_nodes(const msgpack_object *o)
{
    size_t count = 1;

    if (o->type == MSGPACK_OBJECT_ARRAY) {
        for (uint32_t i = 0; i < o->via.array.size; i++) {
            count += count_nodes(&o->via.array.ptr[i]);
        }
    } else if (o->type == MSGPACK_OBJECT_MAP) {
        for (uint32_t i = 0; i < o->via.map.size; i++) {
            count += count_nodes(&o->via.map.ptr[i].key);
            count += count_nodes(&o->via.map.ptr[i].val);
        }
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct ps_scan_limits limits = {.depth_max = 4,
                                          .nodes_max = NODES_MAX};
    int rc = ps_scan(data, size, &limits);
    msgpack_unpacked whole;
    size_t offset = 0;

    if (rc != 0) {
        assert(rc == PS_E_PROTO || rc == PS_E_TOOBIG);
        return 0;
    }
    msgpack_unpacked_init(&whole);
    assert(msgpack_unpack_next(&whole, (const char *)data, size, &offset) ==
           MSGPACK_UNPACK_SUCCESS);
    assert(offset == size);
    assert(count_nodes(&whole.data) <= NODES_MAX);
    msgpack_unpacked_destroy(&whole);
    return 0;
}
