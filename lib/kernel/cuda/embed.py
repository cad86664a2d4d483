#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Assembler source of a symbol with the bytes of a file.

    embed.py SYMBOL [FILE] OUTPUT

Without a file, the symbol has one byte."""
import sys
from pathlib import Path


def main():
    symbol, *files, output = sys.argv[1:]
    if files:
        data = f'.incbin "{Path(files[0]).resolve()}"'
    else:
        data = ".byte 0"
    Path(output).write_text(f"""\
    .section .rodata
    .balign 16
    .global {symbol}
    .hidden {symbol}
    .type {symbol}, @object
{symbol}:
    {data}
    .size {symbol}, . - {symbol}
    .section .note.GNU-stack, "", @progbits
""")


main()
