/* SPDX-License-Identifier: Apache-2.0 */
/* Flattens libyaml's events to a list of entries. libyaml's document loader is
 * not used, because it resolves aliases and its cost grows with the square of
 * the depth; with events, parsing ends at the first one that is too deep. */
#include "conf/yaml.h"

#include "base/alloc.h"
#include "base/file_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#define PATH_CAP (PS_YAML_DEPTH_MAX * (PS_YAML_KEY_MAX + 1) + 1)

struct yaml_level {
    bool is_map;
    bool has_key;
    size_t path_len; /* Length of the container's own path. */
    unsigned count;  /* Members so far. */
    unsigned index;  /* Index of the next item, in a list. */
    yaml_mark_t start;
};

struct key {
    char *path;
    yaml_mark_t mark;
};

struct reader {
    yaml_parser_t parser;
    const char *name;
    const char *text;
    struct ps_str *report;
    struct ps_yaml yaml;
    struct yaml_level levels[PS_YAML_DEPTH_MAX];
    unsigned depth;
    char path_data[PATH_CAP];
    struct ps_str path;
    yaml_mark_t key_mark;
    struct key *keys;
    size_t key_count;
    size_t key_capacity;
    unsigned documents;
};

static int set_error(struct reader *r, yaml_mark_t mark, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int set_error(struct reader *r, yaml_mark_t mark, const char *fmt, ...)
{
    va_list ap;

    ps_str_addf(r->report, "%s:%zu:%zu: ", r->name, mark.line + 1,
                mark.column + 1);
    va_start(ap, fmt);
    ps_str_addv(r->report, fmt, ap);
    va_end(ap);
    ps_str_add(r->report, "\n");
    return PS_E_CONFIG;
}

static void cut_path(struct reader *r, size_t len)
{
    r->path.len = len;
    r->path.data[len] = '\0';
}

static bool is_valid_key(const char *key, size_t len)
{
    if (len == 0 || len > PS_YAML_KEY_MAX) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        char c = key[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              (c >= '0' && c <= '9') || c == '_' || c == '-')) {
            return false;
        }
    }
    return true;
}

static int accept_key(struct reader *r, const yaml_event_t *ev)
{
    struct yaml_level *l = &r->levels[r->depth - 1];
    const char *key = (const char *)ev->data.scalar.value;
    size_t len = ev->data.scalar.length;

    if (!is_valid_key(key, len)) {
        struct ps_str s = PS_STR_ROOM(80);

        ps_str_add_escaped(&s, key, len, 16);
        return set_error(
            r, ev->start_mark,
            "'%s' cannot be a key; use up to %u letters, digits, '_' "
            "and '-'",
            s.data, PS_YAML_KEY_MAX);
    }
    cut_path(r, l->path_len);
    ps_str_addf(&r->path, "%s%s", l->path_len == 0 ? "" : ".", key);
    l->has_key = true;
    l->count++;
    r->key_mark = ev->start_mark;
    if (r->key_count == r->key_capacity) {
        r->key_capacity = r->key_capacity == 0 ? 64 : r->key_capacity * 2;
        r->keys = ps_realloc(r->keys, r->key_capacity * sizeof(r->keys[0]));
    }
    r->keys[r->key_count++] = (struct key){.path = ps_strdup(r->path.data),
                                           .mark = ev->start_mark};
    return 0;
}

static bool is_null(const yaml_event_t *ev)
{
    const char *v = (const char *)ev->data.scalar.value;

    return ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (v[0] == '\0' || strcmp(v, "~") == 0 || strcmp(v, "null") == 0 ||
            strcmp(v, "Null") == 0 || strcmp(v, "NULL") == 0);
}

static int add_entry(struct reader *r, yaml_mark_t mark, struct ps_yaml_entry e)
{
    struct ps_yaml *y = &r->yaml;

    if (y->count + r->key_count >= PS_YAML_ENTRIES_MAX) {
        return set_error(r, mark,
                         "more than %u keys and values; shorten the file",
                         PS_YAML_ENTRIES_MAX);
    }
    if (y->count == y->capacity) {
        y->capacity = y->capacity == 0 ? 64 : y->capacity * 2;
        y->entries = ps_realloc(y->entries,
                                y->capacity * sizeof(y->entries[0]));
    }
    e.path = ps_strdup(r->path.data);
    e.value = ps_strdup(e.value == NULL ? "" : e.value);
    e.line = (unsigned)mark.line + 1;
    e.column = (unsigned)mark.column + 1;
    e.key_line = (unsigned)r->key_mark.line + 1;
    e.key_column = (unsigned)r->key_mark.column + 1;
    y->entries[y->count++] = e;
    return 0;
}

static int accept_scalar(struct reader *r, const yaml_event_t *ev)
{
    char *value = (char *)ev->data.scalar.value;
    bool null = is_null(ev);

    if (strlen(value) != ev->data.scalar.length) {
        return set_error(r, ev->start_mark,
                         "zero byte in a value; remove the \"\\0\"");
    }
    if (r->depth == 0) {
        if (null) {
            return 0; /* An empty document. */
        }
        return set_error(
            r, ev->start_mark,
            "the file is a single value; write 'key: value' lines");
    }
    struct yaml_level *l = &r->levels[r->depth - 1];

    if (l->is_map && !l->has_key) {
        return accept_key(r, ev);
    }
    if (l->is_map) {
        l->has_key = false;
        return add_entry(r, ev->start_mark,
                         (struct ps_yaml_entry){.value = value,
                                                .kind = PS_YAML_SCALAR,
                                                .is_null = null});
    }
    l->count++;
    cut_path(r, l->path_len);
    return add_entry(r, ev->start_mark,
                     (struct ps_yaml_entry){.value = value,
                                            .kind = PS_YAML_ITEM,
                                            .is_null = null,
                                            .index = l->index++});
}

static int begin_map(struct reader *r, const yaml_event_t *ev, bool map)
{
    if (r->depth == PS_YAML_DEPTH_MAX) {
        return set_error(r, ev->start_mark,
                         "nested deeper than %u levels; flatten it",
                         PS_YAML_DEPTH_MAX);
    }
    if (r->depth == 0 && !map) {
        return set_error(r, ev->start_mark,
                         "the file is a list; write 'key: value' lines");
    }
    if (r->depth > 0) {
        struct yaml_level *l = &r->levels[r->depth - 1];

        if (l->is_map && !l->has_key) {
            return set_error(r, ev->start_mark,
                             "a %s cannot be a key; use a plain word",
                             map ? "map" : "list");
        }
        if (!l->is_map) {
            l->count++;
            cut_path(r, l->path_len);
            ps_str_addf(&r->path, ".%u", l->index++);
        }
        l->has_key = false;
    }
    r->levels[r->depth++] = (struct yaml_level){
        .is_map = map, .path_len = r->path.len, .start = ev->start_mark};
    return 0;
}

static int end_map(struct reader *r)
{
    struct yaml_level *l = &r->levels[--r->depth];

    cut_path(r, l->path_len);
    if (l->count > 0 || r->depth == 0) {
        return 0;
    }
    return add_entry(r, l->start,
                     (struct ps_yaml_entry){.kind = l->is_map
                                                        ? PS_YAML_EMPTY_MAP
                                                        : PS_YAML_EMPTY_LIST});
}

static int refuse_extras(struct reader *r, const yaml_event_t *ev,
                         const void *anchor, const void *tag)
{
    if (anchor != NULL) {
        return set_error(r, ev->start_mark,
                         "anchors (&name) are not supported; write the value "
                         "where it is needed");
    }
    if (tag != NULL) {
        return set_error(r, ev->start_mark,
                         "tags (!name) are not supported; leave it out");
    }
    return 0;
}

static int accept_event(struct reader *r, const yaml_event_t *ev)
{
    int rc;

    switch (ev->type) {
    case YAML_SCALAR_EVENT:
        rc = refuse_extras(r, ev, ev->data.scalar.anchor, ev->data.scalar.tag);
        return rc != 0 ? rc : accept_scalar(r, ev);
    case YAML_MAPPING_START_EVENT:
        rc = refuse_extras(r, ev, ev->data.mapping_start.anchor,
                           ev->data.mapping_start.tag);
        return rc != 0 ? rc : begin_map(r, ev, true);
    case YAML_SEQUENCE_START_EVENT:
        rc = refuse_extras(r, ev, ev->data.sequence_start.anchor,
                           ev->data.sequence_start.tag);
        return rc != 0 ? rc : begin_map(r, ev, false);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        return end_map(r);
    case YAML_ALIAS_EVENT:
        return set_error(
            r, ev->start_mark,
            "aliases (*name) are not supported; write the value where "
            "it is needed");
    case YAML_DOCUMENT_START_EVENT:
        if (r->documents++ > 0) {
            return set_error(r, ev->start_mark,
                             "a second document begins; remove the '---'");
        }
        return 0;
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        break;
    }
    return 0;
}

/* Reports an error of libyaml. For invalid UTF-8 it gives only the byte
 * offset. */
static int fail_parser(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    yaml_mark_t mark = p->problem_mark;
    const char *what = p->problem == NULL ? "cannot be parsed" : p->problem;

    if (p->error == YAML_MEMORY_ERROR) {
        ps_str_addf(r->report, "%s: out of memory\n", r->name);
        return PS_E_NOMEM;
    }
    if (p->error == YAML_READER_ERROR) {
        mark = (yaml_mark_t){0};
        for (size_t i = 0; i < p->problem_offset; i++) {
            if (r->text[i] == '\n') {
                mark.line++;
                mark.column = 0;
            } else {
                mark.column++;
            }
        }
        return set_error(r, mark, "%s; save the file as UTF-8", what);
    }
    if (p->context != NULL) {
        return set_error(r, mark, "%s, %s that began at line %zu; correct it",
                         what, p->context, p->context_mark.line + 1);
    }
    return set_error(r, mark, "%s; correct it", what);
}

static int compare_keys(const void *a, const void *b)
{
    const struct key *x = a;
    const struct key *y = b;
    int order = strcmp(x->path, y->path);

    if (order != 0) {
        return order;
    }
    return x->mark.index < y->mark.index ? -1 : 1;
}

static int refuse_repeated(struct reader *r)
{
    if (r->key_count < 2) {
        return 0;
    }
    qsort(r->keys, r->key_count, sizeof(r->keys[0]), compare_keys);
    for (size_t i = 1; i < r->key_count; i++) {
        const struct key *first = &r->keys[i - 1];
        const struct key *second = &r->keys[i];

        if (strcmp(first->path, second->path) == 0) {
            return set_error(
                r, second->mark,
                "%s was given before, at line %zu; keep one of them",
                second->path, first->mark.line + 1);
        }
    }
    return 0;
}

static int parse_events(struct reader *r)
{
    for (;;) {
        yaml_event_t ev;
        int rc;

        if (!yaml_parser_parse(&r->parser, &ev)) {
            return fail_parser(r);
        }
        yaml_event_type_t type = ev.type;

        rc = accept_event(r, &ev);
        yaml_event_delete(&ev);
        if (rc != 0) {
            return rc;
        }
        if (type == YAML_STREAM_END_EVENT) {
            return refuse_repeated(r);
        }
    }
}

int ps_yaml_parse(const char *name, const char *text, size_t len,
                  struct ps_yaml *ret_yaml, struct ps_str *report)
{
    if (len > PS_YAML_FILE_MAX) {
        ps_str_addf(report, "%s: longer than %u bytes; shorten it\n", name,
                    PS_YAML_FILE_MAX);
        return PS_E_CONFIG;
    }
    struct reader *r = ps_calloc(1, sizeof(*r));
    int rc;

    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        /* Skip the byte order mark, which libyaml counts as a column. */
        text += 3;
        len -= 3;
    }

    r->name = name;
    r->text = text;
    r->report = report;
    ps_str_init(&r->path, r->path_data, sizeof(r->path_data));
    if (!yaml_parser_initialize(&r->parser)) {
        ps_str_addf(report, "%s: out of memory\n", name);
        ps_free(r);
        return PS_E_NOMEM;
    }
    yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, len);
    rc = parse_events(r);
    yaml_parser_delete(&r->parser);
    for (size_t i = 0; i < r->key_count; i++) {
        ps_free(r->keys[i].path);
    }
    ps_free(r->keys);
    if (rc == 0) {
        *ret_yaml = r->yaml;
    } else {
        ps_yaml_fini(&r->yaml);
    }
    ps_free(r);
    return rc;
}

int ps_yaml_read(const char *path, char **ret_text, size_t *ret_len,
                 struct ps_str *report)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len;
    int rc;

    if (fd < 0 && errno == ENOENT) {
        ps_str_addf(report, "%s: does not exist; create it or name another\n",
                    path);
        return PS_E_NOENT;
    }
    if (fd < 0) {
        ps_str_addf(report, "%s: cannot be opened: %s\n", path,
                    strerror(errno));
        return PS_E_IO;
    }
    rc = ps_file_check(fd, path, PS_FILE_TRUSTED, report);
    if (rc != 0) {
        close(fd);
        return rc;
    }
    /* One byte more than allowed detects a file that is too long. */
    char *text = ps_alloc(PS_YAML_FILE_MAX + 1);

    len = ps_file_read(fd, text, PS_YAML_FILE_MAX + 1);
    if (len < 0) {
        ps_str_addf(report, "%s: cannot be read: %s\n", path, strerror(errno));
        rc = PS_E_IO;
    } else if (len > (ssize_t)PS_YAML_FILE_MAX) {
        ps_str_addf(report, "%s: longer than %u bytes; shorten it\n", path,
                    PS_YAML_FILE_MAX);
        rc = PS_E_CONFIG;
    }
    close(fd);
    if (rc != 0) {
        ps_free(text);
        return rc;
    }
    *ret_len = (size_t)len;
    *ret_text = text;
    return 0;
}

void ps_yaml_fini(struct ps_yaml *y)
{
    for (size_t i = 0; i < y->count; i++) {
        ps_free(y->entries[i].path);
        ps_free(y->entries[i].value);
    }
    ps_free(y->entries);
    *y = (struct ps_yaml){0};
}
