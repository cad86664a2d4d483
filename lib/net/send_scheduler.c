/* SPDX-License-Identifier: Apache-2.0 */
/* Turns by progress: a slot may write while it is less than a lead ahead of
 * the slot with the least progress. */
#include "net/send_scheduler.h"

#include "base/num.h"

/* Lead allowed, as time at the current rate. */
#define LEAD_TIME           PS_MILLIS(3)
#define LEAD_MIN            (64ull * 1024)
#define LEAD_MAX            (4ull * 1024 * 1024)
/* A connection without progress for this long holds up the others no longer,
 * for EXCUSED_TIME. */
#define WAIT_FOR_OTHERS_MAX PS_MILLIS(40)
#define EXCUSED_TIME        PS_SECONDS(1)

void ps_send_scheduler_init(struct ps_send_scheduler *f)
{
    *f = (struct ps_send_scheduler){.count = 0};
    ps_list_init(&f->active);
    ps_list_init(&f->waiting);
}

static uint64_t lead_bytes(const struct ps_send_scheduler *f)
{
    uint64_t lead = f->rate.per_second / (PS_SECONDS(1) / LEAD_TIME);

    return f->rate.per_second == 0
               ? LEAD_MAX
               : ps_min_u64(ps_max_u64(lead, LEAD_MIN), LEAD_MAX);
}

/* Bytes written in one turn: a quarter of the lead, and more on links so fast
 * that calls would cost more than the order gains. */
static uint64_t piece_bytes(const struct ps_send_scheduler *f)
{
    uint64_t lead = lead_bytes(f);

    return ps_max_u64(lead / 4, lead - LEAD_MIN);
}

uint64_t ps_send_scheduler_unsent_max(const struct ps_send_scheduler *f)
{
    return lead_bytes(f) == LEAD_MAX ? 0 : piece_bytes(f);
}

static bool is_waited_for(const struct ps_send_slot *t, ps_time now)
{
    return t->excused_until == 0 &&
           now < ps_time_add(t->moved_at, WAIT_FOR_OTHERS_MAX);
}

/* Least progress among connections that the others wait for; UINT64_MAX: there
 * is none. */
static uint64_t least_progress(struct ps_send_scheduler *f, ps_time now)
{
    uint64_t least = UINT64_MAX;
    bool back = false;

    PS_LIST_EACH(n, &f->active)
    {
        struct ps_send_slot *t = PS_CONTAINER(n, struct ps_send_slot, active);

        if (is_waited_for(t, now)) {
            least = ps_min_u64(least, t->progress);
        } else if (t->excused_until == 0 && !ps_list_linked(&t->waiting)) {
            t->excused_until = ps_time_add(now, EXCUSED_TIME);
        }
        back |= t->excused_until != 0 && now >= t->excused_until;
    }
    if (!back) {
        return least;
    }
    PS_LIST_EACH(n, &f->active)
    {
        struct ps_send_slot *t = PS_CONTAINER(n, struct ps_send_slot, active);

        /* An excused connection continues at the progress of the others. */
        if (t->excused_until != 0 && now >= t->excused_until) {
            t->excused_until = 0;
            t->progress = least == UINT64_MAX ? t->progress
                                              : ps_max_u64(t->progress, least);
        }
    }
    return least;
}

static uint64_t bytes_allowed(const struct ps_send_scheduler *f,
                              const struct ps_send_slot *t, uint64_t floor)
{
    uint64_t lead = lead_bytes(f);
    uint64_t piece = piece_bytes(f);

    if (floor == UINT64_MAX || t->progress <= floor) {
        return piece;
    }
    uint64_t ahead = t->progress - floor;

    /* A tiny remainder is not worth a call. */
    return ahead + piece / 2 <= lead ? ps_min_u64(lead - ahead, piece) : 0;
}

static void wait_for_slot(struct ps_send_scheduler *f, struct ps_send_slot *t)
{
    if (!ps_list_linked(&t->waiting)) {
        ps_list_push_back(&f->waiting, &t->waiting);
    }
}

static void become_active(struct ps_send_scheduler *f, struct ps_send_slot *t,
                          ps_time now)
{
    uint64_t floor = least_progress(f, now);

    if (floor != UINT64_MAX) {
        /* Neither idle time nor old progress counts, only recent progress. */
        t->progress = ps_min_u64(ps_max_u64(t->progress, floor),
                                 floor + lead_bytes(f));
    }
    t->moved_at = now;
    t->excused_until = 0;
    ps_list_push_back(&f->active, &t->active);
    f->count++;
}

uint64_t ps_send_scheduler_request(struct ps_send_scheduler *f,
                                   struct ps_send_slot *t, ps_time now)
{
    if (!ps_list_linked(&t->active)) {
        become_active(f, t, now);
    }
    if (ps_list_linked(&t->waiting)) {
        return 0;
    }
    if (f->count == 1) {
        return UINT64_MAX;
    }
    uint64_t allowed = bytes_allowed(f, t, least_progress(f, now));

    if (allowed == 0) {
        wait_for_slot(f, t);
    }
    return allowed;
}

bool ps_send_scheduler_wrote(struct ps_send_scheduler *f,
                             struct ps_send_slot *t, ps_time now,
                             uint64_t bytes, uint64_t most)
{
    (void)ps_rate_meter_add(&f->rate, now, bytes);
    t->progress += bytes;
    if (bytes > 0) {
        t->moved_at = now;
    }
    if (bytes < most) {
        return false;
    }
    wait_for_slot(f, t);
    return true;
}

void ps_send_scheduler_leave(struct ps_send_scheduler *f,
                             struct ps_send_slot *t)
{
    if (ps_list_linked(&t->waiting)) {
        ps_list_remove(&t->waiting);
    }
    if (ps_list_linked(&t->active)) {
        ps_list_remove(&t->active);
        f->count--;
    }
}

void ps_send_scheduler_run(struct ps_send_scheduler *f, ps_time now)
{
    uint64_t floor = least_progress(f, now);
    struct ps_list_node *n;
    struct ps_list ready;

    /* A connection that waits again waits for the next call. */
    ps_list_init(&ready);
    for (n = ps_list_first(&f->waiting); n != NULL;) {
        struct ps_send_slot *t = PS_CONTAINER(n, struct ps_send_slot, waiting);

        n = ps_list_next(&f->waiting, n);
        if (f->count == 1 || bytes_allowed(f, t, floor) > 0) {
            ps_list_remove(&t->waiting);
            ps_list_push_back(&ready, &t->waiting);
        }
    }
    while ((n = ps_list_pop(&ready)) != NULL) {
        struct ps_send_slot *t = PS_CONTAINER(n, struct ps_send_slot, waiting);

        t->on_slot(t);
    }
}

ps_time ps_send_scheduler_deadline(struct ps_send_scheduler *f, ps_time now)
{
    ps_time at = PS_TIME_NEVER;

    if (ps_list_empty(&f->waiting)) {
        return PS_TIME_NEVER;
    }
    uint64_t floor = least_progress(f, now);

    PS_LIST_EACH(n, &f->waiting)
    {
        if (f->count == 1 ||
            bytes_allowed(f, PS_CONTAINER(n, struct ps_send_slot, waiting),
                          floor) > 0) {
            return now;
        }
    }
    PS_LIST_EACH(n, &f->active)
    {
        const struct ps_send_slot *t = PS_CONTAINER(n, struct ps_send_slot,
                                                    active);

        if (is_waited_for(t, now) && t->progress == floor) {
            at = ps_time_min(at, ps_time_add(t->moved_at, WAIT_FOR_OTHERS_MAX));
        }
    }
    return at;
}
