/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_emu/child.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

void emu_child_check(bool holds, const char *text, const char *file, int line)
{
    if (!holds) {
        (void)fprintf(stderr, "%s:%d: %s\n", file, line, text);
        (void)fflush(stderr);
        _exit(EMU_CHILD_FAILED);
    }
}

bool emu_child_run(void (*run)(void), char *text, size_t text_cap)
{
    int output = memfd_create("output", MFD_CLOEXEC);
    ssize_t length;
    int status;
    pid_t pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        (void)dup2(output, STDERR_FILENO);
        (void)signal(SIGSEGV, SIG_DFL); /* cmocka has handlers of its own. */
        (void)signal(SIGABRT, SIG_DFL);
        run();
        _exit(0);
    }
    if (output < 0 || pid < 0 || waitpid(pid, &status, 0) != pid) {
        perror("emu_child_run");
        abort();
    }
    length = pread(output, text, text_cap - 1, 0);
    text[length < 0 ? 0 : length] = '\0';
    (void)close(output);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void emu_child_context(int device)
{
    CUcontext context;

    CHECK_OK(cuInit(0));
    CHECK_OK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK_OK(cuCtxSetCurrent(context));
}

CUstream emu_child_stream(void)
{
    CUstream stream;

    CHECK_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

CUdeviceptr emu_child_memory(size_t size)
{
    CUdeviceptr memory;

    CHECK_OK(cuMemAlloc(&memory, size));
    return memory;
}

void *emu_child_pinned(size_t size)
{
    void *memory;

    CHECK_OK(cuMemHostAlloc(&memory, size, CU_MEMHOSTALLOC_PORTABLE));
    return memory;
}

CUfunction emu_child_function(const char *name)
{
    static const char image[] = "any";
    CUmodule module;
    CUfunction function;

    CHECK_OK(cuModuleLoadData(&module, image));
    CHECK_OK(cuModuleGetFunction(&function, module, name));
    return function;
}

void emu_child_sum(CUstream stream, CUdeviceptr to, CUdeviceptr a,
                   CUdeviceptr b, uint64_t count)
{
    struct {
        CUdeviceptr to;
        CUdeviceptr from[2];
        uint64_t count;
    } args = {to, {a, b}, count};
    void *params[] = {&args};

    CHECK_OK(cuLaunchKernel(emu_child_function("emu_test_sum"), 2, 1, 1, 16, 1,
                            1, 0, stream, params, NULL));
}
