/* SPDX-License-Identifier: Apache-2.0 */
#include "support/option_check.h"

#include "base/alloc.h"
#include "conf/inner.h"

#include <string.h>

#define NAME_MAX_BYTES 128u

struct checker {
    const struct ps_option_set *set;
    struct ps_str *report;
    bool failed;
};

static void add_line(struct checker *c, const struct ps_option *row,
                     const char *what, const char *detail)
{
    ps_str_addf(c->report, "%s: %s%s\n", row->path, what, detail);
    c->failed = true;
}

static bool is_valid_path(const char *path)
{
    size_t len = strlen(path);

    return len > 0 && len < NAME_MAX_BYTES / 2 && path[0] != '.' &&
           path[len - 1] != '.' && strstr(path, "..") == NULL &&
           strspn(path, "abcdefghijklmnopqrstuvwxyz0123456789_.") == len;
}

static void check_row(struct checker *c, const struct ps_option *row)
{
    size_t help = row->help == NULL ? 0 : strlen(row->help);

    if (!is_valid_path(row->path)) {
        add_line(c, row, "path is not made of words and dots", "");
    }
    if (help < 2 || row->help[help - 1] != '.') {
        add_line(c, row, "help is not a sentence", "");
    }
    if ((row->type == PS_OPTION_ENUM) != (row->enum_names != NULL)) {
        add_line(c, row, "words belong to ENUM and to nothing else", "");
    }
    if (row->max != 0 && row->max < row->min) {
        add_line(c, row, "range is empty", "");
    }
    if (row->form == PS_OPTION_EXPANDED && row->type != PS_OPTION_STRING) {
        add_line(c, row, "only a STRING expands", "");
    }
    if (row->form == PS_OPTION_PAIRS && row->type != PS_OPTION_LIST) {
        add_line(c, row, "only a LIST takes pairs", "");
    }
    if (row->form == PS_OPTION_PERCENT && row->type != PS_OPTION_SIZE) {
        add_line(c, row, "only a SIZE can be a share", "");
    }
}

static size_t member_size(enum ps_option_type type)
{
    switch (type) {
    case PS_OPTION_BOOL:
        return sizeof(bool);
    case PS_OPTION_INT:
    case PS_OPTION_ENUM:
        return sizeof(int);
    case PS_OPTION_MODE:
        return sizeof(unsigned);
    case PS_OPTION_U64:
    case PS_OPTION_SIZE:
    case PS_OPTION_DURATION:
        return sizeof(uint64_t);
    case PS_OPTION_STRING:
        return sizeof(const char *);
    case PS_OPTION_LIST:
        return sizeof(struct ps_option_list);
    }
    return 0;
}

static bool members_overlap(size_t a, size_t a_size, size_t b, size_t b_size)
{
    return a < b + b_size && b < a + a_size;
}

/* A section cannot be an option as well: "listen" and "listen.port"
 * conflict. */
static bool is_in_section(const char *path, const char *section)
{
    size_t len = strlen(section);

    return strncmp(path, section, len) == 0 && path[len] == '.';
}

static bool share_alias(const struct ps_option_set *set,
                        const struct ps_option *a, const struct ps_option *b)
{
    const struct ps_option_alias *x;
    const struct ps_option_alias *y;

    for (size_t i = 0; (x = ps_option_set_alias(set, a, i)) != NULL; i++) {
        for (size_t j = 0; (y = ps_option_set_alias(set, b, j)) != NULL; j++) {
            if (strcmp(x->name, y->name) == 0) {
                return true;
            }
        }
    }
    return false;
}

static void check_row_pair(struct checker *c, size_t i, size_t j)
{
    size_t a_offset;
    size_t b_offset;
    const struct ps_option *a = ps_option_set_row(c->set, i, &a_offset);
    const struct ps_option *b = ps_option_set_row(c->set, j, &b_offset);
    char a_name[NAME_MAX_BYTES];
    char b_name[NAME_MAX_BYTES];
    struct ps_str s;

    ps_str_init(&s, a_name, sizeof(a_name));
    ps_option_variable(a, &s);
    ps_str_init(&s, b_name, sizeof(b_name));
    ps_option_variable(b, &s);
    if (strcmp(a->path, b->path) == 0) {
        add_line(c, a, "stands there twice", "");
    } else if (strcmp(a_name, b_name) == 0) {
        add_line(c, a, "shares its variable with ", b->path);
    }
    if (is_in_section(a->path, b->path) || is_in_section(b->path, a->path)) {
        add_line(c, a, "is a section and an option with ", b->path);
    }
    if (members_overlap(a_offset, member_size(a->type), b_offset,
                        member_size(b->type))) {
        add_line(c, a, "shares its member with ", b->path);
    }
    if (share_alias(c->set, a, b)) {
        add_line(c, a, "shares an alias with ", b->path);
    }
}

static bool is_known_path(const struct ps_option_set *set, const char *path)
{
    for (size_t i = 0; i < ps_option_set_count(set); i++) {
        if (strcmp(ps_option_set_row(set, i, NULL)->path, path) == 0) {
            return true;
        }
    }
    return false;
}

/* Every default must be valid without any environment variable. */
static void check_defaults(struct checker *c)
{
    size_t end = 0;

    for (size_t i = 0; i < ps_option_set_count(c->set); i++) {
        size_t offset;
        const struct ps_option *row = ps_option_set_row(c->set, i, &offset);

        offset += member_size(row->type);
        end = offset > end ? offset : end;
    }
    struct ps_option_input in = {.memory = UINT64_C(1) << 40};
    struct ps_options *o = NULL;
    void *values = ps_calloc(1, end);

    if (ps_options_load(c->set, &in, values, &o, c->report) == 0) {
        ps_options_free(o);
    } else {
        c->failed = true;
    }
    ps_free(values);
}

int option_set_check(const struct ps_option_set *set, struct ps_str *report)
{
    struct checker c = {.set = set, .report = report};
    size_t count = ps_option_set_count(set);

    for (size_t i = 0; i < count; i++) {
        check_row(&c, ps_option_set_row(set, i, NULL));
        for (size_t j = i + 1; j < count; j++) {
            check_row_pair(&c, i, j);
        }
    }
    for (size_t i = 0; i < set->default_count; i++) {
        if (!is_known_path(set, set->defaults[i].path)) {
            ps_str_addf(report, "%s: default of an option that is not there\n",
                        set->defaults[i].path);
            c.failed = true;
        }
    }
    if (!c.failed) {
        check_defaults(&c); /* Loading needs valid rows. */
    }
    return c.failed ? PS_E_BUG : 0;
}
