/* SPDX-License-Identifier: Apache-2.0 */
/* Runs kernels, and notes which bytes they read and write. Not compiled for any
 * sanitizer. */
#include "kernel.h"
#include "threads.h"

#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT      __attribute__((visibility("default")))
#define PAGE_BITS   12u
#define PAGE_WORDS  64u /* Of 64 bytes each. */
#define RECENT      64u
#define WINDOWS_MAX 256u

/* Bytes of one page that were read and written. */
struct page {
    uintptr_t number;
    uint64_t read[PAGE_WORDS];
    uint64_t written[PAGE_WORDS];
};

struct extent {
    uintptr_t begin;
    uintptr_t end;
};

struct launch {
    const struct emu_kernel_host *host;
    struct extent stack;
    struct extent image; /* Of this library: constants. */
    struct extent thread_local;
    struct emu_window windows[WINDOWS_MAX];
    unsigned windows_count;
    const struct emu_window *window; /* The last that was used. */
    struct page **pages;             /* A hash table of pages_size slots. */
    size_t pages_size;
    size_t pages_count;
    struct page *recent[RECENT];
};

static struct emu_kernel *kernels;
static __thread struct launch *current;

__thread struct emu_dim3 threadIdx;
__thread struct emu_dim3 blockIdx;
__thread struct emu_dim3 blockDim;
__thread struct emu_dim3 gridDim;

EXPORT void pskv_emu_kernel_register(struct emu_kernel *kernel)
{
    kernel->next = kernels;
    kernels = kernel;
}

EXPORT const struct emu_kernel *pskv_emu_kernel_find(const char *name)
{
    const struct emu_kernel *k = kernels;

    while (k != NULL && strcmp(k->name, name) != 0) {
        k = k->next;
    }
    return k;
}

static bool contains(const struct extent *e, uintptr_t address)
{
    return address - e->begin < e->end - e->begin;
}

static size_t slot_of(const struct launch *l, uintptr_t number)
{
    size_t at = (size_t)(number * 0x9e3779b97f4a7c15ull >> 20) &
                (l->pages_size - 1);

    while (l->pages[at] != NULL && l->pages[at]->number != number) {
        at = (at + 1) & (l->pages_size - 1);
    }
    return at;
}

static void grow_pages(struct launch *l)
{
    struct page **old = l->pages;
    size_t old_size = l->pages_size;

    l->pages_size = old_size == 0 ? 256 : 2 * old_size;
    l->pages = calloc(l->pages_size, sizeof(l->pages[0]));
    if (l->pages == NULL) {
        abort();
    }
    for (size_t i = 0; i < old_size; i++) {
        if (old[i] != NULL) {
            l->pages[slot_of(l, old[i]->number)] = old[i];
        }
    }
    free(old);
}

static struct page *page_of(struct launch *l, uintptr_t number)
{
    struct page **recent = &l->recent[number % RECENT];
    size_t at;

    if (*recent != NULL && (*recent)->number == number) {
        return *recent;
    }
    if (4 * l->pages_count >= 3 * l->pages_size) {
        grow_pages(l);
    }
    at = slot_of(l, number);
    if (l->pages[at] == NULL) {
        l->pages[at] = calloc(1, sizeof(struct page));
        if (l->pages[at] == NULL) {
            abort();
        }
        l->pages[at]->number = number;
        l->pages_count++;
    }
    *recent = l->pages[at];
    return *recent;
}

/* The window that has the address; NULL: not memory that is checked. */
static const struct emu_window *window_of(struct launch *l, uintptr_t address)
{
    struct emu_window *w;

    if (l->window != NULL &&
        address - l->window->begin < l->window->end - l->window->begin) {
        return l->window;
    }
    if (contains(&l->stack, address) || contains(&l->thread_local, address) ||
        contains(&l->image, address)) {
        return NULL;
    }
    for (unsigned i = 0; i < l->windows_count; i++) {
        if (address - l->windows[i].begin <
            l->windows[i].end - l->windows[i].begin) {
            return l->window = &l->windows[i];
        }
    }
    w = &l->windows[l->windows_count];
    if (l->windows_count == WINDOWS_MAX ||
        !l->host->open(l->host->launch, address, w)) {
        bool device = address >= l->host->device_begin &&
                      address < l->host->device_end;

        l->host->fail(l->host->launch,
                      device ? "accesses memory that is freed, or was never "
                               "allocated"
                             : "accesses memory of the host that is not pinned",
                      address);
        abort();
    }
    l->windows_count++;
    return l->window = w;
}

void emu_note_access(uintptr_t address, size_t size, bool write)
{
    struct launch *l = current;
    const struct emu_window *w;

    if (l == NULL || (w = window_of(l, address)) == NULL) {
        return;
    }
    if (size > w->end - address) {
        l->host->fail(l->host->launch, "accesses bytes beyond an allocation",
                      address);
        abort();
    }
    while (size > 0) {
        struct page *p = page_of(l, address >> PAGE_BITS);
        unsigned byte = address & ((1u << PAGE_BITS) - 1);
        unsigned count = 64 - byte % 64;
        uint64_t *words = write ? p->written : p->read;

        count = size < count ? (unsigned)size : count;
        words[byte / 64] |= (UINT64_MAX >> (64 - count)) << byte % 64;
        address += count;
        size -= count;
    }
}

/* Which memory of the process a kernel may use freely. */

static int find_image(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct launch *l = argument;
    struct extent image = {UINTPTR_MAX, 0};
    size_t tls_size = 0;

    (void)size;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        uintptr_t begin = info->dlpi_addr + h->p_vaddr;

        if (h->p_type == PT_TLS) {
            tls_size = h->p_memsz;
        } else if (h->p_type == PT_LOAD) {
            image.begin = begin < image.begin ? begin : image.begin;
            image.end = begin + h->p_memsz > image.end ? begin + h->p_memsz
                                                       : image.end;
        }
    }
    if (!contains(&image, (uintptr_t)&kernels)) {
        return 0;
    }
    l->image = image;
    l->thread_local.begin = (uintptr_t)info->dlpi_tls_data;
    l->thread_local.end = l->thread_local.begin + tls_size;
    return 1;
}

static void find_own_memory(struct launch *l)
{
    pthread_attr_t attr;
    void *stack;
    size_t size;

    if (pthread_getattr_np(pthread_self(), &attr) != 0 ||
        pthread_attr_getstack(&attr, &stack, &size) != 0) {
        abort();
    }
    pthread_attr_destroy(&attr);
    l->stack = (struct extent){(uintptr_t)stack, (uintptr_t)stack + size};
    (void)dl_iterate_phdr(find_image, l);
}

static int compare_pages(const void *a, const void *b)
{
    uintptr_t x = (*(struct page *const *)a)->number;
    uintptr_t y = (*(struct page *const *)b)->number;

    return x < y ? -1 : x > y;
}

/* Bytes that follow each other and were accessed in one way. */
struct run {
    struct launch *launch;
    uintptr_t begin;
    uintptr_t end;
    bool write;
};

static void end_run(struct run *r)
{
    while (r->begin < r->end) {
        const struct emu_window *w = window_of(r->launch, r->begin);
        uintptr_t end = r->end < w->end ? r->end : w->end;

        r->launch->host->access(r->launch->host->launch, w, r->begin, end,
                                r->write);
        r->begin = end;
    }
}

static void add_to_run(struct run *r, uintptr_t address)
{
    if (address != r->end) {
        end_run(r);
        r->begin = address;
    }
    r->end = address + 1;
}

static void report_accesses(struct launch *l, bool write)
{
    struct run r = {.launch = l, .write = write};

    for (size_t i = 0; i < l->pages_count; i++) {
        const struct page *p = l->pages[i];

        for (unsigned byte = 0; byte < 64 * PAGE_WORDS; byte++) {
            uint64_t written = p->written[byte / 64];
            uint64_t bits = write ? written : p->read[byte / 64] & ~written;

            if (bits == 0) {
                byte |= 63; /* The rest of the word. */
                continue;
            }
            if ((bits >> byte % 64 & 1) != 0) {
                add_to_run(&r, (p->number << PAGE_BITS) + byte);
            }
        }
    }
    end_run(&r);
}

static void finish_launch(struct launch *l)
{
    size_t count = 0;

    for (size_t i = 0; i < l->pages_size; i++) {
        if (l->pages[i] != NULL) {
            l->pages[count++] = l->pages[i];
        }
    }
    if (count > 0) {
        qsort(l->pages, count, sizeof(l->pages[0]), compare_pages);
    }
    report_accesses(l, false);
    report_accesses(l, true);
    for (size_t i = 0; i < count; i++) {
        free(l->pages[i]);
    }
    free(l->pages);
}

/* Counts an index with three digits up; false: it was the last. */
static bool next_index(struct emu_dim3 *index, const unsigned *count)
{
    if (++index->x < count[0]) {
        return true;
    }
    index->x = 0;
    if (++index->y < count[1]) {
        return true;
    }
    index->y = 0;
    return ++index->z < count[2];
}

EXPORT void pskv_emu_kernel_run(const struct emu_kernel *kernel,
                                const struct emu_grid *grid, void **params,
                                const struct emu_kernel_host *host)
{
    struct launch *l = calloc(1, sizeof(*l));

    if (l == NULL) {
        abort();
    }
    l->host = host;
    gridDim = (struct emu_dim3){grid->blocks[0], grid->blocks[1],
                                grid->blocks[2]};
    blockDim = (struct emu_dim3){grid->threads[0], grid->threads[1],
                                 grid->threads[2]};
    /* Behind the first use of a variable of the thread, which makes them. */
    find_own_memory(l);
    current = l;
    blockIdx = (struct emu_dim3){0, 0, 0};
    do {
        threadIdx = (struct emu_dim3){0, 0, 0};
        do {
            kernel->call(params);
        } while (next_index(&threadIdx, grid->threads));
    } while (next_index(&blockIdx, grid->blocks));
    current = NULL;
    finish_launch(l);
    free(l);
}
