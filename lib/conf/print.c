/* SPDX-License-Identifier: Apache-2.0 */
/* Output of option tables: effective values, sample file, schema. All walk the
 * rows as a tree of sections. */
#include "base/alloc.h"
#include "conf/inner.h"

#include <string.h>

#define TEXT_MAX 1024u

/* True if the row is in the section `prefix` ("" or "listen."). *ret_word is
 * the next word of its path, *ret_len that word's length. */
static bool member_of(const char *path, const char *prefix,
                      const char **ret_word, size_t *ret_len)
{
    size_t len = strlen(prefix);

    if (strncmp(path, prefix, len) != 0) {
        return false;
    }
    *ret_word = path + len;
    *ret_len = strcspn(path + len, ".");
    return true;
}

/* A section is printed at the position of its first row. */
static bool is_section_printed(const struct ps_option_set *set, size_t i,
                               const char *prefix, const char *word, size_t len)
{
    for (size_t j = 0; j < i; j++) {
        const char *other;
        size_t other_len;

        if (member_of(ps_option_set_row(set, j, NULL)->path, prefix, &other,
                      &other_len) &&
            other_len == len && memcmp(other, word, len) == 0) {
            return true;
        }
    }
    return false;
}

struct walk {
    const struct ps_option_set *set;
    const struct ps_options *o; /* NULL: output without values. */
    FILE *out;
    void (*row)(struct walk *w, const struct ps_option *row,
                const struct ps_option_slot *slot, const char *name, int depth);
    void (*open)(struct walk *w, const char *name, int len, int depth);
    void (*close)(struct walk *w, int depth); /* NULL: nothing to do. */
    bool first; /* No member of the open section has been printed yet. */
};

static void walk_section(struct walk *w, const char *prefix, int depth)
{
    size_t count = ps_option_set_count(w->set);

    for (size_t i = 0; i < count; i++) {
        const struct ps_option *row = ps_option_set_row(w->set, i, NULL);
        const char *word;
        size_t len;

        if (!member_of(row->path, prefix, &word, &len)) {
            continue;
        }
        if (word[len] == '\0') {
            w->row(w, row, w->o == NULL ? NULL : &w->o->slots[i], word, depth);
            w->first = false;
            continue;
        }
        if (is_section_printed(w->set, i, prefix, word, len)) {
            continue;
        }
        size_t below_len = (size_t)(word - row->path) + len + 1;
        char *below = ps_strdup(row->path);

        below[below_len] = '\0';
        w->open(w, word, (int)len, depth);
        w->first = true;
        walk_section(w, below, depth + 1);
        if (w->close != NULL) {
            w->close(w, depth);
        }
        w->first = false;
        ps_free(below);
    }
}

static void indent(FILE *out, int depth)
{
    fprintf(out, "%*s", depth * 2, "");
}

/* Prints in double quotes, as YAML and JSON both read it. */
static void print_quoted(FILE *out, const char *text)
{
    size_t n;

    fputc('"', out);
    for (size_t left = strlen(text); left > 0; left -= n, text += n) {
        uint32_t c;

        n = ps_str_decode(text, left, &c);
        if (n == 0) {
            fprintf(out, "\\ufffd");
            n = 1;
        } else if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", (char)c);
        } else if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 ||
                   c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff) {
            fprintf(out, "\\u%04x", (unsigned)c);
        } else {
            fwrite(text, 1, n, out);
        }
    }
    fputc('"', out);
}

/* True if YAML reads the unquoted text as a string in every version. Addresses
 * begin with a digit; a text with two dots is not a number. */
static bool is_plain(const char *text)
{
    static const char chars[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    static const char others[] = "true|false|yes|no|on|off|null|y|n";
    size_t len = strlen(text);
    char lower[8];

    if (len == 0 || strspn(text, chars) != len) {
        return false;
    }
    if (len < sizeof(lower)) {
        for (size_t i = 0; i <= len; i++) {
            lower[i] = text[i] >= 'A' && text[i] <= 'Z'
                           ? (char)(text[i] - 'A' + 'a')
                           : text[i];
        }
        if (ps_value_word(others, lower, len) >= 0) {
            return false;
        }
    }
    if (text[0] >= '0' && text[0] <= '9') {
        const char *dot = strchr(text, '.');

        return strspn(text, "0123456789./") == len && dot != NULL &&
               strchr(dot + 1, '.') != NULL;
    }
    return text[0] != '-' && text[0] != '.';
}

static void print_text(FILE *out, const char *text)
{
    if (is_plain(text)) {
        fputs(text, out);
    } else {
        print_quoted(out, text);
    }
}

/* Doubles each '$' in a row with references, so that it is read back as one. */
static void print_string(FILE *out, const struct ps_option_slot *slot,
                         const char *text)
{
    if (text[0] == '\0') {
        fputs("null", out);
        return;
    }
    if (slot == NULL || !slot->expanded || strchr(text, '$') == NULL) {
        print_text(out, text);
        return;
    }
    char *doubled = ps_alloc(strlen(text) * 2 + 1);
    char *to = doubled;

    for (const char *p = text; *p != '\0'; p++) {
        *to++ = *p;
        if (*p == '$') {
            *to++ = '$';
        }
    }
    *to = '\0';
    print_text(out, doubled);
    ps_free(doubled);
}

static void print_list(FILE *out, const struct ps_option *row,
                       char *const *items, size_t count)
{
    fputc(row->form == PS_OPTION_PAIRS ? '{' : '[', out);
    for (size_t i = 0; i < count; i++) {
        int key = row->form == PS_OPTION_PAIRS ? (int)strcspn(items[i], "=")
                                               : 0;

        fputs(i == 0 ? "" : ", ", out);
        if (row->form == PS_OPTION_PAIRS) {
            fprintf(out, "\"%.*s\": ", key, items[i]);
            key += items[i][key] == '=';
        }
        print_text(out, items[i] + key);
    }
    fputc(row->form == PS_OPTION_PAIRS ? '}' : ']', out);
}

/* The caller prints the items of a list. */
static void print_value(FILE *out, const struct ps_option *row,
                        const struct ps_option_slot *slot, const char *text)
{
    if (row->type == PS_OPTION_STRING) {
        print_string(out, slot, text);
    } else if (row->type == PS_OPTION_ENUM) {
        print_text(out, text);
    } else if (row->type == PS_OPTION_MODE) {
        print_quoted(out, text);
    } else {
        fputs(text, out);
    }
}

static void print_default(FILE *out, const struct ps_option_set *set,
                          const struct ps_option *row)
{
    const char *text = ps_option_set_default(set, row);

    if (text == NULL) {
        text = "";
    }
    if (row->type == PS_OPTION_LIST) {
        size_t count;
        char **items = ps_option_split(text, &count);

        print_list(out, row, items, count);
        for (size_t i = 0; i < count; i++) {
            ps_free(items[i]);
        }
        ps_free(items);
        return;
    }
    print_value(out, row, NULL, text);
}

static void yaml_open(struct walk *w, const char *name, int len, int depth)
{
    if (depth == 0 && !w->first) {
        fputc('\n', w->out);
    }
    indent(w->out, depth);
    fprintf(w->out, "%.*s:\n", len, name);
}

static void effective_row(struct walk *w, const struct ps_option *row,
                          const struct ps_option_slot *slot, const char *name,
                          int depth)
{
    indent(w->out, depth);
    fprintf(w->out, "%s: ", name);
    if (row->type == PS_OPTION_LIST) {
        print_list(w->out, row, slot->items, slot->item_count);
    } else {
        print_value(w->out, row, slot, slot->items[0]);
    }
    fprintf(w->out, "  # %s\n", slot->where);
}

void ps_options_print(const struct ps_options *o, FILE *out)
{
    struct walk w = {.set = o->set,
                     .o = o,
                     .out = out,
                     .row = effective_row,
                     .open = yaml_open,
                     .first = true};

    walk_section(&w, "", 0);
}

/* Prints a comment in lines of up to 79 characters. */
static void print_comment(FILE *out, int depth, const char *text)
{
    size_t width = 77 - (size_t)depth * 2;

    while (*text != '\0') {
        size_t len = strlen(text);

        if (len > width) {
            len = width;
            while (len > 0 && text[len] != ' ') {
                len--;
            }
            if (len == 0) {
                len = strcspn(text, " ");
            }
        }
        indent(out, depth);
        fprintf(out, "# %.*s\n", (int)len, text);
        text += len;
        text += strspn(text, " ");
    }
}

/* Appends "A whole number from 0 to 65535. Can be changed by a reload." */
static void add_facts(const struct ps_option *row, struct ps_str *s)
{
    size_t from = s->len;

    ps_value_describe(row, s);
    if (s->data[from] >= 'a' && s->data[from] <= 'z' &&
        row->type != PS_OPTION_ENUM) {
        s->data[from] = (char)(s->data[from] - 'a' + 'A');
    } else {
        char rest[TEXT_MAX];

        ps_str_copy(rest, sizeof(rest), s->data + from);
        s->len = from;
        s->data[from] = '\0';
        ps_str_addf(s, "One of: %s", rest);
    }
    ps_str_add(s, ".");
    if (row->reloadable) {
        ps_str_add(s, " A reload changes it.");
    }
}

static void sample_row(struct walk *w, const struct ps_option *row,
                       const struct ps_option_slot *slot, const char *name,
                       int depth)
{
    struct ps_str s = PS_STR_ROOM(TEXT_MAX);

    (void)slot;
    ps_str_addf(&s, "%s ", row->help);
    add_facts(row, &s);
    print_comment(w->out, depth, s.data);
    indent(w->out, depth);
    fprintf(w->out, "#%s: ", name);
    print_default(w->out, w->set, row);
    fputc('\n', w->out);
}

void ps_option_set_print_defaults(const struct ps_option_set *set, FILE *out)
{
    struct walk w = {
        .set = set, .out = out, .row = sample_row, .open = yaml_open};

    fprintf(out,
            "# SPDX-License-Identifier: Apache-2.0\n"
            "# Configuration of %s. Commented lines show the defaults; "
            "remove the\n# '#' directly before a name to change it.\n",
            set->program);
    walk_section(&w, "", 0);
}

static void json_open(struct walk *w, const char *name, int len, int depth)
{
    fputs(w->first ? "\n" : ",\n", w->out);
    indent(w->out, depth * 2 + 2);
    fprintf(w->out, "\"%.*s\": {\n", len, name);
    indent(w->out, depth * 2 + 3);
    fputs("\"type\": [\"object\", \"null\"],\n", w->out);
    indent(w->out, depth * 2 + 3);
    fputs("\"additionalProperties\": false,\n", w->out);
    indent(w->out, depth * 2 + 3);
    fputs("\"properties\": {", w->out);
}

static void json_close(struct walk *w, int depth)
{
    fputc('\n', w->out);
    indent(w->out, depth * 2 + 3);
    fputs("}\n", w->out);
    indent(w->out, depth * 2 + 2);
    fputc('}', w->out);
}

static void json_enum_names(FILE *out, const char *words)
{
    for (const char *w = words; *w != '\0';) {
        int n = (int)strcspn(w, "|");

        fprintf(out, "%s\"%.*s\"", w == words ? "" : ", ", n, w);
        w += n + (w[n] == '|');
    }
}

static void json_number(FILE *out, const struct ps_option *row)
{
    if (row->special != NULL) {
        fputs("\"type\": [\"integer\", \"string\"], ", out);
        fprintf(out, "\"pattern\": \"^%s$\"", row->special);
    } else {
        fputs("\"type\": \"integer\"", out);
    }
    if (row->type == PS_OPTION_U64 || row->min != 0) {
        fprintf(out, ", \"minimum\": %lld", (long long)row->min);
    }
    if (row->max != 0) {
        fprintf(out, ", \"maximum\": %lld", (long long)row->max);
    }
}

static void json_units(FILE *out, const struct ps_option *row,
                       const char *units)
{
    fputs("\"type\": \"string\", \"pattern\": \"^(", out);
    if (row->special != NULL) {
        fprintf(out, "%s|", row->special);
    }
    fprintf(out, "[0-9]+(\\\\.[0-9]{1,3})?(%s))$\"", units);
}

static void json_type(FILE *out, const struct ps_option *row)
{
    switch (row->type) {
    case PS_OPTION_BOOL:
        fputs("\"type\": \"boolean\"", out);
        break;
    case PS_OPTION_INT:
    case PS_OPTION_U64:
        json_number(out, row);
        break;
    case PS_OPTION_SIZE:
        json_units(out, row,
                   row->form == PS_OPTION_PERCENT
                       ? "B|KiB|MiB|GiB|TiB|kB|MB|GB|TB|%"
                       : "B|KiB|MiB|GiB|TiB|kB|MB|GB|TB");
        break;
    case PS_OPTION_DURATION:
        json_units(out, row, "us|ms|s|m|h|d");
        break;
    case PS_OPTION_MODE:
        fputs("\"type\": \"string\", \"pattern\": \"^[0-7]{3,5}$\"", out);
        break;
    case PS_OPTION_STRING:
        fputs("\"type\": [\"string\", \"null\"]", out);
        break;
    case PS_OPTION_ENUM:
        fputs("\"enum\": [", out);
        json_enum_names(out, row->enum_names);
        fputc(']', out);
        break;
    case PS_OPTION_LIST:
        fputs(row->form == PS_OPTION_PAIRS
                  ? "\"type\": [\"object\", \"null\"]"
                  : "\"type\": [\"array\", \"null\"], "
                    "\"items\": {\"type\": [\"string\", \"number\"]}",
              out);
        break;
    }
}

static void schema_row(struct walk *w, const struct ps_option *row,
                       const struct ps_option_slot *slot, const char *name,
                       int depth)
{
    (void)slot;
    fputs(w->first ? "\n" : ",\n", w->out);
    indent(w->out, depth * 2 + 2);
    fprintf(w->out, "\"%s\": {\n", name);
    indent(w->out, depth * 2 + 3);
    fputs("\"description\": ", w->out);
    print_quoted(w->out, row->help);
    fputs(",\n", w->out);
    indent(w->out, depth * 2 + 3);
    json_type(w->out, row);
    fputc('\n', w->out);
    indent(w->out, depth * 2 + 2);
    fputc('}', w->out);
}

void ps_option_set_print_schema(const struct ps_option_set *set, FILE *out)
{
    struct walk w = {.set = set,
                     .out = out,
                     .row = schema_row,
                     .open = json_open,
                     .close = json_close,
                     .first = true};

    fprintf(out,
            "{\n"
            "  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
            "  \"title\": \"Configuration of %s\",\n"
            "  \"type\": [\"object\", \"null\"],\n"
            "  \"additionalProperties\": false,\n"
            "  \"properties\": {",
            set->program);
    walk_section(&w, "", 0);
    fputs("\n  }\n}\n", out);
}
