/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of libuv's error codes, and a wake-up that is not lost. */
#pragma once

/* Nearest PS_E_* for a negative libuv code; 0 stays 0. */
int ps_err_from_uv(int status);

struct uv_async_s;
/* Wakes the loop of `async`, from any thread. A lost wake-up would leave ended
 * work unnoticed, so a failure is tried again. */
void ps_uv_wake(struct uv_async_s *async);
