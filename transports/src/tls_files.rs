//! Finds faults of the configured certificates and keys. Clients report only "TLS error", or nothing until a server
//! refuses them.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::crypto::ring::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::certificate::{Validity, X509Certificate};
use x509_parser::parse_x509_certificate;

use crate::error::{ConfigProblem, TlsFindings};

/// The files of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TlsFiles<'a> {
    pub(crate) authorities: Option<&'a Path>,
    pub(crate) certificate: Option<&'a Path>,
    pub(crate) key: Option<&'a Path>,
    pub(crate) client: TlsClient,
}

/// The kind of client that uses the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsClient {
    /// The Kafka client, with OpenSSL, which decrypts keys.
    #[cfg(feature = "kafka")]
    OpenSsl { has_password: bool },
    /// The client of NATS.
    #[cfg(feature = "nats")]
    Rustls,
}

/// Which certificate of a file decides how long the file is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Serves {
    /// Authorities: as long as one of them is valid.
    WhileOneIsValid,
    /// A chain: as long as all its certificates are valid.
    WhileAllAreValid,
}

/// A certificate expires soon in the last tenth of its life, at most this long before its end.
const EXPIRES_SOON: Duration = Duration::from_secs(30 * 86_400);
const CA_FILE: &str = "tls.ca_file";
const CERT_FILE: &str = "tls.cert_file";
const KEY_FILE: &str = "tls.key_file";

// === impl TlsFiles ===

impl TlsFiles<'_> {
    /// Reads the files as the client would. Blocks as long as reading small files does.
    pub(crate) fn inspect(&self) -> TlsFindings {
        self.inspect_at(SystemTime::now())
    }

    fn inspect_at(&self, now: SystemTime) -> TlsFindings {
        let mut findings = TlsFindings::default();
        if let Some(file) = self.authorities {
            let seen = certificates(file);
            let serves = Serves::WhileOneIsValid;
            findings.of_certificates(CA_FILE, file, &seen, serves, now, self.renewal());
        }
        let seen = self.certificate.map(certificates);
        if let (Some(file), Some(seen)) = (self.certificate, &seen) {
            let serves = Serves::WhileAllAreValid;
            findings.of_certificates(CERT_FILE, file, seen, serves, now, self.renewal());
        }
        if let Some(file) = self.key {
            let first = seen
                .and_then(Result::ok)
                .and_then(|all| all.into_iter().next());
            if let Err(problem) = self.check_key(file, first.as_ref()) {
                findings.unusable(KEY_FILE, problem);
            }
        }
        findings
    }

    /// How to renew a certificate that expires.
    fn renewal(&self) -> &'static str {
        match self.client {
            // The client reads the files when it is created.
            #[cfg(feature = "kafka")]
            TlsClient::OpenSsl { .. } => "renew it, and restart the bridge",
            // The client reads them for each connection.
            #[cfg(feature = "nats")]
            TlsClient::Rustls => "renew it",
        }
    }

    /// Whether the key can be used, and belongs to the certificate.
    fn check_key(&self, file: &Path, first: Option<&CertificateDer<'_>>) -> Result<(), String> {
        let (bytes, shown) = (read(file)?, file.display());
        if is_encrypted(&bytes) {
            return match self.client {
                #[cfg(feature = "kafka")]
                TlsClient::OpenSsl { has_password: true } => Ok(()),
                #[cfg(feature = "kafka")]
                TlsClient::OpenSsl {
                    has_password: false,
                } => Err(format!(
                    "the key in {shown} is encrypted: set tls.key_password"
                )),
                #[cfg(feature = "nats")]
                TlsClient::Rustls => Err(format!(
                    "the key in {shown} is encrypted, and a2abus cannot decrypt keys for NATS: decrypt it by `openssl pkey -in {shown} \
                    -out FILE`, and name that file here"
                )),
            };
        }
        let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| {
            format!(
                "{shown} holds no private key in PEM, which begins with -----BEGIN PRIVATE KEY-----"
            )
        })?;
        let key = any_supported_type(&key);
        #[cfg(feature = "nats")]
        if key.is_err() && self.client == TlsClient::Rustls {
            return Err(format!(
                "the key in {shown} is of a kind that a2abus cannot use for NATS: use RSA, P-256, P-384 or Ed25519"
            ));
        }
        let public = key.as_ref().ok().and_then(|key| key.public_key());
        let certificate = first.and_then(|der| parse_x509_certificate(der).ok());
        match (certificate, public) {
            (Some((_, certificate)), Some(public)) if certificate.public_key().raw != &*public => {
                let other = self.certificate.unwrap_or(Path::new("")).display();
                Err(format!(
                    "the key in {shown} is not that of the certificate in {other}: use the two that were issued together"
                ))
            }
            _ => Ok(()),
        }
    }
}

// === impl TlsFindings ===

impl TlsFindings {
    fn unusable(&mut self, key: &str, message: String) {
        self.unusable.push(ConfigProblem::new(key, message));
    }

    fn of_certificates(
        &mut self,
        key: &str,
        file: &Path,
        seen: &Result<Vec<CertificateDer<'_>>, String>,
        serves: Serves,
        now: SystemTime,
        renewal: &str,
    ) {
        let seen = match seen {
            Ok(seen) => seen,
            Err(problem) => return self.unusable(key, problem.clone()),
        };
        let parsed: Result<Vec<_>, _> =
            seen.iter().map(|der| parse_x509_certificate(der)).collect();
        let Ok(parsed) = parsed else {
            let message = format!(
                "a certificate in {} is damaged: copy the file again",
                file.display()
            );
            return self.unusable(key, message);
        };
        let ends = |(_, certificate): &&(&[u8], X509Certificate<'_>)| {
            certificate.validity().not_after.timestamp()
        };
        let deciding = match serves {
            Serves::WhileOneIsValid => parsed.iter().max_by_key(ends),
            Serves::WhileAllAreValid => parsed.iter().min_by_key(ends),
        };
        if let Some((_, certificate)) = deciding {
            self.of_validity(key, file, certificate, now, renewal);
        }
    }

    fn of_validity(
        &mut self,
        key: &str,
        file: &Path,
        certificate: &X509Certificate<'_>,
        now: SystemTime,
        renewal: &str,
    ) {
        let Validity {
            not_before,
            not_after,
        } = certificate.validity();
        let (begins, ends) = (time(not_before.timestamp()), time(not_after.timestamp()));
        let shown = humantime::format_rfc3339_seconds(begins);
        let subject = format!(
            "the certificate of {} in {}",
            certificate.subject(),
            file.display()
        );
        if now < begins {
            let message = format!("{subject} is not valid before {shown}: check the clock");
            return self.invalid.push(ConfigProblem::new(key, message));
        }
        let lifetime = ends.duration_since(begins).unwrap_or_default();
        self.of_end(key, &subject, (ends, Some(lifetime)), now, renewal);
    }

    /// Reports what has expired or expires soon. `lifetime` is the total time of its validity, if known.
    pub(crate) fn of_end(
        &mut self,
        key: &str,
        subject: &str,
        (ends, lifetime): (SystemTime, Option<Duration>),
        now: SystemTime,
        renewal: &str,
    ) {
        let left = ends.duration_since(now).unwrap_or_default();
        let soon = lifetime.map_or(EXPIRES_SOON, |lifetime| EXPIRES_SOON.min(lifetime / 10));
        let ends = humantime::format_rfc3339_seconds(ends);
        if left.is_zero() {
            let message = format!("{subject} expired on {ends}: {renewal}");
            self.invalid.push(ConfigProblem::new(key, message));
        } else if left < soon {
            let message = format!("{subject} expires on {ends}: {renewal}");
            self.expiring.push(ConfigProblem::new(key, message));
        }
    }
}

/// The certificates in a file, at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(format!(
            "{} holds no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----",
            file.display()
        )),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| {
        let shown = file.display();
        match error.kind() {
            ErrorKind::NotFound => {
                format!("{shown} does not exist: correct the path, or put the file there")
            }
            ErrorKind::PermissionDenied => {
                format!("{shown} cannot be read: permit the user of a2abus to read it")
            }
            _ => format!("{shown} cannot be read: {error}"),
        }
    })
}

/// Whether the key has a password, in the notation of PKCS #8 or of OpenSSL.
fn is_encrypted(pem: &[u8]) -> bool {
    pem.split(|byte| *byte == b'\n').any(|line| {
        let line = line.trim_ascii_end();
        line == b"-----BEGIN ENCRYPTED PRIVATE KEY-----" || line == b"Proc-Type: 4,ENCRYPTED"
    })
}

/// A time of a certificate, which may be before 1970.
fn time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate of `client` that is valid from 2030 to 2031, and its key, in a directory.
    fn issued() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, "client");
        (params.not_before, params.not_after) =
            (date_time_ymd(2030, 1, 1), date_time_ymd(2031, 1, 1));
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(directory.path().join("cert"), certificate.pem()).unwrap();
        std::fs::write(directory.path().join("key"), key.serialize_pem()).unwrap();
        directory
    }

    fn inspect(files: &[Option<PathBuf>; 3], client: TlsClient, date: &str) -> TlsFindings {
        let [authorities, certificate, key] = files;
        let files = TlsFiles {
            authorities: authorities.as_deref(),
            certificate: certificate.as_deref(),
            key: key.as_deref(),
            client,
        };
        files.inspect_at(humantime::parse_rfc3339(date).unwrap())
    }

    #[test]
    #[cfg(feature = "nats")]
    fn certificates_are_checked_for_when_they_are_valid() {
        let directory = issued();
        let file = directory.path().join("cert");
        let subject = format!("the certificate of CN=client in {}", file.display());
        let (not_yet, over) = (
            format!("{subject} is not valid before 2030-01-01T00:00:00Z: check the clock"),
            format!("{subject} expired on 2031-01-01T00:00:00Z: renew it"),
        );
        let soon = format!("{subject} expires on 2031-01-01T00:00:00Z: renew it");
        for (date, invalid, expiring) in [
            ("2029-12-31T23:59:59Z", Some(&not_yet), None),
            ("2030-06-01T00:00:00Z", None, None),
            ("2030-12-01T00:00:00Z", None, None),
            ("2030-12-03T00:00:00Z", None, Some(&soon)),
            ("2031-01-01T00:00:00Z", Some(&over), None),
        ] {
            for (key, files) in [
                ("tls.ca_file", [Some(file.clone()), None, None]),
                ("tls.cert_file", [None, Some(file.clone()), None]),
            ] {
                let problem = |text: &String| ConfigProblem::new(key, text);
                let expected = TlsFindings {
                    unusable: Vec::new(),
                    invalid: invalid.map(problem).into_iter().collect(),
                    expiring: expiring.map(problem).into_iter().collect(),
                };
                assert_eq!(inspect(&files, TlsClient::Rustls, date), expected, "{date}");
            }
        }
    }

    #[test]
    #[cfg(feature = "nats")]
    fn files_that_no_client_can_use_are_named() {
        let (directory, other) = (issued(), issued());
        let path = directory.path();
        std::fs::write(path.join("text"), "hello\n").unwrap();
        std::fs::write(
            path.join("locked"),
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\n",
        )
        .unwrap();
        let [cert, key, text, locked, missing] =
            ["cert", "key", "text", "locked", "missing"].map(|name| path.join(name));
        let shown = path.display();
        let found = |files: [Option<&PathBuf>; 3]| {
            let files = files.map(|file| file.cloned());
            let found = inspect(&files, TlsClient::Rustls, "2030-06-01T00:00:00Z");
            found
                .unusable
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(found([Some(&cert), Some(&cert), Some(&key)]), [""; 0]);
        assert_eq!(
            found([Some(&missing), Some(&text), Some(&text)]),
            [
                format!(
                    "tls.ca_file: {shown}/missing does not exist: correct the path, or put the file there"
                ),
                format!(
                    "tls.cert_file: {shown}/text holds no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----"
                ),
                format!(
                    "tls.key_file: {shown}/text holds no private key in PEM, which begins with -----BEGIN PRIVATE KEY-----"
                ),
            ]
        );
        let foreign = other.path().join("key");
        assert_eq!(
            found([None, Some(&cert), Some(&foreign)]),
            [format!(
                "tls.key_file: the key in {} is not that of the certificate in {shown}/cert: use the two that were issued together",
                foreign.display()
            )]
        );
        assert_eq!(
            found([None, Some(&cert), Some(&locked)]),
            [format!(
                "tls.key_file: the key in {shown}/locked is encrypted, and a2abus cannot decrypt keys for NATS: decrypt it by `openssl pkey -in {shown}/locked -out FILE`, and name that file here"
            )]
        );
    }

    #[test]
    #[cfg(feature = "kafka")]
    fn an_encrypted_key_needs_its_password() {
        let directory = issued();
        let [cert, key] = ["cert", "locked"].map(|name| directory.path().join(name));
        std::fs::write(
            &key,
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n",
        )
        .unwrap();
        for (has_password, problems) in [(true, 0), (false, 1)] {
            let files = [None, Some(cert.clone()), Some(key.clone())];
            let client = TlsClient::OpenSsl { has_password };
            let found = inspect(&files, client, "2030-06-01T00:00:00Z");
            assert_eq!(found.unusable.len(), problems, "{found:?}");
        }
    }
}
