/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that the agent reads and writes in place; part of
 * psclient.h. */
#ifndef PSCLIENT_DEVICE_H
#define PSCLIENT_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

struct psc_client;

/* Memory of a GPU, of whole megabytes, contents undefined. Operations with the
 * member `device` of their options (psclient_stream.h) use arrays in it without
 * a copy: push, pushpull and broadcast of dense keys that have rounds. `ordinal`
 * is the number of CUDA in this process; *ret_data is a device pointer.
 *
 * An agent that uses no GPU, or not this one, gets copies, and psc_last_detail()
 * says why. psc_free_device() of memory that an open operation uses returns
 * PSC_E_AGAIN and frees nothing; work of the program on it must have ended. */
int psc_alloc_device(struct psc_client *c, int32_t ordinal, size_t size,
                     void **ret_data);
int psc_free_device(struct psc_client *c, void *data);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
