//! Where a body is kept while it arrives: in memory as long as the budget of all bodies has room for it, on disk beyond.

use std::path::PathBuf;

use bytes::{Bytes, BytesMut};

use super::budget::BodyShare;
use crate::edge::scan::{Items, Member, Scan};
use crate::error::{ApiError, Code};
use crate::spool::{Spool, SpoolWriter};

/// A body whose length was not announced, or which is compressed, stays in memory up to this many bytes: growing further
/// would need room for the old and the new copy at once.
const MOST_UNANNOUNCED: u64 = 4 << 20;

/// Everything but the inputs of a spooled body is kept in memory, and may have this many bytes.
const MOST_BESIDE_INPUTS: usize = 1 << 20;

/// May a body go to disk, and where?
#[derive(Debug, Clone)]
pub enum Overflow {
    /// It must lie in memory or be refused: its texts are looked at again.
    Refuse,
    /// To a file in this folder; `None`: the system's temporary one.
    Spool(Option<PathBuf>),
}

enum Place {
    Memory(BytesMut),
    Disk(SpoolWriter),
}

/// A body that is arriving.
pub struct Store {
    place: Place,
    share: BodyShare,
    announced: Option<u64>,
    overflow: Overflow,
}

/// A body that is complete.
pub struct Stored {
    /// The body; of a spooled one, with an empty list in the place of its inputs.
    pub bytes: Bytes,
    /// Where its members are in `bytes`, and where its inputs are.
    pub scan: Scan,
    /// Its share of the budget.
    pub share: BodyShare,
}

impl Store {
    /// A place for a body of `announced` bytes, as it will be kept; `None`: that is not known yet.
    ///
    /// # Errors
    /// 503 if there is room neither in memory nor on disk.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn new(announced: Option<u64>, mut share: BodyShare, overflow: Overflow) -> Result<Store, ApiError> {
        let length = announced.unwrap_or(0);
        let place = if share.grow_to(length) {
            Place::Memory(BytesMut::with_capacity(usize::try_from(length).unwrap_or(0)))
        } else {
            Place::Disk(spool(&overflow).await?)
        };
        Ok(Store { place, share, announced, overflow })
    }

    /// Keeps the next piece of a body that has `length` bytes with it.
    ///
    /// # Errors
    /// As of [`Self::new`].
    ///
    /// # Cancel safety
    /// Drop the store with the future.
    pub async fn push(&mut self, piece: &[u8], length: u64) -> Result<(), ApiError> {
        let stays = matches!(self.place, Place::Memory(_)) && self.may_stay(length);
        match &mut self.place {
            Place::Memory(bytes) if stays => bytes.extend_from_slice(piece),
            Place::Disk(writer) => writer.push(piece).await.map_err(no_room)?,
            Place::Memory(bytes) => {
                let earlier = std::mem::take(bytes);
                let mut writer = spool(&self.overflow).await?;
                writer.push(&earlier).await.map_err(no_room)?;
                writer.push(piece).await.map_err(no_room)?;
                self.place = Place::Disk(writer);
                drop(earlier);
                self.share.shrink_to(0);
            }
        }
        Ok(())
    }

    fn may_stay(&mut self, length: u64) -> bool {
        match self.announced {
            Some(announced) if length <= announced => true,
            // Twice: the buffer grows by doubling.
            _ => length <= MOST_UNANNOUNCED && self.share.grow_to(length * 2),
        }
    }

    /// The whole body, scanned.
    ///
    /// # Errors
    /// As of [`Self::new`].
    ///
    /// # Cancel safety
    /// Drop the store with the future.
    pub async fn finish(mut self, scan: Scan) -> Result<Stored, ApiError> {
        match self.place {
            Place::Memory(bytes) => {
                self.share.shrink_to(bytes.capacity() as u64);
                Ok(Stored { bytes: bytes.freeze(), scan, share: self.share })
            }
            Place::Disk(writer) => {
                let spool = writer.finish().await.map_err(no_room)?;
                let (bytes, scan) = without_inputs(&spool, scan).await?;
                Ok(Stored { bytes, scan, share: self.share })
            }
        }
    }
}

async fn spool(overflow: &Overflow) -> Result<SpoolWriter, ApiError> {
    match overflow {
        Overflow::Refuse => Err(super::over_budget()),
        Overflow::Spool(folder) => SpoolWriter::create(folder.clone()).await.map_err(no_room),
    }
}

fn no_room(error: std::io::Error) -> ApiError {
    tracing::warn!(%error, "a request body could not be spooled (server.spool_dir)");
    super::over_budget()
}

/// What a spooled body says beside its inputs, as a body of its own in which the inputs are an empty list; and a scan of
/// it whose inputs lie in the spool.
async fn without_inputs(spool: &Spool, scan: Scan) -> Result<(Bytes, Scan), ApiError> {
    let inputs: Vec<_> = scan.members.iter().filter(|member| member.items.is_some()).collect();
    let mut kept = Vec::with_capacity(inputs.len() + 1);
    let mut from = 0;
    for member in inputs {
        kept.push(from..member.value.start);
        from = member.value.end;
    }
    kept.push(from..scan.len);
    if kept.iter().map(ExactSizeIterator::len).sum::<usize>() > MOST_BESIDE_INPUTS {
        return Err(super::over_budget());
    }
    let pieces = spool.read(kept).await.map_err(|error| {
        tracing::warn!(%error, "a spooled request body could not be read (server.spool_dir)");
        ApiError::new(Code::Internal, "the request body could not be kept")
    })?;
    let mut pieces = pieces.iter();
    let mut bytes = pieces.next().map(|piece| piece.to_vec()).unwrap_or_default();
    let mut members = Vec::with_capacity(scan.members.len());
    let mut removed = 0;
    for member in scan.members {
        let moved = |range: std::ops::Range<usize>| range.start - removed..range.end - removed;
        let (key_range, start) = (moved(member.key_range), member.value.start - removed);
        let Some(items) = member.items else {
            members.push(Member { key: member.key, key_range, value: moved(member.value), items: None });
            continue;
        };
        removed += member.value.len() - EMPTY_LIST.len();
        let items = Some(Items { spool: Some(spool.clone()), ..items });
        members.push(Member { key: member.key, key_range, value: start..start + EMPTY_LIST.len(), items });
        bytes.extend_from_slice(EMPTY_LIST);
        bytes.extend_from_slice(pieces.next().map_or(&[], |piece| &piece[..]));
    }
    let scan = Scan { members, sample: scan.sample, len: bytes.len() };
    Ok((Bytes::from(bytes), scan))
}

/// Stands where the inputs of a spooled body were. No input is shorter: the shortest is a bracketed digit.
const EMPTY_LIST: &[u8] = b"[]";

#[cfg(test)]
mod tests {
    use super::super::budget::BodyBudget;
    use super::*;
    use crate::edge::scan::{ScanLimits, Scanner};

    async fn stored(body: &[u8], announced: Option<u64>, budget: u64, overflow: Overflow) -> Result<Stored, ApiError> {
        let mut scanner = Scanner::new(&["input"], ScanLimits::default());
        scanner.feed(body).expect("valid");
        let budget = BodyBudget::new(budget);
        let mut store = Store::new(announced, budget.share(), overflow).await?;
        let mut length = 0;
        for piece in body.chunks(10) {
            length += piece.len() as u64;
            store.push(piece, length).await?;
        }
        store.finish(scanner.finish().expect("valid")).await
    }

    const BODY: &[u8] = br#" {"user" : "u" , "input": ["one", "two \u0033"], "model":"m" , "dimensions":7 } "#;

    #[actix_web::test]
    async fn what_fits_stays_in_memory() {
        for announced in [Some(BODY.len() as u64), None] {
            let kept = stored(BODY, announced, 1_000, Overflow::Refuse).await.expect("fits");
            assert_eq!(&kept.bytes[..], BODY);
            assert!(kept.scan.items("input").expect("inputs").spool.is_none());
        }
    }

    #[actix_web::test]
    async fn what_does_not_fit_is_refused_or_spooled_without_loss() {
        for announced in [Some(BODY.len() as u64), None] {
            assert!(stored(BODY, announced, 20, Overflow::Refuse).await.is_err());
            let kept = stored(BODY, announced, 20, Overflow::Spool(None)).await.expect("spooled");
            let text = std::str::from_utf8(&kept.bytes).expect("text");
            assert_eq!(text, r#" {"user" : "u" , "input": [], "model":"m" , "dimensions":7 } "#);
            for (key, value) in [("user", "\"u\""), ("input", "[]"), ("model", "\"m\""), ("dimensions", "7")] {
                assert_eq!(kept.scan.raw(&kept.bytes, key), Some(value.as_bytes()), "{key}");
                let member = kept.scan.member(key).expect("there");
                assert_eq!(&text[member.key_range.clone()], format!("\"{key}\""));
            }
            let items = kept.scan.items("input").expect("inputs");
            let spool = items.spool.clone().expect("spooled");
            let ranges = items.items.iter().map(|item| item.range.clone()).collect();
            let texts = spool.read(ranges).await.expect("read");
            assert_eq!(texts, [&b"\"one\""[..], &b"\"two \\u0033\""[..]]);
        }
    }

    #[actix_web::test]
    async fn a_missing_folder_is_an_overload_and_not_a_panic() {
        let folder = Some(PathBuf::from("/nonexistent/folder"));
        let refused = stored(BODY, None, 20, Overflow::Spool(folder)).await.err().expect("refused");
        assert_eq!(refused.code, Code::Overloaded);
    }
}
