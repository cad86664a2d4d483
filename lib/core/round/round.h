/* SPDX-License-Identifier: Apache-2.0 */
/* Contribution set of one round: which of a fixed number of contributors have
 * contributed, their payloads, and the order of the sum. A server has one for
 * each open round of a partition, over the slots of a job.
 *
 * A contributor counts once, by its index, however often it offers. An empty
 * contribution counts without adding numbers.
 *
 * The order of the sum is the tree of kernel/kernel.h over all contributors,
 * where the sum of a value and nothing is that value, moved up unchanged: of 5
 * contributors with contributor 1 empty, the sum is (0+(2+3))+4. So the bits
 * depend on each contributor's data, never on the order of arrival. */
#pragma once

#include "base/bits.h"
#include "core/base/machine.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_round {
    uint32_t size;     /* Number of contributors. */
    uint32_t nonempty; /* Contributions with data. */
    uint64_t weight;   /* Total weight of contributions with data. */
    uint64_t bytes;    /* Total bytes of contributions with data. */
    /* Contributors that have contributed, empty or not. */
    struct ps_bits contributed;
    /* One for each contributor; buf NULL: empty or missing. */
    struct ps_slice *contributions;
};

void ps_round_init(struct ps_round *r, uint32_t size);
/* Drops the references on all contributions. */
void ps_round_fini(struct ps_round *r);

/* Records the contribution of contributor `place` and references the slice's
 * buffer; `slice` NULL: it is empty, and `weight` does not count. False, with
 * no effect, if it has contributed before. */
bool ps_round_contribute(struct ps_round *r, uint32_t place,
                         const struct ps_slice *slice, uint64_t weight);
bool ps_round_has_contributed(const struct ps_round *r, uint32_t place);
bool ps_round_is_complete(const struct ps_round *r);
/* Contribution of the first contributor with data; NULL: all are empty. */
const struct ps_slice *ps_round_first_nonempty(const struct ps_round *r);
/* Bytes of all contributions. */
uint64_t ps_round_bytes(const struct ps_round *r);

/* Drops the references on all contributions; `contributed` stays. */
void ps_round_release_payloads(struct ps_round *r);

/* Kernel operation that joins two contributions. A mean is a sum here, divided
 * later. */
enum ps_fold ps_round_fold(uint8_t reduce);

/* Appends the contributions with data to `c` as sources, with the levels that
 * give the order above. `c` has capacity for `nonempty` sources. */
void ps_round_add_sources(const struct ps_round *r, struct ps_compute *c);
