/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of psctl: names of hosts, sockets, and lines, which are connected
 * sockets with or without TLS. No call waits beyond its deadline; deadlines are
 * on CLOCK_MONOTONIC. */
#include "psctl/psctl.h"

#include "base/alloc.h"
#include "crypto/tls.h"
#include "net/addr.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

ps_time monotonic_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return PS_SECONDS(t.tv_sec) + PS_NANOS(t.tv_nsec);
}

int wait_for_io(int fd, short events, ps_time deadline)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        ps_time t = monotonic_now();
        int n;

        if (t >= deadline) {
            return ETIMEDOUT;
        }
        n = poll(&p, 1, (int)((deadline - t) / 1000000u) + 1);
        if (n > 0) {
            return 0;
        }
        if (n < 0 && errno != EINTR) {
            return errno;
        }
    }
}

/* ----------------------------------------------------------- names of hosts */

/* A run looks up one name: a request that takes too long goes on, and the next
 * call waits for it. */
static struct {
    char host[256];
    char port[8];
    pthread_t thread;
    int done; /* Eventfd that the thread signals; -1: there is no request. */
    int rc;
    int error; /* errno with EAI_SYSTEM. */
    struct addrinfo *list;
} request = {.done = -1};

static void *lookup_main(void *arg)
{
    static const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                          .ai_socktype = SOCK_STREAM,
                                          .ai_flags = AI_NUMERICSERV};

    (void)arg;
    request.rc = getaddrinfo(request.host, request.port, &hints, &request.list);
    request.error = errno;
    (void)eventfd_write(request.done, 1);
    return NULL;
}

static int begin_lookup(const char *host, const char *port)
{
    int error;

    ps_str_copy(request.host, sizeof(request.host), host);
    ps_str_copy(request.port, sizeof(request.port), port);
    request.done = eventfd(0, EFD_CLOEXEC);
    if (request.done < 0) {
        return errno;
    }
    error = pthread_create(&request.thread, NULL, lookup_main, NULL);
    if (error != 0) {
        close(request.done);
        request.done = -1;
    }
    return error;
}

/* getaddrinfo() has time limits of its own and cannot be cancelled, so a thread
 * calls it. */
bool lookup_name(const char *host, const char *port, ps_time deadline,
                 struct addrinfo **ret_list, const char **ret_why)
{
    const int error = request.done < 0 ? begin_lookup(host, port) : 0;

    if (error != 0) {
        *ret_why = strerror(error);
        return false;
    }
    if (wait_for_io(request.done, POLLIN, deadline) != 0) {
        *ret_why = "no answer from the system's name resolution in the time of "
                   "--timeout";
        return false;
    }
    pthread_join(request.thread, NULL);
    close(request.done);
    request.done = -1;
    if (request.rc != 0) {
        *ret_why = request.rc == EAI_SYSTEM ? strerror(request.error)
                                            : gai_strerror(request.rc);
        return false;
    }
    *ret_list = request.list;
    return true;
}

/* ------------------------------------------------------------------ sockets */

int connect_one(int family, const struct sockaddr *sa, socklen_t sa_len,
                ps_time deadline, int *ret_fd)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = 0;
    socklen_t len = sizeof(error);

    if (fd < 0) {
        return errno;
    }
    if (connect(fd, sa, sa_len) != 0) {
        error = errno;
        if (error == EINPROGRESS) {
            error = wait_for_io(fd, POLLOUT, deadline);
            if (error == 0) {
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
            }
        }
    }
    if (error != 0) {
        close(fd);
    } else {
        *ret_fd = fd;
    }
    return error;
}

const char *connect_host(const struct ps_addr *addr, ps_time deadline,
                         int *ret_fd)
{
    struct addrinfo *list = NULL;
    int error = EHOSTUNREACH;
    char port[8];
    const char *why;

    snprintf(port, sizeof(port), "%u", (unsigned)addr->port);
    if (!lookup_name(addr->host, port, deadline, &list, &why)) {
        return why;
    }
    for (const struct addrinfo *a = list; a != NULL && error != 0;
         a = a->ai_next) {
        error = connect_one(a->ai_family, a->ai_addr, a->ai_addrlen, deadline,
                            ret_fd);
    }
    freeaddrinfo(list);
    return error != 0 ? strerror(error) : NULL;
}

/* ---------------------------------------------------------------------- TLS */

/* OpenSSL writes to the socket without MSG_NOSIGNAL, while standard output of
 * psctl needs the signal: it is blocked during a call of OpenSSL, and one of
 * this thread is discarded. */
static void block_sigpipe(sigset_t *ret_old)
{
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, ret_old);
}

/* Keeps errno, which is that of the call. */
static void unblock_sigpipe(const sigset_t *old)
{
    static const struct timespec at_once;
    const int error = errno;
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    (void)sigtimedwait(&pipe, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, old, NULL);
    errno = error;
}

static struct ps_tls_context *load_context(const char *folder,
                                           struct ps_str *why)
{
    static const char *const names[] = {"ca.crt", "ctl.crt", "ctl.key",
                                        "crl.pem"};
    char *paths[4];
    struct ps_tls_context *context = NULL;

    for (size_t i = 0; i < 4; i++) {
        const size_t size = strlen(folder) + strlen(names[i]) + 2;

        paths[i] = ps_alloc(size);
        snprintf(paths[i], size, "%s/%s", folder, names[i]);
    }
    if (ps_tls_context_new(
            &(struct ps_tls_source){
                .ca = paths[0],
                .certificate = paths[1],
                .key = paths[2],
                .crl = access(paths[3], F_OK) == 0 ? paths[3] : NULL},
            &context, why) != 0) {
        ps_str_add(why, "; 'psctl pki issue ctl NAME' makes the folder for "
                        "--tls");
    }
    for (size_t i = 0; i < 4; i++) {
        ps_free(paths[i]);
    }
    return context;
}

/* `silence` limits the time without an answer of the peer. */
static bool make_handshake(const struct line *l, ps_time silence,
                           struct ps_str *why)
{
    int rc;

    while ((rc = ps_tls_session_handshake(l->tls, why)) == PS_E_AGAIN) {
        const bool writes = ps_tls_session_waits_to_write(l->tls);

        if (wait_for_io(l->fd, writes ? POLLOUT : POLLIN,
                        ps_time_add(monotonic_now(), silence)) != 0) {
            ps_str_add(why, "no handshake of TLS in time; raise --timeout");
            return false;
        }
    }
    if (rc == PS_E_REFUSED) {
        ps_str_add(why, "; if psched has no certificate, leave --tls out");
    }
    return rc == 0;
}

/* True if the peer is the scheduler of the certificate's cluster. */
static bool check_peer(const struct line *l,
                       const struct ps_tls_context *context, struct ps_str *why)
{
    const struct ps_identity *own = ps_tls_context_identity(context);
    const struct ps_identity *peer = ps_tls_session_peer(l->tls);

    if (peer->role == PS_ROLE_SCHED &&
        strcmp(peer->cluster, own->cluster) == 0) {
        return true;
    }
    ps_str_add(why, "its certificate is not of the scheduler of this cluster "
                    "(");
    ps_identity_add_uri(why, peer);
    ps_str_add(why, ")");
    return false;
}

bool line_encrypt(struct line *l, const char *folder, ps_time silence,
                  struct ps_str *why)
{
    struct ps_tls_context *context = load_context(folder, why);
    bool good = false;
    sigset_t old;

    if (context == NULL) {
        return false;
    }
    l->tls = ps_tls_session_new(context, l->fd, true);
    if (l->tls == NULL) {
        ps_str_add(why, "OpenSSL cannot begin a connection");
    } else {
        block_sigpipe(&old);
        good = make_handshake(l, silence, why) && check_peer(l, context, why);
        unblock_sigpipe(&old);
    }
    ps_tls_context_unref(context);
    return good;
}

/* -------------------------------------------------------------------- bytes */

static ssize_t result_of(ssize_t n)
{
    return n >= 0                              ? n
           : errno == EAGAIN || errno == EINTR ? PS_E_AGAIN
                                               : PS_E_IO;
}

ssize_t line_read(struct line *l, void *out, size_t cap)
{
    const struct iovec place = {out, cap};
    sigset_t old;
    ssize_t n;

    if (l->tls == NULL) {
        n = recv(l->fd, out, cap, 0);
        return n == 0 ? PS_E_CLOSED : result_of(n);
    }
    block_sigpipe(&old);
    n = ps_tls_session_read(l->tls, &place, 1);
    unblock_sigpipe(&old);
    return n;
}

/* Takes some of the bytes. Without any: 0 if all that it has taken has left. */
static ssize_t write_some(struct line *l, const uint8_t *bytes, size_t len)
{
    const struct iovec place = {(void *)(uintptr_t)bytes, len};
    sigset_t old;
    ssize_t n;

    if (l->tls == NULL) {
        return result_of(send(l->fd, bytes, len, MSG_NOSIGNAL));
    }
    block_sigpipe(&old);
    n = ps_tls_session_write(l->tls, &place, len > 0 ? 1 : 0);
    unblock_sigpipe(&old);
    return n;
}

int line_write(struct line *l, const uint8_t *bytes, size_t len,
               ps_time deadline)
{
    ssize_t n;

    do {
        n = write_some(l, bytes, len);
        bytes += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
        if (n == PS_E_AGAIN && wait_for_io(l->fd, POLLOUT, deadline) != 0) {
            return PS_E_TIMEOUT;
        }
    } while (n > 0 || n == PS_E_AGAIN);
    return (int)n;
}

const char *line_failure(const struct line *l)
{
    return l->tls != NULL ? ps_tls_session_failure(l->tls) : "";
}

void line_close(struct line *l)
{
    sigset_t old;

    if (l->tls != NULL) {
        block_sigpipe(&old);
        ps_tls_session_end(l->tls);
        unblock_sigpipe(&old);
        ps_tls_session_free(l->tls);
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    *l = (struct line){.fd = -1};
}
