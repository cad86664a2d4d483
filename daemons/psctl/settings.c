/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs whose settings are shown. */
#include "psctl/psctl.h"

#include <string.h>

static bool is_wanted(const struct ps_msg_job_row *j,
                      const struct job_name *job)
{
    return job_is_open(j) &&
           (job == NULL || (strcmp(j->name, job->name) == 0 &&
                            (!job->has_owner || job->owner == j->uid)));
}

size_t settings_keep(struct report *r, const struct job_name *job)
{
    struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    size_t kept = 0;

    for (size_t i = 0; i < rows->count; i++) {
        struct ps_msg *row = rows->row[i];

        if (is_wanted(&row->job_row, job)) {
            rows->row[i] = rows->row[kept];
            rows->row[kept++] = row;
        }
    }
    while (rows->count > kept) {
        ps_msg_free(rows->row[--rows->count]);
    }
    return kept;
}
