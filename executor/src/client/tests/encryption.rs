//! Which certificates TLS trusts.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::server::{AfterResponse, Server, ok};
use super::*;
use crate::client::ClientError;
use crate::environment::{HttpClient, HttpError};

/// A private authority, in PEM, and a server of `service.test` with a certificate from it.
fn authority() -> (Vec<u8>, TlsAcceptor) {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(params, authority_key);

    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["service.test".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (pem.into_bytes(), TlsAcceptor::from(Arc::new(config)))
}

#[tokio::test]
async fn a_private_authority_is_trusted_when_it_is_registered() {
    let (pem, acceptor) = authority();
    let (other_pem, _) = authority();
    let answer = ok("application/json", "{}");
    let server = Server::start_with(answer, AfterResponse::Listen, Some(acceptor)).await;
    let names = ScriptedResolver::new(&[&["127.0.0.1"]]);
    let url = |host: &str| format!("https://{host}:{}/x", server.port);

    let both = [other_pem.clone(), pem.clone()].concat();
    for trusted in [
        vec![pem.clone()],
        vec![other_pem.clone(), pem.clone()],
        vec![both],
    ] {
        let client = client(&names, trusted);
        let response = client.send(get(&url("service.test"))).await.unwrap();
        assert_eq!(&response.body[..], b"{}");
        let other_name = client.send(get(&url("other.test"))).await;
        assert_eq!(other_name.unwrap_err(), HttpError::Connect);
    }
    let sent = server.requests().len();
    for trusted in [vec![], vec![other_pem]] {
        let response = client(&names, trusted)
            .send(get(&url("service.test")))
            .await;
        assert_eq!(response.unwrap_err(), HttpError::Connect);
    }
    assert_eq!(
        server.requests().len(),
        sent,
        "nothing is sent to a stranger"
    );
}

#[tokio::test]
async fn a_server_without_tls_gets_nothing_from_https() {
    let server = Server::start(ok("text/plain", "x"), AfterResponse::Close).await;
    let names = ScriptedResolver::new(&[&["127.0.0.1"]]);
    let url = format!("https://service.test:{}/", server.port);
    let request = HttpRequest {
        timeout: Duration::from_millis(500),
        ..get(&url)
    };
    let error = client(&names, Vec::new()).send(request).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect | HttpError::Timeout));
    assert!(server.requests().is_empty());
}

#[test]
fn an_invalid_certificate_is_reported_with_its_position() {
    let (pem, _) = authority();
    let cut = pem[..pem.len() / 2].to_vec();
    for bad in [b"".to_vec(), b"text".to_vec(), cut, vec![0xff; 100]] {
        let options = ClientOptions {
            root_certificates: vec![pem.clone(), bad],
            ..ClientOptions::default()
        };
        let error = Client::new(&options).unwrap_err();
        assert!(matches!(error, ClientError::Certificate(1)), "{error:?}");
    }
}
