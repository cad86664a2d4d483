/* SPDX-License-Identifier: Apache-2.0 */
/* An agent of a job of one worker on a thread of its own, with a server that
 * outlives it: each contribution is the sum. It dies at a point that the test
 * chooses, and another one starts without state. */
#pragma once

#include "test_client_peer.h"

#define AGENT_KEYS 24u
#define AGENT_NAME 64u

enum agent_death_point {
    AGENT_DIES_UNDONE, /* The message is read and not handled. */
    AGENT_DIES_DONE, /* The server has handled it, the worker has no answer. */
    AGENT_DIES_REPLIED, /* The answer is in flight. */
    AGENT_DEATHS
};

/* Dies at the n-th message of all, counted from 1. */
struct agent_death {
    unsigned at;
    enum agent_death_point point;
};

struct agent_key {
    char name[AGENT_NAME];
    uint8_t *value; /* The server's. */
    size_t bytes;
    uint64_t version;
    bool is_known; /* To this life. */
    size_t at;
    size_t half;
};

struct agent {
    struct peer peer;
    struct agent_key keys[AGENT_KEYS];
    uint32_t key_count;
    uint64_t barriers;
    const struct agent_death *deaths;
    unsigned death_count;
    unsigned seen;
    unsigned died;
    unsigned byes;
    pthread_t thread;
};

/* Hook of later agents, called when a result is in its place and its end is not
 * reported yet. */
static void (*agent_on_result)(struct agent *a, const struct ps_msg_l_op *m,
                               size_t bytes);

static inline struct agent_key *agent_key(struct agent *a, const char *name)
{
    struct agent_key *k;

    for (uint32_t i = 0; i < a->key_count; i++) {
        if (strcmp(a->keys[i].name, name) == 0) {
            return &a->keys[i];
        }
    }
    PEER_CHECK(a->key_count < AGENT_KEYS && strlen(name) < AGENT_NAME);
    k = &a->keys[a->key_count++];
    snprintf(k->name, sizeof(k->name), "%s", name);
    return k;
}

static inline void agent_accept_key(struct agent *a,
                                    const struct ps_msg_l_key *m)
{
    struct agent_key *k = agent_key(a, m->name);

    if (m->reattached) {
        PEER_CHECK(k->value != NULL);
        PEER_CHECK(m->pushed_round == k->version ||
                   m->pushed_round + 1 == k->version);
    }
    k->is_known = true;
    k->at = a->peer.arena_used;
    peer_answer_key(&a->peer, m, (uint32_t)(k - a->keys),
                    m->reattached ? m->pushed_round : k->version);
    k->half = (a->peer.arena_used - k->at) / 2;
    if (k->value == NULL) {
        k->bytes = k->half;
        k->value = calloc(1, k->bytes);
        PEER_CHECK(k->value != NULL);
    }
}

/* Merges as a server does, each round once. */
static inline void agent_merge(struct agent *a, const struct ps_msg_l_op *m)
{
    struct agent_key *k = &a->keys[m->key];

    PEER_CHECK(m->key < a->key_count && k->is_known);
    if (m->op == PS_OP_PUSH || m->op == PS_OP_PUSHPULL ||
        m->op == PS_OP_BROADCAST) {
        PEER_CHECK(m->round == k->version || m->round == k->version + 1);
        if (m->round > k->version) {
            memcpy(k->value, peer_op_source(&a->peer, m), k->bytes);
            k->version = m->round;
        }
    }
}

static inline void agent_reply_op(struct agent *a, const struct ps_msg_l_op *m)
{
    const struct agent_key *k = &a->keys[m->key];

    PEER_CHECK(k->version >= m->round);
    memcpy(a->peer.arena + k->at + (k->version & 1) * k->half, k->value,
           k->bytes);
    if (agent_on_result != NULL) {
        agent_on_result(a, m, k->bytes);
    }
    peer_done(&a->peer, m->op_id, k->version);
}

/* The part of a message's handling that concerns server and scheduler. */
static inline void agent_apply(struct agent *a, const struct ps_msg *m)
{
    if (m->code == PS_MSG_L_OP) {
        agent_merge(a, &m->l_op);
    } else if (m->code == PS_MSG_L_BARRIER) {
        PEER_CHECK(m->l_barrier.number == a->barriers ||
                   m->l_barrier.number == a->barriers + 1);
        a->barriers = m->l_barrier.number;
    }
}

static inline void agent_reply(struct agent *a, const struct ps_msg *m)
{
    switch ((int)m->code) {
    case PS_MSG_L_HELLO:
        PEER_CHECK((m->l_hello.gen != 0) == (a->died > 0));
        PEER_CHECK(m->l_hello.completed_barriers == a->barriers ||
                   m->l_hello.completed_barriers + 1 == a->barriers);
        peer_send(
            &a->peer,
            &(struct ps_msg){.code = PS_MSG_L_WELCOME,
                             .l_welcome = {.gen = 9,
                                           .num_workers = 1,
                                           .local_size = 1,
                                           .num_servers = 1,
                                           .ring_layout = a->peer.accepts_ring
                                                              ? ps_ring_layout()
                                                              : 0}},
            -1);
        break;
    case PS_MSG_L_KEY:
        agent_accept_key(a, &m->l_key);
        break;
    case PS_MSG_L_OP:
        agent_reply_op(a, &m->l_op);
        break;
    case PS_MSG_L_BARRIER:
        peer_done(&a->peer, m->l_barrier.op_id, m->l_barrier.number);
        break;
    case PS_MSG_L_OPTIMIZER:
        peer_done(&a->peer, m->l_optimizer.op_id, 0);
        break;
    default:
        break; /* A region that goes. */
    }
}

/* Runs one agent until it dies; false: it was the last. */
static inline bool agent_run_life(struct agent *a)
{
    const struct agent_death *d = &a->deaths[a->died];
    bool dies = false;

    while (!dies) {
        struct ps_msg m = peer_next(&a->peer);

        a->byes += m.code == PS_MSG_L_DETACH;
        if (m.code == 0 || m.code == PS_MSG_L_DETACH) {
            return false;
        }
        a->seen++;
        dies = a->died < a->death_count && a->seen >= d->at;
        if (!dies || d->point != AGENT_DIES_UNDONE) {
            agent_apply(a, &m);
        }
        if (!dies || d->point == AGENT_DIES_REPLIED) {
            agent_reply(a, &m);
        }
    }
    return true;
}

static inline void *agent_main(void *arg)
{
    struct agent *a = arg;

    peer_accept(&a->peer);
    while (agent_run_life(a)) {
        a->died++;
        for (uint32_t i = 0; i < a->key_count; i++) {
            a->keys[i].is_known = false;
        }
        peer_drop_shared(&a->peer);
        peer_accept(&a->peer);
    }
    peer_close_conn(&a->peer);
    return NULL;
}

static inline void agent_start(struct agent *a, bool takes_ring,
                               const struct agent_death *deaths, unsigned count)
{
    memset(a, 0, sizeof(*a));
    a->deaths = deaths;
    a->death_count = count;
    peer_start(&a->peer);
    a->peer.accepts_ring = takes_ring;
    PEER_CHECK(pthread_create(&a->thread, NULL, agent_main, a) == 0);
}

/* Ends the agents after the client has been closed; returns the number that
 * died. */
static inline unsigned agent_stop(struct agent *a)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    /* It may wait for a client that has failed. */
    memcpy(to.sun_path, a->peer.path, strlen(a->peer.path) + 1);
    PEER_CHECK(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    close(fd);
    PEER_CHECK(pthread_join(a->thread, NULL) == 0);
    peer_stop(&a->peer);
    for (uint32_t i = 0; i < a->key_count; i++) {
        free(a->keys[i].value);
    }
    return a->died;
}
