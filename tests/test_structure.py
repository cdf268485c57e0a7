"""`scripts/count_structure.py` finds each kind of violation; `make lint` runs it."""

import sys

import pytest
from helpers import load_script

STRUCTURE = load_script("count_structure")

NAMES = {
    "privacy/gate.py": "class Noise:\n    def noise(self): ...\n    @property\n    def z(self): ...\n",
    "users/users.py": "class Users: ...\n",
    "privacy/mechanisms/laplace.py": "class Laplace:\n    name = 'laplace'\n\nlike = 'laplace'\n",
    "users/returning.py": "class Returning:\n    name: str = 'returning'\n",
    "evaluation/errors.py": "class Errors:\n    name = 'errors'\n",
}
LITERALS = "registered names as literals"


def counts(folder, files):
    """Name of each count -> how many and where, in a tree of these files of the package."""
    for name, text in files.items():
        path = folder / "privrl_bench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {what: (count, places) for what, count, _, places in STRUCTURE.counted(folder)}


def test_methods_and_properties_of_a_contract_are_counted(tmp_path):
    found = counts(tmp_path, NAMES)
    assert found["methods of Noise"][0] == 2
    assert found["methods of Users"][0] == 0
    assert found["methods of Sampler"][0] == float("inf")  # it is gone but still listed


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("if kind == 'laplace': pass\n", ["plan.py:1: 'laplace'"]),
        (
            "x = {'returning': 1}\ny = ('errors',)\n",
            ["plan.py:1: 'returning'", "plan.py:2: 'errors'"],
        ),
        ("'laplace'\ndef f():\n    'errors'\n    return f'laplace{x}errors', 'no laplace'\n", []),
    ],
    ids=["comparison", "key and tuple", "docstrings, pieces, longer texts"],
)
def test_a_registered_name_is_a_literal_in_its_own_file_only(tmp_path, text, places):
    assert counts(tmp_path, {**NAMES, "plan.py": text})[LITERALS][1] == places


def test_a_word_of_another_meaning_is_allowed_where_it_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(STRUCTURE, "ALLOWED", "\nlaplace, a person: plan.py\n    other.py\n")
    files = dict.fromkeys(("plan.py", "other.py", "third.py"), "x = 'laplace'\n")
    assert counts(tmp_path, {**NAMES, **files})[LITERALS][1] == ["third.py:1: 'laplace'"]


@pytest.mark.parametrize(
    ("back", "circles"),
    [
        ("import privrl_bench.a", 1),
        ("def f():\n    from privrl_bench import a", 1),
        ("def f():\n    importlib.import_module('privrl_bench.a')", 1),
        ("HOME = 'privrl_bench.a'\nimport_module(HOME)", 1),
        ("if TYPE_CHECKING:\n    from privrl_bench.a import A", 1),
        ("HOME = 'privrl_bench.a'", 0),
    ],
)
def test_a_circle_of_files_is_found(tmp_path, back, circles):
    files = {
        "a.py": "from privrl_bench.b import thing\n",
        "b/__init__.py": "from privrl_bench.b.c import thing\n",
        "b/c.py": f"{back}\n",
        "d.py": "import privrl_bench.a\n",
    }
    found = counts(tmp_path, files)
    assert found["circles of files"][1] == ["a.py b/__init__.py b/c.py"] * circles


def test_two_classes_of_one_name_are_found_at_any_level(tmp_path):
    files = {"a.py": "class Mark: ...\n", "b.py": "def f():\n    class Mark: ...\n"}
    assert counts(tmp_path, files)["classes of one name"][1] == ["Mark: a.py:1, b.py:2"]


def test_public_names_without_docstrings_are_counted(tmp_path):
    """A property is one name; private ones and functions inside functions are none."""
    prop = (
        "    @property\n    def z(self):\n        'Doc.'\n    @z.setter\n    def z(self, x): ...\n"
    )
    text = f"class A:\n    'Doc.'\n{prop}    def f(self): ...\n    def _g(self): ...\n"
    text += "def f():\n    'Doc.'\n    def g(): ...\n"
    assert counts(tmp_path, {"a.py": text})["share without docstrings"][0] == pytest.approx(1 / 4)


def test_code_is_without_docstrings_comments_and_blank_lines(tmp_path):
    counts(tmp_path, {"a.py": '"""Doc.\n\nMore."""\n\n# Why.\nx = 1  # here\ny = [\n    2,\n]\n'})
    assert STRUCTURE.sizes(tmp_path, "privrl_bench")["privrl_bench"] == [1, 9, 4]


def test_a_violation_is_one_line_and_fails(tmp_path, monkeypatch, capsys):
    counts(tmp_path, {"a.py": "class Mark: ...\nclass Mark: ...\n"})
    monkeypatch.setattr(STRUCTURE, "CONTRACTS", {})
    monkeypatch.setattr(STRUCTURE, "DOCUMENTED", 0.0)
    monkeypatch.setattr(STRUCTURE, "SAME_NAMES", 0)
    monkeypatch.setattr(sys, "argv", ["count_structure", "--check", "--root", str(tmp_path)])
    assert STRUCTURE.main() == 1
    assert capsys.readouterr().out == "classes of one name: 1, at most 0; Mark: a.py:1, a.py:2\n"
    monkeypatch.setattr(STRUCTURE, "SAME_NAMES", 1)
    assert STRUCTURE.main() == 0
