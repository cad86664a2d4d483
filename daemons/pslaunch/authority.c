/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/authority.h"

#include "base/file_check.h"
#include "crypto/pki.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- authority */

#define DAY           INT64_C(86400)

/* Clocks of hosts may differ by this. */
#define VALID_BEFORE  DAY
/* Longer than any job, because daemons of a job get no second certificate. A
 * short time would add nothing: only daemons of the job accept the authority,
 * and keys end with their daemons. */
#define VALID_AFTER   (365 * DAY)

#define OTHER_CLUSTER "pslaunch"

struct authority {
    struct ps_pki_authority pki;
    struct ps_pki_period period;
    const char *cluster; /* Borrowed from the plan. */
    uint32_t left;       /* Certificates to issue. */
};

const char *authority_cluster(const char *job)
{
    return ps_str_is_name(job, PS_NAME_MAX) ? job : OTHER_CLUSTER;
}

int authority_new(const char *job, uint32_t count,
                  struct authority **ret_authority, struct ps_str *why)
{
    const int64_t now = (int64_t)time(NULL);
    struct authority *a = calloc(1, sizeof(*a));
    int rc;

    if (a == NULL) {
        abort();
    }
    a->cluster = authority_cluster(job);
    a->left = count;
    a->period = (struct ps_pki_period){.not_before = now - VALID_BEFORE,
                                       .not_after = now + VALID_AFTER};
    rc = ps_pki_authority_new(a->cluster, &a->period, &a->pki, why);
    if (rc != 0) {
        free(a);
        return rc;
    }
    *ret_authority = a;
    return 0;
}

void authority_free(struct authority *a)
{
    if (a != NULL) {
        ps_pki_authority_fini(&a->pki);
        free(a);
    }
}

int authority_issue(struct authority *a, enum ps_role role, const char *node,
                    EVP_PKEY *key, struct ps_str *pem, struct ps_str *why)
{
    struct ps_identity id = {.role = role};
    X509 *certificate = NULL;
    int rc;

    if (a->left == 0) {
        ps_str_add(why, "all certificates of the job are issued");
        return PS_E_PERM;
    }
    ps_str_copy(id.cluster, sizeof(id.cluster), a->cluster);
    ps_str_copy(id.name, sizeof(id.name), node);
    rc = ps_pki_issue(
        &a->pki, &(struct ps_pki_request){.identity = &id, .period = a->period},
        key, &certificate, why);
    if (rc != 0) {
        return rc;
    }
    ps_pki_add_certificate(pem, certificate);
    ps_pki_add_certificate(pem, a->pki.certificate);
    ps_pki_certificate_free(certificate);
    if (--a->left == 0) {
        ps_pki_authority_fini(&a->pki);
    }
    return 0;
}

/* --------------------------------------------------------------- credential */

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* Returns 0 or a negative errno value. */
static int write_text(int fd, const char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        ssize_t n = write(fd, text, left);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? -errno : -EIO;
        }
        text += n;
        left -= (size_t)n;
    }
    return 0;
}

/* Returns 0 or a negative errno value. */
static int write_key(int fd, const EVP_PKEY *key)
{
    char text[PS_PKI_PEM_BYTES];
    struct ps_str pem;
    int rc;

    ps_str_init(&pem, text, sizeof(text));
    ps_pki_add_key(&pem, key);
    rc = pem.truncated ? -EIO : write_text(fd, text);
    OPENSSL_cleanse(text, sizeof(text));
    return rc;
}

int credential_open(const EVP_PKEY *key, const char *certificates)
{
    int fd = ps_file_memory("pskv-certificate");
    int rc;

    if (fd < 0) {
        return -errno;
    }
    rc = write_key(fd, key);
    if (rc == 0) {
        rc = write_text(fd, certificates);
    }
    if (rc == 0 &&
        (fcntl(fd, F_ADD_SEALS, SEALS) != 0 || lseek(fd, 0, SEEK_SET) != 0)) {
        rc = -errno;
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    return fd;
}
