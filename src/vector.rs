//! One vector, as it came from a provider and as it goes to a client.
//!
//! A vector is kept in the form it arrived in: the provider's own number text, untouched, or little-endian `f32`. It is
//! checked once, when it is made, so whatever is a [`Vector`] has a width, and every element is finite as `f32`.
//! Refuses to know which width or form is wanted: callers say so.

mod numbers;

#[cfg(test)]
mod tests;

use std::fmt;

use base64_simd::{Out, STANDARD, STANDARD_NO_PAD};
use bytes::{BufMut, Bytes};

/// Bytes of one `f32`.
const F32: usize = size_of::<f32>();

/// Floats that are encoded to base64 at a time: a multiple of three, so that the pieces join without padding.
const ENCODE_FLOATS: usize = 768;

/// Characters of an element of a unit vector as text, its comma included, rather more than less.
const LIKELY_NUMBER: usize = 14;

/// Why something is not a usable vector. Elements are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VectorError {
    /// Not a JSON array.
    NotAnArray,
    /// Not base64, or not whole `f32` values.
    NotBase64,
    /// Something else than a JSON number.
    NotANumber {
        /// Which element.
        element: usize,
    },
    /// Infinite or not a number, as `f32`.
    NotFinite {
        /// Which element.
        element: usize,
    },
    /// Not as wide as it must be, or without any element.
    Width {
        /// The width asked for; `None`: any but 0.
        expected: Option<u32>,
        /// The width found.
        found: usize,
    },
}

impl fmt::Display for VectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VectorError::NotAnArray => f.write_str("the vector is not a list of numbers"),
            VectorError::NotBase64 => f.write_str("the vector is not base64 of 32-bit floats"),
            VectorError::NotANumber { element } => write!(f, "element {element} of the vector is not a number"),
            VectorError::NotFinite { element } => write!(f, "element {element} of the vector is not a finite number"),
            VectorError::Width { expected: Some(expected), found } => {
                write!(f, "the vector has {found} elements instead of {expected}")
            }
            VectorError::Width { expected: None, found } => write!(f, "the vector has {found} elements"),
        }
    }
}

impl std::error::Error for VectorError {}

#[derive(Clone, PartialEq, Eq)]
enum Form {
    /// A JSON array, brackets included.
    Text(Bytes),
    /// Little-endian `f32`.
    Floats(Bytes),
}

/// A checked vector. Cloning shares its bytes.
#[derive(Clone)]
pub struct Vector {
    form: Form,
    width: u32,
    /// Whether the memory that it shares holds little else.
    alone: bool,
}

impl PartialEq for Vector {
    /// Where the bytes lie does not matter.
    fn eq(&self, other: &Vector) -> bool {
        self.width == other.width && self.form == other.form
    }
}

impl Eq for Vector {}

impl fmt::Debug for Vector {
    /// Shows form and width: vectors can be turned back into texts, so they are kept out of logs like those.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.form {
            Form::Text(_) => "text",
            Form::Floats(_) => "floats",
        };
        write!(f, "Vector({form}, width {})", self.width)
    }
}

fn checked_width(found: usize, expected: Option<u32>) -> Result<u32, VectorError> {
    match u32::try_from(found) {
        Ok(width) if width > 0 && expected.is_none_or(|expected| expected == width) => Ok(width),
        _ => Err(VectorError::Width { expected, found }),
    }
}

impl Vector {
    /// A vector in the provider's own number text: a JSON array, brackets included.
    ///
    /// # Errors
    /// If it is not an array of JSON numbers that are finite as `f32`, or not `width` wide (`None`: any but 0).
    pub fn from_text(array: Bytes, width: Option<u32>) -> Result<Vector, VectorError> {
        let width = checked_width(numbers::check(&array)?, width)?;
        Ok(Vector { form: Form::Text(array), width, alone: false })
    }

    /// A vector in little-endian `f32`.
    ///
    /// # Errors
    /// If an element is not finite, or it is not `width` wide (`None`: any but 0).
    pub fn from_le_bytes(bytes: Bytes, width: Option<u32>) -> Result<Vector, VectorError> {
        if !bytes.len().is_multiple_of(F32) {
            return Err(VectorError::NotBase64);
        }
        if let Some(element) = floats(&bytes).position(|value| !value.is_finite()) {
            return Err(VectorError::NotFinite { element });
        }
        let width = checked_width(bytes.len() / F32, width)?;
        Ok(Vector { form: Form::Floats(bytes), width, alone: false })
    }

    /// A vector in base64 of little-endian `f32`, standard alphabet, padded or not.
    ///
    /// # Errors
    /// If it is not base64 of whole floats, an element is not finite, or it is not `width` wide (`None`: any but 0).
    pub fn from_base64(text: &[u8], width: Option<u32>) -> Result<Vector, VectorError> {
        let bytes = STANDARD.decode_to_vec(text).or_else(|_| STANDARD_NO_PAD.decode_to_vec(text));
        let vector = Vector::from_le_bytes(Bytes::from(bytes.map_err(|_| VectorError::NotBase64)?), width);
        vector.map(Vector::standing_alone)
    }

    /// A vector of these values.
    ///
    /// # Errors
    /// If a value is not finite, or there is none.
    pub fn from_floats(values: &[f32]) -> Result<Vector, VectorError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Vector::from_le_bytes(Bytes::from(bytes), None).map(Vector::standing_alone)
    }

    /// Number of elements, at least 1.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Bytes it keeps in memory, provided that it shares them with nothing bigger.
    pub fn bytes(&self) -> usize {
        self.raw().len()
    }

    /// Length of what [`Self::write_float`] writes, if that is known before it is written.
    pub fn text_len(&self) -> Option<usize> {
        match &self.form {
            Form::Text(raw) => Some(raw.len()),
            Form::Floats(_) => None,
        }
    }

    /// About the length of what [`Self::write_float`] writes, rather more than less.
    pub fn likely_text_len(&self) -> usize {
        self.text_len().unwrap_or(self.width as usize * LIKELY_NUMBER)
    }

    /// Length of what [`Self::write_base64`] writes.
    pub fn base64_len(&self) -> usize {
        (self.width as usize * F32).div_ceil(3) * 4
    }

    fn raw(&self) -> &Bytes {
        match &self.form {
            Form::Text(raw) | Form::Floats(raw) => raw,
        }
    }

    /// Says that the memory which it shares holds little else, so that it may be kept as it is.
    pub fn standing_alone(self) -> Vector {
        Vector { alone: true, ..self }
    }

    /// The JSON array that [`Self::write_float`] would copy, where there is one.
    pub fn shared_text(&self) -> Option<&Bytes> {
        match &self.form {
            Form::Text(raw) => Some(raw),
            Form::Floats(_) => None,
        }
    }

    /// The same vector for keeping, in memory that holds little else: a slice would keep the whole answer alive.
    pub fn detached(&self) -> Vector {
        if self.alone {
            return self.clone();
        }
        let form = match &self.form {
            Form::Text(raw) => Form::Text(Bytes::copy_from_slice(raw)),
            Form::Floats(raw) => Form::Floats(Bytes::copy_from_slice(raw)),
        };
        Vector { form, width: self.width, alone: true }
    }

    /// The elements as `f32`: number text is rounded to the nearest.
    pub fn floats(&self) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.width as usize);
        self.each(|value| values.push(value));
        values
    }

    fn each(&self, mut take: impl FnMut(f32)) {
        match &self.form {
            Form::Text(raw) => numbers::each(raw, take),
            Form::Floats(raw) => floats(raw).for_each(&mut take),
        }
    }

    /// The first `width` elements, scaled to unit length; itself, untouched, at its own width. A prefix of zeros has
    /// no direction and stays as it is.
    ///
    /// # Errors
    /// If `width` is 0 or more than there are.
    pub fn cut(&self, width: u32) -> Result<Vector, VectorError> {
        if width == self.width {
            return Ok(self.clone());
        }
        if width == 0 || width > self.width {
            return Err(VectorError::Width { expected: Some(width), found: self.width as usize });
        }
        let mut values = self.floats();
        values.truncate(width as usize);
        let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        if norm > 0.0 {
            for value in &mut values {
                *value = (f64::from(*value) / norm) as f32;
            }
        }
        Vector::from_floats(&values)
    }

    /// Writes it as a JSON array: the provider's own text where that is what it is, else the shortest numbers that
    /// read back as the same `f32`.
    pub fn write_float(&self, out: &mut impl BufMut) {
        match &self.form {
            Form::Text(raw) => out.put_slice(raw),
            Form::Floats(raw) => {
                let mut separator = b'[';
                let mut text = zmij::Buffer::new();
                for value in floats(raw) {
                    out.put_u8(separator);
                    out.put_slice(text.format_finite(value).as_bytes());
                    separator = b',';
                }
                out.put_u8(b']');
            }
        }
    }

    /// Writes it as base64 of little-endian `f32`, standard alphabet, padded, without quotes.
    pub fn write_base64(&self, out: &mut impl BufMut) {
        match &self.form {
            Form::Floats(raw) => raw.chunks(ENCODE_FLOATS * F32).for_each(|piece| encode(piece, out)),
            Form::Text(raw) => {
                let mut piece = Vec::with_capacity(ENCODE_FLOATS * F32);
                numbers::each(raw, |value| {
                    piece.extend_from_slice(&value.to_le_bytes());
                    if piece.len() == ENCODE_FLOATS * F32 {
                        encode(&piece, out);
                        piece.clear();
                    }
                });
                encode(&piece, out);
            }
        }
    }

    /// Its form for a store outside the process; [`Self::from_stored`] reads it back.
    pub fn to_stored(&self) -> Vec<u8> {
        let raw = self.raw();
        let mut stored = Vec::with_capacity(raw.len() + 1);
        stored.push(match self.form {
            Form::Text(_) => b'T',
            Form::Floats(_) => b'F',
        });
        stored.extend_from_slice(raw);
        stored
    }

    /// Reads what [`Self::to_stored`] wrote. Checks it again: others may write to the same store.
    ///
    /// # Errors
    /// If it is not a usable vector, or not `width` wide (`None`: any but 0).
    pub fn from_stored(stored: &Bytes, width: Option<u32>) -> Result<Vector, VectorError> {
        let vector = match stored.first() {
            Some(b'T') => Vector::from_text(stored.slice(1..), width),
            Some(b'F') => Vector::from_le_bytes(stored.slice(1..), width),
            _ => Err(VectorError::NotAnArray),
        };
        vector.map(Vector::standing_alone)
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<F32>().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// Encodes at most [`ENCODE_FLOATS`] floats.
fn encode(piece: &[u8], out: &mut impl BufMut) {
    let mut room = [0; ENCODE_FLOATS * F32 / 3 * 4];
    out.put_slice(STANDARD.encode(piece, Out::from_slice(&mut room)));
}
