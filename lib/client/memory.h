/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that this process shares with its agent, see shm.h. */
#pragma once

struct psc_client;

/* Sets up the client's memory, whose arenas are offered to the agent. */
void memory_init(struct psc_client *c);
