/* SPDX-License-Identifier: Apache-2.0 */
/* Child processes that cannot outlive this one; the temporary folder of a job on
 * this host, for the sockets of its daemons, or for files that other hosts read;
 * ports for processes that are started later. The first process of pslaunch makes
 * the folder; whichever process ends the job removes it. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct spawn {
    char *const *argv;
    char **env; /* NULL: pslaunch's own. */
    /* Finds argv[0] among the programs of pskv, and puts --ready-fd and a pipe
     * behind it. */
    bool is_daemon;
    bool has_input; /* A pipe; else its standard input is empty. */
    /* Of a daemon: descriptor of its key and certificate, which it gets as
     * security.tls.fd; the caller's. 0: none. */
    int credential;
};

/* A process, and this side of its pipes, which do not block; -1: none. The caller
 * owns these. */
struct process {
    pid_t pid;
    int in;
    int out;
    int err;
    int ready; /* Gives a newline when the daemon is ready. */
};

uint64_t now_ms(void);

/* Starts a process in a session of its own that dies with its parent. Returns
 * 0, or an errno value. */
int process_start(const struct spawn *s, struct process *ret_process);
/* Signals a process that process_start() has started, and its group. */
void process_signal_group(pid_t pid, int sig);
/* Signals all descendants of this process, found by walking /proc, orphans
 * included. Returns the number of processes signalled. */
size_t process_signal_all(int sig);
/* Kills all descendants; returns when there is none. */
void process_kill_all(void);
/* Makes this process the parent of orphaned descendants. */
void process_become_subreaper(void);
/* Processes of this host that the kernel has killed for lack of memory, of the
 * host or of a control group, since its start. 0: unknown. */
uint64_t process_oom_kills(void);
/* True if a process with this status (of waitpid()) was killed, itself or as the
 * child of a shell, and the kernel has killed one more for lack of memory than
 * *seen, which is counted there. */
bool process_lacked_memory(int status, uint64_t *seen);
/* Blocks SIGCHLD and the signals that end a run; they are in the set then. */
void process_block_signals(sigset_t *ret_set);
/* Blocks the same signals, and ignores SIGPIPE. Returns a signalfd of the
 * blocked ones, which the caller owns, or -1 with errno. */
int process_open_signals(void);
/* Path of this program. */
void process_own_path(char *path, size_t cap);

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

/* Bytes of the largest port number as text. */
#define PORT_TEXT_MAX 8

/* Writes a port that no other process is given by chance; a process that sets
 * SO_REUSEADDR may listen there, because the socket that keeps the port does
 * not. It stays open as long as this process. "": there is none. */
void port_reserve(char text[PORT_TEXT_MAX]);
