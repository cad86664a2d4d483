/* SPDX-License-Identifier: Apache-2.0 */
#include "net/uverr.h"

#include "base/err.h"

#include <sched.h>
#include <uv.h>

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
