//! As much DER as certificates of tests need.

pub fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut all = vec![tag];
    let length = content.len();
    if length < 0x80 {
        all.push(u8::try_from(length).unwrap());
    } else {
        let bytes = length.to_be_bytes();
        let bytes: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
        all.push(0x80 | u8::try_from(bytes.len()).unwrap());
        all.extend(bytes);
    }
    all.extend(content);
    all
}

pub fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    tlv(0x30, &parts.concat())
}

pub fn number(value: u64) -> Vec<u8> {
    let bytes: Vec<u8> = value.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    let sign = bytes.first().is_none_or(|first| *first >= 0x80);
    tlv(0x02, &[if sign { vec![0] } else { Vec::new() }, bytes].concat())
}

/// An object identifier in dotted form.
pub fn oid(text: &str) -> Vec<u8> {
    let arcs: Vec<u64> = text.split('.').map(|arc| arc.parse().unwrap()).collect();
    let mut content = vec![u8::try_from(arcs[0] * 40 + arcs[1]).unwrap()];
    for arc in &arcs[2..] {
        let mut digits = vec![u8::try_from(arc & 0x7f).unwrap()];
        let mut rest = arc >> 7;
        while rest > 0 {
            digits.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        content.extend(digits.into_iter().rev());
    }
    tlv(0x06, &content)
}

pub fn octets(content: &[u8]) -> Vec<u8> {
    tlv(0x04, content)
}

pub fn bits(content: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], content].concat())
}

/// A name of one common name.
pub fn name(common: &str) -> Vec<u8> {
    let attribute = sequence(&[oid("2.5.4.3"), tlv(0x0c, common.as_bytes())]);
    sequence(&[tlv(0x31, &attribute)])
}

/// `YYYYMMDDHHMMSSZ`.
pub fn time(text: &str) -> Vec<u8> {
    tlv(0x18, text.as_bytes())
}

pub fn extension(id: &str, is_critical: bool, content: &[u8]) -> Vec<u8> {
    let critical = if is_critical { tlv(0x01, &[0xff]) } else { Vec::new() };
    sequence(&[oid(id), critical, octets(content)])
}
