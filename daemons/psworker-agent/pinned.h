/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that GPUs read and write by themselves. */
#pragma once

#include "base/pool.h"

struct ps_share;

/* The same source with its memory pinned for GPUs; NULL: there are none. */
struct ps_pool_source pinned_source(struct ps_share *share,
                                    struct ps_pool_source source);
