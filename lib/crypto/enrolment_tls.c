/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/enrolment_tls.h"

#include "crypto/pki_inner.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <string.h>

#define CIPHERS   "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384"
#define GROUPS    "X25519:P-256"
/* Bytes of the certificates that the other side may send. */
#define CHAIN_MAX (16 * 1024)

static SSL_CTX *context_new(const SSL_METHOD *method)
{
    SSL_CTX *c = SSL_CTX_new(method);

    if (c == NULL) {
        return NULL;
    }
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                               SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_cert_list(c, CHAIN_MAX);
    if (SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(c, CIPHERS) != 1 ||
        SSL_CTX_set1_groups_list(c, GROUPS) != 1 ||
        SSL_CTX_set_num_tickets(c, 0) != 1 ||
        SSL_CTX_set_max_early_data(c, 0) != 1) {
        SSL_CTX_free(c);
        return NULL;
    }
    return c;
}

int ps_enrolment_tls_accepting(const struct ps_pki_authority *a,
                               const struct ps_pki_period *period,
                               SSL_CTX **ret_context, struct ps_str *why)
{
    SSL_CTX *c = NULL;
    EVP_PKEY *key = NULL;
    X509 *x = NULL;
    int rc = ps_pki_key_new(&key, why);

    if (rc == 0) {
        rc = ps_pki_issue_enrolment(a, period, key, &x, why);
    }
    if (rc == 0) {
        c = context_new(TLS_server_method());
        if (c == NULL || SSL_CTX_use_certificate(c, x) != 1 ||
            SSL_CTX_use_PrivateKey(c, key) != 1 ||
            SSL_CTX_add1_chain_cert(c, a->certificate) != 1) {
            rc = pki_failed(why, "cannot make a context of TLS");
            SSL_CTX_free(c);
        }
    }
    ps_pki_certificate_free(x);
    ps_pki_key_free(key);
    if (rc == 0) {
        *ret_context = c;
    }
    return rc;
}

/* The certificate with the expected fingerprint among those that the other side
 * has sent; NULL: there is none. */
static X509 *find_authority(STACK_OF(X509) * sent,
                            const struct ps_enrolment_peer *peer)
{
    uint8_t fingerprint[PS_PKI_FINGERPRINT_BYTES];

    for (int i = 0; i < sk_X509_num(sent); i++) {
        X509 *x = sk_X509_value(sent, i);

        ps_pki_fingerprint(x, fingerprint);
        if (memcmp(fingerprint, peer->fingerprint, sizeof(fingerprint)) == 0) {
            return x;
        }
    }
    return NULL;
}

/* Verifies the other side's certificate in place of OpenSSL's rules. */
static int verify_peer(X509_STORE_CTX *context, void *arg)
{
    struct ps_enrolment_peer *peer = arg;
    X509 *own = X509_STORE_CTX_get0_cert(context);
    X509 *authority = find_authority(X509_STORE_CTX_get0_untrusted(context),
                                     peer);
    struct ps_str why;

    ps_str_init(&why, peer->text, sizeof(peer->text));
    if (authority == NULL) {
        ps_str_add(&why, "its authority is not the one that the code names");
        X509_STORE_CTX_set_error(context,
                                 X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY);
        return 0;
    }
    if (own == NULL ||
        ps_pki_verify_enrolment(own, authority, peer->now, &why) != 0) {
        X509_STORE_CTX_set_error(context, X509_V_ERR_CERT_REJECTED);
        return 0;
    }
    X509_STORE_CTX_set_error(context, X509_V_OK);
    return 1;
}

int ps_enrolment_tls_dialling(struct ps_enrolment_peer *peer,
                              SSL_CTX **ret_context, struct ps_str *why)
{
    SSL_CTX *c = context_new(TLS_client_method());

    if (c == NULL) {
        return pki_failed(why, "cannot make a context of TLS");
    }
    peer->text[0] = '\0';
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_cert_verify_callback(c, verify_peer, peer);
    *ret_context = c;
    return 0;
}
