/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of the kernel (kTLS): records of a socket are sealed, and opened, by the
 * kernel, where it can. Each direction is on its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct ps_tls_material;

/* True if the kernel can protect both directions of a connection: tries it with
 * one to this process. */
bool ps_ktls_is_available(void);
/* Gives the keys of a direction to the kernel: at first, or, if it can change
 * them, after a KeyUpdate. False: this kernel cannot. */
bool ps_ktls_start(int fd, bool output, const struct ps_tls_material *m);
/* As recvmsg(); *ret_type is the type of the record that the bytes are of. */
ssize_t ps_ktls_receive(int fd, struct iovec *iov, int count,
                        uint8_t *ret_type);
/* As sendmsg(). */
ssize_t ps_ktls_send(int fd, struct iovec *iov, int count);
/* Sends a record of another type than data. False with errno: it is not sent. */
bool ps_ktls_send_control(int fd, uint8_t type, const void *bytes, size_t len);
