"""A real standalone cluster on the loopback address, started from pyspark's own scripts."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]


@dataclass
class Cluster:
    master: str
    worker_python: Path  # an interpreter with the dependencies but without this package
    environment: dict[str, str]

    def submit(self, *arguments, timeout=240):
        """spark-submit to the cluster; returns the finished process."""
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master, *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bare_python(folder):
    """The dependencies by PYTHONPATH: .pth files are not read there, so an editable install stays invisible."""
    site_packages = Path(pyspark.__file__).parents[1]
    script = folder / "python"
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site_packages}" exec {base} "$@"\n')
    script.chmod(0o755)
    found = subprocess.run([script, "-c", "import onebit_spark"], capture_output=True, cwd=folder, check=False)
    if found.returncode == 0:
        pytest.skip("this package is installed for good in the environment: its absence on workers cannot be shown")
    return script


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.3)
    pytest.fail(f"{what} did not happen within {seconds} s")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A master and two workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    if not shutil.which("java") and "JAVA_HOME" not in os.environ:
        pytest.skip("no java")
    python = bare_python(folder)
    port, web = free_port(), free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": str(python),
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    launch = str(SPARK_HOME / "bin" / "spark-class")
    master = f"spark://127.0.0.1:{port}"
    commands = [
        [launch, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port",
         str(web)],
        *[[launch, "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port",
           str(free_port()), master]] * 2,
    ]  # fmt: skip
    processes = []
    try:
        for number, command in enumerate(commands):
            log = (folder / f"daemon-{number}.log").open("w")
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        wait_for(lambda: alive_workers(web) == 2, 60, "the registration of two workers")
        yield Cluster(master, python, environment)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def alive_workers(web):
    import json

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=2) as answer:
            return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])
    except OSError:
        return 0


@pytest.fixture(scope="session")
def package_zip(tmp_path_factory):
    """The package as a zip for --py-files: what `make dist` copies from the wheel."""
    import zipfile

    path = tmp_path_factory.mktemp("dist") / "onebit_spark.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted((ROOT / "onebit_spark").rglob("*.py")):
            archive.write(source, source.relative_to(ROOT))
    return path
