//! Logins through an identity provider (`impl Control`): tokens for people with an ID token.

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::{AuditEntry, NewToken};
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Bearer, BearerKind, RevokedLeases, hash};

use crate::audit::token_id;
use crate::control::Control;
use crate::oidc::{Person, Provider};
use crate::token_registry::TokenHash;
use crate::tokens::generate_token;

/// Prefix of the names of login tokens. It is reserved for them.
pub const LOGIN: &str = "login.";
/// Valid logins of one person. A further one ends the login that expires first.
const MAX_LOGINS: usize = 16;
/// Characters of a person's name in a token's name.
const MAX_NAME: usize = 40;

impl Control {
    /// Returns the identity provider.
    ///
    /// # Errors
    /// `NotFound` if the site has none.
    pub fn provider(&self) -> Result<&Provider, Failure> {
        self.oidc().ok_or_else(|| {
            Failure::new(
                Code::NotFound,
                "this site has no identity provider to log in with; ask an administrator for a token, or for `--oidc`",
            )
        })
    }

    /// Makes a token for the person in this ID token, by the first rule of the site that admits the person. The ID token
    /// must have this nonce, if there is one: only who began a login knows it.
    pub async fn log_in(&self, id_token: &str, nonce: Option<&str>) -> Result<NewToken, Failure> {
        let provider = self.provider()?;
        let person = provider.person(id_token).await?;
        if nonce.is_some_and(|nonce| person.nonce.as_deref() != Some(nonce)) {
            let text = "the provider responded to another login; log in again";
            return Err(Failure::new(Code::Unauthorized, text));
        }
        let tenant = {
            let cluster = self.cluster();
            let found = cluster.tenants().named(&person.rule.tenant);
            found.map(|account| account.record().id)
        };
        let tenant = tenant.ok_or_else(|| {
            Failure::new(
                Code::Forbidden,
                format!(
                    "{} belongs to the tenant `{:.64}`, which does not exist at this site; ask an administrator to make it",
                    person.name, person.rule.tenant
                ),
            )
        })?;
        let mark = mark_of(&person);
        let name = format!(
            "{LOGIN}{}.{mark}.{}",
            sanitized(&person.name),
            hex::encode(random::<4>())
        );
        let (token, bearer) = generate_token(BearerKind::Client(person.rule.role), tenant, None, provider.valid_for());
        let bearer = Bearer { name, ..bearer };
        let entry = AuditEntry {
            number: 0,
            at_ms: now_ms(),
            tenant,
            token: token_id(&bearer),
            action: "token.login".into(),
            subject: bearer.name.clone(),
            details: serde_json::json!({ "subject": person.subject, "role": person.rule.role }).to_string(),
        };
        self.store().audit(entry).wait().await?;
        for old in self.surplus_logins(&bearer, &mark) {
            // The person did not ask for the end of its leases: they last as long as that login would have.
            self.store().revoke(old, RevokedLeases::Keep).wait().await?;
            self.rebind(old, None);
            self.cluster().tokens_mut().remove(&old);
        }
        self.store().keep(bearer.clone()).wait().await?;
        self.keep_bearer(bearer.clone());
        self.new_token(token, &bearer)
    }

    /// Returns the person's earlier logins that exceed the limit together with a new one.
    fn surplus_logins(&self, new: &Bearer, mark: &str) -> Vec<TokenHash> {
        let cluster = self.cluster();
        let is_own = |bearer: &&Bearer| {
            let mut parts = bearer.name.rsplit('.');
            bearer.tenant == new.tenant && bearer.name.starts_with(LOGIN) && parts.nth(1) == Some(mark)
        };
        let own = cluster.tokens().values().filter(is_own);
        let mut own: Vec<(u64, TokenHash)> = own.map(|bearer| (bearer.expires_at_ms, bearer.hash)).collect();
        own.sort_unstable();
        let surplus = (own.len() + 1).saturating_sub(MAX_LOGINS);
        own.into_iter().take(surplus).map(|(_, hash)| hash).collect()
    }
}

/// Returns the part of token names that is the same for all logins of a person, and for no one else's.
fn mark_of(person: &Person) -> String {
    hex::encode(&hash(&person.subject)[..6])
}

/// Returns a name with all characters replaced that a token's name may not have.
fn sanitized(name: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || "-_@".contains(c) {
            c
        } else {
            '-'
        }
    };
    name.chars().take(MAX_NAME).map(allowed).collect()
}
