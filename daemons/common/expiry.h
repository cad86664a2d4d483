/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings before the end of a certificate: 30 days before, 7 days before, and
 * every day from then on. For one of a short validity, a third and a tenth of
 * it count, and an hour. Times are in seconds since 1970. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ps_expiry {
    int64_t begins_at;
    int64_t ends_at;
    unsigned stage; /* Warnings given; 0 at first. */
};

/* True: a warning is due at `now`. *ret_wait: seconds until the next call, a day
 * at most, because the clock may be set. */
bool ps_expiry_check(struct ps_expiry *e, int64_t now, int64_t *ret_wait);
