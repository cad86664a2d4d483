/* SPDX-License-Identifier: Apache-2.0 */
/* Suggestions for unknown options: the nearest path by edit distance; if none
 * is near, an option of another section with a similar last word. */
#include "conf/inner.h"

#include "base/num.h"
#include "base/str.h"

#include <string.h>

static const char *last_word(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot == NULL ? path : dot + 1;
}

/* Returns the nearest option at most `near` from `path`, comparing only last
 * words if `last`; NULL: none. */
static const char *search_set(const struct ps_option_set *set, const char *path,
                              size_t near, bool last)
{
    const char *best = NULL;

    for (size_t i = 0; i < ps_option_set_count(set); i++) {
        const char *name = ps_option_set_row(set, i, NULL)->path;
        size_t d = last ? ps_edit_distance(last_word(path), last_word(name))
                        : ps_edit_distance(path, name);

        if (d < near || (d == near && best == NULL)) {
            near = d;
            best = name;
        }
    }
    return best;
}

const char *ps_option_nearest(const struct ps_option_set *set, const char *path)
{
    size_t near = ps_max_u64(1, ps_min_u64(3, strlen(path) / 3));
    const char *best = search_set(set, path, near, false);

    if (best == NULL) {
        near = ps_min_u64(2, strlen(last_word(path)) / 4);
        best = search_set(set, path, near, true);
    }
    return best;
}
