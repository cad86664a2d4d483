/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets: the file, peer credentials, and hostile descriptors, sent to a
 * connection like that of an agent. */
#include "net/local.h"

#include "base/alloc.h"
#include "net/arena.h"
#include "net/conn.h"
#include "net/loop.h"
#include "net/transport.h"
#include "proto/msg_codec.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "dumps.h"
#include "support/run_until.h"

#define SIZE  (64u * 1024u)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

static int make_memfd(size_t size, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    if (seals != 0) {
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    }
    return fd;
}

/* ------------------------------------------------------------ the file */

struct place {
    char dir[64];
    char path[96];
};

static void place_init(struct place *p)
{
    snprintf(p->dir, sizeof(p->dir), "/tmp/test_local.XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->path, sizeof(p->path), "%s/sock", p->dir);
}

static void place_fini(struct place *p)
{
    (void)unlink(p->path);
    assert_int_equal(rmdir(p->dir), 0);
}

static int dial(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    return fd;
}

static int listen_at(const char *path, unsigned mode, int *ret_fd)
{
    return ps_local_listen(path,
                           &(struct ps_local_options){.mode = mode,
                                                      .gid = PS_LOCAL_OWN_GROUP,
                                                      .backlog = 4},
                           ret_fd);
}

static void socket_has_its_mode_and_reads_peer_credentials(void **state)
{
    struct ps_local_peer peer;
    struct place p;
    struct stat st;
    int fd;

    (void)state;
    place_init(&p);
    assert_int_equal(listen_at(p.path, 0640, &fd), 0);
    assert_int_equal(stat(p.path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0640);
    int mine = dial(p.path);
    int theirs = accept(fd, NULL, NULL);

    assert_int_equal(ps_local_peer(theirs, &peer), 0);
    assert_int_equal(peer.uid, getuid());
    assert_int_equal(peer.pid, getpid());
    close(mine);
    close(theirs);
    close(fd);
    place_fini(&p);
}

static void stale_socket_file_is_replaced(void **state)
{
    struct place p;
    int fd;

    (void)state;
    place_init(&p);
    assert_int_equal(listen_at(p.path, 0600, &fd), 0);
    close(fd); /* The file stays, as after a crash. */
    assert_int_equal(listen_at(p.path, 0600, &fd), 0);
    close(dial(p.path));
    close(fd);
    place_fini(&p);
}

static void socket_of_a_live_process_is_kept(void **state)
{
    struct place p;
    int fd;
    int other;

    (void)state;
    place_init(&p);
    assert_int_equal(listen_at(p.path, 0600, &fd), 0);
    assert_int_equal(listen_at(p.path, 0600, &other), PS_E_EXIST);
    close(dial(p.path));
    close(fd);
    place_fini(&p);
}

/* Listens at the same time as the others, for as long as they check; the exit
 * code tells whether it succeeded. */
static void listen_at_once(const struct place *p, int start, int leave, int end)
{
    char byte;
    int fd;
    int rc;

    (void)read(start, &byte, 1); /* The test closes it. */
    rc = listen_at(p->path, 0600, &fd);
    (void)write(end, "x", 1);
    (void)read(leave, &byte, 1);
    _exit(rc == 0 ? 0 : rc == PS_E_EXIST ? 1 : 2);
}

/* Several processes start at once and find a stale socket file: exactly one
 * listens, and the file is its own. */
static void one_of_several_processes_listens(void **state)
{
    enum { ROUNDS = 50, MANY = 4 };
    struct place p;

    (void)state;
    place_init(&p);
    for (int round = 0; round < ROUNDS; round++) {
        unsigned good = 0;
        int start[2], ended[2], leave[2];
        pid_t pids[MANY];
        char byte;
        int fd;

        if (round == 0) {
            assert_int_equal(listen_at(p.path, 0600, &fd), 0);
            close(fd);
        }
        assert_int_equal(pipe(start), 0);
        assert_int_equal(pipe(leave), 0);
        assert_int_equal(pipe(ended), 0);
        for (int i = 0; i < MANY; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                close(start[1]);
                close(leave[1]);
                listen_at_once(&p, start[0], leave[0], ended[1]);
            }
        }
        close(start[1]);
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(read(ended[0], &byte, 1), 1);
        }
        close(dial(p.path));
        close(leave[1]);
        for (int i = 0; i < MANY; i++) {
            int status;

            assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
            good += WEXITSTATUS(status) == 0;
        }
        assert_int_equal(good, 1);
        close(start[0]);
        close(leave[0]);
        close(ended[0]);
        close(ended[1]);
    }
    place_fini(&p);
}

/* A listener that ends removes its file, unless another process listens there. */
static void socket_file_of_another_process_is_not_removed(void **state)
{
    struct place p;
    int fd;

    (void)state;
    place_init(&p);
    assert_int_equal(listen_at(p.path, 0600, &fd), 0);
    ps_local_remove(p.path);
    close(dial(p.path));
    close(fd);
    ps_local_remove(p.path);
    assert_int_equal(access(p.path, F_OK), -1);
    ps_local_remove(p.path);
    place_fini(&p);
}

static void file_that_is_no_socket_is_kept(void **state)
{
    struct place p;
    int other;

    (void)state;
    place_init(&p);
    int fd = open(p.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    assert_int_equal(listen_at(p.path, 0600, &other), PS_E_EXIST);
    assert_int_equal(access(p.path, F_OK), 0);
    close(fd);
    place_fini(&p);
}

static void impossible_socket_paths_are_refused(void **state)
{
    char path[200];
    int fd;

    (void)state;
    memset(path, 'x', sizeof(path));
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(listen_at(path, 0600, &fd), PS_E_TOOBIG);
    assert_int_equal(listen_at("", 0600, &fd), PS_E_INVAL);
    assert_int_equal(listen_at("/nonexistent/sock", 0600, &fd), PS_E_NOENT);
}

/* ------------------------------------------------------------- regions */

static void sealed_memfd_is_mapped(void **state)
{
    int fd = make_memfd(SIZE, SEALS);
    struct ps_buf *buf;
    const char *why;
    char byte = 42;

    (void)state;
    unsigned before = open_fds();

    assert_int_equal(pwrite(fd, &byte, 1, 77), 1);
    assert_int_equal(ps_local_map(dup(fd), SIZE, PROT_READ, &buf, &why), 0);
    assert_int_equal(buf->size, SIZE);
    assert_int_equal(buf->data[77], 42);
    assert_int_equal(open_fds(), before);
    ps_buf_unref(buf);
    close(fd);
    assert_int_equal(ps_alloc_live(), 0);
}

/* Arrays of workers and results are not in a core dump of their agent. */
static void tensors_are_in_no_core_dump(void **state)
{
    struct ps_arenas *arenas = ps_arenas_new();
    struct ps_pool *pool = ps_pool_new(
        &(struct ps_pool_options){.source = ps_arenas_source(arenas)});
    struct ps_buf *buf;
    const char *why;
    int here;

    (void)state;
    assert_true(is_dumped(&here));
    assert_int_equal(ps_local_map(make_memfd(SIZE, SEALS), SIZE,
                                  PROT_READ | PROT_WRITE, &buf, &why),
                     0);
    assert_false(is_dumped(buf->data));
    ps_buf_unref(buf);
    assert_int_equal(ps_pool_get(pool, 1 << 20, &buf), 0);
    assert_false(is_dumped(buf->data));
    ps_buf_unref(buf);
    assert_int_equal(ps_arenas_create_segment(arenas, 8192, &buf), 0);
    assert_false(is_dumped(buf->data));
    ps_buf_unref(buf);
    ps_pool_free(pool);
    ps_arenas_free(arenas);
    pool = ps_pool_new(&(struct ps_pool_options){.budget = 0});
    assert_int_equal(ps_pool_get(pool, 1 << 20, &buf), 0);
    assert_false(is_dumped(buf->data));
    ps_buf_unref(buf);
    ps_pool_free(pool);
}

static void memory_that_could_fault_is_refused(void **state)
{
    int pipes[2];
    int dir = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    FILE *plain = tmpfile();
    struct {
        int fd;
        uint64_t size;
    } cases[] = {
        {make_memfd(SIZE, 0), SIZE},
        {make_memfd(SIZE, F_SEAL_SHRINK), SIZE},
        {make_memfd(SIZE, F_SEAL_SHRINK | F_SEAL_GROW), SIZE},
        {make_memfd(SIZE, F_SEAL_GROW | F_SEAL_SEAL), SIZE},
        {make_memfd(SIZE, SEALS), SIZE - 1},
        {make_memfd(SIZE, SEALS), SIZE + 1},
        {make_memfd(SIZE, SEALS), UINT64_MAX},
        {make_memfd(SIZE, SEALS), 0},
        {make_memfd(0, SEALS), 0},
        {-1, SIZE}, /* A pipe, a folder, a plain file, a device: below. */
        {dir, SIZE},
        {-1, SIZE},
        {open("/dev/zero", O_RDONLY | O_CLOEXEC), SIZE},
        {socket(AF_UNIX, SOCK_STREAM, 0), SIZE},
    };

    (void)state;
    assert_int_equal(pipe(pipes), 0);
    cases[9].fd = pipes[0];
    assert_int_equal(ftruncate(fileno(plain), SIZE), 0);
    cases[11].fd = dup(fileno(plain));
    unsigned before = open_fds();
    unsigned count = sizeof(cases) / sizeof(cases[0]);

    for (unsigned i = 0; i < count; i++) {
        struct ps_buf *buf = NULL;
        const char *why = NULL;

        assert_int_equal(
            ps_local_map(cases[i].fd, cases[i].size, PROT_READ, &buf, &why),
            PS_E_INVAL);
        assert_null(buf);
        assert_non_null(why);
    }
    assert_int_equal(open_fds(), before - count);
    close(pipes[1]);
    fclose(plain);
}

static void memfd_of_huge_pages_is_refused(void **state)
{
    int fd = memfd_create("huge",
                          MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    const uint64_t size = 2 * 1024 * 1024;
    struct ps_buf *buf;
    const char *why;

    (void)state;
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0 ||
        fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        print_message("# no huge pages here: nothing to refuse\n");
        if (fd >= 0) {
            close(fd);
        }
        return; /* cmocka's own skip() is a failure in TAP. */
    }
    assert_int_equal(ps_local_map(fd, size, PROT_READ, &buf, &why), PS_E_INVAL);
}

/* --------------------------------------- descriptors on a connection */

struct world {
    struct ps_loop *loop;
    struct ps_conn *conn;
    int fd; /* The worker's end. */
    unsigned frames;
    unsigned regions;
    bool closed;
    int rc;
    char reason[160];
    unsigned fds_before;
};

static void on_frame(void *ctx, struct ps_conn *c, const struct ps_msg *msg,
                     uint64_t len)
{
    struct world *w = ctx;

    (void)len;
    w->frames++;
    if (msg->code != PS_MSG_L_REGION) {
        return;
    }
    int fd = ps_conn_pop_fd(c);
    struct ps_buf *buf;
    const char *why;

    if (fd < 0) {
        ps_conn_close(c, PS_E_PROTO, "l_region without a descriptor");
    } else if (ps_local_map(fd, msg->l_region.size, PROT_READ, &buf, &why) !=
               0) {
        ps_conn_close(c, PS_E_INVAL, why);
    } else {
        w->regions++;
        ps_buf_unref(buf);
    }
}

static void on_closed(void *ctx, struct ps_conn *c, int rc)
{
    struct world *w = ctx;

    w->closed = true;
    w->rc = rc;
    snprintf(w->reason, sizeof(w->reason), "%s", ps_conn_reason(c));
    ps_conn_free(c);
    w->conn = NULL;
}

static const struct ps_conn_ops ops = {.frame = on_frame, .closed = on_closed};

static size_t append_frame(uint8_t *out, size_t at, const struct ps_msg *msg)
{
    size_t len;

    assert_int_equal(ps_msg_encode(msg, PS_PROTOCOL, 0, out + at, 1024, &len),
                     0);
    return at + len;
}

static const struct ps_msg region = {.code = PS_MSG_L_REGION,
                                     .l_region = {.region = 1, .size = SIZE}};
static const struct ps_msg bye = {.code = PS_MSG_L_STALL_QUERY,
                                  .l_stall_query = {.op_id = 3}};

static void begin_world(struct world *w)
{
    struct ps_msg hello = {
        .code = PS_MSG_L_HELLO,
        .l_hello = {.protocol = 1, .job = "j", .num_workers = 1, .rank = -1}};
    uint8_t bytes[1024];
    int fd[2];

    memset(w, 0, sizeof(*w));
    assert_int_equal(ps_loop_new(&w->loop), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    struct ps_conn_options opt = {.loop = w->loop,
                                  .fd = fd[0],
                                  .peer = "worker",
                                  .self = PS_ROLE_AGENT,
                                  .peer_roles = 1u << PS_ROLE_WORKER,
                                  .local = true,
                                  .ops = &ops,
                                  .ctx = w};

    assert_int_equal(ps_conn_open(&opt, &w->conn), 0);
    w->fd = fd[1];
    size_t len = append_frame(bytes, 0, &hello);

    assert_int_equal(write(w->fd, bytes, len), len);
    RUN_UNTIL(w, w->frames == 1);
    w->frames = 0;
    w->fds_before = open_fds();
}

/* Received descriptors must be closed again. */
static void end(struct world *w)
{
    unsigned conn = w->closed ? 1 : 0;

    assert_int_equal(open_fds(), w->fds_before - conn);
    if (!w->closed) {
        ps_conn_close(w->conn, PS_E_CANCELED, "end of test");
        RUN_UNTIL(w, w->closed);
    }
    close(w->fd);
    ps_loop_free(w->loop);
    assert_int_equal(ps_alloc_live(), 0);
}

static void send_with(int to, const void *bytes, size_t len, const int *fds,
                      size_t count)
{
    char control[CMSG_SPACE(64 * sizeof(int))] = {0};
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);

    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(h), fds, count * sizeof(int));
    assert_int_equal(sendmsg(to, &m, 0), len);
}

static void region_arrives_with_its_descriptor(void **state)
{
    uint8_t bytes[2048];
    struct world w;

    (void)state;
    begin_world(&w);
    int fd = make_memfd(SIZE, SEALS);

    /* Frames around it, and the region cut anywhere. */
    size_t len = append_frame(bytes, 0, &region);

    for (size_t cut = 1; cut < len; cut++) {
        uint8_t around[1024];
        size_t n = append_frame(around, 0, &bye);

        assert_int_equal(write(w.fd, around, n), n);
        send_with(w.fd, bytes, cut, &fd, 1);
        RUN_UNTIL(&w, w.frames == 3 * (cut - 1) + 1);
        assert_int_equal(write(w.fd, bytes + cut, len - cut), len - cut);
        assert_int_equal(write(w.fd, around, n), n);
        RUN_UNTIL(&w, w.frames == 3 * cut || w.closed);
        assert_int_equal(w.regions, cut);
    }
    assert_false(w.closed);
    close(fd);
    end(&w);
}

static void expect_cut(struct world *w, const char *reason)
{
    RUN_UNTIL(w, w->closed);
    assert_string_equal(w->reason, reason);
}

static void region_without_a_descriptor_is_refused(void **state)
{
    uint8_t bytes[1024];
    size_t len = append_frame(bytes, 0, &region);
    struct world w;

    (void)state;
    begin_world(&w);
    assert_int_equal(write(w.fd, bytes, len), len);
    expect_cut(&w, "l_region without a descriptor");
    end(&w);
}

static void second_descriptor_of_a_region_is_refused(void **state)
{
    uint8_t bytes[1024];
    size_t len = append_frame(bytes, 0, &region);
    struct world w;

    (void)state;
    begin_world(&w);
    int fds[2] = {make_memfd(SIZE, SEALS), make_memfd(SIZE, SEALS)};

    send_with(w.fd, bytes, len, fds, 2);
    close(fds[0]);
    close(fds[1]);
    expect_cut(&w, "file descriptor with a message that carries none");
    end(&w);
}

static void descriptor_of_another_message_is_refused(void **state)
{
    uint8_t bytes[1024];
    size_t len = append_frame(bytes, 0, &bye);
    struct world w;

    (void)state;
    begin_world(&w);
    int fd = make_memfd(SIZE, SEALS);

    send_with(w.fd, bytes, len, &fd, 1);
    close(fd);
    expect_cut(&w, "file descriptor with a message that carries none");
    end(&w);
}

/* Descriptors sent ahead of the message that could use them. */
static void descriptor_before_its_message_is_refused(void **state)
{
    uint8_t bytes[1024];
    size_t len = append_frame(bytes, 0, &bye);
    size_t all = append_frame(bytes, len, &region);
    struct world w;

    (void)state;
    begin_world(&w);
    int fd = make_memfd(SIZE, SEALS);

    send_with(w.fd, bytes, len, &fd, 1);
    close(fd);
    assert_int_equal(write(w.fd, bytes + len, all - len), all - len);
    expect_cut(&w, "file descriptor with a message that carries none");
    assert_int_equal(w.regions, 0);
    end(&w);
}

static void too_many_descriptors_of_one_frame_are_refused(void **state)
{
    uint8_t bytes[1024];
    size_t len = append_frame(bytes, 0, &region);
    struct world w;

    (void)state;
    begin_world(&w);
    int fds[PS_TRANSPORT_FDS_MAX + 1];

    for (unsigned i = 0; i <= PS_TRANSPORT_FDS_MAX; i++) {
        fds[i] = make_memfd(SIZE, SEALS);
    }
    send_with(w.fd, bytes, len, fds, PS_TRANSPORT_FDS_MAX + 1);
    for (unsigned i = 0; i <= PS_TRANSPORT_FDS_MAX; i++) {
        close(fds[i]);
    }
    expect_cut(&w, "too many descriptors");
    end(&w);
}

/* One descriptor with every byte of a frame that never ends. */
static void
too_many_descriptors_of_an_incomplete_frame_are_refused(void **state)
{
    uint8_t bytes[1024];
    size_t len = append_frame(bytes, 0, &region);
    struct world w;
    size_t i = 0;

    (void)state;
    begin_world(&w);
    int fd = make_memfd(SIZE, SEALS);

    assert_true(len > PS_TRANSPORT_FDS_MAX + 1);
    while (i <= PS_TRANSPORT_FDS_MAX) {
        send_with(w.fd, bytes + i, 1, &fd, 1);
        i++;
    }
    close(fd);
    expect_cut(&w, "too many descriptors");
    end(&w);
}

static void descriptors_of_an_incomplete_frame_are_closed(void **state)
{
    uint8_t bytes[1024];
    size_t len = append_frame(bytes, 0, &region);
    struct world w;

    (void)state;
    begin_world(&w);
    int fd = make_memfd(SIZE, SEALS);

    send_with(w.fd, bytes, len - 1, &fd, 1);
    close(fd);
    assert_int_equal(shutdown(w.fd, SHUT_WR), 0);
    expect_cut(&w, "closed by peer within a frame");
    end(&w);
}

static void region_that_is_a_pipe_is_refused(void **state)
{
    uint8_t bytes[1024];
    size_t len = append_frame(bytes, 0, &region);
    struct world w;
    int pipes[2];

    (void)state;
    begin_world(&w);
    assert_int_equal(pipe(pipes), 0);
    send_with(w.fd, bytes, len, &pipes[0], 1);
    close(pipes[0]);
    close(pipes[1]);
    expect_cut(&w, "descriptor is not a memfd");
    end(&w);
}

/* -------------------------------------------------------------- arenas */

static int take_fd(int from, uint8_t *bytes, size_t cap, size_t *ret_len)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec iov = {bytes, cap};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(from, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    int fd = -1;

    assert_true(n > 0);
    *ret_len = (size_t)n;
    if (h != NULL) {
        memcpy(&fd, CMSG_DATA(h), sizeof(fd));
    }
    return fd;
}

/* A worker gets an arena with its message, between others, and can read this
 * memory only. */
static void arena_is_sent_to_a_worker(void **state)
{
    struct ps_arenas *arenas = ps_arenas_new();
    struct ps_pool_options opt = {.source = ps_arenas_source(arenas)};
    struct ps_pool *pool = ps_pool_new(&opt);
    struct ps_msg arena = {.code = PS_MSG_L_ARENA};
    struct ps_msg done = {.code = PS_MSG_L_DONE, .l_done = {.op_id = 1}};
    uint8_t bytes[4096];
    struct ps_buf *buf;
    struct world w;
    uint64_t size;
    size_t len;
    int fd;

    (void)state;
    begin_world(&w);
    assert_int_equal(ps_pool_get(pool, 256 * 1024, &buf), 0);
    memset(buf->data, 7, buf->size);
    assert_int_equal(ps_arenas_fd(arenas, buf->tag, &fd, &size), 0);
    assert_true(size >= PS_ARENA_SIZE);
    assert_int_equal(ps_arenas_fd(arenas, buf->tag + 1, &fd, &size),
                     PS_E_NOENT);
    arena.l_arena.arena = buf->tag;
    arena.l_arena.size = size;

    struct ps_conn_frame plain = {.msg = &done, .pass_fd = -1};
    struct ps_conn_frame with = {.msg = &arena, .pass_fd = fd};

    assert_int_equal(ps_conn_send(w.conn, &plain), 0);
    assert_int_equal(ps_conn_send(w.conn, &with), 0);
    assert_int_equal(ps_conn_send(w.conn, &plain), 0);
    assert_true(ps_conn_flush(w.conn));

    size_t plain_len = append_frame(bytes, 0, &done);
    size_t arena_len = append_frame(bytes, 0, &arena);

    /* The first call ends where the descriptor's frame ends, at the latest. */
    int got = take_fd(w.fd, bytes, sizeof(bytes), &len);

    if (got < 0) {
        assert_int_equal(len, plain_len);
        got = take_fd(w.fd, bytes, sizeof(bytes), &len);
        assert_int_equal(len, arena_len);
    }
    assert_true(got >= 0);
    uint8_t *map = mmap(NULL, size, PROT_READ, MAP_SHARED, got, 0);

    assert_ptr_not_equal(map, MAP_FAILED);
    assert_int_equal(map[buf->offset], 7);
    buf->data[0] = 8;
    assert_int_equal(map[buf->offset], 8);
    assert_ptr_equal(
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, got, 0),
        MAP_FAILED);
    assert_int_equal(ftruncate(got, 0), -1);
    munmap(map, size);
    close(got);
    ps_buf_unref(buf);
    ps_pool_free(pool);
    ps_arenas_free(arenas);
    w.fds_before = open_fds();
    end(&w);
}

/* Freed ranges merge, and an empty arena is freed. */
static void freed_ranges_of_arenas_are_reused(void **state)
{
    struct ps_arenas *arenas = ps_arenas_new();
    struct ps_pool_source s = ps_arenas_source(arenas);
    const size_t third = 20u * 1024 * 1024;
    void *data[4];
    uint32_t tag[4];
    uint64_t offset[4];
    uint64_t size;
    int fd;

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(s.get(s.ctx, third, &data[i], &tag[i], &offset[i]), 0);
    }
    assert_int_equal(tag[0], tag[2]);
    assert_int_not_equal(tag[3], tag[0]); /* A fourth does not fit in. */
    s.put(s.ctx, data[1], third, tag[1]);
    s.put(s.ctx, data[0], third, tag[0]);
    assert_int_equal(s.get(s.ctx, 2 * third, &data[0], &tag[0], &offset[0]), 0);
    assert_int_equal(tag[0], tag[2]);
    assert_int_equal(offset[0], 0);
    s.put(s.ctx, data[2], third, tag[2]);
    s.put(s.ctx, data[0], 2 * third, tag[0]);
    assert_int_equal(ps_arenas_fd(arenas, tag[0], &fd, &size), PS_E_NOENT);
    s.put(s.ctx, data[3], third, tag[3]);
    /* Larger than an arena: one of its own. */
    assert_int_equal(
        s.get(s.ctx, 3 * (size_t)PS_ARENA_SIZE, &data[0], &tag[0], &offset[0]),
        0);
    assert_int_equal(ps_arenas_fd(arenas, tag[0], &fd, &size), 0);
    assert_int_equal(size, 3 * (size_t)PS_ARENA_SIZE);
    s.put(s.ctx, data[0], 3 * (size_t)PS_ARENA_SIZE, tag[0]);
    s.close(s.ctx);
    ps_arenas_free(arenas);
    assert_int_equal(ps_alloc_live(), 0);
}

static uint64_t arena_bytes(const struct ps_arenas *arenas, uint32_t last)
{
    uint64_t sum = 0;

    for (uint32_t tag = 1; tag <= last; tag++) {
        uint64_t size;
        int fd;

        if (ps_arenas_fd(arenas, tag, &fd, &size) == 0) {
            sum += size;
        }
    }
    return sum;
}

/* A block in use keeps little of the freed memory beside it. */
static void memory_of_a_burst_is_returned(void **state)
{
    enum { PIECES = 256 };
    const size_t size = 1024u * 1024;
    struct ps_arenas *arenas = ps_arenas_new();
    struct ps_pool *pool = ps_pool_new(
        &(struct ps_pool_options){.source = ps_arenas_lazy_source(arenas)});
    struct ps_buf *burst[PIECES];
    struct ps_buf *stays;

    (void)state;
    ps_arenas_enable_sharing(arenas);
    assert_int_equal(ps_pool_get(pool, 200 * 1024, &stays), 0);
    for (int i = 0; i < PIECES; i++) {
        assert_int_equal(ps_pool_get(pool, size, &burst[i]), 0);
    }
    uint32_t last = burst[PIECES - 1]->tag;

    assert_in_range(last, 4, 32); /* Each takes a descriptor. */
    assert_in_range(arena_bytes(arenas, last), PIECES * size,
                    PIECES * size * 5 / 4 + size);
    for (int i = 0; i < PIECES; i++) {
        ps_buf_unref(burst[i]);
    }
    ps_pool_trim(pool);
    assert_in_range(arena_bytes(arenas, last), 1, 4 * size);
    ps_buf_unref(stays);
    ps_pool_free(pool);
    ps_arenas_free(arenas);
}

/* The arena of one pool contains no memory of another pool. */
static void pools_share_no_arena(void **state)
{
    struct ps_arenas *arenas = ps_arenas_new();
    struct ps_pool *one = ps_pool_new(
        &(struct ps_pool_options){.source = ps_arenas_source(arenas)});
    struct ps_pool *other = ps_pool_new(
        &(struct ps_pool_options){.source = ps_arenas_source(arenas)});
    struct ps_buf *a;
    struct ps_buf *b;
    struct ps_buf *c;

    (void)state;
    assert_int_equal(ps_pool_get(one, 4096, &a), 0);
    assert_int_equal(ps_pool_get(other, 4096, &b), 0);
    assert_int_equal(ps_pool_get(one, 1u << 20, &c), 0);
    assert_int_not_equal(a->tag, b->tag);
    assert_int_equal(a->tag, c->tag);
    ps_buf_unref(a);
    ps_buf_unref(b);
    ps_buf_unref(c);
    ps_pool_free(one);
    ps_pool_free(other);
    ps_arenas_free(arenas);
    assert_int_equal(ps_alloc_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_a_burst_is_returned),
        cmocka_unit_test(pools_share_no_arena),
        cmocka_unit_test(socket_has_its_mode_and_reads_peer_credentials),
        cmocka_unit_test(stale_socket_file_is_replaced),
        cmocka_unit_test(socket_of_a_live_process_is_kept),
        cmocka_unit_test(one_of_several_processes_listens),
        cmocka_unit_test(socket_file_of_another_process_is_not_removed),
        cmocka_unit_test(file_that_is_no_socket_is_kept),
        cmocka_unit_test(impossible_socket_paths_are_refused),
        cmocka_unit_test(sealed_memfd_is_mapped),
        cmocka_unit_test(tensors_are_in_no_core_dump),
        cmocka_unit_test(memory_that_could_fault_is_refused),
        cmocka_unit_test(memfd_of_huge_pages_is_refused),
        cmocka_unit_test(region_arrives_with_its_descriptor),
        cmocka_unit_test(region_without_a_descriptor_is_refused),
        cmocka_unit_test(second_descriptor_of_a_region_is_refused),
        cmocka_unit_test(descriptor_of_another_message_is_refused),
        cmocka_unit_test(descriptor_before_its_message_is_refused),
        cmocka_unit_test(too_many_descriptors_of_one_frame_are_refused),
        cmocka_unit_test(
            too_many_descriptors_of_an_incomplete_frame_are_refused),
        cmocka_unit_test(descriptors_of_an_incomplete_frame_are_closed),
        cmocka_unit_test(region_that_is_a_pipe_is_refused),
        cmocka_unit_test(arena_is_sent_to_a_worker),
        cmocka_unit_test(freed_ranges_of_arenas_are_reused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
