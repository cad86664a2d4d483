/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient encoding. One computation sums the contributions of this node,
 * encodes the sum and updates the residual, or does so with each contribution
 * alone if the compression is per worker; it runs only once per round. The
 * encoded form is therefore kept until the round is over, and every resend, on
 * a new link or to another server, sends the same bytes. Residuals belong to
 * partitions, whichever server owns them. Two generations are kept while a
 * round is open. When the round fails, an encoded form that no server can have
 * counted is reverted; otherwise it stays this node's contribution when the
 * round is retried. That of an aborted attempt is reverted when the next one
 * needs another: until then the partition's server may have merged it (rule
 * R25). Residuals in the residual log outlive this process
 * (residual_log.c). */
#include "core/agent/encode.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"
#include "core/agent/residual_log.h"
#include "core/agent/server.h"

#include <assert.h>
#include <string.h>

/* ------------------------------------------------------------------ states */

static const uint32_t successors[] = {
    [PS_AGENT_ENCODING_IDLE] = PS_STATE_BIT(PS_AGENT_ENCODING_RUNNING),
    /* CANCELLED: its round has failed. */
    [PS_AGENT_ENCODING_RUNNING] = PS_STATE_BIT(PS_AGENT_ENCODING_IDLE) |
                                  PS_STATE_BIT(PS_AGENT_ENCODING_CANCELLED),
    /* The computation has ended. */
    [PS_AGENT_ENCODING_CANCELLED] = PS_STATE_BIT(PS_AGENT_ENCODING_IDLE),
};

/* The computation that encodes a partition's contribution, at the agent. */
static const struct ps_state_table encoding_states = {
    .name = "encoding",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

static void encoding_set_state(struct ps_agent_part *p,
                               enum ps_agent_encoding_state to)
{
    ps_state_change(&encoding_states, &p->encoding.state, (uint8_t)to);
}

void ps_agent_encode_end(struct ps_agent_part *p)
{
    if (p->encoding.state != PS_AGENT_ENCODING_IDLE) {
        encoding_set_state(p, PS_AGENT_ENCODING_IDLE);
    }
}

bool ps_agent_encode_is_running(const struct ps_agent_part *p)
{
    return p->encoding.state != PS_AGENT_ENCODING_IDLE;
}

/* -------------------------------------------------------------- computation */

bool ps_agent_encode_applies(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return !p->is_init && k->kind->has_results && !k->kind->is_collective &&
           k->round.op != PS_OP_BROADCAST && k->round.op != PS_OP_SKIP &&
           k->round.reduce <= PS_REDUCE_MEAN && /* Only sums have residuals. */
           ps_compression_applies(&k->compression, k->dtype, p->count);
}

/* Buffers that an encoding writes, one reference each; NULL: not needed. */
struct encode_buffers {
    struct ps_buf *residual;
    struct ps_buf *moment;
    struct ps_buf *encoded;
};

static void release_buffers(struct encode_buffers *m)
{
    ps_buf_unref(m->residual);
    ps_buf_unref(m->moment);
    ps_buf_unref(m->encoded);
}

/* Allocates a vector of residuals or moments: zeros if there is no `old`
 * vector to copy. */
static int alloc_vector(struct ps_agent *a, const struct ps_agent_part *p,
                        const struct ps_buf *old, struct ps_buf **ret)
{
    const uint64_t bytes = ps_agent_residual_elements(p) * sizeof(float);
    int rc = ps_pool_get(a->opt.scratch_pool, bytes, ret);

    if (rc == 0 && old == NULL) {
        memset((*ret)->data, 0, bytes);
    }
    return rc;
}

static void clear_vector(const struct ps_buf *buf, const struct ps_buf *old)
{
    if (buf != NULL && old == NULL) {
        memset(buf->data, 0, buf->size);
    }
}

/* Obtains the buffers of an encoding. *ret_again is true if an earlier agent
 * encoded this round and its residual is in the log. */
static int obtain_buffers(struct ps_agent_step *st, struct ps_agent_part *p,
                          uint64_t encoded_bytes, struct encode_buffers *m,
                          bool *ret_again)
{
    const struct ps_codec *codec = &p->key->compression.codec;
    struct ps_agent *a = st->a;
    bool kept = ps_agent_residual_attach(st, p);
    bool again = kept && ps_agent_residual_is_encoded(p);
    int rc = 0;

    if (kept && !again) {
        ps_agent_residual_targets(p, &m->residual, &m->moment);
        clear_vector(m->residual, p->encoding.residual[0]);
        clear_vector(m->moment, p->encoding.moment[0]);
    }
    if (m->residual == NULL) {
        rc = alloc_vector(a, p, p->encoding.residual[0], &m->residual);
    }
    if (rc == 0 && codec->momentum > 0 && m->moment == NULL) {
        rc = alloc_vector(a, p, p->encoding.moment[0], &m->moment);
    }
    *ret_again = again;
    if (rc == 0) {
        rc = ps_pool_get(a->opt.scratch_pool, encoded_bytes, &m->encoded);
    }
    if (rc != 0) {
        release_buffers(m);
    }
    return rc;
}

static float *as_floats(const struct ps_buf *buf)
{
    return buf == NULL ? NULL : (float *)(void *)buf->data;
}

static void hold_buffer(struct ps_compute *c, struct ps_buf *buf)
{
    if (buf != NULL) {
        ps_compute_pin(c, buf);
    }
}

/* Adds the contribution of each local rank, NULL for one without. */
static void add_each_source(struct ps_compute *c, const struct ps_agent_part *p)
{
    for (uint32_t i = 0; i < p->key->job->local_rank_count; i++) {
        struct ps_slice slice;

        if (ps_agent_contribution_source(p, i, &slice)) {
            ps_compute_add_src(c, &slice, 0);
        } else {
            c->src[c->job.src_count] = NULL;
            c->level[c->job.src_count] = 0;
            c->job.src_count++;
        }
    }
}

static struct ps_compute *make_encode_job(uint64_t token,
                                          const struct ps_agent_part *p,
                                          const struct ps_slice *slices,
                                          uint32_t count,
                                          const struct encode_buffers *m)
{
    const struct ps_codec *codec = &p->key->compression.codec;
    const bool each = p->key->compression.per_worker;
    struct ps_compute *c = ps_compute_new(
        token, each ? p->key->job->local_rank_count : count, 5);

    c->job.op = each ? PS_JOB_ENCODE_EACH : PS_JOB_ENCODE;
    c->job.dtype = PS_DTYPE_FLOAT32;
    c->job.count = p->count;
    if (each) {
        add_each_source(c, p);
    }
    for (uint32_t i = 0; !each && i < count; i++) {
        ps_compute_add_src(c, &slices[i], 0);
    }
    c->job.dst = m->encoded->data;
    c->job.codec = *codec;
    c->job.rng_stream = ps_codec_rng_stream(
        codec, &(struct ps_codec_position){
                   .key = ps_compression_rng_key(p->key->name_hash),
                   .index = p->index,
                   .round = p->key->round.number,
                   .slot = p->key->job->slot});
    c->job.residual = as_floats(m->residual);
    c->job.prior.residual = as_floats(p->encoding.residual[0]);
    c->job.moment = as_floats(m->moment);
    c->job.prior.moment = as_floats(p->encoding.moment[0]);
    hold_buffer(c, m->encoded);
    hold_buffer(c, m->residual);
    hold_buffer(c, m->moment);
    hold_buffer(c, p->encoding.residual[0]);
    hold_buffer(c, p->encoding.moment[0]);
    return c;
}

/* Makes the buffers of the encoding the current residual and moment. The
 * previous ones are kept until the round is over. */
static void rotate_residuals(struct ps_agent_part *p,
                             const struct encode_buffers *m)
{
    assert(p->encoding.residual[1] == NULL && p->encoding.moment[1] == NULL);
    if (p->key->compression.codec.feedback) {
        p->encoding.residual[1] = p->encoding.residual[0];
        p->encoding.residual[0] = ps_buf_ref(m->residual);
    }
    if (m->moment != NULL) {
        p->encoding.moment[1] = p->encoding.moment[0];
        p->encoding.moment[0] = ps_buf_ref(m->moment);
    }
    p->encoding.is_revertible = true;
}

int ps_agent_encode_start(struct ps_agent_step *st,
                          struct ps_agent_send_queue *f,
                          struct ps_agent_part *p,
                          const struct ps_slice *slices, uint32_t count)
{
    struct encode_buffers m = {0};
    struct ps_agent_computation *run;
    const uint64_t encoded_bytes = ps_codec_bytes(&p->key->compression.codec,
                                                  p->count) *
                                   (p->key->compression.per_worker ? count : 1);
    bool again;
    int rc = obtain_buffers(st, p, encoded_bytes, &m, &again);

    assert(p->encoding.state == PS_AGENT_ENCODING_IDLE);
    if (rc != 0) {
        return rc;
    }
    ps_agent_encode_discard(p); /* From an earlier round. */
    if (again) {
        ps_agent_residual_rewind(p);
    }
    run = ps_agent_computation_new(st->a, p, f);

    struct ps_compute *c = make_encode_job(run->token, p, slices, count, &m);

    if (again) {
        ps_agent_residual_forward(p);
        p->encoding.is_revertible = true;
    } else {
        rotate_residuals(p, &m);
    }
    run->dst = (struct ps_slice){.buf = ps_buf_ref(m.encoded),
                                 .len = encoded_bytes};
    run->bytes = run->dst.len;
    run->is_encode = true;
    run->version = (int64_t)p->key->round.number;
    release_buffers(&m);
    encoding_set_state(p, PS_AGENT_ENCODING_RUNNING);
    st->a->stats.bytes_summed += ps_agent_part_bytes(p) * count;
    ps_agent_computation_start(st, run, c);
    return 0;
}

bool ps_agent_encode_is_ready(const struct ps_agent_part *p)
{
    return p->encoding.data.buf != NULL && !p->encoding.is_void &&
           p->encoding.round == p->key->round.number;
}

void ps_agent_encode_on_computed(struct ps_agent_part *p,
                                 struct ps_agent_computation *run)
{
    const bool cancelled = p->encoding.state == PS_AGENT_ENCODING_CANCELLED;

    ps_agent_encode_end(p);
    if (cancelled) {
        return; /* Its round failed meanwhile. */
    }
    p->encoding.data = run->dst;
    ps_buf_ref(run->dst.buf);
    p->encoding.round = (uint64_t)run->version;
    ps_agent_residual_commit(p, p->encoding.round);
}

static void clear_buffer_ref(struct ps_buf **buf)
{
    ps_buf_unref(*buf);
    *buf = NULL;
}

void ps_agent_encode_discard(struct ps_agent_part *p)
{
    ps_buf_unref(p->encoding.data.buf);
    p->encoding.data = (struct ps_slice){0};
    p->encoding.was_sent = false;
    p->encoding.is_void = false;
    p->encoding.is_revertible = false;
    clear_buffer_ref(&p->encoding.residual[1]);
    clear_buffer_ref(&p->encoding.moment[1]);
}

/* Discards the encoded form and restores the residual and moment from before
 * it. */
static void revert_encoding(struct ps_agent_part *p)
{
    if (p->encoding.is_revertible && p->key->compression.codec.feedback) {
        clear_buffer_ref(&p->encoding.residual[0]);
        p->encoding.residual[0] = p->encoding.residual[1];
        p->encoding.residual[1] = NULL;
    }
    if (p->encoding.is_revertible && p->key->compression.codec.momentum > 0) {
        clear_buffer_ref(&p->encoding.moment[0]);
        p->encoding.moment[0] = p->encoding.moment[1];
        p->encoding.moment[1] = NULL;
    }
    if (p->encoding.is_revertible) {
        ps_agent_residual_commit(p, p->key->round.number - 1);
    }
    ps_agent_encode_discard(p);
    if (p->encoding.state == PS_AGENT_ENCODING_RUNNING) {
        encoding_set_state(p, PS_AGENT_ENCODING_CANCELLED);
    }
}

void ps_agent_encode_round_failed(struct ps_agent_part *p)
{
    if (!p->encoding.was_sent) {
        revert_encoding(p);
    }
}

void ps_agent_encode_aborted(struct ps_agent_part *p)
{
    p->encoding.is_void = p->encoding.was_sent;
}

void ps_agent_encode_begin_attempt(struct ps_agent_part *p)
{
    if (p->encoding.is_void) {
        ps_agent_encode_refused(p, p->key->round.number);
    }
}

void ps_agent_encode_refused(struct ps_agent_part *p, uint64_t round)
{
    if (p->encoding.data.buf != NULL && p->encoding.round == round) {
        revert_encoding(p);
    }
}

void ps_agent_encode_free(struct ps_agent_part *p)
{
    ps_agent_encode_discard(p);
    clear_buffer_ref(&p->encoding.residual[0]);
    clear_buffer_ref(&p->encoding.moment[0]);
    ps_agent_residual_detach(p);
}
