/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/user.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"

/* Gives up capabilities, which stay when one user becomes another one and none
 * of them is root. */
static bool drop_capabilities(void)
{
    struct __user_cap_header_struct head = {
        .version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &head, none) == 0;
}

static bool change_ids(const struct passwd *user)
{
    if (getuid() == user->pw_uid && geteuid() == user->pw_uid) {
        return true;
    }
    return initgroups(user->pw_name, user->pw_gid) == 0 &&
           setresgid(user->pw_gid, user->pw_gid, user->pw_gid) == 0 &&
           setresuid(user->pw_uid, user->pw_uid, user->pw_uid) == 0;
}

/* True if no way leads back. */
static bool is_only(uint32_t uid)
{
    uid_t real;
    uid_t effective;
    uid_t saved;

    return getresuid(&real, &effective, &saved) == 0 && real == uid &&
           effective == uid && saved == uid && setuid(0) != 0;
}

static void set_environment(const struct passwd *user)
{
    (void)clearenv();
    setenv("PATH", DEFAULT_PATH, 1);
    setenv("HOME", user->pw_dir, 1);
    setenv("USER", user->pw_name, 1);
    setenv("LOGNAME", user->pw_name, 1);
    setenv("SHELL", user->pw_shell[0] != '\0' ? user->pw_shell : "/bin/sh", 1);
}

bool user_become(uint32_t uid, struct ps_str *why)
{
    const struct passwd *user = getpwuid(uid);

    if (uid == 0) {
        ps_str_add(why, "processes of root are not started");
        return false;
    }
    if (user == NULL) {
        ps_str_addf(why, "the host has no user %u", uid);
        return false;
    }
    if (!change_ids(user) || !drop_capabilities()) {
        ps_str_addf(why, "cannot become user %u: %s", uid, strerror(errno));
        return false;
    }
    if (!is_only(uid)) {
        ps_str_addf(why, "cannot become user %u for ever", uid);
        return false;
    }
    set_environment(user);
    (void)umask(022);
    if (chdir(user->pw_dir) != 0 && chdir("/") != 0) {
        ps_str_addf(why, "cannot enter /: %s", strerror(errno));
        return false;
    }
    return true;
}
