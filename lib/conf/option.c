/* SPDX-License-Identifier: Apache-2.0 */
/* Loading of options: every row starts with its default; file, environment and
 * command line replace the text in turn and record the origin; finally each
 * text is converted to a value. All errors are collected, so that one run
 * reports all of them. */
#include "conf/option.h"

#include "base/alloc.h"
#include "base/str.h"
#include "base/num.h"
#include "conf/inner.h"
#include "conf/yaml.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PATH_MAX_BYTES 128u

struct loader {
    struct ps_options *options;
    const struct ps_option_input *input;
    struct ps_str *report;
    bool failed;
};

size_t ps_option_set_count(const struct ps_option_set *set)
{
    size_t n = 0;

    for (size_t i = 0; i < set->table_count; i++) {
        n += set->tables[i].count;
    }
    return n;
}

const struct ps_option *ps_option_set_row(const struct ps_option_set *set,
                                          size_t i, size_t *ret_offset)
{
    const struct ps_option_table *t = set->tables;

    while (i >= t->count) {
        i -= t->count;
        t++;
        assert(t < set->tables + set->table_count);
    }
    if (ret_offset != NULL) {
        *ret_offset = t->base + t->rows[i].offset;
    }
    return &t->rows[i];
}

const char *ps_option_set_default(const struct ps_option_set *set,
                                  const struct ps_option *row)
{
    for (size_t i = 0; i < set->default_count; i++) {
        if (strcmp(set->defaults[i].path, row->path) == 0 &&
            set->defaults[i].text != NULL) {
            return set->defaults[i].text;
        }
    }
    return row->text;
}

const struct ps_option_alias *
ps_option_set_alias(const struct ps_option_set *set,
                    const struct ps_option *row, size_t i)
{
    for (size_t d = 0; d < set->default_count; d++) {
        if (set->defaults[d].alias.name == NULL ||
            strcmp(set->defaults[d].path, row->path) != 0) {
            continue;
        }
        if (i == 0) {
            return &set->defaults[d].alias;
        }
        i--;
    }
    return i < PS_OPTION_ALIASES_MAX && row->aliases[i].name != NULL
               ? &row->aliases[i]
               : NULL;
}

void ps_option_variable(const struct ps_option *row, struct ps_str *s)
{
    ps_str_add(s, "PSD_");
    for (const char *p = row->path; *p != '\0'; p++) {
        char c = *p >= 'a' && *p <= 'z' ? (char)(*p - 'a' + 'A') : *p;

        ps_str_addf(s, "%c", c == '.' ? '_' : c);
    }
}

char **ps_option_split(const char *text, size_t *ret_count)
{
    char **items = NULL;
    size_t count = 0;

    while (*text != '\0') {
        size_t len = strcspn(text, ",");
        size_t from = strspn(text, " ");
        size_t to = len;

        if (from > len) {
            from = len;
        }
        while (to > from && text[to - 1] == ' ') {
            to--;
        }
        items = ps_realloc(items, (count + 1) * sizeof(items[0]));
        items[count] = ps_alloc(to - from + 1);
        memcpy(items[count], text + from, to - from);
        items[count++][to - from] = '\0';
        text += len;
        if (*text == ',') {
            text++;
        }
    }
    *ret_count = count;
    return items;
}

static void slot_clear(struct ps_option_slot *s)
{
    for (size_t i = 0; i < s->item_count; i++) {
        ps_free(s->items[i]);
    }
    ps_free(s->items);
    ps_free(s->where);
    s->items = NULL;
    s->item_count = 0;
    s->where = NULL;
    s->expanded = false;
    s->alias = NULL;
}

static void slot_add(struct ps_option_slot *s, const char *item)
{
    s->items = ps_realloc(s->items, (s->item_count + 1) * sizeof(s->items[0]));
    s->items[s->item_count++] = ps_strdup(item);
}

/* Removes the texts of an earlier source and sets the new origin. */
static void slot_reset(struct ps_option_slot *s, enum ps_option_origin from,
                       const char *where)
{
    slot_clear(s);
    s->origin = from;
    s->where = ps_strdup(where);
}

/* Sets a single text, from a source other than the file. */
static void slot_set(struct ps_option_slot *s, enum ps_option_origin from,
                     const char *where, const char *text)
{
    slot_reset(s, from, where);
    if (s->row->type == PS_OPTION_LIST) {
        s->items = ps_option_split(text == NULL ? "" : text, &s->item_count);
    } else {
        slot_add(s, text == NULL ? "" : text);
    }
}

static void slot_copy(struct ps_option_slot *s,
                      const struct ps_option_slot *other)
{
    slot_reset(s, other->origin, other->where);
    for (size_t i = 0; i < other->item_count; i++) {
        slot_add(s, other->items[i]);
    }
    s->expanded = other->expanded;
}

static bool slot_same(const struct ps_option_slot *a,
                      const struct ps_option_slot *b)
{
    if (a->item_count != b->item_count) {
        return false;
    }
    for (size_t i = 0; i < a->item_count; i++) {
        if (strcmp(a->items[i], b->items[i]) != 0) {
            return false;
        }
    }
    return true;
}

static struct ps_option_slot *find_option(const struct ps_options *o,
                                          const char *path)
{
    for (size_t i = 0; i < o->count; i++) {
        if (strcmp(o->slots[i].row->path, path) == 0) {
            return &o->slots[i];
        }
    }
    return NULL;
}

static void add_error(struct loader *l, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void add_error(struct loader *l, const char *where, const char *fmt, ...)
{
    va_list ap;

    ps_str_addf(l->report, "%s: ", where);
    va_start(ap, fmt);
    ps_str_addv(l->report, fmt, ap);
    va_end(ap);
    ps_str_add(l->report, "\n");
    l->failed = true;
}

static void add_unknown(struct loader *l, const char *where, const char *path)
{
    const char *near = ps_option_nearest(l->options->set, path);
    struct ps_str s = PS_STR_ROOM(PATH_MAX_BYTES * 4);

    ps_str_add_escaped(&s, path, strlen(path), PATH_MAX_BYTES);
    if (near != NULL) {
        add_error(l, where, "%s is not an option; did you mean %s?", s.data,
                  near);
    } else {
        add_error(l, where,
                  "%s is not an option; --print-config=defaults lists them",
                  s.data);
    }
}

/* True if `path` is a section that contains options. */
static bool is_section(const struct ps_options *o, const char *path)
{
    size_t len = strlen(path);

    for (size_t i = 0; i < o->count; i++) {
        const char *p = o->slots[i].row->path;

        if (strncmp(p, path, len) == 0 && p[len] == '.') {
            return true;
        }
    }
    return false;
}

/* Returns the row of PAIRS that has `path` as a member, and the member's
 * key. */
static struct ps_option_slot *find_pairs(const struct ps_options *o,
                                         const char *path, const char **ret_key)
{
    const char *dot = strrchr(path, '.');

    for (size_t i = 0; i < o->count && dot != NULL; i++) {
        const struct ps_option *row = o->slots[i].row;
        size_t len = strlen(row->path);

        if (row->form == PS_OPTION_PAIRS && len == (size_t)(dot - path) &&
            strncmp(row->path, path, len) == 0) {
            *ret_key = dot + 1;
            return &o->slots[i];
        }
    }
    return NULL;
}

static void add_refusal(struct loader *l, const struct ps_option *row,
                        const struct ps_yaml_entry *e, const char *where)
{
    struct ps_str s = PS_STR_ROOM(256);

    ps_value_describe(row, &s);
    add_error(l, where, "%s is not a %s; write %s", row->path,
              e->kind == PS_YAML_EMPTY_MAP ? "map" : "list", s.data);
}

static void apply_list(struct loader *l, struct ps_option_slot *s,
                       const struct ps_yaml_entry *e, const char *where)
{
    bool fits = s->row->type == PS_OPTION_LIST &&
                (s->row->form == PS_OPTION_PAIRS) ==
                    (e->kind == PS_YAML_EMPTY_MAP);

    if (e->kind == PS_YAML_SCALAR && s->row->type == PS_OPTION_LIST) {
        if (e->is_null) {
            slot_reset(s, PS_OPTION_FROM_FILE, where);
            return;
        }
        add_error(l, where, "%s takes a %s; write %s", s->row->path,
                  s->row->form == PS_OPTION_PAIRS ? "map" : "list",
                  s->row->form == PS_OPTION_PAIRS ? "{key: value}" : "[value]");
    } else if (!fits) {
        if (e->index == 0) {
            add_refusal(l, s->row, e, where);
        }
    } else if (e->kind == PS_YAML_ITEM && e->is_null) {
        add_error(l, where, "%s has an empty item; remove it", s->row->path);
    } else {
        if (e->kind != PS_YAML_ITEM || e->index == 0) {
            slot_reset(s, PS_OPTION_FROM_FILE, where);
        }
        if (e->kind == PS_YAML_ITEM) {
            slot_add(s, e->value);
        }
    }
}

static void apply_pair(struct ps_option_slot *s, const char *key,
                       const struct ps_yaml_entry *e, const char *where)
{
    size_t len = strlen(key) + strlen(e->value) + 2;
    char *item = ps_alloc(len);
    struct ps_str text;

    if (s->origin != PS_OPTION_FROM_FILE) {
        slot_reset(s, PS_OPTION_FROM_FILE, where);
    }
    ps_str_init(&text, item, len);
    ps_str_addf(&text, "%s=%s", key, e->is_null ? "" : e->value);
    slot_add(s, item);
    ps_free(item);
}

static char *new_place(const char *name, unsigned line, unsigned column)
{
    size_t cap = strlen(name) + 32;
    char *place = ps_alloc(cap);
    struct ps_str s;

    ps_str_init(&s, place, cap);
    ps_str_addf(&s, "%s:%u:%u", name, line, column);
    return place;
}

static void apply_known(struct loader *l, struct ps_option_slot *s,
                        const struct ps_yaml_entry *e, const char *where)
{
    if (s->row->type == PS_OPTION_LIST || e->kind != PS_YAML_SCALAR) {
        apply_list(l, s, e, where);
        return;
    }
    slot_set(s, PS_OPTION_FROM_FILE, where,
             e->is_null && s->row->type == PS_OPTION_STRING ? "" : e->value);
}

static void reject_unknown(struct loader *l, const struct ps_yaml_entry *e,
                           const char *name, const char *where)
{
    if (is_section(l->options, e->path)) {
        /* "section:" with only commented-out options is allowed. */
        if (!e->is_null && e->kind != PS_YAML_EMPTY_MAP && e->index == 0) {
            add_error(l, where, "%s is a section; write its options below it",
                      e->path);
        }
        return;
    }
    char *key_where = new_place(name, e->key_line, e->key_column);

    if (e->kind != PS_YAML_ITEM || e->index == 0) {
        add_unknown(l, key_where, e->path);
    }
    ps_free(key_where);
}

static void apply_entry(struct loader *l, const char *name,
                        const struct ps_yaml_entry *e)
{
    char *where = new_place(name, e->line, e->column);
    struct ps_option_slot *s = find_option(l->options, e->path);
    const char *key;

    if (s != NULL) {
        apply_known(l, s, e, where);
    } else {
        s = find_pairs(l->options, e->path, &key);
        if (s != NULL && e->kind == PS_YAML_SCALAR) {
            apply_pair(s, key, e, where);
        } else {
            reject_unknown(l, e, name, where);
        }
    }
    ps_free(where);
}

/* PS_E_CONFIG: the contents are not valid. */
static int apply_file(struct loader *l)
{
    const struct ps_option_input *in = l->input;
    const char *text = in->text;
    size_t len = in->text_len;
    char *owned = NULL;
    struct ps_str report = *l->report;
    struct ps_yaml y;
    int rc;

    if (text == NULL && in->file == NULL) {
        return 0;
    }
    if (text == NULL) {
        rc = ps_yaml_read(in->file, &owned, &len, l->report);
        if (rc == PS_E_NOENT && in->file_optional) {
            *l->report = report; /* An optional file may be missing. */
            report.data[report.len] = '\0';
            return 0;
        }
        if (rc != 0) {
            return rc;
        }
        text = owned;
    }
    const char *name = in->file == NULL ? "configuration" : in->file;

    rc = ps_yaml_parse(name, text, len, &y, l->report);
    ps_free(owned);
    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; i < y.count; i++) {
        apply_entry(l, name, &y.entries[i]);
    }
    ps_yaml_fini(&y);
    return 0;
}

/* Appends the translated value: "2" becomes "trace" by "1=debug 2=trace", "100"
 * becomes "100ms". */
static void translate_alias(const struct ps_option_alias *a, const char *value,
                            struct ps_str *s)
{
    size_t len = strlen(value);

    for (const char *p = a->values; p != NULL && *p != '\0';) {
        size_t n = strcspn(p, " ");

        if (n > len && memcmp(p, value, len) == 0 && p[len] == '=') {
            ps_str_addf(s, "%.*s", (int)(n - len - 1), p + len + 1);
            return;
        }
        p += n + strspn(p + n, " ");
    }
    ps_str_add(s, value);
    if (a->unit != NULL && strspn(value, "0123456789.") == len) {
        ps_str_add(s, a->unit);
    }
}

static void apply_variable(struct ps_option_slot *s, const char *name,
                           const char *text)
{
    struct ps_str w = PS_STR_ROOM(PATH_MAX_BYTES + 32);

    ps_str_addf(&w, "environment %s", name);
    slot_set(s, PS_OPTION_FROM_ENVIRONMENT, w.data, text);
}

/* The variable PSD_<PATH> has precedence over aliases, which other programs
 * use, too. */
static void apply_environment(struct loader *l)
{
    for (size_t i = 0; i < l->options->count; i++) {
        struct ps_option_slot *s = &l->options->slots[i];
        const struct ps_option *row = s->row;
        struct ps_str n = PS_STR_ROOM(PATH_MAX_BYTES + 8);

        ps_option_variable(row, &n);
        const char *value = ps_value_getenv(l->input->env, n.data);

        if (value != NULL) {
            apply_variable(s, n.data, value);
            continue;
        }
        for (size_t a = 0;; a++) {
            const struct ps_option_alias *alias = ps_option_set_alias(
                l->options->set, row, a);

            if (alias == NULL) {
                break;
            }
            value = ps_value_getenv(l->input->env, alias->name);
            if (value == NULL) {
                continue;
            }
            size_t cap = strlen(value) + 64;
            char *text = ps_alloc(cap);
            struct ps_str t;

            ps_str_init(&t, text, cap);
            translate_alias(alias, value, &t);
            apply_variable(s, alias->name, text);
            s->alias = alias;
            ps_free(text);
            break;
        }
    }
}

static bool reads_variable(const struct ps_option_set *set, const char *name)
{
    for (size_t i = 0; i < ps_option_set_count(set); i++) {
        struct ps_str s = PS_STR_ROOM(PATH_MAX_BYTES + 8u);

        ps_option_variable(ps_option_set_row(set, i, NULL), &s);
        if (strcmp(s.data, name) == 0) {
            return true;
        }
    }
    return false;
}

#define VARIABLE_MAX (PATH_MAX_BYTES + 8u)

/* Writes the variable most similar to `name` to `ret`; "" if none is near. */
static void find_nearest_variable(const struct loader *l, const char *name,
                                  char ret[VARIABLE_MAX])
{
    size_t near = ps_max_u64(1, ps_min_u64(3, strlen(name) / 4));

    ret[0] = '\0';
    for (const struct ps_option_set *const *set = l->input->sets; *set != NULL;
         set++) {
        for (size_t i = 0; i < ps_option_set_count(*set); i++) {
            struct ps_str s = PS_STR_ROOM(VARIABLE_MAX);
            size_t d;

            ps_option_variable(ps_option_set_row(*set, i, NULL), &s);
            d = ps_edit_distance(s.data, name);
            if (d < near || (d == near && ret[0] == '\0')) {
                near = d;
                ps_str_copy(ret, VARIABLE_MAX, s.data);
            }
        }
    }
}

static void report_unknown_variable(struct loader *l, const char *name)
{
    char near[VARIABLE_MAX];

    find_nearest_variable(l, name, near);
    ps_str_add(l->report, "environment ");
    ps_str_add_escaped(l->report, name, strlen(name), PATH_MAX_BYTES);
    ps_str_add(l->report, " is not an option of any daemon and has no effect");
    if (near[0] != '\0') {
        ps_str_addf(l->report, "; did you mean %s?", near);
    }
    ps_str_add(l->report, "\n");
}

/* Reports each variable PSD_* that no program reads. Not an error: a shared
 * environment may have variables of a later version. */
static void check_variables(struct loader *l)
{
    for (char *const *e = l->input->env; e != NULL && *e != NULL; e++) {
        char name[VARIABLE_MAX];
        size_t len = strcspn(*e, "=");
        bool known = false;

        if (strncmp(*e, "PSD_", 4) != 0) {
            continue;
        }
        len = len < sizeof(name) ? len : sizeof(name) - 1;
        memcpy(name, *e, len);
        name[len] = '\0';
        for (const struct ps_option_set *const *set = l->input->sets;
             !known && *set != NULL; set++) {
            known = reads_variable(*set, name);
        }
        if (!known) {
            report_unknown_variable(l, name);
        }
    }
}

static void apply_override(struct loader *l, char *path, const char *value)
{
    struct ps_option_slot *s = find_option(l->options, path);

    if (s == NULL) {
        add_unknown(l, "command line", path);
    } else if (value == NULL) {
        add_error(l, "command line", "%s has no value; write %s=VALUE", path,
                  path);
    } else {
        slot_set(s, PS_OPTION_FROM_COMMAND, "command line", value);
    }
}

static void apply_overrides(struct loader *l)
{
    for (size_t i = 0; i < l->input->override_count; i++) {
        char *path = ps_strdup(l->input->overrides[i]);
        char *equals = strchr(path, '=');

        if (equals != NULL) {
            *equals++ = '\0';
        }
        apply_override(l, path, equals);
        ps_free(path);
    }
}

static bool check_pair(const char *item, struct ps_str *why)
{
    size_t len = strcspn(item, "=");

    if (item[len] == '=' && len > 0 && len <= PS_YAML_KEY_MAX &&
        strspn(item, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                     "0123456789_-") == len) {
        return true;
    }
    ps_str_add(why, "'");
    ps_str_add_escaped(why, item, strlen(item), 64);
    ps_str_add(why, "' is not a pair; write key=value");
    return false;
}

/* Reports a repeated item. The YAML parser refuses repeated keys, but a
 * comma-separated list may have them. */
static bool check_repeats(const struct ps_option_slot *s, struct ps_str *why)
{
    for (size_t i = 0; i < s->item_count; i++) {
        int len = (int)strcspn(s->items[i], "=") + 1;

        for (size_t j = 0; j < i; j++) {
            if (strncmp(s->items[i], s->items[j], (size_t)len) == 0) {
                ps_str_addf(why, "%.*s is given twice; keep one of them",
                            len - 1, s->items[i]);
                return false;
            }
        }
    }
    return true;
}

static bool convert_list(struct ps_option_slot *s, void *member,
                         struct ps_str *why)
{
    struct ps_option_list list = {.items = (const char *const *)s->items,
                                  .count = s->item_count};

    if (!ps_value_check_length(s->row, s->item_count, why)) {
        return false;
    }
    for (size_t i = 0; i < s->item_count; i++) {
        if (s->row->form == PS_OPTION_PAIRS && !check_pair(s->items[i], why)) {
            return false;
        }
        if (!ps_value_check_text(s->row, s->items[i], why)) {
            return false;
        }
    }
    if (s->row->form == PS_OPTION_PAIRS && s->origin != PS_OPTION_FROM_FILE &&
        !check_repeats(s, why)) {
        return false;
    }
    memcpy(member, &list, sizeof(list));
    return true;
}

static bool convert_string(struct ps_option_slot *s,
                           const struct ps_value_context *ctx, void *member,
                           struct ps_str *why)
{
    if (s->row->form == PS_OPTION_EXPANDED && !s->expanded) {
        char *text = ps_value_expand(s->items[0], ctx, why);

        if (text == NULL) {
            return false;
        }
        ps_free(s->items[0]);
        s->items[0] = text;
        s->expanded = true;
    }
    const char *text = s->items[0];

    /* An empty text stands for no value: only the length is checked. */
    if (!ps_value_check_length(s->row, strlen(text), why) ||
        (text[0] != '\0' && !ps_value_check_text(s->row, text, why))) {
        return false;
    }
    memcpy(member, &text, sizeof(text));
    return true;
}

/* Appends "0 (info), 1 (debug)" for "0=info 1=debug". */
static void add_alias_values(const char *values, struct ps_str *s)
{
    for (const char *p = values; *p != '\0';) {
        int n = (int)strcspn(p, " ");
        int name = (int)strcspn(p, "=");

        ps_str_addf(s, "%s%.*s (%.*s)", p == values ? "" : ", ", name, p,
                    n - name - 1, p + name + 1);
        p += n;
        p += strspn(p, " ");
    }
}

static void convert_slot(struct loader *l, struct ps_option_slot *s,
                         void *values)
{
    struct ps_value_context ctx = {.env = l->input->env,
                                   .memory = l->input->memory};
    void *member = (char *)values + s->offset;
    char data[512];
    struct ps_str why;
    bool ok;

    /* Only a list may have no text. */
    assert(s->row->type == PS_OPTION_LIST || s->items != NULL);
    ps_str_init(&why, data, sizeof(data));
    if (s->row->type == PS_OPTION_LIST) {
        ok = convert_list(s, member, &why);
    } else if (s->row->type == PS_OPTION_STRING) {
        ok = convert_string(s, &ctx, member, &why);
    } else {
        ok = ps_value_parse(s->row, s->items[0], &ctx, member, &why);
    }
    if (!ok && s->alias != NULL && s->row->type == PS_OPTION_ENUM &&
        s->alias->values != NULL) {
        ps_str_init(&why, data, sizeof(data));
        ps_str_add(&why, "'");
        ps_str_add_escaped(&why, s->items[0], strlen(s->items[0]), 64);
        ps_str_addf(&why, "' is no value of %s; write ", s->alias->name);
        add_alias_values(s->alias->values, &why);
    }
    if (!ok) {
        add_error(l, s->where, "%s: %s", s->row->path, data);
    }
}

/* Restores the previous values of options that a running program cannot change,
 * with a warning. */
static void restore_not_reloadable(struct loader *l, void *values)
{
    const struct ps_options *before = l->input->previous;

    if (before == NULL) {
        return;
    }
    assert(before->set == l->options->set);
    for (size_t i = 0; i < l->options->count; i++) {
        struct ps_option_slot *s = &l->options->slots[i];

        if (s->row->reloadable || slot_same(s, &before->slots[i])) {
            continue;
        }
        ps_str_addf(l->report,
                    "%s: %s changes at the next start only; restart %s\n",
                    s->where, s->row->path, l->options->set->program);
        slot_copy(s, &before->slots[i]);
        convert_slot(l, s, values);
    }
}

/* Lowers shares of the memory to what the process may use, with a warning: the
 * kernel ends a process that uses more than its control group may. */
static void limit_memory(struct loader *l, void *values)
{
    const uint64_t max = l->input->memory;

    for (size_t i = 0; max != 0 && i < l->options->count; i++) {
        const struct ps_option_slot *s = &l->options->slots[i];
        uint64_t *bytes = (void *)((char *)values + s->offset);

        if (s->row->form != PS_OPTION_PERCENT || *bytes <= max) {
            continue;
        }
        ps_str_addf(l->report,
                    "%s: %s: %s is more than the %" PRIu64 " MiB that this "
                    "process may use (memory of the host, or the limit of its "
                    "control group), and %" PRIu64 " MiB count\n",
                    s->where, s->row->path, s->items[0], max >> 20, max >> 20);
        *bytes = max;
    }
}

static struct ps_options *options_new(const struct ps_option_set *set)
{
    struct ps_options *o = ps_calloc(1, sizeof(*o));

    o->set = set;
    o->count = ps_option_set_count(set);
    o->slots = ps_calloc(o->count, sizeof(o->slots[0]));
    for (size_t i = 0; i < o->count; i++) {
        struct ps_option_slot *s = &o->slots[i];

        s->row = ps_option_set_row(set, i, &s->offset);
        slot_set(s, PS_OPTION_FROM_DEFAULT, "default",
                 ps_option_set_default(set, s->row));
    }
    return o;
}

int ps_options_load(const struct ps_option_set *set,
                    const struct ps_option_input *in, void *values,
                    struct ps_options **ret_options, struct ps_str *report)
{
    struct loader l = {
        .options = options_new(set), .input = in, .report = report};
    int rc = apply_file(&l);

    if (rc != 0) {
        goto free_options;
    }
    apply_environment(&l);
    if (in->sets != NULL) {
        check_variables(&l);
    }
    apply_overrides(&l);
    /* Before the next step, so that errors in options that need a restart are
     * reported, too. */
    for (size_t i = 0; i < l.options->count; i++) {
        convert_slot(&l, &l.options->slots[i], values);
    }
    if (!l.failed) {
        restore_not_reloadable(&l, values);
        limit_memory(&l, values);
    }
    if (l.failed) {
        rc = PS_E_CONFIG;
        goto free_options;
    }
    *ret_options = l.options;
    return 0;

free_options:
    ps_options_free(l.options);
    return rc;
}

void ps_options_free(struct ps_options *o)
{
    if (o == NULL) {
        return;
    }
    for (size_t i = 0; i < o->count; i++) {
        slot_clear(&o->slots[i]);
    }
    ps_free(o->slots);
    ps_free(o);
}

enum ps_option_origin ps_options_origin(const struct ps_options *o,
                                        const char *path)
{
    const struct ps_option_slot *s = find_option(o, path);

    assert(s != NULL);
    return s->origin;
}

void ps_options_where(const struct ps_options *o, const char *path,
                      struct ps_str *s)
{
    const struct ps_option_slot *slot = find_option(o, path);

    assert(slot != NULL);
    ps_str_add(s, slot->where);
}

void ps_options_text(const struct ps_options *o, const char *path,
                     struct ps_str *s)
{
    const struct ps_option_slot *slot = find_option(o, path);

    assert(slot != NULL);
    for (size_t i = 0; i < slot->item_count; i++) {
        ps_str_addf(s, "%s%s", i == 0 ? "" : ",", slot->items[i]);
    }
}

void ps_options_compare(const struct ps_options *before,
                        const struct ps_options *after,
                        void (*each)(void *ctx, const struct ps_option *row),
                        void *ctx)
{
    assert(before->set == after->set);
    for (size_t i = 0; i < before->count; i++) {
        if (!slot_same(&before->slots[i], &after->slots[i])) {
            each(ctx, before->slots[i].row);
        }
    }
}
