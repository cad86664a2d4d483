/* SPDX-License-Identifier: Apache-2.0 */
/* A handler of SIGSEGV that says when the address is that of a device; then the
 * handler of before has the signal. */
#include "memory.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static struct sigaction before;

static void name_cause(int signal_number, siginfo_t *info, void *context)
{
    static const char text[] =
        "cuda_emu: host code touches device memory through its pointer\n";

    (void)context;
    if (emu_address_is_device((uint64_t)(uintptr_t)info->si_addr)) {
        ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);

        (void)written;
    }
    /* The instruction faults again, and meets the other handler. */
    (void)sigaction(signal_number, &before, NULL);
}

void emu_fault_install(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof(action));
    action.sa_sigaction = name_cause;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    (void)sigaction(SIGSEGV, &action, &before);
}
