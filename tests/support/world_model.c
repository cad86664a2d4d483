/* SPDX-License-Identifier: Apache-2.0 */
/* Model of the optimizers: SGD with momentum, weight decay, rescaling, changing
 * rates and steps of several rounds, or LAMB and LARS with norms of whole
 * arrays. It is computed in float64 from the definition, without code of the
 * product. All gradients together may be limited in norm. It compares numbers within a tolerance, not bits as other checks do,
 * and so finds errors that are the same in all runs. */
#include "support/world_data.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

/* Elements; larger keys cost more time than they are worth. */
#define COUNT_MAX 5000u
/* Relative to the greatest number added to an element: float32 rounding. */
#define TOLERANCE 1e-4

struct wmodel {
    uint64_t version;
    /* Rounds accumulated for the next step. */
    uint32_t accumulated_rounds;
    uint32_t weight; /* Contributions to those rounds. */
    uint64_t steps;
    double clip_scale; /* Factor of the gradients of this step. */
    double *weights;
    double *momentum;
    double *squares; /* LAMB: mean of squared gradients. */
    double *along;   /* LAMB: direction of the step. */
    double *sum;
    double *max_terms; /* Greatest number added to an element. */
    void *scratch;
};

void world_model_free(struct wmodel *m)
{
    if (m == NULL) {
        return;
    }
    ps_free(m->weights);
    ps_free(m->momentum);
    ps_free(m->squares);
    ps_free(m->along);
    ps_free(m->sum);
    ps_free(m->max_terms);
    ps_free(m->scratch);
    ps_free(m);
}

static double get_element(const void *data, enum ps_dtype dtype, uint64_t j)
{
    return dtype == PS_DTYPE_FLOAT32 ? (double)((const float *)data)[j]
                                     : ((const double *)data)[j];
}

static void raise_max(double *most, double x)
{
    *most = fmax(*most, fabs(x));
}

static struct wmodel *model_new(const struct world *w, uint32_t i)
{
    const struct world_key *k = &w->opt.key[i];
    struct wmodel *m = ps_calloc(1, sizeof(*m));

    m->weights = ps_calloc(k->count, sizeof(double));
    m->momentum = ps_calloc(k->count, sizeof(double));
    m->squares = ps_calloc(k->count, sizeof(double));
    m->along = ps_calloc(k->count, sizeof(double));
    m->sum = ps_calloc(k->count, sizeof(double));
    m->max_terms = ps_calloc(k->count, sizeof(double));
    m->scratch = ps_alloc(k->count * sizeof(double));
    world_data_fill(w, m->scratch, i, 0, 0);
    for (uint64_t j = 0; j < k->count; j++) {
        m->weights[j] = get_element(m->scratch, k->dtype, j);
        /* Sums over several rounds are added in another order, and large terms
         * may cancel. */
        m->max_terms[j] = w->opt.accumulate > 1 ? 4e4 : 0;
        raise_max(&m->max_terms[j], m->weights[j]);
    }
    return m;
}

static bool is_tuned(const struct world *w, uint32_t i)
{
    return w->opt.tuned && i % 2 == 0;
}

/* Settings of the key have changed before or at this round. */
static bool is_tuned_late(const struct world *w, uint32_t i, uint64_t round)
{
    return w->opt.tune_round != 0 && round >= w->opt.tune_round && i % 3 == 0;
}

static double rate_of(const struct world *w, uint32_t i, uint64_t round)
{
    const bool changed = w->opt.change_round != 0 &&
                         round >= w->opt.change_round;

    return (changed ? 0.5 : 0.0625) * (is_tuned_late(w, i, round) ? 2
                                       : is_tuned(w, i)           ? 3
                                                                  : 1);
}

/* Factor from the sum of contributions of this weight to the gradient. */
static double gradient_scale(const struct world *w, uint32_t weight)
{
    return (w->opt.mean ? 1.0 / weight : 1.0) / (w->opt.norms ? 1 : 64);
}

static double decay_of(const struct world *w, uint32_t i, uint64_t round)
{
    return 0.001 * (is_tuned_late(w, i, round) ? 10 : is_tuned(w, i) ? 100 : 1);
}

/* Relative error of the norm of the key's weights: where large terms have
 * cancelled, their rounding remains, and the norm brings it to all elements. In
 * units of TOLERANCE. */
static double norm_error(const struct wmodel *m, uint64_t count)
{
    double of_terms = 0;
    double of_weights = 0;

    for (uint64_t j = 0; j < count; j++) {
        of_terms += m->max_terms[j] * m->max_terms[j];
        of_weights += m->weights[j] * m->weights[j];
    }
    if (of_weights == 0) {
        return m->steps > 1 ? (double)INFINITY : 0; /* Or as declared. */
    }
    return 1e-6 / TOLERANCE * sqrt(of_terms / of_weights);
}

/* Error of a term that has the norm as a factor. Where rounding decides whether
 * the norm is zero, it decides between the term and `alone`, the one without
 * norms: a ratio of them is 1 there. */
static double error_of(double term, double alone, double error)
{
    const double of_norm = isinf(error) ? 0 : fabs(term * error);

    return error * TOLERANCE < 1
               ? of_norm
               : fmax(of_norm, fabs(alone) * (1 / TOLERANCE + 1));
}

/* LARS: factor of the key's rate; 1 for a bias by name unless its settings
 * differ. */
static double lars_ratio(const struct world *w, const struct wmodel *m,
                         uint32_t i, uint64_t round, double scale)
{
    double of_weights = 0;
    double of_gradient = 0;

    for (uint64_t j = 0; j < w->opt.key[i].count; j++) {
        of_weights += m->weights[j] * m->weights[j];
        of_gradient += m->sum[j] * scale * m->sum[j] * scale;
    }
    if (of_weights == 0 || of_gradient == 0 ||
        (!is_tuned(w, i) && strcmp(w->opt.key[i].name, "bias") == 0)) {
        return 1;
    }
    return 0.5 * sqrt(of_weights) /
           (sqrt(of_gradient) + decay_of(w, i, round) * sqrt(of_weights));
}

static void step_sgd(const struct world *w, struct wmodel *m, uint32_t i,
                     uint64_t round)
{
    const double scale = gradient_scale(w, m->weight) * m->clip_scale;
    const double rate = rate_of(w, i, round) *
                        (w->opt.norms ? lars_ratio(w, m, i, round, scale) : 1);
    const double error = w->opt.norms ? norm_error(m, w->opt.key[i].count) : 0;

    for (uint64_t j = 0; j < w->opt.key[i].count; j++) {
        const double gradient = m->sum[j] * scale +
                                decay_of(w, i, round) * m->weights[j];

        m->momentum[j] = 0.9 * m->momentum[j] - rate * gradient;
        m->weights[j] += m->momentum[j];
        raise_max(&m->max_terms[j], rate * gradient);
        /* Momentum repeats it, 10 times at most. */
        raise_max(&m->max_terms[j],
                  error_of(rate * gradient,
                           10 * rate_of(w, i, round) * gradient, error));
        raise_max(&m->max_terms[j], m->momentum[j]);
        raise_max(&m->max_terms[j], m->weights[j]);
    }
}

static void step_lamb(const struct world *w, struct wmodel *m, uint32_t i,
                      uint64_t round)
{
    const uint64_t count = w->opt.key[i].count;
    const double scale = gradient_scale(w, m->weight) * m->clip_scale;
    const double first = 1 - pow(0.9, (double)m->steps);
    const double second = 1 - pow(0.999, (double)m->steps);
    double of_weights = 0;
    double of_along = 0;

    for (uint64_t j = 0; j < count; j++) {
        const double gradient = m->sum[j] * scale;

        m->momentum[j] = 0.9 * m->momentum[j] + 0.1 * gradient;
        m->squares[j] = 0.999 * m->squares[j] + 0.001 * gradient * gradient;
        m->along[j] = m->momentum[j] / first /
                          (sqrt(m->squares[j] / second) + 1e-6) +
                      decay_of(w, i, round) * m->weights[j];
        of_weights += m->weights[j] * m->weights[j];
        of_along += m->along[j] * m->along[j];
    }
    const double ratio = of_weights > 0 && of_along > 0
                             ? sqrt(of_weights / of_along)
                             : 1;
    const double error = norm_error(m, count);

    for (uint64_t j = 0; j < count; j++) {
        const double by = rate_of(w, i, round) * ratio * m->along[j];

        m->weights[j] -= by;
        /* Where gradients cancel, few significant digits of the direction
         * remain. */
        raise_max(&m->max_terms[j], rate_of(w, i, round) * ratio);
        raise_max(&m->max_terms[j], by);
        raise_max(&m->max_terms[j],
                  error_of(by, rate_of(w, i, round) * m->along[j], error));
        raise_max(&m->max_terms[j], m->weights[j]);
    }
}

static void model_step(const struct world *w, struct wmodel *m, uint32_t i,
                       uint64_t round)
{
    m->steps++;
    if (w->opt.norms && !w->opt.lars) {
        step_lamb(w, m, i, round);
    } else {
        step_sgd(w, m, i, round);
    }
    memset(m->sum, 0, w->opt.key[i].count * sizeof(double));
    m->accumulated_rounds = 0;
    m->weight = 0;
}

/* Writes the sum of all contributions, for any optimizer. */
static void expect_sum(struct world *w, void *dst, uint32_t i, uint64_t round)
{
    const bool mean = w->opt.mean;

    w->opt.mean = false; /* A step divides by all accumulated contributions. */
    world_data_expect(w, dst, i, round);
    w->opt.mean = mean;
}

/* Factor that limits the norm of the gradients of all keys in this round, of
 * which each has contributions of this weight. */
static double clip_scale_of(struct world *w, uint64_t round, uint32_t weight)
{
    double squares = 0;

    if (w->opt.clip_norm == 0) {
        return 1;
    }
    if (w->job[w->current_job].clip_scale[round] != 0) {
        return w->job[w->current_job].clip_scale[round];
    }
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        const struct world_key *k = &w->opt.key[i];
        void *sum;

        if (world_data_is_collective(w, i)) {
            continue;
        }
        sum = ps_alloc(k->count * sizeof(double));
        expect_sum(w, sum, i, round);
        for (uint64_t j = 0; j < k->count; j++) {
            const double x = get_element(sum, k->dtype, j);

            squares += x * x;
        }
        ps_free(sum);
    }
    w->job[w->current_job].clip_scale[round] = fmin(
        1,
        w->opt.clip_norm / (sqrt(squares) * gradient_scale(w, weight) + 1e-8));
    return w->job[w->current_job].clip_scale[round];
}

static void model_next_round(struct world *w, struct wmodel *m, uint32_t i)
{
    const struct world_key *k = &w->opt.key[i];
    const uint64_t round = ++m->version;

    if (world_data_all_skip(w, i, round)) {
        return;
    }
    for (uint32_t rank = 0; rank < w->opt.workers; rank++) {
        m->weight += !world_data_skips(w, i, rank, round);
    }
    m->clip_scale = clip_scale_of(w, round, m->weight);
    expect_sum(w, m->scratch, i, round);
    for (uint64_t j = 0; j < k->count; j++) {
        const double x = get_element(m->scratch, k->dtype, j);

        m->sum[j] += x;
        raise_max(&m->max_terms[j], x * m->clip_scale / 64);
    }
    if (++m->accumulated_rounds >= w->opt.accumulate) {
        model_step(w, m, i, round);
    }
}

static bool model_applies(const struct world *w, uint32_t i)
{
    const struct world_key *k = &w->opt.key[i];

    return w->opt.optimizer && w->opt.mode == PS_MODE_SYNC &&
           w->opt.compress.name == NULL && !w->opt.collectives &&
           k->width == 0 && k->count <= COUNT_MAX &&
           !world_data_is_collective(w, i) &&
           (k->dtype == PS_DTYPE_FLOAT32 || k->dtype == PS_DTYPE_FLOAT64);
}

void world_model_check(struct world *w, uint32_t i, uint64_t version,
                       const void *data)
{
    const struct world_key *k = &w->opt.key[i];
    struct wmodel *m = w->job[w->current_job].model[i];

    if (!model_applies(w, i) || (m != NULL && m->version > version)) {
        return; /* Bits are compared with those of another rank. */
    }
    if (m == NULL) {
        m = w->job[w->current_job].model[i] = model_new(w, i);
    }
    while (m->version < version) {
        model_next_round(w, m, i);
    }
    for (uint64_t j = 0; j < k->count; j++) {
        const double has = get_element(data, k->dtype, j);

        if (!(fabs(has - m->weights[j]) <=
              TOLERANCE * m->max_terms[j] + 1e-12)) {
            world_fail(w,
                       "version %llu of %s: element %llu is %.9g, and by the "
                       "definition of the optimizer %.9g",
                       (unsigned long long)version, k->name,
                       (unsigned long long)j, has, m->weights[j]);
            return;
        }
    }
}
