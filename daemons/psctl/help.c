/* SPDX-License-Identifier: Apache-2.0 */
/* Help that the table of verbs gives: of all verbs and of one, a hint for a
 * misspelt verb, and the words that a shell completes. The script of a
 * shell calls
 *
 *     psctl __complete WORD...
 *
 * with all words behind "psctl" up to the one to be completed, which comes last
 * and may be empty. psctl prints one candidate a line, with a tab and its help
 * behind it, or ":files" or ":folders" for names of those. Names of jobs and
 * servers are those that the scheduler has at that time. */
#include "psctl/verbs.h"

#include "base/alloc.h"
#include "base/str.h"
#include "common/explain.h"

#include <stdio.h>
#include <string.h>

#define WORDS_MAX      16

/* Column of the help of an option of all verbs. */
#define GENERAL_COLUMN 23

static const char exit_codes_text[] =
    "Exit codes: 0 done, and healthy; 1 refused or failed, with the reason;\n"
    "2 wrong usage; 3 degraded (status), stalled (stall) or ends soon (pki);\n"
    "4 no such job; 69 no scheduler there; 75 refused for now, or another "
    "protocol;\n"
    "77 not allowed; 78 wrong file of contexts.\n";

/* True for a form that help shows; false also at the end of the forms. */
static bool is_shown(const struct form *f)
{
    return f->words != NULL && f->help != NULL;
}

static void print_usage_lines(const struct verb *v, FILE *out)
{
    for (const struct form *f = v->forms; is_shown(f); f++) {
        fprintf(out, "%s psctl [OPTION]... %s%s%s\n",
                f == v->forms ? "usage:" : "      ", v->name,
                f->words[0] != '\0' ? " " : "", f->words);
    }
}

static const struct flag *flag_at(size_t i)
{
    return &verbs[i / FLAGS_MAX].flags[i % FLAGS_MAX];
}

static bool is_same_flag(const struct flag *a, const struct flag *b)
{
    return a->name != NULL && b->name != NULL && strcmp(a->name, b->name) == 0;
}

/* True if an earlier verb has the same option. */
static bool is_repeated(size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (is_same_flag(flag_at(k), flag_at(i))) {
            return true;
        }
    }
    return false;
}

/* Prints the words behind its verb that an option is for, and its help. */
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
    for (size_t k = i; k < verb_count * FLAGS_MAX; k++) {
        if (is_same_flag(f, flag_at(k))) {
            fprintf(out, "%s%s", comma, verbs[k / FLAGS_MAX].name);
            comma = ", ";
        }
    }
    fputs(": ", out);
    print_flag_help(f, out);
}

/* Prints each option once. */
static void print_flags(FILE *out)
{
    for (size_t i = 0; i < verb_count * FLAGS_MAX; i++) {
        if (flag_at(i)->name != NULL && !is_repeated(i)) {
            print_flag(i, out);
        }
    }
}

/* Prints the options of all verbs; each line of a help begins in one column. */
static void print_general(FILE *out)
{
    for (size_t i = 0; i < general_flag_count; i++) {
        const struct flag *f = &general_flags[i];
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
    static const char *const titles[GROUPS] = {
        [GROUP_LOOK] = "look at a cluster",
        [GROUP_CHECK] = "find out what is wrong",
        [GROUP_CHANGE] = "change a job or a log",
        [GROUP_SET_UP] = "set up"};

    fputs(
        "usage: psctl [OPTION]... VERB     psctl help VERB: its options; help "
        "all: all\n",
        out);
    for (size_t g = 0; g < GROUPS; g++) {
        fprintf(out, "%s\n", titles[g]);
        for (size_t i = 0; i < verb_count; i++) {
            if (verbs[i].group == (enum verb_group)g) {
                fprintf(out, "  %-11s %s\n", verbs[i].name,
                        verbs[i].forms[0].help);
            }
        }
    }
}

/* All verbs with their words, and all options. */
static void help_all(FILE *out)
{
    fputs("usage: psctl [OPTION]... VERB\n\n", out);
    for (size_t i = 0; i < verb_count; i++) {
        for (const struct form *f = verbs[i].forms; is_shown(f); f++) {
            char left[64];

            snprintf(left, sizeof(left), "%s %s", verbs[i].name, f->words);
            fprintf(out, "  %-20s %s\n", left, f->help);
        }
    }
    fputs("\n", out);
    print_flags(out);
    print_general(out);
    fprintf(out, "\n%s", exit_codes_text);
}

bool help_verb(const char *verb)
{
    const struct verb *v = find_verb(verb);

    if (strcmp(verb, "all") == 0) {
        help_all(stdout);
        return true;
    }
    if (v == NULL) {
        help_no_verb(verb);
        return false;
    }
    print_usage_lines(v, stdout);
    printf("\n%s: %s\n%s%s", v->name, v->forms[0].help,
           v->text[0] != '\0' ? "\n" : "", v->text);
    for (size_t i = 0; i < FLAGS_MAX && v->flags[i].name != NULL; i++) {
        printf("%s      %-16s ", i == 0 ? "\n" : "", v->flags[i].name);
        print_flag_help(&v->flags[i], stdout);
    }
    putchar('\n');
    print_general(stdout);
    printf("\n%s", exit_codes_text);
    return true;
}

void help_no_verb(const char *verb)
{
    const char **names = ps_calloc(verb_count + 1, sizeof(*names));
    const char *near;
    struct ps_str s = PS_STR_ROOM(256);

    for (size_t i = 0; i < verb_count; i++) {
        names[i] = verbs[i].name;
    }
    near = ps_nearest(names, verb);
    ps_free(names);
    ps_str_add_escaped(&s, verb, strlen(verb), 32);
    if (near != NULL) {
        fprintf(stderr, "psctl: no verb '%s'; did you mean %s?\n", s.data,
                near);
        return;
    }
    fprintf(stderr, "psctl: no verb '%s'; there are", s.data);
    for (size_t i = 0; i < verb_count; i++) {
        fprintf(stderr, "%s %s", i > 0 ? "," : "", verbs[i].name);
    }
    fputs("\n", stderr);
}

/* --------------------------------------------------------------- completion */

/* The word to be completed. The strings are borrowed. */
struct completion {
    const char *prefix; /* First bytes of each candidate. */
    /* Printed before each candidate: "--option=", or empty. */
    const char *before;
    int before_len;
    struct request request; /* Values of the options before it. */
};

/* ------------------------------------------------------------------ scripts */

static const char bash_text[] =
    "# bash completion of psctl: source <(psctl completion bash)\n"
    "_psctl() {\n"
    "    local line word=${COMP_WORDS[COMP_CWORD]}\n"
    "    local IFS=$'\\n'\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r line; do\n"
    "        case $line in\n"
    "        :files)\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            COMPREPLY+=($(compgen -f -- \"$word\")) ;;\n"
    "        :folders)\n"
    "            compopt -o filenames 2>/dev/null\n"
    "            COMPREPLY+=($(compgen -d -- \"$word\")) ;;\n"
    "        *) COMPREPLY+=(\"${line%%$'\\t'*}\") ;;\n"
    "        esac\n"
    "    done < <(\"${1/#\\~/$HOME}\" __complete \\\n"
    "             \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
    "}\n"
    "complete -F _psctl psctl\n";

static const char zsh_text[] =
    "#compdef psctl\n"
    "# zsh completion of psctl: source <(psctl completion zsh), or this text\n"
    "# as the file _psctl of a folder in $fpath\n"
    "_psctl() {\n"
    "    local line\n"
    "    local -a names\n"
    "    while IFS= read -r line; do\n"
    "        case $line in\n"
    "        :files) _files ;;\n"
    "        :folders) _files -/ ;;\n"
    "        *) names+=(\"${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}\") ;;\n"
    "        esac\n"
    "    done < <(\"${words[1]/#\\~/$HOME}\" __complete \\\n"
    "             \"${(@)words[2,CURRENT]}\" 2>/dev/null)\n"
    "    (( $#names )) && _describe -V psctl names\n"
    "}\n"
    "if [ \"${funcstack[1]}\" = _psctl ]; then\n"
    "    _psctl \"$@\"\n"
    "else\n"
    "    compdef _psctl psctl\n"
    "fi\n";

static const char fish_text[] =
    "# fish completion of psctl: psctl completion fish | source\n"
    "function __psctl_words\n"
    "    set -l words (commandline -opc)\n"
    "    set -l last (commandline -ct)\n"
    "    for line in ($words[1] __complete $words[2..-1] \"$last\" "
    "2>/dev/null)\n"
    "        switch $line\n"
    "            case ':files'\n"
    "                __fish_complete_path \"$last\"\n"
    "            case ':folders'\n"
    "                __fish_complete_directories \"$last\"\n"
    "            case '*'\n"
    "                printf '%s\\n' $line\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c psctl -f -a '(__psctl_words)'\n";

bool completion_print_script(const char *shell)
{
    static const struct {
        const char *shell;
        const char *text;
    } scripts[] = {{"bash", bash_text}, {"zsh", zsh_text}, {"fish", fish_text}};

    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        if (strcmp(scripts[i].shell, shell) == 0) {
            fputs(scripts[i].text, stdout);
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------- values */

/* A word in capitals of the tables, and what prints its candidates. */
struct value {
    const char *name;
    const char *of; /* Verb or option; NULL: any. */
    void (*print)(struct completion *c, const struct value *v);
    const char *words[7];
};

/* Prints a candidate if it has the prefix; `help` "": none. */
static void print_candidate(const struct completion *c, const char *word,
                            const char *help)
{
    if (strncmp(word, c->prefix, strlen(c->prefix)) == 0) {
        printf("%.*s%s\t%.*s\n", c->before_len, c->before, word,
               (int)strcspn(help, "\n"), help);
    }
}

static void print_verbs(struct completion *c, const struct value *v)
{
    (void)v;
    for (size_t i = 0; i < verb_count; i++) {
        print_candidate(c, verbs[i].name, verbs[i].forms[0].help);
    }
}

static void print_context(void *arg, const char *name, const char *endpoint)
{
    print_candidate(arg, name, endpoint);
}

static void print_contexts(struct completion *c, const struct value *v)
{
    (void)v;
    context_each(print_context, c);
}

/* Asks the scheduler of the command line; false: it does not answer. */
static bool query_rows(struct completion *c, enum ps_query what,
                       struct report *r)
{
    struct wire_target target;
    struct wire *w;
    int rc = cluster_choose(&c->request.cluster);

    if (rc != 0) {
        return false;
    }
    target = cluster_target(&c->request.cluster, PS_SECONDS(1));
    w = wire_open(&target, &rc);
    if (w == NULL) {
        return false;
    }
    rc = wire_query(w, what, NULL, r);
    wire_close(w);
    return rc == 0;
}

static void print_jobs(struct completion *c, const struct value *v)
{
    struct report r = {0};

    (void)v;
    if (query_rows(c, PS_QUERY_JOBS, &r)) {
        const struct rows *rows = &r.rows_of[PS_QUERY_JOBS];

        for (size_t i = 0; i < rows->count; i++) {
            const struct ps_msg_job_row *j = &rows->row[i]->job_row;
            struct ps_str s = PS_STR_ROOM(600);

            add_job_name(&s, &r, j->name, j->uid);
            print_candidate(c, s.data, ps_job_phase_name(j->phase));
        }
    }
    report_fini(&r);
}

/* Names of servers, or of all members. */
static void print_members(struct completion *c, const struct value *v)
{
    const bool servers_only = strcmp(v->name, "SERVER") == 0;
    struct report r = {0};

    if (query_rows(c, PS_QUERY_NODES, &r)) {
        const struct rows *rows = &r.rows_of[PS_QUERY_NODES];

        for (size_t i = 0; i < rows->count; i++) {
            const struct ps_msg_node_row *n = &rows->row[i]->node_row;

            if (!servers_only || n->role == PS_ROLE_SERVER) {
                print_candidate(c, n->name, ps_node_state_name(n->state));
            }
        }
    }
    report_fini(&r);
}

static void print_codes(struct completion *c, const struct value *v)
{
    (void)v;
    for (size_t i = 0; i < ps_explanation_count; i++) {
        if (ps_explanations[i].code[0] != '\0') {
            print_candidate(c, ps_explanations[i].code,
                            ps_explanations[i].text);
        }
    }
}

static void print_words(struct completion *c, const struct value *v)
{
    for (size_t i = 0; v->words[i] != NULL; i++) {
        print_candidate(c, v->words[i], "");
    }
}

/* Names of files or folders, which the shell knows. */
static void print_mark(struct completion *c, const struct value *v)
{
    (void)c;
    puts(v->words[0]);
}

static const struct value values[] = {
    {"FORMAT", NULL, print_words, {"table", "json", "jsonl"}},
    {"KEY", "--sort", print_words, {"traffic", "rounds", "memory", "name"}},
    {"LEVEL",
     NULL,
     print_words,
     {"error", "warning", "notice", "info", "debug", "trace"}},
    {"LIST", NULL, print_words, {"train", "read", "operate", "admin"}},
    {"ROLE", NULL, print_words, {"sched", "server", "agent", "ctl"}},
    {"NAME",
     "set",
     print_words,
     {"learning_rate", "wd", "rescale_grad", "clip_gradient"}},
    {"NAME", "jobs", print_jobs, {NULL}},
    {"NAME", "context", print_contexts, {NULL}},
    {"NAME", "--context", print_contexts, {NULL}},
    {"JOB", NULL, print_jobs, {NULL}},
    {"[USER/]NAME", NULL, print_jobs, {NULL}},
    {"SERVER", NULL, print_members, {NULL}},
    {"MEMBER", NULL, print_members, {NULL}},
    {"VERB", NULL, print_verbs, {NULL}},
    {"CODE|MESSAGE", NULL, print_codes, {NULL}},
    {"FILE", NULL, print_mark, {":files"}},
    {"PATH", NULL, print_mark, {":files"}},
    {"FOLDER", NULL, print_mark, {":folders"}},
    {"DIR", NULL, print_mark, {":folders"}},
};

static const struct value *find_value(const char *name, size_t len,
                                      const char *of)
{
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        const struct value *v = &values[i];

        if (strlen(v->name) == len && strncmp(v->name, name, len) == 0 &&
            (v->of == NULL || strcmp(v->of, of) == 0)) {
            return v;
        }
    }
    return NULL;
}

/* `v` NULL: no value is known. */
static void print_values(struct completion *c, const struct value *v)
{
    if (v != NULL) {
        v->print(c, v);
    }
}

/* ------------------------------------------------------------------ options */

/* True if `word` is the option, as "--round", "--round=5" or "-n". */
static bool is_named(const struct flag *f, const char *word)
{
    const struct flag_name n = flag_name_of(f);

    if (n.letter != '\0' && word[1] == n.letter && word[2] == '\0') {
        return true;
    }
    return strcspn(word, "=") == n.len && strncmp(word, n.word, n.len) == 0;
}

static const struct flag *find_flag(const char *word)
{
    for (size_t i = 0; i < general_flag_count; i++) {
        if (is_named(&general_flags[i], word)) {
            return &general_flags[i];
        }
    }
    for (size_t i = 0; i < verb_count * FLAGS_MAX; i++) {
        const struct flag *f = flag_at(i);

        if (f->name != NULL && is_named(f, word)) {
            return f;
        }
    }
    return NULL;
}

static void print_flag_word(const struct completion *c, const struct flag *f)
{
    const struct flag_name n = flag_name_of(f);
    char word[64];

    if (n.letter != '\0' && c->prefix[1] == '\0') {
        snprintf(word, sizeof(word), "-%c", n.letter);
        print_candidate(c, word, f->help);
    }
    snprintf(word, sizeof(word), "%.*s", (int)n.len, n.word);
    print_candidate(c, word, f->help);
}

/* Options of all verbs, and of `v`, or of each one if it is NULL. */
static void print_flag_words(const struct completion *c, const struct verb *v)
{
    for (size_t i = 0; i < verb_count * FLAGS_MAX; i++) {
        if (flag_at(i)->name != NULL &&
            (v != NULL ? v == &verbs[i / FLAGS_MAX] : !is_repeated(i))) {
            print_flag_word(c, flag_at(i));
        }
    }
    for (size_t i = 0; i < general_flag_count; i++) {
        print_flag_word(c, &general_flags[i]);
    }
}

static void print_flag_values(struct completion *c, const struct flag *f)
{
    const struct flag_name n = flag_name_of(f);
    char of[64];

    if (n.value != NULL) {
        snprintf(of, sizeof(of), "%.*s", (int)n.len, n.word);
        print_values(c, find_value(n.value, strlen(n.value), of));
    }
}

/* -------------------------------------------------------------------- words */

/* Finds the word of a form that stands behind `count` words that fit it. */
static bool find_form_word(const char *form, char *const *words, int count,
                           const char **ret_word, size_t *ret_len)
{
    for (int i = 0; i < count; i++) {
        if (!form_next_word(&form, ret_word, ret_len) ||
            (form_is_literal(*ret_word) &&
             (strlen(words[i]) != *ret_len ||
              strncmp(words[i], *ret_word, *ret_len) != 0))) {
            return false;
        }
    }
    return form_next_word(&form, ret_word, ret_len);
}

/* Candidates for the word behind a verb and `count` words. */
static void print_arguments(struct completion *c, const struct verb *v,
                            char *const *words, int count)
{
    for (const struct form *f = v->forms; is_shown(f); f++) {
        const char *word;
        size_t len;

        if (!find_form_word(f->words, words, count, &word, &len)) {
            continue;
        }
        if (form_is_literal(word)) {
            char text[32];

            snprintf(text, sizeof(text), "%.*s", (int)len, word);
            print_candidate(c, text, f->help);
        } else {
            print_values(c, find_value(word, len, v->name));
        }
    }
}

/* Keeps the value of an option, such as one that names the cluster. */
static void keep_option(struct completion *c, const struct flag *f,
                        const char *value)
{
    if (f != NULL && f->kind == FLAG_TEXT) {
        *(const char **)((char *)&c->request + f->offset) = value;
    }
}

/* The last word, if it is the value of an option behind "=" in one word. */
static bool split_option(struct completion *c, const char *last,
                         const struct flag **ret_flag)
{
    const size_t len = strcspn(last, "=");

    if (last[0] != '-' || last[len] != '=') {
        return false;
    }
    *ret_flag = find_flag(last);
    c->prefix = last + len + 1;
    c->before = last;
    c->before_len = (int)len + 1;
    return *ret_flag != NULL;
}

/* The words before the last one. */
struct command {
    const struct verb *verb; /* NULL: there is none yet. */
    char *words[WORDS_MAX];  /* Behind the verb. */
    int count;
    const struct flag *open; /* Option whose value comes next. */
};

static void read_option(struct command *l, struct completion *c, char *word)
{
    const struct flag *f = find_flag(word);
    const char *value = strchr(word, '=');

    if (value != NULL) {
        keep_option(c, f, value + 1);
    } else if (f != NULL && flag_name_of(f).value != NULL) {
        l->open = f;
    }
}

/* False: no word can follow this one. */
static bool read_word(struct command *l, struct completion *c, char *word)
{
    if (l->open != NULL && strcmp(word, "=") == 0) {
        return true; /* bash makes it a word of its own. */
    }
    if (l->open != NULL) {
        keep_option(c, l->open, word);
        l->open = NULL;
    } else if (word[0] == '-' && word[1] != '\0') {
        read_option(l, c, word);
    } else if (l->verb == NULL) {
        l->verb = find_verb(word);
        return l->verb != NULL;
    } else if (l->count < WORDS_MAX) {
        l->words[l->count++] = word;
    }
    return true;
}

/* Candidates for the word `last` behind a line. */
static void print_candidates(struct completion *c, const struct command *l,
                             const char *last)
{
    const struct flag *f = NULL;

    if (l->open != NULL) {
        c->prefix = strcmp(last, "=") == 0 ? "" : last;
        print_flag_values(c, l->open);
    } else if (split_option(c, last, &f)) {
        print_flag_values(c, f);
    } else if (last[0] == '-') {
        print_flag_words(c, l->verb);
    } else if (l->verb == NULL) {
        print_verbs(c, NULL);
    } else {
        print_arguments(c, l->verb, l->words, l->count);
    }
}

int completion_run(int argc, char **argv)
{
    const char *last = argc > 0 ? argv[argc - 1] : "";
    struct completion c = {.prefix = last, .before = ""};
    struct command l = {.count = 0};
    bool goes_on = true;

    for (int i = 0; goes_on && i + 1 < argc; i++) {
        goes_on = read_word(&l, &c, argv[i]);
    }
    if (goes_on) {
        print_candidates(&c, &l, last);
    }
    return EXIT_HEALTHY;
}
