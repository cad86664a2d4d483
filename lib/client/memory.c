/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of this process that is offered to the agent: what psc_alloc() returns,
 * and memory of the program. */
#include "client/device/gpu.h"
#include "client/shm.h"
#include "client/state.h"
#include "client/threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SEALS_WANTED (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* ------------------------------------------------------------------- blocks */

static int on_arena_made(void *ctx, uint32_t region, int fd, uint64_t size)
{
    struct psc_client *c = ctx;
    const struct ps_msg m = {.code = PS_MSG_L_REGION,
                             .l_region = {.region = region, .size = size}};

    if (c->rc == 0 && c->reattach.link != LINK_UP) {
        return 0; /* The next agent gets all arenas offered. */
    }
    /* Flushed with the operation that uses the arena. */
    return c->rc != 0 ? c->rc : ps_sock_put(c->sock, &m, fd);
}

static void on_arena_freed(void *ctx, uint32_t region)
{
    struct psc_client *c = ctx;
    const struct ps_msg m = {.code = PS_MSG_L_REGION_GONE,
                             .l_region_gone = {.region = region}};

    /* On failure the agent keeps a mapping without use. */
    if (client_send(c, &m) != 0) {
        return;
    }
}

static void on_arena_unmap(void *ctx, const void *data)
{
    gpu_forget(ctx, data);
}

void memory_init(struct psc_client *c)
{
    ps_shm_init(&c->shm, &(struct ps_shm_hooks){.on_made = on_arena_made,
                                                .on_freed = on_arena_freed,
                                                .on_unmap = on_arena_unmap,
                                                .ctx = c});
}

int psc_alloc(struct psc_client *c, size_t size, void **ret_data)
{
    struct ps_shm_block *b;
    int rc = client_enter_with(c, ret_data, "ret_data");

    if (rc != 0) {
        return rc;
    }
    rc = c->rc != 0 ? c->rc : ps_shm_get(&c->shm, size, &b);
    if (rc == 0) {
        *ret_data = b->data;
    } else {
        client_error(c, rc, "no shared memory of %zu bytes: %s", size,
                     c->rc != 0 ? c->text : ps_strerror(rc));
    }
    client_leave(c);
    return rc;
}

/* Frees memory of psc_alloc(), or ends the use of registered memory. */
static int free_block(struct psc_client *c, const void *data,
                      bool is_registered)
{
    struct ps_shm_block *b;
    int rc = data != NULL ? client_enter(c) : 0;

    if (data == NULL || rc != 0) {
        return rc;
    }
    b = ps_shm_registered(&c->shm, data);
    if (!is_registered) {
        b = b == NULL ? ps_shm_find(&c->shm, data, 0) : NULL;
        b = b != NULL && b->data == data ? b : NULL;
    }
    if (b == NULL) {
        rc = client_error(c, PSC_E_INVAL,
                          is_registered ? "no registered memory begins at %p"
                                        : "the memory at %p is not from "
                                          "psc_alloc()",
                          data);
    } else if (b->uses > 0) {
        rc = client_error(c, PSC_E_AGAIN, "%u open operations use this memory",
                          b->uses);
    } else if (is_registered) {
        ps_shm_unregister(&c->shm, b);
    } else {
        ps_shm_put(&c->shm, b);
    }
    client_leave(c);
    return rc;
}

int psc_free(struct psc_client *c, void *data)
{
    return free_block(c, data, false);
}

/* -------------------------------------------------------- files of mappings */

/* The list of mappings of the process, /proc/self/maps, names the file of each;
 * its descriptor is one of those that the process has open. */

/* Line of the list. */
struct line {
    uint64_t from;
    uint64_t to;
    char access[5];
    uint64_t offset;
    uint64_t device;
    uint64_t inode;
};

static bool parse_line(const char *text, struct line *ret)
{
    unsigned major_number;
    unsigned minor_number;

    if (sscanf(text, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64,
               &ret->from, &ret->to, ret->access, &ret->offset, &major_number,
               &minor_number, &ret->inode) != 7) {
        return false;
    }
    ret->device = makedev(major_number, minor_number);
    return true;
}

/* Extends the mapping by a line: true while lines continue it. */
static bool extend_mapping(struct ps_shm_mapping *m, uint64_t *end,
                           const struct line *l)
{
    const uint64_t from = (uint64_t)(uintptr_t)m->data;

    if (*end == 0) {
        m->device = l->device;
        m->inode = l->inode;
        m->offset = l->offset + (from - l->from);
    } else if (l->from != *end || l->device != m->device ||
               l->inode != m->inode ||
               l->offset != m->offset + (l->from - from)) {
        return false;
    }
    *end = l->to;
    return true;
}

/* Reason why memory of the line is not shared; NULL: it is. */
static const char *line_refusal(const struct line *l)
{
    return l->access[3] != 's' ? "it is private to this process"
           : l->access[0] != 'r' || l->access[1] != 'w'
               ? "it cannot be read and written"
           : l->inode == 0 ? "it lies in no file"
                           : NULL;
}

static const char *read_lines(FILE *f, struct ps_shm_mapping *m)
{
    const uint64_t from = (uint64_t)(uintptr_t)m->data;
    const char *why = "it is not mapped";
    uint64_t end = 0;
    char text[512];
    struct line l;

    while (end < from + m->size && fgets(text, sizeof(text), f) != NULL) {
        /* Long names take several turns, of which the others do not parse. */
        if (!parse_line(text, &l) || l.to <= from) {
            continue;
        }
        if (l.from > from && end == 0) {
            break;
        }
        why = line_refusal(&l);
        if (why != NULL) {
            return why;
        }
        if (!extend_mapping(m, &end, &l)) {
            break;
        }
    }
    return end >= from + m->size ? NULL
           : why != NULL         ? why
                                 : "it is not in one file as a whole";
}

/* Descriptor of the file, a copy of one that is open; -1: there is none. */
static int copy_descriptor(const struct ps_shm_mapping *m)
{
    DIR *d = opendir("/proc/self/fd");
    int found = -1;

    if (d == NULL) {
        return -1;
    }
    for (const struct dirent *e; found < 0 && (e = readdir(d)) != NULL;) {
        int fd = atoi(e->d_name);
        struct stat st;

        if (e->d_name[0] >= '0' && e->d_name[0] <= '9' && fstat(fd, &st) == 0 &&
            st.st_dev == m->device && st.st_ino == m->inode &&
            (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR) {
            found = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        }
    }
    (void)closedir(d);
    return found;
}

/* Reason why the agent cannot map the file; NULL: it can, and its size will not
 * change. */
static const char *seal_file(int fd, bool may_seal, uint64_t *ret_size)
{
    struct statfs fs;
    struct stat st;
    int seals;

    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC) {
        return "its file is no memfd, or one of huge pages";
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        return "its file cannot be sealed";
    }
    if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
        return "its memfd is sealed against writing";
    }
    if ((seals & SEALS_WANTED) != SEALS_WANTED &&
        (!may_seal || fcntl(fd, F_ADD_SEALS, SEALS_WANTED) != 0)) {
        return may_seal ? "its file cannot be sealed: memfd_create() needs "
                          "MFD_ALLOW_SEALING"
                        : "its memfd is not sealed";
    }
    if (fstat(fd, &st) != 0) {
        return "the size of its file is unknown";
    }
    *ret_size = (uint64_t)st.st_size;
    return NULL;
}

static const char *find_file(bool may_seal, struct ps_shm_mapping *m)
{
    FILE *f = fopen("/proc/self/maps", "re");
    const char *why = "the list of mappings, /proc/self/maps, cannot be read";

    if (f != NULL) {
        why = read_lines(f, m);
        (void)fclose(f);
    }
    if (why != NULL) {
        return why;
    }
    m->fd = copy_descriptor(m);
    if (m->fd < 0) {
        return "this process has no descriptor of its file open for reading "
               "and writing";
    }
    why = seal_file(m->fd, may_seal, &m->file_size);
    if (why == NULL &&
        (m->size > m->file_size || m->offset > m->file_size - m->size)) {
        why = "its file ends before it";
    }
    if (why != NULL) {
        close(m->fd);
    }
    return why;
}

/* Finds the file in which [data, data + size) is mapped, as the agent accepts it:
 * a memfd that is sealed against shrinking, growing and sealing, or, with
 * `may_seal`, that gets these seals. The caller owns the descriptor.
 * PS_E_UNSUPPORTED: there is none, for the reason in *ret_why. */
static int mapping_find(void *data, size_t size, bool may_seal,
                        struct ps_shm_mapping *ret_mapping,
                        const char **ret_why)
{
    struct ps_shm_mapping m = {.data = data, .size = size};
    const char *why = find_file(may_seal, &m);

    if (why != NULL) {
        *ret_why = why;
        return PS_E_UNSUPPORTED;
    }
    *ret_mapping = m;
    return 0;
}

/* -------------------------------------------------- memory of the program */

/* Reason why operations copy the memory; NULL: it is shared and registered. */
static const char *share_memory(struct psc_client *c, void *data, size_t size,
                                uint32_t flags, int *ret_rc)
{
    struct ps_shm_mapping m;
    const char *why = NULL;
    int rc = mapping_find(data, size, (flags & PSC_BUF_KEEP_SEALS) == 0, &m,
                          &why);

    if (rc != 0) {
        *ret_rc = rc;
        return why;
    }
    rc = ps_shm_register(&c->shm, data, size, &m);
    if (rc != 0) {
        close(m.fd);
        why = rc == PSC_E_FULL ? "the agent maps no more than 128 files for "
                                 "this client"
                               : ps_strerror(rc);
    }
    *ret_rc = rc;
    return why;
}

static int check_memory(struct psc_client *c, const void *data, size_t size,
                        uint32_t flags)
{
    const uint8_t *at = data;

    if (c->rc != 0) {
        return client_error(c, c->rc, "%s", c->text);
    }
    if (data == NULL || size == 0 || size > UINTPTR_MAX - (uintptr_t)at ||
        (flags & ~(PSC_BUF_KEEP_SEALS | PSC_BUF_MUST_SHARE)) != 0) {
        return client_error(c, PSC_E_INVAL,
                            "%zu bytes at %p with flags %u cannot be "
                            "registered",
                            size, data, flags);
    }
    if (ps_shm_find(&c->shm, data, 0) != NULL ||
        ps_shm_find(&c->shm, at + size - 1, 0) != NULL) {
        return client_error(c, PSC_E_EXIST,
                            "the memory at %p is shared already", data);
    }
    return 0;
}

static int register_locked(struct psc_client *c, void *data, size_t size,
                           uint32_t flags, enum psc_buf_state *ret_state)
{
    const char *why;
    int rc = check_memory(c, data, size, flags);

    if (rc != 0) {
        return rc;
    }
    why = share_memory(c, data, size, flags, &rc);
    if (why == NULL) {
        client_flush(c);
        *ret_state = PSC_BUF_SHARED;
        return 0;
    }
    if ((flags & PSC_BUF_MUST_SHARE) != 0 ||
        (rc != PSC_E_UNSUPPORTED && rc != PSC_E_FULL)) {
        return client_error(c, rc, "the memory at %p is not shared: %s", data,
                            why);
    }
    rc = ps_shm_register(&c->shm, data, size, NULL);
    if (rc != 0) {
        return client_error(c, rc, "the memory at %p is not registered: %s",
                            data, ps_strerror(rc));
    }
    (void)client_error(c, 0, "operations copy the memory at %p: %s", data, why);
    *ret_state = PSC_BUF_COPIED;
    return 0;
}

int psc_buf_register(struct psc_client *c, void *data, size_t size,
                     uint32_t flags, enum psc_buf_state *ret_state)
{
    enum psc_buf_state state = PSC_BUF_COPIED;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = register_locked(c, data, size, flags, &state);
    if (rc == 0 && ret_state != NULL) {
        *ret_state = state;
    }
    client_leave(c);
    return rc;
}

int psc_buf_unregister(struct psc_client *c, void *data)
{
    return free_block(c, data, true);
}
