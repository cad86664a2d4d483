/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the objects that a step has changed (store.h), at its end. */
#include "core/sched/store.h"

#include "base/alloc.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"

static void put_meta(struct ps_sched *s)
{
    ps_sched_store_put(
        s, (struct ps_sched_row_key){PS_SCHED_ROW_META, 0, 0},
        &(struct ps_msg){.code = PS_MSG_ROW_META,
                         .row_meta = {.layout = PS_SCHED_STORE_LAYOUT,
                                      .store = s->store.id,
                                      .epoch = s->epoch,
                                      .cluster = s->opt.cluster}});
    s->store.saved_epoch = s->epoch;
    s->store.has_saved_meta = true;
}

static void put_member(struct ps_sched *s, const struct ps_member *m)
{
    const uint32_t count = m->replaced_count < PS_MEMBER_REPLACED_MAX
                               ? m->replaced_count
                               : PS_MEMBER_REPLACED_MAX;

    ps_sched_store_put(
        s, (struct ps_sched_row_key){PS_SCHED_ROW_MEMBER, m->node, 0},
        &(struct ps_msg){
            .code = PS_MSG_ROW_MEMBER,
            .row_member = {.node = m->node,
                           .role = m->role,
                           .name = m->name,
                           .instance = m->instance,
                           .incarnation = m->incarnation,
                           .replaced = m->replaced,
                           .replaced_count = count,
                           .gone = m->state == PS_NODE_STATE_GONE}});
    ps_sched_store_put(
        s, (struct ps_sched_row_key){PS_SCHED_ROW_HELLO, m->node, 0}, m->hello);
}

static void put_key(struct ps_sched *s, const struct ps_sched_job *j,
                    const struct ps_sched_key *k)
{
    struct ps_slice table = {.buf = ps_buf_new((size_t)k->part_count *
                                               PS_FIXED_PLACEMENT_PART_BYTES)};
    const struct ps_msg msg = {.code = PS_MSG_ROW_KEY,
                               .row_key = {.name = k->name,
                                           .kind = k->kind,
                                           .dtype = k->dtype,
                                           .count = k->count,
                                           .row_width = k->row_width,
                                           .rank = k->declared_by,
                                           .is_reassigned = k->is_reassigned,
                                           .norms = k->norms_before}};

    table.len = table.buf->size;
    for (uint32_t i = 0; i < k->part_count; i++) {
        ps_fixed_put_placement_part(
            table.buf->data + (size_t)i * PS_FIXED_PLACEMENT_PART_BYTES,
            &(struct ps_fixed_placement_part){.node = k->parts[i].node,
                                              .count = k->parts[i].count});
    }
    ps_sched_store_add(
        s, (struct ps_sched_row_key){PS_SCHED_ROW_KEY, j->gen, k->number},
        ps_packet_new(&msg, &table, 1));
    ps_buf_unref(table.buf);
}

static void put_ranks(struct ps_sched *s, struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->workers.count; i++) {
        struct ps_sched_worker *w = &j->workers.list[i];

        if (!w->unsaved) {
            continue;
        }
        w->unsaved = false;
        ps_sched_store_put(
            s, (struct ps_sched_row_key){PS_SCHED_ROW_RANK, j->gen, i},
            &(struct ps_msg){
                .code = PS_MSG_ROW_RANK,
                .row_rank = {.slot = w->slot,
                             .local_rank = w->local_rank,
                             .state = w->state,
                             .incarnation = w->incarnation,
                             .worker = w->worker_id,
                             .agent_incarnation = w->agent_incarnation,
                             .agent_instance = w->agent_instance,
                             .token = w->token,
                             .rounds_unknown = w->rounds_unknown,
                             .host = w->host}});
    }
}

static void put_row_job(struct ps_sched_step *st, const struct ps_sched_job *j)
{
    const struct ps_sched_job_servers *on = &j->servers;
    const uint64_t wall = ps_facts_wall_ns(&st->s->opt.facts,
                                           j->observed.created_at);
    struct ps_rec_awaited_server *awaited = ps_alloc((on->count + 1u) *
                                                     sizeof(*awaited));
    uint32_t awaited_count = 0;

    for (uint32_t i = 0; i < on->count; i++) {
        if (on->list[i].return_by != PS_TIME_NEVER) {
            awaited[awaited_count++] = (struct ps_rec_awaited_server){
                .node = on->list[i].node, .why = on->list[i].lost_why};
        }
    }
    ps_sched_store_put(
        st->s, (struct ps_sched_row_key){PS_SCHED_ROW_JOB, j->gen, 0},
        &(struct ps_msg){.code = PS_MSG_ROW_JOB,
                         .row_job = {.begun_ns = wall,
                                     .agents = j->agents,
                                     .agents_count = j->agent_count,
                                     .awaited = awaited,
                                     .awaited_count = awaited_count,
                                     .removed = on->removed,
                                     .removed_count = on->removed_count}});
    ps_free(awaited);
}

static void put_job(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct ps_sched *s = st->s;
    struct ps_msg open = {.code = PS_MSG_JOB_OPEN, .job_open = j->opt};

    open.job_open.name = j->name;
    open.job_open.uid = j->uid;
    ps_sched_store_put(
        s, (struct ps_sched_row_key){PS_SCHED_ROW_OPEN, j->gen, 0}, &open);
    ps_sched_store_add(s,
                       (struct ps_sched_row_key){PS_SCHED_ROW_STATE, j->gen, 0},
                       ps_sched_job_state(j));
    put_row_job(st, j);
    if (j->optimizer.declared.message != NULL) {
        ps_sched_store_put(
            s, (struct ps_sched_row_key){PS_SCHED_ROW_OPTIMIZER, j->gen, 0},
            j->optimizer.declared.message);
    }
    if (j->compression.message != NULL) {
        ps_sched_store_put(
            s, (struct ps_sched_row_key){PS_SCHED_ROW_COMPRESSION, j->gen, 0},
            j->compression.message);
    }
    put_ranks(s, j);
}

/* ------------------------------------------------------------------- flush */

void ps_sched_store_flush(struct ps_sched_step *st, uint32_t first)
{
    struct ps_sched *s = st->s;
    struct ps_sched_store *t = &s->store;
    struct ps_member *m;
    struct ps_sched_job *j;
    struct ps_sched_key *k;

    if (t->id == 0) {
        return;
    }
    while ((m = PS_LIST_POP(struct ps_member, unsaved, &t->members)) != NULL) {
        put_member(s, m);
    }
    while ((j = PS_LIST_POP(struct ps_sched_job, store.unsaved, &t->jobs)) !=
           NULL) {
        if (j->store.is_changed) {
            j->store.is_changed = false;
            put_job(st, j);
        }
        while ((k = PS_LIST_POP(struct ps_sched_key, unsaved,
                                &j->store.keys)) != NULL) {
            put_key(s, j, k);
        }
    }
    if (!t->has_saved_meta || t->saved_epoch != s->epoch) {
        put_meta(s);
    }
    if (t->count > 0) {
        ps_effects_store(st->fx, first, t->rows, t->count);
        t->rows = NULL;
        t->count = 0;
        t->capacity = 0;
    }
}
