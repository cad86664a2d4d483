/* SPDX-License-Identifier: Apache-2.0 */
/* Token bucket for each kind of line, kept as the time until which lines are
 * paid for. */
#include "common/loglimit.h"

#include <inttypes.h>
#include <string.h>

#define LINE_COST            PS_SECONDS(1)
#define SUMMARY_INTERVAL_MAX PS_SECONDS(8)

/* Time from which the next line of the kind may be written. */
static ps_time next_line_at(const struct ps_log_kind *k)
{
    ps_time burst = (PS_LOG_BURST - 1) * LINE_COST;

    return k->paid_until > burst ? k->paid_until - burst : 0;
}

static void charge_line(struct ps_log_kind *k, ps_time now, ps_time cost)
{
    k->paid_until = (k->paid_until > now ? k->paid_until : now) + cost;
}

/* Entry of the kind, or that of the kind idle for longest; if none is idle,
 * kinds share the last entry. */
static struct ps_log_kind *find_kind(struct ps_loglimit *l, uint64_t kind)
{
    struct ps_log_kind *rest = &l->kinds[PS_LOG_KINDS_MAX - 1];
    bool found = false;

    for (uint32_t i = 0; i < l->count; i++) {
        struct ps_log_kind *k = &l->kinds[i];

        if (k->kind == kind) {
            return k;
        }
        if (k->skipped == 0 && (!found || k->paid_until < rest->paid_until)) {
            rest = k;
            found = true;
        }
    }
    if (l->count < PS_LOG_KINDS_MAX) {
        rest = &l->kinds[l->count++];
        found = true;
    }
    if (found) {
        *rest = (struct ps_log_kind){.kind = kind,
                                     .summary_interval = LINE_COST};
    }
    return rest;
}

bool ps_loglimit_admit(struct ps_loglimit *l, uint64_t kind,
                       enum ps_log_level level, const char *text, ps_time now)
{
    struct ps_log_kind *k = find_kind(l, kind);

    if (k->skipped == 0 && now >= next_line_at(k)) {
        if (now >= k->paid_until) {
            k->summary_interval = LINE_COST; /* The kind was idle. */
        }
        charge_line(k, now, LINE_COST);
        return true;
    }
    k->level = k->skipped == 0 || level < k->level ? level : k->level;
    k->skipped++;
    (void)ps_str_copy(k->text, sizeof(k->text), text);
    return false;
}

bool ps_loglimit_next_summary(struct ps_loglimit *l, ps_time now, bool all,
                              enum ps_log_level *ret_level,
                              struct ps_str *ret_text)
{
    for (uint32_t i = 0; i < l->count; i++) {
        struct ps_log_kind *k = &l->kinds[i];

        if (k->skipped == 0 || (!all && now < next_line_at(k))) {
            continue;
        }
        *ret_level = k->level;
        ps_str_add(ret_text, k->text);
        if (k->skipped > 1) {
            ps_str_addf(ret_text, " (and %" PRIu64 " more lines of this kind)",
                        k->skipped - 1);
        }
        k->skipped = 0;
        charge_line(k, now, k->summary_interval);
        k->summary_interval = ps_time_min(k->summary_interval * 2,
                                          SUMMARY_INTERVAL_MAX);
        return true;
    }
    return false;
}

ps_time ps_loglimit_deadline(const struct ps_loglimit *l)
{
    ps_time least = PS_TIME_NEVER;

    for (uint32_t i = 0; i < l->count; i++) {
        if (l->kinds[i].skipped > 0) {
            least = ps_time_min(least, next_line_at(&l->kinds[i]));
        }
    }
    return least;
}
