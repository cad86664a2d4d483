/* SPDX-License-Identifier: Apache-2.0 */
/* Init and restore: values that are stored as received instead of merged. */
#include "core/server/restore.h"

#include "base/alloc.h"
#include "core/server/inner.h"
#include "core/server/merge.h"
#include "core/server/migration.h"
#include "core/server/pull.h"
#include "core/server/push.h"
#include "core/server/reply.h"
#include "core/server/session.h"

/* Checks that parts and payload agree in size; closes the connection if not. */
static bool check_payload_size(struct ps_server_step *st,
                               struct ps_server_conn *c,
                               const struct ps_server_parts *parts)
{
    const struct ps_slice *payload = parts->payload;
    uint64_t total;

    if (parts->count <= PS_PARTS_MAX && c->discard_reason != PS_E_PROTO &&
        ps_server_parts_bytes(parts->parts, parts->count, &total) &&
        (total > 0) == (payload != NULL) &&
        (payload == NULL || payload->buf == NULL || payload->len == total)) {
        return true;
    }
    ps_server_session_close_bad(st, c, "values and their payload do not agree");
    return false;
}

bool ps_server_init_is_duplicate(const struct ps_server_job *job,
                                 const struct ps_msg_init *m)
{
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_part *part = ps_store_find(&job->store, m->parts[i].key,
                                                   m->parts[i].index);

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
    if (part == NULL && ps_map_count(job->store.parts) >= PS_STORE_PARTS_MAX) {
        return PS_E_BUSY;
    }
    if (part != NULL && !ps_part_matches(part, rec->dtype, rec->count)) {
        return PS_E_MISMATCH;
    }
    if (payload == NULL || payload->buf == NULL) {
        return PS_E_DISCARDED; /* The agent sends it again. */
    }
    int rc = ps_server_parts_retain(job, payload, offset, rec, &value);

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
                            struct ps_server_slot *slot,
                            const struct ps_msg_init *m, uint32_t i,
                            const struct ps_slice *payload, uint64_t offset)
{
    const struct ps_rec_part *rec = &m->parts[i];
    struct ps_server_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);

    if (rec->count == 0) {
        return PS_E_INVAL;
    }
    if (part == NULL || !ps_part_has_value(part)) {
        uint64_t version = part != NULL ? part->image.version : 0;

        if (ps_server_migration_involves(job, rec)) {
            return PS_E_MIGRATING;
        }
        int rc = store_received_value(job, rec, version, payload, offset,
                                      &part);

        if (rc != 0) {
            return rc;
        }
        ps_server_pull_reply_waiting(st, job, part, NULL);
    }
    part->image.name_hash = i < m->name_hashes_count ? m->name_hashes[i] : 0;
    part->image.first_elem = i < m->first_elems_count ? m->first_elems[i] : 0;
    ps_server_reply_part(st, slot, part, false, 0);
    return 0;
}

void ps_server_on_init(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg, const struct ps_slice *payload)
{
    const struct ps_msg_init *m = &msg->init;
    const struct ps_server_parts parts = {m->parts, m->parts_count, payload};
    struct ps_server_refusal refusal;
    uint64_t offset = 0;
    uint64_t total;

    if (!check_payload_size(st, c, &parts)) {
        return;
    }
    struct ps_server_slot *slot = ps_server_find_slot_or_refuse(
        st, c->session, m->gen, m->slot, &parts);

    if (slot == NULL) {
        return;
    }
    ps_server_refusal_init(&refusal);
    if (c->discard_reason == PS_E_NOMEM &&
        ps_server_parts_bytes(m->parts, m->parts_count, &total)) {
        ps_server_refusal_set_starved(st, &refusal, slot, total);
    }
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        int rc = accept_init_part(st, slot, m, i, payload, offset);

        if (rc != 0) {
            ps_server_refusal_add(&refusal, rec, rc, 0);
        }
        offset += ps_part_payload_bytes(rec);
    }
    ps_server_refusal_send(
        st, &(struct ps_server_recipient){c->session, m->gen, slot}, &refusal);
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
 * stays. */
static int restore_part(struct ps_server_step *st, struct ps_server_slot *slot,
                        const struct ps_rec_part *rec,
                        const struct ps_slice *payload, uint32_t epoch)
{
    struct ps_server_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);
    const char *text;

    if (rec->count == 0 || rec->round > PS_ROUND_MAX) {
        return PS_E_INVAL;
    }
    uint64_t before = part != NULL ? part->image.version : 0;

    /* Before a look at the partition, which may be about to go: the end of a
     * migration can come later than a restore at its return. */
    int rc = ps_server_migration_check_restore(st, slot, rec, epoch);

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
    rc = ps_image_check_use(part, job->has_optimizer, PS_IMAGE_RESTORE, &text);
    if (rc != 0) {
        return rc;
    }
    rc = store_received_value(job, rec, rec->round, payload, 0, &part);
    if (rc != 0) {
        return rc;
    }
    part->image.all_skipped = rec->all_skipped;
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

/* Records what versions the slot knows of the partition. If all slots have
 * reported and one knows a version that is held nowhere, only the lost server
 * had it: it cannot be made again, and pulls of it would wait for ever
 * (rule V5). */
static void record_report(struct ps_server_step *st,
                          struct ps_server_slot *slot,
                          const struct ps_msg_restore *m)
{
    struct ps_server_job *job = slot->job;
    struct ps_store *store = &job->store;
    const struct ps_rec_part *rec = &m->parts[0];
    struct ps_part *part = ps_store_find(store, rec->key, rec->index);
    const char *text;
    uint64_t have;

    if (ps_image_check_use(part, job->has_optimizer, PS_IMAGE_RESTORE, &text) !=
            0 ||
        job->lost_value.known ||
        (part == NULL && ps_map_count(store->parts) >= PS_STORE_PARTS_MAX)) {
        return;
    }
    part = ps_store_find_or_add(store, rec->key, rec->index);
    have = part->image.version +
           (part->image.version > 0 || ps_part_has_value(part));
    if (!ps_part_add_report(
            part, slot->index, job->slot_count,
            m->committed_version +
                (m->has_committed || m->committed_version > 0)) ||
        have >= part->reports->known_versions || part->merge != NULL) {
        return;
    }
    job->lost_value.known = true;
    job->lost_value.key = part->key;
    job->lost_value.index = part->index;
    job->lost_value.version = part->reports->known_versions - 1;
    ps_effects_log_for(
        st->fx, &job->account, PS_LOG_ERROR,
        "job %s: version %llu of key %u was lost with the server "
        "that partition %u of it was on",
        job->name, (unsigned long long)job->lost_value.version, part->key,
        part->index);
    ps_server_restore_send_lost(st, job);
}

void ps_server_on_restore(struct ps_server_step *st, struct ps_server_conn *c,
                          const struct ps_msg *msg,
                          const struct ps_slice *payload)
{
    const struct ps_msg_restore *m = &msg->restore;
    const struct ps_server_parts parts = {m->parts, m->parts_count, payload};

    if (!check_payload_size(st, c, &parts) || m->parts_count == 0) {
        return;
    }
    struct ps_server_slot *slot = ps_server_find_slot_or_refuse(
        st, c->session, m->gen, m->slot, &parts);

    if (slot == NULL) {
        return;
    }
    int rc = m->has_value
                 ? restore_part(st, slot, &m->parts[0], payload, m->epoch)
                 : ps_server_migration_check_restore(st, slot, &m->parts[0],
                                                     m->epoch);

    if (rc != 0) {
        struct ps_server_refusal refusal;

        ps_server_refusal_init(&refusal);
        if (c->discard_reason == PS_E_NOMEM) {
            ps_server_refusal_set_starved(st, &refusal, slot,
                                          ps_part_payload_bytes(&m->parts[0]));
        }
        ps_server_refusal_add(&refusal, &m->parts[0], rc, 0);
        ps_server_refusal_send(
            st, &(struct ps_server_recipient){c->session, m->gen, slot},
            &refusal);
        return;
    }
    ps_server_migration_on_restored(slot, &m->parts[0]);
    record_report(st, slot, m);
}
