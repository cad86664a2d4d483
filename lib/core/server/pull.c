/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls: values that agents request, now or when their version is made. */
#include "core/server/pull.h"

#include "core/server/inner.h"
#include "core/server/migration.h"
#include "core/server/job.h"
#include "core/server/reply.h"
#include "core/server/rows.h"
#include "core/server/session.h"

static void record_pull(struct ps_server_job *job, const struct ps_part *part,
                        uint32_t slot, ps_time since)
{
    ps_server_record(job, part,
                     &(struct ps_server_profile_event){
                         .kind = PS_PROFILE_KIND_PULL,
                         .slot = slot,
                         .round = part->image.version,
                         .begun_at = since,
                         .bytes = part->image.count *
                                  (uint64_t)ps_dtype_size(part->image.dtype)});
}

void ps_server_pull_reply_waiting(struct ps_server_step *st,
                                  struct ps_server_job *job,
                                  struct ps_part *part,
                                  const struct ps_bits *up_to_date)
{
    struct ps_list_node *n = ps_list_first(&part->waiting_pulls);

    while (n != NULL && ps_part_has_value(part)) {
        struct ps_waiting_pull *p = PS_CONTAINER(n, struct ps_waiting_pull,
                                                 node);

        n = ps_list_next(&part->waiting_pulls, n);
        if (p->min_version > part->image.version) {
            continue;
        }
        record_pull(job, part, p->slot, p->since);
        if (up_to_date == NULL || !ps_bits_get(up_to_date, p->slot)) {
            ps_server_reply_part(st, &job->slots[p->slot], part, true,
                                 part->image.version);
        }
        ps_store_remove_pull(&job->store, p);
    }
    if (ps_part_has_row_pulls(part)) {
        ps_server_rows_reply_waiting(st, job, part);
    }
}

static int accept_pull_part(struct ps_server_step *st,
                            struct ps_server_slot *slot,
                            const struct ps_rec_part *rec)
{
    struct ps_store *store = &slot->job->store;
    struct ps_part *part = ps_store_find(store, rec->key, rec->index);

    int rc = slot->job->migrations != NULL
                 ? ps_server_migration_check_use(slot, rec)
                 : 0;
    if (rc != 0) {
        return rc;
    }
    if (part != NULL && ps_part_has_value(part) &&
        part->image.version >= rec->round) {
        record_pull(slot->job, part, slot->index, st->now);
        ps_server_reply_part(st, slot, part, true, part->image.version);
        return 0;
    }
    if (store->waiting_pull_count >= PS_WAITING_PULLS_MAX ||
        (part == NULL && ps_map_count(store->parts) >= PS_STORE_PARTS_MAX)) {
        return PS_E_BUSY;
    }
    if (part != NULL && part->image.all_skipped &&
        part->image.version >= rec->round) {
        /* No value exists yet; the commit tells the agent that all ranks
         * skipped. */
        ps_server_reply_part(st, slot, part, false, part->image.version);
    }
    part = ps_store_find_or_add(store, rec->key, rec->index);
    ps_store_add_pull(store, part, slot->index, rec->round, st->now);
    return 0;
}

void ps_server_on_pull(struct ps_server_step *st, struct ps_server_conn *c,
                       const struct ps_msg *msg)
{
    const struct ps_msg_pull *m = &msg->pull;
    const struct ps_server_parts parts = {m->parts, m->parts_count, NULL};
    struct ps_server_refusal refusal;

    if (m->parts_count > PS_PARTS_MAX) {
        ps_server_session_close_bad(st, c, "a pull of too many parts");
        return;
    }
    struct ps_server_slot *slot = ps_server_find_slot_or_refuse(
        st, c->session, m->gen, m->slot, &parts);

    if (slot == NULL) {
        return;
    }
    ps_server_refusal_init(&refusal);
    for (uint32_t i = 0; i < m->parts_count; i++) {
        int rc = accept_pull_part(st, slot, &m->parts[i]);

        if (rc != 0) {
            ps_server_refusal_add(&refusal, &m->parts[i], rc, 0);
        }
    }
    ps_server_refusal_send(
        st, &(struct ps_server_recipient){c->session, m->gen, slot}, &refusal);
}
