"""The notebook under examples/ runs from top to bottom, and its outputs are committed."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "quickstart.ipynb"


def printed(book):
    """The text that each code cell printed, without the return."""
    return [
        re.sub(r"return [\d.]+", "return", "".join(out.get("text", "") for out in cell.outputs))
        for cell in book.cells
        if cell.cell_type == "code"
    ]


def pictures(book):
    outputs = [out for cell in book.cells for out in cell.get("outputs", [])]
    return sum("image/png" in out.get("data", {}) for out in outputs)


def test_the_outputs_of_the_notebook_are_committed():
    book = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert 3 < len(code) <= 8
    assert all(cell.outputs for cell in code)
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert pictures(book) == 1
    assert NOTEBOOK.stat().st_size < 200_000
    text = NOTEBOOK.read_text()
    here = ("/tmp", "/home", "/Users", str(EXAMPLES.parent), os.path.expanduser("~") + "/")
    assert not [one for one in (*here, "wandb", "Traceback") if one in text]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    """It prints again what is committed; the return depends on the processor, the picture on fonts."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    book = nbformat.read(NOTEBOOK, as_version=4)
    committed = printed(book)
    client = NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert printed(book) == committed
    assert "epsilon 1.00 at delta 1e-05, formal" in "".join(committed)
    assert pictures(book) == 1
