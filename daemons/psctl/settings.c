/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of running jobs: their weight, and the numbers of their optimizers. */
#include "psctl/psctl.h"

#include <inttypes.h>
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

static void add_setting(struct table *t, const char *job, const char *name,
                        double value, uint64_t round)
{
    table_cell(t, "%s", job);
    table_text(t, name);
    table_cell(t, "%.9g", value);
    if (round == 0) {
        table_text(t, "");
    } else {
        table_cell(t, "%" PRIu64, round);
    }
}

void show_settings(const struct report *r, bool headings)
{
    static const char *const columns[] = {"JOB", "NAME", ">VALUE",
                                          ">FROM ROUND"};
    const struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    struct table t;

    table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_job_row *j = &rows->row[i]->job_row;
        char name[600];
        struct ps_str s;

        ps_str_init(&s, name, sizeof(name));
        add_job_name(&s, r, j->name, j->uid);
        add_setting(&t, name, "weight", j->weight, 0);
        for (uint32_t k = 0; k < j->settings_count; k++) {
            add_setting(&t, name, j->settings[k].name, j->settings[k].value,
                        j->settings[k].round);
        }
    }
    table_print(&t, headings);
    table_fini(&t);
}
