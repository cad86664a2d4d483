/* SPDX-License-Identifier: Apache-2.0 */
/* One-time codes: their texts, the list that an authority keeps of them, the
 * checks of a node on what it receives for one, and the TLS of the exchange. */
#include "crypto/enrolment.h"

#include "base/alloc.h"
#include "crypto/tls.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <stdlib.h>
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
    struct ps_str s = PS_STR_ROOM(PS_PKI_PEM_BYTES);
    ps_pki_add_certificate(&s, certificate);
    return !s.truncated && strcmp(s.data, text) == 0;
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

/* --------------------------------------------------------------------- list */

/* One code a line:
 *
 *     ID HASH ROLE NAME END TRIES DAYS HOSTS
 *
 * The secret is 128 random bits, so a plain hash of it gives nothing away. */
#define FIELDS        8u
/* Time after its end in which a code is refused as expired, not as unknown. */
#define REMEMBER_TIME INT64_C(86400)
/* Bytes of a line without its hosts. */
#define LINE_BYTES    256u

/* False: OpenSSL cannot hash. */
static bool hash_secret(const uint8_t secret[PS_ENROLMENT_SECRET_BYTES],
                        uint8_t ret_hash[PS_ENROLMENT_HASH_BYTES])
{
    return EVP_Digest(secret, PS_ENROLMENT_SECRET_BYTES, ret_hash, NULL,
                      EVP_sha256(), NULL) == 1;
}

/* ------------------------------------------------------------------- records */

void ps_enrolment_list_fini(struct ps_enrolment_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        ps_free(list->records[i].hosts);
    }
    ps_free(list->records);
    *list = (struct ps_enrolment_list){0};
}

static void append_record(struct ps_enrolment_list *list,
                          const struct ps_enrolment_record *r)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 16 : list->capacity * 2;
        list->records = ps_realloc(list->records,
                                   list->capacity * sizeof(list->records[0]));
    }
    list->records[list->count++] = *r;
}

struct ps_enrolment_record
ps_enrolment_list_remove(struct ps_enrolment_list *list,
                         struct ps_enrolment_record *record)
{
    struct ps_enrolment_record removed = *record;
    size_t at = (size_t)(record - list->records);

    memmove(record, record + 1, (list->count - at - 1) * sizeof(*record));
    list->count--;
    return removed;
}

static void delete_record(struct ps_enrolment_list *list, size_t at)
{
    struct ps_enrolment_record r = ps_enrolment_list_remove(list,
                                                            &list->records[at]);

    ps_free(r.hosts);
}

static struct ps_enrolment_record *find_record(struct ps_enrolment_list *list,
                                               uint32_t id)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->records[i].id == id) {
            return &list->records[i];
        }
    }
    return NULL;
}

int ps_enrolment_list_add(struct ps_enrolment_list *list,
                          const struct ps_enrolment_code *code,
                          const struct ps_enrolment_record *record, int64_t now)
{
    struct ps_enrolment_record r = *record;

    for (size_t i = list->count; i > 0; i--) {
        const struct ps_enrolment_record *p = &list->records[i - 1];

        if (p->id == code->id || p->ends_at <= now - REMEMBER_TIME ||
            (p->role == r.role && strcmp(p->name, r.name) == 0)) {
            delete_record(list, i - 1);
        }
    }
    if (list->count == PS_ENROLMENT_CODES_MAX) {
        return PS_E_FULL;
    }
    if (!hash_secret(code->secret, r.hash)) {
        return PS_E_IO;
    }
    r.id = code->id;
    r.tries = 0;
    r.hosts = ps_strdup(record->hosts);
    append_record(list, &r);
    return 0;
}

size_t ps_enrolment_list_drop(struct ps_enrolment_list *list, const char *name)
{
    size_t count = 0;

    for (size_t i = list->count; i > 0; i--) {
        if (strcmp(list->records[i - 1].name, name) == 0) {
            delete_record(list, i - 1);
            count++;
        }
    }
    return count;
}

enum ps_enrolment_verdict
ps_enrolment_list_try(struct ps_enrolment_list *list, uint32_t id,
                      const uint8_t secret[PS_ENROLMENT_SECRET_BYTES],
                      int64_t now, struct ps_enrolment_record **ret_record)
{
    struct ps_enrolment_record *r = find_record(list, id);
    uint8_t hash[PS_ENROLMENT_HASH_BYTES];

    if (r == NULL || !hash_secret(secret, hash)) {
        return PS_ENROLMENT_UNKNOWN;
    }
    if (CRYPTO_memcmp(hash, r->hash, sizeof(hash)) != 0) {
        if (++r->tries < PS_ENROLMENT_TRIES_MAX) {
            return PS_ENROLMENT_WRONG;
        }
        delete_record(list, (size_t)(r - list->records));
        return PS_ENROLMENT_VOID;
    }
    if (r->ends_at <= now) {
        return PS_ENROLMENT_ENDED;
    }
    *ret_record = r;
    return PS_ENROLMENT_GOOD;
}

/* ---------------------------------------------------------------------- text */

/* Reads decimal digits in their one form. */
static bool read_number(const char *text, int64_t max, int64_t *ret)
{
    char *end;
    long long n;

    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] != '\0')) {
        return false;
    }
    errno = 0;
    n = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || n > max) {
        return false;
    }
    *ret = n;
    return true;
}

/* Reads one line, which it changes. */
static bool read_record(struct ps_enrolment_list *list, char *line)
{
    struct ps_enrolment_record r = {0};
    uint8_t id[sizeof(r.id)];
    char *field[FIELDS] = {NULL};
    char *rest = line;
    int64_t tries;
    int64_t days;
    size_t n = 0;

    while (n < FIELDS && rest != NULL) {
        field[n++] = strsep(&rest, " ");
    }
    if (n != FIELDS || rest != NULL || list->count == PS_ENROLMENT_CODES_MAX ||
        !ps_pki_read_hex(field[0], sizeof(id), id) ||
        !ps_pki_read_hex(field[1], sizeof(r.hash), r.hash) ||
        !ps_identity_read_role(field[2], &r.role) ||
        !ps_str_is_name(field[3], PS_NAME_MAX) ||
        !read_number(field[4], INT64_MAX, &r.ends_at) ||
        !read_number(field[5], PS_ENROLMENT_TRIES_MAX - 1, &tries) ||
        !read_number(field[6], UINT32_MAX, &days) || field[7][0] == '\0' ||
        strlen(field[7]) >= PS_ENROLMENT_HOSTS_TEXT) {
        return false;
    }
    for (size_t i = 0; i < sizeof(id); i++) {
        r.id = r.id << 8 | id[i];
    }
    if (find_record(list, r.id) != NULL) {
        return false;
    }
    ps_str_copy(r.name, sizeof(r.name), field[3]);
    r.tries = (uint32_t)tries;
    r.days = (uint32_t)days;
    r.hosts = ps_strdup(field[7]);
    append_record(list, &r);
    return true;
}

int ps_enrolment_list_read(const char *text, struct ps_enrolment_list *ret_list,
                           size_t *ret_line)
{
    struct ps_enrolment_list list = {0};
    char *copy = ps_strdup(text);
    char *rest = copy;
    size_t number = 0;

    while (rest[0] != '\0') {
        char *line = strsep(&rest, "\n");

        number++;
        /* The last line ends, too; else a part of the file is lost. */
        if (rest == NULL || !read_record(&list, line)) {
            ps_enrolment_list_fini(&list);
            ps_free(copy);
            *ret_line = number;
            return PS_E_PROTO;
        }
    }
    ps_free(copy);
    *ret_list = list;
    return 0;
}

char *ps_enrolment_list_format(const struct ps_enrolment_list *list)
{
    size_t cap = 1;
    char *text;
    struct ps_str s;

    for (size_t i = 0; i < list->count; i++) {
        cap += LINE_BYTES + strlen(list->records[i].hosts);
    }
    text = ps_alloc(cap);
    ps_str_init(&s, text, cap);
    for (size_t i = 0; i < list->count; i++) {
        const struct ps_enrolment_record *r = &list->records[i];

        ps_str_addf(&s, "%08x ", (unsigned)r->id);
        ps_pki_add_hex(&s, r->hash, sizeof(r->hash));
        ps_str_addf(&s, " %s %s %" PRId64 " %u %u ", ps_role_name(r->role),
                    r->name, r->ends_at, (unsigned)r->tries, (unsigned)r->days);
        ps_str_add(&s, r->hosts);
        ps_str_add(&s, "\n");
    }
    return text;
}

/* ---------------------------------------------------------------------- TLS */

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
        c = ps_tls_ctx_new();
        if (c == NULL || SSL_CTX_use_certificate(c, x) != 1 ||
            SSL_CTX_use_PrivateKey(c, key) != 1 ||
            SSL_CTX_add1_chain_cert(c, a->certificate) != 1) {
            rc = ps_pki_failed(why, "cannot make a context of TLS");
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
    SSL_CTX *c = ps_tls_ctx_new();

    if (c == NULL) {
        return ps_pki_failed(why, "cannot make a context of TLS");
    }
    peer->text[0] = '\0';
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_cert_verify_callback(c, verify_peer, peer);
    *ret_context = c;
    return 0;
}
