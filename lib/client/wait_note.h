/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that write wait notes: lines about waits that take long. Locked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/time.h"

struct psc_client;
struct psc_op;

/* Sets the interval of the notes from the options. */
void wait_note_init(struct psc_client *c);
/* For a client that writes wait notes: waits as client_wait_many() does and
 * writes them about the operation that `first` returns, the first one that has
 * not ended. Slices of one wait count together. */
int wait_note_many(struct psc_client *c, bool (*ready)(void *arg),
                   uint32_t (*missing)(void *arg), void *arg, ps_time deadline,
                   struct psc_op *(*first)(void *arg));
/* Waits for the start of the job, with wait notes. */
int wait_note_start(struct psc_client *c, bool (*ready)(void *arg),
                    ps_time deadline);
