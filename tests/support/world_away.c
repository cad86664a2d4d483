/* SPDX-License-Identifier: Apache-2.0 */
/* Servers with a device where optimizer states stay: between two computations,
 * the bytes of a state are in its copy alone, and the buffer has garbage. A
 * machine that reads a state without ps_buf_fetch(), or writes one without
 * ps_buf_invalidate_copy(), computes other values. */
#include "support/world_internal.h"

#include "base/alloc.h"

#include <string.h>

#define GARBAGE 0xa5

struct away_copy {
    struct ps_buf_copy base;
    bool is_ahead; /* The buffer has garbage. */
    uint8_t bytes[];
};

static int fetch_away(struct ps_buf_copy *base, struct ps_buf *b)
{
    struct away_copy *c = (struct away_copy *)base;

    if (c->is_ahead) {
        memcpy(b->data, c->bytes, b->size);
        c->is_ahead = false;
    }
    return 0;
}

static void invalidate_away(struct ps_buf_copy *base)
{
    ((struct away_copy *)base)->is_ahead = false;
}

static void free_away(struct ps_buf_copy *base)
{
    ps_free(base);
}

static const struct ps_buf_copy_ops away_ops = {
    .fetch = fetch_away, .invalidate = invalidate_away, .free = free_away};

static void take_away(struct ps_buf *b)
{
    struct away_copy *c = (struct away_copy *)b->copy;

    if (c == NULL) {
        c = ps_alloc(sizeof(*c) + b->size);
        c->base.ops = &away_ops;
        b->copy = &c->base;
    }
    memcpy(c->bytes, b->data, b->size);
    memset(b->data, GARBAGE, b->size);
    c->is_ahead = true;
}

/* True for states; the value is for the host, too. */
static bool is_taken(const struct ps_job *job, unsigned k)
{
    return job->rows == NULL && job->kept[k] != NULL && k != PS_KEPT_RESULT &&
           (k != PS_KEPT_WEIGHT || job->storage_dtype != PS_DTYPE_FLOAT32);
}

int world_compute(const struct world *w, const struct wnode *n,
                  const struct ps_job *job)
{
    /* A server with state memory has no device (rule E2), nor one of a job with
     * copies. */
    const bool is_away = n->role == PS_ROLE_SERVER && !world_has_state(w) &&
                         w->opt.replicas < 2 &&
                         (w->opt.seed + n->index) % 2 == 1;
    int rc = 0;

    for (unsigned k = 0; k < PS_KEPT_COUNT && rc == 0 && is_away; k++) {
        rc = is_taken(job, k) ? ps_buf_fetch(job->kept[k]) : 0;
    }
    if (rc == 0) {
        rc = ps_kernel_run(job);
    }
    for (unsigned k = 0; k < PS_KEPT_COUNT && is_away; k++) {
        if (is_taken(job, k)) {
            take_away(job->kept[k]);
        }
    }
    return rc;
}
