"""Compiles the C files beside it into the shared libraries that `library.py` loads.

On x86-64 there are two: one that every processor runs, and one for those with AVX2 and FMA, which
is chosen when it is loaded. Run as a script, it compiles if a source is newer than a library; with
a folder and flags, it compiles into that folder, with these flags on top.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent

FLAGS = [
    *("-std=c11", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-O2", "-ftree-vectorize"),
    # sums in any order, so that loops are vectorised; infinities and NaN as they are
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"),
    "-ffp-contract=fast",
]
LIBRARIES: dict[str, list[str]] = {"_core-base.so": []}
if platform.machine() in ("x86_64", "AMD64"):
    # x86-64-v3, by a name that gcc, clang and zig all know
    LIBRARIES["_core-v3.so"] = ["-march=haswell"]

HELP = """
replan needs a C compiler to build its core. Install one (Debian and Ubuntu: apt install gcc;
macOS: xcode-select --install), or name one that works: CC=clang, or, from the wheel ziglang,
CC="python -m ziglang cc"."""


def compiler() -> list[str]:
    """Return the command of the C compiler: `CC`, the first on the PATH, or that of ziglang."""
    found = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    command = shlex.split(os.environ.get("CC", "")) or found[:1]
    command = command or [sys.executable, "-m", "ziglang", "cc"]
    if {"zig", "ziglang"}.isdisjoint(Path(word).stem for word in command):
        return command
    return [*command, "-mcpu=baseline"]  # zig's own choice is the processor that it runs on


def build(folder: Path = HERE, *flags: str) -> list[Path]:
    """Compile the libraries into a folder, side by side, with these flags on top; return them."""
    start, command = time.time(), compiler()
    sources = [str(path) for path in sorted(HERE.glob("*.c"))]
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as unfinished:
        calls = {
            name: [*command, *FLAGS, *target, *flags, *sources, "-o", f"{unfinished}/{name}", "-lm"]
            for name, target in LIBRARIES.items()
        }
        try:
            runs = [
                subprocess.Popen(call, stderr=subprocess.PIPE, text=True) for call in calls.values()
            ]
        except OSError as error:
            sys.exit(f"{shlex.join(command)}: {error.strerror}\n{HELP}")
        messages = [run.communicate()[1] for run in runs]
        for call, run, message in zip(calls.values(), runs, messages, strict=True):
            if run.returncode:
                first = "\n".join(message.splitlines()[:20])
                sys.exit(f"{shlex.join(call)}\n{first}\n{HELP}")
            sys.stderr.write(message)
        for name in calls:
            made = Path(unfinished, name)
            os.utime(made, (start, start))  # older than what is edited from now on
            made.replace(folder / name)  # in one go: others may have it loaded
    return [folder / name for name in LIBRARIES]


def update() -> None:
    """Compile the libraries if a source is newer than one of them."""
    sources = [Path(__file__), *HERE.glob("*.[ch]")]
    libraries = [HERE / name for name in LIBRARIES]
    newest = max(path.stat().st_mtime for path in sources)
    if any(not path.exists() or path.stat().st_mtime < newest for path in libraries):
        build()


if __name__ == "__main__":
    if sys.argv[1:]:
        build(Path(sys.argv[1]), *sys.argv[2:])
    else:
        update()
