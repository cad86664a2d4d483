/* SPDX-License-Identifier: Apache-2.0 */
/* Keys: one question to the scheduler for each name, memory for two versions
 * of the result, and where each partition lies. At a new epoch a partition may
 * have another owner: it gets the newest version this node holds, and then
 * everything that is not committed. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/label.h"
#include "base/num.h"
#include "base/str.h"
#include "core/rows.h"

#include <assert.h>
#include <string.h>

/* Results of a key begin at multiples of this. */
#define RESULT_ALIGN 4096u

/* Keys whose names share a label are in one list. */
static struct ps_agent_key *find_by_name(const struct ps_agent_job *j,
                                         const char *name)
{
    struct ps_agent_key *k = ps_map_get(
        j->names, ps_label_place(j->label_seed, ps_label(name), 0));

    while (k != NULL && strcmp(k->name, name) != 0) {
        k = k->same_label;
    }
    return k;
}

static void put_name(struct ps_agent_job *j, struct ps_agent_key *k)
{
    uint64_t at = ps_label_place(j->label_seed, k->label, 0);

    k->same_label = ps_map_take(j->names, at);
    ps_map_put(j->names, at, k);
}

static void take_name(struct ps_agent_job *j, const struct ps_agent_key *k)
{
    uint64_t at = ps_label_place(j->label_seed, k->label, 0);
    struct ps_agent_key *first = ps_map_take(j->names, at);
    struct ps_agent_key **link = &first;

    while (*link != k) {
        link = &(*link)->same_label;
    }
    *link = k->same_label;
    if (first != NULL) {
        ps_map_put(j->names, at, first);
    }
}

static void answer(struct ps_agent_step *st, struct ps_agent_session *s,
                   uint64_t request, struct ps_agent_key *k, int error,
                   const char *text)
{
    struct ps_msg m = {
        .code = PS_MSG_L_KEY_INFO,
        .l_key_info = {.request = request, .error = error, .text = text}};

    if (error == 0) {
        m.l_key_info.key = k->number;
        m.l_key_info.round = k->pushed[s->local];
    }
    if (error == 0) {
        ps_agent_keep_tell(st, s);
    }
    if (error == 0 && k->result != NULL) {
        m.l_key_info.arena = k->result->tag;
        m.l_key_info.offset0 = k->result->offset + k->result_at[0];
        m.l_key_info.offset1 = k->result->offset + k->result_at[1];
        if (ps_map_get(s->arenas, k->result->tag) == NULL) {
            ps_map_put(s->arenas, k->result->tag, s);
            ps_effects_tell(
                st->fx, s->conn,
                &(struct ps_msg){.code = PS_MSG_L_ARENA,
                                 .l_arena = {.arena = k->result->tag}});
        }
    }
    ps_effects_tell(st->fx, s->conn, &m);
}

uint64_t ps_agent_key_bytes(const struct ps_agent_key *k)
{
    return k->count * ps_dtype_size(k->dtype);
}

uint64_t ps_agent_part_bytes(const struct ps_agent_part *p)
{
    return p->count * (uint64_t)ps_dtype_size(p->key->dtype);
}

void ps_agent_key_offer(struct ps_agent_step *st, struct ps_agent_key *k)
{
    ps_agent_up_tell(
        st, &(struct ps_msg){.code = PS_MSG_KEY_OPEN,
                             .key_open = {.gen = k->job->gen,
                                          .request = k->request,
                                          .name = k->name,
                                          .dtype = k->dtype,
                                          .count = k->count,
                                          .shape = k->shape,
                                          .shape_count = k->shape_count,
                                          .classic = k->classic,
                                          .width = k->width,
                                          .find = k->find}});
}

static struct ps_agent_key *key_new(struct ps_agent_step *st,
                                    struct ps_agent_job *j, const char *name,
                                    const struct ps_msg_l_key *m)
{
    struct ps_agent_key *k = ps_calloc(1, sizeof(*k));

    k->job = j;
    ps_str_copy(k->name, sizeof(k->name), name);
    k->label = ps_label(k->name);
    k->collective = strncmp(name, "c:", 2) == 0;
    k->dtype = m->dtype;
    k->count = m->count;
    k->width = m->width;
    k->find = m->find;
    k->classic = m->classic;
    k->shape_count = m->shape_count;
    k->shape = ps_calloc(m->shape_count + 1, sizeof(*k->shape));
    if (m->shape_count > 0) {
        memcpy(k->shape, m->shape, m->shape_count * sizeof(*k->shape));
    }
    k->request = ++st->a->next_request;
    ps_list_init(&k->askers);
    ps_list_init(&k->parked);
    ps_list_init(&k->pulls);
    ps_list_init(&k->inits);
    ps_list_init(&k->row_pulls);
    ps_list_init(&k->stating);
    k->pushed = ps_calloc(j->local_count, sizeof(*k->pushed));
    k->applied = ps_calloc(j->local_count, sizeof(*k->applied));
    /* What the library keeps for its collectives has rounds in any mode. */
    k->async = j->mode != PS_MODE_SYNC && name[0] != 'c';
    k->offer = ps_calloc(j->local_count, sizeof(struct ps_agent_op *));
    ps_list_push_back(&j->opening, &k->node);
    if (j->unasked == NULL) {
        j->unasked = &k->node;
    }
    put_name(j, k);
    j->key_count++;
    return k;
}

/* Can there be a key of this size? 0, or a PS_E_* and why not. */
static int check_size(const struct ps_msg_l_key *m, struct ps_str *why)
{
    uint64_t bytes;

    if (m->name[0] == '\0' || m->count == 0 || ps_dtype_size(m->dtype) == 0) {
        ps_str_add(why, "a key needs a name, a type of elements that exists, "
                        "and at least one element");
        return PS_E_INVAL;
    }
    if (!ps_mul_u64(m->count, ps_dtype_size(m->dtype), &bytes) ||
        bytes > PS_KEY_BYTES_MAX) {
        ps_str_addf(why,
                    "key '%s' of %llu elements of %s is larger than %llu "
                    "bytes: split it",
                    m->name, (unsigned long long)m->count,
                    ps_dtype_name(m->dtype),
                    (unsigned long long)PS_KEY_BYTES_MAX);
        return PS_E_TOOBIG;
    }
    if (m->width == 0) {
        return 0;
    }
    if (ps_rows_per_frame(m->width, m->dtype) == 0) {
        ps_str_addf(why,
                    "key '%s': a row of %u elements of %s is larger than "
                    "%llu bytes, and rows are not cut: use narrower rows",
                    m->name, m->width, ps_dtype_name(m->dtype),
                    (unsigned long long)PS_ROW_BYTES_MAX);
        return PS_E_TOOBIG;
    }
    if (m->count % m->width != 0 || m->count / m->width > UINT32_MAX) {
        ps_str_addf(why,
                    "key '%s' of %llu elements cannot have rows of %u; there "
                    "may be %u rows",
                    m->name, (unsigned long long)m->count, m->width,
                    UINT32_MAX);
        return PS_E_INVAL;
    }
    return 0;
}

/* A declaration without an answer is an operation that is not done. */
static int check_room(struct ps_agent_session *s, struct ps_str *why)
{
    struct ps_refusal refusal;

    if (ps_account_room(&s->account, PS_COST_OPERATIONS) > 0 ||
        ps_account_charge(&s->account, PS_COST_OPERATIONS, 1, &refusal) == 0) {
        return 0;
    }
    ps_refusal_text(&refusal, why);
    return PS_E_FULL;
}

static void add_asker(struct ps_agent_key *k, struct ps_agent_session *s,
                      uint64_t request)
{
    struct ps_agent_asker *asker = ps_calloc(1, sizeof(*asker));

    asker->session = s;
    asker->request = request;
    ps_list_push_back(&k->askers, &asker->node);
    ps_account_add(&s->account, PS_COST_OPERATIONS, 1);
}

void ps_agent_asker_free(struct ps_agent_asker *asker)
{
    ps_account_refund(&asker->session->account, PS_COST_OPERATIONS, 1);
    ps_free(asker);
}

static void add_name(struct ps_str *t, const char *name)
{
    ps_str_add(t, "key '");
    ps_str_add_escaped(t, name, strlen(name), PS_KEY_NAME_MAX);
    ps_str_add(t, "'");
}

/* A declaration that a limit forbids. */
static void refuse_key(struct ps_agent_step *st, struct ps_str *t,
                       const struct ps_msg_l_key *m,
                       const struct ps_refusal *why)
{
    const uint64_t bytes = m->count * ps_dtype_size(m->dtype);

    add_name(t, m->name);
    ps_str_add(t, ": ");
    if (why->cost == PS_COST_MEMORY) {
        ps_str_addf(t, "no memory for two results of %llu bytes on this node: ",
                    (unsigned long long)bytes);
    }
    ps_refusal_text(why, t);
    ps_effects_note(st->fx, PS_LOG_WARNING, "%s", t->data);
}

/* The key is opened, or goes. */
static void leave_opening(struct ps_agent_key *k)
{
    struct ps_agent_job *j = k->job;

    if (j->unasked == &k->node) {
        j->unasked = ps_list_next(&j->opening, &k->node);
    }
    if (k->asked) {
        k->asked = false;
        j->asked--;
    }
    ps_list_remove(&k->node);
}

/* Asks the scheduler for as many keys as may be asked for at a time. A key that
 * nobody here waits for any more is not asked for. */
static void ask_more(struct ps_agent_step *st, struct ps_agent_job *j)
{
    while (j->asked < PS_KEYS_ASKED_MAX && j->unasked != NULL) {
        struct ps_agent_key *k = PS_CONTAINER(j->unasked, struct ps_agent_key,
                                              node);

        if (ps_list_empty(&k->askers)) {
            ps_agent_key_free(st, st->a, k);
            continue;
        }
        j->unasked = ps_list_next(&j->opening, j->unasked);
        k->asked = true;
        j->asked++;
        ps_agent_key_offer(st, k);
    }
}

void ps_agent_key_ask(struct ps_agent_step *st, struct ps_agent_session *s,
                      const struct ps_msg_l_key *m)
{
    struct ps_agent_job *j = s->job;
    struct ps_agent_key *k;
    char text[PS_TEXT_MAX];
    struct ps_str t;
    int rc;

    ps_str_init(&t, text, sizeof(text));
    rc = check_room(s, &t);
    if (rc == 0) {
        rc = check_size(m, &t);
    }
    if (rc != 0) {
        answer(st, s, m->request, NULL, rc, text);
        return;
    }
    k = find_by_name(j, m->name);
    if (k != NULL && (k->dtype != m->dtype || k->count != m->count)) {
        ps_str_addf(&t,
                    "key '%s' was declared as %llu of %s and now as %llu of "
                    "%s: all workers must agree",
                    k->name, (unsigned long long)k->count,
                    ps_dtype_name(k->dtype), (unsigned long long)m->count,
                    ps_dtype_name(m->dtype));
        answer(st, s, m->request, NULL, PS_E_MISMATCH, text);
        return;
    }
    if (k != NULL && k->width != m->width) {
        ps_str_addf(&t,
                    "key '%s' was declared with rows of %u elements and now "
                    "with %u (0: not a key of rows): all workers must agree",
                    k->name, k->width, m->width);
        answer(st, s, m->request, NULL, PS_E_MISMATCH, text);
        return;
    }
    if (j->mode != PS_MODE_SYNC && m->width != 0) {
        answer(st, s, m->request, NULL, PS_E_UNSUPPORTED,
               "keys of rows have rounds, and an async or ssp job has none: "
               "open the job as dist_sync");
        return;
    }
    if (k != NULL && m->resumed && !ps_agent_resume_key(st, s, k, m->pushed)) {
        return;
    }
    if (k != NULL && k->open) {
        answer(st, s, m->request, k, 0, "");
        return;
    }
    if (k == NULL) {
        struct ps_refusal why;
        uint64_t charged;

        if (ps_agent_budget_key(j, m, &charged, &why) != 0) {
            refuse_key(st, &t, m, &why);
            answer(st, s, m->request, NULL,
                   why.cost == PS_COST_MEMORY ? PS_E_NOMEM : PS_E_FULL, text);
            return;
        }
        k = key_new(st, j, m->name, m);
        k->charged = charged;
        if (m->resumed && !ps_agent_resume_key(st, s, k, m->pushed)) {
            ps_agent_key_free(st, st->a, k);
            return;
        }
    } else if (m->find < k->find) {
        /* If this one makes it, that is an answer for all. */
        k->find = m->find;
        k->request = ++st->a->next_request;
        if (k->asked) {
            ps_agent_key_offer(st, k);
        }
    }
    add_asker(k, s, m->request);
    ask_more(st, j);
}

static void answer_askers(struct ps_agent_step *st, struct ps_agent_key *k,
                          int error, const char *text)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(&k->askers)) != NULL) {
        struct ps_agent_asker *asker = PS_CONTAINER(n, struct ps_agent_asker,
                                                    node);

        answer(st, asker->session, asker->request, k, error, text);
        ps_agent_asker_free(asker);
    }
}

/* ---------------------------------------------------------------- placement */

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
           (uint32_t)p[3] << 24;
}

/* Does a partition of so many elements travel in one frame, whatever is said
 * of it? Without servers none does. */
static bool fits_frames(const struct ps_agent_key *k, uint32_t count)
{
    if (k->width != 0) {
        return count % k->width == 0 &&
               count / k->width <= ps_rows_per_frame(k->width, k->dtype);
    }
    return k->job->num_servers == 0 ||
           count * (uint64_t)ps_dtype_state_size(k->dtype) <= PS_PAYLOAD_MAX;
}

/* Does the table cover the key exactly? */
static bool covers(const struct ps_agent_key *k,
                   const struct ps_msg_key_opened *m,
                   const struct ps_slice *payload)
{
    uint64_t total = 0;

    if (m->parts == 0 || m->parts > PS_KEY_PARTS_MAX || payload == NULL ||
        payload->buf == NULL || payload->len != 8 * (size_t)m->parts) {
        return false;
    }
    for (uint32_t i = 0; i < m->parts; i++) {
        uint32_t count = read_u32(ps_slice_data(payload) + 8 * i + 4);

        if (count == 0 || !fits_frames(k, count)) {
            return false;
        }
        total += count;
    }
    return total == k->count;
}

uint64_t ps_agent_key_result_bytes(uint64_t bytes)
{
    return 2 * ps_round_up(bytes, bytes >= RESULT_ALIGN ? RESULT_ALIGN : 64);
}

static int make_results(struct ps_agent_key *k)
{
    if (k->width != 0 || k->async) {
        return 0; /* They go where the worker wants them. */
    }
    /* One buffer for both, so that they lie in one arena. */
    uint64_t both = ps_agent_key_result_bytes(ps_agent_key_bytes(k));

    k->result_at[1] = both / 2;
    return ps_pool_get(k->job->results, both, &k->result);
}

static int set_parts(struct ps_agent_key *k, const struct ps_msg_key_opened *m,
                     const struct ps_slice *payload)
{
    const uint8_t *at = ps_slice_data(payload);
    uint64_t first = 0;

    k->parts = ps_try_calloc(m->parts, sizeof(*k->parts));
    if (k->parts == NULL) {
        return PS_E_NOMEM;
    }
    k->part_count = m->parts;
    for (uint32_t i = 0; i < m->parts; i++) {
        struct ps_agent_part *p = &k->parts[i];

        p->key = k;
        p->index = i;
        p->node = read_u32(at + 8 * i);
        p->count = read_u32(at + 8 * i + 4);
        p->first = first;
        p->committed = NONE;
        p->held = NONE;
        p->passed = NONE;
        p->told = NONE;
        p->asked = NONE;
        first += p->count;
    }
    return 0;
}

/* What the scheduler has opened needs a table and results here. 0, or why not
 * in `why`; then nothing is held but what the declaration has charged. */
static int take_opened(struct ps_agent_key *k,
                       const struct ps_msg_key_opened *m,
                       const struct ps_slice *payload, struct ps_str *why)
{
    char detail[PS_TEXT_MAX] = "";
    struct ps_refusal refusal;
    int rc = ps_compress_parse(m->compression, m->params, m->params_count,
                               &k->compress, detail, sizeof(detail));

    add_name(why, k->name);
    ps_str_add(why, ": ");
    if (rc != 0) {
        ps_str_add(why, detail[0] != '\0' ? detail : ps_strerror(rc));
        return rc;
    }
    if (!covers(k, m, payload)) {
        ps_str_add(why, "the scheduler's table of places does not cover it");
        return PS_E_PROTO;
    }
    rc = ps_agent_budget_parts(k, m->parts, &refusal);
    if (rc != 0) {
        ps_refusal_text(&refusal, why);
        return rc;
    }
    rc = make_results(k);
    if (rc == 0) {
        rc = set_parts(k, m, payload);
    }
    if (rc != 0) {
        ps_str_addf(why,
                    "no memory for two results of %llu bytes on this node (%s)",
                    (unsigned long long)ps_agent_key_bytes(k), ps_strerror(rc));
    }
    return rc;
}

static void opened(struct ps_agent_step *st, struct ps_agent_key *k,
                   const struct ps_msg_key_opened *m,
                   const struct ps_slice *payload)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;
    int rc;

    ps_str_init(&why, text, sizeof(text));
    rc = take_opened(k, m, payload, &why);
    if (rc != 0) {
        ps_effects_note(st->fx, PS_LOG_WARNING, "%s", text);
        answer_askers(st, k, rc, text);
        /* It is no load of servers, and nobody is to be told where it is. */
        ps_agent_up_tell(
            st, &(struct ps_msg){.code = PS_MSG_KEY_CLOSE,
                                 .key_close = {.gen = k->job->gen,
                                               .key = m->key,
                                               .request = m->request}});
        ps_agent_key_free(st, st->a, k);
        return;
    }
    leave_opening(k);
    k->open = true;
    k->number = m->key;
    k->epoch = m->epoch;
    ps_map_put(k->job->keys, k->number, k);
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].node != 0) {
            ps_agent_flow_get(st, k->job, k->parts[i].node);
        }
    }
    ps_agent_resume_opened(st, k);
    answer_askers(st, k, 0, "");
}

/* ----------------------------------------------------------------- takeover */

void ps_agent_key_resume(struct ps_agent_step *st, struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;
    struct ps_agent_flow *f = ps_agent_flow_get(st, k->job, p->node);
    struct ps_rec_part rec = {
        .key = k->number,
        .index = p->index,
        .round = p->held != NONE        ? (uint64_t)p->held
                 : p->committed != NONE ? (uint64_t)p->committed
                                        : 0,
        .dtype = k->dtype,
        .count = p->held != NONE ? p->count : 0,
        .salt = p->held != NONE && p->held == p->passed ? PS_PART_PASSED : 0};
    struct ps_msg m = {.code = PS_MSG_RESUME,
                       .resume = {.gen = k->job->gen,
                                  .epoch = k->epoch,
                                  .slot = k->job->slot,
                                  .held = p->held != NONE,
                                  .parts = &rec,
                                  .parts_count = 1,
                                  .made = p->committed != NONE,
                                  .committed = p->committed != NONE && !k->async
                                                   ? (uint64_t)p->committed
                                                   : 0}};
    struct ps_slice value = {0};

    p->restate = false;
    if (p->held != NONE) {
        value.buf = k->result;
        value.offset = k->result_at[p->held & 1] +
                       p->first * ps_dtype_size(k->dtype);
        value.len = ps_agent_part_bytes(p);
    }
    ps_link_send(f->server->caller.link,
                 ps_parcel_new(&m, &value, value.buf == NULL ? 0 : 1), st->now,
                 st->fx);
}

/* The round is merged where nobody answers any more, and its value did not
 * come here; but the arrays are still those of the round: it is offered again.
 * What was left over of codes is gone on with already. */
static bool reopen(struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (!k->active || !k->complete || p->init ||
        p->committed < (int64_t)k->round || p->held >= (int64_t)k->round ||
        k->compress.press.kind != PS_PRESS_NONE) {
        return false;
    }
    p->committed = k->round > 1 ? (int64_t)k->round - 1 : p->held;
    if (p->reached == k->round) {
        p->reached--;
        k->parts_open++;
    }
    return true;
}

static void moved(struct ps_agent_step *st, struct ps_agent_part *p,
                  uint32_t node)
{
    struct ps_agent_key *k = p->key;
    bool open = p->state != PS_AGENT_PART_IDLE;

    if ((k->width != 0 || k->async) && p->committed != NONE) {
        ps_agent_round_fail(st, k, PS_E_JOBFAILED,
                            k->async ? "a server was lost with values of this "
                                       "key, of which there is no other copy"
                                     : "a server was lost with rows of this "
                                       "key, of which there is no other copy");
        open = false;
    }
    ps_agent_send_unqueue(st, p);
    p->node = node;
    p->asked = NONE;
    p->moved = true;
    if (k->width == 0 && !k->async) {
        open = reopen(p) || ps_agent_init_reopen(p) || open;
    }
    ps_agent_key_resume(st, p);
    ps_agent_state_moved(st, p);
    if (open && (p->init || (k->active && k->complete))) {
        ps_agent_send_queue(st, p);
    }
}

static void placed_anew(struct ps_agent_step *st, struct ps_agent_key *k,
                        const struct ps_msg_key_opened *m,
                        const struct ps_slice *payload)
{
    const uint8_t *at;

    if (m->epoch <= k->epoch || m->parts != k->part_count ||
        !covers(k, m, payload)) {
        return;
    }
    k->epoch = m->epoch;
    at = ps_slice_data(payload);
    for (uint32_t i = 0; i < k->part_count; i++) {
        if (k->parts[i].count != read_u32(at + 8 * i + 4)) {
            return; /* Cuts never change. */
        }
    }
    for (uint32_t i = 0; i < k->part_count; i++) {
        uint32_t node = read_u32(at + 8 * i);

        if (node != k->parts[i].node && node != 0) {
            moved(st, &k->parts[i], node);
        }
    }
    ps_agent_quarrel_again(st, k, 0);
    ps_agent_pull_check(st, k);
}

static void early_free(struct ps_agent_early *e)
{
    ps_buf_unref(e->table);
    ps_free(e);
}

void ps_agent_key_forget_early(struct ps_agent_job *j)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_early *e;

    while ((e = ps_map_next(j->early, &c)) != NULL) {
        early_free(e);
    }
}

/* Links do not keep order: the newest placement waits for its key. */
static void keep_early(struct ps_agent_job *j,
                       const struct ps_msg_key_opened *m,
                       const struct ps_slice *payload)
{
    struct ps_agent_early *e = ps_map_get(j->early, m->key);

    if (ps_list_empty(&j->opening) || payload == NULL || payload->buf == NULL ||
        (e != NULL && e->epoch >= m->epoch)) {
        return; /* No key here waits for an answer, or this one is older. */
    }
    if (e != NULL) {
        early_free(ps_map_take(j->early, m->key));
    }
    e = ps_calloc(1, sizeof(*e));
    e->epoch = m->epoch;
    e->parts = m->parts;
    e->table = ps_buf_ref(payload->buf);
    ps_map_put(j->early, m->key, e);
}

static void apply_early(struct ps_agent_step *st, struct ps_agent_key *k)
{
    struct ps_agent_early *e = ps_map_take(k->job->early, k->number);

    if (e != NULL) {
        struct ps_msg_key_opened m = {.epoch = e->epoch, .parts = e->parts};
        struct ps_slice table = {.buf = e->table, .len = e->table->size};

        placed_anew(st, k, &m, &table);
        early_free(e);
    }
}

void ps_agent_key_opened(struct ps_agent_step *st,
                         const struct ps_msg_key_opened *m,
                         const struct ps_slice *payload)
{
    struct ps_agent_job *j = ps_agent_job_find(st->a, m->gen);
    struct ps_agent_key *k;

    if (j == NULL) {
        return;
    }
    if (m->request == 0) {
        k = ps_map_get(j->keys, m->key);
        if (k != NULL) {
            placed_anew(st, k, m, payload);
        } else {
            keep_early(j, m, payload);
        }
        return;
    }
    PS_LIST_EACH(n, &j->opening)
    {
        k = PS_CONTAINER(n, struct ps_agent_key, node);
        if (k->request != m->request) {
            continue;
        }
        if (m->error != 0) {
            answer_askers(st, k, m->error, m->text);
            ps_agent_key_free(st, st->a, k);
        } else if (ps_map_get(j->keys, m->key) == NULL) {
            opened(st, k, m, payload);
            k = ps_map_get(j->keys, m->key);
            if (k != NULL) {
                apply_early(st, k);
            }
        }
        ask_more(st, j);
        return;
    }
}

/* ---------------------------------------------------------------------- end */

/* Computations for it come back to nobody. */
static void forget_runs(struct ps_agent *a, const struct ps_agent_key *k)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_run *run;

    while ((run = ps_map_next(a->runs, &c)) != NULL) {
        if (run->part == NULL || run->part->key != k) {
            continue;
        }
        if (run->flow != NULL) {
            run->flow->summing -= run->bytes;
            run->flow->server->summing--;
            run->flow->server->summing_bytes -= run->bytes;
        }
        run->part = NULL;
        run->flow = NULL;
    }
}

static void free_ops(struct ps_list *list)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(list)) != NULL) {
        ps_agent_op_free(PS_CONTAINER(n, struct ps_agent_op, node));
    }
}

void ps_agent_key_free(struct ps_agent_step *st, struct ps_agent *a,
                       struct ps_agent_key *k)
{
    struct ps_list_node *n;

    (void)st;
    forget_runs(a, k);
    for (uint32_t i = 0; i < k->part_count; i++) {
        struct ps_agent_part *p = &k->parts[i];

        if (p->state == PS_AGENT_PART_QUEUED) {
            struct ps_agent_flow *f = ps_map_get(k->job->flows, p->node);

            ps_heap_remove(&f->queue, &p->item);
        }
        ps_agent_code_free(p);
    }
    while ((n = ps_list_pop(&k->askers)) != NULL) {
        ps_agent_asker_free(PS_CONTAINER(n, struct ps_agent_asker, node));
    }
    for (uint32_t i = 0; i < k->job->local_count; i++) {
        if (k->offer[i] != NULL) {
            ps_agent_op_free(k->offer[i]);
        }
    }
    free_ops(&k->parked);
    free_ops(&k->pulls);
    free_ops(&k->inits);
    free_ops(&k->row_pulls);
    free_ops(&k->stating);
    ps_buf_unref(k->init_array.buf);
    take_name(k->job, k);
    if (k->open) {
        ps_map_take(k->job->keys, k->number);
    } else {
        leave_opening(k);
    }
    k->job->key_count--;
    ps_agent_budget_key_gone(k);
    ps_buf_unref(k->result);
    ps_free(k->parts);
    ps_agent_quarrel_end(k);
    ps_agent_resume_forget(k);
    ps_free(k->pushed);
    ps_free(k->applied);
    ps_free(k->offer);
    ps_free(k->shape);
    ps_free(k);
}

struct ps_agent_part *ps_agent_part_named(const struct ps_agent *a,
                                          uint64_t gen,
                                          const struct ps_rec_part *rec)
{
    struct ps_agent_job *j = ps_agent_job_find(a, gen);
    struct ps_agent_key *k = j == NULL ? NULL : ps_map_get(j->keys, rec->key);

    return k != NULL && rec->index < k->part_count ? &k->parts[rec->index]
                                                   : NULL;
}

struct ps_agent_part *ps_agent_part_find(const struct ps_agent *a, uint64_t gen,
                                         const struct ps_rec_part *rec)
{
    struct ps_agent_part *p = ps_agent_part_named(a, gen, rec);

    return p != NULL && rec->dtype == p->key->dtype ? p : NULL;
}
