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
           a->wd_mult == b->wd_mult && a->norm_exempt == b->norm_exempt;
}

bool ps_tunings_equal(const struct ps_tunings *t,
                      const struct ps_rec_tuning *list, uint32_t count)
{
    if (t->count != count) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!tuning_equals(&t->list[i], &list[i])) {
            return false;
        }
    }
    return true;
}

int ps_tunings_check(const struct ps_rec_tuning *list, uint32_t count,
                     char *why, size_t why_cap)
{
    struct ps_str s;

    ps_str_init(&s, why, why_cap);
    if (count > PS_TUNINGS_MAX) {
        ps_str_addf(&s,
                    "multipliers are given for %u keys, and there may be at "
                    "most %u that differ from 1",
                    count, PS_TUNINGS_MAX);
        return PS_E_INVAL;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct ps_rec_tuning *t = &list[i];

        if (!isfinite(t->lr_mult) || t->lr_mult < 0 || !isfinite(t->wd_mult) ||
            t->wd_mult < 0) {
            ps_str_addf(&s,
                        "lr_mult and wd_mult must be finite and not negative, "
                        "not %g and %g",
                        t->lr_mult, t->wd_mult);
            return PS_E_INVAL;
        }
        if (i > 0 && t->name_hash <= list[i - 1].name_hash) {
            ps_str_add(&s, "a key has multipliers twice");
            return PS_E_INVAL;
        }
    }
    return 0;
}

const struct ps_rec_tuning *ps_tunings_find(const struct ps_tunings *t,
                                            uint64_t name_hash)
{
    uint32_t low = 0;
    uint32_t high = t->count;

    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;

        if (t->list[mid].name_hash < name_hash) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < t->count && t->list[low].name_hash == name_hash ? &t->list[low]
                                                                 : NULL;
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
