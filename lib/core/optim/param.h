/* SPDX-License-Identifier: Apache-2.0 */
/* Named numbers of what a job declares, an optimizer or a compression: which
 * there are, and in which ranges. Names come from unauthenticated peers and are
 * escaped in error texts. */
#pragma once

#include "base/str.h"
#include "proto/ps_msg.h"

#include <stddef.h>
#include <stdint.h>

enum ps_range {
    PS_RANGE_ANY,          /* Any finite number. */
    PS_RANGE_NOT_NEGATIVE, /* At least 0. */
    PS_RANGE_BELOW_ONE,    /* At least 0 and less than 1. */
    PS_RANGE_UP_TO_ONE,    /* More than 0 and at most 1. */
    PS_RANGE_SWITCH,       /* 0 or 1. */
    PS_RANGE_WHOLE,        /* A whole number, at least 0. */
    PS_RANGE_COUNT,        /* A whole number, at least 1. */
    PS_RANGE_SCHEDULE,     /* One of enum ps_lr_kind. */
    PS_RANGE_STRATEGY,     /* One of enum warmup_strategy. */
    /* The rest is of codecs, whose thresholds and sums are float32. */
    PS_RANGE_THRESHOLD,
    PS_RANGE_ABOVE_ZERO,
    PS_RANGE_FRACTION_OR_COUNT, /* Less than 1, or a whole number. */
    PS_RANGE_SEED, /* Whole, up to 2^53, which a double represents exactly. */
    PS_RANGE_LEVELS,
};

struct ps_param {
    const char *name;
    const char *alias; /* NULL: no alias. */
    enum ps_range range;
};

/* The parameters of one optimizer or codec. */
struct ps_param_set {
    const struct ps_param *list;
    unsigned count; /* Of `list`, at most 64. */
    unsigned shown; /* Those before this one are named in texts. */
    uint64_t mask;  /* Bits of the places in `list` that it has. */
    const char *prefix;
    const char *name;
    const char *lacks; /* Text between the name and that of no parameter. */
};

/* Returns the row whose first member, a name, is `name`. NULL: there is none,
 * and `why` has `unknown`, the name and all those that there are. */
const void *ps_param_find_kind(const void *rows, size_t row_size, size_t count,
                               const char *name, const char *unknown,
                               struct ps_str *why);
/* Place of the parameter with this name or alias; set->count: there is none. */
unsigned ps_param_find(const struct ps_param_set *set, const char *name);
/* Appends the names of all parameters, with a comma between two. */
void ps_param_add_names(const struct ps_param_set *set, struct ps_str *why);
/* 0, or PS_E_INVAL with the text in `why`: the number is out of its range. */
int ps_param_check(const struct ps_param_set *set, unsigned param, double value,
                   struct ps_str *why);
/* Sets in `values`, by place, those that are given. 0, or PS_E_INVAL with the
 * text in `why`: one is unknown, given twice or out of its range. */
int ps_param_parse(const struct ps_param_set *set,
                   const struct ps_rec_param *given, uint32_t count,
                   double *values, struct ps_str *why);
