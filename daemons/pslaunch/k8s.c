/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher for Kubernetes: a pod stands for each host. Its main process waits
 * for a supervisor, which kubectl exec starts and is connected to, and ends when
 * there is none: pods whose pslaunch was killed end by themselves. From then on
 * the job is one on several hosts: daemons listen at the addresses of their
 * pods, and keys are made in the pods. */
#include "pslaunch/command.h"
#include "pslaunch/definition.h"
#include "pslaunch/launcher.h"
#include "pslaunch/remote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Seconds that a pod waits for its supervisor beyond --start-timeout, within
 * which other pods may still be on their way. */
#define WAIT_MORE 60u

/* Number of the supervisor's process, in its pod. */
#define NUMBER    "${TMPDIR:-/tmp}/pskv-supervisor"

/* Label of the pods of one run; "": none is made. */
static char run_label[64];

static const char *namespace_of(const struct plan *p)
{
    return p->container.space != NULL ? p->container.space : "";
}

static bool k8s_make_hosts(struct plan *p)
{
    char name[DEFINITION_NAME_MAX];

    if (p->container.image == NULL) {
        fputs("pslaunch: the launcher k8s needs --image: one that has pskv and "
              "the files of the job\n",
              stderr);
        return false;
    }
    definition_name(p->name, name);
    p->hosts.hosts = calloc(p->nodes, sizeof(*p->hosts.hosts));
    if (p->hosts.hosts == NULL) {
        abort();
    }
    for (uint32_t i = 0; i < p->nodes; i++) {
        if (asprintf(&p->hosts.hosts[i].name, "%s-%u", name, i) < 0) {
            abort();
        }
    }
    p->hosts.count = p->nodes;
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
            "      requests: {cpu: \"%u\", memory: %lluMi}\n"
            "      limits: {memory: %lluMi}\n",
            p->container.cpus, (unsigned long long)p->container.memory_mib,
            (unsigned long long)p->container.memory_mib);
}

static void print_pod(const struct plan *p, uint32_t host, FILE *out)
{
    char name[DEFINITION_NAME_MAX];

    definition_name(p->name, name);
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
    definition_text(out, p->container.image);
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
static void make_command(const struct plan *p, uint32_t host, struct command *c)
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
    command_add(c, namespace_of(p));
    command_add_supervisor_after(c, "echo $$ >\"" NUMBER "\"; ");
}

/* Runs kubectl with what `define` prints as its input, or without input. False:
 * it failed, after a message of its own. */
static bool run_kubectl(const struct plan *p, const char *words,
                        void (*define)(const struct plan *p, FILE *out))
{
    char *line;
    FILE *f;

    if (asprintf(&line, "exec kubectl %s%s --request-timeout=30s %s >&2%s",
                 p->container.space != NULL ? "-n " : "", namespace_of(p),
                 words, define != NULL ? "" : " </dev/null") < 0) {
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
    return remotes_open(r, "kubectl", make_command);
}

static void k8s_close(struct run *r)
{
    char words[160];

    remote_close(r);
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
    .open = k8s_open,
    .start = remote_start,
    .signal = remote_signal,
    .close = k8s_close,
};
