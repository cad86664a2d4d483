/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking connection to psched: connect, handshake, then query after query
 * on a framed socket. Each wait is bounded by a limit on silence.
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
#include "client/sock.h"
#include "net/addr.h"
#include "proto/frame.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* ----------------------------------------------------------- names of hosts */

/* Name resolution with a time limit. getaddrinfo() has its own time-outs and
 * cannot be cancelled, so a thread calls it and is abandoned when the limit
 * passes; the program ends soon after. */
struct lookup {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_done;
    bool is_abandoned; /* The caller has given up; the thread frees this. */
    int rc;
    int error; /* errno with EAI_SYSTEM. */
    struct addrinfo *list;
    struct addrinfo hints;
    char host[256];
    char port[8];
};

static void lookup_free(struct lookup *l)
{
    if (l->list != NULL) {
        freeaddrinfo(l->list);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->mutex);
    ps_free(l);
}

static void *lookup_request(void *arg)
{
    struct lookup *l = arg;
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(l->host, l->port, &l->hints, &list);
    int error = errno;
    bool left;

    pthread_mutex_lock(&l->mutex);
    l->rc = rc;
    l->error = error;
    l->list = rc == 0 ? list : NULL;
    l->is_done = true;
    left = l->is_abandoned;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    if (left) {
        lookup_free(l);
    }
    return NULL;
}

static struct lookup *lookup_new(const char *host, const char *port)
{
    struct lookup *l = ps_calloc(1, sizeof(*l));
    pthread_condattr_t attr;

    ps_str_copy(l->host, sizeof(l->host), host);
    ps_str_copy(l->port, sizeof(l->port), port);
    l->hints = (struct addrinfo){.ai_family = AF_UNSPEC,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICSERV};
    pthread_mutex_init(&l->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &attr);
    pthread_condattr_destroy(&attr);
    return l;
}

/* Waits for the result until the deadline. False: the lookup is abandoned, and
 * the thread owns it. */
static bool wait_for_lookup(struct lookup *l, ps_time deadline)
{
    const struct timespec at = {
        .tv_sec = (time_t)(deadline / PS_SECONDS(1)),
        .tv_nsec = (long)(deadline % PS_SECONDS(1)),
    };
    bool done;
    int error = 0;

    pthread_mutex_lock(&l->mutex);
    while (!l->is_done && error == 0) {
        error = pthread_cond_timedwait(&l->changed, &l->mutex, &at);
    }
    done = l->is_done;
    l->is_abandoned = !done;
    pthread_mutex_unlock(&l->mutex);
    return done;
}

bool lookup_name(const char *host, const char *port, ps_time deadline,
                 struct addrinfo **ret_list, const char **ret_why)
{
    struct lookup *l = lookup_new(host, port);
    pthread_t thread;
    bool found;
    int error = pthread_create(&thread, NULL, lookup_request, l);

    if (error != 0) {
        lookup_free(l);
        *ret_why = strerror(error);
        return false;
    }
    if (!wait_for_lookup(l, deadline)) {
        pthread_detach(thread);
        *ret_why = "no answer from the system's name resolution in the time of "
                   "--timeout";
        return false;
    }
    pthread_join(thread, NULL);
    found = l->rc == 0;
    if (found) {
        *ret_list = l->list;
        l->list = NULL;
    } else {
        *ret_why = l->rc == EAI_SYSTEM ? strerror(l->error)
                                       : gai_strerror(l->rc);
    }
    lookup_free(l);
    return found;
}

/* Limit on rows of one answer: the keys of a job, on a few servers each.
 * Protects the machine's memory. */
#define ROWS_MAX              (8u * PS_KEYS_MAX)

/* A migration has no output until it ends, and many gigabytes take long. */
#define MIGRATION_SILENCE_MAX PS_SECONDS(3600)

struct wire {
    struct ps_sock *sock;    /* NULL: before the handshake. */
    int fd;                  /* That of `sock`, if there is one. */
    int tcp;                 /* Socket to psched by TCP; -1: none. */
    struct tls_relay *relay; /* Between the two; NULL: they are the same. */
    const char *endpoint;    /* For messages; borrowed. */
    const char *token;       /* "": none; borrowed. */
    const char *tls;         /* Folder; NULL: TCP is plain; borrowed. */
    ps_time silence_max;
    ps_time deadline;
    uint64_t instance; /* Instance of psched. */
    bool is_local;     /* Connected by Unix socket. */
    bool insecure;     /* The token may travel over plain TCP. */
    /* Path of psched's Unix socket; "": none. */
    char control[PS_SOCKET_PATH_MAX + 1];
};

ps_time monotonic_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return PS_SECONDS(t.tv_sec) + PS_NANOS(t.tv_nsec);
}

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
    char out[4 * PS_TEXT_MAX + 1];
    struct ps_str s;

    ps_str_init(&s, out, sizeof(out));
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
    fprintf(stderr, "psctl: psched at %s: %s\n", w->endpoint, out);
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

int wait_for_io(int fd, short events, ps_time deadline)
{
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        ps_time t = monotonic_now();
        int n;

        if (t >= deadline) {
            return ETIMEDOUT;
        }
        n = poll(&p, 1, (int)((deadline - t) / 1000000u) + 1);
        if (n > 0) {
            return 0;
        }
        if (n < 0 && errno != EINTR) {
            return errno;
        }
    }
}

int connect_one(int family, const struct sockaddr *sa, socklen_t sa_len,
                ps_time deadline, int *ret_fd)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int error = 0;
    socklen_t len = sizeof(error);

    if (fd < 0) {
        return errno;
    }
    if (connect(fd, sa, sa_len) != 0) {
        error = errno;
        if (error == EINPROGRESS) {
            error = wait_for_io(fd, POLLOUT, deadline);
            if (error == 0) {
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
            }
        }
    }
    if (error != 0) {
        close(fd);
    } else {
        *ret_fd = fd;
    }
    return error;
}

/* Connects to a Unix socket. Returns 0 or an errno value. */
static int connect_path(struct wire *w, const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};

    ps_str_copy(sa.sun_path, sizeof(sa.sun_path), path);
    w->is_local = true;
    return connect_one(AF_UNIX, (const struct sockaddr *)&sa, sizeof(sa),
                       w->deadline, &w->fd);
}

static int dial_path(struct wire *w, const char *path)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;
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
    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, strerror(error));
    if (error == EACCES) {
        ps_file_add_group(path, &why);
    }
    return report_unreachable(w, text);
}

static int dial_endpoint(struct wire *w)
{
    struct addrinfo *list = NULL;
    struct ps_addr addr;
    char port[8];
    const char *why;
    int error;

    if (strncmp(w->endpoint, "unix:", 5) == 0) {
        return dial_path(w, w->endpoint + 5);
    }
    if (ps_addr_parse(w->endpoint, &addr) != 0 || addr.port == 0) {
        fprintf(stderr, "psctl: '%s': write HOST:PORT or unix:PATH\n",
                w->endpoint);
        return EXIT_USAGE;
    }
    snprintf(port, sizeof(port), "%u", (unsigned)addr.port);
    if (!lookup_name(addr.host, port, w->deadline, &list, &why)) {
        return report_unreachable(w, why);
    }
    error = EHOSTUNREACH;
    for (const struct addrinfo *a = list; a != NULL && w->fd < 0;
         a = a->ai_next) {
        error = connect_one(a->ai_family, a->ai_addr, a->ai_addrlen,
                            w->deadline, &w->fd);
    }
    freeaddrinfo(list);
    w->tcp = w->fd;
    return w->fd < 0 ? report_unreachable(w, strerror(error)) : 0;
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
    if (get_name(w->tcp, (struct sockaddr *)&sa, &len) == 0 &&
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
    char text[2 * PS_TEXT_MAX];
    struct ps_str why;

    if (w->is_local || w->tls == NULL) {
        return 0;
    }
    ps_str_init(&why, text, sizeof(text));
    w->relay = tls_open(w->tls, w->tcp, w->silence_max, &w->fd, &why);
    if (w->relay == NULL) {
        fprintf(stderr, "psctl: psched at %s: %s\n", w->endpoint, text);
        return EXIT_UNAVAILABLE;
    }
    return 0;
}

/* Reports a failed read or write. Without a cause, the peer has sent
 * descriptors. */
static int connection_lost(const struct wire *w, int rc)
{
    int error = ps_sock_errno(w->sock);

    if (error == 0 && rc != PS_E_CLOSED) {
        return malformed_answer(w, ps_strerror(rc));
    }
    if (rc == PS_E_CLOSED && tls_failure(w->relay) != NULL) {
        return report_unreachable(w, tls_failure(w->relay));
    }
    return report_unreachable(w, error != 0 ? strerror(error)
                                            : "it closed the connection");
}

static int send_message(struct wire *w, const struct ps_msg *msg)
{
    int rc = ps_sock_put(w->sock, msg, -1);

    if (rc != 0) {
        fprintf(stderr, "psctl: cannot encode the request: %s\n",
                ps_strerror(rc));
        return EXIT_USAGE;
    }
    for (;;) {
        rc = ps_sock_flush(w->sock);
        if (rc != 0) {
            return connection_lost(w, rc);
        }
        if (ps_sock_flushed(w->sock)) {
            return 0;
        }
        if (wait_for_io(w->fd, POLLOUT, w->deadline) != 0) {
            return no_answer(w);
        }
    }
}

/* Receives one message, which borrows from the socket until the next one. */
static int receive_message(struct wire *w, struct ps_msg *ret_msg)
{
    int fd; /* None comes with an answer of psched. */
    int rc;

    while ((rc = ps_sock_next(w->sock, ret_msg, &fd)) == PS_E_AGAIN) {
        int error = 0;

        rc = ps_sock_read(w->sock);
        if (rc == 0) {
            restart_deadline(w);
        } else if (rc == PS_E_AGAIN) {
            error = wait_for_io(w->fd, POLLIN, w->deadline);
        } else {
            return connection_lost(w, rc);
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
    int rc = ps_sock_adopt(w->fd, PS_ROLE_SCHED, PS_ROLE_CTL,
                           PS_FRAME_PREFIX + PS_HEADER_MAX, &w->sock);

    if (rc != 0) {
        return report_unreachable(w, ps_strerror(rc));
    }
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

    w->fd = -1;
    w->tcp = -1;
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

/* errno value of a connection; 0: psched listens there. */
static int probe(const char *path)
{
    struct sockaddr_in loopback = {.sin_family = AF_INET,
                                   .sin_port = htons(9091)};
    struct wire w = {.fd = -1, .silence_max = PS_SECONDS(1)};
    int error;

    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    restart_deadline(&w);
    error = path != NULL
                ? connect_path(&w, path)
                : connect_one(AF_INET, (const struct sockaddr *)&loopback,
                              sizeof(loopback), w.deadline, &w.fd);
    if (error == 0) {
        close(w.fd);
    }
    return error;
}

bool wire_is_listening(const char *path)
{
    return probe(path) == 0;
}

const char *wire_default_endpoint(void)
{
    static char endpoint[PS_SOCKET_PATH_MAX + sizeof("unix:")] = "unix:";
    char *path = endpoint + strlen("unix:");
    int error;

    ps_runtime_socket("psched.sock", path, PS_SOCKET_PATH_MAX + 1);
    error = probe(path);
    /* A socket that this user may not use is named, unless psched also listens
     * by TCP. */
    return error == 0 || (error == EACCES && probe(NULL) != 0)
               ? endpoint
               : "127.0.0.1:9091";
}

void wire_close(struct wire *w)
{
    if (w == NULL) {
        return;
    }
    if (w->sock == NULL && w->fd >= 0) {
        close(w->fd);
    }
    ps_sock_free(w->sock);
    tls_close(w->relay);
    ps_free(w);
}

/* ------------------------------------------------------------------ queries */

/* Code of the rows that answer a query. */
static enum ps_msg_code row_code(enum ps_query what)
{
    switch (what) {
    case PS_QUERY_NODES:
        return PS_MSG_NODE_ROW;
    case PS_QUERY_JOBS:
        return PS_MSG_JOB_ROW;
    case PS_QUERY_KEYS:
        return PS_MSG_KEY_ROW;
    case PS_QUERY_STALL:
        return PS_MSG_STALL_ROW;
    case PS_QUERY_SHARES:
        return PS_MSG_SHARE_ROW;
    case PS_QUERY_REBALANCE_PLAN:
    case PS_QUERY_REBALANCE:
        return PS_MSG_MIGRATION_ROW;
    case PS_QUERY_TOKENS:
        return PS_MSG_TOKEN_ROW;
    case PS_QUERY_EVENTS:
        return PS_MSG_EVENT_ROW;
    }
    return PS_MSG_QUERY_END;
}

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

    return wire_ask(w, &query, row_code(what), &r->rows_of[what], r);
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

    restart_deadline(w);
    exit_code = send_message(w, &query);
    if (exit_code != 0) {
        return exit_code;
    }
    if (!dry) {
        w->silence_max = MIGRATION_SILENCE_MAX;
    }
    exit_code = receive_rows(w, PS_MSG_MIGRATION_ROW,
                             &r->rows_of[PS_QUERY_REBALANCE_PLAN], r);
    w->silence_max = silence;
    return exit_code;
}
