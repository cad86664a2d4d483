# SPDX-License-Identifier: Apache-2.0
"""Sums and table of the fuzz targets (tests/soak/fuzz.py)."""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "soak"))

import fuzz  # noqa: E402

LOG = """\
#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 31Mb
#9\tNEW    cov: 34 ft: 35 corp: 2/2b lim: 4 exec/s: 0 rss: 31Mb
stat::number_of_executed_units: 1000
stat::average_exec_per_sec:     500
stat::peak_rss_mb:              40
"""


class SoakFuzz(unittest.TestCase):
    def test_figures_are_those_of_the_log(self):
        self.assertEqual(fuzz.read_figures(LOG),
                         {"executions": 1000, "memory": 40, "edges": 34})
        self.assertEqual(fuzz.read_figures(""),
                         {"executions": 0, "memory": 0, "edges": 0})

    def test_runs_with_and_without_sanitizers_count_apart(self):
        figures = fuzz.read_figures(LOG)
        total = fuzz.add_run({}, figures, 0)
        total = fuzz.add_run(total, figures, 1)
        total = fuzz.add_run(total, figures, 1, is_plain=True)
        total = fuzz.add_run(total, dict(figures, edges=30, memory=50), 0)
        self.assertEqual(total, {
            "runs": 3, "executions": 3000, "edges": 34, "memory": 50,
            "findings": 1, "plain": {"runs": 1, "executions": 1000,
                                     "edges": 34, "memory": 40,
                                     "findings": 1}})

    def test_table_has_the_form_of_the_document(self):
        figures = fuzz.read_figures(LOG)
        text = fuzz.table({
            "b": fuzz.add_run({}, dict(figures, executions=1234567), 1),
            "a": fuzz.add_run({}, figures, 0, is_plain=True)})
        self.assertEqual(text.splitlines()[2:], [
            "| `a` | 0 | 1,000 | 34 | 0 MiB, 40 MiB | 0 |",
            "| `b` | 1,234,567 | 0 | 34 | 40 MiB, 0 MiB | 1 |"])

    def test_the_document_has_the_sums_of_the_tree(self):
        self.assertIn(fuzz.table(fuzz.read_totals(fuzz.SUMS)),
                      (ROOT / "docs/testing.md").read_text())

    def test_runs_go_on_from_the_sums_of_the_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            sums = Path(folder, "sums.json")
            fuzz.write_totals(sums, {"a": {"executions": 900, "edges": 40}})
            for _ in range(2):
                soak = fuzz.Soak(Path(folder, "runs"), None, False, sums)
                plain = fuzz.Soak(Path(folder, "runs"), None, True, sums)
                soak.add("a", fuzz.read_figures(LOG), 0)
                plain.add("a", fuzz.read_figures(LOG), 0)
            self.assertEqual(soak.total("a")["executions"], 2900)
            self.assertEqual(soak.total("a")["edges"], 40)
            self.assertEqual(plain.total("a")["executions"], 2000)
            self.assertEqual(soak.left("a", 3000), 100)
            self.assertEqual(plain.left("a", 2000), 0)
            self.assertEqual(plain.left("b", 2000), 2000)
            self.assertEqual(fuzz.read_totals(sums)["a"]["executions"], 900)


if __name__ == "__main__":
    unittest.main()
