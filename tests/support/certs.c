/* SPDX-License-Identifier: Apache-2.0 */
#include "support/certs.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/str.h"
#include "crypto/tls.h"

struct certs_authority {
    EVP_PKEY *key;
    X509 *certificate;
};

#define CHECK(call)                                                            \
    do {                                                                       \
        if (!(call)) {                                                         \
            fprintf(stderr, "certs: %s failed\n", #call);                      \
            ERR_print_errors_fp(stderr);                                       \
            abort();                                                           \
        }                                                                      \
    } while (0)

static FILE *open_file(const char *dir, const char *file, const char *suffix,
                       const char *mode)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s%s", dir, file, suffix);
    if (mode[0] == 'w') {
        (void)remove(path);
    }
    CHECK((f = fopen(path, mode)) != NULL);
    if (mode[0] == 'w') {
        CHECK(chmod(path, strcmp(suffix, ".key") == 0 ? 0600 : 0644) == 0);
    }
    return f;
}

static void add_extension(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509_EXTENSION *ext;

    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    CHECK((ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value)) != NULL);
    CHECK(X509_add_ext(x, ext, -1));
    X509_EXTENSION_free(ext);
}

static X509 *make(EVP_PKEY *key, const char *name, const struct certs_wish *w)
{
    X509 *x = X509_new();
    X509_NAME *subject = X509_get_subject_name(x);

    CHECK(X509_set_version(x, 2));
    CHECK(ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), w->serial));
    CHECK(X509_gmtime_adj(X509_getm_notBefore(x),
                          w->begins != 0 ? w->begins : -3600));
    CHECK(X509_gmtime_adj(X509_getm_notAfter(x),
                          w->ends != 0 ? w->ends : 365L * 86400));
    CHECK(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                     (const unsigned char *)name, -1, -1, 0));
    CHECK(X509_set_pubkey(x, key));
    return x;
}

/* `above`: NULL: it signs its own certificate. Its end is behind those of the
 * certificates that it signs, in whichever second these are made. */
static struct certs_authority *
authority_new(const struct certs_authority *above, const char *name,
              uint64_t serial)
{
    struct certs_authority *a = calloc(1, sizeof(*a));
    const struct certs_wish wish = {.ends = CERTS_AUTHORITY_ENDS,
                                    .serial = serial};
    const struct certs_authority *issuer = above != NULL ? above : a;

    a->key = EVP_EC_gen("P-256");
    a->certificate = make(a->key, name, &wish);
    CHECK(X509_set_issuer_name(a->certificate,
                               X509_get_subject_name(issuer->certificate)));
    add_extension(a->certificate, issuer->certificate, NID_basic_constraints,
                  "critical,CA:TRUE");
    add_extension(a->certificate, issuer->certificate, NID_key_usage,
                  "critical,keyCertSign,cRLSign");
    add_extension(a->certificate, issuer->certificate,
                  NID_subject_key_identifier, "hash");
    CHECK(X509_sign(a->certificate, issuer->key, EVP_sha256()));
    return a;
}

struct certs_authority *certs_new(const char *name)
{
    return authority_new(NULL, name, 1);
}

struct certs_authority *certs_new_below(const struct certs_authority *above,
                                        const char *name, uint64_t serial)
{
    return authority_new(above, name, serial);
}

struct certs_authority *certs_read(const char *dir)
{
    struct certs_authority *a = calloc(1, sizeof(*a));
    FILE *f = open_file(dir, "ca", ".crt", "re");

    CHECK((a->certificate = PEM_read_X509(f, NULL, NULL, NULL)) != NULL);
    fclose(f);
    f = open_file(dir, "ca", ".key", "re");
    CHECK((a->key = PEM_read_PrivateKey(f, NULL, NULL, NULL)) != NULL);
    fclose(f);
    return a;
}

static void write_pair(X509 *x, EVP_PKEY *key, const char *dir,
                       const char *file)
{
    FILE *f = open_file(dir, file, ".crt", "we");

    CHECK(PEM_write_X509(f, x));
    CHECK(fclose(f) == 0);
    f = open_file(dir, file, ".key", "we");
    CHECK(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL));
    CHECK(fclose(f) == 0);
}

void certs_write(const struct certs_authority *a, const char *dir)
{
    write_pair(a->certificate, a->key, dir, "ca");
}

void certs_free(struct certs_authority *a)
{
    X509_free(a->certificate);
    EVP_PKEY_free(a->key);
    free(a);
}

void certs_issue(const struct certs_authority *a, const struct certs_wish *wish,
                 const char *dir, const char *file)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = make(key, file, wish);
    X509 *issuer = wish->self_signed ? x : a->certificate;
    char names[1024];

    CHECK(X509_set_issuer_name(x, X509_get_subject_name(issuer)));
    if (wish->uri != NULL) {
        snprintf(names, sizeof(names), "URI:%s%s%s", wish->uri,
                 wish->second_uri != NULL ? ",URI:" : "",
                 wish->second_uri != NULL ? wish->second_uri : "");
        add_extension(x, issuer, NID_subject_alt_name, names);
    }
    add_extension(x, issuer, NID_ext_key_usage, "serverAuth,clientAuth");
    CHECK(X509_sign(x, wish->self_signed ? key : a->key, EVP_sha256()));
    write_pair(x, key, dir, file);
    X509_free(x);
    EVP_PKEY_free(key);
}

void certs_add_to_chain(const struct certs_authority *a, const char *dir,
                        const char *file)
{
    FILE *f = open_file(dir, file, ".crt", "ae");

    CHECK(PEM_write_X509(f, a->certificate));
    CHECK(fclose(f) == 0);
}

struct list {
    const uint64_t *serials;
    size_t count;
    uint64_t number; /* 0: none. */
    long made;       /* Seconds from now. */
};

static void write_list(const struct certs_authority *a, const struct list *list,
                       FILE *f)
{
    X509_CRL *crl = X509_CRL_new();
    ASN1_TIME *now = ASN1_TIME_adj(NULL, time(NULL), 0, list->made);
    ASN1_TIME *next = ASN1_TIME_adj(NULL, time(NULL), 30, 0);

    CHECK(X509_CRL_set_version(crl, 1));
    if (list->number != 0) {
        ASN1_INTEGER *number = ASN1_INTEGER_new();

        CHECK(ASN1_INTEGER_set_uint64(number, list->number));
        CHECK(X509_CRL_add1_ext_i2d(crl, NID_crl_number, number, 0, 0));
        ASN1_INTEGER_free(number);
    }
    CHECK(X509_CRL_set_issuer_name(crl, X509_get_subject_name(a->certificate)));
    CHECK(X509_CRL_set1_lastUpdate(crl, now));
    CHECK(X509_CRL_set1_nextUpdate(crl, next));
    for (size_t i = 0; i < list->count; i++) {
        X509_REVOKED *r = X509_REVOKED_new();
        ASN1_INTEGER *serial = ASN1_INTEGER_new();

        CHECK(ASN1_INTEGER_set_uint64(serial, list->serials[i]));
        CHECK(X509_REVOKED_set_serialNumber(r, serial));
        CHECK(X509_REVOKED_set_revocationDate(r, now));
        CHECK(X509_CRL_add0_revoked(crl, r));
        ASN1_INTEGER_free(serial);
    }
    CHECK(X509_CRL_sort(crl));
    CHECK(X509_CRL_sign(crl, a->key, EVP_sha256()));
    CHECK(PEM_write_X509_CRL(f, crl));
    CHECK(fclose(f) == 0);
    ASN1_TIME_free(now);
    ASN1_TIME_free(next);
    X509_CRL_free(crl);
}

void certs_revoke(const struct certs_authority *a, const uint64_t *serials,
                  size_t count, const char *dir)
{
    write_list(
        a, &(struct list){.serials = serials, .count = count, .made = -3600},
        open_file(dir, "crl", ".pem", "we"));
}

void certs_revoke_also(const struct certs_authority *a, const uint64_t *serials,
                       size_t count, const char *dir)
{
    write_list(
        a, &(struct list){.serials = serials, .count = count, .made = -3600},
        open_file(dir, "crl", ".pem", "ae"));
}

void certs_list(const struct certs_authority *a, uint64_t number, long made,
                const char *dir)
{
    write_list(a, &(struct list){.number = number, .made = made},
               open_file(dir, "crl", ".pem", "we"));
}

struct ps_tls_context *certs_load(const char *dir, const char *file)
{
    char paths[3][256];
    char text[512];
    struct ps_tls_context *c;
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    snprintf(paths[0], sizeof(paths[0]), "%s/ca.crt", dir);
    snprintf(paths[1], sizeof(paths[1]), "%s/%s.crt", dir, file);
    snprintf(paths[2], sizeof(paths[2]), "%s/%s.key", dir, file);
    if (ps_tls_context_new(&(struct ps_tls_source){.ca = paths[0],
                                                   .certificate = paths[1],
                                                   .key = paths[2]},
                           &c, &why) != 0) {
        fprintf(stderr, "certs: %s\n", text);
        abort();
    }
    return c;
}

char *certs_text(const char *dir, const char *file)
{
    FILE *f = open_file(dir, file, "", "re");
    char *text = calloc(1, 65536);

    CHECK(fread(text, 1, 65535, f) > 0);
    fclose(f);
    return text;
}
