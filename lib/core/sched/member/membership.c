/* SPDX-License-Identifier: Apache-2.0 */
/* Membership: hello and its reply, members that fall silent, go and return.
 *
 * A hello makes a member ACTIVE. When its connection breaks, or it is silent
 * for suspect_after, it is SUSPECT; its next message makes it ACTIVE again.
 * After longer silence, or when another process takes its name, it is GONE, and
 * its jobs lose it. The same process may return and gets a fresh link. */
#include "core/sched/member/member.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/sched/inner.h"
#include "core/sched/job/run.h"
#include "core/sched/place/copies.h"
#include "core/sched/token.h"

#include <string.h>

/* Newest epoch that a member may know from an earlier scheduler: epochs go on
 * above it (rule G5), and must not overflow. */
#define EPOCH_MAX      (UINT32_MAX / 2)
/* Bytes of a placement message: of a key, and of each partition. */
#define KEY_HOT_BYTES  1024u
#define PART_HOT_BYTES 8u

/* ----------------------------------------------------------------- states */

static struct ps_sched_conn *member_conn(const struct ps_sched *s,
                                         const struct ps_member *m)
{
    return ps_member_is_connected(m)
               ? ps_map_get(s->conns, ps_link_conn(m->link))
               : NULL;
}

static void close_member_conn(struct ps_sched_step *st, struct ps_member *m)
{
    struct ps_sched_conn *c = member_conn(st->s, m);

    if (c != NULL) {
        ps_sched_conn_close(st, c);
        ps_link_close(m->link);
    }
}

/* Makes the member GONE; its jobs lose it. `is_silent`: for its silence alone. */
static void member_set_gone(struct ps_sched_step *st, struct ps_member *m,
                            bool is_silent, const char *why)
{
    close_member_conn(st, m);
    ps_member_drop_link(m);
    m->confirm_at = PS_TIME_NEVER;
    m->forget_at = ps_time_add(st->now, PS_MEMBER_GONE_RETENTION);
    ps_sched_move_member(st, m, PS_NODE_STATE_GONE, why);
    ps_sched_store_member(st->s, m);
    if (m->role == PS_ROLE_SERVER) {
        ps_sched_begin_epoch(st);
        ps_sched_jobs_lose_server(st, m, is_silent, why);
    } else {
        ps_sched_jobs_lose_agent(st, m, why);
    }
}

void ps_sched_member_on_refused(struct ps_member *m, const char *why)
{
    const char *name = strstr(why, " (");
    const size_t len = name != NULL ? (size_t)(name - why) : strlen(why);
    struct ps_str text;

    ps_str_init(&text, m->refusal, sizeof(m->refusal));
    ps_str_addf(&text, "%.*s", (int)len, why);
}

void ps_sched_member_on_closed(struct ps_sched_step *st, struct ps_member *m)
{
    ps_link_close(m->link);
    m->disconnected_at = st->now;
    if (m->state == PS_NODE_STATE_ACTIVE) {
        ps_sched_move_member(st, m, PS_NODE_STATE_SUSPECT, "connection lost");
    }
    ps_sched_probe_lost(st, m);
}

/* True: messages that the member has not acknowledged exceed the limit in
 * number or memory. The limit allows for all placements at once. */
static bool is_backlog_excessive(const struct ps_sched *s,
                                 const struct ps_link *l)
{
    const struct ps_account_cost *used = s->account.cost;
    const uint64_t keys = used[PS_COST_KEYS].used;
    const uint64_t tables = keys * KEY_HOT_BYTES +
                            used[PS_COST_PARTITIONS].used * PART_HOT_BYTES;
    const uint64_t max = s->opt.link.memory_max;

    return ps_link_unacked(l) > PS_BACKLOG_MAX + keys ||
           (max != 0 && ps_link_memory(l) > max + tables);
}

bool ps_sched_member_is_backlogged(struct ps_sched_step *st,
                                   struct ps_member *m)
{
    if (m->link == NULL || !is_backlog_excessive(st->s, m->link)) {
        return false;
    }
    ps_effects_log(st->fx, PS_LOG_WARNING,
                   "node %u cut off: it does not acknowledge messages",
                   m->node);
    ps_sched_event_member(st, m, "cut off", true,
                          "it does not acknowledge messages");
    if (ps_member_is_connected(m)) {
        close_member_conn(st, m);
        ps_sched_member_on_closed(st, m);
    }
    ps_member_drop_link(m);
    return true;
}

static void tick_member(struct ps_sched_step *st, struct ps_member *m)
{
    const struct ps_sched_options *o = &st->s->opt;

    if (m->link != NULL && !ps_sched_member_is_backlogged(st, m)) {
        ps_link_tick(m->link, st->now, st->fx);
    }
    if (m->disconnected_at != PS_TIME_NEVER &&
        ps_time_add(m->disconnected_at, o->link_linger) <= st->now) {
        ps_member_drop_link(m);
    }
    ps_sched_probe_tick(st, m);
    if (m->confirm_at <= st->now &&
        (m->link == NULL || m->disconnected_at != PS_TIME_NEVER) &&
        m->state != PS_NODE_STATE_GONE) {
        /* The agent is disconnected and cannot report its workers. */
        m->confirm_at = ps_time_add(st->now, o->dead_after);
    } else if (m->confirm_at <= st->now) {
        m->confirm_at = PS_TIME_NEVER;
        ps_sched_workers_drop_missing(st, m);
    }
}

/* True: a job has, or had, workers of this agent, or partitions on this
 * server. */
static bool member_has_job(const struct ps_sched *s, const struct ps_member *m)
{
    PS_MAP_EACH(const struct ps_sched_job, j, s->jobs)
    {
        if (ps_sched_job_has_agent(j, m->node) ||
            ps_sched_job_server_of(j, m->node) != NULL) {
            return true;
        }
    }
    return false;
}

static void remove_expired_members(struct ps_sched_step *st)
{
    struct ps_members *t = &st->s->members;
    uint32_t i = 0;

    while (i < t->count) {
        struct ps_member *m = t->sorted[i];

        if (m->forget_at > st->now) {
            i++;
        } else if (member_has_job(st->s, m)) {
            m->forget_at = ps_time_add(st->now, PS_MEMBER_GONE_RETENTION);
            i++;
        } else {
            ps_effects_log(st->fx, PS_LOG_INFO, "%s %s is forgotten",
                           ps_role_name(m->role), m->name);
            ps_sched_event_member(st, m, "forgotten", false, NULL);
            ps_sched_store_remove_member(st->s, m);
            ps_members_remove(t, m);
        }
    }
}

/* Adds why all peers refuse the member: for what its last connection was closed,
 * or because its certificate has ended, by what its last ping said. */
static void add_refusal(const struct ps_sched_step *st,
                        const struct ps_member *m, struct ps_str *why)
{
    const uint64_t end = m->last_ping.certificate_ends;

    if (m->refusal[0] != '\0') {
        ps_str_addf(why, "; %s", m->refusal);
    } else if (end != 0 && end <= ps_sched_wall_seconds(st)) {
        ps_str_add(why, "; its certificate has expired");
    }
}

/* Makes members SUSPECT and GONE whose leases are over, and asks witnesses. */
static void check_leases(struct ps_sched_step *st)
{
    const struct ps_sched_lease l = ps_sched_lease_tick(st);

    for (uint32_t i = 0; i < st->s->members.count; i++) {
        struct ps_member *m = st->s->members.sorted[i];
        struct ps_str why = PS_STR_ROOM(160);

        if (ps_sched_lease_check(st, &l, m, &why)) {
            add_refusal(st, m, &why);
            member_set_gone(st, m, true, why.data);
        }
        ps_sched_witness_tick(st, m);
    }
}

/* A server is ACTIVE now: jobs that lack one may have it. */
static void use_server(struct ps_sched_step *st)
{
    ps_sched_jobs_try_start(st);
    ps_sched_copies_name_all(st);
}

void ps_sched_member_on_message(struct ps_sched_step *st, struct ps_member *m)
{
    if (ps_sched_lease_on_message(st, m) && m->role == PS_ROLE_SERVER) {
        use_server(st);
    }
}

void ps_sched_on_probed(struct ps_sched_step *st, uint64_t target, int rc)
{
    struct ps_str why = PS_STR_ROOM(PS_ADDRESS_MAX + 80);
    struct ps_member *m;

    m = ps_sched_probe_result(st, target, rc, &why);
    if (m != NULL) {
        member_set_gone(st, m, false, why.data);
    }
}

void ps_sched_members_tick(struct ps_sched_step *st)
{
    for (uint32_t i = 0; i < st->s->members.count; i++) {
        tick_member(st, st->s->members.sorted[i]);
    }
    remove_expired_members(st);
    check_leases(st);
}

ps_time ps_sched_members_deadline(const struct ps_sched *s, ps_time now)
{
    const struct ps_sched_options *o = &s->opt;
    ps_time due = ps_sched_lease_deadline(s, now);

    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        due = ps_time_min(due, ps_time_min(m->confirm_at, m->probe.due_at));
        due = ps_time_min(due, m->forget_at);
        due = ps_time_min(due, ps_time_add(m->disconnected_at, o->link_linger));
        if (m->link != NULL) {
            due = ps_time_min(due, ps_link_deadline(m->link));
        }
    }
    return due;
}

/* ------------------------------------------------------------------ hello */

static void reject_hello(struct ps_sched_step *st, struct ps_sched_conn *c,
                         int rc, const char *text)
{
    ps_effects_log(st->fx, PS_LOG_WARNING, "hello from %s refused: %s",
                   c->peer_text, text);
    ps_effects_send_msg(st->fx, c->id,
                        &(struct ps_msg){
                            .code = PS_MSG_REJECT,
                            .reject = {.error = rc, .text = text},
                        });
    ps_sched_conn_close(st, c);
}

/* True: this user has as many tools connected as the limit allows. */
static bool user_has_too_many_tools(const struct ps_sched *s,
                                    const struct ps_sched_conn *c)
{
    uint32_t count = 0;

    if (!c->is_local || c->uid == 0 || c->uid == s->opt.uid) {
        return false;
    }
    PS_MAP_EACH(const struct ps_sched_conn, other, s->conns)
    {
        count += other->is_local && other->kind == PS_SCHED_CONN_CTL &&
                 other->uid == c->uid;
    }
    return count >= PS_CONTROL_USER_MAX;
}

/* 0, or an error code with the reason. */
static int check_hello(const struct ps_sched *s, bool local,
                       const struct ps_msg_hello *m, struct ps_str *why)
{
    if (m->protocol < PS_PROTOCOL_LEAST || m->protocol_least > PS_PROTOCOL) {
        ps_str_addf(why,
                    "this scheduler supports protocol %u to %u, the peer %u to "
                    "%u; run versions of pskv that overlap",
                    PS_PROTOCOL_LEAST, PS_PROTOCOL, m->protocol_least,
                    m->protocol);
        return PS_E_VERSION;
    }
    if (m->role != PS_ROLE_SERVER && m->role != PS_ROLE_AGENT &&
        m->role != PS_ROLE_CTL) {
        ps_str_addf(why, "role %s does not dial a scheduler",
                    ps_role_name(m->role));
        return PS_E_INVAL;
    }
    if (local && m->role != PS_ROLE_CTL) {
        ps_str_add(why, "this socket is for psctl only; members of the cluster "
                        "connect by TCP");
        return PS_E_PERM;
    }
    /* An operator's tool may omit the cluster name. */
    if (m->role == PS_ROLE_CTL && ps_str_or_empty(m->cluster)[0] == '\0') {
        return 0;
    }
    if (strcmp(ps_str_or_empty(m->cluster), s->opt.cluster) != 0) {
        ps_str_addf(why, "this scheduler is of cluster '%s', not '",
                    s->opt.cluster);
        ps_str_add_escaped(why, ps_str_or_empty(m->cluster),
                           strlen(ps_str_or_empty(m->cluster)), PS_NAME_MAX);
        ps_str_add(why, "'; check the address and the cluster's name");
        return PS_E_MISMATCH;
    }
    if (m->role == PS_ROLE_CTL) {
        return 0;
    }
    if (!ps_str_is_name(m->name, PS_NAME_MAX)) {
        ps_str_addf(why,
                    "a node's name has 1 to %u printable ASCII characters "
                    "without spaces",
                    PS_NAME_MAX);
        return PS_E_INVAL;
    }
    if (m->instance == 0) {
        ps_str_add(why, "instance must not be 0");
        return PS_E_INVAL;
    }
    if (m->epoch > EPOCH_MAX) {
        ps_str_addf(why, "epoch %u is none that a scheduler has reached",
                    m->epoch);
        return PS_E_INVAL;
    }
    if (m->role == PS_ROLE_SERVER && ps_str_or_empty(m->address)[0] == '\0') {
        ps_str_add(why,
                   "a server must state the address at which agents dial it");
        return PS_E_INVAL;
    }
    return 0;
}

/* Forgets one GONE member that no job refers to. False: there is none. */
static bool evict_gone_member(struct ps_sched *s)
{
    for (uint32_t i = 0; i < s->members.count; i++) {
        struct ps_member *m = s->members.sorted[i];

        if (m->state == PS_NODE_STATE_GONE && !member_has_job(s, m)) {
            ps_sched_store_remove_member(s, m);
            ps_members_remove(&s->members, m);
            return true;
        }
    }
    return false;
}

static uint32_t count_present_servers(const struct ps_sched *s)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->members.count; i++) {
        const struct ps_member *m = s->members.sorted[i];

        count += m->role == PS_ROLE_SERVER && m->state != PS_NODE_STATE_GONE;
    }
    return count;
}

/* Finds or adds the member of this name. 0, or an error code with the reason. */
static int admit_member(struct ps_sched *s, const struct ps_msg_hello *m,
                        struct ps_member **ret, struct ps_str *why)
{
    enum ps_role role = (enum ps_role)m->role;
    struct ps_member *member = ps_members_find(&s->members, role, m->name);
    const bool is_other = member != NULL && member->instance != m->instance;

    if (is_other && ps_member_was_replaced(member, m->instance)) {
        ps_str_addf(why,
                    "another process has taken the name '%s' since; give "
                    "each %s a name of its own",
                    m->name, ps_role_name(role));
        return PS_E_EXIST;
    }
    if (is_other && member->state == PS_NODE_STATE_ACTIVE &&
        ps_member_is_connected(member)) {
        ps_str_addf(why,
                    "the name '%s' is that of a running process at %s; give "
                    "each %s a name of its own, or end that one first",
                    m->name, member_conn(s, member)->peer_text,
                    ps_role_name(role));
        return PS_E_EXIST;
    }
    if (role == PS_ROLE_SERVER && count_present_servers(s) >= PS_SERVERS_MAX &&
        (member == NULL || member->state == PS_NODE_STATE_GONE)) {
        ps_str_addf(why, "the cluster has %u servers, which is the limit",
                    PS_SERVERS_MAX);
        return PS_E_FULL;
    }
    if (member == NULL && s->members.count >= PS_MEMBERS_MAX &&
        !evict_gone_member(s)) {
        ps_str_addf(why, "the cluster has %u members, which is the limit",
                    PS_MEMBERS_MAX);
        return PS_E_FULL;
    }
    *ret = member != NULL ? member : ps_members_add(&s->members, role, m->name);
    return 0;
}

/* Makes the connection carry the member's link. True: the link was resumed. */
static bool attach_conn(struct ps_sched_step *st, struct ps_sched_conn *c,
                        struct ps_member *member, const struct ps_msg_hello *m)
{
    struct ps_link_options link = st->s->opt.link;
    bool resumed;

    close_member_conn(st, member); /* The newest connection wins. */
    resumed = member->link != NULL && m->session != 0 &&
              m->session == member->session &&
              ps_link_is_resumable(member->link);
    if (!resumed) {
        ps_member_drop_link(member);
        link.counts_payload = true;
        link.ledger = &st->s->account;
        link.peer = member->name;
        member->link = ps_link_new(&link, &st->s->rng);
        member->session = m->session;
    }
    member->disconnected_at = PS_TIME_NEVER;
    ps_sched_lease_renew(st, member);
    c->member = member;
    c->kind = PS_SCHED_CONN_MEMBER;
    return resumed;
}

/* `member`: NULL for an operator's tool. */
static void send_welcome(struct ps_sched_step *st,
                         const struct ps_sched_conn *c,
                         const struct ps_member *member, bool resumed,
                         const struct ps_msg_hello *m)
{
    const struct ps_sched *s = st->s;
    struct ps_msg_welcome w = {
        .protocol = m->protocol < PS_PROTOCOL ? m->protocol : PS_PROTOCOL,
        .name = s->opt.name,
        .instance = s->opt.instance,
        .resumed = resumed,
        .heartbeat_ns = s->opt.heartbeat,
        .store = s->store.id,
    };

    if (member == NULL) {
        w.control = s->opt.control_path;
    } else {
        w.node = member->node;
        w.incarnation = member->incarnation;
        w.received = resumed ? ps_link_received(member->link) : 0;
    }
    ps_effects_send_msg(st->fx, c->id,
                        &(struct ps_msg){.code = PS_MSG_WELCOME, .welcome = w});
}

/* Keeps what the member states of itself. */
static void record_hello(struct ps_sched_step *st, struct ps_member *member,
                         const struct ps_msg_hello *m)
{
    const uint64_t own = ps_facts_wall_ns(&st->s->opt.facts, st->now);

    ps_msg_free(member->hello);
    member->hello = ps_msg_dup(
        &(struct ps_msg){.code = PS_MSG_HELLO, .hello = *m});
    member->clock_skew_ns = own != 0 && m->wall_ns != 0
                                ? (int64_t)(m->wall_ns - own)
                                : 0;
    member->refusal[0] = '\0';
}

/* Rule G5: a member that this process has not heard before knows an epoch from an
 * earlier one. Epochs go on above the greatest. */
static void note_epoch(struct ps_sched_step *st, struct ps_member *m,
                       uint32_t epoch)
{
    struct ps_sched *s = st->s;
    struct ps_str text = PS_STR_ROOM(PS_SCHED_EVENT_TEXT + 1);
    /* Another member may have heard of this process before. */
    const uint32_t known = m->grace.is_restored ? s->store.loaded_epoch
                                                : s->epoch;

    m->grace.is_restored = false;
    if (s->store.loaded_epoch == 0 || epoch <= known ||
        epoch <= s->store.logged_epoch) {
        return;
    }
    s->store.logged_epoch = epoch;
    ps_str_addf(&text,
                "state.file is older than the cluster (epoch %u, %s %s knows "
                "%u): what changed in between is not known here",
                s->store.loaded_epoch, ps_role_name(m->role), m->name, epoch);
    ps_effects_log(st->fx, PS_LOG_WARNING, "%s", text.data);
    ps_sched_event_own(st, "old file", true, text.data);
    if (s->epoch <= epoch) {
        s->epoch = epoch;
        ps_sched_begin_epoch(st);
    }
    ps_sched_copies_distrust(st);
}

static void accept_member(struct ps_sched_step *st, struct ps_sched_conn *c,
                          struct ps_member *member,
                          const struct ps_msg_hello *m)
{
    const char *address = ps_str_or_empty(m->address);
    bool has_changed = strcmp(member->address, address) != 0 ||
                       member->memory_limit != m->memory_limit;
    bool new_server;
    bool resumed;

    if (member->instance != m->instance) {
        if (member->instance != 0 && member->state != PS_NODE_STATE_GONE) {
            member_set_gone(st, member, false,
                            "another process has taken its name");
        }
        /* Above all of earlier schedulers, also if the file is an old one. */
        member->incarnation = ps_max_u64(member->incarnation,
                                         st->s->members.incarnation_base);
        ps_member_replace_instance(member, m->instance);
        has_changed = true;
    }
    if (member->state == PS_NODE_STATE_GONE) {
        member->forget_at = PS_TIME_NEVER;
        ps_sched_move_member(st, member, PS_NODE_STATE_JOINING, NULL);
        has_changed = true;
    }
    new_server = member->role == PS_ROLE_SERVER &&
                 (member->state == PS_NODE_STATE_JOINING ||
                  strcmp(member->address, address) != 0);
    if (strcmp(member->address, address) != 0) {
        ps_member_unreached(member);
    }
    ps_str_copy(member->address, sizeof(member->address), address);
    member->memory_limit = m->memory_limit;
    record_hello(st, member, m);
    note_epoch(st, member, m->epoch);
    if (has_changed) {
        ps_sched_store_member(st->s, member);
    }
    resumed = attach_conn(st, c, member, m);
    ps_sched_lease_end_grace(member);
    send_welcome(st, c, member, resumed, m);
    ps_link_open(member->link, c->id, resumed, m->received, st->now, st->fx);
    if (member->state != PS_NODE_STATE_ACTIVE) {
        ps_sched_move_member(st, member, PS_NODE_STATE_ACTIVE, NULL);
    }
    if (new_server) {
        ps_sched_begin_epoch(st);
    } else if (!resumed) {
        ps_sched_send_map(st, member);
    }
    if (!resumed) {
        ps_sched_jobs_on_fresh_link(st, member);
    }
    if (member->role == PS_ROLE_SERVER) {
        use_server(st);
    }
    ps_sched_probe_hello(st, member);
}

/* 0, or an error code with the reason: the tool is one too many of its user, or
 * its token does not count. */
static int admit_tool(struct ps_sched_step *st, struct ps_sched_conn *c,
                      const struct ps_msg_hello *m, struct ps_str *why)
{
    const char *token = ps_str_or_empty(m->token);

    if (user_has_too_many_tools(st->s, c)) {
        ps_str_addf(why,
                    "user %u has %u tools here, which is the limit; end some",
                    c->uid, PS_CONTROL_USER_MAX);
        return PS_E_FULL;
    }
    return *token != '\0' ? ps_sched_token_read(st, token, &c->token, why) : 0;
}

void ps_sched_on_hello(struct ps_sched_step *st, struct ps_sched_conn *c,
                       const struct ps_msg_hello *m)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct ps_member *member = NULL;
    int rc = check_hello(st->s, c->is_local, m, &why);

    if (rc == 0 &&
        !ps_peer_check_hello(&c->identity, st->s->opt.cluster, m, &why)) {
        rc = PS_E_PERM;
    }
    if (rc == 0) {
        rc = m->role == PS_ROLE_CTL ? admit_tool(st, c, m, &why)
                                    : admit_member(st->s, m, &member, &why);
    }
    if (rc != 0) {
        reject_hello(st, c, rc, why.data);
    } else if (member != NULL) {
        accept_member(st, c, member, m);
    } else {
        c->kind = PS_SCHED_CONN_CTL;
        send_welcome(st, c, NULL, false, m);
    }
}
