/* SPDX-License-Identifier: Apache-2.0 */
/* Help of psctl: all verbs, one verb, a hint for a misspelt verb, and a
 * completion script. */
#include "psctl/psctl.h"

#include "psctl/pki.h"

#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Option of one verb. */
struct flag {
    const char *name; /* "--round N" */
    const char *help;
};

#define FLAGS_MAX     9
#define ARGUMENTS_MAX 7

struct page {
    const char *verb;
    /* After the verb; NULL ends the list. */
    const char *arguments[ARGUMENTS_MAX + 1];
    const char *summary;                   /* Help of arguments[0]. */
    const char *others[ARGUMENTS_MAX - 1]; /* Help of the rest. */
    const char *text;
    struct flag flags[FLAGS_MAX];
};

static const struct page pages[] = {
    {"status",
     {"", NULL},
     "one screen: members, jobs, what is wrong",
     {NULL},
     "Each line with an exclamation mark is something to look at; then the\n"
     "exit code is 3. Lost ranks, servers that are gone, jobs that wait for\n"
     "too long.\n",
     {{"--watch[=TIME]", "again and again, 2s apart"},
      {"--after TIME", "a shorter wait is work (default 10s)"}}},
    {"jobs",
     {"[list]", "cancel NAME", NULL},
     "jobs, also those that ended lately",
     {"end a job; its workers get an error that says so"},
     "'cancel' ends a job: its workers get an error that says so. It is for\n"
     "the owner of the job, root and the user of psched, on psched's host.\n",
     {{"--watch[=TIME]", "again and again, 2s apart"},
      {"--reason TEXT", "of cancel, for the workers' error"}}},
    {"nodes",
     {"", NULL},
     "servers and agents, with totals and rates",
     {NULL},
     "Rates are means over the last seconds.\n",
     {{"--watch[=TIME]", "again and again, 2s apart"}}},
    {"keys",
     {"[JOB]", NULL},
     "keys, which server holds how much, and how even",
     {NULL},
     "100 % of even is what a server would hold if all held the same.\n",
     {{"--watch[=TIME]", "again and again, 2s apart"}}},
    {"stall",
     {"[JOB]", NULL},
     "what is waited for, since when, which ranks are missing",
     {NULL},
     "The exit code is 3 where a rank is lost or a wait is too long.\n",
     {{"--watch[=TIME]", "again and again, 2s apart"},
      {"--after TIME", "a shorter wait is work (default 10s)"}}},
    {"set",
     {"JOB NAME VALUE", "JOB weight N", NULL},
     "change a number of a job's optimizer",
     {"change a job's share beside others, 1 to 1000"},
     "NAME is learning_rate (lr), wd, rescale_grad or clip_gradient, also\n"
     "NAME=VALUE. A weight holds at once, until the job ends. It is for the\n"
     "owner of the job, root and the user of psched, on psched's host.\n",
     {{"--round N",
       "first round of each key with NAME's value; not of weight"}}},
    {"rebalance",
     {"JOB", NULL},
     "move partitions until servers are within 5 % of even",
     {NULL},
     "The job continues meanwhile. Only for the owner of the job, root and\n"
     "the user of psched, on psched's host.\n",
     {{"--off SERVER", "move all that the job has there to its others"},
      {"--dry-run", "say what, and do nothing"}}},
    {"token",
     {"list", "issue", "revoke NUMBER", NULL},
     "tokens that you may revoke",
     {"print a token: rights of yours that its holder has",
      "end a token at once"},
     "A token hands on rights of a user: train, read, operate, admin. It is\n"
     "issued on psched's host, to that user and to operators. Write it to a\n"
     "file of mode 600, and give that with --token or $PSKV_TOKEN_FILE.\n",
     {{"--rights LIST", "of issue, needed: train,read,operate,admin"},
      {"--job [USER/]NAME", "of issue: that job alone; else all of the user"},
      {"--ttl TIME", "of issue: how long it is valid, default 1h"}}},
    {"bench",
     {"", NULL},
     "push and pull in a job of its own from this node",
     {NULL},
     "Says how long a round takes, in milliseconds, GB/s and keys a second.\n",
     {{"--size BYTES", "of all keys together, e.g. 64M (default)"},
      {"--keys N", "default 100"},
      {"--rounds N", "default 50"},
      {"--workers N", "processes, default 2"},
      {"--socket PATH", "this node's agent; else $PSKV_SOCKET, else "
                        "/run/pskv/agent.sock"}}},
    {"pki",
     {"init", "issue ROLE NAME", "renew ROLE NAME", "revoke NAME|SERIAL",
      "code ROLE NAME", "serve", "show", NULL},
     "make the authority that signs a cluster's certificates",
     {"make key and certificate of sched, server, agent or ctl",
      "replace a certificate before it ends", "refuse a member from now on",
      "print a one-time code, with which a node enrols",
      "exchange codes for certificates, until Ctrl-C",
      "certificates, and when they end"},
     "No scheduler takes part. 'issue' and 'renew' write ca.crt, crl.pem,\n"
     "ROLE.crt and ROLE.key, which daemons read.\n"
     "The exit code of 'show' is 3 if a certificate ends soon.\n",
     {{"--cluster NAME", "of init: the cluster (default 'default')"},
      {"--dir DIR", "the authority's folder (" PKI_DEFAULT_DIRECTORY ")"},
      {"--out DIR", "the node's folder (" PKI_DEFAULT_OUTPUT ")"},
      {"--host NAME", "name or address of the node's host; repeatable"},
      {"--days N", "validity: 365, of an authority 3650"},
      {"--owner USER", "to whom the node's files belong"},
      {"--force", "replace files and certificates that exist"},
      {"--ttl TIME", "of code: how long it is valid, default 1h"},
      {"--listen HOST:PORT", "of serve (" PKI_DEFAULT_LISTEN ")"}}},
    {"enroll",
     {"", NULL},
     "get a certificate for this node with a one-time code",
     {NULL},
     "Makes a key, sends its public part to 'psctl pki serve', whose "
     "authority\n"
     "the code names, and writes ca.crt, crl.pem, ROLE.crt and ROLE.key.\n",
     {{"--server HOST:PORT", "where psctl pki serve listens; needed"},
      {"--code CODE", "of psctl pki code; -: from standard input; needed"},
      {"--directory DIR", "the node's folder, as --out"},
      {"--owner USER", "to whom the node's files belong"},
      {"--force", "replace files that exist"}}},
    {"top",
     {"", NULL},
     "the cluster, its jobs and busiest members, again and again",
     {NULL},
     "On a terminal until q. Elsewhere, and with --batch, each output follows\n"
     "the last one, separated by an empty line.\n",
     {{"--batch", "(-b) no control of the terminal"},
      {"--count N", "(-n N) end after N outputs"},
      {"--sort KEY", "traffic (default), rounds, memory or name"},
      {"--watch[=TIME]", "again and again, 2s apart"},
      {"--after TIME", "a shorter wait is work (default 10s)"}}},
    {"doctor",
     {"", NULL},
     "check the cluster and this host, and say what to do",
     {NULL},
     "Versions, clocks, certificates, members, memory and limits, jobs; this\n"
     "host's agent, clock and kernel. The exit code is 3 if there is a "
     "problem.\n",
     {{"--after TIME", "a shorter wait is work (default 10s)"}}},
    {"log-level",
     {"LEVEL", "MEMBER LEVEL", NULL},
     "change what all members write to their logs, now",
     {"the same for members of this name"},
     "LEVEL is error, warning, notice, info, debug or trace. It holds until a\n"
     "member starts again or reads its options again (SIGHUP). It is for\n"
     "root, the user of psched and users of control.operators.\n",
     {{0}}},
    {"trace",
     {"JOB", NULL},
     "what a job's members did lately, and for which rank others wait",
     {NULL},
     "Collects the last 16384 entries of each member, on all hosts, with "
     "their\n"
     "clocks compared. FILE is JSON for ui.perfetto.dev and chrome://tracing.\n"
     "The exit code is 3 if a member did not answer.\n",
     {{"--output FILE", "(-o FILE) write a timeline"}}},
    {"events",
     {"", NULL},
     "what happened lately to members and jobs",
     {NULL},
     "States of servers and agents, phases of jobs, ranks lost and taken\n"
     "again, partitions moved, changes by users; the last 512.\n",
     {{"--follow", "then print events as they happen"}}},
    {"explain",
     {"[CODE|MESSAGE]", NULL},
     "cause and remedy of an error or of a line in a log",
     {NULL},
     "CODE is that of an entry, such as PSKV-0042, or the name or number of\n"
     "an error, such as PSC_E_NOMEM or 2. A message is copied as it is, in\n"
     "quotes. Without either: all codes. No scheduler takes part.\n",
     {{0}}},
    {"help",
     {"[VERB]", NULL},
     "this, or more about one verb",
     {NULL},
     "",
     {{0}}},
    {"completion",
     {"bash", NULL},
     "a script for the shell",
     {NULL},
     "For this shell: source <(psctl completion bash)\n",
     {{0}}},
};

static const char general_text[] =
    "  -e, --endpoint HOST:PORT|unix:PATH\n"
    "                       the scheduler; else $PSKV_SCHED, else\n"
    "                       $DMLC_PS_ROOT_URI and $DMLC_PS_ROOT_PORT, else\n"
    "                       its socket in /run/pskv, else 127.0.0.1:9091\n"
    "  -w, --write FORMAT   table (for people), json (for programs) or jsonl\n"
    "                       (the same on one line)\n"
    "      --timeout TIME   how long the scheduler may be silent, e.g. 500ms\n"
    "                       or 5s (default)\n"
    "      --no-headers     rows alone\n"
    "      --token FILE     a token; else $PSKV_TOKEN_FILE, $PSKV_TOKEN_FD\n"
    "      --tls FOLDER     a certificate for TCP (ctl.crt); else $PSKV_TLS\n"
    "  -h, --help   -V, --version\n";

static const char exit_codes_text[] =
    "Exit codes: 0 done, and healthy; 1 refused or failed, with the reason;\n"
    "2 wrong usage; 3 degraded (status), stalled (stall) or ends soon (pki);\n"
    "4 no such job; 69 no scheduler there; 75 refused for now, or another "
    "protocol;\n"
    "77 not allowed.\n";

static void print_usage_lines(const struct page *p, FILE *out)
{
    for (size_t i = 0; p->arguments[i] != NULL; i++) {
        const char *begin = i == 0 ? "usage:" : "      ";

        fprintf(out, "%s psctl [OPTION]... %s%s%s\n", begin, p->verb,
                p->arguments[i][0] != '\0' ? " " : "", p->arguments[i]);
    }
}

/* Prints each option once, with its verbs. */
static void print_flags(FILE *out)
{
    const char *listed[COUNT(pages) * FLAGS_MAX];
    size_t count = 0;

    for (size_t i = 0; i < COUNT(pages) * FLAGS_MAX; i++) {
        const struct flag *f = &pages[i / FLAGS_MAX].flags[i % FLAGS_MAX];
        const char *comma = "of ";
        size_t k = 0;

        while (f->name != NULL && k < count &&
               strcmp(listed[k], f->name) != 0) {
            k++;
        }
        if (f->name == NULL || k < count) {
            continue;
        }
        listed[count++] = f->name;
        fprintf(out, "      %-16s ", f->name);
        for (k = 0; k < COUNT(pages) * FLAGS_MAX; k++) {
            const struct page *p = &pages[k / FLAGS_MAX];
            const struct flag *same = &p->flags[k % FLAGS_MAX];

            if (same->name != NULL && strcmp(same->name, f->name) == 0) {
                fprintf(out, "%s%s", comma, p->verb);
                comma = ", ";
            }
        }
        fprintf(out, ": %s\n", f->help);
    }
}

void help_all(FILE *out)
{
    fputs("usage: psctl [OPTION]... VERB\n\n", out);
    for (size_t i = 0; i < COUNT(pages); i++) {
        const struct page *p = &pages[i];

        for (size_t k = 0; p->arguments[k] != NULL; k++) {
            char left[64];

            snprintf(left, sizeof(left), "%s %s", p->verb, p->arguments[k]);
            fprintf(out, "  %-20s %s\n", left,
                    k == 0 ? p->summary : p->others[k - 1]);
        }
    }
    fputs("\n", out);
    print_flags(out);
    fprintf(out, "%s\n%s", general_text, exit_codes_text);
}

static const struct page *find_page(const char *verb)
{
    for (size_t i = 0; i < COUNT(pages); i++) {
        if (strcmp(pages[i].verb, verb) == 0) {
            return &pages[i];
        }
    }
    return NULL;
}

bool help_verb(const char *verb)
{
    const struct page *p = find_page(verb);

    if (p == NULL) {
        help_no_verb(verb);
        return false;
    }
    print_usage_lines(p, stdout);
    printf("\n%s: %s\n%s%s", p->verb, p->summary,
           p->text[0] != '\0' ? "\n" : "", p->text);
    for (size_t i = 0; i < FLAGS_MAX && p->flags[i].name != NULL; i++) {
        printf("%s      %-16s %s\n", i == 0 ? "\n" : "", p->flags[i].name,
               p->flags[i].help);
    }
    printf("\n%s\n%s", general_text, exit_codes_text);
    return true;
}

void help_no_verb(const char *verb)
{
    const char *names[COUNT(pages) + 1] = {NULL};
    const char *near;
    char shown[256];
    struct ps_str s;

    for (size_t i = 0; i < COUNT(pages); i++) {
        names[i] = pages[i].verb;
    }
    near = ps_nearest(names, verb);
    ps_str_init(&s, shown, sizeof(shown));
    ps_str_add_escaped(&s, verb, strlen(verb), 32);
    if (near != NULL) {
        fprintf(stderr, "psctl: no verb '%s'; did you mean %s?\n", shown, near);
        return;
    }
    fprintf(stderr, "psctl: no verb '%s'; there are", shown);
    for (size_t i = 0; i < COUNT(pages); i++) {
        fprintf(stderr, "%s %s", i > 0 ? "," : "", pages[i].verb);
    }
    fputs("\n", stderr);
}

void help_completion(void)
{
    fputs("# bash completion of psctl: source <(psctl completion bash)\n"
          "_psctl() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]}\n"
          "    local before=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local words\n"
          "    case $before in\n"
          "    -w|--write) words='table json jsonl' ;;\n"
          "    help) words='",
          stdout);
    for (size_t i = 0; i < COUNT(pages); i++) {
        printf("%s%s", i > 0 ? " " : "", pages[i].verb);
    }
    fputs("' ;;\n"
          "    keys|stall|set|rebalance|cancel|trace)\n"
          "        words=$(psctl --no-headers --timeout 1s jobs 2>/dev/null |\n"
          "                awk '{print $1}') ;;\n"
          "    *) words='",
          stdout);
    for (size_t i = 0; i < COUNT(pages); i++) {
        printf("%s ", pages[i].verb);
    }
    fputs("-e -w -h -V --endpoint --write --timeout --no-headers --token --tls "
          "--help "
          "--version",
          stdout);
    for (size_t i = 0; i < COUNT(pages); i++) {
        for (size_t k = 0; k < FLAGS_MAX && pages[i].flags[k].name != NULL;
             k++) {
            const char *name = pages[i].flags[k].name;

            printf(" %.*s", (int)strcspn(name, " ["), name);
        }
    }
    fputs("' ;;\n"
          "    esac\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "}\n"
          "complete -F _psctl psctl\n",
          stdout);
}
