/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

static const struct ps_account_limits session_limits = {
    .limit = {
        [PS_COST_REGIONS] = {.max = 10, .option = "limits.session.regions"},
        [PS_COST_OPERATIONS] = {.max = 100}}};
static const struct ps_account_limits user_limits = {
    .limit = {[PS_COST_REGIONS] = {.max = 15, .option = "limits.user.regions"},
              [PS_COST_MAPPED] = {.max = 3ull << 30,
                                  .option = "limits.user.mapped"}}};
static const struct ps_account_limits daemon_limits = {
    .limit = {
        [PS_COST_REGIONS] = {.max = 20, .option = "limits.daemon.regions"}}};

/* Two sessions of a job of one user, one of another. */
struct tree {
    struct ps_account daemon;
    struct ps_account user[2];
    struct ps_account job;
    struct ps_account session[3];
};

static void tree_init(struct tree *t)
{
    memset(t, 0, sizeof(*t));
    ps_account_init(&t->daemon, PS_ACCOUNT_DAEMON, "agent", &daemon_limits);
    ps_account_init(&t->user[0], PS_ACCOUNT_USER, "1000", &user_limits);
    ps_account_init(&t->user[1], PS_ACCOUNT_USER, "1001", &user_limits);
    ps_account_init(&t->job, PS_ACCOUNT_JOB, "resnet", NULL);
    ps_account_add_parent(&t->user[0], &t->daemon);
    ps_account_add_parent(&t->user[1], &t->daemon);
    ps_account_add_parent(&t->job, &t->daemon);
    for (unsigned i = 0; i < 3; i++) {
        ps_account_init(&t->session[i], PS_ACCOUNT_SESSION, "7",
                        &session_limits);
        ps_account_add_parent(&t->session[i], &t->user[i == 2]);
        if (i < 2) {
            ps_account_add_parent(&t->session[i], &t->job);
        }
    }
}

static void tree_fini(struct tree *t)
{
    for (unsigned i = 0; i < 3; i++) {
        ps_account_fini(&t->session[i]);
    }
    ps_account_fini(&t->job);
    ps_account_fini(&t->user[0]);
    ps_account_fini(&t->user[1]);
    ps_account_fini(&t->daemon);
}

static uint64_t used(const struct ps_account *a)
{
    return a->cost[PS_COST_REGIONS].used;
}

static int charge(struct ps_account *a, uint64_t amount, struct ps_refusal *why)
{
    return ps_account_charge(a, PS_COST_REGIONS, amount, why);
}

static void expect_text(const struct ps_refusal *r, const char *text)
{
    char got[256];
    struct ps_str s;

    ps_str_init(&s, got, sizeof(got));
    ps_refusal_text(r, &s);
    assert_string_equal(got, text);
}

static void a_charge_counts_once_at_every_ancestor(void **state)
{
    struct tree t;

    (void)state;
    tree_init(&t);
    assert_int_equal(charge(&t.session[0], 3, NULL), 0);
    assert_int_equal(charge(&t.session[1], 2, NULL), 0);
    assert_int_equal(charge(&t.session[2], 4, NULL), 0);
    assert_int_equal(used(&t.session[0]), 3);
    assert_int_equal(used(&t.job), 5);
    assert_int_equal(used(&t.user[0]), 5);
    assert_int_equal(used(&t.user[1]), 4);
    assert_int_equal(used(&t.daemon), 9);
    assert_int_equal(t.daemon.cost[PS_COST_MAPPED].used, 0);
    ps_account_refund(&t.session[0], PS_COST_REGIONS, 3);
    ps_account_refund(&t.session[1], PS_COST_REGIONS, 2);
    ps_account_refund(&t.session[2], PS_COST_REGIONS, 4);
    assert_int_equal(used(&t.daemon), 0);
    assert_int_equal(t.daemon.cost[PS_COST_REGIONS].peak, 9);
    tree_fini(&t);
}

static void a_refused_charge_leaves_nothing_behind(void **state)
{
    struct ps_refusal why;
    struct tree t;

    (void)state;
    tree_init(&t);
    assert_int_equal(charge(&t.session[0], 10, &why), 0);
    assert_int_equal(charge(&t.session[0], 1, &why), PS_E_FULL);
    expect_text(&why,
                "session 7 has 10 of 10 regions (limits.session.regions)");
    assert_int_equal(charge(&t.session[1], 6, &why), PS_E_FULL);
    expect_text(&why, "user 1000 has 10 of 15 regions and needs 6 more "
                      "(limits.user.regions)");
    assert_int_equal(charge(&t.session[2], 10, &why), 0);
    assert_int_equal(charge(&t.session[1], 1, &why), PS_E_FULL);
    expect_text(&why,
                "this daemon has 20 of 20 regions (limits.daemon.regions)");
    assert_int_equal(used(&t.session[1]), 0);
    assert_int_equal(used(&t.job), 10);
    assert_int_equal(used(&t.user[0]), 10);
    assert_int_equal(used(&t.daemon), 20);
    assert_int_equal(t.session[0].cost[PS_COST_REGIONS].refused, 1);
    assert_int_equal(t.session[1].cost[PS_COST_REGIONS].refused, 2);
    assert_int_equal(t.session[2].cost[PS_COST_REGIONS].refused, 0);
    assert_int_equal(t.user[0].cost[PS_COST_REGIONS].refused, 3);
    assert_int_equal(t.daemon.cost[PS_COST_REGIONS].refused, 3);
    ps_account_refund(&t.session[0], PS_COST_REGIONS, 10);
    ps_account_refund(&t.session[2], PS_COST_REGIONS, 10);
    assert_int_equal(charge(&t.session[1], 1, NULL), 0);
    ps_account_refund(&t.session[1], PS_COST_REGIONS, 1);
    tree_fini(&t);
}

static void amounts_that_wrap_are_refused(void **state)
{
    struct ps_refusal why;
    struct tree t;

    (void)state;
    tree_init(&t);
    assert_int_equal(
        ps_account_charge(&t.session[0], PS_COST_MAPPED, 1ull << 30, &why), 0);
    assert_int_equal(
        ps_account_charge(&t.session[0], PS_COST_MAPPED, UINT64_MAX, &why),
        PS_E_FULL);
    assert_int_equal(
        ps_account_charge(&t.session[0], PS_COST_MAPPED, 5ull << 29, &why),
        PS_E_FULL);
    expect_text(&why, "user 1000 has 1.0 GiB of 3.0 GiB of mapped memory and "
                      "needs 2.5 GiB more (limits.user.mapped)");
    ps_account_refund(&t.session[0], PS_COST_MAPPED, 1ull << 30);
    /* Without any limit. */
    assert_int_equal(ps_account_charge(&t.job, PS_COST_MEMORY, 5, &why), 0);
    assert_int_equal(
        ps_account_charge(&t.job, PS_COST_MEMORY, UINT64_MAX, &why), PS_E_FULL);
    assert_int_equal(
        ps_account_charge(&t.job, PS_COST_MEMORY, UINT64_MAX - 5, &why), 0);
    ps_account_refund(&t.job, PS_COST_MEMORY, UINT64_MAX);
    tree_fini(&t);
}

static void account_moves_its_costs_to_its_new_parent(void **state)
{
    struct ps_account job;
    struct tree t;

    (void)state;
    tree_init(&t);
    ps_account_init(&job, PS_ACCOUNT_JOB, "late", NULL);
    ps_account_add_parent(&job, &t.daemon);
    assert_int_equal(charge(&t.session[2], 4, NULL), 0);
    ps_account_add_parent(&t.session[2], &job);
    assert_int_equal(used(&job), 4);
    assert_int_equal(used(&t.user[1]), 4);
    assert_int_equal(used(&t.daemon), 4);
    ps_account_add_parent(&t.session[2], &job); /* Already charged. */
    assert_int_equal(used(&job), 4);
    ps_account_refund(&t.session[2], PS_COST_REGIONS, 4);
    assert_int_equal(used(&job), 0);
    assert_int_equal(used(&t.daemon), 0);
    ps_account_fini(&t.session[2]);
    ps_account_fini(&job);
    tree_fini(&t);
}

static void measured_costs_ignore_limits_and_use_room(void **state)
{
    struct tree t;

    (void)state;
    tree_init(&t);
    assert_int_equal(ps_account_check(&t.session[0], PS_COST_REGIONS, 10, NULL),
                     0);
    assert_int_equal(ps_account_check(&t.session[0], PS_COST_REGIONS, 11, NULL),
                     PS_E_FULL);
    assert_int_equal(
        ps_account_check(&t.session[0], PS_COST_MEMORY, UINT64_MAX, NULL), 0);
    ps_account_set_used(&t.session[1], PS_COST_REGIONS, 30);
    assert_int_equal(used(&t.daemon), 30);
    assert_int_equal(charge(&t.session[0], 1, NULL), PS_E_FULL);
    assert_int_equal(charge(&t.session[0], 0, NULL), 0);
    ps_account_set_used(&t.session[1], PS_COST_REGIONS, 12);
    assert_int_equal(used(&t.daemon), 12);
    assert_int_equal(ps_account_check(&t.session[0], PS_COST_REGIONS, 3, NULL),
                     0);
    assert_int_equal(ps_account_check(&t.session[0], PS_COST_REGIONS, 4, NULL),
                     PS_E_FULL);
    ps_account_set_used(&t.session[1], PS_COST_REGIONS, 0);
    assert_int_equal(t.session[1].cost[PS_COST_REGIONS].peak, 30);
    tree_fini(&t);
}

static void names_from_outside_are_escaped(void **state)
{
    struct ps_account a;

    (void)state;
    ps_account_init(&a, PS_ACCOUNT_JOB, "x\ny", NULL);
    assert_string_equal(a.name, "x\\x0ay");
    ps_account_fini(&a);
}

static void status_shows_the_daemon_then_the_heaviest(void **state)
{
    struct ps_ledger_row rows[4];
    struct tree t;

    (void)state;
    tree_init(&t);
    assert_int_equal(ps_ledger_rows(&t.daemon, rows, 4), 0);
    /* 90 % of its limit. */
    assert_int_equal(charge(&t.session[0], 9, NULL), 0);
    assert_int_equal(charge(&t.session[2], 1, NULL), 0);
    assert_int_equal(ps_account_charge(&t.job, PS_COST_KEYS, 7, NULL), 0);
    assert_int_equal(ps_ledger_rows(&t.daemon, rows, 4), 4);
    assert_ptr_equal(rows[0].account, &t.daemon);
    assert_int_equal(rows[0].cost, PS_COST_REGIONS);
    assert_ptr_equal(rows[1].account, &t.daemon);
    assert_int_equal(rows[1].cost, PS_COST_KEYS);
    assert_ptr_equal(rows[2].account, &t.session[0]);
    assert_ptr_equal(rows[3].account, &t.user[0]); /* 60 % */
    assert_int_equal(ps_ledger_rows(&t.daemon, rows, 1), 1);
    assert_int_equal(ps_ledger_rows(&t.daemon, rows, 2), 2);
    ps_account_refund(&t.session[0], PS_COST_REGIONS, 9);
    ps_account_refund(&t.session[2], PS_COST_REGIONS, 1);
    ps_account_refund(&t.job, PS_COST_KEYS, 7);
    assert_int_equal(ps_ledger_rows(&t.daemon, rows, 4), 2);
    tree_fini(&t);
}

static void random_charges_add_up(void **state)
{
    struct ps_rng rng;
    struct tree t;
    uint64_t held[3] = {0};

    (void)state;
    tree_init(&t);
    ps_rng_init(&rng, 5);
    for (unsigned i = 0; i < 20000; i++) {
        const uint64_t who = ps_rng_next(&rng) % 3;
        const uint64_t amount = ps_rng_next(&rng) % 6;

        if (ps_rng_next(&rng) % 2 == 0 && amount <= held[who]) {
            ps_account_refund(&t.session[who], PS_COST_REGIONS, amount);
            held[who] -= amount;
        } else if (charge(&t.session[who], amount, NULL) == 0) {
            held[who] += amount;
        }
        assert_int_equal(used(&t.job), held[0] + held[1]);
        assert_int_equal(used(&t.user[0]), held[0] + held[1]);
        assert_int_equal(used(&t.daemon), held[0] + held[1] + held[2]);
        assert_true(held[0] <= 10 && held[0] + held[1] <= 15 &&
                    held[0] + held[1] + held[2] <= 20);
    }
    for (unsigned i = 0; i < 3; i++) {
        ps_account_refund(&t.session[i], PS_COST_REGIONS, held[i]);
    }
    tree_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_charge_counts_once_at_every_ancestor),
        cmocka_unit_test(a_refused_charge_leaves_nothing_behind),
        cmocka_unit_test(amounts_that_wrap_are_refused),
        cmocka_unit_test(account_moves_its_costs_to_its_new_parent),
        cmocka_unit_test(measured_costs_ignore_limits_and_use_room),
        cmocka_unit_test(names_from_outside_are_escaped),
        cmocka_unit_test(status_shows_the_daemon_then_the_heaviest),
        cmocka_unit_test(random_charges_add_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
