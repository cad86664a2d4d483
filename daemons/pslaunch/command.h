/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines that pslaunch makes. */
#pragma once

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
/* Adds the words that start a supervisor: the program at the same path as here,
 * else the one of PATH there. */
void command_add_supervisor(struct command *c);
/* The same, after the commands of a shell that `before` has. */
void command_add_supervisor_after(struct command *c, const char *before);
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
