/* SPDX-License-Identifier: Apache-2.0 */
/* `psctl enroll`: makes a key on this node, exchanges a one-time code for a
 * certificate (pki_serve.c), and writes both to the node's folder. The key leaves
 * the node at no time. Nothing is written before all is received and checked.
 *
 * The folder with the certificates of a node, which its daemons read, has ca.crt,
 * crl.pem, and ROLE.crt and ROLE.key of each daemon there. */
#include "psctl/pki.h"

#include "base/alloc.h"
#include "crypto/enrolment.h"
#include "net/addr.h"
#include "psctl/answer.h"
#include "psctl/pki_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------- files of a node */

const char *pki_node_folder(const struct pki_options *o)
{
    return o->output != NULL ? o->output : PKI_DEFAULT_OUTPUT;
}

/* Fails if the folder has a file that must not be overwritten. */
static int check_folder(const char *folder, int dir, enum ps_role role,
                        const char *authority)
{
    char name[32];
    char *present;
    bool same;
    int exit_code;

    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s.%s", ps_role_name(role),
                 i == 0 ? "crt" : "key");
        if (pki_file_exists(dir, name)) {
            pki_error("%s/%s exists already; --force replaces it, renew makes "
                      "its successor",
                      folder, name);
            return EXIT_FAILED;
        }
    }
    if (authority == NULL) {
        return 0;
    }
    exit_code = pki_read_file(dir, folder, "ca.crt", &present);
    same = present == NULL || strcmp(present, authority) == 0;
    ps_free(present);
    if (exit_code == 0 && !same) {
        pki_error("%s/ca.crt is that of another authority; --force replaces it",
                  folder);
        exit_code = EXIT_FAILED;
    }
    return exit_code;
}

int pki_node_open(const struct pki_options *o, enum ps_role role,
                  const char *authority, bool force, int *ret_dir)
{
    const char *folder = pki_node_folder(o);
    struct pki_owner owner;
    int exit_code = pki_find_owner(o->owner, &owner);
    int dir;

    if (exit_code == 0) {
        exit_code = pki_open_folder(folder, true, &owner, &dir);
    }
    if (exit_code != 0) {
        return exit_code;
    }
    exit_code = force ? 0 : check_folder(folder, dir, role, authority);
    if (exit_code != 0) {
        close(dir);
        return exit_code;
    }
    *ret_dir = dir;
    return 0;
}

int pki_node_write(const struct pki_options *o, int dir,
                   const struct pki_node *node)
{
    char certificate[32];
    char key[32];
    const struct pki_file files[] = {{"ca.crt", node->authority, 0644},
                                     {"crl.pem", node->crl, 0644},
                                     {key, node->key, 0600},
                                     {certificate, node->certificate, 0644},
                                     {NULL, NULL, 0}};
    struct pki_owner owner;
    int exit_code = pki_find_owner(o->owner, &owner);

    snprintf(key, sizeof(key), "%s.key", ps_role_name(node->role));
    snprintf(certificate, sizeof(certificate), "%s.crt",
             ps_role_name(node->role));
    return exit_code != 0
               ? exit_code
               : pki_write_files(dir, pki_node_folder(o), files, &owner);
}

void pki_node_print(const struct ps_pki_info *info, const char *folder)
{
    char uri[PS_IDENTITY_URI_BYTES];
    char serial[PS_PKI_SERIAL_TEXT];
    int64_t days = (info->period.not_after - pki_now() + PKI_DAY - 1) / PKI_DAY;
    struct ps_str s;

    ps_str_init(&s, uri, sizeof(uri));
    ps_identity_add_uri(&s, &info->identity);
    ps_str_init(&s, serial, sizeof(serial));
    ps_pki_add_hex(&s, info->serial.bytes, PS_PKI_SERIAL_BYTES);
    printf("%s: %s/%s.crt, serial %s, %" PRId64 " day%s\n", uri, folder,
           ps_role_name(info->identity.role), serial, days,
           plural((size_t)days));
}

/* Bytes of a code that is read from standard input, with its newline. */
#define INPUT_BYTES (PS_ENROLMENT_CODE_TEXT + 2u)

/* Connection to the authority. */
struct dial {
    const char *server;
    int fd;
    SSL_CTX *tls;
    SSL *ssl;
    struct ps_enrolment_peer peer;
    ps_time timeout;
    ps_time deadline;
};

static void restart_deadline(struct dial *d)
{
    d->deadline = ps_time_add(monotonic_now(), d->timeout);
}

/* ------------------------------------------------------------------- connect */

static int report_unreachable(const struct dial *d, const char *why)
{
    pki_error("cannot reach psctl pki serve at %s: %s", d->server, why);
    return EXIT_UNAVAILABLE;
}

/* Reads HOST, HOST:PORT or [V6]; the port is that of psctl pki serve if there is
 * none. */
static bool parse_server(const char *text, struct ps_addr *ret)
{
    const size_t len = strlen(text);
    const bool has_port = strchr(text, ':') != NULL &&
                          (len == 0 || text[len - 1] != ']');
    struct ps_str s = PS_STR_ROOM(PS_ADDRESS_MAX + 16);

    ps_str_add(&s, text);
    if (!has_port) {
        ps_str_addf(&s, ":%u", PKI_DEFAULT_PORT);
    }
    return ps_addr_parse(s.data, ret) == 0 && ret->port != 0;
}

static int dial_server(struct dial *d)
{
    struct ps_addr addr;
    const char *why;

    if (!parse_server(d->server, &addr)) {
        pki_error("--server '%s': write HOST or HOST:PORT", d->server);
        return EXIT_USAGE;
    }
    why = connect_host(&addr, d->deadline, &d->fd);
    return why != NULL ? report_unreachable(d, why) : 0;
}

/* ----------------------------------------------------------------------- TLS */

/* Reports the failure of a call of OpenSSL. */
static int report_tls(const struct dial *d, int kind)
{
    unsigned long error = ERR_peek_last_error();
    const char *reason = error != 0 ? ERR_reason_error_string(error) : NULL;

    if (d->peer.text[0] != '\0') {
        pki_error("%s is not trusted: %s; nothing was sent to it", d->server,
                  d->peer.text);
        return EXIT_NOPERM;
    }
    if (kind == SSL_ERROR_SSL && reason != NULL &&
        ERR_GET_REASON(error) != SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        pki_error("%s does not speak TLS as psctl pki serve does: %s",
                  d->server, reason);
        return EXIT_UNAVAILABLE;
    }
    pki_error("%s has closed the connection; after too many attempts from one "
              "address it refuses that for seconds",
              d->server);
    return EXIT_TEMPFAIL;
}

/* After a call of OpenSSL: 0 if it is to be repeated, else an exit code. */
static int continue_after(struct dial *d, int result)
{
    int kind = SSL_get_error(d->ssl, result);
    int error;

    if (kind != SSL_ERROR_WANT_READ && kind != SSL_ERROR_WANT_WRITE) {
        return report_tls(d, kind);
    }
    error = wait_for_io(d->fd, kind == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT,
                        d->deadline);
    if (error == ETIMEDOUT) {
        pki_error("%s did not answer within %.1f s; raise --timeout", d->server,
                  (double)d->timeout / 1e9);
        return EXIT_UNAVAILABLE;
    }
    return error != 0 ? report_unreachable(d, strerror(error)) : 0;
}

static int begin_tls(struct dial *d)
{
    struct ps_str text = PS_STR_ROOM(256);
    int exit_code = 0;
    int n;

    if (ps_enrolment_tls_dialling(&d->peer, &d->tls, &text) != 0) {
        pki_error("%s", text.data);
        return EXIT_FAILED;
    }
    d->ssl = SSL_new(d->tls);
    if (d->ssl == NULL || SSL_set_fd(d->ssl, d->fd) != 1) {
        pki_error("OpenSSL cannot begin a connection");
        return EXIT_FAILED;
    }
    while (exit_code == 0) {
        ERR_clear_error();
        n = SSL_connect(d->ssl);
        if (n == 1) {
            return 0;
        }
        exit_code = continue_after(d, n);
    }
    return exit_code;
}

static int send_bytes(struct dial *d, const uint8_t *bytes, size_t len)
{
    for (;;) {
        int exit_code;
        int n;

        ERR_clear_error();
        n = SSL_write(d->ssl, bytes, (int)len);
        if (n > 0) {
            return 0; /* OpenSSL writes all or nothing. */
        }
        exit_code = continue_after(d, n);
        if (exit_code != 0) {
            return exit_code;
        }
    }
}

/* Receives the answer into `bytes`, from which the message borrows nothing. */
static int receive_answer(struct dial *d, struct ps_decoder *decoder,
                          struct ps_msg *ret_msg)
{
    size_t capacity = pki_message_bytes(PS_MSG_ENROLLED);
    uint8_t *bytes = ps_alloc(capacity);
    size_t len = 0;
    int exit_code = 0;
    int rc = PS_E_AGAIN;

    while (rc == PS_E_AGAIN && exit_code == 0 && len < capacity) {
        int n;

        ERR_clear_error();
        n = SSL_read(d->ssl, bytes + len, (int)(capacity - len));
        if (n <= 0) {
            exit_code = continue_after(d, n);
            continue;
        }
        len += (size_t)n;
        rc = pki_message_read(decoder, PS_MSG_ENROLLED, bytes, len, ret_msg);
    }
    ps_free(bytes);
    if (exit_code == 0 && rc != 0) {
        pki_error("the answer of %s is malformed: %s", d->server,
                  ps_strerror(rc));
        exit_code = EXIT_FAILED;
    }
    return exit_code;
}

static void dial_close(struct dial *d)
{
    if (d->ssl != NULL) {
        (void)SSL_shutdown(d->ssl);
    }
    SSL_free(d->ssl);
    SSL_CTX_free(d->tls);
    if (d->fd >= 0) {
        close(d->fd);
    }
    ERR_clear_error();
}

/* ------------------------------------------------------------------- enrol */

/* One run: its code, its key, and the folder of its files. */
struct enrolment {
    const struct pki_options *options;
    struct ps_enrolment_code code;
    int dir; /* Folder of the node. */
    EVP_PKEY *key;
    struct ps_decoder *decoder;
};

static int send_request(const struct enrolment *e, struct dial *d)
{
    struct ps_str text = PS_STR_ROOM(2048);
    uint8_t frame[4096];
    struct ps_msg msg = {
        .code = PS_MSG_ENROL,
        .enrol = {.protocol = PS_PROTOCOL,
                  .id = e->code.id,
                  .secret = {e->code.secret, sizeof(e->code.secret)},
                  .request = text.data},
    };
    struct ps_str why = PS_STR_ROOM(256);
    size_t len;
    int exit_code;

    if (ps_pki_add_csr(&text, e->key, &why) != 0 || text.truncated ||
        ps_msg_encode(&msg, PS_PROTOCOL_LEAST, 0, frame, sizeof(frame), &len) !=
            0) {
        pki_error("cannot make the request: %s", why.data);
        return EXIT_FAILED;
    }
    exit_code = send_bytes(d, frame, len);
    OPENSSL_cleanse(frame, sizeof(frame));
    return exit_code;
}

static int report_answer(const struct dial *d, const struct ps_msg_enrolled *a)
{
    struct ps_str s = PS_STR_ROOM(4 * PS_TEXT_MAX + 1);

    ps_str_add_visible(&s, a->text);
    pki_error("%s: %s", d->server, s.data);
    switch (a->error) {
    case PS_E_PERM:
        return EXIT_NOPERM;
    case PS_E_VERSION:
        return EXIT_TEMPFAIL;
    default:
        return EXIT_FAILED;
    }
}

/* Checks what has been received, and writes it. */
static int accept_answer(const struct enrolment *e, const struct dial *d,
                         const struct ps_msg_enrolled *a)
{
    const struct ps_enrolment_answer answer = {.certificate = a->certificate,
                                               .authority = a->authority,
                                               .crl = a->crl};
    char pem[PS_PKI_PEM_BYTES];
    const struct pki_node node = {.role = e->code.role,
                                  .authority = a->authority,
                                  .certificate = a->certificate,
                                  .key = pem,
                                  .crl = a->crl};
    struct ps_pki_info info;
    char why[256];
    struct ps_str text;
    int exit_code;

    ps_str_init(&text, why, sizeof(why));
    if (ps_enrolment_check_answer(&e->code, e->key, &answer, pki_now(), &info,
                                  &text) != 0) {
        pki_error("the certificate from %s is refused: %s", d->server, why);
        return EXIT_FAILED;
    }
    ps_str_init(&text, pem, sizeof(pem));
    ps_pki_add_key(&text, e->key);
    exit_code = pki_node_write(e->options, e->dir, &node);
    OPENSSL_cleanse(pem, sizeof(pem));
    if (exit_code == 0) {
        pki_node_print(&info, pki_node_folder(e->options));
    }
    return exit_code;
}

static int run_connection(const struct enrolment *e)
{
    struct dial d = {.server = e->options->server,
                     .fd = -1,
                     .peer = {.now = pki_now()},
                     .timeout = e->options->timeout};
    struct ps_msg msg;
    int exit_code;

    memcpy(d.peer.fingerprint, e->code.fingerprint, sizeof(d.peer.fingerprint));
    restart_deadline(&d);
    exit_code = dial_server(&d);
    if (exit_code == 0) {
        restart_deadline(&d);
        exit_code = begin_tls(&d);
    }
    if (exit_code == 0) {
        restart_deadline(&d);
        exit_code = send_request(e, &d);
    }
    if (exit_code == 0) {
        exit_code = receive_answer(&d, e->decoder, &msg);
    }
    if (exit_code == 0) {
        exit_code = msg.enrolled.error != 0
                        ? report_answer(&d, &msg.enrolled)
                        : accept_answer(e, &d, &msg.enrolled);
    }
    dial_close(&d);
    return exit_code;
}

/* -------------------------------------------------------------------- folder */

/* Fails if the folder has the certificate of another authority. */
static int check_authority(const struct enrolment *e)
{
    const char *folder = pki_node_folder(e->options);
    uint8_t fingerprint[PS_PKI_FINGERPRINT_BYTES];
    struct ps_str text = PS_STR_ROOM(256);
    char *pem = NULL;
    X509 *x = NULL;
    int exit_code = pki_read_file(e->dir, folder, "ca.crt", &pem);

    if (exit_code != 0 || pem == NULL) {
        return exit_code;
    }
    if (ps_pki_read_certificate(pem, &x, &text) == 0) {
        ps_pki_fingerprint(x, fingerprint);
    }
    if (x == NULL ||
        memcmp(fingerprint, e->code.fingerprint, sizeof(fingerprint)) != 0) {
        pki_error("%s/ca.crt is that of another authority; --force replaces it",
                  folder);
        exit_code = EXIT_FAILED;
    }
    ps_pki_certificate_free(x);
    ps_free(pem);
    return exit_code;
}

/* Opens the folder, and finds now what would fail after the code is used. */
static int open_folder(struct enrolment *e)
{
    const struct pki_options *o = e->options;
    int exit_code = pki_node_open(o, e->code.role, NULL, o->force, &e->dir);

    if (exit_code == 0 &&
        faccessat(e->dir, ".", W_OK | X_OK, AT_EACCESS) != 0) {
        exit_code = pki_system_error("write to", pki_node_folder(o), "");
    }
    if (exit_code == 0 && !o->force) {
        exit_code = check_authority(e);
    }
    return exit_code;
}

static int run_enrolment(struct enrolment *e)
{
    struct ps_str text = PS_STR_ROOM(256);
    int exit_code = open_folder(e);

    if (exit_code != 0) {
        return exit_code;
    }
    e->decoder = ps_decoder_new();
    if (e->decoder == NULL || ps_pki_key_new(&e->key, &text) != 0) {
        pki_error("%s", e->decoder != NULL ? text.data : strerror(ENOMEM));
        return EXIT_FAILED;
    }
    return run_connection(e);
}

/* ------------------------------------------------------------------- command */

/* Reads the code of the option, or the first line of standard input. */
static bool read_code(const char *option, struct ps_enrolment_code *ret_code)
{
    char line[INPUT_BYTES];
    bool is_good;

    if (strcmp(option, "-") != 0) {
        is_good = ps_enrolment_read_code(option, ret_code);
    } else {
        is_good = fgets(line, sizeof(line), stdin) != NULL;
        if (is_good) {
            line[strcspn(line, "\r\n")] = '\0';
            is_good = ps_enrolment_read_code(line, ret_code);
        }
        OPENSSL_cleanse(line, sizeof(line));
    }
    if (!is_good) {
        pki_error("--code: this is no code; psctl pki code prints one, of 113 "
                  "characters or less");
    }
    return is_good;
}

int pki_enroll(const struct pki_options *o, char **words)
{
    struct enrolment e = {.options = o, .dir = -1};
    const char *folder = pki_node_folder(o);
    struct stat st;
    bool is_new = stat(folder, &st) != 0;
    int exit_code;

    (void)words;
    pki_set_verb("enroll");
    if (o->server == NULL || o->code == NULL) {
        pki_error("give --server HOST:PORT and --code CODE; see psctl help "
                  "enroll");
        return EXIT_USAGE;
    }
    if (!read_code(o->code, &e.code)) {
        return EXIT_USAGE;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    exit_code = run_enrolment(&e);
    if (exit_code != 0 && is_new) {
        (void)rmdir(folder); /* Unless it has files. */
    }
    if (e.dir >= 0) {
        close(e.dir);
    }
    ps_decoder_free(e.decoder);
    ps_pki_key_free(e.key);
    OPENSSL_cleanse(&e.code, sizeof(e.code));
    return exit_code;
}
