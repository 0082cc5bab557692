//! The writer against a disk that tears, fills up and refuses.

use super::*;
use crate::store::testing::{MemoryDisk, TENANT, any_fact, at, hold, usage_line};
use proptest::prelude::*;

fn open_with(disk: &MemoryDisk, limits: Limits) -> (Writer, Recovery) {
    Writer::open(Arc::new(disk.clone()), limits, at(0)).expect("opens")
}

fn open(disk: &MemoryDisk) -> (Writer, Recovery) {
    open_with(disk, Limits::default())
}

fn spent(book: &Book) -> i128 {
    book.tenants.get(&TENANT.into()).map_or(0, |page| page.spent.units())
}

/// Asserts that starting again from the disk yields the writer's book once open holds are gone.
#[track_caller]
fn check_restart(disk: &MemoryDisk, writer: &Writer) {
    let (_, recovery) = open(&disk.after_reboot());
    let mut expected = writer.book().clone();
    let open: Vec<HoldRecord> = expected.open_holds().cloned().collect();
    open.iter().for_each(|hold| expected.apply(&release(hold, at(0))));
    assert_eq!(recovery.book, expected);
    assert_eq!(recovery.torn, None);
}

#[test]
fn a_restart_knows_what_was_spent_and_releases_what_was_open() {
    let disk = MemoryDisk::default();
    let (mut writer, recovery) = open(&disk);
    assert_eq!((recovery.released.len(), recovery.torn), (0, None));
    writer.append_all(&[hold(1, 9), hold(2, 9)]).expect("written");
    writer.append_all(&[usage_line(1, 5)]).expect("written");
    let (writer, recovery) = open(&disk.after_reboot());
    assert_eq!(recovery.released.iter().map(|hold| hold.hold.0).collect::<Vec<_>>(), [2]);
    assert_eq!(spent(writer.book()), 5);
    assert_eq!(writer.book().open_holds().count(), 0);
    assert_eq!(writer.book().last_hold, 2, "ids go on from here");
}

#[test]
fn releases_by_a_restart_are_on_the_record() {
    let disk = MemoryDisk::default();
    open(&disk).0.append_all(&[hold(1, 9)]).expect("written");
    open(&disk);
    let text = String::from_utf8(disk.bytes(1)).expect("text");
    assert!(text.contains(r#""kind":"release""#) && text.contains(r#""reason":"crash""#), "{text}");
    assert_eq!(open(&disk).1.released, [], "once");
}

#[test]
fn a_tail_cut_at_every_byte_loses_that_record_alone() {
    let disk = MemoryDisk::default();
    let (mut writer, _) = open(&disk);
    writer.append_all(&[hold(1, 9), usage_line(1, 5)]).expect("written");
    let kept = disk.bytes(1).len();
    writer.append_all(&[usage_line(2, 7)]).expect("written");
    let whole = disk.bytes(1);
    for cut in kept..whole.len() {
        let torn = MemoryDisk::default();
        torn.put(1, &whole[..cut]);
        let (mut writer, recovery) = open(&torn);
        assert_eq!(spent(&recovery.book), 5, "cut at {cut}");
        let expected = (cut > kept).then(|| Torn { path: torn.path(1), line: 4, bytes: (cut - kept) as u64 });
        assert_eq!(recovery.torn, expected, "cut at {cut}");
        writer.append_all(&[usage_line(3, 1)]).expect("written");
        assert_eq!(spent(&open(&torn).1.book), 6, "the next record is sound");
    }
}

#[test]
fn damage_before_sound_lines_stops_the_start() {
    let disk = MemoryDisk::default();
    open(&disk).0.append_all(&[usage_line(1, 5), usage_line(2, 5)]).expect("written");
    let mut bytes = disk.bytes(1);
    let second = bytes.iter().position(|b| *b == b'\n').expect("newline") + 20;
    bytes[second] ^= 1;
    disk.put(1, &bytes);
    let error = Writer::open(Arc::new(disk), Limits::default(), at(0)).err().expect("refused");
    assert_eq!(error.to_string(), "00000001.jsonl: line 2 is damaged, and sound lines follow it");
}

#[test]
fn a_segment_without_a_sound_line_gives_way_to_the_one_before() {
    for rest in ["", "0badc0de {\"kind\":\"snap", "\0\0\0\0"] {
        let disk = MemoryDisk::default();
        open(&disk).0.append_all(&[usage_line(1, 5)]).expect("written");
        disk.put(2, rest.as_bytes());
        let (mut writer, recovery) = open(&disk);
        assert_eq!((spent(&recovery.book), recovery.torn.is_some()), (5, !rest.is_empty()));
        writer.append_all(&[usage_line(2, 1)]).expect("written");
        assert_eq!(spent(&open(&disk).1.book), 6);
    }
}

#[test]
fn a_segment_that_begins_otherwise_is_not_guessed_at() {
    let (disk, mut line) = (MemoryDisk::default(), Vec::new());
    encode_line(&mut line, &usage_line(1, 5)).expect("encodes");
    disk.put(1, &line);
    let error = Writer::open(Arc::new(disk), Limits::default(), at(0)).err().expect("refused");
    assert!(error.to_string().contains("begin with a snapshot"), "{error}");
}

#[test]
fn a_full_segment_or_a_new_day_starts_the_next_with_a_snapshot() {
    let disk = MemoryDisk::default();
    let (mut writer, _) = open_with(&disk, Limits { segment_bytes: 2_000, ..Limits::default() });
    for id in 1..=40 {
        writer.append_all(&[usage_line(id, 1)]).expect("written");
    }
    let segments = disk.segments().expect("listed");
    assert!((4..12).contains(&segments.len()), "{segments:?}");
    check_restart(&disk, &writer);
    assert_eq!(spent(writer.book()), 40);
    for segment in segments {
        let text = String::from_utf8(disk.bytes(segment)).expect("text");
        assert_eq!(text.matches(r#""kind":"snapshot""#).count(), 1, "{text}");
    }

    let disk = MemoryDisk::default();
    let (mut writer, _) = open(&disk);
    writer.append_all(&[usage_line(1, 1)]).expect("written");
    writer.append_all(&[usage_line(utc::DAY_MS as u64 - 1, 1)]).expect("written");
    assert_eq!(disk.segments().expect("listed"), [1]);
    for (day, segments) in [(1, vec![1, 2]), (1, vec![1, 2]), (2, vec![1, 2, 3]), (4, vec![1, 2, 3, 4])] {
        writer.append_all(&[usage_line(utc::DAY_MS as u64 * day, 1)]).expect("written");
        assert_eq!(disk.segments().expect("listed"), segments, "day {day}");
    }
    check_restart(&disk, &writer);
}

#[test]
fn what_the_disk_refuses_is_kept_and_written_first() {
    for room in 0..400 {
        let disk = MemoryDisk::default();
        let (mut writer, _) = open(&disk);
        let clean = disk.bytes(1).len();
        disk.set_room(Some(room));
        let error = writer.append_all(&[hold(1, 9), usage_line(1, 5)]).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(!writer.is_drained());
        assert_eq!(disk.bytes(1).len(), clean, "W2 with room for {room}");
        assert_eq!(spent(writer.book()), 5, "W1");
        disk.set_room(Some(room));
        disk.set_no_truncate(true);
        writer.append_all(&[usage_line(2, 7)]).expect_err("still full, and what it took cannot be cut off");
        disk.set_room(None);
        writer.append_all(&[usage_line(3, 1)]).expect_err("nothing is written after an unfinished line");
        disk.set_no_truncate(false);
        writer.append_all(&[usage_line(4, 1)]).expect("room again");
        assert!(writer.is_drained());
        assert_eq!(spent(writer.book()), 14);
        check_restart(&disk, &writer);
    }
}

#[test]
fn the_backlog_is_bounded_and_says_so() {
    let disk = MemoryDisk::default();
    let (mut writer, _) = open_with(&disk, Limits { backlog_bytes: 1_000, ..Limits::default() });
    disk.set_room(Some(0));
    let kinds: Vec<io::ErrorKind> =
        (1..=6).map(|id| writer.append_all(&[usage_line(id, 1)]).expect_err("full").kind()).collect();
    let kept = kinds.iter().filter(|kind| **kind == io::ErrorKind::StorageFull).count();
    assert!((2..6).contains(&kept), "{kinds:?}");
    assert!(kinds[kept..].iter().all(|kind| *kind == io::ErrorKind::OutOfMemory), "{kinds:?}");
    assert_eq!(spent(writer.book()), kept as i128, "what was refused is not in the book");
    disk.set_room(None);
    writer.append_all(&[usage_line(9, 1)]).expect("room again");
    check_restart(&disk, &writer);
}

#[test]
fn a_disk_too_full_for_a_new_segment_goes_on_with_the_old() {
    let disk = MemoryDisk::default();
    let (mut writer, _) = open_with(&disk, Limits { segment_bytes: 1, ..Limits::default() });
    disk.set_room(Some(0));
    writer.append_all(&[usage_line(1, 1)]).expect_err("full");
    disk.set_room(None);
    writer.append_all(&[usage_line(2, 1)]).expect("written");
    assert_eq!(disk.segments().expect("listed"), [1]);
    check_restart(&disk, &writer);
}

proptest! {
    #[test]
    fn any_history_reads_back_the_same(
        batches in prop::collection::vec(prop::collection::vec(any_fact(), 1..4), 1..12),
        segment_bytes in 500..5_000_u64,
    ) {
        let disk = MemoryDisk::default();
        let (mut writer, _) = open_with(&disk, Limits { segment_bytes, ..Limits::default() });
        for batch in &batches {
            writer.append_all(batch).expect("written");
        }
        check_restart(&disk, &writer);
    }
}
