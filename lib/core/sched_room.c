/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of servers. The need of a key is known when it is declared, so a
 * declaration that does not fit is refused before it costs memory anywhere, and
 * the memory of one job is never another's. Servers are told how much memory
 * each job was admitted with. */
#include "core/sched_inner.h"

#include "base/alloc.h"

/* Needs that change within this time are told together; the first at once. */
#define GATHER PS_MILLIS(2)

static struct ps_member *member_of(const struct ps_sched *s,
                                   const struct ps_job_server *on)
{
    return ps_members_get(&s->members, on->node);
}

/* Books the need of `on` at the server, and has the server told. */
static void settle(struct ps_sched_step *st, struct ps_sched_job *j,
                   struct ps_job_server *on)
{
    /* Servers free what a failed job had when they hear of it. */
    const uint64_t bytes = ps_job_open_for_work(j)
                               ? ps_need_bytes(&on->need, j->slot_count)
                               : 0;
    struct ps_member *m = member_of(st->s, on);

    if (m != NULL) {
        m->reserved += bytes - on->reserved;
    }
    if (bytes != on->reserved) {
        j->room_due = ps_time_min(
            j->room_due,
            j->room_number == 0 ? st->now : ps_time_add(st->now, GATHER));
    }
    on->reserved = bytes;
}

/* True: the job fits with this need on the server. */
static bool fits(const struct ps_sched *s, const struct ps_sched_job *j,
                 const struct ps_job_server *on, const struct ps_need *need,
                 struct ps_str *why)
{
    const struct ps_member *m = member_of(s, on);
    const uint64_t bytes = ps_need_bytes(need, j->slot_count);

    if (m == NULL || m->memory == 0 || bytes <= on->reserved ||
        m->reserved + (bytes - on->reserved) <= m->memory) {
        return true;
    }
    const uint64_t free = m->reserved < m->memory ? m->memory - m->reserved : 0;

    ps_str_addf(why, " does not fit on server %s: job %s would need ", on->name,
                j->name);
    ps_str_add_size(why, bytes - on->reserved);
    ps_str_add(why, " more there, for values, the optimizer's state and open "
                    "rounds, and ");
    ps_str_add_size(why, free);
    ps_str_add(why, " of ");
    ps_str_add_size(why, m->memory);
    ps_str_add(why, " are free; raise store.memory there, or use more servers");
    return false;
}

/* Where the server is among those of the job, likely at `hint`. */
static uint32_t position_of(const struct ps_sched_job *j, uint32_t node,
                            uint32_t hint)
{
    hint = hint < j->server_count ? hint : 0;
    if (hint < j->server_count && j->servers[hint].node == node) {
        return hint;
    }
    for (uint32_t i = 0; i < j->server_count; i++) {
        if (j->servers[i].node == node) {
            return i;
        }
    }
    return j->server_count;
}

/* The need of each server with these parts added; the caller frees the
 * list. */
static struct ps_need *needs_with(const struct ps_sched_job *j, uint8_t dtype,
                                  const struct ps_place_part *parts,
                                  uint32_t count)
{
    struct ps_need *list = ps_alloc((j->server_count + 1u) * sizeof(*list));
    uint32_t at = 0;

    for (uint32_t i = 0; i < j->server_count; i++) {
        list[i] = j->servers[i].need;
    }
    for (uint32_t i = 0; i < count; i++) {
        /* Mostly they go round. */
        at = position_of(j, parts[i].node, at + 1);
        if (at < j->server_count) {
            ps_need_add(&list[at], &j->need_kind, dtype, parts[i].count);
        }
    }
    return list;
}

/* These are the needs; takes over the list. Refused, nothing has changed. */
static int take_needs(struct ps_sched_step *st, struct ps_sched_job *j,
                      struct ps_need *list, struct ps_str *why)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < j->server_count; i++) {
        rc = fits(st->s, j, &j->servers[i], &list[i], why) ? 0 : PS_E_FULL;
    }
    for (uint32_t i = 0; rc == 0 && i < j->server_count; i++) {
        j->servers[i].need = list[i];
        settle(st, j, &j->servers[i]);
    }
    ps_free(list);
    return rc;
}

int ps_sched_room_key(struct ps_sched_step *st, struct ps_sched_job *j,
                      uint8_t dtype, const struct ps_sched_places *places,
                      struct ps_str *why)
{
    return take_needs(st, j, needs_with(j, dtype, places->part, places->count),
                      why);
}

void ps_sched_room_forget(struct ps_sched_step *st, struct ps_sched_job *j,
                          const struct ps_job_key *k)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < k->part_count; i++) {
        at = position_of(j, k->parts[i].node, at + 1);
        if (at < j->server_count) {
            ps_need_take(&j->servers[at].need, &j->need_kind, k->dtype,
                         k->parts[i].count);
        }
    }
    for (uint32_t i = 0; i < j->server_count; i++) {
        settle(st, j, &j->servers[i]);
    }
}

bool ps_sched_room_may_move(const struct ps_sched *s,
                            const struct ps_sched_job *j,
                            const struct ps_job_key *k, uint32_t index,
                            uint32_t to)
{
    const struct ps_job_server *on = ps_job_server_of(j, to);
    char text[PS_TEXT_MAX];
    struct ps_need need;
    struct ps_str why;

    if (on == NULL) {
        return true; /* It is lost, which is another matter. */
    }
    need = on->need;
    ps_need_add(&need, &j->need_kind, k->dtype, k->parts[index].count);
    ps_str_init(&why, text, sizeof(text));
    return fits(s, j, on, &need, &why);
}

void ps_sched_room_move(struct ps_sched_step *st, struct ps_sched_job *j,
                        const struct ps_job_key *k, uint32_t index, uint32_t to)
{
    const struct ps_place_part *part = &k->parts[index];
    struct ps_job_server *a = ps_job_server_of(j, part->node);
    struct ps_job_server *b = ps_job_server_of(j, to);

    if (a != NULL) {
        ps_need_take(&a->need, &j->need_kind, k->dtype, part->count);
        settle(st, j, a);
    }
    if (b != NULL) {
        ps_need_add(&b->need, &j->need_kind, k->dtype, part->count);
        settle(st, j, b);
    }
}

/* All keys, in a job of this kind; the caller frees the list. */
static struct ps_need *count_all(const struct ps_sched_job *j,
                                 const struct ps_need_kind *kind)
{
    struct ps_need *list = ps_calloc(j->server_count + 1u, sizeof(*list));
    uint32_t at = 0;

    for (uint32_t i = 0; i < j->key_count; i++) {
        const struct ps_job_key *k = j->keys[i];

        for (uint32_t n = 0; k != NULL && n < k->part_count; n++) {
            at = position_of(j, k->parts[n].node, at + 1);
            if (at < j->server_count) {
                ps_need_add(&list[at], kind, k->dtype, k->parts[n].count);
            }
        }
    }
    return list;
}

int ps_sched_room_kind(struct ps_sched_step *st, struct ps_sched_job *j,
                       const struct ps_need_kind *kind, struct ps_str *why)
{
    int rc = take_needs(st, j, count_all(j, kind), why);

    if (rc == 0) {
        j->need_kind = *kind;
    }
    return rc;
}

int ps_sched_room_takeover(struct ps_sched_step *st, struct ps_sched_job *j,
                           struct ps_str *why)
{
    return take_needs(st, j, count_all(j, &j->need_kind), why);
}

void ps_sched_room_leave(struct ps_sched_step *st, struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->server_count; i++) {
        settle(st, j, &j->servers[i]);
    }
    j->room_due = PS_TIME_NEVER;
}

void ps_sched_room_tell(struct ps_sched_step *st, struct ps_sched_job *j)
{
    j->room_due = PS_TIME_NEVER;
    j->room_number++;
    for (uint32_t i = 0; i < j->server_count; i++) {
        const struct ps_job_server *on = &j->servers[i];

        ps_sched_tell(
            st, member_of(st->s, on),
            &(struct ps_msg){.code = PS_MSG_JOB_ROOM,
                             .job_room = {.gen = j->gen,
                                          .number = j->room_number,
                                          .bytes = on->reserved,
                                          .rounds = ps_need_rounds(
                                              &on->need, j->slot_count)}});
    }
}
