/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory of the caller. The agent maps the whole file in which it
 * lies, once, as a region; a buffer is a block of it. */
#include "client/shm_inner.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Regions of files; further files are copied. Agents allow a session 1024
 * regions by default. */
#define FILES_MAX 128u

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
    const uint8_t *data;
    struct file *file; /* NULL: operations copy it. */
    struct ps_shm_arena arena;
};

struct ps_shm_buffers {
    struct buffer **list; /* Sorted by address. */
    size_t count;
    size_t cap;
    struct file files[FILES_MAX];
};

/* Index of the first buffer that ends behind `at`. */
static size_t index_of(const struct ps_shm_buffers *t, const uint8_t *at)
{
    size_t low = 0;
    size_t high = t->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct buffer *b = t->list[mid];

        if (b->data + b->block.size <= at) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

struct ps_shm_block *ps_shm_find_buffer(const struct ps_shm *s,
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
    return b->file != NULL && b->data <= at &&
                   size <= b->block.size - (size_t)(at - b->data)
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
    return i < t->count && t->list[i]->data == data ? &t->list[i]->block : NULL;
}

/* ------------------------------------------------------------------- files */

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
    rc = ps_shm_announce(s, s->next_region, m->fd, m->file_size);
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

int ps_shm_announce_buffers(const struct ps_shm *s)
{
    int rc = 0;

    for (size_t i = 0; s->buffers != NULL && rc == 0 && i < FILES_MAX; i++) {
        const struct file *f = &s->buffers->files[i];

        if (f->uses > 0) {
            rc = ps_shm_announce(s, f->region, f->fd, f->size);
        }
    }
    return rc;
}

/* ----------------------------------------------------------------- buffers */

static int reserve_buffer(struct ps_shm *s)
{
    struct ps_shm_buffers *t = s->buffers;
    struct buffer **grown;
    size_t cap;

    if (t == NULL) {
        t = calloc(1, sizeof(*t));
        if (t == NULL) {
            return PS_E_NOMEM;
        }
        s->buffers = t;
    }
    if (t->count < t->cap) {
        return 0;
    }
    cap = t->cap == 0 ? 8 : t->cap * 2;
    grown = realloc(t->list, cap * sizeof(struct buffer *));
    if (grown == NULL) {
        return PS_E_NOMEM;
    }
    t->list = grown;
    t->cap = cap;
    return 0;
}

/* Places the buffer into the file. */
static void place_buffer(struct buffer *b, struct file *f, uint64_t offset)
{
    b->file = f;
    b->arena.data = (uint8_t *)((uintptr_t)b->data - offset);
    b->arena.region = f->region;
    b->block.arena = &b->arena;
    b->block.offset = offset;
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
    if (i < t->count && t->list[i]->data < at + size) {
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
    new->data = at;
    new->block.size = size;
    new->block.used = 1;
    if (file != NULL) {
        place_buffer(new, file, m->offset);
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
    size_t i = index_of(t, gone->data);

    memmove(t->list + i, t->list + i + 1,
            (t->count - i - 1) * sizeof(struct buffer *));
    t->count--;
    if (gone->file != NULL) {
        release_file(s, gone->file);
    }
    free(gone);
}

void ps_shm_free_buffers(struct ps_shm *s)
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
