//! Who the cluster is, and who we are: the PEM files that the policy names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anchor::Options;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// The files. They are read for each connection, so that certificates may be replaced while a volume is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Authorities that may vouch for a member.
    ca: PathBuf,
    /// Our certificate with its key.
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Takes the names of the files from the options.
    pub(crate) fn from_options(options: &Options) -> Result<Tls, String> {
        let file = |name: &str| match options.get(name) {
            Some(path) if !Path::new(path).is_absolute() => {
                Err(format!("the option {name} is {path:?}: write the whole path"))
            }
            path => Ok(path.map(PathBuf::from)),
        };
        let ca = file("ca-file")?.ok_or(
            "the option ca-file is missing: it names the PEM file of the authority that vouches for the cluster's members",
        )?;
        let identity = match (file("cert-file")?, file("key-file")?) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("cert-file and key-file go together".into()),
        };
        Ok(Tls { ca, identity })
    }

    /// Reads the files. TLS 1.3 only.
    pub(crate) fn load(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots.add(certificate).map_err(|error| format!("{}: {error}", self.ca.display()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| format!("no TLS: {error}"))?
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
                builder.with_client_auth_cert(chain, secret).map_err(|error| {
                    format!(
                        "{} and {} are no certificate with its key: {error}",
                        certificate.display(),
                        key.display()
                    )
                })?
            }
        };
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|error| unusable(path, &error))?;
    if all.is_empty() { Err(format!("{} holds no certificate in PEM form", path.display())) } else { Ok(all) }
}

fn unusable(path: &Path, error: &rustls::pki_types::pem::Error) -> String {
    use rustls::pki_types::pem::Error;
    match error {
        Error::Io(error) => format!("{}: {error}", path.display()),
        Error::NoItemsFound => format!("{} holds nothing of this kind in PEM form", path.display()),
        error => format!("{} is no PEM file: {error:?}", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Tls, String> {
        Tls::from_options(&pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
    }

    #[test]
    fn what_is_missing_is_named() {
        assert!(from(&[]).expect_err("no ca").contains("ca-file is missing"));
        assert!(from(&[("ca-file", "ca.pem")]).expect_err("relative").contains("whole path"));
        let half = from(&[("ca-file", "/ca"), ("cert-file", "/c")]);
        assert!(half.expect_err("half").contains("go together"));
        let gone = from(&[("ca-file", "/nowhere/ca.pem")]).expect("named").load();
        assert!(gone.expect_err("gone").contains("/nowhere/ca.pem"));
    }
}
