/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants that hold after every step, whatever the network does. */
#include "support/world_internal.h"

#include "base/alloc.h"
#include "support/world_data.h"

#include <string.h>

static uint64_t part_id(uint64_t gen, uint32_t key, uint32_t index)
{
    uint64_t id = world_hash(0xcbf29ce484222325u, &gen, sizeof(gen));

    id = world_hash(id, &key, sizeof(key));
    return world_hash(id, &index, sizeof(index));
}

/* Records the versions the server has made: messages about them may still
 * arrive. */
void check_before_death(struct world *w, const struct wnode *n)
{
    const struct wworker *k = &w->worker[0];

    for (uint32_t i = 1; i < w->opt.workers && k->gen == 0; i++) {
        k = &w->worker[i];
    }
    for (uint32_t i = 0; i < w->opt.key_count; i++) {
        for (uint32_t index = 0; index < WORLD_PARTS_MAX; index++) {
            const struct ps_slice *value;
            uint64_t id = part_id(k->gen, k->key[i].key, index);
            uint64_t version;

            if (ps_server_peek(n->server, k->gen, k->key[i].key, index,
                               &version, &value) &&
                (uintptr_t)ps_map_get(w->committed_at_death, id) <
                    version + 1) {
                (void)ps_map_remove(w->committed_at_death, id);
                ps_map_put(w->committed_at_death, id,
                           (void *)(uintptr_t)(version + 1));
            }
        }
    }
}

void check_before(struct world *w, const struct wnode *n,
                  const struct ps_event *ev)
{
    if (n->role == PS_ROLE_SERVER && ev->type == PS_EV_MSG &&
        ev->msg.msg->code == PS_MSG_JOB_STATE) {
        check_before_death(w, n);
    }
}

/* No partition is committed for an agent before the owning server has made that
 * version: an acknowledgement means merged. */
static void check_commit_is_merged(struct world *w, const struct wnode *agent,
                                   uint64_t gen, uint32_t key, uint32_t index)
{
    uint64_t committed;
    uint64_t best = 0;
    bool known = false;
    const void *dead = ps_map_get(w->committed_at_death,
                                  part_id(gen, key, index));

    if (dead != NULL) {
        known = true;
        best = (uintptr_t)dead - 1;
    }
    if (!ps_agent_peek(agent->agent, gen, key, index, &committed) ||
        committed == 0) {
        return;
    }
    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct wnode *n = &w->node[i];
        uint64_t version;
        const struct ps_slice *value;

        if (n->role != PS_ROLE_SERVER) {
            continue;
        }
        if (!n->alive) {
            continue;
        }
        if (ps_server_peek(n->server, gen, key, index, &version, &value)) {
            known = true;
            best = ps_max_u64(best, version);
        }
    }
    if (known && committed > best) {
        world_fail(w,
                   "%s was told that round %llu of key %u part %u is "
                   "committed, the servers are at %llu",
                   agent->name, (unsigned long long)committed, key, index,
                   (unsigned long long)best);
    }
}

/* A slot's unmerged bytes exceed its window by one frame at most, unless a
 * round has lacked the slot since: a slot that others wait for is exempt. A new
 * link starts with the initial credit again. */
static void check_credit(struct world *w, struct wnode *server)
{
    const uint64_t gen = server->gen;
    const uint64_t first = w->opt.initial_credit == 0 ? PS_CREDIT_INITIAL
                                                      : w->opt.initial_credit;
    const uint64_t part = w->opt.partition_bytes == 0
                              ? PS_PARTITION_BYTES_DEFAULT
                              : w->opt.partition_bytes;
    const uint64_t window = ps_max_u64(w->opt.credit_window, first);

    /* With a smaller window every partition needs an exemption. */
    if (w->opt.credit_window < part) {
        return;
    }
    for (uint32_t i = 0; i < w->opt.agents; i++) {
        const uint64_t have = ps_server_unmerged_bytes(server->server, gen, i);

        server->let_on[i] = ps_server_round_lacks_slot(server->server, gen,
                                                       i) ||
                            (server->let_on[i] && have > window);
        if (have > window + first + part && !server->let_on[i]) {
            world_fail(w,
                       "%s holds %llu unmerged bytes of slot %u, more than its "
                       "window of %llu",
                       server->name, (unsigned long long)have, i,
                       (unsigned long long)window);
        }
    }
}

void check_step(struct world *w, struct wnode *n, const struct ps_event *ev)
{
    const struct ps_msg *m = ev->type == PS_EV_MSG ? ev->msg.msg : NULL;

    if (n->role == PS_ROLE_SERVER) {
        if (m != NULL && m->code == PS_MSG_PUSH) {
            n->gen = m->push.gen;
        }
        check_credit(w, n);
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
        uint64_t id = 0xcbf29ce484222325u;
        uint64_t owner;
        void *old;
        uint32_t record[2];

        memcpy(record, at + 8 * i, 8);
        id = world_hash(id, &m->gen, sizeof(m->gen));
        id = world_hash(id, &m->epoch, sizeof(m->epoch));
        id = world_hash(id, &m->key, sizeof(m->key));
        id = world_hash(id, &i, sizeof(i));
        owner = ((uint64_t)record[1] << 32 | record[0]) + 1;
        old = ps_map_get(w->owners, id);
        if (old == NULL) {
            ps_map_put(w->owners, id, (void *)(uintptr_t)owner);
        } else if ((uintptr_t)old != owner) {
            world_fail(w, "epoch %u: key %u part %u has two owners", m->epoch,
                       m->key, i);
        }
    }
}

void check_frame(struct world *w, struct wnode *from,
                 const struct ps_packet *parcel)
{
    (void)from;
    if (parcel->msg->code == PS_MSG_KEY_OPENED) {
        check_placement(w, parcel);
    }
}

/* A round that all ranks skip does not change the value. */
static void check_value_unchanged(struct world *w, uint32_t key,
                                  uint64_t version)
{
    if (world_data_all_skip(w, key, version) && w->seen_set[key][version] &&
        w->seen_set[key][version - 1] &&
        w->seen_hash[key][version] != w->seen_hash[key][version - 1]) {
        world_fail(w, "round %llu of %s, which all passed, changed the value",
                   (unsigned long long)version, w->opt.key[key].name);
    }
}

/* All workers receive the same bits of a version; where servers only add, they
 * equal the expected bits. */
void check_value(struct world *w, struct wworker *k, uint32_t key,
                 uint64_t version, const void *data, size_t len)
{
    uint64_t h = world_hash(0xcbf29ce484222325u, data, len);

    if (version >= 255) {
        world_fail(w, "rank %u: version %llu of %s", k->index,
                   (unsigned long long)version, w->opt.key[key].name);
        return;
    }
    if (!w->seen_set[key][version]) {
        w->seen_set[key][version] = true;
        w->seen_hash[key][version] = h;
        check_value_unchanged(w, key, version);
        check_value_unchanged(w, key, version + 1);
        world_model_check(w, key, version, data);
        if (world_data_is_exact(w, key) && version > 0) {
            void *want = ps_alloc(len);

            world_data_expect(w, want, key, version);
            if (memcmp(want, data, len) != 0) {
                world_fail(w,
                           "rank %u: round %llu of %s is not the sum of what "
                           "was pushed",
                           k->index, (unsigned long long)version,
                           w->opt.key[key].name);
            }
            ps_free(want);
        }
    } else if (w->seen_hash[key][version] != h) {
        world_fail(w, "rank %u sees other bits of version %llu of %s", k->index,
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
        uint64_t most = w->worker[rank].key[key].round;

        if (rank == k->index || k->stage == WS_FINAL) {
            least = pushes;
        } else if (w->opt.mode == PS_MODE_SSP && pushes > w->opt.staleness) {
            least = pushes - w->opt.staleness;
        }
        if (rank == k->index) {
            most = pushes;
        }
        if (has < (int64_t)least || has > (int64_t)most) {
            world_fail(
                w,
                "rank %u, after %llu pushes of %s: element %llu has %lld "
                "of rank %u, and must have %llu to %llu",
                k->index, (unsigned long long)pushes, w->opt.key[key].name,
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
                       k->index, row[i], (unsigned long long)version, wk->name);
            break;
        }
    }
    ps_free(want);
}

/* The job is over: no daemon keeps state of it. */
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
        switch (n->role) {
        case PS_ROLE_SCHED:
            left = ps_sched_residue(n->sched);
            break;
        case PS_ROLE_SERVER:
            left = ps_server_residue(n->server);
            used = ps_pool_used(n->pool);
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
