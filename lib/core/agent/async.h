/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of async and ssp jobs; kind.h has their operations. */
#pragma once

#include <stdint.h>

struct ps_agent_part;

/* ssp: raises the push count that every rank of the job has reached. */
void ps_agent_async_raise_clock(struct ps_agent_part *p, uint64_t clock);
