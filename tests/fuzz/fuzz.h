/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target is one function that libFuzzer or replay.c calls. It aborts
 * (assert) if the code under test breaks a promise. */
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Input of a target that takes steps, which the bytes choose. */
struct fuzz_input {
    const uint8_t *data;
    size_t size;
    size_t at;
};

/* The next byte; 0 behind the end. */
static inline uint8_t fuzz_byte(struct fuzz_input *in)
{
    return in->at < in->size ? in->data[in->at++] : 0;
}

/* The next bytes, up to `most`. */
static inline const uint8_t *fuzz_bytes(struct fuzz_input *in, size_t most,
                                        size_t *ret_len)
{
    const uint8_t *bytes = in->data + in->at;

    *ret_len = most < in->size - in->at ? most : in->size - in->at;
    in->at += *ret_len;
    return bytes;
}
