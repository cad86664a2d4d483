/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that travel as codes. What the ranks of this node give is summed
 * and encoded in one computation, which also moves the residual: it may run
 * once for a round and never again. The code is therefore kept until the round
 * is over, and whatever has to be sent again, on a new link or to another
 * server, is these bytes. Residuals belong to partitions and go where these
 * go; a round that fails leaves in them what it had left. */
#include "core/agent_inner.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

bool ps_agent_code_applies(const struct ps_agent_part *p)
{
    const struct ps_agent_key *k = p->key;

    return !p->init && k->width == 0 && k->kind != PS_OP_BROADCAST &&
           !k->collective &&
           ps_compress_applies(&k->compress, k->dtype, p->count);
}

/* Memory of one vector that stays with the partition; zeros at first. */
static int vector(struct ps_agent *a, const struct ps_agent_part *p,
                  struct ps_buf **buf)
{
    const uint64_t bytes = ps_agent_part_bytes(p);

    if (*buf != NULL) {
        return 0;
    }
    int rc = ps_pool_get(a->opt.sums, bytes, buf);

    if (rc == 0) {
        memset((*buf)->data, 0, bytes);
    }
    return rc;
}

/* The residual, or without feedback memory for this time alone; the caller
 * has a reference. */
static int accumulator(struct ps_agent *a, struct ps_agent_part *p,
                       struct ps_buf **ret)
{
    if (!p->key->compress.press.feedback) {
        return ps_pool_get(a->opt.sums, ps_agent_part_bytes(p), ret);
    }
    int rc = vector(a, p, &p->residual);

    if (rc == 0) {
        *ret = ps_buf_ref(p->residual);
    }
    return rc;
}

static struct ps_compute *make_job(struct ps_agent *a,
                                   const struct ps_agent_part *p,
                                   const struct ps_slice *slices,
                                   uint32_t count, struct ps_buf *acc,
                                   struct ps_buf *code)
{
    const struct ps_press *press = &p->key->compress.press;
    struct ps_compute *c = ps_compute_new(++a->next_token, count, 3);

    c->job.op = PS_JOB_ENCODE;
    c->job.dtype = PS_DTYPE_FLOAT32;
    c->job.count = p->count;
    for (uint32_t i = 0; i < count; i++) {
        ps_compute_add_src(c, &slices[i], 0);
    }
    c->job.dst = code->data;
    c->job.press = *press;
    c->job.stream = ps_press_stream(
        press, &(struct ps_press_at){.key = ps_compress_salt(p->key->label),
                                     .index = p->index,
                                     .round = p->key->round,
                                     .slot = p->key->job->slot});
    c->job.residual = (float *)(void *)acc->data;
    ps_compute_hold(c, code);
    ps_compute_hold(c, acc);
    if (p->moment != NULL) {
        c->job.moment = (float *)(void *)p->moment->data;
        ps_compute_hold(c, p->moment);
    }
    return c;
}

int ps_agent_code_start(struct ps_agent_step *st, struct ps_agent_flow *f,
                        struct ps_agent_part *p, const struct ps_slice *slices,
                        uint32_t count)
{
    struct ps_agent *a = st->a;
    const struct ps_press *press = &p->key->compress.press;
    const uint64_t bytes = ps_press_bytes(press, p->count);
    struct ps_agent_run *run;
    struct ps_buf *code;
    struct ps_buf *acc;
    int rc = press->momentum > 0 ? vector(a, p, &p->moment) : 0;

    assert(!p->encoding);
    if (rc != 0) {
        return rc;
    }
    rc = accumulator(a, p, &acc);
    if (rc != 0) {
        return rc;
    }
    rc = ps_pool_get(a->opt.sums, bytes, &code);
    if (rc != 0) {
        ps_buf_unref(acc);
        return rc;
    }
    ps_agent_code_drop(p); /* Of an earlier round. */

    struct ps_compute *c = make_job(a, p, slices, count, acc, code);

    ps_buf_unref(acc);
    run = ps_calloc(1, sizeof(*run));
    run->token = c->token;
    run->part = p;
    run->flow = f;
    run->bytes = bytes;
    run->dst = (struct ps_slice){.buf = code, .len = bytes};
    run->encodes = true;
    run->version = (int64_t)p->key->round;
    ps_map_put(a->runs, run->token, run);
    p->encoding = true;
    p->state = PS_AGENT_PART_SUMMING;
    f->summing += bytes;
    f->server->summing++;
    f->server->summing_bytes += bytes;
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
}

void ps_agent_code_drop(struct ps_agent_part *p)
{
    ps_buf_unref(p->code.buf);
    p->code = (struct ps_slice){0};
}

void ps_agent_code_fail(struct ps_agent_part *p)
{
    ps_agent_code_drop(p);
    p->code_void = p->encoding;
}

void ps_agent_code_free(struct ps_agent_part *p)
{
    ps_agent_code_drop(p);
    ps_buf_unref(p->residual);
    ps_buf_unref(p->moment);
}
