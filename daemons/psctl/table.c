/* SPDX-License-Identifier: Apache-2.0 */
/* Aligned columns, and numbers as people read them. */
#include "psctl/psctl.h"

#include "base/alloc.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CELL_MAX 1024u

static void put(struct table *t, const char *text)
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
        t->right[i] = headings[i][0] == '>';
        put(t, headings[i] + (t->right[i] ? 1 : 0));
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
    char out[CELL_MAX];
    struct ps_str s;

    ps_str_init(&s, out, sizeof(out));
    ps_str_add_escaped(&s, text, strlen(text), CELL_MAX / 4 - 4);
    put(t, text[0] == '\0' ? "-" : out);
}

void table_cell(struct table *t, const char *fmt, ...)
{
    char out[CELL_MAX];
    struct ps_str s;
    va_list ap;

    ps_str_init(&s, out, sizeof(out));
    va_start(ap, fmt);
    ps_str_addv(&s, fmt, ap);
    va_end(ap);
    put(t, out);
}

void table_print(const struct table *t, bool headings)
{
    size_t width[TABLE_COLUMNS] = {0};
    size_t first = headings ? 0 : t->columns;

    for (size_t i = first; i < t->count; i++) {
        size_t len = strlen(t->cells[i]);

        if (len > width[i % t->columns]) {
            width[i % t->columns] = len;
        }
    }
    for (size_t i = first; i < t->count; i++) {
        size_t column = i % t->columns;
        bool last = column + 1 == t->columns;

        if (t->right[column]) {
            printf("%*s", (int)width[column], t->cells[i]);
        } else if (last) { /* No blanks at the end of a line. */
            fputs(t->cells[i], stdout);
        } else {
            printf("%-*s", (int)width[column], t->cells[i]);
        }
        fputs(last ? "\n" : "  ", stdout);
    }
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

    if (s < 60) { /* Down, not to the nearest: 60.0s is one minute. */
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
