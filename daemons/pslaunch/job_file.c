/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/job_file.h"

#include "pslaunch/job_options.h"
#include "pslaunch/launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_MAX     16384u
#define HOSTS_LINE_MAX 65536u

/* The one job file of a run. Its texts are used until the process ends. */
static struct job_options job;
static struct ps_options *loaded;

bool job_file_is_name(const char *word)
{
    const char *end = strrchr(word, '.');

    return end != NULL &&
           (strcmp(end, ".yaml") == 0 || strcmp(end, ".yml") == 0);
}

static bool is_stated(const char *path)
{
    return ps_options_origin(loaded, path) == PS_OPTION_FROM_FILE;
}

static const char *text_or(const char *text, const char *otherwise)
{
    return text[0] != '\0' ? text : otherwise;
}

/* Copies "NAME=VALUE" items. */
static void set_variables(struct variables *v, const struct ps_option_list *l)
{
    v->items = calloc(l->count + 1, sizeof(*v->items));
    if (v->items == NULL) {
        abort();
    }
    for (size_t i = 0; i < l->count; i++) {
        v->items[v->count++] = strdup(l->items[i]);
    }
}

static void set_scaling(struct plan *p)
{
    p->workers = (uint32_t)job.scaling.workers;
    p->servers = (uint32_t)job.scaling.servers;
    p->nodes = (uint32_t)job.scaling.nodes;
}

static void set_run(struct plan *p)
{
    p->name = text_or(job.name, p->name);
    p->mode = text_or(job.run.mode, NULL);
    p->placement = text_or(job.run.placement, NULL);
    p->weight = (uint32_t)job.run.weight;
    set_variables(&p->env, &job.run.env);
    set_variables(&p->worker_env, &job.run.env_worker);
    set_variables(&p->server_env, &job.run.env_server);
    p->output = (enum output_style)job.run.output;
    p->output_dir = text_or(job.run.output_dir, NULL);
    p->sync_dir = text_or(job.run.sync_dst_dir, NULL);
    p->log_level = job.run.log_level;
    p->on_loss = job.failure.on_worker_loss;
    p->keep_going = job.failure.keep_going;
    p->grace_ms = (uint64_t)(job.failure.grace / PS_MILLIS(1));
    p->start_timeout_ms = (uint64_t)(job.failure.start_timeout / PS_MILLIS(1));
}

static void set_daemons(struct plan *p)
{
    p->socket = text_or(job.daemons.socket, NULL);
    p->private_trio = job.daemons.is_private;
    if (is_stated("daemons.tls")) { /* Else PSKV_LAUNCH_TLS decides. */
        p->tls = (enum tls_choice)(job.daemons.tls + TLS_AUTO);
    }
    if (job.daemons.insecure_network) {
        p->network = NETWORK_INSECURE;
    }
}

static void set_container(struct plan *p)
{
    p->container = (struct container){
        .image = text_or(job.container.image, NULL),
        .space = text_or(job.container.space, NULL),
        .queue = text_or(job.container.queue, NULL),
        .cpus = (uint32_t)job.container.cpus,
        .memory_mib = job.container.memory / (1024 * 1024),
    };
}

/* Prints "FILE:LINE:COLUMN: PATH: reason". */
static int refuse(const char *path, const char *why)
{
    char text[1024];
    struct ps_str where;

    ps_str_init(&where, text, sizeof(text));
    ps_options_where(loaded, path, &where);
    fprintf(stderr, "pslaunch: %s: %s: %s\n", text, path, why);
    return EXIT_CONFIG;
}

static int set_launcher(struct plan *p)
{
    char why[256];

    if (strcmp(job.launcher, "auto") == 0) {
        return 0;
    }
    p->launcher = launcher_find(job.launcher);
    if (p->launcher == NULL) {
        snprintf(why, sizeof(why), "'%.64s' is no launcher; write auto, %s",
                 job.launcher, launcher_names());
        return refuse("launcher", why);
    }
    return 0;
}

int job_file_read(const char *path, struct plan *p)
{
    static char text[REPORT_MAX];
    const struct ps_option_input in = {.file = path};
    struct ps_str report;
    int rc;

    ps_str_init(&report, text, sizeof(text));
    rc = ps_options_load(&job_set, &in, &job, &loaded, &report);
    for (const char *line = text; *line != '\0';) {
        int len = (int)strcspn(line, "\n");

        fprintf(stderr, "pslaunch: %.*s\n", len, line);
        line += len + (line[len] == '\n');
    }
    if (rc != 0) {
        return EXIT_CONFIG;
    }
    set_scaling(p);
    set_run(p);
    set_daemons(p);
    set_container(p);
    return set_launcher(p);
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
    for (size_t i = 0; i < job.hosts.count; i++) {
        ps_str_addf(&s, "%s%s", i > 0 ? "," : "", job.hosts.items[i]);
    }
    rc = s.truncated ? refuse("hosts", "the list is too long; use hostfile")
         : hosts_parse(all, &p->hosts, error) != 0 ? refuse("hosts", error)
                                                   : 0;
    free(all);
    return rc;
}

int job_file_complete(struct plan *p)
{
    char error[HOSTS_TEXT_MAX];

    if (loaded == NULL) {
        return 0;
    }
    if (p->command[0] == NULL && job.command.count > 0) {
        p->file_command = calloc(job.command.count + 1,
                                 sizeof(*p->file_command));
        if (p->file_command == NULL) {
            abort();
        }
        for (size_t i = 0; i < job.command.count; i++) {
            p->file_command[i] = strdup(job.command.items[i]);
        }
        p->command = p->file_command;
    }
    if (p->hosts.count > 0) {
        return 0;
    }
    if (job.hosts.count > 0 && job.hostfile[0] != '\0') {
        return refuse("hostfile", "hosts are given already; keep one of them");
    }
    if (job.hostfile[0] != '\0') {
        return hosts_read(job.hostfile, &p->hosts, error) == 0
                   ? 0
                   : refuse("hostfile", error);
    }
    return job.hosts.count > 0 ? complete_hosts(p) : 0;
}

bool job_file_print(const char *form)
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
