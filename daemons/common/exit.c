/* SPDX-License-Identifier: Apache-2.0 */
#include "common/exit.h"

#include "base/err.h"
#include "base/log.h"

int ps_exit_code(int rc)
{
    switch (rc) {
    case PS_E_INVAL:
    case PS_E_CONFIG:
        return PS_EXIT_CONFIG;
    case PS_E_PERM:
        return PS_EXIT_NOPERM;
    case PS_E_EXIST:
    case PS_E_NOENT:
        return PS_EXIT_CANTCREAT;
    case PS_E_AGAIN:
    case PS_E_FULL:
    case PS_E_VERSION:
        return PS_EXIT_TEMPFAIL;
    case PS_E_UNREACH:
    case PS_E_TIMEOUT:
        return PS_EXIT_UNAVAILABLE;
    default:
        return PS_EXIT_FAILURE;
    }
}

int ps_exit_refused(const char *verb, const char *object, int rc)
{
    ps_log(PS_LOG_ERROR, "%s %s: %s", verb, object, ps_strerror(rc));
    return ps_exit_code(rc);
}
