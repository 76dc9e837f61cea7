//! An institution's OpenID Connect provider: its configuration, its keys, and the verification of ID tokens.
//!
//! The manager fetches only the provider's description and keys. It never sees a password, nor a token with which it
//! could act for a person at the provider.

mod browser_login;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use self::browser_login::{BrowserLogin, LOGIN_LIMIT};
use axum::http::Uri;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::{LoginInfo, Role};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body};

/// Time limit for a request to the provider. A login waits for it.
const FETCH_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of a document of the provider.
const MAX_DOCUMENT_BYTES: u64 = 1 << 20;
/// Keys are fetched again after this time, and when a token names an unknown key.
const KEYS_LIFE: Duration = Duration::from_secs(3600);
/// Minimum time between two fetches, since unauthenticated clients can send tokens.
const FETCH_PAUSE: Duration = Duration::from_secs(10);
/// Tolerated difference between the clocks of provider and manager.
const LEEWAY_S: u64 = 30;
/// Longest validity of a login.
const MAX_VALID_S: u64 = 30 * 24 * 3600;
/// Accepted signature algorithms. None of them needs a secret that the manager would share.
const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// A site's configuration of its provider: the file of `--oidc`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// The provider's URL, exactly as in its tokens. Its description is below it.
    pub issuer: String,
    /// Id of Dayfly at the provider, as a public client.
    pub client_id: String,
    /// Requested scopes besides `openid`.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// Certificate authority of the provider, PEM, if it is not a public one. A relative path starts at the directory
    /// of this file.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Seconds for which a login is valid.
    #[serde(default = "half_a_day")]
    pub valid_for_s: u64,
    /// Rules that admit people. The first matching one applies.
    pub rules: Vec<Rule>,
    #[serde(skip)]
    ca: Option<(String, Certificate<'static>)>,
}

fn half_a_day() -> u64 {
    12 * 3600
}

/// Admits people with a certain claim.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the claim. With dots, of a claim inside another one (`realm_access.roles`).
    pub claim: String,
    /// Required value, or element if the claim is a list. A leading `*` matches any prefix (`*@uni.example`).
    pub value: String,
    /// Name of their tenant, which must exist.
    pub tenant: String,
    /// Role of their tokens.
    #[serde(default = "user")]
    pub role: Role,
}

fn user() -> Role {
    Role::User
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidRequest, text)
}

/// Whether documents from this URL are authentic: they come over TLS or from this machine. Parses the URL like the HTTP
/// client, so that both see the same host. Refuses a user name or password in the URL.
fn is_safe(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let host = authority.host();
    let is_port = |rest: &str| rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let rest = authority.as_str().strip_prefix(host);
    if host.is_empty() || !rest.is_some_and(|rest| rest.is_empty() || is_port(rest)) {
        return false;
    }
    match uri.scheme_str() {
        Some("https") => true,
        Some("http") => is_loopback(host),
        _ => false,
    }
}

/// Whether the host of a URL is the loopback.
fn is_loopback(host: &str) -> bool {
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

impl Site {
    /// Reads and checks the file of `--oidc`.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let named = path.display();
        let text =
            std::fs::read_to_string(path).map_err(|error| wrong(format!("--oidc {named} cannot be read: {error}")))?;
        let mut site: Self =
            serde_json::from_str(&text).map_err(|error| wrong(format!("--oidc {named} is not understood: {error}")))?;
        site.check()
            .map_err(|failure| wrong(format!("--oidc {named}: {}", failure.message)))?;
        if let Some(file) = &site.ca_file {
            let file = path.parent().unwrap_or(Path::new(".")).join(file);
            let pem = std::fs::read_to_string(&file)
                .map_err(|error| wrong(format!("--oidc {named}: {} cannot be read: {error}", file.display())))?;
            let ca = Certificate::from_pem(pem.as_bytes()).map_err(|error| {
                wrong(format!(
                    "--oidc {named}: {} is not a certificate: {error}",
                    file.display()
                ))
            })?;
            site.ca = Some((pem, ca));
        }
        Ok(site)
    }

    fn check(&self) -> Result<(), Failure> {
        if !is_safe(&self.issuer) {
            return Err(wrong(format!(
                "the issuer `{:.200}` is neither an https:// address nor one of the loopback",
                self.issuer
            )));
        }
        if self.rules.is_empty() {
            return Err(wrong("without rules nobody could log in; give at least one"));
        }
        if let Some(rule) = self
            .rules
            .iter()
            .find(|rule| rule.claim.is_empty() || rule.value.is_empty())
        {
            return Err(wrong(format!(
                "the rule for the tenant `{:.64}` names no claim or no value",
                rule.tenant
            )));
        }
        if self.valid_for_s == 0 || self.valid_for_s > MAX_VALID_S {
            return Err(wrong(format!(
                "valid_for_s is {}; give 1 to {MAX_VALID_S}",
                self.valid_for_s
            )));
        }
        Ok(())
    }

    /// Returns the first rule that matches these claims.
    fn rule_for(&self, claims: &Map<String, Value>) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.fits(claims))
    }
}

impl Rule {
    fn fits(&self, claims: &Map<String, Value>) -> bool {
        // An unverified address may belong to another person.
        if self.claim == "email" && claims.get("email_verified") != Some(&Value::Bool(true)) {
            return false;
        }
        let fits = |value: &Value| {
            value.as_str().is_some_and(|text| match self.value.strip_prefix('*') {
                Some(end) => text.ends_with(end),
                None => text == self.value,
            })
        };
        match find(claims, &self.claim) {
            Some(Value::Array(values)) => values.iter().any(fits),
            Some(value) => fits(value),
            None => false,
        }
    }
}

/// Returns a claim by its name, which may contain dots, or by its path.
fn find<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let (first, rest) = name.split_once('.')?;
    find(claims.get(first)?.as_object()?, rest)
}

/// The provider's description of itself, as far as it is used.
#[derive(Debug, Clone, Deserialize)]
struct Description {
    issuer: String,
    jwks_uri: String,
    token_endpoint: String,
    authorization_endpoint: Option<String>,
    device_authorization_endpoint: Option<String>,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

#[derive(Default)]
struct ProviderState {
    description: Option<Description>,
    keys: HashMap<Option<String>, Jwk>,
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

/// A person with a valid ID token, admitted by a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Person {
    /// The provider's permanent id of the person.
    pub subject: String,
    /// Name for display.
    pub name: String,
    /// The nonce of the login, if the client sent one.
    pub nonce: Option<String>,
    /// The rule that admits the person.
    pub rule: Rule,
}

/// The provider, with its description and keys as fetched last.
pub struct Provider {
    site: Site,
    agent: Agent,
    known: tokio::sync::Mutex<ProviderState>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider")
            .field("issuer", &self.site.issuer)
            .finish_non_exhaustive()
    }
}

impl Provider {
    /// Returns the provider of this configuration. Fetches nothing yet, because the provider may be down when the
    /// manager starts.
    pub fn new(site: Site) -> Self {
        let tls = TlsConfig::builder().provider(TlsProvider::Rustls);
        let tls = match &site.ca {
            Some((_, ca)) => tls.root_certs(RootCerts::new_with_certs(std::slice::from_ref(ca))),
            None => tls,
        };
        let config = Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(FETCH_LIMIT))
            .max_redirects(0)
            .max_idle_connections(0)
            .build();
        Self {
            site,
            agent: config.into(),
            known: tokio::sync::Mutex::default(),
        }
    }

    /// How long a login is valid.
    pub fn valid_for(&self) -> Duration {
        Duration::from_secs(self.site.valid_for_s)
    }

    /// Returns the information that a client needs to get an ID token.
    pub async fn info(&self) -> Result<LoginInfo, Failure> {
        let mut known = self.known.lock().await;
        let fresh = known.fetched.is_some_and(|at| at.elapsed() < KEYS_LIFE);
        if !fresh {
            self.refresh(&mut known).await?;
        }
        let Some(description) = &known.description else {
            return Err(self.unreachable("its description is missing"));
        };
        let mut scopes = vec!["openid".to_owned()];
        scopes.extend(self.site.scopes.iter().filter(|scope| *scope != "openid").cloned());
        Ok(LoginInfo {
            issuer: self.site.issuer.clone(),
            client_id: self.site.client_id.clone(),
            scopes,
            token_endpoint: description.token_endpoint.clone(),
            authorization_endpoint: description.authorization_endpoint.clone(),
            device_authorization_endpoint: description.device_authorization_endpoint.clone(),
            ca_pem: self.site.ca.as_ref().map(|(pem, _)| pem.clone()),
        })
    }

    /// Verifies an ID token and returns its person: it must be signed by the provider, for this client, valid now, and
    /// a rule must admit the person.
    pub async fn person(&self, id_token: &str) -> Result<Person, Failure> {
        let refused = |why: &dyn std::fmt::Display| {
            Failure::new(
                Code::Unauthorized,
                format!("this ID token is not accepted: {why}; log in anew with `dayfly login`"),
            )
        };
        let header = decode_header(id_token).map_err(|error| refused(&error))?;
        if !ALGORITHMS.contains(&header.alg) {
            return Err(refused(&format!(
                "it is signed with {:?}, which is not accepted",
                header.alg
            )));
        }
        let key = self
            .key(&header.kid)
            .await?
            .ok_or_else(|| refused(&"the provider has no key with the name in the token"))?;
        let key = DecodingKey::from_jwk(&key).map_err(|error| refused(&error))?;
        let mut validation = Validation::new(header.alg);
        validation.set_audience(&[&self.site.client_id]);
        validation.set_issuer(&[&self.site.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY_S;
        let claims = decode::<Map<String, Value>>(id_token, &key, &validation)
            .map_err(|error| refused(&error))?
            .claims;
        // A token with several audiences must name this client as its authorised party.
        let many = claims
            .get("aud")
            .and_then(Value::as_array)
            .is_some_and(|all| all.len() > 1);
        let party = claims.get("azp").and_then(Value::as_str);
        if many && party.is_none() || party.is_some_and(|party| party != self.site.client_id) {
            return Err(refused(&"it was made for another client"));
        }
        self.admit(&claims)
    }

    fn admit(&self, claims: &Map<String, Value>) -> Result<Person, Failure> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let subject = text("sub")
            .ok_or_else(|| Failure::new(Code::Unauthorized, "the ID token names no person (no `sub`)"))?
            .to_owned();
        let name = ["preferred_username", "email", "name"]
            .into_iter()
            .find_map(text)
            .unwrap_or(&subject)
            .to_owned();
        let rule = self.site.rule_for(claims).ok_or_else(|| {
            Failure::new(
                Code::Forbidden,
                format!(
                    "{} says that you are {name:.80}, and no rule of this site lets you in; ask an administrator for one",
                    self.site.issuer
                ),
            )
        })?;
        Ok(Person {
            subject,
            name,
            nonce: text("nonce").map(str::to_owned),
            rule: rule.clone(),
        })
    }

    async fn key(&self, id: &Option<String>) -> Result<Option<Jwk>, Failure> {
        let mut known = self.known.lock().await;
        let old = known.fetched.is_none_or(|at| at.elapsed() >= KEYS_LIFE);
        if old || !known.keys.contains_key(id) {
            let wait = known.tried.is_some_and(|at| at.elapsed() < FETCH_PAUSE);
            match wait {
                true if known.fetched.is_none() => {
                    return Err(self.unreachable("it did not respond a moment ago"));
                }
                true => {}
                false => self.refresh(&mut known).await?,
            }
        }
        // A token may omit the key's name if there is only one key.
        let only = || {
            known
                .keys
                .values()
                .next()
                .filter(|_| id.is_none() && known.keys.len() == 1)
        };
        Ok(known.keys.get(id).or_else(only).cloned())
    }

    async fn refresh(&self, known: &mut ProviderState) -> Result<(), Failure> {
        known.tried = Some(Instant::now());
        let base = self.site.issuer.trim_end_matches('/');
        let description: Description = self.fetch(format!("{base}/.well-known/openid-configuration")).await?;
        if description.issuer != self.site.issuer {
            return Err(self.unreachable(&format!(
                "it calls itself `{:.200}`; write exactly that into the file of --oidc",
                description.issuer
            )));
        }
        let optional = [
            &description.authorization_endpoint,
            &description.device_authorization_endpoint,
        ];
        let addresses = optional.into_iter().flatten();
        for address in addresses.chain([&description.jwks_uri, &description.token_endpoint]) {
            if !is_safe(address) {
                return Err(self.unreachable(&format!("it names the address `{address:.200}`, which is not https")));
            }
        }
        let set: KeySet = self.fetch(description.jwks_uri.clone()).await?;
        // Skip keys for other purposes and of unknown kinds.
        let keys = set
            .keys
            .into_iter()
            .filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        known.keys = keys.map(|key| (key.common.key_id.clone(), key)).collect();
        known.description = Some(description);
        known.fetched = Some(Instant::now());
        Ok(())
    }

    async fn fetch<T: DeserializeOwned + Send + 'static>(&self, url: String) -> Result<T, Failure> {
        self.read(url, |agent, url| agent.get(url).call()).await
    }

    /// Reads the document with which the provider responds to a request.
    async fn read<T: DeserializeOwned + Send + 'static>(
        &self,
        url: String,
        request: impl FnOnce(&Agent, &str) -> Result<Response<Body>, ureq::Error> + Send + 'static,
    ) -> Result<T, Failure> {
        let agent = self.agent.clone();
        let named = url.clone();
        let read = tokio::task::spawn_blocking(move || -> Result<T, String> {
            let mut response = request(&agent, &url).map_err(|error| error.to_string())?;
            let body = response.body_mut().with_config().limit(MAX_DOCUMENT_BYTES);
            body.read_json().map_err(|error| error.to_string())
        });
        let read = read.await.unwrap_or_else(|error| Err(error.to_string()));
        read.map_err(|error| self.unreachable(&format!("{named}: {error}")))
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::new(
            Code::Unreachable,
            format!(
                "the identity provider {} cannot be used: {why}; try again, or use a token",
                self.site.issuer
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rule(claim: &str, value: &str) -> Rule {
        Rule {
            claim: claim.into(),
            value: value.into(),
            tenant: "astro".into(),
            role: Role::User,
        }
    }

    fn fits(rule: &Rule, claims: &Value) -> bool {
        rule.fits(claims.as_object().unwrap())
    }

    #[test]
    fn rule_matches_list_elements_and_nested_claims() {
        let claims = json!({ "groups": ["physics", "astro"], "realm_access": { "roles": ["staff"] }, "https://x.example/unit": "7" });
        assert!(fits(&rule("groups", "astro"), &claims));
        assert!(!fits(&rule("groups", "astr"), &claims));
        assert!(fits(&rule("realm_access.roles", "staff"), &claims));
        assert!(fits(&rule("https://x.example/unit", "7"), &claims));
        assert!(!fits(&rule("groups.0", "physics"), &claims));
        assert!(!fits(&rule("missing", "*"), &claims));
    }

    #[test]
    fn unverified_email_address_matches_no_rule() {
        let ours = rule("email", "*@uni.example");
        assert!(fits(
            &ours,
            &json!({ "email": "ada@uni.example", "email_verified": true })
        ));
        assert!(!fits(&ours, &json!({ "email": "ada@uni.example" })));
        assert!(!fits(
            &ours,
            &json!({ "email": "ada@uni.example", "email_verified": false })
        ));
        assert!(!fits(
            &ours,
            &json!({ "email": "ada@uni.example.evil", "email_verified": true })
        ));
    }

    #[test]
    fn unsafe_url_is_not_fetched() {
        assert!(is_safe("https://login.uni.example/realms/lab"));
        assert!(is_safe("http://127.0.0.1:4000") && is_safe("http://[::1]:4000/x"));
        assert!(!is_safe("http://login.uni.example"));
        assert!(!is_safe("http://localhost.evil.example") && !is_safe("http://127.0.0.1.evil.example:80/"));
        assert!(!is_safe("https://") && !is_safe("file:///etc/passwd"));
        assert!(is_safe("http://127.9.9.9/") && is_safe("HTTP://LOCALHOST:1"));
    }

    #[test]
    fn url_with_a_user_or_password_is_refused() {
        for authority in [
            "127.0.0.1:x@evil.example",
            "127.0.0.1@evil.example:80",
            "[::1]@evil.example",
            "a:b@127.0.0.1",
        ] {
            assert!(!is_safe(&format!("http://{authority}/")), "{authority}");
            assert!(!is_safe(&format!("https://{authority}/")), "{authority}");
        }
    }

    proptest! {
        /// Any combination of these parts with plain HTTP is accepted only for the loopback.
        #[test]
        fn safe_http_url_is_on_the_loopback(parts in prop::collection::vec(part(), 1..8)) {
            let url = format!("http://{}", parts.concat());
            if is_safe(&url) {
                let rest = &url["http://".len()..];
                let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
                let host = authority.strip_prefix("[::1]").map_or_else(
                    || authority.split(':').next().unwrap_or_default(),
                    |_| "::1",
                );
                let is_loopback = host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
                prop_assert!(host == "localhost" || is_loopback, "{url}");
            }
        }

        #[test]
        fn no_url_causes_a_panic(url in ".{0,60}") {
            let _ = is_safe(&url);
        }
    }

    fn part() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "127.0.0.1",
            "localhost",
            "[::1]",
            "evil.example",
            "@",
            ":",
            "/",
            "?",
            "#",
            "\\",
            "%40",
            ".",
            "x",
            "80",
            " ",
        ])
    }

    #[test]
    fn configuration_without_rules_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("oidc.json");
        let read = |value: Value| {
            std::fs::write(&path, value.to_string()).unwrap();
            Site::read(&path).map(|_| ()).map_err(|failure| failure.message)
        };
        let rules = json!([{ "claim": "groups", "value": "astro", "tenant": "astro" }]);
        let good = json!({ "issuer": "https://login.example", "client_id": "dayfly", "rules": rules });
        assert_eq!(read(good.clone()), Ok(()));
        let with = |name: &str, value: Value| {
            let mut other = good.clone();
            other[name] = value;
            read(other).unwrap_err()
        };
        assert!(with("rules", json!([])).contains("nobody could log in"));
        assert!(with("issuer", json!("http://login.example")).contains("https://"));
        assert!(with("valid_for_s", json!(0)).contains("valid_for_s"));
        assert!(with("secret", json!("x")).contains("unknown field"));
        assert!(with("ca_file", json!("missing.pem")).contains("missing.pem"));
    }

    fn provider() -> (Provider, jsonwebtoken::EncodingKey) {
        let key = dayfly_lease::SigningKey::from_seed([7; 32]);
        let site = json!({
            "issuer": "https://login.example", "client_id": "dayfly",
            "rules": [{ "claim": "groups", "value": "astro", "tenant": "astro" }],
        });
        let mut provider = Provider::new(serde_json::from_value(site).unwrap());
        let x = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, key.public().0);
        let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": "k" });
        let known = provider.known.get_mut();
        known
            .keys
            .insert(Some("k".into()), serde_json::from_value(jwk).unwrap());
        (known.fetched, known.tried) = (Some(Instant::now()), Some(Instant::now()));
        (provider, jsonwebtoken::EncodingKey::from_ed_der(&key.to_pkcs8()))
    }

    #[tokio::test]
    async fn only_valid_tokens_for_this_client_are_accepted() {
        let (provider, key) = provider();
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let good = json!({
            "iss": "https://login.example", "aud": "dayfly", "sub": "1", "exp": now + 60, "groups": ["astro"],
        });
        let mut header = jsonwebtoken::Header::new(Algorithm::EdDSA);
        header.kid = Some("k".into());
        let sign = |claims: &Value| jsonwebtoken::encode(&header, claims, &key).unwrap();
        let person = provider.person(&sign(&good)).await.unwrap();
        assert_eq!((person.subject.as_str(), person.rule.tenant.as_str()), ("1", "astro"));
        let with = |name: &str, value: Value| {
            let mut other = good.clone();
            other[name] = value;
            sign(&other)
        };
        let bad = [
            with("exp", json!(now - 120)),
            with("exp", Value::Null),
            with("nbf", json!(now + 120)),
            with("iss", json!("https://login.example/")),
            with("aud", json!("another")),
            with("aud", json!(["dayfly", "another"])),
            with("azp", json!("another")),
            with("sub", json!("")),
        ];
        for token in bad {
            assert_eq!(
                provider.person(&token).await.unwrap_err().code,
                Code::Unauthorized,
                "{token}"
            );
        }
        let both = with("aud", json!(["another", "dayfly"]));
        assert_eq!(provider.person(&both).await.unwrap_err().code, Code::Unauthorized);
        let stranger = provider.person(&with("groups", json!(["other"]))).await.unwrap_err();
        assert_eq!(stranger.code, Code::Forbidden);
    }
}
