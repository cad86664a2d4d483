/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on standard error about long waits. A worker that waits for another one
 * looks the same as one that computes, so on a terminal a line names the ranks
 * that are missing. Elsewhere lines are written only on request, because the
 * library must not mix into a program's log. */
#include "client/wait_note.h"
#include "client/clock.h"
#include "client/progress.h"
#include "client/stall.h"
#include "client/state.h"

#include <stdio.h>
#include <unistd.h>

#define NOTE_MS 30000
/* Bindings that wait in slices call again within this time. */
#define SLICE   PS_SECONDS(1)

void wait_note_init(struct psc_client *c)
{
    int32_t ms = c->options.wait_notes_ms;

    if (ms == 0 && isatty(STDERR_FILENO) == 1) {
        ms = NOTE_MS;
    }
    c->notes.every = ms > 0 ? PS_MILLIS(ms) : PS_TIME_NEVER;
}

/* Writes the line with one call, so that lines of several workers do not
 * mix. */
static void print_wait_note(const struct psc_client *c, const char *text)
{
    char who[32] = "a worker";

    if (c->id.is_welcomed) {
        snprintf(who, sizeof(who), "rank %u", c->id.rank);
    } else if (c->options.rank >= 0) {
        snprintf(who, sizeof(who), "rank %d", c->options.rank);
    }
    fprintf(stderr, "pskv: job %s, %s: %s\n", c->options.job, who, text);
}

int wait_note_many(struct psc_client *c, bool (*ready)(void *arg),
                   uint32_t (*missing)(void *arg), void *arg, ps_time deadline,
                   struct psc_op *(*first)(void *arg))
{
    struct psc_op *op = first(arg);
    ps_time now = client_now();
    ps_time due = op == c->notes.op && now < c->notes.ended_at + SLICE
                      ? c->notes.due
                      : now + c->notes.every;
    char text[PSC_TEXT_MAX];
    int rc;

    for (;;) {
        rc = client_wait_many(c, ready, missing, arg,
                              ps_time_min(due, deadline));
        now = client_now();
        if (rc != PS_E_TIMEOUT || now >= deadline) {
            break;
        }
        if (now >= due) {
            struct psc_op *open = first(arg);

            op_explain(open, text, sizeof(text));
            /* The operation may have ended during the query. */
            if (open->state != OP_DONE) {
                print_wait_note(c, text);
            }
            due = now + c->notes.every;
        }
    }
    c->notes.op = rc == PS_E_TIMEOUT ? op : NULL;
    c->notes.due = due;
    c->notes.ended_at = now;
    return rc;
}

int wait_note_start(struct psc_client *c, bool (*ready)(void *arg),
                    ps_time deadline)
{
    const ps_time begin = client_now();
    char text[PSC_TEXT_MAX];

    for (;;) {
        ps_time due = c->notes.every == PS_TIME_NEVER
                          ? PS_TIME_NEVER
                          : client_now() + c->notes.every;
        int rc = client_wait(c, ready, c, ps_time_min(due, deadline));
        ps_time now = client_now();

        if (rc != PS_E_TIMEOUT || now >= deadline) {
            return rc;
        }
        snprintf(text, sizeof(text),
                 "the job has not begun for %llu s: not all of its %u "
                 "worker%s and %u server%s are there; 'psctl jobs' says how "
                 "many are",
                 (unsigned long long)((now - begin) / PS_SECONDS(1)),
                 c->options.num_workers, c->options.num_workers == 1 ? "" : "s",
                 c->options.num_servers,
                 c->options.num_servers == 1 ? "" : "s");
        print_wait_note(c, text);
    }
}
