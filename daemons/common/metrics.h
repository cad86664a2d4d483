/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics in the text format of Prometheus, version 0.0.4, which
 * https://prometheus.io/docs/instrumenting/exposition_formats/ describes. All
 * samples of a daemon have the labels `cluster` and `node`, so that files of
 * several daemons of one host can be collected together. */
#pragma once

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

enum ps_metric_type {
    PS_METRIC_COUNTER, /* Only grows while the daemon runs. */
    PS_METRIC_GAUGE,
};

struct ps_metrics {
    struct ps_str text;
    const char *prefix; /* Of the names of all metrics: "psserver_". */
    const char *labels; /* Of all samples: `cluster="a",node="b"`. */
};

/* Begins a metric: its help and its type. Samples follow. */
void ps_metric_begin(struct ps_metrics *m, const char *name,
                     enum ps_metric_type type, const char *help);
/* Adds a sample; `label` and `word` NULL: it has no label of its own. The word
 * has no quote and no backslash. */
void ps_metric_sample(struct ps_metrics *m, const char *name, const char *label,
                      const char *word, uint64_t value);
struct ps_metric_label {
    const char *name;
    const char *value; /* Any bytes. */
};
/* Adds a sample with several labels of its own; the value may be infinite or
 * not a number. */
void ps_metric_real(struct ps_metrics *m, const char *name,
                    const struct ps_metric_label *labels, size_t count,
                    double value);
/* A metric with one sample. */
void ps_metric_counter(struct ps_metrics *m, const char *name, const char *help,
                       uint64_t value);
void ps_metric_gauge(struct ps_metrics *m, const char *name, const char *help,
                     uint64_t value);
