/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: a client of a job that some ranks of another job form. The daemons do
 * not know groups, so all rules for jobs (lost workers, memory, open rounds)
 * hold for them. */
#include "client/state.h"
#include "client/threads.h"

#include <stdlib.h>
#include <string.h>

#include "base/fnv1a.h"
#include "base/name_hash.h"

static int check_group(struct psc_client *c, const char *name,
                       const uint32_t *ranks, uint32_t count, int32_t *ret_rank)
{
    if (name == NULL || *name == '\0') {
        return client_error(c, PSC_E_INVAL, "a group needs a name");
    }
    if (ranks == NULL) {
        *ret_rank = (int32_t)c->id.rank;
        return 0;
    }
    *ret_rank = PSC_RANK_ANY;
    if (count == 0 || count > c->id.size) {
        return client_error(c, PSC_E_INVAL,
                            "group '%s' of %u ranks in a job of %u", name,
                            count, c->id.size);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= c->id.size) {
            return client_error(c, PSC_E_INVAL,
                                "group '%s': the job has no rank %u", name,
                                ranks[i]);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (ranks[j] == ranks[i]) {
                return client_error(c, PSC_E_INVAL,
                                    "group '%s' has rank %u twice", name,
                                    ranks[i]);
            }
        }
        if (ranks[i] == c->id.rank) {
            *ret_rank = (int32_t)i;
        }
    }
    if (*ret_rank == PSC_RANK_ANY) {
        return client_error(c, PSC_E_INVAL,
                            "rank %u is no member of group '%s'", c->id.rank,
                            name);
    }
    return 0;
}

int psc_group_open(struct psc_client *c, const char *name,
                   const uint32_t *ranks, uint32_t count,
                   struct psc_client **ret_group)
{
    char why[PSC_TEXT_MAX];
    char job[PS_NAME_MAX + 1];
    struct psc_options o;
    struct psc_client *group;
    int32_t rank = PSC_RANK_ANY;
    int rc = client_enter_with(c, ret_group, "ret_group");

    if (rc != 0) {
        return rc;
    }
    rc = c->rc != 0 ? client_error(c, c->rc, "%s", c->text)
                    : check_group(c, name, ranks, count, &rank);
    o = c->options;
    client_leave(c);
    if (rc != 0) {
        return rc;
    }
    ps_group_name(o.job, name, job);
    o.job = job;
    o.mode = PSC_MODE_SYNC;
    o.rule = PSC_RULE_NONE;
    o.staleness = 0;
    o.rank = rank;
    o.num_workers = ranks != NULL ? count : c->id.size;
    o.num_servers = c->id.num_servers;
    rc = psc_open(&o, &group, why, sizeof(why));
    if (rc != 0) {
        if (client_enter(c) == 0) {
            client_error(c, rc, "group '%s': %s", name, why);
            client_leave(c);
        }
        return rc;
    }
    if (ranks != NULL) {
        group->id.group_hash = ps_fnv1a_64(PS_FNV1A_64, ranks,
                                           count * sizeof(*ranks));
    }
    *ret_group = group;
    return 0;
}
