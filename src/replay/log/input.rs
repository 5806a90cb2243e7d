//! Opens the files of a log, and decompresses them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::PathBuf;

use flate2::bufread::MultiGzDecoder;

/// Where a log is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogInput {
    /// Standard input.
    Stdin,
    /// A file, or a pipe with a name.
    File(PathBuf),
}

/// An argument of the command line: `-` is standard input.
impl From<OsString> for LogInput {
    fn from(text: OsString) -> Self {
        if text == "-" { Self::Stdin } else { Self::File(text.into()) }
    }
}

/// The bytes that are asked for at once.
pub(super) const CHUNK: usize = 1 << 16;

/// The decompressed bytes of a log.
pub(super) type LogBytes = Box<dyn BufRead>;

impl LogInput {
    /// The name in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Stdin => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    pub(super) fn open(&self) -> io::Result<LogBytes> {
        match self {
            Self::Stdin => plain(io::stdin()),
            Self::File(path) => plain(File::open(path)?),
        }
    }
}

/// The decompressed bytes of a source. Its first bytes show whether it is compressed with gzip (RFC 1952) or zstd
/// (RFC 8878). It may have several members or frames.
pub(super) fn plain(mut source: impl Read + 'static) -> io::Result<LogBytes> {
    let mut first = Vec::with_capacity(4);
    source.by_ref().take(4).read_to_end(&mut first)?;
    let kind = first.clone();
    let whole = BufReader::with_capacity(CHUNK, Cursor::new(first).chain(source));
    Ok(match kind[..] {
        [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(CHUNK, MultiGzDecoder::new(whole))),
        // A zstd file may begin with a skippable frame (RFC 8878, 3.1.2). The second pattern is its magic number.
        [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => {
            let decoder = zstd::stream::read::Decoder::with_buffer(whole)?;
            Box::new(BufReader::with_capacity(CHUNK, decoder))
        }
        _ => Box::new(whole),
    })
}
