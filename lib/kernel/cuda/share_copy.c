/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of memory of devices into the host's, and copies between them. A call
 * takes a lane of the device that works; a fold is cut into pieces that
 * alternate between its two slots, so that one is added while the other is
 * copied. */
#include "kernel/cuda/share.h"

#include "base/dtype.h"
#include "base/err.h"

#include <stdatomic.h>
#include <string.h>

/* Bytes of a piece of a fold: enough for the link's bandwidth. */
#define PIECE_BYTES (4u * 1024 * 1024)
/* Alignment of arrays in an arena. */
#define LINE        256u

_Static_assert(PS_SHARE_SOURCES <= PS_CUDA_SOURCES_MAX,
               "addresses of all sources are arguments of the kernel");

/* A device at work for one call. */
struct work {
    struct ps_cuda_share *share;
    struct ps_cuda *cuda;
    struct ps_cuda_lane *lane;
    const char *call; /* The call that failed. */
    ps_cu_result error;
};

static bool has_succeeded(struct work *w, const char *call, ps_cu_result error)
{
    if (error != 0 && w->error == 0) {
        w->call = call;
        w->error = error;
    }
    return error == 0;
}

static struct ps_cuda_memory *memory_of(const struct ps_share_place *p)
{
    return p->memory;
}

static ps_cu_address address_of(const struct ps_share_place *p)
{
    return memory_of(p)->at + p->offset;
}

/* Makes the device current and takes a lane. */
static bool begin_work(struct ps_cuda_share *s, uint32_t device, struct work *w)
{
    *w = (struct work){.share = s, .cuda = s->devices[device].cuda};
    if (!has_succeeded(w, "cuCtxPushCurrent",
                       w->cuda->cu.push(w->cuda->context))) {
        return false;
    }
    w->lane = ps_cuda_lane_get(w->cuda);
    return has_succeeded(w, "cuStreamCreate",
                         w->lane != NULL ? 0 : PS_CU_OUT_OF_MEMORY);
}

static void leave_context(const struct work *w)
{
    ps_cu_context old;

    (void)w->cuda->cu.pop(&old);
}

/* Waits until nothing uses the lane, and gives it back. */
static void end_lane(struct work *w)
{
    for (unsigned i = 0; i < PS_CUDA_SLOTS && w->lane != NULL; i++) {
        (void)has_succeeded(w, "wait",
                            w->cuda->cu.wait(w->lane->slots[i].stream));
    }
    if (w->lane != NULL) {
        ps_cuda_lane_put(w->cuda, w->lane);
        w->lane = NULL;
    }
}

static int result_of(const struct work *w, char *why)
{
    return w->error == 0 ? 0
                         : ps_cuda_share_fail(w->share, w->call, w->error, why);
}

static int end_work(struct work *w, char *why)
{
    end_lane(w);
    leave_context(w);
    return result_of(w, why);
}

/* -------------------------------------------------------------------- fold */

struct fold {
    const struct ps_share_fold *fold;
    uint32_t device; /* That computes. */
    uint64_t size;   /* Bytes of an element. */
    uint64_t stride; /* From one array in the arena to the next. */
};

/* True if the kernel cannot read these bytes where they are: it reads whole
 * packs, which begin at a multiple of their size. */
static bool needs_copy(const struct fold *f, const struct ps_share_place *src,
                       uint64_t first, uint64_t bytes)
{
    const ps_cu_address at = address_of(src) + first * f->size;

    return (at | bytes) % PS_CUDA_PACK_BYTES != 0 ||
           (memory_of(src)->readers & 1u << f->device) == 0;
}

/* Merges after source `i` of `count` leaves, by the counter of kernel.h. */
static uint8_t merges_after(uint32_t i, uint32_t count)
{
    const unsigned merges = (unsigned)__builtin_ctz(i + 1);

    return (uint8_t)(i + 1 < count
                         ? merges
                         : merges + (unsigned)__builtin_popcount(count) - 1);
}

/* Adds elements [first, first + count) into the slot's arena. */
static bool fold_piece(struct work *w, const struct fold *f,
                       struct ps_cuda_slot *slot, uint64_t first,
                       uint64_t count)
{
    const struct ps_share_fold *a = f->fold;
    const uint64_t bytes = count * f->size;
    struct ps_cuda_fold k = {
        .count = count,
        .divide_by = a->divide_by,
        .fold = (enum ps_fold)a->fold,
        .src_count = a->src_count,
        .is_short = a->src_count <= PS_CUDA_LEAVES_MAX,
    };
    uint64_t copies = 0;

    for (uint32_t i = 0; i < a->src_count; i++) {
        copies += needs_copy(f, &a->src[i], first, bytes);
    }
    if (!has_succeeded(
            w, "arena",
            ps_cuda_slot_reserve(w->cuda, slot, 0, (1 + copies) * f->stride))) {
        return false;
    }
    copies = 0;
    for (uint32_t i = 0; i < a->src_count; i++) {
        ps_cu_address at = address_of(&a->src[i]) + first * f->size;

        if (needs_copy(f, &a->src[i], first, bytes)) {
            const ps_cu_address copy = slot->device + ++copies * f->stride;

            if (!has_succeeded(
                    w, "copy on the device",
                    w->share->cu.copy(copy, at, bytes, slot->stream))) {
                return false;
            }
            atomic_fetch_add(&w->share->between, bytes);
            at = copy;
        }
        k.src[i] = (const void *)(uintptr_t)at;
        k.merges[i] = merges_after(i, a->src_count);
    }
    k.dst = (void *)(uintptr_t)slot->device;
    atomic_fetch_add(&w->share->folded, a->src_count * bytes);
    return has_succeeded(w, "fold",
                         ps_cuda_launch(w->cuda, slot,
                                        ps_cuda_fold_kernel(a->dtype), &k,
                                        bytes / PS_CUDA_PACK_BYTES + 1));
}

/* Starts the sum of a piece and its copy to the host. A single source is copied
 * from where it is. */
static bool start_piece(struct work *w, const struct fold *f,
                        struct ps_cuda_slot *slot, uint64_t first,
                        uint64_t count)
{
    const struct ps_share_fold *a = f->fold;
    const bool is_copy = a->src_count == 1 && a->divide_by <= 1;
    const ps_cu_address from = address_of(&a->src[0]) + first * f->size;

    if (!is_copy && !fold_piece(w, f, slot, first, count)) {
        return false;
    }
    atomic_fetch_add(&w->share->to_host, count * f->size);
    return has_succeeded(w, "copy to the host",
                         w->cuda->cu.to_host((char *)a->dst + first * f->size,
                                             is_copy ? from : slot->device,
                                             count * f->size, slot->stream));
}

int32_t ps_cuda_share_fold(void *share, const struct ps_share_fold *fold,
                           char *why)
{
    struct ps_cuda_share *s = share;
    struct fold f = {
        .fold = fold,
        .device = memory_of(&fold->src[fold->turn % fold->src_count])->device,
        .size = ps_dtype_size(fold->dtype),
    };
    const uint64_t piece = PIECE_BYTES / f.size;
    struct work w;
    bool is_good = begin_work(s, f.device, &w);
    unsigned turn = 0;

    f.stride = PIECE_BYTES + LINE;
    for (uint64_t first = 0; first < fold->count && is_good; first += piece) {
        struct ps_cuda_slot *slot = &w.lane->slots[turn++ % PS_CUDA_SLOTS];
        const uint64_t left = fold->count - first;

        is_good = has_succeeded(&w, "wait", w.cuda->cu.wait(slot->stream)) &&
                  start_piece(&w, &f, slot, first, left < piece ? left : piece);
    }
    return end_work(&w, why);
}

/* ------------------------------------------------------------------ copies */

int32_t ps_cuda_share_fetch(void *share, const struct ps_share_place *from,
                            void *to, uint64_t bytes, char *why)
{
    struct ps_cuda_share *s = share;
    struct work w;

    if (begin_work(s, memory_of(from)->device, &w)) {
        atomic_fetch_add(&s->to_host, bytes);
        (void)has_succeeded(&w, "copy to the host",
                            w.cuda->cu.to_host(to, address_of(from), bytes,
                                               w.lane->slots[0].stream));
    }
    return end_work(&w, why);
}

/* Starts the copies to all places on one device. */
static void start_delivery(struct work *w, uint32_t device, const void *from,
                           uint64_t bytes, const struct ps_share_place *to,
                           uint32_t count)
{
    const ps_cu_stream stream = w->lane->slots[0].stream;
    ps_cu_address first = 0;

    for (uint32_t i = 0; i < count; i++) {
        const ps_cu_address at = address_of(&to[i]);

        if (memory_of(&to[i])->device != device) {
            continue;
        }
        if (first == 0) {
            first = at;
            atomic_fetch_add(&w->share->to_device, bytes);
            (void)has_succeeded(w, "copy to the device",
                                w->cuda->cu.to_device(at, from, bytes, stream));
        } else if (at != first) {
            atomic_fetch_add(&w->share->between, bytes);
            (void)has_succeeded(w, "copy on the device",
                                w->share->cu.copy(at, first, bytes, stream));
        }
    }
}

int32_t ps_cuda_share_deliver(void *share, const void *from, uint64_t bytes,
                              const struct ps_share_place *to, uint32_t count,
                              char *why)
{
    struct ps_cuda_share *s = share;
    struct work works[PS_SHARE_DEVICES];
    uint32_t devices = 0;
    int rc = 0;

    for (uint32_t i = 0; i < count; i++) {
        devices |= 1u << memory_of(&to[i])->device;
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if ((devices & 1u << i) == 0) {
            continue;
        }
        if (begin_work(s, i, &works[i])) {
            start_delivery(&works[i], i, from, bytes, to, count);
        }
        leave_context(&works[i]);
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if ((devices & 1u << i) == 0) {
            continue;
        }
        (void)works[i].cuda->cu.push(works[i].cuda->context);
        if (rc == 0) {
            rc = end_work(&works[i], why);
        } else {
            char other[PS_SHARE_WHY_MAX];

            (void)end_work(&works[i], other);
        }
    }
    return rc;
}
