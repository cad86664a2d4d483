/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts, as users of other launchers write them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HOSTS_MAX         1024u
#define HOST_SLOTS_MAX    4096u
/* Longest name of a host, with the user in front of it. */
#define HOST_NAME_MAX_LEN 255u
/* Enough for each error text. */
#define HOSTS_TEXT_MAX    640u

struct host {
    char *name; /* As ssh takes it: "n01", "anna@n01", "10.0.0.1". */
    /* Address at which the other hosts reach it; NULL: ask its supervisor. */
    char *address;
    uint32_t slots; /* Most workers there; 0: no limit. */
    uint16_t port;  /* Of sshd; 0: that of ssh's configuration. */
    uint32_t line;  /* In the file; 0: no file. */
};

struct host_list {
    struct host *hosts;
    uint32_t count;
};

/* Parses "h1:4,h2:4" or "n[01-04,07]:8", where the number is that of slots; an
 * IPv6 address is in brackets. Returns 0, or -1 with a sentence in `error`,
 * which has HOSTS_TEXT_MAX bytes. hosts_free() is needed in both cases. */
int hosts_parse(const char *text, struct host_list *ret_list, char *error);
/* Parses a file with one host a line: "NAME", "NAME:PORT" of launch.py, and
 * behind it "slots=N", "port=N" and "address=A"; a '#' begins a comment. */
int hosts_read(const char *path, struct host_list *ret_list, char *error);
void hosts_free(struct host_list *l);
