/* SPDX-License-Identifier: Apache-2.0 */
/* Each arena keeps its free ranges in order of offset, so that neighbours
 * merge. There are few ranges, because a pool asks for large blocks and keeps
 * them: a linear search is enough. */
#include "net/arena.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "base/list.h"
#include "base/num.h"
#include "net/local.h"

#include <assert.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define ARENA_ALIGN 4096u
/* Divisor: a new arena of a lazy source is this part of all its arenas. */
#define SHARE       4u
#define LEAST       (4u * 1024u * 1024u)

struct free_range {
    struct ps_list_node node;
    size_t offset;
    size_t size;
};

struct arena {
    struct ps_list_node node;
    struct arena_group *group; /* NULL: of ps_arenas_add(). */
    uint32_t number;
    int fd;
    char *data; /* NULL: mapped elsewhere. */
    size_t size;
    struct ps_list free;
};

/* Writable memory whose descriptor peers keep open for a later process. */
struct shared_segment {
    struct ps_list_node node;
    struct ps_buf *memory; /* Mapping of the descriptor. */
    uint32_t number;
    int fd;
};

struct ps_arenas {
    struct ps_list list;
    struct ps_list segments;
    uint32_t last_number;
    bool shared_wanted;
    uint64_t freed_count;
};

/* The arenas of one pool. */
struct arena_group {
    struct ps_arenas *arenas;
    uint64_t size; /* Bytes of all its arenas. */
    bool grows;    /* Arenas begin small and grow with `size`. */
};

static void add_range(struct ps_list_node *before, struct arena *a,
                      size_t offset, size_t size)
{
    struct free_range *r = ps_calloc(1, sizeof(*r));
    struct ps_list_node *head = before != NULL ? before : &a->free.head;

    r->offset = offset;
    r->size = size;
    r->node.prev = head->prev;
    r->node.next = head;
    head->prev->next = &r->node;
    head->prev = &r->node;
}

static void drop_range(struct free_range *r)
{
    ps_list_remove(&r->node);
    ps_free(r);
}

/* Seals the size and forbids new writable mappings. Called after the own
 * mapping, which stays writable. */
static int seal_size(int fd)
{
    int size = F_SEAL_SHRINK | F_SEAL_GROW;

    if (fcntl(fd, F_ADD_SEALS, size | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) {
        return 0;
    }
    /* Linux before 5.1 has no F_SEAL_FUTURE_WRITE. */
    return fcntl(fd, F_ADD_SEALS, size | F_SEAL_SEAL);
}

/* Size of the next arena. One block in use pins the pages of its whole arena,
 * because parts of a sealed memfd cannot be returned. So the memory of a burst
 * in a long-lived pool lies in arenas of its own, each a small part of the
 * whole. */
static size_t next_size(const struct arena_group *g)
{
    uint64_t size = g->grows ? ps_max_u64(g->size / SHARE, LEAST)
                             : PS_ARENA_SIZE;

    return ps_round_up(ps_min_u64(size, PS_ARENA_SIZE), ARENA_ALIGN);
}

static struct arena *arena_new(struct arena_group *group, size_t at_least)
{
    struct ps_arenas *all = group->arenas;
    size_t size = ps_max_u64(ps_round_up(at_least, ARENA_ALIGN),
                             next_size(group));
    int fd = ps_file_memory("pskv-results");
    void *data = MAP_FAILED;

    if (fd < 0) {
        return NULL;
    }
    if (ftruncate(fd, (off_t)size) == 0) {
        data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (data == MAP_FAILED || seal_size(fd) != 0) {
        if (data != MAP_FAILED) {
            munmap(data, size);
        }
        close(fd);
        return NULL;
    }
    struct arena *a = ps_calloc(1, sizeof(*a));

    a->group = group;
    group->size += size;
    a->number = ++all->last_number;
    a->fd = fd;
    a->data = data;
    a->size = size;
    ps_list_init(&a->free);
    add_range(NULL, a, 0, size);
    ps_list_push_back(&all->list, &a->node);
    madvise(data, size, MADV_HUGEPAGE); /* Failure costs speed only. */
    madvise(data, size, MADV_DONTDUMP); /* Tensors stay out of core dumps. */
    return a;
}

static void arena_free(struct arena *a)
{
    PS_LIST_EACH_SAFE(struct free_range, r, node, &a->free)
    {
        drop_range(r);
    }
    ps_list_remove(&a->node);
    close(a->fd);
    if (a->data != NULL) {
        ps_unmap(a->data, a->size);
    }
    ps_free(a);
}

uint32_t ps_arenas_add(struct ps_arenas *all, int fd, uint64_t size)
{
    struct arena *a = ps_calloc(1, sizeof(*a));

    a->number = ++all->last_number;
    a->fd = fd;
    a->size = size;
    ps_list_init(&a->free);
    ps_list_push_back(&all->list, &a->node);
    return a->number;
}

struct ps_arenas *ps_arenas_new(void)
{
    struct ps_arenas *all = ps_calloc(1, sizeof(*all));

    ps_list_init(&all->list);
    ps_list_init(&all->segments);
    return all;
}

void ps_arenas_free(struct ps_arenas *all)
{
    if (all == NULL) {
        return;
    }
    /* All holders have released theirs. */
    assert(ps_list_empty(&all->segments));
    PS_LIST_EACH_SAFE(struct arena, a, node, &all->list)
    {
        arena_free(a);
    }
    ps_free(all);
}

static bool split_range(struct arena *a, size_t size, size_t *ret_offset)
{
    PS_LIST_EACH_OF(struct free_range, r, node, &a->free)
    {
        if (r->size < size) {
            continue;
        }
        *ret_offset = r->offset;
        r->offset += size;
        r->size -= size;
        if (r->size == 0) {
            drop_range(r);
        }
        return true; /* The list was modified; stop the walk. */
    }
    return false;
}

static int get_block(void *ctx, size_t size, void **ret_data, uint32_t *ret_tag,
                     uint64_t *ret_offset)
{
    struct arena_group *group = ctx;
    struct ps_arenas *all = group->arenas;
    struct arena *a = NULL;
    size_t offset = 0;

    size = ps_round_up(size, ARENA_ALIGN);
    PS_LIST_EACH_OF(struct arena, at, node, &all->list)
    {
        if (at->group == group && split_range(at, size, &offset)) {
            a = at;
            break;
        }
    }
    if (a == NULL) {
        a = arena_new(group, size);
        if (a == NULL) {
            return PS_E_NOMEM;
        }
        (void)split_range(a, size, &offset);
    }
    *ret_data = a->data + offset;
    *ret_tag = a->number;
    *ret_offset = offset;
    return 0;
}

static struct arena *find_range(const struct ps_arenas *all, uint32_t number)
{
    PS_LIST_EACH_OF(struct arena, a, node, &all->list)
    {
        if (a->number == number) {
            return a;
        }
    }
    return NULL;
}

/* Returns [offset, offset + size) and merges it with its neighbours. */
static void return_block(struct arena *a, size_t offset, size_t size)
{
    struct free_range *before = NULL;
    struct free_range *behind = NULL;

    PS_LIST_EACH_OF(struct free_range, r, node, &a->free)
    {
        if (r->offset > offset) {
            behind = r;
            break;
        }
        before = r;
    }
    if (before != NULL && before->offset + before->size == offset) {
        before->size += size;
        if (behind != NULL && offset + size == behind->offset) {
            before->size += behind->size;
            drop_range(behind);
        }
    } else if (behind != NULL && offset + size == behind->offset) {
        behind->offset = offset;
        behind->size += size;
    } else {
        add_range(behind != NULL ? &behind->node : NULL, a, offset, size);
    }
}

static void put_block(void *ctx, void *data, size_t size, uint32_t tag)
{
    struct arena_group *group = ctx;
    struct arena *a = find_range(group->arenas, tag);

    assert(a != NULL);
    return_block(a, (size_t)((char *)data - a->data),
                 ps_round_up(size, ARENA_ALIGN));

    struct ps_list_node *first = ps_list_first(&a->free);

    if (PS_CONTAINER(first, struct free_range, node)->size == a->size) {
        group->arenas->freed_count++;
        group->size -= a->size;
        arena_free(a);
    }
}

static int get_block_if_wanted(void *ctx, size_t size, void **ret_data,
                               uint32_t *ret_tag, uint64_t *ret_offset)
{
    const struct arena_group *group = ctx;

    if (group->arenas->shared_wanted) {
        return get_block(ctx, size, ret_data, ret_tag, ret_offset);
    }
    *ret_tag = 0;
    *ret_offset = 0;
    return ps_pool_map(size, ret_data);
}

static void put_block_if_wanted(void *ctx, void *data, size_t size,
                                uint32_t tag)
{
    if (tag == 0) {
        ps_pool_unmap(data, size);
    } else {
        put_block(ctx, data, size, tag);
    }
}

static void range_end(void *ctx)
{
    ps_free(ctx);
}

struct ps_pool_source ps_arenas_source(struct ps_arenas *a)
{
    struct arena_group *group = ps_calloc(1, sizeof(*group));

    group->arenas = a;
    return (struct ps_pool_source){
        .get = get_block, .put = put_block, .close = range_end, .ctx = group};
}

struct ps_pool_source ps_arenas_lazy_source(struct ps_arenas *a)
{
    struct ps_pool_source s = ps_arenas_source(a);
    struct arena_group *group = s.ctx;

    group->grows = true;
    s.get = get_block_if_wanted;
    s.put = put_block_if_wanted;
    return s;
}

void ps_arenas_enable_sharing(struct ps_arenas *a)
{
    a->shared_wanted = true;
}

uint64_t ps_arenas_freed_count(const struct ps_arenas *a)
{
    return a->freed_count;
}

int ps_arenas_fd(const struct ps_arenas *all, uint32_t arena, int *ret_fd,
                 uint64_t *ret_size)
{
    const struct arena *a = find_range(all, arena);

    if (a == NULL) {
        return PS_E_NOENT;
    }
    *ret_fd = a->fd;
    *ret_size = a->size;
    return 0;
}

/* ---------------------------------------- segments that outlive the process */

static struct shared_segment *segment_of(const struct ps_arenas *all,
                                         uint32_t number)
{
    PS_LIST_EACH_OF(struct shared_segment, k, node, &all->segments)
    {
        if (k->number == number) {
            return k;
        }
    }
    return NULL;
}

static void segment_free(void *ctx)
{
    struct shared_segment *k = ctx;

    ps_list_remove(&k->node);
    ps_buf_unref(k->memory);
    close(k->fd);
    ps_free(k);
}

int ps_arenas_adopt_segment(struct ps_arenas *a, int fd, uint64_t size,
                            struct ps_buf **ret_buf, const char **ret_why)
{
    int own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct ps_buf *memory;
    struct shared_segment *k;
    int rc = ps_local_map(fd, size, PROT_READ | PROT_WRITE, &memory, ret_why);

    if (rc == 0 && own_fd < 0) {
        ps_buf_unref(memory);
        *ret_why = "no more descriptors";
        return PS_E_NOMEM;
    }
    if (rc != 0) {
        if (own_fd >= 0) {
            close(own_fd);
        }
        return rc;
    }
    madvise(memory->data, size, MADV_HUGEPAGE); /* Failure costs speed only. */
    k = ps_calloc(1, sizeof(*k));
    k->memory = memory;
    k->fd = own_fd;
    do {
        if (getrandom(&k->number, sizeof(k->number), GRND_NONBLOCK) !=
            (ssize_t)sizeof(k->number)) {
            k->number = ++a->last_number; /* No random bytes yet. */
        }
    } while (k->number == 0 || segment_of(a, k->number) != NULL);
    ps_list_push_back(&a->segments, &k->node);
    *ret_buf = ps_buf_wrap(memory->data, size, segment_free, k);
    (*ret_buf)->tag = k->number;
    return 0;
}

int ps_arenas_create_segment(struct ps_arenas *a, size_t size,
                             struct ps_buf **ret_buf)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const char *why;
    int fd = ps_file_memory("pskv-results");

    if (fd < 0) {
        return PS_E_NOMEM;
    }
    if (ftruncate(fd, (off_t)size) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0) {
        close(fd);
        return PS_E_NOMEM;
    }
    return ps_arenas_adopt_segment(a, fd, size, ret_buf, &why);
}

int ps_arenas_segment_fd(const struct ps_arenas *a, uint32_t number,
                         int *ret_fd)
{
    const struct shared_segment *k = segment_of(a, number);

    if (k == NULL) {
        return PS_E_NOENT;
    }
    *ret_fd = k->fd;
    return 0;
}
