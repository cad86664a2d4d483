/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that write wait notes: lines about waits that take long. Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/time.h"

struct psc_client;
struct psc_op;

/* Time of a wait before its first note. */
ps_time wait_note_first_after(const struct psc_client *c);
/* As client_wait_many(), with notes about the operation that `first` returns,
 * the first one that has not ended. Slices of one wait count together. */
int wait_note_many(struct psc_client *c, bool (*ready)(void *arg),
                   uint32_t (*missing)(void *arg), void *arg, ps_time deadline,
                   struct psc_op *(*first)(void *arg));

/* Describes a wait that has lasted for these seconds. */
typedef void (*wait_note_describe)(struct psc_client *c, void *arg,
                                   unsigned long long seconds, char *text,
                                   size_t size);
/* As client_wait(), with notes of that text. */
int wait_note_text(struct psc_client *c, bool (*ready)(void *arg), void *arg,
                   ps_time deadline, wait_note_describe describe);
