/* SPDX-License-Identifier: Apache-2.0 */
/* Map on uthash, which links its entries in order of insertion. Memory comes
 * from ps_alloc, which does not return without, so uthash's way out for that
 * case is never taken. */
#include "base/map.h"

#include "base/alloc.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define uthash_malloc(size)           ps_alloc(size)
#define uthash_free(p, size)          ps_free(p)
#define uthash_fatal(text)            abort()
/* Keys are all of one length: a mixer (MurmurHash3's finaliser) is enough and
 * faster than the default, which is made for strings. */
#define HASH_FUNCTION(key, len, hash) (hash) = mix(key)
#include <uthash.h>

struct entry {
    uint64_t key;
    void *value;
    UT_hash_handle hh;
};

struct ps_map {
    struct entry *head;
};

static unsigned mix(const void *key)
{
    uint64_t x;

    memcpy(&x, key, sizeof(x));
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    x ^= x >> 33;
    return (unsigned)x;
}

static struct entry *find(const struct ps_map *m, uint64_t key)
{
    struct entry *e;

    HASH_FIND(hh, m->head, &key, sizeof(key), e);
    return e;
}

struct ps_map *ps_map_new(void)
{
    return ps_calloc(1, sizeof(struct ps_map));
}

void ps_map_free(struct ps_map *m)
{
    if (m == NULL) {
        return;
    }
    struct entry *e = m->head;

    HASH_CLEAR(hh, m->head);
    while (e != NULL) {
        struct entry *next = e->hh.next;

        ps_free(e);
        e = next;
    }
    ps_free(m);
}

void *ps_map_get(const struct ps_map *m, uint64_t key)
{
    struct entry *e = find(m, key);

    return e == NULL ? NULL : e->value;
}

void ps_map_put(struct ps_map *m, uint64_t key, void *value)
{
    struct entry *e = ps_alloc(sizeof(*e));

    assert(value != NULL && find(m, key) == NULL);
    *e = (struct entry){.key = key, .value = value};
    HASH_ADD(hh, m->head, key, sizeof(e->key), e);
}

void *ps_map_take(struct ps_map *m, uint64_t key)
{
    struct entry *e = find(m, key);

    if (e == NULL) {
        return NULL;
    }
    void *value = e->value;

    HASH_DELETE(hh, m->head, e);
    ps_free(e);
    return value;
}

size_t ps_map_count(const struct ps_map *m)
{
    return HASH_COUNT(m->head);
}

void *ps_map_next(const struct ps_map *m, struct ps_map_cursor *c)
{
    struct entry *e = c->started ? c->next : m->head;

    c->started = 1;
    if (e == NULL) {
        c->next = NULL;
        return NULL;
    }
    c->key = e->key;
    c->next = e->hh.next;
    return e->value;
}
