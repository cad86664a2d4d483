/* SPDX-License-Identifier: Apache-2.0 */
/* A partition's record is written at the end of the step in which it has
 * changed, before the driver carries out the effects of the step: a version
 * that a peer hears of is in state memory (rule E4). Until then the references
 * of its record keep the buffers of the version before, which counts after a
 * death. */
#include "core/server/kept.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/str.h"
#include "core/server/backup.h"
#include "core/server/inner.h"
#include "core/server/memory.h"

#include <string.h>

void ps_server_kept_init(struct ps_server *s)
{
    ps_list_init(&s->kept.changed);
    ps_list_init(&s->kept.changed_copies);
}

/* ------------------------------------------------------------------ records */

/* Finds where the buffer lies in state memory; one of elsewhere is copied
 * there. The caller gets a reference. PS_E_NOMEM. */
static int place_buffer(struct ps_server_job *job, const struct ps_slice *from,
                        struct ps_record_range *ret_range,
                        struct ps_buf **ret_buf)
{
    struct ps_slice copy;

    if (ps_records_locate(job->store.records, from, ret_range)) {
        *ret_buf = ps_buf_ref(from->buf);
        return 0;
    }
    int rc = ps_server_memory_alloc(job, from->len, &copy);

    if (rc != 0) {
        return rc;
    }
    memcpy(ps_slice_data(&copy), ps_slice_data(from), copy.len);
    *ret_buf = copy.buf;
    return ps_records_locate(job->store.records, &copy, ret_range) ? 0
                                                                   : PS_E_NOMEM;
}

static int place_clocks(struct ps_server_job *job,
                        const struct ps_part_async *async,
                        struct ps_record_range *ret_range,
                        struct ps_buf **ret_buf)
{
    struct ps_slice copy;
    int rc = ps_server_memory_alloc(
        job, async->slot_count * sizeof(*async->clocks), &copy);

    if (rc != 0) {
        return rc;
    }
    memcpy(ps_slice_data(&copy), async->clocks, copy.len);
    *ret_buf = copy.buf;
    return ps_records_locate(job->store.records, &copy, ret_range) ? 0
                                                                   : PS_E_NOMEM;
}

/* Number of the place of which the partition is a copy; 0: it is this server's. */
static uint32_t place_of(const struct ps_server_job *job,
                         const struct ps_part *part)
{
    const struct ps_server_backup *b = part->store != &job->store
                                           ? ps_server_backup_of(part)
                                           : NULL;

    return b != NULL && !b->is_own ? b->number : 0;
}

static int write_record(struct ps_server_job *job, struct ps_part *part)
{
    struct ps_record rec = {.gen = job->gen,
                            .key = part->key,
                            .index = part->index,
                            .place = place_of(job, part),
                            .image = part->image};
    struct ps_buf *bufs[PS_RECORD_RANGES] = {NULL};
    int rc = 0;

    for (unsigned i = 0; i < PS_PART_BUFFERS && rc == 0; i++) {
        if (part->buffers[i].buf != NULL && part->buffers[i].len > 0) {
            rc = place_buffer(job, &part->buffers[i], &rec.ranges[i], &bufs[i]);
        }
    }
    if (part->async != NULL && rc == 0) {
        rec.slots = part->async->slot_count;
        rc = place_clocks(job, part->async, &rec.ranges[PS_RECORD_CLOCKS],
                          &bufs[PS_RECORD_CLOCKS]);
    }
    if (rc == 0 &&
        !ps_records_write(job->store.records, &part->record.place, &rec)) {
        rc = PS_E_FULL;
    }
    for (unsigned i = 0; i < PS_RECORD_RANGES; i++) {
        struct ps_buf *before = part->record.bufs[i];

        part->record.bufs[i] = rc == 0 ? bufs[i] : before;
        ps_buf_unref(rc == 0 ? before : bufs[i]);
    }
    return rc;
}

/* The job goes on, but not after the end of this process; the first reason is
 * logged. */
static void note_not_kept(struct ps_server_step *st, struct ps_server_job *job,
                          enum ps_log_level level, const char *why)
{
    if (!job->kept.is_partial) {
        job->kept.is_partial = true;
        ps_effects_log_for(st->fx, &job->account, level,
                           "job %s: %s; the job does not survive a restart of "
                           "this server",
                           job->name, why);
    }
}

static void drop_record(struct ps_server_job *job, struct ps_part *part)
{
    ps_records_remove(job->store.records, &part->record.place);
    ps_part_release_record(part);
}

static void keep_part(struct ps_server_step *st, struct ps_server_job *job,
                      struct ps_part *part)
{
    struct ps_str why = PS_STR_ROOM(120);

    if (ps_part_is_rows(part)) { /* Written in place (rule E2). */
        drop_record(job, part);
        ps_str_addf(&why, "key %u has rows, which state memory does not keep",
                    part->key);
        note_not_kept(st, job, PS_LOG_NOTICE, why.data);
        return;
    }
    if (part->image.version == 0 && !ps_part_has_value(part)) {
        return; /* There is nothing to keep. */
    }
    int rc = write_record(job, part);

    if (rc != 0) {
        drop_record(job, part);
        ps_str_addf(&why, "state memory has no room for key %u (%s)", part->key,
                    ps_strerror(rc));
        note_not_kept(st, job, PS_LOG_WARNING, why.data);
    }
}

void ps_server_kept_write(struct ps_server_step *st)
{
    struct ps_server_kept *k = &st->s->kept;
    struct ps_part *part;

    while ((part = PS_LIST_POP(struct ps_part, record.changed, &k->changed)) !=
           NULL) {
        keep_part(st, PS_CONTAINER(part->store, struct ps_server_job, store),
                  part);
    }
    while ((part = PS_LIST_POP(struct ps_part, record.changed,
                               &k->changed_copies)) != NULL) {
        keep_part(st, ps_server_backup_of(part)->job, part);
    }
}

/* ----------------------------------------------------------------- adoption */

static void release_ranges(struct ps_records *r, const struct ps_record *rec)
{
    for (unsigned i = 0; i < PS_RECORD_RANGES; i++) {
        ps_records_release(r, &rec->ranges[i]);
    }
}

/* Makes the partition of a record. False: the job cannot have it. `own`: number of
 * this server's place, of which partitions may have moved away; or 0. */
static bool adopt_part(struct ps_server_job *job, const struct ps_record *rec,
                       const struct ps_record_place *place, uint32_t own)
{
    struct ps_records *r = job->store.records;
    const struct ps_record_range *clocks = &rec->ranges[PS_RECORD_CLOCKS];
    struct ps_slice buffers[PS_PART_BUFFERS] = {{0}};
    struct ps_image m = {.records = &rec->image};
    struct ps_buf *clock_buf = NULL;
    const uint32_t number = rec->place != 0 ? rec->place : own;
    struct ps_store *store = number == 0 ? &job->store
                                         : ps_server_backup_store(
                                               job, number, rec->place == 0);

    if ((rec->slots != 0 && rec->slots != job->slot_count) ||
        ps_store_find(store, rec->key, rec->index) != NULL) {
        return false;
    }
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        if (rec->ranges[i].bytes != 0) {
            buffers[i].buf = ps_records_adopt(
                r, &rec->ranges[i], job->server->opt.pool, job->pool_share);
            buffers[i].len = rec->ranges[i].bytes;
        }
    }
    if (rec->slots != 0) {
        clock_buf = ps_records_adopt(r, clocks, job->server->opt.pool,
                                     job->pool_share);
        m.clocks = (const void *)clock_buf->data;
        m.clocks_count = rec->slots;
    }
    struct ps_part *part = ps_store_find_or_add(store, rec->key, rec->index);

    ps_store_install(store, part, &m, buffers);
    part->record.place = *place;
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        part->record.bufs[i] = part->buffers[i].buf != NULL
                                   ? ps_buf_ref(part->buffers[i].buf)
                                   : NULL;
    }
    part->record.bufs[PS_RECORD_CLOCKS] = clock_buf;
    if (number != 0) {
        ps_server_backup_adopt(part);
    } else {
        job->newest_version = ps_max_u64(job->newest_version,
                                         rec->image.version);
    }
    return true;
}

bool ps_server_kept_adopt(struct ps_server_step *st, struct ps_server_job *job,
                          uint32_t place_number)
{
    struct ps_server *s = st->s;
    struct ps_records *r = s->opt.records;
    struct ps_record_place place;
    const struct ps_record *rec;
    uint32_t parts = 0;

    if (r == NULL) {
        return false;
    }
    job->store.records = r;
    job->store.changed = &s->kept.changed;
    while ((rec = ps_records_take(r, job->gen, &place)) != NULL) {
        if (rec->key == PS_RECORD_JOB && rec->image.version == place_number &&
            job->kept.record.number == 0) {
            job->kept.record = place;
        } else if (rec->key != PS_RECORD_JOB && job->kept.record.number != 0 &&
                   adopt_part(job, rec, &place,
                              job->moves.was_rebalanced ? place_number : 0)) {
            parts++;
        } else {
            ps_records_remove(r, &place);
            release_ranges(r, rec);
        }
    }
    if (job->kept.record.number != 0) {
        ps_effects_log_for(st->fx, &job->account, PS_LOG_NOTICE,
                           "job %s goes on with %u partitions from state "
                           "memory",
                           job->name, parts);
        return true;
    }
    if (!ps_records_write(r, &job->kept.record,
                          &(struct ps_record){.gen = job->gen,
                                              .key = PS_RECORD_JOB,
                                              .index = PS_RECORD_JOB,
                                              .image.version = place_number})) {
        note_not_kept(st, job, PS_LOG_WARNING,
                      "state memory has no room for it");
    }
    return false;
}

static void remove_records(const struct ps_store *store)
{
    PS_MAP_EACH(struct ps_part, part, store->parts)
    {
        ps_records_remove(store->records, &part->record.place);
    }
}

void ps_server_kept_drop(struct ps_server *s, uint64_t gen)
{
    struct ps_records *r = s->opt.records;
    struct ps_server_job *job = ps_map_get(s->jobs.by_gen, gen);
    struct ps_record_place place;
    const struct ps_record *rec;

    if (r == NULL) {
        return;
    }
    while ((rec = ps_records_take(r, gen, &place)) != NULL) {
        ps_records_remove(r, &place);
        release_ranges(r, rec);
    }
    if (job == NULL) {
        return;
    }
    ps_records_remove(r, &job->kept.record);
    remove_records(&job->store);
    if (job->copies.backups != NULL) {
        PS_MAP_EACH(const struct ps_server_backup, b, job->copies.backups)
        {
            remove_records(&b->store);
        }
    }
}

void ps_server_kept_send_ready(struct ps_server_step *st)
{
    const struct ps_records *r = st->s->opt.records;
    uint64_t gen = 0;

    while (r != NULL && (gen = ps_records_untaken_gen(r, gen)) != 0) {
        ps_server_uplink_send_msg(
            st, &(struct ps_msg){
                    .code = PS_MSG_JOB_READY,
                    .job_ready = {.gen = gen, .memory = PS_PART_MEMORY_KEPT}});
    }
}
