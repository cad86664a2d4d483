/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of one-time codes, and the checks of a node on what it receives. */
#include "crypto/enrolment.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/x509.h>

#include <string.h>

/* ---------------------------------------------------------------------- code */

int ps_enrolment_code_new(enum ps_role role, const X509 *authority,
                          struct ps_enrolment_code *ret_code,
                          struct ps_str *why)
{
    struct ps_enrolment_code code = {.role = role};

    if (RAND_bytes((uint8_t *)&code.id, sizeof(code.id)) != 1 ||
        RAND_bytes(code.secret, sizeof(code.secret)) != 1) {
        ERR_clear_error();
        ps_str_add(why, "OpenSSL has no random numbers");
        return PS_E_IO;
    }
    ps_pki_fingerprint(authority, code.fingerprint);
    *ret_code = code;
    return 0;
}

void ps_enrolment_add_code(struct ps_str *s,
                           const struct ps_enrolment_code *code)
{
    ps_str_addf(s, "%s.%08x.", ps_role_name(code->role), (unsigned)code->id);
    ps_pki_add_hex(s, code->secret, sizeof(code->secret));
    ps_str_add(s, ".");
    ps_pki_add_hex(s, code->fingerprint, sizeof(code->fingerprint));
}

bool ps_enrolment_read_code(const char *text,
                            struct ps_enrolment_code *ret_code)
{
    struct ps_enrolment_code code = {0};
    char copy[PS_ENROLMENT_CODE_TEXT];
    uint8_t id[sizeof(code.id)];
    char *rest = copy;
    char *part[4] = {NULL};
    size_t count = 0;
    bool is_good;

    if (!ps_str_copy(copy, sizeof(copy), text)) {
        return false;
    }
    while (count < 4 && rest != NULL) {
        part[count++] = strsep(&rest, ".");
    }
    is_good = count == 4 && rest == NULL &&
              ps_identity_read_role(part[0], &code.role) &&
              ps_pki_read_hex(part[1], sizeof(id), id) &&
              ps_pki_read_hex(part[2], sizeof(code.secret), code.secret) &&
              ps_pki_read_hex(part[3], sizeof(code.fingerprint),
                              code.fingerprint);
    OPENSSL_cleanse(copy, sizeof(copy));
    if (!is_good) {
        return false;
    }
    for (size_t i = 0; i < sizeof(id); i++) {
        code.id = code.id << 8 | id[i];
    }
    *ret_code = code;
    return true;
}

/* -------------------------------------------------------------------- answer */

/* Certificates and list of an answer; owned. */
struct parts {
    X509 *certificate;
    X509 *authority;
    X509_CRL *crl;
};

static void parts_fini(struct parts *p)
{
    ps_pki_certificate_free(p->certificate);
    ps_pki_certificate_free(p->authority);
    ps_pki_crl_free(p->crl);
}

static int read_parts(const struct ps_enrolment_answer *a, struct parts *p,
                      struct ps_str *why)
{
    int rc = ps_pki_read_certificate(a->certificate, &p->certificate, why);

    if (rc == 0) {
        rc = ps_pki_read_certificate(a->authority, &p->authority, why);
    }
    if (rc == 0) {
        rc = ps_pki_read_crl(a->crl, &p->crl, why);
    }
    return rc;
}

/* True if the text is this certificate alone: a file with more of them would
 * name further authorities. */
static bool is_text_of(const X509 *certificate, const char *text)
{
    char again[PS_PKI_PEM_BYTES];
    struct ps_str s;

    ps_str_init(&s, again, sizeof(again));
    ps_pki_add_certificate(&s, certificate);
    return !s.truncated && strcmp(again, text) == 0;
}

static int check_parts(const struct ps_enrolment_code *code,
                       const EVP_PKEY *key, const struct ps_enrolment_answer *a,
                       const struct parts *p, struct ps_str *why)
{
    uint8_t fingerprint[PS_PKI_FINGERPRINT_BYTES];

    ps_pki_fingerprint(p->authority, fingerprint);
    if (memcmp(fingerprint, code->fingerprint, sizeof(fingerprint)) != 0) {
        ps_str_add(why, "the authority is not that of the code");
        return PS_E_PERM;
    }
    if (!is_text_of(p->authority, a->authority) ||
        !is_text_of(p->certificate, a->certificate)) {
        ps_str_add(why, "a text has more than one certificate");
        return PS_E_PROTO;
    }
    if (X509_check_private_key(p->certificate, (EVP_PKEY *)key) != 1) {
        ERR_clear_error();
        ps_str_add(why, "the certificate is for another key");
        return PS_E_MISMATCH;
    }
    return 0;
}

int ps_enrolment_check_answer(const struct ps_enrolment_code *code,
                              const EVP_PKEY *key,
                              const struct ps_enrolment_answer *answer,
                              int64_t now, struct ps_pki_info *ret_info,
                              struct ps_str *why)
{
    struct ps_pki_info info = {0};
    struct parts p = {0};
    int rc = read_parts(answer, &p, why);

    if (rc == 0) {
        rc = check_parts(code, key, answer, &p, why);
    }
    if (rc == 0) {
        rc = ps_pki_verify(p.certificate, p.authority, p.crl, now, why);
    }
    if (rc == 0) {
        rc = ps_pki_describe(p.certificate, &info, why);
    }
    if (rc == 0 && info.identity.role != code->role) {
        ps_str_addf(why, "the certificate is of role %s, the code of %s",
                    ps_role_name(info.identity.role), ps_role_name(code->role));
        rc = PS_E_MISMATCH;
    }
    parts_fini(&p);
    if (rc == 0) {
        *ret_info = info;
    }
    return rc;
}
