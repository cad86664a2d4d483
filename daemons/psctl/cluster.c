/* SPDX-License-Identifier: Apache-2.0 */
#include "psctl/cluster.h"

#include "psctl/psctl.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Address by variables; NULL: they have none. */
static const char *endpoint_of_variables(struct cluster *c)
{
    const char *own = getenv("PSKV_SCHED");
    const char *host = getenv("DMLC_PS_ROOT_URI");
    const char *port = getenv("DMLC_PS_ROOT_PORT");

    if (own != NULL && own[0] != '\0') {
        return own;
    }
    if (host != NULL && host[0] != '\0') {
        bool v6 = strchr(host, ':') != NULL && host[0] != '[';

        snprintf(c->endpoint_buffer, sizeof(c->endpoint_buffer),
                 v6 ? "[%s]:%s" : "%s:%s", host,
                 port != NULL && port[0] != '\0' ? port : "9091");
        return c->endpoint_buffer;
    }
    return NULL;
}

/* Reads the token that the option, a variable or the context names; `by_name`:
 * the user names the context, and variables do not count. */
static bool read_token(struct cluster *c, bool by_name)
{
    const char *file = c->token_file;
    const char *fd = NULL;
    char text[PS_TEXT_MAX + 1];
    struct ps_str why;

    if (file == NULL && !by_name) {
        file = getenv("PSKV_TOKEN_FILE");
        fd = getenv("PSKV_TOKEN_FD");
    }
    if ((file == NULL || file[0] == '\0') && (fd == NULL || fd[0] == '\0') &&
        c->token_file == NULL) {
        file = c->context.token;
    }
    ps_str_init(&why, text, sizeof(text));
    if (ps_token_text_read(file, fd, c->token, &why) != 0) {
        fprintf(stderr, "psctl: %s\n", text);
        return false;
    }
    return true;
}

int cluster_choose(struct cluster *c)
{
    const bool by_name = c->context_name != NULL;
    int rc = 0;

    if (c->endpoint == NULL && !by_name) {
        c->endpoint = endpoint_of_variables(c);
    }
    if (c->endpoint == NULL || by_name) {
        rc = context_get(c->context_name, &c->context);
    }
    if (rc != 0) {
        return rc;
    }
    if (c->endpoint == NULL && c->context.endpoint[0] != '\0') {
        c->endpoint = c->context.endpoint;
    }
    if (c->endpoint == NULL) {
        c->endpoint = wire_default_endpoint();
    }
    if (c->tls == NULL && !by_name) {
        c->tls = getenv("PSKV_TLS");
    }
    if (c->tls == NULL && c->context.tls[0] != '\0') {
        c->tls = c->context.tls;
    }
    return read_token(c, by_name) ? 0 : EXIT_USAGE;
}

struct wire_target cluster_target(const struct cluster *c, ps_time silence)
{
    return (struct wire_target){.endpoint = c->endpoint,
                                .token = c->token,
                                .tls = c->tls,
                                .silence = silence,
                                .insecure = c->insecure};
}
