/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for operators: why a daemon cannot listen, and the remedy. */
#pragma once

/* Advice after ps_listen_tcp() or ps_local_listen() failed with `rc` and
 * `errnum` in errno. Never NULL. */
const char *ps_advice_tcp(int rc, int errnum);
const char *ps_advice_local(int rc, int errnum);
