/* SPDX-License-Identifier: Apache-2.0 */
/* Prints answers by their columns (columns.c), as a table or as JSON: one object,
 * "schema" first. Names are stable within a schema; new ones may be added. */
#include "psctl/answer.h"

#include "base/alloc.h"
#include "proto/shape.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCHEMA    1
#define ANY_COUNT SIZE_MAX

/* ------------------------------------------------------------------- fields */

struct fields {
    const struct ps_shape_field *list;
    size_t count;
};

static struct fields fields_of(const struct answer *a)
{
    const struct ps_shape_msg *m = ps_shape_of(a->code);

    return m != NULL ? (struct fields){m->fields, m->field_count}
                     : (struct fields){a->fields, a->field_count};
}

static const struct ps_shape_field *find_field(struct fields f,
                                               const char *name)
{
    for (size_t i = 0; i < f.count; i++) {
        if (strcmp(f.list[i].name, name) == 0) {
            return &f.list[i];
        }
    }
    assert(!"a column has a field of its row");
    return NULL;
}

static const char *text_at(const struct ps_shape_field *f, const void *row)
{
    return *(const char *const *)ps_shape_at(f, row);
}

static uint64_t count_at(const struct ps_shape_field *f, const void *row)
{
    return ps_shape_get_u64(f->type, ps_shape_at(f, row));
}

static const char *value_name_at(const struct ps_shape_field *f,
                                 const void *row)
{
    return ps_shape_value_name(f->values, (unsigned)count_at(f, row));
}

/* --------------------------------------------------------------------- JSON */

static size_t layout = JSON_INDENT(2);

void json_use_lines(void)
{
    layout = JSON_COMPACT;
}

void json_print(json_t *o)
{
    if (o == NULL ||
        (json_dumpf(o, stdout, layout | JSON_REAL_PRECISION(13)) != 0 &&
         ferror(stdout) == 0)) {
        fputs("psctl: cannot write the answer\n", stderr);
    }
    putchar('\n');
    json_decref(o);
}

json_t *json_text(const char *text)
{
    json_t *value = json_string(text);
    struct ps_str s = PS_STR_ROOM(4096);

    if (value != NULL) {
        return value;
    }
    ps_str_add_escaped(&s, text, strlen(text), 1000);
    return json_string(s.data);
}

void json_put(json_t *o, const char *name, json_t *value)
{
    if (value == NULL || json_object_set_new(o, name, value) != 0) {
        abort(); /* Out of memory. */
    }
}

void json_append(json_t *list, json_t *value)
{
    if (value == NULL || json_array_append_new(list, value) != 0) {
        abort(); /* Out of memory. */
    }
}

json_t *json_count(uint64_t n)
{
    return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n);
}

json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value)
           : isnan(value)  ? json_string("NaN")
           : value > 0     ? json_string("Infinity")
                           : json_string("-Infinity");
}

static json_t *json_record(const struct answer *a, struct fields fields,
                           const void *row);

static json_t *json_list(const struct column *c, const struct ps_shape_field *f,
                         const void *row)
{
    const struct fields fields = {f->record->fields, f->record->field_count};
    json_t *list = json_array();

    for (uint32_t i = 0; i < ps_shape_count(f, row); i++) {
        json_append(list,
                    json_record(c->of, fields, ps_shape_element(f, row, i)));
    }
    return list;
}

static json_t *json_field(const struct column *c,
                          const struct ps_shape_field *f, const void *row)
{
    switch (f->type) {
    case PS_SHAPE_BOOL:
        return json_boolean(count_at(f, row) != 0);
    case PS_SHAPE_STR:
        return json_text(text_at(f, row));
    case PS_SHAPE_F64:
        return json_number(*(const double *)ps_shape_at(f, row));
    case PS_SHAPE_LIST:
        return json_list(c, f, row);
    case PS_SHAPE_I32:
    case PS_SHAPE_I64:
        return json_real(
            (double)ps_shape_get_i64(f->type, ps_shape_at(f, row)) / 1e9);
    case PS_SHAPE_U8:
    case PS_SHAPE_U16:
    case PS_SHAPE_U32:
    case PS_SHAPE_U64:
    case PS_SHAPE_BIN:
        break;
    }
    return f->values != NULL ? json_string(value_name_at(f, row))
           : c != NULL && c->unit == UNIT_AGE
               ? json_real((double)count_at(f, row) / 1e9)
               : json_count(count_at(f, row));
}

static json_t *json_made_text(const struct column *c, const void *row)
{
    struct ps_str s = PS_STR_ROOM(1024);

    c->text(&s, row);
    return json_text(s.data);
}

static json_t *json_record(const struct answer *a, struct fields fields,
                           const void *row)
{
    json_t *o = json_object();

    for (size_t i = 0; i < a->count; i++) {
        const struct column *c = &a->columns[i];
        json_t *value;

        if (c->json == NULL || (c->is_optional && !c->holds(row))) {
            continue;
        }
        value = c->value != NULL ? c->value(row)
                : c->text != NULL
                    ? json_made_text(c, row)
                    : json_field(c, find_field(fields, c->field), row);
        json_put(o, c->json, value);
    }
    for (size_t i = 0; a->columns == NULL && i < fields.count; i++) {
        json_put(o, fields.list[i].name,
                 json_field(NULL, &fields.list[i], row));
    }
    return o;
}

json_t *json_row(const struct answer *a, const void *row)
{
    return json_record(a, fields_of(a), row);
}

void answer_print_lines(const struct answer *a, const struct report *r)
{
    const struct rows *rows = &r->rows_of[a->query];

    for (size_t i = 0; i < rows->count; i++) {
        json_t *o = json_row(a, rows->row[i]);

        json_put(o, "schema", json_integer(SCHEMA));
        json_print(o);
    }
}

void answer_print_json(const struct answer *const *answers,
                       const struct report *r)
{
    const struct ps_msg_query_end *end = &r->end->query_end;
    json_t *o;

    if (answers != NULL && answers[0] == &answer_events &&
        layout == JSON_COMPACT) {
        answer_print_lines(answers[0], r);
        return;
    }
    o = json_object();
    json_put(o, "schema", json_integer(SCHEMA));
    json_put(o, "cluster", json_text(end->cluster));
    json_put(o, "epoch", json_count(end->epoch));
    json_put(o, "uptime_s", json_real((double)end->uptime_ns / 1e9));
    for (; answers != NULL && *answers != NULL; answers++) {
        const struct answer *a = *answers;
        json_t *list;

        if (a->put != NULL) {
            a->put(o, r);
            continue;
        }
        list = json_array();
        for (size_t i = 0; i < r->rows_of[a->query].count; i++) {
            json_append(list, json_row(a, r->rows_of[a->query].row[i]));
        }
        json_put(o, a->list, list);
    }
    json_print(o);
}

/* -------------------------------------------------------------------- tables */

static void cell_count(struct table *t, enum unit unit, uint64_t n)
{
    void (*const format)(uint64_t n, char *out,
                         size_t cap) = unit == UNIT_COUNT ? format_count
                                       : unit == UNIT_BYTES || unit == UNIT_RATE
                                           ? format_bytes
                                       : unit == UNIT_AGE ? format_age
                                                          : NULL;
    char text[32];

    if (format == NULL) {
        table_cell(t, "%" PRIu64, n);
    } else {
        format(n, text, sizeof(text));
        table_cell(t, "%s%s", text, unit == UNIT_RATE ? "/s" : "");
    }
}

static void cell_number(struct table *t, enum unit unit, double n)
{
    if (unit == UNIT_PERCENT) {
        table_cell(t, "%.1f %%", 100 * n);
    } else {
        table_cell(t, unit == UNIT_EXACT ? "%.9g" : "%.6g", n);
    }
}

static void cell_field(struct table *t, const struct column *c,
                       struct fields fields, const struct report *r,
                       const void *row)
{
    const struct ps_shape_field *f = find_field(fields, c->field);

    if (c->unit == UNIT_JOB) {
        cell_job(t, r, text_at(f, row),
                 (uint32_t)count_at(find_field(fields, "uid"), row));
    } else if (c->unit == UNIT_UPPER) {
        cell_upper(t, value_name_at(f, row));
    } else if (f->type == PS_SHAPE_STR) {
        table_text(t, text_at(f, row));
    } else if (f->type == PS_SHAPE_F64) {
        cell_number(t, c->unit, *(const double *)ps_shape_at(f, row));
    } else if (f->values != NULL) {
        table_cell(t, "%s", value_name_at(f, row));
    } else {
        cell_count(t, c->unit, count_at(f, row));
    }
}

static void cell_made_text(struct table *t, const struct column *c,
                           const void *row)
{
    struct ps_str s = PS_STR_ROOM(1024);

    c->text(&s, row);
    table_cell(t, "%s", s.data);
}

static bool holds_for_any(const struct column *c, const void *const *rows,
                          size_t count)
{
    bool holds = c->holds == NULL || count == ANY_COUNT;

    for (size_t i = 0; !holds && i < count; i++) {
        holds = c->holds(rows[i]);
    }
    return holds;
}

/* Begins a table with the columns that hold for any of the rows (ANY_COUNT:
 * with all), behind one more with the title `before` (NULL: none). `ret_used` are
 * these columns, NULL where one is left out. */
static void begin_table(struct table *t, const struct answer *a,
                        const void *const *rows, size_t count,
                        const char *before, const struct column **ret_used)
{
    const char *titles[TABLE_COLUMNS];
    size_t columns = 0;

    assert(a->count <= COLUMNS_MAX);
    if (before != NULL) {
        titles[columns++] = before;
    }
    for (size_t i = 0; i < a->count; i++) {
        const struct column *c = &a->columns[i];

        ret_used[i] = c->title != NULL && holds_for_any(c, rows, count) ? c
                                                                        : NULL;
        if (ret_used[i] != NULL) {
            assert(columns < TABLE_COLUMNS);
            titles[columns++] = c->title;
        }
    }
    table_init(t, titles, columns);
}

static void add_cells(struct table *t, const struct answer *a,
                      const struct column *const *used, struct fields fields,
                      const struct report *r, const void *row)
{
    for (size_t i = 0; i < a->count; i++) {
        const struct column *c = used[i];

        if (c == NULL) {
            continue;
        }
        if (c->holds != NULL && !c->holds(row)) {
            table_cell(t, "-");
        } else if (c->text != NULL) {
            cell_made_text(t, c, row);
        } else {
            cell_field(t, c, fields, r, row);
        }
    }
}

void answer_print_list(const struct answer *a, const struct report *r,
                       const void *const *rows, size_t count, bool headings)
{
    const struct column *used[COLUMNS_MAX];
    const struct fields fields = fields_of(a);
    struct table t;

    begin_table(&t, a, rows, count, NULL, used);
    for (size_t i = 0; i < count; i++) {
        add_cells(&t, a, used, fields, r, rows[i]);
    }
    table_print(&t, headings);
    table_fini(&t);
}

void answer_print(const struct answer *a, const struct report *r, bool headings)
{
    const struct rows *rows = &r->rows_of[a->query];

    answer_print_list(a, r, (const void *const *)rows->row, rows->count,
                      headings);
}

void job_table_begin(struct job_table *j, const struct answer *a,
                     const char *field)
{
    const struct ps_shape_field *f = find_field(fields_of(&answer_jobs), field);

    j->a = a;
    j->fields = f->record->fields;
    j->field_count = f->record->field_count;
    begin_table(&j->t, a, NULL, ANY_COUNT, "JOB", j->used);
}

void job_table_add(struct job_table *j, const struct report *r,
                   const struct ps_msg_job_row *job, const void *record)
{
    cell_job(&j->t, r, job->name, job->uid);
    add_cells(&j->t, j->a, j->used, (struct fields){j->fields, j->field_count},
              r, record);
}

void job_table_end(struct job_table *j, bool headings)
{
    table_print(&j->t, headings);
    table_fini(&j->t);
}
