/* SPDX-License-Identifier: Apache-2.0 */
/* Dense contributions: parts of arrays, plain or encoded, to rounds. The codec
 * of an encoded one is the job's, and its codes are whole. */
#include "core/server/kind.h"

#include "base/limits.h"
#include "base/num.h"
#include "core/server/inner.h"
#include "core/server/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The inverse of the least share of a frame that is kept without a copy. */
#define ZERO_COPY_SHARE 4u

int ps_server_part_retain(struct ps_server_job *job, uint8_t dtype,
                          const struct ps_slice *bytes,
                          struct ps_slice *ret_slice)
{
    if ((uintptr_t)ps_slice_data(bytes) % ps_dtype_size(dtype) == 0 &&
        (bytes->buf->size <= PS_BATCH_FRAME_MAX ||
         bytes->len >= bytes->buf->size / ZERO_COPY_SHARE)) {
        ps_buf_ref(bytes->buf);
        *ret_slice = *bytes;
        return 0;
    }
    int rc = ps_server_memory_alloc(job, bytes->len, ret_slice);

    if (rc == 0) {
        memcpy(ps_slice_data(ret_slice), ps_slice_data(bytes), bytes->len);
    }
    return rc;
}

/* ---------------------------------------------------- encoded contributions */

/* Checks the encoding against the codec of the job. 0 or a PS_E_*. */
static int check_codec(const struct ps_server_job *job,
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
                       "%" PRIu64
                       " bytes are not an encoded gradient of each worker",
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

/* Checks that the bytes are complete codes of the job's codec. 0, or PS_E_INVAL,
 * which is logged. */
static int verify_codes(struct ps_server_step *st,
                        const struct ps_server_contribution *in,
                        const struct ps_slice *bytes)
{
    struct ps_server_job *job = in->slot->job;
    const struct ps_rec_part *rec = &in->rec;
    char why[200];
    int rc = check_codes(&job->compression, bytes, rec->count, in->push->weight,
                         why, sizeof(why));

    if (rc != 0) {
        ps_effects_log_for(st->fx, &job->account, PS_LOG_WARNING,
                           "job %s: an encoded gradient of partition %u of key "
                           "%u is malformed: %s",
                           job->name, rec->index, rec->key, why);
        return PS_E_INVAL;
    }
    return 0;
}

/* ------------------------------------------------------------ contributions */

/* Checks a contribution to a round that is a step of the optimizer. 0 or a
 * PS_E_*. */
static int check_push_step(const struct ps_server_job *job,
                           const struct ps_part *part,
                           const struct ps_server_push *m,
                           const struct ps_rec_part *rec)
{
    if (!ps_dtype_is_real(rec->dtype) || m->reduce > PS_REDUCE_MEAN ||
        ps_optim_needs_rows(&job->optim)) {
        return PS_E_UNSUPPORTED;
    }
    if (part != NULL && ps_part_accumulated(part)->buf != NULL &&
        part->image.accumulated_reduce != m->reduce) {
        return PS_E_MISMATCH;
    }
    return part == NULL || !ps_part_has_value(part) ? PS_E_NOKEY : 0;
}

/* True if an open round can take the contribution beside those it has. Rule R19:
 * a skip asks for nothing that could conflict with other slots. */
static bool is_push_of_round(const struct ps_open_round *round,
                             const struct ps_server_push *m,
                             const struct ps_rec_part *rec)
{
    if (round->kind != m->kind) {
        return false;
    }
    if (m->weight == 0) {
        return true;
    }
    if (round->has_request &&
        (round->reduce != m->reduce || round->assign != m->assign)) {
        return false;
    }
    return round->round.nonempty == 0 || rec->count == 0 ||
           (round->is_encoded == (rec->codec != PS_CODEC_NONE) &&
            round->rng_key == rec->rng_key);
}

/* Rules R5 and R10. */
static int validate_dense(const struct ps_server_contribution *in,
                          const struct ps_part *part, bool *ret_conflict)
{
    const struct ps_server_push *push = in->push;
    const struct ps_rec_part *rec = &in->rec;
    const struct ps_server_job *job = in->slot->job;
    const bool skips = push->weight == 0;
    int rc = 0;

    if (rec->round > (part != NULL ? part->image.version : 0) + 1) {
        return PS_E_FUTURE;
    }
    if (!skips && rec->codec != PS_CODEC_NONE) {
        rc = check_codec(job, push, rec);
    }
    if (!skips && rc == 0 && job->has_optimizer && !push->assign) {
        rc = check_push_step(job, part, push, rec);
    }
    if (part == NULL) {
        return rc == 0 && ps_store_lacks_room(&job->store, part) ? PS_E_BUSY
                                                                 : rc;
    }
    const bool fits = ps_part_matches(part, rec->dtype,
                                      skips ? 0 : rec->count) &&
                      !ps_part_is_rows(part) && part->async == NULL;

    if (rc == 0 &&
        (!fits || (part->open_round != NULL &&
                   !is_push_of_round(part->open_round, push, rec)))) {
        rc = PS_E_MISMATCH;
    }
    *ret_conflict = rc == PS_E_MISMATCH && fits && !skips;
    return rc;
}

int ps_server_dense_retain(struct ps_server_step *st,
                           const struct ps_server_contribution *in,
                           const struct ps_part *part,
                           struct ps_slice *ret_bytes)
{
    const struct ps_slice *payload = in->push->request->payload;
    const struct ps_slice bytes = {.buf = payload->buf,
                                   .offset = payload->offset + in->offset,
                                   .len = in->payload_bytes};
    int rc = ps_server_part_retain(in->slot->job, in->rec.dtype, &bytes,
                                   ret_bytes);

    (void)part;
    if (rc == 0 && in->rec.codec != PS_CODEC_NONE) {
        rc = verify_codes(st, in, ret_bytes);
        if (rc != 0) {
            ps_buf_unref(ret_bytes->buf);
        }
    }
    return rc;
}

static void record_dense(const struct ps_server_contribution *in,
                         struct ps_part *part)
{
    struct ps_open_round *open = part->open_round;

    ps_part_declare(part, in->rec.dtype, in->rec.count);
    if (in->rec.count > 0) {
        open->is_encoded = in->rec.codec != PS_CODEC_NONE;
        open->rng_key = in->rec.rng_key;
    }
}

const struct ps_server_contribution_kind ps_server_dense_kind = {
    .retain = ps_server_dense_retain,
    .validate = validate_dense,
    .record = record_dense,
};
