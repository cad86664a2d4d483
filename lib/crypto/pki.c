/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and checks certificates: builds X.509 version 3, signs, and lets OpenSSL
 * verify. crypto/pki_text.c has texts and the reading of certificates. */
#include "crypto/pki.h"

#include "crypto/pki_inner.h"

#include <openssl/asn1.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <string.h>
#include <time.h>

/* URI of the service that enrols members; no identity has this scheme. */
static const char enrolment_uri[] = "urn:pskv:enrolment";

int pki_failed(struct ps_str *why, const char *what)
{
    unsigned long error = ERR_peek_last_error();
    const char *reason = error != 0 ? ERR_reason_error_string(error) : NULL;

    ps_str_addf(why, "%s: %s", what,
                reason != NULL ? reason : "OpenSSL gives no reason");
    ERR_clear_error();
    return PS_E_IO;
}

/* --------------------------------------------------------------------- keys */

int ps_pki_key_new(EVP_PKEY **ret_key, struct ps_str *why)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");

    if (key == NULL) {
        return pki_failed(why, "cannot make a key");
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
        rc = pki_failed(why, "cannot make the authority's certificate");
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
    return pki_time_of(X509_get0_notAfter(a->certificate));
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
    char uri[PS_IDENTITY_URI_BYTES];
    struct ps_str s;
    X509_NAME *subject;
    X509 *x;
    int rc = check_request(a, request, why);

    if (rc != 0) {
        return rc;
    }
    ps_str_init(&s, uri, sizeof(uri));
    ps_identity_add_uri(&s, request->identity);
    x = make_member(a, &request->period, uri, key);
    subject = x == NULL ? NULL : X509_get_subject_name(x);
    if (x == NULL || !add_name(subject, "O", request->identity->cluster) ||
        !add_name(subject, "OU", ps_role_name(request->identity->role)) ||
        !add_name(subject, "CN", request->identity->name) ||
        !add_alternative_names(x, uri, request->hosts, request->host_count) ||
        X509_sign(x, a->key, EVP_sha256()) <= 0) {
        X509_free(x);
        return pki_failed(why, "cannot make the certificate");
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
        return pki_failed(why, "cannot make the certificate of enrolment");
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
        rc = pki_failed(why, "cannot verify a certificate");
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

    if (!pki_read_uri(certificate, uri, sizeof(uri)) ||
        strcmp(uri, enrolment_uri) != 0) {
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
        return pki_failed(why, "cannot make the list of revoked certificates");
    }
    *ret_crl = crl;
    return 0;
}
