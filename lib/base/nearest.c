/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nearest.h"

#include "base/num.h"

#include <string.h>

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
