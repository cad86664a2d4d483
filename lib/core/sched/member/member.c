/* SPDX-License-Identifier: Apache-2.0 */

#include "core/sched/member/member.h"

#include "base/alloc.h"
#include "base/state_table.h"
#include "base/str.h"

#include <string.h>

#define BIT PS_STATE_BIT

static const uint32_t successors[] = {
    [PS_NODE_STATE_JOINING] = BIT(PS_NODE_STATE_ACTIVE) |
                              BIT(PS_NODE_STATE_GONE),
    [PS_NODE_STATE_ACTIVE] = BIT(PS_NODE_STATE_SUSPECT) |
                             BIT(PS_NODE_STATE_GONE),
    [PS_NODE_STATE_SUSPECT] = BIT(PS_NODE_STATE_ACTIVE) |
                              BIT(PS_NODE_STATE_GONE),
    /* It may return: its name is not reused for another. */
    [PS_NODE_STATE_GONE] = BIT(PS_NODE_STATE_JOINING),
};

static const char *const state_names[] = {
    [PS_NODE_STATE_JOINING] = "JOINING",
    [PS_NODE_STATE_ACTIVE] = "ACTIVE",
    [PS_NODE_STATE_SUSPECT] = "SUSPECT",
    [PS_NODE_STATE_GONE] = "GONE",
};

/* A server or agent, at the scheduler. */
static const struct ps_state_table member_states = {
    .name = "member",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

void ps_members_init(struct ps_members *t)
{
    *t = (struct ps_members){.by_node = ps_map_new()};
}

void ps_members_set_base(struct ps_members *t, uint64_t base)
{
    /* Multiples of 1,000, so that the last digits of a node number count the
     * members. */
    const uint64_t starts = 1000000;
    struct ps_rng rng;

    assert(t->count == 0);
    t->incarnation_base = base;
    if (base != 0) {
        ps_rng_init(&rng, base);
        t->last_node = (uint32_t)(1000 * ps_rng_below(&rng, starts));
    }
}

static void member_free(struct ps_member *m)
{
    ps_member_drop_link(m);
    ps_free(m->pending_exits.list);
    ps_msg_free(m->last_costs);
    ps_msg_free(m->hello);
    ps_free(m);
}

void ps_members_fini(struct ps_members *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        member_free(t->sorted[i]);
    }
    ps_free(t->sorted);
    ps_map_free(t->by_node);
    memset(t, 0, sizeof(*t));
}

struct ps_member *ps_members_get(const struct ps_members *t, uint32_t node)
{
    return ps_map_get(t->by_node, node);
}

/* Index of (role, name), or where it would be inserted. */
static uint32_t find_position(const struct ps_members *t, enum ps_role role,
                              const char *name, bool *ret_found)
{
    uint32_t low = 0;
    uint32_t high = t->count;

    *ret_found = false;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const struct ps_member *m = t->sorted[mid];
        int order = m->role != role ? (m->role < role ? -1 : 1)
                                    : strcmp(m->name, name);

        if (order == 0) {
            *ret_found = true;
            return mid;
        }
        if (order < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

struct ps_member *ps_members_find(const struct ps_members *t, enum ps_role role,
                                  const char *name)
{
    bool found;
    uint32_t i = find_position(t, role, name, &found);

    return found ? t->sorted[i] : NULL;
}

static struct ps_member *add_member(struct ps_members *t, uint32_t node,
                                    enum ps_role role, const char *name)
{
    struct ps_member *m = ps_calloc(1, sizeof(*m));
    bool found;
    bool fits = ps_str_copy(m->name, sizeof(m->name), name);
    uint32_t i = find_position(t, role, name, &found);

    assert(!found && fits);
    m->node = node;
    m->incarnation = t->incarnation_base;
    m->role = (uint8_t)role;
    m->state = PS_NODE_STATE_JOINING;
    m->disconnected_at = PS_TIME_NEVER;
    m->forget_at = PS_TIME_NEVER;
    m->confirm_at = PS_TIME_NEVER;
    m->probe.due_at = PS_TIME_NEVER;
    t->sorted = ps_realloc(t->sorted, (t->count + 1u) * sizeof(t->sorted[0]));
    memmove(&t->sorted[i + 1], &t->sorted[i],
            (t->count - i) * sizeof(t->sorted[0]));
    t->sorted[i] = m;
    t->count++;
    ps_map_put(t->by_node, m->node, m);
    return m;
}

struct ps_member *ps_members_add(struct ps_members *t, enum ps_role role,
                                 const char *name)
{
    do {
        t->last_node++; /* The file may have members of any number. */
    } while (t->last_node == 0 || ps_members_get(t, t->last_node) != NULL);
    return add_member(t, t->last_node, role, name);
}

struct ps_member *ps_members_restore(struct ps_members *t,
                                     const struct ps_msg_row_member *row)
{
    struct ps_member *m = add_member(t, row->node, (enum ps_role)row->role,
                                     row->name);

    m->instance = row->instance;
    m->incarnation = row->incarnation;
    m->replaced_count = row->replaced_count;
    for (uint32_t i = 0; i < row->replaced_count; i++) {
        m->replaced[i] = row->replaced[i];
    }
    m->state = row->gone ? PS_NODE_STATE_GONE : PS_NODE_STATE_SUSPECT;
    return m;
}

void ps_members_remove(struct ps_members *t, struct ps_member *m)
{
    bool found;
    uint32_t i = find_position(t, m->role, m->name, &found);

    assert(found && t->sorted[i] == m);
    memmove(&t->sorted[i], &t->sorted[i + 1],
            (t->count - i - 1) * sizeof(struct ps_member *));
    t->count--;
    ps_map_remove(t->by_node, m->node);
    member_free(m);
}

uint32_t ps_members_count(const struct ps_members *t, enum ps_role role,
                          enum ps_node_state state)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < t->count; i++) {
        count += t->sorted[i]->role == role && t->sorted[i]->state == state;
    }
    return count;
}

void ps_member_set_state(struct ps_member *m, enum ps_node_state to,
                         const char *why, struct ps_effects *fx)
{
    /* One that said before that it ends is no loss. */
    const bool bad = to == PS_NODE_STATE_GONE && !m->last_ping.draining;

    ps_state_change(&member_states, &m->state, (uint8_t)to);
    ps_effects_log(fx, bad ? PS_LOG_WARNING : PS_LOG_INFO,
                   "node %u %s role %s name %s incarnation %llu%s%s", m->node,
                   state_names[to], ps_role_name(m->role), m->name,
                   (unsigned long long)m->incarnation, why != NULL ? ": " : "",
                   why != NULL ? why : "");
}

bool ps_member_is_connected(const struct ps_member *m)
{
    return m->link != NULL && ps_link_conn(m->link) != 0;
}

static uint64_t per_second(uint64_t now, uint64_t before, ps_time span)
{
    /* In floating point: times 1e9, the difference may overflow 64 bits. */
    return now > before
               ? (uint64_t)((double)(now - before) * 1e9 / (double)span)
               : 0;
}

void ps_member_record_ping(struct ps_member *m, const struct ps_msg_ping *ping,
                           ps_time now)
{
    struct ps_member_rates *r = &m->rates;

    m->last_ping = *ping;
    if (r->base_at != 0 && now - r->base_at < PS_MEMBER_RATE_SPAN) {
        return;
    }
    if (r->base_at != 0) {
        const struct ps_msg_ping *base = &r->base;
        const ps_time span = now - r->base_at;

        r->rounds = per_second(ping->rounds, base->rounds, span);
        r->bytes_in = per_second(ping->bytes_in, base->bytes_in, span);
        r->bytes_out = per_second(ping->bytes_out, base->bytes_out, span);
        r->gpu_up = per_second(ping->gpu_up, base->gpu_up, span);
        r->gpu_down = per_second(ping->gpu_down, base->gpu_down, span);
    }
    r->base = *ping;
    r->base_at = now;
}

void ps_member_unreached(struct ps_member *m)
{
    m->probe.was_reached = false;
    m->probe.in_flight = false;
    m->probe.due_at = PS_TIME_NEVER;
    m->probe.unreachable = 0;
}

void ps_member_replace_instance(struct ps_member *m, uint64_t instance)
{
    if (m->instance != 0) {
        m->replaced[m->replaced_count % PS_MEMBER_REPLACED_MAX] = m->instance;
        m->replaced_count++;
    }
    m->instance = instance;
    m->incarnation++;
    m->last_ping = (struct ps_msg_ping){0};
    if (m->probe.was_reached) {
        m->probe.last_at = 0; /* The new process is probed at once. */
    }
    ps_member_unreached(m);
    m->rates = (struct ps_member_rates){0};
}

bool ps_member_was_replaced(const struct ps_member *m, uint64_t instance)
{
    uint32_t count = m->replaced_count < PS_MEMBER_REPLACED_MAX
                         ? m->replaced_count
                         : PS_MEMBER_REPLACED_MAX;

    for (uint32_t i = 0; i < count; i++) {
        if (m->replaced[i] == instance) {
            return true;
        }
    }
    return false;
}

void ps_member_drop_link(struct ps_member *m)
{
    ps_link_free(m->link);
    m->link = NULL;
    m->session = 0;
    m->disconnected_at = PS_TIME_NEVER;
    m->pending_exits.count = 0;
}

/* Drops ends before which all messages have arrived: so have the
 * registrations. */
static void prune_pending_exits(struct ps_member *m)
{
    uint64_t received = ps_link_received(m->link);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < m->pending_exits.count; i++) {
        if (m->pending_exits.list[i].seq > received) {
            m->pending_exits.list[kept++] = m->pending_exits.list[i];
        }
    }
    m->pending_exits.count = kept;
}

void ps_member_add_pending_exit(struct ps_member *m, uint64_t worker,
                                uint64_t seq)
{
    prune_pending_exits(m);
    if (seq <= ps_link_received(m->link)) {
        return;
    }
    if (m->pending_exits.count == m->pending_exits.capacity) {
        m->pending_exits.capacity = m->pending_exits.capacity * 2 + 8;
        m->pending_exits.list = ps_realloc(m->pending_exits.list,
                                           m->pending_exits.capacity *
                                               sizeof(*m->pending_exits.list));
    }
    m->pending_exits.list[m->pending_exits.count++] =
        (struct ps_member_pending_exit){.worker = worker, .seq = seq};
}

bool ps_member_has_pending_exit(struct ps_member *m, uint64_t worker)
{
    /* No pruning here: the registration itself may just have closed the gap. */
    for (uint32_t i = 0; i < m->pending_exits.count; i++) {
        if (m->pending_exits.list[i].worker == worker) {
            return true;
        }
    }
    return false;
}
