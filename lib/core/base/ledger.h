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
 * A charge counts once at the account and at each of its ancestors, however
 * many ways lead there, or nowhere. It takes time by the number of ancestors
 * and no memory. The daemon's account knows all below it, for status. */
#pragma once

#include "base/err.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/str.h"
#include "base/time.h"
#include "proto/ps_msg.h"

#include <stdint.h>

enum ps_cost {
    PS_COST_MEMORY,     /* Bytes really used. */
    PS_COST_OUTPUT,     /* Bytes of memory that wait to be sent, or for the
                         * acknowledgement of a daemon. */
    PS_COST_MAPPED,     /* Bytes of address space. */
    PS_COST_REGIONS,    /* Mappings. */
    PS_COST_SESSIONS,   /* Connections of training processes. */
    PS_COST_KEYS,       /* Declared, until their job ends. */
    PS_COST_PARTITIONS, /* Of keys. */
    PS_COST_OPERATIONS, /* Not done. */
    PS_COST_QUERIES,    /* Not answered. */
    PS_COST_LOG_LINES,  /* In the current interval. */
    PS_COST_COUNT,
};

enum ps_account_kind {
    PS_ACCOUNT_SESSION,
    PS_ACCOUNT_PEER, /* A connection of a daemon or a tool. */
    PS_ACCOUNT_JOB,
    PS_ACCOUNT_USER,
    PS_ACCOUNT_DAEMON,
    PS_ACCOUNT_KIND_COUNT,
};

struct ps_account_limit {
    uint64_t max;       /* 0: no limit. */
    const char *option; /* Its path in the configuration; NULL: it is fixed. */
};

/* One table serves all accounts of a kind. */
struct ps_account_limits {
    struct ps_account_limit limit[PS_COST_COUNT];
};

struct ps_account_cost {
    uint64_t used;
    uint64_t peak;    /* The most ever used. */
    uint64_t refused; /* Charges here or below that a limit forbade. */
};

/* An account and its ancestors. */
#define PS_ACCOUNT_CHAIN_MAX 6u

/* One holder of costs. The caller owns the memory and keeps it in place from
 * init to fini. */
struct ps_account {
    enum ps_account_kind kind;
    uint32_t chain_count;
    uint32_t child_count; /* Accounts below this one. */
    struct ps_account *chain[PS_ACCOUNT_CHAIN_MAX]; /* Itself first. */
    const struct ps_account_limits *limits;         /* NULL: none. */
    struct ps_account_cost cost[PS_COST_COUNT];
    struct ps_list_node node; /* In the root's `below`. */
    struct ps_list
        descendants; /* Without ancestors: all that have joined it. */
    char name[PS_NAME_MAX + 1];
};

/* Why a charge was refused; holds no pointer to an account. */
struct ps_refusal {
    enum ps_account_kind kind;
    enum ps_cost cost;
    uint64_t used;
    uint64_t amount;
    uint64_t max;
    const char *option;
    char name[PS_NAME_MAX + 1];
};

/* `limits` is borrowed and may change meanwhile; NULL: none. The name is
 * copied, with everything but letters, digits and punctuation escaped. */
void ps_account_init(struct ps_account *a, enum ps_account_kind kind,
                     const char *name, const struct ps_account_limits *limits);
/* Everything must have been refunded, and no account may be below this one.
 * An account without init, all zero, is fine. */
void ps_account_fini(struct ps_account *a);
/* From here on `a` counts at `parent`, too, with its present costs, which are
 * not compared with the parent's limits. The parent has joined its own parents
 * before. */
void ps_account_add_parent(struct ps_account *a, struct ps_account *parent);

/* 0, or PS_E_FULL: some limit forbids it, nothing is charged anywhere, and
 * *ret_refusal (if not NULL) says which limit: that of the nearest account. */
PS_MUST_USE int ps_account_charge(struct ps_account *a, enum ps_cost cost,
                                  uint64_t amount,
                                  struct ps_refusal *ret_refusal);
/* Charges a cost that exists already, without regard to limits. */
void ps_account_charge_unchecked(struct ps_account *a, enum ps_cost cost,
                                 uint64_t amount);
/* Not more than was charged. */
void ps_account_refund(struct ps_account *a, enum ps_cost cost,
                       uint64_t amount);
/* Charges or refunds the difference between `value` and the present cost of
 * `a`, without regard to limits: for costs that are measured, not taken. */
void ps_account_set_used(struct ps_account *a, enum ps_cost cost,
                         uint64_t value);
/* Amount that may still be charged; UINT64_MAX: no limit. */
uint64_t ps_account_available(const struct ps_account *a, enum ps_cost cost);

/* "user 1000 has 1024 of 1024 regions (limits.user.regions)"; bytes and
 * larger amounts with the amount that was requested. */
void ps_refusal_text(const struct ps_refusal *r, struct ps_str *out);

const char *ps_account_kind_name(enum ps_account_kind kind);
const char *ps_cost_name(enum ps_cost cost); /* "regions" */
bool ps_cost_is_bytes(enum ps_cost cost);

/* One line of status. */
struct ps_ledger_row {
    const struct ps_account *account;
    enum ps_cost cost;
};

/* Up to `max` rows: first of the daemon itself, every cost that was ever used
 * or refused; then of the accounts below it, the highest use first: by share
 * of the limit, then by amount. Returns how many. */
uint32_t ps_ledger_rows(const struct ps_account *daemon,
                        struct ps_ledger_row *rows, uint32_t max);
/* The same as records of a message, which borrow their names: at most
 * PS_COSTS_SHOWN_MAX. */
uint32_t ps_ledger_records(const struct ps_account *daemon,
                           struct ps_rec_cost ret_list[PS_COSTS_SHOWN_MAX]);
/* The scheduler hears of costs this often. */
#define PS_LEDGER_REPORT_INTERVAL PS_SECONDS(1)
