/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP at the address of metrics.listen. Each beat of the main loop publishes
 * the metrics and whether the daemon can serve; a request only reads them. */
#include "common/daemon_inner.h"

#include "base/limits.h"
#include "base/log.h"
#include "common/advice.h"
#include "common/http.h"
#include "net/addr.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG 64

bool daemon_http_check(const struct daemon *d, const struct ps_options *o,
                       struct ps_str *report)
{
    const char *where = daemon_common_options(d)->metrics_listen;
    char text[PS_TEXT_MAX + 1];
    struct ps_addr addr;
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (where[0] == '\0') {
        return true;
    }
    if (ps_addr_parse(where, &addr) != 0) {
        ps_str_add(&why, "write ADDRESS:PORT, as in 127.0.0.1:9191");
    } else if (ps_http_is_available(&why)) {
        return true;
    }
    ps_options_where(o, "metrics.listen", report);
    ps_str_add(report, ": metrics.listen: ");
    ps_str_add_visible(report, where);
    ps_str_addf(report, ": %s\n", text);
    return false;
}

static void add_process(void *ctx, struct ps_str *text)
{
    daemon_metrics_add_process(ctx, text);
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

void daemon_http_publish(struct daemon *d)
{
    char data[PS_HTTP_TEXT_MAX];
    struct ps_str text;

    if (d->metrics.http == NULL) {
        return;
    }
    ps_str_init(&text, data, sizeof(data));
    daemon_metrics_add(d, &text);
    ps_http_publish(d->metrics.http,
                    &(struct ps_http_snapshot){.metrics = data,
                                               .len = text.len,
                                               .not_ready = why_not_ready(d)});
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
    rc = ps_http_open(fd,
                      &(struct ps_http_options){.add = add_process, .ctx = d},
                      &d->metrics.http);
    if (rc != 0) {
        return ps_exit_refused("cannot serve", "metrics.listen", rc);
    }
    log_address(&addr, port);
    return PS_EXIT_OK;
}

void daemon_http_close(struct daemon *d)
{
    ps_http_close(d->metrics.http);
    d->metrics.http = NULL;
}
