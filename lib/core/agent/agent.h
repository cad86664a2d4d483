/* SPDX-License-Identifier: Apache-2.0 */
/* Agent machine: collects the contributions of the local ranks, sends their
 * sums to the servers by priority and credit, and keeps results in memory that
 * the workers map. docs/protocol.md has the message sequences. */
#pragma once

#include "core/agent/inspect.h"
#include "core/agent/options.h"
#include "core/base/machine.h"

struct ps_agent;

struct ps_agent *ps_agent_new(const struct ps_agent_options *opt, ps_time now);
void ps_agent_free(struct ps_agent *a);
struct ps_machine ps_agent_machine(struct ps_agent *a);
