/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings of what servers do: begun and ended for all servers of the job, read
 * from the trace of each, and written to files for Chrome's trace viewer. */
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"
#include "client/threads.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_check.h"
#include "base/num.h"
#include "base/str.h"
#include "base/timeline.h"

#define KINDS       ((unsigned)PS_TRACE_KIND_PULL + 1)
/* Threads of one kind; what overlaps more entries than these is in the last. */
#define THREADS_MAX 64u

int psc_profile_start(struct psc_client *c, uint32_t mode,
                      const struct psc_op_options *o, struct psc_op **ret_op)
{
    struct ps_msg m = {.code = PS_MSG_L_PROFILE_SET};
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (mode > PSC_PROFILE_PAUSED) {
        rc = client_error(c, PSC_E_INVAL, "there is no mode %u of a recording",
                          mode);
    } else {
        m.l_profile_set.mode = (uint8_t)mode;
        rc = op_start_plain(c, OP_PROFILE, &m, &m.l_profile_set.op_id, o,
                            ret_op);
    }
    client_leave(c);
    return rc;
}

int psc_profile(struct psc_client *c, uint32_t mode)
{
    struct psc_op *op = NULL;
    int rc = psc_profile_start(c, mode, NULL, &op);

    return op_finish(op, rc);
}

/* ------------------------------------------------------------------ reading */

struct key_name {
    uint32_t number;  /* The agent's. */
    const char *name; /* Of the key, which stays until the client is freed. */
};

/* The recording of one server. */
struct recording {
    uint32_t rank; /* Of the server in the job. */
    char server[PS_NAME_MAX + 1];
    struct key_name *names; /* Owned; of this worker's keys. */
    uint32_t name_count;
    struct ps_rec_trace_entry *entries; /* Owned. */
    uint32_t count;
    uint32_t capacity;
    uint64_t dropped; /* Entries that the server no longer has. */
};

static int add_entries(struct recording *r, const struct profile_answer *a)
{
    if (r->count + a->returned > r->capacity) {
        const uint32_t capacity = 2 * r->capacity + a->returned;
        void *more = realloc(r->entries, capacity * sizeof(r->entries[0]));

        if (more == NULL) {
            return PS_E_NOMEM;
        }
        r->entries = more;
        r->capacity = capacity;
    }
    if (a->returned > 0) {
        memcpy(r->entries + r->count, a->entries,
               a->returned * sizeof(r->entries[0]));
        r->count += a->returned;
    }
    return 0;
}

/* Asks a server for entries from number `first` on; the caller frees the
 * answer. */
static int ask_server(struct psc_client *c, uint32_t server, uint64_t first,
                      struct profile_answer **ret)
{
    struct ps_msg m = {.code = PS_MSG_L_PROFILE_GET};
    struct psc_op *op = NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    m.l_profile_get.server = server;
    m.l_profile_get.first = first;
    rc = op_start_plain(c, OP_PROFILE, &m, &m.l_profile_get.op_id, NULL, &op);
    client_leave(c);
    if (rc != 0) {
        return rc;
    }
    rc = psc_op_wait(op, PSC_WAIT_DEFAULT);
    if (rc == 0) {
        *ret = op->profile;
        op->profile = NULL;
        rc = *ret != NULL ? 0 : PSC_E_PROTO;
    }
    psc_op_free(op);
    return rc;
}

/* Reads the recording up to the entries that the server has now. */
static int read_recording(struct psc_client *c, struct recording *r)
{
    uint64_t end = UINT64_MAX;
    uint64_t next = 0;
    bool more = true;

    while (more) {
        struct profile_answer *a = NULL;
        int rc = ask_server(c, r->rank, next, &a);

        if (rc != 0) {
            return rc;
        }
        ps_str_copy(r->server, sizeof(r->server), a->server);
        r->dropped += a->first - ps_min_u64(next, a->first);
        end = ps_min_u64(end, a->count);
        more = a->next > next && a->next < end;
        next = a->next;
        rc = add_entries(r, a);
        free(a);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* Names of this worker's keys. */
static int list_names(struct psc_client *c, struct recording *r)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    r->names = calloc(c->keys.count + 1u, sizeof(r->names[0]));
    if (r->names == NULL) {
        rc = client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    for (uint32_t i = 0; rc == 0 && i < c->keys.count; i++) {
        const struct key *k = c->keys.by_number[i];

        if (k->is_ready) {
            r->names[r->name_count++] = (struct key_name){
                .number = k->agent_number, .name = k->name};
        }
    }
    client_leave(c);
    return rc;
}

/* ------------------------------------------------------------------ writing */

/* Writes the name of a key, or its number if this worker has not declared it. */
static void write_key(const struct recording *r, struct ps_timeline *t,
                      uint32_t number)
{
    char digits[32];

    for (uint32_t i = 0; i < r->name_count; i++) {
        if (r->names[i].number == number) {
            ps_timeline_text(t, r->names[i].name);
            return;
        }
    }
    snprintf(digits, sizeof(digits), "key %" PRIu32, number);
    ps_timeline_text(t, digits);
}

static void write_entry(const struct recording *r, struct ps_timeline *t,
                        const struct ps_rec_trace_entry *e, uint32_t thread)
{
    const char *kind = ps_trace_kind_name(e->kind);

    ps_timeline_event(t, "X", kind, r->rank, thread);
    fprintf(t->out, ",\"cat\":\"%s\"", kind);
    ps_timeline_time(t, "ts", (int64_t)e->begun_ns);
    ps_timeline_time(t, "dur", (int64_t)e->duration_ns);
    fputs(",\"args\":{\"key\":", t->out);
    write_key(r, t, e->key);
    fprintf(t->out, ",\"partition\":%" PRIu32 ",\"round\":%" PRIu64, e->index,
            e->round);
    if (e->kind == PS_TRACE_KIND_PUSH || e->kind == PS_TRACE_KIND_PULL) {
        fprintf(t->out, ",\"slot\":%" PRIu32, e->peer);
    }
    fprintf(t->out, ",\"bytes\":%" PRIu64 "}}", e->bytes);
}

static int compare_begin(const void *a, const void *b)
{
    const struct ps_rec_trace_entry *x = a;
    const struct ps_rec_trace_entry *y = b;

    return (x->begun_ns > y->begun_ns) - (x->begun_ns < y->begun_ns);
}

/* Writes the entries, by kind in as many threads as it takes. */
static void write_entries(const struct recording *r, struct ps_timeline *t)
{
    int64_t busy_until[KINDS][THREADS_MAX];
    struct ps_timeline_lanes lanes[KINDS];
    char text[64];

    for (unsigned kind = 0; kind < KINDS; kind++) {
        lanes[kind] = (struct ps_timeline_lanes){busy_until[kind], 0,
                                                 THREADS_MAX};
    }
    for (uint32_t i = 0; i < r->count; i++) {
        const struct ps_rec_trace_entry *e = &r->entries[i];

        if (e->kind < KINDS) {
            uint32_t lane = ps_timeline_place(
                &lanes[e->kind], (int64_t)e->begun_ns,
                (int64_t)(e->begun_ns + e->duration_ns));

            lane = lane == UINT32_MAX ? THREADS_MAX - 1 : lane;
            write_entry(r, t, e, e->kind * THREADS_MAX + lane);
        }
    }
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (uint32_t i = 0; i < lanes[kind].count; i++) {
            snprintf(text, sizeof(text), "%s %u",
                     ps_trace_kind_name((uint8_t)kind), i + 1);
            ps_timeline_name(t, "thread_name", r->rank, kind * THREADS_MAX + i,
                             text);
        }
    }
}

static void write_recording(const struct recording *r, FILE *f)
{
    char text[PS_NAME_MAX + 64];
    struct ps_timeline t;

    if (r->count > 0) {
        qsort(r->entries, r->count, sizeof(r->entries[0]), compare_begin);
    }
    ps_timeline_begin(&t, f);
    write_entries(r, &t);
    snprintf(text, sizeof(text), "server %u (%s)", r->rank, r->server);
    ps_timeline_name(&t, "process_name", r->rank, 0, text);
    ps_timeline_event(&t, "C", "events dropped", r->rank, 0);
    fprintf(f, ",\"ts\":0,\"args\":{\"events\":%" PRIu64 "}}", r->dropped);
    ps_timeline_end(&t);
    fputs("}\n", f);
}

/* Writes a file beside that of the recording, and renames it when it is
 * complete. */
static int write_file(struct psc_client *c, const struct recording *r,
                      const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    char *to = NULL;
    char *part = NULL;
    FILE *f = NULL;
    int error;
    int rc = 0;

    if (asprintf(&to, "%.*srank%u_%s", (int)(base - path), path, r->rank,
                 base) < 0) {
        return PSC_E_NOMEM;
    }
    if (asprintf(&part, "%s.%ld", to, (long)getpid()) < 0) {
        free(to);
        return PSC_E_NOMEM;
    }
    f = fopen(part, "we");
    if (f == NULL) {
        rc = client_file_error(c, PSC_E_SYS, to, strerror(errno));
        goto free_paths;
    }
    write_recording(r, f);
    error = ps_file_close(f);
    if (error == 0 && rename(part, to) != 0) {
        error = errno;
    }
    if (error != 0) {
        rc = client_file_error(c, PSC_E_SYS, to, strerror(error));
    }
    if (rc != 0) {
        remove(part);
    }

free_paths:
    free(part);
    free(to);
    return rc;
}

int psc_profile_save(struct psc_client *c, const char *path)
{
    uint32_t servers;
    int rc = client_enter_with(c, path, "path");

    if (rc != 0) {
        return rc;
    }
    servers = c->id.num_servers;
    client_leave(c);

    for (uint32_t i = 0; rc == 0 && (i < servers || i == 0); i++) {
        struct recording r = {.rank = i};

        rc = read_recording(c, &r);
        if (rc == 0) {
            rc = list_names(c, &r);
        }
        if (rc == 0) {
            rc = write_file(c, &r, path);
        }
        free(r.names);
        free(r.entries);
    }
    return rc;
}
