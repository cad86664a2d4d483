/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/ledger.h"

#include "base/num.h"

#include <assert.h>
#include <string.h>

struct cost_kind {
    const char *name;      /* As in status and in options. */
    const char *unit_text; /* Text after the amount. */
    bool is_bytes;
};

static const struct cost_kind cost_kinds[PS_COST_COUNT] = {
    [PS_COST_MEMORY] = {"memory", "of memory", true},
    [PS_COST_OUTPUT] = {"output", "of queued output", true},
    [PS_COST_MAPPED] = {"mapped", "of mapped memory", true},
    [PS_COST_REGIONS] = {"regions", "regions", false},
    [PS_COST_SESSIONS] = {"sessions", "sessions", false},
    [PS_COST_KEYS] = {"keys", "keys", false},
    [PS_COST_PARTITIONS] = {"partitions", "partitions", false},
    [PS_COST_OPERATIONS] = {"operations", "operations", false},
    [PS_COST_QUERIES] = {"queries", "open queries", false},
    [PS_COST_LOG_LINES] = {"log_lines", "log lines", false},
};

static const char *const account_kind_names[PS_ACCOUNT_KIND_COUNT] = {
    [PS_ACCOUNT_SESSION] = "session", [PS_ACCOUNT_PEER] = "peer",
    [PS_ACCOUNT_JOB] = "job",         [PS_ACCOUNT_USER] = "user",
    [PS_ACCOUNT_DAEMON] = "daemon",
};

/* --------------------------------------------------------------- accounts */

void ps_account_init(struct ps_account *a, enum ps_account_kind kind,
                     const char *name, const struct ps_account_limits *limits)
{
    static const struct ps_account_limits no_limits;
    struct ps_str s;

    *a = (struct ps_account){.kind = kind,
                             .limits = limits != NULL ? limits : &no_limits};
    a->chain[0] = a;
    a->chain_count = 1;
    ps_list_init(&a->descendants);
    ps_str_init(&s, a->name, sizeof(a->name));
    ps_str_add_escaped(&s, name, strlen(name), sizeof(a->name));
}

void ps_account_fini(struct ps_account *a)
{
    assert(a->child_count == 0);
    for (uint32_t i = 0; i < PS_COST_COUNT; i++) {
        assert(a->cost[i].used == 0 || i == PS_COST_LOG_LINES);
    }
    for (uint32_t i = 1; i < a->chain_count; i++) {
        a->chain[i]->child_count--;
    }
    if (ps_list_linked(&a->node)) {
        ps_list_remove(&a->node);
    }
    a->chain_count = 0;
}

static bool has_ancestor(const struct ps_account *a, const struct ps_account *b)
{
    for (uint32_t i = 0; i < a->chain_count; i++) {
        if (a->chain[i] == b) {
            return true;
        }
    }
    return false;
}

/* Adds an ancestor that `a` does not have yet. */
static void add_ancestor(struct ps_account *a, struct ps_account *ancestor)
{
    assert(a->chain_count < PS_ACCOUNT_CHAIN_MAX);
    a->chain[a->chain_count++] = ancestor;
    ancestor->child_count++;
    for (uint32_t i = 0; i < PS_COST_COUNT; i++) {
        struct ps_account_cost *c = &ancestor->cost[i];

        c->used += a->cost[i].used;
        c->peak = ps_max_u64(c->peak, c->used);
    }
    if (ancestor->chain_count == 1 && !ps_list_linked(&a->node)) {
        ps_list_push_back(&ancestor->descendants, &a->node);
    }
}

void ps_account_add_parent(struct ps_account *a, struct ps_account *parent)
{
    /* The costs of accounts below `a` would be missing at the parent. */
    assert(a->child_count == 0);
    for (uint32_t i = 0; i < parent->chain_count; i++) {
        if (!has_ancestor(a, parent->chain[i])) {
            add_ancestor(a, parent->chain[i]);
        }
    }
}

/* ------------------------------------------------------------- charges */

static void record_refusal(struct ps_account *a, const struct ps_account *by,
                           enum ps_cost cost, uint64_t amount,
                           struct ps_refusal *ret_refusal)
{
    const struct ps_account_limit *limit = &by->limits->limit[cost];

    for (uint32_t i = 0; i < a->chain_count; i++) {
        a->chain[i]->cost[cost].refused++;
    }
    if (ret_refusal == NULL) {
        return;
    }
    *ret_refusal = (struct ps_refusal){
        .kind = by->kind,
        .cost = cost,
        .used = by->cost[cost].used,
        .amount = amount,
        .max = limit->max == 0 ? UINT64_MAX : limit->max,
        .option = limit->option,
    };
    ps_str_copy(ret_refusal->name, sizeof(ret_refusal->name), by->name);
}

int ps_account_check(struct ps_account *a, enum ps_cost cost, uint64_t amount,
                     struct ps_refusal *ret_refusal)
{
    for (uint32_t i = 0; i < a->chain_count; i++) {
        const struct ps_account *by = a->chain[i];
        const uint64_t used = by->cost[cost].used;
        const uint64_t limit = by->limits->limit[cost].max;
        const uint64_t max = limit == 0 ? UINT64_MAX : limit;

        if (amount > (used < max ? max - used : 0)) {
            record_refusal(a, by, cost, amount, ret_refusal);
            return PS_E_FULL;
        }
    }
    return 0;
}

int ps_account_charge(struct ps_account *a, enum ps_cost cost, uint64_t amount,
                      struct ps_refusal *ret_refusal)
{
    int rc = ps_account_check(a, cost, amount, ret_refusal);

    if (rc == 0) {
        ps_account_charge_unchecked(a, cost, amount);
    }
    return rc;
}

int ps_account_charge_all(struct ps_account *a, const struct ps_charge *charges,
                          uint32_t count, struct ps_refusal *ret_refusal)
{
    for (uint32_t i = 0; i < count; i++) {
        int rc = ps_account_check(a, charges[i].cost, charges[i].amount,
                                  ret_refusal);

        if (rc != 0) {
            return rc;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        ps_account_charge_unchecked(a, charges[i].cost, charges[i].amount);
    }
    return 0;
}

void ps_account_charge_unchecked(struct ps_account *a, enum ps_cost cost,
                                 uint64_t amount)
{
    for (uint32_t i = 0; i < a->chain_count; i++) {
        struct ps_account_cost *c = &a->chain[i]->cost[cost];

        c->used += amount;
        c->peak = ps_max_u64(c->peak, c->used);
    }
}

void ps_account_refund(struct ps_account *a, enum ps_cost cost, uint64_t amount)
{
    for (uint32_t i = 0; i < a->chain_count; i++) {
        assert(a->chain[i]->cost[cost].used >= amount);
        a->chain[i]->cost[cost].used -= amount;
    }
}

void ps_account_set_used(struct ps_account *a, enum ps_cost cost,
                         uint64_t value)
{
    const uint64_t used = a->cost[cost].used;

    if (value > used) {
        ps_account_charge_unchecked(a, cost, value - used);
    } else {
        ps_account_refund(a, cost, used - value);
    }
}

void ps_account_count_line(struct ps_account *a, enum ps_log_level level)
{
    if (level <= PS_LOG_INFO) {
        ps_account_charge_unchecked(a, PS_COST_LOG_LINES, 1);
    }
}

/* ---------------------------------------------------------------- text */

static void add_amount(struct ps_str *out, enum ps_cost cost, uint64_t amount)
{
    if (cost_kinds[cost].is_bytes) {
        ps_str_add_size(out, amount);
    } else {
        ps_str_addf(out, "%llu", (unsigned long long)amount);
    }
}

void ps_refusal_text(const struct ps_refusal *r, struct ps_str *out)
{
    ps_str_addf(out, r->kind == PS_ACCOUNT_DAEMON ? "this %s" : "%s %s",
                account_kind_names[r->kind], r->name);
    ps_str_add(out, " has ");
    add_amount(out, r->cost, r->used);
    ps_str_add(out, " of ");
    add_amount(out, r->cost, r->max);
    ps_str_addf(out, " %s", cost_kinds[r->cost].unit_text);
    if (cost_kinds[r->cost].is_bytes || r->amount > 1) {
        ps_str_add(out, " and needs ");
        add_amount(out, r->cost, r->amount);
        ps_str_add(out, " more");
    }
    if (r->option != NULL) {
        ps_str_addf(out, " (%s)", r->option);
    }
}

/* -------------------------------------------------------------- status */

/* Millionths of the limit; 0 without a limit. */
static uint64_t limit_share(const struct ps_ledger_row *r)
{
    const uint64_t max = r->account->limits->limit[r->cost].max;

    return max == 0 ? 0
                    : (uint64_t)((double)r->account->cost[r->cost].used /
                                 (double)max * 1e6);
}

static bool is_heavier(const struct ps_ledger_row *a,
                       const struct ps_ledger_row *b)
{
    const uint64_t sa = limit_share(a);
    const uint64_t sb = limit_share(b);

    return sa != sb ? sa > sb
                    : a->account->cost[a->cost].used >
                          b->account->cost[b->cost].used;
}

/* Inserts `row` into rows[first..], sorted by share; drops the last row if
 * there are more than `max`. Returns the new count. */
static uint32_t insert_row(struct ps_ledger_row *rows, uint32_t first,
                           uint32_t count, uint32_t max,
                           const struct ps_ledger_row *row)
{
    uint32_t at = count;

    if (count == max &&
        (count == first || !is_heavier(row, &rows[count - 1]))) {
        return count;
    }
    at = count == max ? count - 1 : count;
    while (at > first && is_heavier(row, &rows[at - 1])) {
        rows[at] = rows[at - 1];
        at--;
    }
    rows[at] = *row;
    return count == max ? count : count + 1;
}

uint32_t ps_ledger_rows(const struct ps_account *daemon,
                        struct ps_ledger_row *rows, uint32_t max)
{
    uint32_t count = 0;
    uint32_t first;

    for (uint32_t i = 0; i < PS_COST_COUNT && count < max; i++) {
        if (daemon->cost[i].peak != 0 || daemon->cost[i].refused != 0) {
            rows[count++] = (struct ps_ledger_row){daemon, i};
        }
    }
    first = count;
    PS_LIST_EACH_OF(const struct ps_account, a, node, &daemon->descendants)
    {
        for (uint32_t i = 0; i < PS_COST_COUNT; i++) {
            const struct ps_ledger_row row = {a, i};

            if (a->cost[i].used != 0 || a->cost[i].refused != 0) {
                count = insert_row(rows, first, count, max, &row);
            }
        }
    }
    return count;
}

uint32_t ps_ledger_records(const struct ps_account *daemon,
                           struct ps_rec_cost ret_list[PS_COSTS_SHOWN_MAX])
{
    struct ps_ledger_row rows[PS_COSTS_SHOWN_MAX];
    const uint32_t count = ps_ledger_rows(daemon, rows, PS_COSTS_SHOWN_MAX);

    for (uint32_t i = 0; i < count; i++) {
        const struct ps_account *a = rows[i].account;
        const struct ps_account_cost *c = &a->cost[rows[i].cost];

        ret_list[i] = (struct ps_rec_cost){
            .kind = account_kind_names[a->kind],
            .name = a->name,
            .cost = cost_kinds[rows[i].cost].name,
            .used = c->used,
            .peak = c->peak,
            .limit = a->limits->limit[rows[i].cost].max,
            .refused = c->refused};
    }
    return count;
}
