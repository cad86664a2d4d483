/* SPDX-License-Identifier: Apache-2.0 */
/* State transfers: optimizer state of a key, from the servers to a worker's
 * memory or back. One request for each partition, and only a few open at a time
 * because a server copies the state for each answer. */
#include "core/agent/opt_state.h"

#include "base/alloc.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/server.h"
#include "core/agent/session.h"

#include <string.h>

#define REQUESTS_IN_FLIGHT_MAX 8u

struct part_request {
    uint64_t request_id; /* 0: not sent. */
    bool is_answered;
};

struct ps_agent_state_transfer {
    uint8_t buffer_index;
    bool is_put;
    uint64_t steps;
    uint64_t version;            /* steps * 8 + buffers, of the last answer. */
    uint32_t pending_parts;      /* Partitions without an answer. */
    uint32_t requests_in_flight; /* Requests without an answer. */
    struct part_request requests[]; /* By index of the partition. */
};

/* Element type of state: float32 for 16-bit keys, else that of the key. */
static uint8_t state_dtype(const struct ps_agent_key *k)
{
    return ps_dtype_is_float(k->dtype) ? k->dtype : (uint8_t)PS_DTYPE_FLOAT32;
}

static void send_state_request(struct ps_agent_step *st, struct ps_agent_op *op,
                               uint32_t i)
{
    struct ps_agent_key *k = op->key;
    struct ps_agent_state_transfer *s = op->state_transfer;
    struct ps_agent_part *p = &k->parts[i];
    struct ps_agent_send_queue *f = ps_agent_send_queue_get(st, k->job,
                                                            p->owner_node);
    const size_t size = ps_dtype_size(state_dtype(k));
    struct ps_rec_part rec = {
        .key = k->number, .index = p->index, .dtype = state_dtype(k)};
    struct ps_slice slice = {0};
    struct ps_msg m;

    s->requests[i].request_id = ++st->a->last.request;
    s->requests_in_flight++;
    if (!s->is_put) {
        m = (struct ps_msg){.code = PS_MSG_STATE_GET,
                            .state_get = {.gen = k->job->gen,
                                          .slot = k->job->slot,
                                          .request = s->requests[i].request_id,
                                          .which = s->buffer_index,
                                          .parts = &rec,
                                          .parts_count = 1}};
    } else {
        if (s->buffer_index != UINT8_MAX) {
            rec.count = p->count;
            slice = (struct ps_slice){.buf = op->array.buf,
                                      .offset = op->array.offset +
                                                p->first_elem * size,
                                      .len = p->count * size};
        }
        m = (struct ps_msg){.code = PS_MSG_STATE_PUT,
                            .state_put = {.gen = k->job->gen,
                                          .slot = k->job->slot,
                                          .request = s->requests[i].request_id,
                                          .which = s->buffer_index,
                                          .steps = s->steps,
                                          .parts = &rec,
                                          .parts_count = 1}};
    }
    ps_agent_server_send(st, f->server,
                         ps_packet_new(&m, &slice, slice.buf != NULL ? 1 : 0));
}

/* Sends requests until REQUESTS_IN_FLIGHT_MAX are open. */
static void send_state_requests(struct ps_agent_step *st,
                                struct ps_agent_op *op)
{
    struct ps_agent_state_transfer *s = op->state_transfer;

    for (uint32_t i = 0; i < op->key->part_count &&
                         s->requests_in_flight < REQUESTS_IN_FLIGHT_MAX;
         i++) {
        if (!s->requests[i].is_answered && s->requests[i].request_id == 0) {
            send_state_request(st, op, i);
        }
    }
}

/* Slice of the worker's memory for the buffer; empty if the transfer has none.
 * On error, *ret_why is its text. */
static int resolve_state_array(struct ps_agent_session *s,
                               const struct ps_agent_key *k,
                               const struct ps_msg_l_optimizer_state *m,
                               struct ps_slice *ret_slice, const char **ret_why)
{
    const size_t size = ps_dtype_size(state_dtype(k));
    const uint64_t bytes = k->count * size;
    struct ps_buf *region = ps_map_get(s->regions, m->region);

    *ret_slice = (struct ps_slice){0};
    if (m->buffer_index == UINT8_MAX) {
        return 0;
    }
    if (region == NULL) {
        return ps_agent_session_on_missing_region(s, m->region, ret_why);
    }
    *ret_why = "the memory for a state lies in no region";
    if (m->offset > region->size || bytes > region->size - m->offset ||
        ((uintptr_t)region->data + m->offset) % size != 0 ||
        region->device != NULL) {
        return PS_E_INVAL;
    }
    *ret_slice = (struct ps_slice){
        .buf = region, .offset = m->offset, .len = bytes};
    ps_buf_ref(region);
    return 0;
}

void ps_agent_opt_state_accept_op(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  const struct ps_msg_l_optimizer_state *m)
{
    struct ps_agent_key *k = ps_map_get(s->job->keys, m->key);
    struct ps_agent_op *op = ps_agent_op_new(st, s, m->op_id);
    struct ps_refusal why;
    const char *no;
    int rc;

    if (k == NULL || !ps_dtype_is_real(k->dtype)) {
        ps_agent_op_end(st, op, 0, PS_E_NOKEY,
                        "no key of real numbers has this number");
        return;
    }
    if (s->job->config.num_servers == 0) {
        ps_agent_op_end(st, op, 0, PS_E_UNSUPPORTED,
                        "an optimizer runs on servers, and the job has none");
        return;
    }
    rc = resolve_state_array(s, k, m, &op->array, &no);
    if (rc != 0) {
        ps_agent_op_end(st, op, 0, rc, no);
        return;
    }
    const uint64_t cost = sizeof(*op->state_transfer) +
                          k->part_count * sizeof(struct part_request);

    op->key = k;
    if (ps_account_charge(&k->job->account, PS_COST_MEMORY, cost, &why) != 0) {
        struct ps_str t = PS_STR_ROOM(PS_TEXT_MAX);

        ps_refusal_text(&why, &t);
        ps_agent_op_end(st, op, 0, PS_E_FULL, t.data);
        return;
    }
    op->charged_bytes = cost;
    op->state_transfer = ps_try_calloc(1, cost);
    if (op->state_transfer == NULL) {
        ps_agent_op_end(
            st, op, 0, PS_E_NOMEM,
            "the agent has no memory for a request for each partition");
        return;
    }
    op->state_transfer->buffer_index = m->buffer_index;
    op->state_transfer->is_put = m->is_put;
    op->state_transfer->steps = m->steps;
    op->state_transfer->pending_parts = k->part_count;
    ps_list_push_back(&k->state_transfers, &op->node);
    send_state_requests(st, op);
}

void ps_agent_opt_state_resend(struct ps_agent_step *st, struct ps_agent_key *k,
                               uint32_t node)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->state_transfers)
    {
        for (uint32_t i = 0; i < k->part_count; i++) {
            struct part_request *q = &op->state_transfer->requests[i];

            if (!q->is_answered && q->request_id != 0 &&
                k->parts[i].owner_node == node) {
                q->request_id = 0;
                op->state_transfer->requests_in_flight--;
            }
        }
        send_state_requests(st, op);
    }
}

void ps_agent_opt_state_reset_part(struct ps_agent_step *st,
                                   struct ps_agent_part *p)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &p->key->state_transfers)
    {
        struct part_request *q = &op->state_transfer->requests[p->index];

        if (!q->is_answered && q->request_id != 0) {
            q->request_id = 0;
            op->state_transfer->requests_in_flight--;
        }
    }
    ps_agent_opt_state_advance(st, p->key);
}

void ps_agent_opt_state_advance(struct ps_agent_step *st,
                                struct ps_agent_key *k)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->state_transfers)
    {
        send_state_requests(st, op);
    }
}

static struct ps_agent_op *find_transfer_op(const struct ps_agent_key *k,
                                            uint32_t index, uint64_t request)
{
    PS_LIST_EACH_OF(struct ps_agent_op, op, node, &k->state_transfers)
    {
        if (index < k->part_count && request != 0 &&
            op->state_transfer->requests[index].request_id == request) {
            return op;
        }
    }
    return NULL;
}

/* Copies the state of one partition to its place in the worker's array. */
static int copy_state_part(const struct ps_agent_op *op,
                           const struct ps_agent_part *p,
                           const struct ps_msg_state *m,
                           const struct ps_slice *payload)
{
    const size_t size = ps_dtype_size(state_dtype(op->key));

    if (op->state_transfer->is_put ||
        op->state_transfer->buffer_index == UINT8_MAX) {
        return 0;
    }
    if (m->parts->count == 0 ||
        op->state_transfer->buffer_index >= m->buffers) {
        return PS_E_NOENT;
    }
    if (m->parts->count != p->count ||
        m->parts->dtype != state_dtype(op->key) || payload == NULL ||
        payload->buf == NULL) {
        return PS_E_MISMATCH;
    }
    memcpy(ps_slice_data(&op->array) + p->first_elem * size,
           ps_slice_data(payload), p->count * size);
    return 0;
}

void ps_agent_opt_state_on_state(struct ps_agent_step *st,
                                 const struct ps_agent_server *server,
                                 const struct ps_msg_state *m,
                                 const struct ps_slice *payload)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);

    if (j == NULL || m->parts_count != 1) {
        return;
    }
    struct ps_agent_key *k = ps_map_get(j->keys, m->parts->key);
    struct ps_agent_op *op = k == NULL ? NULL
                                       : find_transfer_op(k, m->parts->index,
                                                          m->request);

    if (op == NULL || k->parts[m->parts->index].owner_node != server->node) {
        /* The operation has ended, the answer is a duplicate, or the request
         * went to the partition's next owner since. */
        return;
    }
    struct ps_agent_state_transfer *s = op->state_transfer;
    struct part_request *q = &s->requests[m->parts->index];
    const char *text = m->text;
    int rc = m->error;

    if (rc == PS_E_STALE) {
        q->request_id = 0; /* The partition migrates: retry later. */
        s->requests_in_flight--;
        st->a->due.resend_at = ps_time_min(st->a->due.resend_at,
                                           ps_time_add(st->now, RESEND_WAIT));
        return;
    }
    if (rc == 0) {
        rc = copy_state_part(op, &k->parts[m->parts->index], m, payload);
        text = rc == 0 ? "" : "the server has a different state of the key";
    }
    if (rc != 0) {
        ps_list_remove(&op->node);
        ps_agent_op_end(st, op, 0, rc, text);
        return;
    }
    q->is_answered = true;
    q->request_id = 0;
    s->version = m->steps * 8 + (m->buffers < 8 ? m->buffers : 0);
    s->requests_in_flight--;
    if (--s->pending_parts > 0) {
        send_state_requests(st, op);
        return;
    }
    ps_list_remove(&op->node);
    ps_agent_op_end(st, op, s->version, 0, "");
}
