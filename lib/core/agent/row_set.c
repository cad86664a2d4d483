/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of row numbers: row_set.h. */
#include "core/agent/row_set.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/num.h"
#include "base/pool.h"
#include "core/round/rows.h"

#include <string.h>

/* Bytes from which row numbers lie in mapped memory; a failed mapping is an
 * error, not an abort. */
#define MAPPED_MIN (64u * 1024u)

/* Row numbers copied before they are validated, so that a block with invalid
 * numbers is not copied in full. */
#define COPY_CHUNK 1024u

void ps_agent_rows_free(struct ps_agent_rows *r)
{
    if (r->mapped_bytes > 0) {
        ps_pool_unmap(r->numbers, r->mapped_bytes);
    } else {
        ps_free(r->numbers);
    }
    ps_free(r->requests);
    ps_free(r);
}

uint64_t ps_agent_rows_memory(uint32_t count, uint32_t part_count)
{
    return sizeof(struct ps_agent_rows) + count * (uint64_t)sizeof(uint32_t) +
           ps_min_u64(count, part_count) * sizeof(struct ps_agent_row_request);
}

/* Copies and validates the row numbers. Only the copy is validated, because the
 * worker may still write to the block. */
static bool copy_row_numbers(struct ps_agent_rows *r, const uint8_t *from,
                             uint32_t limit)
{
    for (uint32_t at = 0; at < r->count; at += COPY_CHUNK) {
        uint32_t n = (uint32_t)ps_min_u64(r->count - at, COPY_CHUNK);
        uint32_t first = at == 0 ? 0 : at - 1; /* Order across chunks. */

        memcpy(r->numbers + at, from + at * sizeof(*r->numbers),
               n * sizeof(*r->numbers));
        if (!ps_rows_are_valid(r->numbers + first, n + (at - first), limit)) {
            return false;
        }
        if (at > UINT32_MAX - COPY_CHUNK) {
            break;
        }
    }
    return true;
}

int ps_agent_rows_new(const struct ps_slice *block, uint32_t count,
                      uint32_t limit, struct ps_agent_rows **ret_rows)
{
    const size_t bytes = (size_t)count * sizeof(uint32_t);
    struct ps_agent_rows *r = ps_calloc(1, sizeof(*r));

    r->count = count;
    if (bytes < MAPPED_MIN) {
        r->numbers = ps_alloc(bytes + sizeof(*r->numbers));
    } else {
        void *data;

        if (ps_pool_map(bytes, &data) != 0) {
            ps_free(r);
            return PS_E_NOMEM;
        }
        r->numbers = data;
        r->mapped_bytes = bytes;
    }
    if (count > 0 && !copy_row_numbers(r, ps_slice_data(block), limit)) {
        ps_agent_rows_free(r);
        return PS_E_INVAL;
    }
    *ret_rows = r;
    return 0;
}
