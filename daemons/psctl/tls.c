/* SPDX-License-Identifier: Apache-2.0 */
/* TLS between psctl and psched. A thread encrypts what one end of a socket pair
 * sends, and the other end is used as a plain connection:
 *
 *     psctl  <-- socket pair -->  thread  <-- TCP, encrypted -->  psched
 *
 * Either end of file ends the thread. */
#include "psctl/psctl.h"

#include "base/alloc.h"
#include "base/str.h"
#include "crypto/tls.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES (64u * 1024u)

struct tls_relay {
    pthread_t thread;
    struct ps_tls_session *session;
    int outer; /* TCP, non-blocking. */
    int inner; /* One end of the socket pair, blocking. */
    bool is_joined;
    bool has_failed; /* Reading failed; the session has the reason. */
    uint8_t chunk[CHUNK_BYTES];
};

/* ---------------------------------------------------------------- handshake */

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

static bool wait_for_socket(int fd, short events, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = events};
    int n;

    do {
        n = poll(&p, 1, timeout_ms);
    } while (n < 0 && errno == EINTR);
    return n > 0;
}

/* `timeout_ms` limits the silence of the peer. */
static bool make_handshake(struct tls_relay *r, int timeout_ms,
                           struct ps_str *why)
{
    int rc;

    while ((rc = ps_tls_session_handshake(r->session, why)) == PS_E_AGAIN) {
        bool writes = ps_tls_session_waits_to_write(r->session);

        if (!wait_for_socket(r->outer, writes ? POLLOUT : POLLIN, timeout_ms)) {
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
static bool check_peer(const struct tls_relay *r,
                       const struct ps_tls_context *context, struct ps_str *why)
{
    const struct ps_identity *own = ps_tls_context_identity(context);
    const struct ps_identity *peer = ps_tls_session_peer(r->session);

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

/* -------------------------------------------------------------------- thread */

/* Waits until all output has left; false: it cannot. */
static bool put_output(struct tls_relay *r)
{
    ssize_t rc;

    while ((rc = ps_tls_session_write(r->session, NULL, 0)) == PS_E_AGAIN) {
        (void)wait_for_socket(r->outer, POLLOUT, -1);
    }
    return rc == 0;
}

/* Encrypts what psctl has sent; false: the end. */
static bool relay_out(struct tls_relay *r)
{
    ssize_t n = recv(r->inner, r->chunk, sizeof(r->chunk), MSG_DONTWAIT);
    size_t at = 0;

    if (n < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    if (n == 0) {
        ps_tls_session_end(r->session);
        (void)put_output(r);
        return false;
    }
    while (at < (size_t)n) {
        const struct iovec iov = {r->chunk + at, (size_t)n - at};
        ssize_t sealed = ps_tls_session_write(r->session, &iov, 1);

        if ((sealed < 0 && sealed != PS_E_AGAIN) || !put_output(r)) {
            return false;
        }
        at += sealed > 0 ? (size_t)sealed : 0;
    }
    return true;
}

static bool send_all(int fd, const uint8_t *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR) {
            return false;
        }
        bytes += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* Decrypts what psched has sent; false: the end. */
static bool relay_in(struct tls_relay *r)
{
    do {
        const struct iovec iov = {r->chunk, sizeof(r->chunk)};
        ssize_t n = ps_tls_session_read(r->session, &iov, 1);

        if (n == PS_E_AGAIN) {
            return true;
        }
        r->has_failed = n == PS_E_PERM || n == PS_E_PROTO;
        if (n <= 0 || !send_all(r->inner, r->chunk, (size_t)n)) {
            return false;
        }
    } while (ps_tls_session_has_unread(r->session));
    return true;
}

static void *relay_main(void *arg)
{
    struct tls_relay *r = arg;
    bool goes_on = true;

    while (goes_on) {
        struct pollfd p[] = {{.fd = r->inner, .events = POLLIN},
                             {.fd = r->outer, .events = POLLIN}};

        if (poll(p, 2, -1) < 0) {
            continue;
        }
        if (p[0].revents != 0) {
            goes_on = relay_out(r);
        }
        if (goes_on && p[1].revents != 0) {
            goes_on = relay_in(r);
        }
    }
    (void)shutdown(r->inner, SHUT_RDWR);
    (void)shutdown(r->outer, SHUT_RDWR);
    return NULL;
}

/* --------------------------------------------------------------------- life */

/* OpenSSL writes to the socket without MSG_NOSIGNAL. The thread inherits the
 * blocked signal; the one of this thread is discarded. */
static void block_sigpipe(sigset_t *ret_old)
{
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, ret_old);
}

static void unblock_sigpipe(const sigset_t *old)
{
    static const struct timespec at_once;
    sigset_t pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    (void)sigtimedwait(&pipe, NULL, &at_once);
    pthread_sigmask(SIG_SETMASK, old, NULL);
}

static void relay_free(struct tls_relay *r)
{
    ps_tls_session_free(r->session);
    if (r->inner >= 0) {
        close(r->inner);
    }
    ps_free(r);
}

struct tls_relay *tls_open(const char *folder, int fd, ps_time silence,
                           int *ret_fd, struct ps_str *why)
{
    struct tls_relay *r = ps_calloc(1, sizeof(*r));
    struct ps_tls_context *context = load_context(folder, why);
    int pair[2] = {-1, -1};
    bool good = false;
    sigset_t old;

    block_sigpipe(&old);
    r->outer = fd;
    r->inner = -1;
    if (context != NULL) {
        r->session = ps_tls_session_new(context, fd, true);
        good = r->session != NULL &&
               make_handshake(r, (int)(silence / PS_MILLIS(1)), why) &&
               check_peer(r, context, why);
    }
    ps_tls_context_unref(context);
    if (good) {
        good = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0;
        r->inner = pair[0];
        good = good && pthread_create(&r->thread, NULL, relay_main, r) == 0;
        if (!good) {
            ps_str_add(why, strerror(errno));
        }
    }
    unblock_sigpipe(&old);
    if (!good) {
        if (pair[1] >= 0) {
            close(pair[1]);
        }
        relay_free(r);
        return NULL;
    }
    *ret_fd = pair[1];
    return r;
}

static void relay_join(struct tls_relay *r)
{
    if (!r->is_joined) {
        pthread_join(r->thread, NULL);
        r->is_joined = true;
    }
}

const char *tls_failure(struct tls_relay *r)
{
    if (r == NULL) {
        return NULL;
    }
    relay_join(r);
    return r->has_failed ? ps_tls_session_failure(r->session) : NULL;
}

void tls_close(struct tls_relay *r)
{
    if (r == NULL) {
        return;
    }
    relay_join(r);
    close(r->outer);
    relay_free(r);
}
