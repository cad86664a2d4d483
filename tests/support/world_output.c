/* SPDX-License-Identifier: Apache-2.0 */
/* Queued output of simulated daemons: reports it to core/link/output, closes
 * the connections that this chooses, and checks the choice against counts of
 * its own. While there are faults, the limits are so low that they are
 * reached. */
#include "support/world_internal.h"

/* Limits where the options name one for links. */
static uint64_t caller_limit(const struct world *w)
{
    return w->opt.faults.output / 2;
}

static uint64_t total_limit(const struct world *w)
{
    return w->opt.faults.output / 4 * 5;
}

void world_output_begin(struct world *w, struct wnode *n)
{
    ps_output_init(&n->output,
                   &(struct ps_output_options){.self = n->role,
                                               .machine = &n->machine,
                                               .caller = caller_limit(w),
                                               .link = w->opt.faults.output,
                                               .total = total_limit(w)});
    n->output_is_limited = w->opt.faults.output != 0;
}

void world_output_end(struct wnode *n)
{
    struct ps_list_node *item;

    while ((item = ps_list_first(&n->output.conns)) != NULL) {
        ps_output_remove(PS_CONTAINER(item, struct ps_output_conn, node));
    }
    ps_output_fini(&n->output);
}

void world_output_add(struct wconn *c, uint32_t end)
{
    struct ps_event ev = {.type = PS_EV_OPEN, .conn = c->id * 2 + end};

    ev.open.kind = end == 0 ? PS_CONN_DIALLED : PS_CONN_ACCEPTED;
    ev.open.peer = c->node[1 - end]->name;
    ps_output_add(&c->node[end]->output, &c->output[end], &ev);
}

void world_output_on_hello(struct wconn *c)
{
    c->has_hello = true;
    ps_output_on_hello(&c->output[1], c->node[0]->role);
}

/* --------------------------------------------------------------- counts */

static bool is_counted(const struct wconn *c, uint32_t end,
                       const struct wnode *n)
{
    return c->node[end] == n && ps_list_linked(&c->output[end].node);
}

/* Bytes that the node has queued in all. */
static uint64_t sum_counted(struct world *w, const struct wnode *n)
{
    struct ps_map_cursor cur = {0};
    const struct wconn *c;
    uint64_t sum = 0;

    while ((c = ps_map_next(w->conns, &cur)) != NULL) {
        for (uint32_t end = 0; end < 2; end++) {
            sum += is_counted(c, end, n) ? c->output_counted[end] : 0;
        }
    }
    return sum;
}

static void check_sum(struct world *w, const struct wnode *n)
{
    if (world_is_large(w)) {
        return;
    }
    const uint64_t sum = sum_counted(w, n);
    const uint64_t used = n->output.total.cost[PS_COST_OUTPUT].used;

    if (sum != used) {
        world_fail(w, "%s counts %llu bytes of output where %llu are queued",
                   n->name, (unsigned long long)used, (unsigned long long)sum);
    }
    if (n->output_is_limited && sum > total_limit(w)) {
        world_fail(w, "%s queues %llu bytes of output of %llu", n->name,
                   (unsigned long long)sum, (unsigned long long)total_limit(w));
    }
}

/* Nobody but `c`, or `victim`, queues more than `victim`. */
static bool holds_most(struct world *w, const struct wnode *n,
                       const struct wconn *c, uint64_t request,
                       const struct wconn *victim)
{
    struct ps_map_cursor cur = {0};
    const struct wconn *other;
    uint64_t held = request;
    uint64_t most = request;

    while ((other = ps_map_next(w->conns, &cur)) != NULL) {
        const uint32_t end = other->node[1] == n;

        if (other != c && is_counted(other, end, n)) {
            most = ps_max_u64(most, other->output_counted[end]);
            held = other == victim ? other->output_counted[end] : held;
        }
    }
    return held == most;
}

/* `c` may not queue `request`, and `victim` is closed for it. */
static void check_choice(struct world *w, const struct wconn *c, uint32_t end,
                         uint64_t request, const struct wconn *victim)
{
    const struct wnode *n = c->node[end];
    const uint64_t own = end == 0 || c->has_hello ? w->opt.faults.output
                                                  : caller_limit(w);
    const uint64_t sum = sum_counted(w, n) - c->output_counted[end] + request;

    if (!n->output_is_limited || (request <= own && sum <= total_limit(w))) {
        world_fail(w, "%s closes a connection though no limit is reached",
                   n->name);
    } else if (request > own && victim != c) {
        world_fail(w,
                   "%s closes another connection than the one beyond its "
                   "limit",
                   n->name);
    } else if (request <= own && !holds_most(w, n, c, request, victim)) {
        world_fail(w, "%s closes another connection than the heaviest",
                   n->name);
    }
}

/* -------------------------------------------------------------- reports */

/* Limits this low are faults, and end with them. */
static void lift_limits(struct world *w, struct wnode *n)
{
    if (n->output_is_limited && !world_is_faulty(w)) {
        n->output_is_limited = false;
        n->output.caller_limits = (struct ps_account_limits){0};
        n->output.link_limits = (struct ps_account_limits){0};
        n->output.total_limits = (struct ps_account_limits){0};
    }
}

void world_output_update(struct world *w, struct wconn *c, uint32_t end)
{
    struct wnode *n = c->node[end];
    struct ps_output_close close;

    if (c->node[1] == NULL || !ps_list_linked(&c->output[end].node)) {
        return;
    }
    lift_limits(w, n);
    while (!c->cut && !c->closing && w->error[0] == '\0' &&
           ps_output_update(&c->output[end], c->queued[end], &close)) {
        struct wconn *victim = world_conn(w, close.conn->id / 2);

        check_choice(w, c, end, c->queued[end], victim);
        victim->output_counted[close.conn->id % 2] = 0;
        w->output_closes++;
        world_close_conn(w, victim, 0);
    }
    if (!c->cut && !c->closing) {
        c->output_counted[end] = c->queued[end];
        check_sum(w, n);
    }
}
