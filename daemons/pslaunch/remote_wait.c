/* SPDX-License-Identifier: Apache-2.0 */
/* Waits for supervisors: until they are there, and until they are gone. */
#include "pslaunch/remote.h"

#include <stdio.h>
#include <stdlib.h>

/* Most time for a supervisor whose connection is closed to kill its processes,
 * and after an interrupt for output that is not read. */
#define CLOSE_MS 5000u
#define FLUSH_MS 1000u

/* True if the first `count` hosts are in this state. */
static bool are_first(const struct run *r, uint32_t count,
                      enum remote_state state)
{
    for (uint32_t i = 0; i < count; i++) {
        if (r->remotes[i].state != state) {
            return false;
        }
    }
    return true;
}

bool remotes_await(struct run *r, uint32_t count, enum remote_state state)
{
    uint64_t end = now_ms() + r->plan->start_timeout_ms;

    while (!are_first(r, count, state)) {
        if (r->interrupt_count > 0 || r->has_lost_host) {
            return false;
        }
        if (now_ms() >= end) {
            for (uint32_t i = 0; i < count; i++) {
                if (r->remotes[i].state != state) {
                    sink_print(&r->err,
                               "host %s was not ready within %.1f s; "
                               "--start-timeout gives it more",
                               r->places[i].name,
                               (double)r->plan->start_timeout_ms / 1000);
                }
            }
            return false;
        }
        run_loop(r, end);
    }
    return true;
}

/* Starts the program that connects to this host. */
static bool connect_to(struct run *r, uint32_t host, const char *what,
                       remote_command_cb make)
{
    struct command c = {.count = 0};
    struct process p;
    bool ok;

    make(r->plan, host, &c);
    ok = remote_spawn(r, host, c.argv, what, &p);
    command_fini(&c);
    if (ok) {
        remote_open(r, host, p.out, p.in);
    }
    return ok;
}

bool remotes_open(struct run *r, const char *what, remote_command_cb make)
{
    return remotes_open_after(r, 0, what, make);
}

bool remotes_open_after(struct run *r, uint32_t first, const char *what,
                        remote_command_cb make)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (!connect_to(r, i, what, make) ||
            (i + 1 == first && !remotes_await(r, first, REMOTE_OPEN))) {
            return false;
        }
    }
    return remotes_await(r, r->place_count, REMOTE_OPEN);
}

static bool is_any_program_alive(const struct run *r)
{
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->remotes[i].pid != 0) {
            return true;
        }
    }
    return false;
}

void remote_close(struct run *r)
{
    uint64_t end = UINT64_MAX;

    remotes_finish(r);
    while (!remotes_are(r, REMOTE_CLOSED) && now_ms() < end) {
        if (r->interrupt_count > 0 && end == UINT64_MAX) {
            end = now_ms() + FLUSH_MS;
        }
        run_loop(r, end);
    }
    remotes_abandon(r);
    end = now_ms() + CLOSE_MS;
    while (is_any_program_alive(r) && now_ms() < end) {
        run_loop(r, end);
    }
    process_kill_all();
    for (uint32_t i = 0; i < r->place_count; i++) {
        if (r->remotes[i].err != NULL && r->remotes[i].err->in >= 0) {
            (void)stream_read(r->remotes[i].err);
        }
        stream_free(r->remotes[i].err);
        r->remotes[i].err = NULL;
    }
}
