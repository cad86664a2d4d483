/* SPDX-License-Identifier: Apache-2.0 */
#include "psctl/completion.h"

#include "psctl/cluster.h"
#include "psctl/help.h"
#include "psctl/psctl.h"

#include "common/explain.h"

#include <stdio.h>
#include <string.h>

#define WORDS_MAX 16

/* The word to be completed. The strings are borrowed. */
struct completion {
    const char *prefix; /* First bytes of each candidate. */
    /* Printed before each candidate: "--option=", or empty. */
    const char *before;
    int before_len;
    struct cluster cluster; /* That of the command line. */
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

enum value_kind {
    VALUE_UNKNOWN,
    VALUE_WORDS,
    VALUE_VERBS,
    VALUE_CODES,
    VALUE_JOBS,
    VALUE_SERVERS,
    VALUE_MEMBERS,
    VALUE_CONTEXTS,
    VALUE_FILES,
    VALUE_FOLDERS,
};

/* A word in capitals of the tables, and its values. */
struct value {
    const char *name;
    const char *of; /* Verb or option; NULL: any. */
    enum value_kind kind;
    const char *words[7];
};

static const struct value values[] = {
    {"FORMAT", NULL, VALUE_WORDS, {"table", "json", "jsonl"}},
    {"KEY", "--sort", VALUE_WORDS, {"traffic", "rounds", "memory", "name"}},
    {"LEVEL",
     NULL,
     VALUE_WORDS,
     {"error", "warning", "notice", "info", "debug", "trace"}},
    {"LIST", NULL, VALUE_WORDS, {"train", "read", "operate", "admin"}},
    {"ROLE", NULL, VALUE_WORDS, {"sched", "server", "agent", "ctl"}},
    {"NAME",
     "set",
     VALUE_WORDS,
     {"learning_rate", "wd", "rescale_grad", "clip_gradient"}},
    {"NAME", "jobs", VALUE_JOBS, {NULL}},
    {"NAME", "context", VALUE_CONTEXTS, {NULL}},
    {"NAME", "--context", VALUE_CONTEXTS, {NULL}},
    {"JOB", NULL, VALUE_JOBS, {NULL}},
    {"[USER/]NAME", NULL, VALUE_JOBS, {NULL}},
    {"SERVER", NULL, VALUE_SERVERS, {NULL}},
    {"MEMBER", NULL, VALUE_MEMBERS, {NULL}},
    {"VERB", NULL, VALUE_VERBS, {NULL}},
    {"CODE|MESSAGE", NULL, VALUE_CODES, {NULL}},
    {"FILE", NULL, VALUE_FILES, {NULL}},
    {"PATH", NULL, VALUE_FILES, {NULL}},
    {"FOLDER", NULL, VALUE_FOLDERS, {NULL}},
    {"DIR", NULL, VALUE_FOLDERS, {NULL}},
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

/* Prints a candidate if it has the prefix; `help` "": none. */
static void print_candidate(const struct completion *c, const char *word,
                            const char *help)
{
    if (strncmp(word, c->prefix, strlen(c->prefix)) == 0) {
        printf("%.*s%s\t%.*s\n", c->before_len, c->before, word,
               (int)strcspn(help, "\n"), help);
    }
}

static void print_verbs(const struct completion *c)
{
    for (size_t i = 0; i < help_page_count; i++) {
        print_candidate(c, help_pages[i].verb, help_pages[i].summary);
    }
}

static void print_context(void *arg, const char *name, const char *endpoint)
{
    print_candidate(arg, name, endpoint);
}

/* Asks the scheduler of the command line; false: it does not answer. */
static bool query_rows(struct completion *c, enum ps_query what,
                       struct report *r)
{
    struct wire *w;
    int rc = cluster_choose(&c->cluster);

    if (rc != 0) {
        return false;
    }
    w = wire_open(&(struct wire_target){.endpoint = c->cluster.endpoint,
                                        .token = c->cluster.token,
                                        .tls = c->cluster.tls,
                                        .silence = PS_SECONDS(1)},
                  &rc);
    if (w == NULL) {
        return false;
    }
    rc = wire_query(w, what, NULL, r);
    wire_close(w);
    return rc == 0;
}

static void print_jobs(struct completion *c)
{
    struct report r = {0};

    if (query_rows(c, PS_QUERY_JOBS, &r)) {
        const struct rows *rows = &r.rows_of[PS_QUERY_JOBS];

        for (size_t i = 0; i < rows->count; i++) {
            const struct ps_msg_job_row *j = &rows->row[i]->job_row;
            char name[600];
            struct ps_str s;

            ps_str_init(&s, name, sizeof(name));
            add_job_name(&s, &r, j->name, j->uid);
            print_candidate(c, name, ps_job_phase_name(j->phase));
        }
    }
    report_fini(&r);
}

/* Names of servers, or of all members. */
static void print_members(struct completion *c, bool servers_only)
{
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

static void print_codes(const struct completion *c)
{
    for (size_t i = 0; i < ps_explanation_count; i++) {
        if (ps_explanations[i].code[0] != '\0') {
            print_candidate(c, ps_explanations[i].code,
                            ps_explanations[i].text);
        }
    }
}

/* `v` NULL: no value is known. */
static void print_values(struct completion *c, const struct value *v)
{
    switch (v != NULL ? v->kind : VALUE_UNKNOWN) {
    case VALUE_WORDS:
        for (size_t i = 0; v->words[i] != NULL; i++) {
            print_candidate(c, v->words[i], "");
        }
        break;
    case VALUE_VERBS:
        print_verbs(c);
        break;
    case VALUE_CODES:
        print_codes(c);
        break;
    case VALUE_FILES:
        puts(":files");
        break;
    case VALUE_FOLDERS:
        puts(":folders");
        break;
    case VALUE_JOBS:
        print_jobs(c);
        break;
    case VALUE_SERVERS:
        print_members(c, true);
        break;
    case VALUE_MEMBERS:
        print_members(c, false);
        break;
    case VALUE_CONTEXTS:
        context_each(print_context, c);
        break;
    case VALUE_UNKNOWN:
        break;
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
    for (size_t i = 0; i < help_general_count; i++) {
        if (is_named(&help_general[i], word)) {
            return &help_general[i];
        }
    }
    for (size_t i = 0; i < help_page_count * FLAGS_MAX; i++) {
        const struct flag *f = &help_pages[i / FLAGS_MAX].flags[i % FLAGS_MAX];

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

/* True if an earlier verb has the same option. */
static bool is_repeated(size_t i)
{
    const char *name = help_pages[i / FLAGS_MAX].flags[i % FLAGS_MAX].name;

    for (size_t k = 0; k < i; k++) {
        const struct flag *f = &help_pages[k / FLAGS_MAX].flags[k % FLAGS_MAX];

        if (f->name != NULL && strcmp(f->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Options of all verbs, and of `verb`, or of each one if it is NULL. */
static void print_flag_words(const struct completion *c, const char *verb)
{
    for (size_t i = 0; i < help_page_count * FLAGS_MAX; i++) {
        const struct page *p = &help_pages[i / FLAGS_MAX];
        const struct flag *f = &p->flags[i % FLAGS_MAX];

        if (f->name != NULL &&
            (verb != NULL ? strcmp(verb, p->verb) == 0 : !is_repeated(i))) {
            print_flag_word(c, f);
        }
    }
    for (size_t i = 0; i < help_general_count; i++) {
        print_flag_word(c, &help_general[i]);
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

/* Next word of a form such as "[list]" or "cancel NAME", without brackets. */
static bool next_word(const char **form, const char **ret_word, size_t *ret_len)
{
    const char *word = *form + strspn(*form, " [");

    *ret_word = word;
    *ret_len = strcspn(word, " ]");
    *form = word + *ret_len + (word[*ret_len] == ']');
    return *ret_len > 0;
}

static bool is_literal(const char *word)
{
    return word[0] >= 'a' && word[0] <= 'z';
}

/* Finds the word of a form that stands behind `count` words that fit it. */
static bool find_form_word(const char *form, char *const *words, int count,
                           const char **ret_word, size_t *ret_len)
{
    for (int i = 0; i < count; i++) {
        if (!next_word(&form, ret_word, ret_len) ||
            (is_literal(*ret_word) &&
             (strlen(words[i]) != *ret_len ||
              strncmp(words[i], *ret_word, *ret_len) != 0))) {
            return false;
        }
    }
    return next_word(&form, ret_word, ret_len);
}

/* Candidates for the word behind a verb and `count` words. */
static void print_arguments(struct completion *c, const struct page *p,
                            char *const *words, int count)
{
    for (size_t i = 0; p->arguments[i] != NULL; i++) {
        const char *word;
        size_t len;

        if (!find_form_word(p->arguments[i], words, count, &word, &len)) {
            continue;
        }
        if (is_literal(word)) {
            char text[32];

            snprintf(text, sizeof(text), "%.*s", (int)len, word);
            print_candidate(c, text, i == 0 ? p->summary : p->others[i - 1]);
        } else {
            print_values(c, find_value(word, len, p->verb));
        }
    }
}

/* Keeps the value of an option that names the cluster. */
static void keep_option(struct cluster *c, const char *word, const char *value)
{
    const struct {
        const char *name;
        const char **place;
    } kept[] = {{"-e", &c->endpoint},
                {"--endpoint", &c->endpoint},
                {"--context", &c->context_name},
                {"--token", &c->token_file},
                {"--tls", &c->tls}};

    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        if (strlen(kept[i].name) == strcspn(word, "=") &&
            strncmp(kept[i].name, word, strlen(kept[i].name)) == 0) {
            *kept[i].place = value;
        }
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
struct line {
    const struct page *page; /* Of the verb; NULL: there is none yet. */
    char *words[WORDS_MAX];  /* Behind the verb. */
    int count;
    const struct flag *open; /* Option whose value comes next. */
    char *open_word;         /* The word that has it. */
};

static void read_option(struct line *l, struct cluster *c, char *word)
{
    const struct flag *f = find_flag(word);
    const char *value = strchr(word, '=');

    if (value != NULL) {
        keep_option(c, word, value + 1);
    } else if (f != NULL && flag_name_of(f).value != NULL) {
        l->open = f;
        l->open_word = word;
    }
}

/* False: no word can follow this one. */
static bool read_word(struct line *l, struct cluster *c, char *word)
{
    if (l->open != NULL && strcmp(word, "=") == 0) {
        return true; /* bash makes it a word of its own. */
    }
    if (l->open != NULL) {
        keep_option(c, l->open_word, word);
        l->open = NULL;
    } else if (word[0] == '-' && word[1] != '\0') {
        read_option(l, c, word);
    } else if (l->page == NULL) {
        l->page = help_find_page(word);
        return l->page != NULL;
    } else if (l->count < WORDS_MAX) {
        l->words[l->count++] = word;
    }
    return true;
}

/* Candidates for the word `last` behind a line. */
static void print_candidates(struct completion *c, const struct line *l,
                             const char *last)
{
    const struct flag *f = NULL;

    if (l->open != NULL) {
        c->prefix = strcmp(last, "=") == 0 ? "" : last;
        print_flag_values(c, l->open);
    } else if (split_option(c, last, &f)) {
        print_flag_values(c, f);
    } else if (last[0] == '-') {
        print_flag_words(c, l->page != NULL ? l->page->verb : NULL);
    } else if (l->page == NULL) {
        print_verbs(c);
    } else {
        print_arguments(c, l->page, l->words, l->count);
    }
}

int completion_run(int argc, char **argv)
{
    const char *last = argc > 0 ? argv[argc - 1] : "";
    struct completion c = {.prefix = last, .before = ""};
    struct line l = {.count = 0};
    bool goes_on = true;

    for (int i = 0; goes_on && i + 1 < argc; i++) {
        goes_on = read_word(&l, &c.cluster, argv[i]);
    }
    if (goes_on) {
        print_candidates(&c, &l, last);
    }
    return EXIT_HEALTHY;
}
