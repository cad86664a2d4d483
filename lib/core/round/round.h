/* SPDX-License-Identifier: Apache-2.0 */
/* One open round: who of a fixed number of contributors has given what, and
 * the order in which it is added. The server has one for each partition over
 * the slots of a job, the agent one over its local ranks.
 *
 * A contributor counts once, by its place, however often it offers. It may
 * give nothing: then it takes part and adds no numbers.
 *
 * The order is the tree of kernel/kernel.h over all places, where the sum of
 * something and nothing is that something, moved up as it is: with 5 places
 * of which 1 gives nothing, the sum is (0+(2+3))+4. So the bits depend on
 * what was given and by whom, and never on what came first. */
#pragma once

#include "base/bits.h"
#include "core/base/effect.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_round {
    uint32_t size;                  /* Places. */
    uint32_t nonempty;              /* Contributions that are not empty. */
    uint64_t weight;                /* Of these, in all. */
    uint64_t bytes;                 /* Of these, in all. */
    struct ps_bits contributed;     /* Who has offered, empty or not. */
    struct ps_slice *contributions; /* One a place; buf NULL: nothing. */
};

void ps_round_init(struct ps_round *r, uint32_t size);
/* Lets go of all contributions. */
void ps_round_fini(struct ps_round *r);

/* Takes the contribution of `place`, with a reference on the slice's buffer;
 * `slice` NULL: it gives nothing. `weight` counts when it gives something.
 * False, and nothing taken, when that place has offered before. */
bool ps_round_contribute(struct ps_round *r, uint32_t place,
                         const struct ps_slice *slice, uint64_t weight);
bool ps_round_has_contributed(const struct ps_round *r, uint32_t place);
bool ps_round_is_complete(const struct ps_round *r);
/* Of the first place that gave something; NULL: nobody did. */
const struct ps_slice *ps_round_first_nonempty(const struct ps_round *r);

/* Lets go of what was given; who has offered stays. */
void ps_round_release_payloads(struct ps_round *r);

/* How the kernel makes one of two contributions; a mean is a sum, divided. */
enum ps_fold ps_round_fold(uint8_t reduce);

/* Appends what was given as sources, with the levels that make the kernel add
 * them in the order above. `c` has room for `given` of them. */
void ps_round_add_sources(const struct ps_round *r, struct ps_compute *c);
