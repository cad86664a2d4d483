#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every option of the daemons, from the sample configurations, which the daemons
themselves write.

    reference.py ROOT                        docs/configuration.md, with one
                                             table a section
    reference.py ROOT --check                the page must be current
    reference.py ROOT --man PAGE.in OUTPUT   pskv.yaml(5): @OPTIONS@ is replaced
    reference.py ROOT --compare PAGE PSCHED PSSERVER AGENT
                                             the page has the options of the
                                             programs, each of its daemons
"""
import json
import re
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True  # The folder is of sources.

from options import escape, rows  # noqa: E402

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


def merge(section, found):
    """(option, default, text, reload, daemons) of a section; daemons whose rows
    are equal share one."""
    merged = {}
    for daemon in DAEMONS:
        for name, default, words in found[daemon]:
            if name.split(".")[0] == section:
                merged.setdefault((name, default, words), []).append(daemon)
    return [(name, default, words.removesuffix(RELOAD), words.endswith(RELOAD),
             of) for (name, default, words), of in merged.items()]


def table(section, found):
    """Rows of one section."""
    lines = [f"\n## {section}\n", "| option | of | default | |",
             "| --- | --- | --- | --- |"]
    for name, default, words, reload, of in merge(section, found):
        text = words.replace("|", "\\|")
        lines.append(
            f"| `{name}` | {'all' if len(of) == 3 else ', '.join(of)} | "
            f"`{default}` | {text}{' *reload*' if reload else ''} |")
    return "\n".join(lines) + "\n"


def manual(sections, found):
    """The same for a page of the manual."""
    lines = []
    for section in sections:
        lines.append(f"## {section}\n")
        for name, default, words, reload, of in merge(section, found):
            lines.append(
                f"*{escape(name)}* ({', '.join(of)}; default "
                f"_{escape(default)}_)\n\t{escape(words)}"
                f"{RELOAD if reload else ''}\n")
    return "\n".join(lines)


def paths_of_schema(schema, before=""):
    for name, one in schema["properties"].items():
        if "properties" in one:
            yield from paths_of_schema(one, f"{before}{name}.")
        else:
            yield before + name


def compare(page, programs):
    """Sentences on options that only the page or only a program has."""
    told = {d: set() for d in DAEMONS}
    for name, of in re.findall(r"^\*([^*]+)\* \(([^;]+); default", page,
                               re.M):
        for daemon in of.split(", "):
            told[daemon].add(name.replace("\\", ""))
    found = []
    for daemon, program in zip(DAEMONS, programs):
        schema = json.loads(subprocess.run(
            [program, "--print-config=schema"], check=True, text=True,
            capture_output=True).stdout)
        options = set(paths_of_schema(schema))
        found += [f"{daemon} has {o}, the page has not"
                  for o in sorted(options - told[daemon])]
        found += [f"the page has {o}, {daemon} has not"
                  for o in sorted(told[daemon] - options)]
        if len(options) < 20:
            found.append(f"{daemon}: only {len(options)} options are read")
    return found


def main():
    root = Path(sys.argv[1])
    found = {d: list(rows((root / f"conf/{d}.yaml").read_text()))
             for d in DAEMONS}
    sections = dict.fromkeys(name.split(".")[0] for d in DAEMONS
                             for name, _, _ in found[d])
    if "--man" in sys.argv:
        template, output = map(Path, sys.argv[3:])
        output.write_text(template.read_text().replace(
            "@OPTIONS@", manual(sections, found)))
        return
    if "--compare" in sys.argv:
        wrong = compare(Path(sys.argv[3]).read_text(), sys.argv[4:])
        sys.exit("\n".join(wrong) if wrong else 0)
    text = HEAD + "".join(table(s, found) for s in sections)
    page = root / "docs/configuration.md"
    if "--check" not in sys.argv:
        page.write_text(text)
    elif page.read_text() != text:
        sys.exit(f"{page} is not current: python3 docs/man/reference.py .")


if __name__ == "__main__":
    main()
