/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration by the environment, entry and exit of calls, counters. */
#include "emu.h"
#include "memory.h"
#include "stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

struct emu_state emu = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
};

static _Thread_local bool in_host_function;

void emu_die(const char *format, ...)
{
    char text[512];
    va_list args;
    int length;
    ssize_t written;

    va_start(args, format);
    length = snprintf(text, sizeof(text), "cuda_emu: ");
    length += vsnprintf(text + length, sizeof(text) - (size_t)length - 1,
                        format, args);
    va_end(args);
    if (length > (int)sizeof(text) - 2) {
        length = (int)sizeof(text) - 2;
    }
    text[length] = '\n';
    written = write(STDERR_FILENO, text, (size_t)length + 1);
    (void)written;
    abort();
}

/* A size with suffix K, M or G; 0: not valid. */
static uint64_t size_of(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 10);

    switch (*end) {
    case 'K':
        return end[1] == '\0' ? n << 10 : 0;
    case 'M':
        return end[1] == '\0' ? n << 20 : 0;
    case 'G':
        return end[1] == '\0' ? n << 30 : 0;
    default:
        return *end == '\0' ? n : 0;
    }
}

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);

    return text == NULL || *text == '\0' ? otherwise : size_of(text);
}

/* Chooses devices as CUDA_VISIBLE_DEVICES has it: numbers until the first that
 * is not valid. */
static void choose_devices(unsigned present)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");

    emu.device_count = 0;
    if (text == NULL) {
        for (unsigned i = 0; i < present; i++) {
            emu.device[emu.device_count++].physical = i;
        }
        return;
    }
    while (emu.device_count < PSKV_EMU_DEVICES_MAX) {
        char *end;
        unsigned long number = strtoul(text, &end, 10);

        if (end == text || number >= present) {
            break;
        }
        emu.device[emu.device_count++].physical = (unsigned)number;
        if (*end != ',') {
            break;
        }
        text = end + 1;
    }
}

/* Counters in the file that PSKV_EMU_STATS asks for, else in plain memory. */
static struct pskv_emu_stats_file *map_stats(void)
{
    const char *folder = getenv("PSKV_EMU_STATS");
    size_t size = sizeof(struct pskv_emu_stats_file);
    char path[512];
    void *map = MAP_FAILED;
    int fd = -1;

    if (folder != NULL && *folder != '\0') {
        (void)snprintf(path, sizeof(path), "%s/%d.stats", folder, getpid());
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd < 0 || ftruncate(fd, (off_t)size) != 0) {
            emu_die("%s: %s", path, strerror(errno));
        }
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)close(fd);
    } else {
        map = mmap(NULL, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (map == MAP_FAILED) {
        emu_die("no memory for counters");
    }
    return map;
}

static void configure(void)
{
    uint64_t present = number_from("PSKV_EMU_DEVICES", 1);

    if (present > PSKV_EMU_DEVICES_MAX) {
        emu_die("PSKV_EMU_DEVICES: at most %u", PSKV_EMU_DEVICES_MAX);
    }
    choose_devices((unsigned)present);
    for (unsigned i = 0; i < emu.device_count; i++) {
        emu.device[i].context.device = (CUdevice)i;
    }
    emu.memory_max = number_from("PSKV_EMU_MEMORY", 1ull << 30);
    emu.seed = number_from("PSKV_EMU_SEED", 1);
    emu.reuses_addresses = number_from("PSKV_EMU_REUSE", 0) != 0;
    emu.delay_us = (unsigned)number_from("PSKV_EMU_DELAY_US", 200);
    if (getenv("PSKV_EMU_FAIL") != NULL &&
        emu_fail_add(getenv("PSKV_EMU_FAIL")) != 0) {
        emu_die("PSKV_EMU_FAIL is not valid");
    }
    if (getrandom(&emu.timeline_base, sizeof(emu.timeline_base), 0) !=
        (ssize_t)sizeof(emu.timeline_base)) {
        emu_die("no random numbers");
    }
    emu.timeline_base &= ~0xffffffull; /* The low bits are for streams. */
    emu.stats = map_stats();
    emu.stats->magic = PSKV_EMU_STATS_MAGIC;
    emu.stats->device_count = emu.device_count;
    emu_fault_install();
}

CUresult emu_init(void)
{
    CUresult rc = CUDA_SUCCESS;

    pthread_mutex_lock(&emu.lock);
    if (emu.pid != 0) {
        rc = emu.pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    } else {
        configure();
        if (emu_fails("init")) {
            rc = CUDA_ERROR_SYSTEM_NOT_READY;
        } else if (emu.device_count == 0) {
            rc = CUDA_ERROR_NO_DEVICE;
        } else {
            emu.pid = getpid();
        }
    }
    pthread_mutex_unlock(&emu.lock);
    return rc;
}

void emu_set_in_host_function(bool in)
{
    in_host_function = in;
}

CUresult emu_enter(void)
{
    if (in_host_function) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    pthread_mutex_lock(&emu.lock);
    if (emu.pid == 0 || emu.pid != getpid()) {
        pthread_mutex_unlock(&emu.lock);
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return CUDA_SUCCESS;
}

CUresult emu_enter_context(struct emu_context **ret_context)
{
    CUresult rc = emu_enter();
    struct emu_context *c;

    if (rc != CUDA_SUCCESS) {
        return rc;
    }
    c = emu_current();
    if (c == NULL) {
        return emu_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    if (c->refs == 0) {
        return emu_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    if (emu.device[c->device].lost) {
        return emu_leave(CUDA_ERROR_LAUNCH_FAILED);
    }
    *ret_context = c;
    return CUDA_SUCCESS;
}

CUresult emu_leave(CUresult rc)
{
    pthread_mutex_unlock(&emu.lock);
    return rc;
}

struct pskv_emu_stats *emu_stats(CUdevice device)
{
    return &emu.stats->device[device < 0 ? 0 : device];
}

static int control_fail(const char *text)
{
    int rc;

    pthread_mutex_lock(&emu.lock);
    rc = emu_fail_add(text);
    pthread_mutex_unlock(&emu.lock);
    return rc;
}

static void control_stats(unsigned device, struct pskv_emu_stats *ret_stats)
{
    pthread_mutex_lock(&emu.lock);
    *ret_stats = (struct pskv_emu_stats){0};
    if (emu.stats != NULL && device < PSKV_EMU_DEVICES_MAX) {
        *ret_stats = emu.stats->device[device];
    }
    pthread_mutex_unlock(&emu.lock);
}

static void set_held(void *stream, bool held)
{
    pthread_mutex_lock(&emu.lock);
    emu_stream_hold(stream, held);
    pthread_mutex_unlock(&emu.lock);
}

static void control_hold(void *stream)
{
    set_held(stream, true);
}

static void control_resume(void *stream)
{
    set_held(stream, false);
}

__attribute__((visibility("default"))) pskv_emu_control_fn pskv_emu_control;

const struct pskv_emu_control *pskv_emu_control(void)
{
    static const struct pskv_emu_control control = {
        .size = sizeof(control),
        .fail = control_fail,
        .stats = control_stats,
        .hold = control_hold,
        .resume = control_resume,
    };

    return &control;
}
