/* SPDX-License-Identifier: Apache-2.0 */
/* Completion of psctl's words in a shell. The script of a shell calls
 *
 *     psctl __complete WORD...
 *
 * with all words behind "psctl" up to the one to be completed, which comes last
 * and may be empty. It prints one candidate a line, with a tab and its help
 * behind it, or ":files" or ":folders" for names of those. Verbs and options are
 * those of psctl/help.h, names of jobs and servers those that the scheduler has
 * at that time. */
#pragma once

#include <stdbool.h>

/* Prints the candidates for the last of the words. Returns an exit code. */
int completion_run(int argc, char **argv);
/* Prints the script of a shell. False: there is none for it. */
bool completion_print_script(const char *shell);
