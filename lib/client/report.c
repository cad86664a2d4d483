/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars of this worker. The client keeps the last value of each name
 * and sends those that are new, by an operation whose end says that the scheduler
 * has them. While several are open, values are only kept, and the next operation
 * has the last ones; so a program that reports often sends little, and never
 * waits. */
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"
#include "client/threads.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* Reports that are open at one time: those of a program that reports now and
 * then leave at once, even if it makes no other calls. */
#define OPEN_MAX 8u

struct scalar {
    char name[PS_SCALAR_NAME_MAX + 1];
    double value;
    uint64_t step;
    bool must_send;
};

struct report_table {
    struct scalar list[PS_SCALARS_MAX];
    uint32_t count;
    uint32_t open_count; /* Operations. */
    /* Agents that the client had re-attached to at the last one. A new agent
     * gets all scalars with the next report. */
    uint32_t agent_count;
    int rc; /* Error of a report that no call has returned; 0: none. */
    char text[PSC_TEXT_MAX];
};

static void report_ended(struct psc_op *op);

static const struct op_hooks report_hooks = {.on_ended = report_ended};

/* Lists the scalars that are to be sent. */
static uint32_t list_scalars(const struct report_table *t,
                             struct ps_rec_scalar list[PS_SCALARS_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < t->count; i++) {
        if (t->list[i].must_send) {
            list[count++] = (struct ps_rec_scalar){.name = t->list[i].name,
                                                   .step = t->list[i].step,
                                                   .value = t->list[i].value};
        }
    }
    return count;
}

/* Sends what is new, unless OPEN_MAX reports are open. */
static int send_report(struct psc_client *c)
{
    struct report_table *t = c->reports;
    struct ps_rec_scalar list[PS_SCALARS_MAX];
    struct ps_msg m = {.code = PS_MSG_L_REPORT};
    struct psc_op *op = NULL;
    int rc;

    if (t->open_count == OPEN_MAX) {
        return 0;
    }
    for (uint32_t i = 0; t->agent_count != c->reattach.count && i < t->count;
         i++) {
        t->list[i].must_send = true;
    }
    t->agent_count = c->reattach.count;
    m.l_report.scalars = list;
    m.l_report.scalars_count = list_scalars(t, list);
    if (m.l_report.scalars_count == 0) {
        return 0;
    }
    rc = op_start_plain(c, OP_REPORT, &m, &m.l_report.op_id, NULL, &op);
    for (uint32_t i = 0; rc == 0 && i < t->count; i++) {
        t->list[i].must_send = false;
    }
    if (rc == 0) {
        op->hooks = &report_hooks;
        t->open_count++;
    }
    return rc;
}

/* Keeps the error of a report for the next call. */
static void keep_error(struct report_table *t, int rc, const char *text)
{
    if (rc != 0 && t->rc == 0) {
        t->rc = rc;
        ps_str_copy(t->text, sizeof(t->text),
                    text != NULL ? text : ps_strerror(rc));
    }
}

static void report_ended(struct psc_op *op)
{
    struct psc_client *c = op->client;
    struct report_table *t = c->reports;

    t->open_count--;
    op_free_later(op);
    if (c->rc != 0) {
        return;
    }
    keep_error(t, op->rc, op->text);
    int rc = send_report(c);

    keep_error(t, rc, c->detail);
}

/* The scalar of that name, which is added if there is none; NULL: the table is
 * full. */
static struct scalar *obtain_scalar(struct report_table *t, const char *name)
{
    for (uint32_t i = 0; i < t->count; i++) {
        if (strcmp(t->list[i].name, name) == 0) {
            return &t->list[i];
        }
    }
    if (t->count == PS_SCALARS_MAX) {
        return NULL;
    }
    ps_str_copy(t->list[t->count].name, sizeof(t->list[t->count].name), name);
    return &t->list[t->count++];
}

static int check_names(struct psc_client *c, const struct psc_scalar *scalars,
                       uint32_t count)
{
    struct report_table *t = c->reports;
    const uint32_t known = t->count;

    for (uint32_t i = 0; i < count; i++) {
        const char *name = scalars[i].name;

        if (name == NULL || !ps_scalar_name_is_valid(name)) {
            t->count = known;
            return client_error(c, PSC_E_INVAL,
                                "scalar '%.80s': a name has 1 to %u "
                                "characters: %s",
                                name != NULL ? name : "", PS_SCALAR_NAME_MAX,
                                PS_SCALAR_NAME_CHARACTERS);
        }
        if (obtain_scalar(t, name) == NULL) {
            t->count = known;
            return client_error(c, PSC_E_FULL,
                                "scalar '%s': this worker reports %u others, "
                                "and a job has at most %u",
                                name, known, PS_SCALARS_MAX);
        }
    }
    return 0;
}

static int report_locked(struct psc_client *c, uint64_t step,
                         const struct psc_scalar *scalars, uint32_t count)
{
    struct report_table *t;
    int rc;

    if (c->rc != 0) {
        return client_error(c, c->rc, "%s", c->text);
    }
    if (c->reports == NULL) {
        c->reports = calloc(1, sizeof(*c->reports));
    }
    t = c->reports;
    if (t == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    if (t->open_count > 0) {
        client_poll(c); /* A program may make no other calls. */
    }
    rc = t->rc;
    if (rc != 0) {
        t->rc = 0;
        return client_error(c, rc, "an earlier report failed: %s", t->text);
    }
    rc = check_names(c, scalars, count);
    if (rc != 0) {
        return rc;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct scalar *one = obtain_scalar(t, scalars[i].name);

        one->value = scalars[i].value;
        one->step = step;
        one->must_send = true;
    }
    return send_report(c);
}

int psc_report_many(struct psc_client *c, uint64_t step,
                    const struct psc_scalar *scalars, uint32_t count)
{
    int rc = client_enter_with(c, scalars, "scalars");

    if (rc == 0) {
        rc = report_locked(c, step, scalars, count);
        client_leave(c);
    }
    return rc;
}

int psc_report(struct psc_client *c, const char *name, double value)
{
    const struct psc_scalar one = {.name = name, .value = value};
    int rc = client_enter_with(c, name, "name");

    if (rc == 0) {
        rc = report_locked(c, key_newest_round(c), &one, 1);
        client_leave(c);
    }
    return rc;
}

void report_free(struct psc_client *c)
{
    free(c->reports);
}
