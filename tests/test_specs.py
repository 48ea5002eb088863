"""Where the shipped specs are, and how YAML is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autoplan import specs
from autoplan.errors import InputError


def test_specs_of_a_checkout() -> None:
    assert specs.shipped("cluster_specs") == Path(__file__).resolve().parents[1] / "cluster_specs"


def test_specs_of_an_installed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "autoplan" / "shipped" / "models"
    folder.mkdir(parents=True)
    (folder / "b.yaml").touch()
    (folder / "a.yaml").touch()
    (tmp_path / "models").mkdir()  # a stranger's folder beside the package doesn't count
    monkeypatch.setattr(specs, "__file__", str(tmp_path / "autoplan" / "specs.py"))
    assert specs.shipped("models") == folder
    assert specs.names("models") == ("a", "b")
    with pytest.raises(InputError, match="missing from this installation"):
        specs.shipped("cluster_specs")


def test_shared_files_are_no_specs() -> None:
    assert (specs.shipped("cluster_specs") / "devices.yaml").is_file()
    assert "devices" not in specs.names("cluster_specs")


def test_numbers_are_read_as_in_yaml_1_2(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("[1e9, 2.5e9, -3E-2, 7, 1.5, e9, 1e]\n")
    assert specs.read_yaml(path) == [1e9, 2.5e9, -0.03, 7, 1.5, "e9", "1e"]


def test_merge_keys_and_a_byte_order_mark_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfbase: &base {a: 1, b: 2}\nmore:\n  <<: *base\n  b: 3\n")
    assert specs.read_yaml(path) == {"base": {"a": 1, "b": 2}, "more": {"a": 1, "b": 3}}


@pytest.mark.parametrize(("text", "line", "word"), [
    ("a: [1,\nb: 2", 3, "malformed"), ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' is given twice"),
    ("x:\n  c: 1\n  c: 1\n", 3, "given twice"), ("a:\n\tb: 1", 2, "malformed"), ("a: 1\n---\nb: 2", 2, "malformed"),
    ("a: !!python/object:os.x {}", 1, "malformed"), ("? [1]\n: 2", 1, "malformed"), ("", None, "empty"),
    ("# nothing\n", None, "empty"), ("a: 2020-13-45", None, "malformed"), ("a: \0", None, "malformed"),
    ("[" * 100000, 1, "malformed"), ("a: " + "9" * 5000, None, "malformed"),
])
def test_malformed_files(tmp_path: Path, text: str, line: int | None, word: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        specs.read_yaml(path)
    assert caught.value.where == (f"{path}:{line}" if line else str(path))
    assert word in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(InputError, match="can't read"):
            specs.read_yaml(path)
    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        specs.read_yaml(binary)


def test_importing_the_room_does_not_import_yaml_or_pydantic() -> None:
    code = "import sys, autoplan.cluster; print(sorted({'yaml', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
