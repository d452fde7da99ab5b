"""What `make dist` publishes: its contents, README as PyPI renders it, and README's example in an
empty environment.

python tests/support/dist.py python3.11 python3.12 …   # after `python -m build`, with `readme_renderer[md]` installed
"""

import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from readme_renderer import markdown

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 1e6
FILES = {".py", ".typed", ".cu", ".cuh", ".properties", ".html", ".js"}
BESIDE = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "PKG-INFO"}


def package():
    """The files of the package in this checkout."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "onebit_spark").rglob("*")
        if path.suffix in FILES
    }
    assert {Path(name).suffix for name in found} == FILES
    return found


def check_wheel(path):
    with zipfile.ZipFile(path) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(wheel.read(metadata))
    beside = {name.partition("/")[2] for name in names if ".dist-info/" in name}
    assert beside >= {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}, beside
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == package(), inside ^ package()
    page = markdown.render(told.get_payload(decode=True).decode())
    assert page is not None
    dead = [
        link
        for link in re.findall(r'(?:href|src)="([^"]*)"', page)
        if not link.startswith(("https://", "#"))
    ]
    assert not dead, f"PyPI would show these links, which lead nowhere: {dead}"
    assert "<pre" in page
    assert "<table" in page
    return (
        f"{len(names)} files, README renders to {len(page) / 1000:.0f} kB of HTML without a "
        "dead link"
    )


def check_sdist(path):
    with tarfile.open(path) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    inside = {name for name in names if name.startswith("onebit_spark/")}
    assert inside == package(), inside ^ package()
    assert names >= BESIDE, BESIDE - names
    folders = {name.partition("/")[0] for name in names if "/" in name}
    assert folders <= {"onebit_spark", "jobs", "conf", "docs"}, folders
    return f"{len(names)} files, none of them a test"


def example():
    """README's first example, and what it prints."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL).groups()


def install(python, path, folder):
    """Install into an empty environment, run the example, and say what it took."""
    code, expected = example()
    subprocess.run([python, "-m", "venv", folder / "env"], check=True)
    inside = folder / "env" / "bin" / "python"
    site = next((folder / "env").glob("lib/python*/site-packages"))
    empty = size(site)
    began = time.perf_counter()
    subprocess.run(
        [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", path], check=True
    )
    installed = time.perf_counter()
    work = folder / "work"
    work.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean["ONEBIT_CACHE"] = str(folder / "cache")
    command = [inside, "-c", code]
    printed = subprocess.run(
        command, cwd=work, env=clean, check=True, capture_output=True, text=True
    ).stdout
    assert printed == expected, f"README's example printed\n{printed}"
    seconds = installed - began
    megabytes = (size(site) - empty) / MEGABYTE
    took = time.perf_counter() - installed
    return (
        f"installed in {seconds:.0f} s, {megabytes:.0f} MB; README's example prints what it "
        f"should, in {took:.0f} s"
    )


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main(pythons):
    wheel = next((ROOT / "dist").glob("*.whl"))
    sdist = next((ROOT / "dist").glob("*.tar.gz"))
    for path, check in ((wheel, check_wheel), (sdist, check_sdist)):
        print(f"{path.name}: {path.stat().st_size / MEGABYTE:.1f} MB, {check(path)}", flush=True)
    tried = 0
    for python in pythons:
        try:
            version = subprocess.run(
                [python, "--version"], check=True, capture_output=True, text=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            print(f"{python}: not on this machine")
            continue
        for path in (wheel, sdist):
            with tempfile.TemporaryDirectory() as folder:
                print(f"{version}, {path.name}: {install(python, path, Path(folder))}", flush=True)
        tried += 1
    return 0 if tried else f"none of {', '.join(pythons)} is on this machine"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
