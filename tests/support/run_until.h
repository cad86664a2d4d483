/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "net/loop.h"

/* Runs the loop of `w` until the condition holds. Each condition must come
 * true: it is an error that the loop ends before. */
#define RUN_UNTIL(w, condition)                                                \
    do {                                                                       \
        while (!(condition)) {                                                 \
            bool alive = ps_loop_step((w)->loop);                              \
                                                                               \
            assert_true(alive || (condition));                                 \
        }                                                                      \
    } while (0)
