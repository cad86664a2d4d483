/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of libuv's error codes. */
#pragma once

/* Nearest PS_E_* for a negative libuv code; 0 stays 0. */
int ps_err_from_uv(int status);
