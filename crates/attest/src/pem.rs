//! Certificates in PEM form.

use base64ct::{Base64, Encoding};

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
/// Most certificates in one text.
const MOST: usize = 64;

/// All certificates (DER) of a text; `None` if there is none, if one is cut or no base64, or if something else stands between them.
#[must_use]
pub fn certificates(text: &str) -> Option<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (body, behind) = rest.strip_prefix(BEGIN)?.split_once(END)?;
        let digits: String = body.split_ascii_whitespace().collect();
        found.push(Base64::decode_vec(&digits).ok()?);
        rest = behind.trim_start();
        if found.len() > MOST {
            return None;
        }
    }
    if found.is_empty() { None } else { Some(found) }
}

/// The text of certificates (DER): lines of 64 digits, each ended by a line feed.
#[must_use]
pub fn text(certificates: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for der in certificates {
        let digits = Base64::encode_string(der);
        text.extend([BEGIN, "\n"]);
        for line in digits.as_bytes().chunks(64) {
            text.extend(line.iter().map(|byte| char::from(*byte)));
            text.push('\n');
        }
        text.extend([END, "\n"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_and_anything_else_is_refused() {
        let one = format!("{BEGIN}\nAQID\nBAUG\n{END}\n");
        assert_eq!(certificates(&one).unwrap(), [[1, 2, 3, 4, 5, 6]]);
        assert_eq!(certificates(&one.repeat(2)).unwrap().len(), 2);
        let long = vec![vec![9; 100], vec![8; 48]];
        assert_eq!(certificates(&text(&long)).unwrap(), long);
        for bad in
            ["", "hello", &one[..40], &format!("x{one}"), &format!("{one}x"), &one.replace("AQID", "AQ=D")]
        {
            assert_eq!(certificates(bad), None, "{bad}");
        }
    }
}
