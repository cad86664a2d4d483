/* SPDX-License-Identifier: Apache-2.0 */
#include "net/addr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

static void addresses_are_read(void **state)
{
    static const struct {
        const char *text;
        const char *host;
        uint16_t port;
    } good[] = {
        {"127.0.0.1:9091", "127.0.0.1", 9091},
        {"node-7.example:0", "node-7.example", 0},
        {"[::1]:65535", "::1", 65535},
        {"[fe80::1%eth0]:1", "fe80::1%eth0", 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct ps_addr a;
        char text[PS_ADDRESS_MAX + 1];

        assert_int_equal(ps_addr_parse(good[i].text, &a), 0);
        assert_string_equal(a.host, good[i].host);
        assert_int_equal(a.port, good[i].port);
        assert_true(ps_addr_format(a.host, a.port, text, sizeof(text)));
        assert_string_equal(text, good[i].text);
    }
}

static void malformed_addresses_are_refused(void **state)
{
    static const char *const bad[] = {
        "",     ":",      "host",       "host:", ":1",   "::1:1",    "[::1]",
        "[]:1", "[::1:1", "host:65536", "h:-1",  "h:1x", "h:000001", "[::1]x:1",
    };
    char text[PS_ADDRESS_MAX + 16];
    struct ps_addr a;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(ps_addr_parse(bad[i], &a), PS_E_INVAL);
    }
    memset(text, 'h', sizeof(text));
    strcpy(text + sizeof(text) - 3, ":1");
    assert_int_equal(ps_addr_parse(text, &a), PS_E_INVAL);
    assert_false(ps_addr_format("host", 12345, text, 8));
}

static void addresses_have_a_kind(void **state)
{
    static const struct {
        const char *host;
        enum ps_addr_kind kind;
    } cases[] = {
        {"127.0.0.1", PS_ADDR_LOOPBACK},
        {"127.255.0.3", PS_ADDR_LOOPBACK},
        {"::1", PS_ADDR_LOOPBACK},
        {"0.0.0.0", PS_ADDR_ANY},
        {"::", PS_ADDR_ANY},
        {"10.0.0.1", PS_ADDR_OTHER},
        {"128.0.0.1", PS_ADDR_OTHER},
        {"::ffff:127.0.0.1", PS_ADDR_OTHER},
        {"localhost", PS_ADDR_NAME},
        {"127.1", PS_ADDR_NAME},
        {"", PS_ADDR_NAME},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(ps_addr_kind(cases[i].host), cases[i].kind);
    }
}

static void sockets_are_printed(void **state)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(80)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(443)};
    struct sockaddr other = {.sa_family = AF_UNIX};
    char text[64];

    (void)state;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v6.sin6_addr = in6addr_loopback;
    ps_addr_print((struct sockaddr *)&v4, text, sizeof(text));
    assert_string_equal(text, "127.0.0.1:80");
    ps_addr_print((struct sockaddr *)&v6, text, sizeof(text));
    assert_string_equal(text, "[::1]:443");
    ps_addr_print(&other, text, sizeof(text));
    assert_string_equal(text, "?:0");
}

static void local_address_towards_a_peer_is_found(void **state)
{
    struct ps_addr peer = {.host = "127.0.0.1", .port = 9};
    char text[PS_ADDRESS_MAX + 1];

    (void)state;
    assert_int_equal(ps_addr_local_for(&peer, text, sizeof(text)), 0);
    assert_string_equal(text, "127.0.0.1");
    strcpy(peer.host, "no.such.host.invalid");
    assert_int_equal(ps_addr_local_for(&peer, text, sizeof(text)),
                     PS_E_UNREACH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_read),
        cmocka_unit_test(malformed_addresses_are_refused),
        cmocka_unit_test(addresses_have_a_kind),
        cmocka_unit_test(sockets_are_printed),
        cmocka_unit_test(local_address_towards_a_peer_is_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
