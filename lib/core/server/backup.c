/* SPDX-License-Identifier: Apache-2.0 */
/* The role of a backup: versions of the partitions of another server's place,
 * kept beside the store, which the owner has confirmed before it answers.
 *
 *     job_state names this process as the backup: it begins with nothing
 *     copy, one for each buffer that has changed; when all have come, the version
 *         replaces the one before, and is confirmed with others at the next tick
 *     copy of a step: the step is taken here, too, into other buffers than those
 *         of the version before, which stays until the step is complete
 *     job_state names another backup, or none: all of it is dropped
 *     job_state names the place no more: its owner was lost, and the partitions
 *         become this server's own (rule O13); in a job of which partitions have
 *         moved, those that the scheduler says are (rule M15)
 *
 * The target of a move takes copies in the same way, into the store: agents may not
 * use the partition before the end of the move. A copy is confirmed when it is at
 * the backup of this server, if that counts. */
#include "core/server/backup.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/part/image.h"
#include "core/server/copies.h"
#include "core/server/copy.h"
#include "core/server/inner.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/move.h"
#include "core/server/pull.h"
#include "core/server/session.h"

#include <string.h>

/* ------------------------------------------------------------------- roles */

/* Gives up what is taken in; the version before stays. */
static void next_drop(struct ps_server_job *job,
                      struct ps_server_backup_part *p)
{
    if (p->part->merge != NULL) {
        ps_server_merge_free(job->server, p->part->merge);
    }
    ps_image_drop(p->next.buffers);
    p->next.number = 0;
}

static void part_free(struct ps_server_job *job,
                      struct ps_server_backup_part *p)
{
    ps_map_remove(p->of->parts, ps_part_id(p->part->key, p->part->index));
    next_drop(job, p);
    ps_store_remove(&p->of->store, p->part);
    ps_free(p);
}

static void drop_parts(struct ps_server_job *job, struct ps_server_backup *b)
{
    PS_MAP_EACH(struct ps_server_backup_part, p, b->parts)
    {
        part_free(job, p);
    }
    b->due_count = 0;
    b->refused_count = 0;
}

static void role_free(struct ps_server_backup *b)
{
    ps_map_free(b->parts);
    ps_store_fini(&b->store);
    ps_free(b);
}

static void backup_free(struct ps_server_job *job, struct ps_server_backup *b)
{
    drop_parts(job, b);
    ps_map_remove(job->copies.backups, b->number);
    role_free(b);
}

void ps_server_backup_free_all(struct ps_server_job *job)
{
    if (job->copies.backups == NULL) {
        return;
    }
    PS_MAP_EACH(struct ps_server_backup, b, job->copies.backups)
    {
        PS_MAP_EACH(struct ps_server_backup_part, p, b->parts)
        {
            next_drop(job, p);
            ps_free(p);
        }
        role_free(b);
    }
    ps_map_free(job->copies.backups);
    job->copies.backups = NULL;
}

/* Sends the message to the process of another server, if its link is here; a new
 * session of it sends the copies again. */
static void send_to_owner(struct ps_server_step *st, uint32_t node,
                          uint64_t instance, const struct ps_msg *msg)
{
    struct ps_server_session *p = ps_map_get(st->s->sessions.by_node, node);

    if (p != NULL && p->is_server && p->instance == instance) {
        ps_server_session_send(st, p, ps_packet_new(msg, NULL, 0));
    }
}

static void send_copied(struct ps_server_step *st,
                        const struct ps_server_job *job,
                        struct ps_server_backup *b)
{
    const struct ps_msg msg = {.code = PS_MSG_COPIED,
                               .copied = {.gen = job->gen,
                                          .epoch = b->epoch,
                                          .copies = b->due,
                                          .copies_count = b->due_count,
                                          .refused = b->refused,
                                          .refused_count = b->refused_count}};

    b->due_count = 0;
    b->refused_count = 0;
    send_to_owner(st, b->node, b->instance, &msg);
}

/* The role in the place, made on first use. */
static struct ps_server_backup *obtain_role(struct ps_server_job *job,
                                            uint32_t number)
{
    struct ps_server_backup *b;

    if (job->copies.backups == NULL) {
        job->copies.backups = ps_map_new();
    }
    b = ps_map_get(job->copies.backups, number);
    if (b == NULL) {
        b = ps_calloc(1, sizeof(*b));
        b->job = job;
        b->number = number;
        b->parts = ps_map_new();
        ps_store_init(&b->store);
        b->store.records = job->store.records;
        if (b->store.records != NULL) {
            b->store.changed = &job->server->kept.changed_copies;
        }
        ps_map_put(job->copies.backups, number, b);
    }
    return b;
}

/* The partition, which is in the store of the role, is one of it. */
static struct ps_server_backup_part *add_part(struct ps_server_backup *b,
                                              struct ps_part *part)
{
    struct ps_server_backup_part *p = ps_calloc(1, sizeof(*p));

    p->of = b;
    p->part = part;
    ps_map_put(b->parts, ps_part_id(part->key, part->index), p);
    return p;
}

struct ps_server_backup *ps_server_backup_of(const struct ps_part *part)
{
    return PS_CONTAINER(part->store, struct ps_server_backup, store);
}

struct ps_store *ps_server_backup_store(struct ps_server_job *job,
                                        uint32_t place, bool is_own)
{
    struct ps_server_backup *b = obtain_role(job, place);

    b->is_own = is_own;
    return &b->store;
}

void ps_server_backup_adopt(struct ps_part *part)
{
    struct ps_server_backup *b = ps_server_backup_of(part);

    b->newest_version = ps_max_u64(b->newest_version, part->image.version);
    add_part(b, part)->number = 1; /* It is whole; no other follows. */
}

/* This process is the backup from this epoch on; what it had does not count
 * (rule O9). */
static void take_role(struct ps_server_step *st, struct ps_server_job *job,
                      const struct ps_rec_place *r)
{
    struct ps_server_backup *b = obtain_role(job, r->number);

    if (b->epoch == r->epoch) {
        b->is_named = true;
        return;
    }
    drop_parts(job, b);
    b->is_named = true;
    b->epoch = r->epoch;
    b->node = r->node;
    b->incarnation = r->incarnation;
    b->instance = r->instance;
    b->newest_version = 0;
    ps_str_copy(b->name, sizeof(b->name), ps_str_or_empty(r->name));
    /* Copies may have come before this: asks for them again. */
    send_copied(st, job, b);
}

/* ---------------------------------------------------------------- takeover */

/* Both stay in their lists of changed partitions. */
static void swap_records(struct ps_part *a, struct ps_part *b)
{
    const struct ps_part_record before = a->record;

    a->record.place = b->record.place;
    memcpy(a->record.bufs, b->record.bufs, sizeof(before.bufs));
    b->record.place = before.place;
    memcpy(b->record.bufs, before.bufs, sizeof(before.bufs));
}

/* Makes the copy the partition of this server. False: it is a stray of one. */
static bool install(struct ps_server_step *st, struct ps_server_job *job,
                    const struct ps_server_backup_part *p)
{
    const uint32_t key = p->part->key;
    const uint32_t index = p->part->index;
    const struct ps_image image = {.records = &p->part->image};
    struct ps_server_move *mv = ps_server_move_find(job, key, index);
    struct ps_part *part = ps_store_find(&job->store, key, index);
    struct ps_slice buffers[PS_PART_BUFFERS];

    if (mv != NULL) {
        ps_server_move_end(mv);
    }
    if (!ps_server_job_is_newer(job, p)) {
        return false;
    }
    if (part != NULL && part->open_round != NULL) {
        ps_server_conflict_void(st, job, part, PS_E_AGAIN);
    }
    part = ps_store_find_or_add(&job->store, key, index);
    /* Until the partition has a record of its own, that of the copy counts. */
    swap_records(part, p->part);
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        buffers[i] = p->part->buffers[i];
        if (buffers[i].buf != NULL) {
            ps_buf_ref(buffers[i].buf);
        }
    }
    ps_store_install(&job->store, part, &image, buffers);
    ps_server_copies_on_takeover(job, part);
    ps_server_norm_adopt(st, job, part);
    ps_server_pull_reply_waiting(st, job, part, NULL);
    return true;
}

/* The scheduler has said, or it is clear, whether the partition is this
 * server's. */
static void adopt_part(struct ps_server_step *st, struct ps_server_job *job,
                       struct ps_server_backup_part *p, bool is_owner)
{
    if (is_owner && install(st, job, p)) {
        p->of->taken_count++;
    }
    part_free(job, p);
}

/* Rule M15: a move of the partition that is under way here ends first, because its
 * end says which of the copies here is the right one. */
static bool is_moving(const struct ps_server_job *job,
                      const struct ps_server_backup_part *p)
{
    const struct ps_server_move *mv = ps_server_move_find(job, p->part->key,
                                                          p->part->index);

    return mv != NULL && (mv->role == MOVE_OUT || mv->role == MOVE_IN);
}

/* Asks whose the partition is. */
static void ask_owner(struct ps_server_step *st,
                      const struct ps_server_job *job,
                      const struct ps_server_backup_part *p)
{
    if (is_moving(job, p)) {
        return;
    }
    ps_server_uplink_send_msg(
        st, &(struct ps_msg){.code = PS_MSG_MOVED,
                             .moved = {.gen = job->gen,
                                       .key = p->part->key,
                                       .index = p->part->index,
                                       .text = "",
                                       .version = p->of->lost_version}});
}

/* Ends the takeover of what lost servers had, where nothing is left to ask
 * about. */
static void end_takeovers(struct ps_server_step *st, struct ps_server_job *job)
{
    PS_MAP_EACH(struct ps_server_backup, b, job->copies.backups)
    {
        if (b->lost_version == 0 || ps_map_count(b->parts) > 0) {
            continue;
        }
        if (!b->is_own) {
            ps_effects_log_for(st->fx, &job->account, PS_LOG_WARNING,
                               "job %s: took over %u partitions of server %s",
                               job->name, b->taken_count,
                               b->name[0] != '\0' ? b->name : "?");
        }
        backup_free(job, b);
    }
    ps_server_copies_check(st, job);
}

/* The owner of the place is lost. Without moves all of it is this server's. */
static void take_over(struct ps_server_step *st, struct ps_server_job *job,
                      struct ps_server_backup *b)
{
    const bool asks = job->moves.was_rebalanced || job->moves.by_part != NULL;

    job->newest_version = ps_max_u64(job->newest_version, b->newest_version);
    b->lost_version = job->version;
    b->due_count = 0;
    b->refused_count = 0;
    PS_MAP_EACH(struct ps_server_backup_part, p, b->parts)
    {
        next_drop(job, p);
        if (p->number == 0 || !asks) {
            adopt_part(st, job, p, p->number != 0);
        } else {
            ask_owner(st, job, p);
        }
    }
    end_takeovers(st, job);
}

void ps_server_backup_ask_owner(struct ps_server_step *st,
                                const struct ps_server_job *job, uint64_t id)
{
    if (job->copies.backups == NULL) {
        return;
    }
    PS_MAP_EACH(const struct ps_server_backup, b, job->copies.backups)
    {
        PS_MAP_EACH(const struct ps_server_backup_part, p, b->parts)
        {
            if (b->lost_version != 0 &&
                (id == UINT64_MAX ||
                 id == ps_part_id(p->part->key, p->part->index))) {
                ask_owner(st, job, p);
            }
        }
    }
}

void ps_server_backup_set_owner(struct ps_server_step *st,
                                struct ps_server_job *job, uint64_t id,
                                uint32_t version, bool is_owner)
{
    if (!ps_server_job_takes_over(job)) {
        return;
    }
    PS_MAP_EACH(const struct ps_server_backup, b, job->copies.backups)
    {
        struct ps_server_backup_part *p = ps_map_get(b->parts, id);

        if (p != NULL && b->lost_version != 0 &&
            (version == 0 || b->lost_version == version) &&
            !is_moving(job, p)) {
            adopt_part(st, job, p, is_owner);
        }
    }
    end_takeovers(st, job);
}

bool ps_server_backup_has_of(const struct ps_server_job *job, uint32_t node,
                             uint64_t id)
{
    if (job->copies.backups == NULL) {
        return false;
    }
    PS_MAP_EACH(const struct ps_server_backup, b, job->copies.backups)
    {
        if (b->lost_version != 0 && b->node == node &&
            ps_map_get(b->parts, id) != NULL) {
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------ places */

/* Place of this process as the owner; NULL: it has none. */
static const struct ps_rec_place *own_place(const struct ps_server *s,
                                            const struct ps_msg_job_state *m)
{
    for (uint32_t i = 0; i < m->places_count; i++) {
        if (m->places[i].node == s->uplink.node &&
            m->places[i].instance == s->opt.instance) {
            return &m->places[i];
        }
    }
    return NULL;
}

static bool has_place(const struct ps_msg_job_state *m, uint32_t number)
{
    for (uint32_t i = 0; i < m->places_count; i++) {
        if (m->places[i].number == number) {
            return true;
        }
    }
    return false;
}

void ps_server_backup_set_places(struct ps_server_step *st,
                                 struct ps_server_job *job,
                                 const struct ps_msg_job_state *m)
{
    const struct ps_server *s = st->s;
    const struct ps_rec_place *own = own_place(s, m);

    for (uint32_t i = 0; m->replicas > 1 && i < m->places_count; i++) {
        if (m->places[i].backup == s->uplink.node &&
            m->places[i].backup_instance == s->opt.instance) {
            take_role(st, job, &m->places[i]);
        }
    }
    if (job->copies.backups != NULL) {
        PS_MAP_EACH(struct ps_server_backup, b, job->copies.backups)
        {
            if (b->is_named) {
                b->is_named = false; /* For the next job_state. */
            } else if (b->lost_version != 0) {
                continue;
            } else if (has_place(m, b->number) && !b->is_own) {
                backup_free(job, b);
            } else {
                take_over(st, job, b);
            }
        }
    }
    /* Last: a new backup gets what was taken over, too. */
    if (m->replicas > 1 && own != NULL && own->epoch != job->copies.epoch) {
        ps_server_copies_begin(st, job, own->epoch, own->backup,
                               own->backup_instance);
    }
    ps_server_copies_drop_unused_peers(st, false);
}

/* Role in a place of this process of a server, with this epoch unless that is 0;
 * NULL: none. */
static struct ps_server_backup *find_role(const struct ps_server_job *job,
                                          uint32_t node, uint64_t instance,
                                          uint32_t epoch)
{
    if (job->copies.backups == NULL) {
        return NULL;
    }
    PS_MAP_EACH(struct ps_server_backup, b, job->copies.backups)
    {
        if (b->lost_version == 0 && b->node == node &&
            b->instance == instance && (epoch == 0 || b->epoch == epoch)) {
            return b;
        }
    }
    return NULL;
}

/* The move of a server's process to this one; `id` and a partition of 0: any. NULL:
 * there is none. */
static struct ps_server_move *find_incoming(const struct ps_server_job *job,
                                            uint32_t node, uint64_t instance,
                                            const struct ps_msg_copy *m)
{
    PS_LIST_EACH_OF(struct ps_server_move, mv, node, &job->copies.incoming)
    {
        if (mv->source == node && mv->source_instance == instance &&
            (m == NULL || (mv->id == m->move && mv->key == m->key &&
                           mv->index == m->index))) {
            return mv;
        }
    }
    return NULL;
}

const char *ps_server_backup_owner_of(const struct ps_server *s,
                                      const struct ps_msg_hello *m)
{
    PS_MAP_EACH(const struct ps_server_job, job, s->jobs.by_gen)
    {
        const struct ps_server_backup *b = find_role(job, m->node, m->instance,
                                                     0);

        const struct ps_server_move *mv = find_incoming(job, m->node,
                                                        m->instance, NULL);

        if (b != NULL && b->incarnation == m->incarnation) {
            return b->name;
        }
        if (mv != NULL && mv->source_incarnation == m->incarnation) {
            return mv->source_name;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------- copies */

/* The use of a copy. */
struct role {
    struct ps_server_job *job;
    struct ps_server_backup *backup; /* NULL: a move. */
    struct ps_server_move *move;
};

/* False: this server has no such role, or another sender's (rule O10). */
static bool find_role_of_copy(const struct ps_server *s,
                              const struct ps_server_session *p,
                              const struct ps_msg_copy *m, struct role *ret)
{
    *ret = (struct role){.job = ps_map_get(s->jobs.by_gen, m->gen)};
    if (ret->job == NULL) {
        return false;
    }
    if (m->move != 0) {
        ret->move = find_incoming(ret->job, p->agent_node, p->instance, m);
    } else {
        ret->backup = find_role(ret->job, p->agent_node, p->instance, m->epoch);
    }
    return ret->move != NULL || ret->backup != NULL;
}

static bool is_valid_step(const struct ps_msg_copy *m, uint64_t len)
{
    const struct ps_rec_part_image *im = m->image;

    return m->image_count == 1 && m->base != 0 && im->has_dtype &&
           ps_dtype_is_real(im->dtype) && im->count != 0 &&
           len == im->count * (uint64_t)ps_dtype_state_size(im->dtype) &&
           m->step->number != 0;
}

static bool is_valid(const struct ps_msg_copy *m, uint64_t len)
{
    const struct ps_image image = {.records = m->image,
                                   .lens = m->buffer_bytes};

    if (m->number == 0 || (m->step_count == 1 && m->move != 0)) {
        return false;
    }
    if (m->step_count == 1) {
        return is_valid_step(m, len);
    }
    return m->image_count == 1 && m->buffer_bytes_count == PS_PART_BUFFERS &&
           ps_image_is_valid(&image, 0) && m->buffer < PS_PART_BUFFERS &&
           (m->shared == 0 || m->base != 0) &&
           len == ((m->shared & 1u << m->buffer) == 0
                       ? m->buffer_bytes[m->buffer]
                       : 0);
}

int ps_server_backup_payload(struct ps_server *s,
                             const struct ps_server_session *p,
                             const struct ps_msg *msg, uint64_t len,
                             struct ps_slice *ret_slice)
{
    struct role role;

    if (msg->code != PS_MSG_COPY || len > PS_PAYLOAD_MAX ||
        !is_valid(&msg->copy, len)) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(p->link, msg->seq)) {
        return PS_E_EXIST;
    }
    if (!find_role_of_copy(s, p, &msg->copy, &role)) {
        return PS_E_STALE;
    }
    if (ps_server_memory_alloc(role.job, len, ret_slice) != 0) {
        /* The scheduler has reserved this memory, so it is only short for a
         * moment; the owner's rounds wait for the copy. */
        *ret_slice = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    }
    return 0;
}

static void confirm(struct ps_server_step *st, const struct ps_server_job *job,
                    const struct ps_server_backup_part *p, uint64_t number)
{
    struct ps_server_backup *b = p->of;

    st->s->backup_flush_at = ps_time_min(st->s->backup_flush_at, st->now);
    if (b == NULL) {
        p->move->unconfirmed = ps_max_u64(p->move->unconfirmed, number);
        return;
    }
    if (b->due_count == PS_COPIES_CONFIRMED_MAX) {
        send_copied(st, job, b);
    }
    b->due[b->due_count++] = (struct ps_rec_part_copy){
        .key = p->part->key, .index = p->part->index, .number = number};
}

/* Asks for the whole partition, once for all messages of a copy. */
static void refuse(struct ps_server_step *st, const struct ps_server_job *job,
                   struct ps_server_backup_part *p, uint64_t number)
{
    struct ps_server_backup *b = p->of;

    if (p->refused == number) {
        return;
    }
    p->refused = number;
    st->s->backup_flush_at = ps_time_min(st->s->backup_flush_at, st->now);
    if (b == NULL) {
        p->move->refused = number;
        return;
    }
    if (b->refused_count == PS_COPIES_CONFIRMED_MAX) {
        send_copied(st, job, b);
    }
    b->refused[b->refused_count++] = (struct ps_rec_part_copy){
        .key = p->part->key, .index = p->part->index, .number = number};
}

/* True if the part has the buffers that the copy shares with the version
 * before. */
static bool has_shared(const struct ps_server_backup_part *p,
                       const struct ps_msg_copy *m)
{
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        if ((m->shared & 1u << i) != 0 &&
            p->part->buffers[i].len != m->buffer_bytes[i]) {
            return false;
        }
    }
    return true;
}

/* Begins a version of which the buffers arrive. False: it cannot be made. */
static bool begin_version(struct ps_server_backup_part *p,
                          const struct ps_msg_copy *m)
{
    if (m->base != 0 && (m->base != p->number || !has_shared(p, m))) {
        return false;
    }
    p->next.number = m->number;
    p->next.image = m->image[0];
    p->next.shared = m->shared;
    p->next.missing = 0;
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        if (m->buffer_bytes[i] != 0 && (m->shared & 1u << i) == 0) {
            p->next.missing |= (uint8_t)(1u << i);
        }
    }
    return true;
}

/* All buffers are there. */
static void install_version(struct ps_server_job *job,
                            struct ps_server_backup_part *p)
{
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        if ((p->next.shared & 1u << i) == 0) {
            ps_store_set_buffer(p->part->store, p->part, (enum ps_part_buffer)i,
                                &p->next.buffers[i]);
            p->next.buffers[i] = (struct ps_slice){0};
        }
    }
    p->part->image = p->next.image;
    p->number = p->next.number;
    p->next.number = 0;
    if (p->of == NULL) {
        ps_store_mark(p->part);
        ps_server_copies_on_change(job, p->part);
    }
}

static void take_buffer(struct ps_server_step *st, struct ps_server_job *job,
                        struct ps_server_backup_part *p,
                        const struct ps_msg_copy *m,
                        const struct ps_slice *payload)
{
    if (payload != NULL && payload->buf != NULL &&
        (p->next.missing & 1u << m->buffer) != 0) {
        p->next.buffers[m->buffer] = *payload;
        ps_buf_ref(payload->buf);
        p->next.missing &= (uint8_t) ~(1u << m->buffer);
    }
    if (p->next.missing == 0) {
        install_version(job, p);
        confirm(st, job, p, p->number);
        if (p->of != NULL && p->part->image.version == 0 &&
            !ps_part_has_value(p->part)) {
            part_free(job, p); /* The owner has it no more. */
        }
    }
}

/* ---------------------------------------------------------------- their steps */

/* Takes the owner's step of the version that is here. False: it cannot be
 * taken. */
static bool begin_step(struct ps_server_step *st, struct ps_server_job *job,
                       struct ps_server_backup_part *p,
                       const struct ps_msg_copy *m,
                       const struct ps_slice *payload)
{
    const struct ps_rec_part_image *im = &p->part->image;
    const struct ps_rec_copy_step *s = m->step;
    const struct ps_optim_step_params params = {.round = im->version + 1,
                                                .step_number = s->number,
                                                .name_hash = im->name_hash,
                                                .first_elem = im->first_elem,
                                                .lr_mult = s->lr_mult,
                                                .wd_mult = s->wd_mult,
                                                .norm_exempt = s->norm_exempt,
                                                .is_mean = s->is_mean,
                                                .trust_ratio = s->trust_ratio,
                                                .grad_scale = s->grad_scale};

    if (m->base != p->number || s->job_version != job->version ||
        !job->has_optimizer || payload == NULL || payload->buf == NULL ||
        !ps_part_has_value(p->part) || m->image->version != im->version ||
        m->image->dtype != im->dtype || m->image->count != im->count) {
        return false;
    }
    struct ps_server_merge *run = ps_server_merge_new(job, p->part);

    ps_buf_ref(payload->buf);
    if (ps_server_step_repeat(st, run, &params, payload) != 0) {
        ps_buf_unref(payload->buf);
        ps_server_merge_free(st->s, run);
        return false; /* It has room for the whole partition in any case. */
    }
    p->next.number = m->number;
    p->next.image = m->image[0];
    return true;
}

/* The step is complete: the partition is as after its merge at the owner. */
static void install_step(struct ps_server_step *st, struct ps_server_job *job,
                         struct ps_server_backup_part *p)
{
    struct ps_server_merge *run = p->part->merge;
    const struct ps_slice value = run->result;

    run->result = (struct ps_slice){0};
    ps_server_merge_install_next(run);
    ps_server_merge_free(st->s, run);
    p->part->image = p->next.image;
    ps_store_accumulate(p->part->store, p->part, &(struct ps_slice){0}, 0, 0);
    ps_store_set_value(p->part->store, p->part, p->next.image.version + 1,
                       &value);
    p->number = p->next.number;
    p->next.number = 0;
    confirm(st, job, p, p->number);
}

bool ps_server_backup_on_computed(struct ps_server_step *st, uint64_t token,
                                  int rc)
{
    struct ps_server_merge *run = ps_map_get(st->s->merges.by_token, token);

    if (run == NULL || run->part->store == &run->job->store) {
        return false;
    }
    struct ps_server_job *job = run->job;
    struct ps_server_backup_part *p = ps_map_get(
        ps_server_backup_of(run->part)->parts,
        ps_part_id(run->part->key, run->part->index));

    (void)ps_server_merge_computed(st, token);
    if (rc == 0 && ps_server_step_on_computed(st, run) == PS_STAGE_END_LAST) {
        install_step(st, job, p);
    } else if (rc != 0 || ps_server_step_launch(st, run) != 0) {
        refuse(st, job, p, p->next.number);
        next_drop(job, p);
    }
    return true;
}

/* ----------------------------------------------------------------- both forms */

/* The copies of the partition that the role has, made on first use. */
static struct ps_server_backup_part *obtain_part(const struct role *r,
                                                 const struct ps_msg_copy *m)
{
    const uint64_t id = ps_part_id(m->key, m->index);
    struct ps_server_backup_part *p;

    if (r->move != NULL) {
        p = r->move->copies;
        p->part = ps_store_find_or_add(&r->job->store, m->key, m->index);
        return p;
    }
    p = ps_map_get(r->backup->parts, id);
    if (p == NULL) {
        p = add_part(r->backup,
                     ps_store_find_or_add(&r->backup->store, m->key, m->index));
    }
    return p;
}

static void take_copy(struct ps_server_step *st, const struct role *r,
                      const struct ps_msg_copy *m,
                      const struct ps_slice *payload)
{
    struct ps_server_job *job = r->job;
    struct ps_server_backup_part *p = obtain_part(r, m);
    uint64_t *newest = r->move != NULL ? &job->newest_version
                                       : &r->backup->newest_version;

    *newest = ps_max_u64(*newest, m->newest_version);
    if (m->number <= p->number) {
        confirm(st, job, p, m->number); /* As on another session. */
        return;
    }
    if (m->number < p->next.number ||
        (m->number == p->next.number && p->part->merge != NULL)) {
        return;
    }
    if (m->number == p->next.number) {
        take_buffer(st, job, p, m, payload);
        return;
    }
    next_drop(job, p);
    if (m->step_count == 1 ? !begin_step(st, job, p, m, payload)
                           : !begin_version(p, m)) {
        refuse(st, job, p, m->number);
    } else if (m->step_count == 0) {
        take_buffer(st, job, p, m, payload);
    }
}

void ps_server_backup_on_copy(struct ps_server_step *st,
                              struct ps_server_conn *c,
                              const struct ps_event *ev)
{
    const struct ps_msg_copy *m = &ev->msg.msg->copy;
    const struct ps_slice *payload = ev->msg.payload;
    struct role role;

    if (ev->msg.discard_reason == PS_E_PROTO ||
        (ev->msg.discard_reason == 0 &&
         !is_valid(m, payload != NULL ? payload->len : 0))) {
        ps_server_session_close_bad(st, c,
                                    "its copy of a partition is "
                                    "malformed");
        return;
    }
    if (ev->msg.discard_reason == 0 &&
        find_role_of_copy(st->s, c->session, m, &role)) {
        take_copy(st, &role, m, payload);
    }
}

/* Confirms what has come of a move; without a number, asks for it again. */
static void send_moved_copy(struct ps_server_step *st,
                            struct ps_server_move *mv)
{
    const struct ps_rec_part_copy copy = {
        .key = mv->key, .index = mv->index, .number = mv->unconfirmed};
    const struct ps_rec_part_copy refused = {
        .key = mv->key, .index = mv->index, .number = mv->refused};

    send_to_owner(
        st, mv->source, mv->source_instance,
        &(struct ps_msg){.code = PS_MSG_COPIED,
                         .copied = {.gen = mv->job->gen,
                                    .move = mv->id,
                                    .copies = &copy,
                                    .copies_count = copy.number != 0,
                                    .refused = &refused,
                                    .refused_count = refused.number != 0}});
    mv->unconfirmed = 0;
    mv->refused = 0;
}

void ps_server_backup_begin_move(struct ps_server_step *st,
                                 struct ps_server_move *mv,
                                 const struct ps_msg_move *m)
{
    ps_server_move_take_in(mv, m);
    send_moved_copy(st, mv);
}

static void flush_job(struct ps_server_step *st,
                      const struct ps_server_job *job)
{
    if (job->copies.backups != NULL) {
        PS_MAP_EACH(struct ps_server_backup, b, job->copies.backups)
        {
            if (b->due_count + b->refused_count > 0) {
                send_copied(st, job, b);
            }
        }
    }
    PS_LIST_EACH_OF(struct ps_server_move, mv, node, &job->copies.incoming)
    {
        if (mv->refused != 0 ||
            (mv->unconfirmed != 0 &&
             !ps_server_copies_await(job, mv->key, mv->index))) {
            send_moved_copy(st, mv);
        }
    }
}

void ps_server_backup_flush(struct ps_server_step *st)
{
    st->s->backup_flush_at = PS_TIME_NEVER;
    PS_MAP_EACH(const struct ps_server_job, job, st->s->jobs.by_gen)
    {
        flush_job(st, job);
    }
}
