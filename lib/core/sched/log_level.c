/* SPDX-License-Identifier: Apache-2.0 */
/* A log level holds for a process: a member that starts again has the one of
 * its options. So only members with a connection get it, and one that is named
 * and has none is an error. */
#include "core/sched/log_level.h"

#include "core/sched/inner.h"
#include "core/sched/token.h"

#include <string.h>

/* False: the request was answered with the reason. */
static bool check_right(struct ps_sched_step *st, struct ps_sched_conn *c)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, "not allowed: ");
    if (ps_sched_has_right(st, c, NULL, PS_TOKEN_RIGHT_OPERATE, &why)) {
        return true;
    }
    ps_effects_log(st->fx, PS_LOG_WARNING, "log level not changed for %s: %s",
                   c->peer_text, text);
    ps_sched_conn_end_query(st, c, PS_E_PERM, text);
    return false;
}

/* Returns the number of members with this name, "": any, that are notified;
 * *ret_known counts those that are not connected, too. */
static uint32_t notify_members(struct ps_sched_step *st, const char *name,
                               const struct ps_msg *msg, uint32_t *ret_known)
{
    uint32_t notified = 0;

    *ret_known = 0;
    for (uint32_t i = 0; i < st->s->members.count; i++) {
        struct ps_member *m = st->s->members.sorted[i];

        if (*name != '\0' && strcmp(m->name, name) != 0) {
            continue;
        }
        ++*ret_known;
        if (ps_member_is_connected(m)) {
            ps_sched_send_msg(st, m, msg);
            notified++;
        }
    }
    return notified;
}

static void refuse_name(struct ps_sched_step *st, struct ps_sched_conn *c,
                        const char *name, bool is_known)
{
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    ps_str_add(&why, is_known ? "member '" : "no member '");
    ps_str_add_escaped(&why, name, strlen(name), PS_NAME_MAX);
    ps_str_add(&why, is_known ? "' is not connected"
                              : "' is there; psctl nodes lists them");
    ps_sched_conn_end_query(st, c, is_known ? PS_E_UNREACH : PS_E_NOENT, text);
}

static void record_change(struct ps_sched_step *st,
                          const struct ps_sched_conn *c, const char *name,
                          uint8_t level)
{
    char what[24];
    char text[PS_NAME_MAX + sizeof(c->peer_text) + 16];
    struct ps_str s;

    ps_str_init(&s, what, sizeof(what));
    ps_str_addf(&s, "log level %s", ps_verbosity_name(level));
    ps_str_init(&s, text, sizeof(text));
    ps_str_addf(&s, "%s%sby %s", name, *name != '\0' ? " " : "", c->peer_text);
    ps_effects_log(st->fx, PS_LOG_WARNING, "%s of %s set by an operator at %s",
                   what, *name != '\0' ? name : "all members", c->peer_text);
    ps_sched_event_own(st, what, false, text);
}

void ps_sched_on_log_level(struct ps_sched_step *st, struct ps_sched_conn *c,
                           const struct ps_msg_log_level *m)
{
    const char *name = ps_sched_text_or_empty(m->member);
    const bool is_own = *name == '\0' || strcmp(name, st->s->opt.name) == 0;
    uint32_t known;

    if (!check_right(st, c)) {
        return;
    }
    const uint32_t notified = notify_members(
        st, name, &(struct ps_msg){.code = PS_MSG_LOG_LEVEL, .log_level = *m},
        &known);

    if (notified == 0 && !is_own) {
        refuse_name(st, c, name, known > 0);
        return;
    }
    record_change(st, c, name, m->level);
    if (is_own) {
        ps_effects_log_level(st->fx, m);
    }
    ps_sched_conn_end_query(st, c, 0, NULL);
}
