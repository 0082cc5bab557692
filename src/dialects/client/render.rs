//! Writes vectors into the answer of each client dialect, in one pass and in pieces.
//!
//! Owns the bytes around the vectors; the vectors write themselves. The same call gives the same bytes, so that a cached
//! answer and a fresh one cannot be told apart.

use bytes::{Bytes, BytesMut};

use super::AnswerForm;
use crate::dialects::json::{ObjectWriter, write_inputs, write_string};
use crate::dialects::{ClientDialect, Dtype, Encoding, Input};
use crate::vector::Vector;

/// A piece is handed out once it has this many bytes: large enough for a socket, small beside a large answer.
const PIECE: usize = 64 * 1024;

/// A vector's text of this many bytes is handed out without being copied.
const WORTH_SHARING: usize = 4 * 1024;

/// What an embedding answer says.
#[derive(Debug, Clone)]
pub struct RenderEmbed<'a> {
    /// The model by the name the client used.
    pub model: &'a str,
    /// The answer's id where the dialect has one.
    pub id: &'a str,
    /// The vectors in the order of the client's inputs.
    pub vectors: Vec<Vector>,
    /// The client's inputs: some dialects repeat them.
    pub inputs: &'a [Input],
    /// How the client wants its vectors.
    pub form: &'a AnswerForm,
    /// Tokens of the request.
    pub tokens: u64,
    /// Whether the tokens are this gateway's own estimate; said in the answer where the dialect has a place for it.
    pub estimated: bool,
}

/// How the vectors of one list are written.
#[derive(Debug, Clone, Copy)]
enum Item {
    /// `{"object":"embedding","index":0,"embedding":…}`
    Labelled(Encoding, Dtype),
    /// The vector alone.
    Bare(Encoding, Dtype),
}

/// An embedding answer as an iterator over pieces of about 64 KiB, so that a large one is never whole in memory.
#[derive(Debug)]
pub struct EmbedChunks {
    vectors: Vec<Vector>,
    /// Text before each list, and how its vectors are written.
    lists: Vec<(Vec<u8>, Item)>,
    tail: Vec<u8>,
    list: usize,
    /// Whether the text before the current list is out.
    opened: bool,
    vector: usize,
    /// A vector that is handed out as it is, after the text before it.
    shared: Option<Bytes>,
    /// What follows it.
    closing: &'static [u8],
    done: bool,
}

/// The embedding answer of `dialect`.
pub fn render_embed(dialect: ClientDialect, answer: RenderEmbed<'_>) -> EmbedChunks {
    let (lists, tail) = match dialect {
        ClientDialect::CohereV1 | ClientDialect::CohereV2 => cohere(dialect, &answer),
        ClientDialect::Tei => (vec![(b"[".to_vec(), bare(&answer))], b"]".to_vec()),
        ClientDialect::Ollama => ollama(&answer),
        ClientDialect::OllamaLegacy => (vec![(b"{\"embedding\":".to_vec(), bare(&answer))], b"}".to_vec()),
        ClientDialect::OpenAi
        | ClientDialect::Azure
        | ClientDialect::TeiOpenAi
        | ClientDialect::Voyage
        | ClientDialect::Jina
        | ClientDialect::Anthropic => labelled(dialect, &answer),
    };
    EmbedChunks {
        vectors: answer.vectors,
        lists,
        tail,
        list: 0,
        opened: false,
        vector: 0,
        shared: None,
        closing: b"",
        done: false,
    }
}

fn bare(answer: &RenderEmbed<'_>) -> Item {
    Item::Bare(answer.form.preferred(), answer.form.dtype)
}

type Parts = (Vec<(Vec<u8>, Item)>, Vec<u8>);

fn labelled(dialect: ClientDialect, answer: &RenderEmbed<'_>) -> Parts {
    let item = Item::Labelled(answer.form.preferred(), answer.form.dtype);
    let mut tail = b"],\"model\":".to_vec();
    write_string(&mut tail, answer.model);
    tail.extend_from_slice(b",\"usage\":");
    let mut usage = ObjectWriter::with_capacity(64);
    if dialect != ClientDialect::Voyage {
        usage.number("prompt_tokens", answer.tokens);
    }
    usage.number("total_tokens", answer.tokens);
    if answer.estimated {
        usage.boolean("estimated", true);
    }
    tail.extend_from_slice(&usage.finish());
    tail.push(b'}');
    (vec![(b"{\"object\":\"list\",\"data\":[".to_vec(), item)], tail)
}

fn ollama(answer: &RenderEmbed<'_>) -> Parts {
    let mut head = b"{\"model\":".to_vec();
    write_string(&mut head, answer.model);
    head.extend_from_slice(b",\"embeddings\":[");
    let tail = match answer.tokens {
        0 => "]}".to_owned(),
        tokens => format!("],\"prompt_eval_count\":{tokens}}}"),
    };
    (vec![(head, bare(answer))], tail.into_bytes())
}

fn cohere(dialect: ClientDialect, answer: &RenderEmbed<'_>) -> Parts {
    let version = if dialect == ClientDialect::CohereV1 { "1" } else { "2" };
    let AnswerForm { encodings, dtype, by_type } = answer.form;
    let mut head = ObjectWriter::with_capacity(256);
    head.string("id", answer.id);
    head.string("response_type", if *by_type { "embeddings_by_type" } else { "embeddings_floats" });
    write_inputs(head.key("texts"), answer.inputs);
    let mut head = unfinished(head);
    head.extend_from_slice(b",\"embeddings\":");

    let mut tail = Vec::new();
    let lists = if *by_type {
        tail.extend_from_slice(b"]},\"meta\":");
        let named = encodings.iter().enumerate().map(|(nth, encoding)| {
            let name = if *encoding == Encoding::Base64 { "base64" } else { type_name(*dtype) };
            let before = if nth == 0 { format!("{{\"{name}\":[") } else { format!("],\"{name}\":[") };
            let mut text = if nth == 0 { std::mem::take(&mut head) } else { Vec::new() };
            text.extend_from_slice(before.as_bytes());
            (text, Item::Bare(*encoding, *dtype))
        });
        named.collect()
    } else {
        tail.extend_from_slice(b"],\"meta\":");
        head.push(b'[');
        vec![(head, Item::Bare(Encoding::Float, *dtype))]
    };
    let mut meta = ObjectWriter::with_capacity(128);
    meta.raw("api_version", format!("{{\"version\":\"{version}\"}}").as_bytes());
    meta.raw("billed_units", format!("{{\"input_tokens\":{}}}", answer.tokens).as_bytes());
    if answer.estimated {
        meta.raw("warnings", b"[\"input_tokens is an estimate\"]");
    }
    tail.extend_from_slice(&meta.finish());
    tail.push(b'}');
    (lists, tail)
}

/// An object without its closing brace, to be continued.
fn unfinished(object: ObjectWriter) -> Vec<u8> {
    let mut text = object.finish();
    text.pop();
    text
}

const fn type_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float => "float",
        Dtype::Int8 => "int8",
        Dtype::Uint8 => "uint8",
        Dtype::Binary => "binary",
        Dtype::Ubinary => "ubinary",
    }
}

impl EmbedChunks {
    /// Length of the whole answer, if it is known before it is written: vectors that are kept in another form than the
    /// client wants have the length that they come to. Only for an answer of which nothing was taken yet.
    pub fn exact_len(&self) -> Option<usize> {
        let around = self.lists.iter().map(|(before, _)| before.len()).sum::<usize>() + self.tail.len();
        let commas = self.vectors.len().saturating_sub(1);
        let list = |item: &Item| -> Option<usize> {
            let vectors = self.vectors.iter().enumerate();
            vectors.map(|(index, vector)| item_len(*item, index, vector)).sum::<Option<usize>>()
        };
        let lists = self.lists.iter().map(|(_, item)| Some(list(item)? + commas)).sum::<Option<usize>>()?;
        Some(around + lists)
    }

    /// Room for the next piece, so that it does not grow while it is written.
    fn next_capacity(&self) -> usize {
        let left = self.vectors.get(self.vector..).unwrap_or_default();
        let before = self.lists.get(self.list).map_or(0, |(before, _)| before.len());
        let mut room = before + self.tail.len();
        for vector in left {
            if room >= PIECE || self.shares(vector) {
                break;
            }
            room += AROUND_ITEM + vector.likely_text_len();
        }
        room
    }

    /// Whether a vector of the current list is handed out as it is.
    fn shares(&self, vector: &Vector) -> bool {
        self.lists.get(self.list).is_some_and(|(_, item)| shared(*item, vector).is_some())
    }

    /// The whole answer, if it is short enough to be one piece and no vector can be handed out without copying it; else
    /// itself, with nothing taken.
    ///
    /// # Errors
    /// It is longer: an iterator over its pieces.
    pub fn whole(mut self) -> Result<Bytes, Box<EmbedChunks>> {
        if self.vectors.iter().any(|vector| self.shares(vector)) {
            return Err(Box::new(self));
        }
        let likely: usize = self.vectors.iter().map(|vector| AROUND_ITEM + vector.likely_text_len()).sum();
        if likely.saturating_mul(self.lists.len()) >= PIECE {
            return Err(Box::new(self));
        }
        let mut whole = self.next().unwrap_or_default();
        if !self.done {
            // Numbers longer than any provider writes: joined, which costs a copy.
            let mut joined = BytesMut::from(&whole[..]);
            self.for_each(|piece| joined.extend_from_slice(&piece));
            whole = joined.freeze();
        }
        Ok(whole)
    }

    /// The whole answer in one piece, however long it is.
    pub fn into_bytes(self) -> Bytes {
        self.whole().unwrap_or_else(|pieces| {
            let mut whole = BytesMut::with_capacity(pieces.exact_len().unwrap_or(2 * PIECE));
            pieces.for_each(|piece| whole.extend_from_slice(&piece));
            whole.freeze()
        })
    }
}

impl Iterator for EmbedChunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        if let Some(shared) = self.shared.take() {
            return Some(shared);
        }
        let mut out = BytesMut::with_capacity(self.next_capacity());
        out.extend_from_slice(std::mem::take(&mut self.closing));
        while let Some((before, item)) = self.lists.get(self.list) {
            if !self.opened {
                out.extend_from_slice(before);
                self.opened = true;
            }
            while let Some(vector) = self.vectors.get(self.vector) {
                if out.len() >= PIECE {
                    return Some(out.freeze());
                }
                self.vector += 1;
                if let Some(shared) = shared(*item, vector) {
                    self.closing = write_before(&mut out, *item, self.vector - 1);
                    self.shared = Some(shared.clone());
                    return Some(out.freeze());
                }
                write_item(&mut out, *item, self.vector - 1, vector);
            }
            self.list += 1;
            self.vector = 0;
            self.opened = false;
        }
        out.extend_from_slice(&self.tail);
        self.done = true;
        Some(out.freeze())
    }
}

/// What a labelled vector has around it, generously.
const AROUND_ITEM: usize = 64;

/// Length of a vector in a list, without its comma.
fn item_len(item: Item, index: usize, vector: &Vector) -> Option<usize> {
    let (Item::Bare(encoding, dtype) | Item::Labelled(encoding, dtype)) = item;
    let vector = match (encoding, dtype) {
        (Encoding::Float, _) => vector.text_len()?,
        (Encoding::Base64, Dtype::Float) => vector.base64_len() + 2,
        (Encoding::Base64, _) => (vector.width() as usize).div_ceil(3) * 4 + 2,
    };
    let digits = index.checked_ilog10().unwrap_or(0) as usize + 1;
    Some(match item {
        Item::Bare(..) => vector,
        Item::Labelled(..) => LABEL.len() + digits + VALUE.len() + vector + 1,
    })
}

const LABEL: &[u8] = b"{\"object\":\"embedding\",\"index\":";
const VALUE: &[u8] = b",\"embedding\":";

/// A vector that is long enough to be handed out as it is, instead of being copied.
fn shared(item: Item, vector: &Vector) -> Option<&Bytes> {
    let (Item::Bare(encoding, _) | Item::Labelled(encoding, _)) = item;
    vector.shared_text().filter(|text| encoding == Encoding::Float && text.len() >= WORTH_SHARING)
}

fn write_item(out: &mut BytesMut, item: Item, index: usize, vector: &Vector) {
    let closing = write_before(out, item, index);
    let (Item::Bare(encoding, dtype) | Item::Labelled(encoding, dtype)) = item;
    write_vector(out, encoding, dtype, vector);
    out.extend_from_slice(closing);
}

/// Writes what stands before a vector; returns what stands behind it.
fn write_before(out: &mut BytesMut, item: Item, index: usize) -> &'static [u8] {
    if index > 0 {
        out.extend_from_slice(b",");
    }
    match item {
        Item::Bare(..) => b"",
        Item::Labelled(..) => {
            out.extend_from_slice(LABEL);
            out.extend_from_slice(index.to_string().as_bytes());
            out.extend_from_slice(VALUE);
            b"}"
        }
    }
}

fn write_vector(out: &mut BytesMut, encoding: Encoding, dtype: Dtype, vector: &Vector) {
    match (encoding, dtype) {
        (Encoding::Float, _) => vector.write_float(out),
        (Encoding::Base64, Dtype::Float) => {
            out.extend_from_slice(b"\"");
            vector.write_base64(out);
            out.extend_from_slice(b"\"");
        }
        // One byte an element. A float outside a byte cannot come here from a well-formed answer; it saturates.
        (Encoding::Base64, Dtype::Int8 | Dtype::Binary) => {
            let elements: Vec<u8> = vector.floats().iter().map(|value| (*value as i8).cast_unsigned()).collect();
            write_base64_bytes(out, &elements);
        }
        (Encoding::Base64, Dtype::Uint8 | Dtype::Ubinary) => {
            let elements: Vec<u8> = vector.floats().iter().map(|value| *value as u8).collect();
            write_base64_bytes(out, &elements);
        }
    }
}

fn write_base64_bytes(out: &mut BytesMut, elements: &[u8]) {
    out.extend_from_slice(b"\"");
    out.extend_from_slice(base64_simd::STANDARD.encode_to_string(elements).as_bytes());
    out.extend_from_slice(b"\"");
}

#[cfg(test)]
mod tests;
