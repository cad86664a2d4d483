/* SPDX-License-Identifier: Apache-2.0 */
/* Protection of a process's memory from other processes of its user. */
#pragma once

#include <stdbool.h>

/* Turns off core dumps, and reading of this process's memory by others without
 * CAP_SYS_PTRACE (ptrace, /proc/PID/mem, process_vm_readv); for the rest of the
 * process's life. The kernel gives the files of /proc/PID to root meanwhile.
 * False, with errno: the system refuses. */
bool ps_private_memory(void);
