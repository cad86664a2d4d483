/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/tls.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "crypto/pki.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Certificates between the authority and a peer's own, and that one. */
#define DEPTH_MAX            3
/* Bytes of the certificates that a peer may send. */
#define CHAIN_MAX            (16 * 1024)
#define CIPHERS              "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384"
#define GROUPS               "X25519:P-256"
/* Certificates and lists in one source. */
#define PEM_ITEMS_MAX        256
/* Bytes of the name of an authority, and of its text with escapes. */
#define AUTHORITY_NAME_MAX   64
#define AUTHORITY_TEXT_BYTES (4 * AUTHORITY_NAME_MAX + 1)

struct ps_tls_context {
    _Atomic uint32_t refs;
    SSL_CTX *ssl;
    struct ps_identity identity;
    int64_t expires_at;
};

/* ------------------------------------------------------------------- texts */

/* Adds the reason of OpenSSL's oldest error. */
static void add_openssl_error(struct ps_str *why)
{
    unsigned long code = ERR_get_error();
    const char *reason = ERR_reason_error_string(code);

    ps_str_add(why, reason != NULL ? reason : "OpenSSL gives no reason");
    ERR_clear_error();
}

static void add_time(struct ps_str *why, const struct tm *tm)
{
    char date[32] = "";

    (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", tm);
    ps_str_add(why, date);
}

void ps_tls_add_clock(struct ps_str *why)
{
    const time_t now = time(NULL);
    struct tm tm = {0};

    (void)gmtime_r(&now, &tm);
    ps_str_add(why, "this host's clock has ");
    add_time(why, &tm);
}

/* Adds a time of validity, which the clock has passed or not reached yet:
 * either the certificate is wrong, or the clock. */
static void add_validity(struct ps_str *why, const char *verb,
                         const ASN1_TIME *at)
{
    struct tm tm = {0};

    if (at != NULL && ASN1_TIME_to_tm(at, &tm) == 1) {
        ps_str_addf(why, ": it %s ", verb);
        add_time(why, &tm);
        ps_str_add(why, ", and ");
        ps_tls_add_clock(why);
        ps_str_add(why, "; is the clock right?");
    }
}

static void add_verify_error(struct ps_str *why, const X509 *x, long error)
{
    switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        ps_str_add(why, "certificate has expired");
        add_validity(why, "ended", X509_get0_notAfter(x));
        return;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        ps_str_add(why, "certificate is not valid yet");
        add_validity(why, "begins", X509_get0_notBefore(x));
        return;
    case X509_V_ERR_CERT_REVOKED:
        ps_str_add(why, "certificate is revoked");
        return;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
        ps_str_add(why, "certificate is self-signed");
        return;
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        ps_str_add(why, "certificate is of another authority");
        return;
    default:
        ps_str_addf(why, "certificate is not valid: %s",
                    X509_verify_cert_error_string(error));
        return;
    }
}

/* Reads the common name of an authority, which may be a text of the peer. */
static void read_authority(const X509_NAME *name,
                           char ret_text[AUTHORITY_TEXT_BYTES])
{
    char text[AUTHORITY_NAME_MAX + 1];
    int len = X509_NAME_get_text_by_NID(name, NID_commonName, text,
                                        sizeof(text));
    struct ps_str s;

    ps_str_init(&s, ret_text, AUTHORITY_TEXT_BYTES);
    ps_str_add_escaped(&s, text, len > 0 ? strlen(text) : 0,
                       AUTHORITY_NAME_MAX);
}

/* Adds the error of the certificate of an intermediate authority. */
static void add_authority_error(struct ps_str *why, const X509 *x, long error,
                                const char *authority)
{
    switch (error) {
    case X509_V_ERR_CERT_REVOKED:
        ps_str_addf(why, "authority '%s' is revoked", authority);
        return;
    case X509_V_ERR_CERT_HAS_EXPIRED:
        ps_str_addf(why, "authority '%s' has expired", authority);
        add_validity(why, "ended", X509_get0_notAfter(x));
        return;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        ps_str_addf(why, "authority '%s' is not valid yet", authority);
        add_validity(why, "begins", X509_get0_notBefore(x));
        return;
    default:
        add_verify_error(why, x, error);
        return;
    }
}

/* Adds the error of an authority's list. False: it is another error. */
static bool add_list_error(struct ps_str *why, const X509_STORE_CTX *v,
                           long error, const char *authority)
{
    const X509_CRL *crl = X509_STORE_CTX_get0_current_crl(v);

    switch (error) {
    case X509_V_ERR_UNABLE_TO_GET_CRL:
        ps_str_addf(why,
                    "authority '%s' has no list of revoked certificates here "
                    "(security.tls.crl)",
                    authority);
        return true;
    case X509_V_ERR_CRL_HAS_EXPIRED:
        ps_str_addf(why,
                    "authority '%s' has a list of revoked certificates that "
                    "has expired",
                    authority);
        add_validity(why, "ended",
                     crl != NULL ? X509_CRL_get0_nextUpdate(crl) : NULL);
        return true;
    case X509_V_ERR_CRL_NOT_YET_VALID:
        ps_str_addf(why,
                    "authority '%s' has a list of revoked certificates that "
                    "is not valid yet",
                    authority);
        add_validity(why, "begins",
                     crl != NULL ? X509_CRL_get0_lastUpdate(crl) : NULL);
        return true;
    default:
        return false;
    }
}

void ps_tls_add_refusal(struct ps_str *why, const X509_STORE_CTX *v)
{
    const long error = X509_STORE_CTX_get_error(v);
    const X509 *x = X509_STORE_CTX_get_current_cert(v);
    char issuer[AUTHORITY_TEXT_BYTES];
    char subject[AUTHORITY_TEXT_BYTES];

    if (x == NULL) {
        ps_str_addf(why, "certificate is not valid: %s",
                    X509_verify_cert_error_string(error));
        return;
    }
    read_authority(X509_get_issuer_name(x), issuer);
    read_authority(X509_get_subject_name(x), subject);
    if (add_list_error(why, v, error, issuer)) {
        return;
    }
    if (X509_STORE_CTX_get_error_depth(v) > 0) {
        add_authority_error(why, x, error, subject);
    } else {
        add_verify_error(why, x, error);
    }
}

/* ------------------------------------------------------------------- input */

/* True if no other user can change the file: the authorities and the list of
 * revoked certificates decide which process is a peer. */
static bool is_trusted(int fd, const char *path, struct ps_str *why)
{
    struct ps_str report = PS_STR_ROOM(512);
    if (ps_file_check(fd, path, PS_FILE_TRUSTED, &report) == 0) {
        return true;
    }
    report.data[strcspn(report.data, "\n")] = '\0';
    ps_str_add(why, report.data);
    return false;
}

/* Reads a file into allocated text, with its size; NULL with the reason. */
static char *read_file(const char *path, bool is_secret, size_t *ret_size,
                       struct ps_str *why)
{
    struct stat st;
    char *text;
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) != 0) {
        ps_str_addf(why, "%s: cannot be read: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    if (!S_ISREG(st.st_mode) || st.st_size > (off_t)PS_TLS_PEM_MAX) {
        ps_str_addf(why, "%s: not a file of up to 1 MiB", path);
        close(fd);
        return NULL;
    }
    if (is_secret && (st.st_mode & 077) != 0) {
        ps_str_addf(why,
                    "%s: other users may read the key (mode %04o); chmod 600 "
                    "the file, and make another key if it was read",
                    path, (unsigned)(st.st_mode & 07777));
        close(fd);
        return NULL;
    }
    if (!is_trusted(fd, path, why)) {
        close(fd);
        return NULL;
    }
    *ret_size = (size_t)st.st_size;
    text = ps_alloc((size_t)st.st_size + 1);
    n = ps_file_read(fd, text, (size_t)st.st_size);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    return text;
}

/* Parses all items of PEM text; NULL with the reason. */
static STACK_OF(X509_INFO) *
    parse_pem(const char *text, const char *name, struct ps_str *why)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    STACK_OF(X509_INFO) *items = bio == NULL ? NULL
                                             : PEM_X509_INFO_read_bio(
                                                   bio, NULL, NULL, (void *)"");

    BIO_free(bio);
    if (items == NULL || sk_X509_INFO_num(items) == 0 ||
        sk_X509_INFO_num(items) > PEM_ITEMS_MAX) {
        ps_str_addf(why, "%s: no PEM text: ", name);
        add_openssl_error(why);
        sk_X509_INFO_pop_free(items, X509_INFO_free);
        return NULL;
    }
    return items;
}

static STACK_OF(X509_INFO) *
    read_pem(const char *path, bool is_secret, struct ps_str *why)
{
    size_t size = 0;
    char *text = read_file(path, is_secret, &size, why);
    STACK_OF(X509_INFO) *items = NULL;

    if (text != NULL) {
        items = parse_pem(text, path, why);
        OPENSSL_cleanse(text, size);
        ps_free(text);
    }
    return items;
}

/* Items of a source that are used. */
enum use {
    USE_KEY = 1,
    USE_CERTIFICATE = 2, /* The first one, and what is not self-signed. */
    USE_CA = 4,          /* Every certificate. */
    USE_OWN_CA = 8,      /* Self-signed certificates after the first. */
    USE_CRL = 16,
};

static bool is_self_signed(X509 *x)
{
    return (X509_get_extension_flags(x) & EXFLAG_SS) != 0;
}

/* Puts one certificate in its place; false: OpenSSL refused it. */
static bool use_certificate(SSL_CTX *ssl, X509 *x, unsigned use, bool is_first)
{
    X509_STORE *store = SSL_CTX_get_cert_store(ssl);

    if ((use & USE_CA) != 0) {
        return X509_STORE_add_cert(store, x) == 1;
    }
    if (is_first) {
        return SSL_CTX_use_certificate(ssl, x) == 1;
    }
    if ((use & USE_OWN_CA) != 0 && is_self_signed(x)) {
        return X509_STORE_add_cert(store, x) == 1;
    }
    return SSL_CTX_add1_chain_cert(ssl, x) == 1;
}

static bool use_item(SSL_CTX *ssl, X509_INFO *item, unsigned use,
                     unsigned found)
{
    if (item->x509 != NULL && (use & (USE_CERTIFICATE | USE_CA)) != 0 &&
        !use_certificate(ssl, item->x509, use,
                         (found & USE_CERTIFICATE) == 0)) {
        return false;
    }
    if (item->crl != NULL && (use & USE_CRL) != 0 &&
        X509_STORE_add_crl(SSL_CTX_get_cert_store(ssl), item->crl) != 1) {
        return false;
    }
    return item->x_pkey == NULL || item->x_pkey->dec_pkey == NULL ||
           (use & USE_KEY) == 0 ||
           SSL_CTX_use_PrivateKey(ssl, item->x_pkey->dec_pkey) == 1;
}

static unsigned found_in(const X509_INFO *item)
{
    unsigned found = item->x509 != NULL ? USE_CERTIFICATE | USE_CA : 0;

    found |= item->crl != NULL ? USE_CRL : 0;
    found |= item->x_pkey != NULL && item->x_pkey->dec_pkey != NULL ? USE_KEY
                                                                    : 0;
    return found;
}

/* Uses the items; frees them. NULL: the reason is there already. */
static int use_items(SSL_CTX *ssl, STACK_OF(X509_INFO) * items, unsigned use,
                     const char *name, struct ps_str *why)
{
    unsigned found = 0;
    int rc = 0;

    if (items == NULL) {
        return PS_E_CONFIG;
    }
    for (int i = 0; i < sk_X509_INFO_num(items) && rc == 0; i++) {
        X509_INFO *item = sk_X509_INFO_value(items, i);

        if (!use_item(ssl, item, use, found)) {
            ps_str_addf(why, "%s: ", name);
            add_openssl_error(why);
            rc = PS_E_CONFIG;
        }
        found |= found_in(item);
    }
    sk_X509_INFO_pop_free(items, X509_INFO_free);
    if (rc == 0 && (found & use & ~(unsigned)USE_OWN_CA) !=
                       (use & ~(unsigned)USE_OWN_CA)) {
        ps_str_addf(why, "%s: has no %s in PEM form", name,
                    (use & ~found & USE_KEY) != 0   ? "private key"
                    : (use & ~found & USE_CRL) != 0 ? "list of revoked "
                                                      "certificates"
                                                    : "certificate");
        rc = PS_E_CONFIG;
    }
    return rc;
}

static int load_source(SSL_CTX *ssl, const struct ps_tls_source *src,
                       struct ps_str *why)
{
    int rc;

    if (src->pem != NULL) {
        return use_items(ssl, parse_pem(src->pem, "security.tls.fd", why),
                         USE_KEY | USE_CERTIFICATE | USE_OWN_CA,
                         "security.tls.fd", why);
    }
    rc = use_items(ssl, read_pem(src->ca, false, why), USE_CA, src->ca, why);
    if (rc == 0) {
        rc = use_items(ssl, read_pem(src->certificate, false, why),
                       USE_CERTIFICATE, src->certificate, why);
    }
    if (rc == 0) {
        rc = use_items(ssl, read_pem(src->key, true, why), USE_KEY, src->key,
                       why);
    }
    if (rc == 0 && src->crl != NULL) {
        rc = use_items(ssl, read_pem(src->crl, false, why), USE_CRL, src->crl,
                       why);
        X509_STORE_set_flags(SSL_CTX_get_cert_store(ssl),
                             X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    }
    return rc;
}

/* -------------------------------------------------------------------- lists */

/* The lists of revoked certificates of a context, to be freed. Handshakes sort
 * the objects of its store. */
static STACK_OF(X509_CRL) * lists_of(const struct ps_tls_context *c)
{
    X509_STORE *store = SSL_CTX_get_cert_store(c->ssl);
    STACK_OF(X509_CRL) *lists = sk_X509_CRL_new_null();
    STACK_OF(X509_OBJECT) * objects;

    X509_STORE_lock(store);
    objects = X509_STORE_get0_objects(store);
    for (int i = 0; i < sk_X509_OBJECT_num(objects); i++) {
        X509_CRL *crl = X509_OBJECT_get0_X509_CRL(
            sk_X509_OBJECT_value(objects, i));

        if (crl != NULL && X509_CRL_up_ref(crl) == 1) {
            (void)sk_X509_CRL_push(lists, crl);
        }
    }
    X509_STORE_unlock(store);
    return lists;
}

/* The same authority: one of the same name with another key is another one. */
static bool is_of_same_authority(const X509_CRL *a, const X509_CRL *b)
{
    AUTHORITY_KEYID *x = X509_CRL_get_ext_d2i(a, NID_authority_key_identifier,
                                              NULL, NULL);
    AUTHORITY_KEYID *y = X509_CRL_get_ext_d2i(b, NID_authority_key_identifier,
                                              NULL, NULL);
    const bool has_keys = x != NULL && x->keyid != NULL && y != NULL &&
                          y->keyid != NULL;
    const bool is_same =
        X509_NAME_cmp(X509_CRL_get_issuer(a), X509_CRL_get_issuer(b)) == 0 &&
        (!has_keys || ASN1_OCTET_STRING_cmp(x->keyid, y->keyid) == 0);

    AUTHORITY_KEYID_free(x);
    AUTHORITY_KEYID_free(y);
    return is_same;
}

static bool is_older(const X509_CRL *a, const X509_CRL *b)
{
    ASN1_INTEGER *x = X509_CRL_get_ext_d2i(a, NID_crl_number, NULL, NULL);
    ASN1_INTEGER *y = X509_CRL_get_ext_d2i(b, NID_crl_number, NULL, NULL);
    const bool older = x != NULL && y != NULL
                           ? ASN1_INTEGER_cmp(x, y) < 0
                           : ps_pki_time_of(X509_CRL_get0_lastUpdate(a)) <
                                 ps_pki_time_of(X509_CRL_get0_lastUpdate(b));

    ASN1_INTEGER_free(x);
    ASN1_INTEGER_free(y);
    return older;
}

/* The newest list of the authority that made `like`; NULL: none. */
static const X509_CRL *newest_of(STACK_OF(X509_CRL) * lists,
                                 const X509_CRL *like)
{
    const X509_CRL *newest = NULL;

    for (int i = 0; i < sk_X509_CRL_num(lists); i++) {
        const X509_CRL *crl = sk_X509_CRL_value(lists, i);

        if (is_of_same_authority(crl, like) &&
            (newest == NULL || is_older(newest, crl))) {
            newest = crl;
        }
    }
    return newest;
}

/* Appends "number 7 of 2026-01-31T12:00:00Z", without the number if it has
 * none. */
static void add_list(struct ps_str *s, const X509_CRL *crl)
{
    ASN1_INTEGER *number = X509_CRL_get_ext_d2i(crl, NID_crl_number, NULL,
                                                NULL);
    char *text = number != NULL ? i2s_ASN1_INTEGER(NULL, number) : NULL;
    struct tm tm;

    if (text != NULL) {
        ps_str_addf(s, "number %s ", text);
    }
    ps_str_add(s, "of ");
    if (ASN1_TIME_to_tm(X509_CRL_get0_lastUpdate(crl), &tm) == 1) {
        add_time(s, &tm);
    }
    OPENSSL_free(text);
    ASN1_INTEGER_free(number);
}

int ps_tls_context_check_lists(const struct ps_tls_context *c,
                               const struct ps_tls_context *next,
                               struct ps_str *why)
{
    STACK_OF(X509_CRL) *now = lists_of(c);
    STACK_OF(X509_CRL) *then = lists_of(next);
    char authority[AUTHORITY_TEXT_BYTES];
    int rc = 0;

    for (int i = 0; rc == 0 && i < sk_X509_CRL_num(then); i++) {
        const X509_CRL *like = sk_X509_CRL_value(then, i);
        const X509_CRL *used = newest_of(now, like);
        const X509_CRL *offered = newest_of(then, like);

        if (used != NULL && is_older(offered, used)) {
            read_authority(X509_CRL_get_issuer(used), authority);
            ps_str_addf(why,
                        "the list of revoked certificates of authority '%s' is "
                        "older than that in use: ",
                        authority);
            add_list(why, offered);
            ps_str_add(why, ", in use ");
            add_list(why, used);
            rc = PS_E_STALE;
        }
    }
    sk_X509_CRL_pop_free(now, X509_CRL_free);
    sk_X509_CRL_pop_free(then, X509_CRL_free);
    ERR_clear_error();
    return rc;
}

/* ------------------------------------------------------------------ context */

SSL_CTX *ps_tls_ctx_new(void)
{
    SSL_CTX *ssl = SSL_CTX_new(TLS_method());

    if (ssl == NULL) {
        return NULL;
    }
    SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                 SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_cert_list(ssl, CHAIN_MAX);
    if (SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(ssl, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(ssl, CIPHERS) != 1 ||
        SSL_CTX_set1_groups_list(ssl, GROUPS) != 1 ||
        SSL_CTX_set_num_tickets(ssl, 0) != 1 ||
        SSL_CTX_set_max_early_data(ssl, 0) != 1) {
        SSL_CTX_free(ssl);
        return NULL;
    }
    return ssl;
}

/* For members of a cluster: certificates on both sides. */
static void set_up_members(SSL_CTX *ssl, bool by_kernel)
{
    SSL_CTX_set_options(ssl, SSL_OP_CIPHER_SERVER_PREFERENCE |
                                 (by_kernel ? SSL_OP_ENABLE_KTLS : 0));
    /* A connection that is idle has no buffers. */
    SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS);
    /* A read returns after a message without bytes of the user. */
    SSL_CTX_clear_mode(ssl, SSL_MODE_AUTO_RETRY);
    SSL_CTX_clear_options(ssl, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       ps_tls_session_on_verify);
    SSL_CTX_set_verify_depth(ssl, DEPTH_MAX);
}

/* Peers would refuse what this refuses: the reason is known here only. */
static int check_own(struct ps_tls_context *c, const char *name,
                     struct ps_str *why)
{
    X509 *own = SSL_CTX_get0_certificate(c->ssl);
    STACK_OF(X509) *chain = NULL;
    int rc;

    if (SSL_CTX_check_private_key(c->ssl) != 1) {
        ps_str_addf(why, "%s: the key is of another certificate", name);
        ERR_clear_error();
        return PS_E_CONFIG;
    }
    ps_str_addf(why, "%s: ", name);
    rc = ps_tls_identity_of(own, &c->identity, why);
    if (rc != 0) {
        return rc;
    }
    c->expires_at = ps_tls_expires_at(own);
    if (c->expires_at <= (int64_t)time(NULL)) {
        add_verify_error(why, own, X509_V_ERR_CERT_HAS_EXPIRED);
        ps_str_add(why, " If it is, issue another one");
        return PS_E_CONFIG;
    }
    SSL_CTX_get0_chain_certs(c->ssl, &chain);
    return ps_tls_context_verify(c, own, chain, why);
}

int ps_tls_context_new(const struct ps_tls_source *source,
                       struct ps_tls_context **ret_context, struct ps_str *why)
{
    struct ps_tls_context *c = ps_calloc(1, sizeof(*c));
    size_t at = why->len;
    int rc = 0;

    atomic_init(&c->refs, 1);
    ERR_clear_error();
    c->ssl = ps_tls_ctx_new();
    if (c->ssl == NULL) {
        ps_str_add(why, "OpenSSL: ");
        add_openssl_error(why);
        rc = PS_E_UNSUPPORTED;
        goto fail;
    }
    set_up_members(c->ssl, source->by_kernel);
    rc = load_source(c->ssl, source, why);
    if (rc == 0) {
        rc = check_own(
            c, source->pem != NULL ? "security.tls.fd" : source->certificate,
            why);
    }
    if (rc != 0) {
        goto fail;
    }
    why->len = at;
    why->data[at] = '\0';
    *ret_context = c;
    return 0;

fail:
    ps_tls_context_unref(c);
    return rc;
}

struct ps_tls_context *ps_tls_context_ref(struct ps_tls_context *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void ps_tls_context_unref(struct ps_tls_context *c)
{
    if (c != NULL &&
        atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1) {
        SSL_CTX_free(c->ssl);
        ps_free(c);
    }
}

const struct ps_identity *
ps_tls_context_identity(const struct ps_tls_context *c)
{
    return &c->identity;
}

int64_t ps_tls_context_begins_at(const struct ps_tls_context *c)
{
    return ps_pki_time_of(
        X509_get0_notBefore(SSL_CTX_get0_certificate(c->ssl)));
}

int64_t ps_tls_context_expires_at(const struct ps_tls_context *c)
{
    return c->expires_at;
}

const char *ps_tls_library(void)
{
    return OpenSSL_version(OPENSSL_VERSION);
}

SSL *ps_tls_context_make(const struct ps_tls_context *c)
{
    return SSL_new(c->ssl);
}

/* ------------------------------------------------------------- certificates */

int ps_tls_context_verify(const struct ps_tls_context *c, X509 *certificate,
                          STACK_OF(X509) * chain, struct ps_str *why)
{
    X509_STORE_CTX *v = X509_STORE_CTX_new();
    int rc = PS_E_PERM;

    if (v == NULL || X509_STORE_CTX_init(v, SSL_CTX_get_cert_store(c->ssl),
                                         certificate, chain) != 1) {
        ps_str_add(why, "OpenSSL: ");
        add_openssl_error(why);
    } else {
        X509_STORE_CTX_set_flags(v, X509_V_FLAG_NO_CHECK_TIME);
        X509_STORE_CTX_set_depth(v, DEPTH_MAX);
        rc = X509_verify_cert(v) == 1 ? 0 : PS_E_PERM;
        if (rc != 0) {
            ps_tls_add_refusal(why, v);
        }
    }
    ERR_clear_error();
    X509_STORE_CTX_free(v);
    return rc;
}

int ps_tls_identity_of(const X509 *certificate,
                       struct ps_identity *ret_identity, struct ps_str *why)
{
    char uri[PS_IDENTITY_URI_BYTES];

    if (!ps_pki_read_uri(certificate, uri, sizeof(uri)) ||
        !ps_identity_from_uri(uri, ret_identity)) {
        ps_str_add(why, "certificate has not exactly one name of the form "
                        "URI:ps://CLUSTER/ROLE/NAME");
        return PS_E_PERM;
    }
    return 0;
}

int64_t ps_tls_expires_at(const X509 *certificate)
{
    return ps_pki_time_of(X509_get0_notAfter(certificate));
}
