/* SPDX-License-Identifier: Apache-2.0 */
/* psctl top and psctl events --follow, which show what changes. On a terminal each
 * frame of top fills the screen, drawn with control sequences that all terminals
 * know, its lines cut at the edge, and keys change the order or end it; in batch
 * mode frames follow each other. */
#include "psctl/verbs.h"

#include "base/alloc.h"
#include "common/exit.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

/* Lines beside tables of jobs and members: summary, empty lines, headings and
 * the keys. */
#define OTHER_LINES    6u
#define PROBLEMS_SHOWN 4u
#define JOBS_SHOWN     8u
#define SCALARS_SHOWN  8u

#define ENTER_SCREEN   "\033[?1049h\033[?25l"
#define LEAVE_SCREEN   "\033[?25h\033[?1049l"
#define CLEAR_SCREEN   "\033[H\033[J"

static volatile sig_atomic_t ended;

static void end_by_signal(int signum)
{
    (void)signum;
    ended = 1;
}

bool top_key_parse(const char *word, enum top_key *ret)
{
    static const char *const names[] = {[TOP_TRAFFIC] = "traffic",
                                        [TOP_ROUNDS] = "rounds",
                                        [TOP_MEMORY] = "memory",
                                        [TOP_NAME] = "name"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i], word) == 0) {
            *ret = (enum top_key)i;
            return true;
        }
    }
    fprintf(stderr,
            "psctl: --sort '%s': give traffic, rounds, memory or name\n", word);
    return false;
}

/* ------------------------------------------------------------------ members */

static uint64_t weight_of(const struct ps_msg_node_row *n, enum top_key by)
{
    switch (by) {
    case TOP_TRAFFIC:
        return n->in_rate + n->out_rate;
    case TOP_ROUNDS:
        return n->rounds_rate;
    case TOP_MEMORY:
        return n->stored_bytes;
    case TOP_NAME:
        break;
    }
    return 0;
}

static enum top_key sort_key;

/* The heaviest first; equal ones by role and name. */
static int compare_nodes(const void *a, const void *b)
{
    const struct ps_msg_node_row *x = &(*(struct ps_msg *const *)a)->node_row;
    const struct ps_msg_node_row *y = &(*(struct ps_msg *const *)b)->node_row;
    uint64_t wx = weight_of(x, sort_key);
    uint64_t wy = weight_of(y, sort_key);

    if (wx != wy) {
        return wx < wy ? 1 : -1;
    }
    return x->role != y->role ? (x->role < y->role ? -1 : 1)
                              : strcmp(x->name, y->name);
}

static void show_members(struct report *r, size_t most, const struct request *q)
{
    struct rows *rows = &r->rows_of[PS_QUERY_NODES];
    const void **shown = ps_calloc(rows->count + 1, sizeof(*shown));
    size_t count = 0;

    sort_key = q->top.by;
    if (rows->count > 0) {
        qsort(rows->row, rows->count, sizeof(rows->row[0]), compare_nodes);
    }
    for (size_t i = 0; i < rows->count && count < most; i++) {
        if (rows->row[i]->node_row.role != PS_ROLE_SCHED) {
            shown[count++] = rows->row[i];
        }
    }
    answer_print_list(&answer_top, r, shown, count, !q->print.no_headings);
    ps_free(shown);
}

/* ------------------------------------------------------------------- frames */

static struct winsize terminal_size(void)
{
    struct winsize size = {.ws_row = 0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 ||
        size.ws_col == 0) {
        return (struct winsize){.ws_row = 24, .ws_col = 80};
    }
    return size;
}

/* Prints lines, each as far as the terminal is wide. */
static void print_cut(const char *text)
{
    const size_t width = terminal_size().ws_col;
    size_t column = 0;
    mbstate_t state = {0};

    while (*text != '\0') {
        wchar_t c = 0;
        size_t n = mbrtowc(&c, text, MB_CUR_MAX, &state);
        int columns = n < (size_t)-2 ? wcwidth(c) : 1;

        if (n == 0 || n >= (size_t)-2) {
            n = 1;
            state = (mbstate_t){0};
        }
        column += columns > 0 ? (size_t)columns : 0;
        if (*text == '\n' || column <= width) {
            (void)fwrite(text, 1, n, stdout);
        }
        column = *text == '\n' ? 0 : column;
        text += n;
    }
}

static void show_frame(struct report *r, const struct request *q)
{
    const bool batch = q->top.batch;
    size_t lines = batch ? SIZE_MAX / 2 : terminal_size().ws_row;
    size_t problems;
    size_t others;
    size_t jobs = 0;

    health_check(r, q->after);
    if (q->print.json) {
        answer_print_json(answers_of_status, r);
        return;
    }
    for (size_t i = 0; i < r->rows_of[PS_QUERY_JOBS].count; i++) {
        jobs += job_is_open(&r->rows_of[PS_QUERY_JOBS].row[i]->job_row);
    }
    problems = batch || r->health.count < PROBLEMS_SHOWN ? r->health.count
                                                         : PROBLEMS_SHOWN;
    jobs = batch || jobs < JOBS_SHOWN ? jobs : JOBS_SHOWN;
    show_summary(r);
    show_open_jobs(r, jobs);
    for (size_t i = 0; i < problems; i++) {
        printf("  ! %s\n", r->health.list[i].text);
    }
    others = OTHER_LINES + problems + jobs +
             show_scalars(r, batch ? SIZE_MAX : SCALARS_SHOWN,
                          !q->print.no_headings);
    putchar('\n');
    lines -= lines > others ? others : lines - 1;
    show_members(r, lines, q);
}

/* Shows a frame on the terminal, and the keys below it. */
static void show_screen(struct report *r, const struct request *q)
{
    FILE *terminal = stdout;
    char *text = NULL;
    size_t len = 0;
    FILE *memory = open_memstream(&text, &len);

    fputs(CLEAR_SCREEN, stdout);
    if (memory == NULL) {
        show_frame(r, q);
        return;
    }
    stdout = memory; /* Tables are printed there. */
    show_frame(r, q);
    fputs("order: n name, t traffic, r rounds, m memory; q ends", stdout);
    stdout = terminal;
    (void)fclose(memory);
    print_cut(text);
    free(text);
}

/* Returns an exit code. */
static int make_frame(const struct wire_target *target, const struct request *q)
{
    struct report r = {0};
    int rc = 0;
    struct wire *w = wire_open(target, &rc);

    if (w != NULL) {
        rc = wire_query_status(w, &r);
        wire_close(w);
    }
    if (rc == 0) {
        (q->top.batch ? show_frame : show_screen)(&r, q);
    }
    report_fini(&r);
    return !ps_exit_flush() && rc == 0 ? EXIT_IOERR : rc;
}

/* Waits; true if a key or a signal ends the program. Another key changes the
 * order. */
static bool wait_for_key(ps_time how_long, enum top_key *by)
{
    static const char keys[] = {[TOP_TRAFFIC] = 't',
                                [TOP_ROUNDS] = 'r',
                                [TOP_MEMORY] = 'm',
                                [TOP_NAME] = 'n'};
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    int n = poll(&p, 1, (int)(how_long / PS_MILLIS(1)));

    if (n > 0 && read(STDIN_FILENO, &key, 1) == 0) {
        ended = 1; /* No terminal any more. */
    }
    for (size_t i = 0; i < sizeof(keys); i++) {
        *by = key == keys[i] ? (enum top_key)i : *by;
    }
    return ended != 0 || key == 'q' || key == 'Q';
}

static int run_batch(const struct wire_target *target, const struct request *q)
{
    const uint32_t count = q->top.count;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && (count == 0 || i < count); i++) {
        if (i > 0) {
            wait_for(q->watch);
            if (!q->print.json) {
                putchar('\n');
            }
        }
        rc = make_frame(target, q);
    }
    return rc;
}

/* psched may be gone for a while: the reason is on the screen. */
static int run_screen(const struct wire_target *target, struct request *q)
{
    struct sigaction by_signal = {.sa_handler = end_by_signal};
    const uint32_t count = q->top.count;
    struct termios before;
    struct termios raw;
    int rc = 0;

    if (tcgetattr(STDIN_FILENO, &before) != 0) {
        return EXIT_FAILED;
    }
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    (void)sigaction(SIGINT, &by_signal, NULL);
    (void)sigaction(SIGTERM, &by_signal, NULL);
    (void)sigaction(SIGHUP, &by_signal, NULL);
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs(ENTER_SCREEN CLEAR_SCREEN, stdout);
    fflush(stdout);
    for (uint32_t i = 0; count == 0 || i < count; i++) {
        if (i > 0 && wait_for_key(q->watch, &q->top.by)) {
            break;
        }
        if (rc != 0) { /* Room for the next reason. */
            fputs(CLEAR_SCREEN, stdout);
            fflush(stdout);
        }
        rc = make_frame(target, q);
        if (rc != 0 && rc != EXIT_UNAVAILABLE) {
            break;
        }
    }
    fputs(LEAVE_SCREEN, stdout);
    fflush(stdout);
    (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    return rc;
}

int top_run(struct request *q, int count, char **values)
{
    const struct wire_target target = cluster_target(&q->cluster, q->timeout);

    (void)count;
    (void)values;
    q->watch = q->watch != 0 ? q->watch : WATCH_DEFAULT;
    q->top.batch |= q->print.json || isatty(STDOUT_FILENO) != 1 ||
                    isatty(STDIN_FILENO) != 1;
    return q->top.batch ? run_batch(&target, q) : run_screen(&target, q);
}

/* ------------------------------------------------------------------- events */

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

/* Asks for the events after number `after`. */
static int query_events(struct wire *w, uint64_t after, struct report *r)
{
    const struct ps_msg query = {
        .code = PS_MSG_QUERY,
        .query = {.what = PS_QUERY_EVENTS, .job = "", .after_event = after}};

    return wire_ask(w, &query, PS_MSG_EVENT_ROW, &r->rows_of[PS_QUERY_EVENTS],
                    r);
}

static int follow_events(struct wire *w, const struct request *q)
{
    bool headings = !q->print.no_headings;
    struct report r = {0};
    uint64_t newest = 0;
    int rc = 0;

    while (rc == 0) {
        rc = query_events(w, newest, &r);
        if (rc == 0 && newest_event(&r) > 0) {
            newest = newest_event(&r);
            if (q->print.json) {
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
            wait_for(q->follow);
        }
    }
    report_fini(&r);
    return rc;
}

int events_ask(struct wire *w, struct request *q, const struct job_name *job,
               struct report *r)
{
    (void)job;
    return q->follow == 0 ? query_events(w, 0, r) : follow_events(w, q);
}
