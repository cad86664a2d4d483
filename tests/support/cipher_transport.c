/* SPDX-License-Identifier: Apache-2.0 */
#include "support/cipher_transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECORD_MAX 6000u
#define MASK       0xA5u

struct cipher {
    uint8_t in[RECORD_MAX];
    size_t from;
    size_t to;
};

void cipher_apply(uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= MASK;
    }
}

void *cipher_new(void)
{
    return calloc(1, sizeof(struct cipher));
}

static ssize_t cipher_read(struct ps_transport *t, struct iovec *iov, int count)
{
    struct cipher *c = t->ctx;
    size_t n;

    (void)count; /* Reads to one place at a time. */
    if (c->from == c->to) {
        ssize_t got = recv(t->fd, c->in, sizeof(c->in), 0);

        if (got <= 0) {
            return got;
        }
        cipher_apply(c->in, (size_t)got);
        c->from = 0;
        c->to = (size_t)got;
    }
    n = c->to - c->from;
    if (n > iov->iov_len) {
        n = iov->iov_len;
    }
    memcpy(iov->iov_base, c->in + c->from, n);
    c->from += n;
    t->has_unread = c->from < c->to;
    return (ssize_t)n;
}

static ssize_t cipher_write(struct ps_transport *t, struct iovec *iov,
                            int count, int pass_fd)
{
    uint8_t record[RECORD_MAX];
    size_t len = 0;

    (void)pass_fd;
    for (int i = 0; i < count && len < sizeof(record); i++) {
        size_t n = sizeof(record) - len;

        if (n > iov[i].iov_len) {
            n = iov[i].iov_len;
        }
        memcpy(record + len, iov[i].iov_base, n);
        len += n;
    }
    cipher_apply(record, len);
    return send(t->fd, record, len, MSG_NOSIGNAL);
}

static void cipher_fini(struct ps_transport *t)
{
    free(t->ctx);
}

const struct ps_transport_ops cipher_transport = {
    .is_tcp = true,
    .read_turn = 64u * 1024u,
    .write_turn = 64u * 1024u,
    .read = cipher_read,
    .write = cipher_write,
    .fini = cipher_fini,
};
