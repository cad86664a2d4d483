/* SPDX-License-Identifier: Apache-2.0 */
/* Tables with aligned columns, and numbers in readable units. */
#include "psctl/answer.h"

#include "base/alloc.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <langinfo.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

#define CELL_MAX 1024u

/* Bytes of the first character if it is printable and occupies columns of its
 * own; else 0. */
static size_t printable_bytes(const char *text, size_t len)
{
    mbstate_t state = {0};
    wchar_t c;
    size_t n = mbrtowc(&c, text, len, &state);

    return n > 1 && n <= len && iswprint((wint_t)c) != 0 && wcwidth(c) > 0 ? n
                                                                           : 0;
}

void add_printable(struct ps_str *s, const char *text, size_t max)
{
    size_t len = strlen(text);
    bool wide = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;

    for (size_t i = 0; i < len;) {
        size_t n = wide ? printable_bytes(text + i, len - i) : 0;

        if (i >= max) {
            ps_str_add(s, "...");
            return;
        }
        if (n == 0) {
            ps_str_add_escaped(s, text + i, 1, 1);
            i++;
        } else {
            ps_str_addf(s, "%.*s", (int)n, text + i);
            i += n;
        }
    }
}

/* Width in terminal columns. */
static int text_width(const char *text)
{
    size_t len = strlen(text);
    int width = 0;

    for (size_t i = 0; i < len;) {
        mbstate_t state = {0};
        wchar_t c;
        size_t n = mbrtowc(&c, text + i, len - i, &state);

        if (n == 0 || n > len - i) {
            n = 1;
            width++;
        } else {
            width += wcwidth(c) > 0 ? wcwidth(c) : 1;
        }
        i += n;
    }
    return width;
}

static void put_cell(struct table *t, const char *text)
{
    if (t->count == t->capacity) {
        t->capacity = t->capacity == 0 ? 128 : t->capacity * 2;
        t->cells = ps_realloc(t->cells, t->capacity * sizeof(t->cells[0]));
    }
    t->cells[t->count++] = ps_strdup(text);
}

void table_init(struct table *t, const char *const *headings, size_t columns)
{
    assert(columns <= TABLE_COLUMNS);
    memset(t, 0, sizeof(*t));
    t->columns = columns;
    for (size_t i = 0; i < columns; i++) {
        t->right_aligned[i] = headings[i][0] == '>';
        put_cell(t, headings[i] + (t->right_aligned[i] ? 1 : 0));
    }
}

void table_fini(struct table *t)
{
    for (size_t i = 0; i < t->count; i++) {
        ps_free(t->cells[i]);
    }
    ps_free(t->cells);
}

void table_text(struct table *t, const char *text)
{
    struct ps_str s = PS_STR_ROOM(CELL_MAX);

    add_printable(&s, text, CELL_TEXT_MAX);
    put_cell(t, text[0] == '\0' ? "-" : s.data);
}

void table_cell(struct table *t, const char *fmt, ...)
{
    struct ps_str s = PS_STR_ROOM(CELL_MAX);
    va_list ap;

    va_start(ap, fmt);
    ps_str_addv(&s, fmt, ap);
    va_end(ap);
    put_cell(t, s.data);
}

void table_print(const struct table *t, bool headings)
{
    int width[TABLE_COLUMNS] = {0};
    size_t first = headings ? 0 : t->columns;

    for (size_t i = first; i < t->count; i++) {
        int columns = text_width(t->cells[i]);

        if (columns > width[i % t->columns]) {
            width[i % t->columns] = columns;
        }
    }
    for (size_t i = first; i < t->count; i++) {
        size_t column = i % t->columns;
        bool last = column + 1 == t->columns;

        int blanks = width[column] - text_width(t->cells[i]);

        if (t->right_aligned[column]) {
            printf("%*s%s", blanks, "", t->cells[i]);
        } else if (last) { /* No trailing blanks. */
            fputs(t->cells[i], stdout);
        } else {
            printf("%s%*s", t->cells[i], blanks, "");
        }
        fputs(last ? "\n" : "  ", stdout);
    }
}

const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

void format_bytes(uint64_t bytes, char *out, size_t cap)
{
    static const char *const units[] = {"B",  "kB", "MB", "GB",
                                        "TB", "PB", "EB"};
    double n = (double)bytes;
    size_t unit = 0;

    while (n >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        n /= 1000;
        unit++;
    }
    snprintf(out, cap, "%.*f %s", unit > 0 && n < 99.95 ? 1 : 0, n,
             units[unit]);
}

void format_age(uint64_t ns, char *out, size_t cap)
{
    uint64_t s = ns / 1000000000u;

    if (s < 60) { /* Rounds down, so that 60.0s never appears. */
        snprintf(out, cap, "%" PRIu64 ".%" PRIu64 "s", s, ns / 100000000u % 10);
    } else if (s < 3600) {
        snprintf(out, cap, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
    } else if (s < 86400) {
        snprintf(out, cap, "%" PRIu64 "h%02" PRIu64 "m", s / 3600, s / 60 % 60);
    } else {
        snprintf(out, cap, "%" PRIu64 "d%02" PRIu64 "h", s / 86400,
                 s / 3600 % 24);
    }
}

void format_count(uint64_t n, char *out, size_t cap)
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%" PRIu64, n);
    struct ps_str s;

    ps_str_init(&s, out, cap);
    for (int i = 0; i < len; i++) {
        ps_str_addf(&s, "%s%c", i > 0 && (len - i) % 3 == 0 ? "," : "",
                    digits[i]);
    }
}

void add_upper(struct ps_str *s, const char *word)
{
    for (; *word != '\0'; word++) {
        ps_str_addf(s, "%c", toupper((unsigned char)*word));
    }
}

void cell_upper(struct table *t, const char *word)
{
    struct ps_str s = PS_STR_ROOM(32);

    add_upper(&s, word);
    table_cell(t, "%s", s.data);
}
