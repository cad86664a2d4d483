/* SPDX-License-Identifier: Apache-2.0 */
/* Lines on standard error about long waits. A worker that waits for another one
 * looks the same as one that computes, so a line names the ranks that are
 * missing: the first when a wait has lasted for the interval of the options,
 * the next ones whenever it has lasted twice as long as at the line before. */
#include "client/wait_note.h"
#include "client/clock.h"
#include "client/progress.h"
#include "client/stall.h"
#include "client/state.h"

#include <stdio.h>

/* Times of a wait before its first line. Where all ranks of a job write to one
 * place two lines suffice: either of the two ranks may be the missing one. The
 * others are later, for nodes and ranks with a file of their own; most ranks of
 * a job of a thousand write last, so that it has few lines. */
#define NOTE_MS       30000
#define LATER_NOTE_MS (4 * NOTE_MS)
#define LAST_NOTE_MS  (16 * NOTE_MS)
#define EARLY_RANKS   2
#define LATER_RANKS   64
/* Bindings that wait in slices call again within this time. */
#define SLICE         PS_SECONDS(1)

ps_time wait_note_first_after(const struct psc_client *c)
{
    const int32_t ms = c->options.wait_notes_ms;
    int64_t rank = c->options.rank; /* -1: not known before the welcome. */
    bool is_first_of_node = false;

    if (ms != 0) {
        return ms < 0 ? PS_TIME_NEVER : PS_MILLIS(ms);
    }
    if (c->id.is_welcomed) {
        rank = c->id.rank;
        is_first_of_node = c->id.local_rank == 0;
    }
    if (rank < EARLY_RANKS) {
        return PS_MILLIS(NOTE_MS);
    }
    return rank < LATER_RANKS || is_first_of_node ? PS_MILLIS(LATER_NOTE_MS)
                                                  : PS_MILLIS(LAST_NOTE_MS);
}

static ps_time twice_as_long(ps_time began, ps_time now)
{
    return ps_time_add(now, now - began);
}

/* Writes the line with one call, so that lines of several workers do not
 * mix. */
static void print_wait_note(const struct psc_client *c, const char *text)
{
    char who[32] = "a worker";
    bool has_node = c->id.node[0] != '\0';

    if (c->id.is_welcomed) {
        snprintf(who, sizeof(who), "rank %u", c->id.rank);
    } else if (c->options.rank >= 0) {
        snprintf(who, sizeof(who), "rank %d", c->options.rank);
    }
    fprintf(stderr,
            "pskv: job %s, %s%s%s: %s; 'psctl stall' shows the waits of all "
            "ranks\n",
            c->options.job, who, has_node ? " on " : "", c->id.node, text);
}

int wait_note_many(struct psc_client *c, bool (*ready)(void *arg),
                   uint32_t (*missing)(void *arg), void *arg, ps_time deadline,
                   struct psc_op *(*first)(void *arg))
{
    const struct wait_note *note = &first(arg)->note;
    ps_time now = client_now();
    ps_time began = now;
    ps_time due;
    char text[PSC_TEXT_MAX];
    int rc;

    if (note->due != 0 && now < note->ended_at + SLICE) {
        began = note->began;
        due = note->due;
    } else {
        due = ps_time_add(now, wait_note_first_after(c));
    }
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
            due = twice_as_long(began, now);
        }
    }
    if (rc == PS_E_TIMEOUT) { /* Perhaps a slice: the next one goes on. */
        first(arg)->note = (struct wait_note){
            .began = began, .due = due, .ended_at = now};
    }
    return rc;
}

int wait_note_text(struct psc_client *c, bool (*ready)(void *arg), void *arg,
                   ps_time deadline, wait_note_describe describe)
{
    const ps_time began = client_now();
    ps_time due = ps_time_add(began, wait_note_first_after(c));
    char text[PSC_TEXT_MAX];

    for (;;) {
        int rc = client_wait(c, ready, arg, ps_time_min(due, deadline));
        ps_time now = client_now();

        if (rc != PS_E_TIMEOUT || now >= deadline) {
            return rc;
        }
        describe(c, arg, (now - began) / PS_SECONDS(1), text, sizeof(text));
        print_wait_note(c, text);
        due = twice_as_long(began, now);
    }
}
