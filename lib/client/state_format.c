/* SPDX-License-Identifier: Apache-2.0 */
#include "client/state_format.h"

#include <errno.h>
#include <string.h>

#include "base/fnv1a.h"

#define WORD_BYTES  8u
#define CHUNK_BYTES 65536u /* Stays in the cache for the checksum. */

/* Detects accidental changes only. */
static void add_to_checksum(struct state_stream *s, const uint8_t *data,
                            size_t len)
{
    for (size_t i = 0; i < len; i += WORD_BYTES) {
        uint64_t word;

        memcpy(&word, data + i, WORD_BYTES);
        s->checksum = ps_fnv1a_64_add(s->checksum, word);
        s->checksum ^= s->checksum >> 29;
    }
}

static size_t chunk_of(size_t len)
{
    return len < CHUNK_BYTES ? len - len % WORD_BYTES : CHUNK_BYTES;
}

static void write_words(struct state_stream *s, const uint8_t *at, size_t len)
{
    s->has_failed = fwrite(at, 1, len, s->file) != len;
    s->error = s->has_failed ? errno : 0;
    add_to_checksum(s, at, len);
}

/* Writes the bytes, filled up to whole words. */
static void put_bytes(struct state_stream *s, const void *data, size_t len)
{
    const uint8_t *at = data;
    uint8_t tail[WORD_BYTES] = {0};

    while (len >= WORD_BYTES && !s->has_failed) {
        const size_t now = chunk_of(len);

        write_words(s, at, now);
        at += now;
        len -= now;
    }
    if (len > 0 && !s->has_failed) {
        memcpy(tail, at, len);
        write_words(s, tail, WORD_BYTES);
    }
}

/* Reads what put_bytes() has written. */
static void get_bytes(struct state_stream *s, void *data, size_t len)
{
    uint8_t *at = data;
    uint8_t tail[WORD_BYTES] = {0};

    while (len >= WORD_BYTES && !s->has_failed) {
        const size_t now = chunk_of(len);

        s->has_failed = fread(at, 1, now, s->file) != now;
        add_to_checksum(s, at, now);
        at += now;
        len -= now;
    }
    if (len > 0 && !s->has_failed) {
        s->has_failed = fread(tail, 1, WORD_BYTES, s->file) != WORD_BYTES;
        add_to_checksum(s, tail, WORD_BYTES);
        memcpy(at, tail, len);
    }
}

/* ------------------------------------------------------------------- write */

void state_put_start(struct state_stream *s,
                     const struct ps_fixed_state_file *start)
{
    uint8_t bytes[PS_FIXED_STATE_FILE_BYTES];

    ps_fixed_put_state_file(bytes, start);
    put_bytes(s, bytes, sizeof(bytes));
}

void state_put_key(struct state_stream *s,
                   const struct ps_fixed_state_file_key *key)
{
    uint8_t bytes[PS_FIXED_STATE_FILE_KEY_BYTES];

    ps_fixed_put_state_file_key(bytes, key);
    put_bytes(s, bytes, sizeof(bytes));
}

void state_put_buffer(struct state_stream *s, const void *data, size_t len)
{
    put_bytes(s, data, len);
}

void state_put_end(struct state_stream *s)
{
    const struct ps_fixed_state_file_end end = {.checksum = s->checksum};
    uint8_t bytes[PS_FIXED_STATE_FILE_END_BYTES];

    ps_fixed_put_state_file_end(bytes, &end);
    put_bytes(s, bytes, sizeof(bytes));
}

/* -------------------------------------------------------------------- read */

bool state_get_start(struct state_stream *s,
                     struct ps_fixed_state_file *ret_start)
{
    uint8_t bytes[PS_FIXED_STATE_FILE_BYTES];

    get_bytes(s, bytes, sizeof(bytes));
    return !s->has_failed && ps_fixed_get_state_file(bytes, ret_start);
}

bool state_get_key(struct state_stream *s,
                   struct ps_fixed_state_file_key *ret_key)
{
    uint8_t bytes[PS_FIXED_STATE_FILE_KEY_BYTES];

    get_bytes(s, bytes, sizeof(bytes));
    return !s->has_failed && ps_fixed_get_state_file_key(bytes, ret_key) &&
           memchr(ret_key->name, '\0', sizeof(ret_key->name)) != NULL;
}

void state_get_buffer(struct state_stream *s, void *data, size_t len)
{
    get_bytes(s, data, len);
}

bool state_get_end(struct state_stream *s)
{
    const uint64_t checksum = s->checksum;
    struct ps_fixed_state_file_end end;
    uint8_t bytes[PS_FIXED_STATE_FILE_END_BYTES];

    get_bytes(s, bytes, sizeof(bytes));
    return !s->has_failed && ps_fixed_get_state_file_end(bytes, &end) &&
           end.checksum == checksum;
}
