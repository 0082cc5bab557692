//! The journal's folder: numbered segments and the lock that keeps a second writer out. Moves bytes; knows no records.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::segment::StoreError;
use crate::pure::time::Wall;
use crate::pure::utc;

/// Where segments live. Tests put a failing one in its place.
pub trait Disk: Send + Sync {
    /// Numbers of the segments, ascending.
    ///
    /// # Errors
    /// Those of the system.
    fn segments(&self) -> io::Result<Vec<u64>>;

    /// A segment from its start.
    ///
    /// # Errors
    /// Those of the system.
    fn read(&self, segment: u64) -> io::Result<Box<dyn BufRead + '_>>;

    /// Makes a segment that begins with `first`. It appears whole or not at all as far as the process's own death goes.
    ///
    /// # Errors
    /// Those of the system.
    fn create(&self, segment: u64, first: &[u8]) -> io::Result<Arc<dyn SegmentFile>>;

    /// Opens a segment for appending after its first `keep` bytes and cuts off the rest.
    ///
    /// # Errors
    /// Those of the system.
    fn reopen(&self, segment: u64, keep: u64) -> io::Result<Arc<dyn SegmentFile>>;

    /// Takes a segment out of the journal without destroying it.
    ///
    /// # Errors
    /// Those of the system.
    fn set_aside(&self, segment: u64) -> io::Result<()>;

    /// Makes the existence of segments survive a power cut.
    ///
    /// # Errors
    /// Those of the system.
    fn sync_folder(&self) -> io::Result<()>;

    /// A segment's path, for messages.
    fn path(&self, segment: u64) -> PathBuf;
}

/// An open segment.
pub trait SegmentFile: Send + Sync {
    /// Writes at the end, in one system call unless the system takes only a part.
    ///
    /// # Errors
    /// Those of the system; a part may have been written.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file to `len` bytes.
    ///
    /// # Errors
    /// Those of the system.
    fn truncate(&self, len: u64) -> io::Result<()>;

    /// Returns once all that was appended is on the device.
    ///
    /// # Errors
    /// Those of the system.
    fn sync(&self) -> io::Result<()>;
}

impl SegmentFile for File {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut file: &File = self;
        file.write_all(bytes)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A folder that may be read while a gateway writes to it.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder at `path`, which need not exist.
    pub fn new(path: &Path) -> Folder {
        Folder { path: path.to_owned() }
    }

    /// Numbers of the segments, ascending; none if there is no folder.
    ///
    /// # Errors
    /// Those of the system.
    pub fn segments(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            numbers.extend(name.to_str().and_then(segment_number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// A segment's path.
    pub fn path(&self, segment: u64) -> PathBuf {
        self.path.join(format!("{segment:08}.jsonl"))
    }

    /// What a segment begins with, without reading more of it; `None`: nothing that is whole.
    ///
    /// # Errors
    /// Those of the system.
    pub fn first(&self, segment: u64) -> io::Result<Option<First>> {
        let mut head = Vec::with_capacity(HEAD);
        File::open(self.path(segment))?.take(HEAD as u64).read_to_end(&mut head)?;
        Ok(First::read(&head))
    }

    /// A segment from its start.
    ///
    /// # Errors
    /// Those of the system.
    pub fn read(&self, segment: u64) -> io::Result<BufReader<File>> {
        File::open(self.path(segment)).map(|file| BufReader::with_capacity(1 << 16, file))
    }
}

/// Bytes of a segment that hold its first line's kind and time.
const HEAD: usize = 128;

/// A segment's first line, as far as it tells when the segment began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct First {
    /// When the segment began.
    pub time: Wall,
    /// Whether sums stand in it for records.
    pub rolled_up: bool,
}

impl First {
    fn read(head: &[u8]) -> Option<First> {
        let text = head.iter().position(|byte| *byte == b'{').and_then(|start| head.get(start..))?;
        let after = |marker: &[u8]| {
            let start = memchr::memmem::find(text, marker)? + marker.len();
            let rest = text.get(start..)?;
            std::str::from_utf8(rest.get(..memchr::memchr(b'"', rest)?)?).ok()
        };
        let time = utc::parse_stamp(after(b"\"time\":\"")?)?;
        Some(First { time, rolled_up: after(b"{\"kind\":\"")? == "rolled_up" })
    }
}

fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".jsonl")?;
    (digits.len() >= 8 && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// A folder that this process alone writes to, for as long as the value lives.
#[derive(Debug)]
pub struct LockedFolder {
    folder: Folder,
    _lock: File,
}

impl LockedFolder {
    /// Makes the folder if need be and takes its lock, which the system frees when the process ends, however it ends.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process holds it, [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<LockedFolder, StoreError> {
        fs::create_dir_all(path).map_err(StoreError::io(path))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(StoreError::io(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(LockedFolder { folder: Folder::new(path), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(StoreError::Io { path: lock_path, source }),
        }
    }
}

impl Disk for LockedFolder {
    fn segments(&self) -> io::Result<Vec<u64>> {
        self.folder.segments()
    }

    fn read(&self, segment: u64) -> io::Result<Box<dyn BufRead + '_>> {
        Ok(Box::new(self.folder.read(segment)?))
    }

    fn create(&self, segment: u64, first: &[u8]) -> io::Result<Arc<dyn SegmentFile>> {
        let path = self.folder.path(segment);
        let unfinished = path.with_extension("new");
        let file = OpenOptions::new().create(true).write(true).truncate(true).open(&unfinished)?;
        // Reopened for appending under its own name: a cut and a retry must land at the end, wherever that is by then.
        file.append(first)?;
        fs::rename(&unfinished, &path)?;
        Ok(Arc::new(OpenOptions::new().append(true).open(&path)?))
    }

    fn reopen(&self, segment: u64, keep: u64) -> io::Result<Arc<dyn SegmentFile>> {
        let file = OpenOptions::new().append(true).open(self.folder.path(segment))?;
        file.set_len(keep)?;
        Ok(Arc::new(file))
    }

    fn set_aside(&self, segment: u64) -> io::Result<()> {
        let path = self.folder.path(segment);
        fs::rename(&path, path.with_extension("damaged"))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder.path)?.sync_all()
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.folder.path(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expected: Option<u64>) {
        assert_eq!(segment_number(name), expected, "{name}");
    }

    #[test]
    fn only_numbered_segments_are_segments() {
        check("00000001.jsonl", Some(1));
        check("123456789.jsonl", Some(123_456_789));
        check("00000001.new", None);
        check("1.jsonl", None);
        check("0000000x.jsonl", None);
        check("lock", None);
        check("99999999999999999999999.jsonl", None);
    }

    #[test]
    fn a_second_writer_is_told_why_it_cannot_start() {
        let dir = tempfile::tempdir().expect("folder");
        let first = LockedFolder::open(dir.path()).expect("free");
        let refused = LockedFolder::open(dir.path()).expect_err("taken");
        assert!(matches!(refused, StoreError::Locked { .. }) && refused.to_string().contains("another gateway"));
        drop(first);
        LockedFolder::open(dir.path()).expect("free again");
    }

    #[test]
    fn an_append_after_a_cut_lands_at_the_end() {
        let dir = tempfile::tempdir().expect("folder");
        let disk = LockedFolder::open(dir.path()).expect("free");
        let file = disk.create(1, b"first").expect("created");
        file.append(b"second").expect("appended");
        file.truncate(5).expect("cut");
        file.append(b"third").expect("appended");
        assert_eq!(fs::read(disk.path(1)).expect("read"), b"firstthird");
        assert_eq!(disk.segments().expect("listed"), [1]);
    }
}
