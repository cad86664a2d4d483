/* SPDX-License-Identifier: Apache-2.0 */
/* The daemons a scheduler knows, by role and name. A name has a node number
 * as long as the scheduler lives; each process that bears it is an instance of
 * it and has an incarnation. Servers and agents remember both longer than the
 * scheduler may live, so another scheduler gives others: ps_members_set_base.
 * A member owns its link. Whoever changes what a member is to
 * the jobs does it in membership.c; here is only the book. */
#pragma once

#include "base/map.h"
#include "core/link/link.h"

#include <stdbool.h>
#include <stdint.h>

/* Names of daemons; when full, one that is gone and has no job is forgotten,
 * else the new one is refused. */
#define PS_MEMBERS_MAX         8192u
/* Earlier instances of a name that are still turned away. */
#define PS_MEMBER_REPLACED_MAX 16u

/* A worker whose end was heard before its beginning, which may still be on
 * its way: messages of a link overtake each other. */
struct ps_member_pending_exit {
    uint64_t worker;
    uint64_t seq; /* Of its end. */
};

#define PS_MEMBER_RATE_SPAN PS_SECONDS(2)

/* How much a member does, as the difference of two pings that are
 * PS_MEMBER_RATE_SPAN or more apart. */
struct ps_member_rates {
    uint64_t rounds; /* A second, as the next two. */
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t base_rounds; /* Totals at `from`. */
    uint64_t base_bytes_in;
    uint64_t base_bytes_out;
    ps_time base_at; /* 0: no ping yet. */
};

/* Connections to the address that the member names, see probe.c. */
struct ps_member_probe {
    bool was_reached; /* One has succeeded since this process said hello. */
    bool in_flight;   /* The last one has no result yet. */
    uint32_t number;  /* Of the last one; others' results are ignored. */
    ps_time last_at;  /* When it began; 0: never. */
    ps_time due_at;   /* When the next one is due; else never. */
    int unreachable;  /* Of a server: why it was not reached; 0: it was, or
                      * nothing is known. */
};

/* What others have heard of a member that is SUSPECT, see witness.c. */
struct ps_member_witness {
    ps_time last_request_at; /* They were, last. */
    ps_time last_heard_at;   /* Any of them has heard it, last; 0: none has. */
    ps_time is_noted; /* The `heard` of the silence that the log knows. */
};

struct ps_member {
    uint32_t node;
    uint8_t role;  /* enum ps_role */
    uint8_t state; /* enum ps_node_state */
    char name[PS_NAME_MAX + 1];
    char address[PS_ADDRESS_MAX + 1];
    uint64_t instance;
    uint64_t incarnation;
    uint64_t replaced[PS_MEMBER_REPLACED_MAX];
    uint32_t replaced_count;
    struct ps_link *link; /* NULL: no conversation to carry on. */
    uint64_t session;
    ps_time last_recv_at;
    /* Not given up before, because the scheduler could not hear; and what
     * `heard` was then. */
    ps_time grace_until;
    ps_time grace_recv_at;
    ps_time disconnected_at; /* When the connection was lost; else never. */
    ps_time forget_at;       /* GONE: it is of no interest then; else never. */
    ps_time confirm_at;      /* Agent on a fresh link: workers that it has not
                         * named again by then are gone; else never. */
    struct ps_member_probe probe;
    struct ps_member_witness witness;
    uint64_t placed_bytes; /* Server: bytes placed there by all jobs. */
    uint64_t memory_limit; /* Server: what its store may take; 0: not known. */
    uint64_t reserved_bytes; /* Of that, by all jobs. */
    struct ps_msg_ping last_ping;
    struct ps_msg *last_costs; /* Its last word on them; NULL: none. */
    struct ps_member_rates rates;
    struct ps_member_pending_exit *pending_exits;
    uint32_t pending_exit_count;
    uint32_t pending_exit_capacity;
};

struct ps_members {
    struct ps_map *by_node;
    struct ps_member **sorted; /* By role, then name. */
    uint32_t count;
    uint32_t last_node;        /* Last number given. */
    uint64_t incarnation_base; /* Those of each member start above it. */
};

void ps_members_init(struct ps_members *t);
/* Before the first member: numbers and incarnations follow from `base`, which
 * is greater than that of any scheduler before this one, or 0 for numbers from
 * 1. Incarnations are greater than all that an earlier one gave, unless it
 * started one process as often as nanoseconds went by; node numbers are others
 * but for one start in about a million, and then the incarnation tells. */
void ps_members_set_base(struct ps_members *t, uint64_t base);
void ps_members_fini(struct ps_members *t);
struct ps_member *ps_members_get(const struct ps_members *t, uint32_t node);
struct ps_member *ps_members_find(const struct ps_members *t, enum ps_role role,
                                  const char *name);
/* The name must be new and fit. In state JOINING. */
struct ps_member *ps_members_add(struct ps_members *t, enum ps_role role,
                                 const char *name);
/* Forget it. */
void ps_members_remove(struct ps_members *t, struct ps_member *m);
uint32_t ps_members_count(const struct ps_members *t, enum ps_role role,
                          enum ps_node_state state);

/* Leaves a note; `why` may be NULL. */
void ps_member_set_state(struct ps_member *m, enum ps_node_state to,
                         const char *why, struct ps_effects *fx);
/* Connected? */
bool ps_member_is_connected(const struct ps_member *m);
/* A ping has come. */
void ps_member_record_ping(struct ps_member *m, const struct ps_msg_ping *ping,
                           ps_time now);
/* Probes of another process, or at another address, say nothing of it. */
void ps_member_unreached(struct ps_member *m);
/* Another process takes over the name. */
void ps_member_replace_instance(struct ps_member *m, uint64_t instance);
bool ps_member_was_replaced(const struct ps_member *m, uint64_t instance);
/* Drop the link, and what depends on its numbers. */
void ps_member_drop_link(struct ps_member *m);
/* When silence changes its state next, or PS_TIME_NEVER. */
ps_time ps_member_lease_deadline(const struct ps_member *m,
                                 ps_time suspect_after, ps_time dead_after);

/* The end of `worker` has arrived as number `seq`. */
void ps_member_add_pending_exit(struct ps_member *m, uint64_t worker,
                                uint64_t seq);
/* Had the end of the worker arrived before this, its beginning? */
bool ps_member_has_pending_exit(struct ps_member *m, uint64_t worker);
