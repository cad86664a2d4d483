/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Addresses for device pointers of one process. */
#define RESERVE_SIZE (256ull << 30)
/* Between two ranges, so that overruns meet no neighbour. */
#define GAP          (64ull << 10)

/* Sorted by base; few enough to move. */
static struct emu_range **ranges;
static size_t ranges_count;
static size_t ranges_capacity;

/* Addresses that were taken. */
struct taken {
    struct taken *next;
    CUdeviceptr base;
    size_t size;
};
static struct taken *taken;

static struct {
    uint64_t begin;
    uint64_t end;
    uint64_t at; /* Where the next range is looked for. */
} reserve;

static bool make_reserve(void)
{
    void *begin;

    if (reserve.end != 0) {
        return true;
    }
    /* The call itself: sanitizers would touch shadow memory of all of it. */
    begin = (void *)syscall(SYS_mmap, NULL, RESERVE_SIZE, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin == MAP_FAILED) {
        return false;
    }
    reserve.begin = (uint64_t)(uintptr_t)begin;
    reserve.end = reserve.begin + RESERVE_SIZE;
    reserve.at = reserve.begin;
    return true;
}

/* The taken addresses that [begin, end) touches, or NULL. */
static const struct taken *taken_within(uint64_t begin, uint64_t end)
{
    for (const struct taken *t = taken; t != NULL; t = t->next) {
        if (t->base < end && begin < t->base + t->size) {
            return t;
        }
    }
    return NULL;
}

static uint64_t round_up(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

CUdeviceptr emu_address_take(size_t size, size_t alignment)
{
    struct taken *t;
    uint64_t base;
    bool again = false;

    if (!make_reserve() || size > RESERVE_SIZE / 2) {
        return 0;
    }
    alignment = alignment < GAP ? GAP : alignment;
    base = round_up(emu.reuses_addresses ? reserve.begin : reserve.at,
                    alignment);
    for (;;) {
        const struct taken *other;

        if (base + size > reserve.end) {
            if (again) {
                return 0;
            }
            again = true;
            base = round_up(reserve.begin, alignment);
        }
        other = taken_within(base, base + size);
        if (other == NULL) {
            break;
        }
        base = round_up(other->base + other->size + GAP, alignment);
    }
    t = calloc(1, sizeof(*t));
    if (t == NULL) {
        return 0;
    }
    *t = (struct taken){.next = taken, .base = base, .size = size};
    taken = t;
    reserve.at = base + size + GAP;
    return base;
}

void emu_address_give(CUdeviceptr base)
{
    for (struct taken **link = &taken; *link != NULL; link = &(*link)->next) {
        struct taken *t = *link;

        if (t->base == base) {
            *link = t->next;
            free(t);
            return;
        }
    }
}

bool emu_address_is_free(CUdeviceptr base, size_t size)
{
    const struct taken *t = taken_within(base, base + size);
    const struct emu_range *r = emu_range_next(base);

    return t != NULL && t->base <= base && base + size <= t->base + t->size &&
           emu_range_find(base) == NULL &&
           (r == NULL || r->base >= base + size);
}

bool emu_address_is_device(uint64_t address)
{
    return address >= reserve.begin && address < reserve.end;
}

void emu_address_limits(uint64_t *ret_begin, uint64_t *ret_end)
{
    *ret_begin = reserve.begin;
    *ret_end = reserve.end;
}

/* Index of the first range that ends after the address. */
static size_t position_of(uint64_t address)
{
    size_t low = 0;
    size_t high = ranges_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (ranges[middle]->base + ranges[middle]->size <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct emu_range *emu_range_find(uint64_t address)
{
    size_t at = position_of(address);

    return at < ranges_count && ranges[at]->base <= address ? ranges[at] : NULL;
}

struct emu_range *emu_range_next(uint64_t address)
{
    for (size_t at = position_of(address); at < ranges_count; at++) {
        if (ranges[at]->base >= address) {
            return ranges[at];
        }
    }
    return NULL;
}

static void *address_of(const struct emu_range *r)
{
    return (void *)(uintptr_t)r->base;
}

static void map_bytes(struct emu_range *r)
{
    struct emu_backing *b = r->backing;

    if (mmap(address_of(r), r->size, PROT_NONE, MAP_SHARED | MAP_FIXED, b->fd,
             (off_t)(emu_backing_start() + r->offset)) == MAP_FAILED) {
        emu_die("cannot map %zu bytes", r->size);
    }
    b->refs++;
    r->bytes = b->bytes + r->offset;
    r->shadow = b->shadow;
}

struct emu_range *emu_range_add(const struct emu_range *like)
{
    static uint64_t last_id;
    struct emu_range *r = malloc(sizeof(*r));
    size_t at = position_of(like->base);

    if (ranges_count == ranges_capacity) {
        ranges_capacity = ranges_capacity == 0 ? 64 : 2 * ranges_capacity;
        ranges = realloc(ranges, ranges_capacity * sizeof(ranges[0]));
    }
    if (r == NULL || ranges == NULL) {
        emu_die("no memory for the table of ranges");
    }
    *r = *like;
    r->id = ++last_id;
    if (r->backing != NULL) {
        map_bytes(r);
    } else {
        r->bytes = address_of(r);
        r->shadow = calloc(1, sizeof(*r->shadow));
        if (r->shadow == NULL) {
            emu_die("no memory for a list of accesses");
        }
        emu_shadow_init(r->shadow);
    }
    memmove(ranges + at + 1, ranges + at,
            (ranges_count - at) * sizeof(ranges[0]));
    ranges[at] = r;
    ranges_count++;
    emu_stats(r->context->device)->allocations++;
    return r;
}

/* Mapped memory keeps its addresses until cuMemAddressFree(). */
static void release_addresses(const struct emu_range *r)
{
    switch (r->kind) {
    case EMU_RANGE_ALLOCATED:
    case EMU_RANGE_IPC:
        emu_address_give(r->base);
        break;
    case EMU_RANGE_PINNED:
        (void)munmap(address_of(r), r->size);
        break;
    case EMU_RANGE_MAPPED:
    case EMU_RANGE_REGISTERED:
        break;
    }
}

void emu_range_remove(struct emu_range *r, const char *call)
{
    size_t at = position_of(r->base);

    if (r->queued > 0) {
        emu_die("%s of memory that %u queued operations use", call, r->queued);
    }
    memmove(ranges + at, ranges + at + 1,
            (ranges_count - at - 1) * sizeof(ranges[0]));
    ranges_count--;
    if (r->backing != NULL) {
        if (mmap(address_of(r), r->size, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                 0) == MAP_FAILED) {
            emu_die("cannot unmap %zu bytes", r->size);
        }
        emu_backing_unref(r->backing);
    } else {
        pthread_mutex_destroy(&r->shadow->lock);
        free(r->shadow);
    }
    release_addresses(r);
    emu_stats(r->context->device)->allocations--;
    free(r);
}

void emu_range_open(struct emu_range *r)
{
    if (r->open++ == 0 && r->backing != NULL &&
        mprotect(address_of(r), r->size, PROT_READ | PROT_WRITE) != 0) {
        emu_die("cannot open memory for a kernel");
    }
}

void emu_range_close(struct emu_range *r)
{
    if (--r->open == 0 && r->backing != NULL &&
        mprotect(address_of(r), r->size, PROT_NONE) != 0) {
        emu_die("cannot close memory after a kernel");
    }
}

void emu_range_remove_all(const struct emu_context *c)
{
    size_t i = 0;

    while (i < ranges_count) {
        if (ranges[i]->context == c) {
            emu_range_remove(ranges[i], "cuDevicePrimaryCtxRelease");
        } else {
            i++;
        }
    }
}
