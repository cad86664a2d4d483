/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP for monitoring systems: GET /metrics, /healthz and /readyz, on a thread
 * of its own. Requests are answered from the last snapshot that the loop thread
 * has published, so no request takes time of that thread, and /healthz tells
 * when it has stopped to publish.
 *
 * libmicrohttpd parses requests. It is loaded when a server is opened, not
 * linked: daemons without one, and hosts without the library, need none of
 * it.
 *
 * The thread waits for libmicrohttpd's epoll and for the end. Each connection
 * has one request, two seconds for its header, and ten seconds in all, however
 * its peer spends them. A few connections at a time are served. The last place
 * is for the next caller: with it the oldest unfinished request gives way, so
 * that peers which hold connections open keep no scrape out. The library alone
 * does not promise that: its time-out counts silence, and at its limit it
 * accepts nobody. */
#include "common/daemon_inner.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/time.h"
#include "common/system.h"
#include "net/addr.h"
#include "net/loop.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

/* Bytes of metrics in one answer. */
#define HTTP_TEXT_MAX 65536u

#ifdef PS_HAVE_HTTP

#include <dlfcn.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define LIBRARY         "libmicrohttpd.so.12"
#define CONNECTIONS_MAX 16
/* Memory of a connection for the headers of request and answer. */
#define HEADERS_MAX     8192
#define HEADER_TIME     PS_SECONDS(2)
#define CONNECTION_TIME PS_SECONDS(10)
#define HEALTHY_TIME    PS_SECONDS(5)
/* Pause after a connection could not be accepted, for lack of descriptors. */
#define ACCEPT_PAUSE_MS 100

struct open_connection {
    int fd; /* -1: free. */
    ps_time begun_at;
    bool has_request; /* Its header is complete. */
    bool is_ended;    /* The library has yet to see its end. */
};

struct ps_http {
    const struct daemon *d;
    struct MHD_Daemon *mhd;
    uv_thread_t thread;
    int wake; /* Eventfd that ends the thread. */
    /* Private to the thread. */
    struct open_connection connections[CONNECTIONS_MAX];
    unsigned open_count;
    unsigned accepted_count; /* Since the thread began. */
    uv_mutex_t lock;         /* Guards the rest. */
    ps_time published_at;    /* 0: never. */
    const char *not_ready;
    size_t len;
    char text[HTTP_TEXT_MAX];
};

/* ------------------------------------------------------------------ library */

#define CALLS(CALL)                                                            \
    CALL(add_response_header)                                                  \
    CALL(create_response_from_buffer)                                          \
    CALL(destroy_response)                                                     \
    CALL(get_connection_info)                                                  \
    CALL(get_daemon_info)                                                      \
    CALL(get_timeout)                                                          \
    CALL(queue_response)                                                       \
    CALL(run)                                                                  \
    CALL(start_daemon)                                                         \
    CALL(stop_daemon)
#define MEMBER(name) __typeof__(MHD_##name) *name;
#define SYMBOL(name) {"MHD_" #name, &mhd.name},

static struct {
    void *handle;
    CALLS(MEMBER)
} mhd;

/* True if libmicrohttpd can be used; else `why` has the reason and what to
 * do. */
static bool http_is_available(struct ps_str *why)
{
    const struct {
        const char *name;
        void *place;
    } symbols[] = {CALLS(SYMBOL)};
    void *handle = mhd.handle;
    bool good;

    if (handle != NULL) {
        return true;
    }
    handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    good = handle != NULL;
    for (size_t i = 0; good && i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(handle, symbols[i].name);

        good = symbol != NULL;
        memcpy(symbols[i].place, &symbol, sizeof(symbol));
    }
    if (!good) {
        ps_str_addf(why,
                    "cannot load libmicrohttpd (%s); install the package "
                    "libmicrohttpd12, or use metrics.file",
                    dlerror());
        return false;
    }
    mhd.handle = handle;
    return true;
}

/* ------------------------------------------------------------ on the thread */

/* Further parameters of the library, which an answer at once does not need. */
#define REST_OF_REQUEST                                                        \
    const char *version, const char *body, size_t *body_len, void **request

struct answer {
    unsigned status;
    const char *type;
    size_t len;
    char body[HTTP_TEXT_MAX + 8192];
};

static enum MHD_Result send_answer(struct MHD_Connection *c,
                                   const struct answer *a)
{
    struct MHD_Response *r = mhd.create_response_from_buffer(
        a->len, (void *)(uintptr_t)a->body, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result done;

    if (r == NULL) {
        return MHD_NO;
    }
    (void)mhd.add_response_header(r, "Content-Type", a->type);
    (void)mhd.add_response_header(r, "Cache-Control", "no-store");
    (void)mhd.add_response_header(r, "Connection", "close");
    if (a->status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        (void)mhd.add_response_header(r, "Allow", "GET");
    }
    done = mhd.queue_response(c, a->status, r);
    mhd.destroy_response(r);
    return done;
}

static void set_body(struct answer *a, unsigned status, const char *text)
{
    a->status = status;
    a->len = (size_t)snprintf(a->body, sizeof(a->body), "%s\n", text);
}

/* Reason why the loop thread is not well; "": it is. Requires the lock. */
static void find_fault(const struct ps_http *h, char *out, size_t cap)
{
    ps_time now = uv_hrtime();

    out[0] = '\0';
    if (h->published_at == 0) {
        snprintf(out, cap, "the daemon starts");
    } else if (now - h->published_at > HEALTHY_TIME) {
        snprintf(out, cap, "the main loop has not run for %" PRIu64 " s",
                 (now - h->published_at) / PS_SECONDS(1));
    }
}

static void fill_metrics(const struct ps_http *h, struct answer *a)
{
    struct ps_str text;

    a->status = MHD_HTTP_OK;
    a->type = "text/plain; version=0.0.4; charset=utf-8";
    ps_str_init(&text, a->body, sizeof(a->body));
    ps_str_addf(&text, "%.*s", (int)h->len, h->text);
    daemon_metrics_add_process(h->d, &text);
    a->len = text.len;
}

static void fill_answer(struct ps_http *h, const char *path, struct answer *a)
{
    char fault[80];

    a->type = "text/plain; charset=utf-8";
    uv_mutex_lock(&h->lock);
    find_fault(h, fault, sizeof(fault));
    if (strcmp(path, "/metrics") == 0 && h->published_at != 0) {
        fill_metrics(h, a);
    } else if (strcmp(path, "/healthz") != 0 && strcmp(path, "/readyz") != 0 &&
               strcmp(path, "/metrics") != 0) {
        set_body(a, MHD_HTTP_NOT_FOUND,
                 "not found; there are /metrics, /healthz and /readyz");
    } else if (fault[0] != '\0') {
        set_body(a, MHD_HTTP_SERVICE_UNAVAILABLE, fault);
    } else if (strcmp(path, "/readyz") == 0 && h->not_ready != NULL) {
        set_body(a, MHD_HTTP_SERVICE_UNAVAILABLE, h->not_ready);
    } else {
        set_body(a, MHD_HTTP_OK, "ok");
    }
    uv_mutex_unlock(&h->lock);
}

/* Escapes of a path stay: no path that is served has one. */
static size_t keep_path(void *ctx, struct MHD_Connection *c, char *path)
{
    (void)ctx;
    (void)c;
    return strlen(path);
}

/* Called when the headers of a request are there. An answer at once means that
 * no body is read, and that the connection ends with it. */
static enum MHD_Result answer_request(void *ctx, struct MHD_Connection *c,
                                      const char *path, const char *method,
                                      REST_OF_REQUEST)
{
    static struct answer a; /* Of this thread, the only one that is here. */
    struct ps_http *h = ctx;
    struct open_connection *o = mhd.get_connection_info(
                                       c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)
                                    ->socket_context;

    (void)version;
    (void)body;
    (void)body_len;
    (void)request;
    if (o != NULL) {
        o->has_request = true;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0) {
        a.type = "text/plain; charset=utf-8";
        set_body(&a, MHD_HTTP_METHOD_NOT_ALLOWED, "use GET");
    } else {
        fill_answer(h, path, &a);
    }
    return send_answer(c, &a);
}

static void connection_changed(void *ctx, struct MHD_Connection *c,
                               void **place,
                               enum MHD_ConnectionNotificationCode change)
{
    struct ps_http *h = ctx;
    struct open_connection *o = *place;

    if (change == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (o != NULL) {
            o->fd = -1;
            h->open_count--;
        }
        return;
    }
    h->accepted_count++;
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        o = &h->connections[i];
        if (o->fd < 0) {
            *o = (struct open_connection){
                .fd = mhd.get_connection_info(c,
                                              MHD_CONNECTION_INFO_CONNECTION_FD)
                          ->connect_fd,
                .begun_at = uv_hrtime()};
            h->open_count++;
            *place = o;
            return;
        }
    }
}

/* The library closes a connection when it sees its end. */
static void end_connection(struct open_connection *o)
{
    (void)shutdown(o->fd, SHUT_RDWR);
    o->is_ended = true;
}

/* True if `a` gives way before `b`: requests without a whole header first, and
 * then the oldest. */
static bool is_before(const struct open_connection *a,
                      const struct open_connection *b)
{
    return a->has_request != b->has_request ? !a->has_request
                                            : a->begun_at < b->begun_at;
}

/* Ends connections that are overdue, and one if all places are taken. */
static void end_overdue(struct ps_http *h)
{
    ps_time now = uv_hrtime();
    struct open_connection *first = NULL;
    bool has_room = h->open_count < CONNECTIONS_MAX;

    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        struct open_connection *o = &h->connections[i];
        const ps_time time = o->has_request ? CONNECTION_TIME : HEADER_TIME;

        if (o->fd < 0) {
            continue;
        }
        if (!o->is_ended && ps_time_add(o->begun_at, time) <= now) {
            end_connection(o);
        }
        has_room = has_room || o->is_ended;
        first = first == NULL || is_before(o, first) ? o : first;
    }
    if (!has_room) {
        end_connection(first);
    }
}

/* Time until the library or a deadline needs another run, in milliseconds. */
static int time_to_wait(const struct ps_http *h)
{
    MHD_UNSIGNED_LONG_LONG ms;

    return mhd.get_timeout(h->mhd, &ms) == MHD_YES && ms < 1000 ? (int)ms
                                                                : 1000;
}

/* Runs the library once; returns how long to wait before the next run, -1: until
 * a connection comes. */
static int http_run(struct ps_http *h, struct pollfd *wake, bool is_woken)
{
    const unsigned accepted = h->accepted_count;
    const unsigned open = h->open_count;

    (void)mhd.run(h->mhd);
    end_overdue(h);
    if (h->open_count > 0 && open < CONNECTIONS_MAX) {
        return time_to_wait(h);
    }
    if (open > 0 || accepted != h->accepted_count) {
        return 0; /* At its limit the library listens again in its next run. */
    }
    if (is_woken) { /* No descriptor is left for the one that waits. */
        (void)poll(wake, 1, ACCEPT_PAUSE_MS);
    }
    return -1;
}

static void http_main(void *arg)
{
    struct ps_http *h = arg;
    int epoll = mhd.get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    struct pollfd p[2] = {{.fd = h->wake, .events = POLLIN},
                          {.fd = epoll, .events = POLLIN}};
    int wait = 0;

    for (;;) {
        if (poll(p, 2, wait) >= 0) {
            if (p[0].revents != 0) {
                return;
            }
            wait = http_run(h, &p[0], p[1].revents != 0);
        }
    }
}

/* -------------------------------------------------------- on the loop thread */

static int http_start(struct ps_http *h, int fd)
{
    h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (h->wake < 0) {
        return ps_err_from_errno(errno);
    }
    h->mhd = mhd.start_daemon(
        MHD_USE_EPOLL, 0, NULL, NULL, answer_request, h,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADERS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(CONNECTION_TIME / PS_SECONDS(1)),
        MHD_OPTION_NOTIFY_CONNECTION, connection_changed, h,
        MHD_OPTION_UNESCAPE_CALLBACK, keep_path, NULL, MHD_OPTION_END);
    if (h->mhd == NULL) {
        return PS_E_SYS;
    }
    return ps_err_from_uv(uv_thread_create(&h->thread, http_main, h));
}

/* Requires that the thread does not run. */
static void http_free(struct ps_http *h)
{
    if (h->mhd != NULL) {
        mhd.stop_daemon(h->mhd);
    }
    if (h->wake >= 0) {
        close(h->wake);
    }
    uv_mutex_destroy(&h->lock);
    ps_free(h);
}

/* Serves the listening socket `fd`, which it takes over. Every answer is 503
 * until the first snapshot. */
static int http_open(const struct daemon *d, int fd, struct ps_http **ret_http)
{
    struct ps_http *h = ps_calloc(1, sizeof(*h));
    int rc;

    h->d = d;
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        h->connections[i].fd = -1;
    }
    uv_mutex_init(&h->lock);
    rc = http_start(h, fd);
    if (rc != 0) {
        http_free(h);
        return rc;
    }
    *ret_http = h;
    return 0;
}

static const char *why_not_ready(const struct daemon *d)
{
    if (d->is_stopping) {
        return "the daemon ends";
    }
    return d->spec->ready == NULL || d->spec->ready(d->app.self)
               ? NULL
               : "not registered with the scheduler";
}

/* Replaces the snapshot; /healthz is good for five seconds from then on. */
void daemon_http_publish(struct daemon *d)
{
    struct ps_http *h = d->metrics.http;
    struct ps_str text;

    if (h == NULL) {
        return;
    }
    uv_mutex_lock(&h->lock);
    ps_str_init(&text, h->text, sizeof(h->text));
    daemon_metrics_add(d, &text);
    h->len = text.len;
    h->not_ready = why_not_ready(d);
    h->published_at = uv_hrtime();
    uv_mutex_unlock(&h->lock);
}

void daemon_http_close(struct daemon *d)
{
    struct ps_http *h = d->metrics.http;
    const uint64_t one = 1;

    if (h == NULL) {
        return;
    }
    while (write(h->wake, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    uv_thread_join(&h->thread);
    http_free(h);
    d->metrics.http = NULL;
}

#else

static bool http_is_available(struct ps_str *why)
{
    ps_str_add(why, "this build has no HTTP: libmicrohttpd was missing; build "
                    "it with libmicrohttpd-dev, or use metrics.file");
    return false;
}

static int http_open(const struct daemon *d, int fd, struct ps_http **ret_http)
{
    (void)d;
    (void)fd;
    (void)ret_http;
    return PS_E_UNSUPPORTED;
}

void daemon_http_publish(struct daemon *d)
{
    (void)d;
}

void daemon_http_close(struct daemon *d)
{
    (void)d;
}

#endif

/* ----------------------------------------------------------- metrics.listen */

#define BACKLOG 64

bool daemon_http_check(const struct daemon *d, const struct ps_options *o,
                       struct ps_str *report)
{
    const char *where = daemon_common_options(d)->metrics_listen;
    struct ps_addr addr;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (where[0] == '\0') {
        return true;
    }
    if (ps_addr_parse(where, &addr) != 0) {
        ps_str_add(&why, "write ADDRESS:PORT, as in 127.0.0.1:9191");
    } else if (http_is_available(&why)) {
        return true;
    }
    ps_options_where(o, "metrics.listen", report);
    ps_str_add(report, ": metrics.listen: ");
    ps_str_add_visible(report, where);
    ps_str_addf(report, ": %s\n", why.data);
    return false;
}

static void log_address(const struct ps_addr *addr, uint16_t port)
{
    char where[PS_ADDRESS_MAX + 1];

    (void)ps_addr_format(addr->host, port, where, sizeof(where));
    ps_log(PS_LOG_NOTICE, "metrics by HTTP address %s", where);
    if (strcmp(addr->host, "localhost") != 0 &&
        ps_addr_kind(addr->host) != PS_ADDR_LOOPBACK) {
        ps_log(PS_LOG_WARNING,
               "metrics.listen: every host that reaches %s can read the "
               "metrics of this daemon",
               where);
    }
}

int daemon_http_open(struct daemon *d)
{
    const char *where = daemon_common_options(d)->metrics_listen;
    struct ps_addr addr;
    uint16_t port;
    int fd;
    int rc;

    if (where[0] == '\0') {
        return PS_EXIT_OK;
    }
    rc = ps_addr_parse(where, &addr);
    if (rc == 0) {
        rc = ps_listen_tcp(addr.host, addr.port, BACKLOG, &fd, &port);
    }
    if (rc != 0) {
        ps_log(PS_LOG_ERROR, "metrics.listen: cannot listen on %s: %s", where,
               ps_advice_tcp(rc, errno));
        return ps_exit_code(rc);
    }
    rc = http_open(d, fd, &d->metrics.http);
    if (rc != 0) {
        return ps_exit_refused("cannot serve", "metrics.listen", rc);
    }
    log_address(&addr, port);
    return PS_EXIT_OK;
}
