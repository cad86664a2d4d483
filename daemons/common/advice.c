/* SPDX-License-Identifier: Apache-2.0 */
#include "common/advice.h"

#include "base/err.h"

#include <errno.h>
#include <string.h>

const char *ps_advice_tcp(int rc, int errnum)
{
    switch (rc) {
    case PS_E_EXIST:
        return "another process listens there; stop it, or set another "
               "listen.port";
    case PS_E_INVAL:
        return "this host has no such address; set listen.address to one that "
               "it has, or to 0.0.0.0 for all";
    case PS_E_UNREACH:
        return "the name cannot be resolved; correct listen.address, or the "
               "host's names (/etc/hosts, DNS)";
    case PS_E_PERM:
        return "the system forbids it; ports below 1024 need a privilege";
    default:
        return strerror(errnum);
    }
}

const char *ps_advice_local(int rc, int errnum)
{
    if (rc == PS_E_EXIST) {
        return "another process listens there, or it is not a socket; stop "
               "that "
               "process, or choose another path";
    }
    if (rc == PS_E_TOOBIG) {
        return "the path is longer than the 107 bytes that a socket may have; "
               "choose a shorter one";
    }
    switch (errnum) {
    case EROFS:
        return "the folder is in a read-only file system; choose a path in one "
               "that can be written";
    case EACCES:
    case EPERM:
        return "this user may not write in the folder; change its owner or "
               "mode, or choose another path";
    case ENOENT:
        return "the folder does not exist; make it, or choose another path";
    case ENOTDIR:
        return "the part before the last / is not a folder; choose another "
               "path";
    default:
        return strerror(errnum);
    }
}
