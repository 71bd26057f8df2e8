//! `/dev/sev-guest`, for kernels whose configfs makes no evidence: Linux 5.19 to 6.6, and later ones without it.
//!
//! Source: the kernel's `include/uapi/linux/sev-guest.h` and `Documentation/virt/coco/sev-guest.rst`; AMD publication 56860, tables
//! `MSG_REPORT_REQ`, `MSG_REPORT_RSP`.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use attest::snp::REPORT_SIZE;
use attest::{Evidence, ReportData, snp};
use cli::failure::Failure;

/// The device.
pub const SEV_GUEST: &str = "/dev/sev-guest";

/// Bytes of a request for a report: 64 of report data, 4 of the privilege level, and zeros.
pub const REQUEST_SIZE: usize = 96;
/// Bytes of the answer: 4 of status, 4 of the report's size, 24 zeros, the report, and zeros.
pub const RESPONSE_SIZE: usize = 4000;
/// Bytes of room for the host's certificates: whole pages, as the kernel demands.
pub const TABLE_SIZE: usize = 16 * 4096;
/// Where the report begins in the answer.
const REPORT: usize = 32;

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// [`RESPONSE_SIZE`] bytes.
    pub response: Vec<u8>,
    /// The host's table of certificates, [`TABLE_SIZE`] bytes; empty if it was not asked for.
    pub table: Vec<u8>,
}

/// What this needs of the device: a seam for recorded answers.
pub trait SevGuest {
    /// Has the firmware make a report, with the host's table if `with_table`.
    ///
    /// # Errors
    /// The kernel's.
    fn report(&self, request: &[u8; REQUEST_SIZE], with_table: bool) -> io::Result<Answer>;
}

/// This system's.
pub struct Device;

/// `struct snp_guest_request_ioctl`.
#[repr(C)]
struct Request {
    /// Version of the message.
    version: u8,
    request: u64,
    response: u64,
    /// What firmware (low half) and host (high half) say of a failure.
    error: u64,
}

/// `struct snp_ext_report_req`.
#[repr(C)]
struct Extended {
    report: [u8; REQUEST_SIZE],
    table: u64,
    table_size: u32,
}

/// `_IOWR('S', number, struct snp_guest_request_ioctl)`.
const fn number(number: u64) -> u64 {
    3 << 30 | (size_of::<Request>() as u64) << 16 | (b'S' as u64) << 8 | number
}
const GET_REPORT: u64 = number(0);
const GET_EXT_REPORT: u64 = number(2);
const _: () = assert!(GET_REPORT == 0xc020_5300 && size_of::<Extended>() == 112);

impl SevGuest for Device {
    fn report(&self, request: &[u8; REQUEST_SIZE], with_table: bool) -> io::Result<Answer> {
        let device =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(SEV_GUEST)?;
        let mut answer = Answer { response: vec![0; RESPONSE_SIZE], table: Vec::new() };
        let mut extended = Extended { report: *request, table: 0, table_size: 0 };
        if with_table {
            answer.table = vec![0; TABLE_SIZE];
            extended.table = answer.table.as_mut_ptr().expose_provenance() as u64;
            extended.table_size = u32::try_from(TABLE_SIZE).unwrap_or_default();
        }
        let from = (&raw mut extended).expose_provenance() as u64;
        let response = answer.response.as_mut_ptr().expose_provenance() as u64;
        let mut message = Request { version: 1, request: from, response, error: 0 };
        let number = if with_table { GET_EXT_REPORT } else { GET_REPORT };
        // SAFETY: `message`, and what it points to, live until the call has returned: `extended` begins with the 96 bytes that the plain request
        // has, the response has the 4000 bytes that the kernel writes, and the table the size that is said. Nothing else refers to them meanwhile.
        let done = unsafe { libc::ioctl(device.as_raw_fd(), number, &raw mut message) };
        if done == 0 { Ok(answer) } else { Err(told(io::Error::last_os_error(), message.error)) }
    }
}

/// The kernel's error with what firmware and host said.
fn told(error: io::Error, codes: u64) -> io::Error {
    let (firmware, host) = (codes & u64::from(u32::MAX), codes >> 32);
    match codes {
        0 => error,
        _ => io::Error::new(error.kind(), format!("{error} (firmware {firmware:#x}, host {host:#x})")),
    }
}

/// Evidence from the device.
pub(crate) fn evidence(
    device: &dyn SevGuest,
    report_data: ReportData,
    vmpl: Option<u32>,
) -> Result<Evidence, Failure> {
    let mut request = [0; REQUEST_SIZE];
    request[..64].copy_from_slice(&report_data.0);
    request[64..68].copy_from_slice(&vmpl.unwrap_or(0).to_le_bytes());
    // A host without certificates, or with more of them than fit, fails the request with them.
    let answer = device.report(&request, true).or_else(|_| device.report(&request, false));
    let answer = answer.map_err(|error| Failure::io(format!("{SEV_GUEST}: {error}")))?;
    let wrong = |why: String| Failure::io(format!("{SEV_GUEST}: {why}"));
    let Some((head, rest)) = answer.response.split_first_chunk::<REPORT>() else {
        return Err(wrong("the firmware's answer is cut short".into()));
    };
    let field = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if field(0) != 0 {
        return Err(wrong(format!("the firmware makes no report: status {:#x}", field(0))));
    }
    let report = rest.get(..REPORT_SIZE).filter(|_| field(4) as usize == REPORT_SIZE);
    let report = report.ok_or_else(|| {
        wrong(format!("the firmware's report has {} bytes, and {REPORT_SIZE} are expected", field(4)))
    })?;
    let certificates =
        if answer.table.is_empty() { Ok(Vec::new()) } else { snp::certificates(&answer.table) };
    Ok(Evidence::Snp { report: report.to_vec(), certificates: certificates.map_err(Failure::from)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use attest::Hex;
    use std::cell::RefCell;

    /// Answers as they were recorded, with the table and without; and what was asked.
    struct Recorded {
        with_table: Option<Vec<u8>>,
        response: Vec<u8>,
        asked: RefCell<Vec<([u8; REQUEST_SIZE], bool)>>,
    }

    impl SevGuest for Recorded {
        fn report(&self, request: &[u8; REQUEST_SIZE], with_table: bool) -> io::Result<Answer> {
            self.asked.borrow_mut().push((*request, with_table));
            let response = self.response.clone();
            match (with_table, &self.with_table) {
                (false, _) => Ok(Answer { response, table: Vec::new() }),
                (true, Some(table)) => Ok(Answer { response, table: table.clone() }),
                (true, None) => Err(told(io::Error::from_raw_os_error(libc::EIO), 1 << 32)),
            }
        }
    }

    fn response(status: u32, size: usize) -> Vec<u8> {
        let mut response = vec![0; RESPONSE_SIZE];
        response[..4].copy_from_slice(&status.to_le_bytes());
        response[4..8].copy_from_slice(&u32::try_from(size).unwrap().to_le_bytes());
        response[REPORT..REPORT + REPORT_SIZE].fill(5);
        response
    }

    fn recorded(status: u32, size: usize, with_table: Option<Vec<u8>>) -> Recorded {
        Recorded { with_table, response: response(status, size), asked: RefCell::default() }
    }

    fn asked(device: &Recorded) -> Result<Evidence, Failure> {
        evidence(device, Hex([7; 64]), Some(2))
    }

    #[test]
    fn a_report_is_cut_out_of_the_answer_with_the_hosts_certificates_where_it_has_some() {
        let device = recorded(0, REPORT_SIZE, Some(vec![0; TABLE_SIZE]));
        let plain = Evidence::Snp { report: vec![5; REPORT_SIZE], certificates: Vec::new() };
        assert_eq!(asked(&device).unwrap(), plain);
        let mut request = [0; REQUEST_SIZE];
        request[..64].fill(7);
        request[64] = 2;
        assert_eq!(*device.asked.borrow(), [(request, true)]);
        // A host without a table.
        let device = recorded(0, REPORT_SIZE, None);
        assert_eq!(asked(&device).unwrap(), plain);
        assert_eq!(*device.asked.borrow(), [(request, true), (request, false)]);
    }

    #[test]
    fn an_answer_without_a_report_is_told() {
        let refusal = |status, size| asked(&recorded(status, size, None)).unwrap_err().to_string();
        assert!(refusal(0x16, REPORT_SIZE).contains("status 0x16"));
        assert!(refusal(0, 1183).contains("has 1183 bytes"));
        let short = Recorded { response: vec![0; 8], ..recorded(0, 0, None) };
        assert!(asked(&short).unwrap_err().to_string().contains("cut short"));
        let junk = recorded(0, REPORT_SIZE, Some(vec![0xff; TABLE_SIZE]));
        assert!(asked(&junk).is_err(), "a table that is none");
        let error = told(io::Error::from_raw_os_error(libc::EIO), (1 << 32) | 0x16);
        assert!(error.to_string().contains("firmware 0x16, host 0x1"), "{error}");
    }

    #[test]
    fn a_machine_without_the_device_says_so() {
        if std::path::Path::new(SEV_GUEST).exists() {
            println!("\nSKIPPED a machine without the device: this one has it");
            return;
        }
        let failure = evidence(&Device, Hex([0; 64]), None).unwrap_err();
        assert!(failure.to_string().contains(SEV_GUEST), "{failure}");
    }
}
