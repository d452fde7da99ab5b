"""A real standalone cluster on loopback addresses, one a session, and the package as a zip."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest
from support.standalone import Cluster, without_pythonpath

ROOT = Path(__file__).parents[2]


def bare_python(folder):
    """The dependencies by PYTHONPATH: .pth files are not read there, so an editable install stays
    invisible.
    """
    site_packages = Path(pyspark.__file__).parents[1]
    script = folder / "python"
    base = (
        Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    )
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site_packages}" exec {base} "$@"\n')
    script.chmod(0o755)
    command = [script, "-c", "import onebit_spark"]
    found = subprocess.run(
        command, env=without_pythonpath(), capture_output=True, cwd=folder, check=False
    )
    if found.returncode == 0:
        pytest.skip(
            "this package is installed for good in the environment: its absence on workers cannot "
            "be shown"
        )
    return script


@pytest.fixture(scope="session")
def session_cluster(tmp_path_factory):
    if not shutil.which("java") and "JAVA_HOME" not in os.environ:
        pytest.skip("no java")
    if not sys.platform.startswith("linux"):
        pytest.skip("each worker needs a loopback address of its own, which only Linux has ready")
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder, bare_python(folder))
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(session_cluster):
    """Whole and idle, whatever was killed before."""
    session_cluster.make_whole()
    return session_cluster


@pytest.fixture(scope="session")
def package_zip(tmp_path_factory):
    """The package as a zip for --py-files: what `make dist` copies from the wheel."""
    path = tmp_path_factory.mktemp("dist") / "onebit_spark.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted((ROOT / "onebit_spark").rglob("*")):
            if source.is_file() and source.suffix != ".pyc":
                archive.write(source, source.relative_to(ROOT))
    return path
