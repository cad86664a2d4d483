/* SPDX-License-Identifier: Apache-2.0 */
/* State memory of servers: it survives their deaths, of which some happen at a
 * store into it. Everything that the process does after that store, in the same
 * step, is undone: its effects are dropped, and the memory is as it was at the
 * store. */
#include "support/world_internal.h"

#include "base/alloc.h"
#include "core/part/records.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#define STATE_BYTES ((size_t)64 << 20)

static void *map_state(void)
{
    void *p = mmap(NULL, STATE_BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    assert(p != MAP_FAILED);
    return p;
}

static void release(void *ctx, uint64_t offset, uint64_t bytes)
{
    const struct wnode *n = ctx;
    int rc = madvise(n->state.bytes + offset, bytes, MADV_DONTNEED);

    assert(rc == 0);
}

static bool is_zero(const uint8_t *page)
{
    static const uint8_t zeros[4096];

    return memcmp(page, zeros, sizeof(zeros)) == 0;
}

/* The bytes at this store are those that the next process finds. */
static void stored(void *ctx)
{
    struct wnode *n = ctx;
    struct wstate *s = &n->state;

    if (++s->stores != s->die_at) {
        return;
    }
    s->at_death = map_state();
    for (size_t i = 0; i < STATE_BYTES; i += 4096) {
        unsigned char is_there;

        if (mincore(s->bytes + i, 4096, &is_there) == 0 && is_there & 1 &&
            !is_zero(s->bytes + i)) {
            memcpy(s->at_death + i, s->bytes + i, 4096);
        }
    }
}

bool world_has_state(const struct world *w)
{
    return w->opt.keep || w->opt.faults.keep_crash > 0;
}

void world_state_begin(struct wnode *n, struct ps_server_options *o)
{
    struct ps_str why = PS_STR_ROOM(128);

    if (n->state.bytes == NULL) {
        n->state.bytes = map_state();
    }
    n->state.records = ps_records_open(
        &(struct ps_records_options){.memory = {.base = n->state.bytes,
                                                .size = STATE_BYTES,
                                                .release = release,
                                                .stored = stored,
                                                .ctx = n},
                                     .name = o->name,
                                     .cluster = o->cluster,
                                     .id = o->instance},
        &why);
    assert(n->state.records != NULL && why.len == 0);
    o->records = n->state.records;
}

void world_state_freeze(struct wnode *n)
{
    if (n->state.records != NULL) {
        ps_records_freeze(n->state.records);
    }
}

void world_state_end(struct wnode *n)
{
    ps_records_free(n->state.records);
    n->state.records = NULL;
    n->state.die_at = 0;
    if (n->state.at_death != NULL) {
        munmap(n->state.bytes, STATE_BYTES);
        n->state.bytes = n->state.at_death;
        n->state.at_death = NULL;
    }
}

void world_state_free(struct wnode *n)
{
    if (n->state.bytes != NULL) {
        munmap(n->state.bytes, STATE_BYTES);
        n->state.bytes = NULL;
    }
}

uint64_t world_state_residue(struct wnode *n)
{
    uint64_t records = 0;

    if (n->state.records == NULL) {
        return 0;
    }
    ps_pool_trim(n->pool);
    for (uint64_t gen = 0;
         (gen = ps_records_untaken_gen(n->state.records, gen)) != 0;) {
        records++;
    }
    return ps_records_bytes(n->state.records) + records;
}

void world_state_die(struct world *w, struct wnode *n)
{
    struct wevent *e = world_event(w, WE_DEATH, w->now);

    e->node = n;
    e->incarnation = n->incarnation;
    ps_effects_clear(&n->fx);
    n->wakes_at = w->now + 1; /* It does nothing until then. */
}

void world_drop_state(struct world *w, uint32_t index)
{
    struct wnode *n = &w->node[1 + index];

    assert(!n->alive);
    world_state_free(n);
}

void world_kill_server_at_store(struct world *w, uint32_t index, uint64_t nth,
                                ps_time away)
{
    struct wnode *n = &w->node[1 + index];

    assert(n->state.bytes != NULL);
    n->state.die_at = n->state.stores + nth;
    n->state.away = away;
}

uint64_t world_state_stores(const struct world *w)
{
    uint64_t stores = 0;

    for (uint32_t i = 0; i < w->node_count; i++) {
        stores += w->node[i].state.stores;
    }
    return stores;
}
