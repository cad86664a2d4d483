/* SPDX-License-Identifier: Apache-2.0 */
/* A partition that the scheduler moves to another server, at both of them.
 *
 *     OUT   The old owner. Rounds gather what comes and are not merged, so
 *           that version, value and states stay as they are while pieces of
 *           them are read. A merge that is under way ends first.
 *     IN    The new one: pieces wait beside the store until it is told that
 *           the partition is its own.
 *     AWAY  The old one, afterwards. Agents may hear late of the new place,
 *           and links keep no order: what still comes is no beginning of a
 *           partition that is not there yet. Only who names a newer placement
 *           makes an end of that.
 *
 * What agents had given to a round at the old owner is not carried: they keep
 * it until the round is committed, and give it to the new owner as after the
 * loss of a server. A move that is given up leaves everything as it was. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "base/num.h"

#include <string.h>

/* Buffers of a partition in the order in which they travel. */
enum { VALUE, CODE, GATHERED, STATES, BUFFERS = STATES + PS_PART_STATES };

enum kind { OUT, IN, AWAY };

struct ps_shard_move {
    uint64_t number; /* The scheduler's. */
    uint32_t key;
    uint32_t index;
    enum kind kind;
    bool asked; /* OUT: for a piece, which waits for the end of a merge, */
    uint64_t at;
    uint32_t most;
    uint32_t epoch; /* AWAY, and IN when it was that before; else 0. */
    /* IN: */
    struct ps_msg *about; /* The first piece without its payload; or NULL. */
    struct ps_buf *buffer[BUFFERS];
    uint64_t have;
    uint64_t total;
};

static uint64_t id_of(uint32_t key, uint32_t index)
{
    return (uint64_t)key << 32 | index;
}

static struct ps_shard_move *find(const struct ps_shard_job *job, uint32_t key,
                                  uint32_t index)
{
    return job->moves != NULL ? ps_map_get(job->moves, id_of(key, index))
                              : NULL;
}

static void drop_buffers(struct ps_shard_move *mv)
{
    ps_msg_free(mv->about);
    mv->about = NULL;
    for (unsigned i = 0; i < BUFFERS; i++) {
        ps_buf_unref(mv->buffer[i]);
        mv->buffer[i] = NULL;
    }
    mv->have = 0;
}

static void forget(struct ps_shard_job *job, struct ps_shard_move *mv)
{
    (void)ps_map_take(job->moves, id_of(mv->key, mv->index));
    drop_buffers(mv);
    ps_free(mv);
}

void ps_shard_moves_free(struct ps_shard_job *job)
{
    struct ps_map_cursor c = {0};
    struct ps_shard_move *mv;

    while (job->moves != NULL && (mv = ps_map_next(job->moves, &c)) != NULL) {
        forget(job, mv);
    }
    ps_map_free(job->moves);
    job->moves = NULL;
}

/* The record of a message about a move; NULL: it is one of a move that is
 * over. */
static struct ps_shard_move *obtain(struct ps_shard_job *job, uint64_t number,
                                    uint32_t key, uint32_t index,
                                    enum kind kind)
{
    struct ps_shard_move *mv = find(job, key, index);

    if (mv == NULL) {
        if (job->moves == NULL) {
            job->moves = ps_map_new();
        }
        mv = ps_calloc(1, sizeof(*mv));
        mv->key = key;
        mv->index = index;
        mv->kind = kind;
        mv->number = number;
        ps_map_put(job->moves, id_of(key, index), mv);
    }
    if (number < mv->number) {
        return NULL;
    }
    if (number > mv->number) {
        drop_buffers(mv);
        mv->number = number;
        mv->kind = kind;
        mv->asked = false;
    }
    return mv->kind == kind ? mv : NULL;
}

/* ---------------------------------------------------- what agents send */

bool ps_shard_move_freezes(const struct ps_shard_job *job,
                           const struct ps_part *part)
{
    const struct ps_shard_move *mv = find(job, part->key, part->index);

    return mv != NULL && mv->kind == OUT;
}

bool ps_shard_move_involves(const struct ps_shard_job *job,
                            const struct ps_rec_part *rec)
{
    return find(job, rec->key, rec->index) != NULL;
}

bool ps_shard_move_bars(const struct ps_shard_job *job,
                        const struct ps_rec_part *rec)
{
    const struct ps_shard_move *mv = find(job, rec->key, rec->index);

    return mv != NULL && mv->kind != OUT;
}

int ps_shard_move_resumes(struct ps_shard_job *job,
                          const struct ps_rec_part *rec, uint32_t epoch)
{
    struct ps_shard_move *mv = find(job, rec->key, rec->index);

    if (mv != NULL && mv->kind == AWAY && epoch > mv->epoch) {
        forget(job, mv); /* It has come back, without a move. */
        mv = NULL;
    }
    return mv == NULL ? 0 : PS_E_STALE;
}

/* -------------------------------------------------------------- the answers */

/* The link keeps them while the scheduler is away. When it has forgotten the
 * link, it asks again. */

static void done(struct ps_shard_step *st, const struct ps_msg_part_done *m)
{
    ps_link_tell(st->s->up.caller.link,
                 &(struct ps_msg){.code = PS_MSG_PART_DONE, .part_done = *m},
                 st->now, st->fx);
}

static void ended(struct ps_shard_step *st, const struct ps_msg_part_end *m,
                  int rc)
{
    done(st, &(struct ps_msg_part_done){.move = m->move,
                                        .gen = m->gen,
                                        .key = m->key,
                                        .index = m->index,
                                        .ended = true,
                                        .error = rc});
}

static void send_piece(struct ps_shard_step *st, const struct ps_msg *msg,
                       struct ps_buf *copy)
{
    const struct ps_slice slice = {.buf = copy,
                                   .len = copy != NULL ? copy->size : 0};

    ps_link_send(st->s->up.caller.link,
                 ps_parcel_new(msg, &slice, copy != NULL ? 1 : 0), st->now,
                 st->fx);
    ps_buf_unref(copy);
}

/* ------------------------------------------------------------- the old owner */

/* What there is of the partition; `part` NULL: nothing. */
static void list_buffers(const struct ps_part *part,
                         struct ps_slice list[BUFFERS])
{
    memset(list, 0, BUFFERS * sizeof(*list));
    if (part == NULL) {
        return;
    }
    list[VALUE] = part->value;
    list[CODE] = part->code;
    list[GATHERED] = part->gathered;
    for (unsigned i = 0; i < PS_PART_STATES; i++) {
        if (part->state[i] != NULL) {
            list[STATES + i] = (struct ps_slice){.buf = part->state[i],
                                                 .len = part->state[i]->size};
        }
    }
}

/* Bytes from `at` on, as many as there is room for. */
static void copy_from(const struct ps_slice list[BUFFERS], uint64_t at,
                      struct ps_buf *to)
{
    uint64_t first = 0;
    size_t filled = 0;

    for (unsigned i = 0; i < BUFFERS && filled < to->size; i++) {
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

static void refuse_piece(struct ps_shard_step *st,
                         const struct ps_shard_job *job,
                         const struct ps_shard_move *mv, int rc,
                         const char *text)
{
    send_piece(st,
               &(struct ps_msg){.code = PS_MSG_PART_PIECE,
                                .part_piece = {.move = mv->number,
                                               .gen = job->gen,
                                               .key = mv->key,
                                               .index = mv->index,
                                               .error = rc,
                                               .text = text}},
               NULL);
}

static void give_piece(struct ps_shard_step *st, struct ps_shard_job *job,
                       struct ps_shard_move *mv)
{
    const struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);
    struct ps_slice list[BUFFERS];
    uint64_t lens[BUFFERS];
    uint64_t total = 0;
    struct ps_buf *copy = NULL;

    if (part != NULL && part->run != NULL) {
        return; /* Asked again by ps_shard_move_merged. */
    }
    mv->asked = false;
    if (part != NULL && (part->width != 0 || part->applied != NULL)) {
        refuse_piece(st, job, mv, PS_E_UNSUPPORTED,
                     "keys of rows, and keys without rounds, stay where they "
                     "are");
        return;
    }
    list_buffers(part, list);
    for (unsigned i = 0; i < BUFFERS; i++) {
        lens[i] = list[i].len;
        total += list[i].len;
    }
    const uint64_t len = mv->at < total ? ps_min_u64(total - mv->at, mv->most)
                                        : 0;

    if (len > 0) {
        /* A copy: what is not acknowledged may be sent again after the move
         * was given up, when the next step has changed the states. */
        if (ps_shard_room_take(job, len, &copy) != 0) {
            refuse_piece(st, job, mv, PS_E_NOMEM,
                         "its server has no memory for a copy of a piece");
            return;
        }
        copy_from(list, mv->at, copy);
    }
    struct ps_msg msg = {.code = PS_MSG_PART_PIECE,
                         .part_piece = {.move = mv->number,
                                        .gen = job->gen,
                                        .key = mv->key,
                                        .index = mv->index,
                                        .text = "",
                                        .at = mv->at,
                                        .lens = lens,
                                        .lens_count = BUFFERS,
                                        .newest = job->newest}};

    if (part != NULL) {
        msg.part_piece.version = part->version;
        msg.part_piece.typed = part->typed;
        msg.part_piece.dtype = part->dtype;
        msg.part_piece.count = part->count;
        msg.part_piece.label = part->label;
        msg.part_piece.attempt = part->attempt;
        msg.part_piece.passed = part->passed;
        msg.part_piece.shift = part->shift;
        msg.part_piece.codec = part->codec;
        msg.part_piece.gathered_rounds = part->gathered_rounds;
        msg.part_piece.gathered_weight = part->gathered_weight;
        msg.part_piece.gathered_reduce = part->gathered_reduce;
    }
    send_piece(st, &msg, copy);
}

void ps_shard_move_merged(struct ps_shard_step *st, struct ps_shard_job *job,
                          const struct ps_part *part)
{
    struct ps_shard_move *mv = find(job, part->key, part->index);

    if (mv != NULL && mv->kind == OUT && mv->asked) {
        give_piece(st, job, mv);
    }
}

void ps_shard_move_read(struct ps_shard_step *st,
                        const struct ps_msg_part_read *m)
{
    struct ps_shard_job *job = ps_shard_job_find(st->s, m->gen);
    struct ps_shard_move *mv;

    if (job == NULL) {
        return; /* It has ended, and its moves with it. */
    }
    mv = obtain(job, m->move, m->key, m->index, OUT);
    if (mv == NULL) {
        return;
    }
    mv->asked = true;
    mv->at = m->at;
    mv->most = (uint32_t)ps_min_u64(m->most, PS_MOVE_PIECE_MAX);
    give_piece(st, job, mv);
}

/* ------------------------------------------------------------- the new owner */

/* Are these lengths that the buffers of a partition can have? */
static bool makes_sense(const struct ps_msg_part_piece *m)
{
    const uint64_t size = m->count * (uint64_t)ps_dtype_size(m->dtype);
    const uint64_t wide = ps_dtype_is_float(m->dtype)
                              ? size
                              : m->count * sizeof(float);

    if (m->lens_count != BUFFERS || m->version > PS_ROUND_MAX ||
        m->shift > (int64_t)PS_ROUND_MAX || m->shift < -(int64_t)m->version ||
        size > PS_PAYLOAD_MAX ||
        (m->lens[VALUE] != 0 && m->lens[VALUE] != size) ||
        (m->lens[GATHERED] != 0 && m->lens[GATHERED] != size) ||
        (m->lens[CODE] != 0 &&
         (m->codec == PS_PRESS_NONE || m->codec >= PS_PRESS_KINDS ||
          m->dtype != PS_DTYPE_FLOAT32 || m->count == 0 ||
          m->lens[CODE] > 4 * (uint64_t)m->count + 8))) {
        return false;
    }
    for (unsigned i = STATES; i < BUFFERS; i++) {
        if (m->lens[i] != 0 &&
            (m->lens[i] != wide || !ps_dtype_is_real(m->dtype))) {
            return false;
        }
    }
    return true;
}

/* Memory for all that will come. */
static int make_room(struct ps_shard_job *job, struct ps_shard_move *mv,
                     const struct ps_msg_part_piece *m)
{
    const struct ps_msg about = {.code = PS_MSG_PART_PIECE, .part_piece = *m};
    uint64_t total = 0;

    if (!makes_sense(m)) {
        return PS_E_PROTO;
    }
    for (unsigned i = 0; i < BUFFERS; i++) {
        total += m->lens[i];
    }
    for (unsigned i = 0; i < BUFFERS; i++) {
        int rc = m->lens[i] == 0
                     ? 0
                     : ps_shard_room_take(job, m->lens[i], &mv->buffer[i]);

        if (rc != 0) {
            drop_buffers(mv);
            return rc;
        }
    }
    mv->about = ps_msg_dup(&about);
    mv->total = total;
    return 0;
}

static void copy_to(struct ps_shard_move *mv, const uint8_t *from, size_t len)
{
    uint64_t first = 0;

    for (unsigned i = 0; i < BUFFERS && len > 0; i++) {
        const uint64_t end = first + mv->about->part_piece.lens[i];

        if (mv->have < end) {
            size_t n = (size_t)ps_min_u64(end - mv->have, len);

            memcpy(mv->buffer[i]->data + (mv->have - first), from, n);
            from += n;
            len -= n;
            mv->have += n;
        }
        first = end;
    }
}

void ps_shard_move_write(struct ps_shard_step *st,
                         const struct ps_msg_part_piece *m,
                         const struct ps_slice *payload)
{
    struct ps_shard_job *job = ps_shard_job_find(st->s, m->gen);
    const size_t len = payload != NULL && payload->buf != NULL ? payload->len
                                                               : 0;
    struct ps_shard_move *mv;
    int rc = 0;

    if (job == NULL) {
        return;
    }
    mv = obtain(job, m->move, m->key, m->index, IN);
    if (mv == NULL) {
        return;
    }
    if (mv->about == NULL) {
        rc = make_room(job, mv, m);
    }
    /* What has come before, and its answer was lost, is answered again. */
    if (rc == 0 && m->at == mv->have) {
        rc = len > mv->total - mv->have ? PS_E_PROTO : 0;
        if (rc == 0 && len > 0) {
            copy_to(mv, ps_slice_data(payload), len);
        }
    }
    done(st,
         &(struct ps_msg_part_done){
             .move = m->move,
             .gen = m->gen,
             .key = m->key,
             .index = m->index,
             .have = mv->have,
             .error = rc,
             .text = rc == PS_E_NOMEM ? "the new server has no memory for it"
                                      : ""});
}

static struct ps_slice take_buffer(struct ps_shard_move *mv, unsigned i)
{
    struct ps_slice s = {.buf = mv->buffer[i],
                         .len = mv->buffer[i] != NULL ? mv->buffer[i]->size
                                                      : 0};

    mv->buffer[i] = NULL;
    return s;
}

/* Who waits here for something of the partition. */
static struct ps_bits waiters(const struct ps_shard_job *job,
                              const struct ps_part *part)
{
    struct ps_bits who;

    ps_bits_init(&who, job->slot_count);
    for (uint32_t i = 0; part->open != NULL && i < job->slot_count; i++) {
        if (ps_round_has(&part->open->round, i)) {
            ps_bits_set(&who, i);
        }
    }
    PS_LIST_EACH(n, &part->parked)
    {
        ps_bits_set(&who, PS_CONTAINER(n, struct ps_parked, node)->slot);
    }
    return who;
}

/* An agent that hears of the new place gives and asks there again. One that
 * does not, because the partition is back before it heard that it was gone,
 * does so for being told that what it gave and asked here is void. */
static void drop_part(struct ps_shard_step *st, struct ps_shard_job *job,
                      uint32_t key, uint32_t index)
{
    struct ps_part *part = ps_store_find(&job->store, key, index);
    const struct ps_rec_part rec = {.key = key, .index = index};
    struct ps_shard_refusal refusal;
    struct ps_bits who;

    if (part == NULL) {
        return;
    }
    who = waiters(job, part);
    ps_shard_merge_drop(st->s, job, part);
    ps_store_forget(&job->store, part);
    ps_shard_refusal_init(&refusal);
    ps_shard_refusal_add(&refusal, &rec, PS_E_STALE, 0);
    for (uint32_t i = 0; i < job->slot_count; i++) {
        struct ps_shard_peer *p = ps_bits_get(&who, i)
                                      ? ps_shard_job_peer(&job->slots[i])
                                      : NULL;

        if (p != NULL) {
            ps_shard_refusal_send(st, p, job->gen, &job->slots[i], &refusal);
        }
    }
    ps_bits_fini(&who);
}

/* What has come is the partition. */
static void install(struct ps_shard_step *st, struct ps_shard_job *job,
                    struct ps_shard_move *mv)
{
    const struct ps_msg_part_piece *m = &mv->about->part_piece;
    struct ps_slice slice;
    struct ps_part *part;

    drop_part(st, job, mv->key, mv->index);
    part = ps_store_obtain(&job->store, mv->key, mv->index);
    part->typed = m->typed;
    part->dtype = m->dtype;
    part->count = m->count;
    part->label = m->label;
    part->shift = m->shift;
    part->version = m->version;
    slice = take_buffer(mv, VALUE);
    if (slice.buf != NULL) {
        ps_store_set(&job->store, part, m->version, &slice);
    }
    slice = take_buffer(mv, CODE);
    if (slice.buf != NULL) {
        ps_store_set_code(&job->store, part, m->codec, &slice);
    }
    slice = take_buffer(mv, GATHERED);
    if (slice.buf != NULL) {
        ps_store_gather(&job->store, part, &slice, m->gathered_weight,
                        m->gathered_reduce);
        part->gathered_rounds = m->gathered_rounds;
    }
    part->attempt = m->attempt;
    part->passed = m->passed;
    for (unsigned i = 0; i < PS_PART_STATES; i++) {
        slice = take_buffer(mv, STATES + i);
        ps_store_set_state(&job->store, part, i, slice.buf);
    }
    job->newest = ps_max_u64(job->newest, m->newest);
    ps_store_tidy(&job->store, part);
}

/* --------------------------------------------------------------------- end */

/* The old owner goes on, with what was given in the meantime. */
static void thaw(struct ps_shard_step *st, struct ps_shard_job *job,
                 struct ps_shard_move *mv)
{
    struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);

    forget(job, mv);
    if (part != NULL && part->open != NULL && part->run == NULL &&
        ps_round_complete(&part->open->round)) {
        ps_shard_merge_start(st, job, part);
    }
}

static int end_mine(struct ps_shard_step *st, struct ps_shard_job *job,
                    struct ps_shard_move *mv)
{
    switch (mv->kind) {
    case OUT:
        thaw(st, job, mv);
        return 0;
    case IN:
        if (mv->about == NULL || mv->have < mv->total) {
            return PS_E_PROTO;
        }
        install(st, job, mv);
        forget(job, mv);
        return 0;
    case AWAY:
        break;
    }
    return 0;
}

static void end_not_mine(struct ps_shard_step *st, struct ps_shard_job *job,
                         struct ps_shard_move *mv, uint32_t epoch)
{
    switch (mv->kind) {
    case OUT:
        drop_part(st, job, mv->key, mv->index);
        mv->kind = AWAY;
        mv->epoch = epoch;
        break;
    case IN:
        drop_buffers(mv);
        mv->kind = AWAY;
        if (mv->epoch == 0) {
            forget(job, mv); /* It was never here. */
        }
        break;
    case AWAY:
        break;
    }
}

void ps_shard_move_end(struct ps_shard_step *st,
                       const struct ps_msg_part_end *m)
{
    struct ps_shard_job *job = ps_shard_job_find(st->s, m->gen);
    struct ps_shard_move *mv = job != NULL ? find(job, m->key, m->index) : NULL;
    int rc = 0;

    if (mv != NULL && mv->number == m->move) {
        if (m->yours) {
            rc = end_mine(st, job, mv);
        } else {
            end_not_mine(st, job, mv, m->epoch);
        }
    }
    ended(st, m, rc);
}
