/* SPDX-License-Identifier: Apache-2.0 */
/* Command line and job file of pslaunch, which are read by the table of options.c
 * into a plan. The command line has precedence. */
#include "pslaunch/plan.h"

#include "base/str.h"
#include "base/variables.h"
#include "pslaunch/launcher.h"
#include "pslaunch/options.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

#define REPORT_MAX     16384u
#define HOSTS_LINE_MAX 65536u

/* Texts of the job file, which are used until the process ends. */
static struct ps_options *loaded;

/* ------------------------------------------------------------------- values */

/* Parses NAME=VALUE, NAME:VALUE of older scripts, or NAME alone, which passes
 * pslaunch's own value. */
static bool add_variable(struct variables *v, const char *option,
                         const char *text)
{
    size_t len = strcspn(text, "=:");
    char *copy;

    if (len == 0) {
        fprintf(stderr, "pslaunch: %s '%s': give NAME=VALUE\n", option, text);
        return false;
    }
    if (text[len] == '\0') {
        const char *value = getenv(text);

        if (value == NULL) {
            fprintf(stderr,
                    "pslaunch: %s %s: this variable is not set here; set it, "
                    "give %s=VALUE, or leave it out\n",
                    option, text, text);
            return false;
        }
        if (asprintf(&copy, "%s=%s", text, value) < 0) {
            return false;
        }
    } else if (asprintf(&copy, "%.*s=%s", (int)len, text, text + len + 1) < 0) {
        return false;
    }
    v->items = realloc(v->items, (v->count + 2) * sizeof(*v->items));
    if (v->items == NULL) {
        return false;
    }
    v->items[v->count++] = copy;
    v->items[v->count] = NULL;
    return true;
}

bool plan_set_hosts(struct plan *p, const char *option, const char *text)
{
    char error[HOSTS_TEXT_MAX];
    int rc;

    if (p->hosts.count > 0) {
        fputs("pslaunch: give one list of hosts, by -H or by --hosts\n",
              stderr);
        return false;
    }
    rc = strcmp(option, "--hosts") == 0 ? hosts_parse(text, &p->hosts, error)
                                        : hosts_read(text, &p->hosts, error);
    if (rc != 0) {
        fprintf(stderr, "pslaunch: %s: %s\n", option, error);
        return false;
    }
    return true;
}

/* ------------------------------------------------------------- command line */

#define OPTIONS_MAX 64

/* The rows of options.c as getopt_long() takes them, and another name of one. */
static struct option options[OPTIONS_MAX + 1];
static const struct ps_option *option_rows[OPTIONS_MAX];
static char option_words[OPTIONS_MAX][24];
static bool is_given[OPTIONS_MAX]; /* By the command line. */
/* The '+': the first word that is no option ends them. The ':': a value that is
 * missing is told from an option that is none. */
static char short_options[OPTIONS_MAX] = "+:";

#define FIRST_LONG 256

static void make_options(void)
{
    const struct ps_option *row;
    size_t i = 0;

    for (; (row = option_row(i)) != NULL; i++) {
        const struct option_name n = option_name(row);

        assert(i + 1 < OPTIONS_MAX && n.len < sizeof(option_words[0]));
        snprintf(option_words[i], sizeof(option_words[i]), "%.*s", (int)n.len,
                 n.word);
        option_rows[i] = row;
        options[i] = (struct option){
            .name = option_words[i],
            .has_arg = n.has_value ? required_argument : no_argument,
            .val = n.letter != 0 ? n.letter : FIRST_LONG + (int)i};
        if (n.letter != 0) {
            const size_t len = strlen(short_options);

            snprintf(short_options + len, sizeof(short_options) - len, "%c%s",
                     n.letter, n.has_value ? ":" : "");
        }
    }
    options[i] = (struct option){
        .name = "host-file", .has_arg = required_argument, .val = 'H'};
}

/* Index of a value of getopt_long(). */
static size_t index_of(int c)
{
    size_t i = 0;

    while (options[i].val != c) {
        i++;
    }
    return i;
}

/* Long options that begin with the name: "--hosts, --hostfile". Returns their
 * number. */
static uint32_t list_longer(const char *name, size_t len, struct ps_str *list)
{
    uint32_t count = 0;

    for (const struct option *o = options; o->name != NULL; o++) {
        if (strncmp(o->name, name, len) == 0) {
            ps_str_addf(list, "%s--%s", count == 0 ? "" : ", ", o->name);
            count++;
        }
    }
    return count;
}

/* The long option that `name` may be a misspelling of; NULL: none. */
static const char *nearest_option(const char *name)
{
    const char *names[OPTIONS_MAX + 1];
    size_t count = 0;

    while (options[count].name != NULL) {
        names[count] = options[count].name;
        count++;
    }
    names[count] = NULL;
    return ps_nearest(names, name);
}

/* Reports a word that getopt_long() does not take, with the option that the user
 * may mean. */
static void report_option_error(const char *word)
{
    const char *name = word + strspn(word, "-");
    const size_t len = strcspn(name, "=");
    const int shown = (int)(len + (size_t)(name - word));
    const char *instead = job_foreign_option(word);
    struct ps_str list = PS_STR_ROOM(512);
    char *alone;

    if (instead != NULL) {
        fprintf(stderr, "pslaunch: no option %.*s here; %s\n", shown, word,
                instead);
        return;
    }
    if (len > 0 && list_longer(name, len, &list) > 1) {
        fprintf(stderr, "pslaunch: %.*s is short for several options: %s\n",
                shown, word, list.data);
        return;
    }
    alone = strndup(name, len);
    instead = alone != NULL ? nearest_option(alone) : NULL;
    free(alone);
    if (instead != NULL && len > 1) {
        fprintf(stderr, "pslaunch: no option %.*s; did you mean --%s?\n", shown,
                word, instead);
        return;
    }
    fprintf(stderr, "pslaunch: no option %.*s; pslaunch --help lists all\n",
            shown, word);
}

/* True for a long option with one dash, as of mpirun, which would be read as
 * options of one letter: -np as -n with the value "p". */
static bool is_long_with_one_dash(const char *word)
{
    if (word[0] != '-' || word[1] == '-' || word[1] == '\0' ||
        word[2] == '\0') {
        return false;
    }
    for (const struct option *o = options; o->name != NULL; o++) {
        if (strcmp(o->name, word + 1) == 0) {
            return true;
        }
    }
    return job_foreign_option(word) != NULL;
}

static bool is_name_of_job_file(const char *word)
{
    const char *end = strrchr(word, '.');

    return end != NULL &&
           (strcmp(end, ".yaml") == 0 || strcmp(end, ".yml") == 0);
}

/* Job file of a command line: that of --file, or the first word that is no
 * option, if it has the name of one. NULL: none. */
static char *find_job_file(int argc, char **argv)
{
    char *found = NULL;
    int c;

    while ((c = getopt_long(argc, argv, short_options, options, NULL)) != -1 &&
           c != '?' && c != ':') {
        found = option_own(option_rows[index_of(c)]) == OWN_FILE ? optarg
                                                                 : found;
    }
    if (c == -1 && found == NULL && optind < argc &&
        strcmp(argv[optind - 1], "--") != 0 &&
        is_name_of_job_file(argv[optind])) {
        found = argv[optind];
    }
    optind = 0; /* From the first word again. */
    return found;
}

/* Prints a sample file, with all options as they are by default, or a JSON
 * schema. False after a message. */
static bool print_job_file(const char *form)
{
    if (strcmp(form, "defaults") == 0) {
        ps_option_set_print_defaults(&job_set, stdout);
    } else if (strcmp(form, "schema") == 0) {
        ps_option_set_print_schema(&job_set, stdout);
    } else {
        fprintf(stderr,
                "pslaunch: --print-config=%s: write defaults or schema\n",
                form);
        return false;
    }
    return true;
}

/* Takes an option that a job file has not. Returns 0, or -1 or an exit code where
 * it is in place of a job. */
static int take_own(struct plan *p, enum own_option own, const char *text)
{
    switch (own) {
    case OWN_DRY_RUN:
        p->dry_run = true;
        return 0;
    case OWN_P3:   /* Priorities always count. */
    case OWN_FILE: /* It has been found before. */
        return 0;
    case OWN_PRINT_CONFIG:
        return print_job_file(text) ? -1 : EXIT_USAGE;
    case OWN_HELP:
        options_help(stdout);
        return -1;
    case OWN_VERSION:
        puts("pslaunch " PSKV_VERSION);
        return -1;
    case OWN_OPTIONS:
        break;
    }
    return EXIT_USAGE;
}

static void report_value(const struct ps_option *row, const char *why)
{
    const struct option_name n = option_name(row);

    if (n.letter != 0) {
        fprintf(stderr, "pslaunch: -%c: %s\n", n.letter, why);
    } else {
        fprintf(stderr, "pslaunch: --%.*s: %s\n", (int)n.len, n.word, why);
    }
}

/* Takes options that add to those of the job file, or replace several of them.
 * False after a message. */
static bool take_list(struct plan *p, const struct ps_option *row,
                      const char *text)
{
    return strcmp(row->path, "hosts") == 0 ? plan_set_hosts(p, "--hosts", text)
           : strcmp(row->path, "hostfile") == 0 ? plan_set_hosts(p, "-H", text)
           : strcmp(row->path, "run.env") == 0
               ? add_variable(&p->env, "--env", text)
           : strcmp(row->path, "run.env_worker") == 0
               ? add_variable(&p->worker_env, "--env-worker", text)
               : add_variable(&p->server_env, "--env-server", text);
}

/* Takes the value of an option; NULL: it has none. False after a message. */
static bool take_value(struct plan *p, const struct ps_option *row,
                       const char *text)
{
    struct ps_str why = PS_STR_ROOM(512);

    if (row->type == PS_OPTION_LIST || strcmp(row->path, "hostfile") == 0) {
        return take_list(p, row, text);
    }
    if (text != NULL && text[0] == '\0') {
        ps_str_add(&why, "the value is empty; leave the option out");
    } else if (ps_option_read(row, text != NULL ? text : "true",
                              (char *)&p->job + row->offset, &why)) {
        return true;
    }
    report_value(row, why.data);
    return false;
}

/* Reads the options up to the command. Returns 0, an exit code, or -1. */
static int parse_options(struct plan *p, int argc, char **argv,
                         const char *file)
{
    for (;;) {
        const int at = optind > 0 ? optind : 1;
        const char *word = at < argc ? argv[at] : "";
        const struct ps_option *row;
        int code;
        int c;

        if (is_long_with_one_dash(word)) {
            report_option_error(word);
            return EXIT_USAGE;
        }
        c = getopt_long(argc, argv, short_options, options, NULL);
        if (c == -1 && optind < argc && argv[optind] == file) {
            optind++; /* Options may follow it. */
            continue;
        }
        if (c == -1) {
            return 0;
        }
        if (c == ':') {
            fprintf(stderr, "pslaunch: %s needs a value\n", word);
            return EXIT_USAGE;
        }
        if (c == '?' && optopt >= FIRST_LONG) { /* It is known. */
            fprintf(stderr, "pslaunch: %s: this option takes no value\n", word);
            return EXIT_USAGE;
        }
        if (c == '?') {
            report_option_error(word);
            return EXIT_USAGE;
        }
        row = option_rows[index_of(c)];
        is_given[index_of(c)] = true;
        code = option_own(row) >= 0
                   ? take_own(p, (enum own_option)option_own(row), optarg)
               : take_value(p, row, optarg) ? 0
                                            : EXIT_USAGE;
        if (code != 0) {
            return code;
        }
    }
}

/* --------------------------------------------------------------------- job */

/* Index of the option with this path in job files. */
static size_t index_of_path(const char *path)
{
    size_t i = 0;

    while (strcmp(option_rows[i]->path, path) != 0) {
        i++;
    }
    return i;
}

static bool is_stated(const char *path)
{
    return is_given[index_of_path(path)] ||
           ps_options_origin(loaded, path) == PS_OPTION_FROM_FILE;
}

/* Copies words, or "NAME=VALUE" items. */
static void copy_items(struct variables *v, const struct ps_option_list *l)
{
    v->items = calloc(l->count + 1, sizeof(*v->items));
    if (v->items == NULL) {
        abort();
    }
    for (size_t i = 0; i < l->count; i++) {
        v->items[v->count++] = strdup(l->items[i]);
    }
}

/* Prints "--OPTION: reason" or "FILE:LINE:COLUMN: PATH: reason". */
static int refuse(const char *path, const char *why)
{
    struct ps_str where = PS_STR_ROOM(1024);

    if (is_given[index_of_path(path)]) {
        report_value(option_rows[index_of_path(path)], why);
        return EXIT_USAGE;
    }
    ps_options_where(loaded, path, &where);
    fprintf(stderr, "pslaunch: %s: %s: %s\n", where.data, path, why);
    return EXIT_CONFIG;
}

static int set_launcher(struct plan *p)
{
    char why[256];

    if (strcmp(p->job.launcher, "auto") == 0) {
        return 0;
    }
    p->launcher = launcher_find(p->job.launcher);
    if (p->launcher == NULL) {
        snprintf(why, sizeof(why), "'%.64s' is no launcher; write auto, %s",
                 p->job.launcher, launcher_names());
        return refuse("launcher", why);
    }
    return 0;
}

/* Reads the job file; NULL: there is none. Returns 0, or an exit code after
 * messages. */
static int load_file(const char *file, struct plan *p)
{
    static char text[REPORT_MAX];
    const struct ps_option_input in = {.file = file};
    struct ps_str report;
    int rc;

    ps_str_init(&report, text, sizeof(text));
    rc = ps_options_load(&job_set, &in, &p->job, &loaded, &report);
    for (const char *line = text; *line != '\0';) {
        int len = (int)strcspn(line, "\n");

        fprintf(stderr, "pslaunch: %.*s\n", len, line);
        line += len + (line[len] == '\n');
    }
    if (rc != 0) {
        return EXIT_CONFIG;
    }
    copy_items(&p->env, &p->job.run.env);
    copy_items(&p->worker_env, &p->job.run.env_worker);
    copy_items(&p->server_env, &p->job.run.env_server);
    return 0;
}

/* The items as one list, with commas between them. */
static int complete_hosts(struct plan *p)
{
    char error[HOSTS_TEXT_MAX];
    char *all = calloc(1, HOSTS_LINE_MAX);
    struct ps_str s;
    int rc;

    if (all == NULL) {
        abort();
    }
    ps_str_init(&s, all, HOSTS_LINE_MAX);
    ps_options_text(loaded, "hosts", &s);
    rc = s.truncated ? refuse("hosts", "the list is too long; use hostfile")
         : hosts_parse(all, &p->hosts, error) != 0 ? refuse("hosts", error)
                                                   : 0;
    free(all);
    return rc;
}

/* Takes from the job file what the command line has not replaced. */
static int complete_job(struct plan *p)
{
    static struct variables words; /* Used until the process ends. */
    char error[HOSTS_TEXT_MAX];

    if (p->command[0] == NULL && p->job.command.count > 0) {
        copy_items(&words, &p->job.command);
        p->command = words.items;
    }
    if (p->hosts.count > 0) {
        return 0;
    }
    if (p->job.hosts.count > 0 && p->job.hostfile[0] != '\0') {
        return refuse("hostfile", "hosts are given already; keep one of them");
    }
    if (p->job.hostfile[0] != '\0') {
        return hosts_read(p->job.hostfile, &p->hosts, error) == 0
                   ? 0
                   : refuse("hostfile", error);
    }
    return p->job.hosts.count > 0 ? complete_hosts(p) : 0;
}

/* Warns about variables in `env` that no worker reads. */
static void warn_unknown_variables(char *const *env)
{
    const char *near = NULL;
    const char *entry;
    size_t cursor = 0;

    while ((entry = ps_variables_unknown(env, &cursor, &near)) != NULL) {
        fprintf(stderr,
                "pslaunch: %.*s has no effect, there is no such "
                "variable%s%s%s\n",
                (int)strcspn(entry, "="), entry,
                near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                near != NULL ? "?" : "");
    }
}

/* Takes from the options what the plan changes. */
static void begin_plan(struct plan *p)
{
    if (p->job.name[0] == '\0') {
        snprintf(p->name_buffer, sizeof(p->name_buffer), "job-%d",
                 (int)getpid());
        p->job.name = p->name_buffer;
    }
    if (!is_stated("daemons.tls")) {
        p->job.daemons.tls = TLS_UNSTATED;
    }
    p->workers = (uint32_t)p->job.scaling.workers;
    p->servers = (uint32_t)p->job.scaling.servers;
    p->nodes = (uint32_t)p->job.scaling.nodes;
    p->socket = p->job.daemons.socket[0] != '\0' ? p->job.daemons.socket : NULL;
    p->grace_ms = p->job.failure.grace / PS_MILLIS(1);
    p->start_timeout_ms = p->job.failure.start_timeout / PS_MILLIS(1);
}

/* Reads the job file that the words name, then their options. Returns as
 * plan_parse(). */
static int parse_job(struct plan *p, int argc, char **argv)
{
    const char *file;
    int rc;

    make_options();
    opterr = 0; /* getopt's own texts would begin with the program's path. */
    file = find_job_file(argc, argv);
    rc = load_file(file, p);
    if (rc == 0) {
        rc = parse_options(p, argc, argv, file);
    }
    if (rc != 0) {
        return rc;
    }
    begin_plan(p);
    p->command = argv + optind;
    rc = set_launcher(p);
    return rc == 0 ? complete_job(p) : rc;
}

/* "help TOPIC" and "completion SHELL" in place of a job. */
static bool print_about(int argc, char **argv, int *ret_code)
{
    if (argc == 3 && strcmp(argv[1], "help") == 0) {
        *ret_code = options_help_of(argv[2]) ? -1 : EXIT_USAGE;
        return true;
    }
    if (argc == 2 && strcmp(argv[1], "help") == 0) {
        options_help(stdout);
        *ret_code = -1;
        return true;
    }
    if (argc == 3 && strcmp(argv[1], "completion") == 0) {
        *ret_code = options_completion(argv[2]) ? -1 : EXIT_USAGE;
        return true;
    }
    return false;
}

int plan_parse(int argc, char **argv, struct plan *ret_plan)
{
    struct plan *p = ret_plan;
    int rc;

    if (print_about(argc, argv, &rc)) {
        return rc;
    }
    *p = (struct plan){.workers = 0};
    rc = parse_job(p, argc, argv);
    if (rc != 0) {
        return rc;
    }
    warn_unknown_variables(environ);
    warn_unknown_variables(p->env.items);
    warn_unknown_variables(p->worker_env.items);
    return plan_check(p);
}
