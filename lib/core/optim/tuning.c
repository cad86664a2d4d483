/* SPDX-License-Identifier: Apache-2.0 */
#include "core/optim/tuning.h"

#include "base/alloc.h"
#include "base/str.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- tunings */

void ps_tunings_fini(struct ps_tunings *t)
{
    ps_free(t->list);
    *t = (struct ps_tunings){0};
}

void ps_tunings_set(struct ps_tunings *t, const struct ps_rec_tuning *list,
                    uint32_t count)
{
    ps_tunings_fini(t);
    if (count > 0) {
        t->list = ps_alloc(count * sizeof(*list));
        memcpy(t->list, list, count * sizeof(*list));
        t->count = count;
    }
}

static bool tuning_equals(const struct ps_rec_tuning *a,
                          const struct ps_rec_tuning *b)
{
    /* NaN cannot occur: the check refuses it. */
    return a->name_hash == b->name_hash && a->lr_mult == b->lr_mult &&
           a->wd_mult == b->wd_mult && a->norm_exempt == b->norm_exempt &&
           a->round == b->round;
}

bool ps_tunings_equal(const struct ps_rec_tuning *a, uint32_t a_count,
                      const struct ps_rec_tuning *b, uint32_t b_count)
{
    if (a_count != b_count) {
        return false;
    }
    for (uint32_t i = 0; i < a_count; i++) {
        if (!tuning_equals(&a[i], &b[i])) {
            return false;
        }
    }
    return true;
}

static int refuse_key_count(uint32_t count, struct ps_str *why)
{
    ps_str_addf(why,
                "multipliers are given for %u keys, and there may be at most "
                "%u that differ from 1",
                count, PS_TUNINGS_MAX);
    return PS_E_INVAL;
}

/* True if the entry is behind (name_hash, round). */
static bool is_behind(const struct ps_rec_tuning *t, uint64_t name_hash,
                      uint64_t round)
{
    return t->name_hash != name_hash ? t->name_hash > name_hash
                                     : t->round > round;
}

int ps_tunings_check(const struct ps_rec_tuning *list, uint32_t count,
                     struct ps_str *why)
{
    if (count > PS_TUNINGS_MAX) {
        return refuse_key_count(count, why);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_rec_tuning *t = &list[i];

        if (!isfinite(t->lr_mult) || t->lr_mult < 0 || !isfinite(t->wd_mult) ||
            t->wd_mult < 0) {
            ps_str_addf(why,
                        "lr_mult and wd_mult must be finite and not negative, "
                        "not %g and %g",
                        t->lr_mult, t->wd_mult);
            return PS_E_INVAL;
        }
        if (i > 0 && !is_behind(t, list[i - 1].name_hash, list[i - 1].round)) {
            ps_str_add(why, "a key has multipliers twice");
            return PS_E_INVAL;
        }
    }
    return 0;
}

/* Index of the first entry behind (name_hash, round). */
static uint32_t index_behind(const struct ps_tunings *t, uint64_t name_hash,
                             uint64_t round)
{
    uint32_t low = 0;
    uint32_t high = t->count;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;

        if (is_behind(&t->list[mid], name_hash, round)) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

const struct ps_rec_tuning *ps_tunings_find(const struct ps_tunings *t,
                                            uint64_t name_hash, uint64_t round)
{
    const uint32_t behind = index_behind(t, name_hash, round);

    return behind > 0 && t->list[behind - 1].name_hash == name_hash
               ? &t->list[behind - 1]
               : NULL;
}

const struct ps_rec_tuning *
ps_tunings_conflict(const struct ps_tunings *t,
                    const struct ps_rec_tuning *tuning)
{
    const struct ps_rec_tuning *had = ps_tunings_find(t, tuning->name_hash,
                                                      tuning->round);

    return had != NULL && had->round == tuning->round &&
                   !tuning_equals(had, tuning)
               ? had
               : NULL;
}

static uint32_t key_count(const struct ps_tunings *t)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < t->count; i++) {
        count += i == 0 || t->list[i].name_hash != t->list[i - 1].name_hash;
    }
    return count;
}

/* Of the list, keys that the table does not have. */
static uint32_t new_key_count(const struct ps_tunings *t,
                              const struct ps_rec_tuning *list, uint32_t count)
{
    uint32_t added = 0;

    for (uint32_t i = 0; i < count; i++) {
        added += (i == 0 || list[i].name_hash != list[i - 1].name_hash) &&
                 ps_tunings_find(t, list[i].name_hash, UINT64_MAX) == NULL;
    }
    return added;
}

/* Removes the entry that has been replaced for longest; its successor takes its
 * round. False: no key has two entries. */
static bool drop_oldest_tuning(struct ps_tunings *t)
{
    uint32_t oldest = 0; /* The successor. */

    for (uint32_t i = 1; i < t->count; i++) {
        if (t->list[i].name_hash == t->list[i - 1].name_hash &&
            (oldest == 0 || t->list[i].round < t->list[oldest].round)) {
            oldest = i;
        }
    }
    if (oldest == 0) {
        return false;
    }
    t->list[oldest].round = t->list[oldest - 1].round;
    t->count--;
    memmove(&t->list[oldest - 1], &t->list[oldest],
            (t->count - oldest + 1) * sizeof(*t->list));
    return true;
}

static void add_tuning(struct ps_tunings *t, const struct ps_rec_tuning *new)
{
    if (t->count == PS_TUNINGS_MAX && !drop_oldest_tuning(t)) {
        /* Every key has one entry, and there is none for a further key, so this
         * one has one, too. */
        struct ps_rec_tuning *only =
            &t->list[index_behind(t, new->name_hash, UINT64_MAX) - 1];
        const uint64_t since = only->round;

        *only = *new;
        only->round = since;
        return;
    }
    const uint32_t at = index_behind(t, new->name_hash, new->round);

    t->list = ps_realloc(t->list, (t->count + 1u) * sizeof(*t->list));
    memmove(&t->list[at + 1], &t->list[at], (t->count - at) * sizeof(*t->list));
    t->list[at] = *new;
    t->count++;
}

int ps_tunings_add(struct ps_tunings *t, const struct ps_rec_tuning *list,
                   uint32_t count, bool *ret_changed, struct ps_str *why)
{
    const uint32_t keys = key_count(t) + new_key_count(t, list, count);
    bool changed = false;

    if (keys > PS_TUNINGS_MAX) {
        return refuse_key_count(keys, why);
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_rec_tuning *had = ps_tunings_find(t, list[i].name_hash,
                                                          list[i].round);

        if (had == NULL || had->round != list[i].round) {
            add_tuning(t, &list[i]);
            changed = true;
        }
    }
    *ret_changed = changed;
    return 0;
}

/* ---------------------------------------------------------------- changes */

const struct ps_rec_change *ps_changes_find(const struct ps_changes *c,
                                            const char *name, uint64_t round)
{
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->list[i].round == round && strcmp(c->list[i].name, name) == 0) {
            return &c->list[i];
        }
    }
    return NULL;
}

static void remove_change(struct ps_changes *c, uint32_t i)
{
    c->count--;
    memmove(&c->list[i], &c->list[i + 1], (c->count - i) * sizeof(c->list[0]));
}

/* Removes the oldest change that a later one of the same name replaces; the
 * older one takes over the later value. One exists, because there are fewer
 * names than places. */
static void merge_oldest_change(struct ps_changes *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        for (uint32_t k = i + 1; k < c->count; k++) {
            if (strcmp(c->list[i].name, c->list[k].name) == 0) {
                c->list[i].value = c->list[k].value;
                remove_change(c, k);
                return;
            }
        }
    }
    assert(0 && "a change is replaced by a later one");
}

void ps_changes_add(struct ps_changes *c, const struct ps_rec_change *change)
{
    uint32_t at;

    if (c->count == PS_CHANGES_MAX) {
        merge_oldest_change(c);
    }
    at = c->count;
    while (at > 0 && c->list[at - 1].round > change->round) {
        at--;
    }
    memmove(&c->list[at + 1], &c->list[at],
            (c->count - at) * sizeof(c->list[0]));
    c->list[at] = *change;
    c->count++;
}
