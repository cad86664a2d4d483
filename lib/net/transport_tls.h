/* SPDX-License-Identifier: Apache-2.0 */
/* Transport of a TCP connection with TLS. Its handshake is over before the
 * connection is made (net/tls_gate.h). */
#pragma once

#include "net/transport.h"

struct ps_tls_session;

/* Its `ctx` is the session after its handshake, which it frees. */
extern const struct ps_transport_ops ps_transport_tls;

/* Session of a transport; NULL: it has no encryption. */
struct ps_tls_session *ps_transport_session(const struct ps_transport *t);

/* True if the kernel can protect records (kTLS): it has the module tls. */
bool ps_transport_kernel_has_tls(void);
