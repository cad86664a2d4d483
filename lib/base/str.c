/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include "base/limits.h"
#include "base/num.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void add_bytes(struct ps_str *s, const char *bytes, size_t len)
{
    size_t room = s->cap - 1 - s->len;

    if (len > room) {
        len = room;
        s->truncated = true;
    }
    memcpy(s->data + s->len, bytes, len);
    s->len += len;
    s->data[s->len] = '\0';
}

void ps_str_init(struct ps_str *s, char *data, size_t cap)
{
    assert(cap > 0);
    *s = (struct ps_str){.data = data, .cap = cap};
    data[0] = '\0';
}

void ps_str_add(struct ps_str *s, const char *text)
{
    add_bytes(s, text, strlen(text));
}

void ps_str_addf(struct ps_str *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    ps_str_addv(s, fmt, ap);
    va_end(ap);
}

void ps_str_addv(struct ps_str *s, const char *fmt, va_list ap)
{
    size_t room = s->cap - s->len;
    int n = vsnprintf(s->data + s->len, room, fmt, ap);

    if (n < 0) { /* A wide character that the locale cannot represent. */
        s->data[s->len] = '\0';
        s->truncated = true;
    } else if ((size_t)n >= room) {
        s->len = s->cap - 1;
        s->truncated = true;
    } else {
        s->len += (size_t)n;
    }
}

static void add_hex(struct ps_str *s, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    char code[4] = {'\\', 'x', hex[c >> 4], hex[c & 15]};

    add_bytes(s, code, sizeof(code));
}

void ps_str_add_escaped(struct ps_str *s, const char *bytes, size_t len,
                        size_t max)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];

        if (i == max) {
            add_bytes(s, "...", 3);
            return;
        }
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\'' && c != '\\') {
            add_bytes(s, &bytes[i], 1);
        } else {
            add_hex(s, c);
        }
    }
}

size_t ps_str_decode(const char *bytes, size_t len, uint32_t *ret_code)
{
    const unsigned char *b = (const unsigned char *)bytes;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = b[0] < 0x80 ? 1 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
    uint32_t code = b[0];

    if (n > len || (b[0] >= 0x80 && b[0] < 0xc0) || b[0] >= 0xf8) {
        return 0;
    }
    if (n > 1) {
        code &= 0x7fu >> n;
    }
    for (size_t i = 1; i < n; i++) {
        if ((b[i] & 0xc0u) != 0x80) {
            return 0;
        }
        code = code << 6 | (b[i] & 0x3fu);
    }
    if (code < least[n] || code > 0x10ffff || code >> 11 == 0x1b) {
        return 0; /* Overlong, out of range, or a surrogate. */
    }
    *ret_code = code;
    return n;
}

size_t ps_str_visible(const char *bytes, size_t len)
{
    uint32_t code;
    size_t n = len > 0 ? ps_str_decode(bytes, len, &code) : 0;

    if (n == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0) ||
        (code >= 0x200e && code <= 0x200f) ||
        (code >= 0x2028 && code <= 0x202e) ||
        (code >= 0x2066 && code <= 0x2069)) {
        return 0;
    }
    return n;
}

void ps_str_add_visible(struct ps_str *s, const char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        size_t n = ps_str_visible(text, left);

        if (n > 0) {
            add_bytes(s, text, n);
        } else {
            n = 1;
            add_hex(s, (unsigned char)*text);
        }
        text += n;
        left -= n;
    }
}

void ps_str_add_ranges(struct ps_str *s, const unsigned *sorted, size_t count)
{
    for (size_t i = 0; i < count;) {
        size_t end = i + 1;

        while (end < count && sorted[end] == sorted[end - 1] + 1) {
            end++;
        }
        ps_str_addf(s, "%s%u", i == 0 ? "" : ",", sorted[i]);
        if (end - i > 1) {
            ps_str_addf(s, "-%u", sorted[end - 1]);
        }
        i = end;
    }
}

void ps_str_add_size(struct ps_str *s, uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    unsigned unit = 0;

    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    ps_str_addf(s, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

bool ps_str_is_name(const char *text, size_t max)
{
    size_t len = 0;

    if (text == NULL) {
        return false;
    }
    for (; text[len] != '\0'; len++) {
        if (text[len] <= ' ' || text[len] > '~') {
            return false;
        }
    }
    return len > 0 && len <= max;
}

bool ps_str_has_word(const char *list, char separator, const char *word)
{
    const size_t len = strlen(word);

    for (const char *at = list; at != NULL; at = strchr(at, separator)) {
        at += *at == separator;
        if (strncmp(at, word, len) == 0 &&
            (at[len] == '\0' || at[len] == separator)) {
            return true;
        }
    }
    return false;
}

bool ps_str_copy(char *dst, size_t cap, const char *src)
{
    struct ps_str s;

    ps_str_init(&s, dst, cap);
    ps_str_add(&s, src);
    return !s.truncated;
}

static bool is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/' ||
           c == ':' || c == '-';
}

bool ps_scalar_name_is_valid(const char *name)
{
    size_t len = 0;

    while (len <= PS_SCALAR_NAME_MAX && is_name_character(name[len])) {
        len++;
    }
    return name[len] == '\0' && len > 0 && len <= PS_SCALAR_NAME_MAX;
}

/* ------------------------------------------------------------ nearest words */

/* Shorter prefixes do not match. */
#define PREFIX_MIN 3

/* Rows of the table of distances between beginnings of both words: of the
 * characters of `a` before the last two, before the last, and up to it. */
size_t ps_edit_distance(const char *a, const char *b)
{
    size_t rows[3][PS_NEAREST_MAX + 1];
    size_t *before = rows[0];
    size_t *last = rows[1];
    size_t *row = rows[2];
    size_t a_len = strlen(a);
    size_t b_len = strlen(b);

    if (a_len > PS_NEAREST_MAX || b_len > PS_NEAREST_MAX) {
        return PS_NEAREST_MAX;
    }
    for (size_t j = 0; j <= b_len; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        size_t *unused = before;

        before = last;
        last = row;
        row = unused;
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t d = last[j - 1] + (a[i - 1] != b[j - 1]);

            d = ps_min_u64(d, ps_min_u64(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
                a[i - 2] == b[j - 1]) {
                d = ps_min_u64(d, before[j - 2] + 1);
            }
            row[j] = d;
        }
    }
    return row[b_len];
}

const char *ps_nearest(const char *const *words, const char *word)
{
    const size_t len = strlen(word);
    size_t near = ps_max_u64(1, ps_min_u64(3, len / 3));
    const char *best = NULL;
    const char *longer = NULL;
    size_t longer_count = 0;

    for (; *words != NULL; words++) {
        size_t d = ps_edit_distance(*words, word);

        if (len >= PREFIX_MIN && strncmp(*words, word, len) == 0) {
            longer = *words;
            longer_count++;
        }
        if (d < near || (d == near && best == NULL)) {
            near = d;
            best = *words;
        }
    }
    return best == NULL && longer_count == 1 ? longer : best;
}
