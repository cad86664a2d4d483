/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of a process that is killed are in the memory in the order of the
 * program, so a record is valid as soon as its sequence number is stored, behind
 * all else. Its sum tells a record that is half written: that has the number of
 * the one before it at this place.
 *
 * Free ranges are in order of offset, so that neighbours merge. Buffers of a
 * former process may share pages; these are one block, which becomes free with
 * the last of its buffers. */
#include "core/part/records.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/num.h"
#include "proto/ps_fixed.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define PAGE         4096u
/* Room for records: their part of the memory, at most. */
#define RECORD_SHARE 16u
#define PLACE_BYTES  PS_FIXED_STATE_RECORD_BYTES
#define RANGE_BYTES  PS_FIXED_STATE_RANGE_BYTES
#define SUM_BYTES    8u

struct free_range {
    struct ps_list_node node;
    uint64_t offset;
    uint64_t bytes;
};

/* Pages with buffers of a former process. */
struct block {
    uint64_t offset;
    uint64_t bytes;
    uint32_t buffers; /* 0: they are free, or the pool's. */
};

struct found {
    struct ps_record record;
    struct ps_record_place place;
    bool is_taken;
};

struct ps_records {
    struct ps_state_memory memory;
    uint32_t arena;
    uint64_t ranges_at;
    uint32_t record_max;
    uint32_t record_count;
    bool is_frozen;
    uint32_t *free_numbers; /* A stack. */
    uint32_t free_count;
    struct ps_list free;
    uint64_t free_bytes;
    struct block *blocks; /* In order of offset. */
    uint32_t block_count;
    struct found *found; /* In order of generation, jobs first. */
    uint32_t found_count;
    uint32_t next_found; /* First of the last job that was asked for. */
};

_Static_assert(sizeof(((struct ps_fixed_state_record *)NULL)->ranges) ==
                   PS_RECORD_RANGES * RANGE_BYTES,
               "messages.toml has a range for each buffer");
_Static_assert(sizeof(struct ps_fixed_state_range) ==
                   sizeof(struct ps_record_range),
               "a range is its bytes");
_Static_assert(sizeof(struct ps_rec_part_clock) == 24,
               "clocks are their bytes");

static void note_store(const struct ps_records *r)
{
    if (r->memory.stored != NULL) {
        r->memory.stored(r->memory.ctx);
    }
}

static uint8_t *place_at(const struct ps_records *r, uint32_t number,
                         uint64_t sequence)
{
    return r->memory.base + PS_FIXED_STATE_HEADER_BYTES +
           (2 * (uint64_t)(number - 1) + (sequence & 1)) * PLACE_BYTES;
}

/* ------------------------------------------------------------------- ranges */

static struct free_range *add_free(struct ps_list_node *before, uint64_t offset,
                                   uint64_t bytes)
{
    struct free_range *f = ps_calloc(1, sizeof(*f));

    f->offset = offset;
    f->bytes = bytes;
    ps_list_insert(before, &f->node);
    return f;
}

static void drop_free(struct free_range *f)
{
    ps_list_remove(&f->node);
    ps_free(f);
}

/* Returns whole pages, whose bytes are of no use. */
static void put_pages(struct ps_records *r, uint64_t offset, uint64_t bytes)
{
    struct free_range *before = NULL;
    struct free_range *behind = NULL;

    if (r->is_frozen) {
        return;
    }
    r->memory.release(r->memory.ctx, offset, bytes);
    r->free_bytes += bytes;
    PS_LIST_EACH_OF(struct free_range, f, node, &r->free)
    {
        if (f->offset > offset) {
            behind = f;
            break;
        }
        before = f;
    }
    if (before != NULL && before->offset + before->bytes == offset) {
        before->bytes += bytes;
    } else {
        before = add_free(behind != NULL ? &behind->node : &r->free.head,
                          offset, bytes);
    }
    if (behind != NULL && before->offset + before->bytes == behind->offset) {
        before->bytes += behind->bytes;
        drop_free(behind);
    }
}

/* The block in use that has the byte; NULL: none. */
static struct block *find_block(const struct ps_records *r, uint64_t offset)
{
    uint32_t low = 0;
    uint32_t high = r->block_count;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;

        if (r->blocks[mid].offset + r->blocks[mid].bytes <= offset) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < r->block_count && r->blocks[low].offset <= offset &&
                   r->blocks[low].buffers > 0
               ? &r->blocks[low]
               : NULL;
}

static int get_range(void *ctx, size_t size, void **ret_data, uint32_t *ret_tag,
                     uint64_t *ret_offset)
{
    struct ps_records *r = ctx;
    const uint64_t bytes = ps_round_up(size, PAGE);

    PS_LIST_EACH_OF(struct free_range, f, node, &r->free)
    {
        if (f->bytes < bytes) {
            continue;
        }
        *ret_data = r->memory.base + f->offset;
        *ret_tag = r->arena;
        *ret_offset = f->offset;
        r->free_bytes -= bytes;
        f->offset += bytes;
        f->bytes -= bytes;
        if (f->bytes == 0) {
            drop_free(f);
        }
        return 0; /* The list was modified; stop the walk. */
    }
    return PS_E_NOMEM;
}

static void put_range(void *ctx, void *data, size_t size, uint32_t tag)
{
    struct ps_records *r = ctx;
    const uint64_t offset = (uint64_t)((uint8_t *)data - r->memory.base);
    struct block *b = find_block(r, offset);

    (void)tag;
    if (b == NULL) {
        put_pages(r, offset, ps_round_up(size, PAGE));
    } else if (--b->buffers == 0) {
        put_pages(r, b->offset, b->bytes);
    }
}

struct ps_pool_source ps_records_source(struct ps_records *r)
{
    return (struct ps_pool_source){
        .get = get_range, .put = put_range, .ctx = r};
}

void ps_records_set_arena(struct ps_records *r, uint32_t arena)
{
    r->arena = arena;
}

uint64_t ps_records_bytes(const struct ps_records *r)
{
    return r->memory.size - r->ranges_at - r->free_bytes;
}

bool ps_records_locate(const struct ps_records *r, const struct ps_slice *s,
                       struct ps_record_range *ret)
{
    const uintptr_t base = (uintptr_t)r->memory.base;
    const uintptr_t at = (uintptr_t)ps_slice_data(s);

    if (at < base + r->ranges_at || at - base > r->memory.size - s->len) {
        return false;
    }
    *ret = (struct ps_record_range){.offset = at - base, .bytes = s->len};
    return true;
}

/* ------------------------------------------------------- records that we write */

/* The bytes of the record, with its sum. */
static void encode(const struct ps_record *rec, uint64_t sequence,
                   uint8_t out[PLACE_BYTES])
{
    const struct ps_rec_part_image *im = &rec->image;
    struct ps_fixed_state_record f = {
        .gen = rec->gen,
        .version = im->version,
        .step_offset = im->step_offset,
        .name_hash = im->name_hash,
        .first_elem = im->first_elem,
        .accumulated_rounds = im->accumulated_rounds,
        .accumulated_weight = im->accumulated_weight,
        .key = rec->key,
        .index = rec->index,
        .retry = im->retry,
        .count = im->count,
        .slots = rec->slots,
        .place = rec->place,
        .all_skipped = im->all_skipped,
        .has_dtype = im->has_dtype,
        .dtype = im->dtype,
        .codec = im->codec,
        .accumulated_reduce = im->accumulated_reduce,
        .norm_round = im->norm_round,
        .norm_stages = im->norm_stages,
        .norm_nonfinite_count = im->norm_nonfinite_count,
        .norm_square_sum = im->norm_square_sum,
        .norm_weight_square_sum = im->norm_weight_square_sum,
        .norm_global_square_sum = im->norm_global_square_sum,
        .norm_number = im->norm_number,
        .norm_direction_nonfinite_count = im->norm_direction_nonfinite_count,
        .norm_direction_square_sum = im->norm_direction_square_sum,
        .norm_direction_weight_square_sum =
            im->norm_direction_weight_square_sum,
        .sequence = sequence,
    };

    memcpy(f.ranges, rec->ranges, sizeof(f.ranges));
    ps_fixed_put_state_record(out, &f);
    f.sum = XXH3_64bits(out + SUM_BYTES, PLACE_BYTES - SUM_BYTES);
    memcpy(out, &f.sum, SUM_BYTES);
}

/* A number for one more partition; 0: there is no room. */
static uint32_t take_number(struct ps_records *r)
{
    if (r->free_count > 0) {
        return r->free_numbers[--r->free_count];
    }
    if (r->record_count == r->record_max) {
        return 0;
    }
    r->record_count++;
    __atomic_store_n((uint32_t *)(void *)(r->memory.base +
                                          offsetof(struct ps_fixed_state_header,
                                                   record_count)),
                     r->record_count, __ATOMIC_RELEASE);
    return r->record_count;
}

static void free_number(struct ps_records *r, uint32_t number)
{
    if ((r->free_count & (r->free_count + 1)) == 0) {
        r->free_numbers = ps_realloc(r->free_numbers,
                                     (2 * (size_t)r->free_count + 2) *
                                         sizeof(*r->free_numbers));
    }
    r->free_numbers[r->free_count++] = number;
}

static void store_sequence(struct ps_records *r, uint8_t *place,
                           uint64_t sequence)
{
    __atomic_store_n(
        (uint64_t *)(void *)(place +
                             offsetof(struct ps_fixed_state_record, sequence)),
        sequence, __ATOMIC_RELEASE);
    note_store(r);
}

bool ps_records_write(struct ps_records *r, struct ps_record_place *place,
                      const struct ps_record *rec)
{
    const uint64_t sequence = place->sequence + 1;
    const size_t last = offsetof(struct ps_fixed_state_record, sequence);
    uint8_t bytes[PLACE_BYTES];

    if (place->number == 0) {
        place->number = take_number(r);
        if (place->number == 0) {
            return false;
        }
    }
    uint8_t *to = place_at(r, place->number, sequence);

    encode(rec, sequence, bytes);
    for (size_t i = 0; i < last; i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, bytes + i, sizeof(word));
        __atomic_store_n((uint64_t *)(void *)(to + i), word, __ATOMIC_RELAXED);
        note_store(r);
    }
    store_sequence(r, to, sequence);
    place->sequence = sequence;
    return true;
}

void ps_records_remove(struct ps_records *r, struct ps_record_place *place)
{
    if (place->number == 0) {
        return;
    }
    /* The older one first, which must not count again. */
    store_sequence(r, place_at(r, place->number, place->sequence + 1), 0);
    store_sequence(r, place_at(r, place->number, place->sequence), 0);
    free_number(r, place->number);
    *place = (struct ps_record_place){0};
}

/* ------------------------------------------- records of a former process */

/* The record at a place. False: there is none, or it is half written. */
static bool decode(const struct ps_records *r, uint32_t number, unsigned parity,
                   struct ps_record *ret, uint64_t *ret_sequence)
{
    uint8_t bytes[PLACE_BYTES];
    struct ps_fixed_state_record f;

    memcpy(bytes, place_at(r, number, parity), sizeof(bytes));
    if (!ps_fixed_get_state_record(bytes, &f) || (f.sequence & 1) != parity ||
        f.sum != XXH3_64bits(bytes + SUM_BYTES, PLACE_BYTES - SUM_BYTES)) {
        return false;
    }
    *ret = (struct ps_record){
        .gen = f.gen,
        .key = f.key,
        .index = f.index,
        .image = {.version = f.version,
                  .step_offset = f.step_offset,
                  .retry = f.retry,
                  .all_skipped = f.all_skipped,
                  .has_dtype = f.has_dtype,
                  .dtype = f.dtype,
                  .count = f.count,
                  .name_hash = f.name_hash,
                  .first_elem = f.first_elem,
                  .codec = f.codec,
                  .accumulated_rounds = f.accumulated_rounds,
                  .accumulated_weight = f.accumulated_weight,
                  .accumulated_reduce = f.accumulated_reduce,
                  .norm_round = f.norm_round,
                  .norm_stages = f.norm_stages,
                  .norm_nonfinite_count = f.norm_nonfinite_count,
                  .norm_square_sum = f.norm_square_sum,
                  .norm_weight_square_sum = f.norm_weight_square_sum,
                  .norm_global_square_sum = f.norm_global_square_sum,
                  .norm_number = f.norm_number,
                  .norm_direction_nonfinite_count =
                      f.norm_direction_nonfinite_count,
                  .norm_direction_square_sum = f.norm_direction_square_sum,
                  .norm_direction_weight_square_sum =
                      f.norm_direction_weight_square_sum},
        .slots = f.slots,
        .place = f.place,
    };
    memcpy(ret->ranges, f.ranges, sizeof(ret->ranges));
    *ret_sequence = f.sequence;
    return true;
}

static bool is_job(const struct ps_record *rec)
{
    return rec->key == PS_RECORD_JOB && rec->index == PS_RECORD_JOB;
}

/* True if the buffers lie in the memory and have the bytes of the image. */
static bool has_valid_ranges(const struct ps_records *r,
                             const struct ps_record *rec)
{
    uint64_t lens[PS_PART_BUFFERS];
    const uint64_t clocks = rec->ranges[PS_RECORD_CLOCKS].bytes;
    uint64_t all = 0;

    for (unsigned i = 0; i < PS_RECORD_RANGES; i++) {
        const struct ps_record_range *at = &rec->ranges[i];
        const uint64_t unit = i < PS_PART_BUFFER_STATE_0
                                  ? ps_dtype_size(rec->image.dtype)
                                  : sizeof(uint64_t);

        all |= at->bytes;
        if (at->bytes != 0 &&
            (at->offset < r->ranges_at || at->offset > r->memory.size ||
             at->bytes > r->memory.size - at->offset || unit == 0 ||
             at->offset % unit != 0)) {
            return false;
        }
        if (i < PS_PART_BUFFERS) {
            lens[i] = at->bytes;
        }
    }
    return is_job(rec)
               ? all == 0
               : rec->slots <= PS_SLOTS_MAX &&
                     clocks == rec->slots * sizeof(struct ps_rec_part_clock) &&
                     ps_image_is_valid(
                         &(struct ps_image){.records = &rec->image,
                                            .lens = lens},
                         rec->slots);
}

/* Finds the newest record of each partition. Where the newest one names no
 * valid buffers the older one does not count either: its buffers may have been
 * used again. */
static void find_records(struct ps_records *r)
{
    struct ps_record rec[2];
    uint64_t sequence[2];

    r->found = ps_calloc((size_t)r->record_count + 1, sizeof(*r->found));
    for (uint32_t n = 1; n <= r->record_count; n++) {
        const bool is[2] = {decode(r, n, 0, &rec[0], &sequence[0]),
                            decode(r, n, 1, &rec[1], &sequence[1])};
        const unsigned k = is[1] && (!is[0] || sequence[1] > sequence[0]);

        if (is[k] && rec[k].gen != 0 && has_valid_ranges(r, &rec[k])) {
            r->found[r->found_count++] = (struct found){
                .record = rec[k],
                .place = {.number = n, .sequence = sequence[k]}};
        } else {
            ps_records_remove(r, &(struct ps_record_place){.number = n});
        }
    }
}

struct owned_range {
    struct ps_record_range at;
    struct found *owner;
};

static int by_offset(const void *a, const void *b)
{
    const struct owned_range *x = a;
    const struct owned_range *y = b;

    return (x->at.offset > y->at.offset) - (x->at.offset < y->at.offset);
}

/* The ranges of all records that are not void, in order of offset. */
static struct owned_range *sort_ranges(struct ps_records *r, size_t *ret_count)
{
    struct owned_range *all = ps_calloc(
        (size_t)r->found_count * PS_RECORD_RANGES + 1, sizeof(*all));
    size_t count = 0;

    for (uint32_t i = 0; i < r->found_count; i++) {
        for (unsigned k = 0; k < PS_RECORD_RANGES; k++) {
            const struct ps_record_range *at = &r->found[i].record.ranges[k];

            if (at->bytes != 0) {
                all[count++] = (struct owned_range){*at, &r->found[i]};
            }
        }
    }
    qsort(all, count, sizeof(*all), by_offset);
    *ret_count = count;
    return all;
}

/* Removes records that name bytes of which another has some. */
static void remove_overlaps(struct ps_records *r)
{
    size_t count;
    struct owned_range *all = sort_ranges(r, &count);
    uint64_t end = 0;
    uint32_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (all[i].at.offset < end) {
            all[i].owner->record.gen = 0;
        }
        end = ps_max_u64(end, all[i].at.offset + all[i].at.bytes);
    }
    ps_free(all);
    for (uint32_t i = 0; i < r->found_count; i++) {
        if (r->found[i].record.gen != 0) {
            r->found[kept++] = r->found[i];
        } else {
            ps_records_remove(r, &r->found[i].place);
        }
    }
    r->found_count = kept;
}

/* Makes blocks of the pages that records name. */
static void find_blocks(struct ps_records *r)
{
    size_t count;
    struct owned_range *all = sort_ranges(r, &count);

    r->blocks = ps_calloc(count + 1, sizeof(*r->blocks));
    for (size_t i = 0; i < count; i++) {
        const uint64_t from = all[i].at.offset / PAGE * PAGE;
        const uint64_t to = ps_min_u64(
            ps_round_up(all[i].at.offset + all[i].at.bytes, PAGE),
            r->memory.size);
        struct block *last = r->block_count > 0 ? &r->blocks[r->block_count - 1]
                                                : NULL;

        if (last != NULL && from < last->offset + last->bytes) {
            last->bytes = ps_max_u64(to, last->offset + last->bytes) -
                          last->offset;
            last->buffers++;
        } else {
            r->blocks[r->block_count++] = (struct block){
                .offset = from, .bytes = to - from, .buffers = 1};
        }
    }
    ps_free(all);
}

/* All pages that are in no block are free. */
static void free_the_rest(struct ps_records *r)
{
    uint64_t at = r->ranges_at;

    for (uint32_t i = 0; i <= r->block_count; i++) {
        const uint64_t next = i < r->block_count ? r->blocks[i].offset
                                                 : r->memory.size;

        if (next > at) {
            put_pages(r, at, next - at);
        }
        at = i < r->block_count ? next + r->blocks[i].bytes : at;
    }
}

static int by_gen(const void *a, const void *b)
{
    const struct found *x = a;
    const struct found *y = b;

    if (x->record.gen != y->record.gen) {
        return x->record.gen > y->record.gen ? 1 : -1;
    }
    if (is_job(&x->record) != is_job(&y->record)) {
        return is_job(&x->record) ? -1 : 1;
    }
    return (x->place.number > y->place.number) -
           (x->place.number < y->place.number);
}

/* --------------------------------------------------------------- the memory */

static void copy_name(uint8_t out[72], const char *name)
{
    for (size_t i = 0; i < 72; i++) {
        out[i] = (uint8_t)*name;
        name += *name != '\0';
    }
}

/* Why the memory is not the former one of this server; "": nobody has used
 * it. NULL: it is. */
static const char *check_header(const struct ps_records *r,
                                const struct ps_fixed_state_header *ours,
                                struct ps_fixed_state_header *ret)
{
    uint64_t magic;

    memcpy(&magic, r->memory.base, sizeof(magic));
    if (magic == 0) {
        return "";
    }
    if (!ps_fixed_get_state_header(r->memory.base, ret) ||
        ret->layout != ours->layout || ret->record_max != ours->record_max ||
        ret->ranges_at != ours->ranges_at || ret->size != ours->size ||
        ret->record_count > ret->record_max) {
        return "it is of another version of psserver";
    }
    if (memcmp(ret->name, ours->name, sizeof(ours->name)) != 0) {
        return "it is that of a server of another name";
    }
    if (memcmp(ret->cluster, ours->cluster, sizeof(ours->cluster)) != 0) {
        return "it is of another cluster";
    }
    return NULL;
}

/* Makes all of the memory zeros, then writes the header, its magic last. */
static void empty_memory(struct ps_records *r,
                         const struct ps_fixed_state_header *ours)
{
    uint8_t bytes[PS_FIXED_STATE_HEADER_BYTES];
    uint64_t magic;

    memset(r->memory.base, 0, PAGE);
    r->memory.release(r->memory.ctx, 0, r->memory.size);
    ps_fixed_put_state_header(bytes, ours);
    memcpy(&magic, bytes, sizeof(magic));
    memset(bytes, 0, sizeof(magic));
    memcpy(r->memory.base, bytes, sizeof(bytes));
    __atomic_store_n((uint64_t *)(void *)r->memory.base, magic,
                     __ATOMIC_RELEASE);
}

struct ps_records *ps_records_open(const struct ps_records_options *opt,
                                   struct ps_str *why)
{
    const uint64_t size = opt->memory.size / PAGE * PAGE;
    const uint64_t records = ps_min_u64(
        PS_STORE_PARTS_MAX, size / RECORD_SHARE / (2 * PLACE_BYTES));
    struct ps_fixed_state_header ours = {
        .layout = PS_FIXED_STATE_RECORD_LAYOUT,
        .record_max = (uint32_t)records,
        .size = size,
        .ranges_at = ps_round_up(
            PS_FIXED_STATE_HEADER_BYTES + records * 2 * PLACE_BYTES, PAGE),
        .id = opt->id,
    };
    struct ps_fixed_state_header theirs = {0};

    if (records == 0) {
        return NULL;
    }
    struct ps_records *r = ps_calloc(1, sizeof(*r));

    copy_name(ours.name, opt->name);
    copy_name(ours.cluster, opt->cluster);
    r->memory = opt->memory;
    r->memory.size = size;
    r->ranges_at = ours.ranges_at;
    r->record_max = ours.record_max;
    ps_list_init(&r->free);

    const char *text = check_header(r, &ours, &theirs);

    if (text != NULL) {
        ps_str_add(why, text);
        empty_memory(r, &ours);
    } else {
        r->record_count = theirs.record_count;
    }
    find_records(r);
    remove_overlaps(r);
    find_blocks(r);
    free_the_rest(r);
    qsort(r->found, r->found_count, sizeof(*r->found), by_gen);
    return r;
}

void ps_records_free(struct ps_records *r)
{
    if (r == NULL) {
        return;
    }
    PS_LIST_EACH_SAFE(struct free_range, f, node, &r->free)
    {
        drop_free(f);
    }
    ps_free(r->free_numbers);
    ps_free(r->blocks);
    ps_free(r->found);
    ps_free(r);
}

void ps_records_freeze(struct ps_records *r)
{
    r->is_frozen = true;
}

uint32_t ps_records_found(const struct ps_records *r)
{
    return r->found_count;
}

/* ----------------------------------------------------------------- adoption */

const struct ps_record *ps_records_take(struct ps_records *r, uint64_t gen,
                                        struct ps_record_place *ret_place)
{
    uint32_t low = 0;
    uint32_t high = r->found_count;

    if (r->next_found < r->found_count &&
        r->found[r->next_found].record.gen == gen) {
        low = high = r->next_found;
    }
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;

        if (r->found[mid].record.gen < gen) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    for (; low < r->found_count && r->found[low].record.gen == gen; low++) {
        struct found *f = &r->found[low];

        if (!f->is_taken) {
            f->is_taken = true;
            r->next_found = low;
            *ret_place = f->place;
            return &f->record;
        }
    }
    return NULL;
}

struct ps_buf *ps_records_adopt(struct ps_records *r,
                                const struct ps_record_range *range,
                                struct ps_pool *pool,
                                struct ps_pool_share *share)
{
    struct ps_buf *b = ps_pool_adopt(pool, r->memory.base + range->offset,
                                     range->bytes, share);

    b->tag = r->arena;
    b->offset = range->offset;
    return b;
}

void ps_records_release(struct ps_records *r,
                        const struct ps_record_range *range)
{
    if (range->bytes != 0) {
        put_range(r, r->memory.base + range->offset, range->bytes, 0);
    }
}

uint64_t ps_records_untaken_gen(const struct ps_records *r, uint64_t above)
{
    for (uint32_t i = 0; i < r->found_count; i++) {
        if (!r->found[i].is_taken && r->found[i].record.gen > above) {
            return r->found[i].record.gen;
        }
    }
    return 0;
}
