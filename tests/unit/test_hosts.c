/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts, their errors, and the placement of servers and workers. */
#include "pslaunch/hosts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char error[HOSTS_TEXT_MAX];

/* Writes "NAME:SLOTS/PORT@ADDRESS " for each host. */
static const char *text_of(const struct host_list *l)
{
    static char text[4096];
    size_t len = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < l->count; i++) {
        const struct host *h = &l->hosts[i];

        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s:%u/%u@%s ",
                                h->name, h->slots, h->port,
                                h->address != NULL ? h->address : "");
    }
    return text;
}

static void expect_list(const char *list, const char *want)
{
    struct host_list l;

    assert_int_equal(hosts_parse(list, &l, error), 0);
    assert_string_equal(text_of(&l), want);
    hosts_free(&l);
}

static void expect_list_error(const char *list, const char *want)
{
    struct host_list l;

    assert_int_equal(hosts_parse(list, &l, error), -1);
    if (strstr(error, want) == NULL) {
        fail_msg("'%s': '%s' has no '%s'", list, error, want);
    }
    hosts_free(&l);
}

/* Reads a file with this text. Returns the result of hosts_read(). */
static int read_text(const char *text, struct host_list *l, char path[32])
{
    FILE *f;
    int rc;

    snprintf(path, 32, "/tmp/pskv-hosts-XXXXXX");
    f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    rc = hosts_read(path, l, error);
    unlink(path);
    return rc;
}

static void expect_file(const char *text, const char *want)
{
    struct host_list l;
    char path[32];

    assert_int_equal(read_text(text, &l, path), 0);
    assert_string_equal(text_of(&l), want);
    hosts_free(&l);
}

/* The error begins with the file, and then has `want`. */
static void expect_file_error(const char *text, const char *want)
{
    struct host_list l;
    char path[32];

    assert_int_equal(read_text(text, &l, path), -1);
    assert_int_equal(strncmp(error, path, strlen(path)), 0);
    if (strstr(error + strlen(path), want) == NULL) {
        fail_msg("'%s': '%s' has no '%s'", text, error, want);
    }
    hosts_free(&l);
}

static void lists_have_names_slots_and_ranges(void **state)
{
    (void)state;
    expect_list("h1", "h1:0/0@ ");
    expect_list("h1:4,h2:2", "h1:4/0@ h2:2/0@ ");
    expect_list("n[08-10]:8", "n08:8/0@ n09:8/0@ n10:8/0@ ");
    expect_list("n[1-2,07],m", "n1:0/0@ n2:0/0@ n07:0/0@ m:0/0@ ");
    expect_list("r[1-2]n[3,4]", "r1n3:0/0@ r1n4:0/0@ r2n3:0/0@ r2n4:0/0@ ");
    expect_list("anna@h1:2,10.0.0.7", "anna@h1:2/0@ 10.0.0.7:0/0@ ");
    expect_list("[fe80::1]:4,fe80::2", "fe80::1:4/0@ fe80::2:0/0@ ");
}

static void lists_with_errors_are_refused_in_words(void **state)
{
    (void)state;
    expect_list_error("", "a host has no name");
    expect_list_error("h1,,h2", "a host has no name");
    expect_list_error("h1:0", "slots '0': give a number from 1 to 4096");
    expect_list_error("h1:four", "slots 'four': give a number");
    expect_list_error("h1:-2", "slots '-2': give a number");
    expect_list_error("h1:4097", "slots '4097'");
    expect_list_error("-oProxyCommand=x", "'-oProxyCommand=x' is no host name");
    expect_list_error("-F", "must not begin with '-'");
    expect_list_error("h1 h2", "because of ' '; hosts of a list have commas");
    expect_list_error("h1;reboot", "because of ';'");
    expect_list_error("h1:2,h1:2", "host h1 is there twice; write it once, "
                                   "with its number of workers (NAME:N)");
    expect_list_error("n[1-4", "has no ']'");
    expect_list_error("n[4-1]", "need numbers and ranges");
    expect_list_error("n[]", "need numbers and ranges");
    expect_list_error("n[1-x]", "need numbers and ranges");
    expect_list_error("n[0-4000000000]", "need numbers and ranges");
    expect_list_error("n[0-999999999]", "more than 1024 hosts");
}

static void files_have_a_host_a_line(void **state)
{
    (void)state;
    expect_file("h1\nh2\n", "h1:0/0@ h2:0/0@ ");
    expect_file("# of the lab\n\n  h1  # the first\r\nh2", "h1:0/0@ h2:0/0@ ");
    expect_file("h1:2222\n172.30.0.172\n", "h1:0/2222@ 172.30.0.172:0/0@ ");
    expect_file("h1 slots=4\nh2 slots=2 port=23 address=10.0.0.2\n",
                "h1:4/0@ h2:2/23@10.0.0.2 ");
    expect_file("n[01-02] slots=8\n", "n01:8/0@ n02:8/0@ ");
}

static void files_with_errors_name_line_and_remedy(void **state)
{
    struct host_list l;

    (void)state;
    expect_file_error("", ": it names no host; write one a line");
    expect_file_error("# h1\n", ": it names no host");
    expect_file_error("h1\nh2 slots=x\n",
                      ":2: slots 'x': give a number from 1 to 4096");
    expect_file_error("h1:ssh\n", ":1: port 'ssh': give a number");
    expect_file_error("h1 port=70000\n", ":1: port '70000'");
    expect_file_error("h1\n\nh2 cpu=2\n",
                      ":3: 'cpu' is not understood; behind the host's name "
                      "come slots=N, port=N and address=A");
    expect_file_error("h1 h2\n", ":1: 'h2' is not understood");
    expect_file_error("h1\nh1\n", ":2: host h1 is there twice; write it once, "
                                  "with its number of workers (slots=N)");
    expect_file_error("h1 address=-x\n", ":1: the host name '-x' must not");
    assert_int_equal(hosts_read("/nonexistent/hosts", &l, error), -1);
    assert_string_equal(error,
                        "/nonexistent/hosts: No such file or directory; a "
                        "list such as h1:4,h2:4 goes with --hosts");
}

/* Compares the servers and ranks of each host, as "s0 r2, ...". */
static void expect_places(const char *list, struct layout_counts n,
                          const char *want)
{
    struct host_list l;
    struct layout at;
    char text[1024];
    size_t len = 0;

    assert_int_equal(hosts_parse(list, &l, error), 0);
    assert_int_equal(layout_hosts(&n, &l, &at, error), 0);
    text[0] = '\0';
    for (uint32_t h = 0; h < l.count; h++) {
        len += (size_t)snprintf(text + len, sizeof(text) - len,
                                "%s:", l.hosts[h].name);
        for (uint32_t s = 0; s < n.servers; s++) {
            if (at.server_hosts[s] == h) {
                len += (size_t)snprintf(text + len, sizeof(text) - len, " s%u",
                                        s);
            }
        }
        for (uint32_t r = 0; r < n.workers; r++) {
            const struct rank_place *p = &at.ranks[r];

            if (at.nodes[p->node].host == h) {
                len += (size_t)snprintf(
                    text + len, sizeof(text) - len, " r%u(%u.%u/%u)", r,
                    p->node, p->local_rank, at.nodes[p->node].local_size);
            }
        }
        len += (size_t)snprintf(text + len, sizeof(text) - len, "; ");
    }
    assert_string_equal(text, want);
    layout_free(&at);
    hosts_free(&l);
}

/* The rule of launch.py: one cycle over the hosts, servers first. In
 * parentheses: node, rank on the node, ranks of the node. */
static void servers_come_first_and_hosts_in_a_cycle(void **state)
{
    (void)state;
    expect_places(
        "a,b,c,d,e", (struct layout_counts){3, 3, 1},
        "a: s0 r2(0.0/1); b: s1; c: s2; d: r0(1.0/1); e: r1(2.0/1); ");
    expect_places("a,b", (struct layout_counts){4, 2, 1},
                  "a: s0 r0(0.0/2) r2(0.1/2); b: s1 r1(1.0/2) r3(1.1/2); ");
    expect_places("a,b,c", (struct layout_counts){1, 1, 1},
                  "a: s0; b: r0(0.0/1); c:; ");
    expect_places("a", (struct layout_counts){2, 2, 1},
                  "a: s0 s1 r0(0.0/2) r1(0.1/2); ");
    expect_places("a,b", (struct layout_counts){2, 0, 1},
                  "a: r0(0.0/1); b: r1(1.0/1); ");
}

static void a_full_host_gets_no_further_worker(void **state)
{
    struct host_list l;
    struct layout at;

    (void)state;
    expect_places("a:1,b:3", (struct layout_counts){4, 1, 1},
                  "a: s0 r1(0.0/1); b: r0(1.0/3) r2(1.1/3) r3(1.2/3); ");
    expect_places("a:1,b", (struct layout_counts){3, 2, 1},
                  "a: s0 r0(0.0/1); b: s1 r1(1.0/2) r2(1.1/2); ");
    assert_int_equal(hosts_parse("a:1,b:2", &l, error), 0);
    assert_int_equal(
        layout_hosts(&(struct layout_counts){4, 2, 1}, &l, &at, error), -1);
    assert_string_equal(error,
                        "the hosts have slots for 3 workers, and -n is 4; name "
                        "more hosts or slots, or fewer workers");
    hosts_free(&l);
}

static void nodes_of_one_host_have_blocks_of_ranks(void **state)
{
    struct layout at;

    (void)state;
    layout_local(&(struct layout_counts){5, 1, 2}, &at);
    assert_int_equal(at.nodes[0].local_size, 3);
    assert_int_equal(at.nodes[1].local_size, 2);
    assert_int_equal(at.ranks[2].node, 0);
    assert_int_equal(at.ranks[3].node, 1);
    assert_int_equal(at.ranks[4].local_rank, 1);
    layout_free(&at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_have_names_slots_and_ranges),
        cmocka_unit_test(lists_with_errors_are_refused_in_words),
        cmocka_unit_test(files_have_a_host_a_line),
        cmocka_unit_test(files_with_errors_name_line_and_remedy),
        cmocka_unit_test(servers_come_first_and_hosts_in_a_cycle),
        cmocka_unit_test(a_full_host_gets_no_further_worker),
        cmocka_unit_test(nodes_of_one_host_have_blocks_of_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
