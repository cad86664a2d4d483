/* SPDX-License-Identifier: Apache-2.0 */
/* The trace viewer shows events of one thread as a stack. Events of one kind
 * overlap, so they are spread over as many rows ("threads") as it takes for no
 * two in a row to overlap. */
#include "client/profile_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/str.h"

#define KINDS    ((unsigned)PS_PROFILE_KIND_PULL + 1)
/* Rows of one kind; what overlaps more events than these is in the last. */
#define ROWS_MAX 64u

int profile_timeline_add(struct profile_timeline *t,
                         const struct ps_rec_profile_event *events,
                         uint32_t count)
{
    if (t->count + count > t->capacity) {
        const uint32_t capacity = 2 * t->capacity + count;
        void *more = realloc(t->events, capacity * sizeof(*events));

        if (more == NULL) {
            return PS_E_NOMEM;
        }
        t->events = more;
        t->capacity = capacity;
    }
    if (count > 0) {
        memcpy(t->events + t->count, events, count * sizeof(*events));
        t->count += count;
    }
    return 0;
}

void profile_timeline_fini(struct profile_timeline *t)
{
    free(t->names);
    free(t->events);
}

/* Writes text in quotes; all but visible UTF-8 is escaped. */
static void write_text(const char *text, FILE *f)
{
    size_t len = strlen(text);

    fputc('"', f);
    while (len > 0) {
        const size_t n = ps_str_visible(text, len);

        if (n == 0) {
            fprintf(f, "\\u%04x", (unsigned char)*text);
        } else {
            fprintf(f, "%s%.*s", *text == '"' || *text == '\\' ? "\\" : "",
                    (int)n, text);
        }
        text += n != 0 ? n : 1;
        len -= n != 0 ? n : 1;
    }
    fputc('"', f);
}

static void write_key(const struct profile_timeline *t, uint64_t name_hash,
                      FILE *f)
{
    char digits[32];

    for (uint32_t i = 0; i < t->name_count; i++) {
        if (t->names[i].name_hash == name_hash) {
            write_text(t->names[i].name, f);
            return;
        }
    }
    snprintf(digits, sizeof(digits), "key %016" PRIx64, name_hash);
    write_text(digits, f);
}

/* Names a row, or with `row` NULL the process. */
static void write_title(const struct profile_timeline *t, const char *row,
                        unsigned thread, FILE *f)
{
    char text[PS_NAME_MAX + 64];

    if (row == NULL) {
        snprintf(text, sizeof(text), "server %u (%s)", t->rank, t->server);
    } else {
        snprintf(text, sizeof(text), "%s %u", row, thread % ROWS_MAX + 1);
    }
    fprintf(f,
            "{\"name\": \"%s\", \"ph\": \"M\", \"pid\": %u, "
            "\"tid\": %u, \"args\": {\"name\": ",
            row == NULL ? "process_name" : "thread_name", t->rank, thread);
    write_text(text, f);
    fputs("}},\n", f);
}

/* Nanoseconds as microseconds. */
static void write_time(const char *field, uint64_t ns, FILE *f)
{
    fprintf(f, ", \"%s\": %" PRIu64 ".%03u", field, ns / 1000,
            (unsigned)(ns % 1000));
}

static void write_event(const struct profile_timeline *t,
                        const struct ps_rec_profile_event *e, unsigned thread,
                        FILE *f)
{
    const char *kind = ps_profile_kind_name(e->kind);

    fprintf(f,
            "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", "
            "\"pid\": %u, \"tid\": %u",
            kind, kind, t->rank, thread);
    write_time("ts", e->start_ns, f);
    write_time("dur", e->duration_ns, f);
    fputs(", \"args\": {\"key\": ", f);
    write_key(t, e->name_hash, f);
    fprintf(f, ", \"partition\": %u, \"round\": %" PRIu64, e->index, e->round);
    if (e->kind == PS_PROFILE_KIND_PUSH || e->kind == PS_PROFILE_KIND_PULL) {
        fprintf(f, ", \"slot\": %u", e->slot);
    }
    fprintf(f, ", \"bytes\": %" PRIu64 "}},\n", e->bytes);
}

static int compare_start(const void *a, const void *b)
{
    const struct ps_rec_profile_event *x = a;
    const struct ps_rec_profile_event *y = b;

    return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

/* Ends of the last events of the rows of one kind. */
struct rows {
    uint64_t end[ROWS_MAX];
    unsigned count;
};

/* Row for the event: the first that is free when it starts. */
static unsigned row_of(struct rows *r, const struct ps_rec_profile_event *e)
{
    unsigned i = 0;

    while (i < r->count && r->end[i] > e->start_ns) {
        i++;
    }
    i = i < ROWS_MAX ? i : ROWS_MAX - 1;
    r->count = i < r->count ? r->count : i + 1;
    r->end[i] = e->start_ns + e->duration_ns;
    return i;
}

void profile_timeline_write(const struct profile_timeline *t, FILE *f)
{
    struct rows rows[KINDS] = {{.count = 0}};

    if (t->count > 0) {
        qsort(t->events, t->count, sizeof(*t->events), compare_start);
    }
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", f);
    for (uint32_t i = 0; i < t->count; i++) {
        const struct ps_rec_profile_event *e = &t->events[i];

        if (e->kind < KINDS) {
            write_event(t, e, e->kind * ROWS_MAX + row_of(&rows[e->kind], e),
                        f);
        }
    }
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (unsigned i = 0; i < rows[kind].count; i++) {
            write_title(t, ps_profile_kind_name((uint8_t)kind),
                        kind * ROWS_MAX + i, f);
        }
    }
    write_title(t, NULL, 0, f);
    fprintf(f,
            "{\"name\": \"events dropped\", \"ph\": \"C\", \"pid\": "
            "%u, \"tid\": 0, \"ts\": 0, \"args\": {\"events\": "
            "%" PRIu64 "}}\n]}\n",
            t->rank, t->dropped);
}
