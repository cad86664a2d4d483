/* SPDX-License-Identifier: Apache-2.0 */
/* The way between pslaunch and the supervisors of hosts: messages, over pipes or a
 * socket that do not block; and for supervisors that are tasks of an array job
 * the port at which they reach pslaunch, which is open only until all of them
 * have connected, and TLS 1.3 with a key of 32 random bytes for each host, which
 * they have from a file of the user, and no certificates. A connection counts
 * when it has proved the key of its host; any other is closed without an
 * answer. */
#pragma once

#include "base/limits.h"
#include "base/str.h"
#include "proto/msg_codec.h"

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Side of the supervisor: makes the handshake on a socket that blocks, by the key
 * of its host. NULL after the reason is appended to `why`. */
SSL *secret_connect(int fd, uint32_t place,
                    const uint8_t secret[PS_LAUNCH_SECRET_BYTES],
                    struct ps_str *why);

struct listener;

/* The supervisor of a host has connected; `fd` and `tls` are the callee's. */
typedef void (*listener_cb)(void *ctx, uint32_t place, int fd, SSL *tls);

/* Listens at a free port of `address`, NULL: all addresses, for the supervisors
 * of `count` hosts, with a key for each. NULL after a message on standard
 * error. */
struct listener *listener_open(const char *address, uint32_t count,
                               listener_cb connected, void *ctx);
/* NULL is allowed. */
void listener_close(struct listener *l);
uint16_t listener_port(const struct listener *l);
const uint8_t *listener_secret(const struct listener *l, uint32_t place);
/* Descriptor that is readable when listener_serve() has something to do. */
int listener_fd(const struct listener *l);
void listener_serve(struct listener *l);

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
/* True if the other host of a socket with TLS has answered nothing for 4 seconds:
 * it is gone, or the network is. A process that is only slow does not matter. */
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
