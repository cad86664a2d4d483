/* SPDX-License-Identifier: Apache-2.0 */
/* Stall queries: which ranks an operation waits for. Agents know which of their
 * ranks have not contributed to a round. When one agent asks, all agents of the
 * job are asked, and the reply is sent when all have reported or after
 * REPORT_TIMEOUT; ranks of agents that have not reported then count as missing.
 * psctl does not know the round, so the longest wait of the job is found
 * first. The scheduler itself asks in the same way, again and again, while some
 * ranks of a job have left it and others have not: a round that needs a rank
 * that has left can never be complete, so the job fails. */
#include "core/sched/query/query.h"

#include "base/alloc.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"

#include <inttypes.h>
#include <string.h>

#define REPORT_TIMEOUT    PS_SECONDS(1)
/* Time between two checks for rounds that need a rank that has left. */
#define CHECK_INTERVAL    PS_SECONDS(1)
/* Stall queries in progress; a further one gets an empty reply. */
#define STALLS_MAX        1024u
/* Ranks in one reply. */
#define MISSING_RANKS_MAX 256u
/* Rounds of keys that one query looks at, of those that agents wait longest
 * for. */
#define KEY_WAITS_MAX     4u

enum stall_step {
    STALL_PAUSED,      /* A check until its next turn. */
    STALL_SEEKS_KEY,   /* Collects the longest wait of the job. */
    STALL_SEEKS_RANKS, /* Collects the ranks that a round of a key misses. */
};

/* Processes of missing ranks, as their agents describe them. */
struct rank_states {
    struct rank_state {
        uint32_t rank;
        uint32_t pid;
        char does[PS_SCHED_DOES_MAX + 1];
    } * list; /* MISSING_RANKS_MAX of them; NULL: none yet. */
    uint32_t count;
};

/* A round of a key, and the longest wait of an agent for it. */
struct key_wait {
    char key[PS_KEY_NAME_MAX + 1];
    uint8_t kind; /* enum ps_key_kind */
    uint64_t round;
    uint64_t waited;
};

/* One stall query: collects from the job's agents which ranks are missing.
 * Without an asker it is a check of the scheduler. */
struct stall {
    struct ps_sched_timer timer;
    uint64_t collect_id;      /* Request number of the current collection. */
    struct ps_sched_job *job; /* Dropped with it. */
    uint32_t asker_node;      /* Agent that asked; 0: none. */
    uint64_t asker_request;
    ps_conn_id asker_conn; /* psctl connection that asked; 0: none. */
    enum stall_step step;
    bool is_barrier; /* `round` is the number of a barrier. */
    uint32_t key;
    uint64_t round;
    struct rank_states states;
    struct ps_bits pending_slots; /* Slots that have not reported. */
    struct ps_bits missing_ranks; /* Ranks reported as missing. */
    char unheard[320]; /* Servers that an agent does not hear, as text. */
    /* Slots that do not hear a server, and whether one hears all of its own. */
    struct ps_bits unheard_slots;
    bool is_heard;
    /* Results of STALL_SEEKS_KEY: the wait that is looked at, then others. */
    struct key_wait waits[KEY_WAITS_MAX];
    uint32_t wait_count;
    uint32_t waiting_ops;
    bool has_row;               /* A row was sent to psctl. */
    struct ps_bits shown_ranks; /* Those missing in the rows sent. */
};

struct missing {
    struct ps_rec_missing_rank list[MISSING_RANKS_MAX];
    uint32_t count; /* Entries in the list. */
    uint32_t total;
    char other_causes[512]; /* Other causes, as text. */
};

static void add_missing_rank(struct missing *out, const struct stall *stall,
                             uint32_t rank)
{
    const struct ps_sched_worker *w = &stall->job->workers.list[rank];
    struct ps_rec_missing_rank *one;

    if (w->state == PS_RANK_STATE_LEFT) {
        return;
    }
    out->total++;
    if (out->count == MISSING_RANKS_MAX) {
        return;
    }
    one = &out->list[out->count++];
    *one = (struct ps_rec_missing_rank){.rank = rank,
                                        .state = w->state,
                                        .host = w->host,
                                        .node = w->agent_name,
                                        .does = ""};
    for (uint32_t i = 0; i < stall->states.count; i++) {
        if (stall->states.list[i].rank == rank) {
            one->pid = stall->states.list[i].pid;
            one->does = stall->states.list[i].does;
        }
    }
}

static void list_missing_at_barrier(struct missing *out,
                                    const struct stall *stall)
{
    const struct ps_sched_job *j = stall->job;

    for (uint32_t i = 0; i < j->workers.count; i++) {
        if (ps_barrier_is_missing(&j->barrier, i, stall->round)) {
            add_missing_rank(out, stall, i);
        }
    }
}

/* Appends servers that lack memory for partitions of the key. */
static void describe_short_memory(const struct ps_sched *s,
                                  const struct ps_sched_job *j, uint32_t key,
                                  struct ps_str *out)
{
    const struct ps_sched_key *k = ps_sched_job_key(j, key);

    for (uint32_t i = 0; k != NULL && i < j->servers.count; i++) {
        const struct ps_member *m = ps_members_get(&s->members,
                                                   j->servers.list[i].node);

        if (m == NULL || !m->last_ping.memory_short ||
            !ps_sched_key_is_on(k, m->node)) {
            continue;
        }
        ps_str_addf(out, "%smemory on server %s, where ",
                    out->len > 0 ? "; " : "", m->name);
        ps_str_add_size(out, m->last_ping.memory_used);
        ps_str_add(out, " of ");
        ps_str_add_size(out, m->memory_limit);
        ps_str_add(out, " are taken");
    }
}

/* Appends SUSPECT agents that have not reported. */
static void append_silent(const struct ps_sched_step *st,
                          const struct stall *stall, struct ps_str *out)
{
    const struct ps_sched_job *j = stall->job;

    for (uint32_t i = 0; i < j->slot_count; i++) {
        const struct ps_member *m = ps_members_get(&st->s->members,
                                                   j->slots[i].agent_node);

        if (m != NULL && m->state == PS_NODE_STATE_SUSPECT &&
            ps_bits_get(&stall->pending_slots, i)) {
            ps_str_addf(out,
                        "%sa message from agent %s, which the scheduler last "
                        "heard %.1f s ago",
                        out->len > 0 ? "; " : "", m->name,
                        (double)(st->now - m->last_recv_at) / 1e9);
        }
    }
}

/* True: the slot is cut off from a server that others hear, so what its ranks
 * have contributed may not have arrived. A server that no slot hears is missing
 * itself. */
static bool is_cut(const struct stall *stall, uint32_t slot)
{
    return stall->is_heard && ps_bits_get(&stall->unheard_slots, slot);
}

static void list_missing_in_round(struct missing *out,
                                  const struct ps_sched_step *st,
                                  const struct stall *stall)
{
    const struct ps_sched_job *j = stall->job;
    struct ps_str also;

    ps_str_init(&also, out->other_causes, sizeof(out->other_causes));
    ps_sched_job_describe_awaited(j, st->now, &also);
    if (also.len > 0) {
        return; /* Agents lack the same server, and do not know why. */
    }
    ps_sched_norm_describe_missing(j, stall->key, &also);
    describe_short_memory(st->s, j, stall->key, &also);
    if (stall->unheard[0] != '\0') {
        ps_str_addf(&also, "%s%s", also.len > 0 ? "; " : "", stall->unheard);
    }
    append_silent(st, stall, &also);
    for (uint32_t i = 0; i < j->workers.count; i++) {
        const uint32_t slot = j->workers.list[i].slot;

        if (ps_bits_get(&stall->missing_ranks, i) ||
            ps_bits_get(&stall->pending_slots, slot) || is_cut(stall, slot)) {
            add_missing_rank(out, stall, i);
        }
    }
}

/* Ranks and servers that a job needs to begin. */
static void list_missing_at_start(struct missing *out, const struct ps_sched *s,
                                  const struct ps_sched_job *j)
{
    unsigned *ranks = ps_alloc(j->opt.num_workers * sizeof(*ranks));
    char text[256];
    struct ps_str servers;

    ps_str_init(&servers, text, sizeof(text));
    ps_sched_describe_servers(s, j, &servers);
    if (text[0] != '\0') {
        ps_str_init(&servers, out->other_causes, sizeof(out->other_causes));
        ps_str_addf(&servers, "servers: the job %s", text);
    }
    out->total = ps_sched_job_missing_ranks(j, ranks);
    while (out->count < out->total && out->count < MISSING_RANKS_MAX) {
        out->list[out->count] = (struct ps_rec_missing_rank){
            .rank = ranks[out->count],
            .state = PS_RANK_STATE_ABSENT,
            .host = "",
            .node = "",
            .does = "",
        };
        out->count++;
    }
    ps_free(ranks);
}

/* ------------------------------------------------------------------ reply */

static void send_agent_reply(struct ps_sched_step *st, struct ps_member *agent,
                             uint64_t gen, uint64_t request,
                             const struct missing *m)
{
    ps_sched_send_msg(st, agent,
                      &(struct ps_msg){
                          .code = PS_MSG_STALL_REPLY,
                          .stall_reply = {.gen = gen,
                                          .request = request,
                                          .missing = m->list,
                                          .missing_count = m->count,
                                          .total = m->total,
                                          .other_causes = m->other_causes},
                      });
}

/* `wait`: what psctl shows, and for how long and how many operations. */
static void send_stall_row(struct ps_sched_step *st, ps_conn_id ctl,
                           const struct ps_sched_job *j,
                           struct ps_msg_stall_row wait,
                           const struct missing *m)
{
    wait.job = j->name;
    wait.uid = j->uid;
    wait.missing = m->list;
    wait.missing_count = m->count;
    wait.other_causes = m->other_causes;
    ps_effects_send_msg(
        st->fx, ctl,
        &(struct ps_msg){.code = PS_MSG_STALL_ROW, .stall_row = wait});
}

static void stall_free(struct ps_sched *s, struct stall *stall)
{
    ps_list_remove(&stall->timer.node);
    s->stall_count--;
    ps_bits_fini(&stall->pending_slots);
    ps_bits_fini(&stall->missing_ranks);
    ps_bits_fini(&stall->unheard_slots);
    ps_bits_fini(&stall->shown_ranks);
    ps_free(stall->states.list);
    ps_free(stall);
}

static void reply_to_agent(struct ps_sched_step *st, struct stall *stall,
                           struct missing *m)
{
    const char *ring = ps_sched_diverged_text(st->s, stall->job);

    if (ring[0] != '\0') {
        (void)ps_str_copy(m->other_causes, sizeof(m->other_causes), ring);
    }
    send_agent_reply(st, ps_members_get(&st->s->members, stall->asker_node),
                     stall->job->gen, stall->asker_request, m);
}

static void describe_round(const struct stall *stall, struct ps_str *out)
{
    const struct key_wait *w = &stall->waits[0];

    ps_str_add(out,
               w->kind == PS_KEY_KIND_COLLECTIVE ? "collective key " : "key ");
    ps_str_add_escaped(out, w->key, strlen(w->key), 256);
    ps_str_addf(out, " round %" PRIu64, w->round);
}

/* Notes the missing ranks. True: one of them is in no row yet. */
static bool note_shown_ranks(struct stall *stall, const struct missing *m)
{
    bool is_new = false;

    for (uint32_t i = 0; i < m->count; i++) {
        is_new |= ps_bits_set(&stall->shown_ranks, m->list[i].rank);
    }
    return is_new;
}

/* After the longest wait come those for other ranks: the other sides of ranks
 * that wait for each other. A barrier may have opened in the meantime. */
static void reply_to_ctl(struct ps_sched_step *st, struct stall *stall,
                         const struct missing *m)
{
    const struct ps_sched_job *j = stall->job;
    const uint32_t live = j->workers.live_count;
    struct ps_str text = PS_STR_ROOM(320);
    struct ps_msg_stall_row wait = {.waited_ns = stall->waits[0].waited,
                                    .waiting_ops = stall->waiting_ops};

    if (!note_shown_ranks(stall, m) && (stall->has_row || stall->is_barrier)) {
        return;
    }
    stall->has_row = true;
    if (stall->is_barrier) {
        ps_str_addf(&text, "barrier %" PRIu64, stall->round);
        wait.waited_ns = st->now - j->barrier.waiting_since;
        wait.waiting_ops = live > m->total ? live - m->total : 0;
    } else {
        describe_round(stall, &text);
    }
    wait.what = text.data;
    send_stall_row(st, stall->asker_conn, j, wait, m);
}

/* Ends one job's share of a psctl query; the last share sends query_end. */
static void end_job_share(struct ps_sched_step *st, ps_conn_id ctl)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, ctl);

    assert(c != NULL && c->open_stalls > 0);
    if (--c->open_stalls == 0) {
        ps_sched_conn_end_query(st, c, 0, NULL);
    }
}

/* ---------------------------------------------------------------- collect */

/* Begins a step: asks all agents of the job. An agent without a link stays
 * pending. */
static void stall_collect(struct ps_sched_step *st, struct stall *stall,
                          enum stall_step step)
{
    const struct ps_sched_job *j = stall->job;

    stall->step = step;
    stall->collect_id = ++st->s->last_collect_id;
    stall->timer.due_at = ps_time_add(st->now, REPORT_TIMEOUT);
    ps_bits_zero(&stall->missing_ranks);
    ps_bits_zero(&stall->unheard_slots);
    stall->is_heard = false;
    stall->states.count = 0;
    for (uint32_t i = 0; i < j->slot_count; i++) {
        struct ps_member *m = ps_members_get(&st->s->members,
                                             j->slots[i].agent_node);

        ps_bits_set(&stall->pending_slots, i);
        ps_sched_send_msg(
            st, m,
            &(struct ps_msg){
                .code = PS_MSG_STALL_COLLECT,
                .stall_collect = {.gen = j->gen,
                                  .request = stall->collect_id,
                                  .key = stall->key,
                                  .round = stall->round,
                                  .oldest = stall->step == STALL_SEEKS_KEY,
                                  .barrier = stall->is_barrier},
            });
    }
}

static struct stall *stall_new(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct stall *stall = ps_calloc(1, sizeof(*stall));

    stall->job = j;
    ps_bits_init(&stall->pending_slots, j->slot_count);
    ps_bits_init(&stall->missing_ranks, j->opt.num_workers);
    ps_bits_init(&stall->unheard_slots, j->slot_count);
    ps_bits_init(&stall->shown_ranks, j->opt.num_workers);
    ps_list_push_back(&st->s->stalls, &stall->timer.node);
    st->s->stall_count++;
    return stall;
}

void ps_sched_on_stall_query(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg *msg)
{
    const struct ps_msg_stall_query *m = &msg->stall_query;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct missing missing = {.count = 0};
    struct stall *stall = NULL;

    PS_LIST_EACH_OF(const struct stall, other, timer.node, &st->s->stalls)
    {
        if (other->asker_node == agent->node &&
            other->asker_request == m->request && other->job == j) {
            /* Repeated on a fresh link; the first one will be answered. */
            return;
        }
    }
    if (j != NULL && !ps_sched_job_has_started(j)) {
        list_missing_at_start(&missing, st->s, j);
    } else if (j != NULL && st->s->stall_count < STALLS_MAX) {
        stall = stall_new(st, j);
    }
    if (stall == NULL) {
        send_agent_reply(st, agent, m->gen, m->request, &missing);
        return;
    }
    stall->asker_node = agent->node;
    stall->asker_request = m->request;
    stall->key = m->key;
    stall->round = m->round;
    stall->is_barrier = m->barrier;
    stall_collect(st, stall, STALL_SEEKS_RANKS);
}

/* Sends psctl what a job that has not begun waits for. */
static void send_start_row(struct ps_sched_step *st,
                           const struct ps_sched_job *j, ps_conn_id ctl)
{
    struct missing missing = {.count = 0};

    list_missing_at_start(&missing, st->s, j);
    send_stall_row(st, ctl, j,
                   (struct ps_msg_stall_row){
                       .what = missing.total > 0 ? "start" : "start: servers",
                       .waited_ns = st->now - j->observed.created_at,
                       .waiting_ops = j->workers.count},
                   &missing);
}

/* Asks the agents for psctl who is missing at the barrier, or in a round. */
static void ask_for_ctl(struct ps_sched_step *st, struct ps_sched_job *j,
                        struct ps_sched_conn *ctl, bool is_barrier)
{
    struct stall *stall;

    if (st->s->stall_count >= STALLS_MAX) {
        return;
    }
    ctl->open_stalls++;
    stall = stall_new(st, j);
    stall->asker_conn = ctl->id;
    stall->is_barrier = is_barrier;
    stall->round = j->barrier.last_open + 1;
    stall_collect(st, stall, is_barrier ? STALL_SEEKS_RANKS : STALL_SEEKS_KEY);
}

void ps_sched_stall_query_job(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_sched_conn *ctl)
{
    if (!ps_sched_job_has_started(j)) {
        send_start_row(st, j, ctl->id);
        return;
    }
    ps_sched_diverged_send_row(st, j, ctl->id);
    if (ps_barrier_is_waiting(&j->barrier)) {
        ask_for_ctl(st, j, ctl, true);
    }
    ask_for_ctl(st, j, ctl, false);
}

/* ------------------------------------------- rounds that need a rank that left
 */

void ps_sched_stall_check_left(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct stall *stall;

    if (j->workers.live_count == 0 || j->checks_left_ranks) {
        return;
    }
    j->checks_left_ranks = true;
    stall = stall_new(st, j);
    stall->timer.due_at = ps_time_add(st->now, CHECK_INTERVAL);
}

/* Returns a rank that has left and is reported as missing in the round; NULL:
 * none. An agent that was started later does not know the rank's rounds. */
static const struct ps_sched_worker *
find_missing_left(const struct stall *stall)
{
    const struct ps_sched_job *j = stall->job;

    for (uint32_t i = 0; i < j->workers.count; i++) {
        const struct ps_sched_worker *w = &j->workers.list[i];

        if (w->state == PS_RANK_STATE_LEFT &&
            ps_bits_get(&stall->missing_ranks, i) &&
            w->agent_instance == j->slots[w->slot].instance) {
            return w;
        }
    }
    return NULL;
}

/* Pauses the check. Returns the job, with the reason, if it must fail: the round
 * needs a rank that has left. */
static struct ps_sched_job *finish_check(const struct ps_sched_step *st,
                                         struct stall *stall,
                                         struct ps_str *why)
{
    struct ps_sched_job *j = stall->job;
    const struct ps_sched_worker *w = find_missing_left(stall);

    stall->step = STALL_PAUSED;
    stall->timer.due_at = ps_time_add(st->now, CHECK_INTERVAL);
    if (w == NULL) {
        return NULL;
    }
    ps_str_addf(why, "rank %u on %s has left job %s in good order, and ",
                (unsigned)(w - j->workers.list), w->agent_name, j->name);
    describe_round(stall, why);
    ps_str_add(why, " needs it: all ranks must make the same rounds, or call "
                    "join()");
    return j;
}

/* ---------------------------------------------------------------- reports */

/* Ends a query that has its reply, or gets none. */
static void stall_end(struct ps_sched_step *st, struct stall *stall)
{
    const ps_conn_id ctl = stall->asker_conn;

    stall_free(st->s, stall);
    if (ctl != 0) {
        end_job_share(st, ctl);
    }
}

/* Asks which ranks the longest wait misses. False: there is none. */
static bool seek_ranks(struct ps_sched_step *st, struct stall *stall)
{
    while (stall->wait_count > 0) {
        struct key_wait *w = stall->waits;
        struct key_wait longest;
        const struct ps_sched_key *k;
        uint32_t at = 0;

        for (uint32_t i = 1; i < stall->wait_count; i++) {
            at = w[i].waited > w[at].waited ? i : at;
        }
        longest = w[at];
        w[at] = w[0];
        w[0] = longest;
        k = ps_sched_job_find_key(stall->job, longest.kind, longest.key);
        if (k != NULL) {
            stall->key = k->number;
            stall->round = longest.round;
            stall_collect(st, stall, STALL_SEEKS_RANKS);
            return true;
        }
        w[0] = w[--stall->wait_count];
    }
    return false;
}

/* Replies with the ranks that one wait misses. True: the query goes on with the
 * next wait. */
static bool reply_with_ranks(struct ps_sched_step *st, struct stall *stall)
{
    struct missing missing = {.count = 0};

    if (stall->is_barrier) {
        list_missing_at_barrier(&missing, stall);
    } else {
        list_missing_in_round(&missing, st, stall);
    }
    if (stall->asker_conn == 0) {
        reply_to_agent(st, stall, &missing);
    } else {
        reply_to_ctl(st, stall, &missing);
    }
    if (stall->wait_count == 0) {
        return false;
    }
    stall->waits[0] = stall->waits[--stall->wait_count];
    return seek_ranks(st, stall);
}

/* Continues a query whose agents have reported, or whose time is up. Returns as
 * finish_check(). */
static struct ps_sched_job *finish_step(struct ps_sched_step *st,
                                        struct stall *stall, struct ps_str *why)
{
    if (stall->step == STALL_PAUSED) {
        stall->wait_count = 0;
        stall_collect(st, stall, STALL_SEEKS_KEY);
        return NULL;
    }
    if (stall->step == STALL_SEEKS_KEY && seek_ranks(st, stall)) {
        return NULL;
    }
    if (stall->asker_node == 0 && stall->asker_conn == 0) {
        return finish_check(st, stall, why);
    }
    if (stall->step != STALL_SEEKS_RANKS || !reply_with_ranks(st, stall)) {
        stall_end(st, stall);
    }
    return NULL;
}

static void merge_states(struct stall *stall, const struct ps_member *agent,
                         const struct ps_msg_stall_report *m)
{
    struct rank_states *all = &stall->states;

    if (all->list == NULL) {
        all->list = ps_calloc(MISSING_RANKS_MAX, sizeof(*all->list));
    }
    for (uint32_t i = 0; i < m->states_count && all->count < MISSING_RANKS_MAX;
         i++) {
        const struct ps_rec_rank_wait *w = &m->states[i];
        struct rank_state *to = &all->list[all->count];

        if (ps_sched_job_is_rank_at(stall->job, w->rank, agent->node)) {
            to->rank = w->rank;
            to->pid = w->pid;
            (void)ps_str_copy(to->does, sizeof(to->does),
                              ps_str_or_empty(w->does));
            all->count++;
        }
    }
}

/* Notes the ranks that an agent lacks, and the servers it does not hear. */
static void merge_ranks(struct stall *stall, const struct ps_member *agent,
                        const struct ps_msg_stall_report *m)
{
    struct ps_str text;

    if (ps_str_or_empty(m->unheard)[0] != '\0') {
        (void)ps_bits_set(&stall->unheard_slots,
                          ps_sched_job_slot_of(stall->job, agent->node));
        if (stall->unheard[0] == '\0') { /* One agent's report suffices. */
            ps_str_init(&text, stall->unheard, sizeof(stall->unheard));
            ps_str_add_escaped(&text, m->unheard, strlen(m->unheard), 256);
        }
    } else if (m->ranks_count == 0) {
        stall->is_heard = true; /* Its ranks have contributed. */
    }
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        if (ps_sched_job_is_rank_at(stall->job, m->ranks[i], agent->node)) {
            ps_bits_set(&stall->missing_ranks, m->ranks[i]);
        }
    }
}

/* Notes what an agent has waited for longest. */
static void merge_wait(struct stall *stall, const struct ps_msg_stall_report *m)
{
    struct key_wait *list = stall->waits;
    uint32_t at = 0;

    while (at < stall->wait_count &&
           (list[at].kind != m->key_kind || list[at].round != m->round ||
            strcmp(list[at].key, m->key) != 0)) {
        at++;
    }
    if (at < stall->wait_count) {
        list[at].waited = m->waited_ns > list[at].waited ? m->waited_ns
                                                         : list[at].waited;
        return;
    }
    if (at == KEY_WAITS_MAX) { /* The shortest gives way. */
        at = 0;
        for (uint32_t i = 1; i < KEY_WAITS_MAX; i++) {
            at = list[i].waited < list[at].waited ? i : at;
        }
        if (list[at].waited >= m->waited_ns) {
            return;
        }
    } else {
        stall->wait_count++;
    }
    list[at] = (struct key_wait){
        .kind = m->key_kind, .round = m->round, .waited = m->waited_ns};
    (void)ps_str_copy(list[at].key, sizeof(list[at].key), m->key);
}

static void merge_report(struct stall *stall, const struct ps_member *agent,
                         const struct ps_msg_stall_report *m)
{
    if (stall->step == STALL_SEEKS_KEY) {
        stall->waiting_ops += m->waiting_ops;
        if (m->waiting_ops > 0 && ps_str_or_empty(m->key)[0] != '\0') {
            merge_wait(stall, m);
        }
    } else {
        merge_ranks(stall, agent, m);
        merge_states(stall, agent, m);
    }
}

struct ps_sched_job *
ps_sched_on_stall_report(struct ps_sched_step *st, struct ps_member *agent,
                         const struct ps_msg_stall_report *m,
                         struct ps_str *why)
{
    const struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    uint32_t slot;

    if (j == NULL) {
        return NULL;
    }
    slot = ps_sched_job_slot_of(j, agent->node);
    PS_LIST_EACH_OF(struct stall, stall, timer.node, &st->s->stalls)
    {
        if (stall->collect_id != m->request || stall->job != j) {
            continue;
        }
        if (slot == j->slot_count ||
            !ps_bits_clear(&stall->pending_slots, slot)) {
            return NULL;
        }
        merge_report(stall, agent, m);
        return stall->pending_slots.count == 0 ? finish_step(st, stall, why)
                                               : NULL;
    }
    return NULL;
}

/* ----------------------------------------------------------- end and time */

void ps_sched_stall_drop_job(struct ps_sched_step *st, struct ps_sched_job *j)
{
    struct missing nothing = {.count = 0};
    PS_LIST_EACH_SAFE(struct stall, stall, timer.node, &st->s->stalls)
    {
        if (stall->job != j) {
            continue;
        }
        if (stall->asker_node != 0) {
            reply_to_agent(st, stall, &nothing);
        }
        stall_end(st, stall);
    }
}

void ps_sched_stalls_free(struct ps_sched *s)
{
    PS_LIST_EACH_SAFE(struct stall, stall, timer.node, &s->stalls)
    {
        stall_free(s, stall);
    }
}

void ps_sched_stall_drop_ctl(struct ps_sched *s, ps_conn_id ctl)
{
    PS_LIST_EACH_SAFE(struct stall, stall, timer.node, &s->stalls)
    {
        if (stall->asker_conn == ctl) {
            stall_free(s, stall);
        }
    }
}

struct ps_sched_job *ps_sched_stalls_tick(struct ps_sched_step *st,
                                          struct ps_str *why)
{
    struct ps_sched_job *failed = NULL;
    struct ps_sched_timer *t;

    /* One that ends may take others with it. */
    while (failed == NULL &&
           (t = ps_sched_timers_due(&st->s->stalls, st->now)) != NULL) {
        failed = finish_step(st, PS_CONTAINER(t, struct stall, timer), why);
    }
    return failed;
}
