/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills. A copy to pageable memory ends before the call does, one
 * from pageable memory takes its bytes at once, as those of CUDA may. */
#include "span.h"

#include <string.h>

/* Content of a destination in memory of the host until its copy ends. */
#define UNFINISHED 0xee

struct copy_op {
    struct emu_op op;
    struct emu_span to;
    struct emu_span from;
    char *staged; /* Bytes of a pageable source. */
};

static bool is_device(const struct emu_span *span)
{
    return span->range != NULL && emu_range_is_device(span->range);
}

static void run_copy(struct emu_op *op)
{
    const struct copy_op *copy = (const struct copy_op *)op;
    const char *from = copy->staged != NULL ? copy->staged : copy->from.bytes;

    emu_op_access(op, &copy->from, false);
    emu_op_access(op, &copy->to, true);
    if (!is_device(&copy->to)) {
        memset(copy->to.bytes, UNFINISHED, copy->to.size);
        emu_stream_delay(op->stream);
    }
    memcpy(copy->to.bytes, from, copy->to.size);
}

static void fini_copy(struct emu_op *op)
{
    free(((struct copy_op *)op)->staged);
}

static void count_copy(const struct emu_stream *s, const struct copy_op *copy)
{
    bool to_device = is_device(&copy->to);
    bool from_device = is_device(&copy->from);
    struct pskv_emu_stats *stats = emu_stats(s->context->device);
    size_t size = copy->to.size;

    stats->copies++;
    if (copy->to.range == NULL || copy->from.range == NULL) {
        stats->pageable += size;
    }
    if (to_device && from_device) {
        CUdevice to = emu_backing_device(copy->to.range->backing);

        if (to == emu_backing_device(copy->from.range->backing)) {
            stats->device_to_device += size;
        } else {
            emu_stats(to)->peer_to_device += size;
        }
    } else if (to_device) {
        stats->host_to_device += size;
    } else if (from_device) {
        stats->device_to_host += size;
    }
}

/* Where a copy begins and how long it is. */
struct copy_args {
    const char *call;
    uint64_t to;
    uint64_t from;
    size_t size;
    enum emu_place to_place;
    enum emu_place from_place;
};

/* Enqueues the copy up to the end of one of its ranges; returns its bytes. */
static size_t enqueue_part(struct emu_stream *s, const struct copy_args *args)
{
    struct copy_op *copy = emu_op_new(sizeof(*copy), args->call);
    size_t size;

    copy->op.run = run_copy;
    copy->op.fini = fini_copy;
    copy->to = emu_span_of(s, args->to, args->size, args->to_place, args->call);
    copy->from = emu_span_of(s, args->from, args->size, args->from_place,
                             args->call);
    size = copy->to.size < copy->from.size ? copy->to.size : copy->from.size;
    copy->to.size = size;
    copy->from.size = size;
    if (emu_span_overlaps(&copy->to, &copy->from)) {
        emu_die("%s: source and destination overlap", args->call);
    }
    if (copy->from.range == NULL) {
        copy->staged = malloc(size);
        if (copy->staged == NULL) {
            emu_die("no memory to stage a copy");
        }
        memcpy(copy->staged, copy->from.bytes, size);
    }
    emu_op_use(&copy->op, copy->to.range);
    emu_op_use(&copy->op, copy->from.range);
    count_copy(s, copy);
    emu_op_enqueue(s, &copy->op);
    if (copy->to.range == NULL) {
        (void)emu_stream_drain(s);
    }
    return size;
}

static CUresult copy_async(CUstream hStream, const struct copy_args *args)
{
    struct copy_args rest = *args;
    struct emu_context *c;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_stream_of(c, hStream, &s);
    while (rc == CUDA_SUCCESS && rest.size > 0) {
        size_t done = enqueue_part(s, &rest);

        rest.to += done;
        rest.from += done;
        rest.size -= done;
    }
    if (rc == CUDA_SUCCESS && emu.device[s->context->device].lost) {
        rc = CUDA_ERROR_LAUNCH_FAILED;
    }
    return emu_leave(rc);
}

static CUresult copy_now(const struct copy_args *args)
{
    CUresult rc = copy_async(NULL, args);

    return rc == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : rc;
}

static struct copy_args to_device(CUdeviceptr to, const void *from, size_t size)
{
    return (struct copy_args){"cuMemcpyHtoD",   to,
                              (uintptr_t)from,  size,
                              EMU_PLACE_DEVICE, EMU_PLACE_HOST};
}

static struct copy_args to_host(void *to, CUdeviceptr from, size_t size)
{
    return (struct copy_args){"cuMemcpyDtoH", (uintptr_t)to,  from,
                              size,           EMU_PLACE_HOST, EMU_PLACE_DEVICE};
}

static struct copy_args on_device(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return (struct copy_args){"cuMemcpyDtoD",  to, from, size, EMU_PLACE_DEVICE,
                              EMU_PLACE_DEVICE};
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void *srcHost,
                                   size_t ByteCount, CUstream hStream)
{
    struct copy_args args = to_device(dstDevice, srcHost, ByteCount);

    return copy_async(hStream, &args);
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void *dstHost, CUdeviceptr srcDevice,
                                   size_t ByteCount, CUstream hStream)
{
    struct copy_args args = to_host(dstHost, srcDevice, ByteCount);

    return copy_async(hStream, &args);
}

CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                   size_t ByteCount, CUstream hStream)
{
    struct copy_args args = on_device(dstDevice, srcDevice, ByteCount);

    return copy_async(hStream, &args);
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src,
                               size_t ByteCount, CUstream hStream)
{
    struct copy_args args = {"cuMemcpy", dst,           src,
                             ByteCount,  EMU_PLACE_ANY, EMU_PLACE_ANY};

    return copy_async(hStream, &args);
}

CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
                                   CUdeviceptr srcDevice, CUcontext srcContext,
                                   size_t ByteCount, CUstream hStream)
{
    struct copy_args args = on_device(dstDevice, srcDevice, ByteCount);
    CUresult rc = emu_enter();
    bool valid;

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    valid = emu_context_of(dstContext) != NULL &&
            emu_context_of(srcContext) != NULL;
    rc = emu_leave(valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT);
    args.call = "cuMemcpyPeer";
    return rc == CUDA_SUCCESS ? copy_async(hStream, &args) : rc;
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dstDevice, const void *srcHost,
                              size_t ByteCount)
{
    struct copy_args args = to_device(dstDevice, srcHost, ByteCount);

    return copy_now(&args);
}

CUresult CUDAAPI cuMemcpyDtoH(void *dstHost, CUdeviceptr srcDevice,
                              size_t ByteCount)
{
    struct copy_args args = to_host(dstHost, srcDevice, ByteCount);

    return copy_now(&args);
}

CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                              size_t ByteCount)
{
    struct copy_args args = on_device(dstDevice, srcDevice, ByteCount);

    return copy_now(&args);
}

CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    struct copy_args args = {"cuMemcpy", dst,           src,
                             ByteCount,  EMU_PLACE_ANY, EMU_PLACE_ANY};

    return copy_now(&args);
}

struct fill_op {
    struct emu_op op;
    struct emu_span to;
    unsigned value;
    unsigned width; /* Bytes of the value. */
};

static void run_fill(struct emu_op *op)
{
    const struct fill_op *fill = (const struct fill_op *)op;

    emu_op_access(op, &fill->to, true);
    for (size_t i = 0; i + fill->width <= fill->to.size; i += fill->width) {
        memcpy(fill->to.bytes + i, &fill->value, fill->width);
    }
}

static CUresult fill_async(CUstream hStream, CUdeviceptr to, size_t size,
                           const struct fill_op *like)
{
    struct emu_context *c;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_stream_of(c, hStream, &s);
    while (rc == CUDA_SUCCESS && size > 0) {
        struct fill_op *fill = emu_op_new(sizeof(*fill), "cuMemset");

        fill->op.run = run_fill;
        fill->to = emu_span_of(s, to, size, EMU_PLACE_DEVICE, "cuMemset");
        fill->value = like->value;
        fill->width = like->width;
        emu_op_use(&fill->op, fill->to.range);
        to += fill->to.size;
        size -= fill->to.size;
        emu_op_enqueue(s, &fill->op);
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc,
                                 size_t N, CUstream hStream)
{
    struct fill_op like = {.value = uc, .width = 1};

    return fill_async(hStream, dstDevice, N, &like);
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui,
                                  size_t N, CUstream hStream)
{
    struct fill_op like = {.value = ui, .width = 4};

    return dstDevice % 4 != 0 ? CUDA_ERROR_INVALID_VALUE
                              : fill_async(hStream, dstDevice, 4 * N, &like);
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    CUresult rc = cuMemsetD8Async(dstDevice, uc, N, NULL);

    return rc == CUDA_SUCCESS ? cuStreamSynchronize(NULL) : rc;
}
