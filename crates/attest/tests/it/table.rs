//! Certificate tables that a host could write.

use attest::snp::{TableError, certificates};

const VCEK: [u8; 16] = 0x63da_758d_e664_4564_adc5_f4b9_3be8_accd_u128.to_be_bytes();

fn table(entries: &[([u8; 16], u32, u32)], content: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    for (name, offset, length) in entries {
        all.extend(name);
        all.extend(offset.to_le_bytes());
        all.extend(length.to_le_bytes());
    }
    all.extend(content);
    all
}

#[test]
fn a_table_has_its_certificates_whatever_else_it_has() {
    let end = ([0; 16], 0, 0);
    let der = [0x30, 1, 2];
    let turned =
        [0x8d, 0x75, 0xda, 0x63, 0x64, 0xe6, 0x64, 0x45, 0xad, 0xc5, 0xf4, 0xb9, 0x3b, 0xe8, 0xac, 0xcd];
    let all = table(&[(VCEK, 96, 3), (turned, 96, 3), ([5; 16], 96, 1), end], &der);
    assert_eq!(certificates(&all), Ok(vec![der.to_vec(); 2]));
    assert_eq!(certificates(&[]), Ok(Vec::new()));
}

#[test]
fn a_table_that_leads_astray_is_refused() {
    let end = ([0; 16], 0, 0);
    let refusal = |bytes: &[u8]| certificates(bytes).unwrap_err();
    assert_eq!(refusal(&table(&[(VCEK, 48, 4), end], &[0x30; 3])), TableError::Outside(0));
    assert_eq!(refusal(&table(&[(VCEK, u32::MAX, u32::MAX), end], &[0x30; 3])), TableError::Outside(0));
    assert_eq!(refusal(&table(&[(VCEK, 48, 3), end], &[0x31; 3])), TableError::NoCertificate(0));
    assert_eq!(refusal(&table(&[(VCEK, 24, 3)], &[0x30; 3])), TableError::NoEnd);
    assert_eq!(refusal(&table(&[([5; 16], 0, 0); 100], &[])), TableError::NoEnd);
    assert_eq!(refusal(&vec![0; 300 * 1024]), TableError::TooLong(300 * 1024));
}
