/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of shared memory, alone. */
#include "client/grow.h"
#include "client/shm.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/sanitized.h"

#define MIB ((size_t)1 << 20)

struct seen {
    int made;
    int gone;
    int refuse; /* Calls that are still to fail. */
    uint64_t bytes;
};

static int count_region(void *ctx, uint32_t region, int fd, uint64_t size)
{
    struct seen *s = ctx;
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct stat st;

    assert_int_equal(fcntl(fd, F_GET_SEALS) & seals, seals);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, size);
    assert_int_equal(st.st_mode & 0111, 0);
    assert_int_not_equal(region, 0);
    if (s->refuse > 0) {
        s->refuse--;
        return PS_E_CLOSED;
    }
    s->made++;
    s->bytes += size;
    return 0;
}

static void gone(void *ctx, uint32_t region)
{
    struct seen *s = ctx;

    (void)region;
    s->gone++;
}

static void init(struct ps_shm *s, struct seen *seen)
{
    *seen = (struct seen){0};
    ps_shm_init(s, &(struct ps_shm_hooks){
                       .on_made = count_region, .on_freed = gone, .ctx = seen});
}

static void thousands_of_small_arrays_need_one_descriptor(void **state)
{
    struct ps_shm s;
    struct seen seen;

    (void)state;
    init(&s, &seen);
    for (size_t i = 0; i < 5000; i++) {
        struct ps_shm_block *b;

        assert_int_equal(ps_shm_get(&s, 100 + i % 900, &b), 0);
        assert_int_equal((uintptr_t)b->data % PS_SHM_ALIGN, 0);
        memset(b->data, (int)i, 100 + i % 900);
    }
    assert_int_equal(seen.made, 1);
    ps_shm_fini(&s);
}

static void many_large_arrays_need_few_descriptors(void **state)
{
    struct ps_shm s;
    struct seen seen;

    (void)state;
    init(&s, &seen);
    for (size_t i = 0; i < 100; i++) {
        struct ps_shm_block *b;

        assert_int_equal(ps_shm_get(&s, 40 * MIB, &b), 0);
    }
    assert_in_range(seen.made, 1, 25);
    ps_shm_fini(&s);
}

static void freed_blocks_are_used_again(void **state)
{
    struct ps_shm s;
    struct seen seen;
    struct ps_shm_block *blocks[16];
    struct ps_shm_block *b;

    (void)state;
    init(&s, &seen);
    for (size_t i = 0; i < 16; i++) {
        assert_int_equal(ps_shm_get(&s, MIB, &blocks[i]), 0);
    }
    assert_int_equal(seen.made, 1);
    /* Three neighbours, freed in an awkward order, become one piece. */
    void *at = blocks[4]->data;

    ps_shm_put(&s, blocks[5]);
    ps_shm_put(&s, blocks[4]);
    ps_shm_put(&s, blocks[6]);
    assert_int_equal(ps_shm_get(&s, 3 * MIB, &b), 0);
    assert_ptr_equal(b->data, at);
    assert_int_equal(seen.made, 1);
    ps_shm_fini(&s);
}

static void empty_arenas_but_one_are_freed(void **state)
{
    struct ps_shm s;
    struct seen seen;
    struct ps_shm_block *a;
    struct ps_shm_block *b;

    (void)state;
    init(&s, &seen);
    assert_int_equal(ps_shm_get(&s, MIB, &a), 0);
    assert_int_equal(ps_shm_get(&s, 400 * MIB, &b), 0);
    assert_int_equal(seen.made, 2);
    ps_shm_put(&s, b);
    assert_int_equal(seen.gone, 0);
    ps_shm_put(&s, a);
    assert_int_equal(seen.gone, 1);
    ps_shm_fini(&s);
}

static void block_of_an_address_is_found(void **state)
{
    struct ps_shm s;
    struct seen seen;
    struct ps_shm_block *a;
    struct ps_shm_block *b;
    uint8_t *data;
    int elsewhere = 0;

    (void)state;
    init(&s, &seen);
    assert_int_equal(ps_shm_get(&s, 1000, &a), 0);
    assert_int_equal(ps_shm_get(&s, 20 * MIB, &b), 0);
    data = a->data;
    assert_ptr_equal(ps_shm_find(&s, data, 1000), a);
    assert_ptr_equal(ps_shm_find(&s, data + 500, 500), a);
    assert_null(ps_shm_find(&s, data + 500, 600));
    assert_null(ps_shm_find(&s, data + 1024, 1)); /* Free. */
    assert_null(ps_shm_find(&s, data, SIZE_MAX));
    assert_null(ps_shm_find(&s, &elsewhere, 4));
    assert_ptr_equal(ps_shm_find(&s, b->data, 20 * MIB), b);
    ps_shm_put(&s, a);
    assert_null(ps_shm_find(&s, data, 1));
    ps_shm_fini(&s);
}

static void an_arena_that_the_hook_refuses_is_undone(void **state)
{
    struct ps_shm s;
    struct seen seen;
    struct ps_shm_block *b;

    (void)state;
    init(&s, &seen);
    seen.refuse = 1;
    assert_int_equal(ps_shm_get(&s, 100, &b), PS_E_CLOSED);
    assert_int_equal(s.count, 0);
    assert_int_equal(ps_shm_get(&s, 100, &b), 0);
    assert_int_equal(ps_shm_get(&s, SIZE_MAX, &b), PS_E_TOOBIG);
    ps_shm_fini(&s);
}

/* Random gets and puts; each piece is filled with its own byte and must still
 * hold it when it is freed. */
static void blocks_never_overlap(void **state)
{
    enum { LIVE = 200, STEPS = 20000 };
    struct ps_shm s;
    struct seen seen;
    struct ps_shm_block *live[LIVE] = {NULL};
    size_t size[LIVE] = {0};
    struct ps_rng rng;

    (void)state;
    init(&s, &seen);
    ps_rng_init(&rng, 7);
    for (int step = 0; step < STEPS; step++) {
        size_t i = ps_rng_below(&rng, LIVE);

        if (live[i] == NULL) {
            size[i] = 1 + ps_rng_below(&rng, 30000);
            assert_int_equal(ps_shm_get(&s, size[i], &live[i]), 0);
            memset(live[i]->data, (int)i, size[i]);
        } else {
            const uint8_t *data = live[i]->data;

            for (size_t j = 0; j < size[i]; j += 61) {
                assert_int_equal(data[j], i);
            }
            assert_int_equal(data[size[i] - 1], i);
            ps_shm_put(&s, live[i]);
            live[i] = NULL;
        }
    }
    assert_int_equal(seen.made, 1);
    ps_shm_fini(&s);
}

static void memory_of_another_process_is_checked(void **state)
{
    int fd = memfd_create("x", MFD_ALLOW_SEALING);
    int ends[2];
    const void *data = NULL;

    (void)state;
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_int_equal(ps_shm_map_foreign(fd, 8192, &data), PS_E_PROTO);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(ps_shm_map_foreign(fd, 4096, &data), PS_E_PROTO);
    assert_int_equal(ps_shm_map_foreign(fd, 0, &data), PS_E_PROTO);
    assert_int_equal(ps_shm_map_foreign(fd, 8192, &data), 0);
    assert_int_equal(((const uint8_t *)data)[8191], 0);
    ps_shm_unmap_foreign(data, 8192);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(ps_shm_map_foreign(ends[0], 8192, &data), PS_E_PROTO);
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

static void list_grows_or_stays(void **state)
{
    uint32_t *list = NULL;
    size_t cap = 0;

    (void)state;
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(client_grow(&list, i, &cap, sizeof(*list)), 0);
        assert_true(cap > i);
        list[i] = i;
    }
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(list[i], i);
    }
    if (!PS_TEST_SANITIZED) {
        assert_int_equal(client_grow(&list, cap, &cap, SIZE_MAX / 512),
                         PS_E_NOMEM);
        assert_int_equal(list[99], 99);
    }
    free(list);
}

/* Files are regions of the agent, of which it has a limit. */
static void registered_files_are_limited(void **state)
{
    enum { FILES = 129 };
    void *data[FILES];
    struct seen seen;
    struct ps_shm s;

    (void)state;
    init(&s, &seen);
    for (uint64_t i = 0; i < FILES; i++) {
        struct ps_shm_mapping m = {.size = 4096, .file_size = 4096};

        assert_int_equal(ps_shm_make(4096, &data[i], &m.fd), 0);
        m.data = data[i];
        m.inode = 1 + i;
        assert_int_equal(ps_shm_register(&s, m.data, 4096, &m),
                         i + 1 < FILES ? 0 : PS_E_FULL);
        if (i + 1 == FILES) {
            close(m.fd);
        }
    }
    assert_int_equal(seen.made, FILES - 1);
    assert_null(ps_shm_registered(&s, data[FILES - 1]));
    ps_shm_unregister(&s, ps_shm_registered(&s, data[7]));
    assert_int_equal(seen.gone, 1);
    assert_null(ps_shm_find(&s, data[7], 1));
    assert_ptr_equal(ps_shm_find(&s, data[8], 1)->data, data[8]);
    ps_shm_fini(&s);
    for (size_t i = 0; i < FILES; i++) {
        munmap(data[i], 4096);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousands_of_small_arrays_need_one_descriptor),
        cmocka_unit_test(many_large_arrays_need_few_descriptors),
        cmocka_unit_test(freed_blocks_are_used_again),
        cmocka_unit_test(empty_arenas_but_one_are_freed),
        cmocka_unit_test(block_of_an_address_is_found),
        cmocka_unit_test(an_arena_that_the_hook_refuses_is_undone),
        cmocka_unit_test(blocks_never_overlap),
        cmocka_unit_test(memory_of_another_process_is_checked),
        cmocka_unit_test(list_grows_or_stays),
        cmocka_unit_test(registered_files_are_limited),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
