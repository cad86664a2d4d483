/* SPDX-License-Identifier: Apache-2.0 */
#include "net/outflow.h"

#include "base/num.h"

/* What goes out in this time is ahead enough. */
#define LEAD_TIME PS_MILLIS(3)
#define LEAD_MIN  (64ull * 1024)
#define LEAD_MAX  (4ull * 1024 * 1024)
/* What is stuck so long is not waited for, for so long. */
#define PATIENCE  PS_MILLIS(40)
#define EXCUSE    PS_SECONDS(1)

void ps_outflow_init(struct ps_outflow *f)
{
    *f = (struct ps_outflow){.count = 0};
    ps_list_init(&f->active);
    ps_list_init(&f->waiting);
}

static uint64_t lead_of(const struct ps_outflow *f)
{
    uint64_t lead = f->rate.per_second / (PS_SECONDS(1) / LEAD_TIME);

    return f->rate.per_second == 0
               ? LEAD_MAX
               : ps_min_u64(ps_max_u64(lead, LEAD_MIN), LEAD_MAX);
}

/* What is written in one turn: a quarter of the lead, and more where the link
 * is so fast that calls would cost more than the order gains. */
static uint64_t piece_of(const struct ps_outflow *f)
{
    uint64_t lead = lead_of(f);

    return ps_max_u64(lead / 4, lead - LEAD_MIN);
}

uint64_t ps_outflow_unsent(const struct ps_outflow *f)
{
    return lead_of(f) == LEAD_MAX ? 0 : piece_of(f);
}

static bool waited_for(const struct ps_turn *t, ps_time now)
{
    return t->excused == 0 && now < ps_time_add(t->moved, PATIENCE);
}

/* The least advanced of those that others wait for; UINT64_MAX: none. */
static uint64_t floor_of(struct ps_outflow *f, ps_time now)
{
    uint64_t least = UINT64_MAX;
    bool back = false;

    PS_LIST_EACH(n, &f->active)
    {
        struct ps_turn *t = PS_CONTAINER(n, struct ps_turn, active);

        if (waited_for(t, now)) {
            least = ps_min_u64(least, t->progress);
        } else if (t->excused == 0 && !ps_list_linked(&t->waiting)) {
            t->excused = ps_time_add(now, EXCUSE);
        }
        back |= t->excused != 0 && now >= t->excused;
    }
    if (!back) {
        return least;
    }
    PS_LIST_EACH(n, &f->active)
    {
        struct ps_turn *t = PS_CONTAINER(n, struct ps_turn, active);

        /* It begins where the others are now. */
        if (t->excused != 0 && now >= t->excused) {
            t->excused = 0;
            t->progress = least == UINT64_MAX ? t->progress
                                              : ps_max_u64(t->progress, least);
        }
    }
    return least;
}

static uint64_t room_of(const struct ps_outflow *f, const struct ps_turn *t,
                        uint64_t floor)
{
    uint64_t lead = lead_of(f);
    uint64_t piece = piece_of(f);

    if (floor == UINT64_MAX || t->progress <= floor) {
        return piece;
    }
    uint64_t ahead = t->progress - floor;

    /* Little bits are not worth a call. */
    return ahead + piece / 2 <= lead ? ps_min_u64(lead - ahead, piece) : 0;
}

static void await(struct ps_outflow *f, struct ps_turn *t)
{
    if (!ps_list_linked(&t->waiting)) {
        ps_list_push_back(&f->waiting, &t->waiting);
    }
}

static void join(struct ps_outflow *f, struct ps_turn *t, ps_time now)
{
    uint64_t floor = floor_of(f, now);

    if (floor != UINT64_MAX) {
        /* Neither pays for what it did before, but for what is recent. */
        t->progress = ps_min_u64(ps_max_u64(t->progress, floor),
                                 floor + lead_of(f));
    }
    t->moved = now;
    t->excused = 0;
    ps_list_push_back(&f->active, &t->active);
    f->count++;
}

uint64_t ps_outflow_ask(struct ps_outflow *f, struct ps_turn *t, ps_time now)
{
    if (!ps_list_linked(&t->active)) {
        join(f, t, now);
    }
    if (ps_list_linked(&t->waiting)) {
        return 0;
    }
    if (f->count == 1) {
        return UINT64_MAX;
    }
    uint64_t room = room_of(f, t, floor_of(f, now));

    if (room == 0) {
        await(f, t);
    }
    return room;
}

bool ps_outflow_wrote(struct ps_outflow *f, struct ps_turn *t, ps_time now,
                      uint64_t bytes, uint64_t most)
{
    (void)ps_rate_add(&f->rate, now, bytes);
    t->progress += bytes;
    if (bytes > 0) {
        t->moved = now;
    }
    if (bytes < most) {
        return false;
    }
    await(f, t);
    return true;
}

void ps_outflow_leave(struct ps_outflow *f, struct ps_turn *t)
{
    if (ps_list_linked(&t->waiting)) {
        ps_list_remove(&t->waiting);
    }
    if (ps_list_linked(&t->active)) {
        ps_list_remove(&t->active);
        f->count--;
    }
}

void ps_outflow_run(struct ps_outflow *f, ps_time now)
{
    uint64_t floor = floor_of(f, now);
    struct ps_list_node *n;
    struct ps_list ready;

    /* Who waits again waits for the next call. */
    ps_list_init(&ready);
    for (n = ps_list_first(&f->waiting); n != NULL;) {
        struct ps_turn *t = PS_CONTAINER(n, struct ps_turn, waiting);

        n = ps_list_next(&f->waiting, n);
        if (f->count == 1 || room_of(f, t, floor) > 0) {
            ps_list_remove(&t->waiting);
            ps_list_push_back(&ready, &t->waiting);
        }
    }
    while ((n = ps_list_pop(&ready)) != NULL) {
        struct ps_turn *t = PS_CONTAINER(n, struct ps_turn, waiting);

        t->go(t);
    }
}

ps_time ps_outflow_deadline(struct ps_outflow *f, ps_time now)
{
    ps_time at = PS_TIME_NEVER;

    if (ps_list_empty(&f->waiting)) {
        return PS_TIME_NEVER;
    }
    uint64_t floor = floor_of(f, now);

    PS_LIST_EACH(n, &f->waiting)
    {
        if (f->count == 1 ||
            room_of(f, PS_CONTAINER(n, struct ps_turn, waiting), floor) > 0) {
            return now;
        }
    }
    PS_LIST_EACH(n, &f->active)
    {
        const struct ps_turn *t = PS_CONTAINER(n, struct ps_turn, active);

        if (waited_for(t, now) && t->progress == floor) {
            at = ps_time_min(at, ps_time_add(t->moved, PATIENCE));
        }
    }
    return at;
}
