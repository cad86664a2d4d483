/* SPDX-License-Identifier: Apache-2.0 */
/* Server machine: merges the rounds of partitions over the slots of a job,
 * keeps versions and values, answers pulls, and grants credit. docs/protocol.md
 * has the message sequences. */
#pragma once

#include "core/base/machine.h"
#include "core/server/options.h"
#include "core/server/stats.h"

struct ps_server;

struct ps_server *ps_server_new(const struct ps_server_options *opt,
                                ps_time now);
void ps_server_free(struct ps_server *s);
struct ps_machine ps_server_machine(struct ps_server *s);
