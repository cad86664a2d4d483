/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: declaration (one key_open per name), shared memory for the two newest
 * versions of the result, and end. */
#include "core/agent/key.h"

#include "base/alloc.h"
#include "base/name_hash.h"
#include "base/num.h"
#include "base/state_table.h"
#include "base/str.h"
#include "core/agent/conflict.h"
#include "core/agent/encode.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/place.h"
#include "core/agent/residual_log.h"
#include "core/agent/round.h"
#include "core/agent/server.h"
#include "core/agent/session.h"

#include <string.h>

static const uint32_t successors[] = {
    /* OPEN: an answer to a request that was never sent is taken as well. */
    [PS_AGENT_KEY_WAITING] = PS_STATE_BIT(PS_AGENT_KEY_REQUESTED) |
                             PS_STATE_BIT(PS_AGENT_KEY_OPEN),
    [PS_AGENT_KEY_REQUESTED] = PS_STATE_BIT(PS_AGENT_KEY_OPEN),
    [PS_AGENT_KEY_OPEN] = 0,
};

/* A key that a worker has declared, at its agent. */
static const struct ps_state_table key_states = {
    .name = "declared key",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

static void key_set_state(struct ps_agent_key *k, enum ps_agent_key_state to)
{
    ps_state_change(&key_states, &k->opening.state, (uint8_t)to);
}

/* Key of this kind and name; NULL: none. Keys with equal name hashes form a
 * list. */
static struct ps_agent_key *find_key_by_name(const struct ps_agent_job *j,
                                             enum ps_key_kind kind,
                                             const char *name)
{
    struct ps_agent_key *k = ps_map_get(
        j->keys_by_name,
        ps_name_hash_slot(j->name_hash_seed, ps_name_hash(kind, name), 0));

    while (k != NULL && (k->key_kind != kind || strcmp(k->name, name) != 0)) {
        k = k->same_name_hash;
    }
    return k;
}

static void add_name_index(struct ps_agent_job *j, struct ps_agent_key *k)
{
    uint64_t at = ps_name_hash_slot(j->name_hash_seed, k->name_hash, 0);

    k->same_name_hash = ps_map_remove(j->keys_by_name, at);
    ps_map_put(j->keys_by_name, at, k);
}

static void remove_name_index(struct ps_agent_job *j,
                              const struct ps_agent_key *k)
{
    uint64_t at = ps_name_hash_slot(j->name_hash_seed, k->name_hash, 0);
    struct ps_agent_key *first = ps_map_remove(j->keys_by_name, at);
    struct ps_agent_key **link = &first;

    while (*link != k) {
        link = &(*link)->same_name_hash;
    }
    *link = k->same_name_hash;
    if (first != NULL) {
        ps_map_put(j->keys_by_name, at, first);
    }
}

static void send_key_info(struct ps_agent_step *st,
                          const struct ps_agent_key_waiter *waiter,
                          struct ps_agent_key *k, int error, const char *text)
{
    struct ps_agent_session *s = waiter->session;
    struct ps_msg m = {.code = PS_MSG_L_KEY_INFO,
                       .l_key_info = {.request = waiter->request,
                                      .reattached = waiter->reattached,
                                      .error = error,
                                      .text = text}};

    if (error == 0) {
        m.l_key_info.key = k->number;
        m.l_key_info.pushed_round = k->round.pushed_round[s->local_rank];
        ps_agent_residual_announce(st, s);
    }
    if (error == 0 && k->results != NULL) {
        m.l_key_info.arena = k->results->tag;
        m.l_key_info.even_offset = k->results->offset + k->result_offset[0];
        m.l_key_info.odd_offset = k->results->offset + k->result_offset[1];
        if (ps_map_get(s->announced_arenas, k->results->tag) == NULL) {
            ps_map_put(s->announced_arenas, k->results->tag, s);
            ps_effects_send_msg(
                st->fx, s->conn,
                &(struct ps_msg){.code = PS_MSG_L_ARENA,
                                 .l_arena = {.arena = k->results->tag}});
        }
    }
    ps_effects_send_msg(st->fx, s->conn, &m);
}

static uint32_t rank_of(const struct ps_agent_job *j, uint32_t local_rank)
{
    return j->local_ranks[local_rank].rank;
}

void ps_agent_key_send_open(struct ps_agent_step *st, struct ps_agent_key *k)
{
    ps_agent_uplink_send_msg(
        st,
        &(struct ps_msg){.code = PS_MSG_KEY_OPEN,
                         .key_open = {.gen = k->job->gen,
                                      .request = k->opening.request,
                                      .kind = k->key_kind,
                                      .name = k->name,
                                      .dtype = k->dtype,
                                      .count = k->count,
                                      .shape = k->opening.shape,
                                      .shape_count = k->opening.shape_count,
                                      .mxnet_key = k->opening.mxnet_key,
                                      .row_width = k->row_width,
                                      .rank = rank_of(k->job, k->declared_by),
                                      .if_absent = k->opening.if_absent}});
}

/* Collective keys have rounds in any mode. */
static const struct ps_agent_key_kind *
kind_of_declaration(const struct ps_agent_job *j, const struct ps_msg_l_key *m)
{
    if (m->row_width != 0) {
        return &ps_agent_key_rows;
    }
    if (m->kind == PS_KEY_KIND_COLLECTIVE) {
        return &ps_agent_key_collective;
    }
    return j->config.mode == PS_MODE_SYNC ? &ps_agent_key_sync
                                          : &ps_agent_key_async;
}

static struct ps_agent_key *key_new(struct ps_agent_step *st,
                                    const struct ps_agent_session *s,
                                    const struct ps_agent_key_kind *kind,
                                    const struct ps_msg_l_key *m)
{
    struct ps_agent_key *k = ps_calloc(1, sizeof(*k));
    struct ps_agent_job *j = s->job;

    k->job = j;
    k->declared_by = s->local_rank;
    k->key_kind = m->kind;
    ps_str_copy(k->name, sizeof(k->name), m->name);
    k->name_hash = ps_name_hash(k->key_kind, k->name);
    k->kind = kind;
    k->dtype = m->dtype;
    k->count = m->count;
    k->row_width = m->row_width;
    k->opening.if_absent = m->if_absent;
    k->opening.mxnet_key = m->mxnet_key;
    k->opening.shape_count = m->shape_count;
    k->opening.shape = ps_calloc(m->shape_count + 1, sizeof(*k->opening.shape));
    if (m->shape_count > 0) {
        memcpy(k->opening.shape, m->shape,
               m->shape_count * sizeof(*k->opening.shape));
    }
    k->opening.request = ++st->a->last.request;
    ps_list_init(&k->opening.waiters);
    ps_list_init(&k->round.deferred_pushes);
    ps_list_init(&k->pulls);
    ps_list_init(&k->init.ops);
    ps_list_init(&k->row_pulls);
    ps_list_init(&k->state_transfers);
    k->round.pushed_round = ps_calloc(j->local_rank_count,
                                      sizeof(*k->round.pushed_round));
    k->round.contribution = ps_calloc(j->local_rank_count,
                                      sizeof(struct ps_agent_op *));
    ps_list_push_back(&j->openings.keys, &k->opening.node);
    if (j->openings.next_unsent == NULL) {
        j->openings.next_unsent = &k->opening.node;
    }
    add_name_index(j, k);
    j->key_count++;
    return k;
}

/* Returns 0 when a key of this size can exist, else a PS_E_* and the reason. */
static int check_key_size(const struct ps_agent_key_kind *kind,
                          const struct ps_msg_l_key *m, struct ps_str *why)
{
    uint64_t bytes;

    if (*m->name == '\0' || m->count == 0 || ps_dtype_size(m->dtype) == 0) {
        ps_str_add(why, "a key needs a name, a type of elements that exists, "
                        "and at least one element");
        return PS_E_INVAL;
    }
    if (!ps_mul_u64(m->count, ps_dtype_size(m->dtype), &bytes) ||
        bytes > PS_KEY_BYTES_MAX) {
        ps_str_addf(why,
                    "key '%s' of %llu elements of %s is larger than %llu "
                    "bytes: split it",
                    m->name, (unsigned long long)m->count,
                    ps_dtype_name(m->dtype),
                    (unsigned long long)PS_KEY_BYTES_MAX);
        return PS_E_TOOBIG;
    }
    return kind->check_shape == NULL ? 0 : kind->check_shape(m, why);
}

/* Returns 0 when the session may have one more operation, else PS_E_FULL and
 * the reason. A declaration counts as an operation until it is answered. */
static int check_op_quota(struct ps_agent_session *s, struct ps_str *why)
{
    struct ps_refusal refusal;

    if (ps_account_check(&s->account, PS_COST_OPERATIONS, 1, &refusal) == 0) {
        return 0;
    }
    ps_refusal_text(&refusal, why);
    return PS_E_FULL;
}

static void add_key_waiter(struct ps_agent_key *k,
                           const struct ps_agent_key_waiter *of)
{
    struct ps_agent_key_waiter *waiter = ps_calloc(1, sizeof(*waiter));

    *waiter = *of;
    ps_list_push_back(&k->opening.waiters, &waiter->node);
    ps_account_charge_unchecked(&of->session->account, PS_COST_OPERATIONS, 1);
}

void ps_agent_key_waiter_free(struct ps_agent_key_waiter *waiter)
{
    ps_account_refund(&waiter->session->account, PS_COST_OPERATIONS, 1);
    ps_free(waiter);
}

static void append_key_name(struct ps_str *t, const char *name)
{
    ps_str_add(t, "key '");
    ps_str_add_escaped(t, name, strlen(name), PS_KEY_NAME_MAX);
    ps_str_add(t, "'");
}

/* Writes the reason of a refused declaration to `t` and logs it. */
static void describe_key_refusal(struct ps_agent_step *st,
                                 struct ps_agent_session *s, struct ps_str *t,
                                 const struct ps_msg_l_key *m,
                                 const struct ps_refusal *why)
{
    const uint64_t bytes = m->count * ps_dtype_size(m->dtype);

    append_key_name(t, m->name);
    ps_str_add(t, ": ");
    if (why->cost == PS_COST_MEMORY) {
        ps_str_addf(t, "no memory for two results of %llu bytes on this node: ",
                    (unsigned long long)bytes);
    }
    ps_refusal_text(why, t);
    ps_effects_log_for(st->fx, &s->account, PS_LOG_WARNING, "%s", t->data);
}

/* Removes the key from the opening list, when it is opened or freed. */
static void remove_from_opening(struct ps_agent_key *k)
{
    struct ps_agent_job *j = k->job;

    if (j->openings.next_unsent == &k->opening.node) {
        j->openings.next_unsent = ps_list_next(&j->openings.keys,
                                               &k->opening.node);
    }
    if (k->opening.state == PS_AGENT_KEY_REQUESTED) {
        j->openings.in_flight--;
    }
    ps_list_remove(&k->opening.node);
}

/* Sends key_open for waiting keys until PS_KEY_OPENS_MAX are in flight. A key
 * without waiters is freed instead. */
static void send_key_opens(struct ps_agent_step *st, struct ps_agent_job *j)
{
    while (j->openings.in_flight < PS_KEY_OPENS_MAX &&
           j->openings.next_unsent != NULL) {
        struct ps_agent_key *k = PS_CONTAINER(
            j->openings.next_unsent, struct ps_agent_key, opening.node);

        if (ps_list_empty(&k->opening.waiters)) {
            ps_agent_key_free(st->a, k);
            continue;
        }
        j->openings.next_unsent = ps_list_next(&j->openings.keys,
                                               j->openings.next_unsent);
        key_set_state(k, PS_AGENT_KEY_REQUESTED);
        j->openings.in_flight++;
        ps_agent_key_send_open(st, k);
    }
}

/* Appends "float32 with 4 elements for rank 1 on HOST". */
static void append_declaration(struct ps_str *why, uint8_t dtype,
                               uint64_t count, uint32_t row_width,
                               uint32_t rank)
{
    ps_str_addf(why, "%s with %llu elements", ps_dtype_name(dtype),
                (unsigned long long)count);
    if (row_width != 0) {
        ps_str_addf(why, " in rows of %u", row_width);
    }
    ps_str_addf(why, " for rank %u", rank);
}

/* False: another worker declared another key of that name; `why` tells. */
static bool is_same_declaration(const struct ps_agent_session *s,
                                const struct ps_agent_key *k,
                                const struct ps_msg_l_key *m,
                                struct ps_str *why)
{
    if (k->dtype == m->dtype && k->count == m->count &&
        k->row_width == m->row_width) {
        return true;
    }
    append_key_name(why, k->name);
    ps_str_add(why, " is ");
    append_declaration(why, k->dtype, k->count, k->row_width,
                       rank_of(k->job, k->declared_by));
    ps_str_add(why, ", and ");
    append_declaration(why, m->dtype, m->count, m->row_width,
                       rank_of(k->job, s->local_rank));
    ps_str_add(why, ": all ranks must declare the same");
    return false;
}

void ps_agent_key_on_declare(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_msg_l_key *m)
{
    const struct ps_agent_key_waiter waiter = {
        .session = s, .request = m->request, .reattached = m->reattached};
    struct ps_agent_job *j = s->job;
    const struct ps_agent_key_kind *kind = kind_of_declaration(j, m);
    struct ps_agent_key *k;
    int rc;
    struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

    rc = check_op_quota(s, &t);
    if (rc == 0) {
        rc = check_key_size(kind, m, &t);
    }
    if (rc != 0) {
        send_key_info(st, &waiter, NULL, rc, t.data);
        return;
    }
    k = find_key_by_name(j, m->kind, m->name);
    if (k != NULL && !is_same_declaration(s, k, m, &t)) {
        send_key_info(st, &waiter, NULL, PS_E_MISMATCH, t.data);
        if (ps_agent_disagreement_refuse_key(st, s, k, t.data)) {
            ps_agent_round_after_init(st, k);
        }
        return;
    }
    if (k != NULL) {
        ps_agent_disagreement_accept_key(st, s, k);
    }
    if (j->config.mode != PS_MODE_SYNC && m->row_width != 0) {
        send_key_info(
            st, &waiter, NULL, PS_E_UNSUPPORTED,
            "keys of rows have rounds, and an async or ssp job has none: "
            "open the job as dist_sync");
        return;
    }
    if (k != NULL && m->reattached &&
        !ps_agent_reattach_key(st, s, k, m->pushed_round)) {
        return;
    }
    if (k != NULL && ps_agent_key_is_open(k)) {
        send_key_info(st, &waiter, k, 0, "");
        return;
    }
    if (k == NULL) {
        struct ps_refusal why;
        uint64_t charged;

        if (ps_agent_budget_charge_key(j, kind, m, &charged, &why) != 0) {
            describe_key_refusal(st, s, &t, m, &why);
            send_key_info(st, &waiter, NULL,
                          why.cost == PS_COST_MEMORY ? PS_E_NOMEM : PS_E_FULL,
                          t.data);
            return;
        }
        k = key_new(st, s, kind, m);
        k->charge.bytes = charged;
        if (m->reattached &&
            !ps_agent_reattach_key(st, s, k, m->pushed_round)) {
            ps_agent_key_free(st->a, k);
            return;
        }
    } else if (m->if_absent < k->opening.if_absent) {
        /* The most permissive request decides, for all waiters. */
        k->opening.if_absent = m->if_absent;
        k->opening.request = ++st->a->last.request;
        if (k->opening.state == PS_AGENT_KEY_REQUESTED) {
            ps_agent_key_send_open(st, k);
        }
    }
    add_key_waiter(k, &waiter);
    send_key_opens(st, j);
}

/* Rounds that have begun go on, because a rank that was refused may take part in
 * them. */
static void end_inits_of_job(struct ps_agent_step *st,
                             const struct ps_agent_job *j)
{
    PS_MAP_EACH(struct ps_agent_key, k, j->keys)
    {
        if (ps_agent_disagreement_end_inits(st, k)) {
            ps_agent_round_after_init(st, k);
        }
    }
}

void ps_agent_key_on_disagreement(struct ps_agent_step *st,
                                  const struct ps_msg_disagreement *m)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_agent_key *k = NULL;

    if (j == NULL || !j->ranks_assigned) {
        return;
    }
    if (*m->name != '\0') {
        k = find_key_by_name(j, m->kind, m->name);
        if (k == NULL) {
            return; /* Refused, or not declared here. */
        }
    }
    if (!ps_agent_disagreement_on_msg(st, j, k, m)) {
        return;
    }
    if (k == NULL) {
        end_inits_of_job(st, j);
    } else {
        ps_agent_round_after_init(st, k);
    }
}

static void answer_key_waiters(struct ps_agent_step *st, struct ps_agent_key *k,
                               int error, const char *text)
{
    struct ps_agent_key_waiter *waiter;

    while ((waiter = PS_LIST_POP(struct ps_agent_key_waiter, node,
                                 &k->opening.waiters)) != NULL) {
        send_key_info(st, waiter, k, error, text);
        ps_agent_key_waiter_free(waiter);
    }
}

/* ----------------------------------------------------------------- opening */

static int alloc_results(struct ps_agent_key *k)
{
    if (!k->kind->has_results) {
        return 0; /* Values go to the worker's own memory. */
    }
    /* One buffer for both versions, so that they lie in one arena. */
    uint64_t both = ps_agent_key_result_bytes(ps_agent_key_bytes(k));

    k->result_offset[1] = both / 2;
    return ps_pool_get(k->job->result_pool, both, &k->results);
}

/* Builds the partition table and allocates the results. On error the reason is
 * in `why`, and the caller frees the key. */
static int accept_placement(struct ps_agent_key *k,
                            const struct ps_msg_key_opened *m,
                            const struct ps_slice *payload, struct ps_str *why)
{
    const struct ps_agent_key *other = ps_map_get(k->job->keys, m->key);
    struct ps_refusal refusal;
    int rc;

    append_key_name(why, k->name);
    ps_str_add(why, ": ");
    if (other != NULL) {
        ps_str_addf(why, "its number %u is that of ", m->key);
        append_key_name(why, other->name);
        ps_str_add(why, "; psched has an older state.file than this job: start "
                        "the job again");
        return PS_E_PROTO;
    }
    rc = ps_compression_parse(m->compression, m->params, m->params_count,
                              &k->compression, why);
    if (rc != 0) {
        return rc;
    }
    if (!ps_agent_place_covers(k, m, payload)) {
        ps_str_add(why, "the scheduler's table of places does not cover it");
        return PS_E_PROTO;
    }
    rc = ps_agent_budget_charge_parts(k, m->parts, &refusal);
    if (rc != 0) {
        ps_refusal_text(&refusal, why);
        return rc;
    }
    rc = alloc_results(k);
    if (rc == 0) {
        rc = ps_agent_place_build(k, m, payload);
    }
    if (rc != 0) {
        ps_str_addf(why,
                    "no memory for two results of %llu bytes on this node (%s)",
                    (unsigned long long)ps_agent_key_bytes(k), ps_strerror(rc));
    }
    return rc;
}

/* Opens the key, or frees it: its waiters have the reason. */
static void open_key(struct ps_agent_step *st, struct ps_agent_key *k,
                     const struct ps_msg_key_opened *m,
                     const struct ps_slice *payload)
{
    int rc;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    rc = accept_placement(k, m, payload, &why);
    if (rc != 0) {
        ps_effects_log_for(st->fx, &k->job->account, PS_LOG_WARNING, "%s",
                           why.data);
        answer_key_waiters(st, k, rc, why.data);
        /* Tells the scheduler that the key is not open here: it loads no server
         * for this agent, and needs no further placements. */
        ps_agent_uplink_send_msg(
            st, &(struct ps_msg){.code = PS_MSG_KEY_CLOSE,
                                 .key_close = {.gen = k->job->gen,
                                               .key = m->key,
                                               .request = m->request}});
        ps_agent_key_free(st->a, k);
        return;
    }
    remove_from_opening(k);
    key_set_state(k, PS_AGENT_KEY_OPEN);
    k->number = m->key;
    k->placement_epoch = m->epoch;
    k->is_reassigned = m->is_reassigned;
    ps_map_put(k->job->keys, k->number, k);
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].owner_node != 0) {
            ps_agent_send_queue_get(st, k->job, k->parts[i].owner_node);
        }
    }
    ps_agent_reattach_key_opened(st, k);
    if (m->is_reassigned && k->prior_state == NULL) {
        ps_agent_place_report_all(st, k);
    }
    answer_key_waiters(st, k, 0, "");
    ps_agent_place_apply_deferred(st, k);
}

void ps_agent_key_on_opened(struct ps_agent_step *st,
                            const struct ps_msg_key_opened *m,
                            const struct ps_slice *payload)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_agent_key *k;

    if (j == NULL) {
        return;
    }
    if (m->request == 0) {
        k = ps_map_get(j->keys, m->key);
        if (k != NULL) {
            ps_agent_place_apply(st, k, m, payload);
        } else {
            ps_agent_place_defer(j, m, payload);
        }
        return;
    }
    PS_LIST_EACH(n, &j->openings.keys)
    {
        k = PS_CONTAINER(n, struct ps_agent_key, opening.node);
        if (k->opening.request != m->request) {
            continue;
        }
        if (m->error != 0) {
            answer_key_waiters(st, k, m->error, m->text);
            ps_agent_key_free(st->a, k);
        } else {
            open_key(st, k, m, payload);
        }
        send_key_opens(st, j);
        return;
    }
}

/* ---------------------------------------------------------------------- end */

/* Detaches computations from the key; their results are discarded. */
static void orphan_computations(struct ps_agent *a,
                                const struct ps_agent_key *k)
{
    PS_MAP_EACH(struct ps_agent_computation, run, a->computations)
    {
        if (run->part == NULL || run->part->key != k) {
            continue;
        }
        if (run->send_queue != NULL) {
            ps_agent_computation_leave(run);
        }
        run->part = NULL;
        run->send_queue = NULL;
    }
}

void ps_agent_key_free(struct ps_agent *a, struct ps_agent_key *k)
{
    struct ps_agent_key_waiter *waiter;

    orphan_computations(a, k);
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->state == PS_AGENT_PART_QUEUED) {
            struct ps_agent_send_queue *f = ps_map_get(k->job->send_queues,
                                                       p->owner_node);

            ps_heap_remove(&f->heap, &p->queue_item);
        }
        ps_agent_encode_free(p);
    }
    while ((waiter = PS_LIST_POP(struct ps_agent_key_waiter, node,
                                 &k->opening.waiters)) != NULL) {
        ps_agent_key_waiter_free(waiter);
    }
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (k->round.contribution[i] != NULL) {
            ps_agent_op_free(k->round.contribution[i]);
        }
    }
    ps_agent_op_free_list(&k->round.deferred_pushes);
    ps_agent_op_free_list(&k->pulls);
    ps_agent_op_free_list(&k->init.ops);
    ps_agent_op_free_list(&k->row_pulls);
    ps_agent_op_free_list(&k->state_transfers);
    ps_buf_unref(k->init.array.buf);
    remove_name_index(k->job, k);
    if (ps_agent_key_is_open(k)) {
        ps_map_remove(k->job->keys, k->number);
    } else {
        remove_from_opening(k);
    }
    k->job->key_count--;
    ps_agent_budget_refund_key(k);
    ps_buf_unref(k->results);
    ps_free(k->parts);
    ps_agent_conflict_clear(k);
    ps_agent_disagreement_free(k->disagreement);
    ps_agent_reattach_free(k);
    ps_free(k->round.pushed_round);
    ps_free(k->own);
    ps_free(k->round.contribution);
    ps_free(k->opening.shape);
    ps_free(k);
}
