/* SPDX-License-Identifier: Apache-2.0 */
#include "net/state_file.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file_check.h"
#include "net/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct ps_state_file {
    int fd;
    struct ps_buf *mapping;
};

int ps_state_file_open(int fd, struct ps_state_file **ret, const char **ret_why)
{
    const int own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct ps_buf *mapping;
    struct stat st = {0};

    if (fstat(fd, &st) != 0) {
        st.st_size = 0;
    }
    /* Closes `fd`. */
    int rc = ps_local_map(fd, (uint64_t)st.st_size, PROT_READ | PROT_WRITE,
                          &mapping, ret_why);

    if (rc == 0 && own_fd < 0) {
        ps_buf_unref(mapping);
        *ret_why = "no more descriptors";
        return PS_E_NOMEM;
    }
    if (rc != 0) {
        if (own_fd >= 0) {
            close(own_fd);
        }
        return rc;
    }
    madvise(mapping->data, mapping->size, MADV_HUGEPAGE); /* For speed. */
    *ret = ps_alloc(sizeof(**ret));
    **ret = (struct ps_state_file){.fd = own_fd, .mapping = mapping};
    return 0;
}

int ps_state_file_new(uint64_t size, struct ps_state_file **ret)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const char *why;
    int fd = ps_file_memory("pskv-state");

    if (fd < 0) {
        return PS_E_NOMEM;
    }
    /* Nobody else may open it again for writing. */
    if (fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)size) != 0 ||
        fcntl(fd, F_ADD_SEALS, seals) != 0) {
        close(fd);
        return PS_E_NOMEM;
    }
    return ps_state_file_open(fd, ret, &why) == 0 ? 0 : PS_E_NOMEM;
}

void ps_state_file_close(struct ps_state_file *f)
{
    if (f != NULL) {
        ps_buf_unref(f->mapping);
        close(f->fd);
        ps_free(f);
    }
}

int ps_state_file_fd(const struct ps_state_file *f)
{
    return f->fd;
}

int ps_state_file_open_reader(const struct ps_state_file *f)
{
    char path[40];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", f->fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

void *ps_state_file_data(const struct ps_state_file *f)
{
    return f->mapping->data;
}

uint64_t ps_state_file_size(const struct ps_state_file *f)
{
    return f->mapping->size;
}

void ps_state_file_release(void *ctx, uint64_t offset, uint64_t bytes)
{
    const struct ps_state_file *f = ctx;
    int rc;

    do {
        rc = fallocate(f->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       (off_t)offset, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        memset(f->mapping->data + offset, 0, bytes);
    }
}
