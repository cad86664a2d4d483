/* SPDX-License-Identifier: Apache-2.0 */
/* Recorder of the functions that a process enters, for traced.py: preloaded into
 * programs that are built with -finstrument-functions. It records while the
 * first byte of the file that PSKV_TRACE_FLAG names is set. Records and
 * mappings of a process lie beside that file, as FLAG.PROGRAM.PID and
 * FLAG.PROGRAM.PID.maps. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RECORDS_MAX 400000u
#define FLAG_BYTES  4096u

/* The layout that traced.py reads. */
struct record {
    uint64_t function; /* Its address; 0: no record. */
    uint64_t time_ns;
    uint32_t thread;
    uint32_t reserved;
};

void __cyg_profile_func_enter(void *function, void *caller);
void __cyg_profile_func_exit(void *function, void *caller);

static struct record *records;
static atomic_uint record_count;
static const volatile char *is_on;

static void copy_mappings(const char *path)
{
    char bytes[65536];
    ssize_t n;
    int in = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    while ((n = read(in, bytes, sizeof(bytes))) > 0 &&
           write(out, bytes, (size_t)n) == n) {
    }
    close(in);
    close(out);
}

/* Memory of a file, with at least `size` bytes; NULL if there is none. */
static void *map_file(const char *path, int flags, size_t size)
{
    void *data = MAP_FAILED;
    int fd = open(path, flags | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0 && (flags == 0 || ftruncate(fd, (off_t)size) == 0)) {
        data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (fd >= 0) {
        close(fd);
    }
    return data == MAP_FAILED ? NULL : data;
}

__attribute__((constructor)) static void begin_recording(void)
{
    const char *flag = getenv("PSKV_TRACE_FLAG");
    char path[512];
    char maps[sizeof(path) + 8];

    if (flag == NULL) {
        return;
    }
    snprintf(path, sizeof(path), "%s.%s.%d", flag,
             program_invocation_short_name, (int)getpid());
    snprintf(maps, sizeof(maps), "%s.maps", path);
    records = map_file(path, O_CREAT | O_TRUNC,
                       RECORDS_MAX * sizeof(struct record));
    copy_mappings(maps);
    is_on = map_file(flag, 0, FLAG_BYTES);
}

void __cyg_profile_func_enter(void *function, void *caller)
{
    struct timespec now;
    unsigned i;

    (void)caller;
    if (is_on == NULL || *is_on == 0 || records == NULL) {
        return;
    }
    i = atomic_fetch_add(&record_count, 1);
    if (i >= RECORDS_MAX) {
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    records[i] = (struct record){.function = (uint64_t)(uintptr_t)function,
                                 .time_ns = (uint64_t)now.tv_sec * 1000000000u +
                                            (uint64_t)now.tv_nsec,
                                 .thread = (uint32_t)gettid()};
}

void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)function;
    (void)caller;
}
