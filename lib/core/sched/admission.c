/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: memory of servers reserved for jobs. The demand of a key is known
 * from its declaration, so a key that does not fit is refused before it costs
 * memory anywhere, and no job takes memory of another. Each server gets the
 * quota of each job. */
#include "core/sched/admission.h"

#include "base/alloc.h"
#include "core/sched/inner.h"

/* Quotas that change within this time are sent together; the first at once. */
#define COALESCE_TIME PS_MILLIS(2)

static struct ps_member *server_member(const struct ps_sched *s,
                                       const struct ps_sched_job_server *on)
{
    return ps_members_get(&s->members, on->node);
}

/* Reserves the demand of `on` at its server and schedules the new quota. */
static void update_reservation(struct ps_sched_step *st, struct ps_sched_job *j,
                               struct ps_sched_job_server *on)
{
    /* Servers free the memory of a failed job when they get its state. */
    const uint64_t bytes = ps_sched_job_is_open(j)
                               ? ps_demand_bytes(&on->demand, j->slot_count)
                               : 0;
    struct ps_member *m = server_member(st->s, on);

    if (m != NULL) {
        m->reserved_bytes += bytes - on->reserved_bytes;
    }
    if (bytes != on->reserved_bytes) {
        j->quota.send_at = ps_time_min(
            j->quota.send_at, j->quota.version == 0
                                  ? st->now
                                  : ps_time_add(st->now, COALESCE_TIME));
    }
    on->reserved_bytes = bytes;
}

/* True: the server has memory for this demand; else appends the reason. */
static bool demand_fits(const struct ps_sched *s, const struct ps_sched_job *j,
                        const struct ps_sched_job_server *on,
                        const struct ps_demand *need, struct ps_str *why)
{
    const struct ps_member *m = server_member(s, on);
    const uint64_t bytes = ps_demand_bytes(need, j->slot_count);

    if (m == NULL || m->memory_limit == 0 || bytes <= on->reserved_bytes ||
        m->reserved_bytes + (bytes - on->reserved_bytes) <= m->memory_limit) {
        return true;
    }
    const uint64_t free = m->reserved_bytes < m->memory_limit
                              ? m->memory_limit - m->reserved_bytes
                              : 0;

    ps_str_addf(why, " does not fit on server %s: job %s would need ", on->name,
                j->name);
    ps_str_add_size(why, bytes - on->reserved_bytes);
    ps_str_add(why, " more there, for values, the optimizer's state and open "
                    "rounds, and ");
    ps_str_add_size(why, free);
    ps_str_add(why, " of ");
    ps_str_add_size(why, m->memory_limit);
    ps_str_add(why, " are free; raise store.memory there, or use more servers");
    return false;
}

/* Index of the server in the job, probably `hint`; server_count: not found. */
static uint32_t server_index(const struct ps_sched_job *j, uint32_t node,
                             uint32_t hint)
{
    hint = hint < j->servers.count ? hint : 0;
    if (hint < j->servers.count && j->servers.list[hint].node == node) {
        return hint;
    }
    for (uint32_t i = 0; i < j->servers.count; i++) {
        if (j->servers.list[i].node == node) {
            return i;
        }
    }
    return j->servers.count;
}

/* Demand of each server with these partitions added; the caller frees the
 * list. */
static struct ps_demand *demands_with_parts(const struct ps_sched_job *j,
                                            uint8_t dtype,
                                            const struct ps_place_part *parts,
                                            uint32_t count)
{
    struct ps_demand *list = ps_alloc((j->servers.count + 1u) * sizeof(*list));
    uint32_t at = 0;

    for (uint32_t i = 0; i < j->servers.count; i++) {
        list[i] = j->servers.list[i].demand;
    }
    for (uint32_t i = 0; i < count; i++) {
        /* Successive partitions mostly lie on successive servers. */
        at = server_index(j, parts[i].node, at + 1);
        if (at < j->servers.count) {
            ps_demand_add(&list[at], &j->quota.profile, dtype, parts[i].count);
        }
    }
    return list;
}

/* Replaces all demands by `list`, and frees it. When refused, nothing
 * changes. */
static int set_demands(struct ps_sched_step *st, struct ps_sched_job *j,
                       struct ps_demand *list, struct ps_str *why)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < j->servers.count; i++) {
        rc = demand_fits(st->s, j, &j->servers.list[i], &list[i], why)
                 ? 0
                 : PS_E_FULL;
    }
    for (uint32_t i = 0; rc == 0 && i < j->servers.count; i++) {
        j->servers.list[i].demand = list[i];
        update_reservation(st, j, &j->servers.list[i]);
    }
    ps_free(list);
    return rc;
}

int ps_sched_admission_add_key(struct ps_sched_step *st, struct ps_sched_job *j,
                               uint8_t dtype,
                               const struct ps_sched_placement *places,
                               struct ps_str *why)
{
    return set_demands(
        st, j, demands_with_parts(j, dtype, places->parts, places->count), why);
}

void ps_sched_admission_remove_key(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_sched_key *k)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < k->part_count; i++) {
        at = server_index(j, k->parts[i].node, at + 1);
        if (at < j->servers.count) {
            ps_demand_remove(&j->servers.list[at].demand, &j->quota.profile,
                             k->dtype, k->parts[i].count);
        }
    }
    for (uint32_t i = 0; i < j->servers.count; i++) {
        update_reservation(st, j, &j->servers.list[i]);
    }
}

bool ps_sched_admission_fits_part(const struct ps_sched *s,
                                  const struct ps_sched_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to)
{
    const struct ps_sched_job_server *on = ps_sched_job_server_of(j, to);
    char text[PS_TEXT_MAX];
    struct ps_demand need;
    struct ps_str why;

    if (on == NULL) {
        return true; /* Loss of the server is handled elsewhere. */
    }
    need = on->demand;
    ps_demand_add(&need, &j->quota.profile, k->dtype, k->parts[index].count);
    ps_str_init(&why, text, sizeof(text));
    return demand_fits(s, j, on, &need, &why);
}

void ps_sched_admission_move_part(struct ps_sched_step *st,
                                  struct ps_sched_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to)
{
    const struct ps_place_part *part = &k->parts[index];
    struct ps_sched_job_server *a = ps_sched_job_server_of(j, part->node);
    struct ps_sched_job_server *b = ps_sched_job_server_of(j, to);

    if (a != NULL) {
        ps_demand_remove(&a->demand, &j->quota.profile, k->dtype, part->count);
        update_reservation(st, j, a);
    }
    if (b != NULL) {
        ps_demand_add(&b->demand, &j->quota.profile, k->dtype, part->count);
        update_reservation(st, j, b);
    }
}

/* Demands of all keys under this profile; the caller frees the list. */
static struct ps_demand *recount_demands(const struct ps_sched_job *j,
                                         const struct ps_demand_profile *kind)
{
    struct ps_demand *list = ps_calloc(j->servers.count + 1u, sizeof(*list));
    uint32_t at = 0;

    for (uint32_t i = 0; i < j->keys.count; i++) {
        const struct ps_sched_key *k = j->keys.list[i];

        for (uint32_t n = 0; k != NULL && n < k->part_count; n++) {
            at = server_index(j, k->parts[n].node, at + 1);
            if (at < j->servers.count) {
                ps_demand_add(&list[at], kind, k->dtype, k->parts[n].count);
            }
        }
    }
    return list;
}

int ps_sched_admission_set_profile(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_demand_profile *kind,
                                   struct ps_str *why)
{
    int rc = set_demands(st, j, recount_demands(j, kind), why);

    if (rc == 0) {
        j->quota.profile = *kind;
    }
    return rc;
}

int ps_sched_admission_recount(struct ps_sched_step *st, struct ps_sched_job *j,
                               struct ps_str *why)
{
    return set_demands(st, j, recount_demands(j, &j->quota.profile), why);
}

void ps_sched_admission_release(struct ps_sched_step *st,
                                struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->servers.count; i++) {
        update_reservation(st, j, &j->servers.list[i]);
    }
    j->quota.send_at = PS_TIME_NEVER;
}

void ps_sched_admission_send_quota(struct ps_sched_step *st,
                                   struct ps_sched_job *j)
{
    j->quota.send_at = PS_TIME_NEVER;
    j->quota.version++;
    for (uint32_t i = 0; i < j->servers.count; i++) {
        const struct ps_sched_job_server *on = &j->servers.list[i];

        ps_sched_send_msg(
            st, server_member(st->s, on),
            &(struct ps_msg){.code = PS_MSG_JOB_QUOTA,
                             .job_quota = {.gen = j->gen,
                                           .version = j->quota.version,
                                           .bytes = on->reserved_bytes,
                                           .round_bytes = ps_demand_round_bytes(
                                               &on->demand, j->slot_count)}});
    }
}
