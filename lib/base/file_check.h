/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a process: owner and permissions of those that it trusts, those that it
 * reads or writes as a whole, files in memory, and tokens in files. Another user that
 * can write the configuration of a daemon, or read its keys, controls the daemon, so
 * such files are refused. Access control lists count, because the group bits of a
 * mode are their mask. */
#pragma once

#include "base/err.h"
#include "base/limits.h"
#include "base/str.h"

#include <stdio.h>
#include <sys/types.h>

enum ps_file_kind {
    PS_FILE_TRUSTED, /* Written by no other user, such as a configuration. */
    PS_FILE_SECRET,  /* Also read by no other user, such as a private key. */
};

/* Checks the open file `fd`, named `path` in messages. The owner must be root or
 * the user of this process, and neither its group nor others may write it. A
 * secret file must not be readable for them either, except for the group of a
 * file of root's: that is how a daemon without privileges gets a key that it
 * cannot change. Pipes and devices pass: a process that opens one chose it.
 * PS_E_CONFIG adds a line to `report`: path, owner, mode, and the command that
 * corrects them. */
PS_MUST_USE int ps_file_check(int fd, const char *path, enum ps_file_kind kind,
                              struct ps_str *report);

/* Checks the folder of the file `path`, in which a process is about to make a
 * socket: users who can write in a folder without the sticky bit, and its owner
 * in any case, can replace the socket by their own. The owner must be root or
 * the user of this process. PS_E_CONFIG as above. A folder that cannot be
 * inspected passes; making the socket fails there with a reason. */
PS_MUST_USE int ps_file_check_folder(const char *path, struct ps_str *report);

/* Reads an open file to its end, up to `cap` bytes: from its beginning where that is
 * possible, so that several readers of one descriptor get the bytes. Returns their
 * number; -1: errno has the reason. */
ssize_t ps_file_read(int fd, void *out, size_t cap);

/* A new file in memory, which may be sealed and cannot be executed. Returns its
 * descriptor; -1, with errno. */
int ps_file_memory(const char *name);

/* Writes what is buffered and closes the file. Returns 0, or the errno value of
 * a failure of any write so far: a full disk may show only here. */
PS_MUST_USE int ps_file_close(FILE *f);

enum ps_file_life {
    PS_FILE_PASSING, /* May be lost with the system. */
    PS_FILE_DURABLE, /* On disk when the call returns, with its name. */
};

/* Replaces the file by one with these bytes and this mode: a reader sees either
 * the former or the new one, whole. Of two processes one at a time may call.
 * Returns 0 or an errno value; then the former file stays. */
PS_MUST_USE int ps_file_replace(const char *path, const void *bytes, size_t len,
                                mode_t mode, enum ps_file_life life);

/* Appends for whom the socket `path` is that this process may not use, and how a
 * user becomes one of them: "; it is for members of group pskv: ...". Appends
 * nothing if neither the socket nor its folder can be inspected. */
void ps_file_add_group(const char *path, struct ps_str *out);

/* The text of a token is where a user has put it: in a file or a descriptor, never
 * in arguments or variables, which other users may see. */

/* Reads the file `path` or, if that is NULL or "", the descriptor whose number
 * `fd` is as text; with neither, the result is "". A file that other users may
 * read is refused. The end of the line is left out. 0, or PS_E_INVAL or PS_E_IO
 * with the reason. */
int ps_token_text_read(const char *path, const char *fd,
                       char ret_text[PS_TOKEN_TEXT_MAX + 1],
                       struct ps_str *why);
