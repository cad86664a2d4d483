/* SPDX-License-Identifier: Apache-2.0 */
/* Handshakes of TLS. The first byte chooses:
 *
 * - one side, which receives the other bytes in any pieces;
 * - two sides, whose bytes are changed, lost, repeated, cut and mixed with
 *   others on their way;
 * - the gate, with connections that send bytes of any kind, end and are
 *   canceled.
 *
 * A side that completes its handshake has a peer of its own authority, under
 * the name in its certificate, which has the keys: records go from one to the
 * other. A failure has a reason. The gate reports each handshake once. */
#include <assert.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "crypto/pki.h"
#include "crypto/tls.h"
#include "fuzz.h"
#include "net/loop.h"
#include "net/tls.h"
#include "random.h"

#define YEAR_2100 INT64_C(4102444800)
#define PEM_BYTES (4u * PS_PKI_PEM_BYTES)
/* Bytes on their way that the steps may add. */
#define WAY_MAX   (64u * 1024u)

/* Contexts of members. */
enum member { SERVER, AGENT, OPERATOR, OTHER_AUTHORITY, MEMBERS };

static struct ps_tls_context *contexts[MEMBERS];

/* ---------------------------------------------------------------- certificates */

static struct ps_tls_context *make_context(const struct ps_pki_authority *a,
                                           enum ps_role role,
                                           const char *cluster,
                                           const char *name)
{
    static char pem[PEM_BYTES];
    struct ps_identity id = {.role = role};
    const struct ps_pki_request q = {.identity = &id, .period = {1, YEAR_2100}};
    struct ps_tls_context *c = NULL;
    EVP_PKEY *key = NULL;
    X509 *x = NULL;
    char why[512];
    struct ps_str text;
    struct ps_str s;

    ps_str_copy(id.cluster, sizeof(id.cluster), cluster);
    ps_str_copy(id.name, sizeof(id.name), name);
    ps_str_init(&text, why, sizeof(why));
    assert(ps_pki_key_new(&key, &text) == 0);
    assert(ps_pki_issue(a, &q, key, &x, &text) == 0);
    ps_str_init(&s, pem, sizeof(pem));
    ps_pki_add_key(&s, key);
    ps_pki_add_certificate(&s, x);
    ps_pki_add_certificate(&s, a->certificate);
    assert(!s.truncated);
    assert(ps_tls_context_new(&(struct ps_tls_source){.pem = pem}, &c, &text) ==
           0);
    ps_pki_certificate_free(x);
    ps_pki_key_free(key);
    return c;
}

static void make_contexts(void)
{
    static const struct ps_pki_period period = {1, YEAR_2100};
    struct ps_pki_authority a;
    struct ps_pki_authority other;
    char why[512];
    struct ps_str text;

    ps_str_init(&text, why, sizeof(why));
    assert(ps_pki_authority_new("c", &period, &a, &text) == 0);
    assert(ps_pki_authority_new("c", &period, &other, &text) == 0);
    contexts[SERVER] = make_context(&a, PS_ROLE_SERVER, "c", "s1");
    contexts[AGENT] = make_context(&a, PS_ROLE_AGENT, "c", "a1");
    contexts[OPERATOR] = make_context(&a, PS_ROLE_CTL, "c", "a2");
    contexts[OTHER_AUTHORITY] = make_context(&other, PS_ROLE_AGENT, "c", "a3");
    ps_pki_authority_fini(&a);
    ps_pki_authority_fini(&other);
}

/* ------------------------------------------------------------------- sides */

struct side {
    struct ps_tls_session *session;
    int fd;
    int way; /* The other end of its socket. */
    enum member member;
    int rc;
    char why[256];
};

static void side_begin(struct side *s, enum member member, bool dialled)
{
    int fd[2];

    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                      fd) == 0);
    s->fd = fd[0];
    s->way = fd[1];
    s->member = member;
    s->session = ps_tls_session_new(contexts[member], s->fd, dialled);
    s->rc = PS_E_AGAIN;
    assert(s->session != NULL);
}

static void side_end(struct side *s)
{
    ps_tls_session_free(s->session);
    close(s->fd);
    close(s->way);
}

static void side_run(struct side *s)
{
    struct ps_str why;

    if (s->rc != PS_E_AGAIN) {
        return;
    }
    ps_str_init(&why, s->why, sizeof(s->why));
    s->rc = ps_tls_session_handshake(s->session, &why);
    assert(s->rc == 0 || s->rc == PS_E_AGAIN || s->rc == PS_E_PROTO ||
           s->rc == PS_E_PERM || s->rc == PS_E_VERSION);
    assert((s->rc == 0 || s->rc == PS_E_AGAIN) == (s->why[0] == '\0'));
}

/* Gives input to a side, as far as its socket has room; returns its number. */
static size_t side_receive(struct side *s, const uint8_t *bytes, size_t len)
{
    ssize_t n;

    if (s->rc != PS_E_AGAIN || len == 0) {
        return 0;
    }
    n = send(s->way, bytes, len, MSG_NOSIGNAL);
    return n > 0 ? (size_t)n : 0;
}

/* Moves output of a side to `bytes`; returns its number. */
static size_t side_output(struct side *s, uint8_t *bytes, size_t most)
{
    ssize_t n = most == 0 ? 0 : recv(s->way, bytes, most, 0);

    return n > 0 ? (size_t)n : 0;
}

/* ----------------------------------------------------------------- one side */

/* No bytes of the input have a signature of today's handshake. */
static void run_one_side(struct fuzz_input *in, bool dialled)
{
    static uint8_t output[WAY_MAX];
    struct side s = {0};

    side_begin(&s, dialled ? AGENT : SERVER, dialled);
    side_run(&s);
    while (in->at < in->size && s.rc == PS_E_AGAIN) {
        size_t most = fuzz_byte(in);
        size_t len;
        const uint8_t *bytes = fuzz_bytes(in, most < 200 ? most : 4096, &len);

        while (len > 0 && s.rc == PS_E_AGAIN) {
            size_t n = side_receive(&s, bytes, len);

            bytes += n;
            len -= n;
            side_run(&s);
            (void)side_output(&s, output, sizeof(output));
        }
    }
    assert(s.rc != 0);
    side_end(&s);
}

/* ---------------------------------------------------------------- two sides */

struct way {
    uint8_t bytes[WAY_MAX];
    size_t len;
};

static void way_add(struct way *w, const void *bytes, size_t len)
{
    len = len < WAY_MAX - w->len ? len : WAY_MAX - w->len;
    if (len > 0) {
        memcpy(w->bytes + w->len, bytes, len);
        w->len += len;
    }
}

static void way_remove(struct way *w, size_t len)
{
    memmove(w->bytes, w->bytes + len, w->len - len);
    w->len -= len;
}

static void way_add_output(struct way *w, struct side *from)
{
    w->len += side_output(from, w->bytes + w->len, WAY_MAX - w->len);
}

static void deliver(struct way *w, struct side *to, size_t most)
{
    size_t len = most < w->len ? most : w->len;

    way_remove(w, side_receive(to, w->bytes, len));
    side_run(to);
}

/* Changes the bytes on one way. */
static void change_way(struct fuzz_input *in, struct way *w)
{
    const uint8_t what = fuzz_byte(in);
    size_t at = (size_t)fuzz_byte(in) << 8;
    size_t len;
    const uint8_t *bytes;

    at |= fuzz_byte(in);
    switch (what % 8) {
    case 0: /* Others come first. */
        bytes = fuzz_bytes(in, fuzz_byte(in), &len);
        if (len <= WAY_MAX - w->len) {
            memmove(w->bytes + len, w->bytes, w->len);
            memcpy(w->bytes, bytes, len);
            w->len += len;
        }
        break;
    case 1:
        bytes = fuzz_bytes(in, fuzz_byte(in), &len);
        way_add(w, bytes, len);
        break;
    case 2:
        way_remove(w, at % 256 < w->len ? at % 256 : w->len);
        break;
    case 3:
        w->len -= at % 256 < w->len ? at % 256 : w->len;
        break;
    case 4: /* They come twice. */
        way_add(w, w->bytes, w->len < 2048 ? w->len : 2048);
        break;
    default:
        if (w->len > 0) {
            w->bytes[at % w->len] ^= (uint8_t)(fuzz_byte(in) | 1);
        }
        break;
    }
}

static void check_peer(const struct side *s, const struct side *peer)
{
    const struct ps_identity *seen = ps_tls_session_peer(s->session);
    const struct ps_identity *real = ps_tls_context_identity(
        contexts[peer->member]);

    assert(s->rc != 0 ||
           (s->member != OTHER_AUTHORITY && peer->member != OTHER_AUTHORITY));
    if (seen->role != 0) {
        assert(seen->role == real->role);
        assert(strcmp(seen->cluster, real->cluster) == 0);
        assert(strcmp(seen->name, real->name) == 0);
    } else {
        assert(s->rc != 0);
    }
}

/* Facts about the peer that outlive the handshake. */
static void check_complete(struct side *s)
{
    char text[256];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    assert(ps_tls_session_handshake(s->session, &why) == 0);
    assert(ps_tls_session_verify(s->session, contexts[s->member], &why) == 0);
    assert(ps_tls_session_verify(s->session, contexts[OTHER_AUTHORITY], &why) !=
           0);
    assert(ps_tls_session_peer_expires_at(s->session) == YEAR_2100);
    assert(strncmp(ps_tls_session_cipher(s->session), "TLS_", 4) == 0);
}

/* Bytes that one side writes are those that the other reads; or they are
 * refused, where the way was changed: others may be in front of them. False:
 * the session of the reader has ended. */
static bool exchange(struct side *from, struct side *to, struct way *w,
                     bool is_changed)
{
    char text[] = "parameters";
    char got[sizeof(text)];
    const ssize_t len = sizeof(text);
    const struct iovec out = {text, sizeof(text)};
    const struct iovec place = {got, sizeof(got)};
    ssize_t n;

    way_add_output(w, from);
    assert(ps_tls_session_write(from->session, &out, 1) == len);
    way_add_output(w, from);
    n = send(to->way, w->bytes, w->len, MSG_NOSIGNAL);
    assert(n == (ssize_t)w->len);
    n = ps_tls_session_read(to->session, &place, 1);
    assert(n == len || (is_changed && (n == PS_E_PROTO || n == PS_E_AGAIN)));
    assert(n < 0 || memcmp(got, text, sizeof(text)) == 0);
    return n != PS_E_PROTO;
}

static void run_two_sides(struct fuzz_input *in)
{
    static struct way ways[2];
    struct side sides[2] = {0};
    uint8_t how = fuzz_byte(in);
    bool is_changed = false;
    bool moves = true;

    ways[0].len = 0;
    ways[1].len = 0;
    side_begin(&sides[0], how < 192 ? AGENT : (enum member)(how % MEMBERS),
               true);
    side_begin(&sides[1], SERVER, false);
    while (in->at < in->size) {
        uint8_t b = fuzz_byte(in);
        unsigned to = b & 1u;

        side_run(&sides[0]);
        side_run(&sides[1]);
        way_add_output(&ways[0], &sides[1]);
        way_add_output(&ways[1], &sides[0]);
        if (b % 8 < 2) {
            change_way(in, &ways[to]);
            is_changed = true;
        } else {
            deliver(&ways[to], &sides[to], b < 128 ? SIZE_MAX : b - 127u);
        }
    }
    while (moves) {
        moves = false;
        for (unsigned to = 0; to < 2; to++) {
            size_t before;

            side_run(&sides[!to]);
            way_add_output(&ways[to], &sides[!to]);
            before = ways[to].len;
            deliver(&ways[to], &sides[to], SIZE_MAX);
            moves |= ways[to].len < before;
        }
    }
    check_peer(&sides[0], &sides[1]);
    check_peer(&sides[1], &sides[0]);
    if (sides[0].rc == 0 && sides[1].rc == 0) {
        check_complete(&sides[0]);
        check_complete(&sides[1]);
        if (exchange(&sides[0], &sides[1], &ways[1], is_changed)) {
            (void)exchange(&sides[1], &sides[0], &ways[0], is_changed);
        }
    }
    side_end(&sides[0]);
    side_end(&sides[1]);
}

/* ----------------------------------------------------------------- the gate */

#define CONNS 6u

struct knock {
    struct ps_tls_handshake handshake;
    int peer; /* Socket of the peer; -1: closed. */
    bool is_begun;
    bool is_done;
};

static unsigned done_count;

static void on_done(struct ps_tls_handshake *h, int rc, const char *why)
{
    struct knock *k = h->ctx;

    assert(!k->is_done);
    assert(rc != 0 && rc != PS_E_AGAIN && h->session == NULL);
    assert(why[0] != '\0');
    k->is_done = true;
    done_count++;
}

static void knock_begin(struct ps_tls_gate *g, struct knock *k, uint8_t how)
{
    int fd[2];

    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
                      fd) == 0);
    k->peer = fd[1];
    k->is_begun = true;
    k->handshake = (struct ps_tls_handshake){.fd = fd[0],
                                             .dialled = (how & 1) != 0,
                                             .source = how / 2u % 4u,
                                             .done = on_done,
                                             .ctx = k};
    ps_tls_gate_submit(g, contexts[how & 1 ? AGENT : SERVER], &k->handshake);
}

static void knock_end(struct knock *k)
{
    if (k->peer >= 0) {
        close(k->peer);
        k->peer = -1;
    }
}

static void take_gate_step(struct fuzz_input *in, struct ps_tls_gate *g,
                           struct ps_loop *loop, struct knock *k)
{
    uint8_t b = fuzz_byte(in);
    size_t len;
    const uint8_t *bytes;

    if (!k->is_begun) {
        knock_begin(g, k, b);
        return;
    }
    switch (b % 8) {
    case 0:
        knock_end(k);
        break;
    case 1:
        if (!k->is_done) {
            ps_tls_gate_cancel(g, &k->handshake);
        }
        break;
    case 2:
        if (!k->is_done && k->peer < 0) {
            (void)ps_loop_step(loop);
        }
        break;
    default:
        bytes = fuzz_bytes(in, fuzz_byte(in), &len);
        if (k->peer >= 0 && len > 0) {
            (void)!send(k->peer, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        break;
    }
}

/* The thread of the gate takes what has arrived when it comes to it, but no
 * result depends on that: all handshakes end without success. */
static void run_gate(struct fuzz_input *in)
{
    static struct ps_loop *loop;
    struct knock knocks[CONNS] = {0};
    struct ps_tls_gate *g;
    unsigned begun = 0;

    if (loop == NULL) {
        assert(ps_loop_new(&loop) == 0);
    }
    assert(ps_tls_gate_new(
               &(struct ps_tls_gate_options){
                   .loop = loop, .timeout = PS_SECONDS(60), .accepted_max = 4},
               &g) == 0);
    done_count = 0;
    while (in->at < in->size) {
        take_gate_step(in, g, loop, &knocks[fuzz_byte(in) % CONNS]);
    }
    for (unsigned i = 0; i < CONNS; i++) {
        if (knocks[i].is_begun) {
            begun++;
            knock_end(&knocks[i]);
        }
    }
    while (done_count < begun) {
        (void)ps_loop_step(loop);
    }
    ps_tls_gate_free(g);
    (void)ps_loop_step(loop); /* Frees its handle. */
    for (unsigned i = 0; i < CONNS; i++) {
        if (knocks[i].is_begun) {
            close(knocks[i].handshake.fd);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size, 0};

    fuzz_random_restart();
    if (contexts[0] == NULL) {
        (void)signal(SIGPIPE, SIG_IGN); /* As the daemons. */
        make_contexts();
        fuzz_random_restart();
    }
    switch (fuzz_byte(&in) % 8) {
    case 0:
    case 1:
        run_one_side(&in, false);
        break;
    case 2:
        run_one_side(&in, true);
        break;
    case 3:
        run_gate(&in);
        break;
    default:
        run_two_sides(&in);
        break;
    }
    return 0;
}
