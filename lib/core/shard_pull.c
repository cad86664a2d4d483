/* SPDX-License-Identifier: Apache-2.0 */
/* Pull, init and resume: values that are asked for, and values that come as
 * they are instead of being merged. */
#include "core/shard_inner.h"

#include "base/alloc.h"

/* ------------------------------------------------------------------- pull */

void ps_shard_pull_answer(struct ps_shard_step *st, struct ps_shard_job *job,
                          struct ps_part *part, const struct ps_bits *told)
{
    struct ps_list_node *n = ps_list_first(&part->parked);

    while (n != NULL && ps_part_has_value(part)) {
        struct ps_parked *p = PS_CONTAINER(n, struct ps_parked, node);

        n = ps_list_next(&part->parked, n);
        if (p->least > part->version) {
            continue;
        }
        if (told == NULL || !ps_bits_get(told, p->slot)) {
            ps_shard_answer(st, &job->slots[p->slot], part, true,
                            part->version);
        }
        ps_store_unpark(&job->store, p);
    }
    ps_shard_rows_answer(st, job, part);
}

static int pull_part(struct ps_shard_step *st, struct ps_shard_slot *slot,
                     const struct ps_rec_part *rec)
{
    struct ps_store *store = &slot->job->store;
    struct ps_part *part = ps_store_find(store, rec->key, rec->index);

    if (ps_shard_move_bars(slot->job, rec)) {
        return PS_E_FUTURE;
    }
    if (part != NULL && ps_part_has_value(part) &&
        part->version >= rec->round) {
        ps_shard_answer(st, slot, part, true, part->version);
        return 0;
    }
    if (store->parked_count >= PS_PARKED_MAX ||
        (part == NULL && ps_map_count(store->parts) >= PS_STORE_PARTS_MAX)) {
        return PS_E_FUTURE;
    }
    if (part != NULL && part->passed && part->version >= rec->round) {
        /* There is no value yet, and somebody may ask for this alone. */
        ps_shard_answer(st, slot, part, false, part->version);
    }
    part = ps_store_obtain(store, rec->key, rec->index);
    ps_store_park(store, part, slot->index, rec->round);
    return 0;
}

/* What pull, init and resume begin with. NULL: answered already. */
static struct ps_shard_slot *enter(struct ps_shard_step *st,
                                   struct ps_shard_peer *p, uint64_t gen,
                                   uint32_t number,
                                   const struct ps_shard_parts *parts)
{
    struct ps_shard_job *job = ps_shard_job_find(st->s, gen);
    struct ps_shard_slot *slot = NULL;
    int rc = job != NULL ? ps_shard_job_slot(job, p, number, &slot)
                         : PS_E_NOJOB;

    if (rc != 0) {
        ps_shard_refuse(st, p, gen, NULL, parts, rc);
    }
    return slot;
}

void ps_shard_pull(struct ps_shard_step *st, struct ps_shard_conn *c,
                   const struct ps_msg *msg)
{
    const struct ps_msg_pull *m = &msg->pull;
    const struct ps_shard_parts parts = {m->parts, m->parts_count, NULL};
    struct ps_shard_refusal refusal;

    if (m->parts_count > PS_PARTS_MAX) {
        ps_shard_peer_cut(st, c, "a pull of too many parts");
        return;
    }
    struct ps_shard_slot *slot = enter(st, c->peer, m->gen, m->slot, &parts);

    if (slot == NULL) {
        return;
    }
    ps_shard_refusal_init(&refusal);
    for (uint32_t i = 0; i < m->parts_count; i++) {
        int rc = pull_part(st, slot, &m->parts[i]);

        if (rc != 0) {
            ps_shard_refusal_add(&refusal, &m->parts[i], rc, 0);
        }
    }
    ps_shard_refusal_send(st, c->peer, m->gen, slot, &refusal);
}

/* ---------------------------------------------------------- init, resume */

/* Do parts and payload agree? Cuts the connection where they do not. */
static bool is_whole(struct ps_shard_step *st, struct ps_shard_conn *c,
                     const struct ps_shard_parts *parts)
{
    const struct ps_slice *payload = parts->payload;
    uint64_t total;

    if (parts->count <= PS_PARTS_MAX && c->thrown != PS_E_PROTO &&
        ps_shard_parts_bytes(parts->part, parts->count, &total) &&
        (total > 0) == (payload != NULL) &&
        (payload == NULL || payload->buf == NULL || payload->len == total)) {
        return true;
    }
    ps_shard_peer_cut(st, c, "values and their payload do not agree");
    return false;
}

bool ps_shard_init_is_known(const struct ps_shard_job *job,
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

/* Makes what was sent the value of the partition. */
static int adopt(struct ps_shard_job *job, const struct ps_rec_part *rec,
                 uint64_t version, const struct ps_slice *payload,
                 uint64_t offset, struct ps_part **ret_part)
{
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);
    struct ps_slice value;

    if (rec->codec != PS_PRESS_NONE) {
        return PS_E_INVAL; /* Values travel as they are. */
    }
    if (part == NULL && ps_map_count(job->store.parts) >= PS_STORE_PARTS_MAX) {
        return PS_E_FUTURE;
    }
    if (part != NULL && !ps_part_fits(part, rec->dtype, rec->count)) {
        return PS_E_MISMATCH;
    }
    if (payload == NULL || payload->buf == NULL ||
        ps_shard_parts_take(job, payload, offset, rec, &value) != 0) {
        return PS_E_FUTURE; /* To be sent again. */
    }
    part = ps_store_obtain(&job->store, rec->key, rec->index);
    ps_part_declare(part, rec->dtype, rec->count);
    ps_store_set(&job->store, part, version, &value);
    *ret_part = part;
    return 0;
}

static int init_part(struct ps_shard_step *st, struct ps_shard_slot *slot,
                     const struct ps_rec_part *rec,
                     const struct ps_slice *payload, uint64_t offset,
                     uint64_t label)
{
    struct ps_shard_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);

    if (rec->count == 0) {
        return PS_E_INVAL;
    }
    if (part == NULL || !ps_part_has_value(part)) {
        uint64_t version = part != NULL ? part->version : 0;

        if (ps_shard_move_involves(job, rec)) {
            return PS_E_FUTURE;
        }
        int rc = adopt(job, rec, version, payload, offset, &part);

        if (rc != 0) {
            return rc;
        }
        ps_shard_pull_answer(st, job, part, NULL);
    }
    part->label = label;
    ps_shard_answer(st, slot, part, false, 0);
    return 0;
}

void ps_shard_init(struct ps_shard_step *st, struct ps_shard_conn *c,
                   const struct ps_msg *msg, const struct ps_slice *payload)
{
    const struct ps_msg_init *m = &msg->init;
    const struct ps_shard_parts parts = {m->parts, m->parts_count, payload};
    struct ps_shard_refusal refusal;
    uint64_t offset = 0;
    uint64_t total;

    if (!is_whole(st, c, &parts)) {
        return;
    }
    struct ps_shard_slot *slot = enter(st, c->peer, m->gen, m->slot, &parts);

    if (slot == NULL) {
        return;
    }
    ps_shard_refusal_init(&refusal);
    if (c->thrown == PS_E_NOMEM &&
        ps_shard_parts_bytes(m->parts, m->parts_count, &total)) {
        ps_shard_refusal_short(st, &refusal, slot, total);
    }
    for (uint32_t i = 0; i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        uint64_t label = i < m->labels_count ? m->labels[i] : 0;
        int rc = init_part(st, slot, rec, payload, offset, label);

        if (rc != 0) {
            ps_shard_refusal_add(&refusal, rec, rc, 0);
        }
        offset += ps_part_payload(rec);
    }
    ps_shard_refusal_send(st, c->peer, m->gen, slot, &refusal);
}

/* The contributions under way are merged in the version that has come: forget
 * them, and answer those who gave them with it. */
static void answer_forgotten(struct ps_shard_step *st, struct ps_shard_job *job,
                             struct ps_part *part)
{
    uint8_t *due = ps_calloc(job->slot_count, 1); /* 1: commit, 2: value. */

    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (ps_round_has(&part->open->round, i)) {
            due[i] = ps_bits_get(&part->open->want, i) ? 2 : 1;
        }
    }
    /* First, so that the answers carry the credit that this sets free. */
    ps_shard_merge_drop(st->s, job, part);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        if (due[i] != 0) {
            ps_shard_answer(st, &job->slots[i], part, due[i] == 2,
                            part->version);
        }
    }
    ps_free(due);
}

/* The newest version of all slots wins. */
static int resume_part(struct ps_shard_step *st, struct ps_shard_slot *slot,
                       const struct ps_rec_part *rec,
                       const struct ps_slice *payload, uint32_t epoch)
{
    struct ps_shard_job *job = slot->job;
    struct ps_part *part = ps_store_find(&job->store, rec->key, rec->index);

    if (rec->count == 0 || rec->round > PS_ROUND_MAX) {
        return PS_E_INVAL;
    }
    uint64_t before = part != NULL ? part->version : 0;

    /* A partition that was moved here is as new as anything that agents have,
     * and more than a value. */
    if (part != NULL &&
        (part->version > rec->round ||
         (part->version == rec->round && ps_part_has_value(part)))) {
        return 0;
    }
    int rc = ps_shard_move_resumes(job, rec, epoch);

    if (rc != 0) {
        return rc;
    }
    if (job->optimizes || (part != NULL && part->applied != NULL)) {
        return PS_E_UNSUPPORTED; /* Its state was on the server that is gone. */
    }
    rc = adopt(job, rec, rec->round, payload, 0, &part);
    if (rc != 0) {
        return rc;
    }
    part->passed = rec->salt == PS_PART_PASSED;
    if (part->open != NULL && part->version > before) {
        answer_forgotten(st, job, part);
    }
    ps_shard_pull_answer(st, job, part, NULL);
    return 0;
}

void ps_shard_give_up(struct ps_shard_step *st, struct ps_shard_conn *c,
                      const struct ps_msg_give_up *m)
{
    const struct ps_shard_parts parts = {m->parts, m->parts_count, NULL};
    struct ps_shard_slot *slot;

    if (m->parts_count > PS_PARTS_MAX) {
        ps_shard_peer_cut(st, c, "it gives up too many parts");
        return;
    }
    slot = enter(st, c->peer, m->gen, m->slot, &parts);
    for (uint32_t i = 0; slot != NULL && i < m->parts_count; i++) {
        const struct ps_rec_part *rec = &m->parts[i];
        struct ps_store *store = &slot->job->store;
        struct ps_part *part = ps_store_find(store, rec->key, rec->index);

        if (ps_shard_move_involves(slot->job, rec)) {
            const struct ps_shard_parts one = {rec, 1, NULL};

            ps_shard_refuse(st, c->peer, m->gen, slot, &one, PS_E_FUTURE);
            continue;
        }
        if (part == NULL && rec->round == 1 &&
            ps_map_count(store->parts) < PS_STORE_PARTS_MAX) {
            part = ps_store_obtain(store, rec->key, rec->index);
        }
        if (ps_shard_attempt_check(st, slot->job, part, rec->round,
                                   m->attempt) == 0) {
            ps_shard_credit_tell(st, c->peer, slot);
        }
    }
}

/* What one slot knows of the partition. Where all have spoken and one knows of
 * a version that nobody has, it lay on the server that is gone alone: nobody
 * can make it again, and those who wait for it would wait for ever. */
static void note_stated(struct ps_shard_step *st, struct ps_shard_slot *slot,
                        const struct ps_msg_resume *m)
{
    struct ps_shard_job *job = slot->job;
    struct ps_store *store = &job->store;
    const struct ps_rec_part *rec = &m->parts[0];
    struct ps_part *part = ps_store_find(store, rec->key, rec->index);
    uint64_t have;

    if (job->optimizes || job->lost.known ||
        (part == NULL && ps_map_count(store->parts) >= PS_STORE_PARTS_MAX)) {
        return;
    }
    part = ps_store_obtain(store, rec->key, rec->index);
    have = part->version + (part->version > 0 || ps_part_has_value(part));
    if (part->applied != NULL ||
        !ps_part_state(part, slot->index, job->slot_count,
                       m->committed + (m->made || m->committed > 0)) ||
        have >= part->stated->made || part->run != NULL) {
        return;
    }
    job->lost.known = true;
    job->lost.key = part->key;
    job->lost.index = part->index;
    job->lost.version = part->stated->made - 1;
    ps_effects_note(st->fx, PS_LOG_ERROR,
                    "job %s: version %llu of key %u was lost with the server "
                    "that partition %u of it was on",
                    job->name, (unsigned long long)job->lost.version, part->key,
                    part->index);
    ps_shard_up_lost(st, job);
}

void ps_shard_resume(struct ps_shard_step *st, struct ps_shard_conn *c,
                     const struct ps_msg *msg, const struct ps_slice *payload)
{
    const struct ps_msg_resume *m = &msg->resume;
    const struct ps_shard_parts parts = {m->parts, m->parts_count, payload};

    if (!is_whole(st, c, &parts) || m->parts_count == 0) {
        return;
    }
    struct ps_shard_slot *slot = enter(st, c->peer, m->gen, m->slot, &parts);

    if (slot == NULL) {
        return;
    }
    int rc = m->held ? resume_part(st, slot, &m->parts[0], payload, m->epoch)
                     : ps_shard_move_resumes(slot->job, &m->parts[0], m->epoch);

    if (rc != 0) {
        struct ps_shard_refusal refusal;

        ps_shard_refusal_init(&refusal);
        if (c->thrown == PS_E_NOMEM) {
            ps_shard_refusal_short(st, &refusal, slot,
                                   ps_part_payload(&m->parts[0]));
        }
        ps_shard_refusal_add(&refusal, &m->parts[0], rc, 0);
        ps_shard_refusal_send(st, c->peer, m->gen, slot, &refusal);
        return;
    }
    note_stated(st, slot, m);
}
