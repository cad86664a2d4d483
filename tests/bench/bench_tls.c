/* SPDX-License-Identifier: Apache-2.0 */
/* Ways to encrypt a stream: time and CPU time of BYTES through one TCP
 * connection on the loopback; one line of JSON each.
 *
 *     bench_tls BYTES ROUNDS
 *
 * plain    send and recv
 * session  crypto/tls_session, as the daemons use it
 *
 * Each is measured in one direction, with a sending and a receiving thread. */
#include "crypto/tls.h"
#include "measure.h"
#include "support/certs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS_MAX 100u
#define CHUNK      ((size_t)256 * 1024)

struct end {
    int fd;
    struct ps_tls_context *context;
    struct ps_tls_session *session;
    char *memory;
    double cpu_s; /* Of the last round. */
};

/* A way to encrypt, in operations of one end. */
struct way {
    const char *name;
    void (*open)(struct end *e, bool dialled);
    size_t (*send)(struct end *e, char *from, size_t len);
    size_t (*receive)(struct end *e, char *into, size_t len);
};

static size_t bytes;
static const struct way *way;
static struct end ends[2];

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

/* -------------------------------------------------------------------- plain */

static void plain_open(struct end *e, bool dialled)
{
    (void)e;
    (void)dialled;
}

static size_t plain_send(struct end *e, char *from, size_t len)
{
    ssize_t n = send(e->fd, from, len < CHUNK ? len : CHUNK, MSG_NOSIGNAL);

    if (n <= 0) {
        give_up("send");
    }
    return (size_t)n;
}

static size_t plain_receive(struct end *e, char *into, size_t len)
{
    ssize_t n = recv(e->fd, into, len < CHUNK ? len : CHUNK, 0);

    if (n <= 0) {
        give_up("recv");
    }
    return (size_t)n;
}

/* ------------------------------------------------------------------ session */

static void session_open(struct end *e, bool dialled)
{
    char text[256];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    e->session = ps_tls_session_new(e->context, e->fd, dialled);
    if (e->session == NULL || ps_tls_session_handshake(e->session, &why) != 0) {
        fprintf(stderr, "bench_tls: %s\n", text);
        exit(1);
    }
}

static size_t session_send(struct end *e, char *from, size_t len)
{
    const struct iovec iov = {from, len};
    ssize_t n = ps_tls_session_write(e->session, &iov, 1);

    if (n <= 0) {
        give_up("session");
    }
    return (size_t)n;
}

static size_t session_receive(struct end *e, char *into, size_t len)
{
    const struct iovec iov = {into, len};
    ssize_t n = ps_tls_session_read(e->session, &iov, 1);

    if (n <= 0) {
        give_up(ps_tls_session_failure(e->session));
    }
    return (size_t)n;
}

static const struct way ways[] = {
    {"plain", plain_open, plain_send, plain_receive},
    {"session", session_open, session_send, session_receive},
};

/* ------------------------------------------------------------------ measure */

static double thread_cpu(void)
{
    struct rusage u;

    getrusage(RUSAGE_THREAD, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void *run_open(void *end)
{
    way->open(end, end == &ends[0]);
    return NULL;
}

static void *run_end(void *arg)
{
    struct end *e = arg;
    double begin = thread_cpu();

    for (size_t done = 0; done < bytes;) {
        done += e == &ends[0] ? way->send(e, e->memory + done, bytes - done)
                              : way->receive(e, e->memory + done, bytes - done);
    }
    e->cpu_s = thread_cpu() - begin;
    return NULL;
}

static void both(void *(*work)(void *))
{
    pthread_t other;

    if (pthread_create(&other, NULL, work, &ends[1]) != 0) {
        give_up("thread");
    }
    (void)work(&ends[0]);
    pthread_join(other, NULL);
}

static void measure(unsigned rounds)
{
    double seconds[ROUNDS_MAX];
    double cpu[ROUNDS_MAX];
    double gb = (double)bytes / 1e9;
    int pair[2];

    if (!measure_connect(pair)) {
        exit(1);
    }
    ends[0].fd = pair[0];
    ends[1].fd = pair[1];
    both(run_open);
    for (unsigned i = 0; i <= rounds; i++) {
        double begin = measure_now();

        memset(ends[0].memory, (int)i + 1, bytes);
        begin = measure_now();
        both(run_end);
        if (ends[1].memory[bytes - 1] != (char)(i + 1)) {
            fprintf(stderr, "bench_tls: %s: wrong bytes\n", way->name);
            exit(1);
        }
        if (i > 0) { /* The first touches memory. */
            seconds[i - 1] = measure_now() - begin;
            cpu[i - 1] = ends[0].cpu_s + ends[1].cpu_s;
        }
    }
    measure_sort(seconds, rounds);
    measure_sort(cpu, rounds);
    printf("{\"what\": \"%s\", \"bytes\": %zu, \"gb_s\": %.3f, "
           "\"cpu_s_gb\": %.3f, \"cpu_least\": %.3f, \"cpu_most\": %.3f}\n",
           way->name, bytes, gb / seconds[rounds / 2], cpu[rounds / 2] / gb,
           cpu[0] / gb, cpu[rounds - 1] / gb);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        ps_tls_session_free(ends[i].session);
        ends[i].session = NULL;
        close(ends[i].fd);
    }
}

static void make_contexts(void)
{
    char dir[] = "/tmp/pskv-bench-tls-XXXXXX";
    const struct certs_wish server = {.uri = "ps://bench/server/a"};
    const struct certs_wish agent = {.uri = "ps://bench/agent/b"};
    static const char *const files[] = {"ca.crt", "ca.key", "a.crt",
                                        "a.key",  "b.crt",  "b.key"};
    struct certs_authority *a;

    if (mkdtemp(dir) == NULL) {
        give_up(dir);
    }
    a = certs_new("bench");
    certs_write(a, dir);
    certs_issue(a, &server, dir, "a");
    certs_issue(a, &agent, dir, "b");
    certs_free(a);
    ends[0].context = certs_load(dir, "a");
    ends[1].context = certs_load(dir, "b");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[128];

        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

int main(int argc, char **argv)
{
    unsigned rounds = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;

    bytes = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    if (bytes == 0 || rounds == 0 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_tls BYTES ROUNDS; 1 to %u rounds\n",
                ROUNDS_MAX);
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        ends[i].memory = malloc(bytes);
        if (ends[i].memory == NULL) {
            give_up("memory");
        }
    }
    make_contexts();
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        way = &ways[i];
        measure(rounds);
    }
    for (int i = 0; i < 2; i++) {
        ps_tls_context_unref(ends[i].context);
        free(ends[i].memory);
    }
    return 0;
}
