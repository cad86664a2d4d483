/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC      0x6b6361627564632eull
#define PAGE       4096u
/* New memory has this byte, up to this size: floats are NaN. */
#define FILL       0xff
#define FILL_BYTES (16u << 20)

struct header {
    uint64_t magic;
    uint64_t size;
    uint64_t physical;
    struct emu_shadow shadow;
};
#define HEADER_SIZE ((sizeof(struct header) + PAGE - 1) / PAGE * PAGE)

static struct emu_backing *backings;

/* Maps header and bytes; the descriptor becomes the backing's. */
static struct emu_backing *map_backing(int fd, size_t size)
{
    struct emu_backing *b = calloc(1, sizeof(*b));
    char *whole = mmap(NULL, HEADER_SIZE + size, PROT_READ | PROT_WRITE,
                       MAP_SHARED, fd, 0);

    if (b == NULL || whole == MAP_FAILED) {
        free(b);
        return NULL;
    }
    b->fd = fd;
    b->size = size;
    b->refs = 1;
    b->shadow = &((struct header *)(void *)whole)->shadow;
    b->bytes = whole + HEADER_SIZE;
    b->next = backings;
    backings = b;
    return b;
}

static struct header *header_of(const struct emu_backing *b)
{
    return (struct header *)(void *)(b->bytes - HEADER_SIZE);
}

CUresult emu_backing_new(CUdevice device, size_t size,
                         struct emu_backing **ret_backing)
{
    struct pskv_emu_stats *stats = emu_stats(device);
    struct emu_backing *b;
    int fd;

    if (size > emu.memory_max - stats->memory_used || emu_fails("alloc")) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fd = memfd_create("cuda-emu", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)(HEADER_SIZE + size)) != 0 ||
        (b = map_backing(fd, size)) == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    b->physical = emu.device[device].physical;
    *header_of(b) = (struct header){
        .magic = MAGIC, .size = size, .physical = b->physical};
    emu_shadow_init(b->shadow);
    memset(b->bytes, FILL, size < FILL_BYTES ? size : FILL_BYTES);
    stats->memory_used += size;
    stats->memory_peak = stats->memory_used > stats->memory_peak
                             ? stats->memory_used
                             : stats->memory_peak;
    *ret_backing = b;
    return CUDA_SUCCESS;
}

struct emu_backing *emu_backing_same_file(int fd)
{
    struct stat given;
    struct stat ours;

    if (fstat(fd, &given) != 0) {
        return NULL;
    }
    for (struct emu_backing *b = backings; b != NULL; b = b->next) {
        if (fstat(b->fd, &ours) == 0 && ours.st_ino == given.st_ino &&
            ours.st_dev == given.st_dev) {
            return b;
        }
    }
    return NULL;
}

CUresult emu_backing_import(int fd, struct emu_backing **ret_backing)
{
    struct header head;
    struct stat status;
    struct emu_backing *b = emu_backing_same_file(fd);
    int own;

    if (b != NULL) {
        b->refs++;
        *ret_backing = b;
        return CUDA_SUCCESS;
    }
    if (fstat(fd, &status) != 0 ||
        pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
        head.magic != MAGIC ||
        (uint64_t)status.st_size != HEADER_SIZE + head.size) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (emu_device_of_physical((unsigned)head.physical) < 0) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0 || (b = map_backing(own, head.size)) == NULL) {
        if (own >= 0) {
            (void)close(own);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    b->physical = (unsigned)head.physical;
    b->imported = true;
    b->shared = true;
    emu_stats(emu_backing_device(b))->imports++;
    *ret_backing = b;
    return CUDA_SUCCESS;
}

void emu_backing_unref(struct emu_backing *b)
{
    struct emu_backing **link = &backings;
    struct pskv_emu_stats *stats = emu_stats(emu_backing_device(b));

    if (--b->refs > 0) {
        return;
    }
    while (*link != b) {
        link = &(*link)->next;
    }
    *link = b->next;
    if (b->imported) {
        stats->imports--;
    } else {
        stats->memory_used -= b->size;
    }
    (void)munmap(header_of(b), HEADER_SIZE + b->size);
    (void)close(b->fd);
    free(b);
}

void emu_backing_share(struct emu_backing *b)
{
    b->shared = true;
    emu_shadow_observe(b->shadow, &emu.host);
}

void emu_backing_observe(const struct emu_clock *host)
{
    for (struct emu_backing *b = backings; b != NULL; b = b->next) {
        if (b->shared) {
            emu_shadow_observe(b->shadow, host);
        }
    }
}

CUdevice emu_backing_device(const struct emu_backing *b)
{
    return emu_device_of_physical(b->physical);
}

struct emu_backing *emu_backing_of(uint64_t handle)
{
    for (struct emu_backing *b = backings; b != NULL; b = b->next) {
        if ((uint64_t)(uintptr_t)b == handle) {
            return b;
        }
    }
    return NULL;
}

size_t emu_backing_start(void)
{
    return HEADER_SIZE;
}
