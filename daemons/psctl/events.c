/* SPDX-License-Identifier: Apache-2.0 */
/* psctl events: what happened lately to members and jobs; once, or as it
 * happens. */
#include "psctl/psctl.h"

#include "common/exit.h"

#include <stdio.h>
#include <time.h>

static void rows_clear(struct rows *rows)
{
    for (size_t i = 0; i < rows->count; i++) {
        ps_msg_free(rows->row[i]);
    }
    rows->count = 0;
}

static uint64_t newest_event(const struct report *r)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_EVENTS];

    return rows->count > 0 ? rows->row[rows->count - 1]->event_row.number : 0;
}

double event_time(const struct ps_msg_event_row *e)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9 -
           (double)e->age_ns / 1e9;
}

void show_events(const struct report *r, bool headings)
{
    static const char *const columns[] = {"TIME", "OF", "NAME", "WHAT",
                                          "DETAIL"};
    const struct rows *rows = &r->rows_of[PS_QUERY_EVENTS];
    struct table t;

    table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < rows->count; i++) {
        const struct ps_msg_event_row *e = &rows->row[i]->event_row;
        char text[64];
        struct ps_str s;

        ps_str_init(&s, text, sizeof(text));
        token_add_time(&s, (uint64_t)event_time(e));
        table_cell(&t, "%s", text);
        table_cell(&t, "%s", ps_event_kind_name(e->kind));
        table_text(&t, e->name);
        table_text(&t, e->what);
        table_text(&t, e->text);
    }
    table_print(&t, headings);
    table_fini(&t);
}

void wait_for(ps_time how_long)
{
    const struct timespec t = {.tv_sec = (time_t)(how_long / PS_SECONDS(1)),
                               .tv_nsec = (long)(how_long % PS_SECONDS(1))};

    nanosleep(&t, NULL);
}

int events_follow(const struct wire_target *target, ps_time pause, bool json,
                  bool headings)
{
    struct report r = {0};
    uint64_t newest = 0;
    int rc = 0;
    struct wire *w = wire_open(target, &rc);

    while (rc == 0) {
        rc = wire_events(w, newest, &r);
        if (rc == 0 && newest_event(&r) > 0) {
            newest = newest_event(&r);
            if (json) {
                show_events_as_lines(&r);
            } else {
                show_events(&r, headings);
            }
            headings = false;
            rows_clear(&r.rows_of[PS_QUERY_EVENTS]);
        }
        if (!ps_exit_flush() && rc == 0) {
            rc = EXIT_IOERR;
        }
        if (rc == 0) {
            wait_for(pause);
        }
    }
    report_fini(&r);
    wire_close(w);
    return rc;
}
