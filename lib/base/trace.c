/* SPDX-License-Identifier: Apache-2.0 */
#include "base/trace.h"

#include "base/alloc.h"

struct ps_trace *ps_trace_new(void)
{
    return ps_calloc(1, sizeof(struct ps_trace));
}

void ps_trace_free(struct ps_trace *t)
{
    ps_free(t);
}
