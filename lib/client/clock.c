/* SPDX-License-Identifier: Apache-2.0 */
#include "client/clock.h"

#include <limits.h>
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
