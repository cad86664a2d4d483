#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The documents as a site, for `./dev docs`.

    site.py ROOT --check           pages, links and headings; without a network
    site.py ROOT --stage FOLDER    the sources of the site, for mkdocs
    site.py --links FOLDER         links of the rendered site, and what it loads

A page of the site is a document of the tree: documents that a page names, as
`docs/pki.md`, and pages of the manual, as psctl(1), become links. Every document
has a place in PAGES, and every link leads to a page and a heading that exist."""
import functools
import html
import html.parser
import re
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path

sys.dont_write_bytecode = True  # The folder is of sources.

MANUAL = ("psctl.1", "pslaunch.1", "psclient.3", "pskv.yaml.5", "pskv-errors.7",
          "psched.8", "psserver.8", "psworker-agent.8")
# Heading -> documents in their order; those of the root have capitals.
PAGES = {
    "": ["README.md"],
    "Guides": ["users-guide.md", "operators-guide.md", "coming-from.md"],
    "Training": ["python.md", "torch.md", "mxnet.md", "modes.md",
                 "optimizers.md", "compression.md", "rows.md", "collectives.md",
                 "types.md"],
    "Operation": ["operating.md", "monitoring.md", "gpu.md", "pki.md",
                  "tokens.md", "hardening.md", "SECURITY.md", "troubleshooting.md"],
    "Reference": ["configuration.md", "environment.md", "json.md",
                  "features.md", "glossary.md", "CHANGES.md"],
    "Manual": list(MANUAL),
    "Speed": ["performance.md", "figures.md", "measurements.md"],
    "Inside": ["architecture.md", "protocol.md", "protocol-messages.md",
               "machines.md", "flow-control.md", "testing.md",
               "CONTRIBUTING.md"],
}
CONFIGURATION = """\
site_name: pskv
site_description: A parameter service for data-parallel training
docs_dir: pages
site_dir: site
use_directory_urls: false
strict: true
theme:
  name: material
  font: false
  features: [navigation.tabs, navigation.top, navigation.footer,
    search.highlight, search.suggest, content.code.copy, toc.follow]
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      primary: teal
      toggle: {icon: material/weather-night, name: Dark}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      primary: teal
      toggle: {icon: material/weather-sunny, name: Light}
extra: {generator: false}
extra_css: [manual.css]
plugins: [search]
markdown_extensions:
  - tables
  - toc:
      permalink: true
      slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}
  - pymdownx.superfences
  - pymdownx.highlight: {use_pygments: true}
validation:
  omitted_files: warn
  absolute_links: warn
  unrecognized_links: warn
  anchors: warn
nav:
"""
STYLE = """\
.manual pre { white-space: pre-wrap; }
.manual dl.Bl-tag > dt { margin-top: 0.6em; }
.manual table.head, .manual table.foot { display: none; }
.md-typeset table:not([class]) th { white-space: nowrap; }
"""
LINK = re.compile(r"(!?\[(?:[^][]|\[[^]]*\])*\])\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def is_outside(link):
    return link.startswith(("https:", "http:", "mailto:"))


# --------------------------------------------------------------------- staging

def page_of(name):
    """File of a document in the site."""
    if name in MANUAL:
        return f"man/{name}.md"
    return "index.md" if name == "README.md" else name


def source_of(root, name):
    return root / name if name[0].isupper() else root / "docs" / name


def parts_of(text):
    """(is prose, lines) alternately: blocks of code are left as they are."""
    prose = []
    fenced = False
    for line in text.split("\n"):
        if line.startswith("```"):
            if not fenced and prose:
                yield True, prose
                prose = []
            prose.append(line)
            fenced = not fenced
            if not fenced:
                yield False, prose
                prose = []
        else:
            prose.append(line)
    yield not fenced, prose


def link_names(line, known):
    """Names of documents and of pages of the manual as links."""
    if line.startswith(("    ", "#", "<")):
        return line

    def document(m):
        name = m[1].removeprefix("docs/")
        return f"[`{m[1]}`]({page_of(name)})" if name in known else m[0]

    def manual(m):
        name = f"{m[2]}.{m[3]}"
        return f"[{m[0]}](man/{name}.md)" if name in MANUAL else m[0]

    kept = []  # Links that exist.

    def keep(m):
        kept.append(m[0])
        return f"\0{len(kept) - 1}\0"

    line = LINK.sub(keep, line)
    line = re.sub(r"`((?:docs/)?[\w-]+\.md)`", document, line)
    line = LINK.sub(keep, line)
    line = re.sub(r"(`?)\b(ps[\w-]+|pskv\.yaml)\((\d)\)\1", manual, line)
    return re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], re.sub(
        r"\0(\d+)\0", lambda m: kept[int(m[1])], line))


def separate_lists(lines):
    """Lists begin behind an empty line, and what belongs to an item has four
    columns in front, as the renderer wants it."""
    out = []
    open_list = False
    fence = None  # Columns before a block of code within an item.
    for line in lines:
        item = re.match(r" {0,3}(?:[-*]|\d+\.) ", line)
        continued = re.match(r" {2,3}(?=[^ ])", line)
        if fence is not None:
            out.append(" " * (4 - fence) + line if line.strip() else "")
            if line.strip() == "```":
                out.append("")
                fence = None
            continue
        if item and not open_list and out and out[-1].strip():
            out.append("")
        if continued and open_list and "```" in line:
            fence = continued.end()
        if not item and continued and open_list:
            line = "    " + line[continued.end():]
        elif line.strip() and not line.startswith(" "):
            open_list = open_list and bool(out and out[-1].strip())
        open_list = open_list or bool(item)
        out.append(line)
    return out


def stage_page(text, known):
    def target(m):
        link = m[2]
        if not is_outside(link):
            link = link.removeprefix("docs/").removeprefix("../")
            path, mark, heading = link.partition("#")
            if path in known:
                link = page_of(path) + mark + heading
        return f"{m[1]}({link})"

    out = []
    for prose, lines in parts_of(text):
        if prose and lines:
            text = "\n".join(link_names(line, known)
                             for line in separate_lists(lines))
            lines = [LINK.sub(target, text)]
        out += lines
    return "\n".join(out)


def manual_sources(root, folder):
    """(name, text for scdoc) of each page of the manual."""
    man = root / "docs/man"

    def made(script, *words):
        subprocess.run([sys.executable, root / "docs" / script, *words],
                       check=True)

    for name in MANUAL:
        source = man / f"{name}.scd"
        if not source.exists():
            source = folder / f"{name}.scd"
        if name == "pskv.yaml.5":
            made("man/reference.py", root, "--man", man / f"{name}.scd.in",
                 source)
        elif name == "pskv-errors.7":
            made("explain.py", "man", root / "docs/troubleshooting.md",
                 root / "docs/troubleshooting-codes.txt",
                 root / "lib/base/err.def", source)
        elif not source.exists():
            sample = "job" if name == "pslaunch.1" else name[:-2]
            made("man/options.py", man / f"{name}.scd.in",
                 root / f"conf/{sample}.yaml", source)
        yield name, source.read_text()


ACRONYMS = {"CPU", "GPU", "GPUS", "MPI", "PKI", "SSH", "TLS", "YAML"}


def title_of(head):
    """Of a section of the manual, whose heading has small letters only here.
    mandoc makes a link of its first word."""
    words = html.unescape(re.sub(r"<[^>]*>", "", head)).split()
    small = [w if w in ACRONYMS else w.lower() for w in words]
    return " ".join([words[0] if words[0] in ACRONYMS
                     else words[0].capitalize(), *small[1:]])


def render_manual(name, text):
    """A page of the manual: headings in Markdown, so that the table of contents
    has them, and between them what mandoc makes."""
    roff = subprocess.run(["scdoc"], input=text, text=True, check=True,
                          capture_output=True).stdout
    page = subprocess.run(["mandoc", "-T", "html", "-O", "fragment"],
                          input=roff, text=True, check=True,
                          capture_output=True).stdout

    def manual(m):
        other = f"{m[1]}.{m[2]}"
        return f'<a href="{other}.html">{m[0]}</a>' if other in MANUAL \
            and other != name else m[0]

    page = re.sub(r"<b>([\w.-]+)</b>\((\d)\)", manual, page)
    out = [f"# {name.rpartition('.')[0]}({name[-1]})"]
    for section in re.split(r'<section class="Sh">', page)[1:]:
        head, body = re.match(r"\s*<h1[^>]*>(?:<a[^>]*>)?(.*?)(?:</a>)?</h1>"
                              r"(.*?)</section>", section, re.S).groups()
        body = re.sub(r' id="[^"]*"', "", body)
        body = re.sub(r'<a class="permalink"[^>]*>(.*?)</a>', r"\1", body,
                      flags=re.S)
        body = re.sub(r"<(/?)h2", r"<\1h3", body)
        title = title_of(head)
        body = re.sub(r"<pre>.*?</pre>", lambda m: re.sub(
            r"\n\s*<br/>\s*?\n", "\n", m[0]), body, flags=re.S)
        # Without empty lines it is one block for the renderer.
        body = re.sub(r"\n\s*\n", "\n&#8203;\n" if "<pre>" in body else "\n",
                      body)
        out += [f"## {title}", f'<div class="manual">{body.strip()}</div>']
    return "\n\n".join(out) + "\n"


def stage(root, folder):
    pages = folder / "pages"
    (pages / "man").mkdir(parents=True)
    known = {n for names in PAGES.values() for n in names}
    for name in known - set(MANUAL):
        (pages / page_of(name)).write_text(
            stage_page(source_of(root, name).read_text(), known))
    for path in (root / "docs/pictures").rglob("*.svg"):
        copy = pages / path.relative_to(root / "docs")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (pages / "manual.css").write_text(STYLE)
    for name, text in manual_sources(root, folder):
        (pages / page_of(name)).write_text(render_manual(name, text))
    lines = []
    for heading, names in PAGES.items():
        if heading:
            lines.append(f"  - {heading}:")
        for name in names:
            title = f"'{name[:-2]}({name[-1]})': " if name in MANUAL else ""
            lines.append(f"{'      ' if heading else '  '}- "
                         f"{title}{page_of(name)}")
    (folder / "mkdocs.yml").write_text(CONFIGURATION + "\n".join(lines) + "\n")


# --------------------------------------------------------------------- checks

def slug(heading):
    """Name of a heading in links."""
    heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


@functools.cache
def headings_of(path):
    found = set()
    for heading in re.findall(r"^#+ (.*)", FENCE.sub("", path.read_text()),
                              re.M):
        name, number = slug(heading), 1
        while name in found:
            name = f"{slug(heading)}_{number}"
            number += 1
        found.add(name)
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"',
                                  path.read_text()))


def check(root):
    """Sentences on documents without a place, and on links that lead
    nowhere."""
    listed = [n for names in PAGES.values() for n in names]
    documents = {p.name for p in (root / "docs").glob("*.md")}
    documents |= {p.name for p in root.glob("*.md")}
    documents |= {re.sub(r"\.scd(\.in)?$", "", p.name)
                  for p in (root / "docs/man").glob("*.scd*")}
    documents.add("pskv-errors.7")
    found = [f"docs/site.py: PAGES has {n} more than once"
             for n in set(listed) if listed.count(n) > 1]
    found += [f"docs/site.py: PAGES lacks {n}"
              for n in sorted(documents - set(listed))]
    found += [f"docs/site.py: PAGES has {n}, which does not exist"
              for n in sorted(set(listed) - documents)]
    if title_of('<a href="#EXIT">EXIT</a> STATUS OF PKI') != \
            "Exit status of PKI":
        found.append("docs/site.py: headings of the manual are cut")
    count = 0
    for name in sorted(documents - set(MANUAL)):
        path = source_of(root, name)
        text = FENCE.sub(lambda m: "\n" * m[0].count("\n"), path.read_text())
        text = re.sub(r"^(?:    |\t).*|`[^`\n]*`", "", text, flags=re.M)
        for m in LINK.finditer(text):
            count += 1
            problem = None if is_outside(m[2]) else problem_of(path, m[2])
            if problem:
                number = text.count("\n", 0, m.end()) + 1
                found.append(f"{name}:{number}: {m[2]}: {problem}")
    if count < 50:
        found.append(f"only {count} links were read")
    return found


def problem_of(path, link):
    target, _, heading = link.partition("#")
    page = path.parent / target if target else path
    if not page.is_file():
        return "there is no such file"
    if page.suffix not in (".md", ".svg", ".png"):
        return "it is no page of the site"
    if heading and heading not in headings_of(page):
        return "the page has no such heading"
    return None


class Reader(html.parser.HTMLParser):
    """Links, names and loaded files of a page."""

    def __init__(self):
        super().__init__()
        self.links, self.loads, self.names = [], [], set()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.names |= {attrs[a] for a in ("id", "name") if attrs.get(a)}
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        if tag in ("img", "script", "iframe") and attrs.get("src"):
            self.loads.append(attrs["src"])
        if tag == "link" and attrs.get("href") \
                and attrs.get("rel") not in ("canonical",):
            self.loads.append(attrs["href"])


@functools.cache
def read_html(path):
    reader = Reader()
    reader.feed(path.read_text())
    return reader


def check_site(folder):
    """Sentences on links of rendered pages; none may load anything from another
    host."""
    found, count = [], 0
    for path in sorted(folder.rglob("*.html")):
        page = read_html(path)
        name = path.relative_to(folder)
        found += [f"{name}: loads {u}" for u in page.loads if is_outside(u)
                  or u.startswith("//")]
        for link in page.links + page.loads:
            if is_outside(link) or link.startswith(("//", "data:")):
                continue
            count += 1
            target, _, heading = urllib.parse.unquote(link).partition("#")
            target = target.partition("?")[0]
            other = path if target in ("", ".") else (
                folder / target[1:] if target[0] == "/"
                else path.parent / target)
            other = other / "index.html" if other.is_dir() else other
            if not other.exists():
                found.append(f"{name}: {link}: there is no such page")
            elif heading and other.suffix == ".html" \
                    and heading not in read_html(other).names \
                    and not heading.startswith("__"):
                found.append(f"{name}: {link}: the page has no such heading")
    if count < 500:
        found.append(f"only {count} links were read")
    return found


def self_test():
    """Each mistake is seen."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "a.md"
        page.write_text("# One `two` (3)\n## One\n## One\n[x](#one)\n")
        assert headings_of(page) == {"one-two-3", "one", "one_1"}
        assert problem_of(page, "#one_1") is None
        assert problem_of(page, "#two") and problem_of(page, "b.md")
        assert problem_of(page, "a.md#one-two-3") is None
    known = {"pki.md", "README.md", "SECURITY.md"}
    for text, staged in (
            ("see `docs/pki.md`, `x.md`", "see [`docs/pki.md`](pki.md), `x.md`"),
            ("psctl(1) and `psctl(1)`", "[psctl(1)](man/psctl.1.md) and "
             "[`psctl(1)`](man/psctl.1.md)"),
            ("[a\nb](../README.md#b)", "[a\nb](index.md#b)"),
            ("[`docs/pki.md`](docs/pki.md)", "[`docs/pki.md`](pki.md)"),
            ("text\n- item\n  more", "text\n\n- item\n    more"),
            ("  text\n- item\n- item", "  text\n\n- item\n- item"),
            ("- a\n\n  ```\n    b\n  ```\n- c",
             "- a\n\n    ```\n      b\n    ```\n\n- c"),
            ("```\n`docs/pki.md`\n```", "```\n`docs/pki.md`\n```")):
        assert stage_page(text, known) == staged, stage_page(text, known)


def main():
    if sys.argv[1] == "--links":
        found = check_site(Path(sys.argv[2]))
    elif sys.argv[2] == "--check":
        self_test()
        found = check(Path(sys.argv[1]).resolve())
    else:
        stage(Path(sys.argv[1]).resolve(), Path(sys.argv[3]))
        found = []
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
