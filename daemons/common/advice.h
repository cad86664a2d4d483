/* SPDX-License-Identifier: Apache-2.0 */
/* Texts for operators: why a daemon cannot listen, and the remedy. */
#pragma once

/* After ps_listen_tcp() or ps_local_listen() has failed with `rc`; `errnum` is
 * errno then. Never NULL. */
const char *ps_advice_tcp(int rc, int errnum);
const char *ps_advice_local(int rc, int errnum);
