/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer state, sent to a worker that saves it and received from one that
 * loads it. Both are refused during a step of the partition, so they suit
 * moments without pushes. */
#include "core/server/opt_state.h"

#include "base/alloc.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/memory.h"
#include "core/server/migration.h"
#include "core/server/merge.h"
#include "core/server/push.h"
#include "core/server/session.h"

#include <string.h>

/* Element type of the optimizer states and master weights. */
static uint8_t state_dtype(const struct ps_part *part)
{
    return ps_dtype_is_float(part->image.dtype) ? part->image.dtype
                                                : (uint8_t)PS_DTYPE_FLOAT32;
}

/* Number of the partition's buffers that are saved and loaded. */
static unsigned saved_count(const struct ps_server_job *job,
                            const struct ps_part *part)
{
    return ps_image_saved_count(part->image.dtype,
                                ps_optim_state_count(&job->optim));
}

static enum ps_part_buffer saved_buffer(const struct ps_server_job *job,
                                        unsigned which)
{
    return ps_image_saved_buffer(which, ps_optim_state_count(&job->optim));
}

static uint64_t step_count(const struct ps_part *part)
{
    return (uint64_t)((int64_t)part->image.version + part->image.step_offset);
}

/* `copy` NULL: no payload. Takes over one reference. */
static void send_state(struct ps_server_step *st, struct ps_server_session *p,
                       struct ps_msg_state *m, struct ps_buf *copy)
{
    const struct ps_msg msg = {.code = PS_MSG_STATE, .state = *m};
    struct ps_slice slice = {.buf = copy, .len = copy != NULL ? copy->size : 0};

    ps_server_session_send(st, p,
                           ps_packet_new(&msg, &slice, copy != NULL ? 1 : 0));
    ps_buf_unref(copy);
}

/* Request for the state of one partition, or to load it. */
struct state_request {
    struct ps_server_session *session; /* Session of the sender. */
    uint64_t gen;
    uint64_t number; /* Request number, chosen by the sender. */
    uint32_t slot;
    const struct ps_rec_part *rec;
};

static void send_state_error(struct ps_server_step *st,
                             const struct state_request *q, int rc,
                             const char *text)
{
    struct ps_rec_part bare = *q->rec;
    struct ps_msg_state m = {.gen = q->gen,
                             .request = q->number,
                             .error = rc,
                             .text = text,
                             .parts = &bare,
                             .parts_count = 1};

    bare.count = 0;
    send_state(st, q->session, &m, NULL);
}

/* Replies with the state's description, and a copy of a buffer unless that is
 * NULL; takes over one reference. */
static void reply_state(struct ps_server_step *st,
                        const struct state_request *q,
                        const struct ps_server_job *job,
                        const struct ps_part *part, struct ps_buf *copy)
{
    struct ps_rec_part rec = {.key = part->key,
                              .index = part->index,
                              .round = part->image.version,
                              .dtype = state_dtype(part),
                              .count = copy != NULL ? part->image.count : 0};
    struct ps_msg_state m = {.gen = q->gen,
                             .request = q->number,
                             .text = "",
                             .steps = step_count(part),
                             .buffers = (uint8_t)saved_count(job, part),
                             .parts = &rec,
                             .parts_count = 1};

    send_state(st, q->session, &m, copy);
}

/* Returns the record's partition with its states allocated; NULL: refused. */
static struct ps_part *find_part_or_refuse(struct ps_server_step *st,
                                           const struct state_request *q,
                                           struct ps_server_job **ret_job)
{
    struct ps_server_job *job = ps_server_job_find(st->s, q->gen);
    struct ps_server_slot *slot;
    struct ps_part *part = NULL;
    const char *text = "";
    int rc = job != NULL
                 ? ps_server_job_find_slot(job, q->session, q->slot, &slot)
                 : PS_E_NOJOB;

    if (rc == 0) {
        part = ps_store_find(&job->store, q->rec->key, q->rec->index);
        if (ps_server_migration_involves(job, q->rec)) {
            /* The agent asks again, perhaps another server. */
            rc = PS_E_STALE;
        } else {
            rc = ps_image_check_use(part, job->has_optimizer, PS_IMAGE_SAVE,
                                    &text);
        }
        if (rc == 0 && ps_server_optimizer_make_states(job, part) != 0) {
            rc = PS_E_NOMEM;
            text = "the server has no memory for the optimizer's state";
        }
    }
    if (rc != 0) {
        send_state_error(st, q, rc, text);
        return NULL;
    }
    *ret_job = job;
    return part;
}

void ps_server_on_state_get(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_get *m)
{
    const struct state_request q = {.session = c->session,
                                    .gen = m->gen,
                                    .number = m->request,
                                    .slot = m->slot,
                                    .rec = m->parts};
    struct ps_server_job *job;
    struct ps_buf *copy = NULL;

    if (m->parts_count != 1) {
        ps_server_session_close_bad(st, c,
                                    "a question for the state of no partition");
        return;
    }
    struct ps_part *part = find_part_or_refuse(st, &q, &job);

    if (part == NULL) {
        return;
    }
    if (m->which < saved_count(job, part)) {
        struct ps_buf *state = part->buffers[saved_buffer(job, m->which)].buf;

        if (ps_buf_fetch(state) != 0) {
            send_state_error(st, &q, PS_E_IO,
                             "the state was on a device that has failed");
            return;
        }
        /* A copy, because the next step writes the state in place. */
        if (ps_server_memory_alloc(job, state->size, &copy) != 0) {
            send_state_error(
                st, &q, PS_E_NOMEM,
                "the server has no memory for a copy of the state");
            return;
        }
        memcpy(copy->data, state->data, state->size);
    }
    reply_state(st, &q, job, part, copy);
}

/* Makes the loaded master weights the value. */
static int make_value_from_master(struct ps_server_job *job,
                                  struct ps_part *part)
{
    const size_t len = part->image.count * ps_dtype_size(part->image.dtype);
    struct ps_slice value = {.len = len};
    int rc = ps_server_memory_alloc(job, len, &value.buf);

    if (rc == 0) {
        ps_kernel_narrow(
            (enum ps_dtype)part->image.dtype, value.buf->data,
            (const float *)(const void *)ps_part_state(part, PS_PART_MASTER)
                ->data,
            part->image.count);
        ps_store_set_value(&job->store, part, part->image.version, &value);
    }
    return rc;
}

static int store_state(struct ps_server_job *job, struct ps_part *part,
                       const struct ps_msg_state_put *m,
                       const struct ps_slice *payload)
{
    const struct ps_rec_part *rec = m->parts;
    const enum ps_part_buffer place = saved_buffer(job, m->which);
    struct ps_buf *state = part->buffers[place].buf;

    if (m->which < UINT8_MAX &&
        (m->which >= saved_count(job, part) ||
         rec->count != part->image.count || rec->dtype != state_dtype(part) ||
         payload == NULL)) {
        return PS_E_MISMATCH;
    }
    if (m->steps > PS_ROUND_MAX) {
        return PS_E_INVAL;
    }
    part->image.step_offset = (int64_t)m->steps - (int64_t)part->image.version;
    if (m->which == UINT8_MAX) {
        return 0;
    }
    memcpy(state->data, ps_slice_data(payload), state->size);
    ps_buf_invalidate_copy(state);
    return place == PS_PART_BUFFER_MASTER ? make_value_from_master(job, part)
                                          : 0;
}

void ps_server_on_state_put(struct ps_server_step *st, struct ps_server_conn *c,
                            const struct ps_msg_state_put *m,
                            const struct ps_slice *payload)
{
    const struct state_request q = {.session = c->session,
                                    .gen = m->gen,
                                    .number = m->request,
                                    .slot = m->slot,
                                    .rec = m->parts};
    struct ps_server_job *job;
    uint64_t total;

    if (m->parts_count != 1 || m->parts->codec != PS_CODEC_NONE ||
        c->discard_reason == PS_E_PROTO ||
        !ps_server_parts_bytes(m->parts, 1, &total) ||
        (total > 0) != (payload != NULL) ||
        (payload != NULL && payload->buf != NULL && payload->len != total)) {
        ps_server_session_close_bad(st, c,
                                    "a state and its payload do not agree");
        return;
    }
    if (payload != NULL && payload->buf == NULL) {
        const bool hopeless = ps_server_memory_is_exhausted(st->s, total);

        /* PS_E_STALE is tried again after a while. */
        send_state_error(st, &q,
                         c->discard_reason != PS_E_NOMEM ? c->discard_reason
                         : hopeless                      ? PS_E_FULL
                                                         : PS_E_STALE,
                         hopeless
                             ? "the server has no memory for it (store.memory)"
                             : "the state could not be taken");
        return;
    }
    struct ps_part *part = find_part_or_refuse(st, &q, &job);

    if (part == NULL) {
        return;
    }
    int rc = store_state(job, part, m, payload);

    if (rc != 0) {
        send_state_error(st, &q, rc,
                         "the state is not one of this optimizer and key");
        return;
    }
    reply_state(st, &q, job, part, NULL);
}
