//! Tokens for people whom an identity provider vouches for.

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tenancy::{AuditEntry, NewToken};
use dayfly_store::system::{now_ms, random};
use dayfly_store::{Bearer, BearerKind, RevokedLeases, hash};

use crate::control::{Control, fresh_bearer};
use crate::oidc::{Person, Provider};
use crate::tenants::token_id;

/// How the names of such tokens begin; nobody else may use that.
pub const LOGIN: &str = "login.";
/// A person's logins that are good at a time: with another one, the one that ends first is worth nothing any more.
const MAX_LOGINS: usize = 16;
/// Characters of a person's name in a token's.
const MAX_NAME: usize = 40;

impl Control {
    /// The identity provider, if the site has one.
    pub fn provider(&self) -> Result<&Provider, Failure> {
        self.oidc.as_ref().ok_or_else(|| {
            Failure::new(
                Code::NotFound,
                "this site has no identity provider to log in with; ask an administrator for a token, or for `--oidc`",
            )
        })
    }

    /// Gives a token to whoever this ID token is about.
    pub async fn log_in(&self, id_token: &str) -> Result<NewToken, Failure> {
        let provider = self.provider()?;
        let person = provider.person(id_token).await?;
        let tenant = self
            .cluster()
            .tenant_named(&person.rule.tenant)
            .map(|account| account.record.id);
        let tenant = tenant.ok_or_else(|| {
            Failure::new(
                Code::Forbidden,
                format!(
                    "{} belongs to the tenant `{:.64}`, which this site does not have; ask an administrator to make it",
                    person.name, person.rule.tenant
                ),
            )
        })?;
        let mark = mark_of(&person);
        let name = format!(
            "{LOGIN}{}.{mark}.{}",
            readable(&person.name),
            hex::encode(random::<4>())
        );
        let (token, bearer) = fresh_bearer(BearerKind::Client(person.rule.role), tenant, None, provider.valid_for());
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
        self.store.audit(entry).wait().await?;
        for old in self.surplus_logins(&bearer, &mark) {
            // Nobody asked for its leases to end: they last as long as that login would have.
            self.store.revoke(old, RevokedLeases::Keep).wait().await?;
            self.rebind(old, None);
            self.cluster().bearers.remove(&old);
        }
        self.store.keep(bearer.clone()).wait().await?;
        self.keep_bearer(bearer.clone());
        self.new_token(&self.cluster(), token, &bearer)
    }

    /// Hashes of a person's earlier logins that are too many beside this one.
    fn surplus_logins(&self, new: &Bearer, mark: &str) -> Vec<[u8; 32]> {
        let cluster = self.cluster();
        let same = |bearer: &&Bearer| {
            let mut parts = bearer.name.rsplit('.');
            bearer.tenant == new.tenant && bearer.name.starts_with(LOGIN) && parts.nth(1) == Some(mark)
        };
        let mut own: Vec<(u64, [u8; 32])> = cluster
            .bearers
            .values()
            .filter(same)
            .map(|bearer| (bearer.expires_at_ms, bearer.hash))
            .collect();
        own.sort_unstable();
        let surplus = (own.len() + 1).saturating_sub(MAX_LOGINS);
        own.into_iter().take(surplus).map(|(_, hash)| hash).collect()
    }
}

/// The same for all logins of one person, and for nobody else's.
fn mark_of(person: &Person) -> String {
    hex::encode(&hash(&person.subject)[..6])
}

/// A name as it may stand in that of a token.
fn readable(name: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || "-_@".contains(c) {
            c
        } else {
            '-'
        }
    };
    name.chars().take(MAX_NAME).map(allowed).collect()
}
