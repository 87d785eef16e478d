//! The certificate authority, the server's certificate, and those of clients.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    self, DigitallySignedStruct, DistinguishedName as RawName, ServerConfig, SignatureScheme,
};

/// A client's certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate, PEM.
    pub certificate: String,
    /// Its private key, PEM.
    pub key: String,
}

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The common names of the client certificates issued, by certificate (DER).
    issued: Mutex<BTreeMap<Vec<u8>, String>>,
}

/// Takes any client certificate, as the real server does: what it cannot trust gets a 401, rather
/// than a failed handshake. That the client holds the key is checked.
struct AnyCertificate(Arc<CryptoProvider>);

impl Authority {
    pub(crate) fn new() -> Result<Self> {
        let mut parameters = CertificateParams::new(Vec::new())?;
        parameters.distinguished_name = named("kubernetes");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)?;
        Ok(Self { issuer, issued: Mutex::new(BTreeMap::new()) })
    }

    /// The certificate of the authority, PEM.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Makes the server's TLS configuration, with a certificate for this address and this host.
    pub(crate) fn server_config(&self, address: IpAddr) -> Result<ServerConfig> {
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()])?;
        let addresses = [address, Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        parameters.subject_alt_names.extend(addresses.map(SanType::IpAddress));
        parameters.distinguished_name = named("kube-apiserver");
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        let provider = Arc::new(ring::default_provider());
        ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(Arc::new(AnyCertificate(provider)))
            .with_single_cert(
                vec![certificate.der().clone(), self.issuer.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .context("the server's certificate does not fit its key")
    }

    pub(crate) fn issue(&self, common_name: &str) -> Result<ClientCertificate> {
        let mut parameters = CertificateParams::new(Vec::new())?;
        parameters.distinguished_name = named(common_name);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        self.issued.lock().insert(certificate.der().to_vec(), common_name.to_owned());
        Ok(ClientCertificate { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// No longer trusts the certificates of a common name.
    pub(crate) fn revoke(&self, common_name: &str) {
        self.issued.lock().retain(|_, issued| issued != common_name);
    }

    /// The common name of a client certificate, if it is one of this authority.
    pub(crate) fn name_of(&self, certificate: &CertificateDer<'_>) -> Option<String> {
        self.issued.lock().get(certificate.as_ref()).cloned()
    }
}

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[RawName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl fmt::Debug for AnyCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AnyCertificate")
    }
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}
