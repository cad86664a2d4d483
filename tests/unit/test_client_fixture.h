/* SPDX-License-Identifier: Apache-2.0 */
/* A client with one key, and its agent played by the test. */
#pragma once

#include "test_client_peer.h"

#define N 1000

struct fixture {
    struct peer peer;
    struct psc_client *c;
    uint32_t key; /* 'w', N float32, number 40 on the wire. */
    float *result[2];
    bool closed; /* The test has closed the client. */
};

/* Operations go over the socket in the first run of the tests, by the ring in
 * the second. */
static bool by_ring;

/* Keeps what `adjust` of the peer does to the client's options. */
static inline void fixture_begin(struct fixture *f, int retry_ms)
{
    void (*adjust)(struct psc_options * o) = f->peer.adjust;
    void *data[2];

    peer_start(&f->peer);
    f->peer.adjust = adjust;
    f->peer.accepts_ring = by_ring;
    f->peer.retry_ms = retry_ms;
    f->c = peer_open(&f->peer, 0);
    f->key = peer_key(&f->peer, f->c, "w", PSC_FLOAT32, N, 40, data);
    f->result[0] = data[0];
    f->result[1] = data[1];
}

static inline int tear_down(void **state)
{
    struct fixture *f = *state;

    if (f->closed) {
        peer_stop(&f->peer);
    } else {
        peer_end(&f->peer, f->c);
    }
    free(f);
    return 0;
}

static inline void fill(float *array, float value)
{
    for (size_t i = 0; i < N; i++) {
        array[i] = value;
    }
}
