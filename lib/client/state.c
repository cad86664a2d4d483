/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that every file of the client uses: the clock, errors of calls, failure
 * of the client, news for other threads, messages to the agent. */
#include "client/state.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>

ps_time client_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return PS_SECONDS(t.tv_sec) + PS_NANOS(t.tv_nsec);
}

ps_time client_deadline(int timeout_ms)
{
    return timeout_ms < 0 ? PS_TIME_NEVER
                          : client_now() + PS_MILLIS(timeout_ms);
}

int client_ms_until(ps_time deadline)
{
    ps_time now;

    if (deadline == PS_TIME_NEVER) {
        return -1;
    }
    now = client_now();
    if (deadline <= now) {
        return 0;
    }
    deadline = (deadline - now + PS_MILLIS(1) - 1) / PS_MILLIS(1);
    return deadline > INT_MAX ? INT_MAX : (int)deadline;
}

/* ---------------------------------------------------------- errors and news */

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

/* ---------------------------------------------------- messages to the agent */

int client_put(struct psc_client *c, const struct ps_msg *msg)
{
    if (c->rc != 0 || c->reattach.link != LINK_UP) {
        return c->rc;
    }
    return ps_sock_put(c->sock, msg, -1);
}

int client_put_op(struct psc_client *c, const struct ps_msg_l_op *m)
{
    struct ring *r = &c->ring;

    if (r->memory != NULL &&
        (!r->is_full ||
         ps_ring_free_op_slots(&r->worker) >= PS_RING_OP_SLOTS / 2)) {
        r->is_full = !ps_ring_push_op(&r->worker, m, ps_sock_frames(c->sock));
        if (!r->is_full) {
            r->needs_wake = true;
            return 0;
        }
    }
    return client_put(c, &(struct ps_msg){.code = PS_MSG_L_OP, .l_op = *m});
}

void client_flush(struct psc_client *c)
{
    static const struct ps_msg wake = {.code = PS_MSG_L_WAKE};
    int rc = 0;

    /* A frame on its way wakes the agent as well. */
    if (c->ring.needs_wake && c->rc == 0 && ps_sock_pending(c->sock) == 0 &&
        ps_ring_wake_agent(&c->ring.worker)) {
        rc = ps_sock_put(c->sock, &wake, -1);
    }
    c->ring.needs_wake = false;
    if (rc != 0) {
        client_fail(c, rc, "cannot wake the agent: %s", ps_strerror(rc));
    }
    rc = c->rc == 0 ? ps_sock_flush(c->sock) : 0;
    /* Closed: the reader notices it after the agent's last messages. */
    if (rc != 0 && rc != PS_E_CLOSED) {
        client_fail(c, rc, "cannot write to the agent: %s", ps_strerror(rc));
    }
}

int client_send(struct psc_client *c, const struct ps_msg *msg)
{
    int rc = client_put(c, msg);

    if (rc == 0) {
        client_flush(c);
        rc = c->rc;
    }
    return rc;
}

void client_kick(struct psc_client *c)
{
    if (c->progress.wake_threshold > 1) {
        ps_sock_kick(c->sock); /* The next completion must wake it. */
    }
}
