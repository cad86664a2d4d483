/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that a step has changed, and rows that it has removed (store.h). The
 * functions that change an object name it here; save.c makes its rows, from its
 * state at the end of the step. */
#include "core/sched/store.h"

#include "base/alloc.h"
#include "core/sched/inner.h"

static const uint8_t codes[] = {
    [PS_SCHED_ROW_META] = PS_MSG_ROW_META,
    [PS_SCHED_ROW_MEMBER] = PS_MSG_ROW_MEMBER,
    [PS_SCHED_ROW_HELLO] = PS_MSG_HELLO,
    [PS_SCHED_ROW_OPEN] = PS_MSG_JOB_OPEN,
    [PS_SCHED_ROW_STATE] = PS_MSG_JOB_STATE,
    [PS_SCHED_ROW_JOB] = PS_MSG_ROW_JOB,
    [PS_SCHED_ROW_OPTIMIZER] = PS_MSG_OPTIMIZER_SET,
    [PS_SCHED_ROW_COMPRESSION] = PS_MSG_COMPRESSION_SET,
    [PS_SCHED_ROW_RANK] = PS_MSG_ROW_RANK,
    [PS_SCHED_ROW_KEY] = PS_MSG_ROW_KEY,
    [PS_SCHED_ROW_ENDED] = PS_MSG_JOB_ROW,
};

unsigned ps_sched_row_code(uint8_t kind)
{
    return kind < sizeof(codes) / sizeof(codes[0]) ? codes[kind] : 0;
}

void ps_sched_store_init(struct ps_sched *s)
{
    ps_list_init(&s->store.members);
    ps_list_init(&s->store.jobs);
}

static void free_rows(struct ps_sched_store *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        ps_packet_unref(t->rows[i].value);
    }
    ps_free(t->rows);
    t->rows = NULL;
    t->count = 0;
    t->capacity = 0;
}

void ps_sched_store_fini(struct ps_sched *s)
{
    free_rows(&s->store);
}

void ps_sched_store_set_room(struct ps_sched *s, ps_sched_has_room *has_room,
                             void *arg)
{
    s->store.has_room = has_room;
    s->store.room_arg = arg;
}

bool ps_sched_store_has_room(const struct ps_sched *s, struct ps_str *why)
{
    return s->store.has_room == NULL ||
           s->store.has_room(s->store.room_arg, why);
}

/* ------------------------------------------------------------------- marks */

static bool is_stored(const struct ps_sched *s)
{
    return s->store.id != 0;
}

/* A job is stored from its start on: before that its agents offer it again. */
static bool is_job_stored(const struct ps_sched *s,
                          const struct ps_sched_job *j)
{
    return is_stored(s) && ps_sched_job_has_started(j);
}

void ps_sched_store_member(struct ps_sched *s, struct ps_member *m)
{
    if (is_stored(s) && !ps_list_linked(&m->unsaved)) {
        ps_list_push_back(&s->store.members, &m->unsaved);
    }
}

static void link_job(struct ps_sched *s, struct ps_sched_job *j)
{
    if (!ps_list_linked(&j->store.unsaved)) {
        ps_list_push_back(&s->store.jobs, &j->store.unsaved);
    }
}

void ps_sched_store_job(struct ps_sched *s, struct ps_sched_job *j)
{
    if (is_job_stored(s, j)) {
        link_job(s, j);
        j->store.is_changed = true;
    }
}

void ps_sched_store_key(struct ps_sched *s, struct ps_sched_job *j,
                        struct ps_sched_key *k)
{
    if (!is_job_stored(s, j)) {
        return;
    }
    link_job(s, j);
    if (!ps_list_linked(&k->unsaved)) {
        ps_list_push_back(&j->store.keys, &k->unsaved);
    }
}

/* -------------------------------------------------------------------- rows */

void ps_sched_store_add(struct ps_sched *s, struct ps_sched_row_key key,
                        struct ps_packet *value)
{
    struct ps_sched_store *t = &s->store;

    if (t->count == t->capacity) {
        t->capacity = t->capacity * 2 + 16;
        t->rows = ps_realloc(t->rows, t->capacity * sizeof(*t->rows));
    }
    t->rows[t->count++] = (struct ps_store_row){
        .kind = key.kind, .a = key.a, .b = key.b, .value = value};
}

void ps_sched_store_put(struct ps_sched *s, struct ps_sched_row_key key,
                        const struct ps_msg *msg)
{
    ps_sched_store_add(s, key, ps_packet_new(msg, NULL, 0));
}

/* ---------------------------------------------------------------- removals */

void ps_sched_store_remove_member(struct ps_sched *s, struct ps_member *m)
{
    ps_list_unlink(&m->unsaved);
    if (is_stored(s)) {
        ps_sched_store_add(
            s, (struct ps_sched_row_key){PS_SCHED_ROW_MEMBER, m->node, 0},
            NULL);
        ps_sched_store_add(
            s, (struct ps_sched_row_key){PS_SCHED_ROW_HELLO, m->node, 0}, NULL);
    }
}

void ps_sched_store_remove_job(struct ps_sched *s, struct ps_sched_job *j)
{
    ps_list_unlink(&j->store.unsaved);
    for (uint8_t kind = PS_SCHED_ROW_OPEN;
         is_job_stored(s, j) && kind <= PS_SCHED_ROW_KEY; kind++) {
        ps_sched_store_add(
            s, (struct ps_sched_row_key){kind, j->gen, PS_STORE_ALL}, NULL);
    }
}

void ps_sched_store_remove_key(struct ps_sched *s, struct ps_sched_job *j,
                               struct ps_sched_key *k)
{
    ps_list_unlink(&k->unsaved);
    if (is_job_stored(s, j)) {
        /* The row stays, so that the number is not used again. */
        ps_sched_store_put(
            s, (struct ps_sched_row_key){PS_SCHED_ROW_KEY, j->gen, k->number},
            &(struct ps_msg){.code = PS_MSG_ROW_KEY,
                             .row_key = {.name = k->name,
                                         .kind = k->kind,
                                         .dtype = k->dtype}});
    }
}

void ps_sched_store_ended(struct ps_sched_step *st)
{
    const struct ps_sched_history *h = &st->s->history;
    const uint64_t number = h->ended_count - 1;
    const uint64_t wall = (st->s->opt.wall_ns + (st->now - st->s->started_at)) /
                          PS_SECONDS(1);

    if (!is_stored(st->s)) {
        return;
    }
    ps_sched_store_put(
        st->s, (struct ps_sched_row_key){PS_SCHED_ROW_ENDED, number, wall},
        h->jobs[number % PS_SCHED_HISTORY_MAX].row);
    if (number >= PS_SCHED_HISTORY_MAX) {
        ps_sched_store_add(st->s,
                           (struct ps_sched_row_key){
                               PS_SCHED_ROW_ENDED,
                               number - PS_SCHED_HISTORY_MAX, PS_STORE_ALL},
                           NULL);
    }
}
