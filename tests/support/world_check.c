/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants that hold after every step, whatever the network does. */
#include "support/world_internal.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "core/codec/compression.h"
#include "core/part/round.h"
#include "core/part/rows.h"
#include "core/server/copies.h"
#include "proto/ps_fixed.h"
#include "support/agent_peek.h"
#include "support/world_data.h"

#include <string.h>

static uint64_t part_id(uint64_t gen, uint32_t key, uint32_t index)
{
    uint64_t id = ps_fnv1a_64(PS_FNV1A_64, &gen, sizeof(gen));

    id = ps_fnv1a_64(id, &key, sizeof(key));
    return ps_fnv1a_64(id, &index, sizeof(index));
}

/* ------------------------------------------------------------------- credit */

/* Bytes that the server may have to hold for the slot: those it holds, and
 * those that the announced credit still lets the agent send. */
static uint64_t reach_of(const struct server_credit *c)
{
    return c->unmerged_bytes + (c->announced_bytes > c->received_bytes
                                    ? c->announced_bytes - c->received_bytes
                                    : 0);
}

/* The reach of a slot rises above its window in three cases only: a new session
 * of its link begins with the initial credit again; the last partition sent
 * exceeds the credit; and the server gives more credit to a slot that has none
 * left and that all others wait for. It falls when rounds are merged. */
static void check_slot_credit(struct world *w, const struct wnode *server,
                              const struct wcredit *job, uint32_t slot,
                              const struct server_credit *now)
{
    const uint64_t initial = w->opt.initial_credit;
    const uint64_t window = ps_max_u64(w->opt.credit_window, initial);
    const struct server_credit *was = &job->slot[slot];
    uint64_t limit = ps_max_u64(reach_of(was), window);

    if (now->session != was->session ||
        now->received_bytes < was->received_bytes ||
        now->announced_bytes < was->announced_bytes) {
        limit = ps_max_u64(limit, was->unmerged_bytes + initial);
    } else if (now->received_bytes > was->announced_bytes) {
        const uint64_t excess = now->received_bytes - was->announced_bytes;

        if (excess >= job->largest_part + w->lied_bytes) {
            world_fail(w,
                       "%s received %llu bytes of slot %u of job %llu beyond "
                       "its credit, a partition or more",
                       server->name, (unsigned long long)excess, slot,
                       (unsigned long long)job->gen);
        }
        limit += ps_min_u64(excess, now->received_bytes - was->received_bytes);
    }
    if (now->is_awaited && now->received_bytes >= was->announced_bytes) {
        limit += ps_max_u64(window / 4, 1);
    }
    if (reach_of(now) > limit) {
        world_fail(
            w,
            "%s may have to hold %llu bytes of slot %u of job %llu, more "
            "than %llu with a window of %llu",
            server->name, (unsigned long long)reach_of(now), slot,
            (unsigned long long)job->gen, (unsigned long long)limit,
            (unsigned long long)window);
    }
}

static void check_credit(struct world *w, struct wnode *server)
{
    if (world_is_large(w)) {
        return;
    }
    for (uint32_t n = 0; n < WORLD_CREDITS_MAX; n++) {
        struct wcredit *job = &server->credit[n];

        for (uint32_t i = 0; job->gen != 0 && i < w->opt.agents; i++) {
            struct server_credit now;

            if (!server_peek_credit(server->server, job->gen, i, &now)) {
                now = (struct server_credit){0};
            }
            check_slot_credit(w, server, job, i, &now);
            job->slot[i] = now;
        }
    }
}

/* Returns the credit of the job, in place of the oldest if it is new here. */
static struct wcredit *credit_of(struct world *w, struct wnode *server,
                                 uint64_t gen)
{
    struct wcredit *job = &server->credit[WORLD_CREDITS_MAX - 1];
    struct server_credit *oldest = server->credit[0].slot;

    for (uint32_t n = 0; n < WORLD_CREDITS_MAX; n++) {
        if (server->credit[n].gen == gen) {
            return &server->credit[n];
        }
    }
    memmove(&server->credit[0], &server->credit[1],
            (WORLD_CREDITS_MAX - 1) * sizeof(server->credit[0]));
    memset(oldest, 0, w->opt.agents * sizeof(*oldest));
    *job = (struct wcredit){.gen = gen, .slot = oldest};
    for (uint32_t i = 0; i < w->opt.agents; i++) {
        (void)server_peek_credit(server->server, gen, i, &job->slot[i]);
    }
    return job;
}

/* Records the partitions of a push before the server counts them. */
static void note_push(struct world *w, struct wnode *server,
                      const struct ps_msg *m)
{
    struct wcredit *job;

    if (m->code == PS_MSG_PUSH) {
        job = credit_of(w, server, m->push.gen);
        for (uint32_t i = 0; i < m->push.parts_count; i++) {
            job->largest_part = ps_max_u64(
                job->largest_part, ps_part_payload_bytes(&m->push.parts[i]));
        }
    } else if (m->code == PS_MSG_PUSH_ROWS) {
        job = credit_of(w, server, m->push_rows.gen);
        for (uint32_t i = 0; i < m->push_rows.parts_count; i++) {
            const struct ps_rec_rows *r = &m->push_rows.parts[i];

            job->largest_part = ps_max_u64(
                job->largest_part,
                ps_rows_numbers_bytes(r->count) +
                    ps_rows_data_bytes(r->count, r->row_width, r->dtype));
        }
    }
}

/* ------------------------------------------------------------------ commits */

/* Records the versions the server has made: messages about them may still
 * arrive. */
void check_before_death(struct world *w, const struct wnode *n)
{
    PS_MAP_EACH(const struct ps_server_job, job, n->server->jobs.by_gen)
    {
        PS_MAP_EACH(const struct ps_part, part, job->store.parts)
        {
            const uint64_t id = part_id(job->gen, part->key, part->index);
            const uint64_t version = part->image.version;

            if ((uintptr_t)ps_map_get(w->committed_at_death, id) <
                version + 1) {
                (void)ps_map_remove(w->committed_at_death, id);
                ps_map_put(w->committed_at_death, id,
                           (void *)(uintptr_t)(version + 1));
            }
        }
    }
}

void check_before(struct world *w, struct wnode *n, const struct ps_event *ev)
{
    if (n->role != PS_ROLE_SERVER || ev->type != PS_EV_MSG) {
        return;
    }
    if (ev->msg.msg->code == PS_MSG_JOB_STATE) {
        check_before_death(w, n);
    }
    note_push(w, n, ev->msg.msg);
}

/* No partition is committed for an agent before the owning server has made that
 * version: an acknowledgement means merged. */
static void check_commit_is_merged(struct world *w, const struct wnode *agent,
                                   uint64_t gen, uint32_t key, uint32_t index)
{
    const struct ps_agent_part *p = agent_peek_part(agent->agent, gen, key,
                                                    index);
    uint64_t best = 0;
    const void *dead = ps_map_get(w->committed_at_death,
                                  part_id(gen, key, index));

    if (dead != NULL) {
        best = (uintptr_t)dead - 1;
    }
    if (p == NULL) {
        return;
    }
    for (uint32_t i = 0; i < w->opt.servers; i++) {
        const struct wnode *n = &w->node[1 + i];
        uint64_t version;
        const struct ps_slice *value;

        if (!n->alive) {
            continue;
        }
        if (server_peek(n->server, gen, key, index, &version, &value)) {
            best = ps_max_u64(best, version);
        }
    }
    if (p->committed_version > (int64_t)best) {
        world_fail(w,
                   "%s got a reply that round %llu of key %u part %u is "
                   "committed, the servers are at %llu",
                   agent->name, (unsigned long long)p->committed_version, key,
                   index, (unsigned long long)best);
    }
}

/* ------------------------------------------------------------------- copies */

static void check_copy(struct world *w, const struct wnode *owner,
                       const struct ps_server_copy *c,
                       const struct ps_server_backup_part *p)
{
    const struct ps_part *part = ps_store_find(&c->target->job->store, c->key,
                                               c->index);

    if (part == NULL || part->merge != NULL || part->changed_buffers != 0 ||
        p->number != c->confirmed || p->next.number != 0) {
        return;
    }
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        const struct ps_slice *a = &part->buffers[i];
        const struct ps_slice *b = &p->part->buffers[i];

        if (a->len != b->len ||
            (a->len > 0 &&
             memcmp(ps_slice_data(a), ps_slice_data(b), a->len) != 0)) {
            world_fail(w,
                       "version %llu of key %u part %u is not the same at %s "
                       "and at its backup: buffer %u differs",
                       (unsigned long long)part->image.version, c->key,
                       c->index, owner->name, i);
            return;
        }
    }
    if (part->image.version != p->part->image.version ||
        part->image.step_offset != p->part->image.step_offset ||
        part->image.accumulated_rounds != p->part->image.accumulated_rounds ||
        part->image.accumulated_weight != p->part->image.accumulated_weight) {
        world_fail(w,
                   "key %u part %u has version %llu at %s and %llu at its "
                   "backup, or other counters",
                   c->key, c->index, (unsigned long long)part->image.version,
                   owner->name, (unsigned long long)p->part->image.version);
    }
}

static void check_parts(struct world *w, const struct wnode *owner,
                        const struct ps_server_target *t,
                        const struct ps_server_backup *b)
{
    PS_MAP_EACH(const struct ps_server_copy, c, t->parts)
    {
        const struct ps_server_backup_part *p = ps_map_get(
            b->parts, ps_part_id(c->key, c->index));

        if (p != NULL && c->confirmed != 0 && c->confirmed == c->changed) {
            check_copy(w, owner, c, p);
        }
    }
}

/* Copies that a backup has confirmed have the bits of the server. */
static void check_target(struct world *w, const struct wnode *owner,
                         const struct ps_server_target *t)
{
    const struct wnode *to = world_node_named(w, t->peer->name,
                                              strlen(t->peer->name));
    const struct ps_server_job *there =
        to != NULL && to->server != NULL &&
                to->server->opt.instance == t->peer->instance
            ? ps_map_get(to->server->jobs.by_gen, t->job->gen)
            : NULL;

    if (there == NULL || there->copies.backups == NULL || t->move != 0) {
        return;
    }
    PS_MAP_EACH(const struct ps_server_backup, b, there->copies.backups)
    {
        if (b->instance == owner->server->opt.instance &&
            b->epoch == t->job->copies.epoch) {
            check_parts(w, owner, t, b);
        }
    }
}

static void check_copies(struct world *w, const struct wnode *owner)
{
    if (world_is_large(w)) {
        return;
    }
    PS_MAP_EACH(const struct ps_server_job, job, owner->server->jobs.by_gen)
    {
        PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                        &job->copies.targets)
        {
            check_target(w, owner, t);
        }
    }
}

void check_step(struct world *w, struct wnode *n, const struct ps_event *ev)
{
    const struct ps_msg *m = ev->type == PS_EV_MSG ? ev->msg.msg : NULL;

    if (n->role == PS_ROLE_SERVER) {
        check_credit(w, n);
        if (ev->type == PS_EV_COMPUTED ||
            (m != NULL && m->code == PS_MSG_COPIED)) {
            check_copies(w, n);
        }
    } else if (m == NULL || n->role != PS_ROLE_AGENT) {
        return;
    } else if (m->code == PS_MSG_COMMIT) {
        for (uint32_t i = 0; i < m->commit.parts_count; i++) {
            check_commit_is_merged(w, n, m->commit.gen, m->commit.parts[i].key,
                                   m->commit.parts[i].index);
        }
    } else if (m->code == PS_MSG_VALUE) {
        for (uint32_t i = 0; i < m->value.parts_count; i++) {
            check_commit_is_merged(w, n, m->value.gen, m->value.parts[i].key,
                                   m->value.parts[i].index);
        }
    }
}

/* One owner of a partition in an epoch: repeated placements are equal. */
static void check_placement(struct world *w, const struct ps_packet *p)
{
    const struct ps_msg_key_opened *m = &p->msg->key_opened;
    const uint8_t *at;

    if (m->error != 0 || p->slice_count == 0) {
        return;
    }
    at = ps_slice_data(&p->slices[0]);
    for (uint32_t i = 0; i < m->parts; i++) {
        uint64_t id = PS_FNV1A_64;
        uint64_t owner;
        void *old;
        struct ps_fixed_placement_part row;

        if (!ps_fixed_get_placement_part(
                at + (size_t)i * PS_FIXED_PLACEMENT_PART_BYTES, &row)) {
            world_fail(w, "key %u part %u: malformed placement", m->key, i);
            return;
        }
        id = ps_fnv1a_64(id, &m->gen, sizeof(m->gen));
        id = ps_fnv1a_64(id, &m->epoch, sizeof(m->epoch));
        id = ps_fnv1a_64(id, &m->key, sizeof(m->key));
        id = ps_fnv1a_64(id, &i, sizeof(i));
        owner = ((uint64_t)row.count << 32 | row.node) + 1;
        old = ps_map_get(w->owners, id);
        if (old == NULL) {
            ps_map_put(w->owners, id, (void *)(uintptr_t)owner);
        } else if ((uintptr_t)old != owner) {
            world_fail(w, "epoch %u: key %u part %u has two owners", m->epoch,
                       m->key, i);
        }
    }
}

void check_frame(struct world *w, const struct wnode *from,
                 const struct wnode *to, const struct ps_packet *packet)
{
    if (packet->msg->code == PS_MSG_KEY_OPENED) {
        check_placement(w, packet);
    }
    if (packet->msg->code == PS_MSG_COPY && packet->msg->copy.step_count > 0 &&
        to->server != NULL &&
        to->server->opt.kernel_class != from->server->opt.kernel_class) {
        world_fail(w, "%s sends a step to %s, which may compute other bits",
                   from->name, to->name);
    }
}

/* A round that all ranks skip does not change the value. */
static void check_value_unchanged(struct world *w, uint32_t key,
                                  uint64_t version)
{
    if (world_data_all_skip(w, key, version) &&
        w->job[w->current_job].seen_set[key][version] &&
        w->job[w->current_job].seen_set[key][version - 1] &&
        w->job[w->current_job].seen_hash[key][version] !=
            w->job[w->current_job].seen_hash[key][version - 1]) {
        world_fail(w, "round %llu of %s, which all passed, changed the value",
                   (unsigned long long)version, w->opt.key[key].name);
    }
}

/* Version 0 is the array of rank 0's init, unless a codec has encoded it. */
static void check_first_value(struct world *w, const struct wworker *k,
                              uint32_t key, uint64_t version, const void *data,
                              size_t len)
{
    void *want;

    if (version != 0 || w->opt.compress.name != NULL) {
        return;
    }
    want = ps_alloc(len);
    world_data_fill(w, want, key, 0, 0);
    if (!w->opt.init || memcmp(want, data, len) != 0) {
        world_fail(w, "rank %u: version 0 of %s is not its first value",
                   k->rank, w->opt.key[key].name);
    }
    ps_free(want);
}

/* All workers receive the same bits of a version; where servers only add, they
 * equal the expected bits. */
void check_value(struct world *w, struct wworker *k, uint32_t key,
                 uint64_t version, const void *data, size_t len)
{
    uint64_t h = ps_fnv1a_64(PS_FNV1A_64, data, len);

    if (version >= 255) {
        world_fail(w, "rank %u: version %llu of %s", k->rank,
                   (unsigned long long)version, w->opt.key[key].name);
        return;
    }
    if (!w->job[w->current_job].seen_set[key][version]) {
        w->job[w->current_job].seen_set[key][version] = true;
        w->job[w->current_job].seen_hash[key][version] = h;
        check_value_unchanged(w, key, version);
        check_value_unchanged(w, key, version + 1);
        world_model_check(w, key, version, data);
        check_first_value(w, k, key, version, data, len);
        if (world_data_is_exact(w, key) && version > 0) {
            void *want = ps_alloc(len);

            world_data_expect(w, want, key, version);
            if (memcmp(want, data, len) != 0) {
                world_fail(w,
                           "rank %u: round %llu of %s is not the sum of what "
                           "was pushed",
                           k->rank, (unsigned long long)version,
                           w->opt.key[key].name);
            }
            ps_free(want);
        }
    } else if (w->job[w->current_job].seen_hash[key][version] != h) {
        world_fail(w, "rank %u sees other bits of version %llu of %s", k->rank,
                   (unsigned long long)version, w->opt.key[key].name);
    }
}

/* Each push is counted once or not at all: the puller's own pushes are, those
 * of others at least as far as the mode guarantees, and after the last barrier
 * all are. */
void check_counts(struct world *w, const struct wworker *k, uint32_t key,
                  uint64_t pushes, const void *data)
{
    for (uint64_t j = 0; j < w->opt.key[key].count; j++) {
        int64_t value = world_data_push_count(w, data, key, j);
        int64_t has = w->opt.optimizer ? WORLD_COUNT_INITIAL - value
                                       : value - WORLD_COUNT_INITIAL;
        uint32_t rank = world_data_owner_rank(w, j);
        uint64_t least = 0;
        uint64_t most = w->worker[k->index - k->rank + rank].key[key].round;

        if (rank == k->rank || k->stage == WS_FINAL) {
            least = pushes;
        } else if (w->opt.mode == PS_MODE_SSP && pushes > w->opt.staleness) {
            least = pushes - w->opt.staleness;
        }
        if (rank == k->rank) {
            most = pushes;
        }
        if (has < (int64_t)least || has > (int64_t)most) {
            world_fail(
                w,
                "rank %u, after %llu pushes of %s: element %llu has %lld "
                "of rank %u, and must have %llu to %llu",
                k->rank, (unsigned long long)pushes, w->opt.key[key].name,
                (unsigned long long)j, (long long)has, rank,
                (unsigned long long)least, (unsigned long long)most);
            return;
        }
    }
}

void check_rows(struct world *w, struct wworker *k, uint32_t key,
                uint64_t version, const uint32_t *row, uint32_t count,
                const void *data)
{
    const struct world_key *wk = &w->opt.key[key];
    size_t bytes = wk->width * ps_dtype_size(wk->dtype);
    size_t all = wk->count * ps_dtype_size(wk->dtype);
    uint8_t *want;

    if (count == wk->count / wk->width) {
        check_value(w, k, key, version, data, all);
        return;
    }
    if (!world_data_is_exact(w, key) || version == 0) {
        return;
    }
    want = ps_alloc(all);
    world_data_expect(w, want, key, version);
    for (uint32_t i = 0; i < count; i++) {
        if (memcmp(want + row[i] * bytes, (const uint8_t *)data + i * bytes,
                   bytes) != 0) {
            world_fail(w,
                       "rank %u: row %u of round %llu of %s is not the sum of "
                       "what was pushed",
                       k->rank, row[i], (unsigned long long)version, wk->name);
            break;
        }
    }
    ps_free(want);
}

/* The job is over: no daemon keeps state of it. */
/* -------------------------------------------------------------------- links */

void check_pre_handshake(struct world *w, const struct wnode *n)
{
    uint32_t count = 0;

    PS_LIST_EACH(item, &n->pre_handshake.conns)
    {
        count +=
            !PS_CONTAINER(item, struct ps_pre_handshake_conn, node)->is_evicted;
    }
    if (count > n->pre_handshake.max) {
        world_fail(w, "%s keeps %u connections that have sent nothing", n->name,
                   count);
    }
}

void check_acked(struct world *w, ps_conn_id main, uint64_t ack)
{
    struct wconn *c = world_conn(w, main / 2);

    c->acked[main % 2] = ps_max_u64(c->acked[main % 2], ack);
}

static bool is_sent_now(const struct wnode *n, ps_conn_id conn, uint64_t seq)
{
    for (uint32_t i = 0; i < n->fx.count; i++) {
        const struct ps_fx *f = &n->fx.items[i];

        if (f->type == PS_FX_SEND && f->send.conn == conn &&
            f->send.seq == seq) {
            return true;
        }
    }
    return false;
}

void check_resent(struct world *w, const struct wconn *c, uint32_t end,
                  ps_conn_id main)
{
    const struct wconn *first = world_conn(w, main / 2);

    if (first == NULL || first->ended[end] || !first->open[end]) {
        return; /* The link is resumed on another connection, or over. */
    }
    for (uint32_t i = 0; i < c->carried_count[end]; i++) {
        uint64_t seq = c->carried[end][i];

        if (seq > first->acked[end] && !is_sent_now(c->node[end], main, seq)) {
            world_fail(w,
                       "%s has lost a connection with frame %llu, and does not "
                       "send it again",
                       c->node[end]->name, (unsigned long long)seq);
        }
    }
}

/* A daemon refuses no message of an honest one for lack of authority. */
static void check_refused(struct world *w, const struct wnode *n)
{
    struct ps_agent_stats agent = {0};
    struct ps_server_stats server = {0};
    uint64_t refused = 0;

    if (n->role == PS_ROLE_SCHED) {
        refused = ps_sched_refused_frames(n->sched);
    } else if (n->role == PS_ROLE_SERVER) {
        ps_server_stats(n->server, &server);
        refused = server.refused_frames;
    } else if (n->role == PS_ROLE_AGENT) {
        ps_agent_stats(n->agent, &agent);
        refused = agent.refused_frames;
    }
    if (refused > 0 && w->lies == 0) {
        world_fail(w, "%s refused %llu messages of honest peers", n->name,
                   (unsigned long long)refused);
    }
}

void check_end(struct world *w)
{
    if (ps_map_count(w->segments) != 0) {
        world_fail(w, "agents keep %zu pieces of memory of a job that is over",
                   ps_map_count(w->segments));
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct wnode *n = &w->node[i];
        uint64_t left = 0;
        uint64_t used = 0;

        if (!n->alive) {
            continue;
        }
        check_refused(w, n);
        switch (n->role) {
        case PS_ROLE_SCHED:
            left = ps_sched_residue(n->sched);
            break;
        case PS_ROLE_SERVER:
            left = ps_server_residue(n->server);
            used = ps_pool_used(n->pool) + world_state_residue(n);
            break;
        case PS_ROLE_AGENT:
            left = ps_agent_residue(n->agent);
            used = ps_pool_used(n->pool);
            break;
        case PS_ROLE_WORKER:
        case PS_ROLE_CTL:
            break;
        }
        if (left != 0 || used != 0) {
            world_fail(w,
                       "%s remembers %llu things and %llu bytes of a job that "
                       "is over",
                       n->name, (unsigned long long)left,
                       (unsigned long long)used);
        }
    }
}

/* ------------------------------------------------------------------ scalars */

struct scalar_query {
    const char *name;
    uint32_t ranks;
    double sum;
};

static void add_scalar(void *ctx, const struct ps_msg_job_row *job,
                       const struct ps_rec_job_scalar *scalar)
{
    struct scalar_query *q = ctx;

    (void)job;
    if (strcmp(scalar->name, q->name) == 0) {
        q->ranks += scalar->ranks;
        q->sum += scalar->mean * scalar->ranks;
    }
}

uint32_t world_scalar(const struct world *w, const char *name, double *ret_sum)
{
    struct scalar_query q = {.name = name};

    ps_sched_each_scalar(w->node[0].sched, add_scalar, &q);
    *ret_sum = q.sum;
    return q.ranks;
}
