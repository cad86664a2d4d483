/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams to the socket that NOTIFY_SOCKET names. */
#include "common/notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct {
    int fd;
    struct sockaddr_un to;
    socklen_t to_len;
    ps_time watchdog;
} notify_state = {.fd = -1, .watchdog = PS_TIME_NEVER};

static void init_watchdog(void)
{
    const char *usec = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    unsigned long long n;

    if (usec == NULL ||
        (pid != NULL && strtol(pid, NULL, 10) != (long)getpid())) {
        return;
    }
    n = strtoull(usec, NULL, 10);
    if (n > 0 && n < UINT64_MAX / 1000) {
        notify_state.watchdog = PS_MICROS(n) / 2;
    }
}

void ps_notify_init(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path == NULL ? 0 : strlen(path);

    if (len > 1 && len < sizeof(notify_state.to.sun_path) &&
        (path[0] == '/' || path[0] == '@')) {
        notify_state.to.sun_family = AF_UNIX;
        memcpy(notify_state.to.sun_path, path, len);
        if (path[0] == '@') { /* Abstract socket name. */
            notify_state.to.sun_path[0] = '\0';
        }
        notify_state.to_len =
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
        notify_state.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        init_watchdog();
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void ps_notify(const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (notify_state.fd < 0) {
        return;
    }
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);

    va_end(ap);
    if (n > 0 && (size_t)n < sizeof(text)) {
        (void)sendto(notify_state.fd, text, (size_t)n,
                     MSG_NOSIGNAL | MSG_DONTWAIT,
                     (struct sockaddr *)&notify_state.to, notify_state.to_len);
    }
}

ps_time ps_notify_watchdog(void)
{
    return notify_state.watchdog;
}
