"""Pages of the documentation site that are written elsewhere: README as its start page, and what
lies beside it.
"""

import contextlib
import io
import json
import os
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from onebit_spark.__main__ import JOBS, main
from onebit_spark.settings import Setting, declared
from onebit_spark.spark.params import TABLES, names_of_params, settings_with_params

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "index.md": "README.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
NO_PAGE = ("[Apache 2.0](LICENSE)", "[Apache License 2.0](LICENSE)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages. Their links into docs/ become links between pages."""
    for name, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](")
        for link in NO_PAGE:
            text = text.replace(link, link[1 : link.index("]")])
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "commands.md", content=commands()))
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"{path.stem}.md", content=notebook(path)))
    return files


def notebook(path: Path) -> str:
    """The cells of a notebook with the outputs that are stored in it, and a link to the file."""
    parts = [f"[This page as a notebook](notebooks/{path.name})"]
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.insert(len(parts) if len(parts) > 1 else 0, source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            else:
                parts.append(f"![](data:image/png;base64,{output['data']['image/png']})")
    return "\n\n".join(parts)


def commands() -> str:
    """What ``--help`` of every job says."""
    os.environ["COLUMNS"] = "92"
    parts = [
        "# The jobs and their flags",
        "A job file of `jobs/` takes the same flags under `spark-submit`.",
    ]
    for job, purpose in JOBS.items():
        told = io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
            main([job, "--help"])
        parts += [
            f"## onebit-spark {job}",
            f"{purpose.capitalize()}.",
            f"```text\n{told.getvalue().rstrip()}\n```",
        ]
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, **_: object) -> str:
    """README is beside docs/, and its page among them.

    Tables of settings follow from their declarations.
    """
    markdown = markdown.replace(
        "<!-- Params of OneBitCompletion -->",
        settings_table(settings_with_params(), names_of_params()),
    )
    for table in TABLES:
        names = {name: name for name in declared(table)}
        markdown = markdown.replace(
            f"<!-- settings of {table.__name__} -->", settings_table(declared(table), names)
        )
    return markdown.replace("](../README.md", "](index.md")


def settings_table(settings: dict[str, Setting], names: dict[str, str]) -> str:
    """One line per setting."""
    lines = [
        f"| `{name}` | {item.described(names)}{f' ({item.see})' if item.see else ''} | "
        f"`{item.default!r}` |"
        for name, item in settings.items()
    ]
    return "\n".join(["| setting | meaning | default |", "| --- | --- | --- |", *lines])
