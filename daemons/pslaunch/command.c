/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/command.h"

#include "pslaunch/launcher.h"
#include "pslaunch/process.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------- commands */

/* Script of the shell that starts a supervisor; $0 is the path here. */
#define SCRIPT                                                                 \
    "if test -x \"$0\"; then exec \"$0\" --supervise; "                        \
    "else exec pslaunch --supervise; fi"

/* The same for a task; $1 is the path of its order. Without the folder of the
 * order the job has ended, and so does the shell. */
#define TASK_SCRIPT                                                            \
    "exec 2>>\"$1.$SGE_TASK_ID\"; "                                            \
    "if test -x \"$0\"; then exec \"$0\" --join \"$1\"; "                      \
    "else exec pslaunch --join \"$1\"; fi"

void command_add(struct command *c, const char *word)
{
    char *copy = strdup(word);

    if (copy == NULL) {
        abort();
    }
    c->argv = realloc((void *)c->argv,
                      ((size_t)c->count + 2) * sizeof(*c->argv));
    if (c->argv == NULL) {
        abort();
    }
    c->argv[c->count++] = copy;
    c->argv[c->count] = NULL;
}

void command_addf(struct command *c, const char *fmt, ...)
{
    char *word;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&word, fmt, ap) < 0) {
        abort();
    }
    va_end(ap);
    command_add(c, word);
    free(word);
}

void command_add_words(struct command *c, const char *text)
{
    while (*(text += strspn(text, " ")) != '\0') {
        size_t len = strcspn(text, " ");

        command_addf(c, "%.*s", (int)len, text);
        text += len;
    }
}

/* Adds the words that run a script after the commands of a shell that `before`
 * has. */
static void add_script(struct command *c, const char *before,
                       const char *script)
{
    char self[PATH_MAX];

    process_own_path(self, sizeof(self));
    command_add(c, "/bin/sh");
    command_add(c, "-c");
    command_addf(c, "%s%s", before, script);
    command_add(c, self);
}

void command_add_task(struct command *c, const char *order)
{
    add_script(c, "", TASK_SCRIPT);
    command_add(c, order);
}

void command_add_supervisor(struct command *c, const char *before)
{
    add_script(c, before, SCRIPT);
}

void command_write_quoted(const char *word, FILE *out)
{
    fputc('\'', out);
    for (const char *p = word; *p != '\0'; p++) {
        fprintf(out, *p == '\'' ? "'\\'%c" : "%c", *p);
    }
    fputc('\'', out);
}

void command_add_script_text(struct command *c, const char *script,
                             const char *argument)
{
    char self[PATH_MAX];
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    if (out == NULL) {
        abort();
    }
    process_own_path(self, sizeof(self));
    fprintf(out, "exec sh -c '%s' ", script);
    command_write_quoted(self, out);
    if (argument != NULL) {
        fputc(' ', out);
        command_write_quoted(argument, out);
    }
    if (fclose(out) != 0) {
        abort();
    }
    command_add(c, text);
    free(text);
}

void command_add_supervisor_text(struct command *c)
{
    command_add_script_text(c, SCRIPT, NULL);
}

void command_print_word(const char *word)
{
    if (word[0] != '\0' &&
        word[strcspn(word, " \t\n'\"\\$`|&;<>()*?[]#~!{}")] == '\0') {
        printf(" %s", word);
        return;
    }
    putchar(' ');
    command_write_quoted(word, stdout);
}

void command_print(const struct command *c)
{
    printf(" ");
    for (uint32_t i = 0; i < c->count; i++) {
        command_print_word(c->argv[i]);
    }
    printf("\n");
}

void command_fini(struct command *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        free(c->argv[i]);
    }
    free((void *)c->argv);
    *c = (struct command){.count = 0};
}

/* ---------------------------------------------------------------- variables */

extern char **environ;

/* Variables that processes on other hosts get without an option; a '*' stands
 * for the rest of a name. */
static const char *const passed[] = {
    "OMP_NUM_THREADS", "KMP_AFFINITY",   "LD_LIBRARY_PATH",
    "PYTHONPATH",      "DMLC_INTERFACE", "PSKV_*",
};

/* Of these, they concern this host alone. */
static const char *const kept[] = {
    "PSKV_BINDIR",     "PSKV_HOST_ADDRESS", "PSKV_LAUNCHER",
    "PSKV_LAUNCH_TLS", "PSKV_MPIRUN",       "PSKV_SOCKET",
    "PSKV_SSH",        "PSKV_TOKEN_FD",     "PSKV_TOKEN_FILE",
};

static bool is_named(const char *item, const char *pattern)
{
    size_t len = strcspn(pattern, "*");

    return strncmp(item, pattern, len) == 0 &&
           (pattern[len] == '*' || item[len] == '=');
}

static bool is_in(const char *item, const char *const *patterns, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (is_named(item, patterns[i])) {
            return true;
        }
    }
    return false;
}

static void env_put(struct env *e, char *item)
{
    size_t name = strcspn(item, "=") + 1;

    if (item == NULL) {
        abort();
    }
    for (size_t i = 0; i < e->count; i++) {
        if (strncmp(e->items[i], item, name) == 0) {
            free(e->items[i]);
            e->items[i] = item;
            return;
        }
    }
    if (e->count + 1 >= e->capacity) {
        e->capacity = e->capacity == 0 ? 128 : e->capacity * 2;
        e->items = realloc(e->items, e->capacity * sizeof(*e->items));
        if (e->items == NULL) {
            abort();
        }
    }
    e->items[e->count++] = item;
    e->items[e->count] = NULL;
}

static void env_set(struct env *e, const char *name, const char *value)
{
    char *item;

    if (asprintf(&item, "%s=%s", name, value) < 0) {
        abort();
    }
    env_put(e, item);
}

static void env_number(struct env *e, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    env_set(e, name, text);
}

static void env_default(struct env *e, const char *name, const char *value)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < e->count; i++) {
        if (strncmp(e->items[i], name, len) == 0 && e->items[i][len] == '=') {
            return;
        }
    }
    env_set(e, name, value);
}

void env_add(struct env *e, char *const *variables)
{
    while (variables != NULL && *variables != NULL) {
        env_put(e, strdup(*variables++));
    }
}

/* Variables that the process has before those of the job. */
static void env_init(struct env *e, const struct plan *p)
{
    bool here = !p->launcher->uses_hosts;

    *e = (struct env){0};
    for (char **item = environ; *item != NULL; item++) {
        if (here || (is_in(*item, passed, sizeof(passed) / sizeof(passed[0])) &&
                     !is_in(*item, kept, sizeof(kept) / sizeof(kept[0])))) {
            env_put(e, strdup(*item));
        }
    }
}

/* Variables of torch, Open MPI and Horovod. */
static void env_add_ranks(struct env *e, const struct plan *p, uint32_t rank,
                          const struct places *at)
{
    const struct rank_place *place = &p->layout.ranks[rank];

    env_number(e, "RANK", rank);
    env_number(e, "WORLD_SIZE", p->workers);
    env_number(e, "LOCAL_RANK", place->local_rank);
    env_number(e, "LOCAL_WORLD_SIZE", p->layout.nodes[place->node].local_size);
    env_number(e, "GROUP_RANK", place->node);
    if (at->store_port != NULL) {
        env_set(e, "MASTER_ADDR", at->store_host);
        env_set(e, "MASTER_PORT", at->store_port);
    } else {
        env_default(e, "MASTER_ADDR", "127.0.0.1");
        env_default(e, "MASTER_PORT", "29500");
    }
}

/* Variables of MXNet. */
static void env_add_dmlc(struct env *e, const struct plan *p, uint32_t rank,
                         const struct places *at)
{
    env_set(e, "DMLC_ROLE", "worker");
    env_number(e, "DMLC_WORKER_ID", rank);
    env_number(e, "DMLC_RANK", rank);
    env_number(e, "DMLC_TASK_ID", rank);
    env_number(e, "DMLC_NUM_WORKER", p->workers);
    env_number(e, "DMLC_NUM_SERVER", p->servers);
    env_set(e, "DMLC_JOB_CLUSTER", p->launcher->name);
    if (at->sched_port != NULL) {
        env_set(e, "DMLC_PS_ROOT_URI", at->sched_host);
        env_set(e, "DMLC_PS_ROOT_PORT", at->sched_port);
    }
}

void env_of_worker(const struct plan *p, uint32_t rank, const struct places *at,
                   struct env *ret_env)
{
    struct env *e = ret_env;

    env_init(e, p);
    env_add_ranks(e, p, rank, at);
    env_add_dmlc(e, p, rank, at);
    env_set(e, "PSKV_LAUNCHER", "pslaunch");
    env_set(e, "PSKV_SOCKET", at->socket);
    env_set(e, "PSKV_JOB", p->job.name);
    env_set(e, "PSKV_ON_LOSS", p->job.failure.on_worker_loss);
    if (p->job.run.placement[0] != '\0') {
        env_set(e, "PSKV_PLACEMENT", p->job.run.placement);
    }
    if (p->job.run.mode[0] != '\0') {
        env_set(e, "PSKV_MODE", p->job.run.mode);
    }
    if (p->job.run.weight != 0) {
        env_number(e, "PSKV_WEIGHT", p->job.run.weight);
    }
    if (p->job.run.replicas != 0) {
        env_number(e, "PSKV_REPLICAS", p->job.run.replicas);
    }
    env_default(e, "PYTHONUNBUFFERED", "1");
    if (p->workers > 1) {
        env_default(e, "OMP_NUM_THREADS", "1");
    }
    env_add(e, p->env.items);
    env_add(e, p->worker_env.items);
}

void env_of_server(const struct plan *p, struct env *ret_env)
{
    env_init(ret_env, p);
    env_add(ret_env, p->env.items);
    env_add(ret_env, p->server_env.items);
}

void env_fini(struct env *e)
{
    for (size_t i = 0; i < e->count; i++) {
        free(e->items[i]);
    }
    free(e->items);
    *e = (struct env){0};
}
