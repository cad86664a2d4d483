/* SPDX-License-Identifier: Apache-2.0 */
/* Text of a daemon's metrics, in two parts: what the loop thread knows, and
 * what any thread may ask the system. */
#include "common/daemon_inner.h"

#include "common/metrics.h"
#include "driver/driver.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

static const char *prefix_of(enum ps_role role)
{
    return role == PS_ROLE_SCHED    ? "psched_"
           : role == PS_ROLE_SERVER ? "psserver_"
                                    : "psagent_";
}

static void add_common(const struct daemon *d, struct ps_metrics *m)
{
    struct ps_driver_stats s;

    ps_driver_stats(d->driver, &s);
    ps_metric_begin(m, "build_info", PS_METRIC_GAUGE, "Version; always 1.");
    ps_metric_sample(m, "build_info", "version", PS_VERSION, 1);
    ps_metric_gauge(m, "serving",
                    "1: registered with the scheduler, so far as the daemon "
                    "needs it.",
                    d->is_serving);
    ps_metric_gauge(m, "connections", "Open connections.", s.connections);
    ps_metric_gauge(m, "connections_pre_handshake",
                    "Connections before the end of their handshake.",
                    s.pre_handshake);
    ps_metric_gauge(m, "connections_paused",
                    "Connections that are not read for lack of memory.",
                    s.paused);
    ps_metric_counter(m, "connections_refused_total",
                      "Connections beyond a limit.", s.refused);
    ps_metric_counter(m, "received_bytes_total", "Bytes read from connections.",
                      s.bytes_in);
    ps_metric_counter(m, "sent_bytes_total", "Bytes written to connections.",
                      s.bytes_out);
    ps_metric_gauge(m, "output_queued_bytes",
                    "Output that waits for its receivers.", s.queued);
}

static void set_labels(const struct daemon *d,
                       char out[DAEMON_METRICS_LABELS_MAX])
{
    snprintf(out, DAEMON_METRICS_LABELS_MAX, "cluster=\"%s\",node=\"%s\"",
             d->facts.cluster, d->facts.name);
}

void daemon_metrics_add(const struct daemon *d, struct ps_str *text)
{
    char labels[DAEMON_METRICS_LABELS_MAX];
    struct ps_metrics m = {
        .text = *text, .prefix = prefix_of(d->spec->self), .labels = labels};

    set_labels(d, labels);
    add_common(d, &m);
    d->spec->metrics(d->app.self, &m);
    *text = m.text;
    assert(!text->truncated);
}

void daemon_metrics_add_process(const struct daemon *d, struct ps_str *text)
{
    char labels[DAEMON_METRICS_LABELS_MAX];
    struct ps_metrics m = {
        .text = *text, .prefix = prefix_of(d->spec->self), .labels = labels};

    set_labels(d, labels);
    ps_metrics_process(&m, d->facts.wall_ns);
    *text = m.text;
    assert(!text->truncated);
}
