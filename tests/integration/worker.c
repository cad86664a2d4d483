/* SPDX-License-Identifier: Apache-2.0 */
/* A training process that does what a test tells it: one command a line on
 * standard input, one line back on standard output, "ok ..." or
 * "err CODE TEXT". Arrays come from files and go to files, so that the test
 * can compute what they should be.
 *
 *     open                              ok RANK SIZE LOCAL_RANK LOCAL_SIZE
 *     key NAME|#NUMBER DTYPE COUNT      ok K
 *     init|push|pull|pushpull|broadcast K [src=F[,F...]] [out=F] [root=R]
 *         [priority=P] [mean] [timeout=MS] [copy]
 *                                       ok VERSION HASH
 *     barrier [timeout=MS]              ok
 *     start ID init|push|... as above   ok
 *     wait ID [timeout=MS]              ok VERSION HASH
 *     why ID                            ok TEXT
 *     sgd NAME=VALUE...                 ok
 *     optimizer NAME NAME=VALUE...      ok
 *     compress TYPE NAME=VALUE...       ok
 *     rounds KIND COUNT SEED BUSY K...  ok HASH
 *     device ORDINAL [inplace] [other] [held]   ok
 *     again                             ok
 *     detail                            ok TEXT
 *     leave                             ok
 *     close                             ok, and the end
 *
 * `rounds` pushes and pulls all the keys at once, COUNT times, computes
 * needlessly for a random while in between, and folds every result into the
 * hash. KIND: "count" gives (rank + 1) * round and checks each sum, "same"
 * gives -(rank + 1), for an optimizer that adds them up, and checks that,
 * "mixed" gives values whose float sum depends on the order, "=VALUE" gives
 * VALUE, from arrays filled once, and checks nothing. */
#include <inttypes.h>
#include <psclient.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device_memory.h"

#define KEYS   4096
#define OPS    256
#define WORDS  400
/* Of an array in an allocation: a multiple of 8, but of no other power of two. */
#define OFFSET 264u

struct key {
    uint32_t key;
    uint32_t dtype;
    uint64_t count;
    uint64_t bytes;
    void *src; /* psc_alloc, made when first needed. */
    void *out;
    void *device_src; /* The same in memory of a GPU, for `rounds`. */
    void *device_out;
    void *device_block; /* Has both, if their memory is not the library's. */
};

struct started {
    struct psc_op *op; /* NULL: free. */
    const struct key *key;
    char id[32];
    char out_file[512];
    void *out;
    void *srcs[16];
    uint32_t src_count;
    bool copy;
};

static struct psc_client *client;
static struct device *device; /* Has the arrays of `rounds`; NULL: the host. */
static bool is_in_place;      /* Results replace the arrays. */
static bool is_other;         /* Memory of the device is not the library's. */
static struct key keys[KEYS];
static uint32_t key_count;
static struct started ops[OPS];
static char detail[PSC_TEXT_MAX];

static void answer(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void answer(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

static void answer_error(int rc)
{
    if (client != NULL) {
        psc_last_detail(client, detail, sizeof(detail));
    }
    answer("err %d %s; %s", rc, psc_strerror(rc), detail);
}

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "worker: %s\n", what);
    exit(97);
}

/* ----------------------------------------------------------------- numbers */

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* FNV-1a over words, with the tail by bytes. */
static uint64_t hash_of(uint64_t h, const void *data, uint64_t bytes)
{
    const unsigned char *p = data;

    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;

        memcpy(&word, p, 8);
        h = (h ^ word) * 0x100000001b3u;
        h ^= h >> 29;
    }
    for (; bytes > 0; bytes--, p++) {
        h = (h ^ *p) * 0x100000001b3u;
    }
    return h;
}

static uint64_t dtype_size(uint32_t dtype)
{
    return dtype == PSC_FLOAT32 || dtype == PSC_INT32 ? 4 : 8;
}

static void store(const struct key *k, void *to, uint64_t i, double v)
{
    switch ((enum psc_dtype)k->dtype) {
    case PSC_FLOAT32:
        ((float *)to)[i] = (float)v;
        break;
    case PSC_FLOAT64:
        ((double *)to)[i] = v;
        break;
    case PSC_INT32:
        ((int32_t *)to)[i] = (int32_t)v;
        break;
    case PSC_INT64:
        ((int64_t *)to)[i] = (int64_t)v;
        break;
    default:
        break;
    }
}

static double load(const struct key *k, const void *from, uint64_t i)
{
    switch ((enum psc_dtype)k->dtype) {
    case PSC_FLOAT32:
        return (double)((const float *)from)[i];
    case PSC_FLOAT64:
        return ((const double *)from)[i];
    case PSC_INT32:
        return ((const int32_t *)from)[i];
    case PSC_INT64:
        return (double)((const int64_t *)from)[i];
    default:
        break;
    }
    return 0;
}

/* ------------------------------------------------------------------- memory */

static void *get_memory(uint64_t bytes, bool copy)
{
    void *p = NULL;

    if (copy) {
        p = malloc(bytes);
    } else if (psc_alloc(client, bytes, &p) != 0) {
        p = NULL;
    }
    if (p == NULL) {
        die("no memory");
    }
    return p;
}

static void put_memory(void *p, bool copy)
{
    if (copy) {
        free(p);
    } else if (psc_free(client, p) != 0) {
        die("memory is still in use");
    }
}

static void read_file(const char *path, void *to, uint64_t bytes)
{
    FILE *f = fopen(path, "rb");

    if (f == NULL || fread(to, 1, bytes, f) != bytes || fgetc(f) != EOF) {
        die("source file has not the size of the key");
    }
    fclose(f);
}

static void write_file(const char *path, const void *from, uint64_t bytes)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(from, 1, bytes, f) != bytes || fclose(f) != 0) {
        die("cannot write the result");
    }
}

/* ----------------------------------------------------------------- commands */

static const char *option(char **words, int count, const char *name)
{
    size_t len = strlen(name);

    for (int i = 0; i < count; i++) {
        if (strncmp(words[i], name, len) == 0 &&
            (words[i][len] == '=' || words[i][len] == '\0')) {
            return words[i][len] == '=' ? words[i] + len + 1 : "";
        }
    }
    return NULL;
}

static int timeout_of(char **words, int count)
{
    const char *text = option(words, count, "timeout");

    return text != NULL ? atoi(text) : PSC_WAIT_DEFAULT;
}

static void do_open(void)
{
    struct psc_options o;
    int rc;

    psc_options_init(&o, sizeof(o));
    rc = psc_options_env(&o, detail, sizeof(detail));
    if (rc == 0) {
        rc = psc_open(&o, &client, detail, sizeof(detail));
    }
    if (rc != 0) {
        answer("err %d %s; %s", rc, psc_strerror(rc), detail);
        return;
    }
    answer("ok %d %d %d %d", psc_rank(client), psc_size(client),
           psc_local_rank(client), psc_local_size(client));
}

static void do_key(char **words, int count)
{
    static const struct {
        const char *name;
        uint32_t dtype;
    } dtypes[] = {{"float32", PSC_FLOAT32},
                  {"float64", PSC_FLOAT64},
                  {"int32", PSC_INT32},
                  {"int64", PSC_INT64}};
    struct key *k = &keys[key_count];
    uint64_t shape[1];
    int rc;

    if (count != 3 || key_count == KEYS) {
        die("key NAME DTYPE COUNT");
    }
    *k = (struct key){.dtype = UINT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(dtypes[i].name, words[1]) == 0) {
            k->dtype = dtypes[i].dtype;
        }
    }
    k->count = strtoull(words[2], NULL, 10);
    k->bytes = k->count * dtype_size(k->dtype);
    shape[0] = k->count;
    if (words[0][0] == '#') {
        rc = psc_key_int(client, strtoll(words[0] + 1, NULL, 10), k->dtype, 1,
                         shape, &k->key);
    } else {
        rc = psc_key(client, words[0], k->dtype, 1, shape, &k->key);
    }
    if (rc != 0) {
        answer_error(rc);
        return;
    }
    answer("ok %u", key_count++);
}

static struct key *key_at(const char *text)
{
    unsigned long i = strtoul(text, NULL, 10);

    if (i >= key_count) {
        die("no such key");
    }
    return &keys[i];
}

static void read_sources(struct started *s, const char *list)
{
    char copy[4096];
    char *at = NULL;

    snprintf(copy, sizeof(copy), "%s", list);
    for (char *f = strtok_r(copy, ",", &at); f != NULL;
         f = strtok_r(NULL, ",", &at)) {
        if (s->src_count == 16) {
            die("too many sources");
        }
        s->srcs[s->src_count] = get_memory(s->key->bytes, s->copy);
        read_file(f, s->srcs[s->src_count++], s->key->bytes);
    }
}

static int start_op(struct started *s, const char *verb, char **words,
                    int count)
{
    struct psc_op_options o = {.size = sizeof(o)};
    const char *src = option(words, count, "src");
    const char *root = option(words, count, "root");
    const char *priority = option(words, count, "priority");
    const char *out = option(words, count, "out");
    const void *one;

    if (strcmp(verb, "barrier") == 0) {
        return psc_barrier_start(client, NULL, &s->op);
    }
    s->key = key_at(words[0]);
    s->copy = option(words, count, "copy") != NULL;
    if (src != NULL) {
        read_sources(s, src);
    }
    snprintf(s->out_file, sizeof(s->out_file), "%s", out != NULL ? out : "");
    o.root = root != NULL ? (uint32_t)atoi(root) : 0;
    o.priority = priority != NULL ? atoi(priority) : 0;
    o.reduce = option(words, count, "mean") != NULL ? PSC_MEAN : PSC_SUM;
    one = s->src_count > 0 ? s->srcs[0] : NULL;
    if (s->src_count > 1) {
        o.srcs = (const void *const *)s->srcs;
        o.src_count = s->src_count;
    }
    if (strcmp(verb, "init") == 0) {
        return psc_init_start(client, s->key->key, one, &o, &s->op);
    }
    if (strcmp(verb, "push") == 0) {
        return psc_push_start(client, s->key->key, one, &o, &s->op);
    }
    s->out = get_memory(s->key->bytes, s->copy);
    if (strcmp(verb, "pull") == 0) {
        return psc_pull_start(client, s->key->key, s->out, &o, &s->op);
    }
    if (strcmp(verb, "pushpull") == 0) {
        return psc_pushpull_start(client, s->key->key, one, s->out, &o, &s->op);
    }
    if (strcmp(verb, "broadcast") == 0) {
        return psc_broadcast_start(client, s->key->key, one, s->out, &o,
                                   &s->op);
    }
    die("no such operation");
}

static void forget(struct started *s)
{
    psc_op_free(s->op);
    for (uint32_t i = 0; i < s->src_count; i++) {
        put_memory(s->srcs[i], s->copy);
    }
    if (s->out != NULL) {
        put_memory(s->out, s->copy);
    }
    memset(s, 0, sizeof(*s));
}

static void wait_and_answer(struct started *s, int timeout)
{
    int rc = psc_op_wait(s->op, timeout);
    uint64_t version = 0;
    uint64_t hash = 0;

    if (rc == PSC_E_TIMEOUT) {
        answer_error(rc); /* Still open: to be waited for again. */
        return;
    }
    if (rc != 0) {
        answer_error(rc);
        forget(s);
        return;
    }
    if (s->out != NULL) {
        hash = hash_of(0, s->out, s->key->bytes);
        if (s->out_file[0] != '\0') {
            write_file(s->out_file, s->out, s->key->bytes);
        }
    }
    if (s->key != NULL && psc_op_version(s->op, &version) != 0) {
        version = 0;
    }
    answer("ok %" PRIu64 " %016" PRIx64, version, hash);
    forget(s);
}

static struct started *slot_of(const char *id, bool fresh)
{
    for (int i = 0; i < OPS; i++) {
        if (fresh ? ops[i].op == NULL && ops[i].id[0] == '\0'
                  : strcmp(ops[i].id, id) == 0) {
            snprintf(ops[i].id, sizeof(ops[i].id), "%s", id);
            return &ops[i];
        }
    }
    die("no such operation was started");
}

static bool is_op(const char *word)
{
    static const char *const names[] = {"init",     "push",      "pull",
                                        "pushpull", "broadcast", "barrier"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], word) == 0) {
            return true;
        }
    }
    return false;
}

/* `id` NULL: wait for it at once. */
static void do_op(const char *id, const char *verb, char **words, int count)
{
    struct started *s = slot_of(id != NULL ? id : "now", true);
    int rc = start_op(s, verb, words, count);

    if (rc != 0) {
        answer_error(rc);
        forget(s);
        return;
    }
    if (id != NULL) {
        answer("ok");
        return;
    }
    wait_and_answer(s, timeout_of(words, count));
}

/* optimizer NAME NAME=VALUE..., compress TYPE NAME=VALUE... */
static void do_declare(const char *what, const char *name, char **words,
                       int count)
{
    struct psc_param params[16];
    uint32_t n = 0;
    int rc;

    for (int i = 0; i < count && n < 16; i++) {
        char *eq = strchr(words[i], '=');

        if (eq == NULL) {
            die("NAME=VALUE");
        }
        *eq = '\0';
        params[n++] = (struct psc_param){.name = words[i],
                                         .value = atof(eq + 1)};
    }
    rc = strcmp(what, "optimizer") == 0
             ? psc_optimizer_set(client, name, params, n)
             : psc_compression_set(client, name, params, n);
    if (rc != 0) {
        answer_error(rc);
        return;
    }
    answer("ok");
}

/* ------------------------------------------------------------------- rounds */

static volatile uint64_t sink;

static void compute(uint64_t *random, uint64_t most)
{
    uint64_t n = most > 0 ? draw(random) % most : 0;
    uint64_t state = n;

    while (n-- > 0) {
        sink = draw(&state);
    }
}

static void fill(const char *kind, struct key *k, uint64_t round)
{
    uint64_t rank = (uint64_t)psc_rank(client);

    if (kind[0] == '=') {
        const double value = atof(kind + 1);

        for (uint64_t i = 0; round == 1 && i < k->count; i++) {
            store(k, k->src, i, value);
        }
        return;
    }
    if (strcmp(kind, "mixed") == 0) {
        static const double values[] = {1e8, 1, -1e8, 3, -2e7, 0.125};
        uint64_t state = rank * 1000003 + round * 7919 + k->key;

        for (uint64_t i = 0; i < k->count; i++) {
            store(k, k->src, i, values[draw(&state) % 6]);
        }
        return;
    }
    for (uint64_t i = 0; i < k->count; i++) {
        store(k, k->src, i,
              strcmp(kind, "count") == 0 ? (double)((rank + 1) * round)
                                         : -(double)(rank + 1));
    }
}

static bool check(const char *kind, const struct key *k, uint64_t round)
{
    uint64_t n = (uint64_t)psc_size(client);
    double want = (double)(n * (n + 1) / 2 * round);

    if (strcmp(kind, "mixed") == 0 || kind[0] == '=') {
        return true;
    }
    for (uint64_t i = 0; i < k->count; i++) {
        if (load(k, k->out, i) != want) {
            answer("err 0 round %" PRIu64 " element %" PRIu64 " is %.17g, "
                   "not %.17g",
                   round, i, load(k, k->out, i), want);
            return false;
        }
    }
    return true;
}

/* Makes arrays in one allocation, not at its beginning. */
static void make_other(struct key *k)
{
    const size_t room = (k->bytes + 7) / 8 * 8;

    if (k->device_block == NULL) {
        k->device_block = device_alloc(device, OFFSET + 2 * room);
        k->device_src = (char *)k->device_block + OFFSET;
        k->device_out = (char *)k->device_src + (is_in_place ? 0 : room);
    }
}

/* Frees arrays and makes them again at the same addresses. */
static void do_again(void)
{
    for (uint32_t i = 0; i < key_count; i++) {
        struct key *k = &keys[i];
        void *old = k->device_block;

        device_free(device, old);
        k->device_block = NULL;
        make_other(k);
        if (k->device_block != old) {
            die("memory has another address");
        }
    }
    answer("ok");
}

static int start_round(struct key *k, int32_t priority, struct psc_op **ret_op)
{
    struct psc_op_options o = {.size = sizeof(o), .priority = priority};
    struct psc_device where = {.size = sizeof(where),
                               .ordinal = PSC_DEVICE_OF_POINTER};
    int rc = 0;

    if (device == NULL) {
        return psc_pushpull_start(client, k->key, k->src, k->out, &o, ret_op);
    }
    if (is_other) {
        make_other(k);
    } else if (k->device_src == NULL) {
        rc = psc_alloc_device(client, device_ordinal(device), k->bytes,
                              &k->device_src);
        k->device_out = k->device_src;
    }
    if (rc == 0 && !is_in_place && k->device_out == k->device_src) {
        rc = psc_alloc_device(client, device_ordinal(device), k->bytes,
                              &k->device_out);
    }
    if (rc != 0) {
        return rc;
    }
    device_put(device, k->device_src, k->src, k->bytes);
    where.stream = device_stream(device);
    o.device = &where;
    return psc_pushpull_start(client, k->key, k->device_src, k->device_out, &o,
                              ret_op);
}

static void do_rounds(char **words, int count)
{
    const char *kind = words[0];
    uint64_t rounds = strtoull(words[1], NULL, 10);
    uint64_t random = strtoull(words[2], NULL, 10);
    uint64_t busy = strtoull(words[3], NULL, 10);
    struct psc_op *op[KEYS];
    uint64_t hash = 0;
    int n = count - 4;

    for (uint64_t round = 1; round <= rounds; round++) {
        int rc = 0;

        for (int i = 0; i < n; i++) {
            struct key *k = key_at(words[4 + i]);

            if (k->src == NULL) {
                k->src = get_memory(k->bytes, false);
                k->out = get_memory(k->bytes, false);
            }
            fill(kind, k, round);
            compute(&random, busy);
            rc = start_round(k, -i, &op[i]);
            if (rc != 0) {
                answer_error(rc);
                return;
            }
        }
        rc = psc_ops_wait(op, (size_t)n, PSC_WAIT_DEFAULT);
        if (rc != 0) {
            answer_error(rc);
            return;
        }
        for (int i = 0; i < n; i++) {
            struct key *k = key_at(words[4 + i]);

            psc_op_free(op[i]);
            if (device != NULL) {
                device_get(device, k->out, k->device_out, k->bytes);
            }
            hash = hash_of(hash, k->out, k->bytes);
            if (!check(kind, k, round)) {
                return;
            }
        }
    }
    answer("ok %016" PRIx64, hash);
}

/* --------------------------------------------------------------------- main */

static void run(char **words, int count)
{
    char text[PSC_TEXT_MAX];
    int rc;

    detail[0] = '\0';
    if (strcmp(words[0], "open") == 0) {
        do_open();
    } else if (client == NULL) {
        die("open first");
    } else if (strcmp(words[0], "key") == 0) {
        do_key(words + 1, count - 1);
    } else if (is_op(words[0])) {
        do_op(NULL, words[0], words + 1, count - 1);
    } else if (strcmp(words[0], "start") == 0 && count >= 3) {
        do_op(words[1], words[2], words + 3, count - 3);
    } else if (strcmp(words[0], "wait") == 0 && count >= 2) {
        wait_and_answer(slot_of(words[1], false), timeout_of(words, count));
    } else if (strcmp(words[0], "why") == 0 && count == 2) {
        rc = psc_op_why(slot_of(words[1], false)->op, text, sizeof(text));
        if (rc != 0) {
            answer_error(rc);
        } else {
            answer("ok %s", text);
        }
    } else if (strcmp(words[0], "sgd") == 0) {
        do_declare("optimizer", "sgd", words + 1, count - 1);
    } else if ((strcmp(words[0], "optimizer") == 0 ||
                strcmp(words[0], "compress") == 0) &&
               count >= 2) {
        do_declare(words[0], words[1], words + 2, count - 2);
    } else if (strcmp(words[0], "rounds") == 0 && count >= 6) {
        do_rounds(words + 1, count - 1);
    } else if (strcmp(words[0], "device") == 0 && count >= 2) {
        device = device_open(atoi(words[1]));
        is_in_place = option(words, count, "inplace") != NULL;
        is_other = option(words, count, "other") != NULL;
        if (option(words, count, "held") != NULL) {
            device_hold(device);
        }
        answer("ok");
    } else if (strcmp(words[0], "again") == 0) {
        do_again();
    } else if (strcmp(words[0], "detail") == 0) {
        psc_last_detail(client, detail, sizeof(detail));
        answer("ok %s", detail);
    } else if (strcmp(words[0], "leave") == 0) {
        rc = psc_leave(client);
        if (rc != 0) {
            answer_error(rc);
        } else {
            answer("ok");
        }
    } else if (strcmp(words[0], "close") == 0) {
        psc_close(client);
        answer("ok");
        exit(0);
    } else {
        die("no such command");
    }
}

int main(void)
{
    static char line[65536];

    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *words[WORDS];
        int count = 0;
        char *at = NULL;

        for (char *w = strtok_r(line, " \n", &at); w != NULL && count < WORDS;
             w = strtok_r(NULL, " \n", &at)) {
            words[count++] = w;
        }
        if (count > 0) {
            run(words, count);
        }
    }
    return 0; /* The test has ended: no psc_close(). */
}
