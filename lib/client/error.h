/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of calls, the failure of a client, and news for other threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct psc_client;

/* Sets the detail and returns `rc`. Locked. */
int client_error(struct psc_client *c, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails the client: every operation ends with `rc`, in client_reap_ops(). The
 * first failure stays. Locked. */
void client_fail(struct psc_client *c, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Error code of the agent as a PSC_E_*; never 0. */
int client_failure(int32_t error);
/* Writes an error text before there is a client that holds its detail. Returns
 * `rc`. */
int client_open_error(char *err, size_t err_size, int rc, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Wakes threads that wait for a change by another thread. Locked. */
void client_changed(struct psc_client *c);
/* Makes the descriptor of psc_fd() readable until psc_dispatch(). Locked. */
void client_signal_poll(struct psc_client *c);
