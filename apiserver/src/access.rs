//! Access to the server: the credentials that it accepts.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::requests::Authorization;

/// The credentials that are accepted now.
pub(crate) struct Access {
    anonymous: bool,
    tokens: Mutex<BTreeSet<String>>,
}

impl Access {
    pub(crate) fn new(anonymous: bool, tokens: impl IntoIterator<Item = String>) -> Self {
        Self { anonymous, tokens: Mutex::new(tokens.into_iter().collect()) }
    }

    pub(crate) fn add(&self, token: &str) {
        self.tokens.lock().insert(token.to_owned());
    }

    pub(crate) fn remove(&self, token: &str) {
        self.tokens.lock().remove(token);
    }

    /// True if a request with such credentials is served.
    pub(crate) fn admits(&self, authorization: &Authorization) -> bool {
        match authorization {
            Authorization::Anonymous => self.anonymous,
            Authorization::Token(token) => self.tokens.lock().contains(token),
            Authorization::Certificate(_) => true,
            Authorization::UnknownCertificate => false,
        }
    }
}
