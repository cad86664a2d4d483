/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/port.h"

#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

void port_reserve(char text[PORT_TEXT_MAX])
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;

    text[0] = '\0';
    if (fd < 0) {
        return;
    }
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) != 0) {
        close(fd);
        return;
    }
    snprintf(text, PORT_TEXT_MAX, "%u", ntohs(at.sin_port));
}
