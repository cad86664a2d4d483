/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/definition.h"

#include <ctype.h>
#include <string.h>

void definition_name(const char *job, char ret_name[DEFINITION_NAME_MAX])
{
    size_t len = 0;

    /* A name begins with a letter, and ends with no '-'. */
    if (!isalpha((unsigned char)job[0])) {
        ret_name[len++] = 'j';
    }
    for (const char *p = job; *p != '\0' && len < DEFINITION_NAME_MAX - 1;
         p++) {
        const unsigned char c = (unsigned char)*p;

        ret_name[len++] = (char)(c < 128 && isalnum(c) ? tolower(c) : '-');
    }
    while (len > 1 && ret_name[len - 1] == '-') {
        len--;
    }
    ret_name[len] = '\0';
}

void definition_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (const char *p = text; *p != '\0'; p++) {
        const unsigned char c = (unsigned char)*p;

        if (c == '"' || c == '\\') {
            fprintf(out, "\\%c", c);
        } else if (c < 32 || c == 127) {
            fprintf(out, "\\u%04x", c);
        } else {
            fputc(c, out);
        }
    }
    fputc('"', out);
}
