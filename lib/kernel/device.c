/* SPDX-License-Identifier: Apache-2.0 */
/* A job begins, its ranges run on compute threads, and it ends; only the thread
 * of the buffers begins and ends jobs, and changes the age of a copy. */
#include "kernel/device.h"

#include "base/alloc.h"
#include "base/str.h"
#include "kernel/cpu.h"
#include "kernel/plugin.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

_Static_assert(PS_KERNEL_KEPT == PS_KEPT_RESULT, "plugin.h has no result");

/* Failure of the device: the first thread that meets it writes the text. */
enum ps_device_failure { PS_DEVICE_WORKS, PS_DEVICE_FAILING, PS_DEVICE_FAILED };

struct ps_device {
    void *library;
    const struct ps_kernel_api *api;
    void *kernel;
    bool states_stay;
    _Atomic(uint64_t) computed;
    _Atomic(uint64_t) refused;
    _Atomic(uint64_t) failed;
    _Atomic(enum ps_device_failure) failure;
    char why[PS_KERNEL_WHY_MAX];
};

/* ------------------------------------------------------------------- module */

static int check_table(const struct ps_kernel_api *api, struct ps_str *why)
{
    if (api == NULL) {
        ps_str_add(why, "it has no symbol " PS_KERNEL_SYMBOL);
        return PS_E_UNSUPPORTED;
    }
    if (api->abi != PS_KERNEL_ABI || api->size != PS_KERNEL_SIZE) {
        ps_str_addf(why,
                    "its interface is version %u of %u bytes, not version %u "
                    "of %u bytes: install the module of this version",
                    api->abi, api->size, PS_KERNEL_ABI, PS_KERNEL_SIZE);
        return PS_E_VERSION;
    }
    return 0;
}

static int open_kernel(struct ps_device *d, uint32_t number, struct ps_str *why)
{
    char reason[PS_KERNEL_WHY_MAX] = "";
    int rc = d->api->open(number, &d->kernel, reason, sizeof(reason));

    if (rc != 0) {
        ps_str_add_visible(why, reason);
    }
    return rc;
}

int ps_device_open(const char *path, uint32_t number,
                   struct ps_device **ret_device, char *why, size_t why_cap)
{
    struct ps_device *d = ps_calloc(1, sizeof(*d));
    struct ps_str text;
    int rc = PS_E_NOENT;

    ps_str_init(&text, why, why_cap);
    if (strchr(path, '/') == NULL) {
        ps_str_add_visible(&text, path);
        ps_str_add(&text, " is no path; give the whole path of the module");
        goto free_device;
    }
    d->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (d->library == NULL) {
        ps_str_add_visible(&text, dlerror());
        goto free_device;
    }
    d->api = dlsym(d->library, PS_KERNEL_SYMBOL);
    ps_str_addf(&text, "%s: ", path);
    rc = check_table(d->api, &text);
    if (rc != 0) {
        goto close_library;
    }
    rc = open_kernel(d, number, &text);
    if (rc != 0) {
        goto close_library;
    }
    *ret_device = d;
    return 0;

close_library:
    dlclose(d->library);
free_device:
    ps_free(d);
    return rc;
}

void ps_device_close(struct ps_device *d)
{
    if (d == NULL) {
        return;
    }
    d->api->close(d->kernel);
    ps_free(d);
}

void ps_device_let_states_stay(struct ps_device *d)
{
    d->states_stay = true;
}

void ps_device_describe(const struct ps_device *d, char *text, size_t cap)
{
    text[0] = '\0';
    d->api->describe(d->kernel, text, cap);
}

void ps_device_stats(const struct ps_device *d, struct ps_device_stats *ret)
{
    ret->computed = atomic_load(&d->computed);
    ret->refused = atomic_load(&d->refused);
    ret->failed = atomic_load(&d->failed);
}

void ps_device_memory(const struct ps_device *d, struct ps_kernel_stats *ret)
{
    *ret = (struct ps_kernel_stats){0};
    d->api->stats(d->kernel, ret);
}

const char *ps_device_failure(const struct ps_device *d)
{
    return atomic_load(&d->failure) == PS_DEVICE_FAILED ? d->why : NULL;
}

bool ps_device_accepts(const struct ps_device *d, const struct ps_job *job)
{
    return atomic_load(&d->failure) == PS_DEVICE_WORKS && job->rows == NULL;
}

/* ------------------------------------------------------------------- copies */

/* Copies of buffers in a device's memory, so that weights and optimizer states
 * cross to the device once and not with each job. A copy hangs on its buffer
 * and is freed with it. The weights' copy is updated in place, and moves from
 * the buffer of the old weights to that of the new ones.
 *
 * Without ps_device_let_states_stay(), the host gets all results of a job, so that
 * a copy is never more than a saving, and a device that fails loses nothing. */

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
        return ps_job_is_half(job) ? job->master : job->weight;
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
    return d->states_stay && (k != PS_KEPT_WEIGHT || ps_job_is_half(job));
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
    if (use->copies[PS_KEPT_WEIGHT] != NULL && !ps_job_is_half(job) &&
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

/* Tells the module where the arrays' copies are. */
static void name_copies(const struct ps_device_use *use,
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

/* Runs a range on the CPU; arrays that stay on the device are changed there,
 * too. */
static int run_on_cpu(struct ps_device *d, const struct ps_job *job,
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

static void note_failure(struct ps_device *d, const char *why)
{
    enum ps_device_failure expected = PS_DEVICE_WORKS;

    atomic_fetch_add(&d->failed, 1);
    if (atomic_compare_exchange_strong(&d->failure, &expected,
                                       PS_DEVICE_FAILING)) {
        struct ps_str text;

        ps_str_init(&text, d->why, sizeof(d->why));
        ps_str_add_visible(&text, why);
        atomic_store(&d->failure, PS_DEVICE_FAILED);
    }
}

static struct ps_kernel_code code_of(const struct ps_codec *c, uint64_t count)
{
    return (struct ps_kernel_code){.bytes = ps_codec_bytes(c, count),
                                   .kept = ps_codec_kept(c, count)};
}

/* On the device as far as it can, the rest on the CPU. */
static int run_checked(struct ps_device *d, const struct ps_job *job,
                       struct ps_device_use *use, uint64_t from, uint64_t to)
{
    struct ps_kernel_range range = {
        .job = job,
        .from = from,
        .to = to,
        .code = code_of(&job->codec, job->count),
        .src_code = code_of(&job->src_codec, job->count),
        .states = ps_step_states(job->step.kind),
    };
    char why[PS_KERNEL_WHY_MAX] = "";
    uint64_t done = from;

    if (use != NULL) {
        name_copies(use, job, range.kept);
    }
    int rc = d->api->submit(d->kernel, &range, &done, why, sizeof(why));

    if (rc == 0) {
        atomic_fetch_add(&d->computed, 1);
        return 0;
    }
    if (rc == PS_E_UNSUPPORTED || rc == PS_E_NOMEM) {
        atomic_fetch_add(&d->refused, 1);
    } else {
        note_failure(d, why);
    }
    return run_on_cpu(d, job, use, done, to);
}

static int encode_one(void *d, const struct ps_job *one)
{
    return run_checked(d, one, NULL, 0, one->count);
}

int ps_device_run_range(struct ps_device *d, const struct ps_job *job,
                        struct ps_device_use *use, uint64_t from, uint64_t to)
{
    if (!ps_device_accepts(d, job)) {
        return run_on_cpu(d, job, use, from, to);
    }
    int rc = ps_kernel_check_range(job, from, to);

    if (rc != 0 || from == to) {
        return rc;
    }
    if (job->op == PS_JOB_ENCODE_EACH) {
        return ps_kernel_run_each(job, encode_one, d);
    }
    return run_checked(d, job, use, from, to);
}
