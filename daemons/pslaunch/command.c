/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/command.h"

#include "base/str.h"
#include "pslaunch/process.h"

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
    if (c->count < COMMAND_WORDS) {
        c->argv[c->count++] = copy;
    } else {
        free(copy);
    }
}

void command_addf(struct command *c, const char *fmt, ...)
{
    char word[8192];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(word, sizeof(word), fmt, ap);
    va_end(ap);
    command_add(c, word);
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
    char self[512];

    process_own_path(self, sizeof(self));
    command_add(c, "/bin/sh");
    command_add(c, "-c");
    command_add(c, TASK_SCRIPT);
    command_add(c, self);
    command_add(c, order);
}

void command_add_supervisor_after(struct command *c, const char *before)
{
    char self[512];

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

/* Writes a word in quotes that all shells read alike. */
static void quote(const char *word, char *quoted, size_t cap)
{
    struct ps_str s;

    ps_str_init(&s, quoted, cap);
    ps_str_add(&s, "'");
    for (const char *p = word; *p != '\0'; p++) {
        ps_str_addf(&s, *p == '\'' ? "'\\'%c" : "%c", *p);
    }
    ps_str_add(&s, "'");
}

void command_add_script_text(struct command *c, const char *script,
                             const char *argument)
{
    char self[512];
    char quoted[4 * sizeof(self)];
    char last[4 * 256] = "";

    process_own_path(self, sizeof(self));
    quote(self, quoted, sizeof(quoted));
    if (argument != NULL) {
        quote(argument, last, sizeof(last));
    }
    command_addf(c, "exec sh -c '%s' %s%s%s", script, quoted,
                 argument != NULL ? " " : "", last);
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
    printf(" '");
    for (const char *p = word; *p != '\0'; p++) {
        if (*p == '\'') {
            fputs("'\\''", stdout);
        } else {
            putchar(*p);
        }
    }
    printf("'");
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
    *c = (struct command){.count = 0};
}
