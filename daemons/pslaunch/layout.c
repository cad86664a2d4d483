/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/layout.h"

#include <stdio.h>
#include <stdlib.h>

static void *allocate(size_t count, size_t size)
{
    void *p = calloc(count + 1, size); /* Never a size of 0. */

    if (p == NULL) {
        abort();
    }
    return p;
}

static struct layout layout_new(const struct layout_counts *n, uint32_t nodes)
{
    return (struct layout){
        .ranks = allocate(n->workers, sizeof(struct rank_place)),
        .nodes = allocate(nodes, sizeof(struct node_place)),
        .server_hosts = allocate(n->servers, sizeof(uint32_t)),
        .node_count = nodes,
    };
}

static void put_rank(struct layout *l, uint32_t rank, uint32_t node)
{
    l->ranks[rank] = (struct rank_place){
        .node = node, .local_rank = l->nodes[node].local_size++};
}

void layout_local(const struct layout_counts *n, struct layout *ret_layout)
{
    struct layout l = layout_new(n, n->nodes);

    for (uint32_t r = 0; r < n->workers; r++) {
        put_rank(&l, r, (uint32_t)((uint64_t)r * n->nodes / n->workers));
    }
    *ret_layout = l;
}

/* Leaves only hosts with workers as nodes, in the order of the list. Until
 * then, each host is a node. */
static void drop_empty_nodes(struct layout *l, uint32_t workers)
{
    uint32_t *number = allocate(l->node_count, sizeof(*number));
    uint32_t kept = 0;

    for (uint32_t i = 0; i < l->node_count; i++) {
        if (l->nodes[i].local_size > 0) {
            number[i] = kept;
            l->nodes[kept++] = (struct node_place){
                .host = i, .local_size = l->nodes[i].local_size};
        }
    }
    for (uint32_t r = 0; r < workers; r++) {
        l->ranks[r].node = number[l->ranks[r].node];
    }
    l->node_count = kept;
    free(number);
}

int layout_hosts(const struct layout_counts *n, const struct host_list *hosts,
                 struct layout *ret_layout, char *error)
{
    struct layout l;
    uint64_t slots = 0;
    uint32_t next = n->servers % hosts->count;

    for (uint32_t i = 0; i < hosts->count; i++) {
        slots += hosts->hosts[i].slots == 0 ? n->workers
                                            : hosts->hosts[i].slots;
    }
    if (slots < n->workers) {
        snprintf(error, HOSTS_TEXT_MAX,
                 "the hosts have slots for %llu workers, and -n is %u; name "
                 "more hosts or slots, or fewer workers",
                 (unsigned long long)slots, n->workers);
        return -1;
    }
    l = layout_new(n, hosts->count);
    for (uint32_t s = 0; s < n->servers; s++) {
        l.server_hosts[s] = s % hosts->count;
    }
    for (uint32_t r = 0; r < n->workers; r++) {
        while (hosts->hosts[next].slots > 0 &&
               l.nodes[next].local_size == hosts->hosts[next].slots) {
            next = (next + 1) % hosts->count;
        }
        put_rank(&l, r, next);
        next = (next + 1) % hosts->count;
    }
    drop_empty_nodes(&l, n->workers);
    *ret_layout = l;
    return 0;
}

void layout_free(struct layout *l)
{
    free(l->ranks);
    free(l->nodes);
    free(l->server_hosts);
    *l = (struct layout){0};
}
