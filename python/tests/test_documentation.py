"""The examples of docs/python.md run, and print what stands below them."""

import contextlib
import io
import re
from pathlib import Path

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
