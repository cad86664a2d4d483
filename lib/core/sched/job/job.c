/* SPDX-License-Identifier: Apache-2.0 */
/* One job: its workers, slots, servers and keys, and the barriers of its ranks. */
#include "core/sched/job/job.h"

#include "base/alloc.h"
#include "base/bits.h"
#include "base/map.h"
#include "base/name_hash.h"
#include "base/state_table.h"
#include "core/part/fair.h"
#include "core/sched/job/history.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BIT PS_STATE_BIT

static const uint32_t successors[] = {
    [PS_JOB_PHASE_FORMING] = BIT(PS_JOB_PHASE_STARTING) |
                             BIT(PS_JOB_PHASE_FAILED) | BIT(PS_JOB_PHASE_ENDED),
    [PS_JOB_PHASE_STARTING] = BIT(PS_JOB_PHASE_RUNNING) |
                              BIT(PS_JOB_PHASE_FAILED) |
                              BIT(PS_JOB_PHASE_ENDED),
    [PS_JOB_PHASE_RUNNING] = BIT(PS_JOB_PHASE_FAILED) | BIT(PS_JOB_PHASE_ENDED),
    [PS_JOB_PHASE_FAILED] = BIT(PS_JOB_PHASE_ENDED),
    [PS_JOB_PHASE_ENDED] = 0,
};

static const char *const phase_names[] = {
    [PS_JOB_PHASE_FORMING] = "FORMING", [PS_JOB_PHASE_STARTING] = "STARTING",
    [PS_JOB_PHASE_RUNNING] = "RUNNING", [PS_JOB_PHASE_FAILED] = "FAILED",
    [PS_JOB_PHASE_ENDED] = "ENDED",
};

/* A job, at the scheduler. */
static const struct ps_state_table job_phases = {
    .name = "job",
    .count = sizeof(successors) / sizeof(successors[0]),
    .allowed = successors,
};

static const uint32_t rank_successors[] = {
    [PS_RANK_STATE_ABSENT] = BIT(PS_RANK_STATE_LIVE),
    [PS_RANK_STATE_LIVE] = BIT(PS_RANK_STATE_LOST) | BIT(PS_RANK_STATE_LEFT),
    /* LIVE again when another process takes the rank, or its agent returns. */
    [PS_RANK_STATE_LOST] = BIT(PS_RANK_STATE_LIVE) | BIT(PS_RANK_STATE_LEFT),
    [PS_RANK_STATE_LEFT] = 0,
};

/* A rank of a job, at the scheduler. */
static const struct ps_state_table rank_states = {
    .name = "rank",
    .count = sizeof(rank_successors) / sizeof(rank_successors[0]),
    .allowed = rank_successors,
};

struct ps_sched_job *ps_sched_job_new(uint64_t gen, uint64_t hash_seed,
                                      const struct ps_msg_job_open *want,
                                      ps_time now)
{
    struct ps_sched_job *j = ps_calloc(1, sizeof(*j));

    j->gen = gen;
    j->keys.hash_seed = hash_seed;
    j->phase = PS_JOB_PHASE_FORMING;
    j->opt = *want;
    j->opt.name = NULL;
    j->opt.host = NULL;
    j->opt.token = NULL;
    j->opt.weight = ps_fair_weight(want->weight);
    j->weight = j->opt.weight;
    ps_str_copy(j->name, sizeof(j->name), want->name);
    j->uid = want->uid;
    j->observed.created_at = now;
    j->deadline = ps_time_add(now, want->start_timeout_ns);
    j->publish_at = PS_TIME_NEVER;
    j->workers.lost_since = PS_TIME_NEVER;
    j->keys.send_at = PS_TIME_NEVER;
    j->quota.send_at = PS_TIME_NEVER;
    j->keys.by_name_hash = ps_map_new();
    ps_list_init(&j->store.keys);
    return j;
}

static void disagreement_free(struct ps_sched_disagreement *d)
{
    if (d != NULL) {
        ps_bits_fini(&d->refused);
        ps_free(d->reports);
        ps_free(d);
    }
}

static void declaration_fini(struct ps_sched_declaration *d)
{
    ps_msg_free(d->message);
    ps_bits_fini(&d->agreed);
}

static void key_free(struct ps_sched_key *k)
{
    if (k != NULL) {
        disagreement_free(k->disagreement);
        ps_bits_fini(&k->openers);
        ps_free(k->reopenings);
        ps_free(k->parts);
        ps_free(k);
    }
}

void ps_sched_job_free(struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->keys.count; i++) {
        key_free(j->keys.list[i]);
    }
    ps_free(j->keys.list);
    ps_map_free(j->keys.by_name_hash);
    ps_barrier_fini(&j->barrier);
    declaration_fini(&j->optimizer.declared);
    declaration_fini(&j->compression);
    ps_tunings_fini(&j->optimizer.tunings);
    ps_free(j->waiters.list);
    ps_sched_scalars_free(j->observed.scalars);
    ps_free(j->agents);
    ps_free(j->servers.list);
    ps_free(j->servers.removed);
    ps_free(j->slots);
    disagreement_free(j->workers.disagreement);
    ps_free(j->workers.list);
    ps_free(j);
}

void ps_sched_job_set_phase(struct ps_sched_job *j, enum ps_job_phase to,
                            struct ps_effects *fx)
{
    bool bad = to == PS_JOB_PHASE_FAILED;

    ps_state_change(&job_phases, &j->phase, (uint8_t)to);
    ps_effects_log_for(fx, &j->account, bad ? PS_LOG_WARNING : PS_LOG_INFO,
                       "job %s gen %llu %s%s%s", j->name,
                       (unsigned long long)j->gen, phase_names[to],
                       bad ? ": " : "", bad ? j->reason : "");
}

bool ps_sched_job_restore_phase(struct ps_sched_job *j, enum ps_job_phase phase)
{
    if (phase != PS_JOB_PHASE_STARTING && phase != PS_JOB_PHASE_RUNNING &&
        phase != PS_JOB_PHASE_FAILED) {
        return false;
    }
    j->phase = (uint8_t)phase;
    return true;
}

bool ps_sched_job_is_open(const struct ps_sched_job *j)
{
    return j->phase != PS_JOB_PHASE_FAILED && j->phase != PS_JOB_PHASE_ENDED;
}

bool ps_sched_job_has_lost_rank(const struct ps_sched_job *j)
{
    return j->workers.lost_since != PS_TIME_NEVER;
}

bool ps_sched_job_has_started(const struct ps_sched_job *j)
{
    return j->slot_count > 0;
}

/* ---------------------------------------------------------------- workers */

struct ps_sched_worker *ps_sched_job_find_worker(const struct ps_sched_job *j,
                                                 uint32_t agent,
                                                 uint64_t agent_incarnation,
                                                 uint64_t worker)
{
    for (uint32_t i = 0; i < j->workers.count; i++) {
        struct ps_sched_worker *w = &j->workers.list[i];

        if (w->agent_node == agent && w->worker_id == worker &&
            w->agent_incarnation == agent_incarnation) {
            return w;
        }
    }
    return NULL;
}

static struct ps_sched_worker *append_worker(struct ps_sched_job *j,
                                             const struct ps_sched_worker *w)
{
    assert(j->workers.count < j->opt.num_workers);
    if (j->workers.count == j->workers.capacity) {
        j->workers.capacity = j->workers.capacity * 2 + 4;
        j->workers.list = ps_realloc(
            j->workers.list, j->workers.capacity * sizeof(*j->workers.list));
    }
    j->workers.list[j->workers.count] = *w;
    ps_state_change(&rank_states, &j->workers.list[j->workers.count].state,
                    PS_RANK_STATE_LIVE);
    j->workers.live_count++;
    return &j->workers.list[j->workers.count++];
}

void ps_sched_job_add_worker(struct ps_sched_job *j,
                             const struct ps_sched_worker *w)
{
    assert(j->phase == PS_JOB_PHASE_FORMING);
    append_worker(j, w);
}

void ps_sched_job_restore_worker(struct ps_sched_job *j,
                                 const struct ps_sched_worker *w,
                                 enum ps_rank_state state, ps_time now)
{
    struct ps_sched_worker *added = append_worker(j, w);

    if (state != PS_RANK_STATE_LIVE) {
        ps_sched_job_set_rank_state(j, added, state, now);
    }
    added->unsaved = false;
}
void ps_sched_job_remove_worker(struct ps_sched_job *j,
                                struct ps_sched_worker *w)
{
    size_t i = (size_t)(w - j->workers.list);

    assert(!ps_sched_job_has_started(j) && i < j->workers.count);
    memmove(w, w + 1, (j->workers.count - i - 1) * sizeof(*w));
    j->workers.count--;
    j->workers.live_count--;
}

static ps_time first_lost_at(const struct ps_sched_job *j)
{
    ps_time first = PS_TIME_NEVER;

    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (j->workers.list[i].state == PS_RANK_STATE_LOST) {
            first = ps_time_min(first, j->workers.list[i].lost_at);
        }
    }
    return first;
}

void ps_sched_job_set_rank_state(struct ps_sched_job *j,
                                 struct ps_sched_worker *w,
                                 enum ps_rank_state state, ps_time now)
{
    bool was_lost = w->state == PS_RANK_STATE_LOST;

    if (w->state == PS_RANK_STATE_LIVE) {
        j->workers.live_count--;
    } else if (state == PS_RANK_STATE_LIVE) {
        j->workers.live_count++;
    }
    ps_state_change(&rank_states, &w->state, (uint8_t)state);
    w->unsaved = true;
    if (state == PS_RANK_STATE_LOST) {
        w->lost_at = now;
        j->workers.lost_since = ps_time_min(j->workers.lost_since, now);
    } else if (was_lost) {
        j->workers.lost_since = first_lost_at(j);
    }
}

bool ps_sched_job_has_agent(const struct ps_sched_job *j, uint32_t agent)
{
    for (uint32_t i = 0; i < j->agent_count; i++) {
        if (j->agents[i] == agent) {
            return true;
        }
    }
    return false;
}

bool ps_sched_job_add_agent(struct ps_sched_job *j, uint32_t agent)
{
    if (ps_sched_job_has_agent(j, agent)) {
        return true;
    }
    if (j->agent_count == PS_SLOTS_MAX) {
        return false;
    }
    j->agents = ps_realloc(j->agents,
                           (j->agent_count + 1u) * sizeof(*j->agents));
    j->agents[j->agent_count++] = agent;
    return true;
}

/* Order in which workers that requested no rank get one: by agent name, then by
 * arrival at the agent. It does not depend on which node started first. */
static int compare_by_agent(const void *a, const void *b)
{
    const struct ps_sched_worker *x = a;
    const struct ps_sched_worker *y = b;
    int order = strcmp(x->agent_name, y->agent_name);

    return order != 0
               ? order
               : (x->worker_id > y->worker_id) - (x->worker_id < y->worker_id);
}

static int compare_by_rank(const void *a, const void *b)
{
    const struct ps_sched_worker *x = a;
    const struct ps_sched_worker *y = b;

    return (x->requested_rank > y->requested_rank) -
           (x->requested_rank < y->requested_rank);
}

static void assign_slots(struct ps_sched_job *j)
{
    j->slots = ps_calloc(j->agent_count, sizeof(*j->slots));
    for (uint32_t i = 0; i < j->workers.count; i++) {
        struct ps_sched_worker *w = &j->workers.list[i];

        w->slot = ps_sched_job_slot_of(j, w->agent_node);
        if (w->slot == j->slot_count) {
            struct ps_sched_slot *slot = &j->slots[j->slot_count++];

            *slot = (struct ps_sched_slot){.agent_node = w->agent_node,
                                           .incarnation = w->agent_incarnation,
                                           .instance = w->agent_instance,
                                           .first_unsent_key = UINT32_MAX};
            ps_str_copy(slot->agent_name, sizeof(slot->agent_name),
                        w->agent_name);
        }
        w->local_rank = j->slots[w->slot].ranks++;
    }
}

void ps_sched_job_assign_ranks(struct ps_sched_job *j)
{
    struct ps_bits taken;
    uint32_t free_rank;

    assert(j->workers.count == j->opt.num_workers && j->slot_count == 0);
    qsort(j->workers.list, j->workers.count, sizeof(*j->workers.list),
          compare_by_agent);
    ps_bits_init(&taken, j->opt.num_workers);
    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (j->workers.list[i].requested_rank >= 0) {
            bool fresh = ps_bits_set(
                &taken, (uint32_t)j->workers.list[i].requested_rank);

            assert(fresh);
            (void)fresh;
        }
    }
    free_rank = ps_bits_next_clear(&taken, 0);
    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (j->workers.list[i].requested_rank < 0) {
            j->workers.list[i].requested_rank = (int32_t)free_rank;
            free_rank = ps_bits_next_clear(&taken, free_rank + 1);
        }
        j->workers.list[i].incarnation = 1;
        j->workers.list[i].unsaved = true;
    }
    ps_bits_fini(&taken);
    qsort(j->workers.list, j->workers.count, sizeof(*j->workers.list),
          compare_by_rank);
    assign_slots(j);
    ps_barrier_init(&j->barrier, j->opt.num_workers);
}

uint32_t ps_sched_job_slot_of(const struct ps_sched_job *j, uint32_t agent)
{
    uint32_t i = 0;

    while (i < j->slot_count && j->slots[i].agent_node != agent) {
        i++;
    }
    return i;
}

bool ps_sched_job_is_rank_at(const struct ps_sched_job *j, uint32_t rank,
                             uint32_t agent)
{
    return rank < j->workers.count && j->workers.list[rank].agent_node == agent;
}

uint32_t ps_sched_job_servers_needed(const struct ps_sched_job *j)
{
    return j->opt.replicas > j->opt.num_servers ? j->opt.replicas
                                                : j->opt.num_servers;
}

struct ps_sched_job_server *ps_sched_job_server_of(const struct ps_sched_job *j,
                                                   uint32_t node)
{
    for (uint32_t i = 0; i < j->servers.count; i++) {
        if (j->servers.list[i].node == node) {
            return &j->servers.list[i];
        }
    }
    return NULL;
}

uint32_t ps_sched_job_ready_version(const struct ps_sched_job *j)
{
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < j->servers.count; i++) {
        if (j->servers.list[i].ready_version < least) {
            least = j->servers.list[i].ready_version;
        }
    }
    return least;
}

uint32_t ps_sched_job_missing_ranks(const struct ps_sched_job *j,
                                    unsigned *ret_ranks)
{
    struct ps_bits taken;
    uint32_t any = 0;
    uint32_t count = 0;

    ps_bits_init(&taken, j->opt.num_workers);
    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (j->workers.list[i].requested_rank >= 0) {
            ps_bits_set(&taken, (uint32_t)j->workers.list[i].requested_rank);
        } else {
            any++;
        }
    }
    for (uint32_t rank = ps_bits_next_clear(&taken, 0);
         rank < j->opt.num_workers;
         rank = ps_bits_next_clear(&taken, rank + 1)) {
        if (any > 0) {
            any--;
        } else {
            ret_ranks[count++] = rank;
        }
    }
    ps_bits_fini(&taken);
    return count;
}

/* ------------------------------------------------------------------- keys */

static uint64_t slot_of_key(const struct ps_sched_job *j, enum ps_key_kind kind,
                            const char *name)
{
    return ps_name_hash_slot(j->keys.hash_seed, ps_name_hash(kind, name), 0);
}

struct ps_sched_key *ps_sched_job_key_by_name_hash(const struct ps_sched_job *j,
                                                   enum ps_key_kind kind,
                                                   const char *name)
{
    return ps_map_get(j->keys.by_name_hash, slot_of_key(j, kind, name));
}

struct ps_sched_key *ps_sched_job_key(const struct ps_sched_job *j,
                                      uint32_t number)
{
    return number < j->keys.count ? j->keys.list[number] : NULL;
}

struct ps_sched_key *ps_sched_job_find_key(const struct ps_sched_job *j,
                                           enum ps_key_kind kind,
                                           const char *name)
{
    struct ps_sched_key *k = ps_sched_job_key_by_name_hash(j, kind, name);

    return k != NULL && k->kind == kind && strcmp(k->name, name) == 0 ? k
                                                                      : NULL;
}

/* Gives the next number to `k`; NULL: to a key that was removed. */
static void append_key(struct ps_sched_job *j, struct ps_sched_key *k)
{
    if (j->keys.count == j->keys.capacity) {
        j->keys.capacity = j->keys.capacity * 2 + 16;
        j->keys.list = ps_realloc(j->keys.list,
                                  j->keys.capacity * sizeof(j->keys.list[0]));
    }
    j->keys.list[j->keys.count++] = k;
}

void ps_sched_job_skip_key(struct ps_sched_job *j)
{
    append_key(j, NULL);
}

struct ps_sched_key *ps_sched_job_add_key(struct ps_sched_job *j,
                                          const struct ps_msg_key_open *m,
                                          struct ps_place_part *parts,
                                          uint32_t part_count)
{
    size_t len = strlen(m->name);
    struct ps_sched_key *k = ps_calloc(1, sizeof(*k) + len + 1);

    k->number = j->keys.count;
    k->kind = m->kind;
    k->dtype = m->dtype;
    k->count = m->count;
    k->row_width = m->row_width;
    k->declared_by = m->rank;
    k->parts = parts;
    k->part_count = part_count;
    memcpy(k->name, m->name, len + 1);
    ps_map_put(j->keys.by_name_hash, slot_of_key(j, m->kind, m->name), k);
    append_key(j, k);
    j->keys.open_count++;
    j->keys.bytes += k->count * ps_dtype_size(k->dtype);
    return k;
}

bool ps_sched_key_is_on(const struct ps_sched_key *k, uint32_t node)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].node == node) {
            return true;
        }
    }
    return false;
}

void ps_sched_key_add_opener(const struct ps_sched_job *j,
                             struct ps_sched_key *k, uint32_t slot,
                             uint64_t request)
{
    if (k->openers.size == 0) {
        ps_bits_init(&k->openers, j->slot_count);
    }
    if (ps_bits_set(&k->openers, slot)) {
        return;
    }
    for (uint32_t i = 0; i < k->reopening_count; i++) {
        if (k->reopenings[i].slot == slot) {
            k->reopenings[i].request = request;
            return;
        }
    }
    k->reopenings = ps_realloc(k->reopenings, (k->reopening_count + 1u) *
                                                  sizeof(*k->reopenings));
    k->reopenings[k->reopening_count++] = (struct ps_sched_reopening){slot,
                                                                      request};
}

bool ps_sched_key_remove_opener(struct ps_sched_key *k, uint32_t slot,
                                uint64_t request)
{
    if (slot >= k->openers.size || !ps_bits_get(&k->openers, slot)) {
        return false;
    }
    for (uint32_t i = 0; i < k->reopening_count; i++) {
        if (k->reopenings[i].slot != slot) {
            continue;
        }
        if (request < k->reopenings[i].request) {
            return false; /* Opened again since; links keep no order. */
        }
        k->reopenings[i] = k->reopenings[--k->reopening_count];
        break;
    }
    ps_bits_clear(&k->openers, slot);
    return k->openers.count == 0;
}

void ps_sched_job_remove_key(struct ps_sched_job *j, struct ps_sched_key *k)
{
    ps_map_remove(j->keys.by_name_hash, slot_of_key(j, k->kind, k->name));
    j->keys.list[k->number] = NULL;
    j->keys.open_count--;
    j->keys.bytes -= k->count * ps_dtype_size(k->dtype);
    key_free(k);
}

/* ------------------------------------------------- optimizer, compression */

static bool params_contain(const struct ps_rec_param *params, uint32_t count,
                           const struct ps_rec_param *p)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(params[i].name, ps_str_or_empty(p->name)) == 0) {
            /* NaN has been refused before. */
            return params[i].value == p->value;
        }
    }
    return false;
}

/* True: `had`, in which no name repeats, and `params` are equal as sets; both
 * have `count` entries. */
static bool params_equal(const struct ps_rec_param *had,
                         const struct ps_rec_param *params, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!params_contain(had, count, &params[i])) {
            return false;
        }
        for (uint32_t k = 0; k < i; k++) {
            if (strcmp(ps_str_or_empty(params[k].name),
                       ps_str_or_empty(params[i].name)) == 0) {
                return false;
            }
        }
    }
    return true;
}

struct ps_sched_declaration ps_sched_declaration_of(const struct ps_msg *msg)
{
    const struct ps_msg_optimizer_set *o = &msg->optimizer_set;
    const struct ps_msg_compression_set *c = &msg->compression_set;

    if (msg->code == PS_MSG_OPTIMIZER_SET) {
        return (struct ps_sched_declaration){.name = ps_str_or_empty(o->name),
                                             .params = o->params,
                                             .param_count = o->params_count,
                                             .tunings = o->tunings,
                                             .tuning_count = o->tunings_count,
                                             .rank = o->rank};
    }
    return (struct ps_sched_declaration){.name = ps_str_or_empty(c->name),
                                         .params = c->params,
                                         .param_count = c->params_count,
                                         .rank = c->rank};
}

void ps_sched_declaration_set(struct ps_sched_declaration *d,
                              const struct ps_msg *msg, uint32_t num_workers)
{
    struct ps_msg *copy = ps_msg_dup(msg);

    assert(d->name == NULL);
    *d = ps_sched_declaration_of(copy);
    d->message = copy;
    ps_bits_init(&d->agreed, num_workers);
}

bool ps_sched_declaration_is_same(const struct ps_sched_declaration *a,
                                  const struct ps_sched_declaration *b)
{
    return strcmp(a->name, b->name) == 0 && a->param_count == b->param_count &&
           params_equal(a->params, b->params, a->param_count);
}

/* ---------------------------------------------------------------- barriers */

void ps_barrier_init(struct ps_barrier *b, uint32_t ranks)
{
    assert(ranks > 0);
    *b = (struct ps_barrier){
        .entered = ps_calloc(ranks, sizeof(*b->entered)),
        .rank_count = ranks,
        .behind_count = ranks,
    };
}

void ps_barrier_fini(struct ps_barrier *b)
{
    ps_free(b->entered);
    memset(b, 0, sizeof(*b));
}

/* Advances last_open to the least entry of all ranks, once none is behind.
 * True: further barriers are open. */
static bool advance_last_open(struct ps_barrier *b, ps_time now)
{
    uint64_t least = PS_BARRIER_LEFT;

    for (uint32_t i = 0; i < b->rank_count; i++) {
        if (b->entered[i] < least) {
            least = b->entered[i];
        }
    }
    if (least == PS_BARRIER_LEFT) {
        return false; /* All ranks have left. */
    }
    b->last_open = least;
    b->behind_count = 0;
    for (uint32_t i = 0; i < b->rank_count; i++) {
        b->behind_count += b->entered[i] <= least;
    }
    b->waiting_since = now;
    return true;
}

static bool set_entered(struct ps_barrier *b, uint32_t rank, uint64_t number,
                        ps_time now)
{
    uint64_t was = b->entered[rank];

    if (number <= was) {
        return false;
    }
    b->entered[rank] = number;
    if (was > b->last_open || number <= b->last_open) {
        return false;
    }
    assert(b->behind_count > 0);
    b->behind_count--;
    return b->behind_count == 0 && advance_last_open(b, now);
}

bool ps_barrier_enter(struct ps_barrier *b, uint32_t rank, uint64_t number,
                      ps_time now)
{
    assert(rank < b->rank_count && number != PS_BARRIER_LEFT);
    if (!ps_barrier_is_waiting(b)) {
        b->waiting_since = now;
    }
    if (b->entered[rank] != PS_BARRIER_LEFT && number > b->highest_entered) {
        b->highest_entered = number;
    }
    return set_entered(b, rank, number, now);
}

bool ps_barrier_leave(struct ps_barrier *b, uint32_t rank, ps_time now)
{
    assert(rank < b->rank_count);
    return set_entered(b, rank, PS_BARRIER_LEFT, now);
}

bool ps_barrier_is_waiting(const struct ps_barrier *b)
{
    return b->highest_entered > b->last_open;
}

bool ps_barrier_is_missing(const struct ps_barrier *b, uint32_t rank,
                           uint64_t number)
{
    assert(rank < b->rank_count);
    return number > b->last_open && b->entered[rank] < number;
}
