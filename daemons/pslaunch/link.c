/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/link.h"

#include "pslaunch/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <unistd.h>

/* Bytes read at once. */
#define READ_SIZE 65536u

static void *grow(void *p, size_t size)
{
    p = realloc(p, size);
    if (p == NULL) {
        abort();
    }
    return p;
}

static void set_nonblocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void link_open(struct link *l, int in, int out)
{
    *l = (struct link){.in = in, .out = out, .decoder = ps_decoder_new()};
    if (l->decoder == NULL) {
        abort();
    }
    set_nonblocking(in);
    set_nonblocking(out);
}

void link_open_tls(struct link *l, int fd, SSL *tls)
{
    link_open(l, fd, fd);
    l->tls = tls;
}

bool link_is_cut(const struct link *l)
{
    return l->tls != NULL && l->in >= 0 && secret_is_cut(l->in);
}

/* Like read() and write(), with an errno value of -1. */
static ssize_t tls_result(const struct link *l, int rc)
{
    if (rc > 0) {
        return rc;
    }
    switch (SSL_get_error(l->tls, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        ERR_clear_error();
        errno = EPIPE;
        return -1;
    }
}

static ssize_t receive(struct link *l, void *bytes, size_t len)
{
    return l->tls != NULL ? tls_result(l, SSL_read(l->tls, bytes, (int)len))
                          : read(l->in, bytes, len);
}

static ssize_t transmit(struct link *l, const void *bytes, size_t len)
{
    const size_t most = 1u << 20;

    return l->tls != NULL
               ? tls_result(l, SSL_write(l->tls, bytes,
                                         (int)(len < most ? len : most)))
               : write(l->out, bytes, len);
}

void link_close_output(struct link *l)
{
    if (l->out >= 0 && l->out != l->in) {
        close(l->out);
    }
    l->out = -1;
    l->output_offset = l->output_len;
}

void link_close(struct link *l)
{
    link_close_output(l);
    SSL_free(l->tls);
    l->tls = NULL;
    if (l->in >= 0) {
        close(l->in);
        l->in = -1;
    }
    ps_decoder_free(l->decoder);
    free(l->input);
    free(l->output);
    l->decoder = NULL;
    l->input = NULL;
    l->output = NULL;
}

bool link_has_output(const struct link *l)
{
    return link_output_size(l) > 0;
}

size_t link_output_size(const struct link *l)
{
    return l->output_len - l->output_offset;
}

void link_write(struct link *l)
{
    while (link_has_output(l)) {
        ssize_t n = transmit(l, l->output + l->output_offset,
                             link_output_size(l));

        if (n > 0) {
            l->output_offset += (size_t)n;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else {
            link_close_output(l);
            return;
        }
    }
    l->output_offset = 0;
    l->output_len = 0;
}

int link_send(struct link *l, const struct ps_msg *msg)
{
    size_t bound = ps_msg_encoded_bound(msg);
    size_t len = 0;
    int rc;

    if (l->out < 0) {
        return 0;
    }
    if (l->output_len + bound > l->output_cap) {
        l->output_cap = 2 * (l->output_len + bound);
        l->output = grow(l->output, l->output_cap);
    }
    rc = ps_msg_encode(msg, PS_PROTOCOL, 0, l->output + l->output_len,
                       l->output_cap - l->output_len, &len);
    if (rc != 0) {
        return rc;
    }
    l->output_len += len;
    link_write(l);
    return 0;
}

/* Handles the complete frames of the input. False: bytes that are none. */
static bool handle_frames(struct link *l, link_message_cb cb, void *ctx)
{
    size_t from = 0;
    bool ok = true;

    while (ok && l->input_len - from >= PS_FRAME_PREFIX) {
        struct ps_frame_prefix p;
        struct ps_msg msg;
        size_t size;

        ok = ps_frame_parse(l->input + from, &p) == 0 &&
             ps_frame_check(&p, PS_ROLE_CTL, PS_ROLE_CTL) == 0;
        size = ok ? PS_FRAME_PREFIX + (size_t)p.header_len : 0;
        if (!ok || l->input_len - from < size) {
            break;
        }
        ok = ps_msg_decode(l->decoder, p.code,
                           l->input + from + PS_FRAME_PREFIX, p.header_len,
                           &msg) == 0 &&
             cb(ctx, &msg);
        from += size;
    }
    memmove(l->input, l->input + from, l->input_len - from);
    l->input_len -= from;
    return ok;
}

static bool read_once(struct link *l, link_message_cb cb, void *ctx)
{
    ssize_t n;

    if (l->input_cap - l->input_len < READ_SIZE) {
        l->input_cap = 2 * (l->input_len + READ_SIZE);
        l->input = grow(l->input, l->input_cap);
    }
    n = receive(l, l->input + l->input_len, READ_SIZE);
    if (n < 0) {
        return errno == EINTR || errno == EAGAIN;
    }
    l->input_len += (size_t)n;
    return n > 0 && handle_frames(l, cb, ctx);
}

bool link_read(struct link *l, link_message_cb cb, void *ctx)
{
    bool ok;

    do {
        ok = read_once(l, cb, ctx);
        /* Bytes that TLS has read ahead make no descriptor readable. */
    } while (ok && l->tls != NULL && SSL_pending(l->tls) > 0);
    return ok;
}
