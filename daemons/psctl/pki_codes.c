/* SPDX-License-Identifier: Apache-2.0 */
/* One-time codes in the folder of an authority. A code is removed on disk before
 * its certificate is issued, so a run that is killed in between gives out
 * neither; the node needs another code then. */
#include "psctl/pki.h"
#include "psctl/psctl.h"

#include "base/alloc.h"

#include <openssl/crypto.h>

#include <string.h>

#define CODES         "codes"
/* Below the maximum of enrolled.crl: more than a thousand certificates. */
#define CRL_BYTES_MAX 65000u

/* --------------------------------------------------------------------- files */

static int read_codes(const struct pki_store *s,
                      struct ps_enrolment_list *ret_list)
{
    char *text = NULL;
    size_t line = 0;
    int exit_code = pki_read_file(s->dir, s->path, CODES, &text);

    *ret_list = (struct ps_enrolment_list){0};
    if (exit_code == 0 && text != NULL &&
        ps_enrolment_list_read(text, ret_list, &line) != 0) {
        pki_error("%s/" CODES ", line %zu is damaged; remove the file, after "
                  "which no code is valid",
                  s->path, line);
        exit_code = EXIT_FAILED;
    }
    ps_free(text);
    return exit_code;
}

static int write_codes(const struct pki_store *s,
                       const struct ps_enrolment_list *list)
{
    char *text = ps_enrolment_list_format(list);
    const struct pki_file files[] = {{CODES, text, 0600}, {NULL, NULL, 0}};
    int exit_code = pki_write_files(s->dir, s->path, files, NULL);

    ps_free(text);
    return exit_code;
}

/* ------------------------------------------------------------------ commands */

int pki_code_issue(struct pki_store *s, const struct pki_options *o,
                   const struct ps_identity *id)
{
    char joined[PS_ENROLMENT_HOSTS_TEXT];
    char text[PS_ENROLMENT_CODE_TEXT];
    struct ps_enrolment_record r = {
        .role = id->role,
        .ends_at = pki_now() + (int64_t)(o->code_time / PS_SECONDS(1)),
        .days = o->days,
        .hosts = joined,
    };
    struct ps_enrolment_list list = {0};
    struct ps_enrolment_code code;
    char why[256];
    struct ps_str out;
    int exit_code;

    ps_str_copy(r.name, sizeof(r.name), id->name);
    ps_str_init(&out, joined, sizeof(joined));
    pki_hosts_join(&out, o->hosts, o->host_count);
    ps_str_init(&out, why, sizeof(why));
    if (ps_enrolment_code_new(id->role, s->authority.certificate, &code,
                              &out) != 0) {
        pki_error("%s", why);
        return EXIT_FAILED;
    }
    exit_code = read_codes(s, &list);
    if (exit_code == 0 &&
        ps_enrolment_list_add(&list, &code, &r, pki_now()) != 0) {
        pki_error("there are %u codes that have not been used; try again when "
                  "some have ended",
                  PS_ENROLMENT_CODES_MAX);
        exit_code = EXIT_TEMPFAIL;
    }
    if (exit_code == 0) {
        exit_code = write_codes(s, &list);
    }
    if (exit_code == 0) {
        ps_str_init(&out, text, sizeof(text));
        ps_enrolment_add_code(&out, &code);
        printf("%s\n", text);
        OPENSSL_cleanse(text, sizeof(text));
    }
    OPENSSL_cleanse(&code, sizeof(code));
    ps_enrolment_list_fini(&list);
    return exit_code;
}

int pki_code_drop(const struct pki_store *s, const char *name,
                  size_t *ret_count)
{
    struct ps_enrolment_list list;
    int exit_code = read_codes(s, &list);
    size_t count = 0;

    if (exit_code == 0) {
        count = ps_enrolment_list_drop(&list, name);
        exit_code = count > 0 ? write_codes(s, &list) : 0;
    }
    ps_enrolment_list_fini(&list);
    if (exit_code == 0) {
        *ret_count = count;
    }
    return exit_code;
}

/* -------------------------------------------------------------------- redeem */

void pki_grant_fini(struct pki_grant *g)
{
    ps_free(g->authority);
    ps_free(g->crl);
    g->authority = NULL;
    g->crl = NULL;
}

/* The reason is on standard error already. */
static int redeem_failed(struct ps_str *why, struct ps_str *detail)
{
    ps_str_add(why, "the authority cannot issue a certificate now; its "
                    "operator sees the reason");
    ps_str_add(detail, "see above");
    return PS_E_IO;
}

static void refuse_code(struct ps_str *why)
{
    ps_str_add(why, "no such code: it was used, replaced or revoked, or is "
                    "incomplete; psctl pki code makes another one");
}

/* Judges the code of a request, and counts a wrong one. Only a holder of the
 * secret learns more than that there is no such code. */
static int judge_code(const struct pki_store *s, struct ps_enrolment_list *list,
                      const struct ps_msg_enrol *q,
                      struct ps_enrolment_record **ret_record,
                      struct ps_str *why, struct ps_str *detail)
{
    if (q->secret.len != PS_ENROLMENT_SECRET_BYTES) {
        ps_str_add(why, "the secret of the code is malformed");
        ps_str_add(detail, why->data);
        return PS_E_PROTO;
    }
    switch (ps_enrolment_list_try(list, q->id, q->secret.data, pki_now(),
                                  ret_record)) {
    case PS_ENROLMENT_GOOD:
        return 0;
    case PS_ENROLMENT_ENDED:
        ps_str_add(why, "the code has expired; psctl pki code makes another "
                        "one");
        ps_str_add(detail, "its code has expired");
        return PS_E_PERM;
    case PS_ENROLMENT_UNKNOWN:
        ps_str_add(detail, "no such code");
        refuse_code(why);
        return PS_E_PERM;
    case PS_ENROLMENT_WRONG:
        ps_str_addf(detail, "wrong secret for code %08x", (unsigned)q->id);
        break;
    case PS_ENROLMENT_VOID:
        ps_str_addf(detail,
                    "wrong secret for code %08x, the %uth: the code is void",
                    (unsigned)q->id, PS_ENROLMENT_TRIES_MAX);
        break;
    }
    if (write_codes(s, list) != 0) {
        return redeem_failed(why, detail);
    }
    refuse_code(why);
    return PS_E_PERM;
}

/* Issues the certificate of a record, whose code has been removed. */
static int grant_certificate(struct pki_store *s,
                             const struct ps_enrolment_record *r, EVP_PKEY *key,
                             struct pki_grant *grant)
{
    const int64_t now = pki_now();
    struct ps_identity id = {.role = r->role};
    struct ps_pki_request q = {.identity = &id,
                               .period = pki_validity(r->days, now)};
    struct pki_record *issued = NULL;
    struct pki_hosts hosts;
    struct ps_str out;
    X509 *x;

    ps_str_copy(id.name, sizeof(id.name), r->name);
    ps_str_copy(id.cluster, sizeof(id.cluster), s->info.identity.cluster);
    pki_hosts_split(r->hosts, &hosts);
    q.hosts = hosts.list;
    q.host_count = hosts.count;
    x = pki_store_issue(s, &q, key, now, &issued);
    pki_hosts_fini(&hosts);
    if (x == NULL) {
        return PS_E_IO;
    }
    ps_str_init(&out, grant->certificate, sizeof(grant->certificate));
    ps_pki_add_certificate(&out, x);
    ps_pki_certificate_free(x);
    grant->info = (struct ps_pki_info){
        .identity = id, .serial = issued->serial, .period = issued->period};
    grant->authority = ps_strdup(s->certificate);
    return pki_read_file(s->dir, s->path, "crl.pem", &grant->crl) != 0 ||
                   grant->crl == NULL
               ? PS_E_IO
               : 0;
}

/* Fails if the list of revoked certificates does not fit into an answer, while
 * the code is not used yet. */
static int check_crl(const struct pki_store *s, struct ps_str *why,
                     struct ps_str *detail)
{
    char *crl = NULL;
    size_t len;

    if (pki_read_file(s->dir, s->path, "crl.pem", &crl) != 0) {
        return redeem_failed(why, detail);
    }
    len = crl != NULL ? strlen(crl) : 0;
    ps_free(crl);
    if (len <= CRL_BYTES_MAX) {
        return 0;
    }
    ps_str_add(why, "the list of revoked certificates is too long to be sent; "
                    "use psctl pki issue, and copy the files");
    ps_str_add(detail, why->data);
    return PS_E_TOOBIG;
}

/* Uses up the code, then grants. */
static int redeem_record(struct pki_store *s, struct ps_enrolment_list *list,
                         struct ps_enrolment_record *record, EVP_PKEY *key,
                         struct pki_grant *grant)
{
    struct ps_enrolment_record used = ps_enrolment_list_remove(list, record);
    int rc = write_codes(s, list) != 0
                 ? PS_E_IO
                 : grant_certificate(s, &used, key, grant);

    ps_free(used.hosts);
    return rc;
}

int pki_code_redeem(const char *directory, const struct ps_msg_enrol *request,
                    struct pki_grant *ret_grant, struct ps_str *why,
                    struct ps_str *detail)
{
    struct ps_enrolment_record *record = NULL;
    struct ps_enrolment_list list = {0};
    struct pki_grant grant = {0};
    EVP_PKEY *key = NULL;
    struct pki_store s;
    int rc;

    if (pki_store_open(directory, true, &s) != 0) {
        return redeem_failed(why, detail);
    }
    rc = read_codes(&s, &list) != 0
             ? redeem_failed(why, detail)
             : judge_code(&s, &list, request, &record, why, detail);
    if (rc == 0) {
        rc = ps_pki_read_csr(request->request, &key, why);
        if (rc != 0) {
            ps_str_add(detail, why->data);
        }
    }
    if (rc == 0) {
        rc = check_crl(&s, why, detail);
    }
    if (rc == 0 && redeem_record(&s, &list, record, key, &grant) != 0) {
        pki_grant_fini(&grant);
        rc = redeem_failed(why, detail);
    }
    ps_pki_key_free(key);
    ps_enrolment_list_fini(&list);
    pki_store_close(&s);
    if (rc == 0) {
        *ret_grant = grant;
    }
    return rc;
}
