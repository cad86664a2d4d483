/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that this process may use: that of the host, or less where a control
 * group (cgroup v2 or v1) of the process or an ancestor sets a limit. Beyond a
 * group's limit the kernel ends the process, whatever the host has free, so
 * shares of memory (`80%`) are shares of this. */
#pragma once

#include <stdint.h>

/* Bytes; 0: unknown. `root` is prefixed to every path: "" for this host, a
 * folder in tests. */
uint64_t ps_memory_limit(const char *root);
