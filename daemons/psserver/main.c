/* SPDX-License-Identifier: Apache-2.0 */
#include "psserver/app.h"

int main(int argc, char **argv)
{
    return ps_daemon_main(&psserver_spec, argc, argv);
}
