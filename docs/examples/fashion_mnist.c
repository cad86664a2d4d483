/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a classifier of clothes, 784-128-10, on Fashion-MNIST.
 *
 * The weights live on the servers, which also take the optimizer's steps. Each
 * worker computes the gradient of its share of every batch in memory that it
 * shares with its agent, gives it, and reads the new weights where the agent
 * put them: no array is copied in this process. The last layer's gradient
 * travels while the first layer's is still being computed.
 *
 *     pslaunch -n 4 -s 2 fashion_mnist --epochs 3
 *
 * All workers draw the same order of pictures from the same seed, so a run
 * gives the same weights, bit for bit, whatever the number of servers and
 * whenever messages arrive. --alone computes the same without pskv. */
#include <getopt.h>
#include <math.h>
#include <psclient.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#ifdef USE_OPENBLAS
#include <cblas.h>
#endif

enum { IN = 784, HIDDEN = 128, OUT = 10 };

/* Weights are stored input by output. */
enum { W1, B1, W2, B2, ARRAYS };
static const struct {
    const char *name;
    uint32_t ndim;
    uint64_t shape[2];
    size_t count;
} arrays[ARRAYS] = {
    [W1] = {"fc1.weight", 2, {IN, HIDDEN}, (size_t)IN *HIDDEN},
    [B1] = {"fc1.bias", 1, {HIDDEN}, HIDDEN},
    [W2] = {"fc2.weight", 2, {HIDDEN, OUT}, (size_t)HIDDEN *OUT},
    [B2] = {"fc2.bias", 1, {OUT}, OUT},
};

static const float learning_rate = 0.1f;
static const float momentum = 0.9f;

struct options {
    const char *data;
    unsigned epochs;
    unsigned batch;    /* Of each worker. */
    unsigned pictures; /* Of an epoch at most; 0: all. */
    unsigned workers;  /* --alone: as many shares, one after the other. */
    uint64_t seed;
    bool alone;
    bool checksum;
};

struct pictures {
    uint8_t *pixels; /* count x IN */
    uint8_t *labels;
    size_t count;
};

/* Weights and buffers from which a worker computes a gradient. */
struct net {
    size_t batch;
    const float *weights[ARRAYS];
    float *gradients[ARRAYS];
    float *x;      /* batch x IN */
    float *hidden; /* batch x HIDDEN */
    float *error_hidden;
    float *out;  /* batch x OUT: probabilities, then their error. */
    double loss; /* Sum over the pictures since it was zeroed. */
};

static void die(const char *fmt, ...)
    __attribute__((format(printf, 1, 2), noreturn));

static void die(const char *fmt, ...)
{
    va_list ap;

    fputs("fashion_mnist: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

static void *need(void *p)
{
    if (p == NULL) {
        die("out of memory");
    }
    return p;
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* -------------------------------------------------------------------- data */

/* splitmix64: small, and the same everywhere. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Reads an idx file, compressed or not: big-endian magic and sizes, then
 * bytes. */
static uint8_t *read_idx(const char *dir, const char *name, uint32_t magic,
                         size_t each, size_t *ret_count)
{
    char path[4096];
    uint8_t head[16];
    unsigned head_len = each == 1 ? 8 : 16;
    uint8_t *bytes;
    size_t count;
    gzFile f;

    snprintf(path, sizeof(path), "%s/%s.gz", dir, name);
    f = gzopen(path, "rb");
    if (f == NULL) {
        snprintf(path, sizeof(path), "%s/%s", dir, name);
        f = gzopen(path, "rb");
    }
    if (f == NULL) {
        die("cannot open %s[.gz]; Debian's package dataset-fashion-mnist has "
            "it, --data says where else to look",
            path);
    }
    if (gzread(f, head, head_len) != (int)head_len ||
        ((uint32_t)head[2] << 8 | head[3]) != magic) {
        die("%s is not an idx file of the expected kind", path);
    }
    count = (size_t)head[4] << 24 | (size_t)head[5] << 16 |
            (size_t)head[6] << 8 | head[7];
    bytes = need(malloc(count * each));
    if (gzread(f, bytes, (unsigned)(count * each)) != (int)(count * each)) {
        die("%s is cut short", path);
    }
    gzclose(f);
    *ret_count = count;
    return bytes;
}

static struct pictures read_pictures(const char *dir, const char *set)
{
    struct pictures p;
    size_t labels;
    char name[64];

    snprintf(name, sizeof(name), "%s-images-idx3-ubyte", set);
    p.pixels = read_idx(dir, name, 0x803, IN, &p.count);
    snprintf(name, sizeof(name), "%s-labels-idx1-ubyte", set);
    p.labels = read_idx(dir, name, 0x801, 1, &labels);
    if (labels != p.count) {
        die("%s: %zu pictures, but %zu labels", set, p.count, labels);
    }
    return p;
}

static void free_pictures(struct pictures *p)
{
    free(p->pixels);
    free(p->labels);
}

/* The order of the pictures in an epoch: the same for all workers. */
static void shuffle(uint32_t *order, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        order[i] = (uint32_t)i;
    }
    for (size_t i = count; i > 1; i--) {
        size_t j = draw(&seed) % i;
        uint32_t kept = order[j];

        order[j] = order[i - 1];
        order[i - 1] = kept;
    }
}

static void first_weights(float *to[ARRAYS], uint64_t seed)
{
    const float limit[ARRAYS] = {
        [W1] = sqrtf(6.0f / IN), [W2] = sqrtf(6.0f / HIDDEN)};

    for (int a = 0; a < ARRAYS; a++) {
        for (size_t i = 0; i < arrays[a].count; i++) {
            float u = (float)(draw(&seed) >> 40) / (float)(1 << 23) - 1;

            to[a][i] = limit[a] * u;
        }
    }
}

/* --------------------------------------------------------------------- net */

/* c = a * b; a is m x k, b is k x n. */
static void multiply(size_t m, size_t n, size_t k, const float *restrict a,
                     const float *restrict b, float *restrict c)
{
#ifdef USE_OPENBLAS
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)m, (int)n,
                (int)k, 1, a, (int)k, b, (int)n, 0, c, (int)n);
#else
    memset(c, 0, m * n * sizeof(float));
    for (size_t i = 0; i < m; i++) {
        for (size_t l = 0; l < k; l++) {
            float f = a[i * k + l];

            /* Half of the pixels are black. */
            for (size_t j = 0; f != 0 && j < n; j++) {
                c[i * n + j] += f * b[l * n + j];
            }
        }
    }
#endif
}

/* c = a' * b; a is k x m, b is k x n. */
static void multiply_left(size_t m, size_t n, size_t k, const float *restrict a,
                          const float *restrict b, float *restrict c)
{
#ifdef USE_OPENBLAS
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m, (int)n, (int)k,
                1, a, (int)m, b, (int)n, 0, c, (int)n);
#else
    memset(c, 0, m * n * sizeof(float));
    for (size_t l = 0; l < k; l++) {
        for (size_t i = 0; i < m; i++) {
            float f = a[l * m + i];

            for (size_t j = 0; f != 0 && j < n; j++) {
                c[i * n + j] += f * b[l * n + j];
            }
        }
    }
#endif
}

/* c = a * b'; a is m x k, b is n x k. */
static void multiply_right(size_t m, size_t n, size_t k,
                           const float *restrict a, const float *restrict b,
                           float *restrict c)
{
#ifdef USE_OPENBLAS
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k,
                1, a, (int)k, b, (int)k, 0, c, (int)n);
#else
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            float sum = 0;

            for (size_t l = 0; l < k; l++) {
                sum += a[i * k + l] * b[j * k + l];
            }
            c[i * n + j] = sum;
        }
    }
#endif
}

static void add_bias(float *rows, size_t count, size_t width, const float *bias)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < width; j++) {
            rows[i * width + j] += bias[j];
        }
    }
}

static void sum_rows(const float *rows, size_t count, size_t width, float *to)
{
    memset(to, 0, width * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < width; j++) {
            to[j] += rows[i * width + j];
        }
    }
}

static void softmax(float *row)
{
    float most = row[0];
    float sum = 0;

    for (int j = 1; j < OUT; j++) {
        most = fmaxf(most, row[j]);
    }
    for (int j = 0; j < OUT; j++) {
        row[j] = expf(row[j] - most);
        sum += row[j];
    }
    for (int j = 0; j < OUT; j++) {
        row[j] /= sum;
    }
}

static void load(struct net *net, const struct pictures *p,
                 const uint32_t *which, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint8_t *from = p->pixels + (size_t)which[i] * IN;

        for (size_t j = 0; j < IN; j++) {
            net->x[i * IN + j] = (float)from[j] / 255.0f;
        }
    }
}

/* From net->x to probabilities in net->out. */
static void forward(struct net *net, size_t count)
{
    multiply(count, HIDDEN, IN, net->x, net->weights[W1], net->hidden);
    add_bias(net->hidden, count, HIDDEN, net->weights[B1]);
    for (size_t i = 0; i < count * HIDDEN; i++) {
        net->hidden[i] = fmaxf(net->hidden[i], 0);
    }
    multiply(count, OUT, HIDDEN, net->hidden, net->weights[W2], net->out);
    add_bias(net->out, count, OUT, net->weights[B2]);
    for (size_t i = 0; i < count; i++) {
        softmax(net->out + i * OUT);
    }
}

/* Gradients of the last layer, and the error of the hidden one. */
static void backward_out(struct net *net, const struct pictures *p,
                         const uint32_t *which)
{
    size_t n = net->batch;

    for (size_t i = 0; i < n; i++) {
        float *right = &net->out[i * OUT + p->labels[which[i]]];

        net->loss -= logf(fmaxf(*right, 1e-12f));
        *right -= 1;
    }
    multiply_left(HIDDEN, OUT, n, net->hidden, net->out, net->gradients[W2]);
    sum_rows(net->out, n, OUT, net->gradients[B2]);
    multiply_right(n, HIDDEN, OUT, net->out, net->weights[W2],
                   net->error_hidden);
    for (size_t i = 0; i < n * HIDDEN; i++) {
        if (net->hidden[i] <= 0) {
            net->error_hidden[i] = 0;
        }
    }
}

static void backward_hidden(struct net *net)
{
    multiply_left(IN, HIDDEN, net->batch, net->x, net->error_hidden,
                  net->gradients[W1]);
    sum_rows(net->error_hidden, net->batch, HIDDEN, net->gradients[B1]);
}

/* Share of the pictures whose greatest output is the right one. */
static double accuracy(struct net *net, const struct pictures *p)
{
    uint32_t *which = need(malloc(net->batch * sizeof(*which)));
    size_t right = 0;

    for (size_t at = 0; at < p->count; at += net->batch) {
        size_t n = p->count - at < net->batch ? p->count - at : net->batch;

        for (size_t i = 0; i < n; i++) {
            which[i] = (uint32_t)(at + i);
        }
        load(net, p, which, n);
        forward(net, n);
        for (size_t i = 0; i < n; i++) {
            int best = 0;

            for (int j = 1; j < OUT; j++) {
                if (net->out[i * OUT + (size_t)j] >
                    net->out[i * OUT + (size_t)best]) {
                    best = j;
                }
            }
            right += best == p->labels[at + i] ? 1 : 0;
        }
    }
    free(which);
    return (double)right / (double)p->count;
}

static void new_net(struct net *net, size_t batch)
{
    memset(net, 0, sizeof(*net));
    net->batch = batch;
    net->x = need(malloc(batch * IN * sizeof(float)));
    net->hidden = need(malloc(batch * HIDDEN * sizeof(float)));
    net->error_hidden = need(malloc(batch * HIDDEN * sizeof(float)));
    net->out = need(malloc(batch * OUT * sizeof(float)));
}

static void free_net(struct net *net)
{
    free(net->x);
    free(net->hidden);
    free(net->error_hidden);
    free(net->out);
}

/* ------------------------------------------------------------------ trainer */

/* Where weights come from and gradients go: pskv, or this process. */
struct trainer {
    const struct options *o;
    struct pictures train;
    struct pictures test;
    struct net net;
    unsigned rank;
    unsigned workers;
    float rescale; /* Gradients are sums over the pictures of a batch. */
    uint64_t steps;

    struct psc_client *client;
    uint32_t keys[ARRAYS];
    struct psc_op *ops[ARRAYS];

    float *weights[ARRAYS]; /* --alone: the weights; else the first ones. */
    float *moving[ARRAYS];  /* --alone: momentum, ... */
    float **shares[ARRAYS]; /* ... and the gradient of each share. */
};

/* FNV-1a over the bytes of all weights. */
static uint64_t checksum(const struct net *net)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (int a = 0; a < ARRAYS; a++) {
        const uint8_t *bytes = (const uint8_t *)net->weights[a];

        for (size_t i = 0; i < arrays[a].count * sizeof(float); i++) {
            h = (h ^ bytes[i]) * 0x100000001b3u;
        }
    }
    return h;
}

/* ------------------------------------------------------------------- pskv */

static void check(struct trainer *t, int rc, const char *what)
{
    char text[PSC_TEXT_MAX] = "";

    if (rc == 0) {
        return;
    }
    psc_last_detail(t->client, text, sizeof(text));
    die("%s: %s", what, text[0] != '\0' ? text : psc_strerror(rc));
}

/* Lets the weights point to what the operation left with the agent. */
static void take_weights(struct trainer *t, int a)
{
    const void *view;

    check(t, psc_op_wait(t->ops[a], PSC_WAIT_DEFAULT), arrays[a].name);
    check(t, psc_op_view(t->ops[a], &view, NULL), arrays[a].name);
    psc_op_free(t->ops[a]);
    t->net.weights[a] = view;
}

static void join_job(struct trainer *t)
{
    struct psc_options o;
    char why[PSC_TEXT_MAX] = "";
    int rc;

    psc_options_init(&o, sizeof(o));
    rc = psc_options_env(&o, why, sizeof(why));
    if (rc == 0) {
        rc = psc_open(&o, &t->client, why, sizeof(why));
    }
    if (rc != 0) {
        die("%s", why[0] != '\0' ? why : psc_strerror(rc));
    }
    t->rank = (unsigned)psc_rank(t->client);
    t->workers = (unsigned)psc_size(t->client);
}

static void begin_on_servers(struct trainer *t)
{
    const struct psc_param sgd[] = {
        {"learning_rate", learning_rate},
        {"momentum", momentum},
        {"rescale_grad", t->rescale},
    };

    check(t, psc_optimizer_set(t->client, "sgd", sgd, 3), "optimizer");
    for (int a = 0; a < ARRAYS; a++) {
        void *gradient;

        check(t,
              psc_key(t->client, arrays[a].name, PSC_FLOAT32, arrays[a].ndim,
                      arrays[a].shape, &t->keys[a]),
              arrays[a].name);
        check(t, psc_init(t->client, t->keys[a], t->weights[a]),
              arrays[a].name);
        check(t, psc_pull_start(t->client, t->keys[a], NULL, NULL, &t->ops[a]),
              arrays[a].name);
        check(t,
              psc_alloc(t->client, arrays[a].count * sizeof(float), &gradient),
              "shared memory");
        t->net.gradients[a] = gradient;
    }
    for (int a = 0; a < ARRAYS; a++) {
        take_weights(t, a);
    }
}

/* Earlier layers first: the next step needs them first. */
static void give(struct trainer *t, int a)
{
    const struct psc_op_options o = {.size = sizeof(o), .priority = -a};

    check(t,
          psc_pushpull_start(t->client, t->keys[a], t->net.gradients[a], NULL,
                             &o, &t->ops[a]),
          arrays[a].name);
}

static void step_on_servers(struct trainer *t, const uint32_t *order)
{
    const uint32_t *which = order + (size_t)t->rank * t->o->batch;

    load(&t->net, &t->train, which, t->o->batch);
    forward(&t->net, t->o->batch);
    backward_out(&t->net, &t->train, which);
    give(t, W2);
    give(t, B2);
    backward_hidden(&t->net);
    give(t, W1);
    give(t, B1);
    for (int a = 0; a < ARRAYS; a++) {
        take_weights(t, a);
    }
}

/* ------------------------------------------------------------------- alone */

static void begin_alone(struct trainer *t)
{
    for (int a = 0; a < ARRAYS; a++) {
        t->net.weights[a] = t->weights[a];
        t->moving[a] = need(calloc(arrays[a].count, sizeof(float)));
        t->shares[a] = need(calloc(t->workers, sizeof(float *)));
        for (unsigned i = 0; i < t->workers; i++) {
            t->shares[a][i] = need(calloc(arrays[a].count, sizeof(float)));
        }
    }
}

/* Pairs of neighbours, then pairs of pairs: as pskv adds. */
static float tree(float *const *shares, unsigned count, size_t at)
{
    unsigned half = 1;

    if (count == 1) {
        return shares[0][at];
    }
    while (half * 2 < count) {
        half *= 2;
    }
    return tree(shares, half, at) + tree(shares + half, count - half, at);
}

static void step_alone(struct trainer *t, const uint32_t *order)
{
    for (unsigned i = 0; i < t->workers; i++) {
        const uint32_t *which = order + (size_t)i * t->o->batch;

        for (int a = 0; a < ARRAYS; a++) {
            t->net.gradients[a] = t->shares[a][i];
        }
        load(&t->net, &t->train, which, t->o->batch);
        forward(&t->net, t->o->batch);
        backward_out(&t->net, &t->train, which);
        backward_hidden(&t->net);
    }
    for (int a = 0; a < ARRAYS; a++) {
        for (size_t i = 0; i < arrays[a].count; i++) {
            float g = tree(t->shares[a], t->workers, i) * t->rescale;

            t->moving[a][i] = t->moving[a][i] * momentum - g * learning_rate;
            t->weights[a][i] += t->moving[a][i];
        }
    }
}

static void end_alone(struct trainer *t)
{
    for (int a = 0; a < ARRAYS; a++) {
        for (unsigned i = 0; i < t->workers; i++) {
            free(t->shares[a][i]);
        }
        free(t->shares[a]);
        free(t->moving[a]);
    }
}

/* -------------------------------------------------------------------- main */

static double train(struct trainer *t)
{
    size_t whole = (size_t)t->o->batch * t->workers;
    size_t used = t->o->pictures > 0 && t->o->pictures < t->train.count
                      ? t->o->pictures
                      : t->train.count;
    uint32_t *order = need(malloc(t->train.count * sizeof(*order)));
    double begun = seconds();
    double score = 0;

    if (whole > used) {
        die("a batch of %zu pictures is more than there are", whole);
    }
    for (unsigned epoch = 1; epoch <= t->o->epochs; epoch++) {
        size_t steps = used / whole;

        shuffle(order, t->train.count, t->o->seed + epoch);
        t->net.loss = 0;
        for (size_t s = 0; s < steps; s++) {
            if (t->o->alone) {
                step_alone(t, order + s * whole);
            } else {
                step_on_servers(t, order + s * whole);
            }
        }
        t->steps += steps;
        if (t->rank == 0) {
            size_t seen = steps * t->o->batch * (t->o->alone ? t->workers : 1);

            score = accuracy(&t->net, &t->test);
            printf("epoch %u  loss %.3f  accuracy %.4f  %.1f s\n", epoch,
                   t->net.loss / (double)seen, score, seconds() - begun);
        }
    }
    free(order);
    return score;
}

static void say_bytes(const struct trainer *t, char *text, size_t size)
{
    struct psc_stats s = {.size = sizeof(s)};

    text[0] = '\0';
    if (!t->o->alone && psc_get_stats(t->client, &s) == 0) {
        snprintf(text, size, "  %.1f MB moved",
                 (double)(s.bytes_given + s.bytes_got) * t->workers / 1e6);
    }
}

static void usage(FILE *to)
{
    fputs("usage: fashion_mnist [--epochs N] [--batch N] [--data DIR] "
          "[--seed N]\n"
          "                     [--pictures N] [--checksum] "
          "[--alone [--workers N]]\n"
          "Trains a small net on Fashion-MNIST; a worker of a pskv job, or "
          "--alone.\n",
          to);
}

static uint64_t number(const char *text, const char *name, uint64_t most)
{
    char *end;
    unsigned long long v = strtoull(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end != '\0' || v > most) {
        die("--%s wants a number up to %llu, not '%s'", name,
            (unsigned long long)most, text);
    }
    return v;
}

static unsigned count(const char *text, const char *name, unsigned most)
{
    unsigned v = (unsigned)number(text, name, most);

    if (v == 0) {
        die("--%s must not be 0", name);
    }
    return v;
}

static void read_options(int argc, char **argv, struct options *o)
{
    static const struct option names[] = {
        {"alone", no_argument, NULL, 'a'},
        {"batch", required_argument, NULL, 'b'},
        {"checksum", no_argument, NULL, 'c'},
        {"data", required_argument, NULL, 'd'},
        {"epochs", required_argument, NULL, 'e'},
        {"help", no_argument, NULL, 'h'},
        {"pictures", required_argument, NULL, 'p'},
        {"seed", required_argument, NULL, 's'},
        {"workers", required_argument, NULL, 'w'},
        {NULL, 0, NULL, 0},
    };
    int which;

    while ((which = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (which) {
        case 'a':
            o->alone = true;
            break;
        case 'b':
            o->batch = count(optarg, "batch", 10000);
            break;
        case 'c':
            o->checksum = true;
            break;
        case 'd':
            o->data = optarg;
            break;
        case 'e':
            o->epochs = count(optarg, "epochs", 10000);
            break;
        case 'h':
            usage(stdout);
            exit(0);
        case 'p':
            o->pictures = count(optarg, "pictures", 1000000);
            break;
        case 's':
            o->seed = number(optarg, "seed", UINT64_MAX);
            break;
        case 'w':
            o->workers = count(optarg, "workers", 1024);
            break;
        default:
            usage(stderr);
            exit(2);
        }
    }
    if (optind < argc) {
        usage(stderr);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.data = "/usr/share/datasets/fashion-mnist",
                        .epochs = 3,
                        .batch = 64,
                        .workers = 1,
                        .seed = 1};
    struct trainer t = {.o = &o};
    char moved[64];
    double begun;
    double score;

    setvbuf(stdout, NULL, _IOLBF, 0);
    read_options(argc, argv, &o);
#ifdef USE_OPENBLAS
    /* As many workers as cores would otherwise fight for all of them. */
    openblas_set_num_threads(1);
#endif
    t.train = read_pictures(o.data, "train");
    t.test = read_pictures(o.data, "t10k");
    t.workers = o.workers;
    if (!o.alone) {
        join_job(&t);
    }
    t.rescale = 1.0f / (float)((size_t)o.batch * t.workers);
    new_net(&t.net, o.batch);
    for (int a = 0; a < ARRAYS; a++) {
        t.weights[a] = need(malloc(arrays[a].count * sizeof(float)));
    }
    first_weights(t.weights, o.seed);
    if (o.alone) {
        begin_alone(&t);
    } else {
        begin_on_servers(&t);
    }

    begun = seconds();
    score = train(&t);
    begun = seconds() - begun;
    say_bytes(&t, moved, sizeof(moved));
    if (t.rank == 0) {
        printf("done: %u worker%s  %llu rounds  %.1f rounds/s%s  accuracy "
               "%.4f\n",
               t.workers, t.workers == 1 ? "" : "s",
               (unsigned long long)t.steps, (double)t.steps / begun, moved,
               score);
    }
    if (o.checksum) {
        printf("checksum %016llx\n", (unsigned long long)checksum(&t.net));
    }

    if (o.alone) {
        end_alone(&t);
    }
    psc_close(t.client);
    for (int a = 0; a < ARRAYS; a++) {
        free(t.weights[a]);
    }
    free_net(&t.net);
    free_pictures(&t.train);
    free_pictures(&t.test);
    return 0;
}
