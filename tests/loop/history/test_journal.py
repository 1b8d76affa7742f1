"""The journal on its own: what is on disk when, and who may write."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from bo_scale.errors import JournalError, JournalLockedError, JournalWarning
from bo_scale.loop.history.journal import Journal


def lines(folder: Path) -> list[Any]:
    """Events of a journal, without version and checksum."""
    found = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [{name: value for name, value in each.items() if name not in ("version", "crc")} for each in found]


def write(folder: Path, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "journal.jsonl").write_bytes(content)


def test_an_event_is_on_disk_and_synced_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, sizes = Journal(tmp_path / "new" / "folder"), []
    file = journal.folder / "journal.jsonl"
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (sizes.append(file.stat().st_size), real(handle)))
    for i in range(3):
        journal.append({"i": i})
        assert lines(journal.folder) == [{"i": j} for j in range(i + 1)]
        assert sizes[-1] == file.stat().st_size
    journal.close()


def test_events_survive_and_the_next_ones_follow(tmp_path: Path) -> None:
    for i in range(3):
        journal = Journal(tmp_path)
        assert journal.events == [{"i": j} for j in range(i)]
        journal.append({"i": i})
        journal.close()
    assert lines(tmp_path) == [{"i": 0}, {"i": 1}, {"i": 2}]


@pytest.mark.parametrize("torn", [b"{", b'{"i": 2', b'{"i": 2}', b"\x00\x00\x00", b"\xff"])
def test_a_torn_last_line_is_reported_and_set_aside(tmp_path: Path, torn: bytes) -> None:
    write(tmp_path, b'{"i":0}\n{"i":1}\n' + torn)
    with pytest.warns(JournalWarning, match=rf"tore off the last line after {len(torn)} bytes"):
        journal = Journal(tmp_path)
    assert journal.events == [{"i": 0}, {"i": 1}]
    journal.append({"i": 3})
    journal.close()
    assert lines(tmp_path) == [{"i": 0}, {"i": 1}, {"i": 3}]
    assert [file.read_bytes() for file in tmp_path.glob("torn-*.txt")] == [torn]


def test_a_last_line_that_lost_only_its_newline_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for i in range(2):
        journal.append({"i": i})
    journal.close()
    file = tmp_path / "journal.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert Journal(tmp_path, read_only=True).events == [{"i": 0}, {"i": 1}]
    assert file.read_bytes() == whole[:-1]
    journal = Journal(tmp_path)
    assert (journal.events, journal.checksums[-1]) == ([{"i": 0}, {"i": 1}], journal.checksum)
    assert file.read_bytes() == whole
    journal.append({"i": 2})
    journal.close()
    assert Journal(tmp_path, read_only=True).events == [{"i": 0}, {"i": 1}, {"i": 2}]


def deleted(file: Path) -> None:
    file.unlink()


def replaced(file: Path) -> None:
    copy = file.with_suffix(".copy")
    copy.write_bytes(file.read_bytes())
    os.replace(copy, file)


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def lengthened(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\n")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (deleted, "was deleted or moved"),
        (replaced, "was replaced by another file"),
        (shortened, "has .* bytes and not"),
        (lengthened, "has .* bytes and not"),
    ],
)
def test_a_file_that_somebody_changed_takes_no_event(tmp_path: Path, change: Any, what: str) -> None:
    journal, file = Journal(tmp_path), tmp_path / "journal.jsonl"
    journal.append({"i": 0})
    change(file)
    before = file.read_bytes() if file.exists() else None
    for _ in range(2):
        with pytest.raises(JournalError, match=rf"journal.jsonl: the file {what}.*to_csv.*Optimizer.open"):
            journal.append({"i": 1})
    assert (file.read_bytes() if file.exists() else None) == before
    journal.close()


def test_two_that_hold_a_journal_after_its_lock_was_deleted_do_not_write_over_each_other(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.append({"i": 0})
    (tmp_path / "lock").unlink()
    second = Journal(tmp_path)
    second.append({"i": 1})
    with pytest.raises(JournalError, match="another program wrote to it"):
        first.append({"i": 2})
    second.append({"i": 3})
    first.close()
    second.close()
    assert lines(tmp_path) == [{"i": 0}, {"i": 1}, {"i": 3}]


@pytest.mark.parametrize("bad", [b'{"i":', b"", b"\x00\x00", b"\xff\xfe", b"nonsense"])
def test_a_damaged_line_before_the_last_is_refused_and_nothing_changed(tmp_path: Path, bad: bytes) -> None:
    content = b'{"i":0}\n' + bad + b'\n{"i":2}\n'
    write(tmp_path, content)
    for _ in range(2):  # the first refusal lets go of the lock
        with pytest.raises(JournalError, match=r"line 2 is damaged\. Restore"):
            Journal(tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == content


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_an_event_that_the_disk_refuses_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    journal = Journal(tmp_path)
    journal.append({"i": 0})
    real = os.write

    def refuse(handle: int, *content: bytes) -> int:
        if content and len(content[0]) > 3:
            return real(handle, content[0][:3])  # a short write, then no more room
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match="No space"):
            journal.append({"i": 1})
    assert lines(tmp_path) == [{"i": 0}]
    journal.append({"i": 2})
    journal.close()
    assert lines(tmp_path) == [{"i": 0}, {"i": 2}]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, real = Journal(tmp_path), os.write
    monkeypatch.setattr(os, "write", lambda handle, content: real(handle, content[:2]))
    journal.append({"some": "thing"})
    journal.close()
    assert lines(tmp_path) == [{"some": "thing"}]


def test_numbers_that_are_not_json_are_refused_and_nothing_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        journal.append({"x": float("nan")})
    journal.close()
    assert lines(tmp_path) == []


def test_a_second_journal_on_one_path_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(JournalLockedError, match="another Optimizer holds this journal"):
        Journal(tmp_path)
    first.append({"i": 0})
    first.close()
    first.close()  # again: nothing happens
    second = Journal(tmp_path)
    assert second.events == [{"i": 0}]
    second.close()


def test_a_journal_may_be_closed_by_another_thread(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    thread = threading.Thread(target=journal.close)
    thread.start()
    thread.join()
    Journal(tmp_path).close()


def test_a_closed_journal_refuses_events_and_writes_into_no_other_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.close()
    others = [(tmp_path / str(i)).open("w+b") for i in range(4)]  # one gets the number that the journal's file had
    with pytest.raises(JournalError, match="closed"):
        journal.append({"i": 0})
    for other in others:
        other.close()
    assert [(tmp_path / str(i)).read_bytes() for i in range(4)] == [b""] * 4


def test_a_forked_process_does_not_write(tmp_path: Path) -> None:
    """Its parent would write over that."""
    journal = Journal(tmp_path)
    journal.append({"i": 0})
    child = os.fork()
    if child == 0:
        try:
            journal.append({"i": 1})
        except JournalLockedError as error:
            os._exit(7 if "belongs to process" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    journal.append({"i": 2})
    journal.close()
    assert Journal(tmp_path).events == [{"i": 0}, {"i": 2}]


def test_a_forked_process_that_lives_on_does_not_hold_the_journal(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    owner = os.fork()
    if owner == 0:
        Journal(tmp_path)
        if os.fork() == 0:
            os.close(writer)
            os.read(reader, 1)  # until the test is over
        os._exit(0)
    os.close(reader)
    os.waitpid(owner, 0)
    Journal(tmp_path).close()
    os.close(writer)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"is a file\. Give a folder"):
        Journal(tmp_path / "file")


# ---------------------------------------------------------------- checksums, formats, reading


def doubled(found: list[bytes]) -> list[bytes]:
    return [*found[:2], found[1], *found[2:]]


def swapped(found: list[bytes]) -> list[bytes]:
    return [found[0], found[2], found[1], found[3]]


def left_out(found: list[bytes]) -> list[bytes]:
    return [found[0], *found[2:]]


def edited(found: list[bytes]) -> list[bytes]:
    return [found[0], found[1].replace(b'"i":1', b'"i":7'), *found[2:]]


def sealed_off(found: list[bytes]) -> list[bytes]:
    return [found[0], b'{"i":1}\n', *found[2:]]


@pytest.mark.parametrize(("change", "line"), [(doubled, 3), (swapped, 2), (left_out, 2), (edited, 2), (sealed_off, 2)])
def test_lines_that_were_changed_by_hand_are_refused_by_number(tmp_path: Path, change: Any, line: int) -> None:
    journal = Journal(tmp_path)
    for i in range(4):
        journal.append({"i": i})
    journal.close()
    file = tmp_path / "journal.jsonl"
    file.write_bytes(b"".join(change(file.read_bytes().splitlines(keepends=True))))
    with pytest.raises(JournalError, match=rf"line {line} (was edited|has lost)"):
        Journal(tmp_path)


def test_lines_of_older_formats_are_read_and_later_ones_sealed(tmp_path: Path) -> None:
    write(tmp_path, b'{"i":0}\n{"i":1}\n')
    journal = Journal(tmp_path)
    journal.append({"i": 2})
    journal.close()
    file = tmp_path / "journal.jsonl"
    again = Journal(tmp_path)
    again.close()
    assert again.events == [{"i": 0}, {"i": 1}, {"i": 2}]
    file.write_bytes(file.read_bytes().replace(b'{"i":0}', b'{"i":9}'))  # an old line, sealed by the new one
    with pytest.raises(JournalError, match="line 3 was edited"):
        Journal(tmp_path)


def test_a_journal_of_a_newer_format_says_upgrade(tmp_path: Path) -> None:
    write(tmp_path, b'{"event":"begin","format":4,"version":"9.1"}\n')
    with pytest.raises(JournalError, match=r"format 4 by bo_scale 9\.1.* Upgrade"):
        Journal(tmp_path)


def test_reading_takes_no_lock_and_leaves_a_torn_line_where_it_is(tmp_path: Path) -> None:
    writer = Journal(tmp_path)
    writer.append({"i": 0})
    file = tmp_path / "journal.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"i":')  # as if half of the next line were on disk
    reader = Journal(tmp_path, read_only=True)
    assert reader.events == [{"i": 0}]
    assert file.read_bytes() == whole + b'{"i":'
    with pytest.raises(JournalError, match="mode='r'"):
        reader.append({"i": 1})
    reader.close()
    file.write_bytes(whole)
    writer.append({"i": 1})
    assert Journal(tmp_path, read_only=True).events == [{"i": 0}, {"i": 1}]
    with pytest.raises(JournalError, match="no journal"):
        Journal(tmp_path / "other", read_only=True)
    writer.close()
