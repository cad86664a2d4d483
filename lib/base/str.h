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
    bool cut;
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
/* "1-3,7" from sorted numbers. */
void ps_str_add_ranges(struct ps_str *s, const unsigned *sorted, size_t count);
/* Copy into a char array of `cap`; true when it fitted. */
bool ps_str_copy(char *dst, size_t cap, const char *src);
