/* SPDX-License-Identifier: Apache-2.0 */
/* psctl: shows and changes the state of a cluster through its scheduler. Parses
 * the command line by the tables of verbs.c, runs one verb, and maps the result
 * to an exit code. */
#include "psctl/verbs.h"

#include "base/variables.h"
#include "common/exit.h"

#include <getopt.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------ options */

#define FLAGS_OF_ALL 64

/* The options of all verbs as getopt_long() takes them. */
struct option_list {
    struct option options[FLAGS_OF_ALL];
    const struct flag *flags[FLAGS_OF_ALL];
    char words[FLAGS_OF_ALL][32]; /* Their names. */
    bool is_given[FLAGS_OF_ALL];
    char letters[FLAGS_OF_ALL]; /* ":e:w:" */
    int count;
};

static void add_option(struct option_list *l, const struct flag *f)
{
    const struct flag_name n = flag_name_of(f);
    char *word = l->words[l->count];
    const bool has_value = n.word[n.len] == ' ';

    snprintf(word, sizeof(l->words[0]), "%.*s", (int)n.len - 2, n.word + 2);
    for (int i = 0; i < l->count; i++) {
        if (strcmp(l->words[i], word) == 0) {
            return; /* Of another verb, too. */
        }
    }
    l->flags[l->count] = f;
    l->options[l->count] = (struct option){
        .name = word,
        .has_arg = has_value            ? required_argument
                   : n.word[n.len] != 0 ? optional_argument
                                        : no_argument,
        .val = n.letter != 0 ? n.letter : 256 + l->count};
    if (n.letter != 0) {
        const size_t len = strlen(l->letters);

        snprintf(l->letters + len, sizeof(l->letters) - len, "%c%s", n.letter,
                 has_value ? ":" : "");
    }
    l->count++;
}

static void make_options(struct option_list *l)
{
    ps_str_copy(l->letters, sizeof(l->letters), ":");
    for (size_t i = 0; i < general_flag_count; i++) {
        add_option(l, &general_flags[i]);
    }
    for (size_t v = 0; v < verb_count; v++) {
        for (size_t i = 0; i < FLAGS_MAX && verbs[v].flags[i].name != NULL;
             i++) {
            add_option(l, &verbs[v].flags[i]);
        }
    }
}

/* `name` is that of the option, with its dashes. */
static bool read_flag(struct request *q, const struct flag *f, const char *name,
                      const char *value)
{
    void *at = (char *)q + f->offset;

    switch (f->kind) {
    case FLAG_OWN:
        break;
    case FLAG_TRUE:
        *(bool *)at = true;
        return true;
    case FLAG_TEXT:
        *(const char **)at = value;
        return true;
    case FLAG_TIME:
        return time_parse(value, name, at);
    case FLAG_COUNT:
        return count_parse(value, name, f->max, at);
    }
    return f->read(q, value);
}

static bool parse_options(struct request *q, struct option_list *l, int argc,
                          char **argv)
{
    char name[40];
    int c;

    make_options(l);
    opterr = 0;
    while ((c = getopt_long(argc, argv, l->letters, l->options, NULL)) != -1) {
        int i = 0;

        if (c == ':' || c == '?') {
            fprintf(stderr, "psctl: %s: %s; see --help\n", argv[optind - 1],
                    c == ':' ? "needs a value" : "no such option");
            return false;
        }
        while (l->options[i].val != c) {
            i++;
        }
        snprintf(name, sizeof(name), "--%s", l->words[i]);
        if (!read_flag(q, l->flags[i], name, optarg)) {
            return false;
        }
        l->is_given[i] = true;
    }
    return true;
}

/* Finds the option of the verb; NULL: it has no such one. */
static const struct flag *find_flag(const struct verb *v, const char *word)
{
    for (size_t i = 0; i < FLAGS_MAX && v->flags[i].name != NULL; i++) {
        const struct flag_name n = flag_name_of(&v->flags[i]);

        if (n.len == strlen(word) + 2 &&
            strncmp(n.word + 2, word, n.len - 2) == 0) {
            return &v->flags[i];
        }
    }
    return NULL;
}

/* -------------------------------------------------------------------- words */

/* Matches words with a form, and moves the values to the front of `words`.
 * Returns their number, -1: it is another form. */
static int match_form(const struct form *f, int count, char **words)
{
    const char *rest = f->words;
    const char *word;
    size_t len;
    char *values[8];
    int used = 0;
    int i = 0;
    bool may_end;

    for (;;) {
        may_end = rest[strspn(rest, " ")] == '[';
        if (!form_next_word(&rest, &word, &len)) {
            break;
        }
        if (i == count) {
            if (may_end) {
                break;
            }
            return -1;
        }
        if (!form_is_literal(word)) {
            values[used++] = words[i];
        } else if (strlen(words[i]) != len ||
                   strncmp(words[i], word, len) != 0) {
            return -1;
        }
        i++;
    }
    if (f->has_rest) {
        return count;
    }
    if (i < count) {
        return -1;
    }
    memcpy(words, values, (size_t)used * sizeof(values[0]));
    return used;
}

/* True if the form has this word, which is given as it is, first. */
static bool begins_with(const struct form *f, const char *word)
{
    const char *rest = f->words;
    const char *first;
    size_t len;

    return form_next_word(&rest, &first, &len) && form_is_literal(first) &&
           strlen(word) == len && strncmp(first, word, len) == 0;
}

/* Reports words that are no form of the verb: those of the form that begins as
 * they do, or of all. */
static void report_words(const struct verb *v, int count, char **words)
{
    const char *before = "give ";
    const struct form *last = NULL;
    bool is_form = false;

    for (const struct form *f = v->forms; f->words != NULL; f++) {
        is_form |= count > 0 && begins_with(f, words[0]);
    }
    fprintf(stderr, "psctl: %s: ", v->name);
    for (const struct form *f = v->forms; f->words != NULL; f++) {
        if (f->help != NULL && (!is_form || begins_with(f, words[0]))) {
            if (last != NULL) {
                fprintf(stderr, "%s%s", before, last->words);
                before = ", ";
            }
            last = f;
        }
    }
    fprintf(stderr, "%s%s; see psctl help %s\n",
            before[0] == ',' ? " or " : before,
            last->words[0] != '\0' ? last->words : "no further word", v->name);
}

/* True if `word` may follow the verb; "": none need follow. */
static bool may_follow(const struct verb *v, const char *word)
{
    for (const struct form *f = v->forms; f->words != NULL; f++) {
        const bool is_enough = f->words[0] == '\0' || f->words[0] == '[';

        if (word[0] == '\0' ? is_enough : begins_with(f, word)) {
            return true;
        }
    }
    return false;
}

/* Refuses options of other verbs, and of other words behind this one: they would
 * have no effect. False after a message. */
static bool check_options(const struct option_list *l, const struct verb *v,
                          const char *word)
{
    for (int i = (int)general_flag_count; i < l->count; i++) {
        const struct flag *f = find_flag(v, l->words[i]);
        const bool is_of_another = f != NULL && f->of != NULL &&
                                   !ps_str_has_word(f->of, '|', word);

        if (!l->is_given[i] || (f != NULL && !is_of_another)) {
            continue;
        }
        if (f == NULL || may_follow(v, word)) {
            fprintf(stderr, "psctl: --%s: %s%s%s has no such option; ",
                    l->words[i], v->name, f != NULL && *word != '\0' ? " " : "",
                    f != NULL ? word : "");
            fprintf(stderr, "see psctl help %s\n", v->name);
            return false;
        }
    }
    return true;
}

/* Finds verb and form, and reads the words. Their values are then the first of
 * `words`; *ret_count is their number. */
static bool parse_words(struct request *q, const struct option_list *l,
                        int count, char **words, int *ret_count)
{
    q->verb = find_verb(words[0]);
    if (q->verb == NULL) {
        help_no_verb(words[0]);
        return false;
    }
    if (!check_options(l, q->verb, count > 1 ? words[1] : "")) {
        return false;
    }
    words++;
    *ret_count = -1;
    for (q->form = q->verb->forms; q->form->words != NULL; q->form++) {
        *ret_count = match_form(q->form, count - 1, words);
        if (*ret_count >= 0) {
            break;
        }
    }
    if (*ret_count < 0) {
        report_words(q->verb, count - 1, words);
        return false;
    }
    if (q->watch != 0 && q->form->access == ACCESS_USER) {
        fprintf(stderr, "psctl: --watch: %s %s happens once; leave it out\n",
                q->verb->name, q->form->words);
        return false;
    }
    return q->form->read == NULL || q->form->read(q, *ret_count, words);
}

/* Warns about misspelt variables, such as one meant to name psched's
 * address. */
static void warn_unknown_variables(void)
{
    const char *near = NULL;
    const char *entry;
    size_t cursor = 0;

    while ((entry = ps_variables_unknown(environ, &cursor, &near)) != NULL) {
        fprintf(stderr,
                "psctl: %.*s has no effect, there is no such variable%s%s%s\n",
                (int)strcspn(entry, "="), entry,
                near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                near != NULL ? "?" : "");
    }
}

/* ------------------------------------------------------------------ answers */

/* Queries about a job; others are about all jobs, whose names the table has. */
static bool is_of_job(enum ps_query what)
{
    return what != PS_QUERY_JOBS && what != PS_QUERY_NODES;
}

static int ask_psched(struct wire *w, struct request *q, struct report *r)
{
    const struct form *f = q->form;
    struct job_name name;
    const struct job_name *job = q->job != NULL ? &name : NULL;
    int rc = job != NULL ? job_name_parse(w, q->job, &name) : 0;

    if (rc == 0 && f->ask != NULL) {
        return f->ask(w, q, job, r);
    }
    for (size_t i = 0; rc == 0 && i < f->ask_count; i++) {
        rc = wire_query(w, f->asks[i], is_of_job(f->asks[i]) ? job : NULL, r);
    }
    return rc;
}

/* Returns the exit code of a valid answer. */
static int print_answer(struct request *q, struct report *r)
{
    const struct form *f = q->form;

    if (f->answers == answers_of_status) {
        health_check(r, q->after);
    }
    if (q->print.json) {
        answer_print_json(f->answers, r);
    } else if (f->show != NULL) {
        f->show(r, !q->print.no_headings);
    } else if (f->answers != NULL) {
        answer_print(f->answers[0], r, !q->print.no_headings);
    }
    return f->is_bad != NULL && f->is_bad(q, r) ? EXIT_DEGRADED : EXIT_HEALTHY;
}

static int run_command(struct request *q)
{
    const struct wire_target target = cluster_target(&q->cluster, q->timeout);
    struct report report = {0};
    int rc = 0;
    struct wire *w = wire_open(&target, &rc);

    if (w == NULL) {
        if (rc == EXIT_UNAVAILABLE && q->form->answers == answers_of_status) {
            show_private_jobs(stderr);
        }
        return rc;
    }
    if (q->form->access == ACCESS_USER && !q->dry_run) {
        w = wire_switch_to_local(w);
    }
    rc = ask_psched(w, q, &report);
    wire_close(w);
    if (rc == 0) {
        rc = q->form->finish != NULL ? q->form->finish(q, &report)
                                     : print_answer(q, &report);
    }
    report_fini(&report);
    return !ps_exit_flush() && rc == 0 ? EXIT_IOERR : rc;
}

/* Repeats the command until a signal; on a terminal each output overwrites the
 * last. */
static int run_watch(struct request *q)
{
    bool clears = !q->print.json && isatty(STDOUT_FILENO) == 1;

    for (;;) {
        int rc;

        if (clears) {
            fputs("\033[H\033[2J", stdout);
        }
        rc = run_command(q);
        if (rc == EXIT_USAGE || rc == EXIT_NOJOB || !ps_exit_flush()) {
            return rc;
        }
        if (!clears && !q->print.json) {
            putchar('\n');
            fflush(stdout);
        }
        wait_for(q->watch);
    }
}

/* Runs a verb that needs no scheduler. */
static int run_alone(struct request *q, int count, char **values)
{
    if (q->form->pki == NULL) {
        return q->form->run(q, count, values);
    }
    q->pki.json = q->print.json;
    q->pki.headings = !q->print.no_headings;
    q->pki.code_time = q->wanted.valid;
    q->pki.timeout = q->timeout;
    (void)umask(0077);
    return q->form->pki(&q->pki, values);
}

static int run(int argc, char **argv)
{
    struct request q = {
        .timeout = PS_SECONDS(5),
        .after = PS_SECONDS(10),
        .reason = "",
        .bench = {.size = 64u << 20, .keys = 100, .rounds = 50, .workers = 2},
        .pki = {.cluster = "default", .directory = PKI_DEFAULT_DIRECTORY},
        .wanted = {.valid = PS_SECONDS(3600)}};
    static struct option_list list; /* Its options are in use until the end. */
    char **words;
    int count;
    int rc;

    /* Needed for printable characters of the terminal. */
    (void)setlocale(LC_CTYPE, "");
    if (argc > 1 && strcmp(argv[1], "__complete") == 0) {
        return completion_run(argc - 2, argv + 2);
    }
    if (!parse_options(&q, &list, argc, argv)) {
        return EXIT_USAGE;
    }
    if (q.about == ABOUT_VERSION) {
        printf("psctl %s\nprotocol %u\n", PSKV_VERSION, PS_PROTOCOL);
        return EXIT_HEALTHY;
    }
    words = argv + optind;
    if (q.about == ABOUT_HELP && optind < argc) {
        const bool names_verb = strcmp(words[0], "help") == 0 &&
                                optind + 1 < argc;

        return help_verb(words[names_verb ? 1 : 0]) ? EXIT_HEALTHY : EXIT_USAGE;
    }
    if (optind == argc) {
        const bool helps = q.about == ABOUT_HELP;

        if (!helps) {
            fputs("psctl: give a verb\n\n", stderr);
        }
        help_short(helps ? stdout : stderr);
        return helps ? EXIT_HEALTHY : EXIT_USAGE;
    }
    if (!parse_words(&q, &list, argc - optind, words, &count)) {
        return EXIT_USAGE;
    }
    if (q.form->access == ACCESS_NONE) {
        return run_alone(&q, count, words + 1);
    }
    warn_unknown_variables();
    rc = cluster_choose(&q.cluster);
    if (rc != 0) {
        return rc;
    }
    return q.form->run != NULL ? q.form->run(&q, count, words + 1)
           : q.watch != 0      ? run_watch(&q)
                               : run_command(&q);
}

int main(int argc, char **argv)
{
    return ps_exit_with_output("psctl", run(argc, argv));
}
