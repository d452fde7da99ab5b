"""Cores and memory, also where a container has less than its machine."""

import pytest

from onebit_spark.core import config as core_config


@pytest.fixture
def container(tmp_path, monkeypatch):
    monkeypatch.setattr(core_config, "CGROUP", tmp_path)
    monkeypatch.setattr(core_config, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8000 kB\n")
    monkeypatch.setattr(core_config.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    return tmp_path


def test_without_a_container(container):
    assert core_config.available_cores() == 8
    assert core_config.available_memory() == 8000 * 1024


def test_version_2(container):
    (container / "cpu.max").write_text("250000 100000\n")
    (container / "memory.max").write_text("4000000\n")
    (container / "memory.current").write_text("3000000\n")
    (container / "memory.stat").write_text("anon 1\ninactive_file 500000\nactive_file 7\n")
    assert core_config.available_cores() == 2
    assert core_config.available_memory() == 1_500_000


def test_version_2_without_limits(container):
    (container / "cpu.max").write_text("max 100000\n")
    (container / "memory.max").write_text("max\n")
    (container / "memory.current").write_text("3000000\n")
    assert core_config.available_cores() == 8
    assert core_config.available_memory() == 8000 * 1024


def test_version_1(container):
    (container / "cpu").mkdir()
    (container / "memory").mkdir()
    (container / "cpu" / "cpu.cfs_quota_us").write_text("100000")
    (container / "cpu" / "cpu.cfs_period_us").write_text("100000")
    (container / "memory" / "memory.limit_in_bytes").write_text("2000000")
    (container / "memory" / "memory.usage_in_bytes").write_text("2500000")
    (container / "memory" / "memory.stat").write_text("total_inactive_file 100000\n")
    assert core_config.available_cores() == 1
    assert core_config.available_memory() == 0


def test_where_there_is_no_linux(container):
    (container / "meminfo").unlink()
    assert core_config.available_memory() > 2**20
