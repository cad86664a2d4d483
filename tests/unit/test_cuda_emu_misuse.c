/* SPDX-License-Identifier: Apache-2.0 */
/* Each kind of misuse that the emulated driver finds ends the process with a
 * message that names it. */
#include "cuda_emu/child.h"
#include "cuda_emu/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE 4096u

const struct pskv_emu_control *pskv_emu_control(void);

/* Runs it, which has to end the process with this text. */
static void assert_ends(void (*run)(void), const char *text)
{
    char output[16384];

    if (emu_child_run(run, output, sizeof(output)) ||
        strstr(output, text) == NULL) {
        fail_msg("expected \"%s\", got: %s", text, output);
    }
}

static void assert_passes(void (*run)(void))
{
    char output[16384];

    if (!emu_child_run(run, output, sizeof(output))) {
        fail_msg("%s", output);
    }
}

static CUdeviceptr two_streams(CUstream stream[2])
{
    emu_child_context(0);
    stream[0] = emu_child_stream();
    stream[1] = emu_child_stream();
    return emu_child_memory(SIZE);
}

static void copy_without_event(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);
    void *pinned = emu_child_pinned(SIZE);

    CHECK_OK(cuMemsetD8Async(memory, 1, SIZE, s[0]));
    CHECK_OK(cuMemcpyDtoHAsync(pinned, memory, SIZE, s[1]));
    CHECK_OK(cuCtxSynchronize());
}

static void an_event_that_is_not_waited_for_is_found(void **state)
{
    (void)state;
    assert_ends(copy_without_event, "cuda_emu: race: ");
}

static void kernel_without_event(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    CHECK_OK(cuMemsetD8Async(memory, 0, SIZE, s[0]));
    CHECK_OK(cuStreamSynchronize(s[0]));
    emu_child_sum(s[0], memory, memory + 64, memory + 128, 16);
    /* The last number that the kernel writes. */
    CHECK_OK(cuMemsetD8Async(memory + 60, 1, 4, s[1]));
    CHECK_OK(cuCtxSynchronize());
}

static void a_kernel_is_a_party_to_a_race(void **state)
{
    (void)state;
    assert_ends(kernel_without_event, "race: ");
}

static void kernel_beside_others(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    CHECK_OK(cuMemsetD8Async(memory, 0, SIZE, s[0]));
    CHECK_OK(cuStreamSynchronize(s[0]));
    emu_child_sum(s[0], memory, memory + 64, memory + 128, 16);
    CHECK_OK(cuMemsetD8Async(memory + 192, 1, SIZE - 192, s[1]));
    CHECK_OK(cuCtxSynchronize());
}

static void only_the_bytes_of_a_kernel_count(void **state)
{
    (void)state;
    assert_passes(kernel_beside_others);
}

static void buffer_given_back_early(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);
    void *pinned = emu_child_pinned(SIZE);

    CHECK_OK(cuMemsetD8Async(memory, 1, SIZE, s[0]));
    CHECK_OK(cuStreamSynchronize(s[0]));
    CHECK_OK(cuMemcpyDtoHAsync(pinned, memory, SIZE, s[0]));
    /* The next user of the pinned buffer begins too early. */
    CHECK_OK(cuMemcpyHtoDAsync(memory, pinned, SIZE, s[1]));
    CHECK_OK(cuCtxSynchronize());
}

static void a_pinned_buffer_that_is_used_too_early_is_found(void **state)
{
    (void)state;
    assert_ends(buffer_given_back_early, "race: ");
}

static void free_while_queued(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    pskv_emu_control()->hold(s[0]);
    CHECK_OK(cuMemsetD8Async(memory, 1, SIZE, s[0]));
    (void)cuMemFree(memory);
}

static void free_before_kernel(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    pskv_emu_control()->hold(s[0]);
    emu_child_sum(s[0], memory, memory + 64, memory + 128, 16);
    (void)cuMemFree(memory);
}

static void free_pinned_while_queued(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);
    void *pinned = emu_child_pinned(SIZE);

    pskv_emu_control()->hold(s[0]);
    CHECK_OK(cuMemcpyHtoDAsync(memory, pinned, SIZE, s[0]));
    (void)cuMemFreeHost(pinned);
}

static void memory_is_not_freed_before_its_last_use(void **state)
{
    (void)state;
    assert_ends(free_while_queued, "that 1 queued operations use");
    assert_ends(free_before_kernel, "that 1 queued operations use");
    assert_ends(free_pinned_while_queued, "that 1 queued operations use");
}

static void copy_to_freed(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    CHECK_OK(cuMemFree(memory));
    CHECK_OK(cuMemsetD8Async(memory, 1, SIZE, s[0]));
}

static void kernel_on_freed(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);
    CUdeviceptr other = emu_child_memory(SIZE);

    CHECK_OK(cuMemFree(other));
    emu_child_sum(s[0], memory, other, memory, 16);
    CHECK_OK(cuCtxSynchronize());
}

static void free_twice(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    CHECK_OK(cuMemFree(memory));
    CHECK_OK(cuMemFree(memory));
}

static void memory_is_not_used_after_it_was_freed(void **state)
{
    (void)state;
    assert_ends(copy_to_freed, "is freed, or was never allocated");
    assert_ends(kernel_on_freed,
                "kernel emu_test_sum accesses memory that is freed");
    assert_ends(free_twice, "is freed already");
}

static void copy_beyond(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    CHECK_OK(cuMemsetD8Async(memory, 1, SIZE + 1, s[0]));
}

static void kernel_beyond(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    CHECK_OK(cuMemsetD8Async(memory, 1, SIZE, s[0]));
    emu_child_sum(s[0], memory, memory, memory, SIZE / 4 + 1);
    CHECK_OK(cuCtxSynchronize());
}

static void bytes_beyond_an_allocation_are_not_used(void **state)
{
    (void)state;
    assert_ends(copy_beyond, "is freed, or was never allocated");
    assert_ends(kernel_beyond, "kernel emu_test_sum accesses memory");
}

static void copy_onto_itself(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    CHECK_OK(cuMemcpyDtoDAsync(memory + 8, memory, 16, s[0]));
}

static void source_and_destination_do_not_overlap(void **state)
{
    (void)state;
    assert_ends(copy_onto_itself, "source and destination overlap");
}

static void host_reads_device(void)
{
    CUstream s[2];
    volatile char *memory = (volatile char *)(uintptr_t)two_streams(s);

    (void)*memory;
}

static void kernel_reads_host(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);
    void *host = calloc(1, 64);

    emu_child_sum(s[0], memory, (uintptr_t)host, memory, 16);
    CHECK_OK(cuCtxSynchronize());
}

static void copy_from_wrong_side(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    (void)cuMemcpyHtoDAsync(memory, (void *)(uintptr_t)(memory + 64), 64, s[0]);
}

static void host_and_device_keep_to_their_memory(void **state)
{
    (void)state;
    assert_ends(host_reads_device, "host code touches device memory");
    assert_ends(kernel_reads_host, "memory of the host that is not pinned");
    assert_ends(copy_from_wrong_side, "is one of a device");
}

static void kernel_on_peer(void)
{
    CUdeviceptr far;

    (void)setenv("PSKV_EMU_DEVICES", "2", 1);
    emu_child_context(1);
    far = emu_child_memory(SIZE);
    emu_child_context(0);
    emu_child_sum(emu_child_stream(), far, far, far, 16);
    CHECK_OK(cuCtxSynchronize());
}

static void kernel_on_enabled_peer(void)
{
    CUdeviceptr far;
    CUcontext peer;

    (void)setenv("PSKV_EMU_DEVICES", "2", 1);
    emu_child_context(1);
    CHECK_OK(cuCtxGetCurrent(&peer));
    far = emu_child_memory(SIZE);
    emu_child_context(0);
    CHECK_OK(cuCtxEnablePeerAccess(peer, 0));
    CHECK_RC(cuCtxEnablePeerAccess(peer, 0),
             CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    emu_child_sum(emu_child_stream(), far, far, far, 16);
    CHECK_OK(cuCtxSynchronize());
}

static void kernels_need_access_to_a_peer(void **state)
{
    (void)state;
    assert_ends(kernel_on_peer, "device 0 has no access to the memory");
    assert_passes(kernel_on_enabled_peer);
}

static void stream_after_destroy(void)
{
    CUstream s[2];
    CUdeviceptr memory = two_streams(s);

    CHECK_OK(cuStreamDestroy(s[0]));
    (void)cuMemsetD8Async(memory, 1, SIZE, s[0]);
}

static void event_after_destroy(void)
{
    CUstream s[2];
    CUevent event;

    (void)two_streams(s);
    CHECK_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK_OK(cuEventDestroy(event));
    (void)cuEventRecord(event, s[0]);
}

static void objects_are_not_used_after_their_end(void **state)
{
    (void)state;
    assert_ends(stream_after_destroy, "is used after it was destroyed");
    assert_ends(event_after_destroy, "is used after it was destroyed");
}

static void no_context(void)
{
    CUdeviceptr memory;

    CHECK_RC(cuMemAlloc(&memory, SIZE), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_OK(cuInit(0));
    CHECK_RC(cuMemAlloc(&memory, SIZE), CUDA_ERROR_INVALID_CONTEXT);
}

static void other_context(void)
{
    CUstream stream;
    CUevent event;
    CUfunction function;
    CUdeviceptr memory;
    uint64_t count = 1;
    void *params[] = {&memory, &count};

    (void)setenv("PSKV_EMU_DEVICES", "2", 1);
    emu_child_context(1);
    stream = emu_child_stream();
    emu_child_context(0);
    memory = emu_child_memory(SIZE);
    function = emu_child_function("emu_test_count");
    CHECK_RC(
        cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL),
        CUDA_ERROR_INVALID_HANDLE);
    CHECK_OK(cuEventCreate(&event, 0));
    CHECK_RC(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
}

static void call_driver(void *rc)
{
    *(CUresult *)rc = cuCtxSynchronize();
}

static void call_in_host_function(void)
{
    CUresult rc = CUDA_SUCCESS;
    CUstream s[2];

    (void)two_streams(s);
    CHECK_OK(cuLaunchHostFunc(s[0], call_driver, &rc));
    CHECK_OK(cuStreamSynchronize(s[0]));
    CHECK(rc == CUDA_ERROR_NOT_PERMITTED);
}

static void misuse_that_the_driver_reports_is_reported(void **state)
{
    (void)state;
    assert_passes(no_context);
    assert_passes(other_context);
    assert_passes(call_in_host_function);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_that_is_not_waited_for_is_found),
        cmocka_unit_test(a_kernel_is_a_party_to_a_race),
        cmocka_unit_test(only_the_bytes_of_a_kernel_count),
        cmocka_unit_test(a_pinned_buffer_that_is_used_too_early_is_found),
        cmocka_unit_test(memory_is_not_freed_before_its_last_use),
        cmocka_unit_test(memory_is_not_used_after_it_was_freed),
        cmocka_unit_test(bytes_beyond_an_allocation_are_not_used),
        cmocka_unit_test(source_and_destination_do_not_overlap),
        cmocka_unit_test(host_and_device_keep_to_their_memory),
        cmocka_unit_test(kernels_need_access_to_a_peer),
        cmocka_unit_test(objects_are_not_used_after_their_end),
        cmocka_unit_test(misuse_that_the_driver_reports_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
