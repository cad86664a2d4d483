/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/command.h"

#include "pslaunch/process.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Script of the shell that starts a supervisor; $0 is the path here. */
#define SCRIPT                                                                 \
    "if test -x \"$0\"; then exec \"$0\" --supervise; "                        \
    "else exec pslaunch --supervise; fi"

/* The same for a task; $1 is the path of its order. Without the folder of the
 * order the job has ended, and so does the shell. */
#define TASK_SCRIPT                                                            \
    "exec 2>>\"$1.$SGE_TASK_ID\"; "                                            \
    "if test -x \"$0\"; then exec \"$0\" --join \"$1\"; "                      \
    "else exec pslaunch --join \"$1\"; fi"

void command_add(struct command *c, const char *word)
{
    char *copy = strdup(word);

    if (copy == NULL) {
        abort();
    }
    c->argv = realloc((void *)c->argv,
                      ((size_t)c->count + 2) * sizeof(*c->argv));
    if (c->argv == NULL) {
        abort();
    }
    c->argv[c->count++] = copy;
    c->argv[c->count] = NULL;
}

void command_addf(struct command *c, const char *fmt, ...)
{
    char *word;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&word, fmt, ap) < 0) {
        abort();
    }
    va_end(ap);
    command_add(c, word);
    free(word);
}

void command_add_words(struct command *c, const char *text)
{
    while (*(text += strspn(text, " ")) != '\0') {
        size_t len = strcspn(text, " ");

        command_addf(c, "%.*s", (int)len, text);
        text += len;
    }
}

void command_add_task(struct command *c, const char *order)
{
    char self[PATH_MAX];

    process_own_path(self, sizeof(self));
    command_add(c, "/bin/sh");
    command_add(c, "-c");
    command_add(c, TASK_SCRIPT);
    command_add(c, self);
    command_add(c, order);
}

void command_add_supervisor_after(struct command *c, const char *before)
{
    char self[PATH_MAX];

    process_own_path(self, sizeof(self));
    command_add(c, "/bin/sh");
    command_add(c, "-c");
    command_addf(c, "%s" SCRIPT, before);
    command_add(c, self);
}

void command_add_supervisor(struct command *c)
{
    command_add_supervisor_after(c, "");
}

void command_write_quoted(const char *word, FILE *out)
{
    fputc('\'', out);
    for (const char *p = word; *p != '\0'; p++) {
        fprintf(out, *p == '\'' ? "'\\'%c" : "%c", *p);
    }
    fputc('\'', out);
}

void command_add_script_text(struct command *c, const char *script,
                             const char *argument)
{
    char self[PATH_MAX];
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    if (out == NULL) {
        abort();
    }
    process_own_path(self, sizeof(self));
    fprintf(out, "exec sh -c '%s' ", script);
    command_write_quoted(self, out);
    if (argument != NULL) {
        fputc(' ', out);
        command_write_quoted(argument, out);
    }
    if (fclose(out) != 0) {
        abort();
    }
    command_add(c, text);
    free(text);
}

void command_add_supervisor_text(struct command *c)
{
    command_add_script_text(c, SCRIPT, NULL);
}

void command_print_word(const char *word)
{
    if (word[0] != '\0' &&
        word[strcspn(word, " \t\n'\"\\$`|&;<>()*?[]#~!{}")] == '\0') {
        printf(" %s", word);
        return;
    }
    putchar(' ');
    command_write_quoted(word, stdout);
}

void command_print(const struct command *c)
{
    printf(" ");
    for (uint32_t i = 0; i < c->count; i++) {
        command_print_word(c->argv[i]);
    }
    printf("\n");
}

void command_fini(struct command *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        free(c->argv[i]);
    }
    free((void *)c->argv);
    *c = (struct command){.count = 0};
}
