# SPDX-License-Identifier: Apache-2.0
"""ps_samples.c: least, typical and greatest value of each message."""


def source(schema):
    raise NotImplementedError
