"""Paths without a JVM: what a model folder needs of a file system."""

import pytest

from onebit_spark.errors import RequestError
from onebit_spark.platform.files import Location


def test_a_file(tmp_path):
    there = Location(None, str(tmp_path / "new" / "a.json"))
    assert not there.exists()
    there.write_text("one")
    there.write_text("two")
    assert (there.read_text(), there.is_folder(), there.name, there.scheme) == ("two", False, "a.json", "file")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]  # nothing half-written is left
    there.delete()
    there.delete()
    assert not there.exists()


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """/dev/full is always full."""
    (tmp_path / ".a.json.writing").symlink_to("/dev/full")
    there = Location(None, str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(OSError, match="No space left"):
        there.write_bytes(b"new")
    assert (tmp_path / "a.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_is_moved_and_deleted(tmp_path):
    for name in ("a", "b"):
        Location(None, f"file:{tmp_path}/old/{name}").write_bytes(b"x")
    old, new = Location(None, f"{tmp_path}/old"), Location(None, f"{tmp_path}/new")
    assert sorted(place.uri for place in old.children()) == [f"file:{tmp_path}/old/a", f"file:{tmp_path}/old/b"]
    old.move_to(new)
    assert (old.exists(), new.is_folder(), Location(None, new.uri).uri) == (False, True, new.uri)
    assert (new / "a").parent.uri == new.uri
    assert Location(None, "/model").parent.uri == "file:/"
    new.delete()
    assert not new.exists()


def test_the_same_uri_for_the_same_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {
        Location(None, path).uri for path in ("m", "./m", f"{tmp_path}/m", f"file:{tmp_path}/m", f"file://{tmp_path}/m")
    } == {f"file:{tmp_path}/m"}


@pytest.mark.parametrize(("path", "reason"), [("", "empty"), ("nosuch://a/b", "Unrecognized filesystem")])
def test_what_is_no_path(path, reason):
    with pytest.raises(RequestError, match=reason):
        Location(None, path)
