/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of encoded gradients: their codec is the job's, and their codes are
 * whole. */
#include "core/server/encoded.h"

#include "base/limits.h"
#include "base/num.h"
#include "core/server/inner.h"

#include <inttypes.h>
#include <stdio.h>

int ps_server_encoded_check(const struct ps_server_job *job,
                            const struct ps_server_push *m,
                            const struct ps_rec_part *rec)
{
    if (job->compression.codec.kind == PS_CODEC_NONE) {
        return PS_E_UNCONFIGURED; /* job_state is still on its way here. */
    }
    return rec->codec != job->compression.codec.kind || m->assign ||
                   m->reduce > PS_REDUCE_MEAN
               ? PS_E_MISMATCH
               : 0;
}

/* Checks the codes of a contribution, one after the other: one, or one for
 * each of the workers that it comes from. */
static int check_codes(const struct ps_compression *c,
                       const struct ps_slice *bytes, uint64_t count,
                       uint64_t weight, char *why, size_t why_cap)
{
    const uint64_t len = ps_codec_bytes(&c->codec, count);
    const uint64_t codes = c->per_worker ? bytes->len / len : 1;

    if (codes == 0 || codes > ps_min_u64(weight, PS_RANKS_MAX)) {
        (void)snprintf(why, why_cap,
                       "%" PRIu64 " bytes are no code for each worker",
                       bytes->len);
        return PS_E_PROTO;
    }
    for (uint64_t i = 0; i < codes; i++) {
        int rc = ps_codec_check(&c->codec, ps_slice_data(bytes) + i * len,
                                i + 1 < codes ? len : bytes->len - i * len,
                                count, why, why_cap);

        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

int ps_server_encoded_verify(struct ps_server_step *st,
                             const struct ps_server_contribution *in,
                             const struct ps_slice *bytes)
{
    struct ps_server_job *job = in->slot->job;
    const struct ps_rec_part *rec = &in->rec;
    char why[200];
    int rc = check_codes(&job->compression, bytes, rec->count, in->push->weight,
                         why, sizeof(why));

    if (rc != 0) {
        ps_effects_log_for(
            st->fx, &job->account, PS_LOG_WARNING,
            "job %s: a code of partition %u of key %u is broken: "
            "%s",
            job->name, rec->index, rec->key, why);
        return PS_E_INVAL;
    }
    return 0;
}
