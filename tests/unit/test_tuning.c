/* SPDX-License-Identifier: Apache-2.0 */
/* Multipliers of keys are found by name hash; changes stay in order, and few. */
#include "core/optim/tuning.h"

#include "base/name_hash.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void hashes_of_names_never_change(void **state)
{
    static const struct {
        enum ps_key_kind kind;
        const char *name;
        uint64_t hash;
    } cases[] = {
        {PS_KEY_KIND_STRING, "a", 0x819b8219ddc25832},
        {PS_KEY_KIND_STRING, "fc1.weight", 0x761a550a81ac0daa},
        {PS_KEY_KIND_STRING,
         "gr\xc3\xb6\xc3\x9f"
         "e",
         0x644fc2c66a351bb6},
        {PS_KEY_KIND_STRING, "7", 0x819bd819ddc1b454},
        {PS_KEY_KIND_INTEGER, "7", 0x2b0a3e19005f624e},
        {PS_KEY_KIND_INTEGER, "2147483647", 0xe8f3e1c99193a42a},
        {PS_KEY_KIND_COLLECTIVE, "meet", 0x68cc58705420cc3e},
        {PS_KEY_KIND_COLLECTIVE, "sum.float32.4096", 0x0dcdd9a2894d94e8},
        /* Norm-exempt. */
        {PS_KEY_KIND_STRING, "fc1.bias", 0xd1c6d5eabd21a16f},
        {PS_KEY_KIND_STRING, "bn_gamma", 0xf44df925d123b2f7},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(ps_name_hash(cases[i].kind, cases[i].name),
                         cases[i].hash);
    }
    assert_true(ps_name_hash(PS_KEY_KIND_STRING, "bn_beta") % 2 == 1);
    assert_true(ps_name_hash(PS_KEY_KIND_STRING, "beta2") % 2 == 0);
    assert_true(ps_name_hash(PS_KEY_KIND_STRING, "") != 0);
}

static void kinds_have_names(void **state)
{
    (void)state;
    assert_string_equal(ps_key_kind_name(PS_KEY_KIND_STRING), "string");
    assert_string_equal(ps_key_kind_name(PS_KEY_KIND_INTEGER), "integer");
    assert_string_equal(ps_key_kind_name(PS_KEY_KIND_COLLECTIVE), "collective");
    assert_string_equal(ps_key_kind_name(3), "?");
}

static void a_table_is_checked_and_searched(void **state)
{
    struct ps_rec_tuning list[] = {
        {.name_hash = 2, .lr_mult = 1, .wd_mult = 0},
        {.name_hash = 7, .lr_mult = 3, .wd_mult = 1},
        {.name_hash = 9, .lr_mult = 1, .wd_mult = 5}};
    struct ps_tunings t = {0};
    struct ps_str why = PS_STR_ROOM(512);

    (void)state;
    assert_int_equal(ps_tunings_check(list, 3, &why), 0);
    ps_tunings_set(&t, list, 3);
    assert_null(ps_tunings_find(&t, 1, 5));
    assert_null(ps_tunings_find(&t, 8, 5));
    assert_null(ps_tunings_find(&t, 10, 5));
    for (unsigned i = 0; i < 3; i++) {
        assert_true(ps_tunings_find(&t, list[i].name_hash, 1)->lr_mult ==
                    list[i].lr_mult);
    }
    assert_true(ps_tunings_equal(t.list, t.count, list, 3));
    assert_false(ps_tunings_equal(t.list, t.count, list, 2));
    list[1].wd_mult = 2;
    assert_false(ps_tunings_equal(t.list, t.count, list, 3));
    list[1].lr_mult = NAN;
    assert_int_equal(ps_tunings_check(list, 3, &why), PS_E_INVAL);
    list[1].lr_mult = -1;
    assert_int_equal(ps_tunings_check(list, 3, &why), PS_E_INVAL);
    list[1] = list[0];
    assert_int_equal(ps_tunings_check(list, 3, &why), PS_E_INVAL);
    assert_non_null(strstr(why.data, "twice"));
    assert_int_equal(ps_tunings_check(list, PS_TUNINGS_MAX + 1, &why),
                     PS_E_INVAL);
    ps_tunings_fini(&t);
}

/* Adds one entry, with an lr_mult of `round`; true: the table has changed. */
static bool add(struct ps_tunings *t, uint64_t name_hash, uint64_t round)
{
    const struct ps_rec_tuning new = {.name_hash = name_hash,
                                      .lr_mult = (double)round,
                                      .wd_mult = 1,
                                      .round = round};
    bool changed = false;
    struct ps_str why = PS_STR_ROOM(512);

    assert_int_equal(ps_tunings_add(t, &new, 1, &changed, &why), 0);
    return changed;
}

static double rate_at(const struct ps_tunings *t, uint64_t name_hash,
                      uint64_t round)
{
    const struct ps_rec_tuning *found = ps_tunings_find(t, name_hash, round);

    return found != NULL ? found->lr_mult : 1;
}

static void multipliers_change_at_their_rounds(void **state)
{
    struct ps_rec_tuning new = {
        .name_hash = 7, .lr_mult = 4, .wd_mult = 1, .round = 4};
    struct ps_tunings t = {0};
    struct ps_str why = PS_STR_ROOM(512);

    (void)state;
    assert_true(add(&t, 7, 9));
    assert_true(add(&t, 7, 4));
    assert_true(add(&t, 3, 6));
    assert_int_equal(ps_tunings_check(t.list, t.count, &why), 0);
    assert_true(rate_at(&t, 7, 3) == 1);
    assert_true(rate_at(&t, 7, 4) == 4);
    assert_true(rate_at(&t, 7, 8) == 4);
    assert_true(rate_at(&t, 7, 9) == 9);
    assert_true(rate_at(&t, 3, 9) == 6);
    assert_true(rate_at(&t, 5, 9) == 1);
    assert_false(add(&t, 7, 4)); /* Again. */
    assert_int_equal(t.count, 3);
    assert_null(ps_tunings_conflict(&t, &new));
    new.wd_mult = 0;
    assert_non_null(ps_tunings_conflict(&t, &new));
    new.round = 5;
    assert_null(ps_tunings_conflict(&t, &new));
    ps_tunings_fini(&t);
}

static void the_oldest_replaced_multiplier_goes(void **state)
{
    struct ps_rec_tuning more = {.name_hash = 1, .lr_mult = 1, .wd_mult = 1};
    struct ps_tunings t = {0};
    bool changed = false;
    struct ps_str why = PS_STR_ROOM(512);

    (void)state;
    for (unsigned i = 0; i < PS_TUNINGS_MAX / 2; i++) {
        add(&t, 2 * i + 2, 0);
        add(&t, 2 * i + 2, 5 + i);
    }
    assert_int_equal(t.count, PS_TUNINGS_MAX);
    add(&t, 1, 3);
    assert_int_equal(t.count, PS_TUNINGS_MAX);
    assert_true(rate_at(&t, 2, 1) == 5); /* Early. */
    assert_true(rate_at(&t, 4, 1) == 0);
    assert_true(rate_at(&t, 1, 3) == 3);
    /* As many keys as there may be, each with its newest entry. */
    for (unsigned i = 0; i < PS_TUNINGS_MAX / 2 - 1; i++) {
        add(&t, 2 * i + 3, 2);
    }
    assert_int_equal(t.count, PS_TUNINGS_MAX);
    assert_int_equal(ps_tunings_check(t.list, t.count, &why), 0);
    assert_true(rate_at(&t, 6, 1) == 7);
    add(&t, 6, 90);
    assert_true(rate_at(&t, 6, 1) == 90);
    more.name_hash = 100000;
    assert_int_equal(ps_tunings_add(&t, &more, 1, &changed, &why), PS_E_INVAL);
    assert_non_null(strstr(why.data, "given for 2049 keys"));
    assert_false(changed);
    ps_tunings_fini(&t);
}

static void the_oldest_replaced_change_goes(void **state)
{
    struct ps_changes c = {0};

    (void)state;
    ps_changes_add(&c, &(struct ps_rec_change){"wd", 1, 1});
    for (unsigned i = 0; i < 3 * PS_CHANGES_MAX; i++) {
        ps_changes_add(&c, &(struct ps_rec_change){"lr", i, 2 * i + 4});
    }
    /* Late, and in its place. */
    ps_changes_add(&c, &(struct ps_rec_change){"clip", 7, 2});
    assert_int_equal(c.count, PS_CHANGES_MAX);
    assert_string_equal(c.list[0].name, "wd");
    assert_string_equal(c.list[1].name, "clip");
    for (uint32_t i = 1; i < c.count; i++) {
        assert_true(c.list[i].round >= c.list[i - 1].round);
    }
    assert_true(c.list[2].round == 4); /* With a newer value. */
    assert_true(c.list[c.count - 1].value == 3 * PS_CHANGES_MAX - 1);
    assert_non_null(ps_changes_find(&c, "clip", 2));
    assert_null(ps_changes_find(&c, "clip", 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_of_names_never_change),
        cmocka_unit_test(kinds_have_names),
        cmocka_unit_test(a_table_is_checked_and_searched),
        cmocka_unit_test(multipliers_change_at_their_rounds),
        cmocka_unit_test(the_oldest_replaced_multiplier_goes),
        cmocka_unit_test(the_oldest_replaced_change_goes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
