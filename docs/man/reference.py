#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md: every option of the daemons in one table a section,
from the sample configurations, which the daemons themselves write.

    reference.py ROOT [--check]

With --check nothing is written, and the page must be current."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # The folder is of sources.

from options import rows  # noqa: E402

DAEMONS = ("psched", "psserver", "psworker-agent")
HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by docs/man/reference.py from conf/*.yaml; the test `configuration`
     fails when it is not current. -->
# Configuration reference

Every option of `psched`, `psserver` and `psworker-agent`. A value comes from, in
this order:

1. the command line: `-o limits.connections=1000`, and `--sched HOST:PORT` and
   `--log-level LEVEL` as short forms;
2. a variable `PSD_` with the option's name in capitals and `_` for `.`:
   `PSD_LIMITS_CONNECTIONS=1000`, where an empty value counts as none;
3. a variable of another system (`environment.md`);
4. the file, `/etc/pskv/psched.yaml` and so on, or the one of `-c FILE`;
5. the default.

`--print-config=effective` shows each value and its origin, `--check-config` looks
at all of them and ends with 0 or, after an error with its place, 78.
`--print-config=schema` is a JSON schema for editors. Training processes have
variables `PSKV_*` in place of a configuration (`psclient(3)`).

A section of the file is a map:

```yaml
limits:
  connections: 1000
  output: 32MiB
```

Sizes have a unit, KiB, MiB, GiB and TiB of 1024 or kB, MB, GB and TB of 1000;
durations have `us`, `ms`, `s`, `m`, `h` or `d`. Options marked *reload* change with
SIGHUP, all others at the next start. Sessions, jobs, users and the daemon have
limits of their own (`limits.session.*`, `limits.job.*`, `limits.user.*`,
`limits.daemon.*`); `psctl nodes -w json` shows under `costs` what each has taken,
and `troubleshooting.md` the texts with which a limit refuses.
"""
RELOAD = " A reload changes it."


def table(section, found):
    """Rows of one section; daemons whose rows are equal share one."""
    merged = {}
    for daemon in DAEMONS:
        for name, default, words in found[daemon]:
            if name.split(".")[0] == section:
                merged.setdefault((name, default, words), []).append(daemon)
    lines = [f"\n## {section}\n", "| option | of | default | |",
             "| --- | --- | --- | --- |"]
    for (name, default, words), of in merged.items():
        reload = words.endswith(RELOAD)
        text = words.removesuffix(RELOAD).replace("|", "\\|")
        lines.append(
            f"| `{name}` | {'all' if len(of) == 3 else ', '.join(of)} | "
            f"`{default}` | {text}{' *reload*' if reload else ''} |")
    return "\n".join(lines) + "\n"


def main():
    root = Path(sys.argv[1])
    found = {d: list(rows((root / f"conf/{d}.yaml").read_text()))
             for d in DAEMONS}
    sections = dict.fromkeys(name.split(".")[0] for d in DAEMONS
                             for name, _, _ in found[d])
    text = HEAD + "".join(table(s, found) for s in sections)
    page = root / "docs/configuration.md"
    if "--check" not in sys.argv:
        page.write_text(text)
    elif page.read_text() != text:
        sys.exit(f"{page} is not current: python3 docs/man/reference.py .")


if __name__ == "__main__":
    main()
