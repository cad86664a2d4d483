/* SPDX-License-Identifier: Apache-2.0 */
/* Rebalance queries of operators: which partitions of a job change servers to
 * balance these, or to drain one. The plan is made at once; move.c sends it,
 * and carries it out if the operator asked for that. */
#include "core/sched/place/place.h"

#include "base/alloc.h"
#include "core/part/image.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/place/copies.h"

#include <assert.h>
#include <string.h>

/* Before it partitions moved through the scheduler. */
#define MOVES_PROTOCOL 2u

/* Plan: servers of the job and those that could join it, and all movable
 * partitions. */
struct plan {
    uint32_t server_nodes[PS_SERVERS_MAX];
    uint64_t bytes[PS_SERVERS_MAX];
    uint32_t server_count;
    const struct ps_member *spares[PS_SERVERS_MAX];
    uint32_t spare_count;
    struct ps_balance_part *parts;
    uint32_t count;
    uint32_t move_count;
};

/* Partitions of rows keys may have to stay where they are. */
static bool is_movable(const struct ps_sched_key *k)
{
    const char *why;

    return k != NULL && (k->row_width == 0 ||
                         ps_image_check_traits(1u << PS_IMAGE_ROWS,
                                               PS_IMAGE_MIGRATE, &why) == 0);
}

static uint64_t count_movable_parts(const struct ps_sched_job *j)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < j->keys.count; i++) {
        n += is_movable(j->keys.list[i]) ? j->keys.list[i]->part_count : 0;
    }
    return n;
}

static uint32_t server_index(const struct plan *p, uint32_t node)
{
    uint32_t at = 0;

    while (p->server_nodes[at] != node) {
        at++;
        assert(at < p->server_count);
    }
    return at;
}

static void list_servers(const struct ps_sched *s, const struct ps_sched_job *j,
                         struct plan *p)
{
    p->spare_count = ps_sched_job_spare_servers(s, j, p->spares);
    for (uint32_t i = 0; i < j->servers.count; i++) {
        p->server_nodes[p->server_count] = j->servers.list[i].node;
        p->bytes[p->server_count++] = j->servers.list[i].bytes;
    }
    for (uint32_t i = 0; i < p->spare_count; i++) {
        p->server_nodes[p->server_count] = p->spares[i]->node;
        p->bytes[p->server_count++] = 0;
    }
}

/* Lists all movable partitions, in the order of keys. */
static int list_parts(const struct ps_sched_job *j, struct plan *p)
{
    p->parts = ps_try_alloc((p->count + 1u) * sizeof(*p->parts));

    struct ps_balance_part *at = p->parts;

    if (at == NULL) {
        return PS_E_NOMEM;
    }

    for (uint32_t i = 0; i < j->keys.count; i++) {
        const struct ps_sched_key *k = j->keys.list[i];

        for (uint32_t n = 0; is_movable(k) && n < k->part_count; n++, at++) {
            at->key = i;
            at->index = n;
            at->source = server_index(p, k->parts[n].node);
            at->target = at->source;
            at->bytes = k->parts[n].count * ps_dtype_size(k->dtype);
        }
    }
    return 0;
}

/* Moves each partition of server `off` to the server with the fewest bytes. */
static uint32_t drain_server(struct plan *p, uint32_t off)
{
    uint32_t moved = 0;

    for (uint32_t i = 0; i < p->count; i++) {
        struct ps_balance_part *piece = &p->parts[i];
        uint32_t to = off == 0 ? 1 : 0;

        if (piece->source != off) {
            continue;
        }
        for (uint32_t s = 0; s < p->server_count; s++) {
            to = s != off && p->bytes[s] < p->bytes[to] ? s : to;
        }
        piece->target = to;
        p->bytes[off] -= piece->bytes;
        p->bytes[to] += piece->bytes;
        moved++;
    }
    return moved;
}

/* Adds the move of a partition to the row of its key and servers. The array
 * has room, and keys come in order. */
static void add_row(struct ps_sched_rebalance_reply *r,
                    const struct ps_sched_rebalance_row *part)
{
    for (uint32_t i = r->row_count; i > 0 && r->rows[i - 1].key == part->key;
         i--) {
        struct ps_sched_rebalance_row *row = &r->rows[i - 1];

        if (row->source == part->source && row->target == part->target) {
            row->part_count += part->part_count;
            row->bytes += part->bytes;
            return;
        }
    }
    r->rows[r->row_count++] = *part;
}

/* Makes one row for all moves of a key between the same two servers. */
static int make_rows(const struct plan *plan,
                     struct ps_sched_rebalance_reply *m)
{
    m->rows = ps_try_alloc((plan->move_count + 1u) * sizeof(*m->rows));
    if (m->rows == NULL) {
        return PS_E_NOMEM;
    }
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct ps_balance_part *p = &plan->parts[i];

        if (p->target != p->source) {
            add_row(m, &(struct ps_sched_rebalance_row){
                           .key = p->key,
                           .source = plan->server_nodes[p->source],
                           .target = plan->server_nodes[p->target],
                           .part_count = 1,
                           .bytes = p->bytes});
        }
    }
    return 0;
}

static int start_moves(struct ps_sched_step *st, struct ps_sched_job *j,
                       const struct plan *plan, ps_conn_id ctl)
{
    int rc = 0;

    ps_sched_moves_init(st->s, j, ctl);
    for (uint32_t i = 0; i < plan->count && rc == 0; i++) {
        const struct ps_balance_part *p = &plan->parts[i];

        if (p->target != p->source) {
            rc = ps_sched_moves_add(
                st->s, j,
                &(struct ps_sched_part_move){
                    .key = p->key,
                    .index = p->index,
                    .source_node = plan->server_nodes[p->source],
                    .target_node = plan->server_nodes[p->target]});
        }
    }
    if (rc != 0) {
        ps_sched_moves_free(j);
        return rc;
    }
    for (uint32_t i = 0; i < plan->spare_count; i++) {
        ps_sched_job_add_server(st->s, j, plan->spares[i]);
    }
    if (plan->spare_count > 0) {
        ps_sched_job_publish(st, j);
        ps_sched_copies_name(st, j);
    }
    return 0;
}

/* Makes the plan and its rows; `makes`: starts the moves. */
static int make_plan(struct ps_sched_step *st, struct ps_sched_job *j,
                     struct ps_sched_conn *c, struct plan *p, uint32_t off,
                     bool makes)
{
    int rc = list_parts(j, p);

    if (rc == 0 && off < p->server_count) {
        p->move_count = drain_server(p, off);
    } else if (rc == 0) {
        rc = ps_balance_plan(p->parts, p->count, p->bytes, p->server_count,
                             &p->move_count);
    }
    if (rc == 0) {
        rc = make_rows(p, c->rebalance_reply);
    }
    if (rc == 0 && makes && p->move_count > 0) {
        rc = start_moves(st, j, p, c->id);
        c->rebalance_reply->awaits_end = rc == 0;
    }
    return rc;
}

/* First server of the plan that moves no partitions; NULL: all do. */
static const struct ps_member *find_older(const struct ps_sched *s,
                                          const struct ps_sched_job *j)
{
    const struct ps_member *spares[PS_SERVERS_MAX];
    const uint32_t count = ps_sched_job_spare_servers(s, j, spares);

    for (uint32_t i = 0; i < j->servers.count + count; i++) {
        const struct ps_member *m =
            i < count
                ? spares[i]
                : ps_members_get(&s->members, j->servers.list[i - count].node);

        if (m != NULL && m->hello != NULL &&
            m->hello->hello.protocol < MOVES_PROTOCOL) {
            return m;
        }
    }
    return NULL;
}

/* 0, or why the job cannot be rebalanced now. */
static int rebalance_error(const struct ps_sched *s,
                           const struct ps_sched_job *j, struct ps_str *why)
{
    const struct ps_member *older = find_older(s, j);
    const char *text = "";
    int rc = PS_E_AGAIN;

    if (j->rebalance != NULL) {
        text = "partitions of the job are being moved already; ask again when "
               "that is done";
    } else if (j->phase != PS_JOB_PHASE_RUNNING) {
        text = "the job is not running yet";
    } else if (j->opt.mode != PS_MODE_SYNC) {
        rc = ps_image_check_traits(1u << PS_IMAGE_NO_ROUNDS, PS_IMAGE_MIGRATE,
                                   &text);
    } else if (older != NULL) {
        rc = PS_E_UNSUPPORTED;
        ps_str_addf(why,
                    "server %s is of a version that does not move partitions "
                    "to another server itself; upgrade it",
                    older->name);
    } else {
        rc = 0;
    }
    ps_str_add(why, text);
    return rc;
}

/* Finds the server to drain; *ret_at is server_count if none is named. 0, or an
 * error code with the reason. */
static int find_drained_server(const struct ps_sched_job *j, const char *off,
                               const struct plan *p, uint32_t *ret_at,
                               struct ps_str *why)
{
    *ret_at = p->server_count;
    for (uint32_t i = 0; i < j->servers.count && off[0] != '\0'; i++) {
        if (strcmp(j->servers.list[i].name, off) == 0) {
            *ret_at = i;
        }
    }
    if (off[0] == '\0') {
        return 0;
    }
    if (*ret_at == p->server_count) {
        ps_str_add(why, "the job has no server '");
        ps_str_add_escaped(why, off, strlen(off), PS_NAME_MAX);
        ps_str_add(why, "'; psctl keys lists those that it has");
        return PS_E_INVAL;
    }
    if (p->server_count < 2) {
        ps_str_add(why, "the job has no other server");
        return PS_E_INVAL;
    }
    return 0;
}

void ps_sched_rebalance_query(struct ps_sched_step *st, struct ps_sched_conn *c,
                              struct ps_sched_job *j, const char *off,
                              bool makes)
{
    const uint64_t count = count_movable_parts(j);
    struct plan *p;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    uint32_t at;
    int rc = makes ? rebalance_error(st->s, j, &why) : 0;

    if (rc != 0) {
        ps_sched_conn_end_query(st, c, rc, why.data);
        return;
    }
    if (count > PS_REBALANCE_PARTS_MAX) {
        ps_sched_conn_end_query(st, c, PS_E_TOOBIG,
                                "the job has too many partitions for a plan");
        return;
    }
    p = ps_calloc(1, sizeof(*p));
    list_servers(st->s, j, p);
    rc = find_drained_server(j, off, p, &at, &why);
    if (rc != 0) {
        ps_free(p);
        ps_sched_conn_end_query(st, c, rc, why.data);
        return;
    }
    c->rebalance_reply = ps_calloc(1, sizeof(*c->rebalance_reply));
    c->rebalance_reply->gen = j->gen;
    if (j->servers.count > 0) { /* Else the agent owns all. */
        p->count = (uint32_t)count;
        rc = make_plan(st, j, c, p, at, makes);
    }
    ps_free(p->parts);
    ps_free(p);
    if (rc != 0) {
        ps_sched_rebalance_drop_reply(c);
        ps_str_addf(&why,
                    "the scheduler has no memory to plan for %u partitions: "
                    "ask again when others have ended",
                    (uint32_t)count);
        ps_sched_conn_end_query(st, c, rc, why.data);
    } else if (c->rebalance_reply->awaits_end) {
        ps_sched_moves_start(st, j);
    }
}
