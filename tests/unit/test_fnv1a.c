/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/fnv1a.h"

#include <string.h>

/* Published with the algorithm: draft-eastlake-fnv. */
static void hashes_are_those_of_known_vectors(void **state)
{
    static const struct {
        const char *text;
        uint32_t h32;
        uint64_t h64;
    } vectors[] = {
        {"", 0x811c9dc5u, 0xcbf29ce484222325u},
        {"a", 0xe40c292cu, 0xaf63dc4c8601ec8cu},
        {"b", 0xe70c2de5u, 0xaf63df4c8601f1a5u},
        {"foobar", 0xbf9cf968u, 0x85944171f73967e8u},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        const char *text = vectors[i].text;

        assert_int_equal(ps_fnv1a_32(PS_FNV1A_32, text, strlen(text)),
                         vectors[i].h32);
        assert_true(ps_fnv1a_64(PS_FNV1A_64, text, strlen(text)) ==
                    vectors[i].h64);
    }
}

static void a_text_in_two_pieces_has_the_hash_of_the_whole(void **state)
{
    (void)state;
    assert_int_equal(ps_fnv1a_32(ps_fnv1a_32(PS_FNV1A_32, "foo", 3), "bar", 3),
                     0xbf9cf968u);
    assert_true(ps_fnv1a_64(ps_fnv1a_64(PS_FNV1A_64, "foo", 3), "bar", 3) ==
                0x85944171f73967e8u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_are_those_of_known_vectors),
        cmocka_unit_test(a_text_in_two_pieces_has_the_hash_of_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
