/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The user's ssh: PSKV_SSH, or "ssh". */
const char *ssh_program(void);
