/* SPDX-License-Identifier: Apache-2.0 */
#include "shadow.h"

#include "emu.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void emu_shadow_init(struct emu_shadow *s)
{
    pthread_mutexattr_t attr;

    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&s->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    s->count = 0;
}

static void lock_shadow(struct emu_shadow *s)
{
    if (pthread_mutex_lock(&s->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&s->lock);
        s->count = 0; /* May be half changed. */
    }
}

bool emu_process_runs(int32_t pid)
{
    char path[64];
    char text[256];
    const char *state;
    FILE *file;
    size_t length;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId32 "/stat", pid);
    file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    length = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[length] = '\0';
    state = strrchr(text, ')');
    return state != NULL && state[1] == ' ' && state[2] != 'Z' &&
           state[2] != 'X';
}

static bool is_ordered(const struct emu_access *before,
                       const struct emu_actor *actor)
{
    if (before->tick.timeline == actor->tick.timeline ||
        emu_clock_at(actor->clock, before->tick.timeline) >=
            before->tick.time) {
        return true;
    }
    return before->pid != getpid() &&
           (before->observed || !emu_process_runs(before->pid));
}

/* Removes accesses that a write ordered after them covers: what is not ordered
 * with them is not ordered with the write either. */
static void remove_covered(struct emu_shadow *s, uint64_t begin, uint64_t end)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        if (s->access[i].begin < begin || s->access[i].end > end) {
            s->access[kept++] = s->access[i];
        }
    }
    s->count = kept;
}

/* Makes space for one access; those whose completion was observed go first. */
static void forget_oldest(struct emu_shadow *s)
{
    uint32_t victim = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        if (s->access[i].observed) {
            victim = i;
            break;
        }
    }
    memmove(s->access + victim, s->access + victim + 1,
            (s->count - victim - 1) * sizeof(s->access[0]));
    s->count--;
}

static void report_race(const struct emu_access *before,
                        const struct emu_actor *actor, bool write)
{
    emu_die("race: %s of stream %" PRIu32 " %s bytes that %s of stream %" PRIu32
            " in process %" PRId32 " %s, and neither waits for the other",
            actor->op, actor->stream, write ? "writes" : "reads", before->op,
            before->stream, before->pid, before->write ? "writes" : "reads");
}

void emu_shadow_add(struct emu_shadow *s, const struct emu_actor *actor,
                    uint64_t begin, uint64_t end, bool write)
{
    struct emu_access *added;

    lock_shadow(s);
    for (uint32_t i = 0; i < s->count; i++) {
        const struct emu_access *a = &s->access[i];

        if (a->begin < end && begin < a->end && (a->write || write) &&
            !is_ordered(a, actor)) {
            report_race(a, actor, write);
        }
    }
    if (write) {
        remove_covered(s, begin, end);
    }
    if (s->count == EMU_ACCESSES_MAX) {
        forget_oldest(s);
    }
    added = &s->access[s->count++];
    *added = (struct emu_access){
        .begin = begin,
        .end = end,
        .tick = actor->tick,
        .pid = getpid(),
        .stream = actor->stream,
        .write = write,
    };
    (void)snprintf(added->op, sizeof(added->op), "%s", actor->op);
    pthread_mutex_unlock(&s->lock);
}

void emu_shadow_observe(struct emu_shadow *s, const struct emu_clock *host)
{
    lock_shadow(s);
    for (uint32_t i = 0; i < s->count; i++) {
        struct emu_access *a = &s->access[i];

        if (emu_clock_at(host, a->tick.timeline) >= a->tick.time) {
            a->observed = true;
        }
    }
    pthread_mutex_unlock(&s->lock);
}
