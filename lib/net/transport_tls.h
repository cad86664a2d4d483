/* SPDX-License-Identifier: Apache-2.0 */
/* Transport of a TCP connection with TLS. Its handshake is over before the
 * connection is made (net/tls_gate.h). Records are opened to the places of the
 * reader, and sealed from those of the writer. */
#pragma once

#include "net/transport.h"

struct ps_tls_session;

/* Bytes of a turn: it takes as long as one of the others. A receiver then also
 * decrypts what a sender has just written, while it is in the cache. */
#define PS_TRANSPORT_TLS_TURN (64u * 1024u)

/* Its `ctx` is the session after its handshake, which it frees. */
extern const struct ps_transport_ops ps_transport_tls;

/* Session of a transport; NULL: it has no encryption. */
struct ps_tls_session *ps_transport_session(const struct ps_transport *t);
