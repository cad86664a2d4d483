/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the command line with getopt_long(); options become overrides
 * "path=value". */
#include "common/args.h"

#include "base/alloc.h"
#include "base/err.h"
#include "net/addr.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPT_CHECK = 256,
    OPT_PRINT,
    OPT_READY_FD,
    OPT_PORT_FILE,
    OPT_LOG_FORMAT,
    OPT_SCHED,
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
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static void report_usage_error(const struct ps_args_options *opt,
                               const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void report_usage_error(const struct ps_args_options *opt,
                               const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s: ", opt->program);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "; try %s --help\n", opt->program);
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

static bool parse_sched(const struct ps_args_options *opt, struct ps_args *a,
                        const char *value)
{
    struct ps_addr addr;
    char port[8];

    if (!opt->dials) {
        report_usage_error(opt, "--sched is not for this program");
        return false;
    }
    if (ps_addr_parse(value, &addr) != 0) {
        report_usage_error(opt, "--sched %s: write HOST:PORT", value);
        return false;
    }
    snprintf(port, sizeof(port), "%u", (unsigned)addr.port);
    add_override(a, "scheduler.address", addr.host);
    add_override(a, "scheduler.port", port);
    return true;
}

static bool parse_print(const struct ps_args_options *opt, struct ps_args *a,
                        const char *value)
{
    if (value == NULL || strcmp(value, "effective") == 0) {
        a->print = PS_PRINT_EFFECTIVE;
    } else if (strcmp(value, "defaults") == 0) {
        a->print = PS_PRINT_DEFAULTS;
    } else if (strcmp(value, "schema") == 0) {
        a->print = PS_PRINT_SCHEMA;
    } else {
        report_usage_error(
            opt, "--print-config=%s: write defaults, effective or schema",
            value);
        return false;
    }
    return true;
}

static bool parse_ready_fd(const struct ps_args_options *opt, struct ps_args *a,
                           const char *value)
{
    char *end;
    long fd = strtol(value, &end, 10);

    if (end == value || *end != '\0' || fd < 0 || fd > 1 << 20 ||
        fcntl((int)fd, F_GETFD) < 0) {
        report_usage_error(opt, "--ready-fd %s: not an open descriptor", value);
        return false;
    }
    (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    a->ready_fd = (int)fd;
    return true;
}

static bool parse_arg(const struct ps_args_options *opt, struct ps_args *a,
                      int c)
{
    switch (c) {
    case 'c':
        a->config = optarg;
        return true;
    case 'o':
        if (strchr(optarg, '=') == NULL) {
            report_usage_error(opt, "-o %s: write KEY=VALUE", optarg);
            return false;
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
        return parse_print(opt, a, optarg);
    case OPT_READY_FD:
        return parse_ready_fd(opt, a, optarg);
    case OPT_PORT_FILE:
        if (!opt->listens) {
            report_usage_error(opt, "--port-file is not for this program");
            return false;
        }
        a->port_file = optarg;
        return true;
    case OPT_SCHED:
        return parse_sched(opt, a, optarg);
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

bool ps_args_parse(const struct ps_args_options *opt, int argc, char **argv,
                   struct ps_args *ret_args)
{
    struct ps_args a = {.ready_fd = -1};
    int c;

    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, ":c:o:l:hV", arg_options, NULL)) !=
           -1) {
        if (c == ':') {
            report_usage_error(opt, "%s needs a value", argv[optind - 1]);
        } else if (c == '?') {
            report_usage_error(opt, "%s: unknown option", argv[optind - 1]);
        }
        if (!parse_arg(opt, &a, c)) {
            ps_args_fini(&a);
            return false;
        }
    }
    if (optind < argc) {
        report_usage_error(opt, "%s: unexpected argument", argv[optind]);
        ps_args_fini(&a);
        return false;
    }
    *ret_args = a;
    return true;
}

void ps_args_fini(struct ps_args *a)
{
    for (size_t i = 0; i < a->override_count; i++) {
        ps_free(a->overrides[i]);
    }
    ps_free(a->overrides);
    a->overrides = NULL;
    a->override_count = 0;
}

void ps_args_help(const struct ps_args_options *opt, const char *summary,
                  const char *default_config)
{
    printf("usage: %s [OPTION]...\n%s\n\n", opt->program, summary);
    printf("  -c, --config FILE        read FILE instead of\n"
           "                           %s\n"
           "  -o, --option KEY=VALUE   set one option; may be repeated\n",
           default_config);
    if (opt->dials) {
        printf("      --sched HOST:PORT    where the scheduler is\n");
    }
    printf("      --check-config       look at the options and exit: 0 or "
           "78\n"
           "      --print-config[=defaults|effective|schema]\n"
           "                           print the options and exit\n"
           "      --ready-fd N         write a newline to descriptor N when "
           "serving\n");
    if (opt->listens) {
        printf("      --port-file FILE     write the port that is listened "
               "on\n");
    }
    printf("  -l, --log-level LEVEL    error, warning, notice, info, debug or "
           "trace\n"
           "      --log-format FORMAT  auto, journal, text or json\n"
           "  -h, --help               print this and exit\n"
           "  -V, --version            print versions and exit\n\n"
           "Signals: TERM and INT end in good order, a second one at once; HUP "
           "reloads the\noptions that can be; USR1 writes the state to the "
           "log.\n");
}
