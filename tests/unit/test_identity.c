/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void check_uri(enum ps_role role, const char *cluster, const char *name,
                      const char *expected)
{
    struct ps_identity id = {.role = role};
    struct ps_identity got;
    char uri[PS_IDENTITY_URI_BYTES];
    struct ps_str s;

    ps_str_copy(id.cluster, sizeof(id.cluster), cluster);
    ps_str_copy(id.name, sizeof(id.name), name);
    assert_true(ps_identity_is_valid(&id));
    ps_str_init(&s, uri, sizeof(uri));
    ps_identity_add_uri(&s, &id);
    assert_false(s.truncated);
    if (expected != NULL) {
        assert_string_equal(uri, expected);
    }
    assert_true(ps_identity_from_uri(uri, &got));
    assert_int_equal(got.role, role);
    assert_string_equal(got.cluster, cluster);
    assert_string_equal(got.name, name);
}

static void identities_have_one_uri(void **state)
{
    char longest[PS_NAME_MAX + 1];

    (void)state;
    check_uri(PS_ROLE_SCHED, "default", "psched", "ps://default/sched/psched");
    check_uri(PS_ROLE_SERVER, "a.b_c~d-9", "ps0", "ps://a.b_c~d-9/server/ps0");
    check_uri(PS_ROLE_AGENT, "x/../y", "n%2F", "ps://x%2F..%2Fy/agent/n%252F");
    check_uri(PS_ROLE_CTL, "c", "anna@site:1", "ps://c/ctl/anna%40site%3A1");
    memset(longest, '/', PS_NAME_MAX);
    longest[PS_NAME_MAX] = '\0';
    check_uri(PS_ROLE_SERVER, longest, longest, NULL);
}

static void other_uris_are_refused(void **state)
{
    static const char *const uris[] = {
        "",
        "ps://",
        "ps:///server/a",
        "ps://c",
        "ps://c/",
        "ps://c/server",
        "ps://c/server/",
        "ps://c/servers/a",
        "ps://c/worker/a",
        "ps://c/Server/a",
        "ps://c/server/a/b",
        "ps://c/server/a/",
        "PS://c/server/a",
        "http://c/server/a",
        "ps://c/server/a b",
        "ps://c/server/%20",
        "ps://c/server/%41", /* 'A' needs no encoding. */
        "ps://c/server/%2f", /* Small digits. */
        "ps://c/server/a%",
        "ps://c/server/a%2",
        "ps://c/server/a%00b",
        "ps://c/server/a%FFb",
        "ps://c/server/\xc3\xbc",
        "ps://c/server/"
        "01234567890123456789012345678901234567890123456789012345678901234",
    };
    struct ps_identity id = {.role = PS_ROLE_AGENT};

    (void)state;
    for (size_t i = 0; i < sizeof(uris) / sizeof(uris[0]); i++) {
        if (ps_identity_from_uri(uris[i], &id)) {
            fail_msg("accepted '%s'", uris[i]);
        }
        assert_int_equal(id.role, PS_ROLE_AGENT);
    }
}

static void invalid_identities_are_recognised(void **state)
{
    struct ps_identity id = {
        .role = PS_ROLE_WORKER, .cluster = "c", .name = "n"};

    (void)state;
    assert_false(ps_identity_is_valid(&id)); /* Workers have none. */
    id.role = PS_ROLE_AGENT;
    assert_true(ps_identity_is_valid(&id));
    id.name[0] = ' ';
    assert_false(ps_identity_is_valid(&id));
    id.name[0] = '\0';
    assert_false(ps_identity_is_valid(&id));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(identities_have_one_uri),
        cmocka_unit_test(other_uris_are_refused),
        cmocka_unit_test(invalid_identities_are_recognised),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
