/* SPDX-License-Identifier: Apache-2.0 */
/* What the optimizer keeps between steps, given to a worker that saves it and
 * taken from one that loads it. Both are for moments when nobody pushes: while
 * a step of the partition is computed they are refused. */
#include "core/shard_inner.h"

#include "base/alloc.h"

#include <string.h>

/* The element type of its states, and of its masters. */
static uint8_t state_dtype(const struct ps_part *part)
{
    return ps_dtype_is_float(part->dtype) ? part->dtype
                                          : (uint8_t)PS_DTYPE_FLOAT32;
}

/* Where buffer `which` lies among the partition's. */
static unsigned place_of(const struct ps_shard_job *job, unsigned which)
{
    return which < ps_optim_states(&job->optim) ? which : PS_PART_MASTER;
}

static unsigned buffers_of(const struct ps_shard_job *job,
                           const struct ps_part *part)
{
    return ps_optim_states(&job->optim) +
           (ps_dtype_is_float(part->dtype) ? 0 : 1);
}

static uint64_t steps_of(const struct ps_part *part)
{
    return (uint64_t)((int64_t)part->version + part->shift);
}

/* `copy` NULL: no payload. Takes over its reference. */
static void answer(struct ps_shard_step *st, struct ps_shard_peer *p,
                   struct ps_msg_state *m, struct ps_buf *copy)
{
    const struct ps_msg msg = {.code = PS_MSG_STATE, .state = *m};
    struct ps_slice slice = {.buf = copy, .len = copy != NULL ? copy->size : 0};

    ps_shard_peer_send(st, p,
                       ps_parcel_new(&msg, &slice, copy != NULL ? 1 : 0));
    ps_buf_unref(copy);
}

static void refuse(struct ps_shard_step *st, struct ps_shard_peer *p,
                   uint64_t gen, uint64_t request,
                   const struct ps_rec_part *rec, int rc, const char *text)
{
    struct ps_rec_part bare = *rec;
    struct ps_msg_state m = {.gen = gen,
                             .request = request,
                             .error = rc,
                             .text = text,
                             .parts = &bare,
                             .parts_count = 1};

    bare.count = 0;
    answer(st, p, &m, NULL);
}

/* The partition of the record, ready for a step. NULL: refused. */
static struct ps_part *enter(struct ps_shard_step *st, struct ps_shard_peer *p,
                             uint64_t gen, uint32_t number, uint64_t request,
                             const struct ps_rec_part *rec,
                             struct ps_shard_job **ret_job)
{
    struct ps_shard_job *job = ps_shard_job_find(st->s, gen);
    struct ps_shard_slot *slot;
    struct ps_part *part = NULL;
    const char *text = "";
    int rc = job != NULL ? ps_shard_job_slot(job, p, number, &slot)
                         : PS_E_NOJOB;

    if (rc == 0) {
        part = ps_store_find(&job->store, rec->key, rec->index);
        if (ps_shard_move_involves(job, rec)) {
            rc = PS_E_STALE; /* To be asked again, perhaps of another. */
        } else if (!job->optimizes) {
            rc = PS_E_INVAL;
            text = "the job has no optimizer";
        } else if (part == NULL || !ps_part_has_value(part) ||
                   !ps_dtype_is_real(part->dtype)) {
            rc = PS_E_NOKEY;
            text = "the key was never initialised, or holds no real numbers";
        } else if (part->run != NULL) {
            rc = PS_E_AGAIN;
            text = "a step is being made: save and load while nobody pushes";
        } else if (part->gathered.buf != NULL) {
            rc = PS_E_AGAIN;
            text = "a step of several rounds has begun: save and load after "
                   "the last of them";
        } else if (ps_shard_step_states(job, part) != 0) {
            rc = PS_E_NOMEM;
            text = "the server has no memory for the optimizer's state";
        }
    }
    if (rc != 0) {
        refuse(st, p, gen, request, rec, rc, text);
        return NULL;
    }
    *ret_job = job;
    return part;
}

void ps_shard_state_get(struct ps_shard_step *st, struct ps_shard_conn *c,
                        const struct ps_msg_state_get *m)
{
    struct ps_shard_job *job;
    struct ps_buf *copy = NULL;

    if (m->parts_count != 1) {
        ps_shard_peer_cut(st, c, "a question for the state of no partition");
        return;
    }
    struct ps_part *part = enter(st, c->peer, m->gen, m->slot, m->request,
                                 m->parts, &job);

    if (part == NULL) {
        return;
    }
    if (m->which < buffers_of(job, part)) {
        const struct ps_buf *state = part->state[place_of(job, m->which)];

        /* A copy, because the next step changes it where it lies. */
        if (ps_shard_room_take(job, state->size, &copy) != 0) {
            refuse(st, c->peer, m->gen, m->request, m->parts, PS_E_NOMEM,
                   "the server has no memory for a copy of the state");
            return;
        }
        memcpy(copy->data, state->data, state->size);
    }
    struct ps_rec_part rec = {.key = part->key,
                              .index = part->index,
                              .round = part->version,
                              .dtype = state_dtype(part),
                              .count = copy != NULL ? part->count : 0};
    struct ps_msg_state reply = {.gen = m->gen,
                                 .request = m->request,
                                 .text = "",
                                 .steps = steps_of(part),
                                 .buffers = (uint8_t)buffers_of(job, part),
                                 .parts = &rec,
                                 .parts_count = 1};

    answer(st, c->peer, &reply, copy);
}

/* The loaded weights are the value, too. */
static int renew_value(struct ps_shard_job *job, struct ps_part *part)
{
    const size_t len = part->count * ps_dtype_size(part->dtype);
    struct ps_slice value = {.len = len};
    int rc = ps_shard_room_take(job, len, &value.buf);

    if (rc == 0) {
        ps_kernel_narrow(
            (enum ps_dtype)part->dtype, value.buf->data,
            (const float *)(const void *)part->state[PS_PART_MASTER]->data,
            part->count);
        ps_store_set(&job->store, part, part->version, &value);
    }
    return rc;
}

static int put(struct ps_shard_job *job, struct ps_part *part,
               const struct ps_msg_state_put *m, const struct ps_slice *payload)
{
    const struct ps_rec_part *rec = m->parts;
    const unsigned place = place_of(job, m->which);

    if (m->which < UINT8_MAX &&
        (m->which >= buffers_of(job, part) || rec->count != part->count ||
         rec->dtype != state_dtype(part) || payload == NULL)) {
        return PS_E_MISMATCH;
    }
    if (m->steps > PS_ROUND_MAX) {
        return PS_E_INVAL;
    }
    part->shift = (int64_t)m->steps - (int64_t)part->version;
    if (m->which == UINT8_MAX) {
        return 0;
    }
    memcpy(part->state[place]->data, ps_slice_data(payload),
           part->state[place]->size);
    return place == PS_PART_MASTER ? renew_value(job, part) : 0;
}

void ps_shard_state_put(struct ps_shard_step *st, struct ps_shard_conn *c,
                        const struct ps_msg_state_put *m,
                        const struct ps_slice *payload)
{
    struct ps_shard_job *job;
    uint64_t total;

    if (m->parts_count != 1 || m->parts->codec != PS_PRESS_NONE ||
        c->thrown == PS_E_PROTO || !ps_shard_parts_bytes(m->parts, 1, &total) ||
        (total > 0) != (payload != NULL) ||
        (payload != NULL && payload->buf != NULL && payload->len != total)) {
        ps_shard_peer_cut(st, c, "a state and its payload do not agree");
        return;
    }
    if (payload != NULL && payload->buf == NULL) {
        const bool hopeless = ps_shard_room_is_hopeless(st->s, total);

        /* STALE is asked again in a while. */
        refuse(st, c->peer, m->gen, m->request, m->parts,
               c->thrown != PS_E_NOMEM ? c->thrown
               : hopeless              ? PS_E_FULL
                                       : PS_E_STALE,
               hopeless ? "the server has no memory for it (store.memory)"
                        : "the state could not be taken");
        return;
    }
    struct ps_part *part = enter(st, c->peer, m->gen, m->slot, m->request,
                                 m->parts, &job);

    if (part == NULL) {
        return;
    }
    int rc = put(job, part, m, payload);

    if (rc != 0) {
        refuse(st, c->peer, m->gen, m->request, m->parts, rc,
               "the state is not one of this optimizer and key");
        return;
    }
    struct ps_rec_part rec = {.key = part->key,
                              .index = part->index,
                              .round = part->version,
                              .dtype = state_dtype(part)};
    struct ps_msg_state reply = {.gen = m->gen,
                                 .request = m->request,
                                 .text = "",
                                 .steps = steps_of(part),
                                 .buffers = (uint8_t)buffers_of(job, part),
                                 .parts = &rec,
                                 .parts_count = 1};

    answer(st, c->peer, &reply, NULL);
}
