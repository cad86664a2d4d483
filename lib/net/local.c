/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets: bind with replacement of stale files under a lock of the
 * folder, peer credentials, the end of the peer's process; checked mapping of
 * received memfds, and unmapping. */
#include "net/local.h"

#include "base/alloc.h"
#include "base/num.h"
#include "net/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

/* Tries, 5 ms apart. */
#define LOCK_TRIES 200

/* True if a process listens there, or if that is unknown. */
static bool socket_in_use(const struct sockaddr_un *sa)
{
    struct stat st;
    bool used = true;

    if (lstat(sa->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) {
        return true;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0) {
        used = connect(fd, (const struct sockaddr *)sa, sizeof(*sa)) == 0 ||
               errno != ECONNREFUSED;
        close(fd);
    }
    return used;
}

/* Locks the folder of a socket file, so that checking for a listener and
 * replacing the file are one step; leaves no lock file. Any process that can
 * read the folder can hold the lock, so the wait is bounded. Returns a
 * descriptor, possibly without the lock; -1: the folder cannot be opened. */
static int lock_folder(const struct sockaddr_un *sa)
{
    const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    char folder[sizeof(sa->sun_path) + 1];
    char *slash;
    int fd;

    memcpy(folder, sa->sun_path, sizeof(sa->sun_path));
    folder[sizeof(folder) - 1] = '\0';
    slash = strrchr(folder, '/');
    if (slash == NULL) {
        memcpy(folder, ".", 2);
    } else {
        slash[slash == folder] = '\0';
    }
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; fd >= 0 && i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    return fd;
}

static void unlock_folder(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

static int fill_address(const char *path, struct sockaddr_un *ret_sa)
{
    size_t len = strlen(path);

    *ret_sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (len == 0) {
        return PS_E_INVAL;
    }
    if (len >= sizeof(ret_sa->sun_path)) {
        return PS_E_TOOBIG;
    }
    memcpy(ret_sa->sun_path, path, len);
    return 0;
}

static int bind_path(int fd, const struct sockaddr_un *sa)
{
    if (bind(fd, (const struct sockaddr *)sa, sizeof(*sa)) == 0) {
        return 0;
    }
    if (errno != EADDRINUSE) {
        return ps_err_from_errno(errno);
    }
    if (socket_in_use(sa)) {
        errno = EADDRINUSE;
        return PS_E_EXIST;
    }
    (void)unlink(sa->sun_path);
    return bind(fd, (const struct sockaddr *)sa, sizeof(*sa)) == 0
               ? 0
               : ps_err_from_errno(errno);
}

static int bind_and_listen(int fd, const struct sockaddr_un *sa,
                           const struct ps_local_options *opt)
{
    int rc = bind_path(fd, sa);

    /* No connection is possible before listen(), so group and mode may follow
     * the bind. */
    if (rc == 0 && ((opt->gid != PS_LOCAL_OWN_GROUP &&
                     chown(sa->sun_path, (uid_t)-1, (gid_t)opt->gid) != 0) ||
                    chmod(sa->sun_path, (mode_t)opt->mode) != 0 ||
                    listen(fd, opt->backlog) != 0)) {
        rc = ps_err_from_errno(errno);
        (void)unlink(sa->sun_path);
    }
    return rc;
}

int ps_local_listen(const char *path, const struct ps_local_options *opt,
                    int *ret_fd)
{
    struct sockaddr_un sa;
    int rc = fill_address(path, &sa);

    if (rc != 0) {
        return rc;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0) {
        return ps_err_from_errno(errno);
    }
    int lock = lock_folder(&sa);

    rc = bind_and_listen(fd, &sa, opt);

    int errnum = errno;

    unlock_folder(lock);
    if (rc != 0) {
        close(fd);
        errno = errnum;
        return rc;
    }
    *ret_fd = fd;
    return 0;
}

bool ps_local_is_at(int fd, const char *path)
{
    struct sockaddr_un sa = {0};
    socklen_t len = sizeof(sa);

    return getsockname(fd, (struct sockaddr *)&sa, &len) == 0 &&
           strncmp(sa.sun_path, path, sizeof(sa.sun_path)) == 0;
}

void ps_local_remove(const char *path)
{
    struct sockaddr_un sa;

    if (fill_address(path, &sa) != 0) {
        return;
    }
    int lock = lock_folder(&sa);

    if (!socket_in_use(&sa)) {
        (void)unlink(path);
    }
    unlock_folder(lock);
}

int ps_local_peer(int fd, struct ps_local_peer *ret_peer)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        return ps_err_from_errno(errno);
    }
    *ret_peer = (struct ps_local_peer){
        .uid = cred.uid, .gid = cred.gid, .pid = (uint32_t)cred.pid};
    return 0;
}

/* Reason to refuse the descriptor (rule W1); NULL: it is acceptable. */
static const char *sealing_refusal(int fd, uint64_t size)
{
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct stat st;
    struct statfs fs;

    if (size == 0 || size > INT64_MAX) {
        return "region of impossible size";
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return "descriptor is not a memfd";
    }
    /* Huge pages can fault even when sealed, if their pool is exhausted. */
    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC) {
        return "descriptor is not an ordinary memfd";
    }
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & wanted) != wanted) {
        return "memfd is not sealed against shrinking, growing and sealing";
    }
    /* Checked after the seals: before, the size could still change. */
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != size) {
        return "memfd is not of the announced size";
    }
    return NULL;
}

struct region {
    void *data;
    size_t size;
};

static void unmap_region(void *ctx)
{
    struct region *r = ctx;

    ps_unmap(r->data, r->size);
    ps_free(r);
}

int ps_local_map(int fd, uint64_t size, int prot, struct ps_buf **ret_buf,
                 const char **ret_why)
{
    const char *why = sealing_refusal(fd, size);

    if (why != NULL) {
        close(fd);
        *ret_why = why;
        return PS_E_INVAL;
    }
    void *data = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
    int errnum = errno;

    close(fd);
    if (data == MAP_FAILED) {
        *ret_why = "memfd cannot be mapped";
        errno = errnum;
        return PS_E_NOMEM;
    }
    madvise(data, size, MADV_DONTDUMP); /* Keeps tensors out of core dumps. */

    struct region *r = ps_alloc(sizeof(*r));

    *r = (struct region){.data = data, .size = size};
    *ret_buf = ps_buf_wrap(data, size, unmap_region, r);
    return 0;
}

/* ---------------------------------------------------------------- unmapping */

/* A ring of ranges and one thread, which begins with the first of them and lasts
 * as long as the process. A caller that finds the ring full does the work itself,
 * so callers cannot get ahead of the thread for long. */

/* Smaller ranges take less time than a wake-up is worth. */
#define UNMAP_MIN   ((size_t)256 * 1024)
/* Bytes of one call: others that map memory wait for it. A multiple of the
 * largest page. */
#define UNMAP_PIECE ((size_t)32 * 1024 * 1024)
#define RANGES_MAX  256u
/* Limit on the bytes of unmapper ranges. More than that has hardly any pages, so its
 * end is short, but its addresses may be needed. */
#define BYTES_MAX   ((uint64_t)1 << 40)

struct range {
    char *data;
    size_t size;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Guarded by the lock, as are unmapper below. */
    struct range ranges[RANGES_MAX];
    uint32_t first;
    uint32_t count;
    uint64_t bytes; /* Of the ranges, and of the one that the thread unmaps. */
    bool has_thread;
} unmapper = {.lock = PTHREAD_MUTEX_INITIALIZER,
              .wake = PTHREAD_COND_INITIALIZER};

static void unmap_in_pieces(const struct range *r)
{
    for (size_t done = 0; done < r->size; done += UNMAP_PIECE) {
        munmap(r->data + done, ps_min_u64(UNMAP_PIECE, r->size - done));
    }
}

static void *unmap_main(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&unmapper.lock);
    for (;;) {
        while (unmapper.count == 0) {
            pthread_cond_wait(&unmapper.wake, &unmapper.lock);
        }
        struct range r = unmapper.ranges[unmapper.first];

        unmapper.first = (unmapper.first + 1) % RANGES_MAX;
        unmapper.count--;
        pthread_mutex_unlock(&unmapper.lock);
        unmap_in_pieces(&r);
        pthread_mutex_lock(&unmapper.lock);
        unmapper.bytes -= r.size;
    }
    return NULL;
}

/* Its priority is the lowest, whatever that of the caller is, and unmapper signals go
 * to other threads. */
static bool unmap_begin_thread(void)
{
    const struct sched_param none = {.sched_priority = 0};
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t blocked;
    sigset_t before;
    int rc;

    if (pthread_attr_init(&attr) != 0) {
        return false;
    }
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
    (void)pthread_attr_setschedpolicy(&attr, SCHED_BATCH);
    (void)pthread_attr_setschedparam(&attr, &none);
    (void)sigfillset(&blocked);
    (void)pthread_sigmask(SIG_SETMASK, &blocked, &before);
    rc = pthread_create(&thread, &attr, unmap_main, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc == 0;
}

/* False: there is no place for it, or no thread. */
static bool enqueue(const struct range *r)
{
    bool taken;

    pthread_mutex_lock(&unmapper.lock);
    unmapper.has_thread = unmapper.has_thread || unmap_begin_thread();
    taken = unmapper.has_thread && unmapper.count < RANGES_MAX &&
            r->size <= BYTES_MAX - unmapper.bytes;
    if (taken) {
        unmapper.bytes += r->size;
        unmapper.ranges[(unmapper.first + unmapper.count++) % RANGES_MAX] = *r;
        pthread_cond_signal(&unmapper.wake);
    }
    pthread_mutex_unlock(&unmapper.lock);
    return taken;
}

void ps_unmap(void *data, size_t size)
{
    const struct range r = {.data = data, .size = size};

    if (size < UNMAP_MIN || !enqueue(&r)) {
        munmap(data, size);
    }
}

/* --------------------------------------------- end of the process of a peer */

/* A pidfd is readable when its process has ended. Linux 6.5 and later return
 * that of a socket's peer. Before, it is opened by pid; if the pid was reused
 * by then, the notice comes at the end of the other process, late but not
 * wrong. */

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct ps_process {
    uv_poll_t poll;
    int pidfd;
    ps_process_cb ended;
    void *ctx;
};

static int open_pidfd(int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(int);
    int pidfd = -1;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0) {
        return pidfd;
    }
    len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        return -1;
    }
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, cred.pid, 0);
#else
    errno = ENOSYS;
    return -1;
#endif
}

static void process_ended(uv_poll_t *handle, int status, int events)
{
    struct ps_process *p = handle->data;

    (void)status;
    (void)events;
    uv_poll_stop(&p->poll);
    p->ended(p->ctx); /* Last: p may be closed in it. */
}

static void process_closed(uv_handle_t *handle)
{
    struct ps_process *p = handle->data;

    close(p->pidfd);
    ps_free(p);
}

int ps_process_watch(struct ps_loop *l, int fd, ps_process_cb ended, void *ctx,
                     struct ps_process **ret_process)
{
    int pidfd = open_pidfd(fd);
    struct ps_process *p;
    int rc;

    if (pidfd < 0) {
        return errno == ENOSYS ? PS_E_UNSUPPORTED : ps_err_from_errno(errno);
    }
    p = ps_calloc(1, sizeof(*p));
    p->pidfd = pidfd;
    p->ended = ended;
    p->ctx = ctx;
    p->poll.data = p;
    rc = uv_poll_init(ps_loop_uv(l), &p->poll, pidfd);
    if (rc != 0) {
        close(pidfd);
        ps_free(p);
        return ps_err_from_uv(rc);
    }
    rc = uv_poll_start(&p->poll, UV_READABLE, process_ended);
    if (rc != 0) {
        ps_process_close(p);
        return ps_err_from_uv(rc);
    }
    *ret_process = p;
    return 0;
}

void ps_process_close(struct ps_process *p)
{
    if (p != NULL) {
        uv_close((uv_handle_t *)&p->poll, process_closed);
    }
}
