/* SPDX-License-Identifier: Apache-2.0 */
/* Records in state memory, of any bytes but with right sums: buffers that are
 * adopted lie in the memory and share no byte, and all of it is free again when
 * they are released. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "core/part/records.h"
#include "fuzz.h"
#include "proto/ps_fixed.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MEMORY_BYTES ((size_t)1 << 20)
#define PLACE        PS_FIXED_STATE_RECORD_BYTES
#define RECORDS_MAX  32u
#define BUFS_MAX     (RECORDS_MAX * PS_RECORD_RANGES)

static uint8_t *memory;

static void release(void *ctx, uint64_t offset, uint64_t bytes)
{
    (void)ctx;
    assert(offset <= MEMORY_BYTES && bytes <= MEMORY_BYTES - offset);
    memset(memory + offset, 0, bytes);
}

static struct ps_records *open_memory(const char *expected)
{
    struct ps_str why = PS_STR_ROOM(64);
    struct ps_records *r = ps_records_open(
        &(struct ps_records_options){.memory = {.base = memory,
                                                .size = MEMORY_BYTES,
                                                .release = release},
                                     .name = "s0",
                                     .cluster = "test"},
        &why);

    assert(r != NULL && strcmp(why.data, expected) == 0);
    return r;
}

/* Puts the records where their sequence numbers say. */
static uint32_t put_records(const uint8_t *data, size_t size)
{
    uint32_t count = 0;

    for (; count < RECORDS_MAX && size >= PLACE; size -= PLACE, data += PLACE) {
        const unsigned parity =
            data[offsetof(struct ps_fixed_state_record, sequence)] & 1;
        uint8_t *to = memory + PS_FIXED_STATE_HEADER_BYTES +
                      (2 * (size_t)(count / 2) + parity) * PLACE;

        memcpy(to, data, PLACE);

        const uint64_t sum = XXH3_64bits(to + sizeof(sum), PLACE - sizeof(sum));

        memcpy(to, &sum, sizeof(sum));
        count++;
    }
    memcpy(memory + offsetof(struct ps_fixed_state_header, record_count),
           &(uint32_t){(count + 1) / 2}, sizeof(uint32_t));
    return count;
}

/* Adopts all buffers of all jobs; returns their number. */
static uint32_t adopt_all(struct ps_records *r, struct ps_pool *pool,
                          struct ps_buf *bufs[BUFS_MAX])
{
    const struct ps_record *rec;
    struct ps_record_place place;
    uint32_t count = 0;
    uint64_t gen;

    while ((gen = ps_records_untaken_gen(r, 0)) != 0) {
        while ((rec = ps_records_take(r, gen, &place)) != NULL) {
            assert(rec->gen == gen);
            for (unsigned i = 0; i < PS_RECORD_RANGES; i++) {
                if (rec->ranges[i].bytes != 0) {
                    bufs[count] = ps_records_adopt(r, &rec->ranges[i], pool,
                                                   NULL);
                    assert(bufs[count]->size == rec->ranges[i].bytes);
                    memset(bufs[count]->data, (int)count % 251,
                           bufs[count]->size);
                    count++;
                }
            }
            ps_records_remove(r, &place);
        }
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ps_buf *bufs[BUFS_MAX];
    struct ps_records *r;
    struct ps_pool *pool;
    uint32_t count;

    if (memory == NULL) {
        memory = aligned_alloc(4096, MEMORY_BYTES);
        assert(memory != NULL);
    }
    memset(memory, 0, MEMORY_BYTES);
    ps_records_free(open_memory(""));
    (void)put_records(data, size);
    r = open_memory("");
    pool = ps_pool_new(
        &(struct ps_pool_options){.source = ps_records_source(r)});
    count = adopt_all(r, pool, bufs);
    for (uint32_t i = 0; i < count; i++) {
        for (size_t k = 0; k < bufs[i]->size; k++) {
            assert(bufs[i]->data[k] == i % 251);
        }
        ps_buf_unref(bufs[i]);
    }
    ps_pool_free(pool);
    assert(ps_records_bytes(r) == 0);
    ps_records_free(r);
    r = open_memory("");
    assert(ps_records_found(r) == 0 && ps_records_bytes(r) == 0);
    ps_records_free(r);
    return 0;
}
