/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines that pslaunch makes, and the variables of the processes of a
 * job. */
#pragma once

#include "pslaunch/plan.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct command {
    char **argv; /* NULL ends them. */
    uint32_t count;
};

/* Adds a copy of a word. */
void command_add(struct command *c, const char *word);
void command_addf(struct command *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Adds the words of a text, which spaces separate. */
void command_add_words(struct command *c, const char *text);
/* Adds the words that start a supervisor, after the commands of a shell that
 * `before` has: the program at the same path as here, else the one of PATH
 * there. */
void command_add_supervisor(struct command *c, const char *before);
/* Adds the words that start a task of an array job, whose supervisor connects to
 * pslaunch as the file `order` says; what it reports goes to files beside. */
void command_add_task(struct command *c, const char *order);
/* Adds the same as command_add_supervisor(), as one word for the shell of another host. */
void command_add_supervisor_text(struct command *c);
/* Adds one word for the shell of another host, by which sh runs a script
 * there; $0 is the path of this program here, and $1 the argument. The script
 * has no single quotes. */
void command_add_script_text(struct command *c, const char *script,
                             const char *argument);
/* Writes a word in quotes that all shells read alike. */
void command_write_quoted(const char *word, FILE *out);
/* Prints a space and a word as a shell reads it. */
void command_print_word(const char *word);
/* Prints the command as a line of a dry run. */
void command_print(const struct command *c);
void command_fini(struct command *c);

struct env {
    char **items; /* "NAME=VALUE"; NULL ends the list. */
    size_t count;
    size_t capacity;
};

/* Adds copies of variables, the last of which is NULL; each replaces a former one
 * of its name. */
void env_add(struct env *e, char *const *variables);

/* Addresses and paths for the variables of a worker. */
struct places {
    const char *socket; /* Of the worker's agent. */
    /* Address and port of psched; NULL: not known. */
    const char *sched_host;
    const char *sched_port;
    /* Where rank 0 may serve the store of torch; NULL: as it is set. */
    const char *store_host;
    const char *store_port;
};

/* All variables of a worker: pslaunch's own on this host, on other hosts those
 * that are passed on; then those of the job, then those of options. */
void env_of_worker(const struct plan *p, uint32_t rank, const struct places *at,
                   struct env *ret_env);
/* The same for a server. */
void env_of_server(const struct plan *p, struct env *ret_env);
void env_fini(struct env *e);
