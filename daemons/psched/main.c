/* SPDX-License-Identifier: Apache-2.0 */
#include "psched/app.h"

int main(int argc, char **argv)
{
    return ps_daemon_main(&psched_spec, argc, argv);
}
