/* SPDX-License-Identifier: Apache-2.0 */
/* Suggestions for misspelt words. */
#pragma once

#include <stddef.h>

/* Longer words match nothing. */
#define PS_NEAREST_MAX 128u

/* Optimal string alignment distance in bytes: insertions, deletions,
 * substitutions, and exchanges of two neighbours. */
size_t ps_edit_distance(const char *a, const char *b);
/* Returns the word of the NULL-terminated `words` closest to `word`, within a
 * typing error, the first of several; else the only one that begins with
 * `word`; else NULL. */
const char *ps_nearest(const char *const *words, const char *word);
