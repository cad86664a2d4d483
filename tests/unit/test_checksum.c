/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of frames: those of the instructions that this processor has are those
 * of any other, because the two ends of a connection may have different ones. */
#include "net/checksum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { LEN = 300000 };
static uint8_t bytes[LEN];

static int fill(void **state)
{
    (void)state;
    for (size_t i = 0; i < LEN; i++) {
        bytes[i] = (uint8_t)(i * 31 + i / 251);
    }
    return 0;
}

/* A fixed value of the algorithm, for all versions of the library. */
static void checksum_of_nothing_is_that_of_xxh3(void **state)
{
    (void)state;
    assert_true(ps_checksum(&(struct iovec){bytes, 0}, 1, 0) ==
                0x2d06800538d394c2u);
    assert_true(ps_checksum_slices(NULL, 0) == 0);
}

static void every_length_has_the_portable_checksum(void **state)
{
    (void)state;
    for (size_t len = 0; len < LEN; len = len < 1500 ? len + 1 : len * 3) {
        for (size_t from = 0; from < 3 && from + len <= LEN; from++) {
            const struct iovec one = {bytes + from, len};

            for (uint64_t seed = 0; seed < 3; seed++) {
                assert_true(ps_checksum(&one, 1, seed) ==
                            XXH3_64bits_withSeed(bytes + from, len, seed));
            }
        }
    }
}

static void pieces_have_the_checksum_of_the_whole(void **state)
{
    const size_t cuts[] = {0, 1, 63, 240, 1024, 5000, LEN - 7};

    (void)state;
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        struct iovec pieces[] = {{bytes, cuts[i]},
                                 {bytes + cuts[i], LEN - cuts[i]}};
        struct ps_buf *buf = ps_buf_new(LEN);
        const struct ps_slice slices[] = {
            {.buf = buf, .len = cuts[i]},
            {.buf = buf, .offset = cuts[i], .len = LEN - cuts[i]}};
        const struct ps_slice whole = {.buf = buf, .len = LEN};

        memcpy(buf->data, bytes, LEN);
        assert_true(ps_checksum(pieces, 2, 9) ==
                    XXH3_64bits_withSeed(bytes, LEN, 9));
        assert_true(ps_checksum_slices(slices, 2) == XXH3_64bits(bytes, LEN));
        assert_true(ps_checksum_slices(&whole, 1) == XXH3_64bits(bytes, LEN));
        ps_buf_unref(buf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksum_of_nothing_is_that_of_xxh3),
        cmocka_unit_test(every_length_has_the_portable_checksum),
        cmocka_unit_test(pieces_have_the_checksum_of_the_whole),
    };

    return cmocka_run_group_tests(tests, fill, NULL);
}
