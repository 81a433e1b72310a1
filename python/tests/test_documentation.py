"""The examples of docs/python.md run, print what stands below them, and have types."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
RUN = re.sub(r"<!-- not run: .*?-->\n```python\n.*?```", "", TEXT, flags=re.DOTALL)
EXAMPLES = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", RUN, re.DOTALL)


def test_the_examples_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are one program, a piece after another."""
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLES) > 5
    names: dict[str, object] = {}
    for code, expected in EXAMPLES:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "docs/python.md", "exec"), names)
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        assert lines == [line.rstrip() for line in expected.splitlines()], code


def test_the_examples_have_the_types_of_the_package(tmp_path: Path) -> None:
    """As mypy sees them beside the package that is installed, also those that do not run here."""
    program = tmp_path / "examples.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)))
    config = Path(__file__).parents[1] / "mypy.ini"
    # Functions of examples need no types of their own.
    lenient = ["--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-decorators"]
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), *lenient]
    command += ["--cache-dir", str(tmp_path / "cache"), str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    program.write_text(program.read_text() + "\nms.Session(worker=2).nothing()\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert 'no attribute "nothing"' in done.stdout and '"worker"' in done.stdout, "types are seen"


def pyright(directory: Path, *arguments: str) -> dict[str, Any]:
    """What pyright says: that of basedpyright, which comes with all that it runs on."""
    beside = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    command = [str(beside / "basedpyright"), "--outputjson", *arguments]
    done = subprocess.run(
        command, cwd=directory, env=variables, capture_output=True, text=True, timeout=300
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def test_the_examples_have_the_types_that_pyright_sees(tmp_path: Path) -> None:
    program = tmp_path / "examples.py"
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)))
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')

    def errors() -> list[str]:
        said = pyright(tmp_path, str(program))["generalDiagnostics"]
        # pyarrow makes these functions when it is imported, and has no types.
        unknown = 'is not a known attribute of module "pyarrow.compute"'
        return [one["message"] for one in said if unknown not in one["message"]]

    assert errors() == []
    program.write_text(program.read_text() + "\nms.Session(worker=2).nothing()\n")
    said = " ".join(errors())
    assert '"worker"' in said and '"nothing"' in said, said


def test_all_that_is_public_has_a_type(tmp_path: Path) -> None:
    """`pyright --verifytypes`: nothing public has a type that a type checker would have to guess."""
    said = pyright(tmp_path, "--verifytypes", "millstream", "--ignoreexternal")["typeCompleteness"]
    assert said["pyTypedPath"], "the package is found"
    assert said["exportedSymbolCounts"]["withKnownType"] > 60
    unknown = [of for of in said["symbols"] if not of["isTypeKnown"] or of["isTypeAmbiguous"]]
    assert [(of["name"], of["diagnostics"]) for of in unknown] == []
