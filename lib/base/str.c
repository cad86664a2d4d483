/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static void add_bytes(struct ps_str *s, const char *bytes, size_t len)
{
    size_t room = s->cap - 1 - s->len;

    if (len > room) {
        len = room;
        s->cut = true;
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

    if (n < 0) { /* A wide character that the locale does not have. */
        s->data[s->len] = '\0';
        s->cut = true;
    } else if ((size_t)n >= room) {
        s->len = s->cap - 1;
        s->cut = true;
    } else {
        s->len += (size_t)n;
    }
}

void ps_str_add_escaped(struct ps_str *s, const char *bytes, size_t len,
                        size_t max)
{
    static const char hex[] = "0123456789abcdef";

    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)bytes[i];

        if (i == max) {
            add_bytes(s, "...", 3);
            return;
        }
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\'' && c != '\\') {
            add_bytes(s, &bytes[i], 1);
        } else {
            char code[4] = {'\\', 'x', hex[c >> 4], hex[c & 15]};

            add_bytes(s, code, sizeof(code));
        }
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

bool ps_str_copy(char *dst, size_t cap, const char *src)
{
    struct ps_str s;

    ps_str_init(&s, dst, cap);
    ps_str_add(&s, src);
    return !s.cut;
}
