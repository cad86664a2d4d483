/* SPDX-License-Identifier: Apache-2.0 */
/* Verbs of psctl with their words and options, from which help and completion
 * are made. */
#include "psctl/help.h"

#include "psctl/pki.h"

#include <stddef.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

const struct page help_pages[] = {
    {"status",
     HELP_LOOK,
     {"", NULL},
     "one screen: members, jobs, what is wrong",
     {NULL},
     "Each line with an exclamation mark is something to look at; then the\n"
     "exit code is 3. Lost ranks, servers that are gone, jobs that wait for\n"
     "too long.\n",
     {{"--watch[=TIME]", "again and again, 2s apart", NULL},
      {"--after TIME", "a shorter wait is work (default 10s)", NULL}}},
    {"jobs",
     HELP_LOOK,
     {"[list]", "cancel NAME", NULL},
     "jobs, also those that ended lately",
     {"end a job; its workers get an error that says so"},
     "'cancel' ends a job: its workers get an error that says so. It is for\n"
     "the owner of the job, root and the user of psched, on psched's host.\n",
     {{"--watch[=TIME]", "again and again, 2s apart", NULL},
      {"--reason TEXT", "for the workers' error", "cancel"}}},
    {"nodes",
     HELP_LOOK,
     {"", NULL},
     "servers and agents, with totals and rates",
     {NULL},
     "Rates are means over the last seconds.\n",
     {{"--watch[=TIME]", "again and again, 2s apart", NULL}}},
    {"keys",
     HELP_LOOK,
     {"[JOB]", NULL},
     "keys, which server holds how much, and how even",
     {NULL},
     "100 % of even is what a server would hold if all held the same.\n",
     {{"--watch[=TIME]", "again and again, 2s apart", NULL}}},
    {"stall",
     HELP_LOOK,
     {"[JOB]", NULL},
     "what is waited for, since when, which ranks are missing",
     {NULL},
     "The exit code is 3 where a rank is lost or a wait is too long.\n",
     {{"--watch[=TIME]", "again and again, 2s apart", NULL},
      {"--after TIME", "a shorter wait is work (default 10s)", NULL}}},
    {"get",
     HELP_LOOK,
     {"[JOB]", NULL},
     "weight of running jobs, and numbers of their optimizers",
     {NULL},
     "Numbers that a job has not declared have their defaults. One with a\n"
     "round holds for each key from that round on.\n",
     {{0}}},
    {"set",
     HELP_CHANGE,
     {"JOB NAME VALUE", "JOB weight N", NULL},
     "change a number of a job's optimizer",
     {"change a job's share beside others, 1 to 1000"},
     "NAME is learning_rate (lr), wd, rescale_grad or clip_gradient, also\n"
     "NAME=VALUE. A weight holds at once, until the job ends. It is for the\n"
     "owner of the job, root and the user of psched, on psched's host.\n",
     {{"--round N", "first round of each key with NAME's value; not of weight",
       NULL}}},
    {"rebalance",
     HELP_CHANGE,
     {"JOB", NULL},
     "move partitions until servers are within 5 % of even",
     {NULL},
     "The job continues meanwhile. Only for the owner of the job, root and\n"
     "the user of psched, on psched's host.\n",
     {{"--off SERVER", "move all that the job has there to its others", NULL},
      {"--dry-run", "say what, and do nothing", NULL}}},
    {"token",
     HELP_SET_UP,
     {"list", "issue", "revoke NUMBER", NULL},
     "tokens that you may revoke",
     {"print a token: rights of yours that its holder has",
      "end a token at once"},
     "A token hands on rights of a user: train, read, operate, admin, launch.\n"
     "It is issued on psched's host, to that user and to operators. Write it\n"
     "to a file of mode 600, and give that with --token or $PSKV_TOKEN_FILE.\n",
     {{"--rights LIST", "needed: train,read,operate,admin,launch", "issue"},
      {"--job [USER/]NAME", "that job alone; else all of the user", "issue"},
      {"--ttl TIME", "how long it is valid, default 1h", "issue"}}},
    {"bench",
     HELP_CHECK,
     {"", NULL},
     "push and pull in a job of its own from this node",
     {NULL},
     "Says how long a round takes, in milliseconds, GB/s and keys a second.\n",
     {{"--size BYTES", "of all keys together, e.g. 64M (default)", NULL},
      {"--keys N", "default 100", NULL},
      {"--rounds N", "default 50", NULL},
      {"--workers N", "processes, default 2", NULL},
      {"--socket PATH", "this node's agent; else $PSKV_SOCKET, else as workers",
       NULL}}},
    {"pki",
     HELP_SET_UP,
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
     {{"--cluster NAME", "the cluster (default 'default')", "init"},
      {"--dir DIR", "the authority's folder (" PKI_DEFAULT_DIRECTORY ")", NULL},
      {"--out DIR", "the node's folder (" PKI_DEFAULT_OUTPUT ")",
       "issue|renew|revoke"},
      {"--host NAME", "name or address of the node's host; repeatable",
       "issue|renew|code"},
      {"--days N", "validity: 365, of an authority 3650",
       "init|issue|renew|code"},
      {"--owner USER", "to whom the node's files belong", "issue|renew|revoke"},
      {"--force", "replace files and certificates that exist",
       "init|issue|renew|code"},
      {"--ttl TIME", "how long it is valid, default 1h", "code"},
      {"--listen HOST:PORT", "default " PKI_DEFAULT_LISTEN, "serve"}}},
    {"enroll",
     HELP_SET_UP,
     {"", NULL},
     "get a certificate for this node with a one-time code",
     {NULL},
     "Makes a key, sends its public part to 'psctl pki serve', whose "
     "authority\n"
     "the code names, and writes ca.crt, crl.pem, ROLE.crt and ROLE.key.\n",
     {{"--server HOST[:PORT]", "where psctl pki serve listens; needed", NULL},
      {"--code CODE", "of psctl pki code; -: from standard input; needed",
       NULL},
      {"--directory DIR", "the node's folder, as --out", NULL},
      {"--owner USER", "to whom the node's files belong", NULL},
      {"--force", "replace files that exist", NULL}}},
    {"top",
     HELP_LOOK,
     {"", NULL},
     "the cluster, its jobs and busiest members, again and again",
     {NULL},
     "On a terminal until q; n, t, r, m change the order. Elsewhere, and with "
     "--batch, each output follows\n"
     "the last one, separated by an empty line.\n",
     {{"-b, --batch", "no control of the terminal", NULL},
      {"-n, --count N", "end after N outputs", NULL},
      {"--sort KEY", "name (default), traffic, rounds or memory", NULL},
      {"--watch[=TIME]", "again and again, 2s apart", NULL},
      {"--after TIME", "a shorter wait is work (default 10s)", NULL}}},
    {"doctor",
     HELP_CHECK,
     {"", NULL},
     "check the cluster and this host, and say what to do",
     {NULL},
     "Versions, clocks, certificates, members, memory and limits, jobs; this\n"
     "host's agent, clock and kernel. The exit code is 3 if there is a "
     "problem.\n",
     {{"--after TIME", "a shorter wait is work (default 10s)", NULL}}},
    {"log-level",
     HELP_CHANGE,
     {"LEVEL", "MEMBER LEVEL", NULL},
     "change what all members write to their logs, now",
     {"the same for members of this name"},
     "LEVEL is error, warning, notice, info, debug or trace. It holds until a\n"
     "member starts again or reads its options again (SIGHUP). It is for\n"
     "root, the user of psched and users of control.operators.\n",
     {{0}}},
    {"trace",
     HELP_LOOK,
     {"JOB", NULL},
     "what a job's members did lately, and for which rank others wait",
     {NULL},
     "Collects the last 16384 entries of each member, on all hosts, with "
     "their\n"
     "clocks compared. FILE is JSON for ui.perfetto.dev and chrome://tracing.\n"
     "The exit code is 3 if a member did not answer.\n",
     {{"-o, --output FILE", "write a timeline", NULL}}},
    {"events",
     HELP_LOOK,
     {"", NULL},
     "what happened lately to members and jobs",
     {NULL},
     "States of servers and agents, phases of jobs, ranks lost and taken\n"
     "again, partitions moved, changes by users; the last 512.\n",
     {{"--follow", "then print events as they happen", NULL}}},
    {"explain",
     HELP_CHECK,
     {"[CODE|MESSAGE]", NULL},
     "cause and remedy of an error or of a line in a log",
     {NULL},
     "CODE is that of an entry, such as PSKV-0042, or the name or number of\n"
     "an error, such as PSC_E_NOMEM or 2. A message is copied as it is, in\n"
     "quotes. Without either: all codes. No scheduler takes part.\n",
     {{0}}},
    {"help",
     HELP_NONE,
     {"[VERB]", "all", NULL},
     "this, or more about one verb",
     {"all verbs with their words, and all options"},
     "",
     {{0}}},
    {"context",
     HELP_SET_UP,
     {"[list]", "use NAME", "set NAME", "remove NAME", NULL},
     "clusters that have a name",
     {"the cluster of commands without -e; -: none",
      "keep -e, --tls and --token under a name", "forget a name"},
     "'set' changes the parts of a context that are given; an empty text\n"
     "removes one. They are kept in pskv/contexts.json in $XDG_CONFIG_HOME,\n"
     "else ~/.config. $PSKV_CONTEXT names one in place of 'use'. No scheduler\n"
     "takes part.\n",
     {{0}}},
    {"completion",
     HELP_SET_UP,
     {"bash", "zsh", "fish", NULL},
     "a script that completes words in this shell",
     {"the same for zsh", "the same for fish"},
     "In bash: source <(psctl completion bash), in zsh, after compinit:\n"
     "source <(psctl completion zsh), in fish: psctl completion fish | "
     "source\n",
     {{0}}},
};

const size_t help_page_count = COUNT(help_pages);

/* Options of all verbs. */
const struct flag help_general[] = {
    {"-e, --endpoint HOST:PORT|unix:PATH",
     "the scheduler; else that of --context, else\n"
     "$PSKV_SCHED, else $DMLC_PS_ROOT_URI and\n"
     "$DMLC_PS_ROOT_PORT, else the context in use, else\n"
     "its socket in $XDG_RUNTIME_DIR/pskv or /run/pskv,\n"
     "else 127.0.0.1:9091",
     NULL},
    {"--context NAME", "a cluster of psctl context, without variables", NULL},
    {"-w, --write FORMAT",
     "table (for people), json (for programs) or jsonl\n"
     "(the same on one line)",
     NULL},
    {"--timeout TIME",
     "how long the scheduler may be silent, e.g. 500ms\n"
     "or 5s (default)",
     NULL},
    {"--no-headers", "rows alone", NULL},
    {"--token FILE", "a token; else $PSKV_TOKEN_FILE, $PSKV_TOKEN_FD", NULL},
    {"--tls FOLDER", "a certificate for TCP (ctl.crt); else $PSKV_TLS", NULL},
    {"--insecure", "send the token over plain TCP to another host, too", NULL},
    {"-h, --help", "this, or help of the verb", NULL},
    {"-V, --version", "versions of psctl and of its protocol", NULL},
};

const size_t help_general_count = COUNT(help_general);
