/* SPDX-License-Identifier: Apache-2.0 */
/* Command line and options of a daemon. getopt_long() makes overrides "path=value"
 * of options. They are loaded at the start, reloaded on SIGHUP. A reload applies
 * the reloadable options; a configuration with errors changes nothing. */
#include "common/daemon_inner.h"

#include "base/alloc.h"
#include "base/err.h"
#include "base/log.h"
#include "common/system.h"
#include "common/memory.h"
#include "common/options.h"
#include "net/addr.h"

#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ------------------------------------------------------------- command line */

enum {
    OPT_CHECK = 256,
    OPT_PRINT,
    OPT_READY_FD,
    OPT_PORT_FILE,
    OPT_LOG_FORMAT,
    OPT_SCHED,
    OPT_KEEP,
};

static const struct option arg_options[] = {
    {"config", required_argument, NULL, 'c'},
    {"option", required_argument, NULL, 'o'},
    {"check-config", no_argument, NULL, OPT_CHECK},
    {"print-config", optional_argument, NULL, OPT_PRINT},
    {"ready-fd", required_argument, NULL, OPT_READY_FD},
    {"port-file", required_argument, NULL, OPT_PORT_FILE},
    {"log-level", required_argument, NULL, 'l'},
    {"log-format", required_argument, NULL, OPT_LOG_FORMAT},
    {"sched", required_argument, NULL, OPT_SCHED},
    {"keep", no_argument, NULL, OPT_KEEP},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

/* Path of the configuration file without --config. */
static void print_config_path(const struct daemon *d, char *out, size_t cap)
{
    snprintf(out, cap, "%s/pskv/%s.yaml", PS_SYSCONFDIR,
             d->spec->options->program);
}

/* Returns false. */
static bool report_usage_error(const struct daemon *d, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static bool report_usage_error(const struct daemon *d, const char *fmt, ...)
{
    const char *program = d->spec->options->program;
    va_list ap;

    fprintf(stderr, "%s: ", program);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "; try %s --help\n", program);
    return false;
}

static void add_override(struct ps_args *a, const char *path, const char *value)
{
    size_t len = strlen(path) + strlen(value) + 2;
    char *text = ps_alloc(len);

    snprintf(text, len, "%s=%s", path, value);
    a->overrides = ps_realloc(a->overrides, (a->override_count + 1) *
                                                sizeof(a->overrides[0]));
    a->overrides[a->override_count++] = text;
}

static bool parse_sched(struct daemon *d, const char *value)
{
    struct ps_addr addr;
    char port[8];

    if (d->spec->scheduler == PS_DAEMON_NONE) {
        return report_usage_error(d, "--sched is not for this program");
    }
    if (ps_addr_parse(value, &addr) != 0) {
        return report_usage_error(d, "--sched %s: write HOST:PORT", value);
    }
    snprintf(port, sizeof(port), "%u", (unsigned)addr.port);
    add_override(&d->args, "scheduler.address", addr.host);
    add_override(&d->args, "scheduler.port", port);
    return true;
}

static bool parse_print(struct daemon *d, const char *value)
{
    if (value == NULL || strcmp(value, "effective") == 0) {
        d->args.print = PS_PRINT_EFFECTIVE;
    } else if (strcmp(value, "defaults") == 0) {
        d->args.print = PS_PRINT_DEFAULTS;
    } else if (strcmp(value, "schema") == 0) {
        d->args.print = PS_PRINT_SCHEMA;
    } else {
        return report_usage_error(
            d, "--print-config=%s: write defaults, effective or schema", value);
    }
    return true;
}

static bool parse_ready_fd(struct daemon *d, const char *value)
{
    char *end;
    long fd = strtol(value, &end, 10);

    if (end == value || *end != '\0' || fd < 0 || fd > 1 << 20 ||
        fcntl((int)fd, F_GETFD) < 0) {
        return report_usage_error(d, "--ready-fd %s: not an open descriptor",
                                  value);
    }
    (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    d->args.ready_fd = (int)fd;
    return true;
}

static bool parse_arg(struct daemon *d, int c)
{
    struct ps_args *a = &d->args;

    switch (c) {
    case 'c':
        a->config = optarg;
        return true;
    case 'o':
        if (strchr(optarg, '=') == NULL) {
            return report_usage_error(d, "-o %s: write KEY=VALUE", optarg);
        }
        add_override(a, optarg, "");
        /* `optarg` has its '=': cut the one just added. */
        a->overrides[a->override_count - 1][strlen(optarg)] = '\0';
        return true;
    case 'l':
        add_override(a, "log.level", optarg);
        return true;
    case OPT_LOG_FORMAT:
        add_override(a, "log.format", optarg);
        return true;
    case OPT_CHECK:
        a->check = true;
        return true;
    case OPT_PRINT:
        return parse_print(d, optarg);
    case OPT_READY_FD:
        return parse_ready_fd(d, optarg);
    case OPT_PORT_FILE:
        a->port_file = optarg;
        return d->spec->listen != PS_DAEMON_NONE ||
               report_usage_error(d, "--port-file is not for this program");
    case OPT_SCHED:
        return parse_sched(d, optarg);
    case OPT_KEEP:
        d->is_kept = d->spec->has_state_memory;
        return d->is_kept ||
               report_usage_error(d, "--keep is not for this program");
    case 'h':
        a->help = true;
        return true;
    case 'V':
        a->version = true;
        return true;
    default:
        return false;
    }
}

bool daemon_args_parse(struct daemon *d, int argc, char **argv)
{
    int c;

    d->args.ready_fd = -1;
    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, ":c:o:l:hV", arg_options, NULL)) !=
           -1) {
        if (c == ':') {
            report_usage_error(d, "%s needs a value", argv[optind - 1]);
        } else if (c == '?') {
            report_usage_error(d, "%s: unknown option", argv[optind - 1]);
        }
        if (!parse_arg(d, c)) {
            return false;
        }
    }
    return optind == argc ||
           report_usage_error(d, "%s: unexpected argument", argv[optind]);
}

void daemon_print_help(const struct daemon *d)
{
    char path[512];

    print_config_path(d, path, sizeof(path));
    printf("usage: %s [OPTION]...\n%s\n\n", d->spec->options->program,
           d->spec->summary);
    printf("  -c, --config FILE        read FILE instead of\n"
           "                           %s\n"
           "  -o, --option KEY=VALUE   set one option; may be repeated\n",
           path);
    if (d->spec->scheduler != PS_DAEMON_NONE) {
        printf("      --sched HOST:PORT    where the scheduler is\n");
    }
    printf("      --check-config       check the options and exit: 0 or 78\n   "
           "   --print-config[=defaults|effective|schema]\n                    "
           "       print the options and exit\n      --ready-fd N         "
           "write a newline to descriptor N when serving\n");
    if (d->spec->listen != PS_DAEMON_NONE) {
        printf("      --port-file FILE     write the port that is listened "
               "on\n");
    }
    if (d->spec->has_state_memory) {
        printf("      --keep               run in a child, and start it again "
               "with "
               "its memory\n                           when it is killed\n");
    }
    printf("%s", d->spec->commands != NULL ? d->spec->commands : "");
    printf("  -l, --log-level LEVEL    error, warning, notice, info, debug or "
           "trace\n"
           "      --log-format FORMAT  auto, journal, text or json\n"
           "  -h, --help               print this and exit\n"
           "  -V, --version            print versions and exit\n\n"
           "Signals: TERM and INT end in good order, a second one at once; HUP "
           "reloads the\noptions that can be; USR1 writes the state to the "
           "log.\n");
}

/* ------------------------------------------------------------------ options */

#define REPORT_MAX (64u * 1024u)

/* Static, so that one buffer serves every report. */
static char report_text[REPORT_MAX];

/* True unless the address has a port, which another option sets, or the daemon
 * would listen off loopback with neither a certificate nor security.insecure:
 * any peer that reaches the port is trusted. */
static bool check_listen(const struct daemon *d, const struct ps_options *o,
                         struct ps_str *report)
{
    const struct ps_listen_options *l = daemon_listen_options(d);
    char number[PS_ADDRESS_MAX + 1];
    struct ps_addr with_port;
    enum ps_addr_kind kind;

    if (l != NULL && ps_addr_parse(l->address, &with_port) == 0) {
        ps_options_where(o, "listen.address", report);
        ps_str_addf(report,
                    ": listen.address: %s: the port does not belong here; set "
                    "listen.address to %s, and listen.port to %u\n",
                    l->address, with_port.host, with_port.port);
        return false;
    }
    if (l == NULL || l->insecure || daemon_tls_identity(d) != NULL ||
        strcmp(l->address, "localhost") == 0) {
        return true;
    }
    kind = ps_addr_kind(l->address);
    if (kind == PS_ADDR_NAME &&
        ps_addr_lookup(l->address, number, sizeof(number)) == 0) {
        kind = ps_addr_kind(number);
    }
    if (kind == PS_ADDR_LOOPBACK) {
        return true;
    }
    ps_options_where(o, "listen.address", report);
    if (kind == PS_ADDR_NAME) {
        ps_str_addf(report, ": listen.address: %s: %s\n", l->address,
                    ps_advice_tcp(PS_E_UNREACH, 0));
        return false;
    }
    ps_str_addf(report,
                ": listen.address: %s can be reached from other hosts, and "
                "connections are not encrypted; listen on 127.0.0.1, or set "
                "security.tls.directory to the folder of a certificate, or "
                "security.insecure to true\n",
                l->address);
    return false;
}

void daemon_config_print_valid(const struct daemon *d)
{
    char path[512];
    const char *file = d->args.config;
    bool is_there = true;

    if (file == NULL) {
        print_config_path(d, path, sizeof(path));
        file = path;
        is_there = access(path, F_OK) == 0;
    }
    printf("%s: the configuration is valid: %s%s\n", d->spec->options->program,
           is_there ? "" : "defaults, without ", file);
}

/* Loads the options into `values`; the report has errors and warnings. */
static int load_options(const struct daemon *d,
                        const struct ps_options *previous, void *values,
                        struct ps_options **ret_options, struct ps_str *report)
{
    char path[512];
    struct ps_option_input in = {
        .file = d->args.config,
        .overrides = (const char *const *)d->args.overrides,
        .override_count = d->args.override_count,
        .env = environ,
        .sets = ps_daemon_sets,
        .memory = ps_memory_limit(""),
        .previous = previous,
    };

    if (in.file == NULL) {
        print_config_path(d, path, sizeof(path));
        in.file = path;
        in.file_optional = true;
    }
    return ps_options_load(d->spec->options, &in, values, ret_options, report);
}

int daemon_config_load(struct daemon *d)
{
    struct ps_str report;
    bool good;
    int rc;

    ps_str_init(&report, report_text, sizeof(report_text));
    d->config.values = ps_calloc(1, d->spec->values_size);
    rc = load_options(d, NULL, d->config.values, &d->config.options, &report);
    if (rc == 0 && d->args.print == PS_PRINT_NOTHING) {
        good = daemon_tls_load(d, &report) == 0 &&
               check_listen(d, d->config.options, &report);
        good = daemon_http_check(d, d->config.options, &report) && good;
        if (d->spec->check != NULL) {
            good = d->spec->check(d->config.values, d->config.options,
                                  &report) &&
                   good;
        }
        rc = good ? 0 : PS_E_CONFIG;
    }
    fputs(report_text, stderr);
    d->config.grace_time = rc == 0 ? daemon_common_options(d)->grace : 0;
    return rc == 0 ? PS_EXIT_OK : PS_EXIT_CONFIG;
}

static void log_option_change(void *ctx, const struct ps_option *row)
{
    const struct daemon *d = ctx;
    struct ps_str s = PS_STR_ROOM(256);

    ps_options_text(d->config.reloaded, row->path, &s);
    ps_log(PS_LOG_NOTICE, "option changed %s=%s", row->path, s.data);
}

static void log_report(enum ps_log_level level)
{
    char *rest = report_text;

    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (line[0] != '\0') {
            ps_log(level, "%s", line);
        }
    }
}

static int open_spare_fd(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void daemon_config_reload(struct daemon *d)
{
    struct ps_options *now = NULL;
    struct ps_options *before = d->config.reloaded != NULL ? d->config.reloaded
                                                           : d->config.options;
    void *values = ps_calloc(1, d->spec->values_size);
    struct timespec mono;
    struct ps_str report;

    clock_gettime(CLOCK_MONOTONIC, &mono);
    ps_notify("RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
              (uint64_t)mono.tv_sec * 1000000u +
                  (uint64_t)mono.tv_nsec / 1000u);
    ps_str_init(&report, report_text, sizeof(report_text));
    if (d->config.spare_fd >= 0) {
        close(d->config.spare_fd);
    }
    int rc = load_options(d, before, values, &now, &report);
    bool good = rc == 0 && daemon_tls_reload(d, values, now);

    d->config.spare_fd = open_spare_fd();
    if (rc == 0) {
        const struct ps_common_options *c =
            (const void *)((const char *)values + d->spec->common);

        log_report(PS_LOG_WARNING);
        d->config.reloaded = now;
        ps_options_compare(before, now, log_option_change, d);
        ps_log_level_set((enum ps_log_level)c->log_level);
        d->config.grace_time = c->grace;
        if (before != d->config.options) {
            ps_options_free(before);
        }
        ps_log(PS_LOG_NOTICE, "options reloaded");
    } else {
        log_report(PS_LOG_ERROR);
        ps_log(PS_LOG_ERROR, "options not reloaded, the old ones stay%s",
               d->config.spare_fd < 0 ? "; no descriptor is left, trying again"
                                      : "");
    }
    if (d->config.spare_fd < 0) {
        ps_loop_timer_set(d->loop, &d->config.reload_timer,
                          ps_loop_now(d->loop) + PS_SECONDS(1));
    }
    ps_free(values);
    ps_notify("READY=1\nSTATUS=%s",
              good      ? "serving"
              : rc == 0 ? "serving with old certificates: the new ones could "
                          "not be used, see the log"
                        : "serving with old options: the new ones could not "
                          "be read, see the log");
}

/* Repeats a reload that failed because no descriptor was left. */
static void retry_reload(struct ps_loop_timer *t)
{
    struct daemon *d = PS_CONTAINER(t, struct daemon, config.reload_timer);

    d->config.spare_fd = open_spare_fd();
    if (d->config.spare_fd >= 0) {
        daemon_config_reload(d);
    } else {
        ps_loop_timer_set(d->loop, t, ps_loop_now(d->loop) + PS_SECONDS(1));
    }
}

int daemon_config_print(const struct daemon *d)
{
    switch (d->args.print) {
    case PS_PRINT_DEFAULTS:
        ps_option_set_print_defaults(d->spec->options, stdout);
        break;
    case PS_PRINT_SCHEMA:
        ps_option_set_print_schema(d->spec->options, stdout);
        break;
    case PS_PRINT_EFFECTIVE:
        ps_options_print(d->config.options, stdout);
        break;
    case PS_PRINT_NOTHING:
        break;
    }
    return PS_EXIT_OK;
}

void daemon_config_start(struct daemon *d)
{
    d->config.spare_fd = open_spare_fd();
    d->config.reload_timer.due = retry_reload;
}

void daemon_config_stop(struct daemon *d)
{
    ps_loop_timer_set(d->loop, &d->config.reload_timer, PS_TIME_NEVER);
}

void daemon_config_fini(struct daemon *d)
{
    ps_options_free(d->config.reloaded);
    ps_options_free(d->config.options);
    ps_free(d->config.values);
    for (size_t i = 0; i < d->args.override_count; i++) {
        ps_free(d->args.overrides[i]);
    }
    ps_free(d->args.overrides);
}
