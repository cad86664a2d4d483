/* SPDX-License-Identifier: Apache-2.0 */
/* The connections that give way: those with too much output, and those without a
 * handshake. */
#include "core/link/output.h"

#include "base/alloc.h"
#include "base/num.h"

#include <assert.h>
#include <inttypes.h>

/* ------------------------------------------------------------------ output */

/* Divisor: one user's part of the total. */
#define USER_SHARE_DIV 4u

/* Divisor: part of a connection's limit from which error texts are short. */
#define WORDY_SHARE    4u

/* Key of tools by TCP among the users: no uid. */
#define UNKNOWN_UID    (UINT64_C(1) << 32)

struct ps_output_user {
    struct ps_account account;
    uint64_t uid;
    uint32_t connections;
};

static void set_limit(struct ps_account_limits *limits, uint64_t max,
                      const char *option)
{
    limits->limit[PS_COST_OUTPUT] = (struct ps_account_limit){.max = max,
                                                              .option = option};
}

void ps_output_init(struct ps_output *o, const struct ps_output_options *opt)
{
    const uint64_t total = opt->total != 0 ? opt->total
                                           : PS_OUTPUT_TOTAL_DEFAULT;

    *o = (struct ps_output){.opt = *opt};
    if (opt->evict_min == 0) {
        o->opt.evict_min = PS_RESERVE_EVICT_MIN;
    }
    set_limit(&o->caller_limits,
              opt->caller != 0 ? opt->caller : PS_OUTPUT_DEFAULT,
              "limits.output");
    set_limit(&o->link_limits,
              opt->link != 0 ? opt->link : PS_OUTPUT_LINK_DEFAULT,
              "limits.link_output");
    set_limit(&o->user_limits, ps_max_u64(total / USER_SHARE_DIV, 1),
              "a quarter of limits.output_total");
    set_limit(&o->total_limits, total, "limits.output_total");
    o->users = ps_map_new();
    ps_list_init(&o->conns);
    ps_account_init(&o->total, PS_ACCOUNT_DAEMON, "output", &o->total_limits);
    if (opt->machine->account != NULL) {
        ps_account_add_parent(&o->total, opt->machine->account);
    }
}

void ps_output_fini(struct ps_output *o)
{
    assert(ps_list_empty(&o->conns) && ps_map_count(o->users) == 0);
    ps_map_free(o->users);
    ps_account_fini(&o->total);
}

/* ------------------------------------------------------------- connections */

static void attach_user(struct ps_output_conn *c, uint64_t uid)
{
    struct ps_output *o = c->output;
    struct ps_output_user *u = ps_map_get(o->users, uid);

    if (u == NULL) {
        u = ps_calloc(1, sizeof(*u));
        u->uid = uid;
        struct ps_str s = PS_STR_ROOM(32);

        if (uid == UNKNOWN_UID) {
            ps_str_add(&s, "unknown (tools by TCP)");
        } else {
            ps_str_addf(&s, "%" PRIu64, uid);
        }
        ps_account_init(&u->account, PS_ACCOUNT_USER, s.data, &o->user_limits);
        ps_account_add_parent(&u->account, &o->total);
        ps_map_put(o->users, uid, u);
    }
    u->connections++;
    c->user = u;
    ps_account_add_parent(&c->account, &u->account);
}

void ps_output_add(struct ps_output *o, struct ps_output_conn *c,
                   const struct ps_event *open)
{
    const bool local = open->open.kind == PS_CONN_LOCAL;

    *c = (struct ps_output_conn){
        .output = o, .id = open->conn, .kind = open->open.kind};
    /* A dialled peer is a daemon; an accepted one has the lower limit until its
     * hello. */
    ps_account_init(&c->account, local ? PS_ACCOUNT_SESSION : PS_ACCOUNT_PEER,
                    open->open.peer,
                    c->kind == PS_CONN_DIALLED ? &o->link_limits
                                               : &o->caller_limits);
    if (local) {
        attach_user(c, open->open.uid);
    }
    ps_account_add_parent(&c->account, &o->total);
    ps_list_push_back(&o->conns, &c->node);
}

void ps_output_on_hello(struct ps_output_conn *c, enum ps_role role)
{
    if (c->kind != PS_CONN_ACCEPTED) {
        return;
    }
    if (role != PS_ROLE_CTL) {
        c->account.limits = &c->output->link_limits;
    } else if (c->user == NULL) {
        attach_user(c, UNKNOWN_UID);
    }
}

void ps_output_finish(struct ps_output_conn *c)
{
    c->is_closing = true;
}

void ps_output_abort(struct ps_output_conn *c)
{
    c->is_closing = true;
    ps_account_set_used(&c->account, PS_COST_OUTPUT, 0);
}

static void detach_user(struct ps_output *o, struct ps_output_user *u)
{
    if (--u->connections == 0) {
        (void)ps_map_remove(o->users, u->uid);
        ps_account_fini(&u->account);
        ps_free(u);
    }
}

void ps_output_remove(struct ps_output_conn *c)
{
    struct ps_output *o = c->output;

    if (!ps_list_linked(&c->node)) {
        return;
    }
    ps_list_remove(&c->node);
    ps_account_set_used(&c->account, PS_COST_OUTPUT, 0);
    ps_account_fini(&c->account);
    if (c->user != NULL) {
        detach_user(o, c->user);
        c->user = NULL;
    }
    if (o->evicted == c) {
        o->evicted = NULL;
    }
}

/* ---------------------------------------------------------- queued output */

static uint64_t queued_memory(const struct ps_output_conn *c)
{
    return c->account.cost[PS_COST_OUTPUT].used;
}

void ps_output_shorten(const struct ps_output_conn *c, struct ps_msg *msg)
{
    if (msg->code == PS_MSG_L_DONE && msg->l_done.error != 0 &&
        queued_memory(c) >
            c->account.limits->limit[PS_COST_OUTPUT].max / WORDY_SHARE) {
        msg->l_done.text = "others failed before it, and say why";
    }
}

/* Connection with the largest share of a full account: of `user`, or NULL: of
 * the daemon. `c` counts with its new request. */
static struct ps_output_conn *find_heaviest(struct ps_output_conn *c,
                                            uint64_t request,
                                            const struct ps_output_user *user)
{
    struct ps_output_conn *most = c;
    uint64_t held = request;

    PS_LIST_EACH_OF(struct ps_output_conn, other, node, &c->output->conns)
    {
        if ((user == NULL || other->user == user) &&
            queued_memory(other) > held) {
            most = other;
            held = queued_memory(other);
        }
    }
    return most;
}

/* Chooses the connection to close because `c` may not queue `request`. */
static void close_for_output(struct ps_output_conn *c, uint64_t request,
                             const struct ps_refusal *why,
                             struct ps_output_close *ret_close)
{
    const bool alone = why->kind == PS_ACCOUNT_SESSION ||
                       why->kind == PS_ACCOUNT_PEER;
    struct ps_str s;

    ret_close->conn = c;
    ret_close->rc = PS_E_FULL;
    if (!alone) {
        ret_close->conn = find_heaviest(
            c, request, why->kind == PS_ACCOUNT_USER ? c->user : NULL);
    }
    ps_str_init(&s, ret_close->text, sizeof(ret_close->text));
    ps_str_add(&s, "peer does not read: ");
    ps_refusal_text(why, &s);
    ps_output_abort(ret_close->conn);
}

bool ps_output_update(struct ps_output_conn *c, uint64_t queued,
                      struct ps_output_close *ret_close)
{
    const uint64_t before = queued_memory(c);
    struct ps_refusal why;

    if (queued < before) {
        ps_account_set_used(&c->account, PS_COST_OUTPUT, queued);
    } else if (queued > before &&
               ps_account_charge(&c->account, PS_COST_OUTPUT, queued - before,
                                 &why) != 0) {
        close_for_output(c, queued, &why, ret_close);
        return true;
    }
    return false;
}

/* -------------------------------------------------------- memory is used up */

static uint64_t total_memory(const struct ps_output_conn *c)
{
    const struct ps_machine *m = c->output->opt.machine;

    return queued_memory(c) + (m->ops->peer_memory == NULL
                                   ? 0
                                   : m->ops->peer_memory(m->self, c->id));
}

bool ps_output_evict(struct ps_output *o, struct ps_output_close *ret_close)
{
    uint64_t least = o->opt.evict_min;
    struct ps_str s;

    ret_close->conn = NULL;
    PS_LIST_EACH_OF(struct ps_output_conn, c, node, &o->conns)
    {
        if (!c->is_closing && total_memory(c) >= least) {
            ret_close->conn = c;
            least = total_memory(c) + 1;
        }
    }
    if (ret_close->conn == NULL) {
        return false;
    }
    ret_close->rc = PS_E_NOMEM;
    ps_str_init(&s, ret_close->text, sizeof(ret_close->text));
    ps_str_addf(&s,
                "this %s is out of memory, and this connection holds most of "
                "it: %" PRIu64 " MiB",
                ps_role_name(o->opt.self), (least - 1) >> 20);
    o->evicted = ret_close->conn;
    ps_output_abort(ret_close->conn);
    return true;
}

/* -------------------------------------------------------------- handshakes */

void ps_pre_handshake_init(struct ps_pre_handshake *p, uint32_t max)
{
    *p = (struct ps_pre_handshake){.max = max};
    ps_list_init(&p->conns);
}

/* Places from which on a source makes room by its own connections. */
static uint32_t share_of(uint32_t max)
{
    return max / 4 > 0 ? max / 4 : 1;
}

static void make_room(struct ps_pre_handshake *p, uint64_t source,
                      struct ps_effects *fx)
{
    struct ps_pre_handshake_conn *oldest = NULL;
    struct ps_pre_handshake_conn *own = NULL;
    uint32_t count = 0;

    PS_LIST_EACH_OF(struct ps_pre_handshake_conn, c, node, &p->conns)
    {
        if (c->is_evicted) {
            continue;
        }
        oldest = oldest != NULL ? oldest : c;
        if (c->source == source) {
            own = own != NULL ? own : c;
            count++;
        }
    }
    if (count >= share_of(p->max)) {
        oldest = own;
    }
    if (oldest != NULL) {
        oldest->is_evicted = true;
        ps_effects_abort(fx, oldest->id, PS_E_FULL,
                         "too many connections before the handshake");
    }
}

void ps_pre_handshake_add(struct ps_pre_handshake *p,
                          struct ps_pre_handshake_conn *c,
                          struct ps_effects *fx)
{
    if (p->count >= p->max) {
        make_room(p, c->source, fx);
    }
    c->is_evicted = false;
    c->node = (struct ps_list_node){0};
    ps_list_push_back(&p->conns, &c->node);
    p->count++;
}

void ps_pre_handshake_remove(struct ps_pre_handshake *p,
                             struct ps_pre_handshake_conn *c)
{
    if (ps_list_linked(&c->node)) {
        ps_list_remove(&c->node);
        p->count--;
    }
}
