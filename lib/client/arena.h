/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas: memory of the agent that holds results, mapped read-only. Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/ps_msg.h"

struct psc_client;

/* Memory that the agent shares with this process. */
struct arena {
    uint32_t number;
    const void *data;
    uint64_t size;
    bool is_of_lost_agent; /* The agent that shared it is lost. */
    /* Operations whose result lies in it, once the agent is lost. */
    uint32_t uses;
};

/* Maps an arena that the agent offers; owns `fd`. */
void arena_accept(struct psc_client *c, const struct ps_msg_l_arena *m, int fd);
/* The current agent's arena of that number, or NULL. */
const struct arena *arena_find(const struct psc_client *c, uint32_t number);
/* Address of the bytes; NULL: outside of the arena, or no arena. */
const uint8_t *arena_place(const struct arena *a, uint64_t offset,
                           uint64_t bytes);
/* Arena of the current agent that contains `data`, or NULL. */
struct arena *arena_around(const struct psc_client *c, const void *data);
/* Agent lost: unmaps the arenas that nothing uses. */
void arena_lose_all(struct psc_client *c);
/* Drops one use of a lost agent's arena; the last one unmaps it. */
void arena_drop(struct psc_client *c, struct arena *a);
void arena_free_all(struct psc_client *c);
