/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of psctl. Verbs are rows of one table, verbs.c, with their
 * words, options, help, way to psched and answer; options of all verbs are
 * another. main.c parses and runs by them, help.c makes help and completion of
 * them, and docs/man/check.py compares them with the manual page. */
#pragma once

#include "psctl/answer.h"
#include "psctl/cluster.h"
#include "psctl/pki.h"

#include <stdio.h>

#define WATCH_DEFAULT PS_SECONDS(2)

/* Request of the user. */
struct request {
    const struct verb *verb;
    const struct form *form;
    const char *job; /* As the user names it; NULL: all jobs. */
    const char *reason;
    struct setting setting;
    struct bench_options bench;
    struct pki_options pki;
    struct cluster cluster;
    struct top_options top;
    ps_time timeout;
    ps_time after;
    ps_time watch;      /* Pause between two outputs; 0: one output only. */
    ps_time follow;     /* Pause between two looks for events; 0: one only. */
    const char *output; /* File of a trace; NULL: none. */
    const char *member; /* Whose log level changes; "": of all. */
    unsigned log_level; /* enum ps_verbosity */
    const char *drain_server; /* NULL: balance all servers. */
    struct token_request wanted;
    uint64_t token_id; /* To be revoked. */
    bool dry_run;
    struct {
        bool json;
        bool no_headings;
    } print;
    enum about { ABOUT_NOTHING, ABOUT_HELP, ABOUT_VERSION } about;
};

/* ------------------------------------------------------------------ options */

/* How the value of an option is read. */
enum flag_kind {
    FLAG_OWN,   /* By a function of its own. */
    FLAG_TRUE,  /* It has none: a bool becomes true. */
    FLAG_TEXT,  /* const char * */
    FLAG_TIME,  /* ps_time: "500ms", "5s", "2m", "1h" */
    FLAG_COUNT, /* uint32_t, from 1 to `max` */
};

/* Option of one verb, or of all. */
struct flag {
    /* "--dry-run", "--round N", "--watch[=TIME]", "-n, --count N". */
    const char *name;
    const char *help;
    /* The words behind its verb that it is for, as "issue|renew"; NULL: all. */
    const char *of;
    enum flag_kind kind;
    size_t offset; /* In struct request. */
    uint32_t max;
    /* `value` NULL: an optional one that is not given. False after a message. */
    bool (*read)(struct request *q, const char *value);
};

/* Its name without what follows. */
struct flag_name {
    char letter;      /* Of "-n"; 0: none. */
    const char *word; /* With dashes; `len` bytes. */
    size_t len;
    const char *value; /* "N" of "--round N"; NULL: none, or an optional one. */
};
struct flag_name flag_name_of(const struct flag *f);

#define FLAGS_MAX 10

extern const struct flag general_flags[];
extern const size_t general_flag_count;

/* -------------------------------------------------------------------- verbs */

/* Verbs of one kind, under a title. */
enum verb_group {
    GROUP_LOOK,
    GROUP_CHECK,
    GROUP_CHANGE,
    GROUP_SET_UP,
    GROUPS,
    GROUP_NONE = GROUPS, /* Named in the first line of the help alone. */
};

/* Way to psched. */
enum access {
    ACCESS_NONE, /* None: psctl does it alone. */
    ACCESS_ANY,
    /* psched has to know the user: its Unix socket, if it is on this host. */
    ACCESS_USER,
};

#define FORMS_MAX 7
#define ASKS_MAX  3

/* One way to use a verb. */
struct form {
    /* Behind the verb: words in small letters are given as they are, those in
     * capitals stand for a value, brackets mean that it may be left out. */
    const char *words;
    const char *help; /* NULL: it is a variant that help does not show. */
    bool has_rest;    /* The last value may be several words. */
    enum access access;
    /* Reads the values; NULL: there is none but the name of a job. False after a
     * message. */
    bool (*read)(struct request *q, int count, char **values);
    /* Does all, as do verbs on certificates; returns an exit code. Both NULL:
     * asks, and prints the answer. */
    int (*run)(struct request *q, int count, char **values);
    int (*pki)(const struct pki_options *o, char **values);
    /* Asks psched; NULL: sends the queries `asks`. */
    int (*ask)(struct wire *w, struct request *q, const struct job_name *job,
               struct report *r);
    enum ps_query asks[ASKS_MAX];
    size_t ask_count;
    /* The object in JSON, and the table, unless `show` prints it. */
    const struct answer *const *answers; /* NULL ends them, and is for none. */
    void (*show)(const struct report *r, bool headings);
    /* Prints in place of that; returns an exit code. */
    int (*finish)(const struct request *q, const struct report *r);
    /* True for an answer with EXIT_DEGRADED; NULL: there is none. */
    bool (*is_bad)(const struct request *q, const struct report *r);
};

struct verb {
    const char *name;
    enum verb_group group;
    struct form forms[FORMS_MAX + 1]; /* `words` NULL: the end. */
    const char *text;
    struct flag flags[FLAGS_MAX]; /* `name` NULL: the end. */
};

extern const struct verb verbs[];
extern const size_t verb_count;

/* Returns NULL if no verb has that name. */
const struct verb *find_verb(const char *name);
/* Read a value of `what`, an option or verb, which a message names. */
bool time_parse(const char *text, const char *what, ps_time *ret);
bool count_parse(const char *text, const char *what, uint32_t most,
                 uint32_t *ret);
/* The next word of a form, without brackets. False: there is none. */
bool form_next_word(const char **form, const char **ret_word, size_t *ret_len);
/* True for a word that is given as it is. */
bool form_is_literal(const char *word);

/* Verbs with an output of their own; they return an exit code. */
int top_run(struct request *q, int count, char **values);
int doctor_run(struct request *q, int count, char **values);
int explain_run(struct request *q, int count, char **values);
int context_list(struct request *q, int count, char **values);
int context_use(struct request *q, int count, char **values);
int context_set(struct request *q, int count, char **values);
int context_remove(struct request *q, int count, char **values);
int bench_run(const struct request *q, const struct report *r);
/* Ask psched; see `ask` of a form. Events are printed as they happen, until psched
 * is gone, if the user follows them. A trace is collected and written, and the
 * ranks are shown that others wait for: it prints its answer. */
int events_ask(struct wire *w, struct request *q, const struct job_name *job,
               struct report *r);
int trace_ask(struct wire *w, struct request *q, const struct job_name *job,
              struct report *r);

/* --------------------------------------------------------------------- help */

/* One screen: each verb in one line. */
void help_short(FILE *out);
/* Prints the help of a verb, or of "all", on standard output. False, after a
 * message: no such verb. */
bool help_verb(const char *verb);
/* Reports an unknown verb on standard error, with the nearest one. */
void help_no_verb(const char *verb);
/* Prints the candidates for the last of the words. Returns an exit code. */
int completion_run(int argc, char **argv);
/* Prints the script of a shell. False: there is none for it. */
bool completion_print_script(const char *shell);
