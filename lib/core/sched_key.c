/* SPDX-License-Identifier: Apache-2.0 */
/* Keys are registered by name, numbered, and placed once; a placement changes
 * when a server is gone. */
#include "core/sched_inner.h"

#include "base/alloc.h"
#include "core/rows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char no_memory[] =
    " cannot be opened now: the scheduler has no memory for its table of "
    "partitions";

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

/* Takes over `buf`, which has room for the table. */
static struct ps_parcel *make_opened(const struct ps_sched *s,
                                     const struct ps_sched_job *j,
                                     const struct ps_job_key *k,
                                     uint64_t request, struct ps_buf *buf)
{
    const struct ps_slice slice = {.buf = buf, .len = buf->size};
    struct ps_parcel *p;

    for (uint32_t i = 0; i < k->part_count; i++) {
        put_u32(buf->data + (size_t)i * 8, k->parts[i].node);
        put_u32(buf->data + (size_t)i * 8 + 4, k->parts[i].count);
    }
    p = ps_parcel_new(
        &(struct ps_msg){.code = PS_MSG_KEY_OPENED,
                         .key_opened =
                             {
                                 .gen = j->gen,
                                 .request = request,
                                 .key = k->number,
                                 .epoch = s->epoch,
                                 .parts = k->part_count,
                                 .compression = j->compression,
                                 .params = j->compression_params,
                                 .params_count = j->compression_param_count,
                             }},
        &slice, 1);
    ps_buf_unref(buf);
    return p;
}

static size_t table_size(const struct ps_job_key *k)
{
    return (size_t)k->part_count * 8;
}

static void refused(struct ps_sched_step *st, struct ps_member *agent,
                    const struct ps_msg_key_open *m, int rc, const char *text)
{
    ps_sched_tell(st, agent,
                  &(struct ps_msg){
                      .code = PS_MSG_KEY_OPENED,
                      .key_opened = {.gen = m->gen,
                                     .request = m->request,
                                     .error = rc,
                                     .text = text},
                  });
}

/* ------------------------------------------------------------------ place */

/* The job's servers as the placement sees them. */
static struct ps_place_server *make_servers(const struct ps_sched *s,
                                            const struct ps_sched_job *j)
{
    struct ps_place_server *list = ps_alloc((j->server_count + 1u) *
                                            sizeof(*list));

    for (uint32_t i = 0; i < j->server_count; i++) {
        const struct ps_member *m = ps_members_get(&s->members,
                                                   j->servers[i].node);

        list[i] = (struct ps_place_server){
            .node = j->servers[i].node,
            .bytes = j->servers[i].bytes,
            .load = m != NULL ? m->load : 0,
        };
    }
    return list;
}

/* What was placed goes into the books. */
static void keep_bytes(struct ps_sched *s, struct ps_sched_job *j,
                       const struct ps_place_server *list)
{
    for (uint32_t i = 0; i < j->server_count; i++) {
        struct ps_member *m = ps_members_get(&s->members, list[i].node);

        if (m != NULL) {
            m->load += list[i].bytes - j->servers[i].bytes;
        }
        j->servers[i].bytes = list[i].bytes;
    }
}

/* The number that the classic formula takes. */
static uint64_t classic_number(const struct ps_sched_job *j,
                               const struct ps_msg_key_open *m)
{
    if (strncmp(m->name, "s:", 2) == 0) {
        return j->string_keys;
    }
    if (strncmp(m->name, "c:", 2) == 0) {
        return m->count; /* Of a collective: any number spreads them. */
    }
    return m->classic >= 0 ? (uint64_t)m->classic
                           : strtoull(m->name + 2, NULL, 10);
}

/* For a key with these partitions: tables, and memory of servers. */
static int pay(struct ps_sched_step *st, struct ps_sched_job *j,
               const struct ps_msg_key_open *m,
               const struct ps_sched_places *places, struct ps_str *why)
{
    struct ps_refusal refusal;
    int rc = ps_sched_budget_key(j, m->name, places->count, &refusal);

    if (rc != 0) {
        ps_str_add(why, " is one too many: ");
        ps_refusal_text(&refusal, why);
        return rc;
    }
    rc = ps_sched_room_key(st, j, m->dtype, places, why);
    if (rc != 0) {
        ps_sched_budget_key_gone(j, m->name, places->count);
    }
    return rc;
}

static int place(struct ps_sched_step *st, struct ps_sched_job *j,
                 const struct ps_msg_key_open *m, struct ps_job_key **ret_key,
                 struct ps_str *why)
{
    struct ps_place_server *servers = make_servers(st->s, j);
    const struct ps_place_key want = {
        .policy = (enum ps_placement)j->placement,
        .count = m->count,
        .element = (uint32_t)ps_dtype_size(m->dtype),
        .partition_bytes = j->partition_bytes,
        .big_array_bound = j->big_array_bound,
        .number = classic_number(j, m),
        .width = m->width,
        .rows_max = ps_rows_per_frame(m->width, m->dtype),
    };
    struct ps_place_part *parts;
    uint32_t count;
    int rc = ps_place_key(&want, servers, j->server_count, &parts, &count);

    if (rc == PS_E_TOOBIG) {
        ps_str_addf(why,
                    " with %" PRIu64 " elements would have more than %u "
                    "partitions; raise partition_bytes, which is %u",
                    m->count, PS_KEY_PARTS_MAX,
                    j->partition_bytes != 0 ? j->partition_bytes
                                            : PS_PARTITION_BYTES_DEFAULT);
    } else if (rc == PS_E_NOMEM) {
        ps_str_add(why, no_memory);
    } else if (rc == 0) {
        rc = pay(st, j, m, &(struct ps_sched_places){parts, count}, why);
        if (rc != 0) {
            ps_free(parts);
        }
    }
    if (rc == 0) {
        keep_bytes(st->s, j, servers);
        *ret_key = ps_job_add_key(j, m->name, m->dtype, m->count, parts, count);
        (*ret_key)->width = m->width;
        j->string_keys += strncmp(m->name, "s:", 2) == 0;
    }
    ps_free(servers);
    return rc;
}

/* ------------------------------------------------------------------- open */

static void add_name(struct ps_str *why, const char *name)
{
    const char *text = ps_sched_text(name);

    if (text[0] != '\0' && text[1] == ':') {
        text += 2; /* As the program named it. */
    }
    ps_str_add(why, "key '");
    ps_str_add_escaped(why, text, strlen(text), 64);
    ps_str_add(why, "'");
}

static int check_name(const char *name, struct ps_str *why)
{
    const char *text = ps_sched_text(name);
    bool integer = strncmp(text, "i:", 2) == 0;

    if ((!integer && strncmp(text, "s:", 2) != 0 &&
         strncmp(text, "c:", 2) != 0) ||
        text[2] == '\0') {
        add_name(why, name);
        ps_str_add(why, " must be 's:' and a string, 'i:' and an integer, or "
                        "'c:' and what a collective needs");
        return PS_E_INVAL;
    }
    return 0;
}

static int check_new(const struct ps_sched_job *j,
                     const struct ps_msg_key_open *m, struct ps_str *why)
{
    const struct ps_job_key *other;
    int rc = check_name(m->name, why);

    if (rc != 0) {
        return rc;
    }
    other = ps_job_key_labelled(j, m->name);
    if (other != NULL) {
        add_name(why, m->name);
        ps_str_add(why, " has the label of ");
        add_name(why, other->name);
        ps_str_add(why, ": give it another name");
        return PS_E_EXIST;
    }
    if (ps_dtype_size(m->dtype) == 0) {
        add_name(why, m->name);
        ps_str_addf(why, " has a type %u that does not exist", m->dtype);
        return PS_E_UNSUPPORTED;
    }
    if (m->count == 0) {
        add_name(why, m->name);
        ps_str_add(why, " has no elements");
        return PS_E_INVAL;
    }
    if (m->count > PS_KEY_BYTES_MAX / ps_dtype_size(m->dtype)) {
        add_name(why, m->name);
        ps_str_addf(why,
                    " of %" PRIu64 " elements of %s is larger than %llu "
                    "bytes: split it",
                    m->count, ps_dtype_name(m->dtype),
                    (unsigned long long)PS_KEY_BYTES_MAX);
        return PS_E_TOOBIG;
    }
    if (m->width != 0 &&
        (m->count % m->width != 0 || m->count / m->width > UINT32_MAX)) {
        add_name(why, m->name);
        ps_str_addf(why,
                    " of %" PRIu64 " elements cannot have rows of %u; there "
                    "may be %u rows",
                    m->count, m->width, UINT32_MAX);
        return PS_E_INVAL;
    }
    if (m->width != 0 && ps_rows_per_frame(m->width, m->dtype) == 0) {
        add_name(why, m->name);
        ps_str_addf(why,
                    " has rows of %u elements of %s: a row is larger than "
                    "%llu bytes, and rows are not cut: use narrower rows",
                    m->width, ps_dtype_name(m->dtype),
                    (unsigned long long)PS_ROW_BYTES_MAX);
        return PS_E_TOOBIG;
    }
    if (m->width != 0 && j->server_count == 0) {
        add_name(why, m->name);
        ps_str_add(why, " is one of rows, which needs a server; the job has "
                        "none");
        return PS_E_UNSUPPORTED;
    }
    if (j->key_count >= PS_KEYS_MAX) {
        ps_str_addf(why, "job %s has %u keys, which is the limit", j->name,
                    PS_KEYS_MAX);
        return PS_E_FULL;
    }
    return 0;
}

static int check_same(const struct ps_job_key *k,
                      const struct ps_msg_key_open *m, struct ps_str *why)
{
    if (k->dtype == m->dtype && k->count == m->count && k->width == m->width) {
        return 0;
    }
    add_name(why, m->name);
    if (k->width != m->width) {
        ps_str_addf(why,
                    " was opened with rows of %u elements, this opening says "
                    "%u (0: not a key of rows)",
                    k->width, m->width);
        return PS_E_MISMATCH;
    }
    ps_str_addf(why,
                " was opened as %s with %" PRIu64
                " elements, this opening says %s with %" PRIu64,
                ps_dtype_name(k->dtype), k->count, ps_dtype_name(m->dtype),
                m->count);
    return PS_E_MISMATCH;
}

/* Servers no longer carry what was placed there. */
static void unplace(struct ps_sched *s, struct ps_sched_job *j,
                    const struct ps_job_key *k)
{
    struct ps_place_server *servers = make_servers(s, j);

    for (uint32_t i = 0; i < k->part_count; i++) {
        uint32_t at = 0;

        while (at < j->server_count && servers[at].node != k->parts[i].node) {
            at++;
        }
        if (at < j->server_count) {
            servers[at].bytes -= k->parts[i].count *
                                 (uint64_t)ps_dtype_size(k->dtype);
        }
    }
    keep_bytes(s, j, servers);
    ps_free(servers);
}

/* Nobody has it open, and no server has anything of it. */
static void undo(struct ps_sched_step *st, struct ps_sched_job *j,
                 struct ps_job_key *k)
{
    unplace(st->s, j, k);
    ps_sched_room_forget(st, j, k);
    ps_sched_budget_key_gone(j, k->name, k->part_count);
    ps_sched_norms_forget(j, k);
    ps_job_remove_key(j, k);
    ps_sched_norms_check(st, j);
}

void ps_sched_key_open(struct ps_sched_step *st, struct ps_member *agent,
                       const struct ps_msg_key_open *m)
{
    struct ps_sched_job *j = ps_sched_job(st->s, m->gen);
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;
    struct ps_job_key *k;
    int rc;

    ps_str_init(&why, text, sizeof(text));
    rc = ps_sched_job_serves(st->s, j, m->gen, agent, &why);
    if (rc != 0) {
        refused(st, agent, m, rc, text);
        return;
    }
    k = ps_job_key(j, ps_sched_text(m->name));
    if (k != NULL) {
        rc = check_same(k, m, &why);
    } else if (m->find == PS_FIND_KNOWN ||
               (m->find == PS_FIND_SUM && j->optimizer != NULL)) {
        rc = PS_E_NOKEY;
        add_name(&why, m->name);
        ps_str_add(&why, " is not known: no worker has declared it or given "
                         "it a first value");
    } else {
        rc = check_new(j, m, &why);
        if (rc == 0) {
            add_name(&why, m->name);
            rc = place(st, j, m, &k, &why);
        }
    }
    if (rc != 0) {
        refused(st, agent, m, rc, text);
        return;
    }
    struct ps_buf *table = ps_buf_try_new(table_size(k));

    if (table == NULL) {
        if (k->openers.count == 0 && j->rebalance == NULL && k->norm == NULL) {
            undo(st, j, k);
        }
        add_name(&why, m->name);
        ps_str_add(&why, no_memory);
        refused(st, agent, m, PS_E_NOMEM, text);
        return;
    }
    ps_job_key_open(j, k, ps_job_slot_of(j, agent->node), m->request);
    ps_sched_send(st, agent, make_opened(st->s, j, k, m->request, table));
}

void ps_sched_key_close(struct ps_sched_step *st, const struct ps_member *agent,
                        const struct ps_msg_key_close *m)
{
    struct ps_sched_job *j = ps_sched_job(st->s, m->gen);
    struct ps_job_key *k = j != NULL && m->key < j->key_count ? j->keys[m->key]
                                                              : NULL;

    if (k == NULL ||
        !ps_job_key_close(k, ps_job_slot_of(j, agent->node), m->request) ||
        j->rebalance != NULL || k->norm != NULL) {
        return; /* Moves name keys, and norms come from servers that have it. */
    }
    undo(st, j, k);
}

/* ------------------------------------------------------------------- move */

/* Of placements of one epoch agents believe the first that they hear of, so the
 * caller begins another epoch where this one has told of the key already. */
static void tell_all(struct ps_sched_step *st, const struct ps_sched_job *j,
                     struct ps_job_key *k)
{
    struct ps_parcel *p = make_opened(st->s, j, k, 0,
                                      ps_buf_new(table_size(k)));

    assert(k->told != st->s->epoch);
    k->told = st->s->epoch;
    k->untold = false;
    for (uint32_t i = 0; i < j->slot_count; i++) {
        ps_sched_send(st, ps_members_get(&st->s->members, j->slots[i].agent),
                      ps_parcel_ref(p));
    }
    ps_parcel_unref(p);
}

/* A move that ended in this step, because its old owner is gone, has told of
 * its key in the present epoch. */
static void begin_untold_epoch(struct ps_sched_step *st,
                               const struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->key_count; i++) {
        const struct ps_job_key *k = j->keys[i];

        if (k != NULL && k->untold && k->told == st->s->epoch) {
            ps_sched_new_epoch(st);
            return;
        }
    }
}

void ps_sched_keys_tell(struct ps_sched_step *st, struct ps_sched_job *j)
{
    uint32_t sent = 0;

    j->tell_due = PS_TIME_NEVER;
    for (; j->tell_from < j->key_count; j->tell_from++) {
        struct ps_job_key *k = j->keys[j->tell_from];

        if (k == NULL || !k->untold) {
            continue;
        }
        if (sent > 0 && sent + j->slot_count > st->s->opt.placements_told) {
            j->tell_due = st->now + 1; /* In another step. */
            return;
        }
        tell_all(st, j, k);
        sent += j->slot_count;
    }
}

int ps_sched_keys_move(struct ps_sched_step *st, struct ps_sched_job *j,
                       uint32_t gone, struct ps_str *why)
{
    struct ps_place_server *servers = make_servers(st->s, j);
    uint32_t parts = 0;

    for (uint32_t i = 0; i < j->key_count; i++) {
        struct ps_job_key *k = j->keys[i];
        uint32_t moved = k == NULL
                             ? 0
                             : ps_place_move(k->parts, k->part_count,
                                             (uint32_t)ps_dtype_size(k->dtype),
                                             gone, servers, j->server_count);

        if (moved > 0) {
            k->moved = true;
            k->untold = true;
            parts += moved;
        }
    }
    keep_bytes(st->s, j, servers);
    ps_free(servers);

    int rc = ps_sched_room_takeover(st, j, why);

    if (rc != 0) {
        return rc;
    }
    begin_untold_epoch(st, j);
    j->tell_from = 0;
    ps_sched_keys_tell(st, j);
    ps_effects_note(st->fx, PS_LOG_INFO,
                    "job %s gen %" PRIu64 " %u partitions moved from node %u",
                    j->name, j->gen, parts, gone);
    return 0;
}

void ps_sched_key_move(struct ps_sched_step *st, struct ps_sched_job *j,
                       struct ps_job_key *k, uint32_t index, uint32_t to)
{
    struct ps_place_part *part = &k->parts[index];
    const uint64_t bytes = part->count * (uint64_t)ps_dtype_size(k->dtype);
    struct ps_place_server *servers = make_servers(st->s, j);

    for (uint32_t i = 0; i < j->server_count; i++) {
        if (servers[i].node == part->node) {
            servers[i].bytes -= bytes;
        } else if (servers[i].node == to) {
            servers[i].bytes += bytes;
        }
    }
    keep_bytes(st->s, j, servers);
    ps_free(servers);
    ps_sched_room_move(st, j, k, index, to);
    part->node = to;
    k->moved = true;
    ps_sched_new_epoch(st);
    tell_all(st, j, k);
}

void ps_sched_keys_tell_moved(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_member *m)
{
    for (uint32_t i = 0; i < j->key_count; i++) {
        if (j->keys[i] != NULL && j->keys[i]->moved) {
            ps_sched_send(st, m,
                          make_opened(st->s, j, j->keys[i], 0,
                                      ps_buf_new(table_size(j->keys[i]))));
        }
    }
}
