/* SPDX-License-Identifier: Apache-2.0 */
/* Output of processes, on its way to that of pslaunch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* First write of an output that failed. The output gets nothing more, so that
 * it has no gap; the others go on. */
struct failure {
    int error; /* errno; 0: none has failed. */
    bool is_reported;
};

/* Bytes waiting for pslaunch's standard output or error. */
struct sink {
    int fd;
    struct failure failure;
    /* Valid from `read_offset` to `len`; freed by the sink's owner. */
    char *bytes;
    size_t read_offset;
    size_t len;
    size_t capacity;
};

/* True if the sink accepts no more lines of workers now. */
bool sink_is_full(const struct sink *k);
bool sink_is_empty(const struct sink *k);
/* Writes the bytes that fit, after poll() reported space. */
void sink_write(struct sink *k);
/* Adds "pslaunch: " and the text, as one line. */
void sink_print(struct sink *k, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* File of --output-dir: the lines of a process, without tags. */
struct log_file {
    int fd; /* -1: none. */
    struct failure failure;
    char path[600];
};

/* Closes the file, which may show that a write has failed. */
void log_file_close(struct log_file *f);

/* Line splitter of one output stream of one process. */
struct stream {
    int in;            /* Read end of the pipe; -1: closed, or on a host. */
    bool is_lossy;     /* A full sink drops its lines instead of blocking it. */
    struct sink *sink; /* Sink of standard output or error; borrowed. */
    struct log_file *file; /* Gets the lines, too; borrowed. */
    char tag[320];         /* "[3] ", "[n02:3] "; "": none. */
    char line[65536];
    size_t len;
    char tail[2048]; /* Last bytes, for the closing message. */
    size_t tail_len;
};

/* `in` does not block, or is -1: stream_put() then brings the bytes. */
struct stream *stream_new(int in, struct sink *sink, struct log_file *file,
                          const char *tag);
/* Frees the stream after its last line; NULL: no effect. */
void stream_free(struct stream *s);
/* True while its sink is full: it must not be read. */
bool stream_is_blocked(const struct stream *s);
/* Reads the bytes available, as far as they fit; false at the end of the
 * stream. */
bool stream_read(struct stream *s);
/* Adds bytes that came another way. */
void stream_put(struct stream *s, const void *bytes, size_t len);
void stream_close(struct stream *s);
