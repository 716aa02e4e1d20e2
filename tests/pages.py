"""Runs a page of the documentation from top to bottom, as a reader would.

A block whose first line is `# name.py` or `# name.toml` is a file; other Python blocks run in
order, and the `text` block below one is what it prints. Lines of `sh` blocks that begin with
`replan` run in the same folder. `python tests/pages.py docs/x.md …` writes outputs into the pages.
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.(?:py|toml))\n")  # the first line of a block that is a file
SECONDS = re.compile(r", \d+\.\d\d s$", re.MULTILINE)  # of another machine: pages leave them out


def run_page(page, folder):
    """Yield (shown, printed) of every `text` block of a page; run its other blocks in a folder."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    for language, code in blocks:
        if (name := FILE.match(code)) and language in ("python", "toml"):
            (folder / name[1]).write_text(code, encoding="utf-8")
    shutil.copy(ROOT / "examples" / "pilots.csv", folder)
    names, printed = {"__name__": page.stem}, ""
    for language, code in blocks:
        if language == "python" and not FILE.match(code):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, page.name, "exec"), names)
            printed = out.getvalue()
        elif language == "text":
            yield code, SECONDS.sub("", printed)
        elif language == "sh":
            for line in code.splitlines():
                if line.startswith("replan "):
                    printed = command_line(line.partition("  #")[0].split()[1:], folder)


def command_line(words, folder):
    """Run `replan …` in a process of its own; return what it prints."""
    program = "from replan.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, f"replan {' '.join(words)}: {done.stderr}"
    return done.stdout


def fill(page):
    """Write what a page's code prints into its `text` blocks."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.insert(0, folder)
        outputs = iter([printed for _, printed in run_page(page, Path(folder))])
    text = BLOCK.sub(
        lambda block: f"```text\n{next(outputs)}```" if block[1] == "text" else block[0],
        page.read_text(encoding="utf-8"),
    )
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "agg"
    for name in sys.argv[1:]:
        fill(Path(name).resolve())
        print(name)
