/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: costs that peers cause in a daemon, with limits for a session, a
 * job, a user and the daemon. A cost is charged where it is taken and refunded
 * where it ends.
 *
 * Accounts form a graph of few levels:
 *
 *     session ──▶ job ──▶ daemon
 *         └─────▶ user ─────┘
 *
 * A charge counts once at the account and at each of its ancestors, by however
 * many paths they are reached, or is refused and counts nowhere. It takes time
 * proportional to the number of ancestors and no memory. The daemon's account
 * lists all accounts below it, for status. */
#pragma once

#include "base/err.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "base/time.h"
#include "proto/ps_msg.h"

#include <stdint.h>

enum ps_cost {
    PS_COST_MEMORY, /* Bytes in use. */
    /* Bytes of memory that wait to be sent or to be acknowledged by a
     * daemon. */
    PS_COST_OUTPUT,
    PS_COST_MAPPED,     /* Bytes of address space. */
    PS_COST_REGIONS,    /* Mappings. */
    PS_COST_SESSIONS,   /* Connections of training processes. */
    PS_COST_KEYS,       /* Declared keys of jobs that have not ended. */
    PS_COST_PARTITIONS, /* Partitions of these keys. */
    PS_COST_OPERATIONS, /* Operations in progress. */
    PS_COST_QUERIES,    /* Unanswered queries. */
    /* Log lines caused so far. They are never refunded: an account keeps those
     * of accounts that are gone. */
    PS_COST_LOG_LINES,
    PS_COST_COUNT,
};

enum ps_account_kind {
    PS_ACCOUNT_SESSION,
    PS_ACCOUNT_PEER, /* A connection of a daemon or of psctl. */
    PS_ACCOUNT_JOB,
    PS_ACCOUNT_USER,
    PS_ACCOUNT_DAEMON,
    PS_ACCOUNT_KIND_COUNT,
};

struct ps_account_limit {
    uint64_t max; /* 0: no limit. */
    /* Path of the configuration option; NULL: the limit is fixed. */
    const char *option;
};

/* Limits of all accounts of one kind. */
struct ps_account_limits {
    struct ps_account_limit limit[PS_COST_COUNT];
};

struct ps_account_cost {
    uint64_t used;
    uint64_t peak; /* Highest `used` so far. */
    /* Charges to this account or those below it that a limit refused. */
    uint64_t refused;
};

/* Accounts of a chain: an account and its ancestors. */
#define PS_ACCOUNT_CHAIN_MAX 6u

/* An account: a holder of costs. The caller owns the memory and must not move
 * it between init and fini. */
struct ps_account {
    enum ps_account_kind kind;
    uint32_t chain_count;
    uint32_t child_count; /* Accounts that have this one as an ancestor. */
    /* This account, then its ancestors. */
    struct ps_account *chain[PS_ACCOUNT_CHAIN_MAX];
    const struct ps_account_limits *limits; /* All 0: no limits. */
    struct ps_account_cost cost[PS_COST_COUNT];
    struct ps_list_node node; /* Link in the root's `descendants`. */
    /* Of a root (account without ancestors): all accounts below it. */
    struct ps_list descendants;
    char name[PS_NAME_MAX + 1];
};

/* Reason of a refused charge; holds no pointer to an account. */
struct ps_refusal {
    enum ps_account_kind kind;
    enum ps_cost cost;
    uint64_t used;
    uint64_t amount;
    uint64_t max;
    const char *option;
    char name[PS_NAME_MAX + 1];
};

/* `limits` is borrowed and may change later; NULL: none. The name is copied;
 * characters other than letters, digits and punctuation are escaped. */
void ps_account_init(struct ps_account *a, enum ps_account_kind kind,
                     const char *name, const struct ps_account_limits *limits);
/* All costs except log lines must be refunded, and no account may be below this one. A zeroed
 * account is allowed. */
void ps_account_fini(struct ps_account *a);
/* Makes `parent` and its ancestors count the costs of `a`, present ones
 * included, which are not checked against their limits. The parent must have
 * all its own parents already. */
void ps_account_add_parent(struct ps_account *a, struct ps_account *parent);

/* Checks whether `amount` may be charged to `a` and its ancestors. PS_E_FULL: a
 * limit refuses it, which is counted, and *ret_refusal (if not NULL) describes
 * the nearest limit that does. */
PS_MUST_USE int ps_account_check(struct ps_account *a, enum ps_cost cost,
                                 uint64_t amount,
                                 struct ps_refusal *ret_refusal);
/* Charges `amount` if ps_account_check() allows it. */
PS_MUST_USE int ps_account_charge(struct ps_account *a, enum ps_cost cost,
                                  uint64_t amount,
                                  struct ps_refusal *ret_refusal);
/* The same for several costs: all, or none. */
struct ps_charge {
    enum ps_cost cost;
    uint64_t amount;
};
PS_MUST_USE int ps_account_charge_all(struct ps_account *a,
                                      const struct ps_charge *charges,
                                      uint32_t count,
                                      struct ps_refusal *ret_refusal);
/* Charges a cost that exists already; limits are not checked. */
void ps_account_charge_unchecked(struct ps_account *a, enum ps_cost cost,
                                 uint64_t amount);
/* Takes off a cost; not more than was charged. */
void ps_account_refund(struct ps_account *a, enum ps_cost cost,
                       uint64_t amount);
/* Sets the cost of `a` to a measured value by a charge or refund of the
 * difference; limits are not checked. */
void ps_account_set_used(struct ps_account *a, enum ps_cost cost,
                         uint64_t value);
/* Counts a log line, written or summarized; not one of a level for debugging. */
void ps_account_count_line(struct ps_account *a, enum ps_log_level level);

/* Appends "user 1000 has 1024 of 1024 regions (limits.user.regions)"; for bytes
 * and amounts above 1 with the requested amount. */
void ps_refusal_text(const struct ps_refusal *r, struct ps_str *out);

/* One line of the cost table in status. */
struct ps_ledger_row {
    const struct ps_account *account;
    enum ps_cost cost;
};

/* Writes up to `max` rows and returns their number: first all costs of the
 * daemon that were ever used or refused, then those of the accounts below it,
 * by decreasing share of the limit, then by decreasing amount. */
uint32_t ps_ledger_rows(const struct ps_account *daemon,
                        struct ps_ledger_row *rows, uint32_t max);
/* The same as message records, at most PS_COSTS_SHOWN_MAX; they borrow their
 * names. */
uint32_t ps_ledger_records(const struct ps_account *daemon,
                           struct ps_rec_cost ret_list[PS_COSTS_SHOWN_MAX]);
/* Interval of cost reports to the scheduler. */
#define PS_LEDGER_REPORT_INTERVAL PS_SECONDS(1)
