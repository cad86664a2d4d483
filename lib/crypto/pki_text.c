/* SPDX-License-Identifier: Apache-2.0 */
/* Reads certificates, and converts them, keys, lists and requests from and to
 * PEM. */
#include "crypto/pki.h"

#include "crypto/pki_inner.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <limits.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------- reading */

int64_t pki_time_of(const ASN1_TIME *time)
{
    struct tm tm = {0};

    return ASN1_TIME_to_tm(time, &tm) == 1 ? (int64_t)timegm(&tm) : 0;
}

bool pki_read_uri(const X509 *certificate, char *out, size_t cap)
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
    ERR_clear_error();
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
        .period = {pki_time_of(X509_get0_notBefore(certificate)),
                   pki_time_of(X509_get0_notAfter(certificate))},
    };
    char uri[PS_IDENTITY_URI_BYTES];
    bool known = info.is_authority
                     ? read_cluster(certificate, info.identity.cluster,
                                    sizeof(info.identity.cluster))
                     : pki_read_uri(certificate, uri, sizeof(uri)) &&
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

/* A key that is encrypted is refused, instead of asking for its password. */
static int refuse_password(char *buf, int size, int rwflag, void *ctx)
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
    X509 *x = bio == NULL ? NULL
                          : PEM_read_bio_X509(bio, NULL, refuse_password, NULL);

    BIO_free(bio);
    if (x == NULL) {
        return pki_failed(why, "cannot read the certificate");
    }
    *ret_certificate = x;
    return 0;
}

int ps_pki_read_crl(const char *pem, X509_CRL **ret_crl, struct ps_str *why)
{
    BIO *bio = open_text(pem);
    X509_CRL *crl = bio == NULL ? NULL
                                : PEM_read_bio_X509_CRL(bio, NULL,
                                                        refuse_password, NULL);

    BIO_free(bio);
    if (crl == NULL) {
        return pki_failed(why, "cannot read the list of revoked certificates");
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
    a.key = bio == NULL
                ? NULL
                : PEM_read_bio_PrivateKey(bio, NULL, refuse_password, NULL);
    BIO_free(bio);
    if (a.key == NULL) {
        rc = pki_failed(why, "cannot read the authority's key");
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
        return pki_failed(why, "cannot make a certificate request");
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
    X509_REQ *q = bio == NULL
                      ? NULL
                      : PEM_read_bio_X509_REQ(bio, NULL, refuse_password, NULL);
    EVP_PKEY *key = q == NULL ? NULL : X509_REQ_get_pubkey(q);
    int rc = 0;

    BIO_free(bio);
    if (key == NULL) {
        rc = pki_failed(why, "cannot read the certificate request");
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
