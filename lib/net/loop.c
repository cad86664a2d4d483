/* SPDX-License-Identifier: Apache-2.0 */
/* libuv's loop with deadlines, a hook and signals. All deadlines share one
 * uv_timer, armed just before the loop waits: setting a deadline is one heap
 * operation and no system call. The hook runs in uv_prepare, the only phase
 * between all callbacks and the wait. */
#include "net/loop.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/list.h"
#include "net/tcp.h"
#include "proto/msg_codec.h"

#include <assert.h>
#include <sched.h>
#include <uv.h>

#define SIGNALS_MAX 8

struct signal_handler {
    uv_signal_t handle;
    ps_loop_signal_cb cb;
    void *ctx;
    bool is_open;
};

struct ps_loop {
    uv_loop_t uv;
    uv_prepare_t prepare;
    uv_timer_t timer;
    uv_idle_t idle; /* Active: the loop does not block. */
    struct ps_heap timers;
    bool stepping;
    ps_time armed; /* Time for which the uv_timer is armed. */
    ps_loop_hook hook;
    void *hook_ctx;
    struct ps_loop_shared shared;
    struct ps_rcvbuf_tuner rcvbuf_tuner;
    struct ps_send_scheduler send_scheduler;
    struct ps_loop_timer send_timer; /* Next deadline of the send scheduler. */
    struct signal_handler signals[SIGNALS_MAX];
};

/* Runs the timers that are due; true if there was any. */
static bool run_due_timers(struct ps_loop *l)
{
    ps_time now = ps_loop_now(l);
    /* A timer that is set again to a past time waits for the next iteration;
     * otherwise two timers could keep the loop here forever. */
    uint64_t before = l->timers.next_order;
    bool any = false;

    for (;;) {
        struct ps_heap_item *item = ps_heap_peek(&l->timers);

        if (item == NULL || item->key > now || item->order >= before) {
            return any;
        }
        any = true;
        ps_heap_pop(&l->timers);
        struct ps_loop_timer *t = PS_CONTAINER(item, struct ps_loop_timer,
                                               item);

        t->due(t);
    }
}

static void timer_due(uv_timer_t *handle)
{
    struct ps_loop *l = handle->data;

    /* Only ends the wait; uv_prepare runs the timers. */
    l->armed = PS_TIME_NEVER;
}

static void idle_spin(uv_idle_t *handle)
{
    (void)handle;
}

static void arm_timer(struct ps_loop *l)
{
    struct ps_heap_item *item = ps_heap_peek(&l->timers);
    ps_time at = item == NULL ? PS_TIME_NEVER : item->key;

    if (at == l->armed) {
        return;
    }
    l->armed = at;
    if (at == PS_TIME_NEVER) {
        uv_timer_stop(&l->timer);
        return;
    }
    /* libuv counts the same clock in whole milliseconds. Rounds up: a little
     * late is harmless, too early makes the loop iterate for nothing. */
    uv_update_time(&l->uv);
    uint64_t due = at / 1000000u + (at % 1000000u != 0);
    uint64_t now = uv_now(&l->uv);

    if (uv_timer_start(&l->timer, timer_due,
                       at <= ps_loop_now(l) || due <= now ? 0 : due - now,
                       0) != 0) {
        /* Tries again in the next iteration, which comes at once. */
        l->armed = PS_TIME_NEVER;
        uv_idle_start(&l->idle, idle_spin);
    }
}

static void send_slots_due(struct ps_loop_timer *t)
{
    struct ps_loop *l = PS_CONTAINER(t, struct ps_loop, send_timer);

    ps_send_scheduler_run(&l->send_scheduler, ps_loop_now(l));
}

static void prepare_wait(uv_prepare_t *handle)
{
    struct ps_loop *l = handle->data;
    bool any = run_due_timers(l);
    bool again = l->hook != NULL && l->hook(l->hook_ctx);

    /* ps_loop_step() returns after a deadline, so that tests see its effect. */
    again = again || (any && l->stepping);
    if (again && !uv_is_active((uv_handle_t *)&l->idle)) {
        uv_idle_start(&l->idle, idle_spin);
    } else if (!again) {
        uv_idle_stop(&l->idle);
    }
    if (!ps_list_empty(&l->send_scheduler.waiting) ||
        ps_heap_linked(&l->send_timer.item)) {
        ps_loop_timer_set(
            l, &l->send_timer,
            ps_send_scheduler_deadline(&l->send_scheduler, ps_loop_now(l)));
    }
    arm_timer(l);
}

int ps_loop_new(struct ps_loop **ret_loop)
{
    struct ps_loop *l = ps_calloc(1, sizeof(*l));
    int rc = uv_loop_init(&l->uv);

    if (rc != 0) {
        ps_free(l);
        return ps_err_from_uv(rc);
    }
    l->shared.decoder = ps_decoder_new();
    if (l->shared.decoder == NULL) {
        uv_loop_close(&l->uv);
        ps_free(l);
        return PS_E_NOMEM;
    }
    l->shared.scratch = ps_alloc(PS_LOOP_SCRATCH);
    l->shared.rcvbuf_tuner = &l->rcvbuf_tuner;
    l->shared.send_scheduler = &l->send_scheduler;
    ps_heap_init(&l->timers);
    l->armed = PS_TIME_NEVER;
    ps_send_scheduler_init(&l->send_scheduler);
    l->send_timer.due = send_slots_due;
    /* These three cannot fail, and they do not keep the loop alive. */
    uv_prepare_init(&l->uv, &l->prepare);
    uv_timer_init(&l->uv, &l->timer);
    uv_idle_init(&l->uv, &l->idle);
    l->prepare.data = l;
    l->timer.data = l;
    l->idle.data = l;
    uv_prepare_start(&l->prepare, prepare_wait);
    uv_unref((uv_handle_t *)&l->prepare);
    uv_unref((uv_handle_t *)&l->idle);
    *ret_loop = l;
    return 0;
}

void ps_loop_free(struct ps_loop *l)
{
    if (l == NULL) {
        return;
    }
    l->hook = NULL;
    uv_prepare_stop(&l->prepare);
    uv_close((uv_handle_t *)&l->prepare, NULL);
    uv_close((uv_handle_t *)&l->timer, NULL);
    uv_close((uv_handle_t *)&l->idle, NULL);
    for (int i = 0; i < SIGNALS_MAX; i++) {
        if (l->signals[i].is_open) {
            uv_close((uv_handle_t *)&l->signals[i].handle, NULL);
        }
    }
    uv_run(&l->uv, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&l->uv);

    assert(rc == 0); /* Fails if a handle of a user is still open. */
    (void)rc;
    ps_heap_fini(&l->timers);
    ps_decoder_free(l->shared.decoder);
    ps_free(l->shared.scratch);
    ps_free(l);
}

void ps_loop_run(struct ps_loop *l)
{
    arm_timer(l); /* A pending deadline keeps the loop alive. */
    uv_run(&l->uv, UV_RUN_DEFAULT);
}

void ps_loop_stop(struct ps_loop *l)
{
    uv_stop(&l->uv);
}

bool ps_loop_step(struct ps_loop *l)
{
    arm_timer(l);
    l->stepping = true;
    uv_run(&l->uv, UV_RUN_ONCE);
    l->stepping = false;
    if (l->hook != NULL) {
        (void)l->hook(l->hook_ctx);
    }
    arm_timer(l);
    return uv_loop_alive(&l->uv) != 0;
}

ps_time ps_loop_now(const struct ps_loop *l)
{
    (void)l;
    return uv_hrtime();
}

void ps_loop_set_hook(struct ps_loop *l, ps_loop_hook hook, void *ctx)
{
    l->hook = hook;
    l->hook_ctx = ctx;
}

void ps_loop_timer_set(struct ps_loop *l, struct ps_loop_timer *t, ps_time at)
{
    if (at != PS_TIME_NEVER) {
        ps_heap_update(&l->timers, &t->item, at);
    } else if (ps_heap_linked(&t->item)) {
        ps_heap_remove(&l->timers, &t->item);
    }
}

static void signal_caught(uv_signal_t *handle, int signum)
{
    struct signal_handler *s = handle->data;

    s->cb(s->ctx, signum);
}

int ps_loop_signal(struct ps_loop *l, int signum, ps_loop_signal_cb caught,
                   void *ctx)
{
    struct signal_handler *s = NULL;

    for (int i = 0; i < SIGNALS_MAX; i++) {
        struct signal_handler *at = &l->signals[i];

        if (!at->is_open || at->handle.signum == signum) {
            s = at;
            break;
        }
    }
    if (s == NULL) {
        return PS_E_FULL;
    }
    s->cb = caught;
    s->ctx = ctx;
    if (s->is_open) {
        return 0;
    }
    int rc = uv_signal_init(&l->uv, &s->handle);

    if (rc != 0) {
        return ps_err_from_uv(rc);
    }
    s->is_open = true;
    s->handle.data = s;
    uv_unref((uv_handle_t *)&s->handle);
    return ps_err_from_uv(uv_signal_start(&s->handle, signal_caught, signum));
}

struct uv_loop_s *ps_loop_uv(struct ps_loop *l)
{
    return &l->uv;
}

const struct ps_loop_shared *ps_loop_shared(const struct ps_loop *l)
{
    return &l->shared;
}

/* ---------------------------------------------- codes and wake-ups of libuv */

int ps_err_from_uv(int status)
{
    if (status >= 0) {
        return 0;
    }
    switch (status) {
    case UV_ECANCELED:
        return PS_E_CANCELED;
    case UV_EOF:
        return PS_E_CLOSED;
    default:
        break;
    }
    /* Codes of libuv's resolver are not errno values. */
    if (status <= UV_EAI_ADDRFAMILY && status >= UV_EAI_PROTOCOL) {
        return PS_E_UNREACH;
    }
    return ps_err_from_errno(-status);
}

void ps_uv_wake(struct uv_async_s *async)
{
    while (uv_async_send(async) != 0) {
        sched_yield();
    }
}
