/* SPDX-License-Identifier: Apache-2.0 */
/* Output of many processes, line by line, with the rank in front. A line enters
 * its sink in one piece, so that lines of different ranks never mix.
 *
 * pslaunch never blocks in a write to a terminal or pipe: a sink is written
 * when poll() reports space, in pieces that fit. While a sink is full, the
 * pipes of its workers are not read, so workers wait for the reader as they
 * would without pslaunch; signals and exits are still handled. Lines of daemons
 * are dropped instead, because a daemon must not wait for a terminal. */
#include "pslaunch/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes from which a sink accepts no more lines. */
#define SINK_FULL (256u * 1024u)

/* -------------------------------------------------------------------- sinks */

bool sink_is_full(const struct sink *k)
{
    return k->len - k->read_offset >= SINK_FULL;
}

bool sink_is_empty(const struct sink *k)
{
    return k->len == k->read_offset;
}

static void sink_put(struct sink *k, const char *text, size_t len)
{
    if (k->failure.error != 0 || len == 0) {
        return;
    }
    if (k->read_offset > 0 && k->read_offset >= k->len / 2) {
        memmove(k->bytes, k->bytes + k->read_offset, k->len - k->read_offset);
        k->len -= k->read_offset;
        k->read_offset = 0;
    }
    if (k->len + len > k->capacity) {
        k->capacity = 2 * (k->len + len);
        k->bytes = realloc(k->bytes, k->capacity);
        if (k->bytes == NULL) {
            abort();
        }
    }
    memcpy(k->bytes + k->len, text, len);
    k->len += len;
}

void sink_write(struct sink *k)
{
    size_t len = k->len - k->read_offset;
    ssize_t n;

    /* poll() guarantees space for PIPE_BUF bytes only. */
    n = write(k->fd, k->bytes + k->read_offset,
              len < PIPE_BUF ? len : PIPE_BUF);
    if (n >= 0) {
        k->read_offset += (size_t)n;
    } else if (errno != EINTR && errno != EAGAIN) {
        k->failure.error = errno; /* The job continues without this output. */
        k->read_offset = k->len;
    }
}

void sink_print(struct sink *k, const char *fmt, ...)
{
    static const char name[] = "pslaunch: ";
    char text[1024];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n > 0) {
        sink_put(k, name, sizeof(name) - 1);
        sink_put(k, text,
                 (size_t)n < sizeof(text) ? (size_t)n : sizeof(text) - 1);
        sink_put(k, "\n", 1);
    }
}

/* ------------------------------------------------------------------ streams */

/* Blocks on the disk. */
static void file_put(struct log_file *f, const char *text, size_t len)
{
    while (f->fd >= 0 && f->failure.error == 0 && len > 0) {
        ssize_t n = write(f->fd, text, len);

        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            f->failure.error = errno;
        }
        if (n > 0) {
            text += n;
            len -= (size_t)n;
        }
    }
}

void log_file_close(struct log_file *f)
{
    if (f->fd >= 0 && close(f->fd) != 0 && f->failure.error == 0) {
        f->failure.error = errno;
    }
    f->fd = -1;
}

static void append_tail(struct stream *s, const char *text, size_t len)
{
    size_t cap = sizeof(s->tail);

    if (len >= cap) {
        text += len - cap;
        len = cap;
    }
    if (s->tail_len + len > cap) {
        size_t drop = s->tail_len + len - cap;

        memmove(s->tail, s->tail + drop, s->tail_len - drop);
        s->tail_len -= drop;
    }
    memcpy(s->tail + s->tail_len, text, len);
    s->tail_len += len;
}

static void emit_line(struct stream *s, const char *line, size_t len)
{
    if (!s->is_lossy || !sink_is_full(s->sink)) {
        sink_put(s->sink, s->tag, strlen(s->tag));
        sink_put(s->sink, line, len);
        sink_put(s->sink, "\n", 1);
    }
    if (s->file != NULL) {
        file_put(s->file, line, len);
        file_put(s->file, "\n", 1);
    }
    append_tail(s, line, len);
    append_tail(s, "\n", 1);
}

struct stream *stream_new(int in, struct sink *sink, struct log_file *file,
                          const char *tag)
{
    /* Fresh pages of the system: buffers that stay empty take no memory. */
    struct stream *s = calloc(1, sizeof(*s));

    if (s == NULL) {
        abort();
    }
    s->in = in;
    s->sink = sink;
    s->file = file;
    snprintf(s->tag, sizeof(s->tag), "%s", tag);
    return s;
}

bool stream_is_blocked(const struct stream *s)
{
    return !s->is_lossy && sink_is_full(s->sink);
}

static void split_lines(struct stream *s)
{
    size_t from = 0;

    for (;;) {
        char *end = memchr(s->line + from, '\n', s->len - from);

        if (end == NULL) {
            break;
        }
        emit_line(s, s->line + from, (size_t)(end - s->line) - from);
        from = (size_t)(end - s->line) + 1;
    }
    memmove(s->line, s->line + from, s->len - from);
    s->len -= from;
    /* Line longer than the buffer: in pieces. */
    if (s->len == sizeof(s->line)) {
        emit_line(s, s->line, s->len);
        s->len = 0;
    }
}

void stream_put(struct stream *s, const void *bytes, size_t len)
{
    const char *from = bytes;

    while (len > 0) {
        size_t n = sizeof(s->line) - s->len;

        n = n < len ? n : len;
        memcpy(s->line + s->len, from, n);
        s->len += n;
        from += n;
        len -= n;
        split_lines(s);
    }
}

bool stream_read(struct stream *s)
{
    while (!stream_is_blocked(s)) {
        ssize_t n = read(s->in, s->line + s->len, sizeof(s->line) - s->len);

        if (n > 0) {
            s->len += (size_t)n;
            split_lines(s);
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return true;
        } else {
            return false;
        }
    }
    return true;
}

void stream_close(struct stream *s)
{
    if (s->len > 0) {
        emit_line(s, s->line, s->len);
        s->len = 0;
    }
    if (s->in >= 0) {
        close(s->in);
        s->in = -1;
    }
}

void stream_free(struct stream *s)
{
    if (s != NULL) {
        stream_close(s);
        free(s);
    }
}
