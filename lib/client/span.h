/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of the program. */
#pragma once

#include <stdbool.h>

struct psc_client;
struct span_table;

/* NULL: no memory. */
struct span_table *span_table_new(void);
/* `child`: this is a forked child. */
void span_table_free(struct span_table *t, bool child);
/* Sends spans, if there are some and the last ones were not sent just now. For a
 * caller that is about to wait. Locked. */
void span_send_due(struct psc_client *c);
/* Sends all spans. Locked. */
void span_send_all(struct psc_client *c);
