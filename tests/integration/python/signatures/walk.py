# SPDX-License-Identifier: Apache-2.0
"""Prints the names of other projects' packages that pskv stands for, a line
each with its parameters:

    walk.py import torch.distributed.Work mxnet.gluon.Trainer ...
    walk.py parse FOLDER horovod.torch horovod.mxnet ...

The first imports them, with the interpreter that has them. The second reads the
source in FOLDER, for packages that cannot be installed without building them.
A class has its own line, with the parameters of its constructor, and one for
each method. No other file of this tree is needed."""
import ast
import importlib
import inspect
import pathlib
import re
import sys

# Methods that every object has, or that belong to the language.
_LANGUAGE = re.compile(r"__\w+__$")
_KINDS = {inspect.Parameter.VAR_POSITIONAL: "*",
          inspect.Parameter.VAR_KEYWORD: "**"}


# ------------------------------------------------------------------ import


def parameters_of(thing):
    """Names of a callable's parameters, without self. Of functions in C++:
    those of all overloads, which are in the text about them."""
    try:
        found = inspect.signature(thing).parameters.values()
        names = [_KINDS.get(p.kind, "") + p.name for p in found]
    except (TypeError, ValueError):
        names = []
        text = inspect.getdoc(thing) or ""
        for line in re.findall(r"^(?:\d+\. )?\w+\((.*)\) -> ", text, re.M):
            names += [n for n in re.findall(
                r"(?:^|, )(\*{0,2}\w+)(?=[:,=]|$)", without_brackets(line))
                      if n not in names]
    return [n for n in names if n not in ("self", "cls")]


def without_brackets(line):
    """A list of parameters without what stands in brackets of their types."""
    while True:
        shorter = re.sub(r"\[[^][]*\]|\([^()]*\)|<[^<>]*>", "", line)
        if shorter == line:
            return line
        line = shorter


def find(name):
    """The module, class or function of a dotted name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            thing = getattr(thing, part)
        return thing
    raise ImportError(name)


def walk_class(name, kind, private):
    yield name, parameters_of(kind.__init__) \
        if "__init__" in vars(kind) else parameters_of(kind)
    for method in sorted(dir(kind)):
        if _LANGUAGE.match(method) or hasattr(object, method) or \
                (method.startswith("_") and not private):
            continue
        thing = inspect.getattr_static(kind, method)
        if isinstance(thing, type):
            continue
        thing = getattr(kind, method)
        yield f"{name}.{method}", \
            parameters_of(thing) if callable(thing) else []


def walk(name):
    thing = find(name)
    if isinstance(thing, type):
        # torch calls methods in C++ by names that begin with a line, too.
        yield from walk_class(name, thing,
                              type(thing).__name__ == "pybind11_type")
        return
    if not inspect.ismodule(thing):
        yield name, parameters_of(thing)
        return
    for one in sorted(getattr(thing, "__all__", None) or
                      [n for n in vars(thing) if not n.startswith("_")]):
        value = getattr(thing, one, None)
        if inspect.isroutine(value):
            yield f"{name}.{one}", parameters_of(value)


# ------------------------------------------------------------------- parse


class Source:
    """Modules below a folder, by their text."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.trees = {}

    def tree(self, module):
        if module not in self.trees:
            path = self.folder.joinpath(*module.split("."))
            path = path / "__init__.py" if path.is_dir() else \
                path.with_suffix(".py")
            self.trees[module] = ast.parse(path.read_text()) \
                if path.exists() else None
        return self.trees[module]

    def find(self, module, name):
        """(module, definition) of a name, or (module, None)."""
        tree = self.tree(module)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and \
                    node.name == name and node in tree.body:
                return module, node
            if isinstance(node, ast.ImportFrom) and \
                    node.module not in (None, module):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self.find(node.module, alias.name)
            if isinstance(node, ast.Assign) and name in [
                    t.id for t in node.targets if isinstance(t, ast.Name)]:
                return self.assigned(module, node.value)
        return module, None

    def assigned(self, module, value):
        """A method of an object of the module that another name stands for."""
        if isinstance(value, ast.Attribute) and \
                isinstance(value.value, ast.Name):
            where, made = self.find(module, value.value.id)
            if isinstance(made, ast.ClassDef):
                for node in made.body:
                    if isinstance(node, ast.FunctionDef) and \
                            node.name == value.attr:
                        return where, node
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return self.find(module, value.func.id)
        return module, None

    def names(self, module):
        """Names that a package gives its users."""
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.ImportFrom) and node.module and \
                    node.module.split(".")[0] == module.split(".")[0]:
                yield from (a.asname or a.name for a in node.names)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and \
                    node in self.tree(module).body:
                yield node.name


def arguments(node):
    a = node.args
    names = [x.arg for x in a.posonlyargs + a.args]
    names += ["*" + a.vararg.arg] if a.vararg else []
    names += [x.arg for x in a.kwonlyargs]
    names += ["**" + a.kwarg.arg] if a.kwarg else []
    return [n for n in names if n not in ("self", "cls")]


def parse(source, package):
    for name in sorted(set(source.names(package))):
        where, node = source.find(package, name)
        if name.startswith("_") or name == "check_extension":
            continue
        full = f"{package}.{name}"
        if isinstance(node, ast.ClassDef):
            yield from parse_class(source, where, full, node)
        elif node is not None:
            yield full, arguments(node)
        elif source.tree(full) is not None:
            yield from parse(source, full)
        else:
            yield full, []


def methods_of(source, module, node):
    """Methods of a class and of its bases in the source, by name."""
    found = {}
    for base in node.bases:
        if isinstance(base, ast.Name):
            where, inner = source.find(module, base.id)
            if isinstance(inner, ast.ClassDef) and inner is not node:
                found.update(methods_of(source, where, inner))
    found.update((m.name, m) for m in node.body
                 if isinstance(m, ast.FunctionDef))
    return found


def parse_class(source, module, full, node):
    methods = methods_of(source, module, node)
    init = methods.get("__init__")
    yield full, arguments(init) if init else []
    for name, method in sorted(methods.items()):
        if not name.startswith("_"):
            yield f"{full}.{name}", arguments(method)


def main():
    how, *names = sys.argv[1:]
    if how == "parse":
        source = Source(names.pop(0))
    for name in names:
        for line, parameters in walk(name) if how == "import" else \
                parse(source, name):
            print(line, *parameters)


if __name__ == "__main__":
    main()
