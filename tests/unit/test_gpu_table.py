# SPDX-License-Identifier: Apache-2.0
"""The table of bytes over PCIe in docs/gpu.md is that of the program that counts
them. Arguments: program, module, document."""
import subprocess
import sys

program, module, document = sys.argv[1:]
table = subprocess.run([program, module, "table"], check=True, text=True,
                       stdout=subprocess.PIPE).stdout
with open(document, encoding="utf-8") as f:
    text = f.read()
if table not in text:
    sys.exit(f"{document} lacks this table:\n{table}")
