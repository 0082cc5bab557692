//! Compressed request bodies, undone in small steps: what comes out of one step has the size that the caller gives it,
//! however much it would expand to. Owns the codings; refuses to know limits.

use std::io;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{DParameter, Decoder as ZstdDecoder, Operation as _};

/// What is accepted in `Content-Encoding`, as messages name it.
pub const ACCEPTED: &str = "gzip, deflate, br, zstd";

/// Largest window of a zstd frame, as a power of two: 8 MiB, what RFC 9659 allows in HTTP.
const ZSTD_WINDOW_LOG: u32 = 23;

/// Size of the window of deflate and gzip, as a power of two.
const FLATE_WINDOW_LOG: u8 = 15;

/// One coding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950, or RFC 1951 alone, which some clients send under this name.
    Deflate,
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
}

/// A coding that is not known here, or one upon another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownCoding;

impl Coding {
    /// Reads a `Content-Encoding`: `Ok(None)` for a body as it is.
    ///
    /// # Errors
    /// A coding that is not known, or more than one.
    pub fn read(header: &str) -> Result<Option<Coding>, UnknownCoding> {
        let mut codings = header.split(',').map(str::trim).filter(|name| !name.is_empty());
        let mut found = None;
        codings.try_for_each(|name| {
            let coding = match name.to_ascii_lowercase().as_str() {
                "identity" => return Ok(()),
                "gzip" | "x-gzip" => Coding::Gzip,
                "deflate" => Coding::Deflate,
                "br" => Coding::Brotli,
                "zstd" => Coding::Zstd,
                _ => return Err(UnknownCoding),
            };
            if found.replace(coding).is_some() { Err(UnknownCoding) } else { Ok(()) }
        })?;
        Ok(found)
    }

    /// Its name in HTTP.
    pub const fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
        }
    }
}

/// What was sent is not what its coding says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

/// What one step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Bytes taken from the input.
    pub read: usize,
    /// Bytes written to the output.
    pub written: usize,
}

type Brotli = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

enum Machine {
    /// Deflate whose first byte has not been seen.
    Undecided,
    Gzip(Decompress),
    Deflate(Decompress),
    Brotli(Box<Brotli>),
    Zstd(ZstdDecoder<'static>),
}

/// Undoes one coding.
pub struct Decoder {
    machine: Machine,
    /// The last thing read was the end of a stream.
    complete: bool,
}

impl Decoder {
    /// A decoder at the beginning of a body.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(coding: Coding) -> io::Result<Decoder> {
        let machine = match coding {
            Coding::Gzip => Machine::Gzip(Decompress::new_gzip(FLATE_WINDOW_LOG)),
            Coding::Deflate => Machine::Undecided,
            Coding::Brotli => {
                let allocator = StandardAlloc::default;
                Machine::Brotli(Box::new(BrotliState::new_strict(allocator(), allocator(), allocator())))
            }
            Coding::Zstd => {
                let mut decoder = ZstdDecoder::new()?;
                decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG))?;
                Machine::Zstd(decoder)
            }
        };
        Ok(Decoder { machine, complete: false })
    }

    /// Takes some of `input` and fills some of `output`, neither of them empty. Neither moving means that more input is
    /// needed; call again with the rest as long as one of them moves.
    ///
    /// # Errors
    /// The input is not what the coding says, or something follows its end.
    pub fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, Damaged> {
        if let (Machine::Undecided, Some(first)) = (&self.machine, input.first()) {
            // Zlib's header begins with method 8 and a window of at most 32 KiB; a stream without the header that began
            // so would be a stored block with odd padding, which nobody writes.
            self.machine = Machine::Deflate(Decompress::new(first & 0x8F == 0x08));
        }
        match &mut self.machine {
            Machine::Undecided => Ok(Step { read: 0, written: 0 }),
            Machine::Gzip(gzip) => {
                if self.complete {
                    if input.is_empty() {
                        return Ok(Step { read: 0, written: 0 });
                    }
                    // Several members in a row are one body.
                    *gzip = Decompress::new_gzip(FLATE_WINDOW_LOG);
                    self.complete = false;
                }
                let (step, ended) = inflate(gzip, input, output)?;
                self.complete = ended;
                Ok(step)
            }
            Machine::Deflate(_) | Machine::Brotli(_) if self.complete => {
                if input.is_empty() {
                    Ok(Step { read: 0, written: 0 })
                } else {
                    Err(Damaged)
                }
            }
            Machine::Deflate(deflate) => {
                let (step, ended) = inflate(deflate, input, output)?;
                self.complete = ended;
                Ok(step)
            }
            Machine::Brotli(state) => {
                let (step, ended) = unbrotli(state, input, output)?;
                self.complete = ended;
                Ok(step)
            }
            Machine::Zstd(zstd) => {
                if self.complete && input.is_empty() {
                    return Ok(Step { read: 0, written: 0 });
                }
                let status = zstd.run_on_buffers(input, output).map_err(|_| Damaged)?;
                self.complete = status.remaining == 0;
                Ok(Step { read: status.bytes_read, written: status.bytes_written })
            }
        }
    }

    /// Whether the body may end here.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

fn inflate(machine: &mut Decompress, input: &[u8], output: &mut [u8]) -> Result<(Step, bool), Damaged> {
    let (read, written) = (machine.total_in(), machine.total_out());
    let status = machine.decompress(input, output, FlushDecompress::None).map_err(|_| Damaged)?;
    let moved = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
    let step = Step { read: moved(machine.total_in(), read), written: moved(machine.total_out(), written) };
    Ok((step, status == Status::StreamEnd))
}

fn unbrotli(state: &mut Brotli, input: &[u8], output: &mut [u8]) -> Result<(Step, bool), Damaged> {
    let (mut input_left, mut read) = (input.len(), 0);
    let (mut room, mut written, mut total) = (output.len(), 0, 0);
    let result =
        BrotliDecompressStream(&mut input_left, &mut read, input, &mut room, &mut written, output, &mut total, state);
    match result {
        BrotliResult::ResultFailure => Err(Damaged),
        BrotliResult::ResultSuccess => Ok((Step { read, written }, true)),
        BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => Ok((Step { read, written }, false)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn packed(coding: Coding, text: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(text).expect("memory");
                encoder.finish().expect("memory")
            }
            Coding::Deflate => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(text).expect("memory");
                encoder.finish().expect("memory")
            }
            Coding::Brotli => {
                let mut packed = Vec::new();
                brotli::BrotliCompress(&mut &text[..], &mut packed, &brotli::enc::BrotliEncoderParams::default())
                    .expect("memory");
                packed
            }
            Coding::Zstd => zstd::encode_all(text, 3).expect("memory"),
        }
    }

    /// Feeds `packed` in pieces of `cut` bytes through an output of `room` bytes.
    fn unpacked(coding: Coding, packed: &[u8], cut: usize, room: usize) -> Result<(Vec<u8>, bool), Damaged> {
        let mut decoder = Decoder::new(coding).expect("memory");
        let (mut text, mut output) = (Vec::new(), vec![0; room]);
        for mut piece in packed.chunks(cut) {
            loop {
                let step = decoder.step(piece, &mut output)?;
                text.extend_from_slice(&output[..step.written]);
                piece = &piece[step.read..];
                if step.read == 0 && step.written == 0 {
                    break;
                }
            }
        }
        Ok((text, decoder.is_complete()))
    }

    const ALL: [Coding; 4] = [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd];

    fn sample() -> Vec<u8> {
        (0..40_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_string().into_bytes()).collect()
    }

    #[test]
    fn every_coding_comes_back_however_it_is_cut() {
        let text = sample();
        for coding in ALL {
            let packed = packed(coding, &text);
            for (cut, room) in [(1, 7), (3, 65_536), (1_000, 100), (usize::MAX, 65_536)] {
                let (got, complete) = unpacked(coding, &packed, cut.min(packed.len()), room).expect("sound");
                assert!(got == text && complete, "{coding:?} cut at {cut}");
            }
            assert_eq!(
                unpacked(coding, &packed[..packed.len() / 2], 100, 4096).map(|(_, complete)| complete),
                Ok(false)
            );
            assert_eq!(
                unpacked(coding, &packed[..packed.len() - 1], 100, 4096).map(|(_, complete)| complete),
                Ok(false)
            );
        }
    }

    #[test]
    fn plain_text_is_damaged_and_so_is_what_follows_the_end() {
        for coding in ALL {
            let json = b"{\"model\":\"m\",\"input\":\"a text that was never compressed\"}";
            let read = unpacked(coding, json, json.len(), 4096);
            assert!(!matches!(read, Ok((_, true))), "{coding:?}: {read:?}");
            let mut longer = packed(coding, b"{}");
            longer.extend_from_slice(b"more");
            let read = unpacked(coding, &longer, longer.len(), 4096);
            assert!(!matches!(read, Ok((_, true))), "{coding:?}: {read:?}");
        }
    }

    #[test]
    fn members_and_frames_in_a_row_are_one_body_and_raw_deflate_is_deflate() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let two = [packed(coding, b"{\"a\""), packed(coding, b":1}")].concat();
            assert_eq!(unpacked(coding, &two, 5, 64), Ok((b"{\"a\":1}".to_vec(), true)));
        }
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&sample()).expect("memory");
        let raw = encoder.finish().expect("memory");
        assert_eq!(unpacked(Coding::Deflate, &raw, 10, 64), Ok((sample(), true)));
    }

    #[test]
    fn headers_are_read_with_care() {
        let check = |header: &str, expected: Result<Option<Coding>, UnknownCoding>| {
            assert_eq!(Coding::read(header), expected, "{header}");
        };
        check("", Ok(None));
        check(" Identity ", Ok(None));
        check("GZip", Ok(Some(Coding::Gzip)));
        check("x-gzip", Ok(Some(Coding::Gzip)));
        check("identity, br", Ok(Some(Coding::Brotli)));
        check("zstd", Ok(Some(Coding::Zstd)));
        check("gzip, gzip", Err(UnknownCoding));
        check("snappy", Err(UnknownCoding));
    }
}
