/* SPDX-License-Identifier: Apache-2.0 */
/* Help of psctl: all verbs, one verb, and a hint for a misspelt verb. */
#include "psctl/help.h"

#include "base/alloc.h"
#include "base/nearest.h"
#include "base/str.h"

#include <string.h>

/* Column of the help of an option of all verbs. */
#define GENERAL_COLUMN 23

static const char exit_codes_text[] =
    "Exit codes: 0 done, and healthy; 1 refused or failed, with the reason;\n"
    "2 wrong usage; 3 degraded (status), stalled (stall) or ends soon (pki);\n"
    "4 no such job; 69 no scheduler there; 75 refused for now, or another "
    "protocol;\n"
    "77 not allowed; 78 wrong file of contexts.\n";

static void print_usage_lines(const struct page *p, FILE *out)
{
    for (size_t i = 0; p->arguments[i] != NULL; i++) {
        const char *begin = i == 0 ? "usage:" : "      ";

        fprintf(out, "%s psctl [OPTION]... %s%s%s\n", begin, p->verb,
                p->arguments[i][0] != '\0' ? " " : "", p->arguments[i]);
    }
}

static const struct flag *flag_at(size_t i)
{
    return &help_pages[i / FLAGS_MAX].flags[i % FLAGS_MAX];
}

static bool is_same_flag(const struct flag *a, const struct flag *b)
{
    return a->name != NULL && b->name != NULL && strcmp(a->name, b->name) == 0;
}

/* Prints the words behind its verb that an option belongs to, and its help. */
static void print_flag_help(const struct flag *f, FILE *out)
{
    const char *begin = "of ";

    for (const char *of = f->of; of != NULL && *of != '\0'; begin = ", ") {
        const size_t len = strcspn(of, "|");

        fprintf(out, "%s%.*s", begin, (int)len, of);
        of += len + (of[len] == '|');
    }
    fprintf(out, "%s%s\n", f->of != NULL ? ": " : "", f->help);
}

/* Prints an option with the verbs that have it. */
static void print_flag(size_t i, FILE *out)
{
    const struct flag *f = flag_at(i);
    const char *comma = "of ";

    fprintf(out, "      %-16s ", f->name);
    for (size_t k = i; k < help_page_count * FLAGS_MAX; k++) {
        if (is_same_flag(f, flag_at(k))) {
            fprintf(out, "%s%s", comma, help_pages[k / FLAGS_MAX].verb);
            comma = ", ";
        }
    }
    fputs(": ", out);
    print_flag_help(f, out);
}

/* Prints each option once. */
static void print_flags(FILE *out)
{
    for (size_t i = 0; i < help_page_count * FLAGS_MAX; i++) {
        size_t k = 0;

        while (k < i && !is_same_flag(flag_at(k), flag_at(i))) {
            k++;
        }
        if (k == i && flag_at(i)->name != NULL) {
            print_flag(i, out);
        }
    }
}

/* Prints the options of all verbs; each line of a help begins in one column. */
static void print_general(FILE *out)
{
    for (size_t i = 0; i < help_general_count; i++) {
        const struct flag *f = &help_general[i];
        int column = fprintf(out, "%s%s", f->name[1] == '-' ? "      " : "  ",
                             f->name);

        if (column + 2 > GENERAL_COLUMN) {
            fputc('\n', out);
            column = 0;
        }
        for (const char *line = f->help; *line != '\0'; column = 0) {
            const size_t len = strcspn(line, "\n");

            fprintf(out, "%*s%.*s\n", GENERAL_COLUMN - column, "", (int)len,
                    line);
            line += len + (line[len] == '\n');
        }
    }
}

void help_short(FILE *out)
{
    static const char *const titles[HELP_GROUPS] = {
        [HELP_LOOK] = "look at a cluster",
        [HELP_CHECK] = "find out what is wrong",
        [HELP_CHANGE] = "change a job or a log",
        [HELP_SET_UP] = "set up"};

    fputs(
        "usage: psctl [OPTION]... VERB     psctl help VERB: its options; help "
        "all: all\n",
        out);
    for (size_t g = 0; g < HELP_GROUPS; g++) {
        fprintf(out, "%s\n", titles[g]);
        for (size_t i = 0; i < help_page_count; i++) {
            if (help_pages[i].group == (enum help_group)g) {
                fprintf(out, "  %-11s %s\n", help_pages[i].verb,
                        help_pages[i].summary);
            }
        }
    }
}

/* All verbs with their words, and all options. */
static void help_all(FILE *out)
{
    fputs("usage: psctl [OPTION]... VERB\n\n", out);
    for (size_t i = 0; i < help_page_count; i++) {
        const struct page *p = &help_pages[i];

        for (size_t k = 0; p->arguments[k] != NULL; k++) {
            char left[64];

            snprintf(left, sizeof(left), "%s %s", p->verb, p->arguments[k]);
            fprintf(out, "  %-20s %s\n", left,
                    k == 0 ? p->summary : p->others[k - 1]);
        }
    }
    fputs("\n", out);
    print_flags(out);
    print_general(out);
    fprintf(out, "\n%s", exit_codes_text);
}

const struct page *help_find_page(const char *verb)
{
    for (size_t i = 0; i < help_page_count; i++) {
        if (strcmp(help_pages[i].verb, verb) == 0) {
            return &help_pages[i];
        }
    }
    return NULL;
}

struct flag_name flag_name_of(const struct flag *f)
{
    struct flag_name n = {.word = f->name};

    if (n.word[1] != '-') {
        n.letter = n.word[1];
        n.word += strlen("-x, ");
    }
    n.len = strcspn(n.word, " [");
    n.value = n.word[n.len] == ' ' ? n.word + n.len + 1 : NULL;
    return n;
}

/* `name`: without dashes. */
static bool is_flag(const struct flag *f, const char *name)
{
    const struct flag_name n = flag_name_of(f);

    return n.len == strlen(name) + 2 &&
           strncmp(n.word + 2, name, n.len - 2) == 0;
}

static bool has_word(const char *list, const char *word)
{
    const size_t len = strlen(word);

    for (; *list != '\0'; list += list[0] == '|') {
        const size_t n = strcspn(list, "|");

        if (n == len && strncmp(list, word, len) == 0) {
            return true;
        }
        list += n;
    }
    return false;
}

/* True if `word` may follow the verb; "": none need follow. */
static bool is_form(const struct page *p, const char *word)
{
    const size_t len = strlen(word);

    for (size_t i = 0; p->arguments[i] != NULL; i++) {
        const bool is_optional = strchr("[", p->arguments[i][0]) != NULL;
        const char *first = p->arguments[i] + strspn(p->arguments[i], "[");

        if (len == 0 ? is_optional
                     : strcspn(first, " ]") == len &&
                           strncmp(first, word, len) == 0) {
            return true;
        }
    }
    return false;
}

bool help_check_option(const struct page *p, const char *word, const char *name)
{
    for (size_t i = 0; i < help_general_count; i++) {
        if (is_flag(&help_general[i], name)) {
            return true;
        }
    }
    for (size_t i = 0; i < FLAGS_MAX && p->flags[i].name != NULL; i++) {
        const struct flag *f = &p->flags[i];

        if (!is_flag(f, name)) {
            continue;
        }
        if (f->of == NULL || has_word(f->of, word) || !is_form(p, word)) {
            return true;
        }
        fprintf(stderr, "psctl: --%s: %s%s%s has no such option; ", name,
                p->verb, *word != '\0' ? " " : "", word);
        fprintf(stderr, "see psctl help %s\n", p->verb);
        return false;
    }
    fprintf(stderr, "psctl: --%s: %s has no such option; see psctl help %s\n",
            name, p->verb, p->verb);
    return false;
}

bool help_verb(const char *verb)
{
    const struct page *p = help_find_page(verb);

    if (strcmp(verb, "all") == 0) {
        help_all(stdout);
        return true;
    }
    if (p == NULL) {
        help_no_verb(verb);
        return false;
    }
    print_usage_lines(p, stdout);
    printf("\n%s: %s\n%s%s", p->verb, p->summary,
           p->text[0] != '\0' ? "\n" : "", p->text);
    for (size_t i = 0; i < FLAGS_MAX && p->flags[i].name != NULL; i++) {
        printf("%s      %-16s ", i == 0 ? "\n" : "", p->flags[i].name);
        print_flag_help(&p->flags[i], stdout);
    }
    putchar('\n');
    print_general(stdout);
    printf("\n%s", exit_codes_text);
    return true;
}

void help_no_verb(const char *verb)
{
    const char **names = ps_calloc(help_page_count + 1, sizeof(*names));
    const char *near;
    char shown[256];
    struct ps_str s;

    for (size_t i = 0; i < help_page_count; i++) {
        names[i] = help_pages[i].verb;
    }
    near = ps_nearest(names, verb);
    ps_free(names);
    ps_str_init(&s, shown, sizeof(shown));
    ps_str_add_escaped(&s, verb, strlen(verb), 32);
    if (near != NULL) {
        fprintf(stderr, "psctl: no verb '%s'; did you mean %s?\n", shown, near);
        return;
    }
    fprintf(stderr, "psctl: no verb '%s'; there are", shown);
    for (size_t i = 0; i < help_page_count; i++) {
        fprintf(stderr, "%s %s", i > 0 ? "," : "", help_pages[i].verb);
    }
    fputs("\n", stderr);
}
