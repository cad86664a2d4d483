/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates of a cluster: `psctl pki` and `psctl enroll`. Functions that
 * return int return an exit code, after a message on standard error. */
#pragma once

#include "base/limits.h"
#include "base/str.h"
#include "base/time.h"
#include "crypto/enrolment.h"
#include "crypto/pki.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define PKI_DEFAULT_DIRECTORY "/etc/pskv/pki"
#define PKI_DEFAULT_OUTPUT    "/etc/pskv/tls"

/* Certificates in an index: more than a cluster has members. */
#define PKI_RECORDS_MAX       100000u
#define PKI_FILE_MAX          (64u << 20)
#define PKI_DAY               INT64_C(86400)
#define PKI_DAYS_MAX          36500u
/* Certificates may be used on hosts whose clocks are behind. */
#define PKI_CLOCK_MARGIN      INT64_C(300)
/* Every address, on the port behind those of the daemons. */
#define PKI_DEFAULT_PORT      9220u
#define PKI_DEFAULT_LISTEN    "[::]:9220"
#define PKI_DEFAULT_LISTEN_V4 "0.0.0.0:9220"

struct pki_options {
    const char *cluster;
    const char *directory; /* That of the authority. */
    const char *output;    /* That of a node; NULL: not given. */
    const char *hosts[PS_PKI_HOSTS_MAX];
    size_t host_count;
    const char *owner;  /* User to whom the files of a node belong; or NULL. */
    uint32_t days;      /* 0: not given. */
    const char *listen; /* Of serve; NULL: not given. */
    const char *server; /* Of enroll, as is `code`; NULL: not given. */
    const char *code;
    ps_time code_time; /* For which a new code is valid. */
    ps_time timeout;   /* Of enroll: limit on silence. */
    bool force;
    bool json;
    bool headings;
};

/* The verbs of `psctl pki`, and `psctl enroll`; `words` are the values behind the
 * verb. The umask is 077. */
int pki_init(const struct pki_options *o, char **words);
int pki_issue(const struct pki_options *o, char **words);
int pki_renew(const struct pki_options *o, char **words);
int pki_revoke(const struct pki_options *o, char **words);
int pki_code(const struct pki_options *o, char **words);
int pki_serve(const struct pki_options *o, char **words); /* Until a signal. */
/* EXIT_DEGRADED: a certificate ends soon. */
int pki_show(const struct pki_options *o, char **words);
int pki_enroll(const struct pki_options *o, char **words);

/* --------------------------------------------- pki_store.c: files of a folder */

struct pki_file {
    const char *name; /* In its folder; NULL ends a list. */
    const char *text;
    mode_t mode;
};

/* Owner of new files; -1 where unchanged. */
struct pki_owner {
    uid_t uid;
    gid_t gid;
};

/* Names the verb in messages that follow; a constant. */
void pki_set_verb(const char *verb);
void pki_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Reports a failed system call of a file; returns the exit code of errno. */
int pki_system_error(const char *what, const char *folder, const char *name);
/* Opens a folder, and makes it with mode 0700 if it does not exist. `create`
 * false: fails then. */
int pki_open_folder(const char *path, bool create,
                    const struct pki_owner *owner, int *ret_dir);
bool pki_file_exists(int dir, const char *name);
/* Reads a file. NULL in *ret_text, without an error: it does not exist. The
 * caller frees the text. */
int pki_read_file(int dir, const char *folder, const char *name,
                  char **ret_text);
/* Writes all files, of which each replaces a former one at once; a failure
 * before the first replaces none. */
int pki_write_files(int dir, const char *folder, const struct pki_file *files,
                    const struct pki_owner *owner);
int pki_find_owner(const char *user, struct pki_owner *ret_owner);

/* ------------------------------------------------- pki_store.c: an authority */

/* Certificate that the authority has issued. */
struct pki_record {
    struct ps_pki_serial serial;
    enum ps_role role;
    char name[PS_NAME_MAX + 1];
    struct ps_pki_period period;
    int64_t revoked_at; /* 0: valid. */
    bool is_replaced;   /* A later one has the same role and name. */
    char *hosts;        /* Separated by commas; "-": none. Owned. */
};

/* Folder of an authority, locked while it is open. */
struct pki_store {
    const char *path;
    int dir;
    struct ps_pki_authority authority; /* The key is NULL if not needed. */
    struct ps_pki_info info;
    char *certificate; /* PEM; owned. */
    struct pki_record *records;
    size_t count;
    size_t capacity;
    uint64_t crl_number;
};

/* Makes an authority in a folder. */
int pki_store_create(const struct pki_options *o, int64_t now);
/* Opens the folder, and waits for other runs to end. `signs` false: reads no
 * key. */
int pki_store_open(const char *path, bool signs, struct pki_store *ret_store);
void pki_store_close(struct pki_store *s);
/* Writes the index, and the list of revoked certificates. */
int pki_store_save(struct pki_store *s, int64_t now);
/* Newest record of this role and name; NULL: none. */
struct pki_record *pki_store_find(const struct pki_store *s, enum ps_role role,
                                  const char *name);
/* Certificate for a node, with what belongs to it, as PEM. */
struct pki_grant {
    struct ps_pki_info info;
    char certificate[PS_PKI_PEM_BYTES];
    char *authority; /* Owned, as is the next. */
    char *crl;
};

/* Issues a certificate and records it on disk. Returns an exit code; the grant is
 * zeroed at first, and to be released in any case. */
int pki_store_issue(struct pki_store *s, const struct ps_pki_request *q,
                    EVP_PKEY *key, int64_t now, struct pki_grant *grant);
void pki_grant_fini(struct pki_grant *g);
int64_t pki_now(void);
/* Validity of a certificate that is issued now; `days` 0: not given. */
struct ps_pki_period pki_validity(uint32_t days, int64_t now);

/* Names of the hosts of a certificate, as a record has them. */
struct pki_hosts {
    const char *list[PS_PKI_HOSTS_MAX];
    size_t count;
    char *text; /* Owned. */
};
/* Adds the names with commas; "-": none. */
void pki_hosts_join(struct ps_str *s, const char *const *hosts, size_t count);
void pki_hosts_split(const char *joined, struct pki_hosts *ret_hosts);
void pki_hosts_fini(struct pki_hosts *h);

/* ------------------------------------------------------------- pki_enroll.c */

/* Files of a member, as PEM; borrowed. */
struct pki_node {
    enum ps_role role;
    const char *authority;
    const char *certificate;
    const char *key;
    const char *crl;
};

/* Opens the folder for a node's files, which it makes if needed. Fails if it has
 * files of this role or of another authority (NULL: any), unless `force`. */
int pki_node_open(const struct pki_options *o, enum ps_role role,
                  const char *authority, bool force, int *ret_dir);
/* Writes ca.crt, crl.pem, ROLE.crt and ROLE.key. */
int pki_node_write(const struct pki_options *o, int dir,
                   const struct pki_node *node);
/* Prints what a node has received. */
void pki_node_print(const struct ps_pki_info *info, const char *folder);
/* Folder for a node's files. */
const char *pki_node_folder(const struct pki_options *o);

/* -------------------------------------------------------------- pki_serve.c */

/* Makes a one-time code for a member, and prints it. */
int pki_code_issue(struct pki_store *s, const struct pki_options *o,
                   const struct ps_identity *id);
/* Makes the codes of a name void; *ret_count is their number. */
int pki_code_drop(const struct pki_store *s, const char *name,
                  size_t *ret_count);
