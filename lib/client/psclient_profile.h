/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings of what the servers of a job do; part of psclient.h. */
#ifndef PSCLIENT_PROFILE_H
#define PSCLIENT_PROFILE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

struct psc_client;
struct psc_op;
struct psc_op_options;

#define PSC_PROFILE_OFF    0u
#define PSC_PROFILE_RUN    1u
#define PSC_PROFILE_PAUSED 2u

/* RUN begins a recording of what the job's servers do: receipt of
 * contributions, rounds, computations with their optimizer steps, replies; or
 * continues one that is PAUSED. OFF ends it. For all workers of the job; ends
 * when all servers do so. */
int psc_profile_start(struct psc_client *c, uint32_t mode,
                      const struct psc_op_options *o, struct psc_op **ret_op);
int psc_profile(struct psc_client *c, uint32_t mode);
/* Writes the last recording of each server to a file of its own beside `path`,
 * whose name has "rank<N>_" before the last part of `path`, N being the rank of
 * the server in the job: by name, from 0. The format is that of Chrome's trace
 * viewer. A server keeps its last 16,384 events of all jobs. Keys have their names
 * if this worker has declared them. Waits. */
int psc_profile_save(struct psc_client *c, const char *path);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
