//! What a client asks before it uses an export.

use super::{Fields, Malformed};

/// Most bytes of an option's data: room for a name and some queries.
pub const MAX_OPTION: u32 = 16 << 10;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

/// What stands before an option's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which option.
    pub code: u32,
    /// Bytes of its data, at most [`MAX_OPTION`].
    pub length: u32,
}

impl OptionHeader {
    /// Bytes of a header.
    pub const BYTES: usize = 16;

    /// Takes a header apart.
    ///
    /// # Errors
    /// When it is none, or announces more data than anybody needs.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<OptionHeader, Malformed> {
        let mut fields = Fields(bytes);
        if fields.u64()? != OPTION_MAGIC {
            return Err(Malformed("this is no option"));
        }
        let header = OptionHeader { code: fields.u32()?, length: fields.u32()? };
        if header.length > MAX_OPTION {
            return Err(Malformed("an option is too long"));
        }
        Ok(header)
    }

    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(self.code.to_be_bytes());
        bytes.extend(self.length.to_be_bytes());
        bytes
    }
}

/// An option with its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Use the export of this name at once. There is no way to refuse but to hang up.
    ExportName(String),
    /// Goodbye.
    Abort,
    /// Which exports are there?
    List,
    /// Go on under TLS.
    StartTls,
    /// What is this export like? With `go`: and use it.
    Info {
        /// Use it.
        go: bool,
        /// Which export.
        name: String,
        /// Kinds of information that are wanted most.
        wanted: Vec<u16>,
    },
    /// Allow structured replies.
    StructuredReplies,
    /// Which metadata contexts are there? With `set`: and choose these.
    MetaContexts {
        /// Choose them.
        set: bool,
        /// Which export.
        name: String,
        /// Names of contexts, or beginnings of names.
        queries: Vec<String>,
    },
    /// Something that is not known here.
    Unknown(u32),
}

impl Ask {
    /// Takes an option's data apart.
    ///
    /// # Errors
    /// When the data is not of the option's form. The client may be told so, and ask again.
    pub fn decode(code: u32, data: &[u8]) -> Result<Ask, Malformed> {
        let mut fields = Fields(data);
        let ask = match code {
            1 => {
                let name = fields.take(data.len())?;
                let name = std::str::from_utf8(name).map_err(|_| Malformed("a text is not UTF-8"))?;
                Ask::ExportName(name.to_owned())
            }
            2 => Ask::Abort,
            3 => Ask::List,
            5 => Ask::StartTls,
            6 | 7 => {
                let name = fields.text()?;
                let count = fields.u16()?;
                let wanted = (0..count).map(|_| fields.u16()).collect::<Result<_, _>>()?;
                Ask::Info { go: code == 7, name, wanted }
            }
            8 => Ask::StructuredReplies,
            9 | 10 => {
                let name = fields.text()?;
                let count = fields.u32()?;
                let queries = (0..count).map(|_| fields.text()).collect::<Result<_, _>>()?;
                Ask::MetaContexts { set: code == 10, name, queries }
            }
            _ => return Ok(Ask::Unknown(code)),
        };
        // Data with a goodbye is no reason to stay.
        if ask != Ask::Abort {
            fields.end()?;
        }
        Ok(ask)
    }

    /// The option's number.
    #[must_use]
    pub fn code(&self) -> u32 {
        match self {
            Ask::ExportName(_) => 1,
            Ask::Abort => 2,
            Ask::List => 3,
            Ask::StartTls => 5,
            Ask::Info { go, .. } => 6 + u32::from(*go),
            Ask::StructuredReplies => 8,
            Ask::MetaContexts { set, .. } => 9 + u32::from(*set),
            Ask::Unknown(code) => *code,
        }
    }

    /// The bytes of the option's data.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Ask::ExportName(name) => bytes.extend(name.as_bytes()),
            Ask::Info { name, wanted, .. } => {
                put_text(&mut bytes, name);
                bytes.extend(u16::try_from(wanted.len()).unwrap_or(u16::MAX).to_be_bytes());
                wanted.iter().for_each(|wanted| bytes.extend(wanted.to_be_bytes()));
            }
            Ask::MetaContexts { name, queries, .. } => {
                put_text(&mut bytes, name);
                bytes.extend(u32::try_from(queries.len()).unwrap_or(u32::MAX).to_be_bytes());
                queries.iter().for_each(|query| put_text(&mut bytes, query));
            }
            Ask::Abort | Ask::List | Ask::StartTls | Ask::StructuredReplies | Ask::Unknown(_) => {}
        }
        bytes
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(text.as_bytes());
}
