/* SPDX-License-Identifier: Apache-2.0 */
#include "common/explain.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define CODE_PREFIX  "PSKV-"
#define ERROR_PREFIX "PSC_E_"
#define NAME_PREFIX  "PS_E_"

/* Finds the code of this prefix and name. */
static const struct ps_explanation *find_name(const char *prefix,
                                              const char *name)
{
    const size_t len = strlen(prefix);

    for (size_t i = 0; i < ps_explanation_count; i++) {
        const char *code = ps_explanations[i].code;

        if (name[0] != '\0' && strncmp(code, prefix, len) == 0 &&
            strcasecmp(code + len, name) == 0) {
            return &ps_explanations[i];
        }
    }
    return NULL;
}

/* Finds the number behind a prefix, however many zeros it has. */
static const struct ps_explanation *find_number(long number)
{
    for (size_t i = 0; i < ps_explanation_count; i++) {
        const char *code = ps_explanations[i].code;

        if (strncmp(code, CODE_PREFIX, strlen(CODE_PREFIX)) == 0 &&
            strtol(code + strlen(CODE_PREFIX), NULL, 10) == number) {
            return &ps_explanations[i];
        }
    }
    return NULL;
}

const struct ps_explanation *ps_explain_code(const char *code)
{
    const struct ps_explanation *found;
    char *end;
    long number;

    if (strncasecmp(code, CODE_PREFIX, strlen(CODE_PREFIX)) == 0) {
        number = strtol(code + strlen(CODE_PREFIX), &end, 10);
        return *end == '\0' ? find_number(number) : NULL;
    }
    number = strtol(code, &end, 10);
    if (end != code && *end == '\0') {
        const char *name = ps_err_name((int)(number > 0 ? -number : number));

        return strncmp(name, NAME_PREFIX, strlen(NAME_PREFIX)) == 0
                   ? find_name(ERROR_PREFIX, name + strlen(NAME_PREFIX))
                   : NULL;
    }
    if (strncasecmp(code, NAME_PREFIX, strlen(NAME_PREFIX)) == 0) {
        code += strlen(NAME_PREFIX);
    }
    found = find_name("", code);
    return found != NULL ? found : find_name(ERROR_PREFIX, code);
}

size_t ps_explanation_fit(const struct ps_explanation *e, const char *line)
{
    const char *part = e->text;
    size_t fit = 0;

    while (*part != '\0') {
        const char *dots = strstr(part, "...");
        size_t len = dots != NULL ? (size_t)(dots - part) : strlen(part);
        const char *at = len > 0 ? memmem(line, strlen(line), part, len) : line;

        if (at == NULL) {
            return 0;
        }
        line = at + len;
        fit += len;
        part += len + (dots != NULL ? strlen("...") : 0);
    }
    return fit;
}

const struct ps_explanation *ps_explain_line(const char *line)
{
    const struct ps_explanation *best = NULL;
    size_t most = PS_EXPLANATION_FIT_MIN - 1;

    for (size_t i = 0; i < ps_explanation_count; i++) {
        size_t fit = ps_explanation_fit(&ps_explanations[i], line);

        if (fit > most) {
            best = &ps_explanations[i];
            most = fit;
        }
    }
    return best;
}
