/* SPDX-License-Identifier: Apache-2.0 */
/* psctl explain: cause and remedy by the code of an error, or by a message or a
 * line of a log that was copied. */
#include "psctl/verbs.h"

#include "common/explain.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 3u

struct matches {
    const struct ps_explanation *list[SHOWN_MAX];
    size_t fit[SHOWN_MAX];
    size_t count;
};

/* Inserts by fit, the best first. */
static void add_match(struct matches *m, const struct ps_explanation *e,
                      size_t fit)
{
    size_t at = m->count;

    while (at > 0 && m->fit[at - 1] < fit) {
        at--;
    }
    if (at == SHOWN_MAX) {
        return;
    }
    if (m->count < SHOWN_MAX) {
        m->count++;
    }
    for (size_t i = m->count - 1; i > at; i--) {
        m->list[i] = m->list[i - 1];
        m->fit[i] = m->fit[i - 1];
    }
    m->list[at] = e;
    m->fit[at] = fit;
}

/* Finds the texts that a message has; those with far fewer of its letters than
 * the first one are parts of it by chance. */
static void find_texts(const char *message, struct matches *ret)
{
    for (size_t i = 0; i < ps_explanation_count; i++) {
        size_t fit = ps_explanation_fit(&ps_explanations[i], message);

        if (fit >= PS_EXPLANATION_FIT_MIN) {
            add_match(ret, &ps_explanations[i], fit);
        }
    }
    while (ret->count > 1 && ret->fit[ret->count - 1] < ret->fit[0] / 2) {
        ret->count--;
    }
}

/* Finds texts of which the message is a part. */
static void find_part(const char *part, struct matches *ret)
{
    for (size_t i = 0; i < ps_explanation_count; i++) {
        if (strcasestr(ps_explanations[i].text, part) != NULL) {
            add_match(ret, &ps_explanations[i], 0);
        }
    }
}

static void find_matches(const char *message, struct matches *ret)
{
    const struct ps_explanation *e = ps_explain_code(message);

    if (e != NULL) {
        add_match(ret, e, 0);
        return;
    }
    find_texts(message, ret);
    if (ret->count == 0 && strlen(message) >= PS_EXPLANATION_FIT_MIN) {
        find_part(message, ret);
    }
}

static void print_entry(const struct ps_explanation *e)
{
    printf("%s%s%s\n", e->code, e->code[0] != '\0' ? "  " : "", e->text);
    printf("  section     %s\n", e->section);
    printf("  cause       %s\n", e->cause);
    if (e->remedy[0] != '\0') {
        printf("  what to do  %s\n", e->remedy);
    }
}

static void add_json(json_t *list, const struct ps_explanation *e)
{
    json_t *one = json_pack("{s:s, s:s, s:s, s:s, s:s}", "code", e->code,
                            "text", e->text, "section", e->section, "cause",
                            e->cause, "remedy", e->remedy);

    if (one == NULL || json_array_append_new(list, one) != 0) {
        abort(); /* Out of memory. */
    }
}

static void print_json(const struct matches *m, bool all)
{
    json_t *list = json_array();
    json_t *o = json_pack("{s:i, s:o}", "schema", 1, "explanations", list);

    for (size_t i = 0; all && i < ps_explanation_count; i++) {
        add_json(list, &ps_explanations[i]);
    }
    for (size_t i = 0; i < m->count; i++) {
        add_json(list, m->list[i]);
    }
    json_print(o);
}

static void print_list(bool headings)
{
    static const char *const columns[] = {"CODE", "TEXT"};
    struct table t;

    table_init(&t, columns, 2);
    for (size_t i = 0; i < ps_explanation_count; i++) {
        table_text(&t, ps_explanations[i].code);
        table_cell(&t, "%s", ps_explanations[i].text);
    }
    table_print(&t, headings);
    table_fini(&t);
}

int explain_run(struct request *q, int count, char **values)
{
    struct matches m = {.count = 0};
    char message[4096] = "";
    struct ps_str s;

    ps_str_init(&s, message, sizeof(message));
    for (int i = 0; i < count; i++) {
        ps_str_addf(&s, "%s%s", i > 0 ? " " : "", values[i]);
    }
    if (count > 0) {
        find_matches(message, &m);
    }
    if (count > 0 && m.count == 0) {
        char shown[256];

        ps_str_init(&s, shown, sizeof(shown));
        add_printable(&s, message, 60);
        fprintf(stderr,
                "psctl: explain '%s': no such code or text; psctl explain "
                "lists them\n",
                shown);
        return EXIT_FAILED;
    }
    if (q->print.json) {
        print_json(&m, count == 0);
    } else if (count == 0) {
        print_list(!q->print.no_headings);
    }
    for (size_t i = 0; !q->print.json && i < m.count; i++) {
        print_entry(m.list[i]);
    }
    return EXIT_HEALTHY;
}
