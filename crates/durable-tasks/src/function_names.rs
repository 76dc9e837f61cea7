//! Names of functions: `NAME` is the caller's own function, `OWNER/NAME` is that tenant's, `@ID` after either is one
//! version, and an id alone is one version of any owner.
//!
//! A bare name never means another tenant's function, because any tenant can share a function of any name. An id pins a
//! version: it is the hash of code, form, runtime with its environment, image and resources.

use std::collections::BTreeSet;
use std::sync::Arc;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::{FunctionId, TenantId};
use dayfly_store::tasks::FunctionRecord;

use crate::Tasks;
use crate::functions::may_run;
use crate::submission::Submitter;

/// Separators between an owner and a name, and between a name and a version.
const OWNER: char = '/';
const VERSION: char = '@';
/// Digits of an id that pin a version. A malicious owner could construct a function for fewer digits.
const MIN_DIGITS: usize = 16;
/// Maximum number of candidates in an error.
const MAX_NAMED: usize = 8;

type Functions = Vec<Arc<FunctionRecord>>;

/// A function's name for people: the registered one, or that of its code.
pub fn name_of(function: &FunctionRecord) -> String {
    let name = function.name.clone();
    name.unwrap_or_else(|| function.spec.form.name().to_owned())
}

/// Refuses a name that contains a separator.
pub(super) fn check(name: &str) -> Result<(), Failure> {
    if name.contains([OWNER, VERSION]) {
        let text = format!(
            "`{name:.80}` is no name for a function: leave out `{OWNER}` and `{VERSION}`, which separate owner, name \
             and version"
        );
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    Ok(())
}

impl Tasks {
    /// The function that a text names, in its last version.
    ///
    /// # Errors
    /// `NotFound` if there is none that the caller may run, `InvalidRequest` for a bad version.
    pub fn function_named(&self, by: &Submitter, wanted: &str) -> Result<Arc<FunctionRecord>, Failure> {
        let mut versions = self.functions_named(by, wanted)?;
        versions.pop().ok_or_else(|| unknown(wanted))
    }

    /// The versions that a text names and that the caller may run, the last one last. All have the same owner.
    ///
    /// # Errors
    /// Those of [`Tasks::function_named`].
    pub fn functions_named(&self, by: &Submitter, wanted: &str) -> Result<Functions, Failure> {
        if let Ok(id) = wanted.parse::<FunctionId>() {
            let found = self.function(id).filter(|function| may_run(function, by));
            return found.map(|function| vec![function]).ok_or_else(|| unknown(wanted));
        }
        let mut all = self.functions();
        all.retain(|function| may_run(function, by));
        all.sort_by_key(|function| function.version);
        let own = of(&all, by.tenant, wanted);
        if !own.is_empty() {
            return Ok(own);
        }
        let name = wanted.split_once(OWNER).map_or(wanted, |(_, name)| name);
        // An owner's name may contain an `@` too.
        let (name, digits) = match name.split_once(VERSION) {
            Some((name, digits)) => (name, Some(digits)),
            None => (name, None),
        };
        let named = match wanted.split_once(OWNER) {
            Some((owner, _)) => format!("{owner}{OWNER}{name}"),
            None => name.to_owned(),
        };
        let versions = match wanted.split_once(OWNER) {
            None => of(&all, by.tenant, name),
            Some((owner, _)) => {
                let mut versions = all.clone();
                versions.retain(|function| function.name.as_deref() == Some(name) && self.owner(function) == owner);
                versions
            }
        };
        if versions.is_empty() {
            return Err(match named.contains(OWNER) {
                true => unknown(&named),
                false => self.others_named(&all, &named),
            });
        }
        match digits {
            None => Ok(versions),
            Some(digits) => pinned(&named, digits, versions),
        }
    }

    /// The versions of a tenant's own function that a text names.
    ///
    /// # Errors
    /// `NotFound` if there is none, or it is another tenant's.
    pub(super) fn own_functions_named(&self, tenant: TenantId, wanted: &str) -> Result<Functions, Failure> {
        let mut found = self.functions_named(&self.submitter(tenant), wanted)?;
        match found.iter().find(|function| function.tenant != tenant) {
            None => Ok(std::mem::take(&mut found)),
            Some(function) => {
                let text = format!(
                    "you have no function `{wanted:.80}`: it belongs to `{}`, and only its owner may change or remove \
                     it",
                    self.owner(function)
                );
                Err(Failure::new(Code::NotFound, text))
            }
        }
    }

    fn owner(&self, function: &FunctionRecord) -> String {
        self.tenants.name(function.tenant)
    }

    /// Returns the failure for a bare name that no function of the caller has. It names the other owners.
    fn others_named(&self, all: &Functions, name: &str) -> Failure {
        let named = all.iter().filter(|function| function.name.as_deref() == Some(name));
        let owners: BTreeSet<String> = named.map(|function| self.owner(function)).collect();
        let Some(first) = owners.first() else {
            return unknown(name);
        };
        let shown: Vec<String> = owners
            .iter()
            .take(MAX_NAMED)
            .map(|owner| format!("`{owner}{OWNER}{name:.80}`"))
            .collect();
        let more = match owners.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!(
            "you have no function `{name:.80}`. Others share one of that name with you: {}{more}. Name the one that \
             you trust with its owner, as in `{first}{OWNER}{name:.80}`",
            shown.join(", ")
        );
        Failure::new(Code::NotFound, text)
    }
}

/// A tenant's versions of a name.
fn of(all: &Functions, tenant: TenantId, name: &str) -> Functions {
    let own = all.iter().filter(|function| function.tenant == tenant);
    own.filter(|function| function.name.as_deref() == Some(name))
        .cloned()
        .collect()
}

/// The one version whose id begins with these digits.
fn pinned(named: &str, digits: &str, versions: Functions) -> Result<Functions, Failure> {
    let refused = |code, text: String| Err(Failure::new(code, text));
    let digits = digits.to_ascii_lowercase();
    if digits.len() < MIN_DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        let text = format!(
            "`{VERSION}{digits:.80}` pins no version of `{named:.80}`: take the id that `dayfly function show` prints, \
             or {MIN_DIGITS} digits of it"
        );
        return refused(Code::InvalidRequest, text);
    }
    let begins = |function: &&Arc<FunctionRecord>| function.id.to_string().starts_with(&digits);
    let found: Functions = versions.iter().filter(begins).cloned().collect();
    match found.len() {
        1 => Ok(found),
        0 if versions.iter().any(|one| one.hash.to_string().starts_with(&digits)) => {
            let text = format!(
                "`{digits:.80}` is the hash of the code of `{named:.80}` alone, without the environment that it runs \
                 in: pin the version by its id, which `dayfly function show` prints"
            );
            refused(Code::InvalidRequest, text)
        }
        0 => {
            let text = format!(
                "there is no function `{named:.80}{VERSION}{digits:.80}` any more that you may run: its owner removed \
                 that version, or shares it no longer. Look at the current one (`dayfly function show {named:.80}`) \
                 before you run it"
            );
            refused(Code::NotFound, text)
        }
        _ => {
            let text = format!(
                "several versions of `{named:.80}` have ids that begin with `{VERSION}{digits}`: take a whole id"
            );
            refused(Code::InvalidRequest, text)
        }
    }
}

fn unknown(wanted: &str) -> Failure {
    let text = format!(
        "there is no function `{wanted:.120}` that you may run; `dayfly function list` shows the others, with their \
         owners"
    );
    Failure::new(Code::NotFound, text)
}
