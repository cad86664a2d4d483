/* SPDX-License-Identifier: Apache-2.0 */
/* A pool keeps what its source has given, so pinning, which is slow, is rare. */
#include "psworker-agent/pinned.h"

#include "base/alloc.h"
#include "kernel/share.h"

struct pinned {
    struct ps_share *share;
    struct ps_pool_source source;
};

static int get_pinned(void *ctx, size_t size, void **ret_data,
                      uint32_t *ret_tag, uint64_t *ret_offset)
{
    const struct pinned *p = ctx;
    int rc = p->source.get(p->source.ctx, size, ret_data, ret_tag, ret_offset);

    if (rc == 0) {
        ps_share_pin(p->share, *ret_data, size);
    }
    return rc;
}

static void put_pinned(void *ctx, void *data, size_t size, uint32_t tag)
{
    const struct pinned *p = ctx;

    ps_share_unpin(p->share, data);
    p->source.put(p->source.ctx, data, size, tag);
}

static void close_pinned(void *ctx)
{
    struct pinned *p = ctx;

    if (p->source.close != NULL) {
        p->source.close(p->source.ctx);
    }
    ps_free(p);
}

struct ps_pool_source pinned_source(struct ps_share *share,
                                    struct ps_pool_source source)
{
    struct pinned *p;

    if (share == NULL) {
        return source;
    }
    p = ps_calloc(1, sizeof(*p));
    *p = (struct pinned){.share = share, .source = source};
    return (struct ps_pool_source){
        .get = get_pinned, .put = put_pinned, .close = close_pinned, .ctx = p};
}
