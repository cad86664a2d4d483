/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a connection with TLS after its handshake. The peer has the keys:
 * it sends records of any type, length and content in any pieces. On their way
 * they are changed, cut, lost, repeated and mixed with other bytes. The first
 * byte chooses the cipher, and a session alone or the transport of a socket.
 *
 * Bytes that are read are those that the peer has sealed, in their order, and
 * none from the first damage on; all of them arrive if there is none. Records
 * that the session writes open to the written bytes. A failure stays. */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "crypto/tls_record.h"
#include "crypto/tls_session.h"
#include "fuzz.h"
#include "net/transport_tls.h"

/* Bytes that the peer sends in one run. */
#define SENT_MAX  (96u * 1024u)
#define STEPS_MAX 400u
#define NEVER     1

struct bytes {
    uint8_t *data;
    size_t from;
    size_t to;
};

struct run {
    struct fuzz_input in;
    struct ps_tls_session *session;
    struct ps_transport transport; /* Of the same session. */
    int peer;                      /* Socket of the peer; -1: none. */
    struct ps_tls_keys *seals;     /* Of the peer, as is the next. */
    struct ps_tls_keys *opens;
    struct bytes wire;     /* Sent, and not received by the session. */
    struct bytes expected; /* Sealed before the first damage. */
    struct bytes written;  /* By the session. */
    struct bytes output;   /* Of the session, not opened by the peer. */
    size_t sent;
    bool is_damaged; /* Nothing that is sealed from here on can be read. */
    bool may_end;    /* A record was sent that may end the input. */
    bool is_ended;   /* The session has ended its output. */
    int failure;     /* First result of a read that ends the input. */
    uint8_t pattern;
};

static void bytes_add(struct bytes *b, const void *data, size_t len)
{
    if (len > 0) {
        b->data = realloc(b->data, b->to + len);
        assert(b->data != NULL);
        memcpy(b->data + b->to, data, len);
        b->to += len;
    }
}

static size_t bytes_left(const struct bytes *b)
{
    return b->to - b->from;
}

/* A length: mostly a short one. */
static size_t choose_len(struct run *r)
{
    static const uint16_t lens[] = {0,    1,    2,     5,     16,    17,
                                    255,  256,  1000,  4095,  4096,  4097,
                                    8192, 9000, 16367, 16383, 16384, 16384};
    uint8_t b = fuzz_byte(&r->in);

    return b < 200 ? b % 64u : lens[b % (sizeof(lens) / sizeof(lens[0]))];
}

/* ---------------------------------------------------------------- the peer */

static void wire_add(struct run *r, const uint8_t *bytes, size_t len)
{
    r->sent += len;
    bytes_add(&r->wire, bytes, len);
}

static size_t seal(struct run *r, uint8_t type, const uint8_t *content,
                   size_t len, uint8_t *out)
{
    const struct iovec iov = {(uint8_t *)(uintptr_t)content, len};
    size_t n = ps_tls_seal(r->seals, (enum ps_tls_type)type, &iov, len, out);

    assert(n == len + PS_TLS_OVERHEAD);
    return n;
}

/* Sends a record, which is changed on its way if the next byte says so. */
static void send_record(struct run *r, uint8_t type, const uint8_t *content,
                        size_t len)
{
    uint8_t record[PS_TLS_RECORD_MAX];
    size_t n = seal(r, type, content, len, record);
    uint8_t way = fuzz_byte(&r->in);
    size_t at;

    if (!r->is_damaged && type == PS_TLS_DATA && way < 250) {
        bytes_add(&r->expected, content, len);
    }
    r->may_end |= type != PS_TLS_DATA || len == 0;
    switch (way) {
    case 250: /* One byte is another one. */
    case 251:
        at = (size_t)fuzz_byte(&r->in) << (way == 250 ? 0 : 6);
        record[at % n] ^= (uint8_t)(fuzz_byte(&r->in) | 1);
        break;
    case 252: /* It is cut. */
        n = fuzz_byte(&r->in) % n;
        break;
    case 253: /* It is lost. */
        n = 0;
        break;
    case 254: /* It comes twice. */
        wire_add(r, record, n);
        if (!r->is_damaged && type == PS_TLS_DATA) {
            bytes_add(&r->expected, content, len);
        }
        break;
    case 255: /* A byte is missing at its beginning. */
        memmove(record, record + 1, --n);
        break;
    default:
        break;
    }
    wire_add(r, record, n);
    r->is_damaged |= way >= 250;
}

static void send_data(struct run *r)
{
    uint8_t content[PS_TLS_CONTENT];
    size_t len = choose_len(r);

    for (size_t i = 0; i < len; i++) {
        content[i] = (uint8_t)(r->pattern + i * 31 + i / 251);
    }
    r->pattern++;
    send_record(r, PS_TLS_DATA, content, len);
}

/* A record of any type, whose content is given. */
static void send_any(struct run *r)
{
    static const uint8_t types[] = {PS_TLS_ALERT, PS_TLS_HANDSHAKE, PS_TLS_DATA,
                                    20, 0};
    uint8_t type = fuzz_byte(&r->in);
    size_t len;
    const uint8_t *content = fuzz_bytes(&r->in, fuzz_byte(&r->in) % 32, &len);

    send_record(r, type < 200 ? types[type % sizeof(types)] : type, content,
                len);
}

/* A long record without data. */
static void send_long(struct run *r)
{
    static const uint8_t content[PS_TLS_CONTENT] = {4};
    size_t len = choose_len(r);

    send_record(r, PS_TLS_HANDSHAKE, content, len);
}

/* Changes the keys of the peer's output, as TLS does it. */
static void update_keys(struct run *r)
{
    const uint8_t message[] = {24, 0, 0, 1, fuzz_byte(&r->in) & 1};
    uint8_t record[PS_TLS_RECORD_MAX];

    wire_add(r, record,
             seal(r, PS_TLS_HANDSHAKE, message, sizeof(message), record));
    r->may_end = true; /* There may be too many of them. */
    assert(ps_tls_keys_update(r->seals) == 0);
}

static void send_noise(struct run *r)
{
    size_t len;
    const uint8_t *bytes = fuzz_bytes(&r->in, fuzz_byte(&r->in), &len);

    wire_add(r, bytes, len);
    r->is_damaged |= len > 0;
}

/* Opens the records that the session has written. */
static void open_output(struct run *r)
{
    struct bytes *o = &r->output;

    while (bytes_left(o) >= PS_TLS_HEADER) {
        uint8_t plain[PS_TLS_CONTENT];
        const struct iovec iov = {plain, sizeof(plain)};
        const uint8_t *record = o->data + o->from;
        size_t content;
        uint8_t type;

        assert(ps_tls_parse_header(record, &content) == 0);
        if (bytes_left(o) < content + PS_TLS_OVERHEAD) {
            return;
        }
        assert(ps_tls_open(r->opens, record, content, &iov, &type) == 0);
        o->from += content + PS_TLS_OVERHEAD;
        if (type == PS_TLS_DATA) {
            assert(content <= bytes_left(&r->written));
            assert(content == 0 || memcmp(r->written.data + r->written.from,
                                          plain, content) == 0);
            r->written.from += content;
        } else if (type == PS_TLS_HANDSHAKE) {
            assert(content == 5 && plain[0] == 24);
            assert(ps_tls_keys_update(r->opens) == 0);
        } else {
            assert(type == PS_TLS_ALERT && content == 2 && plain[1] == 0);
            assert(r->is_ended);
        }
    }
}

/* -------------------------------------------------------------- the session */

/* Reads as the transport does, with up to `most` bytes of the wire. */
static ssize_t read_session(struct run *r, struct iovec *iov, int count,
                            size_t most)
{
    const size_t pending = ps_tls_session_pending(r->session);
    ssize_t n = ps_tls_session_read(r->session, iov, count);
    size_t room;
    uint8_t *place;

    assert(pending > 0 || n == PS_E_AGAIN || n == PS_E_CLOSED);
    if (n != PS_E_AGAIN) {
        return n;
    }
    assert(ps_tls_session_pending(r->session) == 0);
    place = ps_tls_session_place(r->session, &room);
    assert(room > 0);
    most = most < room ? most : room;
    most = most < bytes_left(&r->wire) ? most : bytes_left(&r->wire);
    if (most > 0) {
        memcpy(place, r->wire.data + r->wire.from, most);
        r->wire.from += most;
    }
    ps_tls_session_received(r->session, most);
    return ps_tls_session_read(r->session, iov, count);
}

/* The same through the transport, with its results as those of a session. */
static ssize_t read_transport(struct run *r, struct iovec *iov, int count,
                              size_t most)
{
    ssize_t n;

    most = most < bytes_left(&r->wire) ? most : bytes_left(&r->wire);
    if (most > 0) {
        n = send(r->peer, r->wire.data + r->wire.from, most,
                 MSG_NOSIGNAL | MSG_DONTWAIT);
        r->wire.from += n > 0 ? (size_t)n : 0;
    }
    n = r->transport.ops->read(&r->transport, iov, count);
    if (n > 0) {
        return n;
    }
    if (n == 0) {
        return PS_E_CLOSED;
    }
    if (errno == EAGAIN) {
        return PS_E_AGAIN;
    }
    assert(errno == ECANCELED);
    assert(r->transport.failure_rc != 0);
    assert(r->transport.failure == ps_tls_session_failure(r->session));
    return r->transport.failure_rc;
}

static void check_failure(struct run *r, int rc)
{
    assert(rc == PS_E_CLOSED || rc == PS_E_PERM || rc == PS_E_PROTO);
    assert(r->is_damaged || r->may_end);
    assert(r->failure == NEVER || r->failure == rc);
    r->failure = rc;
    assert((ps_tls_session_pending(r->session) != 0) == (rc != PS_E_CLOSED));
    assert(rc == PS_E_CLOSED || ps_tls_session_failure(r->session)[0] != '\0');
}

/* Compares the bytes that were read with those that the peer has sealed. */
static void check_read(struct run *r, const struct iovec *iov, size_t n)
{
    assert(n <= bytes_left(&r->expected));
    for (; n > 0; iov++) {
        size_t len = iov->iov_len < n ? iov->iov_len : n;

        assert(len == 0 || memcmp(r->expected.data + r->expected.from,
                                  iov->iov_base, len) == 0);
        r->expected.from += len;
        n -= len;
    }
}

/* Reads to some places. False: nothing is there. */
static bool read_some(struct run *r, size_t room, int count, size_t most)
{
    struct iovec iov[10];
    struct iovec places[10];
    uint8_t *memory[10];
    size_t sum = 0;
    ssize_t n;

    for (int i = 0; i < count; i++) {
        size_t len = i % 3 == 2 ? 0 : room / (size_t)count + (i == 0);

        memory[i] = malloc(len > 0 ? len : 1);
        assert(memory[i] != NULL);
        iov[i] = (struct iovec){memory[i], len};
        sum += i < 8 ? len : 0; /* A read fills eight places at most. */
    }
    memcpy(places, iov, sizeof(iov));
    n = r->peer < 0 ? read_session(r, iov, count, most)
                    : read_transport(r, iov, count, most);
    assert(n != 0 && n <= (ssize_t)sum);
    if (n > 0) {
        check_read(r, places, (size_t)n);
    } else if (n != PS_E_AGAIN) {
        check_failure(r, (int)n);
    }
    for (int i = 0; i < count; i++) {
        free(memory[i]);
    }
    return n > 0;
}

static void drain_output(struct run *r, size_t most)
{
    if (r->peer < 0) {
        size_t len;
        const void *out = ps_tls_session_output(r->session, &len);

        assert((out == NULL) == (len == 0));
        len = len < most ? len : most;
        bytes_add(&r->output, out, len);
        ps_tls_session_sent(r->session, len);
    } else {
        uint8_t bytes[4096];
        ssize_t n;

        while ((n = recv(r->peer, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
            bytes_add(&r->output, bytes, (size_t)n);
        }
    }
    open_output(r);
}

static ssize_t write_transport(struct run *r, struct iovec *iov, int count)
{
    ssize_t n = r->transport.ops->write(&r->transport, iov, count, -1);

    assert(n >= 0 || errno == EAGAIN);
    return n < 0 ? PS_E_AGAIN : n;
}

static void write_some(struct run *r)
{
    size_t len = choose_len(r);
    size_t first = fuzz_byte(&r->in) % 32;
    uint8_t *bytes = malloc(len + 1);

    assert(bytes != NULL);
    first = first < len ? first : len;
    memset(bytes, r->pattern++, len + 1);
    struct iovec iov[] = {
        {bytes, first}, {bytes + first, 0}, {bytes + first, len - first}};
    ssize_t n = r->peer < 0 ? ps_tls_session_write(r->session, iov, 3)
                            : write_transport(r, iov, 3);

    assert(n == PS_E_AGAIN || (n >= 0 && n <= (ssize_t)len));
    if (n > 0) {
        bytes_add(&r->written, bytes, (size_t)n);
    }
    free(bytes);
}

/* Until all output has left. */
static void flush_transport(struct run *r)
{
    while (write_transport(r, NULL, 0) != 0) {
        drain_output(r, SIZE_MAX);
    }
}

static void end_output(struct run *r)
{
    if (r->peer < 0) {
        r->is_ended = true;
        ps_tls_session_end(r->session);
    } else {
        flush_transport(r);
        drain_output(r, SIZE_MAX);
        r->is_ended = true;
        ps_transport_end(&r->transport);
    }
}

/* ------------------------------------------------------------------- a run */

static void run_begin(struct run *r)
{
    static const uint8_t secrets[2][PS_TLS_SECRET_MAX] = {{1}, {2}};
    const uint8_t how = fuzz_byte(&r->in);
    const size_t len = how % 2 == 0 ? 32 : 48;
    int fd[2] = {-1, -1};

    r->failure = NEVER;
    r->session = ps_tls_session_of_secrets(secrets[0], secrets[1], len);
    r->seals = ps_tls_keys_new(secrets[0], len, true);
    r->opens = ps_tls_keys_new(secrets[1], len, false);
    assert(r->session != NULL && r->seals != NULL && r->opens != NULL);
    if (how & 4) {
        ps_tls_session_set_records_max(r->session, 1u + how / 8u % 4u);
    }
    if (how & 2) {
        assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                          0, fd) == 0);
    }
    if (how & 8 && fd[0] >= 0) {
        /* The socket holds less than one record. */
        assert(setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &(int){4096},
                          sizeof(int)) == 0);
    }
    r->peer = fd[1];
    r->transport = (struct ps_transport){
        .ops = &ps_transport_tls, .ctx = r->session, .fd = fd[0]};
}

static void take_step(struct run *r)
{
    uint8_t b;

    switch (fuzz_byte(&r->in) % 16) {
    default:
        send_data(r);
        break;
    case 4:
        send_any(r);
        break;
    case 5:
        send_long(r);
        break;
    case 6:
        update_keys(r);
        break;
    case 7:
        send_noise(r);
        break;
    case 8:
    case 9:
    case 10:
    case 11:
        b = fuzz_byte(&r->in);
        (void)read_some(r, choose_len(r), 1 + b % 10,
                        b < 128 ? SIZE_MAX : (size_t)b - 127);
        break;
    case 12:
    case 13:
        if (!r->is_ended) {
            write_some(r);
        }
        break;
    case 14:
        b = fuzz_byte(&r->in);
        drain_output(r, b < 128 ? SIZE_MAX : (size_t)b - 127);
        break;
    case 15:
        if (fuzz_byte(&r->in) == 255 && !r->is_ended) {
            end_output(r);
        }
        break;
    }
}

/* All that was sealed arrives, unless something was damaged. */
static void run_finish(struct run *r)
{
    while (read_some(r, 1000, 2, SIZE_MAX) || bytes_left(&r->wire) > 0) {
        if (r->failure != NEVER) {
            break;
        }
    }
    assert(r->is_damaged || r->may_end || bytes_left(&r->expected) == 0);
    if (r->peer >= 0 && !r->is_ended) {
        flush_transport(r);
    }
    drain_output(r, SIZE_MAX);
    assert(bytes_left(&r->output) == 0 && bytes_left(&r->written) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run r = {.in = {data, size, 0}};
    unsigned steps = 0;

    run_begin(&r);
    while (r.in.at < r.in.size && r.sent < SENT_MAX && steps++ < STEPS_MAX) {
        take_step(&r);
    }
    run_finish(&r);
    if (r.peer >= 0) {
        close(r.peer);
        close(r.transport.fd);
    }
    ps_transport_fini(&r.transport); /* And the session. */
    ps_tls_keys_free(r.seals);
    ps_tls_keys_free(r.opens);
    free(r.wire.data);
    free(r.expected.data);
    free(r.written.data);
    free(r.output.data);
    return 0;
}
