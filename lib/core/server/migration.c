/* SPDX-License-Identifier: Apache-2.0 */
/* Migration of a partition to another server, at both servers.
 *
 *     MIG_OUT   The old owner. Rounds take contributions and are not merged,
 *               so that version, value and states stay as they are while chunks
 *               of them are read. A merge in progress ends first.
 *     MIG_IN    The new owner. Chunks are kept beside the store until the
 *               scheduler makes this server the owner.
 *     MIG_AWAY  The old owner, afterwards. Agents may learn late of the new
 *               placement, and messages of a link may overtake each other, so
 *               late messages must not create the partition again. Only a
 *               restore that names a newer placement ends this state.
 *     MIG_BACK  The old owner that is the owner again without a migration,
 *               because the new one was lost. An agent that has not heard of
 *               the placement in between sees no change of owner. So every slot
 *               is asked for its state, and is refused until it has sent it.
 *
 * Contributions at the old owner are not migrated (rule M3): agents keep them
 * until the round is committed, and send them to the new owner as after the
 * loss of a server. An aborted migration changes nothing. */
#include "core/server/inner.h"

#include "base/alloc.h"
#include "base/num.h"

#include <string.h>

/* Buffers of a partition in the order in which they are sent. */
enum {
    BUF_VALUE,
    BUF_ENCODED,
    BUF_ACCUMULATED,
    BUF_STATES,
    BUF_COUNT = BUF_STATES + PS_PART_STATES
};

enum migration_role { MIG_OUT, MIG_IN, MIG_AWAY, MIG_BACK };

struct ps_server_migration {
    uint64_t id; /* The scheduler's. */
    uint32_t key;
    uint32_t index;
    enum migration_role role;
    /* MIG_OUT: a part_read waits for the end of a merge. */
    bool read_pending;
    uint64_t offset;
    uint32_t max_bytes;
    uint32_t away_epoch; /* Of the last migration away; 0: none. */
    /* MIG_BACK: slots that have sent their state. */
    struct ps_bits reported;
    /* The fields below are of MIG_IN. */
    struct ps_msg *first_chunk; /* Without its payload; NULL: none. */
    struct ps_buf *buffers[BUF_COUNT];
    uint64_t received_bytes;
    uint64_t total_bytes;
};

static uint64_t part_id(uint32_t key, uint32_t index)
{
    return (uint64_t)key << 32 | index;
}

static struct ps_server_migration *
find_migration(const struct ps_server_job *job, uint32_t key, uint32_t index)
{
    return job->migrations != NULL
               ? ps_map_get(job->migrations, part_id(key, index))
               : NULL;
}

static void drop_buffers(struct ps_server_migration *mv)
{
    ps_msg_free(mv->first_chunk);
    mv->first_chunk = NULL;
    for (unsigned i = 0; i < BUF_COUNT; i++) {
        ps_buf_unref(mv->buffers[i]);
        mv->buffers[i] = NULL;
    }
    mv->received_bytes = 0;
}

static void migration_free(struct ps_server_job *job,
                           struct ps_server_migration *mv)
{
    (void)ps_map_remove(job->migrations, part_id(mv->key, mv->index));
    drop_buffers(mv);
    ps_bits_fini(&mv->reported);
    ps_free(mv);
}

void ps_server_migrations_free(struct ps_server_job *job)
{
    struct ps_map_cursor c = {0};
    struct ps_server_migration *mv;

    while (job->migrations != NULL &&
           (mv = ps_map_next(job->migrations, &c)) != NULL) {
        migration_free(job, mv);
    }
    ps_map_free(job->migrations);
    job->migrations = NULL;
}

/* Finds or adds the migration that a message names. NULL: it is over, or this
 * server has another role in it. */
static struct ps_server_migration *
obtain_migration(struct ps_server_job *job, uint64_t number, uint32_t key,
                 uint32_t index, enum migration_role kind)
{
    struct ps_server_migration *mv = find_migration(job, key, index);

    if (mv == NULL) {
        if (job->migrations == NULL) {
            job->migrations = ps_map_new();
        }
        mv = ps_calloc(1, sizeof(*mv));
        mv->key = key;
        mv->index = index;
        mv->role = kind;
        mv->id = number;
        ps_map_put(job->migrations, part_id(key, index), mv);
    }
    if (number < mv->id) {
        return NULL;
    }
    if (number > mv->id) {
        drop_buffers(mv);
        ps_bits_fini(&mv->reported);
        mv->id = number;
        mv->role = kind;
        mv->read_pending = false;
    }
    return mv->role == kind ? mv : NULL;
}

/* ------------------------------------------------------- messages of agents */

bool ps_server_migration_freezes(const struct ps_server_job *job,
                                 const struct ps_part *part)
{
    const struct ps_server_migration *mv = find_migration(job, part->key,
                                                          part->index);

    return mv != NULL && mv->role == MIG_OUT;
}

bool ps_server_migration_involves(const struct ps_server_job *job,
                                  const struct ps_rec_part *rec)
{
    const struct ps_server_migration *mv = find_migration(job, rec->key,
                                                          rec->index);

    return mv != NULL && mv->role != MIG_BACK;
}

int ps_server_migration_check_use(const struct ps_server_slot *slot,
                                  const struct ps_rec_part *rec)
{
    const struct ps_server_migration *mv = find_migration(slot->job, rec->key,
                                                          rec->index);

    if (mv == NULL || mv->role == MIG_OUT ||
        (mv->role == MIG_BACK && ps_bits_get(&mv->reported, slot->index))) {
        return 0;
    }
    return mv->role == MIG_IN ? PS_E_MIGRATING : PS_E_STALE;
}

/* Rule M8: asks all slots but this one for their state; agents send it when
 * they are refused as stale. */
static void begin_return(struct ps_server_step *st,
                         const struct ps_server_slot *slot,
                         struct ps_server_migration *mv)
{
    struct ps_server_job *job = slot->job;
    const struct ps_rec_part rec = {.key = mv->key, .index = mv->index};
    struct ps_server_refusal refusal;

    mv->role = MIG_BACK;
    ps_bits_init(&mv->reported, job->slot_count);
    ps_server_refusal_init(&refusal);
    ps_server_refusal_add(&refusal, &rec, PS_E_STALE, 0);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_server_session *p = ps_server_slot_session(&job->slots[i]);

        if (i != slot->index && p != NULL) {
            ps_server_refusal_send(st, p, job->gen, &job->slots[i], &refusal);
        }
    }
}

int ps_server_migration_check_restore(struct ps_server_step *st,
                                      const struct ps_server_slot *slot,
                                      const struct ps_rec_part *rec,
                                      uint32_t epoch)
{
    struct ps_server_migration *mv = find_migration(slot->job, rec->key,
                                                    rec->index);

    if (mv == NULL) {
        return 0;
    }
    if ((mv->role != MIG_AWAY && mv->role != MIG_BACK) ||
        epoch <= mv->away_epoch) {
        return PS_E_STALE;
    }
    if (mv->role == MIG_AWAY) {
        begin_return(st, slot, mv);
    }
    return 0;
}

void ps_server_migration_on_restored(const struct ps_server_slot *slot,
                                     const struct ps_rec_part *rec)
{
    struct ps_server_migration *mv = find_migration(slot->job, rec->key,
                                                    rec->index);

    if (mv != NULL && mv->role == MIG_BACK) {
        ps_bits_set(&mv->reported, slot->index);
        if (ps_bits_full(&mv->reported)) {
            migration_free(slot->job, mv);
        }
    }
}

/* ------------------------------------------------- replies to the scheduler */

/* The uplink's link keeps them while the scheduler is disconnected. A scheduler
 * that has lost the link's state asks again. */

static void send_part_ack(struct ps_server_step *st,
                          const struct ps_msg_part_ack *m)
{
    ps_server_uplink_send_msg(
        st, &(struct ps_msg){.code = PS_MSG_PART_ACK, .part_ack = *m});
}

static void send_end_ack(struct ps_server_step *st,
                         const struct ps_msg_part_end *m, int rc)
{
    send_part_ack(st, &(struct ps_msg_part_ack){.migration = m->migration,
                                                .gen = m->gen,
                                                .key = m->key,
                                                .index = m->index,
                                                .is_end_ack = true,
                                                .error = rc});
}

static void send_chunk_msg(struct ps_server_step *st, const struct ps_msg *msg,
                           struct ps_buf *copy)
{
    const struct ps_slice slice = {.buf = copy,
                                   .len = copy != NULL ? copy->size : 0};

    ps_link_send(st->s->uplink.dialer.link,
                 ps_packet_new(msg, &slice, copy != NULL ? 1 : 0), st->now,
                 st->fx);
    ps_buf_unref(copy);
}

/* ---------------------------------------------------------------- old owner */

/* Lists the partition's buffers; `part` NULL: none. */
static void list_buffers(const struct ps_part *part,
                         struct ps_slice list[BUF_COUNT])
{
    memset(list, 0, BUF_COUNT * sizeof(*list));
    if (part == NULL) {
        return;
    }
    list[BUF_VALUE] = part->value;
    list[BUF_ENCODED] = part->encoded_value;
    list[BUF_ACCUMULATED] = part->accumulated;
    for (unsigned i = 0; i < PS_PART_STATES; i++) {
        if (part->states[i] != NULL) {
            list[BUF_STATES + i] = (struct ps_slice){
                .buf = part->states[i], .len = part->states[i]->size};
        }
    }
}

/* Fills `to` with bytes of the concatenated buffers from offset `at`. */
static void copy_from_buffers(const struct ps_slice list[BUF_COUNT],
                              uint64_t at, struct ps_buf *to)
{
    uint64_t first = 0;
    size_t filled = 0;

    for (unsigned i = 0; i < BUF_COUNT && filled < to->size; i++) {
        const uint64_t end = first + list[i].len;

        if (at < end) {
            size_t n = (size_t)ps_min_u64(end - at, to->size - filled);

            memcpy(to->data + filled, ps_slice_data(&list[i]) + (at - first),
                   n);
            filled += n;
            at += n;
        }
        first = end;
    }
}

static void send_chunk_error(struct ps_server_step *st,
                             const struct ps_server_job *job,
                             const struct ps_server_migration *mv, int rc,
                             const char *text)
{
    send_chunk_msg(st,
                   &(struct ps_msg){.code = PS_MSG_PART_CHUNK,
                                    .part_chunk = {.migration = mv->id,
                                                   .gen = job->gen,
                                                   .key = mv->key,
                                                   .index = mv->index,
                                                   .error = rc,
                                                   .text = text}},
                   NULL);
}

static void send_chunk(struct ps_server_step *st, struct ps_server_job *job,
                       struct ps_server_migration *mv)
{
    const struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);
    struct ps_slice list[BUF_COUNT];
    uint64_t lens[BUF_COUNT];
    uint64_t total = 0;
    struct ps_buf *copy = NULL;

    if (part != NULL && part->merge != NULL) {
        return; /* ps_server_migration_on_merged() sends it. */
    }
    mv->read_pending = false;
    if (part != NULL && (part->row_width != 0 || part->async_slots != NULL)) {
        send_chunk_error(
            st, job, mv, PS_E_UNSUPPORTED,
            "keys of rows, and keys without rounds, stay where they "
            "are");
        return;
    }
    list_buffers(part, list);
    for (unsigned i = 0; i < BUF_COUNT; i++) {
        lens[i] = list[i].len;
        total += list[i].len;
    }
    const uint64_t len = mv->offset < total
                             ? ps_min_u64(total - mv->offset, mv->max_bytes)
                             : 0;

    if (len > 0) {
        /* A copy: the link may send it again after an aborted migration, when
         * the next step has changed the states. */
        if (ps_server_memory_alloc(job, len, &copy) != 0) {
            send_chunk_error(st, job, mv, PS_E_NOMEM,
                             "its server has no memory for a copy of a piece");
            return;
        }
        copy_from_buffers(list, mv->offset, copy);
    }
    struct ps_msg msg = {.code = PS_MSG_PART_CHUNK,
                         .part_chunk = {.migration = mv->id,
                                        .gen = job->gen,
                                        .key = mv->key,
                                        .index = mv->index,
                                        .text = "",
                                        .offset = mv->offset,
                                        .buffer_bytes = lens,
                                        .buffer_bytes_count = BUF_COUNT,
                                        .newest_version = job->newest_version}};

    if (part != NULL) {
        msg.part_chunk.version = part->version;
        msg.part_chunk.has_dtype = part->has_dtype;
        msg.part_chunk.dtype = part->dtype;
        msg.part_chunk.count = part->count;
        msg.part_chunk.name_hash = part->name_hash;
        msg.part_chunk.retry = part->retry;
        msg.part_chunk.all_skipped = part->all_skipped;
        msg.part_chunk.step_offset = part->step_offset;
        msg.part_chunk.codec = part->codec;
        msg.part_chunk.accumulated_rounds = part->accumulated_rounds;
        msg.part_chunk.accumulated_weight = part->accumulated_weight;
        msg.part_chunk.accumulated_reduce = part->accumulated_reduce;
    }
    send_chunk_msg(st, &msg, copy);
}

void ps_server_migration_on_merged(struct ps_server_step *st,
                                   struct ps_server_job *job,
                                   const struct ps_part *part)
{
    struct ps_server_migration *mv = find_migration(job, part->key,
                                                    part->index);

    if (mv != NULL && mv->role == MIG_OUT && mv->read_pending) {
        send_chunk(st, job, mv);
    }
}

void ps_server_on_part_read(struct ps_server_step *st,
                            const struct ps_msg_part_read *m)
{
    struct ps_server_job *job = ps_server_job_find(st->s, m->gen);
    struct ps_server_migration *mv;

    if (job == NULL) {
        return; /* The job has ended, and its migrations with it. */
    }
    mv = obtain_migration(job, m->migration, m->key, m->index, MIG_OUT);
    if (mv == NULL) {
        return;
    }
    mv->read_pending = true;
    mv->offset = m->offset;
    mv->max_bytes = (uint32_t)ps_min_u64(m->max_bytes, PS_MIGRATION_CHUNK_MAX);
    send_chunk(st, job, mv);
}

/* ---------------------------------------------------------------- new owner */

/* True if the buffers of a partition can have these lengths. */
static bool is_valid_chunk(const struct ps_msg_part_chunk *m)
{
    const uint64_t size = m->count * (uint64_t)ps_dtype_size(m->dtype);
    const uint64_t wide = ps_dtype_is_float(m->dtype)
                              ? size
                              : m->count * sizeof(float);

    if (m->buffer_bytes_count != BUF_COUNT || m->version > PS_ROUND_MAX ||
        m->step_offset > (int64_t)PS_ROUND_MAX ||
        m->step_offset < -(int64_t)m->version || size > PS_PAYLOAD_MAX ||
        (m->buffer_bytes[BUF_VALUE] != 0 &&
         m->buffer_bytes[BUF_VALUE] != size) ||
        (m->buffer_bytes[BUF_ACCUMULATED] != 0 &&
         m->buffer_bytes[BUF_ACCUMULATED] != size) ||
        (m->buffer_bytes[BUF_ENCODED] != 0 &&
         (m->codec == PS_CODEC_NONE || m->codec >= PS_CODEC_KINDS ||
          m->dtype != PS_DTYPE_FLOAT32 || m->count == 0 ||
          m->buffer_bytes[BUF_ENCODED] > 4 * (uint64_t)m->count + 8))) {
        return false;
    }
    for (unsigned i = BUF_STATES; i < BUF_COUNT; i++) {
        if (m->buffer_bytes[i] != 0 &&
            (m->buffer_bytes[i] != wide || !ps_dtype_is_real(m->dtype))) {
            return false;
        }
    }
    return true;
}

/* Allocates all buffers, and keeps the first chunk's message. */
static int alloc_buffers(struct ps_server_job *job,
                         struct ps_server_migration *mv,
                         const struct ps_msg_part_chunk *m)
{
    const struct ps_msg about = {.code = PS_MSG_PART_CHUNK, .part_chunk = *m};
    uint64_t total = 0;

    if (!is_valid_chunk(m)) {
        return PS_E_PROTO;
    }
    for (unsigned i = 0; i < BUF_COUNT; i++) {
        total += m->buffer_bytes[i];
    }
    for (unsigned i = 0; i < BUF_COUNT; i++) {
        int rc = m->buffer_bytes[i] == 0
                     ? 0
                     : ps_server_memory_alloc(job, m->buffer_bytes[i],
                                              &mv->buffers[i]);

        if (rc != 0) {
            drop_buffers(mv);
            return rc;
        }
    }
    mv->first_chunk = ps_msg_dup(&about);
    mv->total_bytes = total;
    return 0;
}

static void copy_to_buffers(struct ps_server_migration *mv, const uint8_t *from,
                            size_t len)
{
    uint64_t first = 0;

    for (unsigned i = 0; i < BUF_COUNT && len > 0; i++) {
        const uint64_t end = first +
                             mv->first_chunk->part_chunk.buffer_bytes[i];

        if (mv->received_bytes < end) {
            size_t n = (size_t)ps_min_u64(end - mv->received_bytes, len);

            memcpy(mv->buffers[i]->data + (mv->received_bytes - first), from,
                   n);
            from += n;
            len -= n;
            mv->received_bytes += n;
        }
        first = end;
    }
}

void ps_server_on_part_chunk(struct ps_server_step *st,
                             const struct ps_msg_part_chunk *m,
                             const struct ps_slice *payload)
{
    struct ps_server_job *job = ps_server_job_find(st->s, m->gen);
    const size_t len = payload != NULL && payload->buf != NULL ? payload->len
                                                               : 0;
    struct ps_server_migration *mv;
    int rc = 0;

    if (job == NULL) {
        return;
    }
    mv = obtain_migration(job, m->migration, m->key, m->index, MIG_IN);
    if (mv == NULL) {
        return;
    }
    if (mv->first_chunk == NULL) {
        rc = alloc_buffers(job, mv, m);
    }
    /* A repeated chunk, whose ack was lost, is acknowledged again. */
    if (rc == 0 && m->offset == mv->received_bytes) {
        rc = len > mv->total_bytes - mv->received_bytes ? PS_E_PROTO : 0;
        if (rc == 0 && len > 0) {
            copy_to_buffers(mv, ps_slice_data(payload), len);
        }
    }
    send_part_ack(st, &(struct ps_msg_part_ack){
                          .migration = m->migration,
                          .gen = m->gen,
                          .key = m->key,
                          .index = m->index,
                          .received_bytes = mv->received_bytes,
                          .error = rc,
                          .text = rc == PS_E_NOMEM
                                      ? "the new server has no memory for it"
                                      : ""});
}

static struct ps_slice detach_buffer(struct ps_server_migration *mv, unsigned i)
{
    struct ps_slice s = {.buf = mv->buffers[i],
                         .len = mv->buffers[i] != NULL ? mv->buffers[i]->size
                                                       : 0};

    mv->buffers[i] = NULL;
    return s;
}

/* Slots that have contributed to the partition or wait for a pull. */
static struct ps_bits waiting_slots(const struct ps_server_job *job,
                                    const struct ps_part *part)
{
    struct ps_bits waiting;

    ps_bits_init(&waiting, job->slot_count);
    for (uint32_t i = 0; part->open_round != NULL && i < job->slot_count; i++) {
        if (ps_round_has_contributed(&part->open_round->round, i)) {
            ps_bits_set(&waiting, i);
        }
    }
    PS_LIST_EACH(n, &part->waiting_pulls)
    {
        ps_bits_set(&waiting,
                    PS_CONTAINER(n, struct ps_waiting_pull, node)->slot);
    }
    return waiting;
}

/* Removes the partition, and refuses its contributions and pulls as stale
 * (rule M6). Agents that learn of the new owner repeat them there; an agent to
 * which the partition comes back before it has learned of that repeats them for
 * the refusal. */
static void discard_part(struct ps_server_step *st, struct ps_server_job *job,
                         uint32_t key, uint32_t index)
{
    struct ps_part *part = ps_store_find(&job->store, key, index);
    const struct ps_rec_part rec = {.key = key, .index = index};
    struct ps_server_refusal refusal;
    struct ps_bits waiting;

    if (part == NULL) {
        return;
    }
    waiting = waiting_slots(job, part);
    ps_server_merge_discard(st->s, job, part);
    ps_store_remove(&job->store, part);
    ps_server_refusal_init(&refusal);
    ps_server_refusal_add(&refusal, &rec, PS_E_STALE, 0);
    ps_server_refusal_send_to(st, job, &waiting, &refusal);
    ps_bits_fini(&waiting);
}

/* Makes the received buffers the partition. */
static void install_part(struct ps_server_step *st, struct ps_server_job *job,
                         struct ps_server_migration *mv)
{
    const struct ps_msg_part_chunk *m = &mv->first_chunk->part_chunk;
    struct ps_slice slice;
    struct ps_part *part;

    discard_part(st, job, mv->key, mv->index);
    part = ps_store_find_or_add(&job->store, mv->key, mv->index);
    part->has_dtype = m->has_dtype;
    part->dtype = m->dtype;
    part->count = m->count;
    part->name_hash = m->name_hash;
    part->step_offset = m->step_offset;
    part->version = m->version;
    slice = detach_buffer(mv, BUF_VALUE);
    if (slice.buf != NULL) {
        ps_store_set_value(&job->store, part, m->version, &slice);
    }
    slice = detach_buffer(mv, BUF_ENCODED);
    if (slice.buf != NULL) {
        ps_store_set_encoded(&job->store, part, m->codec, &slice);
    }
    slice = detach_buffer(mv, BUF_ACCUMULATED);
    if (slice.buf != NULL) {
        ps_store_accumulate(&job->store, part, &slice, m->accumulated_weight,
                            m->accumulated_reduce);
        part->accumulated_rounds = m->accumulated_rounds;
    }
    part->retry = m->retry;
    part->all_skipped = m->all_skipped;
    for (unsigned i = 0; i < PS_PART_STATES; i++) {
        slice = detach_buffer(mv, BUF_STATES + i);
        ps_store_set_state(&job->store, part, i, slice.buf);
    }
    job->newest_version = ps_max_u64(job->newest_version, m->newest_version);
    ps_store_remove_if_empty(&job->store, part);
}

/* ---------------------------------------------------------------------- end */

/* Rule M4: ends an aborted migration at the old owner, and merges a round that
 * is complete by now. */
static void unfreeze_part(struct ps_server_step *st, struct ps_server_job *job,
                          struct ps_server_migration *mv)
{
    struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);

    migration_free(job, mv);
    if (part != NULL && part->open_round != NULL && part->merge == NULL &&
        ps_round_is_complete(&part->open_round->round)) {
        ps_server_merge_start(st, job, part);
    }
}

static int end_as_owner(struct ps_server_step *st, struct ps_server_job *job,
                        struct ps_server_migration *mv)
{
    switch (mv->role) {
    case MIG_OUT:
        unfreeze_part(st, job, mv);
        return 0;
    case MIG_IN:
        if (mv->first_chunk == NULL || mv->received_bytes < mv->total_bytes) {
            return PS_E_PROTO;
        }
        install_part(st, job, mv);
        migration_free(job, mv);
        return 0;
    case MIG_AWAY:
    case MIG_BACK:
        break;
    }
    return 0;
}

static void end_as_non_owner(struct ps_server_step *st,
                             struct ps_server_job *job,
                             struct ps_server_migration *mv, uint32_t epoch)
{
    switch (mv->role) {
    case MIG_OUT:
        discard_part(st, job, mv->key, mv->index);
        mv->role = MIG_AWAY;
        mv->away_epoch = epoch;
        break;
    case MIG_IN:
        drop_buffers(mv);
        mv->role = MIG_AWAY;
        if (mv->away_epoch == 0) {
            migration_free(job, mv); /* It was never here. */
        }
        break;
    case MIG_AWAY:
    case MIG_BACK:
        break;
    }
}

void ps_server_on_part_end(struct ps_server_step *st,
                           const struct ps_msg_part_end *m)
{
    struct ps_server_job *job = ps_server_job_find(st->s, m->gen);
    struct ps_server_migration *mv = job != NULL
                                         ? find_migration(job, m->key, m->index)
                                         : NULL;
    int rc = 0;

    if (mv != NULL && mv->id == m->migration) {
        if (m->is_owner) {
            rc = end_as_owner(st, job, mv);
        } else {
            end_as_non_owner(st, job, mv, m->epoch);
        }
    }
    send_end_ack(st, m, rc);
}
