/* SPDX-License-Identifier: Apache-2.0 */
/* Hash map. Entries lie in an array in order of insertion; an index of at least
 * twice its size finds them by linear probing. A removal leaves a hole in the
 * array, closed when the array is full, and none in the index, where displaced
 * entries move back. So a look-up touches two cache lines, and insertions and
 * removals allocate nothing at a stable size. */
#include "base/map.h"

#include "base/alloc.h"

#include <assert.h>
#include <string.h>

#define ENTRIES_FIRST 8u
#define ENTRIES_MAX   (1u << 30)

struct map_entry {
    uint64_t key;
    void *value;     /* NULL: removed. */
    uint64_t serial; /* Ascending, for cursors. */
};

struct ps_map {
    struct map_entry *entries;
    uint32_t *table; /* Position in `entries` + 1; 0: free. */
    uint32_t capacity;
    uint32_t used; /* Entries, removed ones included. */
    uint32_t count;
    uint32_t mask; /* Size of the table - 1. */
    uint64_t next_serial;
};

/* MurmurHash3's finaliser. */
static uint32_t hash_u64(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    x ^= x >> 33;
    return (uint32_t)x;
}

/* Returns the key's position in the table, or the free one where it belongs. */
static uint32_t slot_of(const struct ps_map *m, uint64_t key)
{
    uint32_t at = hash_u64(key) & m->mask;

    while (m->table[at] != 0 && m->entries[m->table[at] - 1].key != key) {
        at = (at + 1) & m->mask;
    }
    return at;
}

static struct map_entry *find_entry(const struct ps_map *m, uint64_t key)
{
    uint32_t at;

    if (m->count == 0) {
        return NULL;
    }
    at = m->table[slot_of(m, key)];
    return at == 0 ? NULL : &m->entries[at - 1];
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
    ps_free(m->entries);
    ps_free(m->table);
    ps_free(m);
}

void *ps_map_get(const struct ps_map *m, uint64_t key)
{
    struct map_entry *e = find_entry(m, key);

    return e == NULL ? NULL : e->value;
}

/* Closes the holes; doubles the capacity if that frees less than half. */
static void map_grow(struct ps_map *m)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < m->used; i++) {
        if (m->entries[i].value != NULL) {
            m->entries[kept++] = m->entries[i];
        }
    }
    m->used = kept;
    if (m->capacity == 0 || kept > m->capacity / 2) {
        assert(m->capacity < ENTRIES_MAX);
        m->capacity = m->capacity == 0 ? ENTRIES_FIRST : m->capacity * 2;
        m->entries = ps_realloc(m->entries,
                                m->capacity * sizeof(m->entries[0]));
        m->mask = m->capacity * 2 - 1;
        ps_free(m->table);
        m->table = ps_calloc(m->mask + 1u, sizeof(m->table[0]));
    } else {
        memset(m->table, 0, (m->mask + 1u) * sizeof(m->table[0]));
    }
    for (uint32_t i = 0; i < kept; i++) {
        m->table[slot_of(m, m->entries[i].key)] = i + 1;
    }
}

void ps_map_put(struct ps_map *m, uint64_t key, void *value)
{
    uint32_t at;

    if (m->used == m->capacity) {
        map_grow(m);
    }
    at = slot_of(m, key);
    assert(value != NULL && m->table[at] == 0);
    m->entries[m->used] = (struct map_entry){
        .key = key, .value = value, .serial = m->next_serial++};
    m->table[at] = ++m->used;
    m->count++;
}

/* Frees a position and moves displaced entries back towards their home. */
static void free_slot(struct ps_map *m, uint32_t hole)
{
    uint32_t at = hole;

    for (;;) {
        uint32_t home;

        at = (at + 1) & m->mask;
        if (m->table[at] == 0) {
            break;
        }
        home = hash_u64(m->entries[m->table[at] - 1].key) & m->mask;
        if (((at - home) & m->mask) >= ((at - hole) & m->mask)) {
            m->table[hole] = m->table[at];
            hole = at;
        }
    }
    m->table[hole] = 0;
}

void *ps_map_remove(struct ps_map *m, uint64_t key)
{
    uint32_t at;
    uint32_t i;
    void *value;

    if (m->count == 0) {
        return NULL;
    }
    at = slot_of(m, key);
    if (m->table[at] == 0) {
        return NULL;
    }
    i = m->table[at] - 1;
    value = m->entries[i].value;
    m->entries[i].value = NULL;
    free_slot(m, at);
    m->count--;
    while (m->used > 0 && m->entries[m->used - 1].value == NULL) {
        m->used--;
    }
    return value;
}

size_t ps_map_count(const struct ps_map *m)
{
    return m->count;
}

/* Returns the index of the first entry with a serial of at least `serial`. */
static uint32_t first_entry_from(const struct ps_map *m, uint64_t serial)
{
    uint32_t from = 0;
    uint32_t to = m->used;

    while (from < to) {
        uint32_t middle = from + (to - from) / 2;

        if (m->entries[middle].serial < serial) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

void *ps_map_next(const struct ps_map *m, struct ps_map_cursor *c)
{
    uint32_t at = c->at;

    /* The entry before must still be there; else entries have moved or it was
     * removed, and the position is searched by serial. */
    if (at > m->used ||
        (at > 0 && m->entries[at - 1].serial + 1 != c->serial)) {
        at = first_entry_from(m, c->serial);
    }
    while (at < m->used && m->entries[at].value == NULL) {
        at++;
    }
    if (at == m->used) {
        c->at = at;
        c->serial = m->next_serial;
        return NULL;
    }
    c->key = m->entries[at].key;
    c->serial = m->entries[at].serial + 1;
    c->at = at + 1;
    return m->entries[at].value;
}
