/* SPDX-License-Identifier: Apache-2.0 */
#include "event.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x746e657665756d65ull

/* Events of the process, destroyed ones as well: their handles are known. */
static struct emu_event *events;

static void lock_state(struct emu_event_state *state)
{
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&state->lock);
    }
}

static void init_state(struct emu_event_state *state)
{
    pthread_mutexattr_t attr;

    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    state->magic = MAGIC;
}

static struct emu_event *add_event(struct emu_context *c, unsigned flags,
                                   int fd)
{
    struct emu_event *e = calloc(1, sizeof(*e));
    void *state = mmap(NULL, sizeof(*e->state), PROT_READ | PROT_WRITE,
                       MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);

    if (e == NULL || state == MAP_FAILED) {
        emu_die("no memory for an event");
    }
    e->context = c;
    e->refs = 1;
    e->flags = flags;
    e->fd = fd;
    e->state = state;
    e->next = events;
    events = e;
    emu_stats(c->device)->events++;
    return e;
}

CUresult emu_event_new(struct emu_context *c, unsigned flags,
                       struct emu_event **ret_event)
{
    int fd = -1;

    if ((flags & CU_EVENT_INTERPROCESS) != 0) {
        if ((flags & CU_EVENT_DISABLE_TIMING) == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        fd = memfd_create("cuda-emu-event", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, sizeof(struct emu_event_state)) != 0) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    *ret_event = add_event(c, flags, fd);
    init_state((*ret_event)->state);
    return CUDA_SUCCESS;
}

CUresult emu_event_import(struct emu_context *c, int fd,
                          struct emu_event **ret_event)
{
    struct stat status;
    uint64_t magic;

    if (fstat(fd, &status) != 0 ||
        status.st_size != (off_t)sizeof(struct emu_event_state) ||
        pread(fd, &magic, sizeof(magic), 0) != (ssize_t)sizeof(magic) ||
        magic != MAGIC) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *ret_event = add_event(c, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
                           fd);
    return CUDA_SUCCESS;
}

void emu_event_unref(struct emu_event *e)
{
    if (--e->refs > 0) {
        return;
    }
    (void)munmap(e->state, sizeof(*e->state));
    e->state = NULL;
    if (e->fd >= 0) {
        (void)close(e->fd);
    }
}

CUresult emu_event_of(CUevent handle, struct emu_event **ret_event)
{
    for (struct emu_event *e = events; e != NULL; e = e->next) {
        if ((void *)e == (void *)handle) {
            if (e->destroyed) {
                emu_die("an event is used after it was destroyed");
            }
            *ret_event = e;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_HANDLE;
}

bool emu_event_has_completed(struct emu_event *e, uint64_t generation)
{
    bool completed;
    int32_t recorder;

    lock_state(e->state);
    completed = e->state->completed >= generation;
    recorder = e->state->recorder;
    pthread_mutex_unlock(&e->state->lock);
    /* The operations of a process that has died have ended. */
    return completed || !emu_process_runs(recorder);
}

struct record_op {
    struct emu_op op;
    struct emu_event *event;
    uint64_t generation;
};

static void run_record(struct emu_op *op)
{
    const struct record_op *record = (const struct record_op *)op;
    struct emu_event_state *state = record->event->state;
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    lock_state(state);
    if (state->completed < record->generation) {
        state->completed = record->generation;
        state->completed_ns = (uint64_t)now.tv_sec * 1000000000u +
                              (uint64_t)now.tv_nsec;
    }
    pthread_mutex_unlock(&state->lock);
}

static void fini_record(struct emu_op *op)
{
    emu_event_unref(((struct record_op *)op)->event);
}

static void record_event(struct emu_event *e, struct emu_stream *s)
{
    struct record_op *record = emu_op_new(sizeof(*record), "cuEventRecord");

    record->op.run = run_record;
    record->op.fini = fini_record;
    record->op.even_if_lost = true;
    record->event = e;
    e->refs++;
    lock_state(e->state);
    record->generation = ++e->state->recorded;
    emu_op_enqueue(s, &record->op);
    e->generation = record->generation;
    e->stream = s;
    e->number = record->op.number;
    if (record->op.clock.count > EMU_EVENT_TICKS_MAX) {
        emu_die("too many streams for an event");
    }
    e->state->recorder = emu.pid;
    e->state->ticks_count = record->op.clock.count;
    memcpy(e->state->ticks, record->op.clock.ticks,
           record->op.clock.count * sizeof(struct emu_tick));
    pthread_mutex_unlock(&e->state->lock);
}

CUresult CUDAAPI cuEventRecord(CUevent hEvent, CUstream hStream)
{
    struct emu_context *c;
    struct emu_event *e;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_event_of(hEvent, &e);
    if (rc == CUDA_SUCCESS) {
        rc = emu_stream_of(c, hStream, &s);
    }
    if (rc == CUDA_SUCCESS && s->context != e->context) {
        rc = CUDA_ERROR_INVALID_HANDLE;
    }
    if (rc == CUDA_SUCCESS) {
        record_event(e, s);
    }
    return emu_leave(rc);
}

/* A copy of the last recording. */
struct recording {
    uint64_t generation;
    bool local;
    struct emu_clock clock;
};

static struct recording recording_of(struct emu_event *e)
{
    struct recording r = {.generation = 0};

    lock_state(e->state);
    r.generation = e->state->recorded;
    r.local = e->generation == r.generation;
    emu_clock_join(&r.clock, e->state->ticks, e->state->ticks_count);
    pthread_mutex_unlock(&e->state->lock);
    return r;
}

static void wait_event(struct emu_stream *s, struct emu_event *e)
{
    struct recording r = recording_of(e);

    if (r.generation == 0) {
        return; /* As CUDA has it: nothing to wait for. */
    }
    if (r.local) {
        emu_stream_wait_stream(s, e->stream, e->number, r.clock.ticks,
                               r.clock.count);
    } else {
        struct emu_op *op = emu_op_new(sizeof(*op), "cuStreamWaitEvent");

        op->after_event = e;
        op->after_generation = r.generation;
        e->refs++;
        emu_clock_join(&s->clock, r.clock.ticks, r.clock.count);
        emu_op_enqueue(s, op);
    }
    emu_clock_fini(&r.clock);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent,
                                   unsigned int Flags)
{
    struct emu_context *c;
    struct emu_event *e;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    (void)Flags;
    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_event_of(hEvent, &e);
    if (rc == CUDA_SUCCESS) {
        rc = emu_stream_of(c, hStream, &s);
    }
    if (rc == CUDA_SUCCESS) {
        wait_event(s, e);
    }
    return emu_leave(rc);
}

static bool has_completed(struct emu_event *e, const struct recording *r)
{
    return r->generation == 0 ||
           (r->local ? e->stream->done >= e->number
                     : emu_event_has_completed(e, r->generation));
}

CUresult CUDAAPI cuEventQuery(CUevent hEvent)
{
    struct emu_context *c;
    struct emu_event *e;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_event_of(hEvent, &e);
    if (rc == CUDA_SUCCESS) {
        struct recording r = recording_of(e);

        if (has_completed(e, &r)) {
            emu_observe(&r.clock);
        } else {
            rc = CUDA_ERROR_NOT_READY;
        }
        emu_clock_fini(&r.clock);
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuEventSynchronize(CUevent hEvent)
{
    struct emu_context *c;
    struct emu_event *e;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_event_of(hEvent, &e);
    if (rc == CUDA_SUCCESS) {
        struct recording r = recording_of(e);
        struct emu_stream *stream = e->stream;
        uint64_t number = e->number;

        e->refs++;
        if (r.local && r.generation != 0) {
            rc = emu_stream_await(stream, number);
        } else {
            while (!has_completed(e, &r)) {
                emu_wait_for_change(true);
            }
        }
        emu_observe(&r.clock);
        emu_clock_fini(&r.clock);
        emu_event_unref(e);
        if (emu.device[c->device].lost) {
            rc = CUDA_ERROR_LAUNCH_FAILED;
        }
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuEventCreate(CUevent *phEvent, unsigned int Flags)
{
    struct emu_context *c;
    struct emu_event *e;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_fails("event") ? CUDA_ERROR_OUT_OF_MEMORY
                            : emu_event_new(c, Flags, &e);
    if (rc == CUDA_SUCCESS) {
        *phEvent = (CUevent)e;
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuEventDestroy(CUevent hEvent)
{
    struct emu_event *e;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_event_of(hEvent, &e);
    if (rc == CUDA_SUCCESS) {
        e->destroyed = true;
        emu_stats(e->context->device)->events--;
        emu_event_unref(e);
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuEventElapsedTime(float *pMilliseconds, CUevent hStart,
                                    CUevent hEnd)
{
    struct emu_event *start;
    struct emu_event *end;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_event_of(hStart, &start);
    if (rc == CUDA_SUCCESS) {
        rc = emu_event_of(hEnd, &end);
    }
    if (rc == CUDA_SUCCESS &&
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
        rc = CUDA_ERROR_INVALID_HANDLE;
    }
    if (rc == CUDA_SUCCESS && (start->state->completed == 0 ||
                               end->state->completed != end->state->recorded)) {
        rc = CUDA_ERROR_NOT_READY;
    }
    if (rc == CUDA_SUCCESS) {
        lock_state(end->state);
        *pMilliseconds = (float)((double)(end->state->completed_ns -
                                          start->state->completed_ns) /
                                 1e6);
        pthread_mutex_unlock(&end->state->lock);
    }
    return emu_leave(rc);
}
