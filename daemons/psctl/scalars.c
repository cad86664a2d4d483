/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars of jobs, for psctl top. */
#include "psctl/psctl.h"

static void add_scalar(struct table *t, const char *job,
                       const struct ps_rec_job_scalar *s)
{
    char text[32];

    table_cell(t, "%s", job);
    table_text(t, s->name);
    table_cell(t, "%.6g", s->mean);
    table_cell(t, "%.6g", s->min);
    table_cell(t, "%.6g", s->max);
    table_cell(t, "%u", s->ranks);
    format_count(s->step, text, sizeof(text));
    table_cell(t, "%s", text);
    format_age(s->age_ns, text, sizeof(text));
    table_cell(t, "%s", text);
}

/* Adds those of a job; at most `most`. Returns their number. */
static size_t add_job(struct table *t, const struct report *r,
                      const struct ps_msg_job_row *j, size_t most)
{
    char name[600];
    struct ps_str s;
    size_t count = 0;

    ps_str_init(&s, name, sizeof(name));
    add_job_name(&s, r, j->name, j->uid);
    while (count < j->scalars_count && count < most) {
        add_scalar(t, name, &j->scalars[count++]);
    }
    return count;
}

size_t show_scalars(const struct report *r, size_t most, bool headings)
{
    static const char *const columns[] = {"JOB",  "SCALAR", ">MEAN", ">MIN",
                                          ">MAX", ">RANKS", ">STEP", ">AGE"};
    const struct rows *rows = &r->rows_of[PS_QUERY_JOBS];
    size_t count = 0;
    struct table t;

    table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_job_row *j = &rows->row[i]->job_row;

        if (job_is_open(j)) {
            count += add_job(&t, r, j, most - count);
        }
    }
    if (count > 0) {
        putchar('\n');
        table_print(&t, headings);
    }
    table_fini(&t);
    return count > 0 ? count + 1 + headings : 0;
}
