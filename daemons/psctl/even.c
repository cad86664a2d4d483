/* SPDX-License-Identifier: Apache-2.0 */
/* How even the servers of each job are, now and after the moves told of. */
#include "psctl/psctl.h"

#include "base/alloc.h"

#include <string.h>

static struct load *find(struct load *list, size_t count, const char *job,
                         const char *server)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].job, job) == 0 &&
            strcmp(list[i].server, server) == 0) {
            return &list[i];
        }
    }
    return NULL;
}

/* Rows of a job lie together. */
static void share_out(struct load *list, size_t count)
{
    size_t end;

    for (size_t first = 0; first < count; first = end) {
        double all = 0;

        for (end = first;
             end < count && strcmp(list[end].job, list[first].job) == 0;
             end++) {
            all += (double)list[end].bytes;
        }
        for (size_t i = first; i < end; i++) {
            list[i].even = all / (double)(end - first);
        }
    }
}

static size_t add_moves(struct load *list, size_t count,
                        const struct rows *moves)
{
    for (size_t i = 0; i < moves->count; i++) {
        const struct ps_msg_move_row *row = &moves->row[i]->move_row;

        if (find(list, count, row->job, row->to) == NULL) {
            list[count++] = (struct load){.job = row->job, .server = row->to};
        }
    }
    return count;
}

struct load *loads_of(const struct report *r, size_t *ret_count)
{
    const struct rows *shares = &r->of[PS_QUERY_SHARES];
    const struct rows *moves = &r->of[PS_QUERY_MOVES];
    struct load *list = ps_calloc(shares->count + moves->count + 1,
                                  sizeof(*list));
    size_t count = shares->count;

    for (size_t i = 0; i < shares->count; i++) {
        const struct ps_msg_share_row *row = &shares->row[i]->share_row;

        list[i] = (struct load){.job = row->job,
                                .server = row->server,
                                .bytes = row->bytes,
                                .after = row->bytes};
    }
    count = add_moves(list, count, moves); /* All of one job. */
    share_out(list, count);
    for (size_t i = 0; i < moves->count; i++) {
        const struct ps_msg_move_row *row = &moves->row[i]->move_row;
        struct load *from = find(list, count, row->job, row->from);
        struct load *to = find(list, count, row->job, row->to);

        /* A strange scheduler may say anything. */
        if (from != NULL && to != NULL && from->after >= row->bytes) {
            from->after -= row->bytes;
            to->after += row->bytes;
        }
    }
    *ret_count = count;
    return list;
}

double load_share(const struct load *l, uint64_t bytes)
{
    return l->even > 0 ? (double)bytes / l->even : 1;
}
