/* SPDX-License-Identifier: Apache-2.0 */
/* Backups of places. Each server of a job with copies owns a place: the
 * partitions placed on it. The state of a place at the scheduler:
 *
 *     ONE       backup 0: the owner answers alone
 *     FILLING   a backup is named, and gets all partitions; the owner answers
 *               alone meanwhile
 *     TWO       is_filled: every answer is at the backup, too
 *
 * Only the scheduler changes a place, with a new epoch (rule O2). The loss of the
 * owner in TWO gives its partitions to the backup, whose own place goes on alone,
 * because the two become one; in the other states nobody has a whole copy. The
 * loss of a backup makes the place ONE. A place that is ONE gets a new backup as
 * soon as a server fits. */
#include "core/sched/place/copies.h"

#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/store.h"

#include <inttypes.h>
#include <string.h>

#define COPIES_PROTOCOL 2u

/* ------------------------------------------------------------------ changes */

/* Gives the place an epoch that is newer than all that it had. */
static void change_place(struct ps_sched_step *st,
                         struct ps_sched_job_server *on,
                         const struct ps_member *backup)
{
    if (on->epoch == st->s->epoch) {
        ps_sched_begin_epoch(st);
    }
    on->epoch = st->s->epoch;
    on->backup = backup != NULL ? backup->node : 0;
    on->backup_instance = backup != NULL ? backup->instance : 0;
    on->is_filled = false;
    on->is_reported = false;
    on->filled_percent = 0;
}

/* Appends "server A, B", for the owner and the backup of a place; returns the
 * text. */
static const char *add_pair(struct ps_str *out, const char *owner,
                            const char *backup)
{
    ps_str_addf(out, "server %s, %s", owner, backup);
    return out->data;
}

static void note_change(struct ps_sched_step *st, struct ps_sched_job *j,
                        const char *what, const char *pair)
{
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "job %s gen %" PRIu64 " %s: %s", j->name, j->gen, what,
                       pair);
}

/* -------------------------------------------------------------- new backups */

const char *ps_sched_copies_refuse(const struct ps_member *m)
{
    if (m->hello == NULL || m->hello->hello.protocol < COPIES_PROTOCOL) {
        return "is of a version without copies; upgrade it";
    }
    return ps_str_or_empty(m->hello->hello.gpu)[0] != '\0'
               ? "computes on a GPU, whose states have no copies"
               : NULL;
}

/* Bytes of the host in an address, which a colon and the port follow. */
static size_t host_len(const char *address)
{
    const char *colon = strrchr(address, ':');

    return colon != NULL ? (size_t)(colon - address) : strlen(address);
}

static bool is_same_host(const struct ps_member *a, const struct ps_member *b)
{
    const size_t len = host_len(a->address);

    return len == host_len(b->address) &&
           strncmp(a->address, b->address, len) == 0;
}

/* Bytes of the places that the server backs up, or is being filled with. */
static uint64_t backed_up_bytes(const struct ps_sched_job *j, uint32_t node,
                                bool *ret_is_filling)
{
    uint64_t bytes = 0;

    *ret_is_filling = false;
    for (uint32_t i = 0; i < j->servers.count; i++) {
        const struct ps_sched_job_server *on = &j->servers.list[i];

        if (on->backup == node) {
            bytes += on->bytes + 1;
            *ret_is_filling |= !on->is_filled && on->bytes > 0;
        }
    }
    return bytes;
}

/* The server that is the best backup of the place: on another host, one of the
 * job, with the fewest copies; first after the owner in the order of names. NULL:
 * none fits. */
static struct ps_member *choose_backup(const struct ps_sched *s,
                                       const struct ps_sched_job *j,
                                       const struct ps_sched_job_server *on)
{
    const struct ps_member *owner = ps_members_get(&s->members, on->node);
    struct ps_member *best = NULL;
    uint64_t best_cost[3] = {0};

    for (uint32_t i = 0; owner != NULL && i < s->members.count; i++) {
        struct ps_member *m = s->members.sorted[i];
        bool is_filling;
        const uint64_t bytes = backed_up_bytes(j, m->node, &is_filling);
        const struct ps_sched_job_server *own = ps_sched_job_server_of(j,
                                                                       m->node);
        const bool is_own = own != NULL;
        const uint64_t cost[3] = {(m->node == on->avoided) * 4u +
                                      is_same_host(m, owner) * 2u + !is_own,
                                  bytes, strcmp(m->name, owner->name) < 0};

        if (m->role != PS_ROLE_SERVER || m == owner ||
            m->state != PS_NODE_STATE_ACTIVE || m->last_ping.draining ||
            is_filling || ps_sched_copies_refuse(m) != NULL ||
            (is_own && own->return_by != PS_TIME_NEVER) ||
            (!is_own && !ps_sched_job_may_use_server(j, m))) {
            continue;
        }
        if (best == NULL || cost[0] < best_cost[0] ||
            (cost[0] == best_cost[0] &&
             (cost[1] < best_cost[1] ||
              (cost[1] == best_cost[1] && cost[2] < best_cost[2])))) {
            best = m;
            memcpy(best_cost, cost, sizeof(cost));
        }
    }
    return best;
}

/* The first time only: the try is repeated at each change of the cluster. */
static void note_no_room(struct ps_sched_step *st, struct ps_sched_job *j,
                         struct ps_sched_job_server *on, const char *why)
{
    if (!on->lacks_room) {
        on->lacks_room = true;
        ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING,
                           "job %s: server %s has no backup: its copy%s",
                           j->name, on->name, why);
    }
}

/* Names a backup for the place. False: no server fits. */
static bool name_backup(struct ps_sched_step *st, struct ps_sched_job *j,
                        uint32_t node)
{
    struct ps_sched_job_server *on = ps_sched_job_server_of(j, node);
    const struct ps_member *owner = ps_members_get(&st->s->members, node);
    struct ps_member *m = choose_backup(st->s, j, on);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_str pair = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);

    if (m == NULL) {
        return false;
    }
    const bool joins = ps_sched_job_server_of(j, m->node) == NULL;

    if (joins) {
        ps_sched_job_add_server(st->s, j, m);
        on = ps_sched_job_server_of(j, node); /* The list has moved. */
    }
    on->backup = m->node;
    if (ps_sched_admission_recount(st, j, &why) != 0) {
        on->backup = 0;
        note_no_room(st, j, on, why.data);
        if (joins) {
            ps_sched_job_drop_server(st->s, j,
                                     ps_sched_job_server_of(j, m->node));
        }
        return false;
    }
    on->lacks_room = false;
    change_place(st, on, m);
    note_change(st, j, "backup named", add_pair(&pair, on->name, m->name));
    ps_sched_event_job(st, PS_EVENT_KIND_MIGRATION, j, "backup named", false,
                       pair.data);
    if (is_same_host(m, owner)) {
        ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING,
                           "job %s: servers %s and %s are on one host, with "
                           "which both copies would be lost",
                           j->name, on->name, m->name);
    }
    return true;
}

/* Names what is missing. True: a place has changed. */
static bool name_backups(struct ps_sched_step *st, struct ps_sched_job *j)
{
    bool any = false;

    /* A server that joins as a backup gets a place of its own, which follows. */
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < j->servers.count && !more; i++) {
            const struct ps_sched_job_server *on = &j->servers.list[i];

            more = on->backup == 0 && on->return_by == PS_TIME_NEVER &&
                   name_backup(st, j, on->node);
        }
        any = any || more;
    }
    return any;
}

void ps_sched_copies_name(struct ps_sched_step *st, struct ps_sched_job *j)
{
    if (ps_sched_job_has_copies(j) && ps_sched_job_is_open(j) &&
        ps_sched_job_has_started(j) && name_backups(st, j)) {
        ps_sched_job_publish(st, j);
    }
}

void ps_sched_copies_name_all(struct ps_sched_step *st)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        ps_sched_copies_name(st, j);
    }
}

void ps_sched_copies_distrust(struct ps_sched_step *st)
{
    PS_MAP_EACH(struct ps_sched_job, j, st->s->jobs)
    {
        if (!ps_sched_job_has_copies(j) || !ps_sched_job_is_open(j) ||
            !ps_sched_job_has_started(j)) {
            continue;
        }
        for (uint32_t i = 0; i < j->servers.count; i++) {
            change_place(st, &j->servers.list[i], NULL);
        }
        (void)name_backups(st, j);
        ps_sched_job_publish(st, j);
    }
}

/* Rule O18: the owner goes on alone until another backup is filled, or this one
 * again. */
static void dismiss_backup(struct ps_sched_step *st, struct ps_sched_job *j,
                           struct ps_sched_job_server *on)
{
    const struct ps_member *backup = ps_members_get(&st->s->members,
                                                    on->backup);
    struct ps_str pair = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);

    add_pair(&pair, on->name, backup != NULL ? backup->name : "?");
    ps_effects_log_for(st->fx, &j->account, PS_LOG_WARNING,
                       "job %s: %s: the first has not reached the second, its "
                       "backup, for 5 s, and goes on alone",
                       j->name, pair.data);
    ps_sched_event_job(st, PS_EVENT_KIND_MIGRATION, j, "backup not reached",
                       true, pair.data);
    on->avoided = on->backup;
    change_place(st, on, NULL);
    (void)name_backups(st, j);
    ps_sched_job_publish(st, j);
}

/* True: the backup counts from now on, because it has taken the job, too. The
 * owner of no value says that it is filled without its answer, and what takes over
 * must not come back without the job (rule O12). */
static bool count_backup(struct ps_sched_step *st, struct ps_sched_job *j,
                         struct ps_sched_job_server *on)
{
    const struct ps_sched_job_server *backup = ps_sched_job_server_of(
        j, on->backup);
    struct ps_str pair = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);

    if (on->is_filled || !on->is_reported || backup == NULL ||
        !ps_sched_job_server_has_taken(backup)) {
        return false;
    }
    on->is_filled = true;
    ps_sched_store_job(st->s, j);
    note_change(st, j, "backup filled",
                add_pair(&pair, on->name, backup->name));
    ps_sched_event_job(st, PS_EVENT_KIND_MIGRATION, j, "backup filled", false,
                       pair.data);
    return true;
}

void ps_sched_copies_check(struct ps_sched_step *st, struct ps_sched_job *j)
{
    bool any = false;

    for (uint32_t i = 0; i < j->servers.count; i++) {
        any |= count_backup(st, j, &j->servers.list[i]);
    }
    if (any) { /* It may be filled for another place now. */
        ps_sched_copies_name(st, j);
    }
    ps_sched_moves_start(st, j);
}

void ps_sched_on_filled(struct ps_sched_step *st, struct ps_member *server,
                        const struct ps_msg *msg)
{
    const struct ps_msg_filled *m = &msg->filled;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct ps_sched_job_server *on =
        j != NULL ? ps_sched_job_server_of(j, server->node) : NULL;

    if (on == NULL || on->epoch != m->epoch || on->backup == 0) {
        return;
    }
    if (m->is_unreachable) {
        dismiss_backup(st, j, on);
        return;
    }
    if (on->is_filled) {
        return;
    }
    if (m->percent < 100) {
        on->filled_percent = m->percent;
        return;
    }
    on->is_reported = true;
    ps_sched_copies_check(st, j);
}

void ps_sched_copies_describe(const struct ps_sched_job *j, struct ps_str *out)
{
    uint32_t alone = 0;
    uint32_t count = 0;
    uint32_t percent = 0;
    bool lacks_room = false;

    if (!ps_sched_job_has_copies(j)) {
        return;
    }
    for (uint32_t i = 0; i < j->servers.count; i++) {
        const struct ps_sched_job_server *on = &j->servers.list[i];

        alone += on->backup == 0;
        lacks_room |= on->backup == 0 && on->lacks_room;
        count++;
        percent += on->is_filled ? 100u : on->filled_percent;
    }
    if (alone > 0) {
        ps_str_addf(out, "alone %u of %u%s", alone, count,
                    lacks_room ? ", no memory for copies" : "");
    } else if (percent < 100 * count) {
        ps_str_addf(out, "filling %u %%", percent / count);
    } else {
        ps_str_add(out, count > 0 ? "two" : "");
    }
}

/* ------------------------------------------------------------------- losses */

/* Places whose backup was lost go on alone. */
static void drop_backups(struct ps_sched_step *st, struct ps_sched_job *j,
                         const struct ps_member *lost)
{
    for (uint32_t i = 0; i < j->servers.count; i++) {
        struct ps_sched_job_server *on = &j->servers.list[i];

        if (on->backup == lost->node) {
            struct ps_str pair = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);

            change_place(st, on, NULL);
            note_change(st, j, "backup lost",
                        add_pair(&pair, on->name, lost->name));
            ps_sched_event_job(st, PS_EVENT_KIND_MIGRATION, j, "backup lost",
                               true, pair.data);
        }
    }
}

int ps_sched_copies_lose_server(struct ps_sched_step *st,
                                struct ps_sched_job *j,
                                const struct ps_member *server,
                                struct ps_str *why)
{
    struct ps_sched_job_server *on = ps_sched_job_server_of(j, server->node);
    const uint32_t next = on->is_filled ? on->backup : 0;

    drop_backups(st, j, server);
    if (next == 0) {
        if (on->backup != 0) {
            change_place(st, on, NULL); /* Its copy is not whole. */
        }
        ps_sched_job_publish(st, j);
        return PS_E_NOENT;
    }
    ps_sched_job_remove_server(st->s, j, on, server);
    on = ps_sched_job_server_of(j, next);
    change_place(st, on, NULL);
    ps_str_add(why, "; what it held");

    int rc = ps_sched_keys_take_over(st, j, server->node, next, why);

    if (rc != 0) {
        return rc;
    }
    (void)name_backups(st, j);
    ps_sched_job_publish(st, j); /* Servers first (rule O13). */
    ps_sched_keys_announce(st, j);
    ps_sched_waiters_reply(st, j);
    return 0;
}
