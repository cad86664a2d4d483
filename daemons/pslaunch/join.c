/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/join.h"

#include "base/file_check.h"
#include "base/limits.h"
#include "base/str.h"
#include "pslaunch/listener.h"
#include "pslaunch/plan.h"
#include "pslaunch/secret.h"
#include "pslaunch/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

/* Limits on the connection to pslaunch, and on its handshake. */
#define CONNECT_SECONDS 6

/* --------------------------------------------------------------- connection */

static int connect_to(const char *address, uint16_t port, struct ps_str *why)
{
    const struct timeval limit = {.tv_sec = CONNECT_SECONDS};
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char text[8];
    int fd = -1;
    int rc;

    snprintf(text, sizeof(text), "%u", port);
    rc = getaddrinfo(address, text, &hints, &list);
    if (rc != 0) {
        ps_str_addf(why, "pslaunch at %s: %s", address, gai_strerror(rc));
        return -1;
    }
    for (const struct addrinfo *a = list; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            rc = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        ps_str_addf(why,
                    "pslaunch at %s port %u is not reached: %s; it states "
                    "another address by PSKV_HOST_ADDRESS",
                    address, port,
                    strerror(rc == EINPROGRESS ? ETIMEDOUT : rc));
    }
    return fd;
}

/* Connects the supervisor that this process or its child will be, by the key of
 * its host. False after the reason is appended to `why`. */
static bool join_pslaunch(const char *address, uint16_t port, uint32_t place,
                          const uint8_t *secret, struct ps_str *why)
{
    int fd = connect_to(address, port, why);
    SSL *tls;

    if (fd < 0) {
        return false;
    }
    tls = secret_connect(fd, place, secret, why);
    if (tls == NULL) {
        close(fd);
        return false;
    }
    secret_watch(fd);
    supervisor_connect(fd, tls);
    return true;
}

/* -------------------------------------------------------------------- tasks */

bool join_write_order(const char *path, const char *address,
                      const struct listener *l, uint32_t count)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;

    if (f == NULL) {
        return false;
    }
    fprintf(f, "%s %u\n", address, listener_port(l));
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *secret = listener_secret(l, i);

        for (uint32_t k = 0; k < PS_LAUNCH_SECRET_BYTES; k++) {
            fprintf(f, "%02x", secret[k]);
        }
        fputc('\n', f);
    }
    errno = ps_file_close(f);
    return errno == 0;
}

static FILE *open_order(const char *path, struct ps_str *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;

    if (fd < 0) {
        ps_str_addf(why,
                    "%s: %s; the job has ended, or this host has not the "
                    "folder of pslaunch",
                    path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &st) != 0 || st.st_uid != geteuid() ||
        (st.st_mode & 077) != 0) {
        ps_str_addf(why, "%s is not a file of this user alone", path);
        close(fd);
        return NULL;
    }
    return fdopen(fd, "r");
}

static bool parse_secret(const char *hex, uint8_t *secret)
{
    for (uint32_t i = 0; i < PS_LAUNCH_SECRET_BYTES; i++) {
        unsigned byte;

        if (sscanf(hex + 2 * (size_t)i, "%2x", &byte) != 1) {
            return false;
        }
        secret[i] = (uint8_t)byte;
    }
    return true;
}

/* Reads the line of the task, from 1 on. */
static bool read_order(FILE *f, uint32_t task, char address[256],
                       unsigned *ret_port, uint8_t *secret)
{
    char line[512];
    bool ok = fgets(line, sizeof(line), f) != NULL &&
              sscanf(line, "%255s %u", address, ret_port) == 2 &&
              *ret_port > 0 && *ret_port <= UINT16_MAX;

    for (uint32_t i = 0; ok && i < task; i++) {
        ok = fgets(line, sizeof(line), f) != NULL;
    }
    ok = ok && strlen(line) >= 2 * (size_t)PS_LAUNCH_SECRET_BYTES &&
         parse_secret(line, secret);
    OPENSSL_cleanse(line, sizeof(line));
    return ok;
}

static bool join_task(const char *path, struct ps_str *why)
{
    const char *number = getenv("SGE_TASK_ID");
    unsigned long task = number != NULL ? strtoul(number, NULL, 10) : 0;
    uint8_t secret[PS_LAUNCH_SECRET_BYTES];
    char address[256];
    unsigned port;
    FILE *f = open_order(path, why);
    bool ok;

    if (f == NULL) {
        return false;
    }
    setvbuf(f, NULL, _IONBF, 0); /* No copy of keys stays behind. */
    ok = task > 0 && task <= UINT32_MAX &&
         read_order(f, (uint32_t)task, address, &port, secret);
    fclose(f);
    if (!ok) {
        ps_str_addf(why, "%s has no line for task %lu", path, task);
        return false;
    }
    ok = join_pslaunch(address, (uint16_t)port, (uint32_t)task - 1, secret,
                       why);
    OPENSSL_cleanse(secret, sizeof(secret));
    return ok;
}

int join_main(const char *path, int (*run)(const struct plan *none))
{
    char text[PS_TEXT_MAX];
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    if (!join_task(path, &why)) {
        fprintf(stderr, "pslaunch: %s\n", text);
        return EXIT_UNAVAILABLE;
    }
    return run(NULL);
}
