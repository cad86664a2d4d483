/* SPDX-License-Identifier: Apache-2.0 */
/* Resources of a job: its servers, memory reserved on them, and its costs, which
 * count at its user's and the scheduler's, too. */
#include "core/sched/job/run.h"

#include "base/alloc.h"
#include "core/sched/inner.h"

#include <string.h>

/* ----------------------------------------------------------------- servers */

/* Servers of jobs: those that a job may get, and its own. */

/* True: this process was notified that the job has ended for it. */
static bool was_removed(const struct ps_sched_job *j, const struct ps_member *m)
{
    for (uint32_t i = 0; i < j->servers.removed_count; i++) {
        if (j->servers.removed[i].node == m->node &&
            j->servers.removed[i].incarnation == m->incarnation) {
            return true;
        }
    }
    return false;
}

bool ps_sched_job_may_use_server(const struct ps_sched_job *j,
                                 const struct ps_member *m)
{
    return m->role == PS_ROLE_SERVER && m->state == PS_NODE_STATE_ACTIVE &&
           !m->last_ping.draining &&
           ps_sched_job_server_of(j, m->node) == NULL && !was_removed(j, m);
}

uint32_t ps_sched_count_servers(const struct ps_sched *s,
                                uint32_t *ret_draining, const char **ret_name)
{
    uint32_t active = ps_members_count(&s->members, PS_ROLE_SERVER,
                                       PS_NODE_STATE_ACTIVE);

    *ret_draining = 0;
    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        if (m->role == PS_ROLE_SERVER && m->state == PS_NODE_STATE_ACTIVE &&
            m->last_ping.draining) {
            *ret_name = m->name;
            ++*ret_draining;
        }
    }
    return active - *ret_draining;
}

void ps_sched_describe_servers(const struct ps_sched *s,
                               const struct ps_sched_job *j, struct ps_str *out)
{
    const char *name = "";
    uint32_t draining;
    uint32_t active = ps_sched_count_servers(s, &draining, &name);

    const uint32_t needed = ps_sched_job_servers_needed(j);

    if (j->phase != PS_JOB_PHASE_FORMING || active >= needed) {
        return;
    }
    ps_str_addf(out, "needs %u server%s%s, %u %s here", needed,
                needed == 1 ? "" : "s",
                needed > j->opt.num_servers ? " for replicas: 2" : "", active,
                active == 1 ? "is" : "are");
    if (draining > 0) {
        ps_str_addf(out, ", and %s is shutting down", name);
    }
    ps_str_addf(out, ": start more, or ask for fewer (%s)",
                "PSKV_NUM_SERVERS, pslaunch -s");
}

struct ps_member *ps_sched_job_next_server(const struct ps_sched *s,
                                           const struct ps_sched_job *j)
{
    struct ps_member *best = NULL;

    for (uint32_t i = 0; i < s->members.count; i++) {
        struct ps_member *m = s->members.sorted[i];

        if (ps_sched_job_may_use_server(j, m) &&
            (best == NULL || m->placed_bytes < best->placed_bytes)) {
            best = m;
        }
    }
    return best;
}

uint32_t
ps_sched_job_spare_servers(const struct ps_sched *s,
                           const struct ps_sched_job *j,
                           const struct ps_member *list[PS_SERVERS_MAX])
{
    uint32_t lacking = j->opt.num_servers > j->servers.count
                           ? j->opt.num_servers - j->servers.count
                           : 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];
        uint32_t at = count;

        if (!ps_sched_job_may_use_server(j, m)) {
            continue;
        }
        while (at > 0 && list[at - 1]->placed_bytes > m->placed_bytes) {
            at--;
        }
        if (at < lacking) {
            count += count < lacking;
            memmove(&list[at + 1], &list[at],
                    (count - 1 - at) * sizeof(list[0]));
            list[at] = m;
        }
    }
    return count;
}

void ps_sched_job_take_place(const struct ps_sched *s,
                             struct ps_sched_job_server *on,
                             const struct ps_member *m)
{
    on->epoch = s->epoch;
    on->incarnation = m->incarnation;
    on->instance = m->instance;
}

bool ps_sched_job_server_has_taken(const struct ps_sched_job_server *on)
{
    return on->ready_version != 0 || on->bytes > 0;
}

/* Keeps the list sorted by name. */
void ps_sched_job_add_server(const struct ps_sched *s, struct ps_sched_job *j,
                             const struct ps_member *m)
{
    uint32_t i = j->servers.count;

    j->servers.list = ps_realloc(j->servers.list, (j->servers.count + 1u) *
                                                      sizeof(*j->servers.list));
    while (i > 0 && strcmp(j->servers.list[i - 1].name, m->name) > 0) {
        j->servers.list[i] = j->servers.list[i - 1];
        i--;
    }
    j->servers.list[i] = (struct ps_sched_job_server){
        .node = m->node,
        .number = ++j->servers.last_number,
        .return_by = PS_TIME_NEVER};
    ps_sched_job_take_place(s, &j->servers.list[i], m);
    ps_str_copy(j->servers.list[i].name, sizeof(j->servers.list[i].name),
                m->name);
    j->servers.count++;
}

/* Takes the load of the job off the server. */
static void subtract_server_load(struct ps_sched *s,
                                 const struct ps_sched_job_server *on)
{
    struct ps_member *m = ps_members_get(&s->members, on->node);

    if (m != NULL) {
        assert(m->placed_bytes >= on->bytes);
        m->placed_bytes -= on->bytes;
        m->reserved_bytes -= on->reserved_bytes;
    }
}

/* Drops entry `i`. */
static void drop_removed_server(struct ps_sched_job_servers *on, uint32_t i)
{
    on->removed_count--;
    memmove(&on->removed[i], &on->removed[i + 1],
            (on->removed_count - i) * sizeof(*on->removed));
}

/* Of each server only the newest process counts: earlier ones do not come
 * back. */
static void add_removed_server(struct ps_sched_job *j,
                               const struct ps_member *m)
{
    struct ps_sched_job_servers *on = &j->servers;

    for (uint32_t i = 0; i < on->removed_count; i++) {
        if (on->removed[i].node == m->node) {
            drop_removed_server(on, i);
            break;
        }
    }
    if (on->removed_count == PS_LOST_SERVERS_MAX) {
        drop_removed_server(on, 0);
    }
    on->removed = ps_realloc(on->removed,
                             (on->removed_count + 1u) * sizeof(*on->removed));
    on->removed[on->removed_count++] = (struct ps_rec_removed_server){
        .node = m->node, .incarnation = m->incarnation};
}

void ps_sched_job_drop_server(struct ps_sched *s, struct ps_sched_job *j,
                              struct ps_sched_job_server *on)
{
    subtract_server_load(s, on);
    memmove(on, on + 1,
            (size_t)(&j->servers.list[j->servers.count] - (on + 1)) *
                sizeof(*on));
    j->servers.count--;
}

void ps_sched_job_remove_server(struct ps_sched *s, struct ps_sched_job *j,
                                struct ps_sched_job_server *on,
                                const struct ps_member *server)
{
    ps_sched_store_job(s, j);
    add_removed_server(j, server);
    ps_sched_job_drop_server(s, j, on);
    /* A job that has ended loses backups here; the file names none that is
     * forgotten. */
    for (uint32_t i = 0; i < j->servers.count; i++) {
        if (j->servers.list[i].backup == server->node) {
            j->servers.list[i].backup = 0;
            j->servers.list[i].is_filled = false;
        }
    }
}

void ps_sched_job_release_servers(struct ps_sched *s,
                                  const struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->servers.count; i++) {
        subtract_server_load(s, &j->servers.list[i]);
    }
}

/* ------------------------------------------------------------------ memory */

/* Admission: memory of servers reserved for jobs. The demand of a key is known
 * from its declaration, so a key that does not fit is refused before it costs
 * memory anywhere, and no job takes memory of another. Each server gets the
 * quota of each job. */

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

/* Adds a partition of the server with index `at` to the demands, there and at
 * its backup. */
static void add_demand(const struct ps_sched_job *j, struct ps_demand *list,
                       uint32_t at, const struct ps_demand_profile *kind,
                       uint8_t dtype, uint64_t count)
{
    if (at >= j->servers.count) {
        return;
    }
    ps_demand_add(&list[at], kind, dtype, count);
    if (j->servers.list[at].backup != 0) {
        const uint32_t to = server_index(j, j->servers.list[at].backup, at + 1);

        if (to < j->servers.count) {
            ps_demand_add(&list[to], kind, dtype, count);
        }
    }
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
        add_demand(j, list, at, &j->quota.profile, dtype, parts[i].count);
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

/* Removes a partition of the server with index `at` there and at its backup. */
static void remove_demand(struct ps_sched_job *j, uint32_t at, uint8_t dtype,
                          uint64_t count)
{
    if (at >= j->servers.count) {
        return;
    }
    ps_demand_remove(&j->servers.list[at].demand, &j->quota.profile, dtype,
                     count);
    if (j->servers.list[at].backup != 0) {
        at = server_index(j, j->servers.list[at].backup, at + 1);
        if (at < j->servers.count) {
            ps_demand_remove(&j->servers.list[at].demand, &j->quota.profile,
                             dtype, count);
        }
    }
}

void ps_sched_admission_remove_key(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_sched_key *k)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < k->part_count; i++) {
        at = server_index(j, k->parts[i].node, at + 1);
        remove_demand(j, at, k->dtype, k->parts[i].count);
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
    const struct ps_place_part part = {.node = to,
                                       .count = k->parts[index].count};
    const struct ps_sched_job_server *on = ps_sched_job_server_of(j, to);
    struct ps_demand *list = demands_with_parts(j, k->dtype, &part, 1);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX);
    bool fits = true;

    for (uint32_t i = 0; on != NULL && i < j->servers.count; i++) {
        const struct ps_sched_job_server *at = &j->servers.list[i];

        if (at == on || at->node == on->backup) {
            fits = fits && demand_fits(s, j, at, &list[i], &why);
        }
    }
    ps_free(list);
    return fits;
}

void ps_sched_admission_move_part(struct ps_sched_step *st,
                                  struct ps_sched_job *j,
                                  const struct ps_sched_key *k, uint32_t index,
                                  uint32_t to)
{
    const struct ps_place_part part = {.node = to,
                                       .count = k->parts[index].count};
    struct ps_demand *list;

    remove_demand(j, server_index(j, k->parts[index].node, 0), k->dtype,
                  part.count);
    list = demands_with_parts(j, k->dtype, &part, 1);
    for (uint32_t i = 0; i < j->servers.count; i++) {
        j->servers.list[i].demand = list[i];
        update_reservation(st, j, &j->servers.list[i]);
    }
    ps_free(list);
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
            add_demand(j, list, at, kind, k->dtype, k->parts[n].count);
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

void ps_sched_admission_restore(struct ps_sched_step *st,
                                struct ps_sched_job *j)
{
    struct ps_demand *list = recount_demands(j, &j->quota.profile);

    for (uint32_t i = 0; i < j->servers.count; i++) {
        j->servers.list[i].demand = list[i];
        update_reservation(st, j, &j->servers.list[i]);
    }
    ps_free(list);
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

/* ------------------------------------------------------------------- costs */

/* Ledger of the scheduler: costs of keys, by job and user.
 *
 *     job ──▶ user ──▶ daemon
 *
 * A short declaration makes a table with an entry for each partition here, on
 * every agent and on servers. The job and its user have limits for these
 * tables. */

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

    if (u == NULL) {
        u = ps_calloc(1, sizeof(*u));
        u->sched = s;
        u->uid = uid;
        struct ps_str text = PS_STR_ROOM(16);

        ps_str_addf(&text, "%u", uid);
        ps_account_init(&u->account, PS_ACCOUNT_USER, text.data,
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

#define KEY_CHARGES 3u

/* Costs of a key. */
static void list_charges(const struct ps_sched_job *j, const char *name,
                         uint32_t parts, struct ps_charge ret[KEY_CHARGES])
{
    ret[0] = (struct ps_charge){PS_COST_KEYS, 1};
    ret[1] = (struct ps_charge){PS_COST_PARTITIONS, parts};
    ret[2] = (struct ps_charge){PS_COST_MEMORY,
                                key_table_bytes(j, strlen(name), parts)};
}

int ps_sched_account_charge_key(struct ps_sched_job *j, const char *name,
                                uint32_t parts, struct ps_refusal *ret_refusal)
{
    struct ps_charge charges[KEY_CHARGES];

    list_charges(j, name, parts, charges);
    return ps_account_charge_all(&j->account, charges, KEY_CHARGES,
                                 ret_refusal);
}

void ps_sched_account_restore_key(struct ps_sched_job *j, const char *name,
                                  uint32_t parts)
{
    struct ps_charge charges[KEY_CHARGES];

    list_charges(j, name, parts, charges);
    for (uint32_t i = 0; i < KEY_CHARGES; i++) {
        ps_account_charge_unchecked(&j->account, charges[i].cost,
                                    charges[i].amount);
    }
}

void ps_sched_account_refund_key(struct ps_sched_job *j, const char *name,
                                 uint32_t parts)
{
    struct ps_charge charges[KEY_CHARGES];

    list_charges(j, name, parts, charges);
    for (uint32_t i = 0; i < KEY_CHARGES; i++) {
        ps_account_refund(&j->account, charges[i].cost, charges[i].amount);
    }
}
