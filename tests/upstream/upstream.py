#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Other projects' own tests, on pskv.

    upstream.py [--mxnet DIR] [--horovod DIR] [--suite NAME,...] [OPTION...]

DIR is a checkout of MXNet 1.9.1 or of Horovod 0.28.1; torch's tests are in
its package. Each test runs in a job and processes of its own, for each shape
of a job (world) that its suite wants. A suite is a module suite_NAME.py here, or one
whose path is given; expected/NAME.txt beside it lists the tests that fail,
with the reason. The run fails if a test fails that is not in the list, if one
passes that is, and if a line of the list fits no test. expected/NAME-races.txt
lists tests with a race of their own: they run again after a failure, some times
at most."""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

ORDER = ("torch", "torch2", "horovod_torch", "horovod_mxnet", "mxnet")
BAD = ("failure", "unexpected pass")
RUNS_MAX = 5  # Of a test with a race of its own.


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mxnet", default="", metavar="DIR")
    parser.add_argument("--horovod", default="", metavar="DIR")
    parser.add_argument("--suite", default="", metavar="NAME,...",
                        help="default: all whose checkout is given")
    parser.add_argument("--only", default="*", metavar="PATTERN",
                        help="of tests' names, as in the lists")
    parser.add_argument("--world", default="", metavar="NAME,...",
                        help="workers x servers, / nodes; default: all")
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="tests at a time (default 1)")
    parser.add_argument("--slow", type=float, metavar="FACTOR",
                        default=float(os.environ.get("PSKV_TEST_SLOW", "1")),
                        help="of all time limits")
    parser.add_argument("--list", action="store_true",
                        help="only print the tests")
    parser.add_argument("--keep", metavar="DIR",
                        help="folder of the tests' output "
                        "(default: upstream in the build folder)")
    parser.add_argument("--json", metavar="FILE",
                        help="(default: result.json in that folder)")
    return parser.parse_args()


def modules(args):
    """The paths of the suites that are wanted."""
    names = args.suite.split(",") if args.suite else ORDER
    paths = []
    for name in names:
        path = Path(name) if name.endswith(".py") else \
            HERE / f"suite_{name.replace('-', '_')}.py"
        if not path.exists():
            sys.exit(f"upstream: no suite {name}; there are " +
                     ", ".join(ORDER))
        paths.append(path.resolve())
    return paths


def load(args, path):
    """The suite of a module, or None where its checkout is not given."""
    from rank import suite_of
    suite = suite_of(path, "")
    folder = getattr(args, suite.checkout) if suite.checkout else ""
    suite = type(suite)(folder)
    why = suite.ready()
    if why and (args.suite or folder):
        sys.exit(f"upstream: {suite.name}: {why}")
    if why:
        print(f"upstream: {suite.name} is left out: {why}")
        return None
    return suite


class Run:
    """All tests of a suite, and what they gave."""

    def __init__(self, args, suite, module, folder):
        import job
        from expected import Expected
        self.args = args
        self.suite = suite
        self.module = module
        self.folder = folder
        self.expected = Expected(module.parent / "expected" /
                                 f"{suite.name}.txt")
        self.races = Expected(module.parent / "expected" /
                              f"{suite.name}-races.txt")
        wanted = args.world.split(",") if args.world else None
        self.worlds = [w for w in suite.worlds
                       if wanted is None or w.name in wanted]
        self.tests = []
        self.results = []
        try:
            for world, tests in zip(self.worlds, job.find(
                    suite, module, self.worlds)):
                self.tests += [(world, test) for test in tests]
        except RuntimeError as e:
            for world in self.worlds:
                self.add(world, "(the list)", job.Outcome("fail", str(e), 0))

    def chosen(self):
        return [(w, t) for w, t in self.tests
                if fnmatch.fnmatchcase(t.name, self.args.only)]

    def lane(self, world, number, tests):
        """Runs tests of a world, a deque that several lanes share."""
        import job
        folder = self.folder / self.suite.name / world.name.replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"lane-{number}.log"
        log.write_text("")
        lane = job.Lane(self.suite, self.module, world, log, self.args.slow)
        try:
            for test in iter(lambda: tests.popleft() if tests else None,
                             None):
                if test.skip:
                    self.add(world, test.name,
                             job.Outcome("skip", test.skip, 0.0))
                    continue
                name = re.sub(r"[^\w.-]+", "-", test.name)
                race = self.races.find(test.name, world.name)
                for count in range(1, (RUNS_MAX if race else 1) + 1):
                    outcome = lane.run(test, folder / f"{name}.log")
                    if outcome.outcome == "pass":
                        break
                self.add(world, test.name, outcome, count)
        finally:
            lane.close()

    def add(self, world, name, outcome, count=1):
        """Prints and keeps what a test gave in the last of `count` runs."""
        from expected import verdict
        entry = self.expected.find(name, world.name)
        result = {"suite": self.suite.name, "world": world.name,
                  "test": name,
                  "verdict": verdict(outcome.outcome, entry),
                  "reason": outcome.reason,
                  "expected": entry.reason if entry else "",
                  "seconds": round(outcome.seconds, 1), "runs": count}
        self.results.append(result)
        print("{verdict:17} {suite} {world} {test} {seconds} s {reason:.300}"
              .format(**dict(result, reason=" ".join(
                  result["reason"].split()))) +
              (f" (run {count})" if count > 1 else ""), flush=True)

    def run(self):
        pool = concurrent.futures.ThreadPoolExecutor(self.args.jobs)
        try:
            for world in self.worlds:
                tests = collections.deque(
                    t for w, t in self.chosen() if w == world)
                for done in [pool.submit(self.lane, world, n, tests)
                             for n in range(self.args.jobs)]:
                    done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def unused(self):
        """Lines of the list that fit no test of the worlds that ran."""
        tests = [(t.name, w.name) for w, t in self.tests]
        return [f"{lines.path}:{e.line}: no test fits {e.pattern}"
                for lines in (self.expected, self.races)
                for e in lines.unused(tests)]


def table(results):
    """Rows of text: suite, world, and how many of which verdict."""
    kinds = ("pass", "expected failure", "skip") + BAD
    counts = collections.OrderedDict()
    for r in results:
        row = counts.setdefault((r["suite"], r["world"]),
                                collections.Counter())
        row[r["verdict"]] += 1
        row["run"] += r["verdict"] != "skip"
    lines = [("suite", "world", "run") + kinds]
    lines += [key + tuple(str(row[k]) for k in ("run",) + kinds)
              for key, row in counts.items()]
    widths = [max(len(line[i]) for line in lines)
              for i in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                      for i, (cell, width) in enumerate(zip(line, widths)))
            for line in lines]


def report(args, folder, runs):
    results = [r for run in runs for r in run.results]
    unused = [line for run in runs for line in run.unused()]
    bad = [r for r in results if r["verdict"] in BAD]
    for r in bad:
        print(f"{r['verdict']}: {r['suite']} {r['world']} {r['test']}: " +
              (" ".join(r["reason"].split())[:300] or r["expected"]))
    for line in unused:
        print(line)
    print("\n".join(table(results)))
    counts = collections.Counter(r["verdict"] for r in results)
    print("upstream: " + ", ".join(
        f"{counts[k]} {k}" for k in ("pass", "expected failure", "skip")) +
        f", {counts['failure']} unexpected failure, "
        f"{counts['unexpected pass']} unexpected pass, "
        f"{len(unused)} unused lines")
    path = Path(args.json) if args.json else folder / "result.json"
    path.write_text(json.dumps({"ok": not bad and not unused,
                                "unused": unused, "tests": results},
                               indent=1) + "\n")
    return 1 if bad or unused or not results else 0


def main():
    args = arguments()
    import job
    folder = Path(args.keep) if args.keep else \
        job.support.BUILD / "upstream"
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for module in modules(args):
        suite = load(args, module)
        if suite:
            runs.append(Run(args, suite, module, folder))
    if args.list:
        for run in runs:
            for world, test in run.chosen():
                print(run.suite.name, world.name, test.name,
                      f"skip: {test.skip}" if test.skip else "")
        return 0
    for run in runs:
        run.run()
    return report(args, folder, runs)


if __name__ == "__main__":
    sys.exit(main())
