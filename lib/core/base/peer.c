/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/peer.h"

#include <string.h>

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
