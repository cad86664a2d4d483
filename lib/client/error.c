/* SPDX-License-Identifier: Apache-2.0 */
#include "client/error.h"
#include "client/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>

int client_error(struct psc_client *c, int rc, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(c->detail, sizeof(c->detail), fmt, ap);
    va_end(ap);
    return rc;
}

void client_changed(struct psc_client *c)
{
    if (c->progress.waiter_count > 0) {
        pthread_cond_broadcast(&c->progress.changed);
    }
}

void client_signal_poll(struct psc_client *c)
{
    if (c->progress.event_fd >= 0 && !c->progress.is_signaled) {
        c->progress.is_signaled = eventfd_write(c->progress.event_fd, 1) == 0;
    }
}

void client_fail(struct psc_client *c, int rc, const char *fmt, ...)
{
    va_list ap;

    if (c->rc != 0) {
        return;
    }
    c->rc = rc;
    va_start(ap, fmt);
    vsnprintf(c->text, sizeof(c->text), fmt, ap);
    va_end(ap);
    c->has_unended_ops = true;
    client_changed(c);
}

int client_failure(int32_t error)
{
    return error < 0 && error >= PSC_E_DISCARDED ? error : PSC_E_JOBFAILED;
}

int client_open_error(char *err, size_t err_size, int rc, const char *fmt, ...)
{
    va_list ap;

    if (err != NULL && err_size > 0) {
        va_start(ap, fmt);
        vsnprintf(err, err_size, fmt, ap);
        va_end(ap);
    }
    return rc;
}
