/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"
#include "event.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Streams of the process, destroyed ones as well: their handles are known. */
static struct emu_stream *streams;
static unsigned streams_count;

/* How often a stream looks for an event that another process records. */
#define POLL_NS 200000

static uint64_t next_random(struct emu_stream *s)
{
    s->random += 0x9e3779b97f4a7c15ull;
    uint64_t z = s->random;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void emu_stream_delay(struct emu_stream *s)
{
    uint64_t random = next_random(s);

    if (emu.seed == 0 || emu.delay_us == 0 || random % 4 != 0) {
        return;
    }
    (void)usleep((unsigned)((random >> 8) % emu.delay_us));
}

void *emu_op_new(size_t size, const char *name)
{
    struct emu_op *op = calloc(1, size);

    if (op == NULL) {
        emu_die("no memory for an operation");
    }
    op->name = name;
    return op;
}

void emu_op_use(struct emu_op *op, struct emu_range *r)
{
    if (r == NULL) {
        return;
    }
    for (unsigned i = 0; i < op->uses_count; i++) {
        if (op->uses[i] == r) {
            return;
        }
    }
    op->uses = realloc(op->uses, (op->uses_count + 1) * sizeof(op->uses[0]));
    if (op->uses == NULL) {
        emu_die("no memory for an operation");
    }
    op->uses[op->uses_count++] = r;
    r->queued++;
}

void emu_op_access(const struct emu_op *op, const struct emu_span *span,
                   bool write)
{
    struct emu_actor actor = {
        .clock = &op->clock,
        .tick = {op->stream->timeline, op->number},
        .stream = op->stream->number,
        .op = op->name,
    };

    if (span->range != NULL && span->size > 0) {
        emu_shadow_add(span->range->shadow, &actor, span->offset,
                       span->offset + span->size, write);
    }
}

static void free_op(struct emu_op *op)
{
    if (op->fini != NULL) {
        op->fini(op);
    }
    for (unsigned i = 0; i < op->uses_count; i++) {
        op->uses[i]->queued--;
    }
    if (op->after_event != NULL) {
        emu_event_unref(op->after_event);
    }
    free(op->uses);
    emu_clock_fini(&op->clock);
    free(op);
}

/* True if the operation may run; *ret_foreign says that another process will
 * not signal when it may. */
static bool may_run(const struct emu_stream *s, const struct emu_op *op,
                    bool *ret_foreign)
{
    *ret_foreign = false;
    if (s->held) {
        return false;
    }
    if (op->after != NULL && op->after->done < op->after_number) {
        return false;
    }
    if (op->after_event != NULL &&
        !emu_event_has_completed(op->after_event, op->after_generation)) {
        *ret_foreign = true;
        return false;
    }
    return true;
}

void emu_wait_for_change(bool poll)
{
    struct timespec until;

    if (!poll) {
        pthread_cond_wait(&emu.changed, &emu.lock);
        return;
    }
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += POLL_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(&emu.changed, &emu.lock, &until);
}

/* Runs an operation; the lock is released meanwhile. */
static void run_op(struct emu_stream *s, struct emu_op *op)
{
    struct emu_device *device = &emu.device[s->context->device];

    if (op->run == NULL) {
        return;
    }
    if (!op->even_if_lost) {
        device->lost = emu_fails("lost") || device->lost;
        if (device->lost) {
            return;
        }
    }
    pthread_mutex_unlock(&emu.lock);
    emu_stream_delay(s);
    op->run(op);
    pthread_mutex_lock(&emu.lock);
}

static void *run_stream(void *argument)
{
    struct emu_stream *s = argument;

    pthread_mutex_lock(&emu.lock);
    while (s->head != NULL || s->state == EMU_STREAM_OPEN) {
        struct emu_op *op = s->head;
        bool foreign = false;

        if (op == NULL || !may_run(s, op, &foreign)) {
            emu_wait_for_change(foreign);
            continue;
        }
        run_op(s, op);
        s->head = op->next;
        s->tail = s->head == NULL ? NULL : s->tail;
        s->done = op->number;
        emu_stats(s->context->device)->operations++;
        free_op(op);
        pthread_cond_broadcast(&emu.changed);
    }
    s->state = EMU_STREAM_ENDED;
    pthread_mutex_unlock(&emu.lock);
    return NULL;
}

/* Takes over the timeline of a stream that has ended, so that clocks do not
 * grow; else begins one. */
static void choose_timeline(struct emu_stream *s)
{
    for (struct emu_stream *old = streams; old != NULL; old = old->next) {
        if (old->state == EMU_STREAM_ENDED) {
            old->state = EMU_STREAM_SUCCEEDED;
            s->timeline = old->timeline;
            s->queued = old->queued;
            s->done = old->done;
            s->clock = old->clock;
            old->clock = (struct emu_clock){0};
            return;
        }
    }
    s->timeline = emu.timeline_base + s->number;
}

struct emu_stream *emu_stream_open(struct emu_context *c, bool blocking)
{
    struct emu_stream *s = calloc(1, sizeof(*s));
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    if (s == NULL) {
        return NULL;
    }
    s->context = c;
    s->blocking = blocking;
    s->number = ++streams_count;
    s->random = emu.seed * 0x2545f4914f6cdd1dull + s->number;
    choose_timeline(s);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = pthread_create(&thread, &attr, run_stream, s);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        emu_clock_fini(&s->clock);
        free(s);
        return NULL;
    }
    s->next = streams;
    streams = s;
    emu_stats(c->device)->streams++;
    return s;
}

void emu_stream_close(struct emu_stream *s)
{
    s->state = EMU_STREAM_CLOSING;
    emu_stats(s->context->device)->streams--;
    pthread_cond_broadcast(&emu.changed);
}

void emu_stream_close_all(const struct emu_context *c)
{
    for (struct emu_stream *s = streams; s != NULL; s = s->next) {
        if (s->context == c && s->state == EMU_STREAM_OPEN) {
            emu_stream_close(s);
        }
    }
}

CUresult emu_stream_of(struct emu_context *current, CUstream handle,
                       struct emu_stream **ret_stream)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY ||
        handle == CU_STREAM_PER_THREAD) {
        if (current->legacy == NULL) {
            current->legacy = emu_stream_open(current, true);
        }
        *ret_stream = current->legacy;
        return *ret_stream == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    for (struct emu_stream *s = streams; s != NULL; s = s->next) {
        if ((void *)s == (void *)handle) {
            if (s->state != EMU_STREAM_OPEN) {
                emu_die("stream %u is used after it was destroyed", s->number);
            }
            *ret_stream = s;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_HANDLE;
}

void emu_stream_hold(const void *stream, bool held)
{
    for (struct emu_stream *s = streams; s != NULL; s = s->next) {
        if ((const void *)s == stream) {
            s->held = held;
            pthread_cond_broadcast(&emu.changed);
        }
    }
}

static void append_op(struct emu_stream *s, struct emu_op *op)
{
    op->stream = s;
    op->number = ++s->queued;
    emu_clock_join(&s->clock, emu.host.ticks, emu.host.count);
    emu_clock_raise(&s->clock, s->timeline, op->number);
    emu_clock_join(&op->clock, s->clock.ticks, s->clock.count);
    if (s->tail == NULL) {
        s->head = op;
    } else {
        s->tail->next = op;
    }
    s->tail = op;
    pthread_cond_broadcast(&emu.changed);
}

static void wait_stream(struct emu_stream *s, struct emu_stream *other)
{
    emu_stream_wait_stream(s, other, other->queued, other->clock.ticks,
                           other->clock.count);
}

/* The NULL stream and streams that block are ordered with each other. */
static void order_with_legacy(struct emu_stream *s)
{
    struct emu_stream *legacy = s->context->legacy;

    if (!s->blocking || legacy == NULL) {
        return;
    }
    if (s != legacy) {
        wait_stream(s, legacy);
        return;
    }
    for (struct emu_stream *other = streams; other != NULL;
         other = other->next) {
        if (other != s && other->context == s->context && other->blocking) {
            wait_stream(s, other);
        }
    }
}

void emu_op_enqueue(struct emu_stream *s, struct emu_op *op)
{
    order_with_legacy(s);
    append_op(s, op);
}

void emu_stream_wait_stream(struct emu_stream *s, struct emu_stream *other,
                            uint64_t number, const struct emu_tick *ticks,
                            uint32_t count)
{
    struct emu_op *op;

    emu_clock_join(&s->clock, ticks, count);
    if (s == other || other->done >= number) {
        return;
    }
    op = emu_op_new(sizeof(*op), "wait");
    op->after = other;
    op->after_number = number;
    append_op(s, op);
}

CUresult emu_stream_await(struct emu_stream *s, uint64_t number)
{
    while (s->done < number) {
        pthread_cond_wait(&emu.changed, &emu.lock);
    }
    return emu.device[s->context->device].lost ? CUDA_ERROR_LAUNCH_FAILED
                                               : CUDA_SUCCESS;
}

CUresult emu_stream_drain(struct emu_stream *s)
{
    struct emu_clock then = {0};
    CUresult rc;

    emu_clock_join(&then, s->clock.ticks, s->clock.count);
    rc = emu_stream_await(s, s->queued);
    emu_observe(&then);
    emu_clock_fini(&then);
    return rc;
}

CUresult emu_stream_drain_all(const struct emu_context *c)
{
    CUresult rc = CUDA_SUCCESS;

    for (struct emu_stream *s = streams; s != NULL; s = s->next) {
        if (s->context == c && s->state != EMU_STREAM_SUCCEEDED) {
            CUresult one = emu_stream_drain(s);

            rc = rc == CUDA_SUCCESS ? one : rc;
        }
    }
    return rc;
}

void emu_observe(const struct emu_clock *c)
{
    emu_clock_join(&emu.host, c->ticks, c->count);
    emu_backing_observe(&emu.host);
}
