/* SPDX-License-Identifier: Apache-2.0 */
/* Which option did they mean? Levenshtein distance over whole paths; if
 * nothing is near, an option of another section with the same last word. */
#include "conf/options.h"

#include "base/num.h"

#include <string.h>

#define WORD_MAX 128u

static size_t distance(const char *a, const char *b)
{
    size_t row[WORD_MAX + 1];
    size_t a_len = strlen(a);
    size_t b_len = strlen(b);

    if (a_len > WORD_MAX || b_len > WORD_MAX) {
        return WORD_MAX;
    }
    for (size_t j = 0; j <= b_len; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = ps_min_u64(change, ps_min_u64(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_len];
}

static const char *last_word(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot == NULL ? path : dot + 1;
}

const char *ps_option_nearest(const struct ps_option_set *set, const char *path)
{
    size_t n = ps_option_set_count(set);
    size_t near = 3;
    const char *best = NULL;

    if (strlen(path) / 3 < near) {
        near = ps_max_u64(1, strlen(path) / 3);
    }
    for (size_t i = 0; i < n; i++) {
        const char *name = ps_option_set_row(set, i, NULL)->path;
        size_t d = distance(path, name);

        if (d < near || (d == near && best == NULL)) {
            near = d;
            best = name;
        }
    }
    for (size_t i = 0; i < n && best == NULL; i++) {
        const char *name = ps_option_set_row(set, i, NULL)->path;

        if (strcmp(last_word(path), last_word(name)) == 0) {
            best = name;
        }
    }
    return best;
}
