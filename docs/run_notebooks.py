"""Run notebooks of docs/notebooks by name, and store them with their outputs: `make notebooks`."""

import re
import sys
from pathlib import Path

import nbclient
import nbformat


def read(path: Path) -> nbformat.NotebookNode:
    """Return a notebook as it is stored."""
    return nbformat.read(path, as_version=4)


def run(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a new kernel, and nothing that differs between runs."""
    book = read(path)
    sharp = ["--InlineBackend.figure_format=retina"]
    client = nbclient.NotebookClient(
        book, timeout=None, coalesce_streams=True, extra_arguments=sharp
    )
    client.execute()  # it ends the kernel, whatever happens
    book.metadata = {"language_info": {"name": "python"}}
    for cell in book.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "text/plain" in output.get("data", {}):
                text = output["data"]["text/plain"]
                output["data"]["text/plain"] = re.sub(r" at 0x[0-9a-f]+", "", text)
    return book


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(__file__).parent / "notebooks" / f"{name}.ipynb"
        nbformat.write(run(file), file)
        print(f"{file.name}: {file.stat().st_size // 1000} kB")
