/* SPDX-License-Identifier: Apache-2.0 */
#include "common/users.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

bool ps_user_find(const char *text, uint32_t *ret_uid)
{
    const struct passwd *user = getpwnam(text);
    unsigned long uid;
    char *end;

    if (user != NULL) {
        *ret_uid = user->pw_uid;
        return true;
    }
    errno = 0;
    uid = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
        uid >= UINT32_MAX) {
        return false;
    }
    *ret_uid = (uint32_t)uid;
    return true;
}

uint32_t ps_users_find(const struct ps_option_list *names, uint32_t *uids,
                       uint32_t max)
{
    uint32_t count = 0;

    for (size_t i = 0; i < names->count && count < max; i++) {
        count += ps_user_find(names->items[i], &uids[count]);
    }
    return count;
}

bool ps_users_check(const struct ps_option_list *names, const char *option,
                    const struct ps_options *o, struct ps_str *report)
{
    for (size_t i = 0; i < names->count; i++) {
        uint32_t uid;

        if (!ps_user_find(names->items[i], &uid)) {
            ps_options_where(o, option, report);
            ps_str_addf(report, ": %s: this host has no user '", option);
            ps_str_add_escaped(report, names->items[i], strlen(names->items[i]),
                               64);
            ps_str_add(report, "'\n");
            return false;
        }
    }
    return true;
}
