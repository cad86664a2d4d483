/* SPDX-License-Identifier: Apache-2.0 */
/* Output as one JSON object, "schema" first. Field names are stable within a
 * schema; new ones may be added. */
#include "psctl/psctl.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA 1

static void put_value(json_t *o, const char *name, json_t *value)
{
    if (value == NULL || json_object_set_new(o, name, value) != 0) {
        abort(); /* Out of memory. */
    }
}

static size_t layout = JSON_INDENT(2);

void json_use_lines(void)
{
    layout = JSON_COMPACT;
}

void json_print(json_t *o)
{
    if (o == NULL ||
        (json_dumpf(o, stdout, layout | JSON_REAL_PRECISION(13)) != 0 &&
         ferror(stdout) == 0)) {
        fputs("psctl: cannot write the answer\n", stderr);
    }
    putchar('\n');
    json_decref(o);
}

/* Numbers saturate at the largest signed 64-bit integer. */
static void put_count(json_t *o, const char *name, uint64_t n)
{
    put_value(o, name, json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n));
}

static void put_seconds(json_t *o, const char *name, uint64_t ns)
{
    put_value(o, name, json_real((double)ns / 1e9));
}

json_t *json_text(const char *text)
{
    json_t *value = json_string(text);
    char escaped[4096];
    struct ps_str s;

    if (value != NULL) {
        return value;
    }
    ps_str_init(&s, escaped, sizeof(escaped));
    ps_str_add_escaped(&s, text, strlen(text), 1000);
    return json_string(escaped);
}

static void put_text(json_t *o, const char *name, const char *text)
{
    put_value(o, name, json_text(text));
}

static json_t *costs_of(const struct ps_msg_node_row *n)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < n->costs_count; i++) {
        const struct ps_rec_cost *c = &n->costs[i];
        json_t *one = json_object();

        put_text(one, "kind", c->kind);
        put_text(one, "name", c->name);
        put_text(one, "cost", c->cost);
        put_count(one, "used", c->used);
        put_count(one, "peak", c->peak);
        put_count(one, "limit", c->limit);
        put_count(one, "refused", c->refused);
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *node_of(const struct ps_msg *msg)
{
    const struct ps_msg_node_row *n = &msg->node_row;
    json_t *o = json_object();

    put_text(o, "role", ps_role_name(n->role));
    put_count(o, "node", n->node);
    put_text(o, "name", n->name);
    put_text(o, "state", ps_node_state_name(n->state));
    put_count(o, "incarnation", n->incarnation);
    put_text(o, "address", n->address);
    put_text(o, "unreachable", n->unreachable);
    put_seconds(o, "heard_s", n->silent_ns);
    put_count(o, "rounds", n->rounds);
    put_count(o, "bytes_in", n->bytes_in);
    put_count(o, "bytes_out", n->bytes_out);
    put_count(o, "rounds_per_s", n->rounds_rate);
    put_count(o, "bytes_in_per_s", n->in_rate);
    put_count(o, "bytes_out_per_s", n->out_rate);
    put_count(o, "stored", n->stored_bytes);
    put_count(o, "resent", n->resent);
    put_count(o, "waiting", n->waiting_requests);
    put_count(o, "refused", n->refused);
    put_value(o, "draining", json_boolean(n->draining));
    put_count(o, "memory", n->memory_limit);
    put_count(o, "reserved", n->memory_reserved);
    put_count(o, "taken", n->memory_used);
    put_value(o, "full", json_boolean(n->memory_short));
    put_count(o, "certificate_ends", n->certificate_ends);
    put_value(o, "certificate_is_expiring",
              json_boolean(n->certificate_is_expiring));
    put_text(o, "version", n->version);
    put_count(o, "descriptors", n->descriptors);
    put_value(o, "clock_skew_s", json_real((double)n->clock_skew_ns / 1e9));
    put_value(o, "avoids_shm", json_boolean(n->avoids_shm));
    put_value(o, "ktls", json_boolean(n->ktls));
    put_text(o, "gpu", n->gpu);
    put_count(o, "gpu_memory", n->gpu_memory);
    put_count(o, "gpu_held", n->gpu_held);
    put_count(o, "gpu_up", n->gpu_up);
    put_count(o, "gpu_down", n->gpu_down);
    put_count(o, "gpu_up_per_s", n->gpu_up_rate);
    put_count(o, "gpu_down_per_s", n->gpu_down_rate);
    put_value(o, "costs", costs_of(n));
    return o;
}

/* A number as JSON; one that JSON lacks as text. */
static json_t *real_of(double value)
{
    return isfinite(value) ? json_real(value)
           : isnan(value)  ? json_string("NaN")
           : value > 0     ? json_string("Infinity")
                           : json_string("-Infinity");
}

static json_t *scalars_of(const struct ps_msg_job_row *j)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < j->scalars_count; i++) {
        const struct ps_rec_job_scalar *s = &j->scalars[i];
        json_t *one = json_object();

        put_text(one, "name", s->name);
        put_count(one, "ranks", s->ranks);
        put_count(one, "nonfinite", s->nonfinite);
        put_count(one, "step", s->step);
        put_value(one, "min", real_of(s->min));
        put_value(one, "mean", real_of(s->mean));
        put_value(one, "max", real_of(s->max));
        put_seconds(one, "age_s", s->age_ns);
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *settings_of(const struct ps_msg_job_row *j)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < j->settings_count; i++) {
        json_t *one = json_object();

        put_text(one, "name", j->settings[i].name);
        put_value(one, "value", real_of(j->settings[i].value));
        put_count(one, "round", j->settings[i].round);
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *job_of(const struct ps_msg *msg)
{
    const struct ps_msg_job_row *j = &msg->job_row;
    json_t *o = json_object();
    json_t *lost = json_array();

    put_count(o, "gen", j->gen);
    put_text(o, "name", j->name);
    put_count(o, "uid", j->uid);
    put_text(o, "phase", ps_job_phase_name(j->phase));
    put_text(o, "mode", ps_mode_name(j->mode));
    put_text(o, "on_loss", ps_loss_policy_name(j->on_loss));
    put_count(o, "weight", j->weight);
    put_count(o, "num_workers", j->num_workers);
    put_count(o, "live", j->live_workers);
    put_count(o, "ranks_lost", j->ranks_lost);
    for (uint32_t i = 0; i < j->lost_ranks_count; i++) {
        json_t *one = json_object();

        put_count(one, "rank", j->lost_ranks[i].rank);
        put_text(one, "host", j->lost_ranks[i].host);
        put_text(one, "node", j->lost_ranks[i].node);
        json_array_append_new(lost, one);
    }
    put_value(o, "lost", lost);
    put_count(o, "nodes", j->slots);
    put_count(o, "keys", j->keys);
    put_count(o, "bytes", j->bytes);
    put_count(o, "barriers", j->barriers);
    put_count(o, "skipped", j->skipped_steps);
    put_seconds(o, "age_s", j->age_ns);
    put_text(o, "optimizer", j->optimizer);
    put_text(o, "compression", j->compression);
    put_value(o, "settings", settings_of(j));
    put_value(o, "scalars", scalars_of(j));
    put_text(o, "reason", j->reason);
    put_text(o, "standstill", j->standstill);
    return o;
}

static json_t *key_of(const struct ps_msg *msg)
{
    const struct ps_msg_key_row *k = &msg->key_row;
    json_t *o = json_object();

    put_text(o, "job", k->job);
    put_count(o, "uid", k->uid);
    put_count(o, "key", k->key);
    put_text(o, "kind", ps_key_kind_name(k->kind));
    put_text(o, "name", k->name);
    put_text(o, "dtype", ps_dtype_name(k->dtype));
    put_count(o, "count", k->count);
    put_text(o, "server", k->server);
    put_count(o, "parts", k->parts);
    put_count(o, "bytes", k->bytes);
    return o;
}

static json_t *migration_of(const struct ps_msg *msg)
{
    const struct ps_msg_migration_row *m = &msg->migration_row;
    json_t *o = json_object();

    put_text(o, "job", m->job);
    put_count(o, "key", m->key);
    put_text(o, "kind", ps_key_kind_name(m->kind));
    put_text(o, "name", m->name);
    put_text(o, "from", m->from);
    put_text(o, "to", m->to);
    put_count(o, "parts", m->parts);
    put_count(o, "bytes", m->bytes);
    return o;
}

static void put_loads(json_t *o, const struct report *r, bool moves)
{
    json_t *list = json_array();
    size_t count;
    struct job_load *loads = make_job_loads(r, &count);

    for (size_t i = 0; i < count; i++) {
        const struct job_load *l = &loads[i];
        json_t *one = json_object();

        put_text(one, "job", l->job);
        put_count(one, "uid", l->uid);
        put_text(one, "server", l->server);
        put_value(one, "spare", json_boolean(l->is_spare));
        put_count(one, "bytes", l->bytes);
        put_value(one, "of_even", json_real(job_load_ratio(l, l->bytes)));
        if (moves) {
            put_count(one, "bytes_then", l->bytes_after);
            put_value(one, "of_even_then",
                      json_real(job_load_ratio(l, l->bytes_after)));
        }
        json_array_append_new(list, one);
    }
    ps_free(loads);
    put_value(o, "servers", list);
}

static json_t *token_of(const struct ps_msg *msg)
{
    const struct ps_msg_token_row *k = &msg->token_row;
    json_t *o = json_object();
    char text[64];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_str_addf(&s, "%016" PRIx64, k->id);
    put_text(o, "id", text);
    put_count(o, "uid", k->uid);
    put_text(o, "job", k->job);
    ps_str_init(&s, text, sizeof(text));
    token_add_rights(&s, k->rights);
    put_text(o, "rights", text);
    put_count(o, "issued_at", k->issued_at);
    put_count(o, "not_after", k->not_after);
    put_value(o, "revoked", json_boolean(k->is_revoked));
    if (k->text[0] != '\0') {
        put_text(o, "token", k->text);
    }
    return o;
}

static json_t *ranks_of(const struct ps_rec_missing_rank *list, uint32_t count)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < count; i++) {
        json_t *one = json_object();

        put_count(one, "rank", list[i].rank);
        put_text(one, "state", ps_rank_state_name(list[i].state));
        put_text(one, "host", list[i].host);
        put_text(one, "node", list[i].node);
        put_count(one, "pid", list[i].pid);
        put_text(one, "does", list[i].does);
        json_array_append_new(all, one);
    }
    return all;
}

static json_t *stall_of(const struct ps_msg *msg)
{
    const struct ps_msg_stall_row *row = &msg->stall_row;
    json_t *o = json_object();

    put_text(o, "job", row->job);
    put_count(o, "uid", row->uid);
    put_text(o, "what", row->what);
    put_seconds(o, "waited_s", row->waited_ns);
    put_count(o, "waits", row->waiting_ops);
    put_value(o, "missing", ranks_of(row->missing, row->missing_count));
    put_text(o, "also", row->other_causes);
    put_value(o, "diverged", json_boolean(row->ring_count > 0));
    put_value(o, "ring", ranks_of(row->ring, row->ring_count));
    return o;
}

static json_t *event_of(const struct ps_msg *msg)
{
    const struct ps_msg_event_row *e = &msg->event_row;
    json_t *o = json_object();

    put_count(o, "number", e->number);
    put_value(o, "at", json_real(event_time(e)));
    put_text(o, "of", ps_event_kind_name(e->kind));
    put_text(o, "name", e->name);
    put_count(o, "uid", e->uid);
    put_text(o, "what", e->what);
    put_value(o, "bad", json_boolean(e->is_bad));
    put_text(o, "detail", e->text);
    return o;
}

void show_events_as_lines(const struct report *r)
{
    const struct rows *rows = &r->rows_of[PS_QUERY_EVENTS];

    for (size_t i = 0; i < rows->count; i++) {
        json_t *o = event_of(rows->row[i]);

        put_value(o, "schema", json_integer(SCHEMA));
        json_print(o);
    }
}

static void put_rows(json_t *o, const char *name, const struct rows *rows,
                     json_t *(*convert)(const struct ps_msg *msg))
{
    json_t *list = json_array();

    for (size_t i = 0; i < rows->count; i++) {
        json_array_append_new(list, convert(rows->row[i]));
    }
    put_value(o, name, list);
}

static void put_health(json_t *o, const struct health *h)
{
    json_t *list = json_array();

    for (size_t i = 0; i < h->count; i++) {
        json_array_append_new(list, json_text(h->problems[i]));
    }
    put_value(o, "healthy", json_boolean(h->count == 0));
    put_value(o, "problems", list);
}

static void put_private_jobs(json_t *o)
{
    struct private_job jobs[PRIVATE_MAX];
    const size_t count = list_private_jobs(jobs);
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++) {
        json_t *one = json_object();

        put_text(one, "name", jobs[i].name);
        put_text(one, "endpoint", jobs[i].endpoint);
        if (json_array_append_new(list, one) != 0) {
            abort(); /* Out of memory. */
        }
    }
    put_value(o, "private_jobs", list);
}

void show_json(enum verb verb, const struct report *r, const struct health *h)
{
    const struct ps_msg_query_end *end = &r->end->query_end;
    json_t *o;

    if (verb == VERB_EVENTS && layout == JSON_COMPACT) {
        show_events_as_lines(r);
        return;
    }
    o = json_object();
    put_value(o, "schema", json_integer(SCHEMA));
    put_text(o, "cluster", end->cluster);
    put_count(o, "epoch", end->epoch);
    put_seconds(o, "uptime_s", end->uptime_ns);
    if (verb == VERB_STATUS) {
        put_health(o, h);
    }
    if (verb == VERB_STATUS || verb == VERB_NODES) {
        put_rows(o, "nodes", &r->rows_of[PS_QUERY_NODES], node_of);
    }
    if (verb == VERB_STATUS || verb == VERB_JOBS || verb == VERB_GET) {
        put_rows(o, "jobs", &r->rows_of[PS_QUERY_JOBS], job_of);
    }
    if (verb == VERB_KEYS) {
        put_rows(o, "keys", &r->rows_of[PS_QUERY_KEYS], key_of);
        put_loads(o, r, false);
    }
    if (verb == VERB_REBALANCE) {
        put_rows(o, "moves", &r->rows_of[PS_QUERY_REBALANCE_PLAN],
                 migration_of);
        put_loads(o, r, !r->has_migrated);
    }
    if (verb == VERB_TOKENS || verb == VERB_TOKEN_ISSUE) {
        put_rows(o, "tokens", &r->rows_of[PS_QUERY_TOKENS], token_of);
    }
    if (verb == VERB_EVENTS) {
        put_rows(o, "events", &r->rows_of[PS_QUERY_EVENTS], event_of);
    }
    if (verb == VERB_STATUS || verb == VERB_STALL) {
        put_rows(o, "stalls", &r->rows_of[PS_QUERY_STALL], stall_of);
    }
    if (verb == VERB_STATUS) {
        put_private_jobs(o);
    }
    json_print(o);
}
