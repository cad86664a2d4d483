/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the output that waits for peers: reports it to core/link/output,
 * closes the connections that this chooses, and keeps the memory reserve. */
#include "driver/inner.h"

#include "base/alloc.h"

void driver_output_init(struct ps_driver *d)
{
    ps_output_init(&d->output,
                   &(struct ps_output_options){.self = d->opt.self,
                                               .machine = &d->opt.machine,
                                               .caller = d->opt.output,
                                               .link = d->opt.link_output,
                                               .total = d->opt.output_total});
}

static void reject_conn(struct daemon_conn *c, int rc, const char *text)
{
    const struct ps_msg reject = {.code = PS_MSG_REJECT,
                                  .reject = {.error = rc, .text = text}};
    const struct ps_conn_frame frame = {
        .msg = &reject, .pass_fd = -1, .is_urgent = true};

    if (c->kind != PS_CONN_DIALLED && ps_conn_send(c->conn, &frame) == 0) {
        /* Writes it at once: no I/O thread has the connection any more. */
        ps_conn_finish(c->conn);
    }
    ps_conn_close(c->conn, rc, text);
}

void driver_reject(struct daemon_conn *c, int rc, const char *text)
{
    reject_conn(c, rc, text);
    ps_output_abort(&c->output);
}

static void carry_out(const struct ps_output_close *close)
{
    reject_conn(PS_CONTAINER(close->conn, struct daemon_conn, output),
                close->rc, close->text);
}

void driver_output_update(struct daemon_conn *c)
{
    const struct ps_conn_output out = ps_conn_output(c->conn);
    struct ps_output_close close;
    bool is_open = out.is_open;

    if (c->kind != PS_CONN_LOCAL) {
        c->path.queued = out.queued;
        c->path.by_reference = out.is_by_reference;
    }
    /* One that is not open writes its remaining output, and closes. */
    while (is_open && ps_output_update(&c->output, out.memory, &close)) {
        carry_out(&close);
        is_open = ps_conn_is_open(c->conn);
    }
}

/* Refills the reserve, as large as possible. */
static bool refill_reserve(void)
{
    for (size_t size = PS_RESERVE_BYTES; size >= PS_RESERVE_EVICT_MIN;
         size /= 2) {
        if (ps_alloc_reserve(size)) {
            return true;
        }
    }
    return false;
}

void driver_relieve(struct ps_driver *d)
{
    struct ps_output_close close;

    if (ps_output_is_evicting(&d->output)) {
        return;
    }
    if (ps_alloc_reserve(PS_RESERVE_BYTES)) {
        ps_log_of(LOG_MEMORY, PS_LOG_WARNING,
                  "memory was exhausted and is available again");
    } else if (ps_output_evict(&d->output, &close)) {
        carry_out(&close);
    } else if (refill_reserve()) {
        ps_log_of(LOG_MEMORY, PS_LOG_WARNING,
                  "memory is nearly exhausted, and no peer holds much of it");
    }
}
