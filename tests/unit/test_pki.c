/* SPDX-License-Identifier: Apache-2.0 */
/* The command openssl judges what the module makes. */
#include "crypto/pki.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <openssl/x509.h>

#define NOW INT64_C(1800000000) /* In 2027. */
#define DAY INT64_C(86400)

static const struct ps_pki_period ten_years = {NOW - 60, NOW + 3650 * DAY};
static const struct ps_pki_period one_year = {NOW - 60, NOW + 365 * DAY};

struct fixture {
    char folder[64];
    struct ps_pki_authority authority;
    EVP_PKEY *key;
    X509 *certificate;
    char text[PS_PKI_PEM_BYTES]; /* Reason of a failure, or PEM. */
    struct ps_str s;
};

static struct ps_str *fresh(struct fixture *f)
{
    ps_str_init(&f->s, f->text, sizeof(f->text));
    return &f->s;
}

static struct ps_identity identity_of(enum ps_role role, const char *name)
{
    struct ps_identity id = {.role = role, .cluster = "lab"};

    ps_str_copy(id.name, sizeof(id.name), name);
    return id;
}

static X509 *issue(struct fixture *f, enum ps_role role, const char *name,
                   struct ps_pki_period period)
{
    const struct ps_identity id = identity_of(role, name);
    const struct ps_pki_request q = {.identity = &id, .period = period};
    X509 *x = NULL;

    if (ps_pki_issue(&f->authority, &q, f->key, &x, fresh(f)) != 0) {
        fail_msg("%s", f->text);
    }
    return x;
}

static int setup(void **state)
{
    static const char *const hosts[] = {"node-1.lab.example", "10.0.0.1",
                                        "fd00::1"};
    struct fixture *f = calloc(1, sizeof(*f));
    const struct ps_identity id = identity_of(PS_ROLE_SERVER, "ps0");
    const struct ps_pki_request q = {
        .identity = &id, .hosts = hosts, .host_count = 3, .period = one_year};

    assert_non_null(f);
    ps_str_copy(f->folder, sizeof(f->folder), "/tmp/pskv-pki-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    assert_int_equal(
        ps_pki_authority_new("lab", &ten_years, &f->authority, fresh(f)), 0);
    assert_int_equal(ps_pki_key_new(&f->key, fresh(f)), 0);
    assert_int_equal(
        ps_pki_issue(&f->authority, &q, f->key, &f->certificate, fresh(f)), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    static const char *const files[] = {"ca.crt", "ca.key", "x.crt", "crl.pem",
                                        "x.csr"};
    char path[96];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, files[i]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(f->folder), 0);
    ps_pki_authority_fini(&f->authority);
    ps_pki_certificate_free(f->certificate);
    ps_pki_key_free(f->key);
    free(f);
    return 0;
}

/* Writes `f->text` to a file of the folder. */
static void save(struct fixture *f, const char *name)
{
    char path[96];
    FILE *file;

    assert_false(f->s.truncated);
    snprintf(path, sizeof(path), "%s/%s", f->folder, name);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(f->text, file);
    assert_int_equal(fclose(file), 0);
}

static void save_certificate(struct fixture *f, const X509 *x, const char *name)
{
    ps_pki_add_certificate(fresh(f), x);
    save(f, name);
}

/* Runs openssl in the folder; its output goes to `f->text`. Returns its exit
 * status. */
static int run_openssl(struct fixture *f, const char *arguments)
{
    char command[512];
    FILE *pipe;
    size_t len;

    snprintf(command, sizeof(command), "cd %s && openssl %s 2>&1", f->folder,
             arguments);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    len = fread(f->text, 1, sizeof(f->text) - 1, pipe);
    f->text[len] = '\0';
    return pclose(pipe);
}

static void expect(struct fixture *f, const char *text)
{
    if (strstr(f->text, text) == NULL) {
        fail_msg("no '%s' in:\n%s", text, f->text);
    }
}

static void openssl_sees_an_authority(void **state)
{
    struct fixture *f = *state;

    save_certificate(f, f->authority.certificate, "ca.crt");
    assert_int_equal(run_openssl(f, "x509 -in ca.crt -noout -text"), 0);
    expect(f, "Version: 3 (0x2)");
    expect(f, "Subject: O = pskv cluster, CN = lab");
    expect(f, "Issuer: O = pskv cluster, CN = lab");
    expect(f, "Basic Constraints: critical\n"
              "                CA:TRUE, pathlen:0");
    expect(f, "Key Usage: critical\n"
              "                Certificate Sign, CRL Sign");
    expect(f, "NIST CURVE: P-256");
    expect(f, "Signature Algorithm: ecdsa-with-SHA256");
    expect(f, "Not After : Jan 12 08:00:00 2037 GMT");
}

static void openssl_sees_a_member(void **state)
{
    struct fixture *f = *state;
    struct ps_pki_info info;

    save_certificate(f, f->authority.certificate, "ca.crt");
    save_certificate(f, f->certificate, "x.crt");
    assert_int_equal(run_openssl(f, "x509 -in x.crt -noout -text"), 0);
    expect(f, "URI:ps://lab/server/ps0, DNS:node-1.lab.example, "
              "IP Address:10.0.0.1, IP Address:FD00:0:0:0:0:0:0:1");
    expect(f, "CA:FALSE");
    expect(f, "Key Usage: critical\n                Digital Signature\n");
    expect(f, "TLS Web Server Authentication, TLS Web Client Authentication");
    expect(f, "Subject: O = lab, OU = server, CN = ps0");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            run_openssl(f, i == 0 ? "verify -x509_strict -attime 1800000000 "
                                    "-purpose sslserver -CAfile ca.crt x.crt"
                                  : "verify -x509_strict -attime 1800000000 "
                                    "-purpose sslclient -CAfile ca.crt x.crt"),
            0);
        expect(f, "x.crt: OK");
    }
    assert_int_equal(ps_pki_describe(f->certificate, &info, fresh(f)), 0);
    assert_false(info.is_authority);
    assert_int_equal(info.identity.role, PS_ROLE_SERVER);
    assert_string_equal(info.identity.cluster, "lab");
    assert_string_equal(info.identity.name, "ps0");
    assert_int_equal(info.period.not_before, one_year.not_before);
    assert_int_equal(info.period.not_after, one_year.not_after);
}

static void serials_are_random_and_have_one_length(void **state)
{
    struct fixture *f = *state;
    struct ps_pki_info before = {0};

    for (int i = 0; i < 50; i++) {
        X509 *x = issue(f, PS_ROLE_AGENT, "n1", one_year);
        struct ps_pki_info info;

        assert_int_equal(ps_pki_describe(x, &info, fresh(f)), 0);
        assert_int_equal(info.serial.bytes[0] & 0xc0, 0x40);
        assert_memory_not_equal(info.serial.bytes, before.serial.bytes,
                                PS_PKI_SERIAL_BYTES);
        before = info;
        ps_pki_certificate_free(x);
    }
}

static void verification_has_a_reason_for_each_refusal(void **state)
{
    struct fixture *f = *state;
    struct ps_pki_authority other = {0};
    X509 *x = NULL;

    assert_int_equal(ps_pki_verify(f->certificate, f->authority.certificate,
                                   NULL, NOW, fresh(f)),
                     0);
    assert_int_equal(ps_pki_verify(f->certificate, f->authority.certificate,
                                   NULL, NOW + 366 * DAY, fresh(f)),
                     PS_E_PERM);
    expect(f, "certificate has expired");
    assert_int_equal(ps_pki_verify(f->certificate, f->authority.certificate,
                                   NULL, NOW - DAY, fresh(f)),
                     PS_E_PERM);
    expect(f, "not yet valid");
    /* An authority of the same name, with another key. */
    assert_int_equal(ps_pki_authority_new("lab", &ten_years, &other, fresh(f)),
                     0);
    assert_int_equal(
        ps_pki_verify(f->certificate, other.certificate, NULL, NOW, fresh(f)),
        PS_E_PERM);
    ps_pki_authority_fini(&other);
    /* Another cluster. */
    assert_int_equal(ps_pki_authority_new("lab2", &ten_years, &other, fresh(f)),
                     0);
    assert_int_equal(
        ps_pki_verify(f->certificate, other.certificate, NULL, NOW, fresh(f)),
        PS_E_PERM);
    expect(f, "not one of a member of the authority's cluster");
    ps_pki_authority_fini(&other);
    /* An authority is no member; a member signs nothing. */
    assert_int_equal(ps_pki_verify(f->authority.certificate,
                                   f->authority.certificate, NULL, NOW,
                                   fresh(f)),
                     PS_E_PERM);
    assert_int_equal(
        ps_pki_verify(f->certificate, f->certificate, NULL, NOW, fresh(f)),
        PS_E_PERM);
    /* The service of enrolment is no member, and a member no such service. */
    assert_int_equal(
        ps_pki_issue_enrolment(&f->authority, &one_year, f->key, &x, fresh(f)),
        0);
    assert_int_equal(
        ps_pki_verify_enrolment(x, f->authority.certificate, NOW, fresh(f)), 0);
    assert_int_equal(
        ps_pki_verify(x, f->authority.certificate, NULL, NOW, fresh(f)),
        PS_E_PERM);
    expect(f, "has no identity");
    assert_int_equal(ps_pki_verify_enrolment(f->certificate,
                                             f->authority.certificate, NOW,
                                             fresh(f)),
                     PS_E_PERM);
    ps_pki_certificate_free(x);
}

static void revoked_certificates_are_refused(void **state)
{
    struct fixture *f = *state;
    X509 *other = issue(f, PS_ROLE_AGENT, "n1", one_year);
    struct ps_pki_revocation r[2] = {{.revoked_at = NOW - 10},
                                     {.revoked_at = NOW - 5}};
    const struct ps_pki_crl contents = {.revoked = r,
                                        .count = 2,
                                        .number = 7,
                                        .issued_at = NOW - 5,
                                        .next_update = NOW + 30 * DAY};
    struct ps_pki_info info;
    X509_CRL *crl = NULL;
    struct ps_str why;
    char reason[256];

    assert_int_equal(ps_pki_describe(f->certificate, &info, fresh(f)), 0);
    r[0].serial = info.serial;
    memset(r[1].serial.bytes, 0x55, PS_PKI_SERIAL_BYTES);
    assert_int_equal(ps_pki_crl_new(&f->authority, &contents, &crl, fresh(f)),
                     0);
    assert_int_equal(ps_pki_verify(f->certificate, f->authority.certificate,
                                   crl, NOW, fresh(f)),
                     PS_E_PERM);
    expect(f, "certificate revoked");
    assert_int_equal(
        ps_pki_verify(other, f->authority.certificate, crl, NOW, fresh(f)), 0);
    assert_int_equal(ps_pki_verify(other, f->authority.certificate, crl,
                                   NOW + 31 * DAY, fresh(f)),
                     PS_E_PERM);
    expect(f, "CRL has expired");

    save_certificate(f, f->authority.certificate, "ca.crt");
    ps_pki_add_crl(fresh(f), crl);
    save(f, "crl.pem");
    ps_pki_crl_free(crl);
    ps_str_init(&why, reason, sizeof(reason));
    assert_int_equal(ps_pki_read_crl(f->text, &crl, &why), 0);
    assert_int_equal(
        run_openssl(f, "crl -in crl.pem -CAfile ca.crt -noout -text"), 0);
    expect(f, "verify OK");
    expect(f, "X509v3 CRL Number: \n                7");
    expect(f, "Serial Number: 55555555555555555555555555555555");
    save_certificate(f, f->certificate, "x.crt");
    assert_int_not_equal(
        run_openssl(f, "verify -attime 1800000000 -crl_check -CRLfile crl.pem "
                       "-CAfile ca.crt x.crt"),
        0);
    expect(f, "certificate revoked");
    save_certificate(f, other, "x.crt");
    assert_int_equal(
        run_openssl(f, "verify -x509_strict -attime 1800000000 -crl_check "
                       "-CRLfile crl.pem -CAfile ca.crt x.crt"),
        0);
    ps_pki_crl_free(crl);
    ps_pki_certificate_free(other);
}

static void authorities_are_read_with_their_own_key(void **state)
{
    struct fixture *f = *state;
    struct ps_pki_authority a = {0};
    char certificate[PS_PKI_PEM_BYTES];
    char key[PS_PKI_PEM_BYTES];
    struct ps_str s;

    ps_str_init(&s, certificate, sizeof(certificate));
    ps_pki_add_certificate(&s, f->authority.certificate);
    ps_str_init(&s, key, sizeof(key));
    ps_pki_add_key(&s, f->authority.key);
    assert_int_equal(ps_pki_authority_read(certificate, key, &a, fresh(f)), 0);
    ps_pki_authority_fini(&a);
    ps_str_init(&s, f->text, sizeof(f->text));
    ps_str_add(&s, key);
    save(f, "ca.key");
    assert_int_equal(run_openssl(f, "pkey -in ca.key -check -noout"), 0);

    ps_str_init(&s, key, sizeof(key));
    ps_pki_add_key(&s, f->key);
    assert_int_equal(ps_pki_authority_read(certificate, key, &a, fresh(f)),
                     PS_E_MISMATCH);
    expect(f, "not that of the authority");
    ps_str_init(&s, certificate, sizeof(certificate));
    ps_pki_add_certificate(&s, f->certificate);
    assert_int_equal(ps_pki_authority_read(certificate, key, &a, fresh(f)),
                     PS_E_MISMATCH);
    expect(f, "not that of an authority");
    assert_int_equal(ps_pki_authority_read("", key, &a, fresh(f)), PS_E_IO);
    assert_int_equal(ps_pki_authority_read(certificate, "", &a, fresh(f)),
                     PS_E_IO);
    assert_null(a.certificate);
}

static void requests_prove_the_key(void **state)
{
    struct fixture *f = *state;
    EVP_PKEY *key = NULL;
    struct ps_str why;
    char text[256];
    char *middle;

    ps_str_init(&why, text, sizeof(text));
    assert_int_equal(ps_pki_add_csr(fresh(f), f->key, &why), 0);
    save(f, "x.csr");
    assert_int_equal(ps_pki_read_csr(f->text, &key, &why), 0);
    assert_int_equal(EVP_PKEY_eq(key, f->key), 1);
    ps_pki_key_free(key);
    middle = f->text + strlen(f->text) / 2;
    *middle = *middle == 'A' ? 'B' : 'A'; /* Key or signature changes. */
    assert_int_not_equal(ps_pki_read_csr(f->text, &key, &why), 0);
    assert_int_not_equal(ps_pki_read_csr("", &key, &why), 0);
    assert_int_equal(run_openssl(f, "req -in x.csr -verify -noout"), 0);
    assert_int_equal(
        run_openssl(f, "req -new -newkey rsa:2048 -nodes -keyout /dev/null "
                       "-subj /CN=x"),
        0);
    ps_str_init(&why, text, sizeof(text));
    assert_int_equal(
        ps_pki_read_csr(strstr(f->text, "-----BEGIN CERT"), &key, &why),
        PS_E_PERM);
    assert_non_null(strstr(text, "P-256"));
}

static void invalid_requests_are_refused(void **state)
{
    static const char *const bad[] = {
        "",   "a b", "-a",  "a-",      "a..b",         ".a",
        "a.", "*.x", "a_b", "1.2.3/4", "fe80::1%eth0", "x\xc3\xbc",
    };
    static const char *const good[] = {"localhost", "a-b.c9", "127.0.0.1",
                                       "::1"};
    struct fixture *f = *state;
    struct ps_identity id = identity_of(PS_ROLE_AGENT, "n1");
    const char *hosts[PS_PKI_HOSTS_MAX + 1] = {"a b"};
    struct ps_pki_request q = {
        .identity = &id, .hosts = hosts, .host_count = 1, .period = one_year};
    struct ps_pki_authority a = {0};
    X509 *x = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (ps_pki_is_host(bad[i])) {
            fail_msg("accepted '%s'", bad[i]);
        }
    }
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_true(ps_pki_is_host(good[i]));
    }
    assert_int_equal(ps_pki_issue(&f->authority, &q, f->key, &x, fresh(f)),
                     PS_E_INVAL);
    expect(f, "'a b' is neither a name of DNS nor an address");
    q.host_count = PS_PKI_HOSTS_MAX + 1;
    assert_int_equal(ps_pki_issue(&f->authority, &q, f->key, &x, fresh(f)),
                     PS_E_INVAL);
    q.host_count = 0;
    id.role = PS_ROLE_WORKER;
    assert_int_equal(ps_pki_issue(&f->authority, &q, f->key, &x, fresh(f)),
                     PS_E_INVAL);
    id = identity_of(PS_ROLE_AGENT, "n1");
    ps_str_copy(id.cluster, sizeof(id.cluster), "other");
    assert_int_equal(ps_pki_issue(&f->authority, &q, f->key, &x, fresh(f)),
                     PS_E_INVAL);
    expect(f, "the authority is that of cluster 'lab'");
    assert_int_equal(ps_pki_authority_new("a b", &one_year, &a, fresh(f)),
                     PS_E_INVAL);
    assert_null(x);
}

static void certificates_end_with_their_authority(void **state)
{
    struct fixture *f = *state;
    X509 *x = issue(f, PS_ROLE_CTL, "anna",
                    (struct ps_pki_period){NOW, NOW + 9999 * DAY});
    struct ps_pki_info info;

    assert_int_equal(ps_pki_describe(x, &info, fresh(f)), 0);
    assert_int_equal(info.period.not_after, ten_years.not_after);
    ps_pki_certificate_free(x);
}

static void hexadecimal_has_one_form(void **state)
{
    uint8_t bytes[2];
    char text[8];
    struct ps_str s;

    (void)state;
    assert_true(ps_pki_read_hex("0aff", 2, bytes));
    ps_str_init(&s, text, sizeof(text));
    ps_pki_add_hex(&s, bytes, 2);
    assert_string_equal(text, "0aff");
    assert_false(ps_pki_read_hex("0aFF", 2, bytes));
    assert_false(ps_pki_read_hex("0af", 2, bytes));
    assert_false(ps_pki_read_hex("0aff0", 2, bytes));
    assert_false(ps_pki_read_hex("0agf", 2, bytes));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    static const struct CMUnitTest tests[] = {
        TEST(openssl_sees_an_authority),
        TEST(openssl_sees_a_member),
        TEST(serials_are_random_and_have_one_length),
        TEST(verification_has_a_reason_for_each_refusal),
        TEST(revoked_certificates_are_refused),
        TEST(authorities_are_read_with_their_own_key),
        TEST(requests_prove_the_key),
        TEST(invalid_requests_are_refused),
        TEST(certificates_end_with_their_authority),
        cmocka_unit_test(hexadecimal_has_one_form),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
