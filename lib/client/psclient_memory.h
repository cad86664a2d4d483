/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that operations use without a copy; part of psclient.h. */
#ifndef PSCLIENT_MEMORY_H
#define PSCLIENT_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "psclient_device.h"
#include "psclient_stream.h"

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

/* Whether operations copy registered memory. */
enum psc_buf_state {
    PSC_BUF_COPIED = 0,
    PSC_BUF_SHARED = 1, /* The agent reads it in place. */
};

/* The library adds no seals: a memfd that has not all three is copied. */
#define PSC_BUF_KEEP_SEALS 1u
/* PSC_E_UNSUPPORTED where operations would copy; the detail says why. */
#define PSC_BUF_MUST_SHARE 2u

/* Registers memory of the caller, so that operations use arrays in it without a
 * copy where that is possible: it is a shared mapping of a memfd, for reading
 * and writing, whose descriptor is open, and which is sealed against shrinking,
 * growing and sealing; missing ones of these seals are added. The agent maps the
 * whole memfd. Other memory is copied as before, and psc_last_detail() says why.
 * PSC_E_EXIST: memory of psc_alloc(), or registered already.
 *
 * Arrays in it must not change until their operations have ended. Before the
 * memory is unmapped, unregister it: by its first address; PSC_E_AGAIN: an open
 * operation uses it. NULL is allowed. */
int psc_buf_register(struct psc_client *c, void *data, size_t size,
                     uint32_t flags, enum psc_buf_state *ret_state);
int psc_buf_unregister(struct psc_client *c, void *data);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
