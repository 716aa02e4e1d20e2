"""Compiles the core's own C sources to WebAssembly, for the page; needs ziglang from PyPI."""

import subprocess
import sys
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory

CORE = Path(__file__).parents[1] / "core"

EXPORTS = [f"replan_{name}" for name in ("arrays", "gradient", "integrate", "run_sgd")]
TARGET = ["-target", "wasm32-wasi", "-mexec-model=reactor", "-msimd128", "-Os", "-s"]


def compile_core() -> bytes:
    """Return the core as a WebAssembly module that imports nothing.

    With SIMD, which browsers have had since 2023, a gradient for K = T = 4 takes two thirds of the
    time; -Os is as fast here as -O2, in 60 % of the bytes.
    """
    flags = [x for x in run_path(str(CORE / "build.py"))["FLAGS"] if x not in ("-fPIC", "-shared")]
    exports = [f"-Wl,--export={name}" for name in EXPORTS]
    sources = map(str, [*sorted(CORE.glob("*.c")), Path(__file__).with_name("loops.c")])
    with TemporaryDirectory() as folder:
        made = Path(folder, "core.wasm")
        zig = [sys.executable, "-m", "ziglang", "cc"]
        subprocess.run([*zig, *flags, *TARGET, *exports, *sources, "-o", str(made)], check=True)
        return made.read_bytes()


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(compile_core())
