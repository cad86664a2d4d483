/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ktls.h"

#include "crypto/tls_record.h"

#include <endian.h>
#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef SOL_TLS
#define SOL_TLS 282
#endif

/* struct tls12_crypto_info_aes_gcm_128, or _256 of linux/tls.h: the last 8 bytes
 * of the nonce, the key, the first 4 bytes of the nonce, and the number of the
 * next record. */
struct settings {
    uint8_t bytes[sizeof(struct tls12_crypto_info_aes_gcm_256)];
    size_t len;
};

static void put_bytes(struct settings *s, const void *bytes, size_t len)
{
    memcpy(s->bytes + s->len, bytes, len);
    s->len += len;
}

static void put_material(struct settings *s, const struct ps_tls_material *m)
{
    const size_t first = PS_TLS_NONCE - sizeof(uint64_t);
    const struct tls_crypto_info info = {
        .version = TLS_1_3_VERSION,
        .cipher_type = m->key_len == TLS_CIPHER_AES_GCM_128_KEY_SIZE
                           ? TLS_CIPHER_AES_GCM_128
                           : TLS_CIPHER_AES_GCM_256};
    const uint64_t number = htobe64(m->records);

    put_bytes(s, &info, sizeof(info));
    put_bytes(s, m->nonce + first, sizeof(uint64_t));
    put_bytes(s, m->key, m->key_len);
    put_bytes(s, m->nonce, first);
    put_bytes(s, &number, sizeof(number));
}

/* Members send no padding, and the kernel may decrypt in place then; a record
 * that has padding costs a second decryption. Linux 6.0 knows the option. */
static void expect_no_padding(int fd)
{
    const int on = 1;

    (void)setsockopt(fd, SOL_TLS, TLS_RX_EXPECT_NO_PAD, &on, sizeof(on));
}

bool ps_ktls_start(int fd, bool output, const struct ps_tls_material *m)
{
    static const char name[] = "tls";
    struct settings s = {.len = 0};
    bool is_started = setsockopt(fd, SOL_TCP, TCP_ULP, name, sizeof(name)) ==
                          0 ||
                      errno == EEXIST;

    put_material(&s, m);
    is_started = is_started && setsockopt(fd, SOL_TLS, output ? TLS_TX : TLS_RX,
                                          s.bytes, (socklen_t)s.len) == 0;
    explicit_bzero(&s, sizeof(s));
    if (is_started && !output) {
        expect_no_padding(fd);
    }
    return is_started;
}

bool ps_ktls_is_available(void)
{
    static const struct ps_tls_material none = {.key_len = 16};
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_available =
        listener >= 0 && fd >= 0 &&
        bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 &&
        listen(listener, 1) == 0 &&
        getsockname(listener, (struct sockaddr *)&at, &len) == 0 &&
        connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
        ps_ktls_start(fd, true, &none) && ps_ktls_start(fd, false, &none);

    if (listener >= 0) {
        close(listener);
    }
    if (fd >= 0) {
        close(fd);
    }
    return is_available;
}

ssize_t ps_ktls_receive(int fd, struct iovec *iov, int count, uint8_t *ret_type)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(1)];
    } control;
    struct msghdr m = {.msg_iov = iov,
                       .msg_iovlen = (size_t)count,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    ssize_t n;

    do {
        n = recvmsg(fd, &m, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    *ret_type = PS_TLS_DATA;
    if (n >= 0) {
        const struct cmsghdr *h = CMSG_FIRSTHDR(&m);

        if (h != NULL && h->cmsg_level == SOL_TLS &&
            h->cmsg_type == TLS_GET_RECORD_TYPE) {
            *ret_type = *(const uint8_t *)CMSG_DATA(h);
        }
    }
    return n;
}

ssize_t ps_ktls_send(int fd, struct iovec *iov, int count)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    ssize_t n;

    do {
        n = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n;
}

bool ps_ktls_send_control(int fd, uint8_t type, const void *bytes, size_t len)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(1)];
    } control = {.bytes = {0}};
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    ssize_t n;

    h->cmsg_level = SOL_TLS;
    h->cmsg_type = TLS_SET_RECORD_TYPE;
    h->cmsg_len = CMSG_LEN(1);
    *CMSG_DATA(h) = type;
    do {
        n = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)len;
}
