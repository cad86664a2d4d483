/* SPDX-License-Identifier: Apache-2.0 */
/* Output of many processes, line by line, with the rank in front. A line is
 * written in one piece, so that lines of different ranks never mix. */
#include "pslaunch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static void write_all(int fd, const struct iovec *iov, int count)
{
    struct iovec copy[3];

    memcpy(copy, iov, (size_t)count * sizeof(*iov));
    for (int i = 0; i < count;) {
        ssize_t n = writev(fd, copy + i, count - i);

        if (n < 0) {
            if (errno == EINTR || errno == EAGAIN) {
                continue;
            }
            return; /* Nobody reads us: the job goes on. */
        }
        while (i < count && (size_t)n >= copy[i].iov_len) {
            n -= (ssize_t)copy[i].iov_len;
            i++;
        }
        if (i < count) {
            copy[i].iov_base = (char *)copy[i].iov_base + n;
            copy[i].iov_len -= (size_t)n;
        }
    }
}

static void keep_tail(struct stream *s, const char *text, size_t len)
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

static void emit(struct stream *s, char *line, size_t len)
{
    char newline[] = "\n";
    struct iovec iov[3] = {
        {.iov_base = s->tag, .iov_len = strlen(s->tag)},
        {.iov_base = line, .iov_len = len},
        {.iov_base = newline, .iov_len = 1},
    };

    write_all(s->out, iov, 3);
    if (s->file >= 0) {
        write_all(s->file, iov + 1, 2);
    }
    keep_tail(s, line, len);
    keep_tail(s, "\n", 1);
}

void stream_init(struct stream *s, int in, int out, int file, const char *tag)
{
    memset(s, 0, sizeof(*s));
    s->in = in;
    s->out = out;
    s->file = file;
    snprintf(s->tag, sizeof(s->tag), "%s", tag);
    fcntl(in, F_SETFL, fcntl(in, F_GETFL) | O_NONBLOCK);
}

static void split_lines(struct stream *s)
{
    size_t from = 0;

    for (;;) {
        char *end = memchr(s->line + from, '\n', s->len - from);

        if (end == NULL) {
            break;
        }
        emit(s, s->line + from, (size_t)(end - s->line) - from);
        from = (size_t)(end - s->line) + 1;
    }
    memmove(s->line, s->line + from, s->len - from);
    s->len -= from;
    if (s->len == sizeof(s->line)) { /* A line without end: in pieces. */
        emit(s, s->line, s->len);
        s->len = 0;
    }
}

bool stream_read(struct stream *s)
{
    for (;;) {
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
}

void stream_close(struct stream *s)
{
    if (s->in < 0) {
        return;
    }
    if (s->len > 0) {
        emit(s, s->line, s->len);
        s->len = 0;
    }
    close(s->in);
    s->in = -1;
    if (s->file >= 0) {
        close(s->file);
        s->file = -1;
    }
}
