/* SPDX-License-Identifier: Apache-2.0 */
/* Every implementation of AES-GCM gives the bytes of the standard, however a
 * message is divided, and accepts no other ones.
 *
 *     gcm_suite openssl|ipsec_mb */
#include "base/alloc.h"
#include "crypto/gcm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LEN_MAX 16385u

static const struct ps_gcm_ops *ops;
static const uint8_t key_bytes[32] = {
    0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f,
    0x94, 0x67, 0x30, 0x83, 0x08, 0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65,
    0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08};
static const uint8_t nonce[PS_GCM_NONCE] = {0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce,
                                            0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88};
static const uint8_t header[] = {0xfe, 0xed, 0xfa, 0xce, 0xde, 0xad, 0xbe,
                                 0xef, 0xfe, 0xed, 0xfa, 0xce, 0xde, 0xad,
                                 0xbe, 0xef, 0xab, 0xad, 0xda, 0xd2};
static uint8_t plain[LEN_MAX];
static uint8_t sealed[LEN_MAX];
static uint8_t opened[LEN_MAX];

static uint32_t random_below(uint32_t bound)
{
    static uint64_t state = 88172645463325252u;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state % bound);
}

static void fill_plain(void)
{
    for (size_t i = 0; i < LEN_MAX; i++) {
        plain[i] = (uint8_t)random_below(256);
    }
}

/* One message, divided into up to `pieces`. Encrypting writes the tag. */
static bool work(const struct ps_gcm_ops *by, void *ctx, const uint8_t *in,
                 size_t len, uint32_t pieces, uint8_t *out, uint8_t *tag)
{
    bool good = by->begin(ctx, nonce, header, sizeof(header));

    for (size_t at = 0; good && at < len;) {
        size_t n = pieces > 1 ? 1 + random_below((uint32_t)(len - at))
                              : len - at;

        good = by->update(ctx, out + at, in + at, n);
        at += n;
        pieces--;
    }
    return by->finish(ctx, tag) && good;
}

static void from_hex(const char *hex, uint8_t *out)
{
    for (; hex[0] != '\0'; hex += 2) {
        unsigned byte;

        assert_int_equal(sscanf(hex, "%2x", &byte), 1);
        *out++ = (uint8_t)byte;
    }
}

/* Test cases 4 and 16 of the proposal of the mode to NIST. */
static void known_answers(void **state)
{
    static const struct {
        size_t key_len;
        const char *sealed;
        const char *tag;
    } answers[] = {
        {16,
         "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d5"
         "14b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
         "5bc94fbc3221a5db94fae95ae7121a47"},
        {32,
         "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb0"
         "8e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
         "76fc6ece0f4e1768cddf8853bb2d551b"},
    };
    uint8_t text[60];
    uint8_t want[60];
    uint8_t want_tag[PS_GCM_TAG];

    (void)state;
    from_hex("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
             "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
             text);
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        void *c = ops->open(key_bytes, answers[i].key_len, true);
        uint8_t tag[PS_GCM_TAG];

        from_hex(answers[i].sealed, want);
        from_hex(answers[i].tag, want_tag);
        assert_true(work(ops, c, text, sizeof(text), 1, sealed, tag));
        assert_memory_equal(sealed, want, sizeof(want));
        assert_memory_equal(tag, want_tag, sizeof(tag));
        ops->close(c);
    }
}

/* Keys of both lengths, used for many messages. */
static void bytes_do_not_depend_on_the_division(void **state)
{
    (void)state;
    fill_plain();
    for (size_t key_len = 16; key_len <= 32; key_len += 16) {
        void *one = ps_gcm_openssl.open(key_bytes, key_len, true);
        void *to = ops->open(key_bytes, key_len, true);
        void *from = ops->open(key_bytes, key_len, false);

        for (uint32_t i = 0; i < 1200; i++) {
            static uint8_t want[LEN_MAX];
            size_t len = i < 300      ? i
                         : i == 300   ? LEN_MAX
                         : i % 2 == 0 ? random_below(LEN_MAX + 1)
                                      : random_below(1200);
            uint8_t tag[PS_GCM_TAG];
            uint8_t want_tag[PS_GCM_TAG];

            assert_true(
                work(&ps_gcm_openssl, one, plain, len, 1, want, want_tag));
            assert_true(
                work(ops, to, plain, len, 1 + random_below(6), sealed, tag));
            assert_memory_equal(sealed, want, len);
            assert_memory_equal(tag, want_tag, sizeof(tag));
            assert_true(
                work(ops, from, sealed, len, 1 + random_below(6), opened, tag));
            assert_memory_equal(opened, plain, len);
        }
        ps_gcm_openssl.close(one);
        ops->close(to);
        ops->close(from);
    }
}

/* A change of any bit of the tag, or of a byte of the message, is noticed, and
 * the next message is accepted. */
static void changed_messages_are_refused(void **state)
{
    const size_t len = 1000;
    void *to = ops->open(key_bytes, 16, true);
    void *from = ops->open(key_bytes, 16, false);
    uint8_t tag[PS_GCM_TAG];

    (void)state;
    fill_plain();
    assert_true(work(ops, to, plain, len, 1, sealed, tag));
    for (size_t i = 0; i < 8 * sizeof(tag); i++) {
        tag[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_false(work(ops, from, sealed, len, 3, opened, tag));
        tag[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    for (size_t i = 0; i < len; i++) {
        sealed[i] ^= (uint8_t)(1u << i % 8);
        assert_false(work(ops, from, sealed, len, 3, opened, tag));
        sealed[i] ^= (uint8_t)(1u << i % 8);
    }
    assert_false(work(ops, from, sealed, len - 1, 1, opened, tag));
    assert_true(work(ops, from, sealed, len, 1, opened, tag));
    assert_memory_equal(opened, plain, len);
    ops->close(to);
    ops->close(from);
    assert_int_equal(ps_alloc_live(), 0);
}

/* A message that is given up leaves nothing behind in the next one. */
static void a_message_may_be_given_up(void **state)
{
    void *to = ops->open(key_bytes, 32, true);
    uint8_t tag[PS_GCM_TAG];
    uint8_t again[PS_GCM_TAG];

    (void)state;
    fill_plain();
    assert_true(work(ops, to, plain, 777, 1, sealed, tag));
    assert_true(ops->begin(to, nonce, header, sizeof(header)));
    assert_true(ops->update(to, opened, plain, 100));
    assert_true(work(ops, to, plain, 777, 1, opened, again));
    assert_memory_equal(sealed, opened, 777);
    assert_memory_equal(tag, again, sizeof(tag));
    ops->close(to);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(bytes_do_not_depend_on_the_division),
        cmocka_unit_test(changed_messages_are_refused),
        cmocka_unit_test(a_message_may_be_given_up),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: gcm_suite openssl|ipsec_mb\n");
        return 2;
    }
    ops = strcmp(argv[1], "openssl") == 0 ? &ps_gcm_openssl : ps_gcm_ipsec_mb();
    if (ops == NULL) {
        printf(
            "1..0 # SKIP no libIPSec_MB of the build's version, or no AVX-512 "
            "with VAES\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
