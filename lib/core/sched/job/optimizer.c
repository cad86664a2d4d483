/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations of a job's optimizer and compression, changes of the running
 * optimizer, and whether the job's servers record what they do. Each is made once;
 * every worker that asks for the same waits until all servers have taken it in. So
 * does an operator who changes the optimizer, or the job's weight. */
#include "core/sched/job/run.h"

#include "base/alloc.h"
#include "core/codec/compression.h"
#include "core/optim/optim.h"
#include "core/sched/inner.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- waiters */

void ps_sched_optimizer_done(struct ps_sched_step *st, struct ps_member *agent,
                             uint64_t gen, uint64_t request, int rc,
                             const char *text)
{
    ps_sched_send_msg(st, agent,
                      &(struct ps_msg){
                          .code = PS_MSG_OPTIMIZER_DONE,
                          .optimizer_done = {.gen = gen,
                                             .request = request,
                                             .error = rc,
                                             .text = text},
                      });
}

/* Publishes what was declared or changed; waiters wait for this version. */
static void publish_change(struct ps_sched_step *st, struct ps_sched_job *j)
{
    ps_sched_job_publish(st, j);
    j->waiters.version = j->version;
}

static const char too_many_waiters[] =
    "too many requests for the job's optimizer wait for its servers";

/* Adds a waiter; a repeated request waits once. False: the list is full. */
static bool add_waiter(struct ps_sched_job *j, const struct ps_sched_waiter *w)
{
    for (uint32_t i = 0; i < j->waiters.count; i++) {
        if (j->waiters.list[i].agent_node == w->agent_node &&
            j->waiters.list[i].request == w->request && w->ctl_conn == 0) {
            return true;
        }
    }
    if (j->waiters.count == PS_SCHED_WAITERS_MAX) {
        return false;
    }
    j->waiters.list = ps_realloc(j->waiters.list, (j->waiters.count + 1u) *
                                                      sizeof(*j->waiters.list));
    j->waiters.list[j->waiters.count++] = *w;
    return true;
}

/* Replies to an operator; PS_E_STALE if a key had passed the round before. */
static void reply_to_operator(struct ps_sched_step *st,
                              const struct ps_sched_job *j,
                              const struct ps_sched_waiter *w, int rc,
                              const char *reason)
{
    struct ps_sched_conn *c = ps_map_get(st->s->conns, w->ctl_conn);
    struct ps_str late = PS_STR_ROOM(PS_TEXT_MAX + 1);
    uint64_t newest = 0;

    if (c == NULL) {
        return;
    }
    for (uint32_t i = 0; i < j->servers.count; i++) {
        if (j->servers.list[i].newest_round > newest) {
            newest = j->servers.list[i].newest_round;
        }
    }
    if (rc == 0 && w->round != 0 && newest >= w->round) {
        ps_str_addf(&late,
                    "a key was at round %" PRIu64 " already: keys beyond round "
                    "%" PRIu64 " have the value from their next round on",
                    newest, w->round);
        rc = PS_E_STALE;
        reason = late.data;
    }
    ps_sched_conn_end_query(st, c, rc, reason);
}

void ps_sched_waiters_reply(struct ps_sched_step *st, struct ps_sched_job *j)
{
    bool open = ps_sched_job_is_open(j);
    int rc = open ? 0 : PS_E_JOBFAILED;
    const char *text = open                   ? NULL
                       : j->reason[0] != '\0' ? j->reason
                                              : "the job has ended";

    if (open && ps_sched_job_ready_version(j) < j->waiters.version) {
        return;
    }
    for (uint32_t i = 0; i < j->waiters.count; i++) {
        const struct ps_sched_waiter *w = &j->waiters.list[i];

        if (w->ctl_conn != 0) {
            reply_to_operator(st, j, w, rc, text);
        } else {
            ps_sched_optimizer_done(
                st, ps_members_get(&st->s->members, w->agent_node), j->gen,
                w->request, rc, text);
        }
    }
    j->waiters.count = 0;
}

void ps_sched_waiters_drop_agent(struct ps_sched_job *j, uint32_t agent)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < j->waiters.count; i++) {
        if (j->waiters.list[i].ctl_conn != 0 ||
            j->waiters.list[i].agent_node != agent) {
            j->waiters.list[kept++] = j->waiters.list[i];
        }
    }
    j->waiters.count = kept;
}

/* --------------------------------------------------------------- requests */

struct ps_sched_job *ps_sched_optimizer_find_job(struct ps_sched_step *st,
                                                 struct ps_member *agent,
                                                 uint64_t gen, uint64_t request)
{
    struct ps_sched_job *j = ps_sched_find_job(st->s, gen);
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    int rc;

    rc = ps_sched_job_check_agent(st->s, j, gen, agent, &why);
    if (rc != 0) {
        ps_sched_optimizer_done(st, agent, gen, request, rc, why.data);
        return NULL;
    }
    return j;
}

/* A worker's request about what its job computes. */
struct request {
    struct ps_sched_step *st;
    struct ps_member *agent;
    uint64_t number;
    struct ps_sched_job *j;
    struct ps_str why; /* Reason of a refusal. */
    char text[PS_TEXT_MAX + 1];
};

/* False: the request has been refused. */
static bool begin_request(struct request *r, struct ps_sched_step *st,
                          struct ps_member *agent, uint64_t gen,
                          uint64_t number)
{
    r->st = st;
    r->agent = agent;
    r->number = number;
    r->j = ps_sched_optimizer_find_job(st, agent, gen, number);
    ps_str_init(&r->why, r->text, sizeof(r->text));
    return r->j != NULL;
}

/* Refuses the request with `rc` and the reason, or replies when all servers have
 * the job's state; at once if they have it. */
static void end_request(struct request *r, int rc)
{
    const struct ps_sched_waiter w = {.agent_node = r->agent->node,
                                      .request = r->number};

    if (rc == 0 && add_waiter(r->j, &w)) {
        ps_sched_waiters_reply(r->st, r->j);
        return;
    }
    ps_sched_optimizer_done(r->st, r->agent, r->j->gen, r->number,
                            rc != 0 ? rc : PS_E_FULL,
                            rc != 0 ? r->text : too_many_waiters);
}

/* ----------------------------------------------------------- declarations */

/* Appends the number as %g, or with 17 digits if that does not restore it. */
static void append_number(struct ps_str *s, double v)
{
    char text[40];
    struct ps_str number;

    ps_str_init(&number, text, sizeof(text));
    ps_str_addf(&number, "%g", v);
    if (strtod(text, NULL) < v || strtod(text, NULL) > v) {
        ps_str_init(&number, text, sizeof(text));
        ps_str_addf(&number, "%.17g", v);
    }
    ps_str_add(s, text);
}

/* Appends a declaration as sgd(lr=0.1, momentum=0.9). */
static void append_declaration(struct ps_str *s,
                               const struct ps_sched_declaration *d)
{
    ps_str_add_escaped(s, d->name, strlen(d->name), 32);
    ps_str_add(s, "(");
    for (uint32_t i = 0; i < d->param_count; i++) {
        const char *what = ps_str_or_empty(d->params[i].name);

        ps_str_add(s, i > 0 ? ", " : "");
        ps_str_add_escaped(s, what, strlen(what), 32);
        ps_str_add(s, "=");
        append_number(s, d->params[i].value);
    }
    ps_str_add(s, ")");
}

static const char all_must_agree[] =
    "; all ranks of a job must declare the same";

static const char accumulation_conflict[] =
    "gradients of several rounds are accumulated without compression; declare "
    "a step of several rounds or a compression, not both";

/* Appends ", declared by rank 1 on HOST, and rank 0 on HOST declares ". */
static void append_declarers(struct ps_str *why, const struct ps_sched_job *j,
                             uint32_t first, uint32_t second)
{
    ps_str_add(why, ", declared by ");
    ps_sched_add_rank_text(j, first, why);
    if (first == second) {
        ps_str_add(why, ", which now declares ");
        return;
    }
    ps_str_add(why, ", and ");
    ps_sched_add_rank_text(j, second, why);
    ps_str_add(why, " declares ");
}

static const char *noun_of(const struct ps_sched_job *j,
                           const struct ps_sched_declaration *d)
{
    return d == &j->optimizer.declared ? "optimizer" : "compression";
}

/* Reserves memory for all keys, present and future, of a job with `what`. */
static int admit_profile(struct ps_sched_step *st, struct ps_sched_job *j,
                         const struct ps_demand_profile *kind, const char *what,
                         const char *name, struct ps_str *why)
{
    int rc;

    ps_str_addf(why, "%s ", what);
    ps_str_add_escaped(why, name, strlen(name), 32);
    rc = ps_sched_admission_set_profile(st, j, kind, why);
    if (rc == 0) {
        why->len = 0;
        why->data[0] = '\0';
    }
    return rc;
}

/* 0: a rank declares `d`, which is what the job has. */
static int compare_declarations(const struct ps_sched_job *j,
                                const struct ps_sched_declaration *had,
                                const struct ps_sched_declaration *d,
                                struct ps_str *why)
{
    if (!ps_sched_declaration_is_same(had, d)) {
        ps_str_addf(why, "job %s has %s ", j->name, noun_of(j, had));
        append_declaration(why, had);
        append_declarers(why, j, had->rank, d->rank);
        append_declaration(why, d);
        ps_str_add(why, all_must_agree);
        return PS_E_MISMATCH;
    }
    if (!ps_tunings_equal(had->tunings, had->tuning_count, d->tunings,
                          d->tuning_count)) {
        ps_str_addf(why,
                    "job %s has other lr_mult or wd_mult of its keys, declared "
                    "by ",
                    j->name);
        ps_sched_add_rank_text(j, had->rank, why);
        ps_str_add(why, ", than ");
        ps_sched_add_rank_text(j, d->rank, why);
        ps_str_add(why, all_must_agree);
        return PS_E_MISMATCH;
    }
    return 0;
}

static void set_declaration(const struct ps_sched_job *j,
                            struct ps_sched_declaration *at,
                            const struct ps_msg *msg)
{
    struct ps_str out = PS_STR_ROOM(PS_TEXT_MAX + 1);

    ps_sched_declaration_set(at, msg, j->opt.num_workers);
    append_declaration(&out, at);
    ps_str_copy(at->text, sizeof(at->text), out.data);
}

/* Gives the job the declaration, which can be had and is admitted. */
static void keep_declaration(struct ps_sched_step *st, struct ps_sched_job *j,
                             struct ps_sched_declaration *at,
                             const struct ps_msg *msg)
{
    set_declaration(j, at, msg);
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "job %s gen %" PRIu64 " %s %s", j->name, j->gen,
                       noun_of(j, at), at->text);
    publish_change(st, j);
}

/* A rank declares for the whole job: the first one by `set`, all others the
 * same; this ends or begins a disagreement. A rank that has declared what holds
 * and now declares something else is refused alone: no other rank waits for it
 * to agree. */
static void declare(struct request *r, struct ps_sched_declaration *at,
                    const struct ps_msg *msg,
                    int (*set)(struct ps_sched_step *st, struct ps_sched_job *j,
                               const struct ps_msg *msg, struct ps_str *why))
{
    const struct ps_sched_declaration d = ps_sched_declaration_of(msg);
    const int rc = at->name != NULL
                       ? compare_declarations(r->j, at, &d, &r->why)
                       : set(r->st, r->j, msg, &r->why);
    const bool is_known = d.rank < at->agreed.size;

    if (rc == 0) {
        if (is_known) {
            (void)ps_bits_set(&at->agreed, d.rank);
        }
        ps_sched_job_disagreement_end(r->st, r->j, d.rank);
    } else if (rc == PS_E_MISMATCH &&
               !(is_known && ps_bits_get(&at->agreed, d.rank))) {
        ps_sched_job_disagreement_begin(r->st, r->j, d.rank, r->text);
    }
    end_request(r, rc);
}

/* -------------------------------------------------------------- optimizer */

/* 0: the job, which has no optimizer, can have this one, written to *ret. */
static int check_optimizer(const struct ps_sched_job *j,
                           const struct ps_msg_optimizer_set *m,
                           struct ps_optim *ret, struct ps_str *why)
{
    const char *name = ps_str_or_empty(m->name);
    int rc;

    if (j->opt.num_servers == 0) {
        ps_str_addf(why,
                    "job %s has no servers, and an optimizer runs on servers; "
                    "ask for at least one",
                    j->name);
        return PS_E_UNSUPPORTED;
    }
    if (j->quota.profile.encodes_values) {
        ps_str_addf(why,
                    "job %s compresses values on their way back (both), and "
                    "with an optimizer these are weights",
                    j->name);
        return PS_E_UNSUPPORTED;
    }
    rc = ps_optim_parse(name, m->params, m->params_count, ret, why);
    if (rc == 0) {
        rc = ps_tunings_check(m->tunings, m->tunings_count, why);
    }
    if (rc != 0) {
        return rc;
    }
    if (j->opt.mode != PS_MODE_SYNC && ps_optim_needs_norms(ret)) {
        ps_str_addf(why,
                    "%s needs norms of whole arrays in a round; job %s is %s "
                    "and has no rounds",
                    name, j->name, ps_mode_name(j->opt.mode));
        return PS_E_UNSUPPORTED;
    }
    if (j->compression.name != NULL && ps_optim_rounds_per_step(ret) > 1) {
        ps_str_add(why, accumulation_conflict);
        return PS_E_UNSUPPORTED;
    }
    return 0;
}

/* Gives the job its optimizer. 0: done. */
static int set_optimizer(struct ps_sched_step *st, struct ps_sched_job *j,
                         const struct ps_msg *msg, struct ps_str *why)
{
    const struct ps_msg_optimizer_set *m = &msg->optimizer_set;
    const struct ps_compression none = {0}; /* Values are not compressed. */
    struct ps_demand_profile kind;
    struct ps_optim o;
    int rc = check_optimizer(j, m, &o, why);

    if (rc == 0) {
        ps_demand_profile_set(&kind, &o, &none);
        rc = admit_profile(st, j, &kind, "optimizer", ps_str_or_empty(m->name),
                           why);
    }
    if (rc == 0) {
        ps_tunings_set(&j->optimizer.tunings, m->tunings, m->tunings_count);
        ps_sched_norm_init(j, &o);
        keep_declaration(st, j, &j->optimizer.declared, msg);
    }
    return rc;
}

void ps_sched_on_optimizer_set(struct ps_sched_step *st,
                               struct ps_member *agent,
                               const struct ps_msg *msg)
{
    struct request r;

    if (begin_request(&r, st, agent, msg->optimizer_set.gen,
                      msg->optimizer_set.request)) {
        declare(&r, &r.j->optimizer.declared, msg, set_optimizer);
    }
}

/* ------------------------------------------------------------ compression */

/* Checks that the codes of all workers of a node fit into one message. */
static int check_per_worker(const struct ps_sched_job *j,
                            const struct ps_compression *c, struct ps_str *why)
{
    const uint64_t bytes = j->opt.placement == PS_PLACEMENT_MXNET
                               ? PS_PAYLOAD_MAX
                           : j->opt.partition_bytes != 0
                               ? j->opt.partition_bytes
                               : PS_PARTITION_BYTES_DEFAULT;
    const uint64_t code = ps_codec_bytes(&c->codec, bytes / sizeof(float));

    for (uint32_t i = 0; c->per_worker && i < j->slot_count; i++) {
        if (j->slots[i].ranks > PS_PAYLOAD_MAX / code) {
            ps_str_addf(why,
                        "job %s has %u workers on one node, and the codes of "
                        "at most %" PRIu64 " go into a message; declare "
                        "per_worker 0 or lower partition_bytes",
                        j->name, j->slots[i].ranks,
                        (uint64_t)(PS_PAYLOAD_MAX / code));
            return PS_E_UNSUPPORTED;
        }
    }
    return 0;
}

/* Keys whose rounds could be compressed: those of collectives never are. */
static uint32_t count_value_keys(const struct ps_sched_job *j)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < j->keys.count; i++) {
        const struct ps_sched_key *k = j->keys.list[i];

        n += k != NULL && k->kind != PS_KEY_KIND_COLLECTIVE;
    }
    return n;
}

/* 0: the job, which has no compression, can have this one, written to *ret. */
static int check_compression(const struct ps_sched_job *j,
                             const struct ps_msg_compression_set *m,
                             struct ps_compression *ret, struct ps_str *why)
{
    const char *name = ps_str_or_empty(m->name);
    const uint32_t keys = count_value_keys(j);
    int rc;

    if (j->opt.num_servers == 0) {
        ps_str_addf(why,
                    "job %s has no servers: there is no traffic to compress; "
                    "ask for at least one",
                    j->name);
        return PS_E_UNSUPPORTED;
    }
    if (keys > 0) {
        ps_sched_add_rank_text(j, m->rank, why);
        ps_str_addf(why,
                    " declares compression and job %s has %u keys already; "
                    "declare compression before the first of them on all ranks",
                    j->name, keys);
        return PS_E_INVAL;
    }
    if (*name == '\0') {
        ps_str_add(why, "a compression needs a name");
        return PS_E_INVAL;
    }
    rc = ps_compression_parse(name, m->params, m->params_count, ret, why);
    if (rc != 0) {
        return rc;
    }
    if (j->quota.profile.sum_buffers > 0) {
        ps_str_add(why, accumulation_conflict);
        return PS_E_UNSUPPORTED;
    }
    if (ret->bidirectional && j->optimizer.declared.name != NULL) {
        ps_str_addf(why,
                    "job %s has an optimizer, so values are weights, and both "
                    "would compress them",
                    j->name);
        return PS_E_UNSUPPORTED;
    }
    return check_per_worker(j, ret, why);
}

/* Gives the job its compression. 0: done. */
static int set_compression(struct ps_sched_step *st, struct ps_sched_job *j,
                           const struct ps_msg *msg, struct ps_str *why)
{
    const struct ps_msg_compression_set *m = &msg->compression_set;
    struct ps_demand_profile kind;
    struct ps_compression c;
    int rc = check_compression(j, m, &c, why);

    if (rc == 0 && j->optimizer.declared.name == NULL) {
        /* Beside an optimizer it needs no memory. */
        ps_demand_profile_set(&kind, NULL, &c);
        rc = admit_profile(st, j, &kind, "compression",
                           ps_str_or_empty(m->name), why);
    }
    if (rc == 0) {
        keep_declaration(st, j, &j->compression, msg);
    }
    return rc;
}

void ps_sched_on_compression_set(struct ps_sched_step *st,
                                 struct ps_member *agent,
                                 const struct ps_msg *msg)
{
    struct request r;

    if (begin_request(&r, st, agent, msg->compression_set.gen,
                      msg->compression_set.request)) {
        declare(&r, &r.j->compression, msg, set_compression);
    }
}

/* ------------------------------------------------------- of the file's jobs */

static int restore_optimizer(struct ps_sched_job *j, const struct ps_msg *msg,
                             struct ps_str *why)
{
    const struct ps_compression none = {0};
    struct ps_optim o;
    int rc = check_optimizer(j, &msg->optimizer_set, &o, why);

    if (rc == 0) {
        ps_demand_profile_set(&j->quota.profile, &o, &none);
        ps_sched_norm_init(j, &o);
        set_declaration(j, &j->optimizer.declared, msg);
    }
    return rc;
}

static int restore_compression(struct ps_sched_job *j, const struct ps_msg *msg,
                               struct ps_str *why)
{
    struct ps_compression c;
    int rc = check_compression(j, &msg->compression_set, &c, why);

    if (rc == 0 && j->optimizer.declared.name == NULL) {
        ps_demand_profile_set(&j->quota.profile, NULL, &c);
    }
    if (rc == 0) {
        set_declaration(j, &j->compression, msg);
    }
    return rc;
}

int ps_sched_declaration_restore(struct ps_sched_job *j,
                                 const struct ps_msg *msg, struct ps_str *why)
{
    const bool is_optimizer = msg->code == PS_MSG_OPTIMIZER_SET;

    if ((is_optimizer ? j->optimizer.declared.name : j->compression.name) !=
        NULL) {
        ps_str_add(why, "the job has declared it twice");
        return PS_E_EXIST;
    }
    return is_optimizer ? restore_optimizer(j, msg, why)
                        : restore_compression(j, msg, why);
}

/* ---------------------------------------------------------------- changes */

/* Adds a change and publishes it. 0: made now or before. */
static int add_change(struct ps_sched_step *st, struct ps_sched_job *j,
                      struct ps_rec_change c, struct ps_str *why)
{
    const struct ps_rec_change *had;
    int rc;

    if (j->optimizer.declared.name == NULL) {
        ps_str_addf(why, "job %s has no optimizer that could be changed",
                    j->name);
        return PS_E_INVAL;
    }
    rc = ps_optim_check_change(j->optimizer.declared.name, &c, &c.name, why);
    if (rc != 0) {
        return rc;
    }
    had = ps_changes_find(&j->optimizer.changes, c.name, c.round);
    if (had != NULL) {
        if (had->value == c.value) {
            return 0;
        }
        ps_str_addf(why, "%s of job %s is ", c.name, j->name);
        append_number(why, had->value);
        ps_str_addf(why, " from round %" PRIu64 " on, and now ", c.round);
        append_number(why, c.value);
        ps_str_add(why, " is requested; all workers must request the same");
        return PS_E_MISMATCH;
    }
    ps_changes_add(&j->optimizer.changes, &c);
    ps_str_addf(why, "job %s gen %" PRIu64 " %s ", j->name, j->gen, c.name);
    append_number(why, c.value);
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "%s from round %" PRIu64, why->data, c.round);
    publish_change(st, j);
    return 0;
}

void ps_sched_on_optimizer_change(struct ps_sched_step *st,
                                  struct ps_member *agent,
                                  const struct ps_msg *msg)
{
    const struct ps_msg_optimizer_change *m = &msg->optimizer_change;
    const struct ps_rec_change c = {
        .name = m->name, .value = m->value, .round = m->round};
    struct request r;

    if (begin_request(&r, st, agent, m->gen, m->request)) {
        end_request(&r, add_change(st, r.j, c, &r.why));
    }
}

/* 0 if the settings can be added to those of the job. */
static int check_tunings(const struct ps_sched_job *j,
                         const struct ps_msg_optimizer_tune *m,
                         struct ps_str *why)
{
    int rc;

    if (j->optimizer.declared.name == NULL) {
        ps_str_addf(why, "job %s has no optimizer that could be changed",
                    j->name);
        return PS_E_INVAL;
    }
    rc = ps_tunings_check(m->tunings, m->tunings_count, why);
    if (rc != 0) {
        return rc;
    }
    for (uint32_t i = 0; i < m->tunings_count; i++) {
        const struct ps_rec_tuning *t = &m->tunings[i];
        const struct ps_rec_tuning *had;

        if (t->round == 0) {
            ps_str_add(why, "multipliers change from a round on, and rounds "
                            "count from 1");
            return PS_E_INVAL;
        }
        had = ps_tunings_conflict(&j->optimizer.tunings, t);
        if (had != NULL) {
            ps_str_addf(why, "a key of job %s has lr_mult ", j->name);
            append_number(why, had->lr_mult);
            ps_str_add(why, " and wd_mult ");
            append_number(why, had->wd_mult);
            ps_str_addf(why, " from round %" PRIu64 " on, and now ", t->round);
            append_number(why, t->lr_mult);
            ps_str_add(why, " and ");
            append_number(why, t->wd_mult);
            ps_str_add(why,
                       " are requested; all workers must request the same");
            return PS_E_MISMATCH;
        }
    }
    return 0;
}

/* Adds settings of keys and publishes them. 0: added now or before. */
static int add_tunings(struct ps_sched_step *st, struct ps_sched_job *j,
                       const struct ps_msg_optimizer_tune *m,
                       struct ps_str *why)
{
    bool changed = false;
    int rc = check_tunings(j, m, why);

    if (rc != 0) {
        return rc;
    }
    rc = ps_tunings_add(&j->optimizer.tunings, m->tunings, m->tunings_count,
                        &changed, why);
    if (rc != 0) {
        return rc;
    }
    if (changed) {
        ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                           "job %s gen %" PRIu64 " lr_mult, wd_mult of %u keys "
                           "from round %" PRIu64,
                           j->name, j->gen, m->tunings_count,
                           m->tunings[0].round);
        publish_change(st, j);
    }
    return 0;
}

void ps_sched_on_optimizer_tune(struct ps_sched_step *st,
                                struct ps_member *agent,
                                const struct ps_msg *msg)
{
    const struct ps_msg_optimizer_tune *m = &msg->optimizer_tune;
    struct request r;

    if (begin_request(&r, st, agent, m->gen, m->request)) {
        end_request(&r, add_tunings(st, r.j, m, &r.why));
    }
}

/* -------------------------------------------------------------- recordings */

/* The job's state turns recordings of what its servers do on and off. */
void ps_sched_on_profile_set(struct ps_sched_step *st, struct ps_member *agent,
                             const struct ps_msg *msg)
{
    const struct ps_msg_profile_set *m = &msg->profile_set;
    struct ps_sched_profile *p;
    struct request r;

    if (!begin_request(&r, st, agent, m->gen, m->request)) {
        return;
    }
    p = &r.j->observed.profile;
    /* Only what has begun can pause. */
    if (m->mode != p->mode &&
        (m->mode != PS_PROFILE_MODE_PAUSED || p->mode != PS_PROFILE_MODE_OFF)) {
        p->number += p->mode == PS_PROFILE_MODE_OFF;
        p->mode = m->mode;
        ps_effects_log_for(st->fx, &r.j->account, PS_LOG_INFO,
                           "job %s gen %" PRIu64 " profile %s", r.j->name,
                           r.j->gen, ps_profile_mode_name(m->mode));
        publish_change(st, r.j);
    }
    end_request(&r, 0);
}

/* -------------------------------------------------------------- operators */

/* Answers an operator when all servers have the job's state; `round` is the
 * first one that it concerns, 0: none. */
static void await_for_operator(struct ps_sched_step *st,
                               struct ps_sched_conn *c, struct ps_sched_job *j,
                               uint64_t round)
{
    if (!add_waiter(
            j, &(struct ps_sched_waiter){.ctl_conn = c->id, .round = round})) {
        ps_sched_conn_end_query(st, c, PS_E_FULL, too_many_waiters);
        return;
    }
    ps_sched_waiters_reply(st, j);
}

void ps_sched_job_change_param(struct ps_sched_step *st,
                               struct ps_sched_conn *c, struct ps_sched_job *j,
                               const struct ps_msg_job_set *m)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    int rc;

    rc = add_change(st, j,
                    (struct ps_rec_change){
                        .name = m->name, .value = m->value, .round = m->round},
                    &why);
    if (rc != 0) {
        ps_sched_conn_end_query(st, c, rc, why.data);
    } else {
        await_for_operator(st, c, j, m->round);
    }
}

void ps_sched_job_change_weight(struct ps_sched_step *st,
                                struct ps_sched_conn *c, struct ps_sched_job *j,
                                uint32_t weight)
{
    if (j->weight != weight) {
        ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                           "job %s gen %" PRIu64 " weight %u, was %u", j->name,
                           j->gen, weight, j->weight);
        j->weight = weight;
        /* Before the start, the first state has it. */
        if (ps_sched_job_has_started(j)) {
            publish_change(st, j);
        }
    }
    await_for_operator(st, c, j, 0);
}
