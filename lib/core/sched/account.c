/* SPDX-License-Identifier: Apache-2.0 */
/* Ledger of the scheduler: costs of keys, by job and user.
 *
 *     job ──▶ user ──▶ daemon
 *
 * A short declaration makes a table with an entry for each partition here, on
 * every agent and on servers. The job and its user have limits for these
 * tables. */
#include "core/sched/account.h"

#include "base/alloc.h"
#include "core/sched/inner.h"

#include <string.h>

struct ps_sched_user {
    struct ps_sched *sched;
    uint32_t uid;
    uint32_t job_count;
    struct ps_account account;
};

void ps_sched_account_init(struct ps_sched *s)
{
    s->users = ps_map_new();
    ps_account_init(&s->account, PS_ACCOUNT_DAEMON, s->opt.name,
                    &s->opt.limits[PS_ACCOUNT_DAEMON]);
}

void ps_sched_account_fini(struct ps_sched *s)
{
    assert(ps_map_count(s->users) == 0);
    ps_map_free(s->users);
    ps_account_fini(&s->account);
}

static struct ps_sched_user *obtain_user(struct ps_sched *s, uint32_t uid)
{
    struct ps_sched_user *u = ps_map_get(s->users, uid);
    char name[16];
    struct ps_str text;

    if (u == NULL) {
        u = ps_calloc(1, sizeof(*u));
        u->sched = s;
        u->uid = uid;
        ps_str_init(&text, name, sizeof(name));
        ps_str_addf(&text, "%u", uid);
        ps_account_init(&u->account, PS_ACCOUNT_USER, name,
                        &s->opt.limits[PS_ACCOUNT_USER]);
        ps_account_add_parent(&u->account, &s->account);
        ps_map_put(s->users, uid, u);
    }
    u->job_count++;
    return u;
}

void ps_sched_account_open_job(struct ps_sched *s, struct ps_sched_job *j)
{
    j->user = obtain_user(s, j->uid);
    ps_account_init(&j->account, PS_ACCOUNT_JOB, j->name,
                    &s->opt.limits[PS_ACCOUNT_JOB]);
    ps_account_add_parent(&j->account, &j->user->account);
}

void ps_sched_account_close_job(struct ps_sched_job *j)
{
    struct ps_sched_user *u = j->user;

    for (unsigned i = 0; i < PS_COST_LOG_LINES; i++) {
        ps_account_refund(&j->account, (enum ps_cost)i,
                          j->account.cost[i].used);
    }
    ps_account_fini(&j->account);
    if (--u->job_count == 0) {
        ps_map_remove(u->sched->users, u->uid);
        ps_account_fini(&u->account);
        ps_free(u);
    }
}

/* Bytes of the table of a key with `parts` partitions. */
static uint64_t key_table_bytes(const struct ps_sched_job *j, size_t name,
                                uint32_t parts)
{
    return sizeof(struct ps_sched_key) + name + 1 + j->slot_count / 8u +
           (uint64_t)parts * sizeof(struct ps_place_part);
}

int ps_sched_account_charge_key(struct ps_sched_job *j, const char *name,
                                uint32_t parts, struct ps_refusal *ret_refusal)
{
    struct ps_account *a = &j->account;
    int rc = ps_account_charge(a, PS_COST_KEYS, 1, ret_refusal);

    if (rc != 0) {
        return rc;
    }
    rc = ps_account_charge(a, PS_COST_PARTITIONS, parts, ret_refusal);
    if (rc == 0) {
        rc = ps_account_charge(a, PS_COST_MEMORY,
                               key_table_bytes(j, strlen(name), parts),
                               ret_refusal);
        if (rc == 0) {
            return 0;
        }
        ps_account_refund(a, PS_COST_PARTITIONS, parts);
    }
    ps_account_refund(a, PS_COST_KEYS, 1);
    return rc;
}

void ps_sched_account_refund_key(struct ps_sched_job *j, const char *name,
                                 uint32_t parts)
{
    ps_account_refund(&j->account, PS_COST_KEYS, 1);
    ps_account_refund(&j->account, PS_COST_PARTITIONS, parts);
    ps_account_refund(&j->account, PS_COST_MEMORY,
                      key_table_bytes(j, strlen(name), parts));
}
