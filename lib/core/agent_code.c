/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that travel as codes. What the ranks of this node give is summed
 * and encoded in one computation, which also moves the residual: it may run
 * once for a round and never again. The code is therefore kept until the round
 * is over, and whatever has to be sent again, on a new link or to another
 * server, is these bytes. Residuals belong to partitions and go where these
 * go. They are kept twice while a round is open: when it fails, a code that no
 * server has counted is taken back; one that may be counted stays what this
 * node gives to that round, should it be offered anew. Where they lie, they
 * outlive this process (agent_keep.c). */
#include "core/agent_inner.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

bool ps_agent_code_applies(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return !p->init && k->width == 0 && k->kind != PS_OP_BROADCAST &&
           k->kind != PS_OP_PASS && !k->collective &&
           k->reduce <= PS_REDUCE_MEAN && /* What is left over is of sums. */
           ps_compress_applies(&k->compress, k->dtype, p->count);
}

/* Memory that an encoding needs; NULL: it needs none. */
struct memory {
    struct ps_buf *residual;
    struct ps_buf *moment;
    struct ps_buf *code;
};

static void release(struct memory *m)
{
    ps_buf_unref(m->residual);
    ps_buf_unref(m->moment);
    ps_buf_unref(m->code);
}

/* A vector as long as the partition, zeros unless `old` will be copied. */
static int vector(struct ps_agent *a, const struct ps_agent_part *p,
                  const struct ps_buf *old, struct ps_buf **ret)
{
    const uint64_t bytes = ps_agent_part_bytes(p);
    int rc = ps_pool_get(a->opt.sums, bytes, ret);

    if (rc == 0 && old == NULL) {
        memset((*ret)->data, 0, bytes);
    }
    return rc;
}

static void clear(const struct ps_buf *buf, const struct ps_buf *old)
{
    if (buf != NULL && old == NULL) {
        memset(buf->data, 0, buf->size);
    }
}

/* `again`: another agent has made the code, and what it left over is there. */
static int obtain(struct ps_agent_step *st, struct ps_agent_part *p,
                  struct memory *m, bool *ret_again)
{
    const struct ps_press *press = &p->key->compress.press;
    struct ps_agent *a = st->a;
    bool kept = ps_agent_keep_obtain(st, p);
    bool again = kept && ps_agent_keep_again(p);
    int rc = 0;

    if (kept && !again) {
        m->residual = ps_agent_keep_residual(p);
        m->moment = ps_agent_keep_moment(p);
        clear(m->residual, p->residual[0]);
        clear(m->moment, p->moment[0]);
    }
    if (m->residual == NULL) {
        rc = vector(a, p, p->residual[0], &m->residual);
    }
    if (rc == 0 && press->momentum > 0 && m->moment == NULL) {
        rc = vector(a, p, p->moment[0], &m->moment);
    }
    *ret_again = again;
    if (rc == 0) {
        rc = ps_pool_get(a->opt.sums, ps_press_bytes(press, p->count),
                         &m->code);
    }
    if (rc != 0) {
        release(m);
    }
    return rc;
}

static float *floats(const struct ps_buf *buf)
{
    return buf == NULL ? NULL : (float *)(void *)buf->data;
}

static void hold(struct ps_compute *c, struct ps_buf *buf)
{
    if (buf != NULL) {
        ps_compute_hold(c, buf);
    }
}

static struct ps_compute *make_job(struct ps_agent *a,
                                   const struct ps_agent_part *p,
                                   const struct ps_slice *slices,
                                   uint32_t count, const struct memory *m)
{
    const struct ps_press *press = &p->key->compress.press;
    struct ps_compute *c = ps_compute_new(++a->next_token, count, 5);

    c->job.op = PS_JOB_ENCODE;
    c->job.dtype = PS_DTYPE_FLOAT32;
    c->job.count = p->count;
    for (uint32_t i = 0; i < count; i++) {
        ps_compute_add_src(c, &slices[i], 0);
    }
    c->job.dst = m->code->data;
    c->job.press = *press;
    c->job.stream = ps_press_stream(
        press, &(struct ps_press_at){.key = ps_compress_salt(p->key->label),
                                     .index = p->index,
                                     .round = p->key->round,
                                     .slot = p->key->job->slot});
    c->job.residual = floats(m->residual);
    c->job.residual_from = floats(p->residual[0]);
    c->job.moment = floats(m->moment);
    c->job.moment_from = floats(p->moment[0]);
    hold(c, m->code);
    hold(c, m->residual);
    hold(c, m->moment);
    hold(c, p->residual[0]);
    hold(c, p->moment[0]);
    return c;
}

/* What the encoding makes is the state now; what it was is kept until the
 * round is over. */
static void turn(struct ps_agent_part *p, const struct memory *m)
{
    assert(p->residual[1] == NULL && p->moment[1] == NULL);
    if (p->key->compress.press.feedback) {
        p->residual[1] = p->residual[0];
        p->residual[0] = ps_buf_ref(m->residual);
    }
    if (m->moment != NULL) {
        p->moment[1] = p->moment[0];
        p->moment[0] = ps_buf_ref(m->moment);
    }
    p->code_undo = true;
}

int ps_agent_code_start(struct ps_agent_step *st, struct ps_agent_flow *f,
                        struct ps_agent_part *p, const struct ps_slice *slices,
                        uint32_t count)
{
    struct ps_agent *a = st->a;
    struct memory m = {0};
    struct ps_agent_run *run;
    bool again;
    int rc = obtain(st, p, &m, &again);

    assert(!p->encoding);
    if (rc != 0) {
        return rc;
    }
    ps_agent_code_drop(p); /* Of an earlier round. */
    if (again) {
        ps_agent_keep_before(p);
    }

    struct ps_compute *c = make_job(a, p, slices, count, &m);

    if (again) {
        ps_agent_keep_after(p);
        p->code_undo = true;
    } else {
        turn(p, &m);
    }
    run = ps_calloc(1, sizeof(*run));
    run->token = c->token;
    run->part = p;
    run->flow = f;
    run->dst = (struct ps_slice){
        .buf = ps_buf_ref(m.code),
        .len = ps_press_bytes(&p->key->compress.press, p->count)};
    run->bytes = run->dst.len;
    run->encodes = true;
    run->version = (int64_t)p->key->round;
    release(&m);
    ps_map_put(a->runs, run->token, run);
    p->encoding = true;
    p->state = PS_AGENT_PART_SUMMING;
    f->summing += run->bytes;
    f->server->summing++;
    f->server->summing_bytes += run->bytes;
    a->stats.summed += ps_agent_part_bytes(p) * count;
    ps_effects_compute(st->fx, c);
    return 0;
}

bool ps_agent_code_has(const struct ps_agent_part *p)
{
    return p->code.buf != NULL && p->code_round == p->key->round;
}

void ps_agent_code_made(struct ps_agent_part *p, struct ps_agent_run *run)
{
    p->encoding = false;
    if (p->code_void) {
        p->code_void = false;
        return; /* Its round has failed in the meantime. */
    }
    p->code = run->dst;
    ps_buf_ref(run->dst.buf);
    p->code_round = (uint64_t)run->version;
    ps_agent_keep_mark(p, p->code_round);
}

static void forget(struct ps_buf **buf)
{
    ps_buf_unref(*buf);
    *buf = NULL;
}

void ps_agent_code_drop(struct ps_agent_part *p)
{
    ps_buf_unref(p->code.buf);
    p->code = (struct ps_slice){0};
    p->code_sent = false;
    p->code_undo = false;
    forget(&p->residual[1]);
    forget(&p->moment[1]);
}

/* As if there had been no code. */
static void undo(struct ps_agent_part *p)
{
    if (p->code_undo && p->key->compress.press.feedback) {
        forget(&p->residual[0]);
        p->residual[0] = p->residual[1];
        p->residual[1] = NULL;
    }
    if (p->code_undo && p->key->compress.press.momentum > 0) {
        forget(&p->moment[0]);
        p->moment[0] = p->moment[1];
        p->moment[1] = NULL;
    }
    if (p->code_undo) {
        ps_agent_keep_mark(p, p->key->round - 1);
    }
    ps_agent_code_drop(p);
    p->code_void = p->encoding;
}

void ps_agent_code_fail(struct ps_agent_part *p)
{
    if (!p->code_sent) {
        undo(p);
    }
}

void ps_agent_code_refused(struct ps_agent_part *p, uint64_t round)
{
    if (p->code.buf != NULL && p->code_round == round) {
        undo(p);
    }
}

void ps_agent_code_free(struct ps_agent_part *p)
{
    ps_agent_code_drop(p);
    forget(&p->residual[0]);
    forget(&p->moment[0]);
    ps_agent_keep_free(p);
}
