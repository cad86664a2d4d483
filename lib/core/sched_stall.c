/* SPDX-License-Identifier: Apache-2.0 */
/* Who is missing? The agents know which of their ranks have not done their
 * part of a round; one asks, all are asked, and the answer goes out when all
 * have reported or after a second, when those that have not count as missing
 * with all their ranks. An operator's tool does not know the round: then the
 * oldest wait of the job is looked for first. */
#include "core/sched_inner.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>

#define ANSWER_WITHIN PS_SECONDS(1)
/* Questions under way; one more is answered with nothing. */
#define STALLS_MAX    1024u
/* Ranks in one answer. */
#define MISSING_MAX   256u

struct missing {
    struct ps_rec_waiting list[MISSING_MAX];
    uint32_t count; /* In the list. */
    uint32_t total;
    char also[512]; /* What else, in words. */
};

static void add_missing(struct missing *out, const struct ps_sched_job *j,
                        uint32_t rank)
{
    const struct ps_job_worker *w = &j->workers[rank];

    if (w->state == PS_RANK_STATE_LEFT) {
        return;
    }
    if (out->count < MISSING_MAX) {
        out->list[out->count++] = (struct ps_rec_waiting){
            .rank = rank, .state = w->state, .host = w->host};
    }
    out->total++;
}

static void missing_at_barrier(struct missing *out,
                               const struct ps_sched_job *j, uint64_t number)
{
    for (uint32_t i = 0; i < j->worker_count; i++) {
        if (ps_barrier_missing(&j->barrier, i, number)) {
            add_missing(out, j, i);
        }
    }
}

/* Servers that have no memory for partitions of the key. */
static void add_full(const struct ps_sched *s, const struct ps_sched_job *j,
                     uint32_t key, struct ps_str *out)
{
    const struct ps_job_key *k = key < j->key_count ? j->keys[key] : NULL;

    for (uint32_t i = 0; k != NULL && i < j->server_count; i++) {
        const struct ps_member *m = ps_members_get(&s->members,
                                                   j->servers[i].node);

        if (m == NULL || !m->stats.full || !ps_job_key_on(k, m->node)) {
            continue;
        }
        ps_str_addf(out, "%smemory on server %s, where ",
                    out->len > 0 ? "; " : "", m->name);
        ps_str_add_size(out, m->stats.memory);
        ps_str_add(out, " of ");
        ps_str_add_size(out, m->memory);
        ps_str_add(out, " are taken");
    }
}

/* Agents that have not reported, and why. */
static void add_silent(const struct ps_sched_step *st,
                       const struct ps_sched_job *j,
                       const struct ps_stall *stall, struct ps_str *out)
{
    for (uint32_t i = 0; i < j->slot_count; i++) {
        const struct ps_member *m = ps_members_get(&st->s->members,
                                                   j->slots[i].agent);

        if (m != NULL && m->state == PS_NODE_STATE_SUSPECT &&
            ps_bits_get(&stall->waiting, i)) {
            ps_str_addf(out,
                        "%sword of agent %s, which the scheduler has not heard "
                        "for %.1f s",
                        out->len > 0 ? "; " : "", m->name,
                        (double)(st->now - m->heard) / 1e9);
        }
    }
}

static void missing_in(struct missing *out, const struct ps_sched_step *st,
                       const struct ps_sched_job *j,
                       const struct ps_stall *stall)
{
    struct ps_str also;

    ps_str_init(&also, out->also, sizeof(out->also));
    ps_sched_norms_missing(j, stall->key, &also);
    add_full(st->s, j, stall->key, &also);
    if (stall->unheard[0] != '\0') {
        ps_str_addf(&also, "%s%s", also.len > 0 ? "; " : "", stall->unheard);
    }
    add_silent(st, j, stall, &also);
    for (uint32_t i = 0; i < j->worker_count; i++) {
        if (ps_bits_get(&stall->missing, i) ||
            ps_bits_get(&stall->waiting, j->workers[i].slot)) {
            add_missing(out, j, i);
        }
    }
}

/* ----------------------------------------------------------------- answer */

static void answer(struct ps_sched_step *st, struct ps_member *agent,
                   uint64_t gen, uint64_t request, const struct missing *m)
{
    ps_sched_tell(st, agent,
                  &(struct ps_msg){
                      .code = PS_MSG_STALL_ANSWER,
                      .stall_answer = {.gen = gen,
                                       .request = request,
                                       .missing = m->list,
                                       .missing_count = m->count,
                                       .total = m->total,
                                       .also = m->also},
                  });
}

static void row(struct ps_sched_step *st, ps_conn_id ctl,
                const struct ps_sched_job *j, const char *what, uint64_t waited,
                uint32_t waits, const struct missing *m)
{
    ps_effects_tell(st->fx, ctl,
                    &(struct ps_msg){
                        .code = PS_MSG_STALL_ROW,
                        .stall_row = {.job = j->name,
                                      .what = what,
                                      .waited_ns = waited,
                                      .waits = waits,
                                      .missing = m->list,
                                      .missing_count = m->count,
                                      .also = m->also},
                    });
}

static void drop(struct ps_sched *s, struct ps_stall *stall)
{
    ps_list_remove(&stall->node);
    s->stall_count--;
    ps_bits_fini(&stall->waiting);
    ps_bits_fini(&stall->missing);
    ps_free(stall);
}

/* One job's share of a tool's query is done. */
static void share_done(struct ps_sched_step *st, ps_conn_id ctl)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, ctl);

    assert(c != NULL && c->stalls > 0);
    if (--c->stalls == 0) {
        ps_sched_query_end(st, c, 0, NULL);
    }
}

/* ------------------------------------------------------------------- asks */

/* All agents of the job that can hear it; the others have not reported. */
static void ask(struct ps_sched_step *st, const struct ps_sched_job *j,
                struct ps_stall *stall)
{
    stall->ask = ++st->s->asks;
    stall->deadline = ps_time_add(st->now, ANSWER_WITHIN);
    ps_bits_zero(&stall->missing);
    for (uint32_t i = 0; i < j->slot_count; i++) {
        struct ps_member *m = ps_members_get(&st->s->members,
                                             j->slots[i].agent);

        ps_bits_set(&stall->waiting, i);
        ps_sched_tell(st, m,
                      &(struct ps_msg){
                          .code = PS_MSG_STALL_ASK,
                          .stall_ask = {.gen = j->gen,
                                        .request = stall->ask,
                                        .key = stall->key,
                                        .round = stall->round,
                                        .any = stall->any},
                      });
    }
}

static struct ps_stall *stall_new(struct ps_sched_step *st,
                                  const struct ps_sched_job *j)
{
    struct ps_stall *stall;

    if (st->s->stall_count >= STALLS_MAX) {
        return NULL;
    }
    stall = ps_calloc(1, sizeof(*stall));
    stall->gen = j->gen;
    ps_bits_init(&stall->waiting, j->slot_count);
    ps_bits_init(&stall->missing, j->num_workers);
    ps_list_push_back(&st->s->stalls, &stall->node);
    st->s->stall_count++;
    return stall;
}

void ps_sched_stall_query(struct ps_sched_step *st, struct ps_member *agent,
                          const struct ps_msg_stall_query *m)
{
    const struct ps_sched_job *j = ps_sched_job(st->s, m->gen);
    struct missing missing = {.count = 0};
    struct ps_stall *stall;

    PS_LIST_EACH(n, &st->s->stalls)
    {
        stall = PS_CONTAINER(n, struct ps_stall, node);
        if (stall->ctl == 0 && stall->agent == agent->node &&
            stall->request == m->request && stall->gen == m->gen) {
            return; /* Asked again on a fresh link; it will be answered. */
        }
    }
    if (j == NULL || !ps_job_started(j)) {
        answer(st, agent, m->gen, m->request, &missing);
        return;
    }
    if (m->barrier) {
        missing_at_barrier(&missing, j, m->round);
        answer(st, agent, m->gen, m->request, &missing);
        return;
    }
    stall = stall_new(st, j);
    if (stall == NULL) {
        answer(st, agent, m->gen, m->request, &missing);
        return;
    }
    stall->agent = agent->node;
    stall->request = m->request;
    stall->key = m->key;
    stall->round = m->round;
    ask(st, j, stall);
}

/* What a job waits for that the scheduler itself knows. */
static void show_own(struct ps_sched_step *st, const struct ps_sched_job *j,
                     ps_conn_id ctl)
{
    struct missing missing = {.count = 0};
    char what[64];
    struct ps_str text;

    if (!ps_job_started(j)) {
        unsigned *ranks = ps_alloc(j->num_workers * sizeof(*ranks));

        missing.total = ps_job_missing(j, ranks);
        while (missing.count < missing.total && missing.count < MISSING_MAX) {
            missing.list[missing.count] = (struct ps_rec_waiting){
                .rank = ranks[missing.count],
                .state = PS_RANK_STATE_ABSENT,
            };
            missing.count++;
        }
        ps_free(ranks);
        row(st, ctl, j, missing.total > 0 ? "start" : "start: servers",
            st->now - j->created, j->worker_count, &missing);
    } else if (ps_barrier_waits(&j->barrier)) {
        uint64_t number = j->barrier.open + 1;

        missing_at_barrier(&missing, j, number);
        ps_str_init(&text, what, sizeof(what));
        ps_str_addf(&text, "barrier %" PRIu64, number);
        row(st, ctl, j, what, st->now - j->barrier.since,
            j->live > missing.total ? j->live - missing.total : 0, &missing);
    }
}

void ps_sched_stall_show(struct ps_sched_step *st, struct ps_sched_job *j,
                         struct ps_sched_conn *ctl)
{
    struct ps_stall *stall = NULL;

    show_own(st, j, ctl->id);
    if (ps_job_started(j)) {
        stall = stall_new(st, j);
    }
    if (stall == NULL) {
        share_done(st, ctl->id);
        return;
    }
    stall->ctl = ctl->id;
    stall->any = true;
    ask(st, j, stall);
}

/* ---------------------------------------------------------------- reports */

static void finish(struct ps_sched_step *st, struct ps_stall *stall)
{
    const struct ps_sched_job *j = ps_sched_job(st->s, stall->gen);
    struct missing missing = {.count = 0};
    ps_conn_id ctl = stall->ctl;
    char what[320];
    struct ps_str text;

    assert(j != NULL); /* Its questions are dropped with it. */
    if (stall->any) {
        const struct ps_job_key *k = ps_job_key(j, stall->oldest);

        if (k != NULL) {
            stall->any = false;
            stall->key = k->number;
            ask(st, j, stall);
            return;
        }
        drop(st->s, stall);
        share_done(st, ctl);
        return;
    }
    missing_in(&missing, st, j, stall);
    if (ctl == 0) {
        answer(st, ps_members_get(&st->s->members, stall->agent), j->gen,
               stall->request, &missing);
        drop(st->s, stall);
        return;
    }
    ps_str_init(&text, what, sizeof(what));
    ps_str_add(&text, "key ");
    ps_str_add_escaped(&text, stall->oldest, strlen(stall->oldest), 256);
    ps_str_addf(&text, " round %" PRIu64, stall->round);
    row(st, ctl, j, what, stall->waited, stall->waits, &missing);
    drop(st->s, stall);
    share_done(st, ctl);
}

static void take_report(struct ps_stall *stall, const struct ps_sched_job *j,
                        uint32_t agent, const struct ps_msg_stall_report *m)
{
    if (stall->any) {
        stall->waits += m->waits;
        if (m->waits > 0 && ps_sched_text(m->key)[0] != '\0' &&
            (m->waited_ns > stall->waited || stall->oldest[0] == '\0')) {
            ps_str_copy(stall->oldest, sizeof(stall->oldest), m->key);
            stall->round = m->round;
            stall->waited = m->waited_ns;
        }
        return;
    }
    if (ps_sched_text(m->unheard)[0] != '\0' &&
        stall->unheard[0] == '\0') { /* One agent's word is enough to go by. */
        struct ps_str text;

        ps_str_init(&text, stall->unheard, sizeof(stall->unheard));
        ps_str_add_escaped(&text, m->unheard, strlen(m->unheard), 256);
    }
    for (uint32_t i = 0; i < m->ranks_count; i++) {
        uint32_t rank = m->ranks[i];

        if (rank < j->num_workers && j->workers[rank].agent == agent) {
            ps_bits_set(&stall->missing, rank);
        }
    }
}

void ps_sched_stall_report(struct ps_sched_step *st, struct ps_member *agent,
                           const struct ps_msg_stall_report *m)
{
    const struct ps_sched_job *j = ps_sched_job(st->s, m->gen);
    uint32_t slot;

    if (j == NULL) {
        return;
    }
    slot = ps_job_slot_of(j, agent->node);
    PS_LIST_EACH(n, &st->s->stalls)
    {
        struct ps_stall *stall = PS_CONTAINER(n, struct ps_stall, node);

        if (stall->ask != m->request || stall->gen != m->gen) {
            continue;
        }
        if (slot == j->slot_count || !ps_bits_clear(&stall->waiting, slot)) {
            return;
        }
        take_report(stall, j, agent->node, m);
        if (stall->waiting.count == 0) {
            finish(st, stall);
        }
        return;
    }
}

/* ----------------------------------------------------------- end and time */

void ps_sched_stall_drop_job(struct ps_sched_step *st, struct ps_sched_job *j)
{
    const struct missing nothing = {.count = 0};
    struct ps_list_node *n = ps_list_first(&st->s->stalls);

    while (n != NULL) {
        struct ps_stall *stall = PS_CONTAINER(n, struct ps_stall, node);
        ps_conn_id ctl = stall->ctl;

        n = ps_list_next(&st->s->stalls, n);
        if (stall->gen != j->gen) {
            continue;
        }
        if (ctl == 0) {
            answer(st, ps_members_get(&st->s->members, stall->agent), j->gen,
                   stall->request, &nothing);
        }
        drop(st->s, stall);
        if (ctl != 0) {
            share_done(st, ctl);
        }
    }
}

void ps_sched_stall_drop_ctl(struct ps_sched *s, ps_conn_id ctl)
{
    struct ps_list_node *n = ps_list_first(&s->stalls);

    while (n != NULL) {
        struct ps_stall *stall = PS_CONTAINER(n, struct ps_stall, node);

        n = ps_list_next(&s->stalls, n);
        if (stall->ctl == ctl) {
            drop(s, stall);
        }
    }
}

void ps_sched_stalls_tick(struct ps_sched_step *st)
{
    struct ps_list_node *n = ps_list_first(&st->s->stalls);

    while (n != NULL) {
        struct ps_stall *stall = PS_CONTAINER(n, struct ps_stall, node);

        n = ps_list_next(&st->s->stalls, n);
        if (stall->deadline <= st->now) {
            finish(st, stall);
        }
    }
}

ps_time ps_sched_stalls_deadline(const struct ps_sched *s)
{
    ps_time due = PS_TIME_NEVER;

    PS_LIST_EACH(n, &s->stalls)
    {
        due = ps_time_min(due,
                          PS_CONTAINER(n, struct ps_stall, node)->deadline);
    }
    return due;
}
