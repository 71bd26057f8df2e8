//! What is agreed upon before the first request: fixed newstyle negotiation.

use super::clients::Seat;
use super::link::Link;
use super::wire::{self, ALLOCATION, Ask, CONTEXT, ClientFlags, FLAGS_BYTES, OptionHeader, OptionReply};
use rustls::ServerConfig;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Most questions of one client.
const MAX_QUESTIONS: u32 = 64;

/// What can be said about the export.
pub(super) struct Offer<'a> {
    /// Its own name; the empty one means it, too.
    pub(super) name: &'a str,
    pub(super) size: u64,
    /// Transmission flags, without those that depend on what is agreed upon.
    pub(super) flags: u16,
    /// Most bytes of a read or write.
    pub(super) most: u32,
    /// The client's, who uses the device once it has chosen it.
    pub(super) seat: &'a Seat,
    /// With it, nothing is said without TLS.
    pub(super) tls: Option<&'a Arc<ServerConfig>>,
}

/// What was agreed upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Agreed {
    /// Replies to reads and questions for block status are structured.
    pub(super) structured: bool,
    /// Block status may be asked for.
    pub(super) allocation: bool,
}

/// A read may be asked for in one piece.
const SEND_DONT_FRAGMENT: u16 = 1 << 7;

/// Negotiates until the client uses the export. `None` if it goes away instead.
///
/// # Errors
/// When the connection breaks, or the client does not keep to the protocol.
pub(super) fn handshake(link: Link, offer: &Offer<'_>) -> io::Result<Option<(Link, Agreed)>> {
    let mut link = link;
    link.output.write_all(&wire::greeting())?;
    let mut flags = [0; FLAGS_BYTES];
    link.input.read_exact(&mut flags)?;
    let flags = ClientFlags::decode(flags).map_err(invalid)?;
    let mut agreed = Agreed::default();
    let mut secure = offer.tls.is_none();
    for _ in 0..MAX_QUESTIONS {
        let (code, ask) = hear(&mut link)?;
        let replies = match ask {
            Ok(Ask::Abort) => {
                let _ = link.output.write_all(&wire::option_reply(code, &OptionReply::Ack));
                return Ok(None);
            }
            Ok(Ask::StartTls) => match offer.tls {
                Some(config) if !secure => {
                    link.output.write_all(&wire::option_reply(code, &OptionReply::Ack))?;
                    link = link.start_tls(config)?;
                    // What was said in the clear, somebody else may have said.
                    (secure, agreed) = (true, Agreed::default());
                    continue;
                }
                Some(_) => vec![OptionReply::Invalid],
                None => vec![OptionReply::Policy],
            },
            Ok(Ask::ExportName(name)) => {
                if !secure || !offer.is(&name) {
                    return Err(invalid(wire::Malformed("no such export, or not without TLS")));
                }
                offer.seat.uses_device();
                let mut answer = wire::export_info(offer.size, offer.flags(agreed));
                answer.resize(answer.len() + if flags.no_zeroes { 0 } else { 124 }, 0);
                link.output.write_all(&answer)?;
                return Ok(Some((link, agreed)));
            }
            _ if !secure => vec![OptionReply::TlsRequired],
            Ok(ask) => offer.answer(&ask, &mut agreed),
            Err(_) => vec![OptionReply::Invalid],
        };
        let is_chosen = code == GO && replies.last() == Some(&OptionReply::Ack);
        if is_chosen {
            // Before the client can know that it may.
            offer.seat.uses_device();
        }
        let bytes: Vec<u8> = replies.iter().flat_map(|reply| wire::option_reply(code, reply)).collect();
        link.output.write_all(&bytes)?;
        if is_chosen {
            return Ok(Some((link, agreed)));
        }
    }
    Err(invalid(wire::Malformed("it asks for ever and uses nothing")))
}

/// The option that ends the handshake.
const GO: u32 = 7;

/// The next option. The inner error is one that the client may be told about.
fn hear(link: &mut Link) -> io::Result<(u32, Result<Ask, wire::Malformed>)> {
    let mut header = [0; OptionHeader::BYTES];
    link.input.read_exact(&mut header)?;
    let header = OptionHeader::decode(&header).map_err(invalid)?;
    let mut data = vec![0; usize::try_from(header.length).map_err(io::Error::other)?];
    link.input.read_exact(&mut data)?;
    Ok((header.code, Ask::decode(header.code, &data)))
}

fn invalid(error: wire::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Offer<'_> {
    fn is(&self, name: &str) -> bool {
        name.is_empty() || name == self.name
    }

    fn flags(&self, agreed: Agreed) -> u16 {
        self.flags | if agreed.structured { SEND_DONT_FRAGMENT } else { 0 }
    }

    /// The answers to a question that may be asked now.
    fn answer(&self, ask: &Ask, agreed: &mut Agreed) -> Vec<OptionReply> {
        if matches!(ask, Ask::MetaContexts { set: true, .. }) {
            // What was chosen before is void, whatever comes of it.
            agreed.allocation = false;
        }
        match ask {
            Ask::List => vec![OptionReply::Server(self.name.into()), OptionReply::Ack],
            Ask::StructuredReplies => {
                agreed.structured = true;
                vec![OptionReply::Ack]
            }
            Ask::Info { name, .. } | Ask::MetaContexts { name, .. } if !self.is(name) => {
                vec![OptionReply::UnknownExport]
            }
            Ask::Info { wanted, .. } => self.describe(wanted, *agreed),
            Ask::MetaContexts { .. } if !agreed.structured => vec![OptionReply::Invalid],
            Ask::MetaContexts { set, queries, .. } => {
                // To list, the beginning of a name is enough, and no query asks for all.
                let meant = |query: &String| query == ALLOCATION || (!set && query == "base:");
                let found = queries.iter().any(meant) || (!set && queries.is_empty());
                let number = if *set { CONTEXT } else { 0 };
                if *set {
                    agreed.allocation = found;
                }
                let context = found.then_some(OptionReply::Context(number));
                context.into_iter().chain([OptionReply::Ack]).collect()
            }
            _ => vec![OptionReply::Unsupported],
        }
    }

    fn describe(&self, wanted: &[u16], agreed: Agreed) -> Vec<OptionReply> {
        const NAME: u16 = 1;
        let mut replies = vec![
            OptionReply::Export { size: self.size, flags: self.flags(agreed) },
            OptionReply::BlockSize { least: 1, preferred: 4096, most: self.most },
        ];
        if wanted.contains(&NAME) {
            replies.push(OptionReply::Name(self.name.into()));
        }
        replies.push(OptionReply::Ack);
        replies
    }
}
