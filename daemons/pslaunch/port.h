/* SPDX-License-Identifier: Apache-2.0 */
/* Ports of this host for processes that are started later. */
#pragma once

/* Bytes of the largest port number as text. */
#define PORT_TEXT_MAX 8

/* Writes a port that no other process is given by chance; a process that sets
 * SO_REUSEADDR may listen there, because the socket that keeps the port does
 * not. It stays open as long as this process. "": there is none. */
void port_reserve(char text[PORT_TEXT_MAX]);
