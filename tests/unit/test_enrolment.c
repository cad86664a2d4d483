/* SPDX-License-Identifier: Apache-2.0 */
#include "base/alloc.h"
#include "crypto/enrolment.h"
#include "psctl/pki_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#define NOW INT64_C(1800000000) /* In 2027. */
#define DAY INT64_C(86400)

static const struct ps_pki_period ten_years = {NOW - 60, NOW + 3650 * DAY};

struct fixture {
    struct ps_pki_authority authority;
    struct ps_pki_authority other;
    struct ps_enrolment_code code;
    char why[512];
    struct ps_str text;
};

static struct ps_str *reset_text(struct fixture *f)
{
    ps_str_init(&f->text, f->why, sizeof(f->why));
    return &f->text;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    assert_int_equal(
        ps_pki_authority_new("lab", &ten_years, &f->authority, reset_text(f)),
        0);
    assert_int_equal(
        ps_pki_authority_new("lab", &ten_years, &f->other, reset_text(f)), 0);
    assert_int_equal(ps_enrolment_code_new(PS_ROLE_AGENT,
                                           f->authority.certificate, &f->code,
                                           reset_text(f)),
                     0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    ps_pki_authority_fini(&f->authority);
    ps_pki_authority_fini(&f->other);
    free(f);
    return 0;
}

/* ---------------------------------------------------------------------- code */

static void a_code_has_one_text(void **state)
{
    struct fixture *f = *state;
    struct ps_enrolment_code read = {0};
    char text[PS_ENROLMENT_CODE_TEXT];
    char changed[PS_ENROLMENT_CODE_TEXT + 2];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_enrolment_add_code(&s, &f->code);
    assert_false(s.truncated);
    assert_true(ps_enrolment_read_code(text, &read));
    assert_int_equal(read.role, PS_ROLE_AGENT);
    assert_int_equal(read.id, f->code.id);
    assert_memory_equal(read.secret, f->code.secret, sizeof(read.secret));
    assert_memory_equal(read.fingerprint, f->code.fingerprint,
                        sizeof(read.fingerprint));
    for (size_t i = 0; i < strlen(text); i++) {
        ps_str_copy(changed, sizeof(changed), text);
        changed[i] = 'G';
        assert_false(ps_enrolment_read_code(changed, &read));
        changed[i] = '\0';
        assert_false(ps_enrolment_read_code(changed, &read));
    }
    snprintf(changed, sizeof(changed), "%s.", text);
    assert_false(ps_enrolment_read_code(changed, &read));
    snprintf(changed, sizeof(changed), "worker%s", strchr(text, '.'));
    assert_false(ps_enrolment_read_code(changed, &read));
}

static void codes_differ(void **state)
{
    struct fixture *f = *state;
    struct ps_enrolment_code other;

    assert_int_equal(ps_enrolment_code_new(PS_ROLE_AGENT,
                                           f->authority.certificate, &other,
                                           reset_text(f)),
                     0);
    assert_memory_not_equal(other.secret, f->code.secret, sizeof(other.secret));
    assert_memory_equal(other.fingerprint, f->code.fingerprint,
                        sizeof(other.fingerprint));
}

/* ---------------------------------------------------------------------- list */

static struct ps_enrolment_record record_of(const char *name)
{
    struct ps_enrolment_record r = {.role = PS_ROLE_AGENT,
                                    .ends_at = NOW + 3600,
                                    .days = 30,
                                    .hosts = (char *)"n1.lab,10.0.0.1"};

    ps_str_copy(r.name, sizeof(r.name), name);
    return r;
}

static enum ps_enrolment_verdict judge(struct ps_enrolment_list *list,
                                       const struct ps_enrolment_code *code,
                                       int64_t now)
{
    struct ps_enrolment_record *r = NULL;

    return ps_enrolment_list_try(list, code->id, code->secret, now, &r);
}

static void the_list_survives_as_text_without_secrets(void **state)
{
    struct fixture *f = *state;
    struct ps_enrolment_record r = record_of("n1");
    struct ps_enrolment_list list = {0};
    struct ps_enrolment_list read = {0};
    char secret[2 * PS_ENROLMENT_SECRET_BYTES + 1];
    struct ps_str s;
    size_t line = 0;
    char *text;
    char *again;

    assert_int_equal(ps_enrolment_list_add(&list, &f->code, &r, NOW), 0);
    text = ps_enrolment_list_format(&list);
    ps_str_init(&s, secret, sizeof(secret));
    ps_pki_add_hex(&s, f->code.secret, sizeof(f->code.secret));
    assert_null(strstr(text, secret));
    assert_int_equal(ps_enrolment_list_read(text, &read, &line), 0);
    assert_int_equal(judge(&read, &f->code, NOW), PS_ENROLMENT_GOOD);
    assert_string_equal(read.records[0].name, "n1");
    assert_string_equal(read.records[0].hosts, "n1.lab,10.0.0.1");
    assert_int_equal(read.records[0].days, 30);
    again = ps_enrolment_list_format(&read);
    assert_string_equal(again, text);
    /* A part of the file, and a line twice. */
    ps_enrolment_list_fini(&read);
    text[strlen(text) - 1] = '\0';
    assert_int_equal(ps_enrolment_list_read(text, &read, &line), PS_E_PROTO);
    assert_int_equal(line, 1);
    ps_free(text);
    text = ps_alloc(2 * strlen(again) + 1);
    memcpy(text, again, strlen(again));
    memcpy(text + strlen(again), again, strlen(again) + 1);
    assert_int_equal(ps_enrolment_list_read(text, &read, &line), PS_E_PROTO);
    assert_int_equal(line, 2);
    ps_free(text);
    ps_free(again);
    ps_enrolment_list_fini(&list);
}

static void a_code_is_void_after_some_wrong_secrets(void **state)
{
    struct fixture *f = *state;
    struct ps_enrolment_record r = record_of("n1");
    struct ps_enrolment_list list = {0};
    struct ps_enrolment_code wrong = f->code;

    wrong.secret[15] ^= 1;
    assert_int_equal(ps_enrolment_list_add(&list, &f->code, &r, NOW), 0);
    for (unsigned i = 1; i < PS_ENROLMENT_TRIES_MAX; i++) {
        assert_int_equal(judge(&list, &wrong, NOW), PS_ENROLMENT_WRONG);
        assert_int_equal(judge(&list, &f->code, NOW), PS_ENROLMENT_GOOD);
    }
    assert_int_equal(judge(&list, &wrong, NOW), PS_ENROLMENT_VOID);
    assert_int_equal(judge(&list, &f->code, NOW), PS_ENROLMENT_UNKNOWN);
    ps_enrolment_list_fini(&list);
}

static void a_code_ends(void **state)
{
    struct fixture *f = *state;
    struct ps_enrolment_record r = record_of("n1");
    struct ps_enrolment_record other = record_of("n2");
    struct ps_enrolment_list list = {0};
    struct ps_enrolment_code code = f->code;

    code.id++;
    assert_int_equal(ps_enrolment_list_add(&list, &f->code, &r, NOW), 0);
    assert_int_equal(judge(&list, &f->code, NOW + 3599), PS_ENROLMENT_GOOD);
    assert_int_equal(judge(&list, &f->code, NOW + 3600), PS_ENROLMENT_ENDED);
    /* A later code removes the record of it. */
    assert_int_equal(ps_enrolment_list_add(&list, &code, &other, NOW + 3700),
                     0);
    assert_int_equal(list.count, 2);
    code.id++;
    ps_str_copy(other.name, sizeof(other.name), "n3");
    assert_int_equal(
        ps_enrolment_list_add(&list, &code, &other, NOW + 3600 + DAY), 0);
    assert_int_equal(judge(&list, &f->code, NOW), PS_ENROLMENT_UNKNOWN);
    ps_enrolment_list_fini(&list);
}

static void a_new_code_replaces_that_of_the_same_member(void **state)
{
    struct fixture *f = *state;
    struct ps_enrolment_record r = record_of("n1");
    struct ps_enrolment_list list = {0};
    struct ps_enrolment_code second = f->code;

    second.id++;
    assert_int_equal(ps_enrolment_list_add(&list, &f->code, &r, NOW), 0);
    assert_int_equal(ps_enrolment_list_add(&list, &second, &r, NOW), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(judge(&list, &f->code, NOW), PS_ENROLMENT_UNKNOWN);
    assert_int_equal(judge(&list, &second, NOW), PS_ENROLMENT_GOOD);
    r.role = PS_ROLE_SERVER;
    assert_int_equal(ps_enrolment_list_add(&list, &f->code, &r, NOW), 0);
    assert_int_equal(list.count, 2);
    assert_int_equal(ps_enrolment_list_drop(&list, "n2"), 0);
    assert_int_equal(ps_enrolment_list_drop(&list, "n1"), 2);
    assert_int_equal(list.count, 0);
    ps_enrolment_list_fini(&list);
}

static void the_list_has_a_limit(void **state)
{
    struct fixture *f = *state;
    struct ps_enrolment_list list = {0};
    struct ps_enrolment_code code = f->code;

    for (uint32_t i = 0; i < PS_ENROLMENT_CODES_MAX; i++) {
        struct ps_enrolment_record r = record_of("n");

        snprintf(r.name, sizeof(r.name), "n%u", (unsigned)i);
        code.id = i;
        assert_int_equal(ps_enrolment_list_add(&list, &code, &r, NOW), 0);
    }
    {
        const struct ps_enrolment_record r = record_of("one more");

        code.id = PS_ENROLMENT_CODES_MAX;
        assert_int_equal(ps_enrolment_list_add(&list, &code, &r, NOW),
                         PS_E_FULL);
    }
    ps_enrolment_list_fini(&list);
}

/* -------------------------------------------------------------------- answer */

struct texts {
    char certificate[PS_PKI_PEM_BYTES];
    char authority[2 * PS_PKI_PEM_BYTES];
    char crl[PS_PKI_PEM_BYTES];
};

/* Certificate of a role for a key, with what comes beside it. */
static void make_texts(struct fixture *f, struct ps_pki_authority *a,
                       enum ps_role role, EVP_PKEY *key, struct texts *t)
{
    struct ps_identity id = {.role = role, .cluster = "lab", .name = "n1"};
    const struct ps_pki_request q = {.identity = &id,
                                     .period = {NOW - 60, NOW + DAY}};
    const struct ps_pki_crl contents = {
        .number = 1, .issued_at = NOW - 60, .next_update = NOW + DAY};
    X509_CRL *crl = NULL;
    X509 *x = NULL;
    struct ps_str s;

    assert_int_equal(ps_pki_issue(a, &q, key, &x, reset_text(f)), 0);
    assert_int_equal(ps_pki_crl_new(a, &contents, &crl, reset_text(f)), 0);
    ps_str_init(&s, t->certificate, sizeof(t->certificate));
    ps_pki_add_certificate(&s, x);
    ps_str_init(&s, t->authority, sizeof(t->authority));
    ps_pki_add_certificate(&s, a->certificate);
    ps_str_init(&s, t->crl, sizeof(t->crl));
    ps_pki_add_crl(&s, crl);
    ps_pki_certificate_free(x);
    ps_pki_crl_free(crl);
}

static int check_texts(struct fixture *f, const EVP_PKEY *key,
                       const struct texts *t)
{
    const struct ps_enrolment_answer a = {t->certificate, t->authority, t->crl};
    struct ps_pki_info info;

    return ps_enrolment_check_answer(&f->code, key, &a, NOW, &info,
                                     reset_text(f));
}

static void a_node_accepts_only_the_certificate_of_its_code(void **state)
{
    struct fixture *f = *state;
    EVP_PKEY *key = NULL;
    EVP_PKEY *other = NULL;
    struct texts good;
    struct texts t;

    assert_int_equal(ps_pki_key_new(&key, reset_text(f)), 0);
    assert_int_equal(ps_pki_key_new(&other, reset_text(f)), 0);
    make_texts(f, &f->authority, PS_ROLE_AGENT, key, &good);
    assert_int_equal(check_texts(f, key, &good), 0);
    assert_int_not_equal(check_texts(f, other, &good), 0);
    assert_non_null(strstr(f->why, "for another key"));

    make_texts(f, &f->other, PS_ROLE_AGENT, key, &t);
    assert_int_not_equal(check_texts(f, key, &t), 0);
    assert_non_null(strstr(f->why, "not that of the code"));
    /* The right authority beside a certificate of another one. */
    memcpy(t.authority, good.authority, sizeof(t.authority));
    assert_int_not_equal(check_texts(f, key, &t), 0);
    t = good;
    make_texts(f, &f->other, PS_ROLE_AGENT, key, &t);
    memcpy(t.authority, good.authority, sizeof(t.authority));
    memcpy(t.certificate, good.certificate, sizeof(t.certificate));
    assert_int_not_equal(check_texts(f, key, &t), 0); /* Its list. */

    make_texts(f, &f->authority, PS_ROLE_SERVER, key, &t);
    assert_int_not_equal(check_texts(f, key, &t), 0);
    assert_non_null(strstr(f->why, "of role server, the code of agent"));

    t = good;
    make_texts(f, &f->other, PS_ROLE_AGENT, key, &t);
    memmove(t.authority + strlen(good.authority), t.authority,
            strlen(t.authority) + 1);
    memcpy(t.authority, good.authority, strlen(good.authority));
    memcpy(t.certificate, good.certificate, sizeof(t.certificate));
    memcpy(t.crl, good.crl, sizeof(t.crl));
    assert_int_not_equal(check_texts(f, key, &t), 0);
    assert_non_null(strstr(f->why, "more than one certificate"));
    ps_pki_key_free(key);
    ps_pki_key_free(other);
}

/* ----------------------------------------------------------------------- TLS */

/* Connects both sides in memory. True: both have completed the handshake. */
static bool shake_hands(SSL_CTX *accepting, SSL_CTX *dialling)
{
    SSL *a = SSL_new(accepting);
    SSL *d = SSL_new(dialling);
    BIO *a_bio = NULL;
    BIO *d_bio = NULL;
    int a_done = 0;
    int d_done = 0;

    assert_int_equal(BIO_new_bio_pair(&a_bio, 0, &d_bio, 0), 1);
    SSL_set_bio(a, a_bio, a_bio);
    SSL_set_bio(d, d_bio, d_bio);
    for (int i = 0; i < 10 && (a_done != 1 || d_done != 1); i++) {
        d_done = d_done == 1 ? 1 : SSL_connect(d);
        a_done = a_done == 1 ? 1 : SSL_accept(a);
    }
    if (d_done == 1) {
        assert_int_equal(SSL_version(d), TLS1_3_VERSION);
    }
    SSL_free(a);
    SSL_free(d);
    ERR_clear_error();
    return a_done == 1 && d_done == 1;
}

static void a_node_trusts_the_authority_of_its_code_alone(void **state)
{
    const struct ps_pki_period period = {NOW - 60, NOW + DAY};
    struct fixture *f = *state;
    struct ps_enrolment_peer peer = {.now = NOW};
    SSL_CTX *right = NULL;
    SSL_CTX *wrong = NULL;
    SSL_CTX *node = NULL;

    memcpy(peer.fingerprint, f->code.fingerprint, sizeof(peer.fingerprint));
    assert_int_equal(ps_enrolment_tls_accepting(&f->authority, &period, &right,
                                                reset_text(f)),
                     0);
    assert_int_equal(
        ps_enrolment_tls_accepting(&f->other, &period, &wrong, reset_text(f)),
        0);
    assert_int_equal(ps_enrolment_tls_dialling(&peer, &node, reset_text(f)), 0);
    assert_true(shake_hands(right, node));
    assert_string_equal(peer.text, "");
    assert_false(shake_hands(wrong, node));
    assert_string_equal(peer.text,
                        "its authority is not the one that the code names");
    /* The right authority sent along with a certificate of another one. */
    assert_int_equal(SSL_CTX_add1_chain_cert(wrong, f->authority.certificate),
                     1);
    assert_false(shake_hands(wrong, node));
    peer.now = NOW + 2 * DAY;
    assert_false(shake_hands(right, node));
    assert_non_null(strstr(peer.text, "expired"));
    SSL_CTX_free(right);
    SSL_CTX_free(wrong);
    SSL_CTX_free(node);
}

/* A certificate of a member, made for other ends, names no enrolment. */
static void a_member_is_no_service_of_enrolment(void **state)
{
    const struct ps_identity id = {
        .role = PS_ROLE_SERVER, .cluster = "lab", .name = "ps0"};
    const struct ps_pki_request q = {.identity = &id,
                                     .period = {NOW - 60, NOW + DAY}};
    struct fixture *f = *state;
    struct ps_enrolment_peer peer = {.now = NOW};
    SSL_CTX *member = NULL;
    SSL_CTX *node = NULL;
    EVP_PKEY *key = NULL;
    X509 *x = NULL;

    memcpy(peer.fingerprint, f->code.fingerprint, sizeof(peer.fingerprint));
    assert_int_equal(ps_enrolment_tls_accepting(&f->authority, &q.period,
                                                &member, reset_text(f)),
                     0);
    assert_int_equal(ps_pki_key_new(&key, reset_text(f)), 0);
    assert_int_equal(ps_pki_issue(&f->authority, &q, key, &x, reset_text(f)),
                     0);
    assert_int_equal(SSL_CTX_use_certificate(member, x), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(member, key), 1);
    assert_int_equal(ps_enrolment_tls_dialling(&peer, &node, reset_text(f)), 0);
    assert_false(shake_hands(member, node));
    assert_non_null(strstr(peer.text, "not that of an enrolment service"));
    ps_pki_certificate_free(x);
    ps_pki_key_free(key);
    SSL_CTX_free(member);
    SSL_CTX_free(node);
}

/* -------------------------------------------------------------------- limits */

/* One that tries every second with a code that is void leaves room for others
 * of its address. */
static void a_neighbour_that_retries_takes_no_place(void **state)
{
    struct pki_limit *l = calloc(1, sizeof(*l));
    ps_time now = PS_SECONDS(100);

    (void)state;
    assert_non_null(l);
    for (unsigned i = 0; i < 600; i++) {
        assert_int_equal(pki_limit_begin(l, "10.0.0.1", now), PKI_ADMITTED);
        assert_int_equal(pki_limit_begin(l, "10.0.0.1", now), PKI_ADMITTED);
        pki_limit_end(l, "10.0.0.1", true, now);
        pki_limit_end(l, "10.0.0.1", false, now);
        now += PS_SECONDS(1);
    }
    free(l);
}

static void failures_of_an_address_are_limited_and_forgotten(void **state)
{
    struct pki_limit *l = calloc(1, sizeof(*l));
    ps_time now = PS_SECONDS(100);

    (void)state;
    assert_non_null(l);
    for (unsigned i = 0; i < PKI_LIMIT_FAILURES; i++) {
        assert_int_equal(pki_limit_begin(l, "10.0.0.1", now), PKI_ADMITTED);
        pki_limit_end(l, "10.0.0.1", true, now);
    }
    assert_int_equal(pki_limit_begin(l, "10.0.0.1", now),
                     PKI_TOO_MANY_FAILURES);
    assert_int_equal(pki_limit_begin(l, "10.0.0.2", now), PKI_ADMITTED);
    pki_limit_end(l, "10.0.0.2", false, now);
    now += PKI_LIMIT_FORGET_TIME - 1;
    assert_int_equal(pki_limit_begin(l, "10.0.0.1", now),
                     PKI_TOO_MANY_FAILURES);
    now += 1;
    assert_int_equal(pki_limit_begin(l, "10.0.0.1", now), PKI_ADMITTED);
    /* One that is open may fail, too. */
    assert_int_equal(pki_limit_begin(l, "10.0.0.1", now),
                     PKI_TOO_MANY_FAILURES);
    pki_limit_end(l, "10.0.0.1", true, now);
    now += 2 * PKI_LIMIT_FAILURES * PKI_LIMIT_FORGET_TIME;
    for (unsigned i = 0; i < PKI_LIMIT_CONNECTIONS; i++) {
        assert_int_equal(pki_limit_begin(l, "10.0.0.1", now), PKI_ADMITTED);
    }
    assert_int_equal(pki_limit_begin(l, "10.0.0.1", now),
                     PKI_TOO_MANY_CONNECTIONS);
    free(l);
}

static void many_addresses_cost_no_memory_and_keep_the_newest(void **state)
{
    struct pki_limit *l = calloc(1, sizeof(*l));
    char name[PKI_LIMIT_ADDRESS];

    (void)state;
    assert_non_null(l);
    for (unsigned i = 0; i < 4 * PKI_LIMIT_SOURCES; i++) {
        snprintf(name, sizeof(name), "10.0.%u.%u", i / 256, i % 256);
        assert_int_equal(pki_limit_begin(l, name, i), PKI_ADMITTED);
        pki_limit_end(l, name, true, i);
    }
    for (unsigned i = 1; i < PKI_LIMIT_FAILURES; i++) {
        assert_int_equal(pki_limit_begin(l, name, PKI_LIMIT_SOURCES * 4),
                         PKI_ADMITTED);
        pki_limit_end(l, name, true, PKI_LIMIT_SOURCES * 4);
    }
    assert_int_equal(pki_limit_begin(l, name, PKI_LIMIT_SOURCES * 4),
                     PKI_TOO_MANY_FAILURES);
    free(l);
}

static void addresses_of_one_host_count_together(void **state)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    char name[PKI_LIMIT_ADDRESS];

    (void)state;
    assert_int_equal(inet_pton(AF_INET6, "2001:db8:1:2:3:4:5:6", &v6.sin6_addr),
                     1);
    pki_limit_name((const struct sockaddr *)&v6, name);
    assert_string_equal(name, "2001:db8:1:2::");
    assert_int_equal(inet_pton(AF_INET6, "::ffff:10.1.2.3", &v6.sin6_addr), 1);
    pki_limit_name((const struct sockaddr *)&v6, name);
    assert_string_equal(name, "10.1.2.3");
    assert_int_equal(inet_pton(AF_INET, "10.1.2.3", &v4.sin_addr), 1);
    pki_limit_name((const struct sockaddr *)&v4, name);
    assert_string_equal(name, "10.1.2.3");
}

static void lines_of_a_minute_are_limited(void **state)
{
    struct pki_limit *l = calloc(1, sizeof(*l));
    ps_time now = PS_SECONDS(100);
    uint32_t omitted = 7;

    (void)state;
    assert_non_null(l);
    for (unsigned i = 0; i < PKI_LIMIT_LINES; i++) {
        assert_true(pki_limit_line(l, now, &omitted));
        assert_int_equal(omitted, 0);
    }
    assert_false(pki_limit_line(l, now, &omitted));
    assert_false(pki_limit_line(l, now + PS_SECONDS(59), &omitted));
    assert_true(pki_limit_line(l, now + PS_SECONDS(60), &omitted));
    assert_int_equal(omitted, 2);
    free(l);
}

/* ------------------------------------------------------------------- message */

static void a_message_is_read_when_all_of_it_is_there(void **state)
{
    static const uint8_t secret[] = "sixteen bytes..";
    const struct ps_msg msg = {
        .code = PS_MSG_ENROL,
        .enrol = {.protocol = PS_PROTOCOL,
                  .id = 7,
                  .secret = {secret, sizeof(secret)},
                  .request = "a request"},
    };
    struct ps_decoder *d = ps_decoder_new();
    struct ps_msg read;
    uint8_t frame[256];
    size_t len;

    (void)state;
    assert_non_null(d);
    assert_int_equal(
        ps_msg_encode(&msg, PS_PROTOCOL, 0, frame, sizeof(frame), &len), 0);
    assert_true(len <= pki_message_bytes(PS_MSG_ENROL));
    for (size_t i = 0; i < len; i++) {
        assert_int_equal(pki_message_read(d, PS_MSG_ENROL, frame, i, &read),
                         PS_E_AGAIN);
    }
    assert_int_equal(pki_message_read(d, PS_MSG_ENROL, frame, len, &read), 0);
    assert_int_equal(read.enrol.id, 7);
    assert_string_equal(read.enrol.request, "a request");
    /* Another message, and bytes behind the only one. */
    assert_int_equal(pki_message_read(d, PS_MSG_ENROLLED, frame, len, &read),
                     PS_E_PROTO);
    assert_int_equal(pki_message_read(d, PS_MSG_ENROL, frame, len + 1, &read),
                     PS_E_PROTO);
    ps_decoder_free(d);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    static const struct CMUnitTest tests[] = {
        TEST(a_code_has_one_text),
        TEST(codes_differ),
        TEST(the_list_survives_as_text_without_secrets),
        TEST(a_code_is_void_after_some_wrong_secrets),
        TEST(a_code_ends),
        TEST(a_new_code_replaces_that_of_the_same_member),
        TEST(the_list_has_a_limit),
        TEST(a_node_accepts_only_the_certificate_of_its_code),
        TEST(a_node_trusts_the_authority_of_its_code_alone),
        TEST(a_member_is_no_service_of_enrolment),
        TEST(a_neighbour_that_retries_takes_no_place),
        TEST(failures_of_an_address_are_limited_and_forgotten),
        TEST(many_addresses_cost_no_memory_and_keep_the_newest),
        TEST(addresses_of_one_host_count_together),
        TEST(lines_of_a_minute_are_limited),
        TEST(a_message_is_read_when_all_of_it_is_there),
    };
#undef TEST

    return cmocka_run_group_tests(tests, NULL, NULL);
}
