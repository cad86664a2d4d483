/* SPDX-License-Identifier: Apache-2.0 */
#include "net/conn_timers.h"

void conn_timers_init(struct conn_timers *t,
                      void (*due)(struct ps_loop_timer *timer))
{
    t->timer.due = due;
    for (int i = 0; i < CONN_DEADLINES; i++) {
        t->due[i] = PS_TIME_NEVER;
    }
}

void conn_timers_arm(struct conn_timers *t, struct ps_loop *l)
{
    ps_time at = PS_TIME_NEVER;

    for (int i = 0; i < CONN_DEADLINES; i++) {
        at = ps_time_min(at, t->due[i]);
    }
    if (at < ps_loop_timer_at(&t->timer)) {
        ps_loop_timer_set(l, &t->timer, at);
    }
}

enum conn_deadline conn_timers_over(const struct conn_timers *t, ps_time now)
{
    int i = 0;

    while (i < CONN_DEADLINES && now < t->due[i]) {
        i++;
    }
    return (enum conn_deadline)i;
}
