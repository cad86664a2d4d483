/* SPDX-License-Identifier: Apache-2.0 */
/* Names in certificates of unknown peers: the first byte chooses a URI, the
 * bytes of a certificate, or PEM. An identity that is read has exactly one URI,
 * which leads back to it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/x509.h>

#include "crypto/identity.h"
#include "crypto/pki.h"
#include "fuzz.h"

static void check_identity(const struct ps_identity *id)
{
    char uri[PS_IDENTITY_URI_BYTES];
    struct ps_identity again;
    struct ps_str s;

    assert(ps_identity_is_valid(id));
    ps_str_init(&s, uri, sizeof(uri));
    ps_identity_add_uri(&s, id);
    assert(!s.truncated);
    assert(ps_identity_from_uri(uri, &again));
    assert(again.role == id->role);
    assert(strcmp(again.cluster, id->cluster) == 0);
    assert(strcmp(again.name, id->name) == 0);
}

static void check_certificate(const X509 *x)
{
    struct ps_pki_info info;
    char why[512];
    struct ps_str s;

    ps_str_init(&s, why, sizeof(why));
    if (ps_pki_describe(x, &info, &s) != 0) {
        assert(s.len > 0);
        return;
    }
    if (info.is_authority) {
        assert(ps_str_is_name(info.identity.cluster, PS_NAME_MAX));
    } else {
        check_identity(&info.identity);
    }
    /* No certificate that is made of noise has the authority's signature. */
    (void)!ps_pki_verify(x, x, NULL, 0, &s);
    (void)!ps_pki_verify_enrolment(x, x, 0, &s);
}

static void check_uri(const char *text)
{
    struct ps_identity id;
    char uri[PS_IDENTITY_URI_BYTES];
    struct ps_str s;

    if (ps_identity_from_uri(text, &id)) {
        check_identity(&id);
        ps_str_init(&s, uri, sizeof(uri));
        ps_identity_add_uri(&s, &id);
        assert(strcmp(uri, text) == 0);
    }
}

static void check_pem(const char *text)
{
    X509 *x = NULL;
    X509_CRL *crl = NULL;
    EVP_PKEY *key = NULL;
    char why[512];
    struct ps_str s;

    ps_str_init(&s, why, sizeof(why));
    if (ps_pki_read_certificate(text, &x, &s) == 0) {
        check_certificate(x);
        ps_pki_certificate_free(x);
    }
    if (ps_pki_read_crl(text, &crl, &s) == 0) {
        ps_pki_crl_free(crl);
    }
    if (ps_pki_read_csr(text, &key, &s) == 0) {
        ps_pki_key_free(key);
    }
    (void)ps_pki_is_host(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *der = data + 1;
    char *text;
    X509 *x;

    if (size == 0) {
        return 0;
    }
    if (data[0] % 3 == 0) {
        x = d2i_X509(NULL, &der, (long)(size - 1));
        if (x != NULL) {
            check_certificate(x);
            X509_free(x);
        }
        return 0;
    }
    text = malloc(size);
    assert(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (data[0] % 3 == 1) {
        check_uri(text);
    } else {
        check_pem(text);
    }
    free(text);
    return 0;
}
