/* SPDX-License-Identifier: Apache-2.0 */
/* During the handshake a BIO connects OpenSSL with the input and the output.
 * OpenSSL reads no byte beyond the record that it needs, so that input which
 * follows the handshake stays for the reader. The traffic secrets come through
 * OpenSSL's callback for key logs. */
#include "crypto/tls_session.h"

#include "base/alloc.h"
#include "crypto/tls_context.h"
#include "crypto/tls_record.h"

#include <assert.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Input buffer: during the handshake, and after. */
#define INPUT_FIRST    (PS_TLS_RECORD_MAX + 512u)
#define INPUT_MAX      (PS_TLS_BATCH * PS_TLS_RECORD_MAX)
/* Output of a handshake: the own certificates. */
#define OUTPUT_MAX     (64u * 1024u)
#define BATCH_BYTES    (PS_TLS_BATCH * PS_TLS_RECORD_MAX)
/* Records without bytes of the user, one after the other. */
#define EMPTY_MAX      32u
/* Types of handshake messages after the handshake, and of alerts. */
#define NEW_TICKET     4u
#define KEY_UPDATE_LEN 5u
#define CLOSE_NOTIFY   0u
#define REFUSAL_BYTES  320u
/* Content of a record that is not data. */
#define CONTROL_MAX    4096u

struct input {
    struct ps_tls_keys *keys;
    uint8_t *bytes;
    size_t size;
    size_t from;
    size_t to;
    /* Opened bytes in `bytes` that are not read yet. */
    size_t plain_from;
    size_t plain_to;
    bool has_any; /* The peer has sent something. */
    int rc;       /* Why nothing more is opened; 0: it is. */
    unsigned empty_records;
    char failure[192];
};

struct output {
    struct ps_tls_keys *keys;
    uint8_t *bytes;
    size_t size;
    size_t from;
    size_t to;
    uint64_t records_max;
    bool is_ended;
};

struct ps_tls_session {
    SSL *ssl;                       /* NULL: the handshake is over. */
    struct ps_tls_context *context; /* As long as `ssl`. */
    bool dialled;
    struct input in;
    struct output out;
    _Atomic bool update_wanted; /* The peer asks for new keys of the output. */
    struct ps_identity peer;
    char refusal[REFUSAL_BYTES]; /* Why its certificates were refused. */
    X509 *certificate;
    STACK_OF(X509) * chain;
    int64_t expires_at; /* First end of a certificate of the verified chain. */
    const char *cipher;
};

/* --------------------------------------------------------- OpenSSL's sockets */

static BIO_METHOD *methods;
static int session_index;
static pthread_once_t methods_made = PTHREAD_ONCE_INIT;

static int bio_read(BIO *bio, char *out, int len)
{
    struct input *in = &((struct ps_tls_session *)BIO_get_data(bio))->in;
    size_t n = in->to - in->from;

    BIO_clear_retry_flags(bio);
    if (n == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    n = n < (size_t)len ? n : (size_t)len;
    memcpy(out, in->bytes + in->from, n);
    in->from += n;
    return (int)n;
}

static bool output_reserve(struct output *out, size_t more, size_t most)
{
    if (out->to + more > most) {
        return false;
    }
    if (out->to + more > out->size) {
        out->size = out->to + more;
        out->bytes = ps_realloc(out->bytes, out->size);
    }
    return true;
}

static int bio_write(BIO *bio, const char *bytes, int len)
{
    struct output *out = &((struct ps_tls_session *)BIO_get_data(bio))->out;

    BIO_clear_retry_flags(bio);
    if (len <= 0 || !output_reserve(out, (size_t)len, OUTPUT_MAX)) {
        return -1;
    }
    memcpy(out->bytes + out->to, bytes, (size_t)len);
    out->to += (size_t)len;
    return len;
}

static long bio_control(BIO *bio, int command, long number, void *p)
{
    (void)bio;
    (void)number;
    (void)p;
    return command == BIO_CTRL_FLUSH;
}

static void make_methods(void)
{
    methods = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(),
                           "session");
    if (methods != NULL) {
        BIO_meth_set_read(methods, bio_read);
        BIO_meth_set_write(methods, bio_write);
        BIO_meth_set_ctrl(methods, bio_control);
    }
    session_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

/* ------------------------------------------------------------------ secrets */

/* Returns the number of bytes; 0: not hexadecimal. */
static size_t read_hex(const char *text, uint8_t *out, size_t most)
{
    size_t len = 0;

    while (len < most && text[0] != '\0' && text[1] != '\0') {
        uint8_t byte = 0;

        for (int i = 0; i < 2; i++) {
            int digit = OPENSSL_hexchar2int((unsigned char)*text++);

            if (digit < 0) {
                return 0;
            }
            byte = (uint8_t)(byte << 4 | digit);
        }
        out[len++] = byte;
    }
    return len;
}

/* "CLIENT_TRAFFIC_SECRET_0 <random> <secret>", and others. */
void ps_tls_session_keylog(const SSL *ssl, const char *line)
{
    static const char client[] = "CLIENT_TRAFFIC_SECRET_0 ";
    static const char server[] = "SERVER_TRAFFIC_SECRET_0 ";
    struct ps_tls_session *s = SSL_get_ex_data(ssl, session_index);
    bool of_client = strncmp(line, client, strlen(client)) == 0;
    const char *text = strrchr(line, ' ');
    uint8_t secret[PS_TLS_SECRET_MAX];
    size_t len;

    if (s == NULL || text == NULL ||
        (!of_client && strncmp(line, server, strlen(server)) != 0)) {
        return;
    }
    len = read_hex(text + 1, secret, sizeof(secret));
    if (of_client == s->dialled) {
        ps_tls_keys_free(s->out.keys);
        s->out.keys = ps_tls_keys_new(secret, len, true);
    } else {
        ps_tls_keys_free(s->in.keys);
        s->in.keys = ps_tls_keys_new(secret, len, false);
    }
    OPENSSL_cleanse(secret, sizeof(secret));
}

/* ------------------------------------------------------------ certificates */

int ps_tls_session_on_verify(int is_valid, X509_STORE_CTX *v)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(
        v, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct ps_tls_session *s = ssl == NULL
                                   ? NULL
                                   : SSL_get_ex_data(ssl, session_index);
    const X509 *certificate = X509_STORE_CTX_get0_cert(v);
    char text[128];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (is_valid == 0 && s != NULL && certificate != NULL) {
        struct ps_str refusal;

        ps_str_init(&refusal, s->refusal, sizeof(s->refusal));
        ps_tls_add_refusal(&refusal, v);
        ERR_set_mark();
        if (ps_tls_identity_of(certificate, &s->peer, &why) != 0) {
            s->peer.role = 0;
        }
        ERR_pop_to_mark();
    }
    return is_valid;
}

/* ---------------------------------------------------------------- life cycle */

struct ps_tls_session *ps_tls_session_new(struct ps_tls_context *c,
                                          bool dialled)
{
    struct ps_tls_session *s;
    BIO *bio;

    if (pthread_once(&methods_made, make_methods) != 0 || methods == NULL) {
        return NULL;
    }
    s = ps_calloc(1, sizeof(*s));
    s->dialled = dialled;
    s->out.records_max = PS_TLS_RECORDS_MAX;
    s->context = ps_tls_context_ref(c);
    s->ssl = ps_tls_context_make(c);
    bio = s->ssl == NULL ? NULL : BIO_new(methods);
    if (bio == NULL || SSL_set_ex_data(s->ssl, session_index, s) != 1) {
        BIO_free(bio);
        ps_tls_session_free(s);
        ERR_clear_error();
        return NULL;
    }
    BIO_set_data(bio, s);
    BIO_set_init(bio, 1);
    SSL_set_bio(s->ssl, bio, bio);
    if (dialled) {
        SSL_set_connect_state(s->ssl);
    } else {
        SSL_set_accept_state(s->ssl);
    }
    s->in.size = INPUT_FIRST;
    s->in.bytes = ps_alloc(s->in.size);
    return s;
}

struct ps_tls_session *ps_tls_session_of_secrets(const uint8_t *input,
                                                 const uint8_t *output,
                                                 size_t len)
{
    struct ps_tls_session *s = ps_calloc(1, sizeof(*s));

    s->out.records_max = PS_TLS_RECORDS_MAX;
    s->in.keys = ps_tls_keys_new(input, len, false);
    s->out.keys = ps_tls_keys_new(output, len, true);
    if (s->in.keys == NULL || s->out.keys == NULL) {
        ps_tls_session_free(s);
        return NULL;
    }
    return s;
}

/* The reference of OpenSSL to what the context has made is never the last one:
 * the thread that ends it is then ordered behind the others by the count of the
 * context, and not only by one that no tool sees. */
static void free_handshake(struct ps_tls_session *s)
{
    SSL_free(s->ssl);
    s->ssl = NULL;
    ps_tls_context_unref(s->context);
    s->context = NULL;
}

void ps_tls_session_free(struct ps_tls_session *s)
{
    if (s == NULL) {
        return;
    }
    free_handshake(s);
    ps_tls_keys_free(s->in.keys);
    ps_tls_keys_free(s->out.keys);
    X509_free(s->certificate);
    sk_X509_pop_free(s->chain, X509_free);
    ps_free(s->in.bytes);
    ps_free(s->out.bytes);
    ps_free(s);
}

/* ---------------------------------------------------------------- handshake */

static bool is_other_protocol(int reason)
{
    return reason == SSL_R_WRONG_VERSION_NUMBER ||
           reason == SSL_R_HTTP_REQUEST ||
           reason == SSL_R_HTTPS_PROXY_REQUEST ||
           reason == SSL_R_PACKET_LENGTH_TOO_LONG ||
           reason == SSL_R_RECORD_TOO_SMALL;
}

static int code_of_handshake_error(int reason)
{
    if (is_other_protocol(reason)) {
        return PS_E_VERSION;
    }
    return reason == SSL_R_CERTIFICATE_VERIFY_FAILED ||
                   reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE ||
                   reason > SSL_AD_REASON_OFFSET
               ? PS_E_PERM
               : PS_E_PROTO;
}

/* Adds why the peer has refused this side, as far as it says. Its clock or this
 * host's may be the reason, and only one of the two sides has both times. */
static void add_alert(struct ps_str *why, int alert)
{
    ps_str_addf(why, "it refuses this side: %s",
                SSL_alert_desc_string_long(alert));
    if (alert == SSL_AD_BAD_CERTIFICATE ||
        alert == SSL_AD_CERTIFICATE_EXPIRED) {
        ps_str_add(why, "; ");
        ps_tls_add_clock(why);
        ps_str_add(why, "; is the clock right, here and there?");
    }
}

static void add_handshake_error(struct ps_tls_session *s, struct ps_str *why)
{
    unsigned long code = ERR_peek_error();
    int reason = ERR_GET_REASON(code);
    const char *text = ERR_reason_error_string(code);

    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
        ps_str_add(why, "its ");
        ps_str_add(why, s->refusal[0] != '\0' ? s->refusal
                                              : "certificate is not valid");
    } else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
        ps_str_add(why, "it has no certificate");
    } else if (is_other_protocol(reason)) {
        ps_str_add(why, "it does not use TLS");
    } else if (reason == SSL_R_UNSUPPORTED_PROTOCOL ||
               reason == SSL_R_VERSION_TOO_LOW) {
        ps_str_add(why, "it does not use TLS 1.3");
    } else if (reason > SSL_AD_REASON_OFFSET) {
        add_alert(why, reason - SSL_AD_REASON_OFFSET);
    } else {
        ps_str_addf(why, "handshake of TLS failed: %s",
                    text != NULL ? text : "no reason given");
    }
}

static int64_t first_end(STACK_OF(X509) * chain)
{
    int64_t first = INT64_MAX;

    for (int i = 0; i < sk_X509_num(chain); i++) {
        int64_t end = ps_tls_expires_at(sk_X509_value(chain, i));

        first = end < first ? end : first;
    }
    return first;
}

/* Keeps what outlives the handshake. */
static int handshake_done(struct ps_tls_session *s, struct ps_str *why)
{
    STACK_OF(X509) *chain = SSL_get_peer_cert_chain(s->ssl);

    s->certificate = SSL_get1_peer_certificate(s->ssl);
    s->chain = chain == NULL ? NULL : X509_chain_up_ref(chain);
    s->expires_at = first_end(SSL_get0_verified_chain(s->ssl));
    s->cipher = SSL_get_cipher_name(s->ssl);
    if (s->certificate == NULL || s->in.keys == NULL || s->out.keys == NULL) {
        ps_str_add(why, "handshake of TLS failed: OpenSSL gave no keys");
        return PS_E_BUG;
    }
    size_t at = why->len;

    ps_str_add(why, "its ");
    int rc = ps_tls_identity_of(s->certificate, &s->peer, why);

    if (rc == 0) {
        why->len = at;
        why->data[at] = '\0';
        free_handshake(s);
    }
    return rc;
}

int ps_tls_session_handshake(struct ps_tls_session *s, struct ps_str *why)
{
    if (s->ssl == NULL) {
        return 0;
    }
    ERR_clear_error();
    int n = SSL_do_handshake(s->ssl);
    int rc = PS_E_PROTO;

    if (n == 1) {
        rc = handshake_done(s, why);
    } else if (SSL_get_error(s->ssl, n) == SSL_ERROR_WANT_READ) {
        rc = PS_E_AGAIN;
    } else {
        rc = code_of_handshake_error(ERR_GET_REASON(ERR_peek_error()));
        add_handshake_error(s, why);
    }
    ERR_clear_error();
    return rc;
}

bool ps_tls_session_has_input(const struct ps_tls_session *s)
{
    return s->in.has_any;
}

const struct ps_identity *ps_tls_session_peer(const struct ps_tls_session *s)
{
    return &s->peer;
}

int64_t ps_tls_session_peer_expires_at(const struct ps_tls_session *s)
{
    return s->expires_at;
}

int ps_tls_session_verify(const struct ps_tls_session *s,
                          const struct ps_tls_context *c, struct ps_str *why)
{
    return ps_tls_context_verify(c, s->certificate, s->chain, why);
}

const char *ps_tls_session_cipher(const struct ps_tls_session *s)
{
    return s->cipher;
}

/* -------------------------------------------------------------------- input */

void *ps_tls_session_place(struct ps_tls_session *s, size_t *ret_room)
{
    struct input *in = &s->in;

    assert(in->plain_from == in->plain_to);
    if (in->from > 0) {
        memmove(in->bytes, in->bytes + in->from, in->to - in->from);
        in->to -= in->from;
        in->from = 0;
    }
    if (s->ssl == NULL && in->size < INPUT_MAX) {
        in->size = INPUT_MAX;
        in->bytes = ps_realloc(in->bytes, in->size);
    }
    *ret_room = in->size - in->to;
    return in->bytes + in->to;
}

void ps_tls_session_received(struct ps_tls_session *s, size_t n)
{
    assert(n <= s->in.size - s->in.to);
    s->in.to += n;
    s->in.has_any |= n > 0;
}

static int input_fail(struct input *in, int rc, const char *text)
{
    ps_str_copy(in->failure, sizeof(in->failure), text);
    return rc;
}

/* Handles a whole message that is not data. */
static int accept_control(struct ps_tls_session *s, uint8_t type,
                          const uint8_t *bytes, size_t len)
{
    struct input *in = &s->in;

    if (type == PS_TLS_ALERT && len == 2) {
        if (bytes[1] == CLOSE_NOTIFY) {
            return PS_E_CLOSED;
        }
        struct ps_str why;

        ps_str_init(&why, in->failure, sizeof(in->failure));
        add_alert(&why, bytes[1]);
        return PS_E_PERM;
    }
    if (type == PS_TLS_HANDSHAKE && len == KEY_UPDATE_LEN &&
        bytes[0] == PS_TLS_KEY_UPDATE && bytes[1] == 0 && bytes[2] == 0 &&
        bytes[3] == 1 && bytes[4] <= 1) {
        if (bytes[4] == 1) {
            atomic_store_explicit(&s->update_wanted, true,
                                  memory_order_relaxed);
        }
        return ps_tls_keys_update(in->keys);
    }
    if (type == PS_TLS_HANDSHAKE && len > 0 && bytes[0] == NEW_TICKET) {
        return 0; /* Not used. */
    }
    return input_fail(in, PS_E_PROTO, "TLS record of an unexpected type");
}

/* Length of the content of the next record; PS_E_AGAIN: it is not complete. */
static int next_record(struct input *in, size_t *ret_content)
{
    size_t have = in->to - in->from;

    if (have < PS_TLS_HEADER) {
        return PS_E_AGAIN;
    }
    if (ps_tls_parse_header(in->bytes + in->from, ret_content) != 0) {
        return input_fail(in, PS_E_PROTO, "bytes that are no record of TLS");
    }
    return have < *ret_content + PS_TLS_OVERHEAD ? PS_E_AGAIN : 0;
}

/* Copies `len` bytes from the places. */
static void gather(const struct iovec *iov, size_t len, uint8_t *out)
{
    for (size_t at = 0; at < len; iov++) {
        size_t n = iov->iov_len < len - at ? iov->iov_len : len - at;

        if (n > 0) {
            memcpy(out + at, iov->iov_base, n);
        }
        at += n;
    }
}

/* Opens the next record to its places; or, if those are too small, in place. */
static int open_record(struct ps_tls_session *s, size_t content,
                       const struct iovec *iov, bool fits, size_t *ret_got)
{
    struct input *in = &s->in;
    uint8_t *record = in->bytes + in->from;
    struct iovec own = {record + PS_TLS_HEADER, content};
    uint8_t type;
    int rc = ps_tls_open(in->keys, record, content, fits ? iov : &own, &type);

    if (rc != 0) {
        return input_fail(in, rc, "TLS record was changed on its way");
    }
    in->from += content + PS_TLS_OVERHEAD;
    *ret_got = 0;
    if (type == PS_TLS_DATA && content > 0) {
        in->empty_records = 0;
        *ret_got = fits ? content : 0;
        if (!fits) {
            in->plain_from = (size_t)(record + PS_TLS_HEADER - in->bytes);
            in->plain_to = in->plain_from + content;
        }
        return 0;
    }
    if (++in->empty_records > EMPTY_MAX) {
        return input_fail(in, PS_E_PROTO, "too many records without data");
    }
    if (type == PS_TLS_DATA) {
        return 0;
    }
    uint8_t message[CONTROL_MAX];

    if (content > sizeof(message)) {
        return input_fail(in, PS_E_PROTO, "TLS record of an unexpected type");
    }
    /* The bytes are at the places now. */
    const uint8_t *bytes = own.iov_base;

    if (fits) {
        gather(iov, content, message);
        bytes = message;
    }
    return accept_control(s, type, bytes, content);
}

/* Places that are left to be filled. */
struct places {
    struct iovec iov[8];
    int count;
    size_t room;
};

static void places_fill(struct places *p, size_t n)
{
    int first = 0;

    p->room -= n;
    while (first < p->count && n >= p->iov[first].iov_len) {
        n -= p->iov[first++].iov_len;
    }
    p->count -= first;
    memmove(p->iov, p->iov + first, (size_t)p->count * sizeof(p->iov[0]));
    if (p->count > 0) {
        p->iov[0].iov_base = (uint8_t *)p->iov[0].iov_base + n;
        p->iov[0].iov_len -= n;
    }
}

/* Copies opened bytes to the places. */
static size_t copy_plain(struct input *in, struct places *p)
{
    size_t sum = 0;

    while (in->plain_from < in->plain_to && p->room > 0) {
        size_t n = in->plain_to - in->plain_from;

        n = n < p->iov[0].iov_len ? n : p->iov[0].iov_len;
        memcpy(p->iov[0].iov_base, in->bytes + in->plain_from, n);
        in->plain_from += n;
        sum += n;
        places_fill(p, n);
    }
    return sum;
}

/* Frees the buffer: an idle connection has none. */
static void input_release(struct input *in)
{
    ps_free(in->bytes);
    in->bytes = NULL;
    in->size = 0;
    in->from = 0;
    in->to = 0;
    in->plain_from = 0;
    in->plain_to = 0;
}

ssize_t ps_tls_session_read(struct ps_tls_session *s, const struct iovec *iov,
                            int count)
{
    struct input *in = &s->in;
    struct places p = {.count = count < 8 ? count : 8};
    size_t sum;
    int rc = in->rc;

    for (int i = 0; i < p.count; i++) {
        p.iov[i] = iov[i];
        p.room += iov[i].iov_len;
    }
    sum = copy_plain(in, &p);
    while (rc == 0 && p.room > 0 && in->plain_from == in->plain_to) {
        size_t content;
        size_t got = 0;

        rc = next_record(in, &content);
        if (rc == 0) {
            rc = open_record(s, content, p.iov, content <= p.room, &got);
        }
        places_fill(&p, got);
        sum += got + (rc == 0 ? copy_plain(in, &p) : 0);
    }
    if (in->from == in->to && in->plain_from == in->plain_to && p.room > 0) {
        input_release(in);
    }
    /* A record that failed has used its nonce: another one in its place would
     * be opened with the next, and bytes be missing. */
    in->rc = rc == PS_E_AGAIN ? 0 : rc;
    return sum > 0 ? (ssize_t)sum : rc;
}

size_t ps_tls_session_pending(const struct ps_tls_session *s)
{
    const struct input *in = &s->in;
    size_t content;

    if (in->plain_to > in->plain_from) {
        return in->plain_to - in->plain_from;
    }
    if (in->rc != 0) {
        return in->rc != PS_E_CLOSED; /* The next read fails. */
    }
    if (in->to - in->from < PS_TLS_HEADER) {
        return 0;
    }
    if (ps_tls_parse_header(in->bytes + in->from, &content) != 0) {
        return 1; /* The next read fails. */
    }
    return in->to - in->from < content + PS_TLS_OVERHEAD ? 0 : content + 1;
}

const char *ps_tls_session_failure(const struct ps_tls_session *s)
{
    return s->in.failure;
}

/* ------------------------------------------------------------------- output */

const void *ps_tls_session_output(const struct ps_tls_session *s,
                                  size_t *ret_len)
{
    *ret_len = s->out.to - s->out.from;
    return *ret_len > 0 ? s->out.bytes + s->out.from : NULL;
}

void ps_tls_session_sent(struct ps_tls_session *s, size_t n)
{
    struct output *out = &s->out;

    assert(n <= out->to - out->from);
    out->from += n;
    if (out->from == out->to) {
        ps_free(out->bytes);
        *out = (struct output){.keys = out->keys,
                               .records_max = out->records_max,
                               .is_ended = out->is_ended};
    }
}

static bool seal_more(struct output *out, enum ps_tls_type type,
                      const struct iovec *iov, size_t len)
{
    size_t n = ps_tls_seal(out->keys, type, iov, len, out->bytes + out->to);

    out->to += n;
    return n > 0;
}

/* Announces new keys, and uses them from here on. */
static bool update_keys(struct output *out)
{
    uint8_t message[KEY_UPDATE_LEN] = {PS_TLS_KEY_UPDATE, 0, 0, 1, 0};
    const struct iovec iov = {message, sizeof(message)};

    return output_reserve(out, PS_TLS_OVERHEAD + KEY_UPDATE_LEN,
                          2 * BATCH_BYTES) &&
           seal_more(out, PS_TLS_HANDSHAKE, &iov, sizeof(message)) &&
           ps_tls_keys_update(out->keys) == 0;
}

bool ps_tls_session_update_due(struct ps_tls_session *s, uint64_t records)
{
    return records >= s->out.records_max ||
           atomic_exchange_explicit(&s->update_wanted, false,
                                    memory_order_relaxed);
}

ssize_t ps_tls_session_write(struct ps_tls_session *s, const struct iovec *iov,
                             int count)
{
    struct output *out = &s->out;
    size_t skip = 0; /* Bytes of iov[0] that are sealed. */
    size_t sum = 0;

    if (out->to > out->from) {
        return PS_E_AGAIN;
    }
    (void)output_reserve(out, BATCH_BYTES, 2 * BATCH_BYTES);
    if (ps_tls_session_update_due(s, ps_tls_keys_records(out->keys)) &&
        !update_keys(out)) {
        return PS_E_BUG;
    }
    for (unsigned i = 0; i < PS_TLS_BATCH && count > 0; i++) {
        struct iovec piece[16];
        size_t len = 0;
        int n = 0;

        while (count > 0 && n < 16 && len < PS_TLS_CONTENT) {
            size_t most = iov->iov_len - skip;

            most = most < PS_TLS_CONTENT - len ? most : PS_TLS_CONTENT - len;
            piece[n++] = (struct iovec){(uint8_t *)iov->iov_base + skip, most};
            len += most;
            skip += most;
            if (skip == iov->iov_len) {
                iov++;
                count--;
                skip = 0;
            }
        }
        if (len > 0 &&
            (!output_reserve(out, len + PS_TLS_OVERHEAD, 2 * BATCH_BYTES) ||
             !seal_more(out, PS_TLS_DATA, piece, len))) {
            return PS_E_BUG;
        }
        sum += len;
    }
    return (ssize_t)sum;
}

void ps_tls_session_end(struct ps_tls_session *s)
{
    uint8_t alert[2] = {1, CLOSE_NOTIFY};
    const struct iovec iov = {alert, sizeof(alert)};
    struct output *out = &s->out;

    if (out->keys != NULL && !out->is_ended &&
        output_reserve(out, PS_TLS_OVERHEAD + sizeof(alert),
                       2 * BATCH_BYTES + PS_TLS_OVERHEAD + sizeof(alert))) {
        (void)seal_more(out, PS_TLS_ALERT, &iov, sizeof(alert));
        out->is_ended = true;
    }
}

int ps_tls_session_export(const struct ps_tls_session *s, bool of_output,
                          struct ps_tls_material *ret_material)
{
    const struct input *in = &s->in;
    bool holds = of_output ? s->out.to > s->out.from
                           : in->to > in->from || in->plain_to > in->plain_from;

    if (holds) {
        return PS_E_AGAIN;
    }
    return ps_tls_keys_material(of_output ? s->out.keys : in->keys,
                                ret_material);
}

int ps_tls_session_control(struct ps_tls_session *s, uint8_t type,
                           const uint8_t *bytes, size_t len, bool *ret_update)
{
    *ret_update = type == PS_TLS_HANDSHAKE && len > 0 &&
                  bytes[0] == PS_TLS_KEY_UPDATE;
    return accept_control(s, type, bytes, len);
}

int ps_tls_session_update_output(struct ps_tls_session *s)
{
    return ps_tls_keys_update(s->out.keys);
}

void ps_tls_session_set_records_max(struct ps_tls_session *s, uint64_t records)
{
    s->out.records_max = records;
}
