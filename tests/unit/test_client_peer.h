/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's end of the socket, played by a test: it receives the client's
 * messages one at a time and sends those of the test. Blocking, with a time
 * limit, so that a silent client fails the test. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/psclient.h"
#include "proto/frame.h"
#include "proto/msg_codec.h"
#include "proto/ring.h"
#include "support/sanitized.h"

#define PEER_LIMIT_MS ps_test_limit_ms(20000)
#define PEER_REGIONS  64

struct peer {
    char path[108];
    int listener;
    int fd;
    struct ps_decoder *decoder;
    uint8_t header[65536];
    int fd_in; /* Descriptor that came with the last message, or -1. */
    const uint8_t *regions[PEER_REGIONS];
    uint64_t region_sizes[PEER_REGIONS];
    uint8_t *arena; /* Two results of `half` bytes for each key. */
    int arena_fd;
    size_t arena_size;
    size_t arena_used;
    bool accepts_ring;                     /* Stated in its welcome. */
    int retry_ms;                          /* The client's agent_retry_ms. */
    void (*adjust)(struct psc_options *o); /* More of its options; or NULL. */
    void *ring_memory;
    struct ps_ring_agent ring;
    uint64_t frames;
    struct ps_msg later; /* A frame that came after operations in the ring. */
};

/* cmocka's assertions work on the test's thread only. */
#define PEER_CHECK(what)                                                       \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);         \
            abort();                                                           \
        }                                                                      \
    } while (0)

static inline void peer_start(struct peer *p)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    memset(p, 0, sizeof(*p));
    p->fd = -1;
    p->fd_in = -1;
    p->arena_fd = -1;
    snprintf(p->path, sizeof(p->path), "/tmp/pskv-test-%d.sock", getpid());
    unlink(p->path);
    memcpy(a.sun_path, p->path, strlen(p->path) + 1);
    p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    PEER_CHECK(p->listener >= 0);
    PEER_CHECK(bind(p->listener, (struct sockaddr *)&a, sizeof(a)) == 0);
    PEER_CHECK(listen(p->listener, 8) == 0);
    p->decoder = ps_decoder_new();
    PEER_CHECK(p->decoder != NULL);
}

static inline void peer_close_conn(struct peer *p)
{
    if (p->fd >= 0) {
        close(p->fd);
        p->fd = -1;
    }
}

/* Releases everything that the client has shared. */
static inline void peer_drop_shared(struct peer *p)
{
    peer_close_conn(p);
    for (size_t i = 0; i < PEER_REGIONS; i++) {
        if (p->regions[i] != NULL) {
            munmap((void *)(uintptr_t)p->regions[i], p->region_sizes[i]);
        }
    }
    memset(p->regions, 0, sizeof(p->regions));
    if (p->fd_in >= 0) {
        close(p->fd_in);
        p->fd_in = -1;
    }
    if (p->arena != NULL) {
        munmap(p->arena, p->arena_size);
        close(p->arena_fd);
        p->arena = NULL;
        p->arena_fd = -1;
        p->arena_used = 0;
    }
    if (p->ring_memory != NULL) {
        munmap(p->ring_memory, ps_ring_bytes());
        p->ring_memory = NULL;
    }
    p->frames = 0;
    p->later.code = 0;
}

static inline void peer_stop(struct peer *p)
{
    peer_drop_shared(p);
    close(p->listener);
    unlink(p->path);
    ps_decoder_free(p->decoder);
}

static inline void peer_accept(struct peer *p)
{
    struct pollfd w = {.fd = p->listener, .events = POLLIN};

    PEER_CHECK(poll(&w, 1, PEER_LIMIT_MS) == 1);
    p->fd = accept(p->listener, NULL, NULL);
    PEER_CHECK(p->fd >= 0);
}

/* False at the end of the stream. */
static inline bool peer_read(struct peer *p, void *data, size_t len)
{
    size_t have = 0;

    while (have < len) {
        union {
            char bytes[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec io = {.iov_base = (uint8_t *)data + have,
                           .iov_len = len - have};
        struct msghdr h = {.msg_iov = &io,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof(control.bytes)};
        struct pollfd w = {.fd = p->fd, .events = POLLIN};
        struct cmsghdr *c;
        ssize_t n;

        PEER_CHECK(poll(&w, 1, PEER_LIMIT_MS) == 1);
        n = recvmsg(p->fd, &h, MSG_CMSG_CLOEXEC);
        if (n <= 0) {
            return false;
        }
        c = CMSG_FIRSTHDR(&h);
        if (c != NULL) {
            PEER_CHECK(c->cmsg_type == SCM_RIGHTS && p->fd_in < 0);
            memcpy(&p->fd_in, CMSG_DATA(c), sizeof(int));
        }
        have += (size_t)n;
    }
    return true;
}

/* Maps a region as an agent would, after the same checks. */
static inline void peer_accept_region(struct peer *p,
                                      const struct ps_msg_l_region *m)
{
    int want = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct stat st;
    void *data;

    PEER_CHECK(p->fd_in >= 0 && m->region < PEER_REGIONS);
    PEER_CHECK((fcntl(p->fd_in, F_GET_SEALS) & want) == want);
    PEER_CHECK(fstat(p->fd_in, &st) == 0);
    PEER_CHECK((uint64_t)st.st_size == m->size && (st.st_mode & 0111) == 0);
    data = mmap(NULL, m->size, PROT_READ, MAP_SHARED, p->fd_in, 0);
    PEER_CHECK(data != MAP_FAILED);
    p->regions[m->region] = data;
    p->region_sizes[m->region] = m->size;
    close(p->fd_in);
    p->fd_in = -1;
}

static inline void peer_accept_ring(struct peer *p,
                                    const struct ps_msg_l_ring *m)
{
    PEER_CHECK(p->fd_in >= 0 && p->accepts_ring && p->ring_memory == NULL);
    PEER_CHECK(m->size == ps_ring_bytes());
    p->ring_memory = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED,
                          p->fd_in, 0);
    PEER_CHECK(p->ring_memory != MAP_FAILED);
    ps_ring_agent_init(&p->ring, p->ring_memory);
    close(p->fd_in);
    p->fd_in = -1;
}

/* Returns the next operation in the ring of a client that has sent `frames`
 * frames. */
static inline bool peer_ring_op(struct peer *p, uint64_t frames,
                                struct ps_msg *ret_msg)
{
    struct ps_msg m = {.code = PS_MSG_L_OP};

    if (p->ring_memory == NULL ||
        ps_ring_pop_ops(&p->ring, frames, &m.l_op, 1) != 1) {
        return false;
    }
    *ret_msg = m;
    return true;
}

/* Reads the next frame; memory is mapped at once. code 0: end of stream. */
static inline struct ps_msg peer_next_frame(struct peer *p)
{
    struct ps_frame_prefix prefix;
    uint8_t raw[PS_FRAME_PREFIX];
    struct ps_msg m = {0};

    if (!peer_read(p, raw, sizeof(raw))) {
        return (struct ps_msg){0};
    }
    PEER_CHECK(ps_frame_parse(raw, &prefix) == 0);
    PEER_CHECK(ps_frame_check(&prefix, PS_ROLE_WORKER, PS_ROLE_AGENT) == 0);
    PEER_CHECK(prefix.payload_len == 0);
    PEER_CHECK(peer_read(p, p->header, prefix.header_len));
    PEER_CHECK(ps_msg_decode(p->decoder, prefix.code, p->header,
                             prefix.header_len, &m) == 0);
    p->frames++;
    if (m.code == PS_MSG_L_REGION) {
        peer_accept_region(p, &m.l_region);
    } else if (m.code == PS_MSG_L_RING) {
        peer_accept_ring(p, &m.l_ring);
    }
    PEER_CHECK(p->fd_in < 0 || m.code == PS_MSG_L_RESIDUAL_SEGMENT);
    return m;
}

/* Takes in one frame; false at the end of the stream. */
static inline bool peer_accept_frame(struct peer *p)
{
    struct ps_msg m = peer_next_frame(p);

    if (m.code != PS_MSG_L_WAKE && m.code != PS_MSG_L_REGION &&
        m.code != PS_MSG_L_RING) {
        p->later = m;
    }
    return m.code != 0;
}

/* True when the client has sent nothing (more). */
static inline bool peer_is_silent(struct peer *p)
{
    struct pollfd w = {.fd = p->fd, .events = POLLIN};
    bool silent = true;

    while (p->later.code == 0 && poll(&w, 1, 0) == 1) {
        if (!peer_accept_frame(p)) {
            return false;
        }
    }
    if (p->ring_memory != NULL) {
        silent = ps_ring_agent_sleep(&p->ring, p->frames);
        ps_ring_agent_awake(&p->ring);
    }
    return silent && p->later.code == 0;
}

/* The next message, from the ring or the socket, in the client's order. */
static inline struct ps_msg peer_next(struct peer *p)
{
    struct ps_msg m;

    for (;;) {
        if (p->later.code != 0) {
            if (!peer_ring_op(p, p->frames - 1, &m)) {
                m = p->later;
                p->later.code = 0;
            }
            return m;
        }
        if (peer_ring_op(p, p->frames, &m)) {
            return m;
        }
        if (p->ring_memory != NULL &&
            !ps_ring_agent_sleep(&p->ring, p->frames)) {
            continue;
        }
        if (!peer_accept_frame(p)) {
            return (struct ps_msg){0};
        }
        if (p->ring_memory != NULL) {
            ps_ring_agent_awake(&p->ring);
        }
    }
}

static inline struct ps_msg peer_expect(struct peer *p, enum ps_msg_code code)
{
    struct ps_msg m = peer_next(p);

    if (m.code != code) {
        char text[512];

        ps_msg_print(&m, text, sizeof(text));
        fprintf(stderr, "wanted %s, came %s\n", ps_msg_name(code), text);
        abort();
    }
    return m;
}

static inline struct ps_msg_l_op peer_expect_op(struct peer *p, enum ps_op op)
{
    struct ps_msg m = peer_expect(p, PS_MSG_L_OP);

    PEER_CHECK(m.l_op.op == op);
    return m.l_op;
}

static inline void peer_send_bytes(struct peer *p, const void *data, size_t len,
                                   int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    struct iovec io = {.iov_base = (void *)(uintptr_t)data, .iov_len = len};
    struct msghdr h = {.msg_iov = &io, .msg_iovlen = 1};

    if (fd >= 0) {
        struct cmsghdr *c;

        h.msg_control = control.bytes;
        h.msg_controllen = sizeof(control.bytes);
        c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    ssize_t n = sendmsg(p->fd, &h, MSG_NOSIGNAL);

    /* The client may close at any time; the next read notices that. */
    PEER_CHECK(n == (ssize_t)len ||
               (n < 0 && (errno == EPIPE || errno == ECONNRESET)));
}

static inline void peer_send(struct peer *p, const struct ps_msg *m, int fd)
{
    uint8_t out[8192];
    size_t len;

    PEER_CHECK(ps_msg_encode(m, PS_PROTOCOL, 0, out, sizeof(out), &len) == 0);
    peer_send_bytes(p, out, len, fd);
}

static inline int peer_memfd(size_t size, int seals)
{
    int fd = memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    PEER_CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    PEER_CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* One arena, number 7. */
static inline void peer_send_arena(struct peer *p, size_t size)
{
    p->arena_fd = peer_memfd(size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    p->arena_size = size;
    p->arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, p->arena_fd,
                    0);
    PEER_CHECK(p->arena != MAP_FAILED);
    peer_send(p,
              &(struct ps_msg){.code = PS_MSG_L_ARENA,
                               .l_arena = {.arena = 7, .size = size}},
              p->arena_fd);
}

static inline void peer_done(struct peer *p, uint64_t op_id, uint64_t version)
{
    if (p->ring_memory != NULL && ps_ring_push_done(&p->ring, op_id, version)) {
        if (ps_ring_wake_worker(&p->ring)) {
            peer_send(p, &(struct ps_msg){.code = PS_MSG_L_WAKE}, -1);
        }
        return;
    }
    peer_send(p,
              &(struct ps_msg){.code = PS_MSG_L_DONE,
                               .l_done = {.op_id = op_id, .version = version}},
              -1);
}

/* Reports, by the ring only, that `bytes` of the result are ready. */
static inline void peer_progress(struct peer *p, uint64_t op_id, uint64_t bytes)
{
    PEER_CHECK(ps_ring_push_progress(
        &p->ring, &(struct ps_ring_progress){.op_id = op_id, .bytes = bytes}));
    if (ps_ring_wake_worker(&p->ring)) {
        peer_send(p, &(struct ps_msg){.code = PS_MSG_L_WAKE}, -1);
    }
}

static inline void peer_refuse(struct peer *p, uint64_t op_id, int error,
                               const char *text)
{
    peer_send(p,
              &(struct ps_msg){
                  .code = PS_MSG_L_DONE,
                  .l_done = {.op_id = op_id, .error = error, .text = text}},
              -1);
}

/* Returns the array that the worker contributes. */
static inline const void *peer_op_source(const struct peer *p,
                                         const struct ps_msg_l_op *op)
{
    PEER_CHECK(op->region > 0 && op->region < PEER_REGIONS);
    PEER_CHECK(p->regions[op->region] != NULL);
    PEER_CHECK(op->offset < p->region_sizes[op->region]);
    return p->regions[op->region] + op->offset;
}

/* ------------------------------------------------- calls of the client that
 * wait for the peer, made on a thread of their own. */

struct peer_call {
    pthread_t thread;
    int rc;
    struct psc_client *client;
    char err[PSC_TEXT_MAX];
    char path[108];
    struct psc_options options;
    const char *name;
    uint32_t dtype;
    uint64_t count;
    uint32_t key;
    int64_t number; /* >= 0: psc_key_int. */
};

static inline void *peer_open_main(void *arg)
{
    struct peer_call *call = arg;

    call->rc = psc_open(&call->options, &call->client, call->err,
                        sizeof(call->err));
    return NULL;
}

static inline void peer_open_begin(struct peer *p, struct peer_call *call,
                                   int op_timeout_ms, uint32_t flags)
{
    memset(call, 0, sizeof(*call));
    psc_options_init(&call->options, sizeof(call->options));
    memcpy(call->path, p->path, sizeof(call->path));
    call->options.socket = call->path;
    call->options.job = "test";
    call->options.num_workers = 4;
    call->options.rank = 2;
    call->options.op_timeout_ms = op_timeout_ms;
    call->options.flags = flags;
    call->options.on_loss = PSC_ON_LOSS_WAIT;
    call->options.agent_retry_ms = p->retry_ms;
    if (p->adjust != NULL) {
        p->adjust(&call->options);
    }
    PEER_CHECK(pthread_create(&call->thread, NULL, peer_open_main, call) == 0);
}

/* Ends this agent and becomes the next one, which the client finds; returns its
 * l_hello. */
static inline struct ps_msg_l_hello peer_accept_reattach(struct peer *p)
{
    struct ps_msg m;

    peer_drop_shared(p);
    peer_accept(p);
    m = peer_expect(p, PS_MSG_L_HELLO);
    return m.l_hello;
}

static inline void peer_welcome(struct peer *p)
{
    peer_send(p,
              &(struct ps_msg){
                  .code = PS_MSG_L_WELCOME,
                  .l_welcome = {.gen = 1,
                                .rank = 2,
                                .num_workers = 4,
                                .local_rank = 0,
                                .local_size = 2,
                                .num_servers = 1,
                                .completed_barriers = 6,
                                .ring_layout =
                                    p->accepts_ring ? ps_ring_layout() : 0}},
              -1);
}

static inline struct psc_client *peer_open(struct peer *p, int op_timeout_ms)
{
    struct peer_call call;

    peer_open_begin(p, &call, op_timeout_ms, 0);
    peer_accept(p);
    peer_expect(p, PS_MSG_L_HELLO);
    peer_welcome(p);
    PEER_CHECK(pthread_join(call.thread, NULL) == 0);
    PEER_CHECK(call.rc == 0);
    return call.client;
}

static inline void *peer_key_main(void *arg)
{
    struct peer_call *call = arg;

    call->rc = call->number >= 0
                   ? psc_key_int(call->client, call->number, call->dtype, 1,
                                 &call->count, &call->key)
                   : psc_key(call->client, call->name, call->dtype, 1,
                             &call->count, &call->key);
    return NULL;
}

static inline void peer_key_begin(struct peer_call *call, struct psc_client *c,
                                  const char *name, uint32_t dtype,
                                  uint64_t count)
{
    memset(call, 0, sizeof(*call));
    call->client = c;
    call->name = name;
    call->dtype = dtype;
    call->count = count;
    call->number = -1;
    PEER_CHECK(pthread_create(&call->thread, NULL, peer_key_main, call) == 0);
}

static inline void peer_answer_key(struct peer *p, const struct ps_msg_l_key *k,
                                   uint32_t wire, uint64_t round)
{
    size_t half = (size_t)k->count *
                  (k->dtype == PSC_FLOAT64 || k->dtype == PSC_INT64 ? 8 : 4);

    half = (half + 63) & ~(size_t)63;
    if (p->arena == NULL) {
        peer_send_arena(p, (size_t)1 << 24);
    }
    PEER_CHECK(p->arena_used + 2 * half <= p->arena_size);
    peer_send(
        p,
        &(struct ps_msg){.code = PS_MSG_L_KEY_INFO,
                         .l_key_info = {.request = k->request,
                                        .reattached = k->reattached,
                                        .key = wire,
                                        .arena = 7,
                                        .even_offset = p->arena_used,
                                        .odd_offset = p->arena_used + half,
                                        .pushed_round = round}},
        -1);
    p->arena_used += 2 * half;
}

/* Declares a key whose number on the wire is `wire`; where its results lie is
 * left in ret_data. */
static inline uint32_t peer_key(struct peer *p, struct psc_client *c,
                                const char *name, uint32_t dtype,
                                uint64_t count, uint32_t wire,
                                void *ret_data[2])
{
    struct peer_call call;
    struct ps_msg m;
    size_t at = p->arena_used;

    peer_key_begin(&call, c, name, dtype, count);
    m = peer_expect(p, PS_MSG_L_KEY);
    PEER_CHECK(m.l_key.kind == PS_KEY_KIND_STRING);
    PEER_CHECK(strcmp(m.l_key.name, name) == 0);
    peer_answer_key(p, &m.l_key, wire, 0);
    PEER_CHECK(pthread_join(call.thread, NULL) == 0);
    PEER_CHECK(call.rc == 0);
    ret_data[0] = p->arena + at;
    ret_data[1] = p->arena + at + (p->arena_used - at) / 2;
    return call.key;
}

/* Ends the client while a thread answers its l_detach. */
static inline void *peer_close_main(void *arg)
{
    psc_close(arg);
    return NULL;
}

static inline void peer_close(struct peer *p, struct psc_client *c)
{
    pthread_t t;

    PEER_CHECK(pthread_create(&t, NULL, peer_close_main, c) == 0);
    peer_expect(p, PS_MSG_L_DETACH);
    peer_close_conn(p);
    PEER_CHECK(pthread_join(t, NULL) == 0);
}

/* Ends the client, with or without an agent, and the peer. */
static inline void peer_end(struct peer *p, struct psc_client *c)
{
    if (p->fd >= 0) {
        peer_close(p, c);
    } else {
        psc_close(c);
    }
    peer_stop(p);
}

/* Text of the client's last error, until the next call. */
static inline const char *peer_detail(struct psc_client *c)
{
    static char text[PSC_TEXT_MAX];

    PEER_CHECK(psc_last_detail(c, text, sizeof(text)) == 0);
    return text;
}

#define assert_text(text, part)                                                \
    do {                                                                       \
        const char *text_ = text;                                              \
                                                                               \
        if (strstr(text_, part) == NULL) {                                     \
            fail_msg("'%s' does not say '%s'", text_, part);                   \
        }                                                                      \
    } while (0)

#define assert_detail(f, part) assert_text(peer_detail((f)->c), part)
