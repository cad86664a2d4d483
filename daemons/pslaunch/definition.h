/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of definitions that pslaunch prints for other systems, in JSON or in
 * YAML, of which JSON's strings are a part. */
#pragma once

#include <stdio.h>

/* A name with its terminator; the number of a host goes behind it. */
#define DEFINITION_NAME_MAX 54

/* Name of a job as DNS has names: small letters, digits and '-'. */
void definition_name(const char *job, char ret_name[DEFINITION_NAME_MAX]);
/* Prints a text as a string in quotes. */
void definition_text(FILE *out, const char *text);
