/* SPDX-License-Identifier: Apache-2.0 */
/* What servers keep for the optimizer of a key, into a worker's memory or from
 * there: a question for each partition, a few of them at a time, because a
 * server copies what it answers with. */
#include "core/agent_inner.h"

#include "base/alloc.h"

#include <string.h>

#define QUESTIONS_MAX 8u

struct question {
    uint64_t request; /* 0: not sent. */
    bool done;
};

struct ps_agent_stating {
    uint8_t which;
    bool put;
    uint64_t steps;
    uint64_t version;           /* Of the answer. */
    uint32_t open;              /* Without an answer. */
    uint32_t asked;             /* Of these, sent. */
    struct question question[]; /* For each partition. */
};

/* Elements of states are as wide as what they are computed in. */
static uint8_t state_dtype(const struct ps_agent_key *k)
{
    return ps_dtype_is_float(k->dtype) ? k->dtype : (uint8_t)PS_DTYPE_FLOAT32;
}

static void ask(struct ps_agent_step *st, struct ps_agent_op *op, uint32_t i)
{
    struct ps_agent_key *k = op->key;
    struct ps_agent_stating *s = op->stating;
    struct ps_agent_part *p = &k->parts[i];
    struct ps_agent_flow *f = ps_agent_flow_get(st, k->job, p->node);
    const size_t size = ps_dtype_size(state_dtype(k));
    struct ps_rec_part rec = {
        .key = k->number, .index = p->index, .dtype = state_dtype(k)};
    struct ps_slice slice = {0};
    struct ps_msg m;

    s->question[i].request = ++st->a->next_request;
    s->asked++;
    if (!s->put) {
        m = (struct ps_msg){.code = PS_MSG_STATE_GET,
                            .state_get = {.gen = k->job->gen,
                                          .slot = k->job->slot,
                                          .request = s->question[i].request,
                                          .which = s->which,
                                          .parts = &rec,
                                          .parts_count = 1}};
    } else {
        if (s->which != UINT8_MAX) {
            rec.count = p->count;
            slice = (struct ps_slice){.buf = op->array.buf,
                                      .offset = op->array.offset +
                                                p->first * size,
                                      .len = p->count * size};
        }
        m = (struct ps_msg){.code = PS_MSG_STATE_PUT,
                            .state_put = {.gen = k->job->gen,
                                          .slot = k->job->slot,
                                          .request = s->question[i].request,
                                          .which = s->which,
                                          .steps = s->steps,
                                          .parts = &rec,
                                          .parts_count = 1}};
    }
    ps_link_send(f->server->caller.link,
                 ps_parcel_new(&m, &slice, slice.buf != NULL ? 1 : 0), st->now,
                 st->fx);
}

/* As many as may be open. */
static void ask_more(struct ps_agent_step *st, struct ps_agent_op *op)
{
    struct ps_agent_stating *s = op->stating;

    for (uint32_t i = 0; i < op->key->part_count && s->asked < QUESTIONS_MAX;
         i++) {
        if (!s->question[i].done && s->question[i].request == 0) {
            ask(st, op, i);
        }
    }
}

/* The worker's memory for the buffer; else an error and its text. */
static int take_array(struct ps_agent_session *s, const struct ps_agent_key *k,
                      const struct ps_msg_l_state *m,
                      struct ps_slice *ret_slice, const char **ret_why)
{
    const size_t size = ps_dtype_size(state_dtype(k));
    const uint64_t bytes = k->count * size;
    struct ps_buf *region = ps_map_get(s->regions, m->region);

    *ret_slice = (struct ps_slice){0};
    if (m->which == UINT8_MAX) {
        return 0;
    }
    if (region == NULL) {
        return ps_agent_session_missing(s, m->region, ret_why);
    }
    *ret_why = "the memory for a state lies in no region";
    if (m->offset > region->size || bytes > region->size - m->offset ||
        ((uintptr_t)region->data + m->offset) % size != 0) {
        return PS_E_INVAL;
    }
    *ret_slice = (struct ps_slice){
        .buf = region, .offset = m->offset, .len = bytes};
    ps_buf_ref(region);
    return 0;
}

void ps_agent_state_take(struct ps_agent_step *st, struct ps_agent_session *s,
                         const struct ps_msg_l_state *m)
{
    struct ps_agent_key *k = ps_map_get(s->job->keys, m->key);
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_refusal why;
    char text[PS_TEXT_MAX];
    const char *no;
    struct ps_str t;
    int rc;

    if (k == NULL || !ps_dtype_is_real(k->dtype)) {
        ps_agent_op_done(st, op, 0, PS_E_NOKEY,
                         "no key of real numbers has this number");
        return;
    }
    if (s->job->num_servers == 0) {
        ps_agent_op_done(st, op, 0, PS_E_UNSUPPORTED,
                         "an optimizer runs on servers, and the job has none");
        return;
    }
    rc = take_array(s, k, m, &op->array, &no);
    if (rc != 0) {
        ps_agent_op_done(st, op, 0, rc, no);
        return;
    }
    const uint64_t cost = sizeof(*op->stating) +
                          k->part_count * sizeof(struct question);

    op->key = k;
    if (ps_account_charge(&k->job->account, PS_COST_MEMORY, cost, &why) != 0) {
        ps_str_init(&t, text, sizeof(text));
        ps_refusal_text(&why, &t);
        ps_agent_op_done(st, op, 0, PS_E_FULL, text);
        return;
    }
    op->charged = cost;
    op->stating = ps_try_calloc(1, cost);
    if (op->stating == NULL) {
        ps_agent_op_done(st, op, 0, PS_E_NOMEM,
                         "the agent has no memory for a question of each "
                         "partition");
        return;
    }
    op->stating->which = m->which;
    op->stating->put = m->put;
    op->stating->steps = m->steps;
    op->stating->open = k->part_count;
    ps_list_push_back(&k->stating, &op->node);
    ask_more(st, op);
}

void ps_agent_state_again(struct ps_agent_step *st, struct ps_agent_key *k,
                          uint32_t node)
{
    PS_LIST_EACH(n, &k->stating)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        for (uint32_t i = 0; i < k->part_count; i++) {
            struct question *q = &op->stating->question[i];

            if (!q->done && q->request != 0 && k->parts[i].node == node) {
                q->request = 0;
                op->stating->asked--;
            }
        }
        ask_more(st, op);
    }
}

void ps_agent_state_moved(struct ps_agent_step *st, struct ps_agent_part *p)
{
    PS_LIST_EACH(n, &p->key->stating)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);
        struct question *q = &op->stating->question[p->index];

        if (!q->done && q->request != 0) {
            q->request = 0;
            op->stating->asked--;
        }
    }
    ps_agent_state_check(st, p->key);
}

void ps_agent_state_check(struct ps_agent_step *st, struct ps_agent_key *k)
{
    PS_LIST_EACH(n, &k->stating)
    {
        ask_more(st, PS_CONTAINER(n, struct ps_agent_op, node));
    }
}

static struct ps_agent_op *find(const struct ps_agent_key *k, uint32_t index,
                                uint64_t request)
{
    PS_LIST_EACH(n, &k->stating)
    {
        struct ps_agent_op *op = PS_CONTAINER(n, struct ps_agent_op, node);

        if (index < k->part_count && request != 0 &&
            op->stating->question[index].request == request) {
            return op;
        }
    }
    return NULL;
}

/* Writes the buffer of one partition where it belongs. */
static int take_part(const struct ps_agent_op *op,
                     const struct ps_agent_part *p,
                     const struct ps_msg_state *m,
                     const struct ps_slice *payload)
{
    const size_t size = ps_dtype_size(state_dtype(op->key));

    if (op->stating->put || op->stating->which == UINT8_MAX) {
        return 0;
    }
    if (m->parts->count == 0 || op->stating->which >= m->buffers) {
        return PS_E_NOENT;
    }
    if (m->parts->count != p->count ||
        m->parts->dtype != state_dtype(op->key) || payload == NULL ||
        payload->buf == NULL) {
        return PS_E_MISMATCH;
    }
    memcpy(ps_slice_data(&op->array) + p->first * size, ps_slice_data(payload),
           p->count * size);
    return 0;
}

void ps_agent_state_took(struct ps_agent_step *st, const struct ps_msg_state *m,
                         const struct ps_slice *payload)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);

    if (j == NULL || m->parts_count != 1) {
        return;
    }
    struct ps_agent_key *k = ps_map_get(j->keys, m->parts->key);
    struct ps_agent_op *op = k == NULL ? NULL
                                       : find(k, m->parts->index, m->request);

    if (op == NULL) {
        return; /* Its worker is gone, or it was answered twice. */
    }
    struct ps_agent_stating *s = op->stating;
    struct question *q = &s->question[m->parts->index];
    const char *text = m->text;
    int rc = m->error;

    if (rc == PS_E_STALE) {
        q->request = 0; /* Its place changes: again in a while. */
        s->asked--;
        st->a->retry_at = ps_time_min(st->a->retry_at,
                                      ps_time_add(st->now, RETRY_WAIT));
        return;
    }
    if (rc == 0) {
        rc = take_part(op, &k->parts[m->parts->index], m, payload);
        text = rc == 0 ? "" : "the server's state of the key is another one";
    }
    if (rc != 0) {
        ps_list_remove(&op->node);
        ps_agent_op_done(st, op, 0, rc, text);
        return;
    }
    q->done = true;
    q->request = 0;
    s->version = m->steps * 8 + (m->buffers < 8 ? m->buffers : 0);
    s->asked--;
    if (--s->open > 0) {
        ask_more(st, op);
        return;
    }
    ps_list_remove(&op->node);
    ps_agent_op_done(st, op, s->version, 0, "");
}
