/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and checks certificates: builds X.509 version 3, signs, and has OpenSSL
 * verify; reads certificates; and converts them, keys, lists and requests from
 * and to PEM. */
#include "crypto/pki.h"

#include <limits.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <time.h>

/* URI of the service that enrols members; no identity has this scheme. */
static const char enrolment_uri[] = "urn:pskv:enrolment";

int ps_pki_failed(struct ps_str *why, const char *what)
{
    unsigned long error = ERR_peek_last_error();
    const char *reason = error != 0 ? ERR_reason_error_string(error) : NULL;

    ps_str_addf(why, "%s: %s", what,
                reason != NULL ? reason : "OpenSSL gives no reason");
    ERR_clear_error();
    return PS_E_IO;
}

/* ------------------------------------------------------------------- reading */

int64_t ps_pki_time_of(const ASN1_TIME *time)
{
    struct tm tm = {0};

    return ASN1_TIME_to_tm(time, &tm) == 1 ? (int64_t)timegm(&tm) : 0;
}

bool ps_pki_read_uri(const X509 *certificate, char *out, size_t cap)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name,
                                            NULL, NULL);
    int count = sk_GENERAL_NAME_num(names);
    size_t found = 0;

    for (int i = 0; i < count; i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, i);
        const unsigned char *bytes;
        size_t len;

        if (name->type != GEN_URI) {
            continue;
        }
        bytes = ASN1_STRING_get0_data(name->d.uniformResourceIdentifier);
        len = (size_t)ASN1_STRING_length(name->d.uniformResourceIdentifier);
        found++;
        if (len >= cap || memchr(bytes, '\0', len) != NULL) {
            found = 2;
            break;
        }
        memcpy(out, bytes, len);
        out[len] = '\0';
    }
    GENERAL_NAMES_free(names);
    return found == 1;
}

static bool read_serial(const X509 *certificate, struct ps_pki_serial *ret)
{
    BIGNUM *n = ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), NULL);
    bool done = n != NULL && BN_is_negative(n) == 0 &&
                BN_bn2binpad(n, ret->bytes, PS_PKI_SERIAL_BYTES) ==
                    (int)PS_PKI_SERIAL_BYTES;

    BN_free(n);
    ERR_clear_error();
    return done;
}

/* Reads the name of the cluster from the subject of its authority. */
static bool read_cluster(const X509 *authority, char *out, size_t cap)
{
    const X509_NAME *subject = X509_get_subject_name(authority);
    int at = X509_NAME_get_index_by_NID((X509_NAME *)subject, NID_commonName,
                                        -1);
    const ASN1_STRING *text = at < 0 ? NULL
                                     : X509_NAME_ENTRY_get_data(
                                           X509_NAME_get_entry(subject, at));
    size_t len = text == NULL ? 0 : (size_t)ASN1_STRING_length(text);

    if (len == 0 || len >= cap ||
        memchr(ASN1_STRING_get0_data(text), '\0', len) != NULL) {
        return false;
    }
    memcpy(out, ASN1_STRING_get0_data(text), len);
    out[len] = '\0';
    return ps_str_is_name(out, PS_NAME_MAX);
}

int ps_pki_describe(const X509 *certificate, struct ps_pki_info *ret_info,
                    struct ps_str *why)
{
    struct ps_pki_info info = {
        .is_authority = X509_check_ca((X509 *)certificate) == 1,
        .period = {ps_pki_time_of(X509_get0_notBefore(certificate)),
                   ps_pki_time_of(X509_get0_notAfter(certificate))},
    };
    char uri[PS_IDENTITY_URI_BYTES];
    bool known = info.is_authority
                     ? read_cluster(certificate, info.identity.cluster,
                                    sizeof(info.identity.cluster))
                     : ps_pki_read_uri(certificate, uri, sizeof(uri)) &&
                           ps_identity_from_uri(uri, &info.identity);

    ERR_clear_error();
    if (!known) {
        ps_str_add(why, info.is_authority
                            ? "the certificate of the authority does not name "
                              "a cluster"
                            : "the certificate has no identity: not exactly "
                              "one URI of the form ps://CLUSTER/ROLE/NAME");
        return PS_E_PERM;
    }
    if (!read_serial(certificate, &info.serial)) {
        ps_str_add(why, "the serial number of the certificate is too long");
        return PS_E_PERM;
    }
    *ret_info = info;
    return 0;
}

void ps_pki_fingerprint(const X509 *certificate,
                        uint8_t ret_bytes[PS_PKI_FINGERPRINT_BYTES])
{
    unsigned int len = 0;

    if (X509_digest(certificate, EVP_sha256(), ret_bytes, &len) != 1) {
        memset(ret_bytes, 0, PS_PKI_FINGERPRINT_BYTES);
    }
}

/* ----------------------------------------------------------------------- PEM */

/* Appends what was written to `bio`, and frees it. */
static void add_written(struct ps_str *s, BIO *bio, bool written)
{
    char *data = NULL;
    long len = written ? BIO_get_mem_data(bio, &data) : 0;

    if (len > 0) {
        ps_str_addf(s, "%.*s", (int)len, data);
    } else {
        s->truncated = true;
    }
    BIO_free(bio);
    ERR_clear_error();
}

void ps_pki_add_certificate(struct ps_str *s, const X509 *certificate)
{
    BIO *bio = BIO_new(BIO_s_mem());

    add_written(s, bio,
                bio != NULL &&
                    PEM_write_bio_X509(bio, (X509 *)certificate) == 1);
}

void ps_pki_add_key(struct ps_str *s, const EVP_PKEY *key)
{
    BIO *bio = BIO_new(BIO_s_secmem());

    add_written(s, bio,
                bio != NULL && PEM_write_bio_PKCS8PrivateKey(
                                   bio, key, NULL, NULL, 0, NULL, NULL) == 1);
}

void ps_pki_add_crl(struct ps_str *s, const X509_CRL *crl)
{
    BIO *bio = BIO_new(BIO_s_mem());

    add_written(s, bio,
                bio != NULL &&
                    PEM_write_bio_X509_CRL(bio, (X509_CRL *)crl) == 1);
}

static BIO *open_text(const char *pem)
{
    size_t len = strlen(pem);

    return len > INT_MAX ? NULL : BIO_new_mem_buf(pem, (int)len);
}

int ps_pki_refuse_password(char *buf, int size, int rwflag, void *ctx)
{
    (void)buf;
    (void)size;
    (void)rwflag;
    (void)ctx;
    return -1;
}

int ps_pki_read_certificate(const char *pem, X509 **ret_certificate,
                            struct ps_str *why)
{
    BIO *bio = open_text(pem);
    X509 *x = bio == NULL
                  ? NULL
                  : PEM_read_bio_X509(bio, NULL, ps_pki_refuse_password, NULL);

    BIO_free(bio);
    if (x == NULL) {
        return ps_pki_failed(why, "cannot read the certificate");
    }
    *ret_certificate = x;
    return 0;
}

int ps_pki_read_crl(const char *pem, X509_CRL **ret_crl, struct ps_str *why)
{
    BIO *bio = open_text(pem);
    X509_CRL *crl = bio == NULL ? NULL
                                : PEM_read_bio_X509_CRL(
                                      bio, NULL, ps_pki_refuse_password, NULL);

    BIO_free(bio);
    if (crl == NULL) {
        return ps_pki_failed(why,
                             "cannot read the list of revoked certificates");
    }
    *ret_crl = crl;
    return 0;
}

int ps_pki_authority_read(const char *certificate, const char *key,
                          struct ps_pki_authority *ret_authority,
                          struct ps_str *why)
{
    struct ps_pki_authority a = {0};
    struct ps_pki_info info = {0};
    BIO *bio;
    int rc = ps_pki_read_certificate(certificate, &a.certificate, why);

    if (rc != 0) {
        return rc;
    }
    bio = open_text(key);
    a.key = bio == NULL ? NULL
                        : PEM_read_bio_PrivateKey(bio, NULL,
                                                  ps_pki_refuse_password, NULL);
    BIO_free(bio);
    if (a.key == NULL) {
        rc = ps_pki_failed(why, "cannot read the authority's key");
    } else {
        rc = ps_pki_describe(a.certificate, &info, why);
    }
    if (rc == 0 && !info.is_authority) {
        ps_str_add(why, "the certificate is not that of an authority");
        rc = PS_E_MISMATCH;
    }
    if (rc == 0 && X509_check_private_key(a.certificate, a.key) != 1) {
        ERR_clear_error();
        ps_str_add(why, "the key is not that of the authority's certificate");
        rc = PS_E_MISMATCH;
    }
    if (rc != 0) {
        ps_pki_authority_fini(&a);
        return rc;
    }
    *ret_authority = a;
    return 0;
}

/* ------------------------------------------------------------------ requests */

int ps_pki_add_csr(struct ps_str *s, EVP_PKEY *key, struct ps_str *why)
{
    X509_REQ *q = X509_REQ_new();
    BIO *bio = BIO_new(BIO_s_mem());
    bool done = q != NULL && bio != NULL &&
                X509_REQ_set_version(q, X509_REQ_VERSION_1) == 1 &&
                X509_REQ_set_pubkey(q, key) == 1 &&
                X509_REQ_sign(q, key, EVP_sha256()) > 0 &&
                PEM_write_bio_X509_REQ(bio, q) == 1;

    X509_REQ_free(q);
    if (!done) {
        BIO_free(bio);
        return ps_pki_failed(why, "cannot make a certificate request");
    }
    add_written(s, bio, true);
    return 0;
}

static bool is_p256(const EVP_PKEY *key)
{
    char group[32];
    size_t len;

    return EVP_PKEY_get_base_id(key) == EVP_PKEY_EC &&
           EVP_PKEY_get_group_name(key, group, sizeof(group), &len) == 1 &&
           strcmp(group, "prime256v1") == 0;
}

int ps_pki_read_csr(const char *pem, EVP_PKEY **ret_key, struct ps_str *why)
{
    BIO *bio = open_text(pem);
    X509_REQ *q = bio == NULL ? NULL
                              : PEM_read_bio_X509_REQ(
                                    bio, NULL, ps_pki_refuse_password, NULL);
    EVP_PKEY *key = q == NULL ? NULL : X509_REQ_get_pubkey(q);
    int rc = 0;

    BIO_free(bio);
    if (key == NULL) {
        rc = ps_pki_failed(why, "cannot read the certificate request");
    } else if (!is_p256(key) || X509_REQ_verify(q, key) != 1) {
        ps_str_add(why, "the certificate request is not signed by a key on "
                        "P-256");
        rc = PS_E_PERM;
    }
    ERR_clear_error();
    X509_REQ_free(q);
    if (rc != 0) {
        EVP_PKEY_free(key);
        return rc;
    }
    *ret_key = key;
    return 0;
}

/* --------------------------------------------------------------- hexadecimal */

void ps_pki_add_hex(struct ps_str *s, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ps_str_addf(s, "%02x", (unsigned)bytes[i]);
    }
}

bool ps_pki_read_hex(const char *text, size_t count, uint8_t *ret_bytes)
{
    static const char digits[] = "0123456789abcdef";

    if (strlen(text) != 2 * count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const char *high = strchr(digits, text[2 * i]);
        const char *low = strchr(digits, text[2 * i + 1]);

        if (high == NULL || low == NULL) {
            return false;
        }
        ret_bytes[i] = (uint8_t)((high - digits) * 16 + (low - digits));
    }
    return true;
}

/* --------------------------------------------------------------------- keys */

int ps_pki_key_new(EVP_PKEY **ret_key, struct ps_str *why)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");

    if (key == NULL) {
        return ps_pki_failed(why, "cannot make a key");
    }
    *ret_key = key;
    return 0;
}

void ps_pki_key_free(EVP_PKEY *key)
{
    EVP_PKEY_free(key);
}

void ps_pki_certificate_free(X509 *certificate)
{
    X509_free(certificate);
}

void ps_pki_crl_free(X509_CRL *crl)
{
    X509_CRL_free(crl);
}

void ps_pki_authority_fini(struct ps_pki_authority *a)
{
    X509_free(a->certificate);
    EVP_PKEY_free(a->key);
    *a = (struct ps_pki_authority){0};
}

/* ----------------------------------------------------------- parts of a X509 */

static ASN1_INTEGER *serial_to_asn1(const struct ps_pki_serial *serial)
{
    BIGNUM *n = BN_bin2bn(serial->bytes, PS_PKI_SERIAL_BYTES, NULL);
    ASN1_INTEGER *integer = n == NULL ? NULL : BN_to_ASN1_INTEGER(n, NULL);

    BN_free(n);
    return integer;
}

/* Sets a random serial. The first bit is 0 and the second 1, so that every
 * serial is positive and has the same length. */
static bool set_serial(X509 *x)
{
    struct ps_pki_serial serial;
    ASN1_INTEGER *integer;
    bool done;

    if (RAND_bytes(serial.bytes, PS_PKI_SERIAL_BYTES) != 1) {
        return false;
    }
    serial.bytes[0] = (uint8_t)((serial.bytes[0] & 0x3f) | 0x40);
    integer = serial_to_asn1(&serial);
    done = integer != NULL && X509_set_serialNumber(x, integer) == 1;
    ASN1_INTEGER_free(integer);
    return done;
}

static bool set_period(X509 *x, const struct ps_pki_period *period)
{
    return ASN1_TIME_set(X509_getm_notBefore(x), (time_t)period->not_before) !=
               NULL &&
           ASN1_TIME_set(X509_getm_notAfter(x), (time_t)period->not_after) !=
               NULL;
}

static bool add_name(X509_NAME *name, const char *field, const char *text)
{
    return X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8,
                                      (const unsigned char *)text, -1, -1,
                                      0) == 1;
}

/* Adds an extension whose value is a constant of OpenSSL's syntax. */
static bool add_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509_EXTENSION *extension;
    bool done;

    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, x, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    done = extension != NULL && X509_add_ext(x, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return done;
}

static bool push_name(GENERAL_NAMES *names, int type, void *value)
{
    GENERAL_NAME *name = value == NULL ? NULL : GENERAL_NAME_new();

    if (name == NULL) {
        ASN1_STRING_free(value);
        return false;
    }
    GENERAL_NAME_set0_value(name, type, value);
    if (sk_GENERAL_NAME_push(names, name) <= 0) {
        GENERAL_NAME_free(name);
        return false;
    }
    return true;
}

static bool push_text(GENERAL_NAMES *names, int type, const char *text)
{
    ASN1_IA5STRING *value = ASN1_IA5STRING_new();

    if (value != NULL && ASN1_STRING_set(value, text, -1) != 1) {
        ASN1_IA5STRING_free(value);
        value = NULL;
    }
    return push_name(names, type, value);
}

static bool push_host(GENERAL_NAMES *names, const char *host)
{
    ASN1_OCTET_STRING *address = a2i_IPADDRESS(host);

    ERR_clear_error(); /* A name is no address. */
    return address != NULL ? push_name(names, GEN_IPADD, address)
                           : push_text(names, GEN_DNS, host);
}

static bool add_alternative_names(X509 *x, const char *uri,
                                  const char *const *hosts, size_t count)
{
    GENERAL_NAMES *names = GENERAL_NAMES_new();
    bool done = names != NULL && push_text(names, GEN_URI, uri);

    for (size_t i = 0; done && i < count; i++) {
        done = push_host(names, hosts[i]);
    }
    done = done && X509_add1_ext_i2d(x, NID_subject_alt_name, names, 0,
                                     X509V3_ADD_DEFAULT) == 1;
    GENERAL_NAMES_free(names);
    return done;
}

/* --------------------------------------------------------------- authorities */

static bool fill_authority(X509 *x, const char *cluster,
                           const struct ps_pki_period *period, EVP_PKEY *key)
{
    return X509_set_version(x, X509_VERSION_3) == 1 && set_serial(x) &&
           set_period(x, period) &&
           add_name(X509_get_subject_name(x), "O", "pskv cluster") &&
           add_name(X509_get_subject_name(x), "CN", cluster) &&
           X509_set_issuer_name(x, X509_get_subject_name(x)) == 1 &&
           X509_set_pubkey(x, key) == 1 &&
           add_extension(x, x, NID_basic_constraints,
                         "critical,CA:TRUE,pathlen:0") &&
           add_extension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign") &&
           add_extension(x, x, NID_subject_key_identifier, "hash") &&
           add_extension(x, x, NID_authority_key_identifier, "keyid:always") &&
           X509_sign(x, key, EVP_sha256()) > 0;
}

int ps_pki_authority_new(const char *cluster,
                         const struct ps_pki_period *period,
                         struct ps_pki_authority *ret_authority,
                         struct ps_str *why)
{
    struct ps_pki_authority a = {0};
    int rc;

    if (!ps_str_is_name(cluster, PS_NAME_MAX)) {
        ps_str_add(why, "the name of a cluster is 1 to 64 printable ASCII "
                        "characters without spaces");
        return PS_E_INVAL;
    }
    rc = ps_pki_key_new(&a.key, why);
    if (rc != 0) {
        return rc;
    }
    a.certificate = X509_new();
    if (a.certificate == NULL ||
        !fill_authority(a.certificate, cluster, period, a.key)) {
        rc = ps_pki_failed(why, "cannot make the authority's certificate");
        ps_pki_authority_fini(&a);
        return rc;
    }
    *ret_authority = a;
    return 0;
}

/* -------------------------------------------------------------- certificates */

static bool fill_member(X509 *x, const struct ps_pki_authority *a,
                        const struct ps_pki_period *period, const char *uri)
{
    return X509_set_version(x, X509_VERSION_3) == 1 && set_serial(x) &&
           set_period(x, period) &&
           X509_set_issuer_name(x, X509_get_subject_name(a->certificate)) ==
               1 &&
           add_extension(x, a->certificate, NID_basic_constraints,
                         "critical,CA:FALSE") &&
           add_extension(x, a->certificate, NID_key_usage,
                         "critical,digitalSignature") &&
           add_extension(x, a->certificate, NID_ext_key_usage,
                         strcmp(uri, enrolment_uri) == 0
                             ? "serverAuth"
                             : "serverAuth,clientAuth") &&
           add_extension(x, a->certificate, NID_authority_key_identifier,
                         "keyid:always");
}

/* Last time at which a certificate of this authority may be valid. */
static int64_t authority_end(const struct ps_pki_authority *a)
{
    return ps_pki_time_of(X509_get0_notAfter(a->certificate));
}

static int check_request(const struct ps_pki_authority *a,
                         const struct ps_pki_request *q, struct ps_str *why)
{
    struct ps_pki_info authority;
    int rc;

    if (!ps_identity_is_valid(q->identity)) {
        ps_str_add(why, "a certificate needs the role of a daemon or tool, and "
                        "names of 1 to 64 printable ASCII characters without "
                        "spaces");
        return PS_E_INVAL;
    }
    if (q->host_count > PS_PKI_HOSTS_MAX) {
        ps_str_addf(why, "a certificate has at most %u names and addresses",
                    PS_PKI_HOSTS_MAX);
        return PS_E_INVAL;
    }
    for (size_t i = 0; i < q->host_count; i++) {
        if (!ps_pki_is_host(q->hosts[i])) {
            ps_str_add(why, "'");
            ps_str_add_escaped(why, q->hosts[i], strlen(q->hosts[i]), 64);
            ps_str_add(why, "' is neither a name of DNS nor an address");
            return PS_E_INVAL;
        }
    }
    rc = ps_pki_describe(a->certificate, &authority, why);
    if (rc == 0 &&
        strcmp(authority.identity.cluster, q->identity->cluster) != 0) {
        ps_str_addf(why, "the authority is that of cluster '%s'",
                    authority.identity.cluster);
        rc = PS_E_INVAL;
    }
    return rc;
}

/* Makes a certificate that lacks its signature. */
static X509 *make_member(const struct ps_pki_authority *a,
                         const struct ps_pki_period *period, const char *uri,
                         EVP_PKEY *key)
{
    const struct ps_pki_period bounded = {
        .not_before = period->not_before,
        .not_after = period->not_after < authority_end(a) ? period->not_after
                                                          : authority_end(a),
    };
    X509 *x = X509_new();

    if (x != NULL && X509_set_pubkey(x, key) == 1 &&
        fill_member(x, a, &bounded, uri) &&
        add_extension(x, a->certificate, NID_subject_key_identifier, "hash")) {
        return x;
    }
    X509_free(x);
    return NULL;
}

int ps_pki_issue(const struct ps_pki_authority *a,
                 const struct ps_pki_request *request, EVP_PKEY *key,
                 X509 **ret_certificate, struct ps_str *why)
{
    struct ps_str s = PS_STR_ROOM(PS_IDENTITY_URI_BYTES);
    X509_NAME *subject;
    X509 *x;
    int rc = check_request(a, request, why);

    if (rc != 0) {
        return rc;
    }
    ps_identity_add_uri(&s, request->identity);
    x = make_member(a, &request->period, s.data, key);
    subject = x == NULL ? NULL : X509_get_subject_name(x);
    if (x == NULL || !add_name(subject, "O", request->identity->cluster) ||
        !add_name(subject, "OU", ps_role_name(request->identity->role)) ||
        !add_name(subject, "CN", request->identity->name) ||
        !add_alternative_names(x, s.data, request->hosts,
                               request->host_count) ||
        X509_sign(x, a->key, EVP_sha256()) <= 0) {
        X509_free(x);
        return ps_pki_failed(why, "cannot make the certificate");
    }
    *ret_certificate = x;
    return 0;
}

int ps_pki_issue_enrolment(const struct ps_pki_authority *a,
                           const struct ps_pki_period *period, EVP_PKEY *key,
                           X509 **ret_certificate, struct ps_str *why)
{
    X509 *x = make_member(a, period, enrolment_uri, key);

    if (x == NULL ||
        !add_name(X509_get_subject_name(x), "CN", "pskv enrolment") ||
        !add_alternative_names(x, enrolment_uri, NULL, 0) ||
        X509_sign(x, a->key, EVP_sha256()) <= 0) {
        X509_free(x);
        return ps_pki_failed(why, "cannot make the certificate of enrolment");
    }
    *ret_certificate = x;
    return 0;
}

bool ps_pki_is_host(const char *text)
{
    ASN1_OCTET_STRING *address = a2i_IPADDRESS(text);
    size_t len = strlen(text);
    size_t label = 0;

    ERR_clear_error();
    if (address != NULL) {
        ASN1_OCTET_STRING_free(address);
        return true;
    }
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     (c >= '0' && c <= '9');

        if (c == '.' ? label == 0 || text[i - 1] == '-'
                     : !alnum && (c != '-' || label == 0)) {
            return false;
        }
        label = c == '.' ? 0 : label + 1;
        if (label > 63) {
            return false;
        }
    }
    return len <= PS_PKI_HOST_MAX && label > 0 && text[len - 1] != '-';
}

/* -------------------------------------------------------------- verification */

/* Verifies for one purpose, with the list if there is one. */
static int verify_chain(const X509 *certificate, const X509 *authority,
                        const X509_CRL *crl, int64_t now, struct ps_str *why)
{
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *context = X509_STORE_CTX_new();
    bool ready =
        store != NULL && context != NULL &&
        X509_STORE_add_cert(store, (X509 *)authority) == 1 &&
        (crl == NULL || X509_STORE_add_crl(store, (X509_CRL *)crl) == 1) &&
        X509_STORE_CTX_init(context, store, (X509 *)certificate, NULL) == 1;
    int rc = 0;

    if (!ready) {
        rc = ps_pki_failed(why, "cannot verify a certificate");
    } else {
        X509_VERIFY_PARAM *param = X509_STORE_CTX_get0_param(context);
        int error;

        X509_VERIFY_PARAM_set_time(param, (time_t)now);
        X509_VERIFY_PARAM_set_depth(param, 1);
        X509_VERIFY_PARAM_set_flags(param, X509_V_FLAG_X509_STRICT);
        X509_VERIFY_PARAM_set_purpose(param, X509_PURPOSE_SSL_SERVER);
        if (crl != NULL) {
            X509_VERIFY_PARAM_set_flags(param, X509_V_FLAG_CRL_CHECK);
        }
        if (X509_verify_cert(context) != 1) {
            error = X509_STORE_CTX_get_error(context);
            ps_str_add(why, X509_verify_cert_error_string(error));
            rc = PS_E_PERM;
        }
    }
    ERR_clear_error();
    X509_STORE_CTX_free(context);
    X509_STORE_free(store);
    return rc;
}

int ps_pki_verify(const X509 *certificate, const X509 *authority,
                  const X509_CRL *crl, int64_t now, struct ps_str *why)
{
    struct ps_pki_info of_authority;
    struct ps_pki_info info;
    int rc = ps_pki_describe(authority, &of_authority, why);

    if (rc == 0) {
        rc = ps_pki_describe(certificate, &info, why);
    }
    if (rc != 0) {
        return rc;
    }
    if (!of_authority.is_authority || info.is_authority ||
        strcmp(info.identity.cluster, of_authority.identity.cluster) != 0) {
        ps_str_add(why, "the certificate is not one of a member of the "
                        "authority's cluster");
        return PS_E_PERM;
    }
    return verify_chain(certificate, authority, crl, now, why);
}

int ps_pki_verify_enrolment(const X509 *certificate, const X509 *authority,
                            int64_t now, struct ps_str *why)
{
    char uri[sizeof(enrolment_uri)];

    if (!ps_pki_read_uri(certificate, uri, sizeof(uri)) ||
        strcmp(uri, enrolment_uri) != 0) {
        ERR_clear_error();
        ps_str_add(why, "the certificate is not that of an enrolment service");
        return PS_E_PERM;
    }
    return verify_chain(certificate, authority, NULL, now, why);
}

/* ---------------------------------------------------------------- revocation */

static bool add_revocation(X509_CRL *crl, const struct ps_pki_revocation *r)
{
    X509_REVOKED *revoked = X509_REVOKED_new();
    ASN1_INTEGER *serial = serial_to_asn1(&r->serial);
    ASN1_TIME *at = ASN1_TIME_set(NULL, (time_t)r->revoked_at);
    bool done = revoked != NULL && serial != NULL && at != NULL &&
                X509_REVOKED_set_serialNumber(revoked, serial) == 1 &&
                X509_REVOKED_set_revocationDate(revoked, at) == 1 &&
                X509_CRL_add0_revoked(crl, revoked) == 1;

    if (!done) {
        X509_REVOKED_free(revoked);
    }
    ASN1_INTEGER_free(serial);
    ASN1_TIME_free(at);
    return done;
}

static bool add_crl_extensions(X509_CRL *crl, const X509 *issuer,
                               uint64_t number)
{
    ASN1_INTEGER *n = ASN1_INTEGER_new();
    X509V3_CTX context;
    X509_EXTENSION *key = NULL;
    bool done = n != NULL && ASN1_INTEGER_set_uint64(n, number) == 1 &&
                X509_CRL_add1_ext_i2d(crl, NID_crl_number, n, 0,
                                      X509V3_ADD_DEFAULT) == 1;

    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, (X509 *)issuer, NULL, NULL, crl, 0);
    if (done) {
        key = X509V3_EXT_conf_nid(NULL, &context, NID_authority_key_identifier,
                                  "keyid:always");
        done = key != NULL && X509_CRL_add_ext(crl, key, -1) == 1;
    }
    X509_EXTENSION_free(key);
    ASN1_INTEGER_free(n);
    return done;
}

int ps_pki_crl_new(const struct ps_pki_authority *a,
                   const struct ps_pki_crl *contents, X509_CRL **ret_crl,
                   struct ps_str *why)
{
    X509_CRL *crl = X509_CRL_new();
    ASN1_TIME *from = ASN1_TIME_set(NULL, (time_t)contents->issued_at);
    ASN1_TIME *to = ASN1_TIME_set(NULL, (time_t)contents->next_update);
    bool done = crl != NULL && from != NULL && to != NULL &&
                X509_CRL_set_version(crl, X509_CRL_VERSION_2) == 1 &&
                X509_CRL_set_issuer_name(
                    crl, X509_get_subject_name(a->certificate)) == 1 &&
                X509_CRL_set1_lastUpdate(crl, from) == 1 &&
                X509_CRL_set1_nextUpdate(crl, to) == 1 &&
                add_crl_extensions(crl, a->certificate, contents->number);

    for (size_t i = 0; done && i < contents->count; i++) {
        done = add_revocation(crl, &contents->revoked[i]);
    }
    done = done && X509_CRL_sort(crl) == 1 &&
           X509_CRL_sign(crl, a->key, EVP_sha256()) > 0;
    ASN1_TIME_free(from);
    ASN1_TIME_free(to);
    if (!done) {
        X509_CRL_free(crl);
        return ps_pki_failed(why,
                             "cannot make the list of revoked certificates");
    }
    *ret_crl = crl;
    return 0;
}
