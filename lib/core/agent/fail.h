/* SPDX-License-Identifier: Apache-2.0 */
/* Failure of a key's operations. */
#pragma once

struct ps_agent_key;
struct ps_agent_step;
struct ps_list;

/* Fails all operations of the key, other than transfers of state. */
void ps_agent_fail_key(struct ps_agent_step *st, struct ps_agent_key *k,
                       int error, const char *text);
void ps_agent_fail_inits(struct ps_agent_step *st, struct ps_agent_key *k,
                         int error, const char *text);
void ps_agent_fail_list(struct ps_agent_step *st, struct ps_list *list,
                        int error, const char *text);
