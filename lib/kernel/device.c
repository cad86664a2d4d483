/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/device.h"

#include "base/alloc.h"
#include "base/str.h"
#include "kernel/cpu.h"
#include "kernel/device_inner.h"

#include <assert.h>
#include <dlfcn.h>
#include <string.h>

_Static_assert(PS_KERNEL_KEPT == PS_KEPT_RESULT, "plugin.h has no result");
_Static_assert(sizeof(struct ps_square_sum) ==
                   (PS_SQUARE_SUM_DIGITS + 1) * sizeof(uint64_t),
               "plugin.h passes square sums as words");

static int check_table(const struct ps_kernel_api *api, struct ps_str *why)
{
    if (api == NULL) {
        ps_str_add(why, "it has no symbol " PS_KERNEL_SYMBOL);
        return PS_E_UNSUPPORTED;
    }
    if (api->abi != PS_KERNEL_ABI || api->size != sizeof(*api)) {
        ps_str_addf(why,
                    "its interface is version %u of %u bytes, not version %u "
                    "of %u bytes: install the module of this version",
                    api->abi, api->size, PS_KERNEL_ABI, (unsigned)sizeof(*api));
        return PS_E_VERSION;
    }
    return 0;
}

static int open_kernel(struct ps_device *d, uint32_t number, struct ps_str *why)
{
    const struct ps_kernel_options opt = {.size = sizeof(opt),
                                          .device = number};
    char reason[PS_KERNEL_WHY_MAX] = "";
    int rc = d->api->open(&opt, &d->kernel, reason, sizeof(reason));

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

static struct ps_kernel_codec codec_of(const struct ps_codec *c,
                                       uint64_t stream, uint64_t count)
{
    return (struct ps_kernel_codec){
        .kind = (uint32_t)c->kind,
        .feedback = c->feedback,
        .scaling = c->scaling,
        .l2 = c->l2,
        .threshold = c->threshold,
        .momentum = c->momentum,
        .k = c->k,
        .seed = c->seed,
        .stream = stream,
        .kept = ps_codec_kept(c, count),
        .bytes = ps_codec_bytes(c, count),
        .levels = c->levels,
    };
}

static struct ps_kernel_sgd sgd_of(const struct ps_sgd *s)
{
    return (struct ps_kernel_sgd){.lr = s->lr,
                                  .momentum = s->momentum,
                                  .wd = s->wd,
                                  .rescale = s->rescale,
                                  .clip = s->clip};
}

static struct ps_kernel_step step_of(const struct ps_step *s)
{
    return (struct ps_kernel_step){
        .kind = (uint32_t)s->kind,
        .states = ps_step_states(s->kind),
        .lr = s->lr,
        .wd = s->wd,
        .rescale = s->rescale,
        .clip = s->clip,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .epsilon = s->epsilon,
        .k = {s->k[0], s->k[1], s->k[2]},
        .noise_key = s->noise.key,
        .noise_step = s->noise.step,
        .first_index = s->first_index,
    };
}

static struct ps_kernel_job plain_job(const struct ps_job *job, uint64_t from,
                                      uint64_t to)
{
    return (struct ps_kernel_job){
        .op = (uint32_t)job->op,
        .dtype = (uint32_t)job->dtype,
        .fold = (uint32_t)job->fold,
        .storage_dtype = (uint32_t)job->storage_dtype,
        .src_is_float32 = job->src_is_float32,
        .direction_only = job->direction_only,
        .src_count = job->src_count,
        .count = job->count,
        .from = from,
        .to = to,
        .divide_by = job->divide_by,
        .src = job->src,
        .level = job->level,
        .dst = job->dst,
        .weight = job->weight,
        .master = job->master,
        .state = job->state,
        .states = {job->states[0], job->states[1], job->states[2]},
        .square_sum = (uint64_t *)job->square_sum,
        .weight_square_sum = (uint64_t *)job->weight_square_sum,
        .sgd = sgd_of(&job->sgd),
        .step = step_of(&job->step),
        .src_codec = codec_of(&job->src_codec, job->src_rng_stream, job->count),
        .codec = codec_of(&job->codec, job->rng_stream, job->count),
        .residual = job->residual,
        .moment = job->moment,
        .prior.residual = job->prior.residual,
        .prior.moment = job->prior.moment,
        .decoded = job->decoded,
    };
}

/* On the device as far as it can, the rest on the CPU. */
static int run_checked(struct ps_device *d, const struct ps_job *job,
                       struct ps_device_use *use, uint64_t from, uint64_t to)
{
    struct ps_kernel_job plain = plain_job(job, from, to);
    char why[PS_KERNEL_WHY_MAX] = "";
    uint64_t done = from;

    if (use != NULL) {
        ps_device_name_copies(use, job, plain.kept);
    }
    int rc = d->api->submit(d->kernel, &plain, &done, why, sizeof(why));

    if (rc == 0) {
        atomic_fetch_add(&d->computed, 1);
        return 0;
    }
    if (rc == PS_E_UNSUPPORTED || rc == PS_E_NOMEM) {
        atomic_fetch_add(&d->refused, 1);
    } else {
        note_failure(d, why);
    }
    return ps_device_run_on_cpu(d, job, use, done, to);
}

/* Encodes each source alone. */
static int run_each(struct ps_device *d, const struct ps_job *job)
{
    char *dst = job->dst;
    int rc = 0;

    for (uint32_t i = 0; i < job->src_count && rc == 0; i++) {
        struct ps_job one;

        ps_kernel_job_of_source(job, i, dst, &one);
        if (job->src[i] == NULL) {
            ps_kernel_keep_prior(&one);
            continue;
        }
        rc = run_checked(d, &one, NULL, 0, one.count);
        dst += ps_codec_bytes(&job->codec, job->count);
    }
    return rc;
}

int ps_device_run_range(struct ps_device *d, const struct ps_job *job,
                        struct ps_device_use *use, uint64_t from, uint64_t to)
{
    if (!ps_device_accepts(d, job)) {
        return ps_device_run_on_cpu(d, job, use, from, to);
    }
    int rc = ps_kernel_check_range(job, from, to);

    if (rc != 0 || from == to) {
        return rc;
    }
    if (job->op == PS_JOB_ENCODE_EACH) {
        return run_each(d, job);
    }
    return run_checked(d, job, use, from, to);
}
