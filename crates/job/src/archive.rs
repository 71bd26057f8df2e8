//! What an OCI archive holds, as far as the owner must know before it is sent: whether it is one, and what it takes unpacked.
//!
//! Source: OCI image specification 1.1, `image-layout.md`, `descriptor.md`, `manifest.md`, `layer.md`.

use std::collections::BTreeMap;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use serde::Deserialize;
use tar::{Archive, EntryType};

use crate::error::{Error, Result};
use crate::file::Digest;
use crate::tree::Digesting;

/// Most bytes of a JSON document in an archive.
const MAX_DOCUMENT: u64 = 4 << 20;
/// Most entries of an archive.
const MAX_ENTRIES: usize = 4096;
/// Where blobs lie.
const BLOBS: &str = "blobs/sha256/";

/// What an archive holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Bytes of all layers, unpacked.
    pub unpacked: u64,
    /// Layers.
    pub layers: usize,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// What is kept of an archive while it is read through once.
#[derive(Default)]
struct Seen {
    names: usize,
    index: Option<Vec<u8>>,
    /// Small blobs, which may be documents, by their digits.
    documents: BTreeMap<String, Vec<u8>>,
    /// Bytes of each blob, unpacked if it is compressed.
    unpacked: BTreeMap<String, u64>,
}

/// Reads an archive through, and checks each blob against its name.
///
/// # Errors
/// If it is no OCI archive of one image, has a name that leads outside or an entry of another kind, or a blob is not what its name says.
pub fn inspect(from: impl Read) -> Result<Contents> {
    let mut archive = Archive::new(from);
    let mut seen = Seen::default();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let path = String::from_utf8(entry.path_bytes().into_owned())
            .map_err(|_| Error::usage("the image archive has a name that is no UTF-8"))?;
        let name = path.trim_start_matches("./").trim_end_matches('/').to_string();
        seen.names += 1;
        if path.starts_with('/') || path.split('/').any(|part| part == "..") || seen.names > MAX_ENTRIES {
            return Err(Error::usage(format!(
                "the image archive is refused: its entry {path:?} leads outside, or it has more than {MAX_ENTRIES}"
            )));
        }
        match entry.header().entry_type() {
            EntryType::Directory => {}
            EntryType::Regular => seen.file(&name, &mut entry)?,
            // Times of extended headers, and the like, are the reader's.
            kind => {
                return Err(Error::usage(format!(
                    "the image archive is refused: its entry {path:?} is of another kind ({kind:?})"
                )));
            }
        }
    }
    seen.contents()
}

fn broken(error: io::Error) -> Error {
    Error::usage(format!("the image is no tar archive: {error}")).because(error)
}

impl Seen {
    fn file(&mut self, name: &str, content: &mut impl Read) -> Result<()> {
        if name == "index.json" {
            let mut bytes = Vec::new();
            content.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes).map_err(broken)?;
            self.index = Some(bytes);
        } else if let Some(digits) = name.strip_prefix(BLOBS) {
            self.blob(digits, content)?;
        }
        Ok(())
    }

    fn blob(&mut self, digits: &str, content: &mut impl Read) -> Result<()> {
        let mut raw = Through { inner: content, digest: Digesting::new(io::sink()), kept: Vec::new() };
        let mut magic = Vec::new();
        raw.by_ref().take(4).read_to_end(&mut magic).map_err(broken)?;
        let packing = Packing::of(&magic);
        let whole = io::Cursor::new(magic).chain(&mut raw);
        let size = match packing {
            Packing::None => Ok(None),
            Packing::Gzip => io::copy(&mut MultiGzDecoder::new(whole), &mut io::sink()).map(Some),
            Packing::Zstd => zstd_size(whole).map(Some),
        };
        let size = size.map_err(|error| {
            Error::usage(format!(
                "the image archive is damaged: its blob {digits} cannot be unpacked: {error}"
            ))
            .because(error)
        })?;
        io::copy(&mut raw, &mut io::sink()).map_err(broken)?;
        let Through { digest, kept, .. } = raw;
        let count = digest.count;
        let found = digest.finish().1;
        if Digest::parse(&format!("sha256:{digits}")).ok() != Some(found) {
            return Err(Error::usage(format!(
                "the image archive is damaged: its blob {digits} has the digest {}",
                found.digits()
            )));
        }
        self.unpacked.insert(digits.into(), size.unwrap_or(count));
        if count <= MAX_DOCUMENT {
            self.documents.insert(digits.into(), kept);
        }
        Ok(())
    }

    fn contents(&self) -> Result<Contents> {
        let no = |what: &str| {
            Error::usage(format!(
                "this is no OCI archive: {what}; `podman save --format oci-archive` and `skopeo copy` write one"
            ))
        };
        let index = self.index.as_ref().ok_or_else(|| no("it has no index.json"))?;
        let index: Index = serde_json::from_slice(index)
            .map_err(|error| no("its index.json has another form").because(error))?;
        let [image] = &index.manifests[..] else {
            return Err(no(&format!("it has {} images, and one is expected", index.manifests.len())));
        };
        let document = self.document(image).ok_or_else(|| no("the image that it names is not in it"))?;
        let manifest: Manifest = serde_json::from_slice(document)
            .map_err(|error| no("its manifest has another form").because(error))?;
        self.document(&manifest.config).ok_or_else(|| no("the image's configuration is not in it"))?;
        let mut unpacked = 0_u64;
        for layer in &manifest.layers {
            let bytes = digits(layer)
                .and_then(|digits| self.unpacked.get(digits))
                .ok_or_else(|| no("a layer is not in it"))?;
            unpacked = unpacked.saturating_add(*bytes);
        }
        Ok(Contents { unpacked, layers: manifest.layers.len() })
    }

    fn document(&self, descriptor: &Descriptor) -> Option<&Vec<u8>> {
        self.documents.get(digits(descriptor)?)
    }
}

fn digits(descriptor: &Descriptor) -> Option<&str> {
    descriptor.digest.strip_prefix("sha256:")
}

/// How a blob is compressed, by its first bytes.
enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    /// Sources: RFC 1952, section 2.3.1; RFC 8878, sections 3.1.1 and 3.1.2: a frame, or one that is to be skipped.
    fn of(magic: &[u8]) -> Self {
        match magic {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// Bytes of all frames, unpacked. Those that are to be skipped hold tables of some builders.
fn zstd_size(mut from: impl Read) -> io::Result<u64> {
    let mut size = 0;
    loop {
        let mut first = Vec::new();
        if from.by_ref().take(1).read_to_end(&mut first)? == 0 {
            return Ok(size);
        }
        let mut frame = io::Cursor::new(first).chain(&mut from);
        match StreamingDecoder::new(&mut frame) {
            Ok(mut decoder) => size += io::copy(&mut decoder, &mut io::sink())?,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let length = u64::from(length);
                if io::copy(&mut frame.take(length), &mut io::sink())? < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// A reader whose digest is taken as it goes, and whose first bytes are kept.
struct Through<'a, R> {
    inner: &'a mut R,
    digest: Digesting<io::Sink>,
    kept: Vec<u8>,
}

impl<R: Read> Read for Through<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        io::Write::write_all(&mut self.digest, &buffer[..count])?;
        if self.digest.count <= MAX_DOCUMENT {
            self.kept.extend(&buffer[..count]);
        }
        Ok(count)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tree::digest_of;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use tar::{Builder, Header};

    /// An archive of one image, with these layers as they are.
    pub(crate) fn archive(layers: &[Vec<u8>], change: impl Fn(&mut BTreeMap<String, Vec<u8>>)) -> Vec<u8> {
        let mut files = BTreeMap::new();
        let mut blob = |bytes: &[u8]| {
            let digits = digest_of(bytes).unwrap().digits();
            files.insert(format!("{BLOBS}{digits}"), bytes.to_vec());
            serde_json::json!({ "digest": format!("sha256:{digits}"), "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip" })
        };
        let layers: Vec<_> = layers.iter().map(|layer| blob(layer)).collect();
        let config = blob(br#"{"config": {"Cmd": ["/bin/sh"]}}"#);
        let manifest = blob(serde_json::json!({ "config": config, "layers": layers }).to_string().as_bytes());
        files.insert(
            "index.json".into(),
            serde_json::json!({ "manifests": [manifest] }).to_string().into_bytes(),
        );
        files.insert("oci-layout".into(), br#"{"imageLayoutVersion": "1.0.0"}"#.to_vec());
        change(&mut files);
        let mut builder = Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, &bytes[..]).unwrap();
        }
        builder.into_inner().unwrap()
    }

    /// What is changed in an archive's files.
    type Change<'a> = &'a dyn Fn(&mut BTreeMap<String, Vec<u8>>);

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut to = GzEncoder::new(Vec::new(), Compression::fast());
        io::Write::write_all(&mut to, bytes).unwrap();
        to.finish().unwrap()
    }

    #[test]
    fn layers_are_counted_as_they_are_unpacked() {
        let layers = [gzip(&[1; 100_000]), vec![2; 5000]];
        assert_eq!(
            inspect(&archive(&layers, |_| ())[..]).unwrap(),
            Contents { unpacked: 105_000, layers: 2 }
        );
    }

    #[test]
    fn layers_of_zstd_are_counted_frame_by_frame() {
        let frame = |bytes: &[u8]| compress_to_vec(bytes, CompressionLevel::Fastest);
        let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let layer = [frame(&[1; 200_000]), skipped.clone(), frame(&[2; 50_000]), skipped.clone()].concat();
        let size = inspect(&archive(std::slice::from_ref(&layer), |_| ())[..]).unwrap().unpacked;
        assert_eq!(size, 250_000);
        assert_eq!(inspect(&archive(&[[skipped, layer].concat()], |_| ())[..]).unwrap().unpacked, 250_000);
        for cut in [5, 40, 60] {
            let whole = [frame(&[3; 100]), frame(&[1; 200_000])].concat();
            let layer = whole[..whole.len().min(cut)].to_vec();
            let refused = inspect(&archive(&[layer], |_| ())[..]);
            if let Err(error) = &refused {
                assert!(error.to_string().contains("cannot be unpacked"), "{error}");
            }
            assert!(refused.is_err() || cut >= whole.len(), "cut at {cut} of {}", whole.len());
        }
    }

    /// Entries of an archive with this header, and one byte of content.
    fn entry(change: impl Fn(&mut Header)) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.set_path("a").unwrap();
        header.set_size(1);
        header.set_mode(0o644);
        change(&mut header);
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        builder.append(&header, &b"x"[..]).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn odd_headers_are_refused_and_no_bytes_make_it_panic() {
        let refusal = |bytes: &[u8]| inspect(bytes).unwrap_err().to_string();
        for kind in
            [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Fifo, EntryType::GNUSparse]
        {
            let said = refusal(&entry(|header| header.set_entry_type(kind)));
            assert!(said.contains("of another kind") || said.contains("no tar"), "{kind:?}: {said}");
        }
        for name in [&b"/a"[..], b"../a", b"a/../../b", b"a\xff"] {
            let said = refusal(&entry(|header| {
                header.as_old_mut().name[..name.len()].copy_from_slice(name);
            }));
            assert!(said.contains("leads outside") || said.contains("no UTF-8"), "{name:?}: {said}");
        }
        // A size that leads behind the end, and one that no number holds.
        for size in [b"77777777777\0", b"-1         \0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            let bytes = entry(|header| header.as_old_mut().size.copy_from_slice(size));
            assert!(inspect(&bytes[..]).is_err(), "{size:?}");
        }
        let whole = archive(&[gzip(b"layer")], |_| ());
        let mut random = fastrand::Rng::with_seed(9);
        for _ in 0..3000 {
            let mut bytes = whole.clone();
            for _ in 0..random.usize(1..4) {
                let place = random.usize(..bytes.len());
                bytes[place] = random.u8(..);
            }
            bytes.truncate(random.usize(..=whole.len()));
            let _ = inspect(&bytes[..]);
        }
    }

    #[test]
    fn what_is_no_archive_of_one_image_is_refused() {
        let layers = [gzip(b"layer")];
        let refusal = |change: Change<'_>| inspect(&archive(&layers, change)[..]).unwrap_err().to_string();
        assert!(refusal(&|files| drop(files.remove("index.json"))).contains("no index.json"));
        assert!(
            refusal(&|files| drop(files.insert("index.json".into(), b"{\"manifests\": []}".to_vec())))
                .contains("0 images")
        );
        assert!(
            refusal(&|files| drop(files.insert("index.json".into(), b"x".to_vec()))).contains("another form")
        );
        let longer: Change<'_> = &|files| {
            files.values_mut().filter(|bytes| bytes[..2] == [0x1f, 0x8b]).for_each(|bytes| bytes.push(0));
        };
        assert!(refusal(longer).contains("damaged"));
        assert!(
            refusal(
                &|files| files.retain(|name, bytes| !name.starts_with(BLOBS) || bytes[..2] != [0x1f, 0x8b])
            )
            .contains("a layer is not in it")
        );
        assert!(inspect(&b"not at all"[..]).is_err() && inspect(&[][..]).is_err());
    }
}
