/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/identity.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const char scheme[] = "ps://";

/* Roles that certificates name, and their part of the URI. */
static const struct {
    enum ps_role role;
    const char *text;
} roles[] = {
    {PS_ROLE_SCHED, "sched"},
    {PS_ROLE_SERVER, "server"},
    {PS_ROLE_AGENT, "agent"},
    {PS_ROLE_CTL, "ctl"},
};

static const char *role_text(enum ps_role role)
{
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (roles[i].role == role) {
            return roles[i].text;
        }
    }
    return NULL;
}

bool ps_identity_read_role(const char *text, enum ps_role *ret_role)
{
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        if (strcmp(roles[i].text, text) == 0) {
            *ret_role = roles[i].role;
            return true;
        }
    }
    return false;
}

static bool is_unreserved(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || (c != '\0' && strchr("._~-", c) != NULL);
}

bool ps_identity_is_valid(const struct ps_identity *identity)
{
    return role_text(identity->role) != NULL &&
           ps_str_is_name(identity->cluster, PS_NAME_MAX) &&
           ps_str_is_name(identity->name, PS_NAME_MAX);
}

static void add_encoded(struct ps_str *s, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        if (is_unreserved(*p)) {
            ps_str_addf(s, "%c", *p);
        } else {
            ps_str_addf(s, "%%%02X", (unsigned)(uint8_t)*p);
        }
    }
}

void ps_identity_add_uri(struct ps_str *s, const struct ps_identity *identity)
{
    ps_str_add(s, scheme);
    add_encoded(s, identity->cluster);
    ps_str_addf(s, "/%s/", role_text(identity->role));
    add_encoded(s, identity->name);
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *at = c == '\0' ? NULL : strchr(digits, c);

    return at == NULL ? -1 : (int)(at - digits);
}

/* Decodes up to `end`, '/' or '\0', into an array of PS_NAME_MAX + 1 bytes.
 * Returns the end, or NULL if the text is malformed or too long. */
static const char *decode(const char *uri, char end, char *ret_name)
{
    size_t len = 0;

    while (*uri != end) {
        char c = *uri++;

        if (c == '%') {
            int high = hex_digit(uri[0]);
            int low = high < 0 ? -1 : hex_digit(uri[1]);

            if (low < 0) {
                return NULL;
            }
            c = (char)(high * 16 + low);
            uri += 2;
            if (is_unreserved(c)) {
                return NULL; /* A second form of the same name. */
            }
        } else if (!is_unreserved(c)) {
            return NULL;
        }
        if (c == '\0' || len == PS_NAME_MAX) {
            return NULL;
        }
        ret_name[len++] = c;
    }
    ret_name[len] = '\0';
    return uri;
}

bool ps_identity_from_uri(const char *uri, struct ps_identity *ret_identity)
{
    struct ps_identity id = {0};
    const char *at = uri;

    if (strncmp(at, scheme, sizeof(scheme) - 1) != 0) {
        return false;
    }
    at = decode(at + sizeof(scheme) - 1, '/', id.cluster);
    if (at == NULL) {
        return false;
    }
    at++;
    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
        size_t len = strlen(roles[i].text);

        if (strncmp(at, roles[i].text, len) == 0 && at[len] == '/') {
            id.role = roles[i].role;
            at += len + 1;
            break;
        }
    }
    if (decode(at, '\0', id.name) == NULL || !ps_identity_is_valid(&id)) {
        return false;
    }
    *ret_identity = id;
    return true;
}
