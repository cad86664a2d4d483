/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's ledger: costs of sessions, jobs and users on this node.
 *
 *     session ──▶ job ──▶ user ──▶ daemon
 *
 * A session is charged to its user from the first byte, and to its job once
 * its rank is assigned. A job belongs to one user, as the scheduler ensures. A
 * resource that outlives its session or job (a region that an operation still
 * reads, results that a frame still carries) is charged to the user until it
 * is released. */
#include "core/agent/budget.h"

#include "base/alloc.h"
#include "base/str.h"
#include "core/agent/inner.h"
#include "core/agent/part.h"

#include <assert.h>

/* ------------------------------------------------------------------- users */

static const struct ps_account_limits *
limits_for_kind(const struct ps_agent *a, enum ps_account_kind kind)
{
    return &a->opt.limits[kind];
}

void ps_agent_budget_init(struct ps_agent *a)
{
    a->users = ps_map_new();
    ps_account_init(&a->account, PS_ACCOUNT_DAEMON, a->opt.name,
                    limits_for_kind(a, PS_ACCOUNT_DAEMON));
}

void ps_agent_budget_fini(struct ps_agent *a)
{
    assert(ps_map_count(a->users) == 0);
    ps_map_free(a->users);
    ps_account_fini(&a->account);
}

struct ps_agent_user *ps_agent_user_get(struct ps_agent *a, uint32_t uid)
{
    struct ps_agent_user *u = ps_map_get(a->users, uid);
    char name[16];
    struct ps_str s;

    if (u == NULL) {
        u = ps_calloc(1, sizeof(*u));
        u->agent = a;
        u->uid = uid;
        ps_str_init(&s, name, sizeof(name));
        ps_str_addf(&s, "%u", uid);
        ps_account_init(&u->account, PS_ACCOUNT_USER, name,
                        limits_for_kind(a, PS_ACCOUNT_USER));
        ps_account_add_parent(&u->account, &a->account);
        ps_map_put(a->users, uid, u);
    }
    u->refs++;
    return u;
}

void ps_agent_user_put(struct ps_agent_user *u)
{
    assert(u->refs > 0);
    if (--u->refs == 0) {
        ps_map_remove(u->agent->users, u->uid);
        ps_account_fini(&u->account);
        ps_free(u);
    }
}

/* ---------------------------------------------------------- sessions, jobs */

int ps_agent_budget_open_session(struct ps_agent *a, struct ps_agent_session *s,
                                 uint32_t pid, struct ps_refusal *ret_refusal)
{
    char name[48];
    struct ps_str t;
    int rc;

    ps_str_init(&t, name, sizeof(name));
    ps_str_addf(&t, "%llu (pid %u)", (unsigned long long)s->worker, pid);
    ps_list_init(&s->mappings);
    ps_list_init(&s->stall_queries);
    s->user = ps_agent_user_get(a, s->uid);
    ps_account_init(&s->account, PS_ACCOUNT_SESSION, name,
                    limits_for_kind(a, PS_ACCOUNT_SESSION));
    ps_account_add_parent(&s->account, &s->user->account);
    rc = ps_account_charge(&s->account, PS_COST_SESSIONS, 1, ret_refusal);
    if (rc != 0) {
        ps_account_fini(&s->account);
        ps_agent_user_put(s->user);
    }
    return rc;
}

void ps_agent_budget_close_session(struct ps_agent_session *s)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(&s->mappings)) != NULL) {
        struct ps_agent_mapping *h = PS_CONTAINER(n, struct ps_agent_mapping,
                                                  node);

        ps_account_refund(&s->account, PS_COST_REGIONS, 1);
        ps_account_refund(&s->account, PS_COST_MAPPED, h->buf->size);
        ps_account_charge_unchecked(&s->user->account, PS_COST_REGIONS, 1);
        ps_account_charge_unchecked(&s->user->account, PS_COST_MAPPED,
                                    h->buf->size);
        h->session = NULL;
    }
    ps_account_refund(&s->account, PS_COST_SESSIONS, 1);
    ps_account_fini(&s->account);
    ps_agent_user_put(s->user);
}

void ps_agent_budget_assign_job(struct ps_agent_session *s,
                                struct ps_agent_job *j)
{
    if (j->user == NULL) {
        j->user = ps_agent_user_get(s->user->agent, s->uid);
        ps_account_init(&j->account, PS_ACCOUNT_JOB, j->name,
                        limits_for_kind(s->user->agent, PS_ACCOUNT_JOB));
        ps_account_add_parent(&j->account, &j->user->account);
    }
    ps_account_add_parent(&s->account, &j->account);
}

void ps_agent_budget_close_job(struct ps_agent_job *j)
{
    if (j->user != NULL) {
        ps_account_fini(&j->account);
        ps_agent_user_put(j->user);
        j->user = NULL;
    }
}

/* -------------------------------------------------------------------- keys */

/* Bytes of state that a key holds for each local rank. */
#define KEY_RANK_BYTES (2 * sizeof(uint64_t) + sizeof(struct ps_agent_op *))

int ps_agent_budget_charge_key(struct ps_agent_job *j,
                               const struct ps_agent_key_kind *kind,
                               const struct ps_msg_l_key *m,
                               uint64_t *ret_charged,
                               struct ps_refusal *ret_refusal)
{
    uint64_t bytes = sizeof(struct ps_agent_key) +
                     m->shape_count * sizeof(uint64_t) +
                     j->local_rank_count * KEY_RANK_BYTES;
    int rc = ps_account_charge(&j->account, PS_COST_KEYS, 1, ret_refusal);

    if (rc != 0) {
        return rc;
    }
    if (kind->has_results) {
        bytes += ps_agent_key_result_bytes(m->count * ps_dtype_size(m->dtype));
    }
    rc = ps_account_charge(&j->account, PS_COST_MEMORY, bytes, ret_refusal);
    if (rc != 0) {
        ps_account_refund(&j->account, PS_COST_KEYS, 1);
        return rc;
    }
    *ret_charged = bytes;
    return 0;
}

int ps_agent_budget_charge_parts(struct ps_agent_key *k, uint32_t count,
                                 struct ps_refusal *ret_refusal)
{
    struct ps_account *a = &k->job->account;
    const uint64_t bytes = count * sizeof(struct ps_agent_part);
    int rc = ps_account_charge(a, PS_COST_PARTITIONS, count, ret_refusal);

    if (rc != 0) {
        return rc;
    }
    rc = ps_account_charge(a, PS_COST_MEMORY, bytes, ret_refusal);
    if (rc != 0) {
        ps_account_refund(a, PS_COST_PARTITIONS, count);
        return rc;
    }
    k->charge.bytes += bytes;
    k->charge.parts = count;
    return 0;
}

void ps_agent_budget_refund_key(struct ps_agent_key *k)
{
    ps_account_refund(&k->job->account, PS_COST_KEYS, 1);
    ps_account_refund(&k->job->account, PS_COST_PARTITIONS, k->charge.parts);
    ps_account_refund(&k->job->account, PS_COST_MEMORY, k->charge.bytes);
}

void ps_agent_budget_charge_pool(struct ps_agent_job *j,
                                 struct ps_agent_draining_pool *g)
{
    *g = (struct ps_agent_draining_pool){.pool = j->result_pool};
    if (j->user != NULL) {
        g->user = ps_agent_user_get(j->user->agent, j->user->uid);
        g->charged_bytes = ps_pool_used(j->result_pool);
        ps_account_charge_unchecked(&g->user->account, PS_COST_MEMORY,
                                    g->charged_bytes);
    }
}

void ps_agent_budget_refund_pool(struct ps_agent_draining_pool *g)
{
    if (g->user != NULL) {
        ps_account_refund(&g->user->account, PS_COST_MEMORY, g->charged_bytes);
        ps_agent_user_put(g->user);
        g->user = NULL;
    }
}

/* ----------------------------------------------------------------- regions */

static void release_mapping(void *ctx)
{
    struct ps_agent_mapping *h = ctx;
    struct ps_account *account = h->session != NULL ? &h->session->account
                                                    : &h->user->account;

    ps_account_refund(account, PS_COST_REGIONS, 1);
    ps_account_refund(account, PS_COST_MAPPED, h->buf->size);
    if (h->session != NULL) {
        ps_list_remove(&h->node);
    }
    ps_agent_user_put(h->user);
    ps_buf_unref(h->buf);
    ps_free(h);
}

int ps_agent_budget_charge_mapping(struct ps_agent_session *s,
                                   struct ps_buf *buf, struct ps_buf **ret_buf,
                                   struct ps_refusal *ret_refusal)
{
    struct ps_agent_mapping *h;
    int rc = ps_account_charge(&s->account, PS_COST_REGIONS, 1, ret_refusal);

    if (rc != 0) {
        return rc;
    }
    rc = ps_account_charge(&s->account, PS_COST_MAPPED, buf->size, ret_refusal);
    if (rc != 0) {
        ps_account_refund(&s->account, PS_COST_REGIONS, 1);
        return rc;
    }
    h = ps_calloc(1, sizeof(*h));
    h->session = s;
    h->user = ps_agent_user_get(s->user->agent, s->uid);
    h->buf = ps_buf_ref(buf);
    ps_list_push_back(&s->mappings, &h->node);
    *ret_buf = ps_buf_wrap(buf->data, buf->size, release_mapping, h);
    (*ret_buf)->tag = buf->tag;
    (*ret_buf)->offset = buf->offset;
    (*ret_buf)->device = buf->device;
    return 0;
}
