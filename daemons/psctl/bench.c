/* SPDX-License-Identifier: Apache-2.0 */
/* psctl bench: runs a job of its own on the present cluster. Its workers are
 * child processes on this node; they push and pull all keys at once, round
 * after round, each behind a barrier, and leave. Measurements return through
 * shared memory. When a worker fails or psctl is interrupted, the others are
 * killed, and the job with them: its loss policy is to fail. */
#include "psctl/verbs.h"

#include "base/variables.h"
#include "client/psclient.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WARM_UP    3u
/* In ms; a round that takes longer counts as stalled. */
#define OP_TIMEOUT 60000

/* Result of one worker. */
struct result {
    int rc; /* PSC_E_*; 1: not finished. */
    char text[PSC_TEXT_MAX];
    uint64_t wrong_elements; /* Elements that differ from the expected sum. */
};

struct shared {
    _Atomic uint32_t rounds_done; /* Rounds completed by the first worker. */
    struct result result[BENCH_WORKERS_MAX];
    double seconds[]; /* Seconds of each round, by worker. */
};

struct worker {
    const struct bench_options *o;
    const char *job;
    uint32_t rank;
    struct result *result;
    double *seconds;
    _Atomic uint32_t *rounds; /* Progress shown by psctl. */
    struct psc_client *client;
    size_t each; /* Elements of one key. */
    float *in;   /* All keys, one behind the other. */
    float *out;
    uint32_t *key;
    struct psc_op **op;
};

/* ------------------------------------------------------------------- worker */

static int bench_error(struct worker *w, int rc, const char *what)
{
    char detail[PSC_TEXT_MAX / 2] = "";

    if (w->client != NULL) {
        (void)psc_last_detail(w->client, detail, sizeof(detail));
    }
    w->result->rc = rc;
    snprintf(w->result->text, sizeof(w->result->text), "%s: %s%s%s", what,
             psc_strerror(rc), detail[0] == '\0' ? "" : ": ", detail);
    return rc;
}

static int join_job(struct worker *w)
{
    struct psc_options o;

    psc_options_init(&o, sizeof(o));
    o.rank = (int32_t)w->rank;
    o.socket = w->o->socket;
    o.job = w->job;
    o.num_workers = w->o->workers;
    o.num_servers = w->o->servers;
    o.on_loss = PSC_ON_LOSS_FAIL;
    o.connect_timeout_ms = (int32_t)(w->o->timeout / PS_MILLIS(1));
    o.start_timeout_ms = OP_TIMEOUT;
    o.op_timeout_ms = OP_TIMEOUT;
    int rc = psc_open(&o, &w->client, w->result->text, sizeof(w->result->text));

    if (rc != 0) {
        w->result->rc = rc;
    }
    return rc;
}

static int declare_keys(struct worker *w)
{
    const uint64_t shape = w->each;
    struct psc_key_spec *spec = calloc(w->o->keys, sizeof(*spec));
    char(*name)[24] = calloc(w->o->keys, sizeof(*name));
    int rc = PSC_E_NOMEM;

    if (spec != NULL && name != NULL) {
        for (uint32_t i = 0; i < w->o->keys; i++) {
            snprintf(name[i], sizeof(name[i]), "bench.%" PRIu32, i);
            spec[i] = (struct psc_key_spec){.name = name[i],
                                            .dtype = PSC_FLOAT32,
                                            .ndim = 1,
                                            .shape = &shape};
        }
        rc = psc_keys(w->client, spec, w->o->keys, w->key);
    }
    free(spec);
    free(name);
    return rc == 0 ? 0 : bench_error(w, rc, "keys");
}

static int prepare_arrays(struct worker *w)
{
    const size_t bytes = w->each * sizeof(float) * w->o->keys;
    void *in = NULL;
    void *out = NULL;
    int rc;

    w->key = calloc(w->o->keys, sizeof(*w->key));
    w->op = calloc(w->o->keys, sizeof(struct psc_op *));
    if (w->key == NULL || w->op == NULL) {
        return bench_error(w, PSC_E_NOMEM, "memory");
    }
    rc = psc_alloc(w->client, bytes, &in);
    if (rc == 0) {
        rc = psc_alloc(w->client, bytes, &out);
    }
    if (rc != 0) {
        return bench_error(w, rc, "memory");
    }
    w->in = in;
    w->out = out;
    for (size_t i = 0; i < w->each * w->o->keys; i++) {
        w->in[i] = (float)(w->rank + 1 + i % 7);
        w->out[i] = 0;
    }
    return declare_keys(w);
}

/* Runs one round: pushes and pulls all keys; measures until the last is
 * back. */
static int run_round(struct worker *w, double *ret_seconds)
{
    ps_time begin;
    int rc = psc_barrier(w->client);

    if (rc != 0) {
        return bench_error(w, rc, "barrier");
    }
    begin = monotonic_now();
    for (uint32_t i = 0; i < w->o->keys; i++) {
        const struct psc_op_options o = {.size = sizeof(o),
                                         .priority = -(int32_t)i};

        rc = psc_pushpull_start(w->client, w->key[i], w->in + i * w->each,
                                w->out + i * w->each, &o, &w->op[i]);
        if (rc != 0) {
            return bench_error(w, rc, "push and pull");
        }
    }
    rc = psc_ops_wait(w->op, w->o->keys, PSC_WAIT_DEFAULT);
    *ret_seconds = (double)(monotonic_now() - begin) / 1e9;
    if (rc != 0) {
        return bench_error(w, rc, "push and pull");
    }
    for (uint32_t i = 0; i < w->o->keys; i++) {
        psc_op_free(w->op[i]);
        w->op[i] = NULL;
    }
    return 0;
}

static void check_result(struct worker *w)
{
    const uint32_t n = w->o->workers;

    for (size_t i = 0; i < w->each * w->o->keys; i++) {
        float want = (float)n * (float)(n + 1) / 2 + (float)n * (float)(i % 7);

        w->result->wrong_elements += w->out[i] != want;
    }
}

static int worker_main(struct worker *w)
{
    int rc = join_job(w);

    if (rc == 0) {
        rc = prepare_arrays(w);
    }
    for (uint32_t r = 0; rc == 0 && r < WARM_UP + w->o->rounds; r++) {
        double seconds = 0;

        rc = run_round(w, &seconds);
        if (rc == 0 && r >= WARM_UP) {
            w->seconds[r - WARM_UP] = seconds;
        }
        if (w->rank == 0) {
            atomic_store(w->rounds, r + 1);
        }
    }
    if (rc == 0) {
        check_result(w);
        rc = psc_barrier(w->client);
        if (rc != 0) {
            rc = bench_error(w, rc, "barrier");
        }
    }
    psc_close(w->client);
    free(w->key);
    free(w->op);
    w->result->rc = rc;
    return rc;
}

/* ----------------------------------------------------------- parent process */

struct team {
    const struct bench_options *o;
    struct shared *shared;
    size_t shared_size;
    pid_t pid[BENCH_WORKERS_MAX];
    char job[64];
};

static double *seconds_of(const struct team *t, uint32_t worker)
{
    return t->shared->seconds + (size_t)worker * t->o->rounds;
}

static void kill_workers(const struct team *t)
{
    for (uint32_t i = 0; i < t->o->workers; i++) {
        if (t->pid[i] > 0) {
            kill(t->pid[i], SIGKILL);
        }
    }
}

/* Workers that the signal handler kills; kill() is async-signal-safe. */
static const struct team *volatile active_team;
static volatile sig_atomic_t stop_signal;

static void on_stop_signal(int number)
{
    stop_signal = number;
    if (active_team != NULL) {
        kill_workers(active_team);
    }
}

static bool start_workers(struct team *t)
{
    const pid_t parent = getpid();

    for (uint32_t i = 0; i < t->o->workers; i++) {
        struct worker w = {
            .o = t->o,
            .job = t->job,
            .rank = i,
            .result = &t->shared->result[i],
            .seconds = seconds_of(t, i),
            .rounds = &t->shared->rounds_done,
            .each = t->o->size / t->o->keys / sizeof(float),
        };

        t->shared->result[i].rc = 1;
        t->pid[i] = fork();
        if (t->pid[i] < 0) {
            t->pid[i] = 0;
            perror("psctl: fork");
            return false;
        }
        if (t->pid[i] == 0) {
            /* The worker dies with psctl, even if that is killed. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            signal(SIGINT, SIG_IGN);
            signal(SIGTERM, SIG_DFL);
            _exit(getppid() == parent && worker_main(&w) == 0 ? 0 : 1);
        }
    }
    return stop_signal == 0;
}

/* First worker whose failure is not the consequence of another's. */
static const struct result *first_failure(const struct team *t)
{
    const struct result *any = NULL;

    for (uint32_t i = 0; i < t->o->workers; i++) {
        const struct result *r = &t->shared->result[i];

        if (r->rc < 0 && r->rc != PSC_E_PEERLOST && r->rc != PSC_E_JOBFAILED) {
            return r;
        }
        if (r->rc < 0 && any == NULL) {
            any = r;
        }
    }
    return any;
}

/* Shows the progress in one line, which the next call overwrites; the last call
 * clears it. */
static void show_progress(const struct team *t, bool last)
{
    uint32_t all = WARM_UP + t->o->rounds;

    if (last) {
        fputs("\r\033[K", stderr);
    } else {
        fprintf(stderr, "\rpsctl: bench: round %" PRIu32 " of %" PRIu32,
                atomic_load(&t->shared->rounds_done), all);
    }
    fflush(stderr);
}

/* waitpid() that shows progress on a terminal meanwhile. */
static pid_t wait_for_worker(const struct team *t, int *ret_status)
{
    static const struct timespec step = {.tv_nsec = 100000000};
    pid_t pid = 0;

    if (isatty(STDERR_FILENO) != 1) {
        return waitpid(-1, ret_status, 0);
    }
    while ((pid = waitpid(-1, ret_status, WNOHANG)) == 0) {
        show_progress(t, false);
        nanosleep(&step, NULL);
    }
    show_progress(t, true);
    return pid;
}

/* Waits for all workers; kills the others after a failure. True: all
 * succeeded. */
static bool wait_for_workers(struct team *t)
{
    bool ok = true;

    for (;;) {
        int status;
        pid_t pid = wait_for_worker(t, &status);

        if (pid < 0 && errno == EINTR) {
            continue; /* The signal handler has killed them. */
        }
        if (pid < 0) {
            break; /* No worker is left. */
        }
        for (uint32_t i = 0; i < t->o->workers; i++) {
            if (t->pid[i] == pid) {
                t->pid[i] = 0;
            }
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            kill_workers(t);
            ok = false;
        }
    }
    return ok && stop_signal == 0;
}

/* ------------------------------------------------------------------- report */

struct bench_stats {
    double median;
    double p90;
    double p99;
    double min;
    double max;
    uint64_t wrong_elements;
};

static int compare_seconds(const void *a, const void *b)
{
    const double *x = a;
    const double *y = b;

    return (*x > *y) - (*x < *y);
}

static struct bench_stats compute_stats(const struct team *t)
{
    const uint32_t n = t->o->rounds;
    struct bench_stats f = {0};
    double *all = calloc(n, sizeof(*all));

    if (all == NULL) {
        abort();
    }
    for (uint32_t i = 0; i < t->o->workers; i++) {
        for (uint32_t r = 0; r < n; r++) {
            /* A round lasts as long as its slowest worker. */
            all[r] = fmax(all[r], seconds_of(t, i)[r]);
        }
        f.wrong_elements += t->shared->result[i].wrong_elements;
    }
    qsort(all, n, sizeof(*all), compare_seconds);
    f.median = all[n / 2];
    f.p90 = all[(uint64_t)n * 90 / 100];
    f.p99 = all[(uint64_t)n * 99 / 100];
    f.min = all[0];
    f.max = all[n - 1];
    free(all);
    return f;
}

static uint64_t bytes_per_round(const struct bench_options *o)
{
    return o->size / o->keys / sizeof(float) * sizeof(float) * o->keys;
}

static void print_table(const struct team *t, const struct bench_stats *f)
{
    const struct bench_options *o = t->o;
    const char *const headings[] = {"what", ">median", ">p90",
                                    ">p99", ">least",  ">most"};
    const double time[] = {f->median, f->p90, f->p99, f->min, f->max};
    char bytes[32];
    struct table table;

    format_bytes(bytes_per_round(o), bytes, sizeof(bytes));
    printf("%" PRIu32 " worker%s on this node, %" PRIu32 " server%s; %" PRIu32
           " key%s of float32, %s in all; %" PRIu32
           " round%s of push and pull\n",
           o->workers, plural(o->workers), o->servers, plural(o->servers),
           o->keys, plural(o->keys), bytes, o->rounds, plural(o->rounds));
    table_init(&table, headings, 6);
    table_text(&table, "ms a round");
    for (size_t i = 0; i < 5; i++) {
        table_cell(&table, "%.3f", time[i] * 1e3);
    }
    table_text(&table, "GB/s each way of a worker");
    for (size_t i = 0; i < 5; i++) {
        table_cell(&table, "%.3f", (double)bytes_per_round(o) / time[i] / 1e9);
    }
    table_text(&table, "keys a second");
    for (size_t i = 0; i < 5; i++) {
        table_cell(&table, "%.0f", o->keys / time[i]);
    }
    table_print(&table, true);
    table_fini(&table);
}

static void print_json(const struct team *t, const struct bench_stats *f)
{
    const struct bench_options *o = t->o;
    json_t *root = json_pack(
        "{s:i, s:{s:s, s:I, s:I, s:I, s:I, s:I, s:{s:f, s:f, s:f, s:f, s:f},"
        " s:f, s:f}}",
        "schema", 1, "bench", "job", t->job, "workers", (json_int_t)o->workers,
        "servers", (json_int_t)o->servers, "keys", (json_int_t)o->keys, "bytes",
        (json_int_t)bytes_per_round(o), "rounds", (json_int_t)o->rounds,
        "round_s", "median", f->median, "p90", f->p90, "p99", f->p99, "least",
        f->min, "most", f->max, "bytes_per_s",
        (double)bytes_per_round(o) / f->median, "keys_per_s",
        o->keys / f->median);

    json_print(root);
}

static int report_round(const struct team *t, bool json)
{
    const struct bench_stats f = compute_stats(t);

    if (f.wrong_elements > 0) {
        fprintf(stderr,
                "psctl: bench: %" PRIu64 " elements are not the sum of what "
                "was pushed\n",
                f.wrong_elements);
        return EXIT_FAILED;
    }
    if (json) {
        print_json(t, &f);
    } else {
        print_table(t, &f);
    }
    return 0;
}

static int run_team(const struct bench_options *o, bool json)
{
    const struct sigaction stop = {.sa_handler = on_stop_signal};
    struct team t = {.o = o};
    int rc = EXIT_FAILED;
    bool ok;

    t.shared_size = sizeof(struct shared) +
                    (size_t)o->workers * o->rounds * sizeof(double);
    t.shared = mmap(NULL, t.shared_size, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t.shared == MAP_FAILED) {
        perror("psctl: bench: memory");
        return EXIT_FAILED;
    }
    snprintf(t.job, sizeof(t.job), "psctl-bench-%08" PRIx64 "-%d",
             monotonic_now() / 1000 & 0xffffffffu, (int)getpid());
    active_team = &t;
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    ok = start_workers(&t);
    if (!ok) {
        kill_workers(&t);
    }
    ok = wait_for_workers(&t) && ok;
    active_team = NULL;
    if (ok) {
        rc = report_round(&t, json);
    } else if (stop_signal != 0) {
        fputs("psctl: bench: stopped\n", stderr);
        rc = 128 + stop_signal;
    } else {
        const struct result *r = first_failure(&t);

        fprintf(stderr, "psctl: bench: %s\n",
                r != NULL ? r->text : "a worker died");
        rc = r != NULL && r->rc == PSC_E_UNREACH ? EXIT_UNAVAILABLE
                                                 : EXIT_FAILED;
    }
    munmap(t.shared, t.shared_size);
    return rc;
}

/* Runs the benchmark over all active servers. */
int bench_run(const struct request *q, const struct report *r)
{
    const struct rows *nodes = &r->rows_of[PS_QUERY_NODES];
    const char *socket = getenv("PSKV_SOCKET");
    char own[PS_SOCKET_PATH_MAX + 1];
    struct bench_options o = q->bench;

    if (o.size / o.keys < sizeof(float)) {
        fprintf(stderr,
                "psctl: bench: %u keys of one element have more bytes than "
                "--size\n",
                o.keys);
        return EXIT_USAGE;
    }
    for (size_t i = 0; i < nodes->count; i++) {
        const struct ps_msg_node_row *n = &nodes->row[i]->node_row;

        o.servers += n->role == PS_ROLE_SERVER &&
                     n->state == PS_NODE_STATE_ACTIVE && !n->draining;
    }
    if (o.servers == 0) {
        fputs("psctl: bench: the cluster has no active server\n", stderr);
        return EXIT_DEGRADED;
    }
    if (o.socket == NULL) {
        ps_runtime_socket("agent.sock", own, sizeof(own));
        o.socket = socket != NULL && socket[0] != '\0' ? socket : own;
    }
    o.timeout = q->timeout;
    return run_team(&o, q->print.json);
}
