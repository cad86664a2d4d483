/* SPDX-License-Identifier: Apache-2.0 */
/* The order of pslaunch to an agent, which pslaunch writes to standard input:
 * "NODE JOB HOST PORT PLACE KEY", with "-" for no host and the key in
 * hexadecimal. Not in the arguments, which all users of the host see. */
#include "psctl/psctl.h"

#include <stdlib.h>
#include <string.h>

static int digit(char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != '\0' ? strchr(digits, c) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

static bool parse_key(const char *text, uint8_t key[PS_LAUNCH_SECRET_BYTES])
{
    for (size_t i = 0; i < PS_LAUNCH_SECRET_BYTES; i++) {
        int high = digit(text[2 * i]);
        int low = high >= 0 ? digit(text[2 * i + 1]) : -1;

        if (low < 0) {
            return false;
        }
        key[i] = (uint8_t)(high << 4 | low);
    }
    return text[(size_t)2 * PS_LAUNCH_SECRET_BYTES] == '\0';
}

bool launch_order_read(struct launch_order *ret_order)
{
    struct launch_order *o = ret_order;
    char line[1024];
    char key[2 * PS_LAUNCH_SECRET_BYTES + 2];
    unsigned port;
    bool ok = fgets(line, sizeof(line), stdin) != NULL &&
              sscanf(line, "%64s %64s %255s %u %u %65s", o->node, o->job,
                     o->address, &port, &o->place, key) == 6 &&
              port > 0 && port <= UINT16_MAX && parse_key(key, o->secret);

    if (!ok) {
        fputs("psctl: __launch is for pslaunch, which writes an order to "
              "standard input\n",
              stderr);
        return false;
    }
    o->port = (uint16_t)port;
    if (strcmp(o->address, "-") == 0) {
        o->address[0] = '\0';
    }
    return true;
}
