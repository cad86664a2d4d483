/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: declaration, results, end. */
#pragma once

#include "core/agent/inner.h"

void ps_agent_key_waiter_free(struct ps_agent_key_waiter *waiter);
void ps_agent_key_on_declare(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_key *m);
void ps_agent_key_on_opened(struct ps_agent_step *st,
                            const struct ps_msg_key_opened *m,
                            const struct ps_slice *payload);
void ps_agent_key_on_disagreement(struct ps_agent_step *st,
                                  const struct ps_msg_disagreement *m);
void ps_agent_key_send_open(struct ps_agent_step *st, struct ps_agent_key *k);
void ps_agent_key_free(struct ps_agent *a, struct ps_agent_key *k);
