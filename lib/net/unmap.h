/* SPDX-License-Identifier: Apache-2.0 */
/* Unmapping without a wait. The kernel needs about 0.2 s to free a GiB of pages,
 * during which an event loop would serve nobody: the end of one job would be a
 * pause of all others. So a thread of the lowest priority does it. */
#pragma once

#include <stddef.h>

/* Unmaps `size` bytes, a mapping of whole pages: before it returns if they are
 * few, else soon after. The caller must not use them any more. A descriptor of
 * the memory is to be closed before, so that the thread is the last to hold it.
 * Any thread may call it. */
void ps_unmap(void *data, size_t size);
