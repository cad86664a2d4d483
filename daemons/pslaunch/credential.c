/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/credential.h"

#include "crypto/pki.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <openssl/crypto.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define NAME  "pskv-certificate"
#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static int open_memory(void)
{
    int fd = memfd_create(NAME,
                          MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    /* Linux before 6.3 does not know MFD_NOEXEC_SEAL. */
    return fd < 0 && errno == EINVAL
               ? memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING)
               : fd;
}

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
    int fd = open_memory();
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
