/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars of jobs as metrics. All samples of a metric stand together,
 * so there is a pass over the scalars for each metric. */
#include "psched/scalars.h"

#include "base/limits.h"

#include <inttypes.h>
#include <stdio.h>

/* Left for other metrics. */
#define RESERVED_BYTES 8192u
/* Bytes of the samples of psched_job_scalar of one scalar: three times the
 * common labels, a job's name with all bytes escaped, a scalar's name, and
 * digits. */
#define SCALAR_BYTES_MAX                                                       \
    (3u * (2u * PS_NAME_MAX + 6u * PS_NAME_MAX + PS_SCALAR_NAME_MAX + 160u))

struct pass {
    struct ps_metrics *m;
    size_t end;     /* Length of the text that values may reach. */
    uint32_t shown; /* Scalars that have samples. */
    uint32_t count; /* Scalars so far. */
};

#define LABELS 4u

/* `statistic` NULL: the step. */
static void add_sample(const struct pass *p, const struct ps_msg_job_row *job,
                       const struct ps_rec_job_scalar *scalar,
                       const char *statistic, double value)
{
    const char *metric = statistic != NULL ? "job_scalar" : "job_scalar_step";
    char uid[16];
    const struct ps_metric_label labels[LABELS] = {
        {"job", job->name},
        {"uid", uid},
        {"name", scalar->name},
        {"stat", statistic},
    };

    snprintf(uid, sizeof(uid), "%" PRIu32, job->uid);
    ps_metric_real(p->m, metric, labels,
                   statistic != NULL ? LABELS : LABELS - 1, value);
}

static void add_values(void *ctx, const struct ps_msg_job_row *job,
                       const struct ps_rec_job_scalar *scalar)
{
    struct pass *p = ctx;

    if (p->shown == p->count && p->m->text.len + SCALAR_BYTES_MAX <= p->end) {
        add_sample(p, job, scalar, "min", scalar->min);
        add_sample(p, job, scalar, "mean", scalar->mean);
        add_sample(p, job, scalar, "max", scalar->max);
        p->shown++;
    }
    p->count++;
}

static void add_step(void *ctx, const struct ps_msg_job_row *job,
                     const struct ps_rec_job_scalar *scalar)
{
    struct pass *p = ctx;

    if (p->count++ < p->shown) {
        add_sample(p, job, scalar, NULL, (double)scalar->step);
    }
}

void psched_add_scalars(const struct ps_sched *s, struct ps_metrics *m)
{
    const size_t left = m->text.cap - m->text.len;
    struct pass p = {.m = m};
    uint32_t omitted;

    /* The steps take a third of what the values take. */
    p.end = m->text.len +
            (left > RESERVED_BYTES ? (left - RESERVED_BYTES) / 4 * 3 : 0);
    ps_metric_begin(m, "job_scalar", PS_METRIC_GAUGE,
                    "Last values of a training scalar over the ranks that "
                    "report it.");
    ps_sched_each_scalar(s, add_values, &p);
    omitted = p.count - p.shown;
    ps_metric_begin(m, "job_scalar_step", PS_METRIC_GAUGE,
                    "Highest step of a training scalar.");
    p.count = 0;
    ps_sched_each_scalar(s, add_step, &p);
    ps_metric_gauge(m, "job_scalars_omitted",
                    "Training scalars that the metrics have no room for.",
                    omitted);
}
