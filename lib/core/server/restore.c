/* SPDX-License-Identifier: Apache-2.0 */
/* Values and states that come from elsewhere instead of a merge: init, the restore
 * after the loss of a server, and an optimizer's states, sent to a worker that saves
 * them and received from one that loads them.
 *
 * States are refused during a step of the partition, so saving and loading suit
 * moments without pushes. */
#include "core/server/restore.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/server/copies.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/job.h"
#include "core/server/kind.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/move.h"
#include "core/server/pull.h"
#include "core/server/reply.h"
#include "core/server/session.h"

#include <string.h>

bool ps_server_init_is_duplicate(const struct ps_server_request *q)
{
    for (uint32_t i = 0; i < q->count; i++) {
        const struct ps_part *part = ps_store_find(
            &q->from.slot->job->store, q->parts[i].key, q->parts[i].index);

        if (part == NULL || !ps_part_has_value(part)) {
            return false;
        }
    }
    return true;
}

/* Stores the payload as the value of the partition. */
static int store_received_value(struct ps_server_job *job,
                                const struct ps_rec_part *rec, uint64_t version,
                                const struct ps_slice *payload, uint64_t offset,
                                struct ps_part **ret_part)
{
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);
    struct ps_slice value;

    if (rec->codec != PS_CODEC_NONE) {
        return PS_E_INVAL; /* Values are not encoded. */
    }
    if (ps_store_lacks_room(&job->store, part)) {
        return PS_E_BUSY;
    }
    if (part != NULL && !ps_part_matches(part, rec->dtype, rec->count)) {
        return PS_E_MISMATCH;
    }
    if (payload == NULL || payload->buf == NULL) {
        return PS_E_DISCARDED; /* The agent sends it again. */
    }
    const struct ps_slice bytes = {.buf = payload->buf,
                                   .offset = payload->offset + offset,
                                   .len = ps_part_payload_bytes(rec)};
    int rc = ps_server_part_retain(job, rec->dtype, &bytes, &value);

    if (rc != 0) {
        return rc;
    }
    part = ps_store_find_or_add(&job->store, rec->key, rec->index);
    ps_part_declare(part, rec->dtype, rec->count);
    ps_store_set_value(&job->store, part, version, &value);
    *ret_part = part;
    return 0;
}

/* -------------------------------------------------------------------- init */

/* Accepts part `i` of the message. */
static int accept_init_part(struct ps_server_step *st,
                            const struct ps_server_request *q, uint32_t i,
                            uint64_t offset)
{
    const struct ps_msg_init *m = &q->msg->init;
    const struct ps_rec_part *rec = &q->parts[i];
    struct ps_server_job *job = q->from.slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);

    if (rec->count == 0) {
        return PS_E_INVAL;
    }
    if (ps_server_move_check_use(q->from.slot, rec) == PS_E_MIGRATING) {
        return PS_E_MIGRATING; /* A value that is here may go (rule M6). */
    }
    if (part == NULL || !ps_part_has_value(part)) {
        uint64_t version = part != NULL ? part->image.version : 0;

        if (ps_server_move_involves(job, rec) ||
            (job->moves.has_moved &&
             !ps_server_job_is_settled(job, st->now))) { /* Rule E9. */
            return PS_E_MIGRATING;
        }
        int rc = store_received_value(job, rec, version, q->payload, offset,
                                      &part);

        if (rc != 0) {
            return rc;
        }
        part->image.name_hash = i < m->name_hashes_count ? m->name_hashes[i]
                                                         : 0;
        part->image.first_elem = i < m->first_elems_count ? m->first_elems[i]
                                                          : 0;
        ps_store_mark(part);
        ps_server_copies_on_change(job, part);
        ps_server_pull_reply_waiting(st, job, part, NULL);
    }
    ps_server_reply_part(st, q->from.slot, part, false, 0);
    return 0;
}

void ps_server_on_init(struct ps_server_step *st,
                       const struct ps_server_request *q)
{
    struct ps_server_refusal refusal;
    uint64_t offset = 0;

    ps_server_refusal_begin(st, q, &refusal);
    for (uint32_t i = 0; i < q->count; i++) {
        int rc = accept_init_part(st, q, i, offset);

        if (rc != 0) {
            ps_server_refusal_add(&refusal, &q->parts[i], rc, 0);
        }
        offset += ps_part_payload_bytes(&q->parts[i]);
    }
    ps_server_refusal_send(st, &q->from, &refusal);
}

/* ----------------------------------------------------------------- restore */

/* A restored version has the contributions to the open round merged: discards
 * them, and replies with that version to their slots. */
static void reply_superseded(struct ps_server_step *st,
                             struct ps_server_job *job, struct ps_part *part)
{
    uint8_t *due = ps_calloc(job->slot_count, 1); /* 1: commit, 2: value. */

    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (ps_round_has_contributed(&part->open_round->round, i)) {
            due[i] = ps_bits_get(&part->open_round->needs_value, i) ? 2 : 1;
        }
    }
    /* Before the replies, so that they carry the credit that this frees. */
    ps_server_merge_discard(st->s, job, part);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (due[i] != 0) {
            ps_server_reply_part(st, &job->slots[i], part, due[i] == 2,
                                 part->image.version);
        }
    }
    ps_free(due);
}

/* Rule V4: stores a restored value if it is newer; the newest of all slots
 * stays. *ret_text gets the text of a refusal that has one of its own. */
static int restore_part(struct ps_server_step *st,
                        const struct ps_server_request *q,
                        const char **ret_text)
{
    const struct ps_server_slot *slot = q->from.slot;
    const struct ps_rec_part *rec = q->parts;
    struct ps_server_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);

    if (rec->count == 0 || rec->round > PS_ROUND_MAX) {
        return PS_E_INVAL;
    }
    uint64_t before = part != NULL ? part->image.version : 0;

    /* Before a look at the partition, which may be about to go: the end of a
     * move can come later than a restore at its return. */
    int rc = ps_server_move_check_restore(st, slot, rec, q->msg->restore.epoch);

    if (rc != 0) {
        return rc;
    }
    /* Rule M9: a migrated partition is as new as the values of agents, and has
     * states. */
    if (part != NULL &&
        (part->image.version > rec->round ||
         (part->image.version == rec->round && ps_part_has_value(part)))) {
        return 0;
    }
    rc = ps_image_check_use(part, job->has_optimizer, PS_IMAGE_RESTORE,
                            ret_text);
    if (rc != 0) {
        return rc;
    }
    rc = store_received_value(job, rec, rec->round, q->payload, 0, &part);
    if (rc != 0) {
        return rc;
    }
    part->image.all_skipped = rec->all_skipped;
    ps_store_mark(part);
    if (part->open_round != NULL && part->image.version > before) {
        reply_superseded(st, job, part);
    }
    ps_server_pull_reply_waiting(st, job, part, NULL);
    return 0;
}

void ps_server_restore_send_lost(struct ps_server_step *st,
                                 const struct ps_server_job *job)
{
    if (!job->lost_value.known) {
        return;
    }
    ps_server_uplink_send_msg(
        st,
        &(struct ps_msg){.code = PS_MSG_VALUE_LOST,
                         .value_lost = {.gen = job->gen,
                                        .key = job->lost_value.key,
                                        .index = job->lost_value.index,
                                        .version = job->lost_value.version}});
}

/* Number of versions so far, version 0 included. */
static uint64_t versions_of(const struct ps_part *part)
{
    return part->image.version +
           (part->image.version > 0 || ps_part_has_value(part));
}

static uint64_t known_versions(const struct ps_msg_restore *m)
{
    return m->committed_version +
           (m->has_committed || m->committed_version > 0);
}

/* The version is held nowhere: the job cannot go on. */
static void lose_value(struct ps_server_step *st, struct ps_server_job *job,
                       const struct ps_rec_part *rec, uint64_t version)
{
    if (job->lost_value.known) {
        return;
    }
    job->lost_value.known = true;
    job->lost_value.key = rec->key;
    job->lost_value.index = rec->index;
    job->lost_value.version = version;
    ps_effects_log_for(
        st->fx, &job->account, PS_LOG_ERROR,
        "job %s: version %llu of key %u was lost with the server "
        "that partition %u of it was on",
        job->name, (unsigned long long)version, rec->key, rec->index);
    ps_server_restore_send_lost(st, job);
}

/* Records what versions the slot knows of the partition. If all slots have
 * reported and one knows a version that is held nowhere, only the lost server
 * had it: it cannot be made again, and pulls of it would wait for ever
 * (rule V5). */
static void record_report(struct ps_server_step *st,
                          const struct ps_server_request *q)
{
    const struct ps_msg_restore *m = &q->msg->restore;
    struct ps_server_job *job = q->from.slot->job;
    struct ps_store *store = &job->store;
    const struct ps_rec_part *rec = q->parts;
    struct ps_part *part = ps_store_find(store, rec->key, rec->index);
    const char *text;
    uint64_t have;

    if (ps_image_check_use(part, job->has_optimizer, PS_IMAGE_RESTORE, &text) !=
            0 ||
        job->lost_value.known || ps_store_lacks_room(store, part)) {
        return;
    }
    part = ps_store_find_or_add(store, rec->key, rec->index);
    have = versions_of(part);
    if (!ps_part_add_report(part, q->from.slot->index, job->slot_count,
                            known_versions(m)) ||
        have >= part->reports->known_versions || part->merge != NULL) {
        return;
    }
    lose_value(st, job, rec, part->reports->known_versions - 1);
}

/* Checks what a server that came back with its memory promises, and one that took
 * over copies: no agent knows a version that it lacks (rules O6 and O15). 0, or
 * PS_E_STALE: the partition may have another owner. */
static int check_report(struct ps_server_step *st,
                        const struct ps_server_request *q)
{
    struct ps_server_job *job = q->from.slot->job;
    const struct ps_rec_part *rec = q->parts;
    const struct ps_part *part = ps_store_find(&job->store, rec->key,
                                               rec->index);
    const uint64_t known = known_versions(&q->msg->restore);

    if (known <= (part != NULL ? versions_of(part) : 0)) {
        return 0;
    }
    if ((part == NULL || !ps_part_has_value(part)) &&
        !ps_server_job_is_settled(job, st->now)) {
        return PS_E_STALE; /* The agent sends it again (rule E9). */
    }
    lose_value(st, job, rec, known - 1);
    return 0;
}

void ps_server_on_restore(struct ps_server_step *st,
                          const struct ps_server_request *q)
{
    const struct ps_msg_restore *m = &q->msg->restore;
    struct ps_server_slot *slot = q->from.slot;
    struct ps_server_refusal refusal;
    const char *text = "";
    int rc = m->has_value && !slot->job->copies.is_wanted
                 ? restore_part(st, q, &text)
                 : ps_server_move_check_restore(st, slot, q->parts, m->epoch);

    if (rc == 0) {
        ps_server_move_on_restored(slot, q->parts);
        if (slot->job->copies.is_wanted ||
            (slot->job->has_optimizer && !m->has_value)) {
            rc = check_report(st, q);
        } else {
            record_report(st, q);
        }
    }
    if (rc == 0) {
        return;
    }
    ps_server_refusal_begin(st, q, &refusal);
    if (text[0] != '\0') {
        ps_server_refusal_set_text(&refusal, rc, text);
    }
    ps_server_refusal_add(&refusal, q->parts, rc, 0);
    ps_server_refusal_send(st, &q->from, &refusal);
}

/* --------------------------------- states of an optimizer, saved and loaded */

/* Element type of the optimizer states and master weights. */
static uint8_t state_dtype(const struct ps_part *part)
{
    return ps_dtype_is_float(part->image.dtype) ? part->image.dtype
                                                : (uint8_t)PS_DTYPE_FLOAT32;
}

static uint64_t step_count(const struct ps_part *part)
{
    return (uint64_t)((int64_t)part->image.version + part->image.step_offset);
}

/* Takes over one reference of `copy`; buf NULL: no payload. */
static void send_state(struct ps_server_step *st, struct ps_server_session *p,
                       struct ps_msg_state *m, const struct ps_slice *copy)
{
    const struct ps_msg msg = {.code = PS_MSG_STATE, .state = *m};

    ps_server_session_send(
        st, p, ps_packet_new(&msg, copy, copy->buf != NULL ? 1 : 0));
    ps_buf_unref(copy->buf);
}

/* The sender's number of its request. */
static uint64_t number_of(const struct ps_server_request *q)
{
    return q->msg->code == PS_MSG_STATE_GET ? q->msg->state_get.request
                                            : q->msg->state_put.request;
}

static void send_state_error(struct ps_server_step *st,
                             const struct ps_server_request *q, int rc,
                             const char *text)
{
    struct ps_rec_part bare = *q->parts;
    struct ps_msg_state m = {.gen = q->from.gen,
                             .request = number_of(q),
                             .error = rc,
                             .text = text,
                             .parts = &bare,
                             .parts_count = 1};

    bare.count = 0;
    send_state(st, q->from.session, &m, &(struct ps_slice){0});
}

void ps_server_refuse_state(struct ps_server_step *st,
                            const struct ps_server_request *q, int rc)
{
    send_state_error(st, q, rc, "");
}

/* Replies with the state's description, and a buffer; takes over one reference. buf
 * NULL: with the description alone. */
static void reply_state(struct ps_server_step *st,
                        const struct ps_server_recipient *to,
                        const struct ps_part *part, uint64_t request,
                        const struct ps_slice *copy)
{
    struct ps_rec_part rec = {.key = part->key,
                              .index = part->index,
                              .round = part->image.version,
                              .dtype = state_dtype(part),
                              .count = copy->buf != NULL ? part->image.count
                                                         : 0};
    struct ps_msg_state m = {
        .gen = to->gen,
        .request = request,
        .text = "",
        .steps = step_count(part),
        .buffers = (uint8_t)ps_server_state_count(to->slot->job, part),
        .parts = &rec,
        .parts_count = 1};

    send_state(st, to->session, &m, copy);
}

void ps_server_reply_load(struct ps_server_step *st,
                          struct ps_server_slot *slot,
                          const struct ps_part *part, uint64_t request)
{
    const struct ps_server_recipient to = {ps_server_slot_session(slot),
                                           slot->job->gen, slot};

    /* An agent without a session asks again. */
    if (to.session != NULL &&
        !ps_server_copies_defer_load(slot, part, request)) {
        reply_state(st, &to, part, request, &(struct ps_slice){0});
    }
}

/* Returns the record's partition with its states allocated; NULL: refused. */
static struct ps_part *find_part_or_refuse(struct ps_server_step *st,
                                           const struct ps_server_request *q)
{
    struct ps_server_job *job = q->from.slot->job;
    struct ps_part *part = ps_store_find(&job->store, q->parts->key,
                                         q->parts->index);
    const char *text = "";
    int rc;

    if (ps_server_move_involves(job, q->parts)) {
        rc = PS_E_STALE; /* The agent asks again, perhaps another server. */
    } else {
        rc = ps_image_check_use(part, job->has_optimizer, PS_IMAGE_SAVE, &text);
    }
    if (rc == 0 && ps_server_optimizer_make_states(job, part) != 0) {
        rc = PS_E_NOMEM;
        text = "the server has no memory for the optimizer's state";
    }
    if (rc != 0) {
        send_state_error(st, q, rc, text);
        return NULL;
    }
    return part;
}

void ps_server_on_state_get(struct ps_server_step *st,
                            const struct ps_server_request *q)
{
    const unsigned which = q->msg->state_get.which;
    struct ps_server_job *job = q->from.slot->job;
    struct ps_part *part = find_part_or_refuse(st, q);
    struct ps_slice bytes = {0};

    if (part == NULL) {
        return;
    }
    if (which < ps_server_state_count(job, part)) {
        struct ps_buf *state =
            part->buffers[ps_server_state_place(job, which)].buf;

        if (ps_buf_fetch(state) != 0) {
            send_state_error(st, q, PS_E_IO,
                             "the state was on a device that has failed");
            return;
        }
        if (state->copy == NULL) {
            bytes = part->buffers[ps_server_state_place(job, which)];
            ps_buf_ref(state); /* The next step writes another buffer. */
        } else if (ps_server_memory_alloc(job, state->size, &bytes) == 0) {
            /* A state on a device is updated in place. */
            memcpy(ps_slice_data(&bytes), state->data, state->size);
        } else {
            send_state_error(
                st, q, PS_E_NOMEM,
                "the server has no memory for a copy of the state");
            return;
        }
    }
    reply_state(st, &q->from, part, number_of(q), &bytes);
}

/* Makes the loaded master weights the value. */
static int make_value_from_master(struct ps_server_job *job,
                                  struct ps_part *part)
{
    const size_t len = part->image.count * ps_dtype_size(part->image.dtype);
    struct ps_slice value;
    int rc = ps_server_memory_alloc(job, len, &value);

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

static int store_state(const struct ps_server_request *q, struct ps_part *part)
{
    const struct ps_msg_state_put *m = &q->msg->state_put;
    const struct ps_rec_part *rec = q->parts;
    struct ps_server_job *job = q->from.slot->job;
    const enum ps_part_buffer place = ps_server_state_place(job, m->which);
    struct ps_slice state;

    if (m->which < UINT8_MAX &&
        (m->which >= ps_server_state_count(job, part) ||
         rec->count != part->image.count || rec->dtype != state_dtype(part) ||
         q->payload == NULL)) {
        return PS_E_MISMATCH;
    }
    if (m->steps > PS_ROUND_MAX) {
        return PS_E_INVAL;
    }
    part->image.step_offset = (int64_t)m->steps - (int64_t)part->image.version;
    ps_store_mark(part);
    if (m->which == UINT8_MAX) {
        return 0;
    }
    int rc = ps_server_memory_alloc(job, q->bytes, &state);

    if (rc != 0) {
        return rc;
    }
    memcpy(ps_slice_data(&state), ps_slice_data(q->payload), state.len);
    ps_store_set_buffer(&job->store, part, place, &state);
    return place == PS_PART_BUFFER_MASTER ? make_value_from_master(job, part)
                                          : 0;
}

void ps_server_on_state_put(struct ps_server_step *st,
                            const struct ps_server_request *q)
{
    if (q->payload != NULL && q->payload->buf == NULL) {
        const bool hopeless = ps_server_memory_is_exhausted(st->s, q->bytes);

        /* PS_E_STALE is tried again after a while. */
        send_state_error(st, q,
                         q->discard_reason != PS_E_NOMEM ? q->discard_reason
                         : hopeless                      ? PS_E_FULL
                                                         : PS_E_STALE,
                         hopeless
                             ? "the server has no memory for it (store.memory)"
                             : "the state could not be restored");
        return;
    }
    struct ps_part *part = find_part_or_refuse(st, q);

    if (part == NULL) {
        return;
    }
    int rc = store_state(q, part);

    if (rc != 0) {
        send_state_error(
            st, q, rc,
            rc == PS_E_NOMEM
                ? "the server has no memory for the optimizer's state"
                : "the state does not belong to this optimizer and key");
        return;
    }
    ps_server_copies_on_change(q->from.slot->job, part);
    ps_server_reply_load(st, q->from.slot, part, number_of(q));
}
