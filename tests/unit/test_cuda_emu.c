/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated driver, used as it should be: results, order, memory shared with
 * other processes, and the failures that it can be told to have. */
#include "cuda_emu/child.h"
#include "cuda_emu/control.h"

#include <cublas_v2.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT 1000u
#define SIZE  (COUNT * sizeof(float))
#define CHUNK (2u << 20)

const struct pskv_emu_control *pskv_emu_control(void);

static void assert_passes(void (*run)(void))
{
    char output[16384];

    if (!emu_child_run(run, output, sizeof(output))) {
        fail_msg("%s", output);
    }
}

static void assert_ends(void (*run)(void), const char *text)
{
    char output[16384];

    if (emu_child_run(run, output, sizeof(output)) ||
        strstr(output, text) == NULL) {
        fail_msg("expected \"%s\", got: %s", text, output);
    }
}

static struct pskv_emu_stats stats_of(unsigned device)
{
    struct pskv_emu_stats stats;

    pskv_emu_control()->stats(device, &stats);
    return stats;
}

static void sum_on_device(void)
{
    CUdeviceptr a;
    CUdeviceptr b;
    CUstream s;
    float *pinned;

    emu_child_context(0);
    s = emu_child_stream();
    a = emu_child_memory(SIZE);
    b = emu_child_memory(SIZE);
    pinned = emu_child_pinned(SIZE);
    for (unsigned i = 0; i < COUNT; i++) {
        pinned[i] = (float)i / 3;
    }
    CHECK_OK(cuMemcpyHtoDAsync(a, pinned, SIZE, s));
    CHECK_OK(cuMemcpyDtoDAsync(b, a, SIZE, s));
    emu_child_sum(s, b, a, b, COUNT);
    CHECK_OK(cuMemcpyDtoHAsync(pinned, b, SIZE, s));
    CHECK_OK(cuStreamSynchronize(s));
    for (unsigned i = 0; i < COUNT; i++) {
        CHECK(pinned[i] == (float)i / 3 + (float)i / 3);
    }
    CHECK(stats_of(0).host_to_device == SIZE);
    CHECK(stats_of(0).device_to_host == SIZE);
    CHECK(stats_of(0).device_to_device == SIZE);
    CHECK(stats_of(0).kernel_read ==
          SIZE); /* Bytes that are also written do not count. */
    CHECK(stats_of(0).kernel_written == SIZE);
    CHECK(stats_of(0).launches == 1);
    CHECK(stats_of(0).pageable == 0);
    CHECK_OK(cuMemFree(a));
    CHECK_OK(cuMemFree(b));
    CHECK_OK(cuMemFreeHost(pinned));
    CHECK_OK(cuStreamDestroy(s));
    CHECK(stats_of(0).allocations == 0);
    CHECK(stats_of(0).streams == 0);
    CHECK(stats_of(0).memory_used == 0);
}

static void copies_and_kernels_give_their_result(void **state)
{
    (void)state;
    assert_passes(sum_on_device);
}

static void count_atomically(void)
{
    CUdeviceptr total;
    unsigned result;
    uint64_t count = COUNT;
    void *params[] = {&total, &count};
    CUstream s;

    emu_child_context(0);
    s = emu_child_stream();
    total = emu_child_memory(4);
    CHECK_OK(cuMemsetD32Async(total, 5, 1, s));
    CHECK_OK(cuLaunchKernel(emu_child_function("emu_test_count"), 3, 1, 1, 7, 1,
                            1, 0, s, params, NULL));
    /* To memory that is not pinned: the copy waits. */
    CHECK_OK(cuMemcpyDtoHAsync(&result, total, 4, s));
    CHECK(result == COUNT + 5);
    CHECK(stats_of(0).pageable == 4);
}

static void atomic_operations_count_every_thread(void **state)
{
    (void)state;
    assert_passes(count_atomically);
}

static void axpy(void)
{
    cublasHandle_t handle;
    CUdeviceptr memory;
    CUstream s;
    float alpha = 1;
    float *pinned;

    emu_child_context(0);
    s = emu_child_stream();
    memory = emu_child_memory(2 * SIZE);
    pinned = emu_child_pinned(2 * SIZE);
    for (unsigned i = 0; i < 2 * COUNT; i++) {
        pinned[i] = (float)i / 7;
    }
    CHECK(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasSetStream(handle, s) == CUBLAS_STATUS_SUCCESS);
    CHECK_OK(cuMemcpyHtoDAsync(memory, pinned, 2 * SIZE, s));
    CHECK(cublasSaxpy(handle, COUNT, &alpha, (float *)(uintptr_t)memory, 1,
                      (float *)(uintptr_t)(memory + SIZE),
                      1) == CUBLAS_STATUS_SUCCESS);
    CHECK_OK(cuMemcpyDtoHAsync(pinned, memory + SIZE, SIZE, s));
    CHECK_OK(cuStreamSynchronize(s));
    for (unsigned i = 0; i < COUNT; i++) {
        CHECK(pinned[i] == (float)i / 7 + (float)(i + COUNT) / 7);
    }
    CHECK(cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS);
}

static void cublas_adds_in_the_stream_of_its_handle(void **state)
{
    (void)state;
    assert_passes(axpy);
}

/* Each way to order two streams: a race would end the process. */
static void order_streams(void)
{
    CUstream s[2];
    CUevent event;
    CUdeviceptr memory;
    void *pinned;

    emu_child_context(0);
    s[0] = emu_child_stream();
    s[1] = emu_child_stream();
    memory = emu_child_memory(SIZE);
    pinned = emu_child_pinned(SIZE);
    CHECK_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (unsigned round = 0; round < 20; round++) {
        CHECK_OK(cuMemsetD8Async(memory, (unsigned char)round, SIZE, s[0]));
        CHECK_OK(cuEventRecord(event, s[0]));
        CHECK_OK(cuStreamWaitEvent(s[1], event, 0));
        CHECK_OK(cuMemcpyDtoHAsync(pinned, memory, SIZE, s[1]));
        CHECK_OK(cuEventRecord(event, s[1]));
        CHECK_OK(cuEventSynchronize(event));
        CHECK(((unsigned char *)pinned)[SIZE - 1] == round);
        CHECK_OK(cuMemsetD8Async(memory, 0, SIZE, s[0]));
        while (cuStreamQuery(s[0]) == CUDA_ERROR_NOT_READY) {
            (void)usleep(100);
        }
        CHECK_OK(cuMemsetD8Async(memory, 0, SIZE, s[1]));
        CHECK_OK(cuCtxSynchronize());
    }
}

static void events_and_the_host_order_streams(void **state)
{
    (void)state;
    assert_passes(order_streams);
}

static void order_by_null_stream(void)
{
    CUstream blocking;
    CUdeviceptr memory;

    emu_child_context(0);
    CHECK_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    memory = emu_child_memory(SIZE);
    for (unsigned round = 0; round < 10; round++) {
        CHECK_OK(cuMemsetD8Async(memory, 1, SIZE, blocking));
        CHECK_OK(cuMemsetD8Async(memory, 2, SIZE, NULL));
    }
    CHECK_OK(cuCtxSynchronize());
}

static void the_null_stream_is_ordered_with_streams_that_block(void **state)
{
    (void)state;
    assert_passes(order_by_null_stream);
}

static void send_fd(int to, int fd)
{
    char byte = 0;
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);

    if (head != NULL) {
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    }
    CHECK(sendmsg(to, &message, 0) == 1);
}

static int receive_fd(int from)
{
    char byte;
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    const struct cmsghdr *head;
    int fd = -1;

    CHECK(recvmsg(from, &message, 0) == 1);
    head = CMSG_FIRSTHDR(&message);
    if (head != NULL) {
        memcpy(&fd, CMSG_DATA(head), sizeof(fd));
    }
    CHECK(fd >= 0);
    return fd;
}

static void send_bytes(int to, const void *bytes, size_t size)
{
    CHECK(write(to, bytes, size) == (ssize_t)size);
}

static void receive_bytes(int from, void *bytes, size_t size)
{
    CHECK(recv(from, bytes, size, MSG_WAITALL) == (ssize_t)size);
}

static pid_t first_process;

/* Runs the functions in two processes that have a socket; the result is that
 * of the second, after which the first is killed. */
static void run_two(void (*first)(int socket), void (*second)(int socket))
{
    int pair[2];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    first_process = fork();
    if (first_process == 0) {
        /* A check of the second may end it. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(pair[1]);
        first(pair[0]);
        pause(); /* Its memory stays. */
        _exit(0);
    }
    (void)close(pair[0]);
    second(pair[1]);
    (void)kill(first_process, SIGKILL);
    (void)waitpid(first_process, NULL, 0);
}

static CUdeviceptr map_memory(CUmemGenericAllocationHandle memory, int device)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUdeviceptr address;

    CHECK_OK(cuMemAddressReserve(&address, CHUNK, 0, 0, 0));
    CHECK_OK(cuMemMap(address, CHUNK, 0, memory, 0));
    CHECK_OK(cuMemSetAccess(address, CHUNK, &access, 1));
    return address;
}

static CUmemGenericAllocationHandle create_memory(int device)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
    };
    CUmemGenericAllocationHandle memory;
    size_t granularity;

    CHECK_OK(cuMemGetAllocationGranularity(&granularity, &prop,
                                           CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(granularity == CHUNK);
    CHECK_OK(cuMemCreate(&memory, CHUNK, &prop, 0));
    return memory;
}

static void export_memory(int socket)
{
    CUmemGenericAllocationHandle memory;
    CUdeviceptr address;
    CUstream s;
    int fd;

    emu_child_context(0);
    s = emu_child_stream();
    memory = create_memory(0);
    address = map_memory(memory, 0);
    CHECK_OK(cuMemsetD8Async(address, 7, CHUNK, s));
    CHECK_OK(cuStreamSynchronize(s));
    CHECK_OK(cuMemExportToShareableHandle(
        &fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_fd(socket, fd);
}

static void import_memory(int socket)
{
    CUmemGenericAllocationHandle memory;
    CUdeviceptr address;
    CUstream s;
    int fd = receive_fd(socket);
    char *pinned;

    emu_child_context(0);
    CHECK_OK(cuMemImportFromShareableHandle(
        &memory, (void *)(intptr_t)fd,
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(stats_of(0).imports == 1);
    address = map_memory(memory, 0);
    CHECK_OK(cuMemRelease(memory)); /* Mapped memory stays. */
    s = emu_child_stream();
    pinned = emu_child_pinned(CHUNK);
    CHECK_OK(cuMemcpyDtoHAsync(pinned, address, CHUNK, s));
    CHECK_OK(cuStreamSynchronize(s));
    CHECK(pinned[0] == 7 && pinned[CHUNK - 1] == 7);
    CHECK_OK(cuMemUnmap(address, CHUNK));
    CHECK_OK(cuMemAddressFree(address, CHUNK));
    CHECK(stats_of(0).imports == 0);
}

static void share_by_descriptor(void)
{
    run_two(export_memory, import_memory);
}

static void memory_goes_to_another_process_as_a_descriptor(void **state)
{
    (void)state;
    assert_passes(share_by_descriptor);
}

static void map_without_access(void)
{
    CUmemGenericAllocationHandle memory;
    CUdeviceptr address;

    emu_child_context(0);
    memory = create_memory(0);
    CHECK_OK(cuMemAddressReserve(&address, CHUNK, 0, 0, 0));
    CHECK_OK(cuMemMap(address, CHUNK, 0, memory, 0));
    (void)cuMemsetD8Async(address, 1, 1, NULL);
}

static void mapped_memory_needs_access(void **state)
{
    (void)state;
    assert_ends(map_without_access, "device 0 has no access to the memory");
}

struct ipc_handles {
    CUipcMemHandle memory;
    CUipcEventHandle event;
};

/* Sends memory that is written, and an event that is recorded behind. */
static void send_written(int socket, CUstream s)
{
    struct ipc_handles handles;
    CUdeviceptr memory = emu_child_memory(SIZE);
    CUevent event;

    CHECK_OK(
        cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    CHECK_OK(cuIpcGetMemHandle(&handles.memory, memory));
    CHECK_OK(cuIpcGetEventHandle(&handles.event, event));
    CHECK_OK(cuMemsetD8Async(memory, 9, SIZE, s));
    CHECK_OK(cuEventRecord(event, s));
    send_bytes(socket, &handles, sizeof(handles));
}

static void write_soon(int socket)
{
    emu_child_context(0);
    send_written(socket, emu_child_stream());
}

/* The host does not learn of the end from the driver. */
static void write_before(int socket)
{
    emu_child_context(0);
    send_written(socket, emu_child_stream());
    while (stats_of(0).operations < 2) {
        (void)usleep(100);
    }
    send_bytes(socket, "", 1);
}

static void write_never(int socket)
{
    CUstream s;

    emu_child_context(0);
    s = emu_child_stream();
    pskv_emu_control()->hold(s);
    send_written(socket, s);
}

struct received {
    CUdeviceptr memory;
    CUevent event;
    CUstream stream;
    char *pinned;
};

static struct received receive_written(int socket)
{
    struct ipc_handles handles;
    struct received r;

    receive_bytes(socket, &handles, sizeof(handles));
    emu_child_context(0);
    r.stream = emu_child_stream();
    r.pinned = emu_child_pinned(SIZE);
    CHECK_OK(cuIpcOpenMemHandle(&r.memory, handles.memory,
                                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK_OK(cuIpcOpenEventHandle(&r.event, handles.event));
    return r;
}

static void copy_received(const struct received *r)
{
    CHECK_OK(cuMemcpyDtoHAsync(r->pinned, r->memory, SIZE, r->stream));
    CHECK_OK(cuStreamSynchronize(r->stream));
}

static void copy_after_event(int socket)
{
    struct received r = receive_written(socket);

    CHECK_OK(cuStreamWaitEvent(r.stream, r.event, 0));
    copy_received(&r);
    CHECK(r.pinned[0] == 9 && r.pinned[SIZE - 1] == 9);
    CHECK_OK(cuIpcCloseMemHandle(r.memory));
    CHECK_OK(cuEventDestroy(r.event));
}

/* That the write has happened does not order the copy behind it. */
static void copy_without_event(int socket)
{
    struct received r = receive_written(socket);
    char byte;

    receive_bytes(socket, &byte, 1);
    copy_received(&r);
}

static void copy_of_dead(int socket)
{
    struct received r = receive_written(socket);

    CHECK_OK(cuStreamWaitEvent(r.stream, r.event, 0));
    (void)kill(first_process, SIGKILL);
    (void)waitpid(first_process, NULL, 0);
    copy_received(&r); /* The event of a process that is gone has happened. */
    CHECK_RC(cuEventQuery(r.event), CUDA_SUCCESS);
}

static void share_with_event(void)
{
    run_two(write_soon, copy_after_event);
}

static void share_without_event(void)
{
    run_two(write_before, copy_without_event);
}

static void share_with_dead(void)
{
    run_two(write_never, copy_of_dead);
}

static void events_order_processes(void **state)
{
    (void)state;
    assert_passes(share_with_event);
}

static void a_missing_event_between_processes_is_found(void **state)
{
    (void)state;
    assert_ends(share_without_event, "cuda_emu: race: cuMemcpyDtoH");
}

static void a_process_that_dies_stops_no_other(void **state)
{
    (void)state;
    assert_passes(share_with_dead);
}

static void fail_allocations(void)
{
    CUdeviceptr memory;
    void *pinned;
    int usable;

    (void)setenv("PSKV_EMU_FAIL", "alloc:2,host:1+,p2p:1", 1);
    (void)setenv("PSKV_EMU_DEVICES", "2", 1);
    emu_child_context(0);
    CHECK_OK(cuMemAlloc(&memory, SIZE));
    CHECK_RC(cuMemAlloc(&memory, SIZE), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_OK(cuMemAlloc(&memory, SIZE));
    CHECK_RC(cuMemHostAlloc(&pinned, SIZE, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_RC(cuMemHostAlloc(&pinned, SIZE, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_OK(cuDeviceCanAccessPeer(&usable, 0, 1));
    CHECK(!usable);
}

static void use_up_memory(void)
{
    CUdeviceptr memory;
    size_t available;
    size_t total;

    (void)setenv("PSKV_EMU_MEMORY", "1M", 1);
    emu_child_context(0);
    CHECK_RC(cuMemAlloc(&memory, (1 << 20) + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_OK(cuMemAlloc(&memory, 1 << 19));
    CHECK_OK(cuMemGetInfo(&available, &total));
    CHECK(available == 1 << 19 && total == 1 << 20);
    CHECK_RC(cuMemAlloc(&memory, (1 << 19) + 1), CUDA_ERROR_OUT_OF_MEMORY);
}

static void allocations_fail_as_they_are_told_to(void **state)
{
    (void)state;
    assert_passes(fail_allocations);
    assert_passes(use_up_memory);
}

static void import_fails(int socket)
{
    struct ipc_handles handles;
    CUdeviceptr memory;

    (void)setenv("PSKV_EMU_FAIL", "import:1", 1);
    receive_bytes(socket, &handles, sizeof(handles));
    emu_child_context(0);
    CHECK_RC(cuIpcOpenMemHandle(&memory, handles.memory,
                                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
             CUDA_ERROR_INVALID_VALUE);
    CHECK_OK(cuIpcOpenMemHandle(&memory, handles.memory,
                                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    (void)kill(first_process, SIGKILL);
    (void)waitpid(first_process, NULL, 0);
    CHECK_OK(cuIpcCloseMemHandle(memory));
    CHECK_RC(cuIpcOpenMemHandle(&memory, handles.memory,
                                CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
             CUDA_ERROR_INVALID_HANDLE);
}

static void import_from_process(void)
{
    run_two(write_soon, import_fails);
}

static void an_import_fails_as_it_is_told_to(void **state)
{
    (void)state;
    assert_passes(import_from_process);
}

static void lose_device(void)
{
    CUdeviceptr memory;
    CUevent event;
    CUstream s;

    (void)setenv("PSKV_EMU_FAIL", "lost:2", 1);
    emu_child_context(0);
    s = emu_child_stream();
    memory = emu_child_memory(SIZE);
    CHECK_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK_OK(cuMemsetD8Async(memory, 1, SIZE, s));
    CHECK_OK(cuStreamSynchronize(s));
    CHECK_OK(cuMemsetD8Async(memory, 2, SIZE, s));
    CHECK_RC(cuStreamSynchronize(s), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_RC(cuMemsetD8Async(memory, 3, SIZE, s), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_RC(cuEventQuery(event), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_RC(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
}

static void a_device_is_lost_as_it_is_told_to(void **state)
{
    (void)state;
    assert_passes(lose_device);
}

static void find_entry_points(void)
{
    CUdriverProcAddressQueryResult status;
    const char *name;
    void *entry;

    CHECK_OK(cuGetProcAddress("cuMemAlloc", &entry, CUDA_VERSION, 0, &status));
    CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS && entry != NULL);
    CHECK_RC(cuGetProcAddress("cuNone", &entry, CUDA_VERSION, 0, &status),
             CUDA_ERROR_NOT_FOUND);
    CHECK_OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
    CHECK(strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
}

static void choose_devices(void)
{
    CUuuid uuid;
    int count;

    (void)setenv("PSKV_EMU_DEVICES", "4", 1);
    (void)setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    CHECK_OK(cuInit(0));
    CHECK_OK(cuDeviceGetCount(&count));
    CHECK(count == 2);
    CHECK_OK(cuDeviceGetUuid(&uuid, 0));
    CHECK(strcmp(uuid.bytes, "emulated 3") == 0);
}

static void have_no_device(void)
{
    (void)setenv("CUDA_VISIBLE_DEVICES", "", 1);
    CHECK_RC(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void the_environment_chooses_devices(void **state)
{
    (void)state;
    assert_passes(find_entry_points);
    assert_passes(choose_devices);
    assert_passes(have_no_device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_and_kernels_give_their_result),
        cmocka_unit_test(atomic_operations_count_every_thread),
        cmocka_unit_test(cublas_adds_in_the_stream_of_its_handle),
        cmocka_unit_test(events_and_the_host_order_streams),
        cmocka_unit_test(the_null_stream_is_ordered_with_streams_that_block),
        cmocka_unit_test(memory_goes_to_another_process_as_a_descriptor),
        cmocka_unit_test(mapped_memory_needs_access),
        cmocka_unit_test(events_order_processes),
        cmocka_unit_test(a_missing_event_between_processes_is_found),
        cmocka_unit_test(a_process_that_dies_stops_no_other),
        cmocka_unit_test(allocations_fail_as_they_are_told_to),
        cmocka_unit_test(an_import_fails_as_it_is_told_to),
        cmocka_unit_test(a_device_is_lost_as_it_is_told_to),
        cmocka_unit_test(the_environment_chooses_devices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
