/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the text of a token where a user has put it: in a file or a descriptor,
 * never in arguments or variables, which other users may see. */
#pragma once

#include "base/limits.h"
#include "base/str.h"

/* Reads the file `path` or, if that is NULL or "", the descriptor whose number
 * `fd` is as text; with neither, the result is "". A file that other users may
 * read is refused. The end of the line is left out. 0, or PS_E_INVAL or PS_E_IO
 * with the reason. */
int ps_token_text_read(const char *path, const char *fd,
                       char ret_text[PS_TOKEN_TEXT_MAX + 1],
                       struct ps_str *why);
