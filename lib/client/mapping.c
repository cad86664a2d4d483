/* SPDX-License-Identifier: Apache-2.0 */
/* The list of mappings of the process, /proc/self/maps, names the file of each;
 * its descriptor is one of those that the process has open. */
#include "client/mapping.h"

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

int mapping_find(void *data, size_t size, bool may_seal,
                 struct ps_shm_mapping *ret_mapping, const char **ret_why)
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
