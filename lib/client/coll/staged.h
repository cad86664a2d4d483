/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of arrays on a GPU. Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct coll;
struct coll_request;
struct psc_op;

/* Notes the place in the program's stream. On failure sets the detail. */
PS_MUST_USE int coll_device_open(struct coll *k, const struct coll_request *a);
/* Begins the copy of the source to its block; the collective stays in ORDER
 * until the copy ends. On failure sets the detail. */
PS_MUST_USE int coll_device_fetch(struct coll *k, const struct coll_request *a);
/* The source is released: no copy of it is under way afterwards. */
void coll_device_drop_source(struct coll *k);
/* Results of the sub-operation go to the GPU if the collective's do. */
void coll_device_set(struct psc_op *part);
/* Copies memory of the source to the result, and waits. On failure fails the
 * collective. */
void coll_device_copy(struct coll *k, void *to, const void *from, size_t bytes);
void coll_device_close(struct coll *k);
