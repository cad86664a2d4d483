/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of a job: registered by name, numbered, and placed once. A placement
 * changes when a server is lost or a partition migrates. */
#include "core/sched/job/run.h"

#include "base/alloc.h"
#include "core/part/rows.h"
#include "core/sched/inner.h"
#include "proto/ps_fixed.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char no_table_memory[] =
    " cannot be opened now: the scheduler has no memory for its table of "
    "partitions";

/* Makes key_opened with the placement table. Takes over `buf`, which has
 * placement_size() bytes. */
static struct ps_packet *make_key_opened(const struct ps_sched *s,
                                         const struct ps_sched_job *j,
                                         const struct ps_sched_key *k,
                                         uint64_t request, struct ps_buf *buf)
{
    const struct ps_slice slice = {.buf = buf, .len = buf->size};
    /* Collectives are never encoded. */
    const bool encodes = k->kind != PS_KEY_KIND_COLLECTIVE;
    struct ps_packet *p;

    for (uint32_t i = 0; i < k->part_count; i++) {
        ps_fixed_put_placement_part(
            buf->data + (size_t)i * PS_FIXED_PLACEMENT_PART_BYTES,
            &(struct ps_fixed_placement_part){.node = k->parts[i].node,
                                              .count = k->parts[i].count});
    }
    p = ps_packet_new(
        &(struct ps_msg){
            .code = PS_MSG_KEY_OPENED,
            .key_opened =
                {
                    .gen = j->gen,
                    .request = request,
                    .key = k->number,
                    .epoch = s->epoch,
                    .parts = k->part_count,
                    .compression = encodes ? j->compression.name : NULL,
                    .params = j->compression.params,
                    .params_count = encodes ? j->compression.param_count : 0,
                    .is_reassigned = k->is_reassigned,
                }},
        &slice, 1);
    ps_buf_unref(buf);
    return p;
}

static size_t placement_size(const struct ps_sched_key *k)
{
    return (size_t)k->part_count * PS_FIXED_PLACEMENT_PART_BYTES;
}

static void send_key_refused(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg_key_open *m, int rc,
                             const char *text)
{
    ps_sched_send_msg(st, agent,
                      &(struct ps_msg){
                          .code = PS_MSG_KEY_OPENED,
                          .key_opened = {.gen = m->gen,
                                         .request = m->request,
                                         .error = rc,
                                         .text = text},
                      });
}

/* ------------------------------------------------------------------ place */

/* Lists the servers that get partitions, with their loads, in the order of
 * j->servers.list: those that have taken the job (rule K21); all if none has. */
static struct ps_place_server *list_server_loads(const struct ps_sched *s,
                                                 const struct ps_sched_job *j,
                                                 uint32_t *ret_count)
{
    struct ps_place_server *list = ps_alloc((j->servers.count + 1u) *
                                            sizeof(*list));
    bool any = false;

    for (uint32_t i = 0; i < j->servers.count; i++) {
        any |= ps_sched_job_server_has_taken(&j->servers.list[i]);
    }
    *ret_count = 0;
    for (uint32_t i = 0; i < j->servers.count; i++) {
        const struct ps_sched_job_server *on = &j->servers.list[i];
        const struct ps_member *m = ps_members_get(&s->members, on->node);

        if (!any || ps_sched_job_server_has_taken(on)) {
            list[(*ret_count)++] = (struct ps_place_server){
                .node = on->node,
                .bytes = on->bytes,
                .load = m != NULL ? m->placed_bytes : 0,
            };
        }
    }
    return list;
}

static int64_t part_bytes(const struct ps_sched_key *k, uint32_t index)
{
    return (int64_t)(k->parts[index].count * (uint64_t)ps_dtype_size(k->dtype));
}

/* Changes the load of a server, if it is one of the job. */
static void add_load(struct ps_sched *s, const struct ps_sched_job *j,
                     uint32_t node, int64_t bytes)
{
    struct ps_sched_job_server *on = ps_sched_job_server_of(j, node);
    struct ps_member *m = ps_members_get(&s->members, node);

    if (on != NULL) {
        on->bytes += (uint64_t)bytes;
    }
    if (on != NULL && m != NULL) {
        m->placed_bytes += (uint64_t)bytes;
    }
}

/* Stores changed loads in the job and in the members. */
static void record_server_loads(struct ps_sched *s, struct ps_sched_job *j,
                                const struct ps_place_server *list,
                                uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t before = ps_sched_job_server_of(j, list[i].node)->bytes;

        add_load(s, j, list[i].node, (int64_t)(list[i].bytes - before));
    }
}

/* Key number for mxnet placement. */
static uint64_t mxnet_key_of(const struct ps_sched_job *j,
                             const struct ps_msg_key_open *m)
{
    if (m->kind == PS_KEY_KIND_STRING) {
        return j->keys.string_count;
    }
    if (m->kind == PS_KEY_KIND_COLLECTIVE) {
        return m->count; /* Any number that spreads keys. */
    }
    return m->mxnet_key >= 0 ? (uint64_t)m->mxnet_key
                             : strtoull(m->name, NULL, 10);
}

/* Charges a key with these partitions: tables, and memory of servers. */
static int charge_key(struct ps_sched_step *st, struct ps_sched_job *j,
                      const struct ps_msg_key_open *m,
                      const struct ps_sched_placement *places,
                      struct ps_str *why)
{
    struct ps_refusal refusal;
    int rc = ps_sched_account_charge_key(j, m->name, places->count, &refusal);

    if (rc != 0) {
        ps_str_add(why, " is one too many: ");
        ps_refusal_text(&refusal, why);
        return rc;
    }
    rc = ps_sched_admission_add_key(st, j, m->dtype, places, why);
    if (rc != 0) {
        ps_sched_account_refund_key(j, m->name, places->count);
    }
    return rc;
}

static int place_new_key(struct ps_sched_step *st, struct ps_sched_job *j,
                         const struct ps_msg_key_open *m,
                         struct ps_sched_key **ret_key, struct ps_str *why)
{
    uint32_t server_count;
    struct ps_place_server *servers = list_server_loads(st->s, j,
                                                        &server_count);
    const struct ps_place_request want = {
        .policy = (enum ps_placement)j->opt.placement,
        .servers = ps_sched_job_servers_needed(j),
        .count = m->count,
        .element_bytes = (uint32_t)ps_dtype_size(m->dtype),
        .partition_bytes = j->opt.partition_bytes,
        .big_array_bound = j->opt.big_array_bound,
        .mxnet_key = mxnet_key_of(j, m),
        .row_width = m->row_width,
        .max_rows = ps_rows_per_frame(m->row_width, m->dtype),
    };
    struct ps_place_part *parts;
    uint32_t count;
    int rc = ps_place_request(&want, servers, server_count, &parts, &count);

    if (rc == PS_E_TOOBIG) {
        ps_str_addf(why,
                    " with %" PRIu64 " elements would have more than %u "
                    "partitions; raise partition_bytes, which is %u",
                    m->count, PS_KEY_PARTS_MAX,
                    j->opt.partition_bytes != 0 ? j->opt.partition_bytes
                                                : PS_PARTITION_BYTES_DEFAULT);
    } else if (rc == PS_E_NOMEM) {
        ps_str_add(why, no_table_memory);
    } else if (rc == 0) {
        rc = charge_key(st, j, m, &(struct ps_sched_placement){parts, count},
                        why);
        if (rc != 0) {
            ps_free(parts);
        }
    }
    if (rc == 0) {
        record_server_loads(st->s, j, servers, server_count);
        *ret_key = ps_sched_job_add_key(j, m, parts, count);
        j->keys.string_count += m->kind == PS_KEY_KIND_STRING;
        (*ret_key)->norms_before = ps_sched_norms_so_far(j);
        ps_sched_store_key(st->s, j, *ret_key);
    }
    ps_free(servers);
    return rc;
}

/* ------------------------------------------------------------------- open */

static void append_key_name(struct ps_str *why, const char *name)
{
    const char *text = ps_str_or_empty(name);

    ps_str_add(why, "key '");
    ps_str_add_escaped(why, text, strlen(text), 64);
    ps_str_add(why, "'");
}

static int check_key_name(const struct ps_msg_key_open *m, struct ps_str *why)
{
    const char *at = ps_str_or_empty(m->name);

    if (*at == '\0') {
        ps_str_add(why, "a key needs a name");
        return PS_E_INVAL;
    }
    while (m->kind == PS_KEY_KIND_INTEGER && *at >= '0' && *at <= '9') {
        at++;
    }
    if (m->kind == PS_KEY_KIND_INTEGER && *at != '\0') {
        append_key_name(why, m->name);
        ps_str_add(why, " must be a number");
        return PS_E_INVAL;
    }
    return 0;
}

/* 0 if a job without this key can have it, by its name, type and size. */
static int check_declaration(const struct ps_sched_job *j,
                             const struct ps_msg_key_open *m,
                             struct ps_str *why)
{
    const struct ps_sched_key *other;
    int rc = check_key_name(m, why);

    if (rc != 0) {
        return rc;
    }
    other = ps_sched_job_key_by_name_hash(j, m->kind, m->name);
    if (other != NULL) {
        append_key_name(why, m->name);
        ps_str_add(why, " has the name hash of ");
        append_key_name(why, other->name);
        ps_str_add(why, ": give it another name");
        return PS_E_EXIST;
    }
    if (ps_dtype_size(m->dtype) == 0) {
        append_key_name(why, m->name);
        ps_str_addf(why, " has a type %u that does not exist", m->dtype);
        return PS_E_UNSUPPORTED;
    }
    if (m->count == 0) {
        append_key_name(why, m->name);
        ps_str_add(why, " has no elements");
        return PS_E_INVAL;
    }
    if (m->count > PS_KEY_BYTES_MAX / ps_dtype_size(m->dtype)) {
        append_key_name(why, m->name);
        ps_str_addf(why,
                    " of %" PRIu64 " elements of %s is larger than %llu "
                    "bytes: split it",
                    m->count, ps_dtype_name(m->dtype),
                    (unsigned long long)PS_KEY_BYTES_MAX);
        return PS_E_TOOBIG;
    }
    if (m->row_width != 0 && (m->count % m->row_width != 0 ||
                              m->count / m->row_width > UINT32_MAX)) {
        append_key_name(why, m->name);
        ps_str_addf(why,
                    " of %" PRIu64 " elements cannot have rows of %u; there "
                    "may be %u rows",
                    m->count, m->row_width, UINT32_MAX);
        return PS_E_INVAL;
    }
    if (m->row_width != 0 && ps_rows_per_frame(m->row_width, m->dtype) == 0) {
        append_key_name(why, m->name);
        ps_str_addf(why,
                    " has rows of %u elements of %s: a row is larger than "
                    "%llu bytes, and rows are not cut: use narrower rows",
                    m->row_width, ps_dtype_name(m->dtype),
                    (unsigned long long)PS_ROW_BYTES_MAX);
        return PS_E_TOOBIG;
    }
    return 0;
}

static int check_new_key(const struct ps_sched_job *j,
                         const struct ps_msg_key_open *m, struct ps_str *why)
{
    int rc = check_declaration(j, m, why);

    if (rc != 0) {
        return rc;
    }
    if (m->row_width != 0 && j->opt.replicas > 1) {
        ps_str_add(why, "replicas: 2 is for jobs with rounds and dense keys; ");
        append_key_name(why, m->name);
        ps_str_add(why, " has rows");
        return PS_E_UNSUPPORTED;
    }
    if (m->row_width != 0 && j->servers.count == 0) {
        append_key_name(why, m->name);
        ps_str_add(why, " is one of rows, which needs a server; the job has "
                        "none");
        return PS_E_UNSUPPORTED;
    }
    if (j->keys.count >= PS_KEYS_MAX) {
        ps_str_addf(why, "job %s has %u keys, which is the limit", j->name,
                    PS_KEYS_MAX);
        return PS_E_FULL;
    }
    return 0;
}

/* Appends "float32 with 4 elements for rank 1 on HOST". */
static void append_shape(struct ps_str *why, const struct ps_sched_job *j,
                         const struct ps_msg_key_open *m)
{
    ps_str_addf(why, "%s with %" PRIu64 " elements", ps_dtype_name(m->dtype),
                m->count);
    if (m->row_width != 0) {
        ps_str_addf(why, " in rows of %u", m->row_width);
    }
    ps_str_add(why, " for ");
    ps_sched_add_rank_text(j, m->rank, why);
}

static int check_same_shape(const struct ps_sched_job *j,
                            const struct ps_sched_key *k,
                            const struct ps_msg_key_open *m, struct ps_str *why)
{
    if (k->dtype == m->dtype && k->count == m->count &&
        k->row_width == m->row_width) {
        return 0;
    }
    append_key_name(why, m->name);
    ps_str_add(why, " is ");
    append_shape(why, j,
                 &(struct ps_msg_key_open){.dtype = k->dtype,
                                           .count = k->count,
                                           .row_width = k->row_width,
                                           .rank = k->declared_by});
    ps_str_add(why, ", and ");
    append_shape(why, j, m);
    ps_str_add(why, ": all ranks must declare the same");
    return PS_E_MISMATCH;
}

/* Reads the placement of a key of the file; the caller frees *ret_parts. */
static int read_parts(const struct ps_sched_job *j,
                      const struct ps_msg_row_key *row,
                      const struct ps_slice *payload, uint32_t count,
                      struct ps_place_part **ret_parts, struct ps_str *why)
{
    struct ps_place_part *parts = ps_alloc(count * sizeof(*parts));
    uint64_t elements = 0;
    bool is_placed = true;

    for (uint32_t i = 0; i < count; i++) {
        struct ps_fixed_placement_part p;

        is_placed = is_placed &&
                    ps_fixed_get_placement_part(
                        ps_slice_data(payload) +
                            (size_t)i * PS_FIXED_PLACEMENT_PART_BYTES,
                        &p) &&
                    p.count > 0 &&
                    (ps_sched_job_server_of(j, p.node) != NULL ||
                     (p.node == 0 && j->opt.num_servers == 0) ||
                     !ps_sched_job_is_open(j));
        parts[i] = (struct ps_place_part){.node = p.node, .count = p.count};
        elements += p.count;
    }
    if (!is_placed || elements != row->count) {
        ps_free(parts);
        append_key_name(why, row->name);
        ps_str_add(why, " has no valid placement");
        return PS_E_PROTO;
    }
    *ret_parts = parts;
    return 0;
}

int ps_sched_key_restore(struct ps_sched *s, struct ps_sched_job *j,
                         uint64_t number, const struct ps_msg_row_key *row,
                         const struct ps_slice *payload, struct ps_str *why)
{
    const uint64_t len = payload != NULL ? payload->len : 0;
    const uint32_t count = (uint32_t)(len / PS_FIXED_PLACEMENT_PART_BYTES);
    const struct ps_msg_key_open m = {.name = row->name,
                                      .kind = row->kind,
                                      .dtype = row->dtype,
                                      .count = row->count,
                                      .row_width = row->row_width,
                                      .rank = row->rank};
    struct ps_place_part *parts;
    struct ps_sched_key *k;
    int rc;

    if (number != j->keys.count || number >= PS_KEYS_MAX ||
        len % PS_FIXED_PLACEMENT_PART_BYTES != 0 || count > PS_KEY_PARTS_MAX) {
        append_key_name(why, row->name);
        ps_str_add(why, " has no valid number or placement");
        return PS_E_PROTO;
    }
    j->keys.string_count += row->kind == PS_KEY_KIND_STRING;
    if (count == 0) {
        ps_sched_job_skip_key(j);
        return 0;
    }
    rc = check_declaration(j, &m, why);
    if (rc == 0) {
        rc = read_parts(j, row, payload, count, &parts, why);
    }
    if (rc != 0) {
        return rc;
    }
    ps_sched_account_restore_key(j, m.name, count);
    k = ps_sched_job_add_key(j, &m, parts, count);
    k->is_reassigned = row->is_reassigned;
    k->norms_before = row->norms;
    k->was_loaded = true;
    for (uint32_t i = 0; i < count; i++) {
        add_load(s, j, parts[i].node, part_bytes(k, i));
    }
    return 0;
}

/* Removes a key without openers, of which no server has data. */
static void remove_unused_key(struct ps_sched_step *st, struct ps_sched_job *j,
                              struct ps_sched_key *k)
{
    for (uint32_t i = 0; i < k->part_count; i++) {
        add_load(st->s, j, k->parts[i].node, -part_bytes(k, i));
    }
    ps_sched_admission_remove_key(st, j, k);
    ps_sched_account_refund_key(j, k->name, k->part_count);
    ps_sched_norm_remove_key(j, k);
    ps_sched_store_remove_key(st->s, j, k);
    if (k->is_reassigned) {
        ps_sched_store_job(st->s, j); /* See job_state.has_moved. */
    }
    ps_sched_job_remove_key(j, k);
    ps_sched_norm_recheck_global(st, j);
}

void ps_sched_on_key_open(struct ps_sched_step *st, struct ps_member *agent,
                          const struct ps_msg *msg)
{
    const struct ps_msg_key_open *m = &msg->key_open;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_sched_key *k;
    int rc;

    rc = ps_sched_job_check_agent(st->s, j, m->gen, agent, &why);
    if (rc != 0) {
        send_key_refused(st, agent, m, rc, why.data);
        return;
    }
    k = ps_sched_job_find_key(j, m->kind, ps_str_or_empty(m->name));
    if (k != NULL) {
        rc = check_same_shape(j, k, m, &why);
        if (rc != 0) {
            ps_sched_key_disagreement_begin(
                st, j, k, ps_sched_job_slot_of(j, agent->node), why.data);
        }
    } else if (m->if_absent == PS_IF_ABSENT_FAIL ||
               (m->if_absent == PS_IF_ABSENT_CREATE_UNLESS_OPTIMIZER &&
                j->optimizer.declared.name != NULL)) {
        rc = PS_E_NOKEY;
        append_key_name(&why, m->name);
        ps_str_add(&why, " is not known: no worker has declared it or given "
                         "it a first value");
    } else {
        rc = check_new_key(j, m, &why);
        if (rc == 0 && !ps_sched_store_has_room(st->s, &why)) {
            rc = PS_E_FULL;
        }
        if (rc == 0) {
            append_key_name(&why, m->name);
            rc = place_new_key(st, j, m, &k, &why);
        }
    }
    if (rc != 0) {
        send_key_refused(st, agent, m, rc, why.data);
        return;
    }
    struct ps_buf *table = ps_buf_try_new(placement_size(k));

    if (table == NULL) {
        if (k->openers.count == 0 && j->rebalance == NULL && k->norm == NULL &&
            !j->store.was_loaded) {
            remove_unused_key(st, j, k);
        }
        append_key_name(&why, m->name);
        ps_str_add(&why, no_table_memory);
        send_key_refused(st, agent, m, PS_E_NOMEM, why.data);
        return;
    }
    ps_sched_key_add_opener(j, k, ps_sched_job_slot_of(j, agent->node),
                            m->request);
    ps_sched_send(st, agent, make_key_opened(st->s, j, k, m->request, table));
    ps_sched_key_disagreement_opened(st, j, k,
                                     ps_sched_job_slot_of(j, agent->node));
}

void ps_sched_on_key_close(struct ps_sched_step *st, struct ps_member *agent,
                           const struct ps_msg *msg)
{
    const struct ps_msg_key_close *m = &msg->key_close;
    struct ps_sched_job *j = ps_sched_find_job(st->s, m->gen);
    struct ps_sched_key *k = j != NULL ? ps_sched_job_key(j, m->key) : NULL;

    if (k == NULL ||
        !ps_sched_key_remove_opener(k, ps_sched_job_slot_of(j, agent->node),
                                    m->request) ||
        j->rebalance != NULL || k->norm != NULL || j->store.was_loaded) {
        return; /* In use by a migration or by servers; or it may be. */
    }
    remove_unused_key(st, j, k);
}

/* --------------------------------------------------------------- reassign */

/* Sends the placement to all agents. Agents accept the first placement of an
 * epoch only, so the caller begins a new epoch if this one announced the key
 * already. */
static void announce_placement(struct ps_sched_step *st,
                               const struct ps_sched_job *j,
                               struct ps_sched_key *k)
{
    struct ps_packet *p = make_key_opened(st->s, j, k, 0,
                                          ps_buf_new(placement_size(k)));

    assert(k->announced_epoch != st->s->epoch);
    k->announced_epoch = st->s->epoch;
    k->must_announce = false;
    for (uint32_t i = 0; i < j->slot_count; i++) {
        ps_sched_send(st,
                      ps_members_get(&st->s->members, j->slots[i].agent_node),
                      ps_packet_ref(p));
    }
    ps_packet_unref(p);
}

/* Begins a new epoch if the present one has announced a changed key already:
 * a migration did, if it was committed in this step because its source was
 * lost. */
static void begin_epoch_if_announced(struct ps_sched_step *st,
                                     const struct ps_sched_job *j)
{
    for (uint32_t i = 0; i < j->keys.count; i++) {
        const struct ps_sched_key *k = j->keys.list[i];

        if (k != NULL && k->must_announce &&
            k->announced_epoch == st->s->epoch) {
            ps_sched_begin_epoch(st);
            return;
        }
    }
}

/* Sends changed placements that all agents need; counts them in *sent. False:
 * the limit of one step is reached. */
static bool announce_some(struct ps_sched_step *st, struct ps_sched_job *j,
                          uint32_t *sent)
{
    for (; j->keys.first_unsent < j->keys.count; j->keys.first_unsent++) {
        struct ps_sched_key *k = j->keys.list[j->keys.first_unsent];

        if (k == NULL || !k->must_announce) {
            continue;
        }
        if (*sent > 0 &&
            *sent + j->slot_count > st->s->opt.placements_sent_max) {
            return false;
        }
        announce_placement(st, j, k);
        *sent += j->slot_count;
    }
    return true;
}

/* The same for the changed placements that the agent of one slot needs. */
static bool resend_some(struct ps_sched_step *st, const struct ps_sched_job *j,
                        struct ps_sched_slot *slot, uint32_t *sent)
{
    for (; slot->first_unsent_key < j->keys.count; slot->first_unsent_key++) {
        const struct ps_sched_key *k = j->keys.list[slot->first_unsent_key];

        if (k == NULL || !k->is_reassigned) {
            continue;
        }
        if (*sent >= st->s->opt.placements_sent_max) {
            return false;
        }
        ps_sched_send(
            st, ps_members_get(&st->s->members, slot->agent_node),
            make_key_opened(st->s, j, k, 0, ps_buf_new(placement_size(k))));
        (*sent)++;
    }
    slot->first_unsent_key = UINT32_MAX;
    return true;
}

void ps_sched_keys_send_placements(struct ps_sched_step *st,
                                   struct ps_sched_job *j)
{
    uint32_t sent = 0;
    bool done = announce_some(st, j, &sent);

    for (uint32_t i = 0; done && i < j->slot_count; i++) {
        done = resend_some(st, j, &j->slots[i], &sent);
    }
    /* Continued in another step. */
    j->keys.send_at = done ? PS_TIME_NEVER : st->now + 1;
}

static void record_takeover(struct ps_sched_step *st,
                            const struct ps_sched_job *j, uint32_t gone,
                            uint32_t parts)
{
    const struct ps_member *m = ps_members_get(&st->s->members, gone);
    struct ps_str s = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);

    if (parts == 0) {
        return;
    }
    ps_str_addf(&s, "%u partition%s of server %s", parts, parts == 1 ? "" : "s",
                m != NULL ? m->name : "?");
    ps_sched_event_job(st, PS_EVENT_KIND_MIGRATION, j, "taken over", false,
                       s.data);
}

/* Moves the partitions of node `gone` to the servers of the list. Returns their
 * number. */
static uint32_t move_parts(struct ps_sched *s, struct ps_sched_job *j,
                           uint32_t gone, struct ps_place_server *servers,
                           uint32_t count)
{
    uint32_t parts = 0;

    for (uint32_t i = 0; i < j->keys.count; i++) {
        struct ps_sched_key *k = j->keys.list[i];
        uint32_t moved = k == NULL ? 0
                                   : ps_place_reassign(
                                         k->parts, k->part_count,
                                         (uint32_t)ps_dtype_size(k->dtype),
                                         gone, servers, count);

        if (moved > 0) {
            if (!k->is_reassigned) {
                ps_sched_store_job(s, j); /* See job_state.has_moved. */
            }
            k->is_reassigned = true;
            k->must_announce = true;
            ps_sched_store_key(s, j, k);
            parts += moved;
        }
    }
    return parts;
}

static void record_moved(struct ps_sched_step *st, struct ps_sched_job *j,
                         uint32_t parts, uint32_t gone)
{
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "job %s gen %" PRIu64
                       " %u partitions moved from node %u",
                       j->name, j->gen, parts, gone);
    record_takeover(st, j, gone, parts);
}

void ps_sched_keys_announce(struct ps_sched_step *st, struct ps_sched_job *j)
{
    begin_epoch_if_announced(st, j);
    j->keys.first_unsent = 0;
    ps_sched_keys_send_placements(st, j);
}

int ps_sched_keys_reassign(struct ps_sched_step *st, struct ps_sched_job *j,
                           uint32_t gone, struct ps_str *why)
{
    uint32_t count;
    struct ps_place_server *servers = list_server_loads(st->s, j, &count);
    const uint32_t parts = move_parts(st->s, j, gone, servers, count);

    record_server_loads(st->s, j, servers, count);
    ps_free(servers);

    int rc = ps_sched_admission_recount(st, j, why);

    if (rc != 0) {
        return rc;
    }
    ps_sched_keys_announce(st, j);
    record_moved(st, j, parts, gone);
    return 0;
}

int ps_sched_keys_take_over(struct ps_sched_step *st, struct ps_sched_job *j,
                            uint32_t gone, uint32_t next, struct ps_str *why)
{
    struct ps_place_server to = {.node = next};
    const uint32_t parts = move_parts(st->s, j, gone, &to, 1);

    add_load(st->s, j, next, (int64_t)to.bytes);
    record_moved(st, j, parts, gone);
    return ps_sched_admission_recount(st, j, why);
}

void ps_sched_key_reassign_part(struct ps_sched_step *st,
                                struct ps_sched_job *j, struct ps_sched_key *k,
                                uint32_t index, uint32_t to)
{
    struct ps_place_part *part = &k->parts[index];

    add_load(st->s, j, part->node, -part_bytes(k, index));
    add_load(st->s, j, to, part_bytes(k, index));
    ps_sched_admission_move_part(st, j, k, index, to);
    part->node = to;
    if (!k->is_reassigned) {
        ps_sched_store_job(st->s, j); /* See job_state.has_moved. */
    }
    k->is_reassigned = true;
    ps_sched_store_key(st->s, j, k);
    ps_sched_begin_epoch(st);
    announce_placement(st, j, k);
}

void ps_sched_keys_send_reassigned(struct ps_sched_step *st,
                                   struct ps_sched_job *j,
                                   const struct ps_member *m)
{
    const uint32_t slot = ps_sched_job_slot_of(j, m->node);

    if (slot < j->slot_count) {
        j->slots[slot].first_unsent_key = 0;
        ps_sched_keys_send_placements(st, j);
    }
}

uint32_t ps_sched_keys_count_on(const struct ps_sched_job *j, uint32_t node)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < j->keys.count; i++) {
        const struct ps_sched_key *k = j->keys.list[i];

        count += k != NULL && ps_sched_key_is_on(k, node);
    }
    return count;
}

void ps_sched_job_describe_awaited(const struct ps_sched_job *j, ps_time now,
                                   struct ps_str *out)
{
    for (uint32_t i = 0; i < j->servers.count; i++) {
        const struct ps_sched_job_server *on = &j->servers.list[i];
        const uint32_t keys = ps_sched_keys_count_on(j, on->node);
        const ps_time left = on->return_by - ps_time_min(on->return_by, now);

        if (!ps_sched_job_is_open(j) || on->return_by == PS_TIME_NEVER) {
            continue;
        }
        ps_str_addf(out, "server %s, ", on->name);
        if (keys > 0) {
            ps_str_addf(out, "which has the only copy of %u key%s", keys,
                        keys == 1 ? "" : "s");
        } else {
            ps_str_add(out, "the only one that it can have");
        }
        ps_str_addf(out, " (%.0f s left)", (double)left / 1e9);
        return;
    }
}
