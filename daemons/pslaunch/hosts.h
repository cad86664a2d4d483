/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts, as users of other launchers write them, and which host runs which
 * servers and workers of a job. A node is a host, or one of several simulated on
 * this host, that runs workers; it has one agent. */
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
/* Makes a list of `count` hosts PREFIXn, with numbers from `first` on. */
void hosts_make(struct host_list *ret_list, const char *prefix, uint32_t first,
                uint32_t count);
void hosts_free(struct host_list *l);

struct rank_place {
    uint32_t node;
    uint32_t local_rank; /* Among the ranks of the node. */
};

struct node_place {
    uint32_t host; /* Index in the list of hosts; 0 without a list. */
    uint32_t local_size;
};

struct layout {
    struct rank_place *ranks;
    struct node_place *nodes;
    uint32_t *server_hosts;
    uint32_t node_count;
};

/* Numbers of processes; none of nodes and workers is 0. */
struct layout_counts {
    uint32_t workers;
    uint32_t servers;
    uint32_t nodes; /* Simulated ones, without a list of hosts. */
};

/* Spreads workers over nodes of this host, in blocks of consecutive ranks. */
void layout_local(const struct layout_counts *n, struct layout *ret_layout);
/* The rule of launch.py: servers first, then workers, each on the next host of
 * the list, which begins again at its end. A host whose slots are taken gets no
 * further worker. Returns 0, or -1 with a sentence in `error`, which has
 * HOSTS_TEXT_MAX bytes. */
int layout_hosts(const struct layout_counts *n, const struct host_list *hosts,
                 struct layout *ret_layout, char *error);
void layout_free(struct layout *l);
