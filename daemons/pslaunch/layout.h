/* SPDX-License-Identifier: Apache-2.0 */
/* Which host runs which servers and workers of a job. A node is a host, or one
 * of several simulated on this host, that runs workers; it has one agent. */
#pragma once

#include <stdint.h>

#include "pslaunch/hosts.h"

struct rank_place {
    uint32_t node;
    uint32_t local_rank; /* Among the ranks of the node. */
};

struct node_place {
    uint32_t host; /* Index in the list of hosts; 0 without a list. */
    uint32_t local_size;
};

struct layout {
    struct rank_place *ranks;
    struct node_place *nodes;
    uint32_t *server_hosts;
    uint32_t node_count;
};

/* Numbers of processes; none of nodes and workers is 0. */
struct layout_counts {
    uint32_t workers;
    uint32_t servers;
    uint32_t nodes; /* Simulated ones, without a list of hosts. */
};

/* Spreads workers over nodes of this host, in blocks of consecutive ranks. */
void layout_local(const struct layout_counts *n, struct layout *ret_layout);
/* The rule of launch.py: servers first, then workers, each on the next host of
 * the list, which begins again at its end. A host whose slots are taken gets no
 * further worker. Returns 0, or -1 with a sentence in `error`, which has
 * HOSTS_TEXT_MAX bytes. */
int layout_hosts(const struct layout_counts *n, const struct host_list *hosts,
                 struct layout *ret_layout, char *error);
void layout_free(struct layout *l);
