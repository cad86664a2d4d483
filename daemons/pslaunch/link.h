/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between pslaunch and the supervisor of a host, over pipes or a
 * socket that do not block. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <openssl/types.h>

#include "proto/msg_codec.h"

struct link {
    int in;   /* -1: closed. */
    int out;  /* -1: closed; may be the same as `in`. */
    SSL *tls; /* Of a socket; NULL: plain bytes. */
    struct ps_decoder *decoder;
    uint8_t *input; /* Bytes of a frame that is not complete. */
    size_t input_len;
    size_t input_cap;
    uint8_t *output; /* Frames, valid from `output_offset`. */
    size_t output_offset;
    size_t output_len;
    size_t output_cap;
};

/* Handles a message, which is valid until it returns. False: the message is
 * not one that this side accepts. */
typedef bool (*link_message_cb)(void *ctx, const struct ps_msg *msg);

/* Takes over both descriptors. */
void link_open(struct link *l, int in, int out);
/* The same for a socket with TLS, whose handshake is done. */
void link_open_tls(struct link *l, int fd, SSL *tls);
/* True if the other host of a socket with TLS answers nothing any more. */
bool link_is_cut(const struct link *l);
/* Closes the descriptors and frees the buffers. */
void link_close(struct link *l);
/* Closes the direction of sending: the other side reads the end. */
void link_close_output(struct link *l);
/* Queues a message and writes what fits. Returns 0, or PS_E_TOOBIG if the
 * message exceeds its maximum. A link whose peer is gone drops it. */
int link_send(struct link *l, const struct ps_msg *msg);
/* True if there are bytes to write when poll() reports space. */
bool link_has_output(const struct link *l);
/* Bytes that wait. */
size_t link_output_size(const struct link *l);
void link_write(struct link *l);
/* Reads what has come and hands each message to `cb`. False: the other side is
 * gone, or has sent what is no message. */
bool link_read(struct link *l, link_message_cb cb, void *ctx);
