//! What an error of TLS means for the person who must mend it.

use rustls::{AlertDescription, CertificateError};
use std::io;

/// The error of TLS inside an I/O error, if it is one.
#[must_use]
pub fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// What an error of TLS means on the client's side, and what to do.
#[must_use]
pub fn meaning(error: &rustls::Error) -> &'static str {
    use CertificateError as Bad;
    use rustls::Error as Tls;
    match error {
        Tls::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "the service's certificate has expired; renew it, or correct this machine's clock"
        }
        Tls::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "the service's certificate is not valid yet; correct this machine's clock"
        }
        Tls::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "the service's certificate does not come from an authority in ca-file; this is another server, or the wrong ca-file"
        }
        Tls::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the service's certificate is for another host name; use a name that is in it"
        }
        Tls::InvalidCertificate(_) => "the service's certificate can't be used",
        Tls::AlertReceived(AlertDescription::CertificateExpired) => {
            "the service says that the certificate in cert-file has expired, or is not valid yet; renew it, or correct the clock of one of the two machines"
        }
        Tls::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "the service does not know the authority of the certificate in cert-file; use one that the service's owner made"
        }
        Tls::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown,
        ) => "the service refuses the certificate in cert-file",
        Tls::AlertReceived(AlertDescription::NoApplicationProtocol) | Tls::NoApplicationProtocol => {
            "the server speaks TLS, but it is no cvmio-owner of this version"
        }
        Tls::AlertReceived(AlertDescription::ProtocolVersion) | Tls::PeerIncompatible(_) => {
            "the server does not speak TLS 1.3"
        }
        Tls::InvalidMessage(_) => "the server does not speak TLS; check the port",
        _ => "TLS failed",
    }
}
