/* SPDX-License-Identifier: Apache-2.0 */
#include "net/event_watch.h"

#include "base/alloc.h"
#include "kernel/share.h"
#include "net/loop.h"

#include <time.h>
#include <uv.h>

/* Between two questions, in ns: at first less than a copy of a megabyte takes,
 * and twice as long each time, because a backward pass takes milliseconds. */
#define PAUSE_MIN_NS 20000
#define PAUSE_MAX_NS 160000

struct ps_event_watch {
    struct ps_share *share;
    uv_async_t async;
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    bool is_stopping;     /* Guarded by the lock, as are all below. */
    struct ps_list added; /* Waits that the thread has not seen. */
    struct ps_list over;
};

static void move_all(struct ps_list *from, struct ps_list *to)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(from)) != NULL) {
        ps_list_push_back(to, n);
    }
}

/* Moves the waits that are over. True if there were any. */
static bool ask_all(struct ps_event_watch *w, struct ps_list *waits,
                    struct ps_list *over)
{
    struct ps_list_node *n = ps_list_first(waits);

    while (n != NULL) {
        struct ps_list_node *next = ps_list_next(waits, n);
        const struct ps_event_wait *e = PS_CONTAINER(n, struct ps_event_wait,
                                                     node);

        if (ps_share_event_is_over(w->share, e->event)) {
            ps_list_remove(n);
            ps_list_push_back(over, n);
        }
        n = next;
    }
    return !ps_list_empty(over);
}

static void thread_main(void *arg)
{
    struct timespec pause = {.tv_nsec = PAUSE_MIN_NS};
    struct ps_event_watch *w = arg;
    struct ps_list waits;
    struct ps_list over;

    ps_list_init(&waits);
    ps_list_init(&over);
    uv_mutex_lock(&w->lock);
    while (!w->is_stopping) {
        move_all(&w->added, &waits);
        if (ps_list_empty(&waits)) {
            uv_cond_wait(&w->wake, &w->lock);
            continue;
        }
        uv_mutex_unlock(&w->lock);

        const bool any = ask_all(w, &waits, &over);

        if (any) {
            pause.tv_nsec = PAUSE_MIN_NS;
        } else {
            (void)nanosleep(&pause, NULL);
            pause.tv_nsec = pause.tv_nsec < PAUSE_MAX_NS ? 2 * pause.tv_nsec
                                                         : PAUSE_MAX_NS;
        }
        uv_mutex_lock(&w->lock);
        if (any) {
            move_all(&over, &w->over);
            ps_uv_wake(&w->async);
        }
    }
    move_all(&waits, &w->over);
    uv_mutex_unlock(&w->lock);
}

static void report_over(struct ps_event_watch *w)
{
    struct ps_list over;
    struct ps_list_node *n;

    ps_list_init(&over);
    uv_mutex_lock(&w->lock);
    move_all(&w->over, &over);
    uv_mutex_unlock(&w->lock);
    while ((n = ps_list_pop(&over)) != NULL) {
        struct ps_event_wait *e = PS_CONTAINER(n, struct ps_event_wait, node);

        e->over(e);
    }
}

static void on_wake(uv_async_t *handle)
{
    report_over(handle->data);
}

static void handle_closed(uv_handle_t *handle)
{
    ps_free(handle->data);
}

int ps_event_watch_new(struct ps_loop *loop, struct ps_share *share,
                       struct ps_event_watch **ret_watch)
{
    struct ps_event_watch *w = ps_calloc(1, sizeof(*w));
    int rc = uv_async_init(ps_loop_uv(loop), &w->async, on_wake);

    if (rc != 0) {
        ps_free(w);
        return ps_err_from_uv(rc);
    }
    w->async.data = w;
    uv_unref((uv_handle_t *)&w->async);
    w->share = share;
    ps_list_init(&w->added);
    ps_list_init(&w->over);
    uv_mutex_init(&w->lock);
    uv_cond_init(&w->wake);
    rc = uv_thread_create(&w->thread, thread_main, w);
    if (rc != 0) {
        uv_cond_destroy(&w->wake);
        uv_mutex_destroy(&w->lock);
        uv_close((uv_handle_t *)&w->async, handle_closed);
        return ps_err_from_uv(rc);
    }
    *ret_watch = w;
    return 0;
}

void ps_event_watch_free(struct ps_event_watch *w)
{
    if (w == NULL) {
        return;
    }
    uv_mutex_lock(&w->lock);
    w->is_stopping = true;
    uv_cond_signal(&w->wake);
    uv_mutex_unlock(&w->lock);
    uv_thread_join(&w->thread);
    move_all(&w->added, &w->over);
    report_over(w);
    uv_cond_destroy(&w->wake);
    uv_mutex_destroy(&w->lock);
    uv_close((uv_handle_t *)&w->async, handle_closed);
}

void ps_event_watch_add(struct ps_event_watch *w, struct ps_event_wait *e)
{
    uv_mutex_lock(&w->lock);
    ps_list_push_back(&w->added, &e->node);
    uv_cond_signal(&w->wake);
    uv_mutex_unlock(&w->lock);
}
