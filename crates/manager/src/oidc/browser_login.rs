//! A login in a browser: the authorization code grant with PKCE (RFC 6749, RFC 7636). The browser keeps the login's
//! secrets in a cookie, so the manager keeps no state.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::text::encoded;
use dayfly_store::system::random;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use ureq::Agent;

use super::Provider;

/// Time limit of a login.
pub const LOGIN_LIMIT: Duration = Duration::from_secs(600);

/// The secrets of a login that has begun.
pub struct BrowserLogin {
    /// Binds the provider's response to the browser that began.
    pub state: String,
    /// Binds the ID token to this login.
    pub nonce: String,
    /// Binds the code to this login.
    verifier: String,
}

/// The provider's response to a code.
#[derive(Deserialize)]
struct Exchanged {
    id_token: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

impl BrowserLogin {
    /// Returns a login with new secrets.
    pub fn begin() -> Self {
        let secret = || URL_SAFE_NO_PAD.encode(random::<32>());
        Self {
            state: secret(),
            nonce: secret(),
            verifier: secret(),
        }
    }

    /// Returns the value of the login's cookie.
    pub fn sealed(&self) -> String {
        [&*self.state, &*self.nonce, &*self.verifier].join(".")
    }

    /// Returns the login of [`Self::sealed`], or `None` if it is malformed.
    pub fn unsealed(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(str::to_owned);
        Some(Self {
            state: parts.next()?,
            nonce: parts.next()?,
            verifier: parts.next()?,
        })
    }
}

impl Provider {
    /// Returns the address at which a person logs in. The provider sends the browser to `back`.
    pub async fn address_for(&self, login: &BrowserLogin, back: &str) -> Result<String, Failure> {
        let info = self.info().await?;
        let address = info.authorization_endpoint.ok_or_else(|| {
            let text = "the identity provider has no address for browsers; log in with `dayfly login`";
            Failure::new(Code::NotFound, text)
        })?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&login.verifier));
        let scope = info.scopes.join(" ");
        let query = form(&[
            ("response_type", "code"),
            ("client_id", &info.client_id),
            ("redirect_uri", back),
            ("scope", &scope),
            ("state", &login.state),
            ("nonce", &login.nonce),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        let mark = if address.contains('?') { '&' } else { '?' };
        Ok(format!("{address}{mark}{query}"))
    }

    /// Exchanges the provider's code for an ID token.
    pub async fn exchange(&self, login: &BrowserLogin, code: &str, back: &str) -> Result<String, Failure> {
        let info = self.info().await?;
        let body = form(&[
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", back),
            ("client_id", &info.client_id),
            ("code_verifier", &login.verifier),
        ]);
        let exchanged: Exchanged = self.post(info.token_endpoint, body).await?;
        exchanged.id_token.ok_or_else(|| {
            let why = exchanged.error_description.or(exchanged.error).unwrap_or_default();
            let text = format!("the identity provider gave no ID token: {why:.300}; log in again");
            Failure::new(Code::Unauthorized, text)
        })
    }

    /// Posts a form. A refusal is read like any other response.
    async fn post<T: DeserializeOwned + Send + 'static>(&self, url: String, body: String) -> Result<T, Failure> {
        let send = move |agent: &Agent, url: &str| {
            let request = agent.post(url).content_type("application/x-www-form-urlencoded");
            request.config().http_status_as_error(false).build().send(body)
        };
        self.read(url, send).await
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    fields.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_survives_its_cookie() {
        let login = BrowserLogin::begin();
        let again = BrowserLogin::unsealed(&login.sealed()).unwrap();
        assert_eq!((&again.state, &again.nonce), (&login.state, &login.nonce));
        assert_eq!(again.verifier, login.verifier);
        assert!(BrowserLogin::unsealed("a.b").is_none());
    }
}
