/* SPDX-License-Identifier: Apache-2.0 */
/* Connection to psched: connect, handshake, then query after query, in frames.
 * Each wait is bounded by a limit on silence.
 *
 *     psctl            psched
 *     hello      -->
 *                <--   welcome, or reject and close
 *     query      -->
 *                <--   rows, query_end
 *
 * Requests that change a job use psched's Unix socket, where psched knows the
 * user. A welcome over TCP names the socket; if it is on this host and leads to
 * the same psched, it replaces the TCP connection.
 *
 * psched is not trusted: input passes the same checks as in a daemon. */
#include "psctl/answer.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "base/limits.h"
#include "base/str.h"
#include "base/variables.h"
#include "net/addr.h"
#include "proto/frame.h"
#include "proto/msg_codec.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Limit on rows of one answer: the keys of a job, on a few servers each.
 * Protects the machine's memory. */
#define ROWS_MAX              (8u * PS_KEYS_MAX)

/* A migration has no output until it ends, and many gigabytes take long. */
#define MIGRATION_SILENCE_MAX PS_SECONDS(3600)

#define INPUT_BYTES           (PS_FRAME_PREFIX + PS_HEADER_MAX)

struct wire {
    struct line line;
    struct ps_decoder *decoder; /* NULL: before the handshake. */
    uint8_t *input;             /* Owned; INPUT_BYTES, received up to `end`. */
    size_t begin;               /* Of the next frame. */
    size_t end;
    const char *endpoint; /* For messages; borrowed. */
    const char *token;    /* "": none; borrowed. */
    const char *tls;      /* Folder; NULL: TCP is plain; borrowed. */
    ps_time silence_max;
    ps_time deadline;
    uint64_t instance; /* Instance of psched. */
    bool is_local;     /* Connected by Unix socket. */
    bool insecure;     /* The token may travel over plain TCP. */
    /* Path of psched's Unix socket; "": none. */
    char control[PS_SOCKET_PATH_MAX + 1];
};

static void restart_deadline(struct wire *w)
{
    w->deadline = ps_time_add(monotonic_now(), w->silence_max);
}

/* ------------------------------------------------------------------- errors */

static int report_unreachable(const struct wire *w, const char *why)
{
    fprintf(stderr,
            "psctl: cannot reach psched at %s: %s; set its address by -e "
            "HOST:PORT, -e unix:PATH or PSKV_SCHED\n",
            w->endpoint, why);
    return EXIT_UNAVAILABLE;
}

static int no_answer(const struct wire *w)
{
    fprintf(
        stderr,
        "psctl: psched at %s did not answer within %.1f s; raise --timeout\n",
        w->endpoint, (double)w->silence_max / 1e9);
    return EXIT_UNAVAILABLE;
}

static int malformed_answer(const struct wire *w, const char *what)
{
    fprintf(stderr, "psctl: the peer at %s is not psched: %s\n", w->endpoint,
            what);
    return EXIT_UNAVAILABLE;
}

/* Prints an error of psched, made safe for a terminal. */
static void wire_error(const struct wire *w, const char *text, int rc)
{
    struct ps_str s = PS_STR_ROOM(4 * PS_TEXT_MAX + 1);

    if (text[0] == '\0') {
        text = ps_strerror(rc);
    }
    /* Quotes are harmless; add_printable() would escape them. */
    while (*text != '\0') {
        char part[PS_TEXT_MAX + 1];
        size_t n = strcspn(text, "'\"");

        ps_str_copy(part, n < sizeof(part) ? n + 1 : sizeof(part), text);
        add_printable(&s, part, PS_TEXT_MAX);
        text += n;
        if (*text != '\0') {
            ps_str_addf(&s, "%c", *text++);
        }
    }
    fprintf(stderr, "psctl: psched at %s: %s\n", w->endpoint, s.data);
}

static int exit_code_of(int rc)
{
    switch (rc) {
    case 0:
        return EXIT_HEALTHY;
    case PS_E_NOJOB:
        return EXIT_NOJOB;
    case PS_E_PERM:
        return EXIT_NOPERM;
    case PS_E_VERSION:
    case PS_E_FULL:
    case PS_E_AGAIN:
        return EXIT_TEMPFAIL;
    default:
        return EXIT_FAILED;
    }
}

/* --------------------------------------------------------------- connection */

/* Connects to a Unix socket. Returns 0 or an errno value. */
static int connect_path(struct wire *w, const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    ps_str_copy(sa.sun_path, sizeof(sa.sun_path), path);
    w->is_local = true;
    return connect_one(AF_UNIX, (const struct sockaddr *)&sa, sizeof(sa),
                       w->deadline, &w->line.fd);
}

static int dial_path(struct wire *w, const char *path)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    int error;

    if (path[0] == '\0' || strlen(path) > PS_SOCKET_PATH_MAX) {
        fprintf(stderr, "psctl: '%s': write unix:PATH, of 1 to %u bytes\n",
                w->endpoint, PS_SOCKET_PATH_MAX);
        return EXIT_USAGE;
    }
    error = connect_path(w, path);
    if (error == 0) {
        return 0;
    }
    ps_str_add(&why, strerror(error));
    if (error == EACCES) {
        ps_file_add_group(path, &why);
    }
    return report_unreachable(w, why.data);
}

static int dial_endpoint(struct wire *w)
{
    struct ps_addr addr;
    const char *why;

    if (strncmp(w->endpoint, "unix:", 5) == 0) {
        return dial_path(w, w->endpoint + 5);
    }
    if (ps_addr_parse(w->endpoint, &addr) != 0 || addr.port == 0) {
        fprintf(stderr, "psctl: '%s': write HOST:PORT or unix:PATH\n",
                w->endpoint);
        return EXIT_USAGE;
    }
    why = connect_host(&addr, w->deadline, &w->line.fd);
    return why != NULL ? report_unreachable(w, why) : 0;
}

/* Writes the numeric address of one end of the TCP connection; "": unknown. */
static void print_end(const struct wire *w,
                      int (*get_name)(int fd, struct sockaddr *sa,
                                      socklen_t *len),
                      char *out, socklen_t cap)
{
    struct sockaddr_storage sa = {0};
    socklen_t len = sizeof(sa);

    out[0] = '\0';
    if (get_name(w->line.fd, (struct sockaddr *)&sa, &len) == 0 &&
        getnameinfo((struct sockaddr *)&sa, len, out, cap, NULL, 0,
                    NI_NUMERICHOST) != 0) {
        out[0] = '\0';
    }
}

/* A token is worth its rights to each listener and on the whole way there. */
static int check_token(const struct wire *w)
{
    char peer[64];

    if (w->token[0] == '\0' || w->is_local || w->tls != NULL || w->insecure) {
        return 0;
    }
    print_end(w, getpeername, peer, sizeof(peer));
    if (ps_addr_kind(peer) == PS_ADDR_LOOPBACK) {
        return 0;
    }
    fprintf(stderr,
            "psctl: psched at %s: the token is not sent over plain TCP, which "
            "others can read; give --tls FOLDER, or --insecure on a network "
            "that you trust\n",
            w->endpoint);
    return EXIT_NOPERM;
}

/* Puts TLS on a connection by TCP, if there is a certificate for it. */
static int encrypt(struct wire *w)
{
    struct ps_str why = PS_STR_ROOM(2 * PS_TEXT_MAX);

    if (w->is_local || w->tls == NULL) {
        return 0;
    }
    if (!line_encrypt(&w->line, w->tls, w->silence_max, &why)) {
        fprintf(stderr, "psctl: psched at %s: %s\n", w->endpoint, why.data);
        return EXIT_UNAVAILABLE;
    }
    return 0;
}

/* Reports a failed read or write; errno has its cause, unless the peer has closed
 * the connection or TLS has failed. */
static int connection_lost(const struct wire *w, int rc)
{
    const char *cause = strerror(errno);

    return report_unreachable(
        w, line_failure(&w->line)[0] != '\0' ? line_failure(&w->line)
           : rc == PS_E_CLOSED               ? "it closed the connection"
                                             : cause);
}

static int send_message(struct wire *w, const struct ps_msg *msg)
{
    const size_t capacity = ps_msg_encoded_bound(msg);
    uint8_t *frame = ps_alloc(capacity);
    size_t len;
    int rc = ps_msg_encode(msg, PS_PROTOCOL, 0, frame, capacity, &len);

    if (rc != 0) {
        fprintf(stderr, "psctl: cannot encode the request: %s\n",
                ps_strerror(rc));
        ps_free(frame);
        return EXIT_USAGE;
    }
    rc = line_write(&w->line, frame, len, w->deadline);
    ps_free(frame);
    return rc == 0              ? 0
           : rc == PS_E_TIMEOUT ? no_answer(w)
                                : connection_lost(w, rc);
}

/* Decodes the next frame. PS_E_AGAIN: it is not complete; others: the peer is not
 * psched. */
static int next_message(struct wire *w, struct ps_msg *ret_msg)
{
    const uint8_t *at = w->input + w->begin;
    struct ps_frame_prefix prefix;
    int rc;

    if (w->end - w->begin < PS_FRAME_PREFIX) {
        return PS_E_AGAIN;
    }
    rc = ps_frame_parse(at, &prefix);
    if (rc == 0) {
        rc = ps_frame_check(&prefix, PS_ROLE_SCHED, PS_ROLE_CTL);
    }
    if (rc == 0 &&
        w->end - w->begin < PS_FRAME_PREFIX + (size_t)prefix.header_len) {
        return PS_E_AGAIN;
    }
    if (rc == 0) {
        w->begin += PS_FRAME_PREFIX + prefix.header_len;
        rc = ps_msg_decode(w->decoder, prefix.code, at + PS_FRAME_PREFIX,
                           prefix.header_len, ret_msg);
    }
    return rc;
}

/* Reads once, behind what is there. */
static ssize_t read_input(struct wire *w)
{
    ssize_t n;

    memmove(w->input, w->input + w->begin, w->end - w->begin);
    w->end -= w->begin;
    w->begin = 0;
    n = line_read(&w->line, w->input + w->end, INPUT_BYTES - w->end);
    w->end += n > 0 ? (size_t)n : 0;
    return n;
}

/* Receives one message, which borrows from the decoder until the next one. */
static int receive_message(struct wire *w, struct ps_msg *ret_msg)
{
    int rc;

    while ((rc = next_message(w, ret_msg)) == PS_E_AGAIN) {
        const ssize_t n = read_input(w);
        int error = 0;

        if (n > 0) {
            restart_deadline(w);
        } else if (n == PS_E_AGAIN) {
            error = wait_for_io(w->line.fd, POLLIN, w->deadline);
        } else {
            return connection_lost(w, (int)n);
        }
        if (error != 0) {
            return error == ETIMEDOUT ? no_answer(w)
                                      : report_unreachable(w, strerror(error));
        }
    }
    return rc != 0 ? malformed_answer(w, ps_strerror(rc)) : 0;
}

static int handshake(struct wire *w)
{
    struct ps_msg hello = {
        .code = PS_MSG_HELLO,
        .hello =
            {
                .protocol = PS_PROTOCOL,
                .protocol_least = PS_PROTOCOL_LEAST,
                .role = PS_ROLE_CTL,
                .name = "psctl",
                .cluster = "", /* Any cluster. */
                .address = "",
                .token = w->token,
            },
    };
    struct ps_msg answer;
    int exit_code;

    w->decoder = ps_decoder_new();
    if (w->decoder == NULL) {
        return report_unreachable(w, ps_strerror(PS_E_NOMEM));
    }
    w->input = ps_alloc(INPUT_BYTES);
    if (getrandom(&hello.hello.instance, sizeof(hello.hello.instance), 0) < 0) {
        hello.hello.instance = (uint64_t)getpid();
    }
    exit_code = send_message(w, &hello);
    if (exit_code == 0) {
        exit_code = receive_message(w, &answer);
    }
    if (exit_code != 0) {
        return exit_code;
    }
    if (answer.code == PS_MSG_REJECT) {
        wire_error(w, answer.reject.text, answer.reject.error);
        exit_code = exit_code_of(answer.reject.error);
        return exit_code == EXIT_HEALTHY ? EXIT_FAILED : exit_code;
    }
    if (answer.code != PS_MSG_WELCOME) {
        return malformed_answer(w, "it sent no welcome");
    }
    w->instance = answer.welcome.instance;
    ps_str_copy(w->control, sizeof(w->control), answer.welcome.control);
    return 0;
}

/* True if the TCP peer is on this host. */
static bool is_peer_on_host(const struct wire *w)
{
    char mine[64];
    char theirs[64];

    print_end(w, getsockname, mine, sizeof(mine));
    print_end(w, getpeername, theirs, sizeof(theirs));
    if (mine[0] == '\0' || theirs[0] == '\0') {
        return false;
    }
    return strcmp(mine, theirs) == 0 ||
           ps_addr_kind(theirs) == PS_ADDR_LOOPBACK;
}

static struct wire *wire_new(const struct wire_target *target)
{
    struct wire *w = ps_calloc(1, sizeof(*w));

    w->line.fd = -1;
    w->endpoint = target->endpoint;
    w->token = target->token;
    w->tls = target->tls;
    w->insecure = target->insecure;
    w->silence_max = target->silence;
    restart_deadline(w);
    return w;
}

/* On any failure with the socket, the TCP connection stays, and psched answers
 * there with its reason. */
struct wire *wire_switch_to_local(struct wire *w)
{
    struct wire *local;

    if (w->is_local || w->control[0] == '\0' || !is_peer_on_host(w)) {
        return w;
    }
    local = wire_new(&(struct wire_target){
        .endpoint = w->endpoint, .token = w->token, .silence = w->silence_max});
    if (connect_path(local, w->control) == 0 && handshake(local) == 0 &&
        local->instance == w->instance) {
        wire_close(w);
        return local;
    }
    wire_close(local);
    return w;
}

struct wire *wire_open(const struct wire_target *target, int *ret_exit)
{
    struct wire *w = wire_new(target);

    *ret_exit = dial_endpoint(w);
    if (*ret_exit == 0) {
        *ret_exit = check_token(w);
    }
    if (*ret_exit == 0) {
        *ret_exit = encrypt(w);
    }
    if (*ret_exit == 0) {
        *ret_exit = handshake(w);
    }
    if (*ret_exit != 0) {
        wire_close(w);
        return NULL;
    }
    return w;
}

int wire_probe(const char *path)
{
    struct sockaddr_in loopback = {.sin_family = AF_INET,
                                   .sin_port = htons(9091)};
    struct wire w = {.line = {.fd = -1}, .silence_max = PS_SECONDS(1)};
    int error;

    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    restart_deadline(&w);
    error = path != NULL
                ? connect_path(&w, path)
                : connect_one(AF_INET, (const struct sockaddr *)&loopback,
                              sizeof(loopback), w.deadline, &w.line.fd);
    line_close(&w.line);
    return error;
}

const char *wire_default_endpoint(void)
{
    static char endpoint[PS_SOCKET_PATH_MAX + sizeof("unix:")] = "unix:";
    char *path = endpoint + strlen("unix:");
    int error;

    ps_runtime_socket("psched.sock", path, PS_SOCKET_PATH_MAX + 1);
    error = wire_probe(path);
    /* A socket that this user may not use is named, unless psched also listens
     * by TCP. */
    return error == 0 || (error == EACCES && wire_probe(NULL) != 0)
               ? endpoint
               : "127.0.0.1:9091";
}

void wire_close(struct wire *w)
{
    if (w == NULL) {
        return;
    }
    line_close(&w->line);
    ps_decoder_free(w->decoder);
    ps_free(w->input);
    ps_free(w);
}

/* ------------------------------------------------------------------ queries */

/* Code of the rows that answer a query. */
static const enum ps_msg_code row_codes[QUERY_KINDS] = {
    [PS_QUERY_NODES] = PS_MSG_NODE_ROW,
    [PS_QUERY_JOBS] = PS_MSG_JOB_ROW,
    [PS_QUERY_KEYS] = PS_MSG_KEY_ROW,
    [PS_QUERY_STALL] = PS_MSG_STALL_ROW,
    [PS_QUERY_SHARES] = PS_MSG_SHARE_ROW,
    [PS_QUERY_REBALANCE_PLAN] = PS_MSG_MIGRATION_ROW,
    [PS_QUERY_REBALANCE] = PS_MSG_MIGRATION_ROW,
    [PS_QUERY_TOKENS] = PS_MSG_TOKEN_ROW,
    [PS_QUERY_EVENTS] = PS_MSG_EVENT_ROW,
};

static int append_row(const struct wire *w, struct rows *rows,
                      const struct ps_msg *msg)
{
    if (rows->count == ROWS_MAX) {
        return malformed_answer(w, "its answer has too many rows");
    }
    if (rows->count == rows->capacity) {
        rows->capacity = rows->capacity == 0 ? 64 : rows->capacity * 2;
        rows->row = ps_realloc(rows->row,
                               rows->capacity * sizeof(struct ps_msg *));
    }
    rows->row[rows->count++] = ps_msg_dup(msg);
    return 0;
}

/* Collects rows of `code` until query_end. Other messages are ignored: they are
 * newer than this version. */
static int receive_rows(struct wire *w, enum ps_msg_code code,
                        struct rows *rows, struct report *r)
{
    for (;;) {
        struct ps_msg msg;
        int exit_code = receive_message(w, &msg);

        if (exit_code != 0) {
            return exit_code;
        }
        if (msg.code == PS_MSG_QUERY_END) {
            if (r->end != NULL) {
                ps_msg_free(r->end);
            }
            r->end = ps_msg_dup(&msg);
            if (msg.query_end.error != 0) {
                wire_error(w, msg.query_end.text, msg.query_end.error);
            }
            return exit_code_of(msg.query_end.error);
        }
        if (msg.code == code && rows != NULL) {
            exit_code = append_row(w, rows, &msg);
            if (exit_code != 0) {
                return exit_code;
            }
        }
    }
}

int wire_ask(struct wire *w, const struct ps_msg *request,
             enum ps_msg_code code, struct rows *rows, struct report *r)
{
    int exit_code;

    restart_deadline(w);
    exit_code = send_message(w, request);
    return exit_code != 0 ? exit_code : receive_rows(w, code, rows, r);
}

int wire_query(struct wire *w, enum ps_query what, const struct job_name *job,
               struct report *r)
{
    const struct ps_msg query = {
        .code = PS_MSG_QUERY,
        .query = {.what = (uint8_t)what,
                  .job = job != NULL ? job->name : "",
                  .has_owner = job != NULL && job->has_owner,
                  .owner = job != NULL ? job->owner : 0},
    };

    return wire_ask(w, &query, row_codes[what], &r->rows_of[what], r);
}

int wire_query_status(struct wire *w, struct report *r)
{
    static const enum ps_query parts[] = {PS_QUERY_NODES, PS_QUERY_JOBS,
                                          PS_QUERY_STALL};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof(parts) / sizeof(parts[0]); i++) {
        rc = wire_query(w, parts[i], NULL, r);
    }
    return rc;
}

int wire_rebalance(struct wire *w, const struct job_name *job, const char *off,
                   bool dry, struct report *r)
{
    const struct ps_msg query = {
        .code = PS_MSG_QUERY,
        .query = {.what = dry ? PS_QUERY_REBALANCE_PLAN : PS_QUERY_REBALANCE,
                  .job = job->name,
                  .has_owner = job->has_owner,
                  .owner = job->owner,
                  .drain_server = off != NULL ? off : ""},
    };
    const ps_time silence = w->silence_max;
    int exit_code;

    w->silence_max = dry ? silence : MIGRATION_SILENCE_MAX;
    exit_code = wire_ask(w, &query, PS_MSG_MIGRATION_ROW,
                         &r->rows_of[PS_QUERY_REBALANCE_PLAN], r);
    w->silence_max = silence;
    return exit_code;
}
