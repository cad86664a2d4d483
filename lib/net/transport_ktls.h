/* SPDX-License-Identifier: Apache-2.0 */
/* Transport of a TCP connection with TLS whose records the kernel seals and
 * opens, where it can; the others as net/transport_tls.h. */
#pragma once

#include "net/transport.h"

struct ps_ktls;
struct ps_tls_session;

/* State of the transport, its `ctx`, which it frees. The session is after its
 * handshake, and owned from here on. */
struct ps_ktls *ps_ktls_new(struct ps_tls_session *session, int fd);
/* Frees the state, but neither session nor socket, where no connection was made
 * of them. */
void ps_ktls_release(struct ps_ktls *k);

extern const struct ps_transport_ops ps_transport_ktls;
