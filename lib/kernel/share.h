/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that workers share with their agent: sums of it, and copies of
 * results into it, by the module for GPUs (share_plugin.h). */
#pragma once

#include "base/buf.h"
#include "base/err.h"
#include "kernel/kernel.h"
#include "kernel/share_plugin.h"

#include <stdbool.h>

struct ps_share;

/* Loads the module and opens the devices; on failure `why`, of PS_SHARE_WHY_MAX
 * bytes, has the reason. */
PS_MUST_USE int ps_share_open(const char *path, struct ps_share **ret_share,
                              char *why);
/* All memory and events have been released. NULL is allowed. */
void ps_share_close(struct ps_share *s);
void ps_share_describe(const struct ps_share *s, char *text, size_t cap);
void ps_share_stats(const struct ps_share *s, struct ps_share_stats *ret);
/* Reason of the last job that a device has not done; "": all were done. */
void ps_share_failure(struct ps_share *s, char *why);

/* Memory of a worker. The buffer's `device` is set, its bytes are not for the
 * CPU. */
PS_MUST_USE int ps_share_import(struct ps_share *s,
                                const struct ps_share_source *from,
                                struct ps_buf **ret_buf, char *why);

PS_MUST_USE int ps_share_event_import(struct ps_share *s, const uint8_t *uuid,
                                      const uint8_t *handle, void **ret_event,
                                      char *why);
void ps_share_event_release(struct ps_share *s, void *event);
/* True if the work that it stands for has ended, or will not end. */
bool ps_share_event_is_over(struct ps_share *s, void *event);

/* Runs elements [from, to) of a job, of which some sources are memory of
 * devices. `bufs` has the buffers of the sources. On a device if all of them
 * are, and it is a sum; else the CPU computes from copies. */
PS_MUST_USE int ps_share_run_range(struct ps_share *s, const struct ps_job *job,
                                   struct ps_buf *const *bufs, uint32_t turn,
                                   uint64_t from, uint64_t to);
/* Copies bytes of the host to the same place of each slice. */
PS_MUST_USE int ps_share_deliver(struct ps_share *s, const void *from,
                                 uint64_t offset, uint64_t bytes,
                                 const struct ps_slice *to, uint32_t count);

/* Memory of the host that is copied to devices and from them. */
void ps_share_pin(struct ps_share *s, void *data, uint64_t bytes);
void ps_share_unpin(struct ps_share *s, void *data);
