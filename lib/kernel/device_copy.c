/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of buffers in a device's memory, so that weights and optimizer states
 * cross to the device once and not with each job. A copy hangs on its buffer
 * and is freed with it. The weights' copy is updated in place, and moves from
 * the buffer of the old weights to that of the new ones.
 *
 * A job begins, its ranges run on compute threads, and it ends; only the thread
 * of the buffers begins and ends jobs, and changes the age of a copy. Without
 * ps_device_let_states_stay(), the host gets all results of a job, so that a
 * copy is never more than a saving, and a device that fails loses nothing. */
#include "kernel/device_inner.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

enum copy_age {
    COPY_OLD,     /* The buffer has other bytes. */
    COPY_CURRENT, /* The buffer has the same bytes. */
    COPY_AHEAD,   /* The buffer's bytes are old. */
};

struct ps_device_copy {
    struct ps_buf_copy base;
    struct ps_device *device;
    uint64_t address;
    uint64_t bytes;
    enum copy_age age;
    bool is_in_use; /* By a job. */
    bool is_void;   /* The job's result is not for this buffer. */
};

static int fetch_copy(struct ps_buf_copy *base, struct ps_buf *b)
{
    struct ps_device_copy *c = (struct ps_device_copy *)base;
    struct ps_device *d = c->device;

    if (c->age != COPY_AHEAD) {
        return 0;
    }
    if (c->is_in_use) {
        return PS_E_BUSY;
    }
    int rc = ps_device_failure(d) != NULL
                 ? PS_E_IO
                 : d->api->download(d->kernel, c->address, b->data, b->size);

    if (rc == 0) {
        c->age = COPY_CURRENT;
    }
    return rc == 0 ? 0 : PS_E_IO;
}

static void invalidate_copy(struct ps_buf_copy *base)
{
    struct ps_device_copy *c = (struct ps_device_copy *)base;

    c->age = COPY_OLD;
    c->is_void = c->is_in_use;
}

static void free_copy(struct ps_buf_copy *base)
{
    struct ps_device_copy *c = (struct ps_device_copy *)base;

    assert(!c->is_in_use);
    c->device->api->device_free(c->device->kernel, c->address, c->bytes);
    ps_free(c);
}

static const struct ps_buf_copy_ops copy_ops = {
    .fetch = fetch_copy, .invalidate = invalidate_copy, .free = free_copy};

static struct ps_device_copy *copy_of(const struct ps_device *d,
                                      const struct ps_buf *b)
{
    struct ps_device_copy *c = (struct ps_device_copy *)b->copy;

    return c != NULL && c->base.ops == &copy_ops && c->device == d ? c : NULL;
}

static struct ps_device_copy *make_copy(struct ps_device *d, struct ps_buf *b)
{
    struct ps_device_copy *c;
    uint64_t address;

    if (b->copy != NULL || b->size == 0 ||
        d->api->device_alloc(d->kernel, b->size, &address) != 0) {
        return NULL;
    }
    c = ps_calloc(1, sizeof(*c));
    c->base.ops = &copy_ops;
    c->device = d;
    c->address = address;
    c->bytes = b->size;
    b->copy = &c->base;
    return c;
}

static bool has_half_weights(const struct ps_job *job)
{
    return job->storage_dtype != PS_DTYPE_FLOAT32;
}

/* NULL: the job does not use the state. */
static const void *state_of(const struct ps_job *job, unsigned i)
{
    if (job->op == PS_JOB_SGD) {
        return i == 0 && job->sgd.momentum != 0 ? job->state : NULL;
    }
    return i < ps_step_states(job->step.kind) ? job->states[i] : NULL;
}

static const void *array_of(const struct ps_job *job, enum ps_kept k)
{
    switch (k) {
    case PS_KEPT_WEIGHT:
        return has_half_weights(job) ? job->master : job->weight;
    case PS_KEPT_STATE_0:
    case PS_KEPT_STATE_1:
    case PS_KEPT_STATE_2:
        return state_of(job, k - PS_KEPT_STATE_0);
    case PS_KEPT_RESIDUAL:
        return job->residual;
    case PS_KEPT_RESULT:
        break;
    }
    return job->dst;
}

/* True if the job has the array, and its buffer nothing else. */
static bool is_whole(const struct ps_job *job, enum ps_kept k)
{
    const struct ps_buf *b = job->kept[k];

    return b != NULL && b->data == array_of(job, k) &&
           b->size == job->count * ps_dtype_size(job->dtype);
}

/* True if jobs update the array on the device alone: the weights are for the
 * host, unless there is a 16-bit form of them. */
static bool stays(const struct ps_device *d, const struct ps_job *job,
                  unsigned k)
{
    return d->states_stay && (k != PS_KEPT_WEIGHT || has_half_weights(job));
}

static bool is_changed(const struct ps_job *job, unsigned k)
{
    return k != PS_KEPT_WEIGHT || !job->direction_only;
}

/* Finds or makes the copy for a job. *ret_copy NULL: the job uses none. */
static int take_copy(struct ps_device *d, const struct ps_job *job,
                     enum ps_kept k, struct ps_device_copy **ret_copy)
{
    struct ps_device_copy *c;

    *ret_copy = NULL;
    if (!is_whole(job, k)) {
        return 0;
    }
    c = copy_of(d, job->kept[k]);
    c = c != NULL ? c : make_copy(d, job->kept[k]);
    if (c == NULL) {
        return 0;
    }
    if (c->is_in_use && stays(d, job, k)) {
        return PS_E_BUSY;
    }
    if (c->is_in_use) {
        /* A job whose result nobody awaits any more is still at work. */
        c->is_void = true;
        return 0;
    }
    c->is_in_use = true;
    *ret_copy = c;
    return 0;
}

int ps_device_begin(struct ps_device *d, const struct ps_job *job,
                    struct ps_device_use *use)
{
    int rc = 0;

    *use = (struct ps_device_use){0};
    if (!ps_device_accepts(d, job)) {
        return ps_device_fetch(job);
    }
    for (unsigned k = 0; k < PS_KEPT_RESULT && rc == 0; k++) {
        rc = take_copy(d, job, (enum ps_kept)k, &use->copies[k]);
    }
    if (rc != 0) {
        for (unsigned k = 0; k < PS_KEPT_RESULT; k++) {
            if (use->copies[k] != NULL) {
                use->copies[k]->is_in_use = false;
                use->copies[k] = NULL;
            }
        }
    }
    return rc;
}

int ps_device_fetch(const struct ps_job *job)
{
    for (unsigned k = 0; k < PS_KEPT_RESULT; k++) {
        struct ps_buf *b = job->kept[k];
        int rc = b != NULL ? ps_buf_fetch(b) : 0;

        if (rc != 0) {
            return rc;
        }
    }
    for (unsigned k = 0; k < PS_KEPT_RESULT; k++) {
        if (job->kept[k] != NULL && is_changed(job, k)) {
            ps_buf_invalidate_copy(job->kept[k]);
        }
    }
    return 0;
}

static enum copy_age age_after(const struct ps_job *job,
                               const struct ps_device_use *use, unsigned k,
                               int rc)
{
    const struct ps_device_copy *c = use->copies[k];
    const bool is_spoiled = atomic_load(&use->is_spoiled);

    if (c->is_void) {
        return COPY_OLD;
    }
    if (!is_changed(job, k) && c->age != COPY_OLD) {
        return c->age;
    }
    if (is_changed(job, k) && stays(c->device, job, k)) {
        /* Also if the job has failed: the host has no part of the result. */
        return COPY_AHEAD;
    }
    return rc == 0 && !is_spoiled ? COPY_CURRENT : COPY_OLD;
}

/* Moves the copy of the weights to the buffer of the result. */
static void move_copy(const struct ps_job *job)
{
    struct ps_buf *from = job->kept[PS_KEPT_WEIGHT];
    struct ps_buf *to = job->kept[PS_KEPT_RESULT];

    if (!is_whole(job, PS_KEPT_RESULT) || to == from || to->copy != NULL) {
        ps_buf_invalidate_copy(from);
        return;
    }
    to->copy = from->copy;
    from->copy = NULL;
}

void ps_device_end(const struct ps_job *job, struct ps_device_use *use, int rc)
{
    for (unsigned k = 0; k < PS_KEPT_RESULT; k++) {
        struct ps_device_copy *c = use->copies[k];

        if (c != NULL) {
            c->age = age_after(job, use, k, rc);
            c->is_in_use = false;
            c->is_void = false;
        }
    }
    if (use->copies[PS_KEPT_WEIGHT] != NULL && !has_half_weights(job) &&
        is_changed(job, PS_KEPT_WEIGHT)) {
        move_copy(job);
    }
}

bool ps_device_has_copies(const struct ps_device *d, const struct ps_job *job)
{
    bool has = false;

    for (unsigned k = 0; k < PS_KEPT_RESULT && !has; k++) {
        has = job->kept[k] != NULL && copy_of(d, job->kept[k]) != NULL;
    }
    return has && ps_device_accepts(d, job);
}

/* ------------------------------------------------------------------- ranges */

void ps_device_name_copies(const struct ps_device_use *use,
                           const struct ps_job *job,
                           struct ps_kernel_kept kept[PS_KERNEL_KEPT])
{
    for (unsigned k = 0; k < PS_KEPT_RESULT; k++) {
        const struct ps_device_copy *c = use->copies[k];

        if (c != NULL) {
            kept[k] = (struct ps_kernel_kept){
                .address = c->address,
                .is_current = c->age != COPY_OLD,
                .stays = stays(c->device, job, k)};
        }
    }
}

/* The part of a copied array that a range has. */
struct part {
    uint64_t address;
    uint8_t *host;
    uint64_t bytes;
};

static struct part part_of(const struct ps_job *job,
                           const struct ps_device_copy *c, unsigned k,
                           uint64_t from, uint64_t to)
{
    const struct ps_buf *b = job->kept[k];
    const uint64_t size = b->size / job->count;

    return (struct part){.address = c->address + from * size,
                         .host = b->data + from * size,
                         .bytes = (to - from) * size};
}

int ps_device_run_on_cpu(struct ps_device *d, const struct ps_job *job,
                         struct ps_device_use *use, uint64_t from, uint64_t to)
{
    int rc = 0;

    if (use == NULL) {
        return ps_kernel_run_range(job, from, to);
    }
    atomic_store(&use->is_spoiled, true);
    for (unsigned k = 0; k < PS_KEPT_RESULT && rc == 0; k++) {
        const struct ps_device_copy *c = use->copies[k];

        if (c != NULL && stays(d, job, k) && c->age != COPY_OLD) {
            const struct part p = part_of(job, c, k, from, to);

            rc = d->api->download(d->kernel, p.address, p.host, p.bytes);
        }
    }
    if (rc == 0) {
        rc = ps_kernel_run_range(job, from, to);
    }
    for (unsigned k = 0; k < PS_KEPT_RESULT && rc == 0; k++) {
        const struct ps_device_copy *c = use->copies[k];

        if (c != NULL && stays(d, job, k)) {
            const struct part p = part_of(job, c, k, from, to);

            rc = d->api->upload(d->kernel, p.address, p.host, p.bytes);
        }
    }
    return rc;
}
