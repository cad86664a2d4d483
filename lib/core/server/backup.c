/* SPDX-License-Identifier: Apache-2.0 */
/* The role of a backup: versions of the partitions of another server's place,
 * kept beside the store, which the owner has confirmed before it answers.
 *
 *     job_state names this process as the backup: it begins with nothing
 *     copy, one for each buffer; when all have come, the version replaces the
 *         one before, and is confirmed with others at the next tick
 *     job_state names another backup, or none: all of it is dropped
 *     job_state names the place no more: its owner was lost, and the partitions
 *         become this server's own (rule O13) */
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
#include "core/server/pull.h"
#include "core/server/session.h"

#include <string.h>

struct ps_server_backup {
    uint32_t number; /* Of the place. */
    uint32_t node;   /* Its owner. */
    uint64_t incarnation;
    uint64_t instance;
    char name[PS_NAME_MAX + 1];
    uint32_t epoch;
    bool is_named; /* By the job_state that is taken in. */
    uint64_t newest_version;
    struct ps_rec_part_copy due[PS_COPIES_CONFIRMED_MAX];
    uint32_t due_count; /* Confirmations to be sent. */
};

/* ------------------------------------------------------------------- roles */

static void version_drop(struct ps_server_copied_version *v)
{
    ps_image_drop(v->buffers);
    v->number = 0;
}

static void part_free(struct ps_server_job *job,
                      struct ps_server_backup_part *p)
{
    ps_map_remove(job->copies.backup_parts, ps_part_id(p->key, p->index));
    version_drop(&p->complete);
    version_drop(&p->arriving);
    ps_free(p);
}

static void drop_parts(struct ps_server_job *job, struct ps_server_backup *b)
{
    PS_MAP_EACH(struct ps_server_backup_part, p, job->copies.backup_parts)
    {
        if (p->of == b) {
            part_free(job, p);
        }
    }
    b->due_count = 0;
}

static void backup_free(struct ps_server_job *job, struct ps_server_backup *b)
{
    drop_parts(job, b);
    ps_map_remove(job->copies.backups, b->number);
    ps_free(b);
}

void ps_server_backup_free_all(struct ps_server_job *job)
{
    if (job->copies.backups == NULL) {
        return;
    }
    PS_MAP_EACH(struct ps_server_backup, b, job->copies.backups)
    {
        backup_free(job, b);
    }
    ps_map_free(job->copies.backups);
    ps_map_free(job->copies.backup_parts);
    job->copies.backups = NULL;
    job->copies.backup_parts = NULL;
}

static void send_copied(struct ps_server_step *st,
                        const struct ps_server_job *job,
                        struct ps_server_backup *b)
{
    struct ps_server_session *p = ps_map_get(st->s->sessions.by_node, b->node);
    const struct ps_msg msg = {.code = PS_MSG_COPIED,
                               .copied = {.gen = job->gen,
                                          .epoch = b->epoch,
                                          .copies = b->due,
                                          .copies_count = b->due_count}};

    b->due_count = 0;
    /* A new session of the owner sends the copies again. */
    if (p != NULL && p->is_server && p->instance == b->instance) {
        ps_server_session_send(st, p, ps_packet_new(&msg, NULL, 0));
    }
}

/* This process is the backup from this epoch on; what it had does not count
 * (rule O9). */
static void take_role(struct ps_server_step *st, struct ps_server_job *job,
                      const struct ps_rec_place *r)
{
    struct ps_server_backup *b;

    if (job->copies.backups == NULL) {
        job->copies.backups = ps_map_new();
        job->copies.backup_parts = ps_map_new();
    }
    b = ps_map_get(job->copies.backups, r->number);
    if (b == NULL) {
        b = ps_calloc(1, sizeof(*b));
        b->number = r->number;
        ps_map_put(job->copies.backups, b->number, b);
    } else if (b->epoch == r->epoch) {
        b->is_named = true;
        return;
    } else {
        drop_parts(job, b);
    }
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

/* Makes the copy the partition of this server. False: it is a stray of one. */
static bool install(struct ps_server_step *st, struct ps_server_job *job,
                    struct ps_server_backup_part *p)
{
    const struct ps_msg_part_chunk image = {.image = &p->complete.image,
                                            .image_count = 1};
    struct ps_part *part = ps_store_find(&job->store, p->key, p->index);

    if (!ps_server_job_backs_up(job, p->key, p->index)) {
        return false;
    }
    if (part != NULL && part->open_round != NULL) {
        ps_server_conflict_void(st, job, part, PS_E_AGAIN);
    }
    part = ps_store_find_or_add(&job->store, p->key, p->index);
    ps_store_install(&job->store, part, &image, p->complete.buffers);
    ps_server_pull_reply_waiting(st, job, part, NULL);
    return true;
}

static void take_over(struct ps_server_step *st, struct ps_server_job *job,
                      struct ps_server_backup *b)
{
    uint32_t count = 0;

    job->newest_version = ps_max_u64(job->newest_version, b->newest_version);
    PS_MAP_EACH(struct ps_server_backup_part, p, job->copies.backup_parts)
    {
        if (p->of == b && p->complete.number != 0) {
            count += install(st, job, p);
        }
    }
    ps_effects_log_for(st->fx, &job->account, PS_LOG_WARNING,
                       "job %s: took over %u partitions of server %s",
                       job->name, count, b->name);
    backup_free(job, b);
}

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
            } else if (has_place(m, b->number)) {
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
    ps_server_copies_drop_unused_peers(st);
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
        if (b->node == node && b->instance == instance &&
            (epoch == 0 || b->epoch == epoch)) {
            return b;
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

        if (b != NULL && b->incarnation == m->incarnation) {
            return b->name;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------- copies */

/* The role that a copy is for; NULL: none of this epoch, or another sender's
 * (rule O10). */
static struct ps_server_backup *role_of_copy(const struct ps_server *s,
                                             const struct ps_server_session *p,
                                             const struct ps_msg_copy *m,
                                             struct ps_server_job **ret_job)
{
    struct ps_server_job *job = ps_map_get(s->jobs.by_gen, m->gen);

    *ret_job = job;
    return job != NULL ? find_role(job, p->agent_node, p->instance, m->epoch)
                       : NULL;
}

static bool is_valid(const struct ps_msg_copy *m, uint64_t len)
{
    const struct ps_msg_part_chunk image = {
        .image = m->image,
        .image_count = m->image_count,
        .buffer_bytes = m->buffer_bytes,
        .buffer_bytes_count = m->buffer_bytes_count};

    return m->number != 0 && ps_image_is_valid(&image, 0) &&
           m->buffer < PS_PART_BUFFERS && m->buffer_bytes[m->buffer] == len;
}

int ps_server_backup_payload(struct ps_server *s,
                             const struct ps_server_session *p,
                             const struct ps_msg *msg, uint64_t len,
                             struct ps_slice *ret_slice)
{
    struct ps_server_job *job;

    if (msg->code != PS_MSG_COPY || len > PS_PAYLOAD_MAX ||
        !is_valid(&msg->copy, len)) {
        return PS_E_PROTO;
    }
    if (!ps_link_is_new(p->link, msg->seq)) {
        return PS_E_EXIST;
    }
    if (role_of_copy(s, p, &msg->copy, &job) == NULL) {
        return PS_E_STALE;
    }
    if (ps_server_memory_alloc(job, len, ret_slice) != 0) {
        /* The scheduler has reserved this memory, so it is only short for a
         * moment; the owner's rounds wait for the copy. */
        *ret_slice = (struct ps_slice){.buf = ps_buf_new(len), .len = len};
    }
    return 0;
}

static void confirm(struct ps_server_step *st, const struct ps_server_job *job,
                    struct ps_server_backup *b, const struct ps_msg_copy *m)
{
    if (b->due_count == PS_COPIES_CONFIRMED_MAX) {
        send_copied(st, job, b);
    }
    b->due[b->due_count++] = (struct ps_rec_part_copy){
        .key = m->key, .index = m->index, .number = m->number};
    st->s->backup_flush_at = ps_time_min(st->s->backup_flush_at, st->now);
}

/* Begins a version that replaces one on its way. */
static void begin_version(struct ps_server_backup_part *p,
                          const struct ps_msg_copy *m)
{
    version_drop(&p->arriving);
    p->arriving.number = m->number;
    p->arriving.image = m->image[0];
    p->missing = 0;
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        p->missing |= m->buffer_bytes[i] != 0 ? 1u << i : 0;
    }
}

static void take_copy(struct ps_server_step *st, struct ps_server_job *job,
                      struct ps_server_backup *b, const struct ps_msg_copy *m,
                      const struct ps_slice *payload)
{
    const uint64_t id = ps_part_id(m->key, m->index);
    struct ps_server_backup_part *p = ps_map_get(job->copies.backup_parts, id);

    if (p == NULL) {
        p = ps_calloc(1, sizeof(*p));
        p->of = b;
        p->key = m->key;
        p->index = m->index;
        ps_map_put(job->copies.backup_parts, id, p);
    } else if (p->of != b) {
        return; /* No honest owner names a partition of another place. */
    }
    b->newest_version = ps_max_u64(b->newest_version, m->newest_version);
    if (m->number <= p->complete.number) {
        confirm(st, job, b, m); /* It has been confirmed on another session. */
        return;
    }
    if (m->number < p->arriving.number) {
        return;
    }
    if (m->number > p->arriving.number) {
        begin_version(p, m);
    }
    if (payload != NULL && payload->buf != NULL &&
        (p->missing & 1u << m->buffer) != 0) {
        p->arriving.buffers[m->buffer] = *payload;
        ps_buf_ref(payload->buf);
        p->missing &= ~(1u << m->buffer);
    }
    if (p->missing == 0) {
        version_drop(&p->complete);
        p->complete = p->arriving;
        p->arriving = (struct ps_server_copied_version){0};
        confirm(st, job, b, m);
    }
}

void ps_server_backup_on_copy(struct ps_server_step *st,
                              struct ps_server_conn *c,
                              const struct ps_event *ev)
{
    const struct ps_msg_copy *m = &ev->msg.msg->copy;
    const struct ps_slice *payload = ev->msg.payload;
    struct ps_server_job *job;
    struct ps_server_backup *b;

    if (ev->msg.discard_reason == PS_E_PROTO ||
        (ev->msg.discard_reason == 0 &&
         !is_valid(m, payload != NULL ? payload->len : 0))) {
        ps_server_session_close_bad(st, c,
                                    "its copy of a partition is "
                                    "malformed");
        return;
    }
    b = role_of_copy(st->s, c->session, m, &job);
    if (b != NULL && ev->msg.discard_reason == 0) {
        take_copy(st, job, b, m, payload);
    }
}

void ps_server_backup_flush(struct ps_server_step *st)
{
    st->s->backup_flush_at = PS_TIME_NEVER;
    PS_MAP_EACH(const struct ps_server_job, job, st->s->jobs.by_gen)
    {
        if (job->copies.backups == NULL) {
            continue;
        }
        PS_MAP_EACH(struct ps_server_backup, b, job->copies.backups)
        {
            if (b->due_count > 0) {
                send_copied(st, job, b);
            }
        }
    }
}
