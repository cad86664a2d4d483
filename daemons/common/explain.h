/* SPDX-License-Identifier: Apache-2.0 */
/* Explanations of errors and lines of logs. docs/explain.py makes the table
 * from docs/troubleshooting.md and the list of codes beside it. */
#pragma once

#include <stddef.h>

struct ps_explanation {
    const char *code;    /* "PSKV-0042", "PSC_E_NOMEM"; "": it has none. */
    const char *text;    /* "..." stands for names and numbers. */
    const char *section; /* Of the page. */
    const char *cause;
    const char *remedy; /* "": the cause says it. */
};
extern const struct ps_explanation ps_explanations[];
extern const size_t ps_explanation_count;

/* Explanation with this code: "PSKV-0042", "pskv-42", "PSC_E_NOMEM", "NOMEM" or
 * its number, "2" or "-2". NULL: none. */
const struct ps_explanation *ps_explain_code(const char *code);
/* Number of letters of `line` that belong to the text of the explanation; 0:
 * its parts are not all in the line, in their order. */
size_t ps_explanation_fit(const struct ps_explanation *e, const char *line);
/* Fits with fewer letters are by chance. */
#define PS_EXPLANATION_FIT_MIN 6u
/* The explanation that fits a line best; NULL: none does. */
const struct ps_explanation *ps_explain_line(const char *line);
