/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, functions and launches. The image of a module is not looked at: its
 * functions are the kernels that were compiled for the CPU. */
#include "kernel.h"
#include "memory.h"
#include "stream.h"

#include <string.h>

#define FUNCTIONS_MAX 128u

struct module {
    struct module *next;
    struct emu_context *context;
    bool unloaded;
    unsigned functions_count;
    struct function {
        struct module *module;
        const struct emu_kernel *kernel;
    } functions[FUNCTIONS_MAX];
};

/* Those of the process, unloaded ones as well: their handles are known. */
static struct module *modules;

static struct module *module_of(CUmodule handle)
{
    struct module *m = modules;

    while (m != NULL && (void *)m != (void *)handle) {
        m = m->next;
    }
    if (m != NULL && m->unloaded) {
        emu_die("a module is used after it was unloaded");
    }
    return m;
}

static const struct function *function_of(CUfunction handle)
{
    const char *at = (const char *)handle;

    for (struct module *m = modules; m != NULL; m = m->next) {
        const char *begin = (const char *)m->functions;

        if (at >= begin && at < begin + sizeof(m->functions)) {
            if (m->unloaded) {
                emu_die("a function is used after its module was unloaded");
            }
            return (const struct function *)handle;
        }
    }
    return NULL;
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
    struct emu_context *c;
    struct module *m;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (image == NULL) {
        return emu_leave(CUDA_ERROR_INVALID_VALUE);
    }
    m = emu_fails("module") ? NULL : calloc(1, sizeof(*m));
    if (m == NULL) {
        return emu_leave(CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    m->context = c;
    m->next = modules;
    modules = m;
    *module = (CUmodule)m;
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image,
                                    unsigned int numOptions,
                                    CUjit_option *options, void **optionValues)
{
    (void)numOptions;
    (void)options;
    (void)optionValues;
    return cuModuleLoadData(module, image);
}

CUresult CUDAAPI cuModuleUnload(CUmodule hmod)
{
    struct emu_context *c;
    struct module *m;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    m = module_of(hmod);
    if (m == NULL) {
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    m->unloaded = true;
    return emu_leave(CUDA_SUCCESS);
}

static struct function *function_in(struct module *m,
                                    const struct emu_kernel *kernel)
{
    struct function *f = m->functions;

    while (f < m->functions + m->functions_count && f->kernel != kernel) {
        f++;
    }
    if (f == m->functions + FUNCTIONS_MAX) {
        emu_die("a module with more than %u functions", FUNCTIONS_MAX);
    }
    if (f == m->functions + m->functions_count) {
        *f = (struct function){m, kernel};
        m->functions_count++;
    }
    return f;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod,
                                     const char *name)
{
    const struct emu_kernel *kernel = pskv_emu_kernel_find(name);
    struct emu_context *c;
    struct module *m;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    m = module_of(hmod);
    if (m == NULL) {
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    if (kernel == NULL) {
        return emu_leave(CUDA_ERROR_NOT_FOUND);
    }
    *hfunc = (CUfunction)function_in(m, kernel);
    return emu_leave(CUDA_SUCCESS);
}

CUresult CUDAAPI cuFuncGetAttribute(int *pi, CUfunction_attribute attrib,
                                    CUfunction hfunc)
{
    CUresult rc = emu_enter();

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (function_of(hfunc) == NULL) {
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    *pi = attrib == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return emu_leave(CUDA_SUCCESS);
}

/* Few threads, so that the loops of a kernel turn. */
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(
    int *minGridSize, int *blockSize, CUfunction func,
    CUoccupancyB2DSize blockSizeToDynamicSMemSize, size_t dynamicSMemSize,
    int blockSizeLimit)
{
    CUresult rc = emu_enter();

    (void)blockSizeToDynamicSMemSize;
    (void)dynamicSMemSize;
    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    if (function_of(func) == NULL) {
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    *minGridSize = 4;
    *blockSize = blockSizeLimit > 0 && blockSizeLimit < 32 ? blockSizeLimit
                                                           : 32;
    return emu_leave(CUDA_SUCCESS);
}

struct launch_op {
    struct emu_op op;
    const struct emu_kernel *kernel;
    struct emu_grid grid;
    void **params;
    unsigned opened_count;
    struct emu_range **opened;
};

static bool device_may(const struct launch_op *l, const struct emu_range *r,
                       bool write)
{
    const struct emu_context *c = l->op.stream->context;
    uint32_t devices = write ? r->writers : r->readers;

    if (!emu_range_is_device(r)) {
        return true;
    }
    return (devices & 1u << c->device) != 0 ||
           (r->kind != EMU_RANGE_MAPPED &&
            (c->peers & 1u << emu_backing_device(r->backing)) != 0);
}

static bool open_window(void *launch, uintptr_t address,
                        struct emu_window *ret_window)
{
    struct launch_op *l = launch;
    struct emu_range *r;

    pthread_mutex_lock(&emu.lock);
    r = emu_range_find(address);
    if (r != NULL) {
        if (!device_may(l, r, false)) {
            emu_die("kernel %s: device %d has no access to the memory",
                    l->kernel->name, (int)l->op.stream->context->device);
        }
        l->opened = realloc(l->opened,
                            (l->opened_count + 1) * sizeof(l->opened[0]));
        if (l->opened == NULL) {
            emu_die("no memory for a launch");
        }
        l->opened[l->opened_count++] = r;
        emu_op_use(&l->op, r);
        emu_range_open(r);
        *ret_window = (struct emu_window){r->base, r->base + r->size, r};
    }
    pthread_mutex_unlock(&emu.lock);
    return r != NULL;
}

static void note_access(void *launch, const struct emu_window *window,
                        uintptr_t begin, uintptr_t end, bool write)
{
    struct launch_op *l = launch;
    struct emu_range *r = window->range;
    struct pskv_emu_stats *stats = emu_stats(l->op.stream->context->device);
    struct emu_span span = {
        .range = r,
        .offset = r->offset + (begin - window->begin),
        .size = end - begin,
    };

    if (write && !device_may(l, r, true)) {
        emu_die("kernel %s writes memory that device %d may only read",
                l->kernel->name, (int)l->op.stream->context->device);
    }
    emu_op_access(&l->op, &span, write);
    pthread_mutex_lock(&emu.lock);
    *(write ? &stats->kernel_written : &stats->kernel_read) += span.size;
    if (!write && r->backing != NULL &&
        emu_backing_device(r->backing) != l->op.stream->context->device) {
        stats->peer_to_device += span.size;
    }
    pthread_mutex_unlock(&emu.lock);
}

static void fail_launch(void *launch, const char *text, uintptr_t address)
{
    const struct launch_op *l = launch;

    emu_die("kernel %s %s (0x%llx)", l->kernel->name, text,
            (unsigned long long)address);
}

static void run_launch(struct emu_op *op)
{
    struct launch_op *l = (struct launch_op *)op;
    struct emu_kernel_host host = {
        .launch = l,
        .open = open_window,
        .access = note_access,
        .fail = fail_launch,
    };
    uint64_t begin;
    uint64_t end;

    emu_address_limits(&begin, &end);
    host.device_begin = begin;
    host.device_end = end;
    pskv_emu_kernel_run(l->kernel, &l->grid, l->params, &host);
}

static void fini_launch(struct emu_op *op)
{
    struct launch_op *l = (struct launch_op *)op;

    for (unsigned i = 0; i < l->opened_count; i++) {
        emu_range_close(l->opened[i]);
    }
    for (size_t i = 0; i < l->kernel->params_count; i++) {
        free(l->params[i]);
    }
    free(l->params);
    free(l->opened);
}

/* Memory that an argument points to is not freed before the kernel has run;
 * pointers within structs are at multiples of their size. */
static void use_pointers(struct emu_op *op, const char *param, size_t size)
{
    for (size_t i = 0; i + sizeof(uint64_t) <= size; i += sizeof(uint64_t)) {
        uint64_t word;

        memcpy(&word, param + i, sizeof(word));
        if (emu_address_is_device(word)) {
            emu_op_use(op, emu_range_find(word));
        }
    }
}

static void copy_params(struct launch_op *l, void **params)
{
    const struct emu_kernel *k = l->kernel;

    l->params = calloc(k->params_count + 1, sizeof(void *));
    if (l->params == NULL) {
        emu_die("no memory for a launch");
    }
    for (size_t i = 0; i < k->params_count; i++) {
        /* As aligned as any type of an argument. */
        size_t size = (k->params_sizes[i] + 63) / 64 * 64;

        l->params[i] = aligned_alloc(64, size);
        if (l->params[i] == NULL) {
            emu_die("no memory for a launch");
        }
        memcpy(l->params[i], params[i], k->params_sizes[i]);
        use_pointers(&l->op, l->params[i], k->params_sizes[i]);
    }
}

static bool is_valid_grid(const struct emu_grid *g)
{
    uint64_t threads = 1;

    for (int i = 0; i < 3; i++) {
        if (g->blocks[i] == 0 || g->threads[i] == 0 || g->threads[i] > 1024) {
            return false;
        }
        threads *= g->threads[i];
    }
    return threads <= 1024 && g->blocks[1] <= 65535 && g->blocks[2] <= 65535;
}

static CUresult launch(const struct emu_context *c, const struct function *f,
                       const struct emu_grid *grid, struct emu_stream *s,
                       void **params)
{
    struct launch_op *l;

    if (f->module->context != s->context || s->context != c) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!is_valid_grid(grid) ||
        (params == NULL && f->kernel->params_count > 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (emu_fails("launch")) {
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    }
    l = emu_op_new(sizeof(*l), f->kernel->name);
    l->op.run = run_launch;
    l->op.fini = fini_launch;
    l->kernel = f->kernel;
    l->grid = *grid;
    copy_params(l, params);
    emu_stats(c->device)->launches++;
    emu_op_enqueue(s, &l->op);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX,
                                unsigned int gridDimY, unsigned int gridDimZ,
                                unsigned int blockDimX, unsigned int blockDimY,
                                unsigned int blockDimZ,
                                unsigned int sharedMemBytes, CUstream hStream,
                                void **kernelParams, void **extra)
{
    struct emu_grid grid = {{gridDimX, gridDimY, gridDimZ},
                            {blockDimX, blockDimY, blockDimZ}};
    const struct function *function;
    struct emu_context *c;
    struct emu_stream *s;
    CUresult rc = emu_enter_context(&c);

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    function = function_of(f);
    if (function == NULL) {
        return emu_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    if (sharedMemBytes != 0 || extra != NULL) {
        return emu_leave(CUDA_ERROR_NOT_SUPPORTED);
    }
    rc = emu_stream_of(c, hStream, &s);
    if (rc == CUDA_SUCCESS) {
        rc = launch(c, function, &grid, s, kernelParams);
    }
    return emu_leave(rc);
}
