/* SPDX-License-Identifier: Apache-2.0 */
/* The client: registered memory of the program. */
#include "test_client_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define BYTES (N * sizeof(float))
#define PAGES ((size_t)4 * 4096)

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fixture_begin(f, 0);
    *state = f;
    return 0;
}

static int set_up_reattach(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    fixture_begin(f, 60000);
    *state = f;
    return 0;
}

static int make_memfd(unsigned flags, size_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC | flags);

    assert_true(fd >= 0 && fchmod(fd, 0600) == 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    return fd;
}

static void *map_file(int fd, size_t offset, size_t size)
{
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      (off_t)offset);

    assert_true(data != MAP_FAILED);
    return data;
}

/* Pushes the array; returns the bytes that the client has copied for it. */
static uint64_t push_copies(struct fixture *f, float *x, uint64_t round)
{
    struct psc_stats before = {.size = sizeof(before)};
    struct psc_stats after = {.size = sizeof(after)};
    struct psc_op *op;
    struct ps_msg_l_op m;

    assert_int_equal(psc_get_stats(f->c, &before), 0);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_memory_equal(peer_op_source(&f->peer, &m), x, BYTES);
    peer_done(&f->peer, m.op_id, round);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
    assert_int_equal(psc_get_stats(f->c, &after), 0);
    return after.bytes_copied - before.bytes_copied;
}

static void registered_memory_is_pushed_without_a_copy(void **state)
{
    struct fixture *f = *state;
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

    for (int sealed = 0; sealed < 2; sealed++) {
        int fd = make_memfd(MFD_ALLOW_SEALING, 2 * PAGES);
        float *x = map_file(fd, PAGES, PAGES);
        enum psc_buf_state buffer = PSC_BUF_COPIED;

        if (sealed) {
            assert_int_equal(fcntl(fd, F_ADD_SEALS, wanted), 0);
        }
        fill(x + 100, 3);
        assert_int_equal(psc_buf_register(f->c, x, PAGES, 0, &buffer), 0);
        assert_int_equal(buffer, PSC_BUF_SHARED);
        assert_int_equal(fcntl(fd, F_GET_SEALS) & wanted, wanted);
        close(fd); /* The client has its own. */
        assert_int_equal(push_copies(f, x + 100, 1 + 2 * (uint64_t)sealed), 0);
        assert_int_equal(psc_free(f->c, x), PSC_E_INVAL);
        assert_int_equal(psc_buf_unregister(f->c, x), 0);
        peer_expect(&f->peer, PS_MSG_L_REGION_GONE);
        assert_int_equal(push_copies(f, x + 100, 2 + 2 * (uint64_t)sealed),
                         BYTES);
        assert_int_equal(munmap(x, PAGES), 0);
    }
    assert_int_equal(psc_buf_unregister(f->c, NULL), 0);
    assert_int_equal(psc_buf_unregister(f->c, f), PSC_E_INVAL);
}

static void expect_copied(struct fixture *f, void *x, size_t size,
                          uint32_t flags, const char *why)
{
    enum psc_buf_state buffer = PSC_BUF_SHARED;

    assert_int_equal(
        psc_buf_register(f->c, x, size, flags | PSC_BUF_MUST_SHARE, &buffer),
        PSC_E_UNSUPPORTED);
    assert_text(peer_detail(f->c), why);
    assert_int_equal(psc_buf_register(f->c, x, size, flags, &buffer), 0);
    assert_int_equal(buffer, PSC_BUF_COPIED);
    assert_text(peer_detail(f->c), why);
    assert_int_equal(psc_buf_register(f->c, x, size, flags, NULL), PSC_E_EXIST);
    assert_int_equal(psc_buf_unregister(f->c, x), 0);
}

static void memory_that_cannot_be_shared_is_copied_for_a_reason(void **state)
{
    struct fixture *f = *state;
    char path[] = "/tmp/pskv-test-buffer-XXXXXX";
    float own[N] = {0};
    void *x;
    int fd;

    expect_copied(f, own, BYTES, 0, "it is private to this process");
    assert_int_equal(push_copies(f, own, 1), BYTES);
    x = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
             -1, 0);
    assert_true(x != MAP_FAILED);
    expect_copied(f, x, PAGES, 0, "has no descriptor of its file open");
    munmap(x, PAGES);

    fd = make_memfd(0, PAGES);
    x = map_file(fd, 0, PAGES);
    expect_copied(f, x, PAGES, 0, "memfd_create() needs MFD_ALLOW_SEALING");
    munmap(x, PAGES);
    close(fd);

    fd = make_memfd(MFD_ALLOW_SEALING, PAGES);
    x = map_file(fd, 0, PAGES);
    expect_copied(f, x, PAGES, PSC_BUF_KEEP_SEALS, "its memfd is not sealed");
    assert_int_equal(fcntl(fd, F_GET_SEALS), 0);
    assert_int_equal(mprotect(x, 4096, PROT_READ), 0);
    expect_copied(f, x, PAGES, 0, "it cannot be read and written");
    munmap(x, PAGES);
    x = map_file(fd, 0, 2 * PAGES);
    expect_copied(f, x, 2 * PAGES, 0, "its file ends before it");
    munmap(x, 2 * PAGES);
    close(fd);

    fd = mkstemp(path);
    assert_true(fd >= 0 && unlink(path) == 0 &&
                ftruncate(fd, (off_t)PAGES) == 0);
    x = map_file(fd, 0, PAGES);
    expect_copied(f, x, PAGES, 0, "its file");
    munmap(x, PAGES);
    close(fd);
    assert_int_equal(psc_buf_register(f->c, NULL, 1, 0, NULL), PSC_E_INVAL);
    assert_int_equal(psc_buf_register(f->c, own, 0, 0, NULL), PSC_E_INVAL);
    assert_int_equal(psc_buf_register(f->c, own, 1, 4, NULL), PSC_E_INVAL);
}

static void memory_in_use_stays_registered(void **state)
{
    struct fixture *f = *state;
    int fd = make_memfd(MFD_ALLOW_SEALING, PAGES);
    float *x = map_file(fd, 0, PAGES);
    struct psc_op *op;
    struct ps_msg_l_op m;
    void *allocated;

    assert_int_equal(psc_buf_register(f->c, x, PAGES, 0, NULL), 0);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &op), 0);
    m = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(psc_buf_unregister(f->c, x), PSC_E_AGAIN);
    assert_int_equal(psc_buf_register(f->c, x, 8, 0, NULL), PSC_E_EXIST);
    assert_int_equal(psc_buf_register(f->c, x + 1, 8, 0, NULL), PSC_E_EXIST);
    assert_int_equal(psc_buf_unregister(f->c, x + 1), PSC_E_INVAL);
    peer_done(&f->peer, m.op_id, 1);
    assert_int_equal(psc_op_wait(op, PSC_WAIT_FOREVER), 0);
    psc_op_free(op);
    assert_int_equal(psc_buf_unregister(f->c, x), 0);
    peer_expect(&f->peer, PS_MSG_L_REGION_GONE);
    assert_int_equal(psc_alloc(f->c, 100, &allocated), 0);
    assert_int_equal(psc_buf_register(f->c, allocated, 100, 0, NULL),
                     PSC_E_EXIST);
    assert_int_equal(psc_free(f->c, allocated), 0);
    munmap(x, PAGES);
    close(fd);
}

static void buffers_of_one_file_share_a_region(void **state)
{
    struct fixture *f = *state;
    int fd = make_memfd(MFD_ALLOW_SEALING, 4 * PAGES);
    float *x[3];
    struct ps_msg m;

    for (size_t i = 0; i < 3; i++) {
        x[i] = map_file(fd, (2 - i) * PAGES, PAGES);
        fill(x[i], (float)i);
        assert_int_equal(
            psc_buf_register(f->c, x[i], PAGES, PSC_BUF_MUST_SHARE, NULL), 0);
    }
    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(push_copies(f, x[i], 1 + i), 0);
    }
    for (size_t i = 0; i < 3; i++) {
        assert_true(peer_is_silent(&f->peer));
        assert_int_equal(psc_buf_unregister(f->c, x[i]), 0);
        munmap(x[i], PAGES);
    }
    m = peer_expect(&f->peer, PS_MSG_L_REGION_GONE);
    assert_int_equal(m.l_region_gone.region, 1);
    close(fd);
}

static void *wait_main(void *arg)
{
    return (void *)(intptr_t)psc_op_wait(arg, PSC_WAIT_FOREVER);
}

static void the_next_agent_gets_the_file(void **state)
{
    struct fixture *f = *state;
    int fd = make_memfd(MFD_ALLOW_SEALING, PAGES);
    float *x = map_file(fd, 0, PAGES);
    struct psc_op *push;
    struct ps_msg_l_op o;
    pthread_t thread;
    struct ps_msg m;
    void *rc;

    fill(x, 5);
    assert_int_equal(psc_buf_register(f->c, x, PAGES, 0, NULL), 0);
    assert_int_equal(psc_push_start(f->c, f->key, x, NULL, &push), 0);
    peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_int_equal(pthread_create(&thread, NULL, wait_main, push), 0);
    peer_accept_reattach(&f->peer);
    peer_welcome(&f->peer);
    m = peer_expect(&f->peer, PS_MSG_L_KEY);
    peer_answer_key(&f->peer, &m.l_key, 40, 0);
    o = peer_expect_op(&f->peer, PS_OP_PUSH);
    assert_memory_equal(peer_op_source(&f->peer, &o), x, BYTES);
    peer_done(&f->peer, o.op_id, 1);
    assert_int_equal(pthread_join(thread, &rc), 0);
    assert_null(rc);
    psc_op_free(push);
    assert_int_equal(push_copies(f, x, 2), 0);
    assert_int_equal(psc_buf_unregister(f->c, x), 0);
    peer_expect(&f->peer, PS_MSG_L_REGION_GONE);
    munmap(x, PAGES);
    close(fd);
}

#define story(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        story(registered_memory_is_pushed_without_a_copy),
        story(memory_that_cannot_be_shared_is_copied_for_a_reason),
        story(memory_in_use_stays_registered),
        story(buffers_of_one_file_share_a_region),
        cmocka_unit_test_setup_teardown(the_next_agent_gets_the_file,
                                        set_up_reattach, tear_down),
    };

    by_ring = argc > 1 && strcmp(argv[1], "ring") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
