/* SPDX-License-Identifier: Apache-2.0 */
/* Text in a fixed array: always terminated, truncated when full; and suggestions
 * for misspelt words. */
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

/* An empty text with memory of its own in the block that declares it:
 * struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1); */
#define PS_STR_ROOM(size)                                                      \
    {                                                                          \
        .data = (char[size]){0}, .cap = (size)                                 \
    }
void ps_str_init(struct ps_str *s, char *data, size_t cap);
void ps_str_add(struct ps_str *s, const char *text);
void ps_str_addf(struct ps_str *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void ps_str_addv(struct ps_str *s, const char *fmt, va_list ap);
/* Appends bytes of an untrusted source: control characters, quotes and
 * non-ASCII become \xNN; "..." replaces bytes after the first `max`. */
void ps_str_add_escaped(struct ps_str *s, const char *bytes, size_t len,
                        size_t max);
/* "12 bytes", "1.5 GiB". */
void ps_str_add_size(struct ps_str *s, uint64_t bytes);
/* Bytes of the first of `len` > 0 bytes' character, and its code. 0: they are not
 * UTF-8. */
size_t ps_str_decode(const char *bytes, size_t len, uint32_t *ret_code);
/* Bytes of the first character if it is visible UTF-8. 0: a control character
 * (ASCII or Unicode), a line separator, a change of text direction, or not
 * UTF-8. */
size_t ps_str_visible(const char *bytes, size_t len);
/* Appends the text with all invisible characters as \xNN, so that it stays on
 * one terminal line and cannot hide or reorder text. */
void ps_str_add_visible(struct ps_str *s, const char *text);
/* "1-3,7" from sorted numbers. */
void ps_str_add_ranges(struct ps_str *s, const unsigned *sorted, size_t count);
/* True: printable ASCII without spaces, 1 to `max` characters; false for
 * NULL. */
bool ps_str_is_name(const char *text, size_t max);
/* "" for NULL: strings of messages made in this process may be NULL. */
static inline const char *ps_str_or_empty(const char *s)
{
    return s != NULL ? s : "";
}
/* True if `word` is in a list with this separator between words. */
bool ps_str_has_word(const char *list, char separator, const char *word);
/* Copies into a char array of `cap` bytes; true if it fits. */
bool ps_str_copy(char *dst, size_t cap, const char *src);

/* Names of training scalars and of spans: they stand in metrics, tables and JSON
 * as they are, so few characters are allowed. Text for messages to users. */
#define PS_SCALAR_NAME_CHARACTERS "letters, digits and any of _ . / : -"

/* True for 1 to PS_SCALAR_NAME_MAX of these characters. */
bool ps_scalar_name_is_valid(const char *name);

/* ------------------------------------------------------------ nearest words */

/* Longer words match nothing. */
#define PS_NEAREST_MAX 128u

/* Optimal string alignment distance in bytes: insertions, deletions,
 * substitutions, and exchanges of two neighbours. */
size_t ps_edit_distance(const char *a, const char *b);
/* Returns the word of the NULL-terminated `words` closest to `word`, within a
 * typing error, the first of several; else the only one that begins with
 * `word`; else NULL. */
const char *ps_nearest(const char *const *words, const char *word);
