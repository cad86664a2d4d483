/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of compression: defaults, ranges, error texts. */
#include "core/codec/compression.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static char why[300];

static int parse(const char *name, const struct ps_rec_param *params,
                 uint32_t count, struct ps_compression *c)
{
    struct ps_str s;

    ps_str_init(&s, why, sizeof(why));
    return ps_compression_parse(name, params, count, c, &s);
}

static void expect_refused(const char *name, const char *param, double value,
                           int rc, const char *word)
{
    const struct ps_rec_param p = {.name = param, .value = value};
    struct ps_compression c = {.min_bytes = 77};

    assert_int_equal(parse(name, &p, param == NULL ? 0 : 1, &c), rc);
    if (strstr(why, word) == NULL) {
        fail_msg("'%s' does not say '%s'", why, word);
    }
    assert_int_equal(c.min_bytes, 77);
}

static void codecs_have_their_defaults(void **state)
{
    struct ps_compression c;

    (void)state;
    assert_int_equal(parse("", NULL, 0, &c), 0);
    assert_int_equal(c.codec.kind, PS_CODEC_NONE);
    assert_int_equal(parse(NULL, NULL, 0, &c), 0);
    assert_int_equal(parse("2bit", NULL, 0, &c), 0);
    assert_int_equal(c.codec.kind, PS_CODEC_2BIT);
    assert_true(c.codec.feedback);
    assert_true(c.codec.threshold >= 0.5f && c.codec.threshold <= 0.5f);
    assert_int_equal(parse("1bit", NULL, 0, &c), 0);
    assert_true(c.codec.feedback && c.codec.threshold <= 0);
    assert_int_equal(parse("fp16", NULL, 0, &c), 0);
    assert_true(!c.codec.feedback);
    assert_int_equal(parse("onebit", NULL, 0, &c), 0);
    assert_true(c.codec.feedback && c.codec.scaling);
    assert_int_equal(parse("dithering", NULL, 0, &c), 0);
    assert_int_equal(c.codec.kind, PS_CODEC_DITHER);
    assert_int_equal(c.codec.levels, 7);
}

static void numbers_of_a_declaration_are_kept(void **state)
{
    const struct ps_rec_param p[] = {{.name = "natural", .value = 1},
                                     {.name = "levels", .value = 31},
                                     {.name = "l2", .value = 1},
                                     {.name = "seed", .value = 9},
                                     {.name = "ef", .value = 0},
                                     {.name = "momentum", .value = 0.5},
                                     {.name = "min_bytes", .value = 65536}};
    struct ps_compression c;

    (void)state;
    assert_int_equal(parse("dithering", p, 7, &c), 0);
    assert_int_equal(c.codec.kind, PS_CODEC_NATURAL);
    assert_int_equal(c.codec.levels, 31);
    assert_int_equal(c.codec.seed, 9);
    assert_true(c.codec.l2 && !c.codec.feedback);
    assert_int_equal(c.min_bytes, 65536);
    assert_true(ps_compression_applies(&c, PS_DTYPE_FLOAT32, 16384));
    assert_false(ps_compression_applies(&c, PS_DTYPE_FLOAT32, 16383));
    assert_false(ps_compression_applies(&c, PS_DTYPE_FLOAT64, 16384));
    assert_false(ps_compression_applies(&c, PS_DTYPE_FLOAT32, UINT32_MAX));
}

static void malformed_declarations_are_refused_with_a_text(void **state)
{
    const struct ps_rec_param twice[] = {{.name = "k", .value = 1},
                                         {.name = "k", .value = 2}};
    struct ps_compression c;

    (void)state;
    expect_refused("zip", NULL, 0, PS_E_UNSUPPORTED,
                   "no compression is called 'zip'; there is 2bit, 1bit");
    expect_refused("2bit", "k", 1, PS_E_INVAL,
                   "2bit has no parameter 'k'; it has threshold, momentum");
    expect_refused("2bit", "threshold", 0, PS_E_INVAL, "above 0, not 0");
    expect_refused("2bit", "threshold", 1e-60, PS_E_INVAL, "above 0");
    expect_refused("1bit", "threshold", -1, PS_E_INVAL, "not be negative");
    expect_refused("topk", "k", 0, PS_E_INVAL, "share below 1 or a whole");
    expect_refused("topk", "k", 2.5, PS_E_INVAL, "share below 1 or a whole");
    expect_refused("topk", "k", NAN, PS_E_INVAL, "must be a finite number");
    expect_refused("fp16", "ef", 2, PS_E_INVAL, "0 or 1");
    expect_refused("fp16", "momentum", 1, PS_E_INVAL, "less than 1");
    expect_refused("fp16", "min_bytes", -1, PS_E_INVAL, "whole number");
    expect_refused("randomk", "seed", 0.5, PS_E_INVAL, "whole number");
    expect_refused("dithering", "levels", 128, PS_E_INVAL, "1 to 127");
    assert_int_equal(parse("topk", twice, 2, &c), PS_E_INVAL);
    assert_non_null(strstr(why, "k of topk is given twice"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codecs_have_their_defaults),
        cmocka_unit_test(numbers_of_a_declaration_are_kept),
        cmocka_unit_test(malformed_declarations_are_refused_with_a_text),
    };

    return cmocka_run_group_tests_name("compress", tests, NULL, NULL);
}
