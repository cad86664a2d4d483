/* SPDX-License-Identifier: Apache-2.0 */
/* psctl events: what happened lately to members and jobs; once, or as it
 * happens. */
#include "psctl/answer.h"

#include "common/exit.h"

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

void wait_for(ps_time how_long)
{
    const struct timespec t = {.tv_sec = (time_t)(how_long / PS_SECONDS(1)),
                               .tv_nsec = (long)(how_long % PS_SECONDS(1))};

    nanosleep(&t, NULL);
}

int events_query(struct wire *w, uint64_t after, struct report *r)
{
    const struct ps_msg query = {
        .code = PS_MSG_QUERY,
        .query = {.what = PS_QUERY_EVENTS, .job = "", .after_event = after}};

    return wire_ask(w, &query, PS_MSG_EVENT_ROW, &r->rows_of[PS_QUERY_EVENTS],
                    r);
}

int events_follow(struct wire *w, ps_time pause, bool json, bool headings)
{
    struct report r = {0};
    uint64_t newest = 0;
    int rc = 0;

    while (rc == 0) {
        rc = events_query(w, newest, &r);
        if (rc == 0 && newest_event(&r) > 0) {
            newest = newest_event(&r);
            if (json) {
                answer_print_lines(&answer_events, &r);
            } else {
                answer_print(&answer_events, &r, headings);
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
    return rc;
}
