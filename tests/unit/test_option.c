/* SPDX-License-Identifier: Apache-2.0 */
#include "conf/option.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "support/option_check.h"

enum format { FORMAT_AUTO, FORMAT_TEXT, FORMAT_JSON };

struct common {
    int format;
    bool tls;
};

struct values {
    struct common common;
    const char *address;
    int port;
    struct ps_option_list allow;
    uint64_t memory;
    uint64_t threads;
    ps_time grace;
    unsigned mode;
    const char *state;
    struct ps_option_list env;
    int offset;
    uint64_t frame;
    bool resend;
    ps_time resend_after;
};

static bool check_address(const char *value, struct ps_str *why)
{
    if (strchr(value, ' ') == NULL) {
        return true;
    }
    ps_str_add(why, "an address has no blanks; write HOST");
    return false;
}

static const struct ps_option common_rows[] = {
    {.path = "log.format",
     .type = PS_OPTION_ENUM,
     .text = "auto",
     .enum_names = "auto|text|json",
     .reloadable = true,
     .offset = offsetof(struct common, format),
     .aliases = {{.name = "VERBOSE", .values = "1=text 2=json"}},
     .help = "How log lines look."},
    {.path = "security.tls",
     .type = PS_OPTION_BOOL,
     .text = "true",
     .offset = offsetof(struct common, tls),
     .help = "Encrypt."},
};

#define AT(member) .offset = offsetof(struct values, member)

static const struct ps_option rows[] = {
    {.path = "listen.address",
     .type = PS_OPTION_STRING,
     .text = "127.0.0.1",
     AT(address),
     .check = check_address,
     .max = 40,
     .aliases = {{.name = "DMLC_PS_ROOT_URI"}, {.name = "OLD_URI"}},
     .help = "Address to listen on."},
    {.path = "listen.port",
     .type = PS_OPTION_INT,
     .text = "0",
     AT(port),
     .max = 65535,
     .aliases = {{.name = "PORT"}},
     .help = "Port to listen on; 0 takes a free one."},
    {.path = "security.allow",
     .type = PS_OPTION_LIST,
     AT(allow),
     .max = 3,
     .reloadable = true,
     .check = check_address,
     .help = "Networks that may connect."},
    {.path = "store.memory",
     .type = PS_OPTION_SIZE,
     .text = "80%",
     AT(memory),
     .min = 1024 * 1024,
     .form = PS_OPTION_PERCENT,
     .reloadable = true,
     .help = "Memory for tensors."},
    {.path = "store.threads",
     .type = PS_OPTION_U64,
     .text = "auto",
     .special = "auto",
     .special_value = 0,
     AT(threads),
     .min = 1,
     .max = 1024,
     .help = "Threads that compute."},
    {.path = "shutdown.grace",
     .type = PS_OPTION_DURATION,
     .text = "30s",
     AT(grace),
     .max = INT64_C(3600000000000),
     .reloadable = true,
     .help = "How long rounds may take to end."},
    {.path = "client.mode",
     .type = PS_OPTION_MODE,
     .text = "0660",
     AT(mode),
     .help = "Permissions of the socket."},
    {.path = "state.path",
     .type = PS_OPTION_STRING,
     .text = "${STATE_DIRECTORY:-/var/lib/pskv}/psched.db",
     AT(state),
     .form = PS_OPTION_EXPANDED,
     .help = "Where the state is kept."},
    {.path = "run.env",
     .type = PS_OPTION_LIST,
     AT(env),
     .form = PS_OPTION_PAIRS,
     .help = "Variables of the workers."},
    {.path = "clock.offset",
     .type = PS_OPTION_INT,
     .text = "-3",
     AT(offset),
     .min = -10,
     .max = 10,
     .help = "How far to move."},
    {.path = "limits.frame",
     .type = PS_OPTION_SIZE,
     .text = "64KiB",
     AT(frame),
     .min = 4096,
     .max = 1024 * 1024,
     .help = "Longest header."},
    {.path = "network.resend",
     .type = PS_OPTION_BOOL,
     .text = "yes",
     AT(resend),
     .aliases = {{.name = "PS_RESEND"}},
     .help = "Send again what was lost."},
    {.path = "network.resend_timeout",
     .type = PS_OPTION_DURATION,
     .text = "1s",
     AT(resend_after),
     .aliases = {{.name = "PS_RESEND_TIMEOUT", .unit = "ms"}},
     .help = "When to send again, <soon> or *later*."},
};

static const struct ps_option_table tables[] = {
    {common_rows, PS_OPTION_COUNT(common_rows),
     offsetof(struct values, common)},
    {rows, PS_OPTION_COUNT(rows), 0},
};

static const struct ps_option_default defaults[] = {
    {"listen.port", "9091", {.name = "ROOT_PORT"}}};

static const struct ps_option_set set = {.program = "psched",
                                         .tables = tables,
                                         .table_count = 2,
                                         .defaults = defaults,
                                         .default_count = 1};

static char report_data[8192];
static struct ps_str report;
static struct values v;
static struct ps_options *o;

static int load(const struct ps_option_input *in)
{
    ps_str_init(&report, report_data, sizeof(report_data));
    ps_options_free(o);
    o = NULL;
    memset(&v, 0, sizeof(v));
    return ps_options_load(&set, in, &v, &o, &report);
}

static int load_text(const char *text)
{
    return load(&(struct ps_option_input){.file = "f.yaml",
                                          .text = text,
                                          .text_len = strlen(text),
                                          .memory = 4000000000});
}

static void load_good(const char *text)
{
    int rc = load_text(text);

    assert_string_equal(report_data, "");
    assert_int_equal(rc, 0);
}

static void expect_error(const char *text, const char *error)
{
    assert_int_equal(load_text(text), PS_E_CONFIG);
    assert_string_equal(report_data, error);
    assert_null(o);
}

static int load_override(const char *text)
{
    const char *const overrides[] = {text};

    return load(&(struct ps_option_input){
        .overrides = overrides, .override_count = 1, .memory = 4000000000});
}

static void expect_where(const char *path, enum ps_option_origin from,
                         const char *where)
{
    char data[128];
    struct ps_str s;

    ps_str_init(&s, data, sizeof(data));
    ps_options_where(o, path, &s);
    assert_string_equal(data, where);
    assert_int_equal(ps_options_origin(o, path), from);
}

static int teardown(void **state)
{
    (void)state;
    ps_options_free(o);
    o = NULL;
    return ps_alloc_live() == 0 ? 0 : -1;
}

static void option_table_is_valid(void **state)
{
    (void)state;
    ps_str_init(&report, report_data, sizeof(report_data));
    int rc = option_set_check(&set, &report);

    assert_string_equal(report_data, "");
    assert_int_equal(rc, 0);
}

static void defaults_fill_the_struct(void **state)
{
    (void)state;
    load_good("");
    assert_int_equal(v.common.format, FORMAT_AUTO);
    assert_true(v.common.tls);
    assert_string_equal(v.address, "127.0.0.1");
    assert_int_equal(v.port, 9091); /* The program's, not the row's. */
    assert_int_equal(v.allow.count, 0);
    assert_int_equal(v.memory, 3200000000);
    assert_int_equal(v.threads, 0);
    assert_int_equal(v.grace, PS_SECONDS(30));
    assert_int_equal(v.mode, 0660);
    assert_string_equal(v.state, "/var/lib/pskv/psched.db");
    assert_int_equal(v.offset, -3);
    assert_int_equal(v.frame, 65536);
    assert_true(v.resend);
    expect_where("listen.port", PS_OPTION_FROM_DEFAULT, "default");
}

static void file_sets_every_type(void **state)
{
    (void)state;
    load_good("log: {format: json}\n"
              "security:\n"
              "  tls: off\n"
              "  allow: [10.0.0.0/8, \"::1\"]\n"
              "listen: {address: node7.example, port: 1}\n"
              "store: {memory: 1.5GiB, threads: 8}\n"
              "shutdown: {grace: 250ms}\n"
              "client: {mode: \"0600\"}\n"
              "state: {path: /x}\n"
              "run: {env: {OMP_NUM_THREADS: 4, EMPTY: }}\n"
              "clock: {offset: -10}\n");
    assert_int_equal(v.common.format, FORMAT_JSON);
    assert_false(v.common.tls);
    assert_string_equal(v.address, "node7.example");
    assert_int_equal(v.port, 1);
    assert_int_equal(v.allow.count, 2);
    assert_string_equal(v.allow.items[0], "10.0.0.0/8");
    assert_string_equal(v.allow.items[1], "::1");
    assert_int_equal(v.memory, 1536 * INT64_C(1048576));
    assert_int_equal(v.threads, 8);
    assert_int_equal(v.grace, PS_MILLIS(250));
    assert_int_equal(v.mode, 0600);
    assert_string_equal(v.state, "/x");
    assert_int_equal(v.env.count, 2);
    assert_string_equal(v.env.items[0], "OMP_NUM_THREADS=4");
    assert_string_equal(v.env.items[1], "EMPTY=");
    assert_int_equal(v.offset, -10);
    expect_where("listen.port", PS_OPTION_FROM_FILE, "f.yaml:5:40");
}

static void empty_sections_and_lists_are_fine(void **state)
{
    (void)state;
    load_good("listen:\nsecurity: {}\n");
    assert_int_equal(v.port, 9091);
    load_good("security: {allow: []}\nrun: {env: {}}\n");
    assert_int_equal(v.allow.count, 0);
    load_good("security: {allow: null}\nlisten: {address: null}\n");
    assert_int_equal(v.allow.count, 0);
    assert_string_equal(v.address, "");
}

/* Each source over the one before it. */
static void precedence_is_command_environment_file_default(void **state)
{
    static const char text[] = "listen: {port: 2, address: file}\n";
    static const char *const overrides[] = {"listen.port=5", "listen.port=6"};
    char alias[] = "PORT=3";
    char own[] = "PSD_LISTEN_PORT=4";
    char uri[] = "OLD_URI=old";
    char program[] = "ROOT_PORT=7";
    char *const only_alias[] = {alias, uri, NULL};
    char *const two_aliases[] = {alias, program, NULL};
    char *const both[] = {alias, own, NULL};
    struct ps_option_input in = {.file = "f.yaml",
                                 .text = text,
                                 .text_len = strlen(text),
                                 .memory = 1 << 30};

    (void)state;
    assert_int_equal(load(&in), 0);
    assert_int_equal(v.port, 2);
    expect_where("listen.port", PS_OPTION_FROM_FILE, "f.yaml:1:16");
    in.env = only_alias;
    assert_int_equal(load(&in), 0);
    assert_int_equal(v.port, 3);
    assert_string_equal(v.address, "old");
    in.env = two_aliases; /* The program's before that of the shared row. */
    assert_int_equal(load(&in), 0);
    assert_int_equal(v.port, 7);
    expect_where("listen.port", PS_OPTION_FROM_ENVIRONMENT,
                 "environment ROOT_PORT");
    in.env = only_alias;
    assert_int_equal(load(&in), 0);
    expect_where("listen.port", PS_OPTION_FROM_ENVIRONMENT, "environment PORT");
    in.env = both;
    assert_int_equal(load(&in), 0);
    assert_int_equal(v.port, 4);
    assert_string_equal(v.address, "file");
    expect_where("listen.port", PS_OPTION_FROM_ENVIRONMENT,
                 "environment PSD_LISTEN_PORT");
    in.overrides = overrides;
    in.override_count = 2;
    assert_int_equal(load(&in), 0);
    assert_int_equal(v.port, 6);
    expect_where("listen.port", PS_OPTION_FROM_COMMAND, "command line");
    assert_string_equal(report_data, "");
}

static void older_variables_are_translated(void **state)
{
    char verbose[] = "VERBOSE=2";
    char resend[] = "PS_RESEND=0";
    char timeout[] = "PS_RESEND_TIMEOUT=1500";
    char unset[] = "DMLC_PS_ROOT_URI=";
    char second[] = "OLD_URI=h";
    char prefix[] = "PORTAL=7";
    char *const env[] = {verbose, resend, timeout, unset, second, prefix, NULL};
    char with_unit[] = "PS_RESEND_TIMEOUT=2s";
    char *const env_unit[] = {with_unit, NULL};
    struct ps_option_input in = {.env = env, .memory = 1 << 30};

    (void)state;
    assert_int_equal(load(&in), 0);
    assert_int_equal(v.common.format, FORMAT_JSON);
    assert_false(v.resend);
    assert_int_equal(v.resend_after, PS_MILLIS(1500));
    assert_string_equal(v.address, "h");
    assert_int_equal(v.port, 9091);
    in.env = env_unit;
    assert_int_equal(load(&in), 0);
    assert_int_equal(v.resend_after, PS_SECONDS(2));
}

static void wrong_variable_is_named(void **state)
{
    char port[] = "PORT=high";
    char *const env[] = {port, NULL};

    (void)state;
    assert_int_equal(
        load(&(struct ps_option_input){.env = env, .memory = 1 << 30}),
        PS_E_CONFIG);
    assert_string_equal(report_data,
                        "environment PORT: listen.port: 'high' is not a "
                        "number that fits here; write a whole number from 0 "
                        "to 65535\n");
}

static void lists_on_the_command_line_have_commas(void **state)
{
    (void)state;
    assert_int_equal(load_override("security.allow=a, b,c"), 0);
    assert_int_equal(v.allow.count, 3);
    assert_string_equal(v.allow.items[1], "b");
    assert_int_equal(load_override("security.allow="), 0);
    assert_int_equal(v.allow.count, 0);
    assert_int_equal(load_override("run.env=A=1,B=x=y"), 0);
    assert_string_equal(v.env.items[1], "B=x=y");
    assert_int_equal(load_override("run.env=A=1,B=2,A=3"), PS_E_CONFIG);
    assert_string_equal(report_data, "command line: run.env: A is given twice; "
                                     "keep one of them\n");
    assert_int_equal(load_override("run.env=A"), PS_E_CONFIG);
    assert_string_equal(report_data, "command line: run.env: 'A' is not a "
                                     "pair; write key=value\n");
}

static void unknown_option_suggests_a_similar_name(void **state)
{
    (void)state;
    expect_error("listen:\n  adress: x\n",
                 "f.yaml:2:3: listen.adress is not an option; did you mean "
                 "listen.address?\n");
    expect_error("port: 1\n", "f.yaml:1:1: port is not an option; did you "
                              "mean listen.port?\n");
    expect_error("lisetn: {port: 1}\n",
                 "f.yaml:1:10: lisetn.port is not an option; did you mean "
                 "listen.port?\n");
    expect_error("quite: {other: 1}\n",
                 "f.yaml:1:9: quite.other is not an option; "
                 "--print-config=defaults lists them\n");
    expect_error("a: [x, y]\n", "f.yaml:1:1: a is not an option; "
                                "--print-config=defaults lists them\n");
    assert_int_equal(load_override("listen.prot=1"), PS_E_CONFIG);
    assert_string_equal(report_data,
                        "command line: listen.prot is not an option; did "
                        "you mean listen.port?\n");
    assert_int_equal(load_override("listen.port"), PS_E_CONFIG);
    assert_string_equal(report_data,
                        "command line: listen.port has no value; write "
                        "listen.port=VALUE\n");
    assert_int_equal(load_override("\x1b[2J\n=1"), PS_E_CONFIG);
    assert_string_equal(report_data,
                        "command line: \\x1b[2J\\x0a is not an option; "
                        "--print-config=defaults lists them\n");
}

static void values_of_the_wrong_kind_are_refused(void **state)
{
    (void)state;
    expect_error("listen: 5\n", "f.yaml:1:9: listen is a section; write its "
                                "options below it\n");
    expect_error("listen: [5, 6]\n", "f.yaml:1:10: listen is a section; "
                                     "write its options below it\n");
    expect_error("listen: {port: {a: 1}}\n",
                 "f.yaml:1:17: listen.port.a is not an option; "
                 "did you mean listen.port?\n");
    expect_error("listen: {port: [1, 2]}\n",
                 "f.yaml:1:17: listen.port is not a list; write a whole "
                 "number from 0 to 65535\n");
    expect_error("listen: {port: {}}\n",
                 "f.yaml:1:16: listen.port is not a map; write a whole "
                 "number from 0 to 65535\n");
    expect_error("security: {allow: x}\n",
                 "f.yaml:1:19: security.allow takes a list; write [value]\n");
    expect_error("security: {allow: [~]}\n",
                 "f.yaml:1:20: security.allow has an empty item; remove "
                 "it\n");
    expect_error("security: {allow: [a, b, c, d]}\n",
                 "f.yaml:1:20: security.allow: 4 items; write a list of up "
                 "to 3 items\n");
    expect_error("run: {env: [a]}\n",
                 "f.yaml:1:13: run.env is not a list; write a map\n");
}

static void wrong_values_name_the_valid_ones(void **state)
{
    static const struct {
        const char *text;
        const char *error;
    } cases[] = {
        {"listen.port=65536", "listen.port: '65536' is out of range; write a "
                              "whole number from 0 to 65535"},
        {"listen.port=-1", "listen.port: '-1' is out of range; write a whole "
                           "number from 0 to 65535"},
        {"listen.port=1.0", "listen.port: '1.0' is not a number that fits "
                            "here; write a whole number from 0 to 65535"},
        {"listen.port=5s", "listen.port: '5s' is not a whole number; write a "
                           "whole number from 0 to 65535"},
        {"listen.port=99999999999999999999",
         "listen.port: '99999999999999999999' is not a number that fits "
         "here; write a whole number from 0 to 65535"},
        {"limits.frame=65536",
         "limits.frame: '65536' has no unit; write a size from 4KiB to 1MiB "
         "with its unit (B, KiB, MiB, GiB or TiB)"},
        {"limits.frame=64KB",
         "limits.frame: '64KB' has a unit that does not exist; write a size "
         "from 4KiB to 1MiB with its unit (B, KiB, MiB, GiB or TiB)"},
        {"limits.frame=1GiB",
         "limits.frame: '1GiB' is out of range; write a size from 4KiB to "
         "1MiB with its unit (B, KiB, MiB, GiB or TiB)"},
        {"limits.frame=9999999999TiB",
         "limits.frame: '9999999999TiB' is too large; write a size from "
         "4KiB to 1MiB with its unit (B, KiB, MiB, GiB or TiB)"},
        {"limits.frame=5%",
         "limits.frame: '5%' cannot be a share; write a size from 4KiB to "
         "1MiB with its unit (B, KiB, MiB, GiB or TiB)"},
        {"store.memory=101%",
         "store.memory: '101%' is more than all memory; write a size of at "
         "least 1MiB with its unit (B, KiB, MiB, GiB, TiB or %)"},
        {"store.memory=0%",
         "store.memory: '0%' is out of range on this machine; write a size "
         "of at least 1MiB with its unit (B, KiB, MiB, GiB, TiB or %)"},
        {"store.threads=0", "store.threads: '0' is out of range; write a "
                            "whole number from 1 to 1024, or auto"},
        {"shutdown.grace=30",
         "shutdown.grace: '30' has no unit; write a duration from 0s to 1h "
         "with its unit (us, ms, s, m, h or d)"},
        {"log.format=xml",
         "log.format: 'xml' is not a known word; write auto, text or json"},
        {"log.format=auto|text", "log.format: 'auto|text' is not a known "
                                 "word; write auto, text or json"},
        {"security.tls=maybe", "security.tls: 'maybe' is neither true nor "
                               "false; write true or false"},
        {"client.mode=rw", "client.mode: 'rw' is not a mode; write "
                           "permission bits in octal, as in \"0660\""},
        {"client.mode=17777", "client.mode: '17777' is not a mode; write "
                              "permission bits in octal, as in \"0660\""},
        {"listen.address=a b", "listen.address: an address has no blanks; "
                               "write HOST"},
        {"listen.address=a\nb",
         "listen.address: 'a\\x0ab' has control characters; write a text of "
         "up to 40 bytes"},
        {"listen.address=\xff",
         "listen.address: '\\xff' is not UTF-8; write a text of up to 40 "
         "bytes"},
        {"listen.address=01234567890123456789012345678901234567890",
         "listen.address: 41 bytes; write a text of up to 40 bytes"},
        {"state.path=$NOWHERE/x",
         "state.path: the variable NOWHERE is not set; set it or write the "
         "value here"},
        {"state.path=${A", "state.path: '$' is not followed by a name; write "
                           "$NAME, ${NAME}, ${NAME:-otherwise}, or $$ for "
                           "the sign"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char expected[512];

        assert_int_equal(load_override(cases[i].text), PS_E_CONFIG);
        snprintf(expected, sizeof(expected), "command line: %s\n",
                 cases[i].error);
        assert_string_equal(report_data, expected);
    }
}

static void bounds_of_ranges_are_accepted(void **state)
{
    static const char *const good[] = {
        "listen.port=0",      "listen.port=65535",    "limits.frame=4096B",
        "limits.frame=4KiB",  "limits.frame=1MiB",    "store.threads=1",
        "store.threads=1024", "store.threads=auto",   "store.memory=100%",
        "shutdown.grace=0s",  "shutdown.grace=1h",    "shutdown.grace=1.5m",
        "clock.offset=-10",   "limits.frame=4.125KiB"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(load_override(good[i]), 0);
    }
    assert_int_equal(v.frame, 4224);
    assert_int_equal(load_override("store.memory=100%"), 0);
    assert_int_equal(v.memory, 4000000000);
    assert_int_equal(load_override("store.memory=12.5%"), 0);
    assert_int_equal(v.memory, 500000000);
}

static void share_needs_the_size_of_memory(void **state)
{
    (void)state;
    assert_int_equal(load(&(struct ps_option_input){.memory = 0}), PS_E_CONFIG);
    assert_non_null(strstr(report_data, "share of memory of unknown size"));
}

static void variables_are_expanded(void **state)
{
    char dir[] = "STATE_DIRECTORY=/run/x";
    char *const env[] = {dir, NULL};
    static const char *const overrides[] = {
        "state.path=$STATE_DIRECTORY/$$a/${NO:-b}${STATE_DIRECTORY}"};
    struct ps_option_input in = {.env = env, .memory = 1 << 30};

    (void)state;
    assert_int_equal(load(&in), 0);
    assert_string_equal(v.state, "/run/x/psched.db");
    in.overrides = overrides;
    in.override_count = 1;
    assert_int_equal(load(&in), 0);
    assert_string_equal(v.state, "/run/x/$a/b/run/x");
    in.override_count = 0;
    dir[sizeof(dir) - 2] = '\xff';
    assert_int_equal(load(&in), PS_E_CONFIG);
    assert_string_equal(report_data,
                        "default: state.path: the variable STATE_DIRECTORY "
                        "is not UTF-8; correct it\n");
    /* Other rows leave the sign alone. */
    assert_int_equal(load_override("listen.address=$HOME"), 0);
    assert_string_equal(v.address, "$HOME");
}

static void all_errors_are_reported_in_one_run(void **state)
{
    static const char *const overrides[] = {"listen.prot=1", "store.threads=x"};
    char port[] = "PORT=y";
    char *const env[] = {port, NULL};
    static const char text[] = "adress: 1\nlog: {format: xml}\n";

    (void)state;
    assert_int_equal(load(&(struct ps_option_input){.file = "f.yaml",
                                                    .text = text,
                                                    .text_len = strlen(text),
                                                    .env = env,
                                                    .overrides = overrides,
                                                    .override_count = 2,
                                                    .memory = 1 << 30}),
                     PS_E_CONFIG);
    assert_string_equal(
        report_data,
        "f.yaml:1:1: adress is not an option; did you mean listen.address?\n"
        "command line: listen.prot is not an option; did you mean "
        "listen.port?\n"
        "f.yaml:2:15: log.format: 'xml' is not a known word; write auto, "
        "text or json\n"
        "environment PORT: listen.port: 'y' is not a number that fits here; "
        "write a whole number from 0 to 65535\n"
        "command line: store.threads: 'x' is not a number that fits here; "
        "write a whole number from 1 to 1024, or auto\n");
}

static void missing_file_is_refused_unless_optional(void **state)
{
    struct ps_option_input in = {.file = "/nonexistent/psched.yaml",
                                 .file_optional = true,
                                 .memory = 1 << 30};

    (void)state;
    assert_int_equal(load(&in), 0);
    assert_string_equal(report_data, "");
    in.file_optional = false;
    assert_int_equal(load(&in), PS_E_NOENT);
    assert_string_equal(report_data, "/nonexistent/psched.yaml: does not "
                                     "exist; create it or name another\n");
}

static void reload_keeps_options_that_cannot_change(void **state)
{
    char dir[] = "STATE_DIRECTORY=/a$b";
    char *const env[] = {dir, NULL};
    static const char before[] = "listen: {port: 5}\n";
    static const char after[] = "listen: {port: 6}\nshutdown: {grace: 1s}\n"
                                "security: {allow: [x]}\n";
    struct ps_option_input in = {.file = "f.yaml",
                                 .text = before,
                                 .text_len = strlen(before),
                                 .env = env,
                                 .memory = 1 << 30};
    struct values old;
    struct values new;
    struct ps_options *old_o = NULL;
    struct ps_options *new_o = NULL;

    (void)state;
    ps_str_init(&report, report_data, sizeof(report_data));
    assert_int_equal(ps_options_load(&set, &in, &old, &old_o, &report), 0);
    in.text = after;
    in.text_len = strlen(after);
    in.previous = old_o;
    assert_int_equal(ps_options_load(&set, &in, &new, &new_o, &report), 0);
    ps_options_free(old_o);
    assert_string_equal(report_data,
                        "f.yaml:1:16: listen.port changes at the next start "
                        "only; restart psched\n");
    assert_int_equal(new.port, 5);
    assert_int_equal(new.grace, PS_SECONDS(1));
    assert_int_equal(new.allow.count, 1);
    assert_string_equal(new.state, "/a$b/psched.db");
    assert_string_equal(new.address, "127.0.0.1");
    ps_options_free(new_o);
}

static void note(void *ctx, const struct ps_option *row)
{
    ps_str_addf(ctx, "%s ", row->path);
}

static void compare_names_the_difference(void **state)
{
    char data[128];
    struct ps_str s;
    struct values other;
    struct ps_options *other_o = NULL;
    static const char text[] = "listen: {port: 7}\nsecurity: {allow: [x]}\n";

    (void)state;
    load_good("");
    assert_int_equal(
        ps_options_load(&set,
                        &(struct ps_option_input){.text = text,
                                                  .text_len = strlen(text),
                                                  .memory = 1 << 30},
                        &other, &other_o, &report),
        0);
    ps_str_init(&s, data, sizeof(data));
    ps_options_compare(o, other_o, note, &s);
    assert_string_equal(data, "listen.port security.allow ");
    ps_str_init(&s, data, sizeof(data));
    ps_options_text(other_o, "listen.port", &s);
    assert_string_equal(data, "7");
    ps_options_free(other_o);
}

static char *printed;
static size_t printed_len;

static FILE *open_print(void)
{
    free(printed);
    printed = NULL;
    return open_memstream(&printed, &printed_len);
}

/* The printed form of any loaded options loads to the same values. */
static void printed_options_are_read_back(void **state)
{
    static const char *const overrides[] = {
        "listen.address=\"q\\\xc3\xa4\xe2\x80\xa8:#\"",
        "security.allow=on,1.5,~",
        "run.env=A=no,B= x: y ,C=",
        "state.path=/a$$b c",
        "log.format=json",
        "store.memory=33.3%",
    };
    struct values other;
    struct ps_options *other_o = NULL;
    FILE *f;

    (void)state;
    assert_int_equal(
        load(&(struct ps_option_input){
            .overrides = overrides, .override_count = 6, .memory = 1000000}),
        PS_E_CONFIG); /* A third of so little memory is below the minimum. */
    assert_int_equal(load(&(struct ps_option_input){.overrides = overrides,
                                                    .override_count = 6,
                                                    .memory = 1000000000}),
                     0);
    f = open_print();
    ps_options_print(o, f);
    fclose(f);
    assert_int_equal(
        ps_options_load(&set,
                        &(struct ps_option_input){.file = "print",
                                                  .text = printed,
                                                  .text_len = printed_len,
                                                  .memory = 1000000000},
                        &other, &other_o, &report),
        0);
    assert_string_equal(report_data, "");
    char data[256];
    struct ps_str s;

    ps_str_init(&s, data, sizeof(data));
    ps_options_compare(o, other_o, note, &s);
    assert_string_equal(data, "");
    assert_string_equal(other.address, v.address);
    assert_string_equal(other.state, "/a$b c");
    assert_int_equal(other.memory, 333000000);
    assert_string_equal(other.env.items[1], "B= x: y");
    ps_options_free(other_o);
}

static void print_shows_origins(void **state)
{
    static const char text[] = "listen: {port: 7}\n";
    static const char *const overrides[] = {"security.tls=no"};
    char uri[] = "DMLC_PS_ROOT_URI=h";
    char *const env[] = {uri, NULL};
    FILE *f;

    (void)state;
    assert_int_equal(load(&(struct ps_option_input){.file = "f.yaml",
                                                    .text = text,
                                                    .text_len = strlen(text),
                                                    .env = env,
                                                    .overrides = overrides,
                                                    .override_count = 1,
                                                    .memory = 1 << 30}),
                     0);
    f = open_print();
    ps_options_print(o, f);
    fclose(f);
    assert_string_equal(printed,
                        "log:\n"
                        "  format: auto  # default\n"
                        "\n"
                        "security:\n"
                        "  tls: no  # command line\n"
                        "  allow: []  # default\n"
                        "\n"
                        "listen:\n"
                        "  address: h  # environment DMLC_PS_ROOT_URI\n"
                        "  port: 7  # f.yaml:1:16\n"
                        "\n"
                        "store:\n"
                        "  memory: 80%  # default\n"
                        "  threads: auto  # default\n"
                        "\n"
                        "shutdown:\n"
                        "  grace: 30s  # default\n"
                        "\n"
                        "client:\n"
                        "  mode: \"0660\"  # default\n"
                        "\n"
                        "state:\n"
                        "  path: /var/lib/pskv/psched.db  # default\n"
                        "\n"
                        "run:\n"
                        "  env: {}  # default\n"
                        "\n"
                        "clock:\n"
                        "  offset: -3  # default\n"
                        "\n"
                        "limits:\n"
                        "  frame: 64KiB  # default\n"
                        "\n"
                        "network:\n"
                        "  resend: yes  # default\n"
                        "  resend_timeout: 1s  # default\n");
}

/* With and without the '#' before the names the sample gives the defaults. */
static void sample_file_has_the_defaults(void **state)
{
    struct values other;
    struct ps_options *other_o = NULL;
    char data[256];
    struct ps_str s;
    FILE *f;

    (void)state;
    load_good("");
    f = open_print();
    ps_option_set_print_defaults(&set, f);
    fclose(f);
    assert_non_null(strstr(printed,
                           "listen:\n"
                           "  # Address to listen on. A text of up to 40 "
                           "bytes.\n"
                           "  #address: 127.0.0.1\n"
                           "  # Port to listen on; 0 takes a free one. A "
                           "whole number from 0 to 65535.\n"
                           "  #port: 9091\n"));
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(
            ps_options_load(&set,
                            &(struct ps_option_input){.file = "sample",
                                                      .text = printed,
                                                      .text_len = printed_len,
                                                      .memory = 1000000000},
                            &other, &other_o, &report),
            0);
        assert_int_equal(ps_options_origin(other_o, "listen.port"),
                         pass == 0 ? PS_OPTION_FROM_DEFAULT
                                   : PS_OPTION_FROM_FILE);
        ps_str_init(&s, data, sizeof(data));
        ps_options_compare(o, other_o, note, &s);
        assert_string_equal(data, "");
        ps_options_free(other_o);
        for (char *p = printed; *p != '\0'; p++) {
            if (p[0] == '#' && p[1] >= 'a' && p[1] <= 'z') {
                p[0] = ' '; /* A column further in, as all of them are. */
            }
        }
    }
}

static void schema_names_every_row(void **state)
{
    FILE *f;
    int depth = 0;

    (void)state;
    f = open_print();
    ps_option_set_print_schema(&set, f);
    fclose(f);
    for (size_t i = 0; i < PS_OPTION_COUNT(rows); i++) {
        char name[64];

        snprintf(name, sizeof(name), "\"%s\": {",
                 strrchr(rows[i].path, '.') + 1);
        assert_non_null(strstr(printed, name));
    }
    assert_non_null(strstr(printed, "\"enum\": [\"auto\", \"text\", "
                                    "\"json\"]"));
    for (const char *p = printed; *p != '\0'; p++) {
        depth += *p == '{' ? 1 : *p == '}' ? -1 : 0;
        assert_true(depth >= 0);
    }
    assert_int_equal(depth, 0);
    assert_null(strstr(printed, ",,"));
    assert_null(strstr(printed, ",\n}"));
}

static void wrong_tables_are_found(void **state)
{
    static const struct ps_option bad_rows[] = {
        {.path = "a.b", .type = PS_OPTION_U64, .text = "1", .help = "One."},
        {.path = "a.b", .type = PS_OPTION_U64, .text = "1", .help = "Two"},
        {.path = "a",
         .type = PS_OPTION_BOOL,
         .text = "no",
         .offset = 16,
         .help = "Three."},
        {.path = "A",
         .type = PS_OPTION_ENUM,
         .offset = 32,
         .text = "x",
         .help = "Four."},
    };
    static const struct ps_option bad_default[] = {
        {.path = "n", .type = PS_OPTION_U64, .text = "x", .help = "One."}};
    const struct ps_option_table bad_tables[] = {{bad_rows, 4, 0},
                                                 {bad_default, 1, 0}};
    struct ps_option_set bad = {
        .program = "p", .tables = bad_tables, .table_count = 1};

    (void)state;
    ps_str_init(&report, report_data, sizeof(report_data));
    assert_int_equal(option_set_check(&bad, &report), PS_E_BUG);
    assert_string_equal(report_data,
                        "a.b: stands there twice\n"
                        "a.b: shares its member with a.b\n"
                        "a.b: is a section and an option with a\n"
                        "a.b: help is not a sentence\n"
                        "a.b: is a section and an option with a\n"
                        "a: shares its variable with A\n"
                        "A: path is not made of words and dots\n"
                        "A: words belong to ENUM and to nothing else\n");
    bad.tables = &bad_tables[1];
    ps_str_init(&report, report_data, sizeof(report_data));
    assert_int_equal(option_set_check(&bad, &report), PS_E_BUG);
    assert_non_null(strstr(report_data, "default: n: 'x' is not a number"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(option_table_is_valid, teardown),
        cmocka_unit_test_teardown(defaults_fill_the_struct, teardown),
        cmocka_unit_test_teardown(file_sets_every_type, teardown),
        cmocka_unit_test_teardown(empty_sections_and_lists_are_fine, teardown),
        cmocka_unit_test_teardown(
            precedence_is_command_environment_file_default, teardown),
        cmocka_unit_test_teardown(older_variables_are_translated, teardown),
        cmocka_unit_test_teardown(wrong_variable_is_named, teardown),
        cmocka_unit_test_teardown(lists_on_the_command_line_have_commas,
                                  teardown),
        cmocka_unit_test_teardown(unknown_option_suggests_a_similar_name,
                                  teardown),
        cmocka_unit_test_teardown(values_of_the_wrong_kind_are_refused,
                                  teardown),
        cmocka_unit_test_teardown(wrong_values_name_the_valid_ones, teardown),
        cmocka_unit_test_teardown(bounds_of_ranges_are_accepted, teardown),
        cmocka_unit_test_teardown(share_needs_the_size_of_memory, teardown),
        cmocka_unit_test_teardown(variables_are_expanded, teardown),
        cmocka_unit_test_teardown(all_errors_are_reported_in_one_run, teardown),
        cmocka_unit_test_teardown(missing_file_is_refused_unless_optional,
                                  teardown),
        cmocka_unit_test_teardown(reload_keeps_options_that_cannot_change,
                                  teardown),
        cmocka_unit_test_teardown(compare_names_the_difference, teardown),
        cmocka_unit_test_teardown(printed_options_are_read_back, teardown),
        cmocka_unit_test_teardown(print_shows_origins, teardown),
        cmocka_unit_test_teardown(sample_file_has_the_defaults, teardown),
        cmocka_unit_test_teardown(schema_names_every_row, teardown),
        cmocka_unit_test_teardown(wrong_tables_are_found, teardown),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    free(printed);
    return failed;
}
