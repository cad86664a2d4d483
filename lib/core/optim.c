/* SPDX-License-Identifier: Apache-2.0 */
/* One table says which hyper-parameters there are, where they go and what they
 * may be. Names come from strangers and are escaped in what is said of them. */
#include "core/optim.h"

#include "base/str.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum range {
    ANY,          /* Any finite number. */
    NOT_NEGATIVE, /* Zero or more. */
    BELOW_ONE,    /* Zero or more, and less than one. */
};

struct row {
    const char *name;
    const char *alias; /* NULL: none. */
    size_t offset;     /* In struct ps_sgd. */
    enum range range;
};

static const struct row rows[] = {
    {"learning_rate", "lr", offsetof(struct ps_sgd, lr), NOT_NEGATIVE},
    {"momentum", NULL, offsetof(struct ps_sgd, momentum), BELOW_ONE},
    {"wd", NULL, offsetof(struct ps_sgd, wd), NOT_NEGATIVE},
    {"rescale_grad", NULL, offsetof(struct ps_sgd, rescale), ANY},
    {"clip_gradient", NULL, offsetof(struct ps_sgd, clip), ANY},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

static const struct ps_sgd defaults = {.lr = 0.01, .rescale = 1.0};

static const char *text(const char *s)
{
    return s != NULL ? s : "";
}

static const struct row *find(const char *name)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(name, rows[i].name) == 0 ||
            (rows[i].alias != NULL && strcmp(name, rows[i].alias) == 0)) {
            return &rows[i];
        }
    }
    return NULL;
}

/* NULL when the value may be, else what it would have to be. */
static const char *objection(enum range range, double v)
{
    if (!isfinite(v)) {
        return "must be a finite number";
    }
    switch (range) {
    case ANY:
        return NULL;
    case NOT_NEGATIVE:
        return v >= 0 ? NULL : "must not be negative";
    case BELOW_ONE:
        return v >= 0 && v < 1 ? NULL : "must be at least 0 and less than 1";
    }
    return NULL;
}

static int take(const struct ps_rec_param *p, unsigned *seen,
                struct ps_sgd *sgd, struct ps_str *why)
{
    const char *name = text(p->name);
    const struct row *row = find(name);

    if (row == NULL) {
        ps_str_add(why, "sgd has no hyper-parameter '");
        ps_str_add_escaped(why, name, strlen(name), 32);
        ps_str_add(why, "'; it has");
        for (size_t i = 0; i < ROWS; i++) {
            ps_str_addf(why, "%s %s", i > 0 ? "," : "", rows[i].name);
        }
        return PS_E_INVAL;
    }
    if ((*seen & 1u << (row - rows)) != 0) {
        ps_str_addf(why, "%s of sgd is given twice", row->name);
        return PS_E_INVAL;
    }
    *seen |= 1u << (row - rows);

    const char *must = objection(row->range, p->value);
    if (must != NULL) {
        ps_str_addf(why, "%s of sgd %s, not %g", row->name, must, p->value);
        return PS_E_INVAL;
    }
    memcpy((char *)sgd + row->offset, &p->value, sizeof(p->value));
    return 0;
}

static int parse(const char *name, const struct ps_rec_param *params,
                 uint32_t count, struct ps_sgd *sgd, struct ps_str *why)
{
    unsigned seen = 0;

    name = text(name);
    *sgd = defaults;
    if (strcmp(name, "sgd") != 0) {
        ps_str_add(why, "no optimizer is called '");
        ps_str_add_escaped(why, name, strlen(name), 32);
        ps_str_add(why, "'; there is sgd");
        return PS_E_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < count; i++) {
        int rc = take(&params[i], &seen, sgd, why);

        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

int ps_optim_check(const char *name, const struct ps_rec_param *params,
                   uint32_t count, char *why, size_t why_cap)
{
    struct ps_sgd sgd;
    struct ps_str s;

    ps_str_init(&s, why, why_cap);
    return parse(name, params, count, &sgd, &s);
}

int ps_optim_parse(const char *name, const struct ps_rec_param *params,
                   uint32_t count, struct ps_sgd *ret)
{
    struct ps_sgd sgd;
    char why[1];
    struct ps_str s;

    ps_str_init(&s, why, sizeof(why));
    int rc = parse(name, params, count, &sgd, &s);
    if (rc == 0) {
        *ret = sgd;
    }
    return rc;
}
