/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine: its step, deadline and payload calls, and statistics.
 * inner.h lists the files that handle jobs and peers. */
#include "core/server/server.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/server/agent_msg.h"
#include "core/server/credit.h"
#include "core/server/grant.h"
#include "core/server/hello.h"
#include "core/server/inner.h"
#include "core/server/job_state.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/merge_run.h"
#include "core/server/reply.h"
#include "core/server/session.h"
#include "core/server/uplink.h"

#include <string.h>

#define DIAL_BACKOFF_MIN_DEFAULT PS_MILLIS(100)
#define DIAL_BACKOFF_MAX_DEFAULT PS_SECONDS(5)
#define LINGER_DEFAULT           PS_SECONDS(60)
#define CREDIT_WINDOW_DEFAULT    (32ull * 1024 * 1024)
#define UNSENT_DEFAULT           (2ull * 1024 * 1024)
/* Keeps all compute threads busy; one of another job waits behind that many
 * bytes at most. */
#define COMPUTING_DEFAULT        (8ull * 1024 * 1024)

struct ps_server *ps_server_new(const struct ps_server_options *opt,
                                ps_time now)
{
    struct ps_server *s = ps_calloc(1, sizeof(*s));

    s->opt = *opt;
    if (s->opt.credit_window == 0) {
        s->opt.credit_window = CREDIT_WINDOW_DEFAULT;
    }
    if (s->opt.unsent_max == 0) {
        s->opt.unsent_max = UNSENT_DEFAULT;
    }
    if (s->opt.computing_max == 0) {
        s->opt.computing_max = COMPUTING_DEFAULT;
    }
    if (s->opt.dial_backoff_min == 0) {
        s->opt.dial_backoff_min = DIAL_BACKOFF_MIN_DEFAULT;
    }
    if (s->opt.dial_backoff_max == 0) {
        s->opt.dial_backoff_max = DIAL_BACKOFF_MAX_DEFAULT;
    }
    s->opt.dial_backoff_max = s->opt.dial_backoff_max < s->opt.dial_backoff_min
                                  ? s->opt.dial_backoff_min
                                  : s->opt.dial_backoff_max;
    if (s->opt.link_linger == 0) {
        s->opt.link_linger = LINGER_DEFAULT;
    }
    ps_rng_init(&s->rng, opt->seed);
    s->account_limits.limit[PS_COST_MEMORY] = (struct ps_account_limit){
        .max = ps_pool_budget(opt->pool), .option = "store.memory"};
    ps_account_init(&s->account, PS_ACCOUNT_DAEMON, opt->name,
                    &s->account_limits);
    ps_server_uplink_init(s, now);
    ps_server_session_init(s);
    ps_server_job_init(s);
    ps_server_merge_init(s);
    ps_server_memory_init(s);
    ps_server_reply_init(s);
    s->now = now;
    return s;
}

void ps_server_free(struct ps_server *s)
{
    if (s == NULL) {
        return;
    }
    ps_server_job_fini(s);
    ps_server_session_fini(s);
    ps_uplink_fini(&s->uplink);
    ps_server_merge_fini(s);
    ps_account_set_used(&s->account, PS_COST_MEMORY, 0);
    ps_account_fini(&s->account);
    ps_free(s);
}

/* ------------------------------------------------------------ machine calls */

static void server_tick(struct ps_server_step *st)
{
    const struct ps_uplink_call call = ps_server_uplink_call(st);
    struct ps_server *s = st->s;

    ps_uplink_tick(&s->uplink, &call);
    ps_server_hello_tick(st);
    ps_server_session_tick(st);
    ps_server_merge_tick(st);
    if (st->now >= s->replies.flush_at) {
        ps_server_reply_flush(st);
    }
    ps_server_memory_tick(s, st->now);
}

static void begin_shutdown(struct ps_server_step *st)
{
    const struct ps_uplink_call call = ps_server_uplink_call(st);
    struct ps_server *s = st->s;

    if (s->ending) {
        return;
    }
    s->ending = true;
    ps_server_reply_flush(st);
    ps_server_session_close_all(st);
    ps_uplink_close(&s->uplink, &call);
}

static void on_conn_open(struct ps_server_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = ps_server_uplink_call(st);

    if (ev->open.kind == PS_CONN_DIALLED) {
        ps_uplink_on_open(&st->s->uplink, &call, ev->open.target, ev->conn);
    } else {
        ps_server_session_on_open(st, ev);
    }
}

static void on_dial_failed(struct ps_server_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = ps_server_uplink_call(st);

    ps_uplink_on_dial_failed(&st->s->uplink, &call, ev->dial_failed.target,
                             ev->dial_failed.rc, ev->dial_failed.why);
}

static void on_conn_closed(struct ps_server_step *st, const struct ps_event *ev)
{
    const struct ps_uplink_call call = ps_server_uplink_call(st);

    if (ps_uplink_owns_conn(&st->s->uplink, ev->conn)) {
        ps_uplink_on_closed(&st->s->uplink, &call, ev->conn, ev->closed.rc,
                            ev->closed.why);
    } else {
        ps_server_session_on_closed(st, ev->conn);
    }
}

static void on_msg(struct ps_server_step *st, const struct ps_event *ev)
{
    if (ps_uplink_owns_conn(&st->s->uplink, ev->conn)) {
        ps_server_uplink_on_msg(st, ev->conn, ev->msg.msg, ev->msg.payload);
    } else {
        ps_server_agent_on_msg(st, ev->conn, ev->msg.msg, ev->msg.payload,
                               ev->msg.discard_reason);
    }
}

static void begin_draining(struct ps_server_step *st)
{
    const struct ps_uplink_call call = ps_server_uplink_call(st);

    st->s->draining = true; /* The ping keeps new jobs away. */
    ps_uplink_ping_now(&st->s->uplink, &call);
}

static int server_step(void *self, const struct ps_event *ev,
                       struct ps_effects *fx)
{
    struct ps_server *s = self;
    struct ps_server_step st = {.s = s, .now = ev->now, .fx = fx};
    struct ps_server_job *waiting;

    s->now = ev->now;
    switch (ev->type) {
    case PS_EV_TICK:
        server_tick(&st);
        break;
    case PS_EV_OPEN:
        on_conn_open(&st, ev);
        break;
    case PS_EV_DIAL_FAILED:
        on_dial_failed(&st, ev);
        break;
    case PS_EV_MSG:
        on_msg(&st, ev);
        break;
    case PS_EV_STALLED:
        ps_uplink_on_stalled(&s->uplink, ev->conn, ev->now);
        break;
    case PS_EV_CLOSED:
        on_conn_closed(&st, ev);
        break;
    case PS_EV_COMPUTED:
        ps_server_merge_on_computed(&st, ev->computed.token, ev->computed.rc);
        break;
    case PS_EV_DRAIN:
        begin_draining(&st);
        break;
    case PS_EV_SHUTDOWN:
        begin_shutdown(&st);
        break;
    case PS_EV_CERTIFICATE:
        s->certificate = ev->certificate;
        break;
    case PS_EV_SENT:
        ps_server_session_on_sent(&st, ev->conn, ev->sent.queued);
        break;
    case PS_EV_PROBED:
    case PS_EV_LAUNCHED:
    case PS_EV_LAUNCH_ENDED:
    case PS_EV_REGION:
    case PS_EV_RESIDUAL_SEGMENT:
    case PS_EV_OPS:
        break;
    }
    while ((waiting = ps_server_credit_next_waiting(s)) != NULL) {
        ps_server_grant_unblock(&st, waiting);
    }
    return ps_uplink_is_name_lost(&s->uplink) ? PS_E_CONFIG : 0;
}

static ps_time server_deadline(const void *self)
{
    const struct ps_server *s = self;
    ps_time at = ps_time_min(ps_uplink_deadline(&s->uplink),
                             ps_server_hello_deadline(s));

    at = ps_time_min(at, ps_server_session_deadline(s));
    at = ps_time_min(at, ps_server_merge_deadline(s));
    at = ps_time_min(at, s->replies.flush_at);
    return ps_time_min(at, ps_server_memory_deadline(s));
}

static int server_payload(void *self, ps_conn_id conn, const struct ps_msg *msg,
                          uint64_t len, struct ps_slice *ret_slice)
{
    struct ps_server *s = self;

    return ps_uplink_owns_conn(&s->uplink, conn)
               ? ps_server_uplink_payload(s, msg, len, ret_slice)
               : ps_server_agent_payload(s, conn, msg, len, ret_slice);
}

struct ps_machine ps_server_machine(struct ps_server *s)
{
    static const struct ps_machine_ops ops = {
        .step = server_step,
        .deadline = server_deadline,
        .payload = server_payload,
    };

    return (struct ps_machine){.ops = &ops, .self = s, .account = &s->account};
}
