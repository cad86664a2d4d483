/* SPDX-License-Identifier: Apache-2.0 */
/* Calls on streams but cuStreamWaitEvent(), which is in event.c. */
#include "stream.h"

static CUresult create_stream(CUstream *phStream, unsigned flags)
{
    struct emu_context *c;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if ((flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    s = emu_fails("stream")
            ? NULL
            : emu_stream_open(c, (flags & CU_STREAM_NON_BLOCKING) == 0);
    if (s == NULL) {
        return emu_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *phStream = (CUstream)s;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    return create_stream(phStream, Flags);
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *phStream,
                                            unsigned int flags, int priority)
{
    (void)priority;
    return create_stream(phStream, flags);
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *leastPriority,
                                             int *greatestPriority)
{
    if (leastPriority != NULL) {
        *leastPriority = 0;
    }
    if (greatestPriority != NULL) {
        *greatestPriority = -5;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamDestroy(CUstream hStream)
{
    struct emu_stream *s;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (hStream == NULL || hStream == CU_STREAM_LEGACY ||
        hStream == CU_STREAM_PER_THREAD) {
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    rc = emu_stream_of(NULL, hStream, &s);
    if (rc == CUDA_SUCCESS) {
        emu_stream_close(s);
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream)
{
    struct emu_context *c;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_stream_of(c, hStream, &s);
    if (rc == CUDA_SUCCESS) {
        rc = emu_stream_drain(s);
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream)
{
    struct emu_context *c;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_stream_of(c, hStream, &s);
    if (rc == CUDA_SUCCESS) {
        if (s->done == s->queued) {
            emu_observe(&s->clock);
        } else {
            rc = CUDA_ERROR_NOT_READY;
        }
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext *pctx)
{
    struct emu_context *c;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_stream_of(c, hStream, &s);
    if (rc == CUDA_SUCCESS) {
        *pctx = (CUcontext)s->context;
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
    struct emu_context *c;
    CUresult rc = emu_enter_context(&c);

    return rc != CUDA_SUCCESS ? rc : emu_leave(emu_stream_drain_all(c));
}

struct host_op {
    struct emu_op op;
    CUhostFn fn;
    void *data;
};

/* The function can tell threads of the host that all before it is done. */
static void run_host(struct emu_op *op)
{
    struct host_op *host = (struct host_op *)op;

    pthread_mutex_lock(&emu.lock);
    emu_observe(&op->clock);
    pthread_mutex_unlock(&emu.lock);
    emu_set_in_host_function(true);
    host->fn(host->data);
    emu_set_in_host_function(false);
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    struct emu_context *c;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_stream_of(c, hStream, &s);
    if (rc == CUDA_SUCCESS) {
        struct host_op *host = emu_op_new(sizeof(*host), "cuLaunchHostFunc");

        host->op.run = run_host;
        host->fn = fn;
        host->data = userData;
        emu_op_enqueue(s, &host->op);
    }
    return emu_leave(rc);
}
