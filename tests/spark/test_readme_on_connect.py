"""The examples of README, the second on a session of Spark Connect. On a classic one they run with the other guides."""

import contextlib
import io

import pytest
from guides import ROOT, assert_prints, snippets


@pytest.mark.connect
def test_the_examples_print_what_the_readme_says(spark):
    known, found = {}, []
    for snippet in snippets(ROOT / "README.md"):
        if snippet.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(snippet.text, "README.md", "exec"), known)
            found.append(printed.getvalue())
        elif snippet.kind == "output":
            assert_prints(found[-1], snippet.text)
    assert len(found) == 2
