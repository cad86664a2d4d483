/* SPDX-License-Identifier: Apache-2.0 */
/* Identities of peers, refused frames of theirs, and entries of a trace. */
#include "core/base/peer.h"

#include "base/num.h"
#include "core/base/machine.h"

#include <inttypes.h>
#include <string.h>

/* -------------------------------------------------------------- identities */

/* Time between two lines about one peer: a peer that sends without end must not
 * fill the log. */
#define MISUSE_NOTE_INTERVAL PS_SECONDS(60)

/* True, and notes the time, if a line is due. */
static bool is_note_due(ps_time *noted_at, ps_time now)
{
    if (*noted_at != 0 && now < ps_time_add(*noted_at, MISUSE_NOTE_INTERVAL)) {
        return false;
    }
    *noted_at = now;
    return true;
}

bool ps_misuse_add(struct ps_misuse *u, ps_time now, struct ps_effects *fx,
                   const char *who, const char *what)
{
    u->frames++;
    u->of_link++;
    if (is_note_due(&u->noted_at, now)) {
        ps_effects_log(fx, PS_LOG_WARNING,
                       "%s %s; refused, %" PRIu64 " of its messages so far",
                       who, what, u->frames);
    }
    if (u->of_link < PS_MISUSE_MAX) {
        return false;
    }
    u->of_link = 0;
    if (is_note_due(&u->closing_noted_at, now)) {
        ps_effects_log(fx, PS_LOG_WARNING,
                       "connection of %s is closed: it sent %u messages about "
                       "objects of others",
                       who, PS_MISUSE_MAX);
    }
    return true;
}

void ps_misuse_list(const struct ps_misuse *u, uint32_t node,
                    struct ps_rec_refusals list[PS_REFUSALS_SHOWN_MAX],
                    uint32_t *count)
{
    uint32_t at = *count;

    if (at == PS_REFUSALS_SHOWN_MAX) {
        at = 0;
        for (uint32_t i = 1; i < PS_REFUSALS_SHOWN_MAX; i++) {
            at = list[i].frames < list[at].frames ? i : at;
        }
        if (list[at].frames >= u->frames) {
            return;
        }
    } else if (u->frames == 0) {
        return;
    } else {
        ++*count;
    }
    list[at] = (struct ps_rec_refusals){.node = node, .frames = u->frames};
}

void ps_peer_identity_set(struct ps_peer_identity *id,
                          const struct ps_peer_identity *from)
{
    if (from != NULL) {
        *id = *from;
    } else {
        id->role = 0;
    }
}

bool ps_peer_is_same(const struct ps_peer_identity *a,
                     const struct ps_peer_identity *b)
{
    return a->role == b->role &&
           (a->role == 0 || (strcmp(a->cluster, b->cluster) == 0 &&
                             strcmp(a->name, b->name) == 0));
}

static bool check_cluster(const struct ps_peer_identity *id,
                          const char *cluster, struct ps_str *why)
{
    if (strcmp(id->cluster, cluster) != 0) {
        ps_str_addf(why, "its certificate is of cluster '%s', not '%s'",
                    id->cluster, cluster);
        return false;
    }
    return true;
}

bool ps_peer_check_role(const struct ps_peer_identity *id, const char *cluster,
                        uint32_t roles, struct ps_str *why)
{
    if (!check_cluster(id, cluster, why)) {
        return false;
    }
    if ((roles & 1u << id->role) == 0) {
        const char *separator = "";

        ps_str_addf(why, "its certificate is of role %s, not ",
                    ps_role_name(id->role));
        for (unsigned role = 1; role < 32; role++) {
            if ((roles & 1u << role) != 0) {
                ps_str_addf(why, "%s%s", separator, ps_role_name(role));
                separator = " or ";
            }
        }
        return false;
    }
    return true;
}

bool ps_peer_check_name(const struct ps_peer_identity *id, const char *name,
                        struct ps_str *why)
{
    if (id == NULL || id->role == 0 || strcmp(id->name, name) == 0) {
        return true;
    }
    ps_str_addf(why, "its certificate is of '%s', not '%s'", id->name, name);
    return false;
}

bool ps_peer_check_hello(const struct ps_peer_identity *id, const char *cluster,
                         const struct ps_msg_hello *m, struct ps_str *why)
{
    const char *name = m->name != NULL ? m->name : "";

    if (id->role == 0) {
        return true;
    }
    if (!check_cluster(id, cluster, why)) {
        return false;
    }
    if (m->role != id->role) {
        ps_str_addf(why, "its certificate is of role %s, not %s",
                    ps_role_name(id->role), ps_role_name(m->role));
        return false;
    }
    /* The certificate of a tool names its operator. */
    if (m->role != PS_ROLE_CTL && strcmp(id->name, name) != 0) {
        ps_str_addf(why, "its certificate is of '%s', not '", id->name);
        ps_str_add_escaped(why, name, strlen(name), PS_NAME_MAX);
        ps_str_add(why, "'");
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------ traces */

/* A reader names the first entry that it wants and gets the number of the next
 * one, so that it can read on while others are added. Entries of other jobs are
 * counted and left out. */

static struct ps_rec_trace_entry record_of(const struct ps_trace_entry *e)
{
    return (struct ps_rec_trace_entry){
        .kind = e->kind,
        .op = e->op,
        .begun_ns = e->begun_at,
        .duration_ns = e->ended_at > e->begun_at ? e->ended_at - e->begun_at
                                                 : 0,
        .round = e->round,
        .bytes = e->bytes,
        .key = e->key,
        .index = e->index,
        .peer = e->peer,
    };
}

void ps_trace_read(const struct ps_trace *t, const struct ps_msg_trace_get *m,
                   uint16_t recording, ps_time now,
                   struct ps_rec_trace_entry *list,
                   struct ps_msg_trace_entries *ret)
{
    const uint64_t count = t != NULL ? t->count : 0;
    const uint64_t oldest = count - ps_min_u64(count, PS_TRACE_ENTRIES);
    uint64_t at = ps_min_u64(ps_max_u64(m->first, oldest), count);

    *ret = (struct ps_msg_trace_entries){.gen = m->gen,
                                         .request = m->request,
                                         .now_ns = now,
                                         .first = at,
                                         .count = count,
                                         .entries = list,
                                         .role = PS_ROLE_SCHED};
    while (at < count && ret->entries_count < PS_TRACE_READ_MAX) {
        const struct ps_trace_entry *e = &t->entries[at++ % PS_TRACE_ENTRIES];

        if (e->gen == m->gen && (recording == 0 || e->recording == recording)) {
            list[ret->entries_count++] = record_of(e);
        }
    }
    ret->next = at;
}
