/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of the program, for the trace ring of the agent. They are always
 * recorded, because a trace shows the past, so a span costs little more than the
 * two readings of the clock: names are found without a lock, and the table has a
 * lock of its own, which no thread keeps while it copies or sends. Spans that
 * have ended leave together, when a message is full or an interval is over, by
 * the thread that ends a span or waits. A thread that ends a span never waits
 * for another call of the client; the agent sends no answer. Spans are lost with
 * the client, and with an agent, as its ring is. */
#include "client/state.h"
#include "client/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* Time between two messages, unless one is full. */
#define SEND_INTERVAL PS_MILLIS(20)

struct ended_span {
    uint32_t name;
    ps_time begun_at;
    ps_time ended_at;
};

struct span_table {
    pthread_mutex_t lock; /* Taken after that of the client. */
    /* Names that are complete: they never change. */
    _Atomic uint32_t name_count;
    char names[PS_SPAN_NAMES_MAX][PS_SCALAR_NAME_MAX + 1];
    /* Not sent; the oldest is at `first`. */
    struct ended_span ended[PS_SPANS_KEPT_MAX];
    uint32_t first;
    uint32_t count;
    ps_time send_at; /* Spans leave from then on. */
};

struct span_table *span_table_new(void)
{
    struct span_table *t = calloc(1, sizeof(*t));

    if (t != NULL && pthread_mutex_init(&t->lock, NULL) != 0) {
        free(t);
        return NULL;
    }
    return t;
}

void span_table_free(struct span_table *t, bool child)
{
    if (t != NULL && !child) {
        pthread_mutex_destroy(&t->lock);
    }
    free(t);
}

/* -------------------------------------------------------------------- names */

/* Number of the name, from 1; 0: it is none of the first `count` ones. */
static uint32_t find_name(const struct span_table *t, const char *name,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(t->names[i], name) == 0) {
            return i + 1;
        }
    }
    return 0;
}

/* Number of the name, which is added if there is none; 0: the table is full. */
static uint32_t obtain_name(struct span_table *t, const char *name)
{
    uint32_t count;
    uint32_t number;

    pthread_mutex_lock(&t->lock);
    count = atomic_load_explicit(&t->name_count, memory_order_relaxed);
    number = find_name(t, name, count);
    if (number == 0 && count < PS_SPAN_NAMES_MAX) {
        ps_str_copy(t->names[count], sizeof(t->names[count]), name);
        number = count + 1;
        atomic_store_explicit(&t->name_count, number, memory_order_release);
    }
    pthread_mutex_unlock(&t->lock);
    return number;
}

static int refuse_name(struct psc_client *c, const char *name, bool is_valid)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = is_valid
             ? client_error(
                   c, PSC_E_FULL,
                   "span '%s': this worker has %u others, which is the limit",
                   name, PS_SPAN_NAMES_MAX)
             : client_error(c, PSC_E_INVAL,
                            "span '%.80s': a name has 1 to %u "
                            "characters: %s",
                            name, PS_SCALAR_NAME_MAX,
                            PS_SCALAR_NAME_CHARACTERS);
    client_leave(c);
    return rc;
}

/* ------------------------------------------------------------------ sending */

static uint32_t index_of_name(struct ps_rec_span_name *names, uint32_t *count,
                              const char *name)
{
    uint32_t i = 0;

    while (i < *count && names[i].name != name) {
        i++;
    }
    if (i == *count) {
        names[(*count)++].name = name;
    }
    return i;
}

/* Takes the oldest spans out of the table. */
static void take_spans(struct span_table *t,
                       struct ps_rec_span spans[PS_SPANS_SEND_MAX],
                       struct ps_rec_span_name names[PS_SPANS_SEND_MAX],
                       struct ps_msg_l_spans *m)
{
    uint32_t names_count = 0;
    uint32_t count = 0;

    pthread_mutex_lock(&t->lock);
    while (t->count > 0 && count < PS_SPANS_SEND_MAX) {
        const struct ended_span *e = &t->ended[t->first];

        spans[count++] = (struct ps_rec_span){
            .name = index_of_name(names, &names_count, t->names[e->name]),
            .begun_ns = e->begun_at,
            .duration_ns = e->ended_at - e->begun_at};
        t->first = (t->first + 1) % PS_SPANS_KEPT_MAX;
        t->count--;
    }
    t->send_at = client_now() + SEND_INTERVAL;
    pthread_mutex_unlock(&t->lock);
    *m = (struct ps_msg_l_spans){.names = names,
                                 .names_count = names_count,
                                 .spans = spans,
                                 .spans_count = count};
}

/* False: all stay for later. */
static bool send_some(struct psc_client *c)
{
    struct ps_rec_span spans[PS_SPANS_SEND_MAX];
    struct ps_rec_span_name names[PS_SPANS_SEND_MAX];
    struct ps_msg m = {.code = PS_MSG_L_SPANS};

    /* Without limit they would queue for an agent that does not read. */
    if (c->rc != 0 || !c->id.is_welcomed || c->reattach.link != LINK_UP ||
        ps_sock_pending(c->sock) > 0) {
        return false;
    }
    take_spans(c->spans, spans, names, &m.l_spans);
    if (m.l_spans.spans_count == 0) {
        return false;
    }
    /* A client that cannot send has failed, or notices it when it reads. */
    return client_send(c, &m) == 0;
}

void span_send_all(struct psc_client *c)
{
    while (send_some(c)) {
    }
}

void span_send_due(struct psc_client *c)
{
    struct span_table *t = c->spans;
    bool is_due;

    pthread_mutex_lock(&t->lock);
    is_due = t->count > 0 && client_now() >= t->send_at;
    pthread_mutex_unlock(&t->lock);
    if (is_due) {
        span_send_all(c);
    }
}

/* ------------------------------------------------------------- public calls */

/* Returns true if spans are to be sent now. */
static bool add_span(struct span_table *t, const struct ended_span *e)
{
    bool is_due;

    pthread_mutex_lock(&t->lock);
    t->ended[(t->first + t->count) % PS_SPANS_KEPT_MAX] = *e;
    if (t->count < PS_SPANS_KEPT_MAX) {
        t->count++;
    } else {
        t->first = (t->first + 1) % PS_SPANS_KEPT_MAX;
    }
    is_due = e->ended_at >= t->send_at || t->count % PS_SPANS_SEND_MAX == 0;
    pthread_mutex_unlock(&t->lock);
    return is_due;
}

int psc_span_begin(struct psc_client *c, const char *name,
                   struct psc_span *ret_span)
{
    struct span_table *t;
    uint32_t number;

    if (c == NULL || name == NULL || ret_span == NULL) {
        return PSC_E_INVAL;
    }
    t = c->spans;
    *ret_span = (struct psc_span){.name = 0}; /* psc_span_end() refuses it. */
    if (client_is_forked(c)) {
        return PSC_E_FORKED;
    }
    number = find_name(
        t, name, atomic_load_explicit(&t->name_count, memory_order_acquire));
    if (number == 0) {
        const bool is_valid = ps_scalar_name_is_valid(name);

        number = is_valid ? obtain_name(t, name) : 0;
        if (number == 0) {
            return refuse_name(c, name, is_valid);
        }
    }
    ret_span->name = number;
    ret_span->begun_ns = client_now();
    return 0;
}

static int refuse_end(struct psc_client *c)
{
    int rc = client_enter(c);

    if (rc == 0) {
        rc = client_error(c, PSC_E_INVAL,
                          "the span has not begun, or has ended");
        client_leave(c);
    }
    return rc;
}

int psc_span_end(struct psc_client *c, struct psc_span *span)
{
    struct span_table *t;
    uint32_t number;
    const ps_time now = client_now();

    if (c == NULL || span == NULL) {
        return PSC_E_INVAL;
    }
    t = c->spans;
    number = span->name;
    if (client_is_forked(c)) {
        return PSC_E_FORKED;
    }
    span->name = 0;
    if (number == 0 || span->begun_ns > now ||
        number > atomic_load_explicit(&t->name_count, memory_order_relaxed)) {
        return refuse_end(c);
    }
    if (add_span(t, &(struct ended_span){.name = number - 1,
                                         .begun_at = span->begun_ns,
                                         .ended_at = now}) &&
        pthread_mutex_trylock(&c->lock) == 0) {
        span_send_all(c);
        client_leave(c);
    }
    return 0;
}
