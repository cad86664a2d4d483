/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL reads and writes the socket itself, as it must to pass keys to the
 * kernel. Between it and the output of the socket is a buffer: the records of a
 * batch are sealed into it, and leave with one system call. A batch begins when
 * the buffer is empty and fits in it, so that SSL_write_ex() never stops within
 * a record: it would have to be repeated with the same bytes, before which an
 * urgent frame may go by then. Where the kernel seals, the buffer has the bytes
 * themselves. */
#include "crypto/tls.h"

#include "base/alloc.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define RECORD_BYTES  ((size_t)SSL3_RT_MAX_PLAIN_LENGTH)
/* The input is read ahead: some records with one system call. */
#define INPUT_BYTES   (PS_TLS_BATCH_BYTES + 4096u)
/* Bytes of the buffer of the output: of a batch, in which pieces of DIRECT_MIN
 * and what lies between them are records of their own, of messages of the
 * handshake and of the end; and of a connection without output, which is the
 * least that BIO_f_buffer() changes to. */
#define OUTPUT_BYTES  (PS_TLS_BATCH_BYTES + 4096u)
#define OUTPUT_IDLE   4100
#define OUTPUT_SMALL  3072u
/* Least piece that is sealed from where it lies; shorter ones are copied
 * together. */
#define DIRECT_MIN    8192u
/* Steps of OpenSSL for messages of the handshake after it, without bytes of the
 * user in between; some three for a message. */
#define STEPS_MAX     128u
#define REFUSAL_BYTES 320u

struct ps_tls_session {
    SSL *ssl;
    BIO *output; /* The buffer; owned by `ssl`. */
    struct ps_tls_context *context;
    bool is_over; /* The handshake. */
    bool has_unread;
    bool is_wide;     /* `output` has room for a batch. */
    uint64_t records; /* Sealed under the present keys. */
    uint64_t records_max;
    unsigned steps; /* See STEPS_MAX. */
    int input_rc;   /* Why nothing more is opened; 0: it is. */
    char failure[192];
    struct ps_identity peer;
    char refusal[REFUSAL_BYTES]; /* Why its certificates were refused. */
    X509 *certificate;
    STACK_OF(X509) * chain;
    int64_t expires_at; /* First end of a certificate of the verified chain. */
};

static int session_index;
static pthread_once_t index_made = PTHREAD_ONCE_INIT;

static void make_index(void)
{
    session_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
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
    struct ps_str why = PS_STR_ROOM(128);
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

/* OpenSSL limits the records without data, but not those with new keys. */
static void count_steps(const SSL *ssl, int where, int value)
{
    struct ps_tls_session *s = SSL_get_ex_data(ssl, session_index);

    (void)value;
    if ((where & SSL_CB_LOOP) != 0) {
        s->steps++;
    }
}

/* Connects OpenSSL with the socket. */
static bool attach_socket(struct ps_tls_session *s, int fd)
{
    BIO *socket = BIO_new_socket(fd, BIO_NOCLOSE);

    s->output = BIO_new(BIO_f_buffer());
    if (socket == NULL || s->output == NULL) {
        BIO_free(socket);
        BIO_free(s->output);
        return false;
    }
    SSL_set0_rbio(s->ssl, socket);
    (void)BIO_up_ref(socket);
    SSL_set0_wbio(s->ssl, BIO_push(s->output, socket));
    return true;
}

struct ps_tls_session *ps_tls_session_new(struct ps_tls_context *c, int fd,
                                          bool dialled)
{
    struct ps_tls_session *s;

    if (pthread_once(&index_made, make_index) != 0) {
        return NULL;
    }
    s = ps_calloc(1, sizeof(*s));
    s->records_max = PS_TLS_RECORDS_MAX;
    s->context = ps_tls_context_ref(c);
    s->ssl = ps_tls_context_make(c);
    if (s->ssl == NULL || SSL_set_ex_data(s->ssl, session_index, s) != 1 ||
        !attach_socket(s, fd)) {
        ps_tls_session_free(s);
        ERR_clear_error();
        return NULL;
    }
    SSL_set_info_callback(s->ssl, count_steps);
    if (dialled) {
        SSL_set_connect_state(s->ssl);
    } else {
        SSL_set_accept_state(s->ssl);
    }
    return s;
}

/* The reference of OpenSSL to what the context has made is never the last one:
 * the thread that ends it is then ordered behind the others by the count of the
 * context, and not only by one that no tool sees. */
void ps_tls_session_free(struct ps_tls_session *s)
{
    if (s == NULL) {
        return;
    }
    X509_free(s->certificate);
    sk_X509_pop_free(s->chain, X509_free);
    SSL_free(s->ssl);
    ps_tls_context_unref(s->context);
    ps_free(s);
}

bool ps_tls_session_is_sealed_by_kernel(const struct ps_tls_session *s)
{
    return BIO_get_ktls_send(SSL_get_wbio(s->ssl));
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
    if (s->certificate == NULL) {
        ps_str_add(why, "handshake of TLS failed: OpenSSL has no certificate "
                        "of the peer");
        return PS_E_BUG;
    }
    size_t at = why->len;

    ps_str_add(why, "its ");
    int rc = ps_tls_identity_of(s->certificate, &s->peer, why);

    if (rc == 0) {
        why->len = at;
        why->data[at] = '\0';
        /* Not before: a kernel that gets the keys of the input needs every byte
         * of it that is protected by them. */
        SSL_set_read_ahead(s->ssl, 1);
        SSL_set_default_read_buffer_len(s->ssl, INPUT_BYTES);
        s->steps = 0;
        s->is_over = true;
    }
    return rc;
}

/* Adds why the socket ended the handshake. `error` is its errno, 0: its end. */
static int add_socket_error(const struct ps_tls_session *s, int error,
                            struct ps_str *why)
{
    if (error != 0 && error != ECONNRESET && error != EPIPE) {
        ps_str_add(why, strerror(error));
        return ps_err_from_errno(error);
    }
    ps_str_add(why, "it closed the connection during the handshake of TLS");
    return SSL_is_server(s->ssl) == 0 || ps_tls_session_has_input(s)
               ? PS_E_REFUSED
               : PS_E_CLOSED;
}

static bool is_end_of_stream(void)
{
    return ERR_GET_REASON(ERR_peek_error()) ==
           SSL_R_UNEXPECTED_EOF_WHILE_READING;
}

int ps_tls_session_handshake(struct ps_tls_session *s, struct ps_str *why)
{
    if (s->is_over) {
        return 0;
    }
    ERR_clear_error();
    errno = 0;
    const int n = SSL_do_handshake(s->ssl);
    const int error = errno;
    int rc = PS_E_AGAIN;

    switch (SSL_get_error(s->ssl, n)) {
    case SSL_ERROR_NONE:
        rc = handshake_done(s, why);
        break;
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        break;
    case SSL_ERROR_SYSCALL:
        rc = add_socket_error(s, error, why);
        break;
    default:
        if (is_end_of_stream()) {
            rc = add_socket_error(s, 0, why);
            break;
        }
        rc = code_of_handshake_error(ERR_GET_REASON(ERR_peek_error()));
        add_handshake_error(s, why);
        break;
    }
    ERR_clear_error();
    return rc;
}

bool ps_tls_session_waits_to_write(const struct ps_tls_session *s)
{
    return SSL_want_write(s->ssl);
}

bool ps_tls_session_has_input(const struct ps_tls_session *s)
{
    return BIO_number_read(SSL_get_rbio(s->ssl)) > 0;
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
    return SSL_get_cipher_name(s->ssl);
}

/* -------------------------------------------------------------------- input */

/* Keeps why no more records are opened: the next ones would not be those that
 * the peer has sealed. */
static int input_failed(struct ps_tls_session *s, int reason)
{
    struct ps_str why;

    ps_str_init(&why, s->failure, sizeof(s->failure));
    if (reason > SSL_AD_REASON_OFFSET) {
        add_alert(&why, reason - SSL_AD_REASON_OFFSET);
        return PS_E_PERM;
    }
    if (reason == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC) {
        ps_str_add(&why, "TLS record was changed on its way");
        return PS_E_PROTO;
    }
    const char *text = ERR_reason_error_string(ERR_peek_error());

    ps_str_addf(&why, "bytes that are no record of TLS: %s",
                text != NULL ? text : "no reason given");
    return PS_E_PROTO;
}

/* Opens bytes of one record; *ret_n is 0 if there are none. */
static int read_some(struct ps_tls_session *s, void *place, size_t room,
                     size_t *ret_n)
{
    int n;

    *ret_n = 0;
    ERR_clear_error();
    errno = 0;
    n = SSL_read_ex(s->ssl, place, room, ret_n);
    if (n == 1) {
        s->steps = 0;
        return 0;
    }
    if (s->steps > STEPS_MAX) {
        ERR_clear_error();
        ps_str_copy(s->failure, sizeof(s->failure),
                    "too many records of TLS without data");
        return PS_E_PROTO;
    }
    const int error = errno;
    int rc;

    switch (SSL_get_error(s->ssl, n)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: /* An answer to the peer, with the next write. */
        rc = PS_E_AGAIN;
        break;
    case SSL_ERROR_ZERO_RETURN:
        rc = PS_E_CLOSED;
        break;
    case SSL_ERROR_SYSCALL:
        rc = error == 0 ? PS_E_CLOSED : PS_E_IO;
        break;
    default:
        rc = is_end_of_stream()
                 ? PS_E_CLOSED
                 : input_failed(s, ERR_GET_REASON(ERR_peek_error()));
        break;
    }
    ERR_clear_error();
    errno = error;
    return rc;
}

ssize_t ps_tls_session_read(struct ps_tls_session *s, const struct iovec *iov,
                            int count)
{
    size_t sum = 0;
    int rc = s->input_rc;
    int i = 0;
    size_t at = 0;

    while (rc == 0 && i < count && sum < PS_TLS_BATCH_BYTES) {
        size_t n;

        if (at == iov[i].iov_len) {
            i++;
            at = 0;
            continue;
        }
        if (sum > 0 && SSL_has_pending(s->ssl) == 0) {
            break; /* Without a system call for what has mostly not come. */
        }
        rc = read_some(s, (uint8_t *)iov[i].iov_base + at, iov[i].iov_len - at,
                       &n);
        at += n;
        sum += n;
    }
    s->has_unread = rc == 0 && SSL_has_pending(s->ssl) != 0;
    if (rc != 0 && rc != PS_E_AGAIN && rc != PS_E_IO) {
        s->input_rc = rc;
        s->has_unread = sum > 0; /* The next read tells it. */
    }
    return sum > 0 ? (ssize_t)sum : rc;
}

bool ps_tls_session_has_unread(const struct ps_tls_session *s)
{
    return s->has_unread;
}

const char *ps_tls_session_failure(const struct ps_tls_session *s)
{
    return s->failure;
}

/* ------------------------------------------------------------------- output */

/* Resizes the empty buffer of the output. */
static bool output_resize(struct ps_tls_session *s, bool wide)
{
    if (s->is_wide != wide &&
        BIO_set_write_buffer_size(s->output, wide ? (long)OUTPUT_BYTES
                                                  : OUTPUT_IDLE) != 1) {
        return false;
    }
    s->is_wide = wide;
    return true;
}

/* Writes the buffer to the socket. 0: it is empty; PS_E_AGAIN; PS_E_IO. */
static int output_flush(struct ps_tls_session *s)
{
    if (BIO_wpending(s->output) > 0) {
        errno = 0;
        if (BIO_flush(s->output) != 1) {
            const int error = errno;

            if (BIO_should_retry(s->output)) {
                return PS_E_AGAIN;
            }
            ERR_clear_error();
            errno = error != 0 ? error : EPIPE;
            return PS_E_IO;
        }
    }
    (void)output_resize(s, false); /* An idle connection has no memory. */
    return 0;
}

size_t ps_tls_session_unsent(const struct ps_tls_session *s)
{
    return (size_t)BIO_wpending(s->output);
}

/* Sees to new keys. 0, or PS_E_IO: the kernel has the old ones, and OpenSSL
 * cannot change them there. */
static int update_keys(struct ps_tls_session *s)
{
    if (s->records < s->records_max) {
        return 0;
    }
    if (ps_tls_session_is_sealed_by_kernel(s)) {
        errno = EKEYEXPIRED;
        return PS_E_IO;
    }
    s->records = 0;
    errno = EIO;
    return SSL_key_update(s->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1 ? 0
                                                                     : PS_E_IO;
}

/* Seals bytes, as one or more records, into the buffer. */
static int seal(struct ps_tls_session *s, const void *bytes, size_t len)
{
    size_t n;
    int rc;

    if (len == 0) {
        return 0;
    }
    rc = SSL_write_ex(s->ssl, bytes, len, &n);
    if (rc == 1) {
        s->records += (len + RECORD_BYTES - 1) / RECORD_BYTES;
        return 0;
    }
    /* Only the message of new keys waits for the socket; nothing is sealed. */
    rc = SSL_get_error(s->ssl, rc);
    errno = EIO;
    return rc == SSL_ERROR_WANT_WRITE || rc == SSL_ERROR_WANT_READ ? PS_E_AGAIN
                                                                   : PS_E_IO;
}

/* Seals the first `len` bytes of the places; *ret_sealed of them were. */
static int seal_places(struct ps_tls_session *s, const struct iovec *iov,
                       size_t len, size_t *ret_sealed)
{
    uint8_t record[RECORD_BYTES];
    size_t held = 0; /* Bytes in `record`, which are not sealed yet. */
    size_t sealed = 0;
    int rc = 0;

    for (; len > 0 && rc == 0; iov++) {
        const size_t n = iov->iov_len < len ? iov->iov_len : len;
        const bool is_direct = n >= DIRECT_MIN;

        if (is_direct || held + n > sizeof(record)) {
            rc = seal(s, record, held);
            sealed += rc == 0 ? held : 0;
            held = 0;
        }
        if (rc == 0 && is_direct) {
            rc = seal(s, iov->iov_base, n);
            sealed += rc == 0 ? n : 0;
        } else if (rc == 0 && n > 0) {
            memcpy(record + held, iov->iov_base, n);
            held += n;
        }
        len -= n;
    }
    if (rc == 0) {
        rc = seal(s, record, held);
        sealed += rc == 0 ? held : 0;
    }
    *ret_sealed = sealed;
    return rc;
}

ssize_t ps_tls_session_write(struct ps_tls_session *s, const struct iovec *iov,
                             int count)
{
    size_t len = 0;
    size_t sealed;
    int rc = output_flush(s);

    for (int i = 0; i < count && len < PS_TLS_BATCH_BYTES; i++) {
        len += iov[i].iov_len;
    }
    if (rc != 0 || len == 0) {
        return rc;
    }
    len = len < PS_TLS_BATCH_BYTES ? len : PS_TLS_BATCH_BYTES;
    ERR_clear_error();
    rc = update_keys(s);
    if (rc == 0 && len > OUTPUT_SMALL && !output_resize(s, true)) {
        errno = ENOMEM;
        rc = PS_E_IO;
    }
    if (rc != 0) {
        return rc;
    }
    rc = seal_places(s, iov, len, &sealed);
    ERR_clear_error();
    if (rc == PS_E_IO || sealed == 0) {
        return rc;
    }
    (void)output_flush(s); /* An error comes again with the next call. */
    return (ssize_t)sealed;
}

void ps_tls_session_end(struct ps_tls_session *s)
{
    if (s->is_over && (SSL_get_shutdown(s->ssl) & SSL_SENT_SHUTDOWN) == 0 &&
        (s->input_rc == 0 || s->input_rc == PS_E_CLOSED)) {
        ERR_clear_error();
        (void)SSL_shutdown(s->ssl);
        ERR_clear_error();
    }
    (void)output_flush(s);
}

void ps_tls_session_set_records_max(struct ps_tls_session *s, uint64_t records)
{
    s->records_max = records;
}
