/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the output that waits for peers. Each connection has an account,
 * which counts at its user's (workers of one uid; all tools that
 * connect by TCP, whose user is unknown) and at the daemon's. A connection that
 * exceeds its own limit is closed. Where the user's or the daemon's limit is
 * reached, the connection that holds most of that account is closed, so that no
 * other peer pays for one that does not read. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/num.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* Divisor: one user's part of the total. */
#define USER_SHARE_DIV 4u

/* Divisor: part of a connection's limit from which error texts are short. */
#define WORDY_SHARE    4u

/* Key of tools by TCP among the users: no uid. */
#define UNKNOWN_UID    (UINT64_C(1) << 32)

struct output_user {
    struct ps_account account;
    uint64_t uid;
    uint32_t connections;
};

static void set_output_limit(struct ps_account_limits *limits, uint64_t max,
                             const char *option)
{
    limits->limit[PS_COST_OUTPUT] = (struct ps_account_limit){.max = max,
                                                              .option = option};
}

void driver_output_init(struct ps_driver *d)
{
    const struct ps_driver_options *opt = &d->opt;
    uint64_t total = opt->output_total != 0 ? opt->output_total
                                            : PS_OUTPUT_TOTAL_DEFAULT;

    set_output_limit(&d->output.caller_limits,
                     opt->output != 0 ? opt->output : PS_OUTPUT_DEFAULT,
                     "limits.output");
    set_output_limit(&d->output.link_limits,
                     opt->link_output != 0 ? opt->link_output
                                           : PS_OUTPUT_LINK_DEFAULT,
                     "limits.link_output");
    set_output_limit(&d->output.user_limits,
                     ps_max_u64(total / USER_SHARE_DIV, 1),
                     "a quarter of limits.output_total");
    set_output_limit(&d->output.total_limits, total, "limits.output_total");
    d->output.users = ps_map_new();
    ps_account_init(&d->output.total, PS_ACCOUNT_DAEMON, "output",
                    &d->output.total_limits);
    if (opt->machine.account != NULL) {
        ps_account_add_parent(&d->output.total, opt->machine.account);
    }
}

void driver_output_fini(struct ps_driver *d)
{
    assert(ps_map_count(d->output.users) == 0);
    ps_map_free(d->output.users);
    ps_account_fini(&d->output.total);
}

static void attach_user(struct daemon_conn *c, uint64_t uid)
{
    struct ps_driver *d = c->driver;
    struct output_user *u = ps_map_get(d->output.users, uid);
    char name[32] = "unknown (tools by TCP)";

    if (u == NULL) {
        u = ps_calloc(1, sizeof(*u));
        u->uid = uid;
        if (uid != UNKNOWN_UID) {
            snprintf(name, sizeof(name), "%" PRIu64, uid);
        }
        ps_account_init(&u->account, PS_ACCOUNT_USER, name,
                        &d->output.user_limits);
        ps_account_add_parent(&u->account, &d->output.total);
        ps_map_put(d->output.users, uid, u);
    }
    u->connections++;
    c->user = u;
    ps_account_add_parent(&c->account, &u->account);
}

void driver_output_open(struct daemon_conn *c, const struct ps_event *ev)
{
    struct ps_driver *d = c->driver;
    bool local = c->kind == PS_CONN_LOCAL;

    /* A dialled peer is a daemon; an accepted one has the lower limit until its
     * hello. */
    ps_account_init(&c->account, local ? PS_ACCOUNT_SESSION : PS_ACCOUNT_PEER,
                    ps_conn_peer(c->conn),
                    c->kind == PS_CONN_DIALLED ? &d->output.link_limits
                                               : &d->output.caller_limits);
    if (local) {
        attach_user(c, ev->open.uid);
    }
    ps_account_add_parent(&c->account, &d->output.total);
}

void driver_output_greeted(struct daemon_conn *c)
{
    if (c->kind != PS_CONN_ACCEPTED) {
        return;
    }
    if (ps_conn_peer_role(c->conn) == PS_ROLE_CTL) {
        attach_user(c, UNKNOWN_UID);
    } else {
        c->account.limits = &c->driver->output.link_limits;
    }
}

void driver_output_closed(struct daemon_conn *c)
{
    struct output_user *u = c->user;

    ps_account_set_used(&c->account, PS_COST_OUTPUT, 0);
    ps_account_fini(&c->account);
    if (u != NULL && --u->connections == 0) {
        (void)ps_map_remove(c->driver->output.users, u->uid);
        ps_account_fini(&u->account);
        ps_free(u);
    }
}

static uint64_t queued_memory(const struct daemon_conn *c)
{
    return c->account.cost[PS_COST_OUTPUT].used;
}

bool driver_output_is_long(const struct daemon_conn *c)
{
    return queued_memory(c) >
           c->account.limits->limit[PS_COST_OUTPUT].max / WORDY_SHARE;
}

/* Connection with the largest share of a full account. */
static struct daemon_conn *find_heaviest(struct ps_driver *d,
                                         const struct output_user *user)
{
    struct ps_map_cursor at = {0};
    struct daemon_conn *most = NULL;
    struct daemon_conn *c;

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        if ((user == NULL || c->user == user) &&
            (most == NULL || queued_memory(c) > queued_memory(most))) {
            most = c;
        }
    }
    return most;
}

void driver_reject(struct daemon_conn *c, int rc, const char *text)
{
    const struct ps_msg reject = {.code = PS_MSG_REJECT,
                                  .reject = {.error = rc, .text = text}};
    const struct ps_conn_frame frame = {
        .msg = &reject, .pass_fd = -1, .is_urgent = true};

    if (c->kind != PS_CONN_DIALLED && ps_conn_send(c->conn, &frame) == 0) {
        (void)ps_conn_flush(c->conn);
    }
    ps_conn_close(c->conn, rc, text);
    /* Released early: the close callback frees the memory very soon. */
    ps_account_set_used(&c->account, PS_COST_OUTPUT, 0);
}

static void cut_heaviest(struct daemon_conn *c, const struct ps_refusal *why)
{
    char text[PS_TEXT_MAX];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_str_add(&s, "peer does not read: ");
    ps_refusal_text(why, &s);
    driver_reject(c, PS_E_FULL, text);
}

/* -------------------------------------------------------- memory is used up */

static uint64_t total_queued_memory(const struct daemon_conn *c)
{
    const struct ps_machine *m = &c->driver->opt.machine;

    return queued_memory(c) + (m->ops->peer_memory == NULL
                                   ? 0
                                   : m->ops->peer_memory(m->self, c->id));
}

/* Closes the connection that holds most; 0: none holds much. */
static ps_conn_id evict_heaviest(struct ps_driver *d)
{
    struct ps_map_cursor at = {0};
    struct daemon_conn *most = NULL;
    struct daemon_conn *c;
    uint64_t least = PS_RESERVE_EVICT_MIN;
    char text[PS_TEXT_MAX];

    while ((c = ps_map_next(d->conns, &at)) != NULL) {
        if (ps_conn_is_open(c->conn) && total_queued_memory(c) >= least) {
            most = c;
            least = total_queued_memory(c) + 1;
        }
    }
    if (most == NULL) {
        return 0;
    }
    snprintf(text, sizeof(text),
             "this %s is out of memory, and this connection holds most of it: "
             "%" PRIu64 " MiB",
             ps_role_name(d->opt.self), total_queued_memory(most) >> 20);
    driver_reject(most, PS_E_NOMEM, text);
    return most->id;
}

/* Refills the reserve, as large as possible. */
static bool refill_reserve(void)
{
    for (size_t size = PS_RESERVE_BYTES; size >= PS_RESERVE_EVICT_MIN;
         size /= 2) {
        if (ps_alloc_reserve(size)) {
            return true;
        }
    }
    return false;
}

void driver_relieve(struct ps_driver *d)
{
    if (!ps_alloc_is_starved() ||
        (d->output.relieved != 0 &&
         ps_map_get(d->conns, d->output.relieved) != NULL)) {
        return;
    }
    if (ps_alloc_reserve(PS_RESERVE_BYTES)) {
        d->output.relieved = 0;
        ps_log_of(LOG_MEMORY, PS_LOG_WARNING,
                  "memory was used up, and there is some again");
        return;
    }
    d->output.relieved = evict_heaviest(d);
    if (d->output.relieved == 0 && refill_reserve()) {
        ps_log_of(LOG_MEMORY, PS_LOG_WARNING,
                  "memory is nearly used up, and no peer holds much of it");
    }
}

/* ----------------------------------------------------------- waiting output */

void driver_output_update(struct daemon_conn *c)
{
    uint64_t now = ps_conn_memory(c->conn);
    struct ps_refusal why;

    if (!ps_conn_is_open(c->conn)) {
        return; /* It writes its remaining output, and closes. */
    }
    while (now > queued_memory(c) &&
           ps_account_charge(&c->account, PS_COST_OUTPUT,
                             now - queued_memory(c), &why) != 0) {
        bool alone = why.kind == PS_ACCOUNT_SESSION ||
                     why.kind == PS_ACCOUNT_PEER;
        struct daemon_conn *most = c;

        if (!alone) {
            most = find_heaviest(c->driver,
                                 why.kind == PS_ACCOUNT_USER ? c->user : NULL);
        }
        /* `c` counts with its new request. */
        most = alone || queued_memory(most) <= now ? c : most;
        cut_heaviest(most, &why);
        if (most == c) {
            return;
        }
    }
    if (now < queued_memory(c)) {
        ps_account_set_used(&c->account, PS_COST_OUTPUT, now);
    }
}
