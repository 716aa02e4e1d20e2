"""Build the site of the documentation: `make docs`.

docs/ and a few pages from elsewhere are gathered in build/docs, where every link leads to another
page or to a copy of the file. Zensical (mkdocs.yml) makes build/site of that. Formulas become
MathML, which browsers show without any script. In the end all links, anchors and resources of the
site are checked. Pages open and are searched from the folder, too: nothing is fetched.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbconvert
import nbformat
from fontTools import subset
from fontTools.ttLib import TTFont
from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parents[1]
STAGE, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
PAINT = ROOT / "build" / "replan.html"  # by `make page`: a site of its own
ELSEWHERE = {  # pages that are not in docs/, and the names that they have on the site
    ROOT / "README.md": "index.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "benchmarks" / "README.md": "benchmarks.md",
}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL)

# Browsers show variables, which are plain letters in MathML, by these characters.
_ITALIC = [0x210E, *range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C)]
_THIN = '<mspace width="0.167em" />'
_SPACING = {  # as LaTeX has it, where MathML's operators have other spaces
    r"<mo>(&#x0002F;)</mo>": r'<mo lspace="0" rspace="0">\1</mo>',
    r"<mo>(&#x0221E;|max|min)</mo>": r"<mi>\1</mi>",
    r"(<mo>&#x0003D;</mo>)<mo>(&#x02212;)</mo>": r'\1<mo form="prefix">\2</mo>',
    r"(</m(?:n|i|frac)>)(?=<mi>(?:arcsin|exp|log|max)</mi>)": rf"\1{_THIN}",
    r"(<mi>(?:arcsin|log)</mi>)(?!<mo)": rf"\1{_THIN}",
    r"(<msub><mi>m(?:ax|in)</mi><mi>t</mi></msub>)": rf"\1{_THIN}",
}


# Gather


def stage() -> None:
    """Gather all pages in build/docs."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(
        ROOT / "docs",
        STAGE,
        ignore=shutil.ignore_patterns("*.py", "*.ipynb", "*.txt", "*.toml", "__*"),
    )
    shutil.copy(PAINT, STAGE)
    for source in sorted((ROOT / "docs").rglob("*.md")):
        write_page(source, source.read_text(encoding="utf-8"))
    for source in sorted((ROOT / "docs").rglob("*.ipynb")):
        write_page(source, from_notebook(source))
    for source, name in ELSEWHERE.items():
        if name != "index.md":  # the home page is docs/index.md
            write_page(source, source.read_text(encoding="utf-8"))


def place(source: Path) -> Path:
    """Return where a file of the repository is on the site, relative to its root."""
    if source in ELSEWHERE:
        return Path(ELSEWHERE[source])
    if source.is_relative_to(ROOT / "docs"):
        inside = source.relative_to(ROOT / "docs")
        return inside.with_suffix(".md") if inside.suffix == ".ipynb" else inside
    return Path("files") / source.relative_to(ROOT)


def write_page(source: Path, text: str) -> None:
    """Write the text of a page to its place, with links that fit there."""
    page = place(source)
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [LINK.sub(lambda link: relink(link, source, page), part) for part in parts[::2]]
    (STAGE / page).parent.mkdir(parents=True, exist_ok=True)
    (STAGE / page).write_text("".join(parts), encoding="utf-8")


def relink(link: re.Match[str], source: Path, page: Path) -> str:
    """Let a link lead to the place of its target on the site; copy a file that is no page."""
    target, hash_, anchor = link[2].partition("#")
    picture = source.suffix == ".ipynb" and (STAGE / page.parent / target).is_file()
    if not target or urlsplit(target).scheme or picture:
        return link[0]
    found = (source.parent / target).resolve()
    if not found.is_file():
        sys.exit(f"{source.relative_to(ROOT)}: no such file: {target}")
    there = place(found)
    if there.parts[0] == "files" and not (STAGE / there).exists():
        (STAGE / there).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(found, STAGE / there)
        if found.suffix == ".md":  # its links lead on
            write_page(found, found.read_text(encoding="utf-8"))
    size = ""
    if found.suffix == ".png":  # half its pixels: crisp on all screens
        size = f"{{ width={int.from_bytes(found.read_bytes()[16:20]) // 2} }}"
    return f"{link[1]}{os.path.relpath(there, page.parent)}{hash_}{anchor}{link[3]}{size}"


def from_notebook(source: Path) -> str:
    """Return a notebook as a page, with its stored outputs; write its pictures beside it."""
    book = nbformat.read(source, as_version=4)
    body, resources = nbconvert.MarkdownExporter().from_notebook_node(book)
    folder = place(source).with_suffix("")
    for name, data in resources["outputs"].items():
        (STAGE / folder).mkdir(parents=True, exist_ok=True)
        (STAGE / folder / name).write_bytes(data)
        cell, output = map(int, re.findall(r"\d+", name))
        size = book.cells[cell].outputs[output].metadata["image/png"]
        shown = f"![Output of the cell above]({folder.name}/{name}){{ width={size['width']} }}"
        body = body.replace(f"![png]({name})", shown)
    copy = STAGE / "files" / source.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, copy)
    return body


# Formulas


def formulas() -> None:
    """Turn LaTeX into MathML in all pages, and give the site a font that has its characters."""
    used = set("()[]{}|√∑∫") | {chr(code) for code in _ITALIC}
    for path in SITE.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        made = FORMULA.sub(mathml, text)
        if made != text:
            path.write_text(made, encoding="utf-8")
            used |= set(unescape("".join(re.findall(r"<math.*?</math>", made, re.DOTALL))))
    options = subset.Options(flavor="woff2", layout_features=["*"])
    source = files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
    font = subset.load_font(str(source), options)
    for table in font["cmap"].tables:
        table.cmap[0x2032] = "minute.ssty"  # the prime that is drawn to be raised
    subsetter = subset.Subsetter(options)
    subsetter.populate(text="".join(used))
    subsetter.subset(font)
    narrow_roots(font)
    subset.save_font(font, str(SITE / "assets" / "math.woff2"), options)


def mathml(found: re.Match[str]) -> str:
    """Return a formula as MathML."""
    made = convert(unescape(found[2]).strip(), display="inline" if found[1] == "span" else "block")
    for pattern, better in _SPACING.items():
        made = re.sub(pattern, better, made)
    return made


def narrow_roots(font: TTFont) -> None:
    """Make all sizes of the root as wide as the least: Chromium leaves room for the widest."""
    width, _ = font["hmtx"]["uni221A"]
    for name in font.getGlyphOrder():
        if name.startswith("uni221A."):
            advance, _ = font["hmtx"][name]
            glyph = font["glyf"][name]
            glyph.coordinates.scale((width / advance, 1))
            glyph.coordinates.toInt()
            glyph.recalcBounds(font["glyf"])
            font["hmtx"][name] = (width, glyph.xMin)


# Check


class Page(HTMLParser):
    """What a page has and asks for: ids, links, and resources that a browser loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of what a tag brings."""
        given = {name: value for name, value in attrs if value}
        self.ids |= {given[key] for key in ("id", "name") if key in given and tag != "meta"}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif "href" in given and given.get("rel") not in ("canonical", "next", "prev", "sitemap"):
            self.resources.append(given["href"])
        self.resources += [given[key] for key in ("src", "poster", "data") if key in given]


def problems() -> Iterator[str]:
    """Yield what is wrong with the site."""
    others = ("404.html", PAINT.name)
    pages = {path: Page(path) for path in SITE.rglob("*.html") if path.name not in others}
    for path, page in pages.items():
        for address in page.links + page.resources:
            if not (urlsplit(address).scheme or urlsplit(address).netloc):
                yield from dead(address, path, pages)
        for address in page.resources:
            if urlsplit(address).scheme not in ("", "data") or urlsplit(address).netloc:
                yield f"{path.name} loads {address}"
        yield from (f"{path.name} has a formula that is not understood: {x}" for x in unclear(path))
    for path in SITE.rglob("*.css"):
        for address in re.findall(r"url\(\s*[\"']?(https?:[^)\"']*)", path.read_text("utf-8")):
            yield f"{path.name} loads {address}"
    yield from lost(pages)
    entries = {name for page in pages.values() for name in page.ids}
    for source in sorted((ROOT / "docs" / "api").glob("*.md")):
        for name in re.findall(r"^::: (\S+)", source.read_text("utf-8"), re.MULTILINE):
            if name not in entries:
                yield f"api/{source.name} has no entry of {name}"


def dead(address: str, path: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Yield why a link within the site leads nowhere, if it does not."""
    parts = urlsplit(address)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        yield f"{path.name} links to {address}: there is no such page"
    elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
        yield f"{path.name} links to {address}: there is no such anchor"


def lost(pages: dict[Path, Page]) -> Iterator[str]:
    """Yield why the search fails in a folder, where pages load scripts, but nothing else."""
    script = (SITE / "search.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("var __index = ").rstrip(";"))
    for item in index["items"]:
        yield from dead(item["location"], SITE / "index.html", pages)
    for path, page in pages.items():
        if not any(address.endswith("iframe-worker.js") for address in page.resources):
            yield f"{path.name} cannot be searched from"


def unclear(path: Path) -> list[str]:
    """Return formulas that have not, or not wholly, become MathML."""
    text = path.read_text(encoding="utf-8")
    made = re.findall(r"<math.*?</math>", text, re.DOTALL)
    left = re.findall(r'class="arithmatex">.*?<', text, re.DOTALL)
    return left + [formula for formula in made if re.search(r"<mi>(&|&amp;|\\.*?)</mi>", formula)]


def main() -> None:
    """Build and check."""
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = Path(sys.executable).with_name("zensical")
    if subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT).returncode:
        sys.exit("the site was not built")
    formulas()
    if found := list(problems()):
        sys.exit("\n".join([*found, f"{len(found)} problems in the site"]))
    count = len(list(SITE.rglob("*.html")))
    print(f"{count} pages in {SITE.relative_to(ROOT)}; all links lead somewhere")


if __name__ == "__main__":
    main()
