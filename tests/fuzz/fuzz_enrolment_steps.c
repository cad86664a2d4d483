/* SPDX-License-Identifier: Apache-2.0 */
/* Enrolment as a sequence: an authority gives out codes, makes them void and
 * forgets them; nodes connect from a few addresses, send requests with right
 * and wrong secrets, and receive answers, in any pieces; messages are changed,
 * cut and sent to others on their way; time passes. Each side reads as psctl
 * does.
 *
 * A code gives one certificate, to a node that has its secret, while it is valid
 * and after less than five wrong ones. A node accepts a certificate only if the
 * authority has issued it for its key and for its code's role. */
#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "crypto/enrolment.h"
#include "fuzz.h"
#include "psctl/pki_limit.h"
#include "random.h"

#include <openssl/evp.h>

#define NOW       INT64_C(1800000000)
#define DAY       INT64_C(86400)
#define CODES     6u
#define CONNS     12u
#define KEYS      3u
#define NAMES     3u
#define SOURCES   4u
#define ISSUED    64u
#define STEPS_MAX 300u
#define BYTES_MAX (PS_PKI_PEM_BYTES * 4u)

/* Made once. */
static struct {
    struct ps_pki_authority authority;
    char authority_pem[PS_PKI_PEM_BYTES];
    char crl[PS_PKI_PEM_BYTES];
    EVP_PKEY *keys[KEYS];
    char requests[KEYS][2048];
    struct ps_decoder *service; /* Decoder of the authority's side. */
    struct ps_decoder *node;
} fixed;

/* A code that was given out. */
struct code {
    struct ps_enrolment_code code;
    char name[PS_NAME_MAX + 1];
    int64_t ends_at;
    uint32_t wrong; /* Wrong secrets so far. */
    bool is_known;
    bool is_used;
};

/* A connection, with both of its sides. */
struct conn {
    bool is_open;
    bool is_answered;
    bool is_good; /* A certificate was issued. */
    bool is_done; /* The node has judged the answer. */
    unsigned source;
    unsigned key;
    struct ps_enrolment_code code; /* Of the node. */
    uint8_t *in;                   /* Bytes read by the authority's side. */
    size_t in_len;
    uint8_t *got; /* Bytes read by the node. */
    size_t got_len;
    uint8_t *way[2]; /* To the authority, and to the node. */
    size_t way_len[2];
};

struct issued {
    struct ps_pki_serial serial;
    struct ps_identity identity;
    unsigned key;
};

struct run {
    struct fuzz_input in;
    int64_t now;
    ps_time clock;
    struct pki_limit limit;
    struct ps_enrolment_list list;
    struct code codes[CODES];
    struct conn conns[CONNS];
    struct issued issued[ISSUED];
    size_t issued_count;
};

static const char *const names[NAMES] = {"n1", "n2", "n3"};
static char sources[SOURCES][PKI_LIMIT_ADDRESS];

/* Sources as the authority's side tells them apart. */
static void make_sources(void)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    const struct sockaddr other = {.sa_family = AF_UNIX};

    assert(inet_pton(AF_INET, "10.0.0.1", &v4.sin_addr) == 1);
    pki_limit_name((const struct sockaddr *)&v4, sources[0]);
    assert(inet_pton(AF_INET6, "::ffff:10.0.0.2", &v6.sin6_addr) == 1);
    pki_limit_name((const struct sockaddr *)&v6, sources[1]);
    assert(inet_pton(AF_INET6, "2001::1", &v6.sin6_addr) == 1);
    pki_limit_name((const struct sockaddr *)&v6, sources[2]);
    pki_limit_name(&other, sources[3]);
}

static void make_fixed(void)
{
    const struct ps_pki_period period = {NOW - DAY, NOW + 36500 * DAY};
    const struct ps_pki_crl empty = {
        .number = 1, .issued_at = NOW - DAY, .next_update = NOW + 36500 * DAY};
    X509_CRL *crl = NULL;
    char why[256];
    struct ps_str text;
    struct ps_str s;

    make_sources();
    ps_str_init(&text, why, sizeof(why));
    assert(ps_pki_authority_new("lab", &period, &fixed.authority, &text) == 0);
    ps_str_init(&s, fixed.authority_pem, sizeof(fixed.authority_pem));
    ps_pki_add_certificate(&s, fixed.authority.certificate);
    assert(ps_pki_crl_new(&fixed.authority, &empty, &crl, &text) == 0);
    ps_str_init(&s, fixed.crl, sizeof(fixed.crl));
    ps_pki_add_crl(&s, crl);
    ps_pki_crl_free(crl);
    for (size_t i = 0; i < KEYS; i++) {
        assert(ps_pki_key_new(&fixed.keys[i], &text) == 0);
        ps_str_init(&s, fixed.requests[i], sizeof(fixed.requests[i]));
        assert(ps_pki_add_csr(&s, fixed.keys[i], &text) == 0);
    }
    fixed.service = ps_decoder_new();
    fixed.node = ps_decoder_new();
    assert(fixed.service != NULL && fixed.node != NULL);
}

/* -------------------------------------------------------------------- codes */

static void give_code(struct run *r)
{
    struct code *c = &r->codes[fuzz_byte(&r->in) % CODES];
    const uint8_t b = fuzz_byte(&r->in);
    struct ps_enrolment_record record = {
        .role = b % 2 == 0 ? PS_ROLE_AGENT : PS_ROLE_SERVER,
        .ends_at = r->now + b / 2,
        .days = b % 40u,
        .hosts = (char *)(uintptr_t)(b % 3 == 0 ? "-" : "n1.lab,10.0.0.1")};
    char why[256];
    struct ps_str text;

    ps_str_copy(record.name, sizeof(record.name), names[b / 2u % NAMES]);
    ps_str_init(&text, why, sizeof(why));
    *c = (struct code){.is_known = true, .ends_at = record.ends_at};
    ps_str_copy(c->name, sizeof(c->name), record.name);
    assert(ps_enrolment_code_new(record.role, fixed.authority.certificate,
                                 &c->code, &text) == 0);
    assert(ps_enrolment_list_add(&r->list, &c->code, &record, r->now) == 0);
}

static void drop_name(struct run *r)
{
    const char *name = names[fuzz_byte(&r->in) % NAMES];

    (void)ps_enrolment_list_drop(&r->list, name);
    for (size_t i = 0; i < r->list.count; i++) {
        assert(strcmp(r->list.records[i].name, name) != 0);
    }
}

/* The list survives as text. */
static void save_list(struct run *r)
{
    char *text = ps_enrolment_list_format(&r->list);
    struct ps_enrolment_list again;
    size_t line;
    char *second;

    assert(ps_enrolment_list_read(text, &again, &line) == 0);
    second = ps_enrolment_list_format(&again);
    assert(strcmp(text, second) == 0);
    ps_free(text);
    ps_free(second);
    ps_enrolment_list_fini(&r->list);
    r->list = again;
}

/* -------------------------------------------------------------- connections */

static void open_conn(struct run *r, struct conn *c)
{
    const uint8_t b = fuzz_byte(&r->in);
    unsigned open = 0;

    for (size_t i = 0; i < CONNS; i++) {
        open += r->conns[i].is_open && r->conns[i].source == b % SOURCES;
    }
    if (pki_limit_begin(&r->limit, sources[b % SOURCES], r->clock) !=
        PKI_ADMITTED) {
        return;
    }
    assert(open < PKI_LIMIT_CONNECTIONS);
    *c = (struct conn){.is_open = true,
                       .source = b % SOURCES,
                       .key = b / SOURCES % KEYS,
                       .code = r->codes[fuzz_byte(&r->in) % CODES].code};
    c->in = ps_calloc(1, pki_message_bytes(PS_MSG_ENROL));
    c->got = ps_calloc(1, pki_message_bytes(PS_MSG_ENROLLED));
}

static void close_conn(struct run *r, struct conn *c)
{
    pki_limit_end(&r->limit, sources[c->source], !c->is_good, r->clock);
    ps_free(c->in);
    ps_free(c->got);
    free(c->way[0]);
    free(c->way[1]);
    *c = (struct conn){0};
}

static void refuse(struct run *r, struct conn *c)
{
    uint32_t omitted = 0;

    (void)pki_limit_line(&r->limit, r->clock, &omitted);
    close_conn(r, c);
}

static void way_add(struct conn *c, unsigned to, const void *bytes, size_t len)
{
    if (len == 0 || len > BYTES_MAX - c->way_len[to]) {
        return;
    }
    c->way[to] = realloc(c->way[to], c->way_len[to] + len);
    assert(c->way[to] != NULL);
    memcpy(c->way[to] + c->way_len[to], bytes, len);
    c->way_len[to] += len;
}

/* ----------------------------------------------------------------- the node */

static void send_request(struct run *r, struct conn *c)
{
    const uint8_t b = fuzz_byte(&r->in);
    struct ps_msg msg = {
        .code = PS_MSG_ENROL,
        .enrol = {.protocol = PS_PROTOCOL,
                  .id = c->code.id,
                  .secret = {c->code.secret, sizeof(c->code.secret)},
                  .request = fixed.requests[c->key]}};
    uint8_t frame[4096];
    uint8_t secret[sizeof(c->code.secret)];
    size_t len;

    memcpy(secret, c->code.secret, sizeof(secret));
    switch (b) {
    case 250:
        secret[fuzz_byte(&r->in) % sizeof(secret)] ^= 1;
        msg.enrol.secret.data = secret;
        break;
    case 251:
        msg.enrol.secret.len = fuzz_byte(&r->in) % sizeof(secret);
        break;
    case 252:
        msg.enrol.id ^= fuzz_byte(&r->in);
        break;
    case 253:
        msg.enrol.request = fixed.requests[(c->key + 1) % KEYS];
        break;
    case 254:
        msg.enrol.request = "-----BEGIN CERTIFICATE REQUEST-----\n";
        break;
    case 255:
        msg.enrol.protocol = fuzz_byte(&r->in);
        break;
    default:
        break;
    }
    assert(ps_msg_encode(&msg, PS_PROTOCOL_LEAST, 0, frame, sizeof(frame),
                         &len) == 0);
    way_add(c, 0, frame, len);
}

static void accept_answer(struct run *r, struct conn *c,
                          const struct ps_msg_enrolled *a)
{
    const struct ps_enrolment_answer answer = {a->certificate, a->authority,
                                               a->crl};
    struct ps_pki_info info;
    char why[512];
    struct ps_str text;
    bool is_issued = false;

    ps_str_init(&text, why, sizeof(why));
    if (ps_enrolment_check_answer(&c->code, fixed.keys[c->key], &answer, r->now,
                                  &info, &text) != 0) {
        assert(text.len > 0);
        return;
    }
    assert(info.identity.role == c->code.role);
    for (size_t i = 0; i < r->issued_count; i++) {
        const struct issued *n = &r->issued[i];

        is_issued |= memcmp(&n->serial, &info.serial, sizeof(n->serial)) == 0 &&
                     n->key == c->key &&
                     n->identity.role == info.identity.role &&
                     strcmp(n->identity.name, info.identity.name) == 0;
    }
    assert(is_issued);
}

/* Reads once. */
static void node_read(struct run *r, struct conn *c, const uint8_t *bytes,
                      size_t len)
{
    size_t room = pki_message_bytes(PS_MSG_ENROLLED) - c->got_len;
    struct ps_msg msg;
    int rc;

    if (c->is_done || room == 0 || len == 0) {
        return;
    }
    len = len < room ? len : room;
    memcpy(c->got + c->got_len, bytes, len);
    c->got_len += len;
    rc = pki_message_read(fixed.node, PS_MSG_ENROLLED, c->got, c->got_len,
                          &msg);
    c->is_done = rc != PS_E_AGAIN;
    if (rc == 0 && msg.enrolled.error == 0) {
        accept_answer(r, c, &msg.enrolled);
    }
}

/* ------------------------------------------------------------- the authority */

static void set_answer(struct conn *c, const struct ps_msg_enrolled *a,
                       uint16_t version)
{
    const struct ps_msg msg = {.code = PS_MSG_ENROLLED, .enrolled = *a};
    size_t capacity = ps_msg_encoded_bound(&msg);
    uint8_t *bytes = ps_alloc(capacity);
    size_t len;

    assert(ps_msg_encode(&msg, version, 0, bytes, capacity, &len) == 0);
    way_add(c, 1, bytes, len);
    ps_free(bytes);
    c->is_answered = true;
}

/* The code that has this number, among those that were given out. */
static struct code *code_of(struct run *r, uint32_t id)
{
    for (size_t i = 0; i < CODES; i++) {
        if (r->codes[i].is_known && r->codes[i].code.id == id) {
            return &r->codes[i];
        }
    }
    return NULL;
}

/* A verdict, compared with what was given out. */
static enum ps_enrolment_verdict judge(struct run *r,
                                       const struct ps_msg_enrol *q,
                                       struct ps_enrolment_record **ret_record)
{
    struct code *c = code_of(r, q->id);
    size_t count = r->list.count;
    enum ps_enrolment_verdict v = ps_enrolment_list_try(
        &r->list, q->id, q->secret.data, r->now, ret_record);
    bool is_right = c != NULL && memcmp(c->code.secret, q->secret.data,
                                        sizeof(c->code.secret)) == 0;

    assert(r->list.count == count - (v == PS_ENROLMENT_VOID));
    if (c == NULL) {
        /* The place of its record here may have been taken by another. */
        assert(v != PS_ENROLMENT_GOOD || (*ret_record)->id == q->id);
        return v;
    }
    switch (v) {
    case PS_ENROLMENT_GOOD:
        assert(is_right && !c->is_used && c->ends_at > r->now);
        assert(c->wrong < PS_ENROLMENT_TRIES_MAX);
        c->is_used = true;
        break;
    case PS_ENROLMENT_ENDED:
        assert(is_right && c->ends_at <= r->now);
        break;
    case PS_ENROLMENT_WRONG:
    case PS_ENROLMENT_VOID:
        assert(!is_right && !c->is_used);
        c->wrong++;
        assert((c->wrong == PS_ENROLMENT_TRIES_MAX) ==
               (v == PS_ENROLMENT_VOID));
        break;
    case PS_ENROLMENT_UNKNOWN:
        break;
    }
    return v;
}

/* Uses up the code, and issues its certificate. */
static void grant(struct run *r, struct conn *c,
                  struct ps_enrolment_record *record, EVP_PKEY *key)
{
    struct ps_enrolment_record used = ps_enrolment_list_remove(&r->list,
                                                               record);
    struct ps_identity id = {.role = used.role, .cluster = "lab"};
    const struct ps_pki_request q = {
        .identity = &id, .period = {r->now - 300, r->now + 30 * DAY}};
    char pem[PS_PKI_PEM_BYTES];
    struct ps_pki_info info;
    char why[256];
    struct ps_str text;
    struct ps_str s;
    X509 *x = NULL;

    ps_str_copy(id.name, sizeof(id.name), used.name);
    ps_free(used.hosts);
    ps_str_init(&text, why, sizeof(why));
    assert(ps_pki_issue(&fixed.authority, &q, key, &x, &text) == 0);
    assert(ps_pki_describe(x, &info, &text) == 0);
    assert(r->issued_count < ISSUED);
    for (unsigned i = 0; i < KEYS; i++) {
        if (EVP_PKEY_eq(key, fixed.keys[i]) == 1) {
            r->issued[r->issued_count++] = (struct issued){
                .serial = info.serial, .identity = id, .key = i};
        }
    }
    ps_str_init(&s, pem, sizeof(pem));
    ps_pki_add_certificate(&s, x);
    ps_pki_certificate_free(x);
    c->is_good = true;
    set_answer(c,
               &(struct ps_msg_enrolled){.certificate = pem,
                                         .authority = fixed.authority_pem,
                                         .crl = fixed.crl,
                                         .text = ""},
               PS_PROTOCOL);
}

static void answer_request(struct run *r, struct conn *c,
                           const struct ps_msg_enrol *q)
{
    struct ps_enrolment_record *record = NULL;
    struct ps_msg_enrolled refusal = {.error = PS_E_PERM,
                                      .text = "",
                                      .certificate = "",
                                      .authority = "",
                                      .crl = ""};
    EVP_PKEY *key = NULL;
    char why[PS_TEXT_MAX + 1];
    struct ps_str text;

    ps_str_init(&text, why, sizeof(why));
    if (q->protocol < PS_PROTOCOL_LEAST) {
        refusal.error = PS_E_VERSION;
    } else if (q->secret.len == PS_ENROLMENT_SECRET_BYTES &&
               judge(r, q, &record) == PS_ENROLMENT_GOOD) {
        refusal.error = ps_pki_read_csr(q->request, &key, &text);
        refusal.text = why;
        if (refusal.error == 0 && r->issued_count < ISSUED) {
            grant(r, c, record, key);
            ps_pki_key_free(key);
            return;
        }
        ps_pki_key_free(key);
        if (code_of(r, q->id) != NULL) {
            code_of(r, q->id)->is_used = false; /* It can be used again. */
        }
    }
    set_answer(c, &refusal,
               q->protocol < PS_PROTOCOL ? q->protocol : PS_PROTOCOL);
}

/* Reads once. */
static void service_read(struct run *r, struct conn *c, const uint8_t *bytes,
                         size_t len)
{
    const size_t capacity = pki_message_bytes(PS_MSG_ENROL);
    struct ps_msg msg;
    int rc;

    if (c->is_answered || len == 0) {
        return;
    }
    len = len < capacity - c->in_len ? len : capacity - c->in_len;
    memcpy(c->in + c->in_len, bytes, len);
    c->in_len += len;
    rc = pki_message_read(fixed.service, PS_MSG_ENROL, c->in, c->in_len, &msg);
    if (rc == 0) {
        answer_request(r, c, &msg.enrol);
    } else if (rc != PS_E_AGAIN || c->in_len == capacity) {
        refuse(r, c);
    }
}

/* ---------------------------------------------------------------- the steps */

static void deliver(struct run *r, struct conn *c, unsigned to)
{
    const uint8_t b = fuzz_byte(&r->in);
    size_t len = b < 200 ? SIZE_MAX : b - 199u;
    uint8_t *piece;

    len = len < c->way_len[to] ? len : c->way_len[to];
    piece = malloc(len > 0 ? len : 1);
    assert(piece != NULL);
    if (len > 0) {
        memcpy(piece, c->way[to], len);
        c->way_len[to] -= len;
        memmove(c->way[to], c->way[to] + len, c->way_len[to]);
    }
    if (to == 0) {
        service_read(r, c, piece, len);
    } else {
        node_read(r, c, piece, len);
    }
    free(piece);
}

static void change_way(struct run *r, struct conn *c)
{
    const uint8_t what = fuzz_byte(&r->in);
    const unsigned to = what & 1u;
    size_t at = (size_t)fuzz_byte(&r->in) << 8;
    const struct conn *other;
    const uint8_t *bytes;
    size_t len;

    at |= fuzz_byte(&r->in);
    switch (what / 2 % 4) {
    case 0:
        bytes = fuzz_bytes(&r->in, at % 256, &len);
        way_add(c, to, bytes, len);
        break;
    case 1:
        if (c->way_len[to] > 0) {
            c->way_len[to] -= at % c->way_len[to];
        }
        break;
    case 2: /* That of another connection follows. */
        other = &r->conns[at % CONNS];
        if (other != c) {
            way_add(c, to, other->way[to], other->way_len[to]);
        }
        break;
    default:
        if (c->way_len[to] > 0) {
            c->way[to][at % c->way_len[to]] ^= (uint8_t)(fuzz_byte(&r->in) | 1);
        }
        break;
    }
}

static void pass_time(struct run *r)
{
    const uint8_t b = fuzz_byte(&r->in);

    r->now += b < 200 ? b : (b - 199) * DAY / 8;
    r->clock += PS_MILLIS(100) * b;
}

static void take_conn_step(struct run *r, uint8_t what)
{
    struct conn *c = &r->conns[fuzz_byte(&r->in) % CONNS];

    if (!c->is_open) {
        open_conn(r, c);
        return;
    }
    switch (what) {
    case 0:
        close_conn(r, c);
        break;
    case 1:
    case 2:
        send_request(r, c);
        break;
    case 3:
        change_way(r, c);
        break;
    default:
        deliver(r, c, what & 1u);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run r;
    unsigned steps = 0;

    fuzz_random_restart();
    if (fixed.node == NULL) {
        make_fixed();
        fuzz_random_restart();
    }
    memset(&r, 0, sizeof(r));
    r.in = (struct fuzz_input){data, size, 0};
    r.now = NOW;
    r.clock = PS_SECONDS(1);
    while (r.in.at < r.in.size && steps++ < STEPS_MAX) {
        uint8_t b = fuzz_byte(&r.in) % 16;

        if (b < 2) {
            give_code(&r);
        } else if (b == 2) {
            drop_name(&r);
        } else if (b == 3) {
            save_list(&r);
        } else if (b == 4) {
            pass_time(&r);
        } else {
            take_conn_step(&r, b - 5);
        }
    }
    for (size_t i = 0; i < CONNS; i++) {
        if (r.conns[i].is_open) {
            close_conn(&r, &r.conns[i]);
        }
    }
    ps_enrolment_list_fini(&r.list);
    return 0;
}
