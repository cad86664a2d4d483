/* SPDX-License-Identifier: Apache-2.0 */
#include "psworker-agent/app.h"

int main(int argc, char **argv)
{
    return ps_daemon_main(&psagent_spec, argc, argv);
}
