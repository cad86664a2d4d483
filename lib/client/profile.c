/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings of what servers do: begun and ended for all servers of the job,
 * and read from each. */
#include "client/profile_answer.h"

#include "client/key.h"
#include "client/op.h"
#include "client/profile_file.h"
#include "client/state.h"
#include "client/threads.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_check.h"
#include "base/name_hash.h"
#include "base/num.h"
#include "base/str.h"

int psc_profile_start(struct psc_client *c, uint32_t mode,
                      const struct psc_op_options *o, struct psc_op **ret_op)
{
    struct ps_msg m = {.code = PS_MSG_L_PROFILE_SET};
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (mode > PSC_PROFILE_PAUSED) {
        rc = client_error(c, PSC_E_INVAL, "there is no mode %u of a recording",
                          mode);
    } else {
        m.l_profile_set.mode = (uint8_t)mode;
        rc = op_start_plain(c, OP_PROFILE, &m, &m.l_profile_set.op_id, o,
                            ret_op);
    }
    client_leave(c);
    return rc;
}

int psc_profile(struct psc_client *c, uint32_t mode)
{
    struct psc_op *op = NULL;
    int rc = psc_profile_start(c, mode, NULL, &op);

    return op_finish(op, rc);
}

/* ------------------------------------------------------------------ reading */

/* Asks a server for events from number `first` on; the caller frees the
 * answer. */
static int read_events(struct psc_client *c, uint32_t server, uint64_t first,
                       struct profile_answer **ret)
{
    struct ps_msg m = {.code = PS_MSG_L_PROFILE_GET};
    struct psc_op *op = NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    m.l_profile_get.server = server;
    m.l_profile_get.first = first;
    rc = op_start_plain(c, OP_PROFILE, &m, &m.l_profile_get.op_id, NULL, &op);
    client_leave(c);
    if (rc != 0) {
        return rc;
    }
    rc = psc_op_wait(op, PSC_WAIT_DEFAULT);
    if (rc == 0) {
        *ret = op->profile;
        op->profile = NULL;
        rc = *ret != NULL ? 0 : PSC_E_PROTO;
    }
    psc_op_free(op);
    return rc;
}

/* Reads the whole recording of a server into `t`. */
static int read_timeline(struct psc_client *c, struct profile_timeline *t)
{
    uint64_t next = 0;
    bool more = true;

    while (more) {
        struct profile_answer *a = NULL;
        int rc = read_events(c, t->rank, next, &a);

        if (rc != 0) {
            return rc;
        }
        ps_str_copy(t->server, sizeof(t->server), a->server);
        t->dropped += a->first - ps_min_u64(next, a->first);
        next = a->first + a->returned;
        /* A recording that goes on would never end. */
        more = a->returned > 0 && next < a->count &&
               t->count < 2 * PS_PROFILE_EVENTS_MAX;
        rc = profile_timeline_add(t, a->events, a->returned);
        free(a);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* Names of this worker's keys; the caller frees them. */
static int list_names(struct psc_client *c, struct profile_timeline *t)
{
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    t->names = calloc(c->keys.count + 1u, sizeof(*t->names));
    if (t->names == NULL) {
        rc = client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    for (uint32_t i = 0; rc == 0 && i < c->keys.count; i++) {
        const struct key *k = c->keys.by_number[i];

        t->names[t->name_count++] = (struct profile_name){
            .name_hash = ps_name_hash(k->kind, k->name), .name = k->name};
    }
    client_leave(c);
    return rc;
}

static int fail_with_error(struct psc_client *c, const char *path, int error)
{
    int rc = client_enter(c);

    if (rc == 0) {
        rc = client_error(c, PSC_E_SYS, "%s: %s", path, strerror(error));
        client_leave(c);
    }
    return rc;
}

/* Writes the timeline beside its file, and renames it when it is complete. */
static int write_file(struct psc_client *c, const struct profile_timeline *t,
                      const char *path)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    char *to = NULL;
    char *part = NULL;
    FILE *f = NULL;
    int error;
    int rc = 0;

    if (asprintf(&to, "%.*srank%u_%s", (int)(base - path), path, t->rank,
                 base) < 0) {
        return PSC_E_NOMEM;
    }
    if (asprintf(&part, "%s.%ld", to, (long)getpid()) < 0) {
        free(to);
        return PSC_E_NOMEM;
    }
    f = fopen(part, "we");
    if (f == NULL) {
        rc = fail_with_error(c, to, errno);
        goto free_paths;
    }
    profile_timeline_write(t, f);
    error = ps_file_close(f);
    if (error == 0 && rename(part, to) != 0) {
        error = errno;
    }
    if (error != 0) {
        rc = fail_with_error(c, to, error);
    }
    if (rc != 0) {
        remove(part);
    }

free_paths:
    free(part);
    free(to);
    return rc;
}

int psc_profile_save(struct psc_client *c, const char *path)
{
    uint32_t servers;
    int rc = client_enter_with(c, path, "path");

    if (rc != 0) {
        return rc;
    }
    servers = c->id.num_servers;
    client_leave(c);

    for (uint32_t i = 0; rc == 0 && (i < servers || i == 0); i++) {
        struct profile_timeline t = {.rank = i};

        rc = list_names(c, &t);
        if (rc == 0) {
            rc = read_timeline(c, &t);
        }
        if (rc == 0) {
            rc = write_file(c, &t, path);
        }
        profile_timeline_fini(&t);
    }
    return rc;
}
