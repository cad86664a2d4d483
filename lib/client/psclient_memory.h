/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that operations use without a copy; part of psclient.h. */
#ifndef PSCLIENT_MEMORY_H
#define PSCLIENT_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

struct psc_client;

/* Memory shared with the agent, aligned to 64 bytes, contents undefined.
 * Operations use arrays in it without a copy. psc_free() of memory that an open
 * operation uses returns PSC_E_AGAIN and frees nothing. Freeing NULL is
 * allowed. */
int psc_alloc(struct psc_client *c, size_t size, void **ret_data);
int psc_free(struct psc_client *c, void *data);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
