/* SPDX-License-Identifier: Apache-2.0 */
/* The border between other libraries' error codes and ours. */
#pragma once

/* Nearest PS_E_* for a negative libuv code; 0 stays 0. */
int ps_err_from_uv(int status);
