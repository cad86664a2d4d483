# SPDX-License-Identifier: Apache-2.0
"""Runs the tries of a table of signatures with the interpreter that has the
package:

    try.py compare PSKV.MODULE {"name": [["parameter", acts], ...], ...} NAMES
    try.py refused|warns SETUP [["words", "call"], ...]

The first prints what is not here, or has its parameters in another order. The
second prints a list in JSON: None for a call that ended as it should, or what
it did instead. A warning comes once: a second call has none."""
import json
import re
import sys
import warnings

from walk import find, parameters_of


def compare_one(ours, name, wanted, same_names):
    """What differs, in words, or None."""
    try:
        thing = find(f"{ours}.{name}")
    except (ImportError, AttributeError) as e:
        return f"is not here: {e}"
    owner, _, method = name.rpartition(".")
    kind = find(f"{ours}.{owner}") if owner else None
    if isinstance(kind, type):
        own = next(c for c in kind.__mro__ if method in vars(c))
        if not own.__module__.startswith("pskv."):
            return f"is inherited from {own.__module__}.{own.__qualname__}"
    if not callable(thing) or not same_names:
        return None
    have = parameters_of(thing.__init__ if isinstance(thing, type) and
                         "__init__" in vars(thing) else thing)
    takes_any = any(p.startswith("**") for p in have)
    acting = [p for p, acts in wanted if acts and not p.startswith("*")]
    missing = [p for p in acting if p not in have]
    if missing and not takes_any:
        return f"has no {missing}, but {have}"
    if [p for p in have if p in acting] != \
            [p for p in acting if p in have]:
        return f"has {have}, in another order than {acting}"
    return None


def compare(ours, names, same_names):
    for name, wanted in names.items():
        differs = compare_one(ours, name, wanted, same_names)
        if differs:
            print(f"{ours}.{name} {differs}")


def try_refused(names, words, call):
    try:
        value = eval(call, names)  # pylint: disable=eval-used
    except Exception as e:  # pylint: disable=broad-except
        text = f"{type(e).__name__}: {e}"
        return None if re.search(words, text) else text
    return f"no error: {value!r}"


def try_warns(names, words, call):
    for turn in "first", "second":
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                eval(call, names)  # pylint: disable=eval-used
            except Exception as e:  # pylint: disable=broad-except
                return f"{type(e).__name__}: {e}"
        found = [str(w.message) for w in seen
                 if re.search(words, str(w.message))]
        if len(found) != (turn == "first"):
            return f"{turn} call: warnings {[str(w.message) for w in seen]}"
    return None


def main():
    how, setup, tries, *more = sys.argv[1:]
    if how == "compare":
        compare(setup, json.loads(tries), json.loads(more[0]))
        return
    names = {}
    exec(setup, names)  # pylint: disable=exec-used
    one = try_refused if how == "refused" else try_warns
    print(json.dumps([one(names, words, call)
                      for words, call in json.loads(tries)]))


if __name__ == "__main__":
    main()
