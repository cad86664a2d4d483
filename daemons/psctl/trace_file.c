/* SPDX-License-Identifier: Apache-2.0 */
/* The trace of a job in the JSON format of Chrome, which Perfetto reads, too. A
 * member is a process there, and each rank, slot or server that it deals with a
 * thread. Slices of one thread must not overlap, so what overlaps gets further
 * threads. An arrow leads from a contribution that an agent sends, by way of its
 * arrival at the server, to the value of that round that the agent gets; one of
 * which an end is missing, because a ring has replaced it, is left out. */
#include "psctl/trace.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "base/num.h"
#include "base/timeline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Slices of no duration get this one, to be visible and to carry an arrow. */
#define DURATION_MIN 1000
/* Threads of one kind are numbered from a multiple of it. */
#define LANES_MAX    4096u
#define NO_SLICE     UINT32_MAX

/* An entry as it is drawn. */
struct slice {
    const struct ps_rec_trace_entry *entry;
    uint32_t member;
    uint32_t lane; /* Thread. */
    int64_t begin;
    int64_t end;
};

/* Threads of a member that show one kind of things with one peer. */
struct track {
    uint32_t member;
    uint32_t kind; /* enum ps_trace_kind of all that it has. */
    uint32_t peer;
    uint32_t lanes;
};

struct drawing {
    const struct trace *trace;
    struct ps_timeline file;
    struct slice *slices;
    uint32_t slice_count;
    struct track *tracks;
    uint32_t track_count;
    int64_t origin; /* Time 0 of the file, by the scheduler's clock. */
    struct trace_file_figures figures;
};

/* ------------------------------------------------------------------- layout */

/* Kind with which it shares its threads. */
static uint32_t track_kind(const struct ps_rec_trace_entry *e)
{
    return e->kind == PS_TRACE_KIND_STEP    ? PS_TRACE_KIND_MERGE
           : e->kind == PS_TRACE_KIND_PHASE ? PS_TRACE_KIND_BARRIER
                                            : e->kind;
}

/* Place of a track's kind among those of its member: the spans of a rank are
 * above its operations. */
static uint32_t track_order(const struct ps_rec_trace_entry *e)
{
    return e->kind == PS_TRACE_KIND_SPAN ? PS_TRACE_KIND_OP : track_kind(e);
}

static uint32_t track_peer(const struct ps_rec_trace_entry *e)
{
    return e->kind == PS_TRACE_KIND_PHASE ? 0 : e->peer;
}

static int compare_tracks(const struct slice *a, const struct slice *b)
{
    int c = ps_compare_u64(a->member, b->member);

    c = c != 0 ? c
               : ps_compare_u64(track_order(a->entry), track_order(b->entry));
    c = c != 0 ? c : ps_compare_u64(track_peer(a->entry), track_peer(b->entry));
    return c != 0 ? c
                  : ps_compare_u64(b->entry->kind == PS_TRACE_KIND_SPAN,
                                   a->entry->kind == PS_TRACE_KIND_SPAN);
}

static int compare_slices(const void *left, const void *right)
{
    const struct slice *a = left;
    const struct slice *b = right;
    int c = compare_tracks(a, b);

    return c != 0 ? c : (a->begin > b->begin) - (a->begin < b->begin);
}

static void list_slices(struct drawing *d)
{
    const struct trace *t = d->trace;
    size_t capacity = 1;

    for (uint32_t i = 0; i < t->member_count; i++) {
        capacity += t->members[i].count;
    }
    d->slices = ps_calloc(capacity, sizeof(d->slices[0]));
    d->tracks = ps_calloc(capacity, sizeof(d->tracks[0]));
    d->origin = INT64_MAX;
    for (uint32_t i = 0; i < t->member_count; i++) {
        const struct trace_member *m = &t->members[i];

        for (uint32_t k = 0; k < m->count; k++) {
            const struct ps_rec_trace_entry *e = &m->entries[k];
            const int64_t begin = trace_begin(m, e);
            const int64_t length = e->duration_ns > DURATION_MIN
                                       ? (int64_t)e->duration_ns
                                       : DURATION_MIN;

            d->slices[d->slice_count++] = (struct slice){
                .entry = e, .member = i, .begin = begin, .end = begin + length};
            d->origin = begin < d->origin ? begin : d->origin;
        }
    }
    qsort(d->slices, d->slice_count, sizeof(d->slices[0]), compare_slices);
}

/* Places the slices of a track, in order of their begin, each in the first lane
 * that is free. */
static void place_track(struct drawing *d, struct slice *first, uint32_t count)
{
    int64_t busy_until[LANES_MAX];
    struct ps_timeline_lanes lanes = {.busy_until = busy_until,
                                      .max = LANES_MAX};
    struct track *track = &d->tracks[d->track_count++];

    *track = (struct track){.member = first->member,
                            .kind = track_kind(first->entry),
                            .peer = track_peer(first->entry)};
    for (uint32_t i = 0; i < count; i++) {
        struct slice *s = &first[i];
        const uint32_t lane = ps_timeline_place(&lanes, s->begin, s->end);

        s->lane = lane == UINT32_MAX /* Not drawn. */
                      ? NO_SLICE
                      : (d->track_count - 1) * LANES_MAX + lane;
    }
    track->lanes = lanes.count;
}

static void place_slices(struct drawing *d)
{
    for (uint32_t i = 0, n; i < d->slice_count; i += n) {
        n = 1;
        while (i + n < d->slice_count &&
               compare_tracks(&d->slices[i], &d->slices[i + n]) == 0) {
            n++;
        }
        place_track(d, &d->slices[i], n);
    }
}

/* ------------------------------------------------------------------- events */

static void begin_event(struct drawing *d, const char *phase, const char *name,
                        const struct slice *s)
{
    ps_timeline_event(&d->file, phase, name, s->member + 1, s->lane);
    ps_timeline_time(&d->file, "ts", s->begin - d->origin);
}

static const char *member_name(const struct drawing *d, uint32_t member)
{
    return d->trace->members[member].name;
}

static const char *server_name(const struct drawing *d, uint32_t node)
{
    for (uint32_t i = 1; i <= d->trace->server_count; i++) {
        if (d->trace->members[i].node == node) {
            return member_name(d, i);
        }
    }
    return "a server";
}

static const char *agent_name(const struct drawing *d, uint32_t slot)
{
    const uint64_t member = 1 + (uint64_t)d->trace->server_count + slot;

    return member < d->trace->member_count ? member_name(d, (uint32_t)member)
                                           : "an agent";
}

static void name_track(const struct drawing *d, const struct track *t,
                       struct ps_str *out)
{
    switch ((enum ps_trace_kind)t->kind) {
    case PS_TRACE_KIND_PUSH:
        ps_str_addf(out, "from %s", agent_name(d, t->peer));
        return;
    case PS_TRACE_KIND_GATHER:
        ps_str_add(out, "rounds");
        return;
    case PS_TRACE_KIND_MERGE:
    case PS_TRACE_KIND_STEP:
        ps_str_add(out, "computations");
        return;
    case PS_TRACE_KIND_PULL:
        ps_str_addf(out, "requests of %s", agent_name(d, t->peer));
        return;
    case PS_TRACE_KIND_OP:
        ps_str_addf(out, "rank %" PRIu32, t->peer);
        return;
    case PS_TRACE_KIND_SEND:
        ps_str_addf(out, "to %s", server_name(d, t->peer));
        return;
    case PS_TRACE_KIND_VALUE:
        ps_str_addf(out, "from %s", server_name(d, t->peer));
        return;
    case PS_TRACE_KIND_BARRIER:
    case PS_TRACE_KIND_PHASE:
        ps_str_add(out, "job");
        return;
    case PS_TRACE_KIND_SPAN:
        ps_str_addf(out, "rank %" PRIu32 " spans", t->peer);
        return;
    }
}

static void put_names(struct drawing *d)
{
    char text[PS_NAME_MAX + 32];
    struct ps_str s;

    for (uint32_t i = 0; i < d->trace->member_count; i++) {
        if (d->trace->members[i].is_missing) {
            continue;
        }
        ps_str_init(&s, text, sizeof(text));
        ps_str_addf(&s, "%s %s", ps_role_name(d->trace->members[i].role),
                    member_name(d, i));
        ps_timeline_name(&d->file, "process_name", i + 1, 0, text);
    }
    for (uint32_t i = 0; i < d->track_count; i++) {
        ps_str_init(&s, text, sizeof(text));
        name_track(d, &d->tracks[i], &s);
        for (uint32_t lane = 0; lane < d->tracks[i].lanes; lane++) {
            ps_timeline_name(&d->file, "thread_name", d->tracks[i].member + 1,
                             i * LANES_MAX + lane, text);
        }
    }
}

static const char *span_name(const struct trace_member *m, uint32_t number)
{
    return number < m->span_name_count ? m->span_names[number] : "span";
}

static void name_slice(const struct drawing *d, const struct trace_member *m,
                       const struct ps_rec_trace_entry *e, struct ps_str *s)
{
    char buffer[32];

    if (e->kind == PS_TRACE_KIND_SPAN) {
        ps_str_add(s, span_name(m, e->index));
    } else if (e->kind == PS_TRACE_KIND_PHASE) {
        ps_str_add(s, ps_job_phase_name(e->peer));
    } else if (e->kind == PS_TRACE_KIND_OP && e->key == UINT32_MAX) {
        ps_str_add(s, "barrier");
    } else {
        ps_str_add(s, e->kind == PS_TRACE_KIND_OP
                          ? ps_op_name(e->op)
                          : ps_trace_kind_name(e->kind));
    }
    if (e->key != UINT32_MAX) {
        ps_str_addf(s, " %s",
                    trace_key_name(d->trace, e->key, buffer, sizeof(buffer)));
    }
}

static void put_slice(struct drawing *d, const struct slice *slice)
{
    const struct ps_rec_trace_entry *e = slice->entry;
    struct ps_str s = PS_STR_ROOM(PS_KEY_NAME_MAX + 64);

    name_slice(d, &d->trace->members[slice->member], e, &s);
    begin_event(d, "X", s.data, slice);
    ps_timeline_time(&d->file, "dur", slice->end - slice->begin);
    fprintf(d->file.out, ",\"cat\":\"%s\"", ps_trace_kind_name(e->kind));
    if (e->kind == PS_TRACE_KIND_SPAN) {
        fprintf(d->file.out, ",\"args\":{\"rank\":%" PRIu32 "}}", e->peer);
        return;
    }
    fprintf(d->file.out,
            ",\"args\":{\"round\":%" PRIu64 ",\"part\":%" PRIu32
            ",\"bytes\":%" PRIu64 "}}",
            e->round, e->index, e->bytes);
}

/* -------------------------------------------------------------------- flows */

/* One end of an arrow: what a slot sends, or gets, of a round of a partition. */
struct flow_end {
    uint32_t slot;
    uint32_t key;
    uint32_t index;
    uint64_t round;
    const struct slice *slice;
};

static int compare_ends(const void *left, const void *right)
{
    const struct flow_end *a = left;
    const struct flow_end *b = right;
    int c = ps_compare_u64(a->slot, b->slot);

    c = c != 0 ? c : ps_compare_u64(a->key, b->key);
    c = c != 0 ? c : ps_compare_u64(a->index, b->index);
    return c != 0 ? c : ps_compare_u64(a->round, b->round);
}

/* Sorted ends of one kind; for the caller to free. */
static struct flow_end *list_ends(const struct drawing *d,
                                  enum ps_trace_kind kind, size_t *ret_count)
{
    struct flow_end *list = ps_calloc(d->slice_count + 1u, sizeof(*list));
    size_t count = 0;

    for (uint32_t i = 0; i < d->slice_count; i++) {
        const struct slice *s = &d->slices[i];
        const struct ps_rec_trace_entry *e = s->entry;

        if (e->kind == kind && s->lane != NO_SLICE) {
            list[count++] = (struct flow_end){
                .slot = kind == PS_TRACE_KIND_PUSH
                            ? e->peer
                            : d->trace->members[s->member].slot,
                .key = e->key,
                .index = e->index,
                .round = e->round,
                .slice = s};
        }
    }
    qsort(list, count, sizeof(*list), compare_ends);
    *ret_count = count;
    return list;
}

static void put_flow(struct drawing *d, const char *phase,
                     const struct slice *s)
{
    begin_event(d, phase, "round", s);
    fprintf(d->file.out, ",\"cat\":\"flow\",\"id\":%" PRIu64 "%s}",
            d->figures.flows, *phase == 'f' ? ",\"bp\":\"e\"" : "");
}

static void put_flows(struct drawing *d)
{
    size_t sent_count;
    size_t pushed_count;
    size_t got_count;
    struct flow_end *sent = list_ends(d, PS_TRACE_KIND_SEND, &sent_count);
    struct flow_end *pushed = list_ends(d, PS_TRACE_KIND_PUSH, &pushed_count);
    struct flow_end *got = list_ends(d, PS_TRACE_KIND_VALUE, &got_count);

    for (size_t i = 0; i < sent_count; i++) {
        const struct flow_end *to = bsearch(&sent[i], got, got_count,
                                            sizeof(*got), compare_ends);
        const struct flow_end *by = bsearch(&sent[i], pushed, pushed_count,
                                            sizeof(*pushed), compare_ends);

        /* Both are of one clock. A repeated attempt has several beginnings. */
        if (to == NULL || to->slice->begin < sent[i].slice->begin ||
            (i > 0 && compare_ends(&sent[i - 1], &sent[i]) == 0)) {
            continue;
        }
        d->figures.flows++;
        put_flow(d, "s", sent[i].slice);
        if (by != NULL) {
            put_flow(d, "t", by->slice);
        }
        put_flow(d, "f", to->slice);
    }
    ps_free(sent);
    ps_free(pushed);
    ps_free(got);
}

/* --------------------------------------------------------------------- file */

static void put_clocks(struct drawing *d)
{
    ps_timeline_end(&d->file);
    fputs(",\"otherData\":{\"job\":", d->file.out);
    ps_timeline_text(&d->file, d->trace->job);
    fputs(",\"clocks\":[", d->file.out);
    for (uint32_t i = 0; i < d->trace->member_count; i++) {
        const struct trace_member *m = &d->trace->members[i];

        fputs(i > 0 ? ",{\"member\":" : "{\"member\":", d->file.out);
        ps_timeline_text(&d->file, m->name);
        fprintf(d->file.out,
                ",\"offset_ns\":%" PRId64 ",\"error_ns\":%" PRIu64 "}",
                m->offset_ns, m->is_missing ? 0 : m->error_ns);
    }
    fputs("]}}\n", d->file.out);
}

static void draw(struct drawing *d)
{
    list_slices(d);
    place_slices(d);
    put_names(d);
    for (uint32_t i = 0; i < d->slice_count; i++) {
        if (d->slices[i].lane != NO_SLICE) {
            put_slice(d, &d->slices[i]);
        }
    }
    put_flows(d);
    put_clocks(d);
    ps_free(d->slices);
    ps_free(d->tracks);
}

int trace_file_write(const struct trace *t, const char *path,
                     struct trace_file_figures *ret)
{
    struct drawing d = {.trace = t};
    FILE *out = fopen(path, "we");
    int error;

    if (out == NULL) {
        fprintf(stderr, "psctl: %s: %s\n", path, strerror(errno));
        return EXIT_FAILED;
    }
    ps_timeline_begin(&d.file, out);
    draw(&d);
    d.figures.events = d.file.events;
    d.figures.bytes = (uint64_t)ftello(out);
    error = ps_file_close(out);
    if (error != 0) {
        fprintf(stderr, "psctl: %s: %s\n", path, strerror(error));
        return EXIT_IOERR;
    }
    *ret = d.figures;
    return 0;
}
