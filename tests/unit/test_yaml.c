/* SPDX-License-Identifier: Apache-2.0 */
#include "conf/yaml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"

static char report_data[2048];
static struct ps_str report;

static void start(void)
{
    ps_str_init(&report, report_data, sizeof(report_data));
}

/* The entries as text: "path=value@line:column", lists with [index]. */
static void expect(const char *yaml, const char *entries)
{
    char data[2048];
    struct ps_str s;
    struct ps_yaml y;

    start();
    ps_str_init(&s, data, sizeof(data));
    int rc = ps_yaml_parse("f.yaml", yaml, strlen(yaml), &y, &report);

    assert_string_equal(report_data, "");
    assert_int_equal(rc, 0);
    for (size_t i = 0; i < y.count; i++) {
        const struct ps_yaml_entry *e = &y.entries[i];

        ps_str_addf(&s, "%s", e->path);
        if (e->kind == PS_YAML_ITEM) {
            ps_str_addf(&s, "[%u]", e->index);
        }
        ps_str_addf(&s, "=%s@%u:%u\n",
                    e->is_null                      ? "(null)"
                    : e->kind == PS_YAML_EMPTY_LIST ? "[]"
                    : e->kind == PS_YAML_EMPTY_MAP  ? "{}"
                                                    : e->value,
                    e->line, e->column);
    }
    ps_yaml_fini(&y);
    assert_string_equal(data, entries);
    assert_int_equal(ps_alloc_live(), 0);
}

static void expect_error_in(const char *yaml, size_t len, const char *error)
{
    struct ps_yaml y;

    start();
    assert_int_equal(ps_yaml_parse("f.yaml", yaml, len, &y, &report),
                     PS_E_CONFIG);
    assert_string_equal(report_data, error);
    assert_int_equal(ps_alloc_live(), 0);
}

static void expect_error(const char *yaml, const char *error)
{
    expect_error_in(yaml, strlen(yaml), error);
}

static void values_have_their_lines_and_columns(void **state)
{
    (void)state;
    expect("listen:\n"
           "  address: 127.0.0.1   # here\n"
           "  port:    9091\n"
           "cluster: {name: \"a b\", size: 3}\n",
           "listen.address=127.0.0.1@2:12\n"
           "listen.port=9091@3:12\n"
           "cluster.name=a b@4:17\n"
           "cluster.size=3@4:30\n");
}

static void list_items_are_numbered(void **state)
{
    (void)state;
    expect("allow: [10.0.0.0/8, \"::1\"]\n"
           "users:\n"
           "  - ada\n"
           "  -\n"
           "none: []\n"
           "nothing: {}\n",
           "allow[0]=10.0.0.0/8@1:9\n"
           "allow[1]=::1@1:21\n"
           "users[0]=ada@3:5\n"
           "users[1]=(null)@4:4\n"
           "none=[]@5:7\n"
           "nothing={}@6:10\n");
}

static void containers_in_lists_are_numbered(void **state)
{
    (void)state;
    expect("hosts:\n"
           "  - name: n1\n"
           "    slots: [1, 2]\n"
           "  - [a]\n"
           "  - plain\n"
           "after: 1\n",
           "hosts.0.name=n1@2:11\n"
           "hosts.0.slots[0]=1@3:13\n"
           "hosts.0.slots[1]=2@3:16\n"
           "hosts.1[0]=a@4:6\n"
           "hosts[2]=plain@5:5\n"
           "after=1@6:8\n");
}

static void keys_have_their_lines_and_columns(void **state)
{
    static const char yaml[] = "a:\n  b:\n    c: 1\n";
    struct ps_yaml y;

    (void)state;
    start();
    assert_int_equal(ps_yaml_parse("f.yaml", yaml, strlen(yaml), &y, &report),
                     0);
    assert_int_equal(y.count, 1);
    assert_int_equal(y.entries[0].key_line, 3);
    assert_int_equal(y.entries[0].key_column, 5);
    assert_int_equal(y.entries[0].column, 8);
    ps_yaml_fini(&y);
}

static void null_is_recognised_without_quotes(void **state)
{
    (void)state;
    expect("a: null\nb: ~\nc:\nd: 'null'\ne: \"\"\nf: Null\n",
           "a=(null)@1:4\n"
           "b=(null)@2:4\n"
           "c=(null)@3:3\n"
           "d=null@4:4\n"
           "e=@5:4\n"
           "f=(null)@6:4\n");
}

static void empty_file_is_a_configuration(void **state)
{
    (void)state;
    expect("", "");
    expect("# only words\n", "");
    expect("---\n", "");
    expect("{}\n", "");
    expect("\xef\xbb\xbf"
           "a: 1\n",
           "a=1@1:4\n");
}

static void unsupported_syntax_is_refused(void **state)
{
    (void)state;
    expect_error("a: &x 1\n",
                 "f.yaml:1:4: anchors (&name) are not supported; write the "
                 "value where it is needed\n");
    expect_error("a: &a [*a]\n",
                 "f.yaml:1:4: anchors (&name) are not supported; write the "
                 "value where it is needed\n");
    expect_error("a: *x\n",
                 "f.yaml:1:4: aliases (*name) are not supported; write the "
                 "value where it is needed\n");
    expect_error("a: !!str 1\n", "f.yaml:1:4: tags (!name) are not supported; "
                                 "leave it out\n");
    expect_error("a: 1\n---\nb: 2\n",
                 "f.yaml:2:1: a second document begins; remove the '---'\n");
    expect_error("a: \"x\\0y\"\n", "f.yaml:1:4: zero byte in a value; remove "
                                   "the \"\\0\"\n");
    expect_error("[1]: 2\n",
                 "f.yaml:1:1: a list cannot be a key; use a plain word\n");
    expect_error("- 1\n",
                 "f.yaml:1:1: the file is a list; write 'key: value' lines\n");
    expect_error("words\n", "f.yaml:1:1: the file is a single value; write "
                            "'key: value' lines\n");
}

static void repeated_keys_are_refused(void **state)
{
    (void)state;
    expect_error("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a was given before, at "
                                       "line 1; keep one of them\n");
    expect_error("log: {level: info}\nlisten: {port: 1}\nlog: {level: debug}\n",
                 "f.yaml:3:1: log was given before, at line 1; keep one of "
                 "them\n");
    expect_error("a:\n  b: {c: 1, c: 2}\n",
                 "f.yaml:2:13: a.b.c was given before, at line 2; keep one "
                 "of them\n");
    /* The same word elsewhere is another key. */
    expect("a: {x: 1}\nb: {x: 1}\nl: [{x: 1}, {x: 2}]\n",
           "a.x=1@1:8\nb.x=1@2:8\nl.0.x=1@3:9\nl.1.x=2@3:17\n");
}

static void keys_with_other_characters_are_refused(void **state)
{
    char yaml[200];

    (void)state;
    expect_error("a.b: 1\n", "f.yaml:1:1: 'a.b' cannot be a key; use up to "
                             "64 letters, digits, '_' and '-'\n");
    expect_error("\"x\\n\": 1\n",
                 "f.yaml:1:1: 'x\\x0a' cannot be a key; use up to 64 letters, "
                 "digits, '_' and '-'\n");
    expect_error("<<: {a: 1}\n",
                 "f.yaml:1:1: '<<' cannot be a key; use up to 64 letters, "
                 "digits, '_' and '-'\n");
    memset(yaml, 'k', 65);
    snprintf(yaml + 65, sizeof(yaml) - 65, ": 1\n");
    expect_error(yaml, "f.yaml:1:1: 'kkkkkkkkkkkkkkkk...' cannot be a key; "
                       "use up to 64 letters, digits, '_' and '-'\n");
}

static void syntax_errors_have_their_line_and_column(void **state)
{
    (void)state;
    expect_error("a: 1\n b: 2\n",
                 "f.yaml:2:3: mapping values are not allowed in this "
                 "context; correct it\n");
    expect_error("a: [1, 2\n",
                 "f.yaml:2:1: did not find expected ',' or ']', while "
                 "parsing a flow sequence that began at line 1; correct "
                 "it\n");
    expect_error("a: 1\nb: \xff\n", "f.yaml:2:4: invalid leading UTF-8 "
                                    "octet; save the file as UTF-8\n");
    expect_error_in("a: \0\n", 5,
                    "f.yaml:1:4: control characters are not "
                    "allowed; save the file as UTF-8\n");
}

static char *repeat(const char *unit, size_t count, size_t *ret_len)
{
    size_t len = strlen(unit);
    char *text = malloc(count * len + 1);

    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < len; j++) {
            text[i * len + j] = unit[j];
        }
    }
    text[count * len] = '\0';
    *ret_len = count * len;
    return text;
}

static void depth_has_a_limit(void **state)
{
    /* 16 levels with the map of the file itself. */
    (void)state;
    expect("a: [[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]\n",
           "a.0.0.0.0.0.0.0.0.0.0.0.0.0.0[0]=1@1:19\n");
    expect_error("a: [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]\n",
                 "f.yaml:1:19: nested deeper than 16 levels; flatten it\n");
}

static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* A tree loader takes minutes for these. The bound is generous, because the
 * machine may be slow or run a sanitizer. */
static void hostile_files_are_refused_quickly(void **state)
{
    static const char *const units[] = {
        "[",   "{",     "- ", "? ",  "a: [", "{a: ", "[{",     "\"",
        "'",   "a:\n ", "#",  "\n",  " ",    "\t",   "%",      "|",
        "&a ", "*a ",   "a,", "[],", "{},",  ": ",   "- - -\n"};

    (void)state;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        size_t len;
        char *text = repeat(units[i], PS_YAML_FILE_MAX / strlen(units[i]),
                            &len);
        double before = cpu_seconds();
        struct ps_yaml y;

        start();
        if (ps_yaml_parse("f.yaml", text, len, &y, &report) == 0) {
            ps_yaml_fini(&y);
        }
        if (cpu_seconds() - before > 5) {
            fail_msg("'%s' repeated takes %.1f s", units[i],
                     cpu_seconds() - before);
        }
        free(text);
        text = repeat(units[i], 100000 / strlen(units[i]), &len);
        /* As a value, behind a good beginning. */
        memcpy(text, "k: [ ", 5);
        before = cpu_seconds();
        start();
        if (ps_yaml_parse("f.yaml", text, len, &y, &report) == 0) {
            ps_yaml_fini(&y);
        }
        assert_true(cpu_seconds() - before < 5);
        free(text);
    }
    assert_int_equal(ps_alloc_live(), 0);
}

static void size_and_count_have_limits(void **state)
{
    size_t len;
    char *text = repeat("# words\n", PS_YAML_FILE_MAX / 8, &len);
    struct ps_yaml y;

    (void)state;
    start();
    assert_int_equal(ps_yaml_parse("f.yaml", text, len, &y, &report), 0);
    ps_yaml_fini(&y);
    text[len] = '\n';
    assert_int_equal(ps_yaml_parse("f.yaml", text, len + 1, &y, &report),
                     PS_E_CONFIG);
    assert_string_equal(report_data,
                        "f.yaml: longer than 1048576 bytes; shorten it\n");
    free(text);

    text = repeat("x,", 20000, &len);
    text[1] = ':'; /* "x: [x,x,...]" */
    text[2] = ' ';
    text[3] = '[';
    text[len - 1] = ']';
    start();
    assert_int_equal(ps_yaml_parse("f.yaml", text, len, &y, &report),
                     PS_E_CONFIG);
    assert_non_null(strstr(report_data,
                           "more than 16384 keys and values; shorten the "
                           "file\n"));
    free(text);
    assert_int_equal(ps_alloc_live(), 0);
}

static char folder[] = "/tmp/pskv-test-yaml-XXXXXX";

static void write_file(const char *path, const char *text, size_t len)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    fclose(f);
}

static void unreadable_files_are_refused(void **state)
{
    char path[64];
    char expected[256];
    char *text = NULL;
    size_t len = 0;

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/a.yaml", folder);

    start();
    assert_int_equal(ps_yaml_read(path, &text, &len, &report), PS_E_NOENT);
    snprintf(expected, sizeof(expected),
             "%s: does not exist; create it or name another\n", path);
    assert_string_equal(report_data, expected);

    write_file(path, "a: 1\n", 5);
    chmod(path, 0644);
    start();
    assert_int_equal(ps_yaml_read(path, &text, &len, &report), 0);
    assert_int_equal(len, 5);
    assert_memory_equal(text, "a: 1\n", 5);
    ps_free(text);

    chmod(path, 0646);
    assert_int_equal(ps_yaml_read(path, &text, &len, &report), PS_E_CONFIG);
    snprintf(expected, sizeof(expected),
             "%s: owner %u, mode 0646: other users can write it; run 'chmod "
             "go-w %s'\n",
             path, (unsigned)geteuid(), path);
    assert_string_equal(report_data, expected);

    chmod(path, 0644);
    assert_int_equal(truncate(path, PS_YAML_FILE_MAX), 0);
    start();
    assert_int_equal(ps_yaml_read(path, &text, &len, &report), 0);
    assert_int_equal(len, PS_YAML_FILE_MAX);
    ps_free(text);
    assert_int_equal(truncate(path, PS_YAML_FILE_MAX + 1), 0);
    assert_int_equal(ps_yaml_read(path, &text, &len, &report), PS_E_CONFIG);

    start();
    assert_int_equal(ps_yaml_read(folder, &text, &len, &report), PS_E_IO);
    unlink(path);
    rmdir(folder);
    assert_int_equal(ps_alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_their_lines_and_columns),
        cmocka_unit_test(list_items_are_numbered),
        cmocka_unit_test(containers_in_lists_are_numbered),
        cmocka_unit_test(keys_have_their_lines_and_columns),
        cmocka_unit_test(null_is_recognised_without_quotes),
        cmocka_unit_test(empty_file_is_a_configuration),
        cmocka_unit_test(unsupported_syntax_is_refused),
        cmocka_unit_test(repeated_keys_are_refused),
        cmocka_unit_test(keys_with_other_characters_are_refused),
        cmocka_unit_test(syntax_errors_have_their_line_and_column),
        cmocka_unit_test(depth_has_a_limit),
        cmocka_unit_test(hostile_files_are_refused_quickly),
        cmocka_unit_test(size_and_count_have_limits),
        cmocka_unit_test(unreadable_files_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
