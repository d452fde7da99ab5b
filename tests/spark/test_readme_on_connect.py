"""The example of README on a session of Spark Connect. On a classic one it runs with the other guides."""

import contextlib
import io

import pytest
from guides import ROOT, assert_prints, snippets


@pytest.mark.connect
def test_the_example_prints_what_the_readme_says(spark):
    example, printed = (snippet for snippet in snippets(ROOT / "README.md") if snippet.kind in ("python", "output"))
    with contextlib.redirect_stdout(io.StringIO()) as found:
        exec(compile(example.text, "README.md", "exec"), {})
    assert_prints(found.getvalue(), printed.text)
