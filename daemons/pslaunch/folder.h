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
/* Makes a name for the socket of psched in the folder, $XDG_RUNTIME_DIR/pskv/jobs/
 * JOB, by which psctl finds the job. Without $XDG_RUNTIME_DIR it has none. */
void folder_publish(const char *job);
/* "": there is none. */
const char *folder_path(void);
/* Removes the folder with its files, and the name of folder_publish(). */
void folder_remove(void);
