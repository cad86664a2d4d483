/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sched/rebalance_reply.h"

#include "base/alloc.h"
#include "core/sched/conn.h"
#include "core/sched/inner.h"
#include "core/sched/job_state.h"

void ps_sched_rebalance_reply_add(struct ps_sched_rebalance_reply *r,
                                  const struct ps_sched_rebalance_row *part)
{
    for (uint32_t i = r->row_count; i > 0 && r->rows[i - 1].key == part->key;
         i--) {
        struct ps_sched_rebalance_row *row = &r->rows[i - 1];

        if (row->source == part->source && row->target == part->target) {
            row->part_count += part->part_count;
            row->bytes += part->bytes;
            return;
        }
    }
    r->rows[r->row_count++] = *part;
}

void ps_sched_rebalance_drop_reply(struct ps_sched_conn *c)
{
    if (c->rebalance_reply != NULL) {
        ps_free(c->rebalance_reply->rows);
        ps_free(c->rebalance_reply);
        c->rebalance_reply = NULL;
    }
}

void ps_sched_rebalance_ended(struct ps_sched_step *st, ps_conn_id ctl,
                              uint64_t gen, int rc, const char *text)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, ctl);

    if (c == NULL || c->rebalance_reply == NULL ||
        c->rebalance_reply->gen != gen) {
        return; /* No connection waits for it any more. */
    }
    c->rebalance_reply->has_ended = true;
    c->rebalance_reply->rc = rc;
    ps_str_copy(c->rebalance_reply->text, sizeof(c->rebalance_reply->text),
                text);
    ps_sched_rebalance_send_rows(st, c);
}

static const char *server_name(const struct ps_sched *s, uint32_t node)
{
    const struct ps_member *m = ps_members_get(&s->members, node);

    return m != NULL ? m->name : "?";
}

static void send_migration_row(struct ps_sched_step *st,
                               const struct ps_sched_conn *c,
                               const struct ps_sched_job *j,
                               const struct ps_sched_rebalance_row *row)
{
    const struct ps_sched_key *k = j->keys.list[row->key];

    if (k == NULL) {
        return; /* Removed since the plan was made. */
    }
    ps_effects_send_msg(
        st->fx, c->id,
        &(struct ps_msg){
            .code = PS_MSG_MIGRATION_ROW,
            .migration_row = {.job = j->name,
                              .key = k->number,
                              .kind = k->kind,
                              .name = k->name,
                              .from = server_name(st->s, row->source),
                              .to = server_name(st->s, row->target),
                              .parts = row->part_count,
                              .bytes = row->bytes},
        });
}

void ps_sched_rebalance_send_rows(struct ps_sched_step *st,
                                  struct ps_sched_conn *c)
{
    struct ps_sched_rebalance_reply *m = c->rebalance_reply;
    uint32_t rows = PS_SCHED_ROWS_PER_SEND;
    const struct ps_sched_job *j;

    if (m == NULL) {
        return;
    }
    j = ps_sched_find_job(st->s, m->gen);
    if (j == NULL) {
        ps_sched_rebalance_drop_reply(c);
        ps_sched_conn_end_query(st, c, PS_E_AGAIN,
                                "the job has ended meanwhile");
        return;
    }
    for (; rows > 0 && m->next_row < m->row_count; rows--) {
        send_migration_row(st, c, j, &m->rows[m->next_row++]);
    }
    if (m->next_row == m->row_count && (m->has_ended || !m->awaits_end)) {
        struct ps_sched_rebalance_reply last = *m;

        ps_sched_rebalance_drop_reply(c);
        ps_sched_conn_end_query(st, c, last.rc, last.text);
    }
}
