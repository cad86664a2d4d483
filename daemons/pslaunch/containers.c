/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers whose hosts are containers of another system. Parts of definitions that
 * pslaunch prints for them are in JSON or in YAML, of which JSON's strings are a
 * part. */
#include "pslaunch/launcher.h"

#include "base/file_check.h"
#include "pslaunch/command.h"
#include "pslaunch/remote.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* -------------------------------------------------------------- definitions */

/* A name with its terminator; the number of a host goes behind it. */
#define DEFINITION_NAME_MAX 54

/* Name of a job as DNS has names: small letters, digits and '-'. */
static void definition_name(const char *job, char ret_name[DEFINITION_NAME_MAX])
{
    size_t len = 0;

    /* A name begins with a letter, and ends with no '-'. */
    if (!isalpha((unsigned char)job[0])) {
        ret_name[len++] = 'j';
    }
    for (const char *p = job; *p != '\0' && len < DEFINITION_NAME_MAX - 1;
         p++) {
        const unsigned char c = (unsigned char)*p;

        ret_name[len++] = (char)(c < 128 && isalnum(c) ? tolower(c) : '-');
    }
    while (len > 1 && ret_name[len - 1] == '-') {
        len--;
    }
    ret_name[len] = '\0';
}

/* Prints a text as a string in quotes. */
static void definition_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *p = text; *p != '\0'; p++) {
        const unsigned char c = (unsigned char)*p;

        if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c < 32 || c == 127) {
            fprintf(out, "\\u%04x", c);
        } else {
            fputc(c, out);
        }
    }
    fputc('"', out);
}

/* --------------------------------------------------------------- Kubernetes */

/* Launcher for Kubernetes: a pod stands for each host. Its main process waits
 * for a supervisor, which kubectl exec starts and is connected to, and ends when
 * there is none: pods whose pslaunch was killed end by themselves. From then on
 * the job is one on several hosts: daemons listen at the addresses of their
 * pods, and keys are made in the pods. */

/* Seconds that a pod waits for its supervisor beyond --start-timeout, within
 * which other pods may still be on their way. */
#define WAIT_MORE 60u

/* Number of the supervisor's process, in its pod. */
#define NUMBER    "${TMPDIR:-/tmp}/pskv-supervisor"

/* Label of the pods of one run; "": none is made. */
static char run_label[64];

static unsigned long long memory_mib(const struct plan *p)
{
    return p->job.container.memory / (1024 * 1024);
}

static bool k8s_make_hosts(struct plan *p)
{
    char name[DEFINITION_NAME_MAX];
    char prefix[DEFINITION_NAME_MAX + 1];

    if (p->job.container.image[0] == '\0') {
        fputs("pslaunch: the launcher k8s needs --image: one that has pskv and "
              "the files of the job\n",
              stderr);
        return false;
    }
    definition_name(p->job.name, name);
    snprintf(prefix, sizeof(prefix), "%s-", name);
    hosts_make(&p->hosts, prefix, 0, p->nodes);
    p->nodes = 1;
    return true;
}

/* Prints the words of the main process, which ends with the supervisor. */
static void print_main(const struct plan *p, FILE *out)
{
    const unsigned long long most = p->start_timeout_ms / 1000 + WAIT_MORE;
    char script[512];

    snprintf(script, sizeof(script),
             "n=\"" NUMBER "\"; i=0; while test $i -lt %llu; do sleep 1; "
             "i=$((i+1)); if test -s \"$n\"; then "
             "kill -0 \"$(cat \"$n\")\" 2>/dev/null || exit 0; i=0; fi; done",
             most);
    fputs("    command: [/bin/sh, -c, ", out);
    definition_text(out, script);
    fputs("]\n", out);
}

static void print_resources(const struct plan *p, FILE *out)
{
    fprintf(out,
            "    resources:\n"
            "      requests: {cpu: \"%llu\", memory: %lluMi}\n"
            "      limits: {memory: %lluMi}\n",
            (unsigned long long)p->job.container.cpus, memory_mib(p),
            memory_mib(p));
}

static void print_pod(const struct plan *p, uint32_t host, FILE *out)
{
    char name[DEFINITION_NAME_MAX];

    definition_name(p->job.name, name);
    fputs("---\napiVersion: v1\nkind: Pod\nmetadata:\n", out);
    fprintf(out, "  name: %s\n", p->hosts.hosts[host].name);
    fprintf(out,
            "  labels:\n"
            "    app.kubernetes.io/name: pskv\n"
            "    app.kubernetes.io/instance: %s\n"
            "    pskv-run: %s\n",
            name, run_label[0] != '\0' ? run_label : "dry-run");
    fprintf(out,
            "spec:\n"
            "  restartPolicy: Never\n"
            "  automountServiceAccountToken: false\n"
            "  terminationGracePeriodSeconds: 2\n"
            "  topologySpreadConstraints:\n"
            "  - maxSkew: 1\n"
            "    topologyKey: kubernetes.io/hostname\n"
            "    whenUnsatisfiable: ScheduleAnyway\n"
            "    labelSelector:\n"
            "      matchLabels: {app.kubernetes.io/instance: %s}\n"
            "  containers:\n"
            "  - name: pskv\n"
            "    image: ",
            name);
    definition_text(out, p->job.container.image);
    fputs("\n", out);
    print_main(p, out);
    fputs("    env:\n"
          "    - name: PSKV_HOST_ADDRESS\n"
          "      valueFrom: {fieldRef: {fieldPath: status.podIP}}\n",
          out);
    print_resources(p, out);
}

static void k8s_define(const struct plan *p, FILE *out)
{
    for (uint32_t i = 0; i < p->hosts.count; i++) {
        print_pod(p, i, out);
    }
}

/* Waits for the pod, then runs the supervisor in it. */
static void k8s_command(const struct plan *p, uint32_t host, struct command *c)
{
    const unsigned long long seconds = p->start_timeout_ms / 1000 + 1;

    command_add(c, "/bin/sh");
    command_add(c, "-c");
    command_add(c, "kubectl ${2:+-n \"$2\"} wait --for=condition=Ready "
                   "--timeout=\"$1\" pod/\"$0\" >&2 && "
                   "n=${2:+\"-n $2\"} && p=$0 && shift 2 && "
                   "exec kubectl $n exec -i \"$p\" -c pskv -- \"$@\"");
    command_add(c, p->hosts.hosts[host].name);
    command_addf(c, "%llus", seconds);
    command_add(c, p->job.container.space);
    command_add_supervisor(c, "echo $$ >\"" NUMBER "\"; ");
}

/* Runs kubectl with what `define` prints as its input, or without input. False:
 * it failed, after a message of its own. */
static bool run_kubectl(const struct plan *p, const char *words,
                        void (*define)(const struct plan *p, FILE *out))
{
    char *line;
    FILE *f;

    if (asprintf(&line, "exec kubectl %s%s --request-timeout=30s %s >&2%s",
                 p->job.container.space[0] != '\0' ? "-n " : "",
                 p->job.container.space, words,
                 define != NULL ? "" : " </dev/null") < 0) {
        abort();
    }
    f = popen(line, "we");
    free(line);
    if (f == NULL) {
        return false;
    }
    if (define != NULL) {
        define(p, f);
    }
    return pclose(f) == 0;
}

static bool k8s_open(struct run *r)
{
    snprintf(run_label, sizeof(run_label), "%d-%llx", (int)getpid(),
             (unsigned long long)time(NULL));
    if (!run_kubectl(r->plan, "create -f -", k8s_define)) {
        sink_print(&r->err, "kubectl could not create the pods of the job");
        return false;
    }
    return remotes_open(r);
}

static void k8s_close(struct run *r)
{
    char words[160];

    remotes_close(r);
    snprintf(words, sizeof(words), "delete pod --wait=false -l pskv-run=%s",
             run_label);
    if (!run_kubectl(r->plan, words, NULL)) {
        sink_print(&r->err, "pods may be left; delete them: kubectl %s", words);
    }
}

const struct launcher launcher_k8s = {
    .name = "k8s",
    .uses_hosts = true,
    .folder = ".",
    .make_hosts = k8s_make_hosts,
    .define = k8s_define,
    .command = k8s_command,
    .program = "kubectl",
    .open = k8s_open,
    .close = k8s_close,
};

/* --------------------------------------------------------------------- YARN */

/* Launcher for YARN: the job as a service, with psched, the servers and the
 * workers, each with an agent, as its components. The service framework starts
 * them and pslaunch does not stay; `yarn app` shows, stops and removes them. It
 * has no connection by which a supervisor could be told to end, or a daemon be
 * given a certificate. */

/* The framework replaces ${...} by its constants before a shell runs the
 * command. */
#define SCHED_PORT "9091"
#define SCHED      "${PSCHED-0_IP}"
#define NODE       " -o node.name=${COMPONENT_INSTANCE_NAME}"
#define SOCKET     "/tmp/pskv-${CONTAINER_ID}.sock"

/* Script of workers, in the folder where the framework puts files. A command
 * would pass through two shells, with the words of the user in it. */
#define SCRIPT     "pskv-worker.sh"

/* A component, in the order of their starts. */
struct component {
    const char *name;
    const char *after; /* NULL: the first. */
    uint32_t count;
    const char *launch; /* Command. */
    const char *script; /* Contents of SCRIPT; NULL: there is none. */
};

static bool yarn_make_hosts(struct plan *p)
{
    if (!p->job.daemons.insecure_network) {
        fputs("pslaunch: the launcher yarn cannot give daemons certificates: "
              "their connections are neither encrypted nor authenticated; on a "
              "network that you trust, say --insecure-network\n",
              stderr);
        return false;
    }
    if (p->servers == 0) {
        fputs("pslaunch: the launcher yarn needs servers: -s 1 or more\n",
              stderr);
        return false;
    }
    hosts_make(&p->hosts, "worker-", 0, p->workers); /* Each has a container. */
    return true;
}

static void add_daemon(const struct plan *p, const char *program, FILE *s)
{
    fprintf(s,
            "%s -c /dev/null --log-level %s -o security.insecure=true "
            "-o listen.address=0.0.0.0",
            program, p->job.run.log_level);
}

static void add_psched(const struct plan *p, FILE *s)
{
    fputs("exec ", s);
    add_daemon(p, "psched", s);
    fputs(" -o listen.port=" SCHED_PORT, s);
}

static void add_member(const struct plan *p, const char *program, FILE *s)
{
    add_daemon(p, program, s);
    fputs(" -o listen.port=0 --sched " SCHED ":" SCHED_PORT NODE, s);
}

static void add_worker(const struct plan *p, FILE *s)
{
    static const char *const ranks[] = {"RANK", "GROUP_RANK", "DMLC_WORKER_ID",
                                        "DMLC_RANK", "DMLC_TASK_ID"};

    add_member(p, "psworker-agent", s);
    fputs(" -o client.socket=" SOCKET " &\nexport PSKV_SOCKET=" SOCKET
          " DMLC_PS_ROOT_URI=" SCHED,
          s);
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        fprintf(s, " %s=${COMPONENT_ID}", ranks[i]);
    }
    fputs("\nexec", s);
    for (char **word = p->command; *word != NULL; word++) {
        fputc(' ', s);
        command_write_quoted(*word, s);
    }
}

/* True for variables that the command of a worker sets, or that have no value
 * before the containers have their hosts. */
static bool is_set_later(const char *item)
{
    static const char *const names[] = {
        "RANK=",        "GROUP_RANK=",  "DMLC_WORKER_ID=",
        "DMLC_RANK=",   "PSKV_SOCKET=", "DMLC_TASK_ID=",
        "MASTER_ADDR=", "MASTER_PORT=", "DMLC_PS_ROOT_URI=",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strncmp(item, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

static void print_env(const struct env *e, FILE *out)
{
    const char *separator = "";

    fputs("\"env\": {", out);
    for (size_t i = 0; i < e->count; i++) {
        char *name = strndup(e->items[i], strcspn(e->items[i], "="));

        if (name == NULL) {
            abort();
        }
        if (!is_set_later(e->items[i])) {
            fprintf(out, "%s\n          ", separator);
            definition_text(out, name);
            fputs(": ", out);
            definition_text(out, e->items[i] + strlen(name) + 1);
            separator = ",";
        }
        free(name);
    }
    fputs("}", out);
}

static void print_configuration(const struct component *c,
                                const struct env *env, FILE *out)
{
    fputs("      \"configuration\": {\n        ", out);
    print_env(env, out);
    if (c->script != NULL) {
        fputs(",\n        \"files\": [{\"type\": \"TEMPLATE\", \"dest_file\": "
              "\"" SCRIPT "\",\n          \"properties\": {\"content\": ",
              out);
        definition_text(out, c->script);
        fputs("}}]", out);
    }
    fputs("},\n", out);
}

static void print_component(const struct plan *p, const struct component *c,
                            const struct env *env, FILE *out)
{
    fprintf(out, "    {\n      \"name\": \"%s\",\n", c->name);
    if (c->after != NULL) {
        fprintf(out, "      \"dependencies\": [\"%s\"],\n", c->after);
    }
    fprintf(out,
            "      \"number_of_containers\": %u,\n"
            "      \"restart_policy\": \"NEVER\",\n"
            "      \"launch_command\": ",
            c->count);
    definition_text(out, c->launch);
    fputs(",\n", out);
    if (p->job.container.image[0] != '\0') {
        fputs("      \"artifact\": {\"type\": \"DOCKER\", \"id\": ", out);
        definition_text(out, p->job.container.image);
        fputs("},\n", out);
    }
    if (env->count > 0) {
        print_configuration(c, env, out);
    }
    fprintf(out,
            "      \"resource\": {\"cpus\": %llu, \"memory\": \"%llu\"}\n"
            "    }",
            (unsigned long long)p->job.container.cpus, memory_mib(p));
}

/* Begins a text, which end_text() returns and the caller frees. */
static FILE *begin_text(char **text, size_t *len)
{
    FILE *s = open_memstream(text, len);

    if (s == NULL) {
        abort();
    }
    return s;
}

static void end_text(FILE *s)
{
    if (fclose(s) != 0) {
        abort();
    }
}

static void yarn_define(const struct plan *p, FILE *out)
{
    const struct places at = {
        .socket = SOCKET, .sched_port = SCHED_PORT, .sched_host = SCHED};
    char name[DEFINITION_NAME_MAX];
    char *text;
    size_t len;
    FILE *s;
    struct env none = {0};
    struct env env;

    definition_name(p->job.name, name);
    fprintf(out, "{\n  \"name\": \"%s\",\n  \"version\": \"1\",\n", name);
    if (p->job.container.queue[0] != '\0') {
        fputs("  \"queue\": ", out);
        definition_text(out, p->job.container.queue);
        fputs(",\n", out);
    }
    fputs("  \"components\": [\n", out);
    s = begin_text(&text, &len);
    add_psched(p, s);
    end_text(s);
    print_component(
        p, &(struct component){.name = "psched", .count = 1, .launch = text},
        &none, out);
    free(text);
    fputs(",\n", out);
    s = begin_text(&text, &len);
    fputs("exec ", s);
    add_member(p, "psserver", s);
    end_text(s);
    env_of_server(p, &env);
    print_component(p,
                    &(struct component){.name = "psserver",
                                        .after = "psched",
                                        .count = p->servers,
                                        .launch = text},
                    &env, out);
    env_fini(&env);
    free(text);
    fputs(",\n", out);
    s = begin_text(&text, &len);
    add_worker(p, s);
    end_text(s);
    env_of_worker(p, 0, &at, &env);
    print_component(p,
                    &(struct component){.name = "worker",
                                        .after = "psserver",
                                        .count = p->workers,
                                        .launch = "exec /bin/sh conf/" SCRIPT,
                                        .script = text},
                    &env, out);
    env_fini(&env);
    fputs("\n  ]\n}\n", out);
    free(text);
}

/* Writes the definition to a file and hands it to `yarn`. */
static int yarn_submit(const struct plan *p)
{
    char name[DEFINITION_NAME_MAX];
    char path[] = "/tmp/pskv-yarn-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    char *line;
    int status;
    int error;

    if (f == NULL) {
        fprintf(stderr, "pslaunch: %s: %s\n", path, strerror(errno));
        return EXIT_CANTCREAT;
    }
    yarn_define(p, f);
    error = ps_file_close(f);
    if (error != 0) {
        fprintf(stderr, "pslaunch: %s: %s\n", path, strerror(error));
        unlink(path);
        return EXIT_CANTCREAT;
    }
    definition_name(p->job.name, name);
    if (asprintf(&line, "exec yarn app -launch %s %s", name, path) < 0) {
        abort();
    }
    status = system(line);
    free(line);
    unlink(path);
    if (status != 0) {
        fputs("pslaunch: yarn has not accepted the job\n", stderr);
        return EXIT_UNAVAILABLE;
    }
    fprintf(stderr,
            "pslaunch: the job runs on without pslaunch; yarn app -status %s "
            "shows it, "
            "and -stop and -destroy end it\n",
            name);
    return EXIT_OK;
}

const struct launcher launcher_yarn = {
    .name = "yarn",
    .uses_hosts = true,
    .make_hosts = yarn_make_hosts,
    .define = yarn_define,
    .submit = yarn_submit,
};
