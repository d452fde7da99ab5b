"""Paths without a JVM: what a model folder needs of a file system."""

import pyarrow as pa
import pytest

from onebit_spark.platform.file_systems import ArrowPath


def test_a_file(tmp_path):
    there = ArrowPath(str(tmp_path / "new" / "a.json"))
    assert not there.exists()
    there.write(b"one")
    there.write(b"two")
    assert (there.read(), there.is_folder(), there.name, there.scheme) == (b"two", False, "a.json", "file")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]  # nothing half-written is left
    there.delete()
    there.delete()
    assert not there.exists()


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """/dev/full is always full."""
    (tmp_path / ".a.json.writing").symlink_to("/dev/full")
    there = ArrowPath(str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(OSError, match="No space left"):
        there.write(b"new")
    assert (tmp_path / "a.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_is_moved_and_deleted(tmp_path):
    for name in ("a", "b"):
        ArrowPath(f"file:{tmp_path}/old/{name}").write(b"x")
    old, new = ArrowPath(f"{tmp_path}/old"), ArrowPath(f"{tmp_path}/new")
    assert sorted(old.children()) == [f"file:{tmp_path}/old/a", f"file:{tmp_path}/old/b"]
    old.move_to(new)
    assert (old.exists(), new.is_folder(), ArrowPath(new.uri).uri) == (False, True, new.uri)
    assert ArrowPath(f"{new.uri}/a").parent == new.uri
    assert ArrowPath(ArrowPath("/model").parent).uri == "file:/"
    new.delete()
    assert not new.exists()


def test_the_same_uri_for_the_same_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {
        ArrowPath(path).uri for path in ("m", "./m", f"{tmp_path}/m", f"file:{tmp_path}/m", f"file://{tmp_path}/m")
    } == {f"file:{tmp_path}/m"}


@pytest.mark.parametrize(("path", "reason"), [("", "empty"), ("nosuch://a/b", "Unrecognized filesystem")])
def test_what_is_no_path(path, reason):
    with pytest.raises((OSError, pa.ArrowInvalid), match=reason):
        ArrowPath(path)
