/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: queues of operations, each with a thread that runs them. Calls have
 * the lock of emu.h held, and expect it. */
#pragma once

#include "emu.h"
#include "memory.h"

struct emu_event;

/* Bytes of one range, or pageable memory of the host when range is NULL. */
struct emu_span {
    struct emu_range *range;
    char *bytes;   /* Where the driver reads or writes them. */
    size_t offset; /* In the list of accesses of the range. */
    size_t size;
};

/* An operation; its type embeds it as first member. */
struct emu_op {
    struct emu_op *next;
    const char *name;
    struct emu_stream *stream;
    uint64_t number; /* Its time on the stream's timeline. */
    struct emu_clock clock;
    /* Runs without the lock. NULL: the operation only waits. */
    void (*run)(struct emu_op *op);
    /* Releases what the type has; with the lock. NULL: nothing. */
    void (*fini)(struct emu_op *op);
    /* Until then it does not run: an operation of a stream of this process, or
     * a recording of an event by another. */
    struct emu_stream *after;
    uint64_t after_number;
    struct emu_event *after_event;
    uint64_t after_generation;
    bool even_if_lost; /* Runs on a lost device, too. */
    unsigned uses_count;
    struct emu_range **uses;
};

enum emu_stream_state {
    EMU_STREAM_OPEN,
    EMU_STREAM_CLOSING,  /* Destroyed, with operations that still run. */
    EMU_STREAM_ENDED,    /* Its thread has ended. */
    EMU_STREAM_SUCCEEDED /* And a new stream has its timeline. */
};

struct emu_stream {
    struct emu_stream *next;
    struct emu_context *context;
    unsigned number;
    enum emu_stream_state state;
    bool blocking; /* Ordered with the NULL stream. */
    bool held;
    uint64_t timeline;
    uint64_t queued; /* Number of the last operation that was enqueued. */
    uint64_t done;   /* Of the last that has ended. */
    struct emu_clock clock;
    struct emu_op *head;
    struct emu_op *tail;
    uint64_t random;
};

/* Opens a stream; NULL: no thread can be made. */
struct emu_stream *emu_stream_open(struct emu_context *c, bool blocking);
/* Its operations still run. */
void emu_stream_close(struct emu_stream *s);
void emu_stream_close_all(const struct emu_context *c);
/* The stream of a handle. Aborts for one that has been destroyed. */
CUresult emu_stream_of(struct emu_context *current, CUstream handle,
                       struct emu_stream **ret_stream);
void emu_stream_hold(const void *stream, bool held);

/* Makes an operation of `size` bytes, zero but for its name. */
void *emu_op_new(size_t size, const char *name);
/* The operation uses memory, which is not freed until it has ended. */
void emu_op_use(struct emu_op *op, struct emu_range *r);
/* Appends the operation, which has at most one thing to wait for. */
void emu_op_enqueue(struct emu_stream *s, struct emu_op *op);
/* Checks and notes one access, while the operation runs. */
void emu_op_access(const struct emu_op *op, const struct emu_span *span,
                   bool write);

/* Sleeps for a random time that the seed and the stream's past determine; for
 * operations that run. */
void emu_stream_delay(struct emu_stream *s);

/* Orders all that follows in `s` behind operations of `other` up to `number`,
 * which has the clock of these ticks. */
void emu_stream_wait_stream(struct emu_stream *s, struct emu_stream *other,
                            uint64_t number, const struct emu_tick *ticks,
                            uint32_t count);
/* Waits until anything changes, with `poll` at most a moment. */
void emu_wait_for_change(bool poll);
/* Waits until the operation has ended; the lock is released meanwhile. */
CUresult emu_stream_await(struct emu_stream *s, uint64_t number);
/* The same for all that is queued; the host has then seen it. */
CUresult emu_stream_drain(struct emu_stream *s);
/* Drains all streams of a context. */
CUresult emu_stream_drain_all(const struct emu_context *c);
/* The host has seen that operations are completed. */
void emu_observe(const struct emu_clock *c);
