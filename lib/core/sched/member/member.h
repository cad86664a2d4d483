/* SPDX-License-Identifier: Apache-2.0 */
/* Members of the cluster: servers, agents, their links and their silence.
 *
 * member.c records them by role and name and knows nothing of jobs; lease.c
 * gives verdicts on those that are silent; membership.c applies what happens to
 * them to jobs. */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "base/str.h"
#include "core/base/peer.h"
#include "core/link/link.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_member;
struct ps_msg;
struct ps_msg_row_member;
struct ps_sched;
struct ps_sched_conn;
struct ps_sched_step;

/* Handles a message of a member, which may send it (rule A6). */
typedef void ps_sched_handler(struct ps_sched_step *st, struct ps_member *m,
                              const struct ps_msg *msg);
/* 0 if the scheduler waits for this answer of the member; PS_E_NOENT: for none,
 * as what it asked for is over, or was answered before; PS_E_PERM: another
 * member was asked. */
typedef int ps_sched_answer_check(const struct ps_sched *s,
                                  const struct ps_member *m,
                                  const struct ps_msg *msg);

/* ---------------------------------------------------------------- member.c */

/* A name keeps its node number while the scheduler lives; each process under it
 * is an instance with an incarnation. Servers and agents remember both beyond a
 * restart of the scheduler, so each scheduler assigns others:
 * ps_members_set_base. A member owns its link. */

/* Names of members. When full, a GONE member without a job is forgotten, or
 * else the new one is refused. */
#define PS_MEMBERS_MAX           8192u
/* Earlier instances of a name that are still rejected. */
#define PS_MEMBER_REPLACED_MAX   16u
/* Time for which operators see a GONE member that no job refers to. */
#define PS_MEMBER_GONE_RETENTION PS_SECONDS(300)

/* End of a worker that arrived before its registration, which may still be in
 * flight: messages of a link overtake each other. */
struct ps_member_pending_exit {
    uint64_t worker;
    uint64_t seq; /* Link sequence number of the end. */
};

struct ps_member_pending_exits {
    struct ps_member_pending_exit *list;
    uint32_t count;
    uint32_t capacity;
};

#define PS_MEMBER_RATE_SPAN PS_SECONDS(2)

/* Rates of a member, from two pings at least PS_MEMBER_RATE_SPAN apart. */
struct ps_member_rates {
    uint64_t rounds; /* Per second, as the next four. */
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t gpu_up;
    uint64_t gpu_down;
    struct ps_msg_ping base; /* Totals at base_at. */
    ps_time base_at;         /* 0: no ping yet. */
};

/* Probes of the address that the member advertises, see lease.c. */
struct ps_member_probe {
    bool was_reached; /* A probe of this process has succeeded. */
    bool in_flight;   /* The latest probe has no result yet. */
    /* Number of the latest probe; other results are ignored. */
    uint32_t number;
    ps_time last_at; /* Start of the latest probe; 0: none. */
    ps_time due_at;  /* When the next probe is due; or never. */
    /* Server: error of the failed reach probe; 0: reached, or unknown. */
    int unreachable;
};

/* Reports of witnesses about a SUSPECT member, see lease.c. */
struct ps_member_witness {
    ps_time last_request_at; /* When witnesses were last asked. */
    /* When any witness last heard the member; 0: never. */
    ps_time last_heard_at;
    ps_time noted_at; /* last_recv_at of the silence that was logged. */
};

/* Bytes of the text of a refusal. */
#define PS_MEMBER_REFUSAL_MAX 63u

/* Grace after the scheduler was isolated, or was started from its file. */
struct ps_member_grace {
    ps_time until;   /* Not GONE before this time. */
    ps_time recv_at; /* last_recv_at when it was granted. */
    /* No hello to this process yet: it is known from the file. */
    bool is_restored;
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
    struct ps_link *link; /* NULL: no link to resume. */
    uint64_t session;
    ps_time last_recv_at;
    struct ps_member_grace grace;
    ps_time disconnected_at; /* When the connection was lost; or never. */
    ps_time forget_at;       /* GONE: when the member is forgotten; or never. */
    /* Agent on a fresh link: when workers that it has not reported are LOST;
     * or never. */
    ps_time confirm_at;
    struct ps_member_probe probe;
    struct ps_member_witness witness;
    uint64_t placed_bytes;   /* Server: bytes placed there by all jobs. */
    uint64_t memory_limit;   /* Server: limit of its store; 0: unknown. */
    uint64_t reserved_bytes; /* Server: bytes reserved there by all jobs. */
    struct ps_msg_ping last_ping;
    struct ps_msg *last_costs; /* Latest costs message; NULL: none. */
    struct ps_msg *hello;      /* The latest one. */
    int64_t clock_skew_ns;     /* Its wall clock minus the scheduler's. */
    /* Why the peer of its last connection was refused, as its certificate is
     * revoked; "": it was not. */
    char refusal[PS_MEMBER_REFUSAL_MAX + 1];
    struct ps_member_rates rates;
    struct ps_member_pending_exits pending_exits;
    struct ps_misuse misuse;
    struct ps_list_node unsaved; /* In the list of struct ps_sched_store. */
};

struct ps_members {
    struct ps_map *by_node;
    struct ps_member **sorted; /* By role, then name. */
    uint32_t count;
    uint32_t last_node;        /* Newest node number. */
    uint64_t incarnation_base; /* Incarnations of each member start above it. */
};

void ps_members_init(struct ps_members *t);
/* Before the first member: derives node numbers and incarnations from `base`,
 * greater than that of any earlier scheduler; 0: numbers from 1. Incarnations
 * exceed all earlier ones, unless one process was started as often as
 * nanoseconds passed. Node numbers differ except in about one start in a
 * million; then the incarnation differs. */
void ps_members_set_base(struct ps_members *t, uint64_t base);
void ps_members_fini(struct ps_members *t);
struct ps_member *ps_members_get(const struct ps_members *t, uint32_t node);
struct ps_member *ps_members_find(const struct ps_members *t, enum ps_role role,
                                  const char *name);
/* Adds a member in state JOINING. The name is new and fits. */
struct ps_member *ps_members_add(struct ps_members *t, enum ps_role role,
                                 const char *name);
/* Adds a member that the file has, SUSPECT or GONE, whose name and node are new. */
struct ps_member *ps_members_restore(struct ps_members *t,
                                     const struct ps_msg_row_member *row);
/* Removes and frees the member. */
void ps_members_remove(struct ps_members *t, struct ps_member *m);
uint32_t ps_members_count(const struct ps_members *t, enum ps_role role,
                          enum ps_node_state state);

/* Changes the state and logs it; `why` may be NULL. */
void ps_member_set_state(struct ps_member *m, enum ps_node_state to,
                         const char *why, struct ps_effects *fx);
/* True: the link has a connection. */
bool ps_member_is_connected(const struct ps_member *m);
/* Stores the ping and updates the rates. */
void ps_member_record_ping(struct ps_member *m, const struct ps_msg_ping *ping,
                           ps_time now);
/* Clears probe results: they hold for one process at one address only. */
void ps_member_unreached(struct ps_member *m);
/* Records a new process under the name, with a new incarnation. */
void ps_member_replace_instance(struct ps_member *m, uint64_t instance);
bool ps_member_was_replaced(const struct ps_member *m, uint64_t instance);
/* Frees the link, and state that depends on its sequence numbers. */
void ps_member_drop_link(struct ps_member *m);

/* Records that the end of `worker` arrived as number `seq`. */
void ps_member_add_pending_exit(struct ps_member *m, uint64_t worker,
                                uint64_t seq);
/* True: the end of the worker arrived before its registration. */
bool ps_member_has_pending_exit(struct ps_member *m, uint64_t worker);

/* ----------------------------------------------------------------- lease.c */

/* Leases: verdicts on silent members. */

/* Restarts the lease of the member. */
void ps_sched_lease_renew(struct ps_sched_step *st, struct ps_member *m);
/* The member has dialled again: its silence counts from now on (rule D9). */
void ps_sched_lease_end_grace(struct ps_member *m);
/* Begins the lease of a member that the file has: with a grace. */
void ps_sched_lease_restore(struct ps_member *m, ps_time now);
/* Restarts the lease of a member that sent a message. True: it was SUSPECT and
 * is ACTIVE. */
bool ps_sched_lease_on_message(struct ps_sched_step *st, struct ps_member *m);
/* Extends all leases by `late`, the delay of this step behind its deadline.
 * False: that is too short to matter. */
bool ps_sched_lease_extend_all(struct ps_sched_step *st, ps_time late);

/* Lease terms that hold for all members at one time. */
struct ps_sched_lease {
    ps_time not_before; /* No member is GONE before this time. */
    ps_time timeout;    /* Silence before a member is GONE. */
};
/* Returns the terms of this time, and logs when no member is heard. */
struct ps_sched_lease ps_sched_lease_tick(struct ps_sched_step *st);
/* Makes a silent member SUSPECT. True: its lease has ended, and it is to be
 * GONE for the reason that is appended. */
bool ps_sched_lease_check(struct ps_sched_step *st,
                          const struct ps_sched_lease *l, struct ps_member *m,
                          struct ps_str *why);
ps_time ps_sched_lease_deadline(const struct ps_sched *s, ps_time now);

/* --------------------------------------------------------------- witnesses */

/* Silence of a member as its peers see it. */

/* Asks witnesses about a SUSPECT member when that is due. */
void ps_sched_witness_tick(struct ps_sched_step *st, struct ps_member *m);
/* Of a ping_ack: never PS_E_PERM, since the job for which the witness was asked
 * may have ended. */
ps_sched_answer_check ps_sched_witness_check_answer;
ps_sched_handler ps_sched_on_ping_ack;

/* ------------------------------------------------------------------ probes */

/* To the address that a member advertises: whether it is reached, and whether
 * its process is there after the loss of its connection. */

/* The member has completed its handshake. */
void ps_sched_probe_hello(struct ps_sched_step *st, struct ps_member *m);
/* The member's connection is lost. */
void ps_sched_probe_lost(struct ps_sched_step *st, struct ps_member *m);
/* Records the result of a probe. Returns the member whose process has ended as
 * the result shows, which is to be GONE for the reason that is appended; NULL:
 * none. */
struct ps_member *ps_sched_probe_result(struct ps_sched_step *st,
                                        uint64_t target, int rc,
                                        struct ps_str *why);
void ps_sched_probe_tick(struct ps_sched_step *st, struct ps_member *m);

/* ------------------------------------------------------------ membership.c */

/* Hello and its reply; members that fall silent, go and return. */

void ps_sched_on_hello(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_hello *m);
/* True: the unacknowledged messages of the member exceeded their limit, and its
 * link was dropped. */
bool ps_sched_member_is_backlogged(struct ps_sched_step *st,
                                   struct ps_member *m);
void ps_sched_member_on_closed(struct ps_sched_step *st, struct ps_member *m);
/* The driver refuses the peer of its connection, which closes: for this reason,
 * with the peer's name in parentheses. */
void ps_sched_member_on_refused(struct ps_member *m, const char *why);
/* A message of the member has arrived. */
void ps_sched_member_on_message(struct ps_sched_step *st, struct ps_member *m);
void ps_sched_on_probed(struct ps_sched_step *st, uint64_t target, int rc);
void ps_sched_members_tick(struct ps_sched_step *st);
ps_time ps_sched_members_deadline(const struct ps_sched *s, ps_time now);
