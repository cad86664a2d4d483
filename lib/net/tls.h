/* SPDX-License-Identifier: Apache-2.0 */
/* TLS of a daemon's connections: handshakes in a thread of their own, and the
 * transport of a connection after its handshake.
 *
 * The signatures of a handshake take a fraction of a millisecond each, for which
 * the event loop does not wait. One thread bounds the processor time that
 * strangers can take; besides, each handshake has a deadline, and the number of
 * those that peers began is limited: one more ends the oldest of its own source,
 * if that has a quarter of the places, or else the oldest. */
#pragma once

#include "base/err.h"
#include "base/list.h"
#include "base/time.h"
#include "net/transport.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_loop;
struct ps_tls_context;
struct ps_tls_gate;
struct ps_tls_session;

#define PS_TLS_WHY_MAX 320u

/* One handshake, embedded in its owner, which sets the first five. */
struct ps_tls_handshake {
    int fd; /* Connected and non-blocking; stays the owner's. */
    bool dialled;
    uint64_t source; /* Number of the peer's host, if it was not dialled. */
    /* On the loop, once, later. 0: `session` is the owner's, and no output of
     * the handshake is left. Else `why` has the reason; PS_E_CLOSED: the peer
     * closed before it sent anything, as a probe does; PS_E_VERSION: it does
     * not use TLS; PS_E_CANCELED. A reason that concerns the peer's
     * certificate ends with its URI. */
    void (*done)(struct ps_tls_handshake *h, int rc, const char *why);
    void *ctx;
    struct ps_tls_session *session;
    /* Private to the module. */
    struct ps_list_node node;
    struct ps_list_node canceled; /* Guarded by the lock. */
    ps_time deadline;
    bool is_complete; /* Guarded by the lock: it is about to be reported. */
    int rc;
    char why[PS_TLS_WHY_MAX];
};

struct ps_tls_gate_options {
    struct ps_loop *loop;
    ps_time timeout;       /* Of a handshake; 0: 5 s. */
    uint32_t accepted_max; /* Handshakes that peers began; 0: 64. */
};

PS_MUST_USE int ps_tls_gate_new(const struct ps_tls_gate_options *opt,
                                struct ps_tls_gate **ret_gate);
/* Requires that no handshake is in progress. NULL is allowed. */
void ps_tls_gate_free(struct ps_tls_gate *g);

/* Begins a handshake with the context of this moment. */
void ps_tls_gate_submit(struct ps_tls_gate *g, struct ps_tls_context *c,
                        struct ps_tls_handshake *h);
/* Ends it soon; `done` runs later, not inside. */
void ps_tls_gate_cancel(struct ps_tls_gate *g, struct ps_tls_handshake *h);

/* ---------------------------------------------------------------- transport */

/* Its `ctx` is the session after its handshake, which it frees. */
extern const struct ps_transport_ops ps_transport_tls;

/* Session of a transport; NULL: it has no encryption. */
struct ps_tls_session *ps_transport_session(const struct ps_transport *t);

/* True if the kernel can protect records (kTLS): it has the module tls. */
bool ps_transport_kernel_has_tls(void);
