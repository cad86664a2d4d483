/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas, reserved rounds, refusals for memory. */
#pragma once

#include "base/str.h"
#include "core/server/inner.h"
#include "core/server/job.h"

/* A request fails after this time if no merge can free enough memory for it. */
#define OUT_OF_MEMORY_AFTER PS_SECONDS(2)

/* Allocates from the job's share of the pool. PS_E_NOMEM: *ret is as it was. */
static inline int ps_server_memory_alloc(struct ps_server_job *job,
                                         uint64_t len, struct ps_slice *ret)
{
    struct ps_buf *buf;
    int rc = ps_pool_get_for(job->server->opt.pool, len, job->pool_share, &buf);

    if (rc == 0) {
        *ret = (struct ps_slice){.buf = buf, .len = len};
    }
    return rc;
}
void ps_server_memory_init(struct ps_server *s);
void ps_server_memory_tick(struct ps_server *s, ps_time now);
/* A job has ended: returns the pool's free memory after a while. */
void ps_server_memory_trim_later(struct ps_server *s);
/* Allocates the payload of a message. PS_E_AGAIN: the frame waits;
 * PS_E_NOMEM: it is discarded, see ps_server_memory_refusal(). */
int ps_server_memory_alloc_payload(struct ps_server *s,
                                   const struct ps_server_request *q,
                                   struct ps_slice *ret);
/* Returns the job's reserved round; NULL: none is chosen, or it has no
 * contribution yet. */
const struct ps_open_round *
ps_server_memory_reserved_round(const struct ps_server_job *job);
/* True if the message contributes to the job's reserved round. If there is
 * none, the round of its first part is chosen. */
bool ps_server_memory_serves_next_round(struct ps_server_job *job,
                                        const struct ps_server_request *q);
/* Error for a payload of `len` bytes that was discarded: PS_E_AGAIN, or
 * PS_E_FULL with the reason in `why`. */
int ps_server_memory_refusal(struct ps_server_step *st,
                             const struct ps_server_slot *slot, uint64_t len,
                             struct ps_str *why);
/* True if no merge can free enough memory for `len` bytes. */
bool ps_server_memory_is_exhausted(const struct ps_server *s, uint64_t len);
void ps_server_memory_describe(const struct ps_server *s,
                               const struct ps_server_job *job, uint64_t len,
                               struct ps_str *why);
/* Records that a result found no memory. */
void ps_server_memory_note_shortage(struct ps_server *s);
/* True if a request found no memory within the last seconds. */
bool ps_server_memory_is_short(const struct ps_server *s);
