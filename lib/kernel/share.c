/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/share.h"

#include "base/alloc.h"
#include "base/str.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

struct ps_share {
    const struct ps_share_api *api;
    void *share;
    pthread_mutex_t lock;
    char failure[PS_SHARE_WHY_MAX]; /* Guarded by the lock. */
};

/* Record of a buffer in memory of a device: `device` of the buffer. */
struct imported {
    struct ps_share *share;
    void *memory;
};

static int check_table(const struct ps_share_api *api, struct ps_str *why)
{
    if (api == NULL) {
        ps_str_add(why, "it has no symbol " PS_SHARE_SYMBOL);
        return PS_E_UNSUPPORTED;
    }
    if (api->abi != PS_SHARE_ABI || api->size != sizeof(*api)) {
        ps_str_addf(why,
                    "its interface to memory of GPUs is version %u of %u "
                    "bytes, not version %u of %u bytes: install the module of "
                    "this version",
                    api->abi, api->size, PS_SHARE_ABI, (unsigned)sizeof(*api));
        return PS_E_VERSION;
    }
    return 0;
}

int ps_share_open(const char *path, struct ps_share **ret_share, char *why)
{
    char reason[PS_SHARE_WHY_MAX] = "";
    struct ps_share *s;
    struct ps_str text;
    void *library;
    int rc;

    ps_str_init(&text, why, PS_SHARE_WHY_MAX);
    if (strchr(path, '/') == NULL) {
        ps_str_add_visible(&text, path);
        ps_str_add(&text, " is no path; give the whole path of the module");
        return PS_E_NOENT;
    }
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        ps_str_add_visible(&text, dlerror());
        return PS_E_NOENT;
    }
    s = ps_calloc(1, sizeof(*s));
    s->api = dlsym(library, PS_SHARE_SYMBOL);
    ps_str_addf(&text, "%s: ", path);
    rc = check_table(s->api, &text);
    if (rc == 0) {
        rc = s->api->open(&s->share, reason);
        ps_str_add_visible(&text, reason);
    }
    if (rc != 0) {
        ps_free(s);
        dlclose(library);
        return rc;
    }
    pthread_mutex_init(&s->lock, NULL);
    /* The library stays loaded: those of CUDA cannot be unloaded. */
    *ret_share = s;
    return 0;
}

void ps_share_close(struct ps_share *s)
{
    if (s == NULL) {
        return;
    }
    s->api->close(s->share);
    pthread_mutex_destroy(&s->lock);
    ps_free(s);
}

void ps_share_describe(const struct ps_share *s, char *text, size_t cap)
{
    text[0] = '\0';
    s->api->describe(s->share, text, cap);
}

void ps_share_stats(const struct ps_share *s, struct ps_share_stats *ret)
{
    s->api->stats(s->share, ret);
}

void ps_share_failure(struct ps_share *s, char *why)
{
    pthread_mutex_lock(&s->lock);
    memcpy(why, s->failure, sizeof(s->failure));
    pthread_mutex_unlock(&s->lock);
}

static void note_failure(struct ps_share *s, const char *why)
{
    struct ps_str text;

    pthread_mutex_lock(&s->lock);
    ps_str_init(&text, s->failure, sizeof(s->failure));
    ps_str_add_visible(&text, why);
    pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------ memory */

static void release_memory(void *ctx)
{
    struct imported *m = ctx;

    m->share->api->release(m->share->share, m->memory);
    ps_free(m);
}

int ps_share_import(struct ps_share *s, const struct ps_share_source *from,
                    struct ps_buf **ret_buf, char *why)
{
    void *memory;
    struct imported *m;
    int rc = s->api->import(s->share, from, &memory, why);

    if (rc != 0) {
        return rc;
    }
    m = ps_calloc(1, sizeof(*m));
    *m = (struct imported){.share = s, .memory = memory};
    *ret_buf = ps_buf_wrap((void *)(uintptr_t)s->api->address(memory),
                           from->bytes, release_memory, m);
    (*ret_buf)->device = m;
    return 0;
}

int ps_share_event_import(struct ps_share *s, const uint8_t *uuid,
                          const uint8_t *handle, void **ret_event, char *why)
{
    return s->api->import_event(s->share, uuid, handle, ret_event, why);
}

void ps_share_event_release(struct ps_share *s, void *event)
{
    s->api->release_event(s->share, event);
}

bool ps_share_event_is_over(struct ps_share *s, void *event)
{
    return s->api->is_over(s->share, event) != 0;
}

void ps_share_pin(struct ps_share *s, void *data, uint64_t bytes)
{
    if (s->api->pin(s->share, data, bytes) != 0) {
        return; /* Copies are slower, that is all. */
    }
}

void ps_share_unpin(struct ps_share *s, void *data)
{
    s->api->unpin(s->share, data);
}

/* -------------------------------------------------------------------- jobs */

/* Place of an address that lies in a buffer. */
static struct ps_share_place place_in(const struct ps_buf *buf,
                                      const uint8_t *at)
{
    const struct imported *m = buf->device;

    return (struct ps_share_place){
        .memory = m->memory,
        .offset = (uintptr_t)at - (uintptr_t)m->share->api->address(m->memory),
    };
}

static bool may_fold(const struct ps_job *job, struct ps_buf *const *bufs)
{
    if (job->op != PS_JOB_SUM || job->rows != NULL ||
        job->src_count > PS_SHARE_SOURCES ||
        job->src_codec.kind != PS_CODEC_NONE) {
        return false;
    }
    for (uint32_t i = 0; i < job->src_count; i++) {
        if (bufs[i]->device == NULL || (job->level != NULL && job->level[i])) {
            return false;
        }
    }
    return true;
}

/* Address of element `from` of a source. */
static const uint8_t *source_at(const struct ps_job *job, uint32_t i,
                                uint64_t from)
{
    return (const uint8_t *)job->src[i] + from * ps_dtype_size(job->dtype);
}

static int fold_range(struct ps_share *s, const struct ps_job *job,
                      struct ps_buf *const *bufs, uint32_t turn, uint64_t from,
                      uint64_t to)
{
    struct ps_share_place places[PS_SHARE_SOURCES];
    char why[PS_SHARE_WHY_MAX] = "";
    int rc;

    for (uint32_t i = 0; i < job->src_count; i++) {
        places[i] = place_in(bufs[i], source_at(job, i, from));
    }
    rc = s->api->fold(
        s->share,
        &(struct ps_share_fold){
            .dtype = (uint32_t)job->dtype,
            .fold = (uint32_t)job->fold,
            .src_count = job->src_count,
            .turn = turn,
            .count = to - from,
            .divide_by = job->divide_by,
            .src = places,
            .dst = (uint8_t *)job->dst + from * ps_dtype_size(job->dtype),
        },
        why);
    if (rc != 0) {
        note_failure(s, why);
    }
    return rc;
}

/* Computes from copies of the sources that devices have. */
static int run_copied(struct ps_share *s, const struct ps_job *job,
                      struct ps_buf *const *bufs, uint64_t from, uint64_t to)
{
    const uint64_t size = ps_dtype_size(job->dtype);
    const uint64_t bytes = (to - from) * size;
    const void **src = ps_calloc(job->src_count, sizeof(*src));
    uint8_t *copies = ps_try_alloc(job->src_count * bytes + 1);
    char why[PS_SHARE_WHY_MAX] = "";
    struct ps_job copied = *job;
    int rc = copies == NULL ? PS_E_NOMEM : 0;

    for (uint32_t i = 0; i < job->src_count && rc == 0; i++) {
        src[i] = job->src[i];
        if (bufs[i]->device != NULL) {
            const struct ps_share_place place = place_in(
                bufs[i], source_at(job, i, from));
            uint8_t *copy = copies + i * bytes;

            rc = s->api->fetch(s->share, &place, copy, bytes, why);
            /* Elements before `from` are not read. */
            src[i] = (const void *)((uintptr_t)copy - from * size);
        }
    }
    if (rc != 0) {
        note_failure(s, why);
    } else {
        copied.src = src;
        rc = ps_kernel_run_range(&copied, from, to);
    }
    ps_free(copies);
    ps_free(src);
    return rc;
}

int ps_share_run_range(struct ps_share *s, const struct ps_job *job,
                       struct ps_buf *const *bufs, uint32_t turn, uint64_t from,
                       uint64_t to)
{
    if (may_fold(job, bufs) && fold_range(s, job, bufs, turn, from, to) == 0) {
        return 0;
    }
    return run_copied(s, job, bufs, from, to);
}

int ps_share_deliver(struct ps_share *s, const void *from, uint64_t offset,
                     uint64_t bytes, const struct ps_slice *to, uint32_t count)
{
    struct ps_share_place places[PS_SHARE_PLACES_MAX];
    char why[PS_SHARE_WHY_MAX] = "";
    int rc = 0;

    for (uint32_t done = 0; done < count && rc == 0;) {
        uint32_t n = count - done < PS_SHARE_PLACES_MAX ? count - done
                                                        : PS_SHARE_PLACES_MAX;

        for (uint32_t i = 0; i < n; i++) {
            const struct ps_slice *t = &to[done + i];

            places[i] = place_in(t->buf, ps_slice_data(t) + offset);
        }
        rc = s->api->deliver(s->share, (const uint8_t *)from + offset, bytes,
                             places, n, why);
        done += n;
    }
    if (rc != 0) {
        note_failure(s, why);
    }
    return rc;
}
