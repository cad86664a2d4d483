/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas, the blocks in them, and registered memory of the caller. The agent maps
 * the whole file in which such memory lies, once, as a region; a buffer is a block
 * of it. */
#include "client/shm.h"
#include "client/grow.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_check.h"
#include "base/num.h"

/* Pages are allocated when they are touched, so a large arena costs nothing
 * until it is used. Doubling sizes keeps the number of descriptors
 * logarithmic. */
#define ARENA_FIRST (size_t)(16u * 1024 * 1024)
#define ARENA_MAX   (size_t)(256u * 1024 * 1024)
#define SIZE_LIMIT  ((size_t)1 << 46)
/* Blocks searched linearly from search_hint. */
#define STEPS_MAX   8u
/* Freed blocks of at least this size return their pages to the kernel. */
#define REMOVE_MIN  (size_t)(1024u * 1024)

/* Regions of files; further files are copied. Agents allow a session 1024
 * regions by default. */
#define FILES_MAX   128u

struct ps_shm_arena {
    uint8_t *data;
    size_t size;
    int fd; /* Kept for the next agent. */
    uint32_t region;
    bool keeps_pages;             /* See ps_shm_keep_pages(). */
    uint32_t used;                /* Blocks in use. */
    struct ps_shm_block **blocks; /* Sorted by offset, without gaps. */
    size_t count;
    size_t cap;
    size_t first_free;  /* No block with a lower index is free. */
    size_t search_hint; /* Index of the block found last. */
};

/* -------------------------------------------------------------- descriptors */

int ps_shm_make(size_t size, void **ret_data, int *ret_fd)
{
    void *data = MAP_FAILED;
    int fd = ps_file_memory("pskv");
    int rc;

    if (fd < 0) {
        return ps_err_from_errno(errno);
    }
    if (ftruncate(fd, (off_t)size) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ==
            0) {
        data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (data == MAP_FAILED) {
        rc = ps_err_from_errno(errno);
        close(fd);
        return rc;
    }
    *ret_data = data;
    *ret_fd = fd;
    return 0;
}

int ps_shm_map_foreign(int fd, uint64_t size, const void **ret_data)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    void *data;

    /* A file that could shrink would kill this process on a read. */
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &st) != 0 ||
        size == 0 || size > SIZE_LIMIT || (uint64_t)st.st_size != size) {
        return PS_E_PROTO;
    }
    data = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        return ps_err_from_errno(errno);
    }
    madvise(data, (size_t)size, MADV_HUGEPAGE);
    *ret_data = data;
    return 0;
}

void ps_shm_unmap_foreign(const void *data, uint64_t size)
{
    munmap((void *)(uintptr_t)data, (size_t)size);
}

/* ------------------------------------------------- registered memory: files */

struct file {
    uint64_t device;
    uint64_t inode;
    uint64_t size;
    int fd; /* Kept for the next agent. */
    uint32_t region;
    uint32_t uses; /* Buffers in it; 0: free entry. */
};

struct buffer {
    struct ps_shm_block block; /* First: blocks are buffers. */
    struct file *file;         /* NULL: operations copy it. */
};

struct ps_shm_buffers {
    struct buffer **list; /* Sorted by address. */
    size_t count;
    size_t cap;
    struct file files[FILES_MAX];
};

static struct file *find_file(struct ps_shm_buffers *t,
                              const struct ps_shm_mapping *m)
{
    struct file *unused = NULL;

    for (size_t i = 0; i < FILES_MAX; i++) {
        struct file *f = &t->files[i];

        if (f->uses == 0) {
            unused = f;
        } else if (f->device == m->device && f->inode == m->inode) {
            return f;
        }
    }
    return unused;
}

/* The file, announced; takes over its descriptor. */
static int obtain_file(struct ps_shm *s, const struct ps_shm_mapping *m,
                       struct file **ret_file)
{
    struct file *f = find_file(s->buffers, m);
    int rc;

    if (f == NULL) {
        return PS_E_FULL;
    }
    if (f->uses > 0) {
        close(m->fd);
        f->uses++;
        *ret_file = f;
        return 0;
    }
    rc = s->hooks.on_made(s->hooks.ctx, s->next_region, m->fd, m->file_size);
    if (rc != 0) {
        return rc;
    }
    *f = (struct file){.device = m->device,
                       .inode = m->inode,
                       .size = m->file_size,
                       .fd = m->fd,
                       .region = s->next_region++,
                       .uses = 1};
    *ret_file = f;
    return 0;
}

static void release_file(struct ps_shm *s, struct file *f)
{
    if (--f->uses == 0) {
        s->hooks.on_freed(s->hooks.ctx, f->region);
        close(f->fd);
    }
}

static int ps_shm_announce_buffers(const struct ps_shm *s)
{
    int rc = 0;

    for (size_t i = 0; s->buffers != NULL && rc == 0 && i < FILES_MAX; i++) {
        const struct file *f = &s->buffers->files[i];

        if (f->uses > 0) {
            rc = s->hooks.on_made(s->hooks.ctx, f->region, f->fd, f->size);
        }
    }
    return rc;
}

/* ----------------------------------------------- registered memory: buffers */

static const uint8_t *data_of(const struct ps_shm_buffers *t, size_t at)
{
    return t->list[at]->block.data;
}

/* Index of the first buffer that ends behind `at`. */
static size_t index_of(const struct ps_shm_buffers *t, const uint8_t *at)
{
    size_t low = 0;
    size_t high = t->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (data_of(t, mid) + t->list[mid]->block.size <= at) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* As ps_shm_find(), in registered buffers. */
static struct ps_shm_block *ps_shm_find_buffer(const struct ps_shm *s,
                                               const void *data, size_t size)
{
    const struct ps_shm_buffers *t = s->buffers;
    const uint8_t *at = data;
    size_t i = index_of(t, at);
    struct buffer *b;

    if (i == t->count) {
        return NULL;
    }
    b = t->list[i];
    return b->file != NULL && data_of(t, i) <= at &&
                   size <= b->block.size - (size_t)(at - data_of(t, i))
               ? &b->block
               : NULL;
}

struct ps_shm_block *ps_shm_registered(const struct ps_shm *s, const void *data)
{
    const struct ps_shm_buffers *t = s->buffers;
    size_t i;

    if (t == NULL) {
        return NULL;
    }
    i = index_of(t, data);
    return i < t->count && t->list[i]->block.data == data ? &t->list[i]->block
                                                          : NULL;
}

static int reserve_buffer(struct ps_shm *s)
{
    struct ps_shm_buffers *t = s->buffers;

    if (t == NULL) {
        t = calloc(1, sizeof(*t));
        if (t == NULL) {
            return PS_E_NOMEM;
        }
        s->buffers = t;
    }
    return client_grow(&t->list, t->count, &t->cap, sizeof(struct buffer *));
}

int ps_shm_register(struct ps_shm *s, void *data, size_t size,
                    const struct ps_shm_mapping *m)
{
    const uint8_t *at = data;
    struct ps_shm_buffers *t;
    struct file *file = NULL;
    struct buffer *new;
    size_t i;
    int rc = reserve_buffer(s);

    if (rc != 0) {
        return rc;
    }
    t = s->buffers;
    i = index_of(t, at);
    if (i < t->count && data_of(t, i) < at + size) {
        return PS_E_EXIST;
    }
    new = calloc(1, sizeof(*new));
    if (new == NULL) {
        return PS_E_NOMEM;
    }
    if (m != NULL) {
        rc = obtain_file(s, m, &file);
    }
    if (rc != 0) {
        free(new);
        return rc;
    }
    new->block = (struct ps_shm_block){.data = data, .size = size, .used = 1};
    if (file != NULL) {
        new->file = file;
        new->block.region = file->region;
        new->block.offset = m->offset;
    }
    memmove(t->list + i + 1, t->list + i,
            (t->count - i) * sizeof(struct buffer *));
    t->list[i] = new;
    t->count++;
    return 0;
}

void ps_shm_unregister(struct ps_shm *s, struct ps_shm_block *b)
{
    struct ps_shm_buffers *t = s->buffers;
    struct buffer *gone = (struct buffer *)b;
    size_t i = index_of(t, gone->block.data);

    memmove(t->list + i, t->list + i + 1,
            (t->count - i - 1) * sizeof(struct buffer *));
    t->count--;
    if (gone->file != NULL) {
        release_file(s, gone->file);
    }
    free(gone);
}

static void ps_shm_free_buffers(struct ps_shm *s)
{
    struct ps_shm_buffers *t = s->buffers;

    for (size_t i = 0; t != NULL && i < t->count; i++) {
        if (t->list[i]->file != NULL && --t->list[i]->file->uses == 0) {
            close(t->list[i]->file->fd);
        }
        free(t->list[i]);
    }
    if (t != NULL) {
        free(t->list);
    }
    free(t);
    s->buffers = NULL;
}

/* ------------------------------------------------------------------- blocks */

static int insert_block(struct ps_shm_arena *a, size_t at, size_t offset,
                        size_t size)
{
    struct ps_shm_block *b;
    int rc = client_grow(&a->blocks, a->count, &a->cap,
                         sizeof(struct ps_shm_block *));

    if (rc != 0) {
        return rc;
    }
    b = malloc(sizeof(*b));
    if (b == NULL) {
        return PS_E_NOMEM;
    }
    *b = (struct ps_shm_block){.arena = a,
                               .data = a->data + offset,
                               .offset = offset,
                               .size = size,
                               .region = a->region};
    memmove(a->blocks + at + 1, a->blocks + at,
            (a->count - at) * sizeof(struct ps_shm_block *));
    a->blocks[at] = b;
    a->count++;
    return 0;
}

static void remove_block(struct ps_shm_arena *a, size_t at)
{
    free(a->blocks[at]);
    a->count--;
    memmove(a->blocks + at, a->blocks + at + 1,
            (a->count - at) * sizeof(struct ps_shm_block *));
}

/* Index of the last block that begins at or before `offset`. */
static size_t block_index_of(struct ps_shm_arena *a, size_t offset)
{
    size_t low = 0;
    size_t high = a->count;
    size_t at = a->search_hint;

    /* A program mostly uses its arrays in the order of their allocation. */
    if (at < a->count && a->blocks[at]->offset <= offset) {
        size_t end = ps_min_u64(a->count, at + STEPS_MAX);

        while (at + 1 < end && a->blocks[at + 1]->offset <= offset) {
            at++;
        }
        if (at + 1 < end || end == a->count) {
            a->search_hint = at;
            return at;
        }
    }
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;

        if (a->blocks[mid]->offset <= offset) {
            low = mid;
        } else {
            high = mid;
        }
    }
    a->search_hint = low;
    return low;
}

/* First fit. PS_E_AGAIN: no free block is large enough. */
static int reserve_in_arena(struct ps_shm_arena *a, size_t size,
                            struct ps_shm_block **ret_block)
{
    bool free_seen = false;

    for (size_t i = a->first_free; i < a->count; i++) {
        struct ps_shm_block *b = a->blocks[i];
        int rc;

        if (b->used != 0) {
            continue;
        }
        if (!free_seen) {
            a->first_free = i;
            free_seen = true;
        }
        if (b->size < size) {
            continue;
        }
        if (b->size > size) {
            rc = insert_block(a, i + 1, b->offset + size, b->size - size);
            if (rc != 0) {
                return rc;
            }
            b->size = size;
        }
        b->used = 1;
        a->used++;
        *ret_block = b;
        return 0;
    }
    if (!free_seen) {
        a->first_free = a->count;
    }
    return PS_E_AGAIN;
}

/* ------------------------------------------------------------------- arenas */

void ps_shm_init(struct ps_shm *s, const struct ps_shm_hooks *hooks)
{
    *s = (struct ps_shm){
        .next_size = ARENA_FIRST, .next_region = 1, .hooks = *hooks};
}

static void free_arena(struct ps_shm_arena *a)
{
    for (size_t i = 0; i < a->count; i++) {
        free(a->blocks[i]);
    }
    free(a->blocks);
    if (a->data != NULL) {
        munmap(a->data, a->size);
    }
    if (a->fd >= 0) {
        close(a->fd);
    }
    free(a);
}

void ps_shm_fini(struct ps_shm *s)
{
    for (size_t i = 0; i < s->count; i++) {
        free_arena(s->arenas[i]);
    }
    free(s->arenas);
    s->arenas = NULL;
    s->count = 0;
    ps_shm_free_buffers(s);
}

static void insert_arena(struct ps_shm *s, struct ps_shm_arena *a)
{
    size_t at = 0;

    while (at < s->count && s->arenas[at]->data < a->data) {
        at++;
    }
    memmove(s->arenas + at + 1, s->arenas + at,
            (s->count - at) * sizeof(struct ps_shm_arena *));
    s->arenas[at] = a;
    s->count++;
}

static int announce_arena(const struct ps_shm *s, const struct ps_shm_arena *a)
{
    return s->hooks.on_made(s->hooks.ctx, a->region, a->fd, a->size);
}

int ps_shm_announce_all(struct ps_shm *s)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < s->count; i++) {
        rc = announce_arena(s, s->arenas[i]);
    }
    return rc != 0 ? rc : ps_shm_announce_buffers(s);
}

static int new_arena(struct ps_shm *s, size_t least,
                     struct ps_shm_arena **ret_arena)
{
    struct ps_shm_arena *a;
    void *data = NULL;
    int rc = client_grow(&s->arenas, s->count, &s->cap,
                         sizeof(struct ps_shm_arena *));

    if (rc != 0) {
        return rc;
    }
    a = calloc(1, sizeof(*a));
    if (a == NULL) {
        return PS_E_NOMEM;
    }
    a->fd = -1;
    a->size = least > s->next_size ? ps_round_up(least, 2u * 1024 * 1024)
                                   : s->next_size;
    a->region = s->next_region;
    rc = ps_shm_make(a->size, &data, &a->fd);
    if (rc != 0) {
        goto free_arena;
    }
    a->data = data;
    madvise(data, a->size, MADV_HUGEPAGE);
    rc = insert_block(a, 0, 0, a->size);
    if (rc != 0) {
        goto free_arena;
    }
    rc = announce_arena(s, a);
    if (rc != 0) {
        goto free_arena;
    }
    s->next_region++;
    if (s->next_size < ARENA_MAX) {
        s->next_size *= 2;
    }
    insert_arena(s, a);
    *ret_arena = a;
    return 0;

free_arena:
    free_arena(a);
    return rc;
}

int ps_shm_get(struct ps_shm *s, size_t size, struct ps_shm_block **ret_block)
{
    struct ps_shm_arena *a = NULL;
    int rc;

    if (size > SIZE_LIMIT) {
        return PS_E_TOOBIG;
    }
    size = ps_round_up(size == 0 ? 1 : size, PS_SHM_ALIGN);
    for (size_t i = 0; i < s->count; i++) {
        rc = reserve_in_arena(s->arenas[i], size, ret_block);
        if (rc != PS_E_AGAIN) {
            return rc;
        }
    }
    rc = new_arena(s, size, &a);
    if (rc != 0) {
        return rc;
    }
    return reserve_in_arena(a, size, ret_block);
}

/* Returns the pages that lie wholly in a freed block. */
static void drop_pages(struct ps_shm_arena *a, size_t offset, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t from = ps_round_up(offset, page);
    size_t to = (offset + size) & ~(page - 1);

    if (size >= REMOVE_MIN && to > from && !a->keeps_pages) {
        madvise(a->data + from, to - from, MADV_REMOVE);
    }
}

/* Keeps one empty arena: a program that allocates and frees in a loop would
 * map and unmap it each time. */
static void drop_empty(struct ps_shm *s, struct ps_shm_arena *a)
{
    size_t at = s->count;
    size_t empty = 0;

    for (size_t i = 0; i < s->count; i++) {
        empty += s->arenas[i]->used == 0 ? 1 : 0;
        if (s->arenas[i] == a) {
            at = i;
        }
    }
    assert(at < s->count);
    if (empty < 2) {
        return;
    }
    s->count--;
    memmove(s->arenas + at, s->arenas + at + 1,
            (s->count - at) * sizeof(struct ps_shm_arena *));
    s->hooks.on_freed(s->hooks.ctx, a->region);
    if (s->hooks.on_unmap != NULL) {
        s->hooks.on_unmap(s->hooks.ctx, a->data);
    }
    free_arena(a);
}

void ps_shm_put(struct ps_shm *s, struct ps_shm_block *b)
{
    struct ps_shm_arena *a = b->arena;
    size_t at = block_index_of(a, b->offset);

    assert(a->blocks[at] == b && b->used != 0 && b->uses == 0);
    b->used = 0;
    a->used--;
    drop_pages(a, b->offset, b->size);
    if (at + 1 < a->count && a->blocks[at + 1]->used == 0) {
        b->size += a->blocks[at + 1]->size;
        remove_block(a, at + 1);
    }
    if (at > 0 && a->blocks[at - 1]->used == 0) {
        a->blocks[at - 1]->size += b->size;
        remove_block(a, at);
        at--;
    }
    if (at < a->first_free) {
        a->first_free = at;
    }
    if (a->used == 0) {
        drop_empty(s, a);
    }
}

struct ps_shm_block *ps_shm_find(const struct ps_shm *s, const void *data,
                                 size_t size)
{
    const uint8_t *at = data;
    size_t low = 0;
    size_t high = s->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        struct ps_shm_arena *a = s->arenas[mid];

        if (at < a->data) {
            high = mid;
        } else if (at >= a->data + a->size) {
            low = mid + 1;
        } else {
            size_t offset = (size_t)(at - a->data);
            struct ps_shm_block *b = a->blocks[block_index_of(a, offset)];

            return b->used != 0 && size <= b->size - (offset - b->offset)
                       ? b
                       : NULL;
        }
    }
    return s->buffers == NULL ? NULL : ps_shm_find_buffer(s, data, size);
}

void *ps_shm_arena_data(const struct ps_shm_block *b, size_t *ret_size)
{
    *ret_size = b->arena->size;
    return b->arena->data;
}

void ps_shm_keep_pages(const struct ps_shm_block *b)
{
    b->arena->keeps_pages = true;
}
