/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine: who is a member, which jobs there are and which ranks
 * they have, where partitions lie, barriers. docs/protocol.md has the
 * sequences. */
#pragma once

#include "core/base/ledger.h"
#include "core/link/link.h"
#include "core/base/machine.h"

struct ps_sched_options {
    char name[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    /* Told to tools that come by TCP; "": there is none. */
    char control_path[PS_SOCKET_PATH_MAX + 1];
    uint32_t uid;             /* The daemon's own: it may change every job. */
    uint64_t instance;        /* Drawn by the driver at start; never 0. */
    uint64_t generation_base; /* Job generations and incarnations start above
                                * this, and node numbers follow from it:
                                * wall-clock nanoseconds in the daemon, 0 in
                                * simulation, so that none is used twice. */
    uint64_t seed;
    ps_time heartbeat;      /* Interval told to members. */
    ps_time suspect_after;  /* Silence until SUSPECT. */
    ps_time dead_after;     /* Silence until GONE. */
    ps_time start_timeout;  /* Of a job that does not name its own. */
    ps_time rejoin_grace;   /* A job without a live rank ends after this. */
    ps_time rejoin_timeout; /* So does one whose lost rank nobody has taken
                             * again. */
    uint32_t
        partition_bytes; /* Of a job that does not name its own; 0: each key
                               * has its own. */
    uint32_t migration_chunk; /* Bytes of a partition on its way through here;
                                * 0: PS_MIGRATION_CHUNK_MAX, which is the most. */
    uint32_t placements_sent_max; /* Messages about placements in one step; 0:
                               * PS_PLACEMENTS_SENT_MAX. */
    /* By kind of account; zero: none. */
    struct ps_account_limits limits[PS_ACCOUNT_KIND_COUNT];
    struct ps_link_options link;
    ps_time link_linger; /* Link state is kept this long without a
                                * connection. */
};

struct ps_sched;

struct ps_sched *ps_sched_new(const struct ps_sched_options *opt, ps_time now);
void ps_sched_free(struct ps_sched *s);
struct ps_machine ps_sched_machine(struct ps_sched *s);

/* For checkers and the daemon's state dump. */
uint32_t ps_sched_epoch(const struct ps_sched *s);
uint32_t ps_sched_job_count(const struct ps_sched *s); /* Not ended. */
uint32_t ps_sched_member_count(const struct ps_sched *s, enum ps_role role,
                               enum ps_node_state state);
/* The account of the scheduler itself, and through it all others. */
const struct ps_account *ps_sched_account(const struct ps_sched *s);
/* Jobs, keys, barrier sets, parked queries: 0 when nothing is left behind. */
uint64_t ps_sched_residue(const struct ps_sched *s);
