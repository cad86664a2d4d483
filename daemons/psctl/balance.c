/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the balance of the servers of each job, before and after the
 * migrations in a report. */
#include "psctl/answer.h"

#include "base/alloc.h"

#include <string.h>

/* Migrations are of one job only. */
static struct job_load *find_load(struct job_load *list, size_t count,
                                  const char *job, const char *server)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].job, job) == 0 &&
            strcmp(list[i].server, server) == 0) {
            return &list[i];
        }
    }
    return NULL;
}

/* Requires that rows of a job are adjacent. */
static void set_ratios(struct job_load *list, size_t count)
{
    size_t end;

    for (size_t first = 0; first < count; first = end) {
        double all = 0;
        double share;

        for (end = first; end < count && list[end].uid == list[first].uid &&
                          strcmp(list[end].job, list[first].job) == 0;
             end++) {
            all += (double)list[end].bytes;
        }
        share = all / (double)(end - first);
        for (size_t i = first; i < end; i++) {
            struct job_load *l = &list[i];

            l->ratio = share > 0 ? (double)l->bytes / share : 1;
            l->ratio_after = share > 0 ? (double)l->bytes_after / share : 1;
        }
    }
}

static size_t add_migration_targets(struct job_load *list, size_t count,
                                    const struct rows *moves)
{
    for (size_t i = 0; i < moves->count; i++) {
        const struct ps_msg_migration_row *row = &moves->row[i]->migration_row;

        if (find_load(list, count, row->job, row->to) == NULL) {
            list[count++] = (struct job_load){.job = row->job,
                                              .uid = count > 0 ? list[0].uid
                                                               : 0,
                                              .server = row->to};
        }
    }
    return count;
}

struct job_load *make_job_loads(const struct report *r, size_t *ret_count)
{
    const struct rows *shares = &r->rows_of[PS_QUERY_SHARES];
    const struct rows *moves = &r->rows_of[PS_QUERY_REBALANCE_PLAN];
    struct job_load *list = ps_calloc(shares->count + moves->count + 1,
                                      sizeof(*list));
    size_t count = shares->count;

    for (size_t i = 0; i < shares->count; i++) {
        const struct ps_msg_share_row *row = &shares->row[i]->share_row;

        list[i] = (struct job_load){.job = row->job,
                                    .uid = row->uid,
                                    .server = row->server,
                                    .bytes = row->bytes,
                                    .is_spare = row->spare,
                                    .bytes_after = row->bytes};
    }
    /* Migrations are of one job only. */
    count = add_migration_targets(list, count, moves);
    for (size_t i = 0; i < moves->count; i++) {
        const struct ps_msg_migration_row *row = &moves->row[i]->migration_row;
        struct job_load *from = find_load(list, count, row->job, row->from);
        struct job_load *to = find_load(list, count, row->job, row->to);

        /* The scheduler is not trusted: skips inconsistent rows. */
        if (from != NULL && to != NULL && from->bytes_after >= row->bytes) {
            from->bytes_after -= row->bytes;
            to->bytes_after += row->bytes;
        }
    }
    set_ratios(list, count);
    for (size_t i = 0; i < count; i++) {
        list[i].is_planned = r->is_plan;
    }
    *ret_count = count;
    return list;
}

static bool has_rounds(const struct report *r, const struct job_load *l)
{
    const struct rows *jobs = &r->rows_of[PS_QUERY_JOBS];

    for (size_t i = 0; i < jobs->count; i++) {
        const struct ps_msg_job_row *j = &jobs->row[i]->job_row;

        if (job_is_open(j) && j->uid == l->uid &&
            strcmp(j->name, l->job) == 0) {
            return j->mode == PS_MODE_SYNC;
        }
    }
    return true;
}

/* Appends that a spare server holds nothing, and the verb that changes it. */
void describe_spare(const struct report *r, const struct job_load *spare,
                    struct ps_str *out)
{
    ps_str_add(out, "job ");
    add_job_name(out, r, spare->job, spare->uid);
    ps_str_add(out, " lacks a server, and ");
    add_printable(out, spare->server, 64);
    ps_str_add(out, " holds nothing of it: ");
    if (has_rounds(r, spare)) {
        ps_str_add(out, "psctl rebalance ");
        add_job_name(out, r, spare->job, spare->uid);
        ps_str_add(out, " moves its share there");
    } else {
        ps_str_add(out, "keys of an async or ssp job stay where they are");
    }
}
