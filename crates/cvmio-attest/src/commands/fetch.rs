//! `fetch`: keeps what evidence is judged by in a directory, for judging without a network.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use attest::snp;
use cli::failure::Failure;
use cli::output;
use evidence_files::{Beside, files};
use http1::{Connection, Endpoint, Outgoing};
use rustls::ClientConfig;

use crate::arguments::Fetch;

/// For each server. Those of manufacturers are slow.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most bytes of an answer.
const MOST: usize = 8 << 20;

pub fn fetch(args: &Fetch) -> Result<(), Failure> {
    let mut found = args.from.as_ref().map_or(Ok(Beside::default()), |from| Beside::read(from))?;
    if let Some(table) = &args.table {
        let certificates = snp::certificates(&files::read(table, files::SMALL)?);
        found.certificates.extend(certificates.map_err(|error| Failure::from(error).on(table.display()))?);
    }
    for url in &args.url {
        let body = get(url, &args.url_ca).map_err(|failure| failure.on(url))?;
        if !found.take(body) {
            return Err(Failure::io(
                "what is there is neither a certificate, nor a revocation list, nor collateral",
            )
            .on(url));
        }
    }
    let count = found.keep(&args.cache)?;
    if count == 0 {
        return Err(Failure::usage(
            "nothing to keep was found: no *.pem, *.der, *.crt, *.cer, *.crl or *.json",
        ));
    }
    output::print(&format!("{count} files are in {}", args.cache.display()));
    Ok(())
}

/// The content at a server's address. No redirection is followed: the user names the place.
fn get(url: &str, authorities: &Path) -> Result<Vec<u8>, Failure> {
    let (endpoint, path) = Endpoint::from_url(url)
        .ok_or_else(|| Failure::usage("this is no URL of http or https, without user and fragment"))?;
    let tls = if endpoint.tls { Some(tls(authorities)?) } else { None };
    let request = Outgoing { method: "GET", path: &path, fields: &[], body: "", most: MOST };
    let answer = Connection::open(&endpoint, tls, PATIENCE)
        .and_then(|mut connection| connection.ask(&request, PATIENCE));
    let answer = answer.map_err(Failure::io)?;
    if answer.status != 200 {
        return Err(Failure::io(format!("the server answers with HTTP status {}", answer.status)));
    }
    Ok(answer.body)
}

fn tls(authorities: &Path) -> Result<Arc<ClientConfig>, Failure> {
    let roots = tls_files::authorities(authorities).map_err(Failure::usage)?;
    let config = ClientConfig::builder_with_provider(tls_files::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::internal(format!("no TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
