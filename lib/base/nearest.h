/* SPDX-License-Identifier: Apache-2.0 */
/* How far a word is from the one that was meant. */
#pragma once

#include <stddef.h>

/* Longer words are far from everything. */
#define PS_NEAREST_MAX 128u

/* Levenshtein distance: insertions, deletions and changes of one byte. */
size_t ps_edit_distance(const char *a, const char *b);
/* The first word of `words`, which ends with NULL, that differs from `word` by
 * no more than a typing error; else the only one that begins with `word`. NULL:
 * there is none. */
const char *ps_nearest(const char *const *words, const char *word);
