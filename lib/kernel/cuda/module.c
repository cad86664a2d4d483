/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the module, the device, and its lanes. */
#include "kernel/cuda/module.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS     256u
/* Blocks for each multiprocessor: fill it, and leave a loop to each thread. */
#define BLOCKS_EACH 8u
/* Arenas grow to a multiple of this. */
#define ARENA_UNIT  (1024u * 1024u)

/* The kernels as a fat binary (image.S); one byte if there is none. */
extern const unsigned char ps_cuda_image[];

static const char *const kernel_names[] = {
#define NAME(name, type) #name,
    PS_CUDA_KERNELS(NAME)
#undef NAME
};

/* ---------------------------------------------------------- memory, copies */

void ps_cuda_count_copies(struct ps_cuda *c, uint64_t up, uint64_t down)
{
    atomic_fetch_add(&c->bytes_up, up);
    atomic_fetch_add(&c->bytes_down, down);
}

/* The driver's allocation of device memory and its end, counted. */
static ps_cu_result alloc_memory(struct ps_cuda *c, uint64_t bytes,
                                 ps_cu_address *ret_address)
{
    ps_cu_result rc = c->cu.alloc(ret_address, bytes);

    if (rc == 0) {
        atomic_fetch_add(&c->memory_held, bytes);
    }
    return rc;
}

static void free_memory(struct ps_cuda *c, ps_cu_address address,
                        uint64_t bytes)
{
    (void)c->cu.free(address);
    atomic_fetch_sub(&c->memory_held, bytes);
}

/* ------------------------------------------------------------------- lanes */

const char *ps_cuda_error(const struct ps_cuda *c, ps_cu_result error)
{
    const char *name = NULL;

    if (c->cu.error_name(error, &name) != 0 || name == NULL) {
        return "unknown error of the driver";
    }
    return name;
}

static void free_slot(const struct ps_cuda *c, struct ps_cuda_slot *s)
{
    if (s->blas != NULL) {
        (void)c->blas.destroy(s->blas);
    }
    if (s->stream != NULL) {
        (void)c->cu.stream_free(s->stream);
    }
    if (s->device != 0) {
        (void)c->cu.free(s->device);
    }
    if (s->host != NULL) {
        (void)c->cu.host_free(s->host);
    }
}

static void free_lane(const struct ps_cuda *c, struct ps_cuda_lane *lane)
{
    for (unsigned i = 0; i < PS_CUDA_SLOTS; i++) {
        free_slot(c, &lane->slots[i]);
    }
    free(lane);
}

static bool init_slot(const struct ps_cuda *c, struct ps_cuda_slot *s)
{
    if (c->cu.stream_new(&s->stream, PS_CU_STREAM_INDEPENDENT) != 0) {
        return false;
    }
    /* Without a handle, the module's own kernel adds. */
    if (c->blas.library != NULL && c->blas.create(&s->blas) == 0 &&
        c->blas.set_stream(s->blas, s->stream) != 0) {
        (void)c->blas.destroy(s->blas);
        s->blas = NULL;
    }
    return true;
}

static struct ps_cuda_lane *new_lane(const struct ps_cuda *c)
{
    struct ps_cuda_lane *lane = calloc(1, sizeof(*lane));

    for (unsigned i = 0; lane != NULL && i < PS_CUDA_SLOTS; i++) {
        if (!init_slot(c, &lane->slots[i])) {
            free_lane(c, lane);
            return NULL;
        }
    }
    return lane;
}

struct ps_cuda_lane *ps_cuda_lane_get(struct ps_cuda *c)
{
    struct ps_cuda_lane *lane;

    pthread_mutex_lock(&c->lock);
    lane = c->idle;
    if (lane != NULL) {
        c->idle = lane->next;
    }
    pthread_mutex_unlock(&c->lock);
    return lane != NULL ? lane : new_lane(c);
}

void ps_cuda_lane_put(struct ps_cuda *c, struct ps_cuda_lane *lane)
{
    pthread_mutex_lock(&c->lock);
    lane->next = c->idle;
    c->idle = lane;
    pthread_mutex_unlock(&c->lock);
}

static uint64_t arena_size(uint64_t bytes)
{
    return (bytes + ARENA_UNIT - 1) / ARENA_UNIT * ARENA_UNIT;
}

ps_cu_result ps_cuda_slot_reserve(struct ps_cuda *c, struct ps_cuda_slot *s,
                                  uint64_t host_bytes, uint64_t device_bytes)
{
    ps_cu_result rc;

    if (s->device_size < device_bytes) {
        const uint64_t size = arena_size(device_bytes);

        if (s->device != 0) {
            free_memory(c, s->device, s->device_size);
            s->device = 0;
            s->device_size = 0;
        }
        rc = alloc_memory(c, size, &s->device);
        if (rc != 0) {
            return rc;
        }
        s->device_size = size;
    }
    if (s->host_size < host_bytes) {
        const uint64_t size = arena_size(host_bytes);
        void *host = NULL;

        if (s->host != NULL) {
            (void)c->cu.host_free(s->host);
            s->host = NULL;
            s->host_size = 0;
        }
        rc = c->cu.host_alloc(&host, size, PS_CU_HOST_PORTABLE);
        if (rc != 0) {
            return rc;
        }
        s->host = host;
        s->host_size = size;
    }
    return 0;
}

/* ---------------------------------------------------------------- launches */

unsigned ps_cuda_blocks(const struct ps_cuda *c, uint64_t threads)
{
    const uint64_t blocks = threads / THREADS + (threads % THREADS != 0);

    return blocks < c->blocks_max ? (unsigned)blocks : c->blocks_max;
}

static ps_cu_result launch(const struct ps_cuda *c, struct ps_cuda_slot *s,
                           enum ps_cuda_kernel kernel, const void *argument,
                           const unsigned shape[2])
{
    void *arguments[1] = {(void *)(uintptr_t)argument};

    return c->cu.launch(c->kernels[kernel], shape[0], 1, 1, shape[1], 1, 1, 0,
                        s->stream, arguments, NULL);
}

ps_cu_result ps_cuda_launch(const struct ps_cuda *c, struct ps_cuda_slot *s,
                            enum ps_cuda_kernel kernel, const void *argument,
                            uint64_t threads)
{
    const unsigned shape[2] = {ps_cuda_blocks(c, threads), THREADS};

    return threads == 0 ? 0 : launch(c, s, kernel, argument, shape);
}

ps_cu_result ps_cuda_launch_block(const struct ps_cuda *c,
                                  struct ps_cuda_slot *s,
                                  enum ps_cuda_kernel kernel,
                                  const void *argument, unsigned threads)
{
    const unsigned shape[2] = {1, threads};

    return launch(c, s, kernel, argument, shape);
}

/* ------------------------------------------------------------------- table */

static int refuse(const struct ps_cuda *c, const char *call, ps_cu_result error,
                  char *why, uint64_t why_cap)
{
    (void)snprintf(why, why_cap, "%s: %s", call, ps_cuda_error(c, error));
    return error == PS_CU_OUT_OF_MEMORY ? PS_E_NOMEM : PS_E_IO;
}

static void describe_device(struct ps_cuda *c)
{
    size_t memory = 0;

    (void)snprintf(c->name, sizeof(c->name), "GPU");
    (void)c->cu.device_name(c->name, (int)sizeof(c->name), c->device);
    (void)c->cu.device_memory(&memory, c->device);
    c->memory = memory;
}

static int find_device(struct ps_cuda *c, uint32_t number, char *why,
                       uint64_t why_cap)
{
    int count = 0;
    ps_cu_result rc = c->cu.init(0);

    if (rc != 0) {
        return refuse(c, "cuInit", rc, why, why_cap);
    }
    rc = c->cu.device_count(&count);
    if (rc != 0) {
        return refuse(c, "cuDeviceGetCount", rc, why, why_cap);
    }
    if (number >= (unsigned)count) {
        (void)snprintf(why, why_cap, "no GPU %u: there are %d", number, count);
        return PS_E_NOENT;
    }
    rc = c->cu.device(&c->device, (int)number);
    if (rc != 0) {
        return refuse(c, "cuDeviceGet", rc, why, why_cap);
    }
    (void)c->cu.version(&c->version);
    describe_device(c);
    return 0;
}

/* With the context current. */
static int load_kernels(struct ps_cuda *c, char *why, uint64_t why_cap)
{
    int processors = 0;
    ps_cu_result rc = c->cu.load(&c->module, ps_cuda_image);

    if (rc != 0) {
        return refuse(c, "cuModuleLoadData", rc, why, why_cap);
    }
    for (unsigned i = 0; i < PS_CUDA_KERNEL_COUNT; i++) {
        rc = c->cu.function(&c->kernels[i], c->module, kernel_names[i]);
        if (rc != 0) {
            return refuse(c, kernel_names[i], rc, why, why_cap);
        }
    }
    rc = c->cu.attribute(&processors, PS_CU_MULTIPROCESSORS, c->device);
    c->blocks_max = BLOCKS_EACH *
                    (rc == 0 && processors > 0 ? (unsigned)processors : 1);
    return 0;
}

static void close_module(void *kernel)
{
    struct ps_cuda *c = kernel;

    if (c == NULL) {
        return;
    }
    (void)c->cu.push(c->context);
    while (c->idle != NULL) {
        struct ps_cuda_lane *lane = c->idle;

        c->idle = lane->next;
        free_lane(c, lane);
    }
    if (c->module != NULL) {
        (void)c->cu.unload(c->module);
    }
    (void)c->cu.pop(&c->context);
    (void)c->cu.unretain(c->device);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void find_blas_version(struct ps_cuda *c)
{
    struct ps_cuda_lane *lane = ps_cuda_lane_get(c);

    if (lane == NULL) {
        return;
    }
    if (lane->slots[0].blas != NULL) {
        (void)c->blas.version(lane->slots[0].blas, &c->blas_version);
    }
    ps_cuda_lane_put(c, lane);
}

/* Loads kernels and cuBLAS, and makes a first lane. */
static int prepare(struct ps_cuda *c, char *why, uint64_t why_cap)
{
    int rc = load_kernels(c, why, why_cap);

    if (rc == 0) {
        ps_cublas_load(&c->blas);
        find_blas_version(c);
    }
    return rc;
}

static int32_t open_module(uint32_t device, void **ret_kernel, char *why,
                           uint64_t why_cap)
{
    struct ps_cuda *c = calloc(1, sizeof(*c));
    ps_cu_context old;
    int rc;

    if (c == NULL) {
        return PS_E_NOMEM;
    }
    rc = ps_cu_load(&c->cu, why, why_cap);
    if (rc == 0) {
        rc = find_device(c, device, why, why_cap);
    }
    if (rc != 0) {
        free(c);
        return rc;
    }
    ps_cu_result error = c->cu.retain(&c->context, c->device);

    if (error != 0) {
        rc = refuse(c, "cuDevicePrimaryCtxRetain", error, why, why_cap);
        free(c);
        return rc;
    }
    pthread_mutex_init(&c->lock, NULL);
    error = c->cu.push(c->context);
    rc = error != 0 ? refuse(c, "cuCtxPushCurrent", error, why, why_cap)
                    : prepare(c, why, why_cap);
    if (error == 0) {
        (void)c->cu.pop(&old);
    }
    if (rc != 0) {
        close_module(c);
        return rc;
    }
    *ret_kernel = c;
    return 0;
}

static int32_t submit(void *kernel, const struct ps_kernel_range *range,
                      uint64_t *ret_done, char *why, uint64_t why_cap)
{
    struct ps_cuda *c = kernel;
    ps_cu_context old;
    ps_cu_result error = c->cu.push(c->context);

    *ret_done = range->from;
    if (error != 0) {
        return refuse(c, "cuCtxPushCurrent", error, why, why_cap);
    }
    int32_t rc = ps_cuda_run(c, range, ret_done, why, why_cap);

    (void)c->cu.pop(&old);
    return rc;
}

static void describe(void *kernel, char *text, uint64_t cap)
{
    const struct ps_cuda *c = kernel;
    char blas[32] = "none";
    int major = 0;
    int minor = 0;

    (void)c->cu.attribute(&major, PS_CU_CAPABILITY_MAJOR, c->device);
    (void)c->cu.attribute(&minor, PS_CU_CAPABILITY_MINOR, c->device);
    if (c->blas_version > 0) {
        (void)snprintf(blas, sizeof(blas), "%d", c->blas_version);
    }
    (void)snprintf(text, cap,
                   "%s capability %d.%d memory %lluMiB driver %d.%d "
                   "cublas %s",
                   c->name, major, minor, (unsigned long long)c->memory >> 20,
                   c->version / 1000, c->version % 1000 / 10, blas);
}

/* Makes the context current; false: the device has failed. */
static bool enter(const struct ps_cuda *c)
{
    return c->cu.push(c->context) == 0;
}

static void leave(const struct ps_cuda *c)
{
    ps_cu_context old;

    (void)c->cu.pop(&old);
}

static int32_t code_of(ps_cu_result error)
{
    return error == 0 ? 0 : error == PS_CU_OUT_OF_MEMORY ? PS_E_NOMEM : PS_E_IO;
}

static int32_t device_alloc(void *kernel, uint64_t bytes, uint64_t *ret_address)
{
    ps_cu_address address = 0;
    ps_cu_result error;

    if (!enter(kernel)) {
        return PS_E_IO;
    }
    error = alloc_memory(kernel, bytes, &address);
    leave(kernel);
    if (error == 0) {
        *ret_address = address;
    }
    return code_of(error);
}

static void device_free(void *kernel, uint64_t address, uint64_t bytes)
{
    if (enter(kernel)) {
        free_memory(kernel, address, bytes);
        leave(kernel);
    }
}

/* Copies to the device if `up`, else from it, and waits. */
static int32_t copy_memory(struct ps_cuda *c, uint64_t address, void *host,
                           uint64_t bytes, bool up)
{
    struct ps_cuda_lane *lane;
    ps_cu_result error = PS_CU_OUT_OF_MEMORY;

    if (!enter(c)) {
        return PS_E_IO;
    }
    lane = ps_cuda_lane_get(c);
    if (lane != NULL) {
        const ps_cu_stream stream = lane->slots[0].stream;

        error = up ? c->cu.to_device(address, host, bytes, stream)
                   : c->cu.to_host(host, address, bytes, stream);
        error = error == 0 ? c->cu.wait(stream) : error;
        ps_cuda_count_copies(c, up ? bytes : 0, up ? 0 : bytes);
        ps_cuda_lane_put(c, lane);
    }
    leave(c);
    return code_of(error);
}

static int32_t upload(void *kernel, uint64_t address, const void *from,
                      uint64_t bytes)
{
    return copy_memory(kernel, address, (void *)(uintptr_t)from, bytes, true);
}

static int32_t download(void *kernel, uint64_t address, void *to,
                        uint64_t bytes)
{
    return copy_memory(kernel, address, to, bytes, false);
}

static void stats(void *kernel, struct ps_kernel_stats *ret)
{
    struct ps_cuda *c = kernel;

    *ret = (struct ps_kernel_stats){
        .memory_total = c->memory,
        .memory_held = atomic_load(&c->memory_held),
        .bytes_up = atomic_load(&c->bytes_up),
        .bytes_down = atomic_load(&c->bytes_down),
    };
    memcpy(ret->device, c->name, sizeof(ret->device));
}

__attribute__((
    visibility("default"))) extern const struct ps_kernel_api ps_kernel_plugin;

const struct ps_kernel_api ps_kernel_plugin = {
    .abi = PS_KERNEL_ABI,
    .size = PS_KERNEL_SIZE,
    .open = open_module,
    .close = close_module,
    .submit = submit,
    .describe = describe,
    .device_alloc = device_alloc,
    .device_free = device_free,
    .upload = upload,
    .download = download,
    .stats = stats,
};
