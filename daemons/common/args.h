/* SPDX-License-Identifier: Apache-2.0 */
/* Command line shared by all daemons. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum ps_print {
    PS_PRINT_NOTHING,
    PS_PRINT_EFFECTIVE,
    PS_PRINT_DEFAULTS,
    PS_PRINT_SCHEMA,
};

struct ps_args {
    const char *config; /* Path of the file; NULL: the default one. */
    char **overrides;   /* "path=value"; owned. */
    size_t override_count;
    bool check;
    enum ps_print print;
    int ready_fd; /* -1: none. */
    const char *port_file;
    bool help;
    bool version;
};

struct ps_args_options {
    const char *program;
    bool dials;   /* Accepts --sched. */
    bool listens; /* Accepts --port-file. */
};

/* Parses the command line. False: wrong usage, already reported on standard
 * error. */
bool ps_args_parse(const struct ps_args_options *opt, int argc, char **argv,
                   struct ps_args *ret_args);
void ps_args_fini(struct ps_args *a);
void ps_args_help(const struct ps_args_options *opt, const char *summary,
                  const char *default_config);
