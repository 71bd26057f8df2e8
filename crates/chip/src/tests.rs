//! The kernel's configfs, with recorded answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use attest::Hex;

use super::*;

/// A kernel that counts writes and answers from a record.
struct Recorded {
    answers: BTreeMap<&'static str, Vec<u8>>,
    written: RefCell<Vec<(String, Vec<u8>)>>,
    /// Writes of somebody else.
    others: u64,
    is_there: RefCell<bool>,
    device: Option<Old>,
}

impl Recorded {
    fn new(provider: &str, report: &[u8], table: &[u8]) -> Self {
        let answers = [
            ("provider", provider.as_bytes().to_vec()),
            ("outblob", report.to_vec()),
            ("auxblob", table.to_vec()),
        ];
        let answers = answers.into();
        Self { answers, written: RefCell::default(), others: 0, is_there: RefCell::new(false), device: None }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

impl Files for Recorded {
    fn make(&self, path: &Path) -> io::Result<()> {
        assert!(path.starts_with(REPORTS));
        if self.device.is_some() {
            return Err(io::ErrorKind::NotFound.into());
        }
        *self.is_there.borrow_mut() = true;
        Ok(())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        *self.is_there.borrow_mut() = false;
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.written.borrow_mut().push((name(path), bytes.to_vec()));
        Ok(())
    }

    fn device(&self) -> Option<&dyn SevGuest> {
        self.device.as_ref().map(|device| device as &dyn SevGuest)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if name(path) == "generation" {
            let writes = self.written.borrow().len() as u64;
            let others = if writes > 0 { self.others } else { 0 };
            return Ok(format!("{}\n", writes + others).into_bytes());
        }
        let answer = self.answers.get(name(path).as_str());
        answer.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[test]
fn a_level_is_written_as_decimal_text_and_nothing_is_left() {
    let kernel = Recorded::new("sev_guest\n", &[3; 1184], &[]);
    let evidence = evidence(&kernel, Hex([7; 64]), Some(2)).unwrap();
    assert_eq!(evidence, Evidence::Snp { report: vec![3; 1184], certificates: Vec::new() });
    let written = kernel.written.borrow();
    assert_eq!(*written, [("privlevel".to_string(), b"2".to_vec()), ("inblob".to_string(), vec![7; 64])]);
    assert!(!*kernel.is_there.borrow());
}

#[test]
fn a_request_that_somebody_else_used_is_no_evidence() {
    let kernel = Recorded { others: 1, ..Recorded::new("sev_guest\n", &[3; 1184], &[]) };
    let failure = evidence(&kernel, Hex([7; 64]), None).unwrap_err();
    assert!(failure.to_string().contains("somebody else"), "{failure}");
    assert!(!*kernel.is_there.borrow());
}

#[test]
fn a_quote_comes_with_its_log_and_another_provider_is_refused() {
    let kernel = Recorded::new("tdx_guest\n", &[4; 5000], &[]);
    let made = evidence(&kernel, Hex([7; 64]), None).unwrap();
    assert_eq!(made, Evidence::Tdx { quote: vec![4; 5000], event_log: None });
    let kernel = Recorded::new("arm_cca_guest\n", &[4; 5000], &[]);
    let failure = evidence(&kernel, Hex([7; 64]), None).unwrap_err();
    assert!(failure.to_string().contains("arm_cca_guest"), "{failure}");
}

#[test]
fn the_recorded_answer_of_a_genoa_machine_is_evidence_with_its_certificates() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/evidence/snp/genoa-configfs-tsm.json");
    let Ok(text) = std::fs::read_to_string(path) else {
        println!("\nSKIPPED genoa-configfs-tsm.json: no folder `shared/evidence` lies beside the checkout");
        return;
    };
    let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
    let field = |name: &str| {
        use base64ct::Encoding as _;
        base64ct::Base64UrlUnpadded::decode_vec(answer[name].as_str().unwrap().trim_end_matches('=')).unwrap()
    };
    let kernel = Recorded::new(answer["provider"].as_str().unwrap(), &field("outblob"), &field("auxblob"));
    let Evidence::Snp { report, certificates } = evidence(&kernel, Hex([7; 64]), None).unwrap() else {
        panic!("it is SNP evidence")
    };
    assert_eq!((report.len(), certificates.len()), (1184, 3));
}

/// The device of a kernel without configfs.
struct Old;

impl SevGuest for Old {
    fn report(&self, request: &[u8; REQUEST_SIZE], with_table: bool) -> io::Result<Answer> {
        assert_eq!(request[..64], [7; 64]);
        let mut response = vec![0; RESPONSE_SIZE];
        response[4..8].copy_from_slice(&1184_u32.to_le_bytes());
        response[32..32 + 1184].fill(3);
        Ok(Answer { response, table: vec![0; if with_table { TABLE_SIZE } else { 0 }] })
    }
}

#[test]
fn a_kernel_without_configfs_is_asked_by_its_device() {
    let mut kernel = Recorded::new("tdx_guest", b"", b"");
    kernel.device = Some(Old);
    assert_eq!(platform(&kernel).unwrap(), Platform::Snp);
    let expected = Evidence::Snp { report: vec![3; 1184], certificates: Vec::new() };
    assert_eq!(evidence(&kernel, Hex([7; 64]), None).unwrap(), expected);
    kernel.device = None;
    assert_eq!(platform(&kernel).unwrap(), Platform::Tdx);
}
