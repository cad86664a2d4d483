/* SPDX-License-Identifier: Apache-2.0 */
/* `psctl pki serve`: exchanges one-time codes for certificates, over TLS, until a
 * signal ends it. One thread; no connection waits for another.
 *
 *     node               psctl pki serve
 *     TLS handshake  <-> certificate of enrolment, and that of the authority
 *     enrol          -->
 *                    <-- enrolled, with the certificate or with a reason
 *
 * A connection has ten seconds in all, and memory for one request. Anything but
 * a certificate that is given out counts as a failure of its address.
 *
 * One-time codes are in the folder of the authority. A code is removed on disk
 * before its certificate is issued, so a run that is killed in between gives out
 * neither; the node needs another code then. */
#include "psctl/pki.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "crypto/enrolment.h"
#include "net/addr.h"
#include "psctl/pki_limit.h"
#include "psctl/psctl.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* -------------------------------------------------------------------- codes */

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
    struct pki_hosts hosts;
    int exit_code;

    ps_str_copy(id.name, sizeof(id.name), r->name);
    ps_str_copy(id.cluster, sizeof(id.cluster), s->info.identity.cluster);
    pki_hosts_split(r->hosts, &hosts);
    q.hosts = hosts.list;
    q.host_count = hosts.count;
    exit_code = pki_store_issue(s, &q, key, now, grant);
    pki_hosts_fini(&hosts);
    return exit_code == 0 ? 0 : PS_E_IO;
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

/* Exchanges a one-time code for a certificate. On failure, PS_E_*: `why` gets the
 * reason for the node, and `detail` that for the operator. */
static int redeem_code(const char *directory,
                       const struct ps_msg_enrol *request,
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

/* ------------------------------------------------------------------ service */

#define CONNECTIONS_MAX 64u
#define CONNECTION_TIME PS_SECONDS(10)
#define BACKLOG         64
/* Validity of the certificate of enrolment, which is made again when half of it
 * is over. */
#define TLS_TIME        (2 * PKI_DAY)
/* Time between two attempts to make it. */
#define TLS_PAUSE       INT64_C(600)
/* Pause after the system had no descriptor for a connection. */
#define ACCEPT_PAUSE    PS_MILLIS(100)

enum phase {
    PHASE_HANDSHAKE,
    PHASE_REQUEST,
    PHASE_ANSWER,
    PHASE_END, /* Waits for the node to close. */
};

static const uint32_t allowed_phases[] = {
    [PHASE_HANDSHAKE] = PS_STATE_BIT(PHASE_REQUEST),
    [PHASE_REQUEST] = PS_STATE_BIT(PHASE_ANSWER),
    [PHASE_ANSWER] = PS_STATE_BIT(PHASE_END),
    [PHASE_END] = 0,
};

static const struct ps_state_table phase_table = {
    .name = "connection of enrolment",
    .count = PHASE_END + 1,
    .allowed = allowed_phases,
};

struct connection {
    int fd;
    SSL *ssl;
    uint8_t phase; /* enum phase. */
    short events;  /* For which it waits. */
    bool is_good;  /* A certificate was issued. */
    ps_time deadline;
    uint8_t *bytes; /* Of the request, then of the answer. */
    size_t len;
    size_t capacity;
    char source[PKI_LIMIT_ADDRESS];
    char address[PKI_LIMIT_ADDRESS];
};

struct service {
    const char *directory;
    int listener;
    int signals;
    SSL_CTX *tls;
    int64_t tls_until;
    struct ps_decoder *decoder;
    ps_time paused_until;
    struct pki_limit limit;
    struct connection *connections[CONNECTIONS_MAX];
    size_t count;
};

/* ------------------------------------------------------------------- refusal */

static void report_refusal(struct service *s, const struct connection *c,
                           const char *why)
{
    uint32_t omitted;

    if (!pki_limit_line(&s->limit, monotonic_now(), &omitted)) {
        return;
    }
    if (omitted > 0) {
        pki_error("%u refusals more", (unsigned)omitted);
    }
    pki_error("refused %s: %s", c->address, why);
}

/* Prefers OpenSSL's reason. */
static void report_tls(struct service *s, const struct connection *c,
                       const char *what)
{
    unsigned long error = ERR_peek_last_error();
    const char *reason = error != 0 ? ERR_reason_error_string(error) : NULL;
    char text[256];

    snprintf(text, sizeof(text), "%s: %s", what,
             reason != NULL ? reason : "the connection was closed");
    ERR_clear_error();
    report_refusal(s, c, text);
}

/* ---------------------------------------------------------------- connection */

static void connection_free(struct service *s, struct connection *c)
{
    pki_limit_end(&s->limit, c->source, !c->is_good, monotonic_now());
    SSL_free(c->ssl);
    close(c->fd);
    OPENSSL_cleanse(c->bytes, c->capacity);
    ps_free(c->bytes);
    ps_free(c);
}

static void set_answer(struct connection *c, const struct ps_msg *msg,
                       uint16_t version)
{
    size_t capacity = ps_msg_encoded_bound(msg);

    OPENSSL_cleanse(c->bytes, c->capacity);
    ps_free(c->bytes);
    c->bytes = ps_alloc(capacity);
    c->capacity = capacity;
    if (ps_msg_encode(msg, version, 0, c->bytes, capacity, &c->len) != 0) {
        c->len = 0; /* Ends the connection. */
    }
    ps_state_change(&phase_table, &c->phase, PHASE_ANSWER);
}

/* Exchanges the code, and makes the answer. */
static void answer_request(struct service *s, struct connection *c,
                           const struct ps_msg_enrol *q)
{
    const uint16_t version = q->protocol < PS_PROTOCOL ? q->protocol
                                                       : PS_PROTOCOL;
    struct ps_msg msg = {.code = PS_MSG_ENROLLED};
    struct pki_grant grant;
    struct ps_str text = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_str log = PS_STR_ROOM(PS_TEXT_MAX + 1);
    int rc;

    if (q->protocol < PS_PROTOCOL_LEAST) {
        ps_str_add(&text, "the version of psctl is too old");
        ps_str_add(&log, text.data);
        rc = PS_E_VERSION;
    } else {
        rc = redeem_code(s->directory, q, &grant, &text, &log);
    }
    if (rc != 0) {
        msg.enrolled = (struct ps_msg_enrolled){.error = rc, .text = text.data};
        set_answer(c, &msg, version);
        report_refusal(s, c, log.data);
        return;
    }
    msg.enrolled = (struct ps_msg_enrolled){.certificate = grant.certificate,
                                            .authority = grant.authority,
                                            .crl = grant.crl};
    set_answer(c, &msg, version);
    c->is_good = true;
    printf("%s %s enrolled from %s\n", ps_role_name(grant.info.identity.role),
           grant.info.identity.name, c->address);
    (void)fflush(stdout);
    pki_grant_fini(&grant);
}

/* True if the call is to be repeated when the socket is ready. */
static bool is_waiting(struct connection *c, int result)
{
    switch (SSL_get_error(c->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        c->events = POLLIN;
        return true;
    case SSL_ERROR_WANT_WRITE:
        c->events = POLLOUT;
        return true;
    default:
        return false;
    }
}

/* Reads once. False: the connection is over. */
static bool read_request(struct service *s, struct connection *c,
                         bool *ret_waits)
{
    struct ps_msg msg;
    int n = SSL_read(c->ssl, c->bytes + c->len, (int)(c->capacity - c->len));
    int rc;

    if (n <= 0) {
        *ret_waits = is_waiting(c, n);
        if (!*ret_waits) {
            report_tls(s, c, "no request");
        }
        return *ret_waits;
    }
    c->len += (size_t)n;
    rc = pki_message_read(s->decoder, PS_MSG_ENROL, c->bytes, c->len, &msg);
    if (rc == 0) {
        answer_request(s, c, &msg.enrol);
    } else if (rc != PS_E_AGAIN || c->len == c->capacity) {
        report_refusal(s, c, "its request is malformed");
        return false;
    }
    return true;
}

/* Writes the answer and ends this side of the connection. */
static bool write_answer(struct connection *c, bool *ret_waits)
{
    int n = c->len > 0 ? SSL_write(c->ssl, c->bytes, (int)c->len) : -1;

    if (n <= 0) {
        *ret_waits = c->len > 0 && is_waiting(c, n);
        return *ret_waits;
    }
    (void)SSL_shutdown(c->ssl);
    (void)shutdown(c->fd, SHUT_WR);
    ps_state_change(&phase_table, &c->phase, PHASE_END);
    return true;
}

/* Continues as far as the socket allows. False: the connection is over. */
static bool connection_run(struct service *s, struct connection *c)
{
    bool waits = false;
    bool is_open = true;
    char byte;
    int n;

    while (is_open && !waits) {
        ERR_clear_error();
        switch ((enum phase)c->phase) {
        case PHASE_HANDSHAKE:
            n = SSL_accept(c->ssl);
            if (n == 1) {
                ps_state_change(&phase_table, &c->phase, PHASE_REQUEST);
                break;
            }
            is_open = waits = is_waiting(c, n);
            if (!is_open) {
                report_tls(s, c, "the handshake failed");
            }
            break;
        case PHASE_REQUEST:
            is_open = read_request(s, c, &waits);
            break;
        case PHASE_ANSWER:
            is_open = write_answer(c, &waits);
            break;
        case PHASE_END:
            n = SSL_read(c->ssl, &byte, 1);
            is_open = waits = n <= 0 && is_waiting(c, n);
            break;
        }
    }
    ERR_clear_error();
    return is_open;
}

/* -------------------------------------------------------------------- accept */

/* Makes the certificate of enrolment. */
static int make_tls(struct service *s, int64_t now)
{
    struct ps_pki_period period;
    struct pki_store store;
    struct ps_str text = PS_STR_ROOM(256);
    SSL_CTX *tls = NULL;
    int exit_code = pki_store_open(s->directory, true, &store);

    if (exit_code != 0) {
        return exit_code;
    }
    period = (struct ps_pki_period){now - PKI_CLOCK_MARGIN, now + TLS_TIME};
    if (ps_enrolment_tls_accepting(&store.authority, &period, &tls, &text) !=
        0) {
        pki_error("%s", text.data);
        exit_code = EXIT_FAILED;
    } else {
        SSL_CTX_free(s->tls);
        s->tls = tls;
        s->tls_until = now + TLS_TIME / 2;
    }
    pki_store_close(&store);
    return exit_code;
}

/* Makes it again if half of its validity is over. Failing that, the present one
 * is good for a while. */
static void renew_tls(struct service *s)
{
    const int64_t now = pki_now();

    if (now >= s->tls_until && make_tls(s, now) != 0) {
        s->tls_until = now + TLS_PAUSE;
    }
}

static void add_connection(struct service *s, int fd,
                           const struct sockaddr *address, ps_time now)
{
    struct connection *c = ps_calloc(1, sizeof(*c));

    c->fd = fd;
    c->events = POLLIN;
    c->deadline = ps_time_add(now, CONNECTION_TIME);
    c->capacity = pki_message_bytes(PS_MSG_ENROL);
    c->bytes = ps_calloc(1, c->capacity);
    pki_limit_name(address, c->source);
    ps_addr_print(address, c->address, sizeof(c->address));
    c->ssl = SSL_new(s->tls);
    if (c->ssl == NULL || SSL_set_fd(c->ssl, fd) != 1) {
        report_tls(s, c, "cannot begin");
        connection_free(s, c);
        return;
    }
    s->connections[s->count++] = c;
}

/* Accepts one connection. False: there is none. */
static bool accept_connection(struct service *s, ps_time now)
{
    union {
        struct sockaddr any;
        struct sockaddr_storage storage;
    } address = {0};
    socklen_t len = sizeof(address);
    char source[PKI_LIMIT_ADDRESS];
    int fd = accept4(s->listener, &address.any, &len,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
            errno == ENOBUFS) {
            s->paused_until = ps_time_add(now, ACCEPT_PAUSE);
            return false;
        }
        return errno != EAGAIN && errno != EWOULDBLOCK;
    }
    pki_limit_name(&address.any, source);
    if (s->count == CONNECTIONS_MAX ||
        pki_limit_begin(&s->limit, source, now) != PKI_ADMITTED) {
        close(fd); /* Without a line, of which there would be many. */
        return true;
    }
    renew_tls(s);
    add_connection(s, fd, &address.any, now);
    return true;
}

/* ---------------------------------------------------------------------- loop */

/* Time until the next deadline in milliseconds; -1: none. */
static int poll_time(const struct service *s, ps_time now)
{
    ps_time next = s->paused_until > now ? s->paused_until : PS_TIME_NEVER;

    for (size_t i = 0; i < s->count; i++) {
        next = ps_time_min(next, s->connections[i]->deadline);
    }
    if (next == PS_TIME_NEVER) {
        return -1;
    }
    return next <= now ? 0 : (int)((next - now) / 1000000u) + 1;
}

/* Continues the connections that are ready, and ends those that are over. */
static void run_connections(struct service *s, const struct pollfd *ready)
{
    size_t count = s->count;
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        struct connection *c = s->connections[i];
        bool is_open = ready[i].revents == 0 || connection_run(s, c);

        if (is_open && monotonic_now() >= c->deadline) {
            if (c->phase != PHASE_END) {
                report_refusal(s, c, "it took more than 10 s");
            }
            is_open = false;
        }
        if (is_open) {
            s->connections[kept++] = c;
        } else {
            connection_free(s, c);
        }
    }
    s->count = kept;
}

static int run_loop(struct service *s)
{
    struct pollfd polled[2 + CONNECTIONS_MAX];

    for (;;) {
        ps_time now = monotonic_now();
        bool paused = s->paused_until > now;

        polled[0] = (struct pollfd){.fd = s->signals, .events = POLLIN};
        polled[1] = (struct pollfd){.fd = paused ? -1 : s->listener,
                                    .events = POLLIN};
        for (size_t i = 0; i < s->count; i++) {
            polled[2 + i] = (struct pollfd){
                .fd = s->connections[i]->fd,
                .events = s->connections[i]->events};
        }
        if (poll(polled, 2 + s->count, poll_time(s, now)) < 0 &&
            errno != EINTR) {
            return pki_system_error("wait for", "connections", "");
        }
        if (polled[0].revents != 0) {
            return 0;
        }
        run_connections(s, polled + 2);
        while (polled[1].revents != 0 &&
               accept_connection(s, monotonic_now())) {
        }
    }
}

/* --------------------------------------------------------------------- start */

/* Listens at one address. Returns 0 or an errno value. */
static int listen_at(struct service *s, const struct addrinfo *a)
{
    const int on = 1;
    const int off = 0;
    int error;

    s->listener = socket(a->ai_family,
                         SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->listener < 0) {
        return errno;
    }
    (void)setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (a->ai_family == AF_INET6) {
        (void)setsockopt(s->listener, IPPROTO_IPV6, IPV6_V6ONLY, &off,
                         sizeof(off));
    }
    if (bind(s->listener, a->ai_addr, a->ai_addrlen) == 0 &&
        listen(s->listener, BACKLOG) == 0) {
        return 0;
    }
    error = errno;
    close(s->listener);
    s->listener = -1;
    return error;
}

static int listen_on(struct service *s, const char *text, ps_time timeout)
{
    struct addrinfo *list = NULL;
    struct ps_addr addr;
    const char *why;
    char port[8];
    int error = EADDRNOTAVAIL;

    if (ps_addr_parse(text, &addr) != 0) {
        pki_error("--listen '%s': write HOST:PORT", text);
        return EXIT_USAGE;
    }
    snprintf(port, sizeof(port), "%u", (unsigned)addr.port);
    if (!lookup_name(addr.host, port, ps_time_add(monotonic_now(), timeout),
                     &list, &why)) {
        pki_error("--listen '%s': %s", text, why);
        return EXIT_USAGE;
    }
    for (const struct addrinfo *a = list; a != NULL && s->listener < 0;
         a = a->ai_next) {
        error = listen_at(s, a);
    }
    freeaddrinfo(list);
    if (s->listener < 0) {
        pki_error("cannot listen on %s: %s", text, strerror(error));
        return EXIT_FAILED;
    }
    return 0;
}

/* The default is every address, also where the host has no IPv6. */
static int start_listening(struct service *s, const struct pki_options *o)
{
    const struct sockaddr_storage none = {.ss_family = AF_UNSPEC};
    union {
        struct sockaddr any;
        struct sockaddr_storage storage;
    } address = {.storage = none};
    socklen_t len = sizeof(address);
    char text[PKI_LIMIT_ADDRESS];
    int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const char *where = probe >= 0 ? PKI_DEFAULT_LISTEN : PKI_DEFAULT_LISTEN_V4;
    int exit_code;

    if (probe >= 0) {
        close(probe);
    }
    exit_code = listen_on(s, o->listen != NULL ? o->listen : where, o->timeout);
    if (exit_code != 0) {
        return exit_code;
    }
    if (getsockname(s->listener, &address.any, &len) != 0) {
        return pki_system_error("listen on", where, "");
    }
    ps_addr_print(&address.any, text, sizeof(text));
    printf("enrolment at %s; Ctrl-C ends it\n", text);
    (void)fflush(stdout);
    return 0;
}

/* Takes over the signals that end the program. */
static int open_signals(struct service *s)
{
    sigset_t set;

    (void)signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) {
        return pki_system_error("wait for", "signals", "");
    }
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? pki_system_error("wait for", "signals", "") : 0;
}

int pki_serve(const struct pki_options *o, char **words)
{
    struct service *s = ps_calloc(1, sizeof(*s));
    int exit_code;

    (void)words;
    s->directory = o->directory;
    s->listener = -1;
    s->signals = -1;
    s->decoder = ps_decoder_new();
    exit_code = s->decoder != NULL ? make_tls(s, pki_now()) : EXIT_FAILED;
    if (exit_code == 0) {
        exit_code = open_signals(s);
    }
    if (exit_code == 0) {
        exit_code = start_listening(s, o);
    }
    if (exit_code == 0) {
        exit_code = run_loop(s);
    }
    for (size_t i = 0; i < s->count; i++) {
        connection_free(s, s->connections[i]);
    }
    if (s->listener >= 0) {
        close(s->listener);
    }
    if (s->signals >= 0) {
        close(s->signals);
    }
    SSL_CTX_free(s->tls);
    ps_decoder_free(s->decoder);
    ps_free(s);
    return exit_code;
}
