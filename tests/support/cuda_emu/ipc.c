/* SPDX-License-Identifier: Apache-2.0 */
/* Handles for other processes. A handle names a descriptor of the process that
 * made it, which the other opens in /proc, and its inode, because the number
 * can come to mean another file. */
#include "event.h"
#include "memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x6370695f756d65ull

struct handle {
    uint64_t magic;
    uint64_t inode;
    int32_t pid;
    int32_t fd;
    uint64_t size; /* Of memory: bytes of the allocation. */
};
_Static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "handle");

static CUresult fill_handle(struct handle *h, int fd, size_t size)
{
    struct stat status;

    if (fstat(fd, &status) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *h = (struct handle){
        .magic = MAGIC,
        .inode = status.st_ino,
        .pid = getpid(),
        .fd = fd,
        .size = size,
    };
    return CUDA_SUCCESS;
}

/* Opens the file of a handle; -1: its process has gone or closed it. */
static int open_handle(const struct handle *h)
{
    char path[64];
    struct stat status;
    int fd;

    if (h->magic != MAGIC) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)h->pid,
                   (int)h->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &status) != 0 || status.st_ino != h->inode)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    struct emu_context *c;
    struct emu_range *r;
    struct handle h;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    r = emu_range_find(dptr);
    if (r == NULL || r->kind != EMU_RANGE_ALLOCATED) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    rc = fill_handle(&h, r->backing->fd, r->size);
    if (rc == CUDA_SUCCESS) {
        emu_backing_share(r->backing);
        memset(pHandle, 0, sizeof(*pHandle));
        memcpy(pHandle, &h, sizeof(h));
    }
    return emu_leave(rc);
}

static CUresult open_memory(struct emu_context *c, const struct handle *h,
                            CUdeviceptr *ret_address)
{
    struct emu_range like = {.kind = EMU_RANGE_IPC, .size = h->size};
    int fd = open_handle(h);
    CUresult rc;

    if (h->pid == getpid()) {
        rc = CUDA_ERROR_INVALID_CONTEXT; /* As in CUDA. */
    } else if (fd < 0) {
        rc = CUDA_ERROR_INVALID_HANDLE;
    } else if (emu_backing_same_file(fd) != NULL) {
        rc = CUDA_ERROR_ALREADY_MAPPED;
    } else {
        rc = emu_backing_import(fd, &like.backing);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    like.base = emu_address_take(like.backing->size, 1);
    like.context = c;
    like.readers = 1u << c->device;
    like.writers = like.readers;
    if (like.base != 0) {
        (void)emu_range_add(&like);
    }
    emu_backing_unref(like.backing);
    *ret_address = like.base;
    return like.base == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle,
                                    unsigned int Flags)
{
    struct emu_context *c;
    struct handle h;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    memcpy(&h, &handle, sizeof(h));
    if (Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || emu_fails("import")) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return emu_leave(open_memory(c, &h, pdptr));
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    struct emu_context *c;
    struct emu_range *r;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    r = emu_range_find(dptr);
    if (r == NULL || r->kind != EMU_RANGE_IPC || r->base != dptr) {
        emu_die("cuIpcCloseMemHandle of memory that is not open");
    }
    emu_range_remove(r, "cuIpcCloseMemHandle");
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *pHandle, CUevent event)
{
    struct emu_event *e;
    struct handle h;
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    rc = emu_event_of(event, &e);
    if (rc == CUDA_SUCCESS && (e->flags & CU_EVENT_INTERPROCESS) == 0) {
        rc = CUDA_ERROR_INVALID_VALUE;
    }
    if (rc == CUDA_SUCCESS) {
        rc = fill_handle(&h, e->fd, 0);
    }
    if (rc == CUDA_SUCCESS) {
        memset(pHandle, 0, sizeof(*pHandle));
        memcpy(pHandle, &h, sizeof(h));
    }
    return emu_leave(rc);
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *phEvent, CUipcEventHandle handle)
{
    struct emu_context *c;
    struct emu_event *e;
    struct handle h;
    int fd;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    memcpy(&h, &handle, sizeof(h));
    if (emu_fails("import")) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    fd = open_handle(&h);
    if (fd < 0) {
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    rc = emu_event_import(c, fd, &e);
    if (rc == CUDA_SUCCESS) {
        *phEvent = (CUevent)e;
    } else {
        (void)close(fd);
    }
    return emu_leave(rc);
}
