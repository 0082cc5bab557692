//! Request bodies that wait on disk instead of in memory: unlinked files, so that nothing is left behind whatever ends
//! the process. Owns writing and reading by range; refuses to know what the bytes mean and when to spool.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use actix_web::rt::task::spawn_blocking;
use bytes::{Bytes, BytesMut};

/// Bytes that are gathered before they are written: one write in the size of a few pages of a body.
const BLOCK: usize = 256 * 1024;

/// Ranges are read in one go if what lies between them is at most this much, bytes.
const GAP: usize = 4096;

/// A spool that is being written.
pub struct SpoolWriter {
    file: Arc<File>,
    written: u64,
    pending: BytesMut,
}

/// A finished spool. Its space on disk is free again when the last clone is dropped.
#[derive(Clone)]
pub struct Spool {
    file: Arc<File>,
}

/// A piece of a spool.
#[derive(Clone, PartialEq, Eq)]
pub struct Spooled {
    spool: Spool,
    range: Range<usize>,
}

impl PartialEq for Spool {
    fn eq(&self, other: &Spool) -> bool {
        Arc::ptr_eq(&self.file, &other.file)
    }
}

impl Eq for Spool {}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spool")
    }
}

impl fmt::Debug for Spooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spooled({:?})", self.range)
    }
}

/// A blocking step on a thread that may block.
async fn blocking<T: Send + 'static>(step: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(step).await.unwrap_or_else(|_panicked| Err(io::Error::other("a blocking step did not end")))
}

impl SpoolWriter {
    /// An empty spool in `folder`; `None`: the system's temporary folder.
    ///
    /// # Errors
    /// The folder is missing, read-only or full.
    ///
    /// # Cancel safety
    /// Safe: a file that was made is gone with the future.
    pub async fn create(folder: Option<PathBuf>) -> io::Result<SpoolWriter> {
        let file = blocking(move || tempfile::tempfile_in(folder.unwrap_or_else(std::env::temp_dir))).await?;
        Ok(SpoolWriter { file: Arc::new(file), written: 0, pending: BytesMut::new() })
    }

    /// Appends `piece`.
    ///
    /// # Errors
    /// The disk is full or broken; the spool is of no use then.
    ///
    /// # Cancel safety
    /// The spool is of no use after a dropped call.
    pub async fn push(&mut self, piece: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(piece);
        if self.pending.len() >= BLOCK { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let block = std::mem::take(&mut self.pending);
        let (file, at) = (Arc::clone(&self.file), self.written);
        self.written += block.len() as u64;
        self.pending = blocking(move || {
            file.write_all_at(&block, at)?;
            let mut emptied = block;
            emptied.clear();
            Ok(emptied)
        })
        .await?;
        Ok(())
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// As of [`Self::push`].
    ///
    /// # Cancel safety
    /// The spool is of no use after a dropped call.
    pub async fn finish(mut self) -> io::Result<Spool> {
        self.flush().await?;
        Ok(Spool { file: self.file })
    }
}

impl Spool {
    /// Names a piece.
    pub fn piece(&self, range: Range<usize>) -> Spooled {
        Spooled { spool: self.clone(), range }
    }

    /// Reads pieces, in the order of `ranges`. Neighbours share one allocation.
    ///
    /// # Errors
    /// A range lies outside, or the disk is broken.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&self, ranges: Vec<Range<usize>>) -> io::Result<Vec<Bytes>> {
        let file = Arc::clone(&self.file);
        blocking(move || read_all(&file, &ranges)).await
    }
}

impl Spooled {
    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Reads it, blocking: for a thread that may block, or for a piece that is small.
    ///
    /// # Errors
    /// It lies outside the spool, or the disk is broken.
    pub fn read(&self) -> io::Result<Bytes> {
        read_one(&self.spool.file, &self.range)
    }

    /// The spool it is a piece of, and where it lies there.
    pub fn place(&self) -> (&Spool, &Range<usize>) {
        (&self.spool, &self.range)
    }
}

fn read_one(file: &File, range: &Range<usize>) -> io::Result<Bytes> {
    let mut buffer = vec![0; range.len()];
    file.read_exact_at(&mut buffer, range.start as u64)?;
    Ok(Bytes::from(buffer))
}

fn read_all(file: &File, ranges: &[Range<usize>]) -> io::Result<Vec<Bytes>> {
    let mut pieces = Vec::with_capacity(ranges.len());
    let mut rest = ranges;
    while let Some(first) = rest.first() {
        let neighbours = 1 + rest.windows(2).take_while(|pair| are_neighbours(&pair[0], &pair[1])).count();
        let (group, later) = rest.split_at(neighbours);
        let end = group.last().map_or(first.end, |last| last.end);
        let block = read_one(file, &(first.start..end))?;
        pieces.extend(group.iter().map(|range| block.slice(range.start - first.start..range.end - first.start)));
        rest = later;
    }
    Ok(pieces)
}

fn are_neighbours(one: &Range<usize>, next: &Range<usize>) -> bool {
    one.start <= one.end && next.start <= next.end && (one.end..=one.end.saturating_add(GAP)).contains(&next.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn spooled(text: &[u8]) -> Spool {
        let mut writer = SpoolWriter::create(None).await.expect("a file");
        for piece in text.chunks(100_000) {
            writer.push(piece).await.expect("written");
        }
        writer.finish().await.expect("written")
    }

    #[actix_web::test]
    async fn pieces_come_back_in_the_order_asked_for() {
        let text: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        let spool = spooled(&text).await;
        let ranges = vec![10..20, 21..50, 700_000..900_000, 5..6, 0..0, 999_999..1_000_000];
        let pieces = spool.read(ranges.clone()).await.expect("read");
        for (range, piece) in ranges.into_iter().zip(&pieces) {
            assert_eq!(&piece[..], &text[range.clone()], "{range:?}");
            assert_eq!(spool.piece(range).read().expect("read"), piece);
        }
    }

    #[actix_web::test]
    async fn outside_is_an_error_and_a_missing_folder_too() {
        let spool = spooled(b"abc").await;
        spool.read(vec![0..2, 2..4]).await.expect_err("one byte too far");
        let missing = PathBuf::from("/nonexistent/folder");
        assert!(SpoolWriter::create(Some(missing)).await.is_err());
    }
}
