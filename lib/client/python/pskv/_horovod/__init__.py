# SPDX-License-Identifier: Apache-2.0
"""What Horovod's interfaces for torch and for MXNet have in common.

    words.py      reductions, requests, errors
    timeline.py   Horovod's timeline
    job.py        ranks, sets of ranks, what is built
    match.py      collectives that ranks start in different orders
    start.py      collectives start here

Arrays are addresses here. A file imports those above it."""
