//! The PEM files that the policy names: the authority of the cluster's members, and our own certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anchor::Options;
use rustls::ClientConfig;
use tls_files::{FileError, authorities, certificates, private_key, provider, until};

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
        let unusable = |error: FileError| error.to_string();
        let roots = authorities(&self.ca).map_err(unusable)?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| format!("no TLS: {error}"))?
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate).map_err(unusable)?;
                let secret = private_key(key).map_err(unusable)?;
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

impl Tls {
    /// When our certificate ends.
    pub(crate) fn certificate_until(&self) -> Option<SystemTime> {
        let (certificate, _) = self.identity.as_ref()?;
        until(certificates(certificate).ok()?.first())
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
