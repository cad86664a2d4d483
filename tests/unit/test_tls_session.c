/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and sessions of TLS: two sessions, each with a socket whose other end
 * is the test's, which carries the bytes. */
#include "base/alloc.h"
#include "crypto/tls.h"
#include "support/certs.h"

#include <fnmatch.h>
#include <openssl/ssl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (1024u * 1024u)

static char dir[] = "/tmp/pskv-tls-XXXXXX";
static struct certs_authority *authority;

static int make_certificates(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    authority = certs_new("test authority");
    certs_write(authority, dir);
    certs_issue(authority,
                &(struct certs_wish){.uri = "ps://c/server/s1", .serial = 10},
                dir, "server");
    certs_issue(authority,
                &(struct certs_wish){.uri = "ps://c/agent/a1", .serial = 11},
                dir, "agent");
    return 0;
}

static int remove_certificates(void **state)
{
    static const char *const files[] = {
        "ca.crt",       "ca.key",       "server.crt", "server.key",
        "agent.crt",    "agent.key",    "bad.crt",    "bad.key",
        "other/ca.crt", "other/ca.key", "other",      "crl.pem"};
    char path[64];

    (void)state;
    certs_free(authority);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        (void)remove(path);
    }
    return rmdir(dir);
}

struct paths {
    char ca[64];
    char certificate[64];
    char key[64];
    char crl[64];
};

static int load_from(const char *ca_dir, const char *file, bool with_crl,
                     struct ps_tls_context **ret, char *text, size_t cap)
{
    struct paths p;
    struct ps_tls_source source = {.ca = p.ca,
                                   .certificate = p.certificate,
                                   .key = p.key,
                                   .crl = with_crl ? p.crl : NULL};
    struct ps_str why;

    snprintf(p.ca, sizeof(p.ca), "%s/ca.crt", ca_dir);
    snprintf(p.certificate, sizeof(p.certificate), "%s/%s.crt", dir, file);
    snprintf(p.key, sizeof(p.key), "%s/%s.key", dir, file);
    snprintf(p.crl, sizeof(p.crl), "%s/crl.pem", dir);
    ps_str_init(&why, text, cap);
    return ps_tls_context_new(&source, ret, &why);
}

static struct ps_tls_context *load(const char *file)
{
    struct ps_tls_context *c = NULL;
    char text[512];
    int rc = load_from(dir, file, false, &c, text, sizeof(text));

    if (rc != 0) {
        fail_msg("%s", text);
    }
    assert_string_equal(text, "");
    return c;
}

static void expect_no_context(const char *file, const char *reason)
{
    struct ps_tls_context *c = NULL;
    char text[512];

    assert_int_not_equal(load_from(dir, file, false, &c, text, sizeof(text)),
                         0);
    assert_null(c);
    if (strstr(text, reason) == NULL || strstr(text, dir) == NULL) {
        fail_msg("'%s' is not in '%s'", reason, text);
    }
}

/* A session with its socket. */
struct side {
    struct ps_tls_session *session;
    int fd;
    int way; /* The other end of the socket. */
};

static void side_begin(struct side *s, struct ps_tls_context *c, bool dialled)
{
    int fd[2];

    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fd),
        0);
    s->fd = fd[0];
    s->way = fd[1];
    s->session = ps_tls_session_new(c, s->fd, dialled);
    assert_non_null(s->session);
}

static void side_end(struct side *s)
{
    ps_tls_session_free(s->session);
    close(s->fd);
    close(s->way);
}

/* Moves up to `most` bytes of output of one session to the other. */
static size_t carry_some(struct side *from, struct side *to, size_t most)
{
    uint8_t bytes[65536];
    ssize_t len = recv(from->way, bytes,
                       most < sizeof(bytes) ? most : sizeof(bytes), MSG_PEEK);

    len = len > 0 ? send(to->way, bytes, (size_t)len, MSG_NOSIGNAL) : 0;
    return len > 0 ? (size_t)recv(from->way, bytes, (size_t)len, 0) : 0;
}

static void carry(struct side *from, struct side *to)
{
    while (carry_some(from, to, SIZE_MAX) > 0) {
    }
}

struct pair {
    struct ps_tls_context *contexts[2];
    struct side dialled;
    struct side accepted;
    char reasons[2][256];
    int rc[2];
};

/* Runs a handshake, `piece` bytes at a time. */
static void begin_pair(struct pair *p, struct ps_tls_context *dials,
                       struct ps_tls_context *accepts, size_t piece)
{
    struct ps_str why[2];

    memset(p, 0, sizeof(*p));
    p->contexts[0] = dials;
    p->contexts[1] = accepts;
    side_begin(&p->dialled, dials, true);
    side_begin(&p->accepted, accepts, false);
    ps_str_init(&why[0], p->reasons[0], sizeof(p->reasons[0]));
    ps_str_init(&why[1], p->reasons[1], sizeof(p->reasons[1]));
    p->rc[0] = p->rc[1] = PS_E_AGAIN;
    for (int i = 0; i < 100000; i++) {
        size_t moved;

        if (p->rc[0] == PS_E_AGAIN) {
            p->rc[0] = ps_tls_session_handshake(p->dialled.session, &why[0]);
        }
        moved = carry_some(&p->dialled, &p->accepted, piece);
        if (p->rc[1] == PS_E_AGAIN) {
            p->rc[1] = ps_tls_session_handshake(p->accepted.session, &why[1]);
        }
        moved += carry_some(&p->accepted, &p->dialled, piece);
        if (moved == 0 && (p->rc[0] != PS_E_AGAIN || p->rc[1] != PS_E_AGAIN)) {
            return;
        }
    }
    fail_msg("the handshake does not end");
}

static void end_pair(struct pair *p)
{
    side_end(&p->dialled);
    side_end(&p->accepted);
    ps_tls_context_unref(p->contexts[0]);
    ps_tls_context_unref(p->contexts[1]);
    assert_int_equal(ps_alloc_live(), 0);
}

static void good_pair(struct pair *p)
{
    begin_pair(p, load("agent"), load("server"), SIZE_MAX);
    assert_string_equal(p->reasons[0], "");
    assert_string_equal(p->reasons[1], "");
    assert_int_equal(p->rc[0], 0);
    assert_int_equal(p->rc[1], 0);
}

static void fill(uint8_t *bytes, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++) {
        bytes[i] = (uint8_t)(i * 31 + i / 251 + seed);
    }
}

/* Sends `len` bytes and reads them to places of `step` bytes. */
static void exchange(struct side *from, struct side *to, size_t len,
                     size_t step)
{
    uint8_t *bytes = malloc(len);
    uint8_t *got = calloc(1, len);
    size_t sent = 0;
    size_t read = 0;

    fill(bytes, len, (unsigned)step);
    while (read < len) {
        struct iovec out[2] = {
            {bytes + sent, (len - sent) / 3},
            {bytes + sent + (len - sent) / 3, len - sent - (len - sent) / 3}};
        ssize_t n = ps_tls_session_write(from->session, out,
                                         sent < len ? 2 : 0);

        assert_true(n >= 0 || n == PS_E_AGAIN);
        sent += n > 0 ? (size_t)n : 0;
        (void)carry_some(from, to, SIZE_MAX);
        size_t first = step < len - read ? step : len - read;
        size_t second = len - read - first < 100 ? len - read - first : 100;
        struct iovec in[2] = {{got + read, first},
                              {got + read + first, second}};

        n = ps_tls_session_read(to->session, in, 2);
        assert_true(n > 0 || n == PS_E_AGAIN);
        read += n > 0 ? (size_t)n : 0;
    }
    assert_memory_equal(bytes, got, len);
    assert_false(ps_tls_session_has_unread(to->session));
    assert_int_equal(ps_tls_session_unsent(from->session), 0);
    free(bytes);
    free(got);
}

static void handshake_gives_the_identities(void **state)
{
    struct pair p;

    (void)state;
    good_pair(&p);
    assert_int_equal(ps_tls_session_peer(p.accepted.session)->role,
                     PS_ROLE_AGENT);
    assert_string_equal(ps_tls_session_peer(p.accepted.session)->name, "a1");
    assert_string_equal(ps_tls_session_peer(p.dialled.session)->cluster, "c");
    assert_int_equal(ps_tls_session_peer(p.dialled.session)->role,
                     PS_ROLE_SERVER);
    assert_string_equal(ps_tls_session_cipher(p.dialled.session),
                        "TLS_AES_128_GCM_SHA256");
    assert_int_equal(ps_tls_session_peer_expires_at(p.dialled.session),
                     ps_tls_context_expires_at(p.contexts[1]));
    assert_in_range(ps_tls_context_expires_at(p.contexts[1]),
                    time(NULL) + 360L * 86400, time(NULL) + 366L * 86400);
    end_pair(&p);
}

static void handshake_completes_in_any_pieces(void **state)
{
    const size_t pieces[] = {1, 7, 100, 1000};

    (void)state;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct pair p;

        begin_pair(&p, load("agent"), load("server"), pieces[i]);
        assert_int_equal(p.rc[0], 0);
        assert_int_equal(p.rc[1], 0);
        exchange(&p.dialled, &p.accepted, 100, 100);
        end_pair(&p);
    }
}

static void bytes_arrive_in_both_directions(void **state)
{
    const size_t lens[] = {1, 100, 16383, 16384, 16385, 300000, 4 * MIB};
    const size_t steps[] = {1000, 16384, 16400, 70000, 8 * MIB};
    struct pair p;

    (void)state;
    good_pair(&p);
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        for (size_t j = 0; j < sizeof(steps) / sizeof(steps[0]); j++) {
            exchange(&p.dialled, &p.accepted, lens[i], steps[j]);
            exchange(&p.accepted, &p.dialled, lens[i], steps[j]);
        }
    }
    end_pair(&p);
}

/* The dialling side may send before the other has read its certificate. */
static void bytes_behind_the_handshake_are_kept(void **state)
{
    struct pair p;
    char hello[] = "hello";
    char bytes[6] = "";
    struct iovec out = {hello, 5};
    struct iovec in = {bytes, 5};
    struct ps_str why;
    char text[64];

    (void)state;
    memset(&p, 0, sizeof(p));
    ps_str_init(&why, text, sizeof(text));
    p.contexts[0] = load("agent");
    p.contexts[1] = load("server");
    side_begin(&p.dialled, p.contexts[0], true);
    side_begin(&p.accepted, p.contexts[1], false);
    assert_int_equal(ps_tls_session_handshake(p.dialled.session, &why),
                     PS_E_AGAIN);
    carry(&p.dialled, &p.accepted);
    assert_int_equal(ps_tls_session_handshake(p.accepted.session, &why),
                     PS_E_AGAIN);
    carry(&p.accepted, &p.dialled);
    assert_int_equal(ps_tls_session_handshake(p.dialled.session, &why), 0);
    assert_int_equal(ps_tls_session_write(p.dialled.session, &out, 1), 5);
    carry(&p.dialled, &p.accepted);
    assert_int_equal(ps_tls_session_handshake(p.accepted.session, &why), 0);
    assert_int_equal(ps_tls_session_read(p.accepted.session, &in, 1), 5);
    assert_string_equal(bytes, "hello");
    end_pair(&p);
}

/* A peer that does not read: what was sealed leaves first, and once. */
static void output_waits_for_the_socket(void **state)
{
    struct pair p;
    uint8_t *bytes = malloc(MIB);
    uint8_t *got = malloc(MIB);
    size_t sent = 0;
    size_t read = 0;

    (void)state;
    good_pair(&p);
    fill(bytes, MIB, 1);
    for (;;) {
        const struct iovec out = {bytes + sent, MIB - sent};
        ssize_t n = ps_tls_session_write(p.dialled.session, &out, 1);

        if (n < 0) {
            assert_int_equal(n, PS_E_AGAIN);
            break;
        }
        assert_in_range(n, 1, PS_TLS_BATCH_BYTES);
        sent += (size_t)n;
    }
    assert_int_not_equal(ps_tls_session_unsent(p.dialled.session), 0);
    while (read < sent) {
        const struct iovec in = {got + read, MIB - read};
        ssize_t n = ps_tls_session_write(p.dialled.session, NULL, 0);

        assert_true(n == 0 || n == PS_E_AGAIN);
        (void)carry_some(&p.dialled, &p.accepted, SIZE_MAX);
        n = ps_tls_session_read(p.accepted.session, &in, 1);
        assert_true(n > 0 || n == PS_E_AGAIN);
        read += n > 0 ? (size_t)n : 0;
    }
    assert_int_equal(read, sent);
    assert_memory_equal(bytes, got, sent);
    assert_int_equal(ps_tls_session_unsent(p.dialled.session), 0);
    free(bytes);
    free(got);
    end_pair(&p);
}

static void keys_change_after_many_records(void **state)
{
    struct pair p;

    (void)state;
    good_pair(&p);
    ps_tls_session_set_records_max(p.dialled.session, 3);
    for (int i = 0; i < 50; i++) {
        exchange(&p.dialled, &p.accepted, 200000, 30000);
        exchange(&p.accepted, &p.dialled, 1000, 1000);
    }
    end_pair(&p);
}

static void changed_bytes_are_refused(void **state)
{
    (void)state;
    for (size_t at = 0; at < 40; at++) {
        struct pair p;
        char bytes[32];
        struct iovec iov = {bytes, 18};
        uint8_t record[64];

        good_pair(&p);
        memset(bytes, 'x', sizeof(bytes));
        assert_int_equal(ps_tls_session_write(p.dialled.session, &iov, 1), 18);
        assert_int_equal(recv(p.dialled.way, record, sizeof(record), 0), 40);
        record[at] ^= 1;
        assert_int_equal(send(p.accepted.way, record, 40, 0), 40);
        ssize_t n = ps_tls_session_read(p.accepted.session, &iov, 1);

        /* A longer length waits for bytes that never come. */
        assert_true(n == PS_E_PROTO || (n == PS_E_AGAIN && at >= 3 && at <= 4));
        end_pair(&p);
    }
}

static void repeated_records_are_refused(void **state)
{
    struct pair p;
    char bytes[8] = "1234567";
    struct iovec iov = {bytes, 7};
    uint8_t record[64];

    (void)state;
    good_pair(&p);
    assert_int_equal(ps_tls_session_write(p.dialled.session, &iov, 1), 7);
    ssize_t len = recv(p.dialled.way, record, sizeof(record), 0);

    assert_int_equal(len, 29);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(send(p.accepted.way, record, 29, 0), 29);
    }
    assert_int_equal(ps_tls_session_read(p.accepted.session, &iov, 1), 7);
    assert_true(ps_tls_session_has_unread(p.accepted.session));
    assert_int_equal(ps_tls_session_read(p.accepted.session, &iov, 1),
                     PS_E_PROTO);
    assert_string_equal(ps_tls_session_failure(p.accepted.session),
                        "TLS record was changed on its way");
    end_pair(&p);
}

/* Writes a record of one byte, and moves it from the output to `record`. */
static void make_record(struct pair *p, char byte, uint8_t record[64])
{
    struct iovec iov = {&byte, 1};

    assert_int_equal(ps_tls_session_write(p->dialled.session, &iov, 1), 1);
    assert_int_equal(recv(p->dialled.way, record, 64, 0), 23);
}

/* The nonce of a record that is gone must not serve for the next one: neither
 * is the stream shorter, nor does it go on after a failure. */
static void missing_record_is_noticed_behind_a_good_one(void **state)
{
    const unsigned missing[] = {0, 1, 2};

    (void)state;
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
        struct pair p;
        uint8_t records[4][64];
        char bytes[8] = "";
        struct iovec iov = {bytes, sizeof(bytes)};

        good_pair(&p);
        for (unsigned j = 0; j < 4; j++) {
            make_record(&p, (char)('0' + j), records[j]);
            if (j != missing[i]) {
                assert_int_equal(send(p.accepted.way, records[j], 23, 0), 23);
            }
        }
        if (missing[i] > 0) {
            assert_int_equal(ps_tls_session_read(p.accepted.session, &iov, 1),
                             missing[i]);
            assert_memory_equal(bytes, "0123", missing[i]);
            assert_true(ps_tls_session_has_unread(p.accepted.session));
        }
        for (int j = 0; j < 5; j++) {
            assert_int_equal(ps_tls_session_read(p.accepted.session, &iov, 1),
                             PS_E_PROTO);
            assert_string_equal(ps_tls_session_failure(p.accepted.session),
                                "TLS record was changed on its way");
        }
        end_pair(&p);
    }
}

static void end_of_the_output_is_told(void **state)
{
    struct pair p;
    char bytes[8];
    struct iovec iov = {bytes, 8};

    (void)state;
    good_pair(&p);
    assert_int_equal(ps_tls_session_write(p.dialled.session, &iov, 1), 8);
    ps_tls_session_end(p.dialled.session);
    ps_tls_session_end(p.dialled.session);
    carry(&p.dialled, &p.accepted);
    assert_int_equal(ps_tls_session_read(p.accepted.session, &iov, 1), 8);
    assert_int_equal(ps_tls_session_read(p.accepted.session, &iov, 1),
                     PS_E_CLOSED);
    assert_int_equal(ps_tls_session_read(p.accepted.session, &iov, 1),
                     PS_E_CLOSED);
    end_pair(&p);
}

/* Times of validity, as they are in texts, with the clock of this host. */
#define AT  "20[0-9][0-9]-*T*:*:*Z"
#define NOW "this host's clock has " AT "; is the clock right[?]"

static void expect_form(const char *text, const char *form)
{
    if (fnmatch(form, text, 0) != 0) {
        fail_msg("'%s' is not of the form '%s'", text, form);
    }
}

static void issue_bad(const struct certs_wish *wish)
{
    certs_issue(authority, wish, dir, "bad");
}

static void refuse(struct ps_tls_context *dials, struct ps_tls_context *accepts,
                   const char *reason)
{
    struct pair p;
    char bytes[8];
    struct iovec iov = {bytes, sizeof(bytes)};

    begin_pair(&p, dials, accepts, SIZE_MAX);
    expect_form(p.reasons[1], reason);
    assert_int_not_equal(p.rc[1], 0);
    /* The dialling side learns it with the first bytes after its handshake. */
    assert_int_equal(p.rc[0], 0);
    assert_int_equal(ps_tls_session_read(p.dialled.session, &iov, 1),
                     PS_E_PERM);
    assert_non_null(strstr(ps_tls_session_failure(p.dialled.session),
                           "it refuses this side: "));
    end_pair(&p);
}

/* A server of another cluster, with an authority of its own. */
static struct ps_tls_context *load_of_other_authority(void)
{
    struct certs_authority *other = certs_new("other authority");
    struct ps_tls_context *c = NULL;
    char other_dir[64];
    char text[512];

    snprintf(other_dir, sizeof(other_dir), "%s/other", dir);
    (void)mkdir(other_dir, 0700);
    certs_write(other, other_dir);
    certs_issue(other,
                &(struct certs_wish){.uri = "ps://d/server/s", .serial = 5},
                dir, "bad");
    assert_int_equal(load_from(other_dir, "bad", false, &c, text, sizeof(text)),
                     0);
    certs_free(other);
    return c;
}

static void server_of_another_authority_is_refused(void **state)
{
    struct pair p;

    (void)state;
    begin_pair(&p, load("agent"), load_of_other_authority(), SIZE_MAX);
    assert_string_equal(p.reasons[0],
                        "its certificate is of another authority");
    assert_string_equal(p.reasons[1], "it refuses this side: unknown CA");
    end_pair(&p);
}

static void revoked_certificate_is_refused(void **state)
{
    const uint64_t serials[] = {11, 77};
    struct ps_tls_context *with_crl = NULL;
    struct ps_tls_context *without = load("server");
    char text[512];
    struct ps_str why;
    struct pair p;

    (void)state;
    certs_revoke(authority, serials, 2, dir);
    assert_int_equal(
        load_from(dir, "server", true, &with_crl, text, sizeof(text)), 0);
    /* A live connection. */
    begin_pair(&p, load("agent"), without, SIZE_MAX);
    ps_str_init(&why, text, sizeof(text));
    assert_int_equal(ps_tls_session_verify(p.accepted.session, without, &why),
                     0);
    assert_int_equal(ps_tls_session_verify(p.accepted.session, with_crl, &why),
                     PS_E_PERM);
    assert_string_equal(text, "certificate is revoked");
    ps_str_init(&why, text, sizeof(text));
    assert_int_equal(ps_tls_session_verify(p.dialled.session, with_crl, &why),
                     0);
    side_end(&p.dialled);
    side_end(&p.accepted);
    ps_tls_context_unref(p.contexts[0]);
    ps_tls_context_unref(p.contexts[1]);
    /* A new one. */
    refuse(load("agent"), with_crl, "its certificate is revoked");
}

/* A clock that is behind: to the accepting side the list is of the future. The
 * dialling side hears of a bad certificate alone. */
static void list_of_the_future_names_both_times(void **state)
{
    struct ps_tls_context *c = NULL;
    struct pair p;
    char text[512];
    char bytes[8];
    struct iovec iov = {bytes, sizeof(bytes)};

    (void)state;
    certs_list(authority, 0, 3600, dir);
    assert_int_equal(load_from(dir, "server", true, &c, text, sizeof(text)), 0);
    begin_pair(&p, load("agent"), c, SIZE_MAX);
    expect_form(p.reasons[1],
                "its authority '*' has a list of revoked "
                "certificates that is not valid yet: it begins " AT
                ", and " NOW);
    assert_int_equal(ps_tls_session_read(p.dialled.session, &iov, 1),
                     PS_E_PERM);
    expect_form(
        ps_tls_session_failure(p.dialled.session),
        "it refuses this side: bad certificate; this host's clock has " AT
        "; is the clock right, here and there[?]");
    end_pair(&p);
}

/* Lists of an authority and of one below it, each with one revoked number. */
#define MIDDLE 50
#define BELOW  500

static const struct {
    uint64_t revoked_above; /* 0: there is no list. */
    uint64_t revoked_below;
    const char *reason; /* For which a certificate is refused; NULL: none. */
} chain_lists[] = {
    {9, 9, NULL},
    {9, BELOW, "its certificate is revoked"},
    {MIDDLE, 9, "its authority 'middle' is revoked"},
    {BELOW, 9, NULL}, /* A number counts for its own authority only. */
    {9, MIDDLE, NULL},
    {9, 0,
     "its authority 'middle' has no list of revoked certificates here "
     "(security.tls.crl)"},
};

/* authority -> middle -> BELOW */
static void lists_of_all_authorities_of_a_chain_count(void **state)
{
    struct certs_authority *middle = certs_new_below(authority, "middle",
                                                     MIDDLE);
    const uint64_t one = 9;
    struct ps_tls_context *with_lists = NULL;
    char text[512];
    struct pair p;

    (void)state;
    certs_issue(
        middle,
        &(struct certs_wish){.uri = "ps://c/agent/below", .serial = BELOW}, dir,
        "bad");
    certs_add_to_chain(middle, dir, "bad");
    for (size_t i = 0; i < sizeof(chain_lists) / sizeof(chain_lists[0]); i++) {
        certs_revoke(authority, &chain_lists[i].revoked_above, 1, dir);
        if (chain_lists[i].revoked_below != 0) {
            certs_revoke_also(middle, &chain_lists[i].revoked_below, 1, dir);
        }
        assert_int_equal(
            load_from(dir, "server", true, &with_lists, text, sizeof(text)), 0);
        if (chain_lists[i].reason != NULL) {
            refuse(load("bad"), with_lists, chain_lists[i].reason);
            continue;
        }
        begin_pair(&p, load("bad"), with_lists, SIZE_MAX);
        assert_string_equal(p.reasons[1], "");
        assert_int_equal(p.rc[1], 0);
        end_pair(&p);
    }
    /* A daemon without the list of its own authority does not start. */
    certs_revoke(middle, &one, 1, dir);
    assert_int_not_equal(
        load_from(dir, "server", true, &with_lists, text, sizeof(text)), 0);
    assert_non_null(strstr(text, "authority 'test authority' has no list of "
                                 "revoked certificates here"));
    certs_free(middle);
}

static struct ps_tls_context *load_with_list(const char *file)
{
    struct ps_tls_context *c = NULL;
    char text[512];

    if (load_from(dir, file, true, &c, text, sizeof(text)) != 0) {
        fail_msg("%s", text);
    }
    return c;
}

/* A list in use and one that is offered: number, 0: none, and seconds from
 * now. */
static const struct {
    uint64_t number[2];
    long made[2];
    const char *reason; /* NULL: it may replace the other. */
} list_pairs[] = {
    {{5, 6}, {-100, -50}, NULL},
    {{5, 5}, {-100, -100}, NULL},
    {{5, 6}, {-100, -200}, NULL}, /* The number counts. */
    {{6, 5}, {-100, -50}, "in use: number 5 of "},
    {{300, 200}, {-100, -100}, ", in use number 300 of "},
    {{UINT64_MAX, 1}, {-100, -100}, ", in use number 18446744073709551615 of "},
    {{0, 0}, {-200, -100}, NULL},
    {{0, 0}, {-100, -100}, NULL},
    {{0, 0}, {-100, -200}, "in use: of "},
    {{0, 9}, {-100, -200}, "in use: number 9 of "},
    {{9, 0}, {-100, -200}, ", in use number 9 of "},
    {{9, 0}, {-200, -100}, NULL},
};

static void an_older_list_replaces_no_newer_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(list_pairs) / sizeof(list_pairs[0]); i++) {
        struct ps_tls_context *c[2];
        char text[512];
        struct ps_str why;

        for (size_t k = 0; k < 2; k++) {
            certs_list(authority, list_pairs[i].number[k],
                       list_pairs[i].made[k], dir);
            c[k] = load_with_list("server");
        }
        ps_str_init(&why, text, sizeof(text));
        if (list_pairs[i].reason == NULL) {
            assert_int_equal(ps_tls_context_check_lists(c[0], c[1], &why), 0);
            assert_string_equal(text, "");
        } else {
            assert_int_equal(ps_tls_context_check_lists(c[0], c[1], &why),
                             PS_E_STALE);
            if (strstr(text, list_pairs[i].reason) == NULL ||
                strstr(text, "authority 'test authority' is older") == NULL) {
                fail_msg("'%s' is not in '%s'", list_pairs[i].reason, text);
            }
        }
        ps_tls_context_unref(c[0]);
        ps_tls_context_unref(c[1]);
    }
}

/* An authority, then also one below it; of each the newest list counts, and one
 * that has none any more is no matter of age. */
static void lists_of_other_authorities_are_not_compared(void **state)
{
    struct certs_authority *middle = certs_new_below(authority, "middle",
                                                     MIDDLE);
    const uint64_t one = 9;
    struct ps_tls_context *old;
    struct ps_tls_context *both;
    struct ps_tls_context *none = load("server");
    char text[512];
    struct ps_str why;

    (void)state;
    ps_str_init(&why, text, sizeof(text));
    certs_list(authority, 0, -60, dir);
    old = load_with_list("server");
    certs_revoke_also(middle, &one, 1, dir); /* An hour ago. */
    certs_revoke_also(authority, &one, 1, dir);
    both = load_with_list("server");
    assert_int_equal(ps_tls_context_check_lists(old, both, &why), 0);
    assert_int_equal(ps_tls_context_check_lists(both, old, &why), 0);
    assert_int_equal(ps_tls_context_check_lists(old, none, &why), 0);
    assert_int_equal(ps_tls_context_check_lists(none, old, &why), 0);
    assert_string_equal(text, "");
    ps_tls_context_unref(old);
    ps_tls_context_unref(both);
    ps_tls_context_unref(none);
    certs_free(middle);
}

static void end_of_an_authority_in_the_chain_is_that_of_the_peer(void **state)
{
    struct certs_authority *middle = certs_new_below(authority, "middle",
                                                     MIDDLE);
    int64_t end;
    struct pair p;

    (void)state;
    certs_issue(middle,
                &(struct certs_wish){.uri = "ps://c/agent/below",
                                     .serial = BELOW,
                                     .ends = 800L * 86400},
                dir, "bad");
    certs_add_to_chain(middle, dir, "bad");
    begin_pair(&p, load("bad"), load("server"), SIZE_MAX);
    assert_int_equal(p.rc[1], 0);
    end = ps_tls_session_peer_expires_at(p.accepted.session) -
          (int64_t)time(NULL);
    assert_in_range((uint64_t)end, CERTS_AUTHORITY_ENDS - 86400,
                    CERTS_AUTHORITY_ENDS);
    end_pair(&p);
    certs_free(middle);
}

static void certificate_that_peers_would_refuse_is_not_loaded(void **state)
{
    (void)state;
    issue_bad(&(struct certs_wish){.serial = 13});
    expect_no_context("bad", "not exactly one name of the form");
    issue_bad(&(struct certs_wish){.uri = "ps://c/agent/a1",
                                   .second_uri = "ps://c/server/s1",
                                   .serial = 14});
    expect_no_context("bad", "not exactly one name of the form");
    issue_bad(&(struct certs_wish){.uri = "https://c/agent/a1", .serial = 15});
    expect_no_context("bad", "not exactly one name of the form");
    issue_bad(&(struct certs_wish){
        .uri = "ps://c/agent/a1", .self_signed = 1, .serial = 16});
    expect_no_context("bad", "certificate is self-signed");
    issue_bad(&(struct certs_wish){
        .uri = "ps://c/agent/a1", .ends = -60, .serial = 12});
    expect_no_context("bad", "certificate has expired: it ended ");
    expect_no_context("bad", "; is the clock right? If it is, issue another");
}

static void key_that_others_can_read_is_refused(void **state)
{
    char path[64];

    (void)state;
    certs_issue(authority,
                &(struct certs_wish){.uri = "ps://c/agent/a1", .serial = 17},
                dir, "bad");
    snprintf(path, sizeof(path), "%s/bad.key", dir);
    assert_int_equal(chmod(path, 0640), 0);
    expect_no_context("bad", "other users may read the key (mode 0640); chmod "
                             "600");
}

/* The list of authorities decides which process is a peer. */
static void files_that_others_can_write_are_refused(void **state)
{
    static const char *const files[] = {"ca.crt", "agent.crt"};
    char path[64];

    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        assert_int_equal(chmod(path, 0664), 0);
        expect_no_context("agent", "other users can write it; run 'chmod go-w");
        assert_int_equal(chmod(path, 0644), 0);
    }
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 4321, (gid_t)-1), 0);
        expect_no_context("agent", "user 4321 can change it; run this as "
                                   "user 4321 if the daemon is that user's, "
                                   "else run 'chown 0");
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    }
    ps_tls_context_unref(load("agent"));
}

static void files_with_other_content_are_refused(void **state)
{
    char from[64];
    char to[64];

    (void)state;
    expect_no_context("none", "cannot be read: No such file or directory");
    certs_issue(authority,
                &(struct certs_wish){.uri = "ps://c/agent/a1", .serial = 18},
                dir, "bad");
    snprintf(from, sizeof(from), "%s/agent.key", dir);
    snprintf(to, sizeof(to), "%s/bad.key", dir);
    assert_int_equal(rename(to, from), 0); /* agent.crt loses its key. */
    expect_no_context("agent", "key values mismatch");
    certs_issue(authority,
                &(struct certs_wish){.uri = "ps://c/agent/a1", .serial = 11},
                dir, "agent");
    FILE *f = fopen(to, "we");

    assert_non_null(f);
    assert_true(fputs("nothing\n", f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(to, 0600), 0);
    expect_no_context("bad", "no PEM text");
}

static void context_may_come_from_one_text(void **state)
{
    char *key = certs_text(dir, "agent.key");
    char *certificate = certs_text(dir, "agent.crt");
    char *ca = certs_text(dir, "ca.crt");
    struct ps_tls_context *c = NULL;
    char text[512];
    struct ps_str why;
    struct pair p;
    char *all = malloc(65536);

    (void)state;
    snprintf(all, 65536, "%s%s%s", key, certificate, ca);
    ps_str_init(&why, text, sizeof(text));
    assert_int_equal(
        ps_tls_context_new(&(struct ps_tls_source){.pem = all}, &c, &why), 0);
    begin_pair(&p, c, load("server"), SIZE_MAX);
    assert_int_equal(p.rc[0], 0);
    assert_int_equal(p.rc[1], 0);
    end_pair(&p);
    snprintf(all, 65536, "%s%s", key, certificate);
    assert_int_not_equal(
        ps_tls_context_new(&(struct ps_tls_source){.pem = all}, &c, &why), 0);
    free(all);
    free(key);
    free(certificate);
    free(ca);
}

/* OpenSSL by itself, at the other end of a session's socket. */
static SSL *begin_openssl(int fd, bool dials, const char *suite)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());
    const char *name = dials ? "agent" : "server";
    char path[64];

    assert_int_equal(SSL_CTX_set_ciphersuites(ctx, suite), 1);
    snprintf(path, sizeof(path), "%s/%s.crt", dir, name);
    assert_int_equal(SSL_CTX_use_certificate_file(ctx, path, SSL_FILETYPE_PEM),
                     1);
    snprintf(path, sizeof(path), "%s/%s.key", dir, name);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM),
                     1);
    snprintf(path, sizeof(path), "%s/ca.crt", dir);
    assert_int_equal(SSL_CTX_load_verify_file(ctx, path), 1);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       NULL);
    SSL *ssl = SSL_new(ctx);

    assert_int_equal(SSL_set_fd(ssl, fd), 1);
    if (dials) {
        SSL_set_connect_state(ssl);
    } else {
        SSL_set_accept_state(ssl);
    }
    SSL_CTX_free(ctx);
    return ssl;
}

/* Makes a session with OpenSSL at the other end; returns that end. */
static SSL *meet_openssl(struct side *s, bool dialled, const char *suite)
{
    struct ps_tls_context *c = load(dialled ? "agent" : "server");
    int rc = PS_E_AGAIN;
    char text[256];
    struct ps_str why;
    SSL *ssl;

    ps_str_init(&why, text, sizeof(text));
    side_begin(s, c, dialled);
    ps_tls_context_unref(c);
    ssl = begin_openssl(s->way, !dialled, suite);
    for (int i = 0; i < 10; i++) {
        (void)SSL_do_handshake(ssl);
        if (rc != 0) {
            rc = ps_tls_session_handshake(s->session, &why);
        }
    }
    assert_string_equal(text, "");
    assert_int_equal(rc, 0);
    assert_true(SSL_is_init_finished(ssl));
    assert_string_equal(ps_tls_session_cipher(s->session), suite);
    return ssl;
}

static void send_by_openssl(SSL *ssl, struct ps_tls_session *s, uint8_t *bytes,
                            uint8_t *got, size_t len)
{
    size_t read = 0;

    assert_int_equal(SSL_write(ssl, bytes, (int)len), (int)len);
    while (read < len) {
        struct iovec iov = {got + read, len - read < 9000 ? len - read : 9000};
        ssize_t n = ps_tls_session_read(s, &iov, 1);

        assert_true(n > 0);
        read += (size_t)n;
    }
    assert_memory_equal(bytes, got, len);
}

static void send_to_openssl(SSL *ssl, struct ps_tls_session *s, uint8_t *bytes,
                            uint8_t *got, size_t len)
{
    struct iovec iov[2] = {{bytes, 7}, {bytes + 7, len - 7}};
    size_t read = 0;

    memset(got, 0, len);
    assert_int_equal(ps_tls_session_write(s, iov, 2), (ssize_t)len);
    while (read < len) {
        int n = SSL_read(ssl, got + read, (int)(len - read));

        assert_true(n > 0);
        read += (size_t)n;
    }
    assert_memory_equal(bytes, got, len);
}

static void talk_with_openssl(bool dialled, const char *suite)
{
    enum { LEN = 40000 };
    uint8_t *bytes = malloc(LEN);
    uint8_t *got = malloc(LEN);
    struct iovec iov = {got, LEN};
    struct side s;
    SSL *ssl = meet_openssl(&s, dialled, suite);

    ps_tls_session_set_records_max(s.session, 4);
    for (unsigned i = 0; i < 20; i++) {
        fill(bytes, LEN, i);
        if (i % 3 == 2) {
            assert_int_equal(
                SSL_key_update(ssl, i % 2 == 0 ? SSL_KEY_UPDATE_REQUESTED
                                               : SSL_KEY_UPDATE_NOT_REQUESTED),
                1);
        }
        send_by_openssl(ssl, s.session, bytes, got, LEN);
        send_to_openssl(ssl, s.session, bytes, got, LEN);
    }
    ps_tls_session_end(s.session);
    assert_int_equal(SSL_read(ssl, got, 1), 0);
    assert_int_equal(SSL_get_error(ssl, 0), SSL_ERROR_ZERO_RETURN);
    assert_true(SSL_shutdown(ssl) >= 0);
    assert_int_equal(ps_tls_session_read(s.session, &iov, 1), PS_E_CLOSED);
    free(bytes);
    free(got);
    SSL_free(ssl);
    side_end(&s);
}

/* Keys change at both ends, and at the request of the other. */
static void records_are_those_of_openssl(void **state)
{
    (void)state;
    for (int dialled = 0; dialled < 2; dialled++) {
        talk_with_openssl(dialled != 0, "TLS_AES_128_GCM_SHA256");
        talk_with_openssl(dialled != 0, "TLS_AES_256_GCM_SHA384");
    }
    assert_int_equal(ps_alloc_live(), 0);
}

/* A peer that sends nothing but new keys. */
static void records_without_data_are_limited(void **state)
{
    char bytes[8];
    struct iovec iov = {bytes, sizeof(bytes)};
    ssize_t rc = PS_E_AGAIN;
    unsigned sent = 0;
    struct side s;
    SSL *ssl = meet_openssl(&s, false, "TLS_AES_128_GCM_SHA256");

    (void)state;
    while (rc == PS_E_AGAIN && sent++ < 1000) {
        assert_int_equal(SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(ssl), 1);
        rc = ps_tls_session_read(s.session, &iov, 1);
    }
    assert_int_equal(rc, PS_E_PROTO);
    assert_in_range(sent, 20, 100);
    assert_string_equal(ps_tls_session_failure(s.session),
                        "too many records of TLS without data");
    SSL_free(ssl);
    side_end(&s);
    assert_int_equal(ps_alloc_live(), 0);
}

/* A client of OpenSSL that does what ours never does. */
static void expect_refusal_of(SSL_CTX *ctx, const char *reason)
{
    struct ps_tls_context *c = load("server");
    SSL *ssl = SSL_new(ctx);
    int rc = PS_E_AGAIN;
    char text[256];
    struct side s;
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    side_begin(&s, c, false);
    ps_tls_context_unref(c);
    assert_int_equal(SSL_set_fd(ssl, s.way), 1);
    SSL_set_connect_state(ssl);
    for (int i = 0; i < 10 && rc == PS_E_AGAIN; i++) {
        (void)SSL_do_handshake(ssl);
        rc = ps_tls_session_handshake(s.session, &why);
    }
    expect_form(text, reason);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    side_end(&s);
}

/* A client with a certificate that ours would not load. */
static SSL_CTX *bad_client(void)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    char path[64];

    snprintf(path, sizeof(path), "%s/bad.crt", dir);
    assert_int_equal(SSL_CTX_use_certificate_file(ctx, path, SSL_FILETYPE_PEM),
                     1);
    snprintf(path, sizeof(path), "%s/bad.key", dir);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(ctx, path, SSL_FILETYPE_PEM),
                     1);
    return ctx;
}

static void invalid_certificates_of_a_peer_are_refused(void **state)
{
    (void)state;
    issue_bad(&(struct certs_wish){
        .uri = "ps://c/agent/a1", .ends = -60, .serial = 20});
    expect_refusal_of(bad_client(),
                      "its certificate has expired: it ended " AT ", and " NOW);
    issue_bad(&(struct certs_wish){
        .uri = "ps://c/agent/a1", .begins = 3600, .serial = 21});
    expect_refusal_of(bad_client(), "its certificate is not valid yet: it "
                                    "begins " AT ", and " NOW);
    issue_bad(&(struct certs_wish){
        .uri = "ps://c/agent/a1", .self_signed = 1, .serial = 22});
    expect_refusal_of(bad_client(), "its certificate is self-signed");
    issue_bad(&(struct certs_wish){.serial = 23});
    expect_refusal_of(bad_client(),
                      "its certificate has not exactly one name of the form "
                      "URI:ps://CLUSTER/ROLE/NAME");
    struct certs_authority *other = certs_new("other authority");

    certs_issue(other,
                &(struct certs_wish){.uri = "ps://c/agent/a1", .serial = 24},
                dir, "bad");
    certs_free(other);
    expect_refusal_of(bad_client(), "its certificate is of another authority");
}

static void peer_without_certificate_is_refused(void **state)
{
    (void)state;
    expect_refusal_of(SSL_CTX_new(TLS_client_method()),
                      "it has no certificate");
}

static void older_tls_is_refused(void **state)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());

    (void)state;
    assert_int_equal(SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION), 1);
    expect_refusal_of(ctx, "it does not use TLS 1.3");
}

static void bytes_that_are_not_tls_are_refused(void **state)
{
    static const char *const texts[] = {"GET / HTTP/1.1\r\n\r\n",
                                        "PS\1\1\0\0\0\20\0\0\0\0\0\0\0\0\0"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct ps_tls_context *c = load("server");
        char text[256];
        struct side s;
        struct ps_str why;

        ps_str_init(&why, text, sizeof(text));
        side_begin(&s, c, false);
        ps_tls_context_unref(c);
        assert_false(ps_tls_session_has_input(s.session));
        assert_int_equal(send(s.way, texts[i], 16, 0), 16);
        assert_int_equal(ps_tls_session_handshake(s.session, &why),
                         PS_E_VERSION);
        assert_string_equal(text, "it does not use TLS");
        assert_true(ps_tls_session_has_input(s.session));
        side_end(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handshake_gives_the_identities),
        cmocka_unit_test(handshake_completes_in_any_pieces),
        cmocka_unit_test(bytes_arrive_in_both_directions),
        cmocka_unit_test(bytes_behind_the_handshake_are_kept),
        cmocka_unit_test(output_waits_for_the_socket),
        cmocka_unit_test(keys_change_after_many_records),
        cmocka_unit_test(changed_bytes_are_refused),
        cmocka_unit_test(repeated_records_are_refused),
        cmocka_unit_test(missing_record_is_noticed_behind_a_good_one),
        cmocka_unit_test(end_of_the_output_is_told),
        cmocka_unit_test(records_without_data_are_limited),
        cmocka_unit_test(server_of_another_authority_is_refused),
        cmocka_unit_test(list_of_the_future_names_both_times),
        cmocka_unit_test(revoked_certificate_is_refused),
        cmocka_unit_test(lists_of_all_authorities_of_a_chain_count),
        cmocka_unit_test(an_older_list_replaces_no_newer_one),
        cmocka_unit_test(lists_of_other_authorities_are_not_compared),
        cmocka_unit_test(end_of_an_authority_in_the_chain_is_that_of_the_peer),
        cmocka_unit_test(records_are_those_of_openssl),
        cmocka_unit_test(invalid_certificates_of_a_peer_are_refused),
        cmocka_unit_test(certificate_that_peers_would_refuse_is_not_loaded),
        cmocka_unit_test(key_that_others_can_read_is_refused),
        cmocka_unit_test(files_that_others_can_write_are_refused),
        cmocka_unit_test(files_with_other_content_are_refused),
        cmocka_unit_test(context_may_come_from_one_text),
        cmocka_unit_test(peer_without_certificate_is_refused),
        cmocka_unit_test(older_tls_is_refused),
        cmocka_unit_test(bytes_that_are_not_tls_are_refused),
    };

    (void)signal(SIGPIPE, SIG_IGN); /* OpenSSL writes to the sockets. */
    return cmocka_run_group_tests(tests, make_certificates,
                                  remove_certificates);
}
