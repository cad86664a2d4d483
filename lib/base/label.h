/* SPDX-License-Identifier: Apache-2.0 */
/* A number for the name of a key, so that a server can be told about a key
 * without knowing its name. Two names of one job that share a label would
 * share what a table says of one of them; in 2^64 that does not happen. */
#pragma once

#include <stdint.h>

/* The hash of the name, never 0. The lowest bit says whether the name ends
 * with "gamma", "beta" or "bias", as names of arrays do that optimizers treat
 * as no weights. */
uint64_t ps_label(const char *name);
