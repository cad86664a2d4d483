/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary folder of a job on this host, for the sockets of its daemons, or for
 * files that other hosts read. The
 * first process of pslaunch makes it; whichever process ends the job removes
 * it. */
#pragma once

#include <stdbool.h>

/* Makes the folder under $TMPDIR, or in the present folder. False after a
 * message. */
bool folder_make(void);
bool folder_make_here(void);
/* "": there is none. */
const char *folder_path(void);
/* Removes the folder with its files. */
void folder_remove(void);
