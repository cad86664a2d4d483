/* SPDX-License-Identifier: Apache-2.0 */
/* Text built in a fixed array: always terminated, cut when full. */
#pragma once

#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct ps_str {
    char *data;
    size_t cap;
    size_t len;
    bool truncated;
};

void ps_str_init(struct ps_str *s, char *data, size_t cap);
void ps_str_add(struct ps_str *s, const char *text);
void ps_str_addf(struct ps_str *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void ps_str_addv(struct ps_str *s, const char *fmt, va_list ap);
/* Bytes from strangers: controls, quotes and non-ASCII become \xNN, at most
 * `max` of them. */
void ps_str_add_escaped(struct ps_str *s, const char *bytes, size_t len,
                        size_t max);
/* "12 bytes", "1.5 GiB": for people. */
void ps_str_add_size(struct ps_str *s, uint64_t bytes);
/* Bytes of the character at the beginning: UTF-8 that shows as something. 0: a
 * control character (of ASCII or Unicode), a line separator, a change of the
 * direction of writing, or no UTF-8. */
size_t ps_str_visible(const char *bytes, size_t len);
/* The same text with everything that is not visible as \xNN: it stays on one
 * line of a terminal and says what it says. */
void ps_str_add_visible(struct ps_str *s, const char *text);
/* "1-3,7" from sorted numbers. */
void ps_str_add_ranges(struct ps_str *s, const unsigned *sorted, size_t count);
/* Copy into a char array of `cap`; true when it fitted. */
bool ps_str_copy(char *dst, size_t cap, const char *src);
