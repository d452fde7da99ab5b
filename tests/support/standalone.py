"""A master and workers on loopback addresses, from pyspark's own scripts; they can be killed and
replaced.
"""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path

import pyspark
import pytest

from support.jvm import QUICK

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = ("127.0.0.1", "127.0.0.2")  # an address each: Spark speculates only on another host


class Cluster:
    """A master and two workers of one core each. ``python`` is the workers' interpreter."""

    def __init__(self, folder, python):
        self._folder = folder
        port = free_port()
        self._web = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self.environment = {
            **without_pythonpath(),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),  # who is killed does not tidy up
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_SUBMIT_OPTS": QUICK,
            "PYSPARK_PYTHON": str(python),
            "SPARK_WORKER_DIR": str(folder / "work"),
        }
        self._started = 0
        self._workers = {}  # address ─► process
        self._master = self._daemon(
            "master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            port,
            "--webui-port",
            self._web,
            address="127.0.0.1",
        )

    def submit(self, *arguments, timeout=1200):
        """spark-submit to the cluster; returns the finished process."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def command(self, *arguments):
        return [
            str(SPARK_HOME / "bin" / "spark-submit"),
            "--master",
            self.master,
            *map(str, arguments),
        ]

    def make_whole(self):
        """Start the workers that are missing, and wait until all are idle."""
        self._start_workers()
        wait_for(
            self._is_whole,
            60,
            f"the registration of {len(WORKERS)} workers, and an end of what ran there",
        )

    def kill_worker(self, executor):
        """kill −9 of an executor's worker: the daemon, the executor and its Python processes."""
        address = next(
            a for a, worker in self._workers.items() if executor in descendants(worker.pid)
        )
        worker = self._workers.pop(address)
        kill(worker.pid, *descendants(worker.pid))
        worker.wait()

    def replace_worker(self, executor):
        """``kill_worker``, and start another in its place.

        The application gets an executor there.
        """
        self.kill_worker(executor)
        self._start_workers()

    def kill_executor(self, executor):
        """kill −9 of an executor and its Python processes; its worker goes on, and starts
        another.
        """
        kill(executor, *descendants(executor))

    def executors(self):
        """The processes of the executors that run now."""
        return [
            executor
            for worker in self._workers.values()
            for executor in descendants(worker.pid)[:1]
        ]

    def close(self):
        for process in (*self._workers.values(), self._master):
            kill(process.pid, *descendants(process.pid))
            process.wait()

    def _start_workers(self):
        for address in WORKERS:
            if address not in self._workers:
                self._workers[address] = self._daemon(
                    "worker.Worker",
                    "--host",
                    address,
                    "--cores",
                    1,
                    "--memory",
                    "1g",
                    "--webui-port",
                    0,
                    self.master,
                    address=address,
                )

    def _daemon(self, name, *arguments, address):
        command = [
            str(SPARK_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            *map(str, arguments),
        ]
        log = self._folder / f"daemon-{self._started}.log"
        self._started += 1
        with log.open("w") as stream:
            return subprocess.Popen(
                command,
                env={**self.environment, "SPARK_LOCAL_IP": address},
                stdout=stream,
                stderr=stream,
            )

    def _is_whole(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=2) as answer:
                state = json.load(answer)
        except (OSError, ValueError):  # the page of a master that is starting may be no JSON yet
            return False
        alive = [worker for worker in state["workers"] if worker["state"] == "ALIVE"]
        return (
            len(alive) == len(WORKERS)
            and not state["activeapps"]
            and not any(worker["coresused"] for worker in alive)
        )


def unfinished_tasks(executor, stages):
    """The tasks of these stages that an executor has begun and has not reported as finished, from
    its own log.

    An executor logs that a task has finished before it tells the driver.
    """
    log = Path(f"/proc/{executor}/cwd/stderr")  # an executor runs in the folder of its logs
    try:
        text = log.read_text()
    except OSError:  # it has ended
        return set()
    task = rf"task (\S+ in stage (?:{'|'.join(map(str, stages))})\.\S+ \(TID \d+\))"
    return set(re.findall(f"Running {task}", text)) - set(re.findall(f"Finished {task}", text))


def without_pythonpath():
    """The environment, without a way to this package."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def free_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, seconds, what, every=0.3):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(every)
    pytest.fail(f"{what} did not happen within {seconds} s")


def descendants(pid):
    """The living processes below this one, parents before their children."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    children = defaultdict(list)
    for child, parent, state in map(str.split, listed.splitlines()):
        if not state.startswith("Z"):
            children[int(parent)].append(int(child))
    found = [pid]
    for parent in found:
        found += children[parent]
    return found[1:]


def kill(*pids):
    send(signal.SIGKILL, pids)


def send(number, pids):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
